"""Launching and supervision of a run's processes.

`launch` asks Ray for the processes. `Supervisor` tracks which of them are alive and what was requested, and restores
what a restarted process has lost.
"""

import functools
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rbi.observations import ObservationSpec
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.distributed import Accounting, ActorHandle, ReplayHandle, WorkerHandle
from rbi.online.ray.cluster import cluster_size
from rbi.online.ray.workers import InferenceWorker, LearnerWorker, ReplayShard, RolloutWorker
from rbi.online.rollout import RolloutSpec, evaluation_score
from rbi.online.stream import Array, ReplayStatus

LOG = logging.getLogger(__name__)
UNLIMITED = -1  # restarts and retries
POLL_SECONDS = 1.0  # the longest wait for an answer


@dataclass(frozen=True)
class RemoteActors:
    """All processes of a run. `evaluate` runs as a Ray task; a failed evaluation is skipped."""

    learners: list[ReplayHandle]
    replays: list[ReplayHandle]
    """The shards, or the learners themselves."""
    inference: list[ActorHandle]
    workers: list[WorkerHandle]
    evaluate: Callable[..., Any]


def launch(
    config: TrainConfig, obs_spec: ObservationSpec, seed: int, layout: ClusterConfig, workers: int
) -> RemoteActors:
    """Ask Ray for all processes. Learners take a GPU each, or stay on the driver's node; a single shard joins them."""
    gpus = layout.gpus_per_learner(cluster_size()[1])
    here = ray.get_runtime_context().get_node_id()
    placement = {} if gpus else {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
    run, learner_device = (config, obs_spec, seed), device(gpus)
    resources: dict[str, Any] = {"num_cpus": layout.learner_cpus, "num_gpus": gpus, **placement}
    learners = [
        ReplayHandle(*start(LearnerWorker, f"learner {n}", *run, n, workers, layout, learner_device, **resources))
        for n in range(layout.learners)
    ]
    replays = learners
    if layout.replay == "shards":
        resources = {"num_cpus": layout.shard_cpus, "scheduling_strategy": "SPREAD"}
        if layout.shards == 1:
            node = ray.get(retry(learners[0], "identity").remote())[1] if gpus else here
            resources["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        replays = [
            ReplayHandle(*start(ReplayShard, f"replay shard {n}", *run, n, workers, layout.shards, **resources))
            for n in range(layout.shards)
        ]
    names = [f"rbi-inference-{n}-{uuid.uuid4().hex}" for n in range(layout.inference_workers)]
    networks = config, obs_spec, device(layout.inference_gpus)
    resources = {"num_cpus": layout.inference_cpus, "num_gpus": layout.inference_gpus, "max_concurrency": workers + 2}
    inference = [  # all workers may ask at once
        ActorHandle(*start(InferenceWorker, f"inference worker {n}", *networks, name=name, **resources))
        for n, name in enumerate(names)
    ]
    resources = {"num_cpus": layout.worker_cpus, "num_gpus": layout.worker_gpus}
    rollouts = []
    for index in range(workers):
        spec = RolloutSpec(*run, index, workers, max(1, int(layout.worker_cpus)), device(layout.worker_gpus))
        name = names[index % len(names)] if names else ""
        started = start(RolloutWorker, f"rollout worker {index}", spec, name, **resources)
        rollouts.append(WorkerHandle(*started, index=index, replay=replays[index % len(replays)]))
    task: Any = ray.remote(evaluation_score)
    evaluation = task.options(num_cpus=layout.evaluator_cpus, max_retries=0).remote
    return RemoteActors(learners, replays, inference, rollouts, evaluation)


def device(gpus: float) -> torch.device:
    """The device of a process that Ray gives some GPUs to."""
    return torch.device("cuda" if gpus else "cpu")


def start(cls: type, process: str, *parts: Any, **options: Any) -> tuple[Any, str]:
    """A process as a Ray actor: restarted wherever there is room, every call executed at most once. With its name."""
    actor: Any = ray.remote(cls)
    return actor.options(max_restarts=UNLIMITED, max_task_retries=0, **options).remote(process, *parts), process


def retry(actor: ActorHandle, method: str) -> Any:
    """A call that Ray repeats until the process, restarted if need be, answers it."""
    return getattr(actor.handle, method).options(max_task_retries=UNLIMITED)


class Supervisor:
    """Tracks workers, replay and learner. Ray restarts those that die; their state is restored here."""

    def __init__(self, actors: RemoteActors, accounting: Accounting, saved: tuple[int, Any]) -> None:
        """`saved`: the number of updates and the learner's state to continue from."""
        self.learners, self.replays, self.workers = actors.learners, actors.replays, actors.workers
        self.learner, self.inference = self.learners[0], actors.inference
        self.shards = [] if self.replays is self.learners else self.replays
        self.actors: list[ActorHandle] = [*self.learners, *self.shards, *self.inference, *self.workers]
        self.accounting, self.saved = accounting, saved
        self.pending: dict[Any, Callable[[Any], None]] = {}
        self.open_calls = 0  # blocks and updates that were requested
        self.asked: set[str] = set()  # inference workers that have not answered yet
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
        for shard in self.shards:
            self.restore_replay(shard)
        self.check_inference()

    def on_answer(self, ref: Any, then: Callable[[Any], None]) -> None:
        """Call `then` when a requested block or update is answered."""
        self.open_calls += 1

        def handle(answered: Any) -> None:
            self.open_calls -= 1
            then(answered)

        self.pending[ref] = handle

    def poll(self) -> None:
        """Wait for answers and handle all that have arrived."""
        ready, _ = ray.wait(list(self.pending), num_returns=1, timeout=POLL_SECONDS, fetch_local=False)
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
        self.pending[retry(worker, "identity").remote()] = functools.partial(self.worker_ready, worker, worker.restarts)

    def worker_ready(self, worker: WorkerHandle, restarts: int, ref: Any) -> None:
        self.identified(worker, ref)
        worker.alive = restarts == worker.restarts
        self.max_workers = max(self.max_workers, sum(worker.alive for worker in self.workers))

    def worker_died(self, worker: WorkerHandle, restarts: int) -> None:
        """Its environments start new episodes when it is back."""
        if restarts != worker.restarts:
            return
        self.report_death(worker)
        self.accounting.faults.workers += 1
        worker.alive, worker.reset, worker.requests, worker.restarts = False, True, 0, restarts + 1
        self.await_worker(worker)

    def restore_replay(self, replay: ReplayHandle) -> None:
        """A process with a replay is alive when it has loaded what was saved of it and reports its status."""
        replay.alive, replay.mass = False, 0.0
        saved = replay.saved
        found = retry(replay, "status").remote() if saved is None else retry(replay, "load_replay").remote(saved)
        self.pending[found] = functools.partial(self.replay_ready, replay, replay.restarts)
        self.pending[retry(replay, "identity").remote()] = functools.partial(self.identified, replay)

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
        if replay.restarted(status):
            self.accounting.faults.shards += bool(self.shards)
            self.accounting.faults.replay_states += max(0, replay.states - status.states)
        replay.incarnation, replay.mass, replay.states = status

    def replay_died(self, replay: ReplayHandle, restarts: int) -> None:
        if not self.shards:
            self.learner_died(restarts)
        elif replay.alive and restarts == replay.restarts:  # a replay that is being restored has died already
            self.report_death(replay)
            replay.restarts += 1
            self.restore_replay(replay)

    def report_death(self, actor: ActorHandle) -> None:
        LOG.warning("rbi: %s died (process %d on %s); Ray restarts it", actor.name, actor.pid, actor.host)

    def identified(self, actor: ActorHandle, ref: Any) -> None:
        actor.pid, actor.node, actor.host = result_when_ready(ref)

    def check_inference(self) -> None:
        """Ask inference workers who they are: they answer rollout workers, so no call of the driver shows a death."""
        for actor in self.inference:
            if actor.name not in self.asked:
                self.asked.add(actor.name)
                self.pending[retry(actor, "identity").remote()] = functools.partial(self.inference_ready, actor)

    def inference_ready(self, actor: ActorHandle, ref: Any) -> None:
        before = actor.pid
        self.identified(actor, ref)
        actor.alive = True
        self.asked.discard(actor.name)
        if before not in (0, actor.pid):
            LOG.warning("rbi: %s died (process %d); Ray has restarted it", actor.name, before)
            actor.restarts += 1

    def learner_died(self, restarts: int) -> None:
        """All learners continue from the last saved state; updates since then are repeated."""
        if restarts != self.learner.restarts:
            return
        for learner in self.learners:
            self.report_death(learner)
            learner.restarts += 1
            if len(self.learners) > 1:  # the others wait for the one that died
                ray.kill(learner.handle, no_restart=False)
        self.accounting.faults.learners += 1
        self.accounting.rewind(self.saved[0])
        self.saved = (self.accounting.updates, self.saved[1])  # from now on, the saved state counts as this many
        self.restore_learners()

    def restore_learners(self) -> None:
        """Give restarted learners their state, and then their replay if that is in their process."""
        shards = [shard.handle for shard in self.shards]
        addresses = [retry(learner, "address").remote() for learner in self.learners]  # known when all have started
        for learner in self.learners:
            learner.alive, learner.mass = False, 0.0
            call = retry(learner, "continue_from").remote(self.accounting.updates, self.saved[1], shards, *addresses)
            self.pending[call] = functools.partial(self.learner_ready, learner, learner.restarts)
            self.pending[retry(learner, "identity").remote()] = functools.partial(self.identified, learner)

    def learner_ready(self, learner: ReplayHandle, restarts: int, ref: Any) -> None:
        if restarts != learner.restarts:
            return
        weights = result_when_ready(ref)
        if weights is None:  # another learner did not come
            self.learner_died(restarts)
            return
        if learner is self.learner:
            self.publish(weights, self.accounting.updates)
        if self.shards:
            learner.alive = True
        else:
            self.restore_replay(learner)

    def has_states(self) -> bool:
        """Whether there is something to sample: in any shard, or in the replay of every learner."""
        found = [replay.mass > 0 for replay in self.replays]
        return any(found) if self.shards else all(found)

    def ask_replays(self, method: str) -> None:
        """Call `status` or `release` of all replays that are alive, and wait for their status."""
        for replay in self.replays:
            if not replay.alive:
                continue
            status = result_or_none(getattr(replay.handle, method).remote())
            if status is None or replay.restarted(status):
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
