"""What everything that learns from logs has in common, so that an engine can drive it on a processor or a GPU."""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rbi.data import Batch, Sampler
from rbi.nets.from_logs import LogNetworks, dropped
from rbi.sight import Sight


class LearnsFromLogs(Protocol):
    """A learner. `update` is a fixed sequence of work on the device that never waits for it, so that it can be captured
    once and replayed; what happens only now and then, and all counting, is `passed`'s."""

    updates: int
    steady: "Looks | None"
    """Where every batch comes from, of a learner whose `passed` only counts: several updates are one sequence of work
    then, and batches can be looked at ahead. None for the others."""

    def update(self) -> None: ...

    def passed(self) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def generators(self) -> list[torch.Generator]: ...

    def state(self) -> dict[str, Tensor]: ...


class Looks:
    """Batches and what networks see of them, of which a share is blanked; made when asked for, or ahead of that."""

    def __init__(
        self, sampler: Sampler, sight: Sight, blanked: float = 0.0, generator: torch.Generator | None = None
    ) -> None:
        self.sampler, self.sight, self.blanked, self.generator = sampler, sight, blanked, generator
        self.waiting: deque[tuple[Batch, Tensor]] = deque()

    def next(self) -> tuple[Batch, Tensor]:
        """The batch that waits longest, or else a new one; and what is seen of it, in float32."""
        return self.waiting.popleft() if self.waiting else self.new()

    def ahead(self) -> None:
        """Draw a batch and look at it now, for `next` to give."""
        self.waiting.append(self.new())

    def new(self) -> tuple[Batch, Tensor]:
        batch = self.sampler.draw()
        return batch, dropped(self.sight.look(batch.states, torch.float32), self.blanked, self.generator)


def learn(learner: LearnsFromLogs, updates: int) -> Iterator[int]:
    """Take updates, one after the other, until so many are done; how many are."""
    while learner.updates < updates:
        learner.update()
        learner.passed()
        yield learner.updates


def frozen(networks: LogNetworks) -> LogNetworks:
    """Networks as they are now, for policies that stay what they are while learning goes on."""
    return copy.deepcopy(networks).eval().requires_grad_(False)


def means(names: Sequence[str], sums: Tensor) -> dict[str, float]:
    """Sums, the last of which counts, as means; the sums begin anew. Waits for the device."""
    *totals, count = sums.tolist()
    sums.zero_()
    return {name: total / max(1.0, count) for name, total in zip(names, totals, strict=True)}
