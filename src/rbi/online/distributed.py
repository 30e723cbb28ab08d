"""A distributed run as its driver knows it, whatever carries the calls: its processes, counts and statistics.

Engines (`rbi.online.ray`) add the calls, and what happens when a process dies.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rbi.checkpoint import Checkpoint
from rbi.evaluation.rollouts import RecentScores
from rbi.observations import ObservationSpec
from rbi.online.accounting import Accounting
from rbi.online.config import GROUPS, ClusterConfig, TrainConfig
from rbi.online.engine import without_prefix
from rbi.online.rollout import RolloutStatistics
from rbi.online.stream import Array, ReplayStatus
from rbi.progress import ProcessStatus


@dataclass
class ActorHandle:
    """A process, by which its engine calls it. Every restart increments `restarts`; answers from before it are void."""

    handle: Any
    name: str = ""
    alive: bool = False
    restarts: int = 0
    pid: int = 0
    node: str = ""
    """The id of its node."""
    host: str = ""
    """The address of its node."""

    def status(self, rate: float | None = None, unit: str = "") -> ProcessStatus:
        return ProcessStatus(self.name, self.host, self.alive, self.restarts, rate, unit)


@dataclass
class ReplayHandle(ActorHandle):
    """A process that holds a part of the replay: the learner, or a replay shard."""

    incarnation: str = ""
    mass: float = 0.0
    states: int = 0
    saved: Any = None
    """The replay as of the last checkpoint that has it; a restarted process continues from it."""

    def restarted(self, status: ReplayStatus) -> bool:
        """Whether the process that answers is another one than before."""
        return self.incarnation not in ("", status.incarnation)


@dataclass
class WorkerHandle(ActorHandle):
    """A rollout worker."""

    index: int = 0
    replay: ReplayHandle = field(default_factory=lambda: ReplayHandle(None))
    """Where its blocks go."""
    step: int = 0
    reset: bool = True
    """Whether its next block starts new episodes."""
    requests: int = 0
    """Blocks that were requested and have not arrived."""


class DistributedRun:
    """The layout, counts and statistics of a run, and what a checkpoint stores of them."""

    def __init__(
        self, config: TrainConfig, seed: int, layout: ClusterConfig, obs_spec: ObservationSpec, cpus: float, gpus: float
    ) -> None:
        """`cpus`, `gpus`: those of the cluster, which decide the number of workers if the layout does not."""
        self.config, self.seed, self.layout, self.obs_spec = config, seed, layout, obs_spec
        self.device = torch.device("cpu")  # of this process; workers and learner have their own
        if config.learner.batch_size % layout.learners:
            raise ValueError(f"learners = {layout.learners}: do not divide batch_size = {config.learner.batch_size}")
        self.batch_bytes, self.waited_seconds = 0, 0.0
        self.set_workers(layout.num_workers(config.schedule, cpus, gpus))
        self.saved_replays: list[dict[str, Array]] = [{}] * layout.replays

    def set_workers(self, workers: int) -> None:
        """Set the number of rollout workers, before the run starts."""
        self.num_workers = workers
        self.accounting = Accounting(self.config, self.layout.publish_interval(self.config.schedule, workers))
        self.statistics = RolloutStatistics(self.config, workers)
        self.saved_steps = [0] * workers

    @property
    def updates(self) -> int:
        return self.accounting.updates

    @property
    def states(self) -> int:
        return self.accounting.states

    @property
    def learning_started(self) -> bool:
        return self.accounting.learning_started

    @property
    def recent_scores(self) -> RecentScores:
        return self.statistics.recent_scores

    @property
    def envs_per_group(self) -> int:
        return self.config.schedule.num_envs // self.num_workers // GROUPS

    def counted_metrics(self) -> dict[str, Any]:
        """What the driver has counted, and the means of what the actors have reported since the last call."""
        return {
            "updates": self.updates,
            "states": self.states,
            **self.recent_scores.metrics(),
            **self.statistics.actor_metrics(),
            "weights_behind": self.statistics.weights_behind,
            "lost_steps": self.accounting.faults.steps_in_flight,
            "lost_updates": self.accounting.faults.updates,
            "block_bytes": self.statistics.bytes,
            "batch_bytes": self.batch_bytes,
        }

    def losses(self) -> dict[str, Any]:
        """What failures have cost, for result.json."""
        return {"faults": asdict(self.accounting.faults), "repeated_updates": self.accounting.repeated_updates}

    def replay_layout(self) -> dict[str, Any]:
        """What decides which process holds whose experience."""
        return {"workers": self.num_workers, "replay": self.layout.replay, "parts": self.layout.replays}

    def counters(self, worker_steps: list[int]) -> dict[str, Any]:
        """Everything counted, for a checkpoint."""
        return self.accounting.state() | {
            "recent_scores": self.recent_scores.state(),
            "layout": self.replay_layout(),
            "worker_steps": worker_steps,
        }

    def restore_counters(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint's counts. With another layout, or without the replay, it is filled again first."""
        counters = checkpoint.counters
        if "layout" not in counters:
            raise ValueError("the checkpoint is of --engine local, not of --engine ray")
        self.set_workers(self.num_workers if self.layout.workers else counters["layout"]["workers"])
        self.accounting.restore(counters)
        self.recent_scores.restore(counters["recent_scores"])
        same = counters["layout"] == self.replay_layout()
        steps, replay = counters["worker_steps"], checkpoint.tensors.get("replay")
        self.saved_steps = steps if same else [max(steps)] * self.num_workers
        if not (replay and same):
            self.accounting.refill_replay()
            return
        parts = [without_prefix(replay, f"replay{number}.") for number in range(self.layout.replays)]
        self.saved_replays = [{name: column.numpy() for name, column in part.items()} for part in parts]
