"""A distributed run as its driver knows it, whatever carries the calls: counts, statistics, and its processes.

States and updates are requested so that their ratio is the configured one. The driver counts what it requests, what
arrives and what is lost. Engines (`rbi.online.ray`) add the calls, and what happens when a process dies.
"""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from rbi.checkpoint import Checkpoint
from rbi.evaluation.rollouts import EpisodeResult, RecentScores
from rbi.observations import ObservationSpec
from rbi.online.apex import ApexActor
from rbi.online.config import GROUPS, ClusterConfig, TrainConfig
from rbi.online.engine import exploration_of, without_prefix
from rbi.online.rbi import RBIActor
from rbi.online.rollout import BlockSummary
from rbi.online.stream import Array, ReplayStatus
from rbi.progress import ProcessStatus

RATE_SECONDS = 10.0  # over which the rates of processes are averaged
SAVED_COUNTERS = (
    "updates", "states", "repeated_updates", "updates_due", "learning_started", "states_before_learning"
)  # fmt: skip


@dataclass
class Faults:
    """What failures have cost so far."""

    steps_in_flight: int = 0
    """Steps that were requested and never reached the replay."""
    replay_states: int = 0
    """States of the replay that were lost with its process."""
    updates: int = 0
    """Updates that were repeated."""
    workers: int = 0
    """Deaths of rollout workers; below, of replay shards and learner workers."""
    shards: int = 0
    learners: int = 0


class Accounting:
    """New states make updates due at the configured ratio. Both counts only grow: updates that were lost with a learner
    stay counted, as `repeated_updates`, and the run does as many more.

                         updates_due     requested_updates
        states  ----------|---------------|------------>  updates
        in_flight         how far rollouts may run ahead of the learner
    """

    def __init__(self, config: TrainConfig, publish_interval: int = 0) -> None:
        """`publish_interval`: updates between publications, by default the schedule's."""
        self.schedule, self.publish_interval = config.schedule, publish_interval or config.schedule.publish_interval
        self.updates_per_sample = config.learner.updates_per_sample
        self.release_interval = config.replay.release_interval
        self.states = self.updates = self.repeated_updates = 0
        self.updates_due, self.learning_started = 0.0, False
        self.states_before_learning = config.schedule.learning_starts
        self.in_flight = 0  # states that were requested and are not in the replay yet
        self.requested_updates = 0  # updates that were requested and are not done yet
        self.faults = Faults()

    @property
    def total_updates(self) -> int:
        return self.schedule.updates + self.repeated_updates

    @property
    def can_start(self) -> bool:
        """Whether there are enough states to start learning."""
        return not self.learning_started and self.states >= self.states_before_learning

    def request_states(self, states: int) -> None:
        self.in_flight += states

    def receive_states(self, steps: int, envs_per_group: int) -> None:
        """A block of `steps` has reached the replay."""
        self.in_flight -= steps * envs_per_group
        for _ in range(steps):  # one by one, so that sums round as in the local engine
            self.states += envs_per_group
            if self.learning_started:
                self.updates_due += envs_per_group / self.schedule.states_per_update

    def lose_states(self, states: int) -> None:
        """A requested block will never arrive."""
        self.in_flight -= states
        self.faults.steps_in_flight += states

    def may_request(self, block: int, ahead: int) -> bool:
        """Whether a block may be requested, if rollouts may run `ahead` states in front of the learner."""
        if not self.learning_started:
            return (
                self.states >= self.states_before_learning or self.states + self.in_flight < self.states_before_learning
            )
        limit = ahead + self.updates_per_sample * self.schedule.states_per_update
        due = (self.updates_due + self.requested_updates) * self.schedule.states_per_update
        return due + self.in_flight + block <= limit

    def samples_due(self) -> int:
        """Samples that may be learned from without a pause: publishing and releasing happen at set counts."""
        expected = self.updates + self.requested_updates
        limits = [
            self.total_updates - expected,
            self.publish_interval - expected % self.publish_interval,
        ]
        if self.release_interval:
            if self.requested_updates and expected % self.release_interval == 0:
                return 0  # the requested updates come first, then the release
            limits.append(self.release_interval - expected % self.release_interval)
        return max(0, int(min(self.updates_due, *limits))) // self.updates_per_sample if self.learning_started else 0

    def request_updates(self, samples: int) -> int:
        """Count requested updates; returns the number of updates at which they start."""
        start = self.updates + self.requested_updates
        self.updates_due -= samples * self.updates_per_sample
        self.requested_updates += samples * self.updates_per_sample
        return start

    def complete_updates(self, samples: int, updates: int) -> None:
        """A request is over and the learner is at `updates`. What it could not do stays due."""
        done = max(0, updates - self.updates)
        self.requested_updates -= samples * self.updates_per_sample
        self.updates_due += samples * self.updates_per_sample - done
        self.updates += done

    def fail_updates(self, samples: int) -> None:
        """Requested updates were lost with the learner."""
        self.complete_updates(samples, self.updates)

    def rewind(self, saved: int) -> None:
        """The learner continues from a state saved at `saved` updates."""
        repeated = self.updates - saved
        self.repeated_updates += repeated
        self.faults.updates += repeated

    def refill_replay(self) -> None:
        """Nothing is left to sample: collect states before learning continues."""
        self.learning_started = False
        self.states_before_learning = self.states + self.schedule.learning_starts

    def steps_until_due(self, envs_per_group: int, most: int) -> int:
        """Steps of a single worker until learning starts or a sample is due."""
        if not self.learning_started:
            return min(most, max(1, math.ceil((self.states_before_learning - self.states) / envs_per_group)))
        due, steps = self.updates_due, 0
        while due < self.updates_per_sample and steps < most:
            due += envs_per_group / self.schedule.states_per_update
            steps += 1
        return max(1, steps)

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SAVED_COUNTERS} | {"faults": asdict(self.faults)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in SAVED_COUNTERS:
            setattr(self, name, state[name])
        self.faults = Faults(**state["faults"])


class RolloutStatistics:
    """What the rollout workers of a run have reported to its driver: scores, metrics of their actors, bytes, rates."""

    def __init__(self, config: TrainConfig, workers: int) -> None:
        _, low_epsilon = exploration_of(config)
        self.recent_scores = RecentScores(int(low_epsilon.sum()))
        self.metric_names = RBIActor.METRICS if config.algo == "rbi" else ApexActor.METRICS
        self.sums, self.means = np.zeros(len(self.metric_names) + 1), dict[str, float]()
        self.bytes, self.weights_behind = 0, 0
        self.counts = np.zeros(workers + 1)  # states of each worker, and updates
        self.rates: list[float | None] = [None] * (workers + 1)
        self.measured = (time.monotonic(), self.counts.copy())

    def add(self, worker: int, summary: BlockSummary, updates: int) -> None:
        """Count a worker's block, which arrived after `updates`."""
        self.bytes += summary.bytes
        self.counts[worker] += summary.states
        self.weights_behind = updates - summary.version
        self.sums += np.sum(summary.sums, 0)
        for env_index, score, low_epsilon in summary.episodes:
            self.recent_scores.add(EpisodeResult(env_index, score, 0, False), low_epsilon=low_epsilon)

    def actor_metrics(self) -> dict[str, float]:
        """Means since the last call; if no block has arrived since, the last ones stand."""
        *sums, count = self.sums.tolist()
        if count:
            self.sums[:] = 0
            self.means = dict(zip(self.metric_names, (total / count for total in sums), strict=True))
        return self.means

    def measure(self, updates: int) -> bool:
        """Every ten seconds, compute the rates of the time since: steps/s of each worker, and updates/s at the end."""
        (since, before), now = self.measured, time.monotonic()
        if now - since < RATE_SECONDS:
            return False
        self.counts[-1] = updates
        self.rates = ((self.counts - before) / (now - since)).tolist()
        self.measured = (now, self.counts.copy())
        return True


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
