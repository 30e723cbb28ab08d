"""Light stand-ins for the processes of a Ray run: they answer as rollout workers and learner do, without environments,
networks or PyTorch, so that many of them fit on one machine and the driver's own cost shows."""

import os
import time
from typing import Any, NamedTuple

import numpy as np


class Summary(NamedTuple):
    """As `rbi.online.rollout.BlockSummary`."""

    states: int
    bytes: int
    version: int
    episodes: list[tuple[int, float, bool]]
    sums: list[list[float]]


class Status(NamedTuple):
    """As `rbi.online.stream.ReplayStatus`."""

    incarnation: str
    mass: float
    states: int


class Report(NamedTuple):
    """As `rbi.online.stream.LearnerReport`."""

    updates: int
    version: int | None
    bytes: int
    waited_seconds: float


class LightProcess:
    def __init__(self, name: str) -> None:
        self.name = name

    def identity(self) -> tuple[int, str, str]:
        return os.getpid(), "", ""


class LightWorker(LightProcess):
    """Returns a block after the time that its environments would take."""

    def __init__(self, name: str, metrics: int) -> None:
        super().__init__(name)
        self.seconds, self.sums = 1.0, [[1.0] * metrics] * 2

    def pace(self, seconds: float) -> None:
        """Set the seconds that a block takes."""
        self.seconds = seconds

    def rollout(self, start: int, steps: int, *_: Any) -> tuple[Any, Summary]:
        time.sleep(self.seconds)
        return np.zeros(steps, np.uint8), Summary(steps, steps, 0, [(0, float(start), True)], self.sums)


class LightLearner(LightProcess):
    """Takes blocks and does updates at once."""

    def __init__(self, name: str, updates_per_sample: int) -> None:
        super().__init__(name)
        self.per_sample, self.states = updates_per_sample, 0

    def address(self) -> str:
        return ""

    def continue_from(self, *_: Any) -> Any:
        return np.zeros(1000, np.float32)

    def status(self) -> Status:
        return Status("light", 1.0, self.states)

    def add(self, worker: int, start: int, reset: bool, block: Any) -> Status:  # noqa: ARG002 - as the driver calls it
        self.states += len(block)
        return self.status()

    def learn(self, expected: int, samples: int, publish: bool, mass: Any) -> tuple[Report, Any]:  # noqa: ARG002
        updates = expected + samples * self.per_sample
        return Report(updates, updates if publish else None, 0, 0.0), np.zeros(1000, np.float32) if publish else None
