"""The learner's process, and the shards as the one replay that it learns from."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from rbi.engines.local import drawn_for, part_of, seeds_of
from rbi.engines.ray.player import Array, Role, shared
from rbi.engines.ray.shard import Drawn, as_batch
from rbi.nets import computing_dtype
from rbi.online.learner import Learner
from rbi.online.plan import Plan
from rbi.replay import Batch
from rbi.sight import Sight

PATIENCE = 60.0  # seconds after which a shard that says nothing counts as gone


class Learned(NamedTuple):
    """What the driver needs to know of some rounds."""

    updates: int
    publishes: bool
    """Whether weights come with it."""
    bytes: int
    """Bytes of batches that came from the shards."""
    waited: float
    """Seconds in which the learner waited for them."""


class StarvedError(Exception):
    """No shard has anything to draw."""


class Shards:
    """All shards as one replay: batches are drawn in proportion to the shards' mass, a few rounds ahead."""

    def __init__(self, handles: Sequence[Any], prefetch: int, importance_exponent: float, device: torch.device) -> None:
        self.handles, self.prefetch, self.device = handles, prefetch, device
        self.importance_exponent = importance_exponent
        self.mass = [0.0] * len(handles)
        self.coming: deque[list[tuple[int, int, Any]]] = deque()
        self.origin: list[tuple[int, str, Tensor]] = []
        self.sent: list[Any] = []
        self.bytes, self.waited = 0, 0.0

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """States of all shards in random order. A shard that is gone or empty gives its share to the others."""
        while True:
            while len(self.coming) <= self.prefetch:
                self.coming.append(self.ask(size, generator))
            parts = [(number, self.receive(number, ref)) for number, _, ref in self.coming.popleft()]
            found = [(number, part) for number, part in parts if part is not None]
            if len(found) == len(parts):
                return self.joined(found, generator)
            self.coming.clear()

    def ask(self, size: int, generator: torch.Generator) -> list[tuple[int, int, Any]]:
        """Ask each shard for its share, as a draw spread evenly over the mass would fall."""
        if not sum(self.mass) > 0:
            raise StarvedError
        counts = [size]
        if len(self.handles) > 1:
            edges = np.cumsum(self.mass) / sum(self.mass) * size
            start = float(torch.rand((), generator=generator, device=self.device, dtype=torch.float64))
            counts = np.diff(np.floor(np.array([0.0, *edges[:-1], size]) + start)).astype(int).tolist()
        asked = [(number, count) for number, count in enumerate(counts) if count]
        return [(number, count, self.handles[number].sample.remote(count)) for number, count in asked]

    def receive(self, number: int, ref: Any) -> Drawn | None:
        began = time.monotonic()
        try:
            found: Drawn | None = ray.get(ref, timeout=PATIENCE)
        except RayError:
            found = None
        self.waited += time.monotonic() - began
        self.mass[number] = found.mass if found is not None else 0.0
        if found is not None:
            self.bytes += sum(column.nbytes for column in found.batch)
        return found

    def joined(self, parts: list[tuple[int, Drawn]], generator: torch.Generator) -> Batch:
        """One batch. Weights were relative to each shard's own mean priority, and are now relative to one for all."""
        batches = [as_batch(part, self.device) for _, part in parts]
        if len(parts) == 1:
            (number, part), (whole,) = parts[0], batches
            self.origin = [(number, part.born, torch.arange(len(whole.row), device=self.device))]
            return whole
        for at, (_, part) in enumerate(parts):
            likely = len(part.batch[0]) * part.mean / part.mass  # of a state of mean priority, up to a common factor
            batches[at] = batches[at]._replace(weight=batches[at].weight * likely**-self.importance_exponent)
        size = sum(len(batch.row) for batch in batches)
        order = torch.rand(size, generator=generator, device=self.device).argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(size, device=self.device)
        spans = place.split([len(batch.row) for batch in batches])
        self.origin = [(number, part.born, span) for (number, part), span in zip(parts, spans, strict=True)]
        return Batch(*(torch.cat(columns)[order] for columns in zip(*batches, strict=True)))

    def reprioritise(self, row: Tensor, lane: Tensor, td_error: Tensor) -> None:
        """Send the new priorities to where the states came from; nobody waits for their arrival."""
        columns = (row, lane, td_error.float())
        self.sent = [
            self.handles[number].reprioritise.remote(born, *(column[span].cpu().numpy() for column in columns))
            for number, born, span in self.origin
        ]


class LearnerRole(Role):
    """The learner in a process of its own. A restarted one has to be told where to go on before it learns."""

    def __init__(self, plan: Plan, sight: Sight, seed: int, prefetch: int, lockstep: bool, gpu: bool) -> None:
        self.plan, self.lockstep = plan, lockstep
        self.device = torch.device("cuda" if gpu else "cpu")
        seeds = seeds_of(seed)
        networks = drawn_for(plan, sight, seeds.weights)
        generator = torch.Generator(self.device).manual_seed(seeds.learner)
        self.learner = Learner(
            plan.learner,
            plan.actor,
            networks,
            generator,
            computing_dtype(self.device, plan.pace.precision),
            plan.pace.updates,
        )
        self.prefetch = 0 if lockstep else prefetch
        self.shards: Shards | None = None

    def restore(self, handles: Sequence[Any], updates: int, tensors: dict[str, Array] | None) -> Array:
        """Go on from saved tensors with the count of updates that the driver knows; the weights."""
        exponent = self.plan.replay.importance_exponent
        self.shards = Shards(handles, self.prefetch, exponent, self.device)
        if tensors is not None:
            held = {name: shared(tensor) for name, tensor in tensors.items()}
            self.learner.restore(part_of(held, "learner."))
        self.learner.updates = updates
        return self.weights()

    def learn(self, expected: int, rounds: int, mass: Sequence[float]) -> tuple[Learned | None, Array | None]:
        """Some rounds of updates, and the weights if they are to be published. `expected` is the count of updates so
        far. A learner that was started anew, and not told where to go on, answers nothing."""
        if self.shards is None:
            return None, None
        rounds = rounds if self.learner.updates == expected else 0  # those asked for before found nothing to draw
        shards = self.shards
        shards.mass = list(mass)
        shards.bytes, shards.waited = 0, 0.0
        for _ in range(rounds):
            try:
                self.learner.round(shards)  # type: ignore[arg-type]
            except StarvedError:
                break
            self.learner.passed()
        if self.lockstep:
            ray.get(shards.sent)
        updates = self.learner.updates
        publishes = updates != expected and updates % self.plan.pace.publish_updates == 0
        return Learned(updates, publishes, shards.bytes, shards.waited), self.weights() if publishes else None

    def weights(self) -> Array:
        return self.learner.vector.cpu().numpy().copy()

    def policy(self) -> tuple[int, Array] | None:
        """The count of updates, and the weights."""
        return None if self.shards is None else (self.learner.updates, self.weights())

    def metrics(self) -> dict[str, float] | None:
        return None if self.shards is None else self.learner.metrics()

    def state(self) -> dict[str, Array] | None:
        """Everything that the learner is, to be saved."""
        if self.shards is None:
            return None
        return {f"learner.{name}": tensor.cpu().numpy().copy() for name, tensor in self.learner.state().items()}
