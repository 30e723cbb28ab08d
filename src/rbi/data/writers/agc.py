"""The format of the Atari Grand Challenge: a text with a row a frame, and a picture a frame.

    <root>/trajectories/<game>/<N>.txt         written last: an episode is there when its text is
    <root>/screens/<game>/<N>/<frame>.png      160 x 210, RGB

The collectors took the rows from the session and the screens from playing it again, and rows came later: what screen n
shows stands in row n + 2. `Rows.late` writes them so. Nothing in the format says when a life is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from rbi import runs
from rbi.data.episode import Array
from rbi.data.formats.agc import ENVS
from rbi.data.formats.agc_text import ACTIONS, FIELDS

OFFSET = 2
"""By how many frames the collectors' rows come later than their screens."""
HEIGHT, WIDTH = 210, 160
Version = Literal[1, 2]
SEPARATORS: dict[Version, str] = {1: " , ", 2: ","}
TERMINALS: dict[Version, tuple[str, str]] = {1: ("False", "True"), 2: ("0", "1")}


@dataclass(frozen=True)
class Rows:
    """The text of an episode of F frames."""

    identity: int
    """Its number in the collectors' data base: no two episodes share one."""
    rewards: Array
    """`[F]` integers: points that this row has and the one before has not."""
    scores: Array
    """`[F]` integers: points so far."""
    actions: Array
    """`[F]` integers, of 18."""
    terminal: bool
    """Whether the last frame ends the game; else the player quit."""

    def __post_init__(self) -> None:
        for name in ("rewards", "scores", "actions"):
            column = np.asarray(getattr(self, name))
            if column.dtype.kind not in "iu" or column.shape != (len(self),):
                raise ValueError(
                    f"{name} of type {column.dtype} and shape {column.shape}: must be {len(self)} integers"
                )
        bad = np.flatnonzero((self.actions < 0) | (self.actions >= ACTIONS))
        if len(bad):
            raise ValueError(f"frame {bad[0]}: action {self.actions[bad[0]]}: must lie in 0 to {ACTIONS - 1}")

    def __len__(self) -> int:
        return len(self.actions)

    @classmethod
    def late(
        cls, identity: int, rewards: Any, actions: Any, *, terminal: bool, reward_offset: int, action_offset: int
    ) -> "Rows":
        """Rows that come later than their screens.

        `rewards[n]` and `actions[n]` `[F]` are those that led to screen n; they stand in row n + offset. Rows before
        are zeros, and what would stand behind the last row is lost.
        """
        later = delayed(np.asarray(rewards, dtype=np.int64), reward_offset)
        held = delayed(np.asarray(actions, dtype=np.int64), action_offset)
        return cls(identity, later, np.cumsum(later), held, terminal)


def delayed(values: Array, frames: int) -> Array:
    """The values so many frames later, zeros before.

    >>> delayed(np.array([0, 5, 7, 9]), 2)
    array([0, 0, 0, 5])
    """
    return np.concatenate([np.zeros(frames, values.dtype), values])[: len(values)]


def write_episode(
    root: Path, game: str, number: int, rows: Rows, screens: Iterable[Array], version: Version = 2
) -> None:
    """Write an episode: its screens `[210, 160, 3]` one at a time, and then its text."""
    if game not in ENVS:
        raise ValueError(f"game = {game!r}: AGC has {', '.join(ENVS)}")
    folder, text = screens_folder(root, game, number), text_file(root, game, number)
    if text.exists():
        raise ValueError(f"{text}: is there already; give the episode another number")
    folder.mkdir(parents=True, exist_ok=True)
    text.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    for picture in screens:
        if picture.shape != (HEIGHT, WIDTH, 3) or picture.dtype != np.uint8:
            raise ValueError(f"screen {count} of shape {picture.shape}: must be bytes ({HEIGHT}, {WIDTH}, 3)")
        Image.fromarray(picture).save(
            folder / f"{count}.png", compress_level=1
        )  # 6 takes half the space and half more time
        count += 1
    if count != len(rows):
        raise ValueError(f"{folder}: {count} screens for {len(rows)} rows: must be as many")
    runs.atomic_write(text, lambda at: at.write_text(as_text(rows, version)))


def as_text(rows: Rows, version: Version = 2) -> str:
    """The text of an episode. Version 1 has spaces around fields and writes the terminal column as True and False.

    >>> print(as_text(Rows(7, np.array([0, 5]), np.array([0, 5]), np.array([0, 1]), True)), end="")
    db traj id : 7
    frame,reward,score,terminal,action
    0,0,0,0,0
    1,5,5,1,1
    """
    between, (goes_on, over) = SEPARATORS[version], TERMINALS[version]
    terminal = [goes_on] * (len(rows) - 1) + [over if rows.terminal else goes_on]
    columns = (range(len(rows)), rows.rewards, rows.scores, terminal, rows.actions)
    lines = (between.join(map(str, row)) for row in zip(*columns, strict=True))
    return "\n".join([f"db traj id : {rows.identity}", between.join(FIELDS), *lines, ""])


def text_file(root: Path, game: str, number: int) -> Path:
    return root / "trajectories" / game / f"{number}.txt"


def screens_folder(root: Path, game: str, number: int) -> Path:
    return root / "screens" / game / str(number)
