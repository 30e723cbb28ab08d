"""The layout of a training run on a Ray cluster."""

from dataclasses import dataclass
from typing import Annotated

from rbi.config import Ge, check_fields
from rbi.online.config import GROUPS, Schedule


@dataclass(frozen=True)
class ClusterConfig:
    """The layout of a run on a Ray cluster (--engine ray)."""

    workers: Annotated[int, Ge(0)] = 0
    """Rollout workers, which share the environments. Workers that do not fit wait for a node to join. 0: as many as fit
    when the run starts."""
    shards: Annotated[int, Ge(1)] = 1
    """Replay shards. A single shard is placed on the learner's node; several are spread over the nodes."""
    block_steps: Annotated[int, Ge(1)] = 16
    """Steps of every environment in one block of experience."""
    prefetch: Annotated[int, Ge(0)] = 2
    """Samples from the replay that are requested ahead of the learner."""
    lockstep: bool = False
    """Alternate rollouts and updates as the local engine does, so that a run repeats to the last bit; one worker."""
    evaluation_interval: Annotated[int, Ge(0)] = 0
    """Updates between two evaluations during training; 0: a twentieth of the run."""
    evaluation_episodes: Annotated[int, Ge(0)] = 10
    """Episodes of each evaluation during training; 0 disables it."""
    worker_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs that Ray reserves for a rollout worker."""
    worker_gpus: Annotated[float, Ge(0)] = 0.0
    """GPUs of a rollout worker, fractions allowed; with 0 it computes on the CPU."""
    learner_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs of the learner worker."""
    learner_gpus: Annotated[float, Ge(0)] | None = None
    """GPUs of the learner worker; by default one if the cluster has any."""
    shard_cpus: Annotated[float, Ge(0)] = 0.0
    """CPUs of a replay shard; its work is short and comes in bursts."""
    evaluator_cpus: Annotated[float, Ge(0)] = 0.0
    """CPUs of an evaluation, which runs at low priority."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.lockstep and (self.workers > 1 or self.shards > 1):
            raise ValueError("lockstep: needs one worker and one shard")
        if self.workers and self.shards > self.workers:
            raise ValueError(f"shards = {self.shards}: more than workers = {self.workers}")

    def fitting_workers(self, cpus: float) -> int:
        """How many workers fit next to the other processes."""
        left = cpus - self.learner_cpus - self.shards * self.shard_cpus - self.evaluator_cpus
        return max(0, int(left / self.worker_cpus + 1e-9)) if self.worker_cpus else max(1, int(cpus))

    def num_workers(self, schedule: Schedule, cpus: float) -> int:
        """The number of rollout workers of a run; the environments must divide evenly among them."""
        if self.workers or self.lockstep:
            workers = self.workers or 1
            if schedule.num_envs % (GROUPS * workers):
                raise ValueError(
                    f"workers = {workers}: num_envs = {schedule.num_envs} does not divide among them, in {GROUPS} "
                    "groups each"
                )
            return workers
        most = max(1, self.shards, min(self.fitting_workers(cpus), schedule.num_envs // GROUPS))
        divisors = [workers for workers in range(self.shards, most + 1) if schedule.num_envs % (GROUPS * workers) == 0]
        if not divisors:
            raise ValueError(f"num_envs = {schedule.num_envs}: does not divide among {self.shards} workers or more")
        return divisors[-1]
