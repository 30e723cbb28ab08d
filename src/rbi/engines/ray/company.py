"""The processes of a run while it goes on: who is live, what is on its way, and what to do when somebody dies."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError

from rbi.engines.ray.cast import Cast, Post, Slot, Store
from rbi.engines.ray.ledger import Ledger
from rbi.engines.ray.player import Array
from rbi.engines.ray.shard import Stock

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
