"""The books of a run: what was played, what it pays for, what is on its way, what was lost. Nothing here knows Ray."""

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
from rbi.online.ray.config import ClusterConfig
from rbi.online.ray.workers import Array, LearnerRole, Player, Shard, Stock


@dataclass
class Lost:
    """What faults have cost so far."""

    steps_in_flight: int = 0
    """Steps that were asked for and never came to a shard."""
    replay_states: int = 0
    """States that shards held when they died."""
    updates: int = 0
    """Updates that were done again."""
    workers: int = 0
    """Deaths of workers, and of the others below."""
    shards: int = 0
    learners: int = 0


class Ledger:
    """States pay for updates at the set ratio. Both counts only grow: updates that died with a learner stay counted,
    as `gone`, and are done again.

                         owed            asked
        states  ----------|---------------|------------>  updates
        flying            room: how far workers may run ahead of the learner
    """

    def __init__(self, config: TrainConfig) -> None:
        self.schedule, self.round, self.reveals = (
            config.schedule,
            config.learner.updates_per_sample,
            config.replay.release_interval,
        )
        self.states = self.updates = self.gone = 0
        self.owed, self.started, self.refill = 0.0, False, config.schedule.learning_starts
        self.flying = 0  # states that workers were asked for and shards do not have yet
        self.asked = 0  # updates that the learner was asked for and has not done yet
        self.lost = Lost()

    @property
    def goal(self) -> int:
        return self.schedule.updates + self.gone

    @property
    def ready(self) -> bool:
        """Whether there are states enough to begin to learn."""
        return not self.started and self.states >= self.refill

    def take_off(self, states: int) -> None:
        self.flying += states

    def land(self, ticks: int, each: int) -> None:
        """A block of so many ticks, with so many states each, has come to its shard."""
        self.flying -= ticks * each
        for _ in range(ticks):  # one by one, so that sums round as the local engine's do
            self.states += each
            if self.started:
                self.owed += each / self.schedule.states_per_update

    def crash(self, states: int) -> None:
        """A block will never come."""
        self.flying -= states
        self.lost.steps_in_flight += states

    def may_play(self, block: int, ahead: int) -> bool:
        """Whether a worker may be asked for a block, if workers together may run `ahead` of the learner."""
        if not self.started:
            return self.states >= self.refill or self.states + self.flying < self.refill
        room = ahead + self.round * self.schedule.states_per_update
        return (self.owed + self.asked) * self.schedule.states_per_update + self.flying + block <= room

    def rounds_due(self) -> int:
        """Rounds that are paid for and may be done at a stretch: weights are published, and states are revealed, at
        set counts."""
        expected = self.updates + self.asked
        stops = [self.goal - expected, self.schedule.publish_interval - expected % self.schedule.publish_interval]
        if self.reveals:
            if self.asked and expected % self.reveals == 0:
                return 0  # what was asked for comes first, then the reveal
            stops.append(self.reveals - expected % self.reveals)
        return max(0, int(min(self.owed, *stops))) // self.round if self.started else 0

    def ask(self, rounds: int) -> int:
        """Ask for rounds; the count of updates at which they begin."""
        begin = self.updates + self.asked
        self.owed -= rounds * self.round
        self.asked += rounds * self.round
        return begin

    def learned(self, rounds: int, updates: int) -> None:
        """Rounds that were asked for are over; the learner stands at `updates`. What it could not do stays owed."""
        done = max(0, updates - self.updates)
        self.asked -= rounds * self.round
        self.owed += rounds * self.round - done
        self.updates += done

    def unlearned(self, rounds: int) -> None:
        """Rounds that were asked for died with the learner."""
        self.learned(rounds, self.updates)

    def fall_back(self, saved: int) -> None:
        """The learner goes on from what was saved at `saved` updates."""
        again = self.updates - saved
        self.gone += again
        self.lost.updates += again

    def starve(self) -> None:
        """There is nothing to draw any more: fill the replay again before learning goes on."""
        self.started, self.refill = False, self.states + self.schedule.learning_starts

    def ticks_until_due(self, each: int, most: int) -> int:
        """Ticks of one worker until something is due: the start of learning, or a round."""
        if not self.started:
            return min(most, max(1, math.ceil((self.refill - self.states) / each)))
        owed, ticks = self.owed, 0
        while owed < self.round and ticks < most:
            owed += each / self.schedule.states_per_update
            ticks += 1
        return max(1, ticks)

    def state(self) -> dict[str, Any]:
        names = ("updates", "states", "gone", "owed", "started", "refill")
        return {name: getattr(self, name) for name in names} | {"lost": asdict(self.lost)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("updates", "states", "gone", "owed", "started", "refill"):
            setattr(self, name, state[name])
        self.lost = Lost(**state["lost"])


# ---- from rbi.engines.ray.cast: Who works where: the processes of a run, as Ray places and restarts them.

ALWAYS = -1  # as often as it takes


@dataclass
class Post:
    """A process of the run as the driver knows it. Each restart is another life; answers of an earlier one are void."""

    handle: Any
    live: bool = False
    life: int = 0
    process: int = 0
    node: str = ""

    def again(self, method: str) -> Any:
        """A call that any life may answer: Ray repeats it until one does."""
        return getattr(self.handle, method).options(max_task_retries=ALWAYS)


@dataclass
class Store(Post):
    """A shard."""

    born: str = ""
    mass: float = 0.0
    states: int = 0


@dataclass
class Slot(Post):
    """A worker and its place among them."""

    number: int = 0
    store: Store = field(default_factory=lambda: Store(None))
    tick: int = 0
    begin: bool = True
    """Whether its next block starts new episodes."""
    asked: int = 0
    """Blocks on their way."""


@dataclass(frozen=True)
class Cast:
    """All processes of a run. The evaluator is a task, not a process: nobody minds when it is lost."""

    learner: Post
    stores: list[Store]
    slots: list[Slot]
    evaluate: Callable[..., Any]

    def posts(self) -> list[Post]:
        return [self.learner, *self.stores, *self.slots]


def cast(config: TrainConfig, obs_spec: ObservationSpec, seed: int, cluster: ClusterConfig, workers: int) -> Cast:
    """Ask Ray for every process. The learner goes to a GPU, or else stays with the driver; one shard stays with it."""
    gpus = cluster.learner_gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
    here = ray.get_runtime_context().get_node_id()
    beside = {} if gpus else {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
    learner = remote(LearnerRole, cluster.learner_cpus, gpus, **beside).remote(
        config, obs_spec, seed, cluster.prefetch, cluster.lockstep, bool(gpus)
    )
    near: Any = "SPREAD"
    if cluster.shards == 1:
        _, node = ray.get(learner.hello.options(max_task_retries=ALWAYS).remote()) if gpus else (0, here)
        near = NodeAffinitySchedulingStrategy(node, soft=True)
    stores = [
        Store(
            remote(Shard, cluster.shard_cpus, scheduling_strategy=near).remote(
                config, obs_spec, seed, number, workers, cluster.shards
            )
        )
        for number in range(cluster.shards)
    ]
    threads = max(1, int(cluster.actor_cpus))
    player = remote(Player, cluster.actor_cpus, cluster.actor_gpus)
    slots = [
        Slot(
            player.remote(config, obs_spec, seed, number, workers, threads, cluster.actor_gpus > 0),
            number=number,
            store=stores[number % cluster.shards],
        )
        for number in range(workers)
    ]
    task: Any = ray.remote(evaluation)
    evaluate = task.options(num_cpus=cluster.evaluator_cpus, max_retries=0).remote
    return Cast(Post(learner), stores, slots, evaluate)


def remote(role: type, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """A role as Ray runs it: restarted wherever there is room, each call done once or not at all."""
    maker: Any = ray.remote(role)
    return maker.options(num_cpus=cpus, num_gpus=gpus, max_restarts=ALWAYS, max_task_retries=0, **options)


def evaluation(
    config: TrainConfig, obs_spec: ObservationSpec, weights: Array, updates: int, episodes: int, seed: int
) -> float:
    """The mean score of a policy without exploration."""
    os.setpriority(os.PRIO_PROCESS, 0, 10)  # everything else comes first
    policy = trained_policy(config, obs_spec, torch.from_numpy(weights.copy()), updates, 0)
    scores = [episode.score for episode in run_episodes(policy, Protocol("paper"), config.env.id, episodes, seed)]
    return sum(scores) / len(scores)


# ---- from rbi.engines.ray.company: The processes of a run while it goes on: who is live, what is on its way, and what to do when somebody dies.

PATIENCE = 1.0  # seconds without news after which the driver looks up


class Company:
    """Workers, shards and learner. Ray restarts those that die; what they knew is put right here."""

    def __init__(self, cast: Cast, ledger: Ledger, saved: tuple[int, Any]) -> None:
        self.learner, self.stores, self.slots = cast.learner, cast.stores, cast.slots
        self.posts, self.ledger = cast.posts(), ledger
        self.saved = saved  # how many updates are behind the learner to fall back on, and that learner
        self.pending: dict[Any, Callable[[Any], None]] = {}
        self.calls = 0  # blocks and rounds that are on their way
        self.published: Any = None
        self.version = 0
        self.weight_bytes, self.most_workers = 0, 0

    def assemble(self, ticks: list[int], shards: list[dict[str, Array]]) -> None:
        """Begin: workers at their ticks, shards with what they held, the learner where it was saved."""
        for slot, tick in zip(self.slots, ticks, strict=True):
            slot.tick = tick
            self.greet(slot)
        for store, state in zip(self.stores, shards, strict=True):
            self.look_into(store, state or None)
        self.put_back()

    def call(self, ref: Any, then: Callable[[Any], None]) -> None:
        """Remember what to do when an answer comes."""
        self.calls += 1

        def handle(answered: Any) -> None:
            self.calls -= 1
            then(answered)

        self.pending[ref] = handle

    def pump(self, patience: float = PATIENCE) -> None:
        """Wait for news, and act on all there are."""
        found, _ = ray.wait(list(self.pending), num_returns=1, timeout=patience, fetch_local=False)
        if found:
            found, _ = ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0, fetch_local=False)
        for ref in found:
            self.pending.pop(ref)(ref)

    def settle(self) -> None:
        """Wait until no block and no round is on its way."""
        while self.calls:
            self.pump()

    def greet(self, slot: Slot) -> None:
        """A worker is live when it answers; one that finds no room on the cluster answers when a node has joined."""
        self.pending[slot.again("hello").remote()] = functools.partial(self.greeted, slot, slot.life)

    def greeted(self, slot: Slot, life: int, ref: Any) -> None:
        slot.process, slot.node = made(ref)
        slot.live = life == slot.life
        self.most_workers = max(self.most_workers, sum(slot.live for slot in self.slots))

    def worker_died(self, slot: Slot, life: int) -> None:
        """Its players start new episodes when it is back."""
        if life != slot.life:
            return
        self.ledger.lost.workers += 1
        slot.live, slot.begin, slot.asked, slot.life = False, True, 0, life + 1
        self.greet(slot)

    def look_into(self, store: Store, state: dict[str, Array] | None = None) -> None:
        """A shard is live when it says what it holds."""
        if store.live or not store.born:
            store.live, store.mass = False, 0.0
            ref = store.again("stock").remote() if state is None else store.again("load").remote(state)
            self.pending[ref] = functools.partial(self.looked_into, store)
            self.pending[store.again("hello").remote()] = functools.partial(self.known, store)

    def looked_into(self, store: Store, ref: Any) -> None:
        self.take_stock(store, made(ref))
        store.live = True
        if self.ledger.started and not self.mass() > 0:
            self.ledger.starve()

    def take_stock(self, store: Store, stock: Stock) -> None:
        """What a shard holds now; if it is another than before, what that one held is lost."""
        if store.born not in ("", stock.born):
            self.ledger.lost.shards += 1
            self.ledger.lost.replay_states += store.states
        store.born, store.mass, store.states = stock

    def shard_died(self, store: Store, life: int) -> None:
        if life == store.life:
            store.life += 1
            self.look_into(store)

    def known(self, post: Post, ref: Any) -> None:
        post.process, post.node = made(ref)

    def learner_died(self, life: int) -> None:
        """It goes on from what was saved last; the updates since then are done again."""
        if life != self.learner.life:
            return
        self.learner.life += 1
        self.ledger.lost.learners += 1
        self.ledger.fall_back(self.saved[0])
        self.saved = (self.ledger.updates, self.saved[1])  # what is saved now counts as so many
        self.put_back()

    def put_back(self) -> None:
        """Tell a learner that knows nothing where to go on."""
        self.learner.live = False
        handles = [store.handle for store in self.stores]
        self.pending[self.learner.again("restore").remote(handles, self.ledger.updates, self.saved[1])] = self.back
        self.pending[self.learner.again("hello").remote()] = functools.partial(self.known, self.learner)

    def back(self, ref: Any) -> None:
        self.publish(made(ref))
        self.learner.live = True

    def reveal(self) -> None:
        """Let the learner see what was held back."""
        for store in self.stores:
            stock = answer(store.handle.reveal.remote()) if store.live else None
            if stock is None:
                self.shard_died(store, store.life)
            else:
                self.take_stock(store, stock)

    def mass(self) -> float:
        return sum(store.mass for store in self.stores)

    def publish(self, weights: Array | None) -> None:
        """Keep the newest weights in this node's object store: they stay when the learner goes."""
        if weights is not None:
            self.published, self.version = ray.put(weights), self.ledger.updates
            self.weight_bytes += weights.nbytes

    def of_learner(self, method: str) -> Any:
        """What the learner answers; after its death, what the next one answers."""
        while True:
            while not self.learner.live:
                self.pump()
            life = self.learner.life
            found = answer(getattr(self.learner.handle, method).remote())
            if found is not None:
                return found
            self.learner_died(life)

    def save_learner(self) -> dict[str, Array]:
        """The learner when nothing is on its way; it is also what one that dies goes on from."""
        self.settle()
        found: dict[str, Array] = self.of_learner("state")
        self.saved = (self.ledger.updates, ray.put(found))
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """All shards, as the replay that a checkpoint saves; one that is down is left out, and fills up again."""
        found: dict[str, torch.Tensor] = {}
        for number, store in enumerate(self.stores):
            columns = answer(store.handle.state.remote()) if store.live else None
            found |= {f"shard{number}.{name}": torch.from_numpy(np.array(c)) for name, c in (columns or {}).items()}
        return found

    def dismiss(self) -> None:
        """End all processes."""
        for post in self.posts:
            ray.kill(post.handle)
        self.pending.clear()


def answer(ref: Any) -> Any:
    """What a process answers; nothing if it is gone, or what it was to work on is. Its mistakes are raised as ours."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, RayError):
            return None
        raise error.cause from None
    except RayError:
        return None


def made(ref: Any) -> Any:
    """What a process answers that Ray starts again until it does; if it cannot be made, why."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        *_, told = str(error).split("\n")
        raise ValueError(f"--engine ray: a process of the run cannot be started: {told}") from None
