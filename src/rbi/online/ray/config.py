"""How a training run is laid out over a cluster."""

import math
from dataclasses import dataclass

from rbi.online.config import GROUPS, Schedule


@dataclass(frozen=True)
class ClusterConfig:
    """How a run is laid out over a Ray cluster (--engine ray)."""

    workers: int = 0
    """Actor workers that share the players. Those that find no room wait until a node joins; 0: as many as find room
    when the run starts."""
    shards: int = 1
    """Parts of the replay. One lives beside the learner; several are spread over the nodes."""
    block_steps: int = 16
    """Steps of each player in one block of experience."""
    prefetch: int = 2
    """Rounds of batches that are on their way while the learner learns."""
    lockstep: bool = False
    """Let worker and learner take turns as in the local engine, so that a run repeats to the last bit; one worker."""
    evaluate_updates: int = 0
    """Updates between two evaluations of the newest policy; 0: a twentieth of the run."""
    evaluate_episodes: int = 10
    """Episodes of each evaluation while the run goes on; 0: none."""
    actor_cpus: float = 1.0
    """Processors that Ray sets aside for a worker."""
    actor_gpus: float = 0.0
    """GPUs of a worker, or a part of one; with none it computes on its processor."""
    learner_cpus: float = 1.0
    """Processors of the learner."""
    learner_gpus: float | None = None
    """GPUs of the learner; if not said, one where the cluster has any."""
    shard_cpus: float = 0.0
    """Processors of a shard; its work is short and comes in bursts."""
    evaluator_cpus: float = 0.0
    """Processors of the evaluator, which gives way to everything else."""

    def __post_init__(self) -> None:
        for name, least in (
            ("workers", 0), ("shards", 1), ("block_steps", 1), ("prefetch", 0), ("evaluate_updates", 0),
            ("evaluate_episodes", 0), ("actor_cpus", 0), ("actor_gpus", 0), ("learner_cpus", 0), ("shard_cpus", 0),
            ("evaluator_cpus", 0), ("learner_gpus", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ValueError(f"cluster.{name} = {value}: must be at least {least}")
        if self.lockstep and (self.workers > 1 or self.shards > 1):
            raise ValueError("cluster.lockstep: takes one worker and one shard")
        if self.workers and self.shards > self.workers:
            raise ValueError(f"cluster.shards = {self.shards}: more than cluster.workers = {self.workers} can fill")

    def room(self, cpus: float) -> int:
        """How many workers find room beside the others on so many processors."""
        left = cpus - self.learner_cpus - self.shards * self.shard_cpus - self.evaluator_cpus
        return max(0, int(left / self.actor_cpus + 1e-9)) if self.actor_cpus else max(1, int(cpus))

    def workers_for(self, schedule: Schedule, cpus: float) -> int:
        """The workers of a run on a cluster with so many processors: the players must divide among them."""
        if self.workers or self.lockstep:
            workers = self.workers or 1
            if schedule.num_envs % (GROUPS * workers):
                raise ValueError(
                    f"cluster.workers = {workers}: --schedule.num-envs = {schedule.num_envs} do not divide among them, in "
                    f"{GROUPS} groups each"
                )
            return workers
        most = max(1, self.shards, min(self.room(cpus), schedule.num_envs // GROUPS))
        fitting = [workers for workers in range(self.shards, most + 1) if schedule.num_envs % (GROUPS * workers) == 0]
        if not fitting:
            raise ValueError(
                f"--schedule.num-envs = {schedule.num_envs}: do not divide among {self.shards} workers or more"
            )
        return fitting[-1]
