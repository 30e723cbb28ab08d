"""How the Atari Grand Challenge data is read and repaired."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AgcConfig:
    """Settings of the AGC reader."""
