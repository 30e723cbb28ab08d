"""The driver: asks for blocks and updates at the set ratio, publishes weights, and puts right what has died."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError

from rbi import envs
from rbi.engines.local import CAREFUL, part_of, policy_of
from rbi.engines.ray.cast import Cast, Post, Slot, Store, cast
from rbi.engines.ray.cluster import processors
from rbi.engines.ray.ledger import Ledger
from rbi.engines.ray.player import Array
from rbi.engines.ray.settings import ClusterConfig
from rbi.engines.ray.shard import Stock
from rbi.evaluation.outcomes import Outcome, RecentScores
from rbi.online.actor import METRICS
from rbi.online.plan import GROUPS, Plan
from rbi.policy import Policy
from rbi.returns import exploration_ladder
from rbi.sight import Sight

AT_ONCE = 2  # calls that a worker or the learner is given ahead, so that it does not wait for the driver
PATIENCE = 1.0  # seconds without news after which the driver looks up


class RayEngine:
    """A training run on the cluster that this process has joined, with the face of `LocalEngine`."""

    def __init__(self, plan: Plan, seed: int, config: ClusterConfig, sight: Sight) -> None:
        self.plan, self.seed, self.config, self.sight = plan, seed, config, sight
        self.device = torch.device("cpu")  # of this process; workers and learner have their own
        self.worlds: list[envs.VectorEnv] = []  # they live in the workers, and begin anew when a run goes on
        self.workers = config.workers_for(plan.pace, processors())
        self.learner = self.ledger = Ledger(plan)
        acting = plan.actor
        ladder = exploration_ladder(plan.pace.players, acting.exploration, acting.exploration_exponent)
        self.recent = RecentScores(int((ladder <= CAREFUL).sum()))
        self.sums = np.zeros(len(METRICS) + 1)
        self.acting: dict[str, float] = {}
        self.bytes = {"blocks": 0, "batches": 0, "weights": 0}
        self.waited, self.most_workers, self.behind = 0.0, 0, 0
        self.calls = 0  # blocks and rounds that are on their way
        self.learning = 0
        self.pending: dict[Any, Callable[[Any], None]] = {}
        self.published: Any = None
        self.version = 0
        self.evaluating = False
        self.evaluated: tuple[int, float | None] = (0, None)
        self.saved: tuple[int, Any] = (0, None)  # the learner to fall back on, and how many updates are behind it
        self.given: dict[str, torch.Tensor] = {}  # shards to go on with
        self.ticks_before: list[int] = []
        self.cast: Cast | None = None

    @property
    def states(self) -> int:
        return self.ledger.states

    @property
    def started(self) -> bool:
        return self.ledger.started

    # the run

    def ticks(self) -> Iterator[None]:
        """Train to the end; each time something has happened."""
        people = self.opening()
        lockstep = self.config.lockstep
        while self.ledger.updates < self.ledger.goal:
            if not (lockstep and self.calls):
                self.pay(people)
            if not (lockstep and self.calls):
                self.feed(people)
            self.evaluate(people)
            self.pump()
            yield

    def opening(self) -> Cast:
        """Start every process, where that has not been done."""
        if self.cast is None:
            self.cast = people = cast(self.plan, self.sight, self.seed, self.config, self.workers)
            for slot in people.slots:
                slot.tick = self.ticks_before[slot.number] if self.ticks_before else 0
                self.greet(slot)
            for number, store in enumerate(people.stores):
                state = {name: column.numpy() for name, column in part_of(self.given, f"shard{number}.").items()}
                self.look_into(store, state or None)
            self.given = {}
            self.put_back(people)
        return self.cast

    def feed(self, people: Cast) -> None:
        """Ask workers for blocks, those that have played least first, as far as they may run ahead."""
        most = self.config.block_steps * GROUPS
        at_once = 1 if self.config.lockstep else AT_ONCE
        able = [slot for slot in people.slots if slot.live and slot.store.live]
        each = self.plan.pace.players // self.workers // GROUPS
        ahead = AT_ONCE * most * each * len(able)
        for slot in sorted(able, key=lambda slot: slot.tick):
            while slot.asked < at_once and self.ledger.may_play(most * each, ahead):
                ticks = self.ledger.ticks_until_due(each, most) if self.config.lockstep else most
                self.ask_for_block(slot, ticks, ticks * each)

    def ask_for_block(self, slot: Slot, ticks: int, states: int) -> None:
        refresh = self.plan.pace.refresh_steps * GROUPS
        refreshes = slot.begin or -slot.tick % refresh < ticks or slot.tick % refresh < GROUPS
        uniform = self.ledger.updates < self.plan.pace.random_updates
        block, told = slot.handle.play.options(num_returns=2).remote(
            slot.tick, ticks, slot.begin, self.published if refreshes else None, self.version, uniform
        )
        self.ledger.take_off(states)
        slot.asked += 1
        self.call(told, functools.partial(self.played, slot, slot.life, slot.tick, slot.begin, states, block))
        slot.tick, slot.begin = slot.tick + ticks, False

    def played(self, slot: Slot, life: int, start: int, begin: bool, states: int, block: Any, ref: Any) -> None:
        """A worker has played a block, which now goes to its shard."""
        slot.asked -= 1 if life == slot.life else 0
        told = answer(ref)
        if told is None:
            self.ledger.crash(states)
            self.worker_died(slot, life)
            return
        self.bytes["blocks"] += told.bytes
        self.behind = self.ledger.updates - told.version
        self.sums += np.sum(told.sums, 0)
        for player, score, careful in told.episodes:
            self.recent.add(Outcome(player, score, 0, False), careful=careful)
        store = slot.store
        taken = store.handle.add.remote(slot.number, start, begin, block)
        self.call(taken, functools.partial(self.stored, store, store.life, states))

    def stored(self, store: Store, life: int, states: int, ref: Any) -> None:
        """A shard has taken a block, or died, or found that the block is gone with its node."""
        each = self.plan.pace.players // self.workers // GROUPS
        stock = answer(ref)
        if stock is None:
            self.ledger.crash(states)
            self.shard_died(store, life)
            return
        self.ledger.land(states // each, each)
        self.take_stock(store, stock)
        if self.ledger.ready:
            if self.plan.replay.reveal_updates:
                self.reveal()
            self.ledger.started = self.mass() > 0

    def pay(self, people: Cast) -> None:
        """Ask for the updates that new states pay for."""
        at_once = 1 if self.config.lockstep else AT_ONCE
        able = people.learner.live and self.mass() > 0
        while able and self.learning < at_once and (rounds := self.ledger.rounds_due()):
            expected = self.ledger.ask(rounds)
            told, weights = people.learner.handle.learn.options(num_returns=2).remote(
                expected, rounds, [store.mass for store in people.stores]
            )
            self.learning += 1
            self.call(told, functools.partial(self.learned, people, people.learner.life, rounds, weights))

    def learned(self, people: Cast, life: int, rounds: int, weights: Any, ref: Any) -> None:
        """The learner has done some rounds, or died, or found nothing to draw."""
        self.learning -= 1
        told = answer(ref)
        if told is None:
            self.ledger.unlearned(rounds)
            self.learner_died(people, life)
            return
        before = self.ledger.updates
        self.ledger.learned(rounds, told.updates)
        self.bytes["batches"] += told.bytes
        self.waited += told.waited
        if told.publishes:
            self.publish(answer(weights))
        if self.ledger.updates == before:
            for store in people.stores:  # it was starved: see what there is
                self.look_into(store)
        reveals = self.plan.replay.reveal_updates
        if reveals and self.ledger.updates > before and self.ledger.updates % reveals == 0:
            self.reveal()
            if not self.mass() > 0:
                self.ledger.starve()

    def publish(self, weights: Array | None) -> None:
        """Keep the newest weights in this node's object store: they stay when the learner goes."""
        if weights is not None:
            self.published, self.version = ray.put(weights), self.ledger.updates
            self.bytes["weights"] += weights.nbytes

    def evaluate(self, people: Cast) -> None:
        """Let the newest policy play while the run goes on, now and then."""
        every = self.config.evaluate_updates or max(1, self.plan.pace.updates // 20)
        if not self.config.evaluate_episodes or self.evaluating or self.version - self.evaluated[0] < every:
            return
        self.evaluating = True
        ref = people.evaluate(
            self.plan, self.sight, self.published, self.version, self.config.evaluate_episodes, self.seed
        )
        self.pending[ref] = self.has_evaluated

    def has_evaluated(self, ref: Any) -> None:
        self.evaluating = False
        found = answer(ref)
        self.evaluated = found if found is not None else (self.version, None)

    # news

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

    # births and deaths

    def greet(self, slot: Slot) -> None:
        """A worker is live when it answers; one that finds no room on the cluster answers when a node has joined."""
        self.pending[slot.again("hello").remote()] = functools.partial(self.greeted, slot, slot.life)

    def greeted(self, slot: Slot, life: int, ref: Any) -> None:
        slot.process, slot.node = made(ref)
        slot.live = life == slot.life
        assert self.cast is not None
        self.most_workers = max(self.most_workers, sum(slot.live for slot in self.cast.slots))

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

    def learner_died(self, people: Cast, life: int) -> None:
        """It goes on from what was saved last; the updates since then are done again."""
        if life != people.learner.life:
            return
        people.learner.life += 1
        self.ledger.lost.learners += 1
        self.ledger.fall_back(self.saved[0])
        self.saved = (self.ledger.updates, self.saved[1])  # what is saved now counts as so many
        self.put_back(people)

    def put_back(self, people: Cast) -> None:
        """Tell a learner that knows nothing where to go on."""
        post = people.learner
        post.live = False
        handles = [store.handle for store in people.stores]
        ref = post.again("restore").remote(handles, self.ledger.updates, self.saved[1])
        self.pending[ref] = functools.partial(self.back, post)
        self.pending[post.again("hello").remote()] = functools.partial(self.known, post)

    def back(self, post: Post, ref: Any) -> None:
        self.publish(made(ref))
        post.live = True

    def reveal(self) -> None:
        """Let the learner see what was held back."""
        assert self.cast is not None
        for store in self.cast.stores:
            stock = answer(store.handle.reveal.remote()) if store.live else None
            if stock is None:
                self.shard_died(store, store.life)
            else:
                self.take_stock(store, stock)

    def mass(self) -> float:
        assert self.cast is not None
        return sum(store.mass for store in self.cast.stores)

    # what there is to tell and to save

    def of_learner(self, method: str) -> Any:
        """What the learner answers; after its death, what the next one answers."""
        people = self.opening()
        while True:
            while not people.learner.live:
                self.pump()
            life = people.learner.life
            found = answer(getattr(people.learner.handle, method).remote())
            if found is not None:
                return found
            self.learner_died(people, life)

    def metrics(self) -> dict[str, Any]:
        """What there is to say since the last call."""
        people = self.opening()
        *sums, count = self.sums.tolist()
        if count:  # otherwise no block has come, and what the last ones said still holds
            self.sums[:] = 0
            self.acting = dict(zip(METRICS, (total / count for total in sums), strict=True))
        learning = answer(people.learner.handle.metrics.remote()) if people.learner.live else None
        updates, score = self.evaluated
        return {
            "updates": self.ledger.updates,
            "states": self.states,
            **self.recent.metrics(),
            **{k: v for k, v in self.acting.items() if self.plan.learns_policy or k == "q_acted"},
            **(learning or {}),
            "priority_mean": self.mass() / max(1, min(self.states, self.plan.replay.states)),
            "evaluated_score": score,
            "evaluated_updates": updates,
            "weights_behind": self.behind,
            "workers": sum(slot.live for slot in people.slots),
            "lost_steps": self.ledger.lost.steps_in_flight,
            "lost_updates": self.ledger.lost.updates,
            **{f"bytes_of_{name}": size for name, size in self.bytes.items()},
        }

    def policy(self) -> Policy:
        """What has been learned, as a policy of its own."""
        updates, weights = self.of_learner("policy")
        return policy_of(self.plan, self.sight, torch.from_numpy(weights.copy()), updates, self.states)

    def summary(self) -> dict[str, Any]:
        """What the result says of the cluster, and of what was lost on it."""
        assert self.cast is not None
        nodes = {post.node for post in self.cast.posts() if post.node}
        layout = {"workers": self.workers, "most_at_once": self.most_workers, "shards": self.config.shards}
        told = {"cluster": layout | {"nodes": len(nodes)}, "lost": asdict(self.ledger.lost)}
        return told | {"updates_gone": self.ledger.gone}

    @property
    def replay(self) -> "SavedShards":
        return SavedShards(self.opening().stores)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The learner, to be saved; it is also what a learner that dies goes on from."""
        self.settle()
        found = self.of_learner("state")
        self.saved = (self.ledger.updates, ray.put(found))
        return {name: torch.from_numpy(tensor.copy()) for name, tensor in found.items()}

    def counters(self) -> dict[str, Any]:
        """All numbers of the run."""
        layout = {"workers": self.workers, "shards": self.config.shards}
        ticks = [slot.tick for slot in self.opening().slots]
        return self.ledger.state() | {"recent": self.recent.state(), "layout": layout, "ticks": ticks}

    def restore(
        self,
        counters: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        replay: dict[str, torch.Tensor] | None,
        worlds: list[bytes] | None,
    ) -> None:
        """Go on from a saved run, before the first tick; players start new episodes. On another layout, and without
        the replay, shards fill up again first."""
        del worlds  # none are saved
        if "layout" not in counters:
            raise ValueError("the checkpoint is of --engine local, not of --engine ray")
        self.ledger.restore(counters)
        self.recent.restore(counters["recent"])
        if not self.config.workers:
            self.workers = counters["layout"]["workers"]
        same = counters["layout"] == {"workers": self.workers, "shards": self.config.shards}
        self.ticks_before = counters["ticks"] if same else [max(counters["ticks"])] * self.workers
        if replay and same:
            self.given = replay
        else:
            self.ledger.starve()
        state = {name: tensor.numpy() for name, tensor in tensors.items()}
        self.saved = (self.ledger.updates, ray.put(state))

    def close(self) -> None:
        """End all processes of the run."""
        for post in self.cast.posts() if self.cast is not None else ():
            ray.kill(post.handle)
        self.pending.clear()
        self.cast = None


class SavedShards:
    """The shards as the replay that a checkpoint saves."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores = stores

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that can be had; a shard that is down is left out, and fills up again."""
        found: dict[str, torch.Tensor] = {}
        for number, store in enumerate(self.stores):
            columns = answer(store.handle.state.remote()) if store.live else None
            found |= {f"shard{number}.{name}": torch.from_numpy(np.array(c)) for name, c in (columns or {}).items()}
        return found


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
