"""The one seam between players and worlds: many environments of one kind, stepped together.

After the last step of an episode an environment shows its final frame; the action chosen there is not taken, and the
next frame is the first of a new episode.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np


class TimeStep(NamedTuple):
    """What `[N]` players see: the newest frame only. `reward` and `end` are of the step that led to it."""

    frame: np.ndarray[Any, Any]
    """`[N, *frame]`: bytes of a picture, or float32 of a vector."""
    first: np.ndarray[Any, Any]
    """The first frame of an episode."""
    reward: np.ndarray[Any, Any]
    """float32, not clipped."""
    end: np.ndarray[Any, Any]
    """uint8: returns.CONTINUES, LIFE_LOST, TERMINATED or TRUNCATED."""


@dataclass(frozen=True)
class EnvConfig:
    """What kind of environment it is, and how it is played. Frames here are the emulator's, 60 a second."""

    id: str
    """A Gymnasium id with discrete actions, such as ALE/Breakout-v5 or CartPole-v1."""
    max_frames: int = 108_000
    """An Atari episode is cut off after so many frames."""
    sticky: float = 0.0
    """The probability that an Atari game repeats the last action instead of the chosen one."""
    no_ops: int = 30
    """An Atari episode starts with up to so many actions of doing nothing."""

    def __post_init__(self) -> None:
        if not self.id.strip():
            raise ValueError("--env: name an environment, such as CartPole-v1")
        if self.max_frames < 1:
            raise ValueError(f"max_frames = {self.max_frames}: must be at least 1")
        if not 0 <= self.sticky <= 1:
            raise ValueError(f"sticky = {self.sticky}: must lie in [0, 1]")
        if self.no_ops < 0:
            raise ValueError(f"no_ops = {self.no_ops}: must be at least 0")

    @property
    def atari(self) -> bool:
        return self.id.startswith("ALE/")


class VectorEnv(Protocol):
    """Environments side by side. `send` and `recv` alternate; the worlds move on between them."""

    players: int
    actions: int
    frame: tuple[int, ...]
    stack: int
    moving: bool
    """Whether actions were sent whose results have not been received."""

    def reset(self, seed: int | None) -> TimeStep:
        """Start all episodes afresh; without a seed with the random numbers that come next, which Atari games do far
        faster. The first reset takes a seed."""

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        """Give every player its action, `[N]` integers."""

    def recv(self) -> TimeStep:
        """What the actions led to."""

    def state(self) -> bytes | None:
        """All that is needed to go on from here, between `send` and `recv`; None where it cannot be copied."""

    def restore(self, state: bytes) -> None:
        """Go on from a `state`."""

    def close(self) -> None:
        """Give everything back."""
