"""Launching and supervision of a run's processes.

`launch` asks Ray for the processes. `Supervisor` tracks which of them are alive and what was requested, and restores
what a restarted process has lost.
"""

import functools
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rbi.evaluation.rollouts import Protocol, run_episodes
from rbi.observations import ObservationSpec
from rbi.online.accounting import Accounting
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.engine import trained_policy
from rbi.online.ray.workers import InferenceWorker, LearnerWorker, ReplayShard, RolloutWorker
from rbi.online.stream import Array, ReplayStatus

UNLIMITED = -1  # restarts and retries
LOW_PRIORITY = 10  # of evaluations: everything else comes first
POLL_SECONDS = 1.0  # the longest wait for an answer


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
class ReplayHandle(ActorHandle):
    """A process that holds a part of the replay: the learner, or a replay shard."""

    incarnation: str = ""
    mass: float = 0.0
    states: int = 0
    saved: Any = None
    """The replay as of the last checkpoint that has it; a restarted process continues from it."""


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


@dataclass(frozen=True)
class RemoteActors:
    """All processes of a run. `evaluate` runs as a Ray task; a failed evaluation is skipped."""

    learners: list[ReplayHandle]
    replays: list[ReplayHandle]
    """The shards, or the learners themselves."""
    inference: list[ActorHandle]
    workers: list[WorkerHandle]
    evaluate: Callable[..., Any]

    def all(self) -> list[ActorHandle]:
        shards = [] if self.replays is self.learners else self.replays
        return [*self.learners, *shards, *self.inference, *self.workers]


def launch(
    config: TrainConfig, obs_spec: ObservationSpec, seed: int, layout: ClusterConfig, workers: int
) -> RemoteActors:
    """Ask Ray for all processes. Learners take a GPU each, or stay on the driver's node; a single shard joins them."""
    gpus = layout.learner_gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= layout.learners else 0.0
    here = ray.get_runtime_context().get_node_id()
    placement = {} if gpus else {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
    learner = remote(LearnerWorker, layout.learner_cpus, gpus, **placement)
    run, on_gpu = (config, obs_spec, seed), bool(gpus)
    learners = [ReplayHandle(learner.remote(*run, n, workers, layout, on_gpu)) for n in range(layout.learners)]
    replays = learners
    if layout.replay == "shards":
        shard_placement: Any = "SPREAD"
        if layout.shards == 1:
            node = ray.get(learners[0].retry("identity").remote())[1] if gpus else here
            shard_placement = NodeAffinitySchedulingStrategy(node, soft=True)
        shard = remote(ReplayShard, layout.shard_cpus, scheduling_strategy=shard_placement)
        replays = [ReplayHandle(shard.remote(*run, n, workers, layout.shards)) for n in range(layout.shards)]
    names = [f"rbi-inference-{uuid.uuid4().hex}" for _ in range(layout.inference_workers)]
    resources, threads = (layout.inference_cpus, layout.inference_gpus), workers + 2  # all may ask at once
    servers = [remote(InferenceWorker, *resources, name=name, max_concurrency=threads) for name in names]
    inference = [ActorHandle(server.remote(config, obs_spec, layout.inference_gpus > 0)) for server in servers]
    threads, on_gpu = max(1, int(layout.worker_cpus)), layout.worker_gpus > 0
    worker = remote(RolloutWorker, layout.worker_cpus, layout.worker_gpus)
    handles = []
    for index in range(workers):
        name = names[index % len(names)] if names else ""
        handle = worker.remote(*run, index, workers, threads, on_gpu, name)
        handles.append(WorkerHandle(handle, index=index, replay=replays[index % len(replays)]))
    task: Any = ray.remote(evaluate)
    evaluation = task.options(num_cpus=layout.evaluator_cpus, max_retries=0).remote
    return RemoteActors(learners, replays, inference, handles, evaluation)


def remote(cls: type, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """A class as a Ray actor: restarted wherever there is room, every call executed at most once."""
    actor: Any = ray.remote(cls)
    return actor.options(num_cpus=cpus, num_gpus=gpus, max_restarts=UNLIMITED, max_task_retries=0, **options)


def evaluate(
    cluster: TrainConfig, obs_spec: ObservationSpec, weights: Array, updates: int, episodes: int, seed: int
) -> float:
    """The mean score of a policy without exploration."""
    lowest = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, 0))  # only root may raise a priority again
    os.setpriority(os.PRIO_PROCESS, 0, lowest)
    policy = trained_policy(cluster, obs_spec, torch.from_numpy(weights.copy()), updates, 0)
    scores = [episode.score for episode in run_episodes(policy, Protocol("paper"), cluster.env.id, episodes, seed)]
    return sum(scores) / len(scores)


class Supervisor:
    """Tracks workers, replay and learner. Ray restarts those that die; their state is restored here."""

    def __init__(self, actors: RemoteActors, accounting: Accounting, saved: tuple[int, Any]) -> None:
        """`saved`: the number of updates and the learner's state to continue from."""
        self.learners, self.replays, self.workers = actors.learners, actors.replays, actors.workers
        self.learner, self.inference = self.learners[0], actors.inference
        self.actors, self.accounting, self.saved = actors.all(), accounting, saved
        self.pending: dict[Any, Callable[[Any], None]] = {}
        self.open_calls = 0  # blocks and updates that were requested
        self.published: Any = None
        self.version, self.version_used = 0, True
        self.weight_bytes, self.max_workers = 0, 0

    def start(self, steps: list[int], replays: list[dict[str, Array]]) -> None:
        """Start workers at their steps, replays with their saved contents, the learner from its saved state."""
        for worker, step in zip(self.workers, steps, strict=True):
            worker.step = step
            self.await_worker(worker)
        for replay, state in zip(self.replays, replays, strict=True):
            replay.saved = ray.put(state) if state else None
        self.restore_learners()
        for shard in self.replays if self.replays is not self.learners else []:
            self.restore_replay(shard)
        for actor in self.inference:
            self.pending[actor.retry("identity").remote()] = functools.partial(self.identified, actor)

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

    def restore_replay(self, replay: ReplayHandle) -> None:
        """A process with a replay is alive when it has loaded what was saved of it and reports its status."""
        replay.alive, replay.mass = False, 0.0
        saved = replay.saved
        found = replay.retry("status").remote() if saved is None else replay.retry("load_replay").remote(saved)
        self.pending[found] = functools.partial(self.replay_ready, replay, replay.restarts)
        self.pending[replay.retry("identity").remote()] = functools.partial(self.identified, replay)

    def replay_ready(self, replay: ReplayHandle, restarts: int, ref: Any) -> None:
        if restarts != replay.restarts:
            return
        status = result_or_none(ref) if replay.saved is not None else result_when_ready(ref)
        if status is None:  # what was saved is lost with its node
            replay.saved = None
            self.restore_replay(replay)
            return
        self.update_replay(replay, status)
        replay.alive = True
        if all(other.alive for other in self.replays):
            self.check_replays()

    def check_replays(self) -> None:
        """Fill the replay again before learning continues, if nothing can be sampled."""
        if self.accounting.learning_started and not self.has_states():
            self.accounting.refill_replay()

    def update_replay(self, replay: ReplayHandle, status: ReplayStatus) -> None:
        """Take the status of a replay; if its process was restarted, what was not saved of it is lost."""
        if replay.incarnation not in ("", status.incarnation):
            self.accounting.faults.shards += self.replays is not self.learners
            self.accounting.faults.replay_states += max(0, replay.states - status.states)
        replay.incarnation, replay.mass, replay.states = status

    def replay_died(self, replay: ReplayHandle, restarts: int) -> None:
        if self.replays is self.learners:
            self.learner_died(restarts)
        elif restarts == replay.restarts:
            replay.restarts += 1
            self.restore_replay(replay)

    def identified(self, actor: ActorHandle, ref: Any) -> None:
        actor.pid, actor.node = result_when_ready(ref)

    def learner_died(self, restarts: int) -> None:
        """All learners continue from the last saved state; updates since then are repeated."""
        if restarts != self.learner.restarts:
            return
        for learner in self.learners:
            learner.restarts += 1
            if len(self.learners) > 1:  # the others wait for the one that died
                ray.kill(learner.handle, no_restart=False)
        self.accounting.faults.learners += 1
        self.accounting.rewind(self.saved[0])
        self.saved = (self.accounting.updates, self.saved[1])  # from now on, the saved state counts as this many
        self.restore_learners()

    def restore_learners(self) -> None:
        """Give restarted learners their state, and then their replay if that is in their process."""
        shards = [] if self.replays is self.learners else [replay.handle for replay in self.replays]
        addresses = [learner.retry("address").remote() for learner in self.learners]  # known when all have started
        for learner in self.learners:
            learner.alive, learner.mass = False, 0.0
            call = learner.retry("restore").remote(self.accounting.updates, self.saved[1], shards, *addresses)
            self.pending[call] = functools.partial(self.learner_ready, learner, learner.restarts)
            self.pending[learner.retry("identity").remote()] = functools.partial(self.identified, learner)

    def learner_ready(self, learner: ReplayHandle, restarts: int, ref: Any) -> None:
        if restarts != learner.restarts:
            return
        weights = result_when_ready(ref)
        if weights is None:  # another learner did not come
            self.learner_died(restarts)
            return
        if learner is self.learner:
            self.publish(weights, self.accounting.updates)
        if self.replays is self.learners:
            self.restore_replay(learner)
        else:
            learner.alive = True

    def has_states(self) -> bool:
        """Whether there is something to sample: in any shard, or in the replay of every learner."""
        found = [replay.mass > 0 for replay in self.replays]
        return all(found) if self.replays is self.learners else any(found)

    def ask_replays(self, method: str) -> None:
        """Call `status` or `release` of all replays that are alive, and wait for their status."""
        for replay in self.replays:
            if not replay.alive:
                continue
            status = result_or_none(getattr(replay.handle, method).remote())
            if status is None:
                self.replay_died(replay, replay.restarts)
            else:
                self.update_replay(replay, status)

    def mass(self) -> float:
        """The sum of all priorities."""
        return sum(replay.mass for replay in self.replays)

    def publish(self, weights: Array | None, version: int) -> None:
        """Keep the newest weights in this node's object store, where they outlive the learner."""
        if weights is not None:
            self.published, self.version, self.version_used = ray.put(weights), version, False
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
        """The whole replay, for a checkpoint. A part that is down is left out and fills up again."""
        found: dict[str, torch.Tensor] = {}
        for number, replay in enumerate(self.replays):
            ref = replay.handle.replay_state.remote() if replay.alive else None
            columns = result_or_none(ref) if ref is not None else None
            replay.saved = ref if columns is not None else None
            found |= {f"replay{number}.{name}": torch.from_numpy(np.array(c)) for name, c in (columns or {}).items()}
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
