"""A shard: the replay of some workers, which takes blocks and gives batches."""

import uuid
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from rbi.engines.local import seeds_of
from rbi.engines.ray.player import Array, Block, Role, shared
from rbi.online.plan import GROUPS, Plan
from rbi.replay import Batch, Moment, Replay
from rbi.sight import Sight


class Stock(NamedTuple):
    """What a shard holds after it took a block."""

    born: str
    """Changes when the shard was started anew, and empty."""
    mass: float
    """The sum of its priorities."""
    states: int


class Drawn(NamedTuple):
    """States of one shard: `replay.Batch` as arrays, and what makes their weights comparable with other shards'."""

    batch: tuple[Array, ...]
    born: str
    mass: float
    mean: float
    """The mean priority that the importance weights are relative to."""


class Shard(Role):
    """The replay of every `shards`-th worker. Restarted after a fault it is empty, and says so by its `born`."""

    def __init__(self, plan: Plan, sight: Sight, seed: int, number: int, workers: int, shards: int) -> None:
        slots = len(range(number, workers, shards))
        lanes = plan.pace.players // workers * slots
        share = replace(plan.replay, states=plan.replay.states * lanes // plan.pace.players)
        self.plan, self.shards = plan, shards
        self.replay = Replay(share, sight, lanes, slots * GROUPS, plan.horizon, torch.device("cpu"))
        drawing = seeds_of(seed).learner if number == 0 else seeds_of(seed, number).learner
        self.generator = torch.Generator().manual_seed(drawing)
        self.next = [0] * slots
        self.born = uuid.uuid4().hex

    def add(self, slot: int, start: int, begin: bool, block: Block) -> Stock:
        """Take a block of a worker. Where it does not follow on the one before, episodes are cut between the two."""
        here = slot // self.shards
        if begin or start != self.next[here]:
            for group in range(here * GROUPS, (here + 1) * GROUPS):
                if self.replay.written[group] > 0:
                    self.replay.cut(group)
        for tick, moment in enumerate(zip(*(shared(column) for column in block), strict=True), start):
            self.replay.add(here * GROUPS + tick % GROUPS, Moment(*moment))
        self.next[here] = start + len(block.frame)
        if self.plan.replay.store_at_episode_end and not self.plan.replay.reveal_updates:
            self.replay.reveal()
        return self.stock()

    def stock(self) -> Stock:
        rows = self.replay.written.clamp(max=self.replay.rows).sum()
        return Stock(self.born, float(self.replay.mass.sum()), int(rows) * (self.replay.lanes // self.replay.groups))

    def reveal(self) -> Stock:
        """Let the learner see what was held back."""
        self.replay.reveal()
        return self.stock()

    def sample(self, size: int) -> Drawn | None:
        """Draw states; nothing where there is nothing to draw."""
        mass = float(self.replay.mass.sum())
        if not mass > 0:
            return None
        batch = self.replay.sample(size, self.generator)
        mean = float(self.replay.priority[batch.row, batch.lane].clamp(min=1e-30).mean())
        return Drawn(tuple(column.numpy() for column in batch), self.born, mass, mean)

    def reprioritise(self, born: str, row: Array, lane: Array, td_error: Array) -> None:
        """New priorities of drawn states; those of a table that is gone are of no use."""
        if born == self.born:
            self.replay.reprioritise(*(shared(column) for column in (row, lane, td_error)))

    def state(self) -> dict[str, Any]:
        """Everything, to be saved."""
        columns = {name: column.numpy() for name, column in self.replay.state().items()}
        return columns | {"random": self.generator.get_state().numpy(), "next": np.array(self.next)}

    def load(self, state: dict[str, Array]) -> Stock:
        held = {name: shared(column) for name, column in state.items()}
        self.generator.set_state(held.pop("random"))
        self.next = held.pop("next").tolist()
        self.replay.load(held)
        return self.stock()


def as_batch(drawn: Drawn, device: torch.device) -> Batch:
    """The states as the learner takes them."""
    return Batch(*(shared(column).to(device) for column in drawn.batch))
