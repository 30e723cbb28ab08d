"""How the Atari Grand Challenge data is read and repaired."""

from dataclasses import dataclass
from typing import Literal

from rbi.data.repair.offsets import LARGEST, USUAL

Game = Literal["spaceinvaders", "qbert", "mspacman", "pinball", "revenge"]


@dataclass(frozen=True)
class AgcConfig:
    """FormatSettings of the AGC reader."""

    game: Game | None = None
    """Which game, where the folder holds several."""
    reward_offset: int | None = USUAL
    """By how many frames rewards come later in the text than on the screen; None: found in each episode by the score
    that its screens show, and 2 where the score never changes."""
    action_offset: int | None = USUAL
    """By how many frames actions come later in the text than their effect on the screen; None: found in each episode by
    what moves on its screens, and 2 where too little moves."""
    phase: int = 0
    """The first frame that is seen, of four. Emulators differ in it: import with each of 0 to 3, fit a policy to each,
    and keep the phase whose policy plays best."""
    check_scores: bool = True
    """Set aside episodes whose last score is not the one that their last screens show."""
    find_lives: bool = True
    """Find lost lives by what the screens show of them."""
    duplicates: bool = False
    """Keep episodes that are there twice."""

    def __post_init__(self) -> None:
        for name in ("reward_offset", "action_offset"):
            offset = getattr(self, name)
            if offset is not None and not 0 <= offset <= LARGEST:
                raise ValueError(
                    f"--agc.{name.replace('_', '-')} = {offset}: must lie in 0 to {LARGEST}, or None to find it"
                )
        if not 0 <= self.phase <= 3:
            raise ValueError(f"--agc.phase = {self.phase}: must lie in 0 to 3")
