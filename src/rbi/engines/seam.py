"""What a training run looks like from outside, whatever engine runs it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from rbi.envs import VectorEnv
from rbi.evaluation.outcomes import RecentScores
from rbi.online.plan import Plan
from rbi.policy import Policy
from rbi.sight import Sight


class Counted(Protocol):
    """A learner, to those who only count."""

    updates: int


class Kept(Protocol):
    """A replay, to those who only save it."""

    def state(self) -> Mapping[str, torch.Tensor]: ...


class Engine(Protocol):
    """A training run: `ticks` runs it; to be saved are `tensors`, `counters`, replay and worlds."""

    @property
    def plan(self) -> Plan: ...
    @property
    def sight(self) -> Sight: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def learner(self) -> Counted: ...
    @property
    def replay(self) -> Kept: ...
    @property
    def worlds(self) -> Sequence[VectorEnv]: ...
    @property
    def recent(self) -> RecentScores: ...
    @property
    def states(self) -> int: ...
    @property
    def started(self) -> bool: ...

    def ticks(self) -> Iterator[None]:
        """Train to the end, a little each time."""

    def metrics(self) -> dict[str, Any]:
        """What there is to say since the last call."""

    def policy(self) -> Policy:
        """What has been learned, as a policy of its own on the CPU."""

    def summary(self) -> dict[str, Any]:
        """What the result says of the engine itself."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the run but the replay's."""

    def counters(self) -> dict[str, Any]:
        """All numbers of the run."""

    def restore(
        self,
        counters: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        replay: dict[str, torch.Tensor] | None,
        worlds: list[bytes] | None,
    ) -> None:
        """Go on from a saved run, before the first tick."""
