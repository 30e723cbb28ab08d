"""Accounting, launching and supervision of a run's processes.

`Accounting` counts states and updates and keeps their ratio; it does not know Ray. `launch` asks Ray for the processes.
`Supervisor` tracks which of them are alive and what was requested, and restores what a restarted process has lost.
"""

import functools
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rbi.evaluation.rollouts import Protocol, run_episodes
from rbi.observations import ObservationSpec
from rbi.online.config import TrainConfig
from rbi.online.engine import trained_policy
from rbi.online.ray.cluster import ClusterConfig
from rbi.online.ray.workers import Array, LearnerWorker, ReplayShard, RolloutWorker, ShardStatus

UNLIMITED = -1  # restarts and retries
LOW_PRIORITY = 10  # of evaluations: everything else comes first
POLL_SECONDS = 1.0  # the longest wait for an answer


@dataclass
class Faults:
    """What failures have cost so far."""

    steps_in_flight: int = 0
    """Steps that were requested and never reached a shard."""
    replay_states: int = 0
    """States that were in shards when they died."""
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

    def __init__(self, config: TrainConfig) -> None:
        self.schedule = config.schedule
        self.updates_per_sample = config.learner.updates_per_sample
        self.release_interval = config.replay.release_interval
        self.states = self.updates = self.repeated_updates = 0
        self.updates_due, self.learning_started = 0.0, False
        self.states_before_learning = config.schedule.learning_starts
        self.in_flight = 0  # states that were requested and are not in a shard yet
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
        """A block of `steps` has reached its shard."""
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
            self.schedule.publish_interval - expected % self.schedule.publish_interval,
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


SAVED_COUNTERS = (
    "updates", "states", "repeated_updates", "updates_due", "learning_started", "states_before_learning"
)  # fmt: skip


@dataclass
class ActorHandle:
    """A process as the driver knows it. Every restart increments `restarts`; answers from before it are void."""

    handle: Any
    alive: bool = False
    restarts: int = 0
    pid: int = 0
    node: str = ""

    def retry(self, method: str) -> Any:
        """A call that Ray repeats until the process, restarted if need be, answers it."""
        return getattr(self.handle, method).options(max_task_retries=UNLIMITED)


@dataclass
class ShardHandle(ActorHandle):
    """A replay shard."""

    incarnation: str = ""
    mass: float = 0.0
    states: int = 0


@dataclass
class WorkerHandle(ActorHandle):
    """A rollout worker."""

    index: int = 0
    shard: ShardHandle = field(default_factory=lambda: ShardHandle(None))
    step: int = 0
    reset: bool = True
    """Whether its next block starts new episodes."""
    requests: int = 0
    """Blocks that were requested and have not arrived."""


@dataclass(frozen=True)
class RemoteActors:
    """All processes of a run. `evaluate` runs as a Ray task; a failed evaluation is skipped."""

    learner: ActorHandle
    shards: list[ShardHandle]
    workers: list[WorkerHandle]
    evaluate: Callable[..., Any]

    def all(self) -> list[ActorHandle]:
        return [self.learner, *self.shards, *self.workers]


def launch(
    config: TrainConfig, obs_spec: ObservationSpec, seed: int, layout: ClusterConfig, workers: int
) -> RemoteActors:
    """Ask Ray for all processes. The learner takes a GPU, or stays on the driver's node; a single shard joins it."""
    gpus = layout.learner_gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
    here = ray.get_runtime_context().get_node_id()
    placement = {} if gpus else {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
    learner = remote(LearnerWorker, layout.learner_cpus, gpus, **placement).remote(
        config, obs_spec, seed, layout.prefetch, layout.lockstep, bool(gpus)
    )
    shard_placement: Any = "SPREAD"
    if layout.shards == 1:
        _, node = ray.get(learner.identity.options(max_task_retries=UNLIMITED).remote()) if gpus else (0, here)
        shard_placement = NodeAffinitySchedulingStrategy(node, soft=True)
    shards = [
        ShardHandle(
            remote(ReplayShard, layout.shard_cpus, scheduling_strategy=shard_placement).remote(
                config, obs_spec, seed, number, workers, layout.shards
            )
        )
        for number in range(layout.shards)
    ]
    threads = max(1, int(layout.worker_cpus))
    worker = remote(RolloutWorker, layout.worker_cpus, layout.worker_gpus)
    handles = [
        WorkerHandle(
            worker.remote(config, obs_spec, seed, index, workers, threads, layout.worker_gpus > 0),
            index=index,
            shard=shards[index % layout.shards],
        )
        for index in range(workers)
    ]
    task: Any = ray.remote(evaluate)
    evaluation = task.options(num_cpus=layout.evaluator_cpus, max_retries=0).remote
    return RemoteActors(ActorHandle(learner), shards, handles, evaluation)


def remote(cls: type, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """A class as a Ray actor: restarted wherever there is room, every call executed at most once."""
    actor: Any = ray.remote(cls)
    return actor.options(num_cpus=cpus, num_gpus=gpus, max_restarts=UNLIMITED, max_task_retries=0, **options)


def evaluate(
    config: TrainConfig, obs_spec: ObservationSpec, weights: Array, updates: int, episodes: int, seed: int
) -> float:
    """The mean score of a policy without exploration."""
    lowest = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, 0))  # only root may raise a priority again
    os.setpriority(os.PRIO_PROCESS, 0, lowest)
    policy = trained_policy(config, obs_spec, torch.from_numpy(weights.copy()), updates, 0)
    scores = [episode.score for episode in run_episodes(policy, Protocol("paper"), config.env.id, episodes, seed)]
    return sum(scores) / len(scores)


class Supervisor:
    """Tracks workers, shards and learner. Ray restarts those that die; their state is restored here."""

    def __init__(self, actors: RemoteActors, accounting: Accounting, saved: tuple[int, Any]) -> None:
        """`saved`: the number of updates and the learner's state to continue from."""
        self.learner, self.shards, self.workers = actors.learner, actors.shards, actors.workers
        self.actors, self.accounting, self.saved = actors.all(), accounting, saved
        self.pending: dict[Any, Callable[[Any], None]] = {}
        self.open_calls = 0  # blocks and updates that were requested
        self.published: Any = None
        self.version = 0
        self.weight_bytes, self.max_workers = 0, 0

    def start(self, steps: list[int], shards: list[dict[str, Array]]) -> None:
        """Start workers at their steps, shards with their saved contents, the learner from its saved state."""
        for worker, step in zip(self.workers, steps, strict=True):
            worker.step = step
            self.await_worker(worker)
        for shard, state in zip(self.shards, shards, strict=True):
            self.query_shard(shard, state or None)
        self.restore_learner()

    def on_answer(self, ref: Any, then: Callable[[Any], None]) -> None:
        """Call `then` when a requested block or update is answered."""
        self.open_calls += 1

        def handle(answered: Any) -> None:
            self.open_calls -= 1
            then(answered)

        self.pending[ref] = handle

    def poll(self, seconds: float = POLL_SECONDS) -> None:
        """Wait for answers and handle all that have arrived."""
        ready, _ = ray.wait(list(self.pending), num_returns=1, timeout=seconds, fetch_local=False)
        if ready:
            ready, _ = ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0, fetch_local=False)
        for ref in ready:
            self.pending.pop(ref)(ref)

    def drain(self) -> None:
        """Wait until no block and no update is outstanding."""
        while self.open_calls:
            self.poll()

    def await_worker(self, worker: WorkerHandle) -> None:
        """A worker is alive when it answers; one that does not fit on the cluster answers after a node has joined."""
        self.pending[worker.retry("identity").remote()] = functools.partial(self.worker_ready, worker, worker.restarts)

    def worker_ready(self, worker: WorkerHandle, restarts: int, ref: Any) -> None:
        worker.pid, worker.node = result_when_ready(ref)
        worker.alive = restarts == worker.restarts
        self.max_workers = max(self.max_workers, sum(worker.alive for worker in self.workers))

    def worker_died(self, worker: WorkerHandle, restarts: int) -> None:
        """Its environments start new episodes when it is back."""
        if restarts != worker.restarts:
            return
        self.accounting.faults.workers += 1
        worker.alive, worker.reset, worker.requests, worker.restarts = False, True, 0, restarts + 1
        self.await_worker(worker)

    def query_shard(self, shard: ShardHandle, state: dict[str, Array] | None = None) -> None:
        """A shard is alive when it reports its status, after loading `state` if given."""
        if shard.alive or not shard.incarnation:
            shard.alive, shard.mass = False, 0.0
            ref = shard.retry("status").remote() if state is None else shard.retry("load").remote(state)
            self.pending[ref] = functools.partial(self.shard_ready, shard)
            self.pending[shard.retry("identity").remote()] = functools.partial(self.identified, shard)

    def shard_ready(self, shard: ShardHandle, ref: Any) -> None:
        self.update_shard(shard, result_when_ready(ref))
        shard.alive = True
        if self.accounting.learning_started and not self.mass() > 0:
            self.accounting.refill_replay()

    def update_shard(self, shard: ShardHandle, status: ShardStatus) -> None:
        """Take a shard's status; if it was restarted, its former contents are lost."""
        if shard.incarnation not in ("", status.incarnation):
            self.accounting.faults.shards += 1
            self.accounting.faults.replay_states += shard.states
        shard.incarnation, shard.mass, shard.states = status

    def shard_died(self, shard: ShardHandle, restarts: int) -> None:
        if restarts == shard.restarts:
            shard.restarts += 1
            self.query_shard(shard)

    def identified(self, actor: ActorHandle, ref: Any) -> None:
        actor.pid, actor.node = result_when_ready(ref)

    def learner_died(self, restarts: int) -> None:
        """It continues from the last saved state; updates since then are repeated."""
        if restarts != self.learner.restarts:
            return
        self.learner.restarts += 1
        self.accounting.faults.learners += 1
        self.accounting.rewind(self.saved[0])
        self.saved = (self.accounting.updates, self.saved[1])  # from now on, the saved state counts as this many
        self.restore_learner()

    def restore_learner(self) -> None:
        """Give a restarted learner its state."""
        self.learner.alive = False
        handles = [shard.handle for shard in self.shards]
        restored = self.learner.retry("restore").remote(handles, self.accounting.updates, self.saved[1])
        self.pending[restored] = self.learner_ready
        self.pending[self.learner.retry("identity").remote()] = functools.partial(self.identified, self.learner)

    def learner_ready(self, ref: Any) -> None:
        self.publish(result_when_ready(ref))
        self.learner.alive = True

    def release(self) -> None:
        """Release held-back transitions to the learner."""
        for shard in self.shards:
            status = result_or_none(shard.handle.release.remote()) if shard.alive else None
            if status is None:
                self.shard_died(shard, shard.restarts)
            else:
                self.update_shard(shard, status)

    def mass(self) -> float:
        """The sum of all priorities."""
        return sum(shard.mass for shard in self.shards)

    def publish(self, weights: Array | None) -> None:
        """Keep the newest weights in this node's object store, where they outlive the learner."""
        if weights is not None:
            self.published, self.version = ray.put(weights), self.accounting.updates
            self.weight_bytes += weights.nbytes

    def ask_learner(self, method: str) -> Any:
        """The learner's answer; if it dies, the restarted learner's."""
        while True:
            while not self.learner.alive:
                self.poll()
            restarts = self.learner.restarts
            found = result_or_none(getattr(self.learner.handle, method).remote())
            if found is not None:
                return found
            self.learner_died(restarts)

    def save_learner(self) -> dict[str, Array]:
        """The learner's state when nothing is outstanding; a learner that dies continues from it."""
        self.drain()
        state: dict[str, Array] = self.ask_learner("state")
        self.saved = (self.accounting.updates, ray.put(state))
        return state

    def replay_state(self) -> dict[str, torch.Tensor]:
        """All shards, for a checkpoint; one that is down is left out and fills up again."""
        found: dict[str, torch.Tensor] = {}
        for number, shard in enumerate(self.shards):
            columns = result_or_none(shard.handle.state.remote()) if shard.alive else None
            found |= {f"shard{number}.{name}": torch.from_numpy(np.array(c)) for name, c in (columns or {}).items()}
        return found

    def shutdown(self) -> None:
        """End all processes."""
        for actor in self.actors:
            ray.kill(actor.handle)
        self.pending.clear()


def result_or_none(ref: Any) -> Any:
    """A process's answer; None if the process, or what it was to work on, is gone. Its own errors are raised."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, RayError):
            return None
        raise error.cause from None
    except RayError:
        return None


def result_when_ready(ref: Any) -> Any:
    """The answer of a process that Ray restarts until it answers; ValueError if it cannot be started."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        *_, reason = str(error).split("\n")
        raise ValueError(f"--engine ray: a process of the run cannot be started: {reason}") from None
