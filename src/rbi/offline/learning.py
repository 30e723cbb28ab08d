"""What everything that learns from logs has in common, so that an engine can drive it on a processor or a GPU."""

import copy
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rbi.data import Sampler
from rbi.nets.from_logs import LogNetworks


class LearnsFromLogs(Protocol):
    """A learner. `update` is a fixed sequence of work on the device that never waits for it, so that it can be captured
    once and replayed; what happens only now and then, and all counting, is `passed`'s."""

    updates: int
    steady: Sampler | None
    """What draws every batch of a learner whose `passed` only counts: several updates are one sequence of work then,
    and batches can be drawn ahead. None for the others."""

    def update(self) -> None: ...

    def passed(self) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def generators(self) -> list[torch.Generator]: ...

    def state(self) -> dict[str, Tensor]: ...


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
