"""What is wrong with the human data of the Atari Grand Challenge, put in on purpose, so that repairs can be measured.

The gentle defects can be repaired: rows that come earlier or later, icons that flash, other colours. Each of the others
makes an episode unusable, so an episode has one of them at most. One defect is in every file: nothing marks the end of
a life.
"""

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from rbi import runs
from rbi.data.episode import Array
from rbi.data.formats.agc_text import ACTIONS, FIRST_ROW, identity_of
from rbi.data.writers.agc import OFFSET, Rows, screens_folder, text_file

OFFSETS = (0, 1, 3, 4)
"""Other than the collectors' own."""
FLASHES, LONGEST_FLASH = 3, 16
DRIFT_FRAMES = 20
"""By so many frames the screens' run falls behind, where it drifts: a third of a second."""
POINTS = {"spaceinvaders": 5, "qbert": 25, "mspacman": 10, "revenge": 100, "pinball": 100}
"""The least that a game gives."""
ICONS = {
    "qbert": (slice(16, 28), slice(33, 57)),
    "mspacman": (slice(173, 183), slice(12, 35)),
    "revenge": (slice(15, 20), slice(56, 96)),
    "spaceinvaders": (slice(185, 195), slice(84, 96)),
}
"""Rows and columns in which a game shows how many lives are left."""

Fatal = Literal[
    "wrong_score", "drift", "same_identity", "same_rows",
    "cut_picture", "missing_picture", "four_fields", "impossible_action", "no_terminal",
]  # fmt: skip


@dataclass(frozen=True)
class Defects:
    """How often each defect is put in: shares of episodes."""

    reward_offset: float = 0.0
    """Rewards and scores come 0, 1, 3 or 4 frames late instead of 2."""
    action_offset: float = 0.0
    """Actions come 0, 1, 3 or 4 frames late instead of 2."""
    flashing: float = 0.0
    """The icons of lives are black for some frames, three times."""
    palette: float = 0.0
    """Screens have the colours of the collectors' emulator, not of ours."""
    wrong_score: float = 0.0
    """The text has points that the screen never shows."""
    drift: float = 0.0
    """From some frame on the screens are of another run."""
    same_identity: float = 0.0
    """The episode is there a second time, under another number."""
    same_rows: float = 0.0
    """The same, and the copy has an identity of its own."""
    cut_picture: float = 0.0
    """A screen's file ends too early."""
    missing_picture: float = 0.0
    """A screen is not there."""
    four_fields: float = 0.0
    """A row has lost its last field."""
    impossible_action: float = 0.0
    """A row has action 19."""
    no_terminal: float = 0.0
    """A row has nothing in its terminal field."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not 0 <= getattr(self, field.name) <= 1:
                raise ValueError(f"{field.name} = {getattr(self, field.name)}: a share must lie in [0, 1]")
        if self.fatal_shares().sum() > 1 + 1e-9:
            raise ValueError(
                f"{', '.join(get_args(Fatal))}: an episode has one of them at most, so they sum to 1 at most"
            )

    def fatal_shares(self) -> Array:
        return np.array([getattr(self, name) for name in get_args(Fatal)])


@dataclass(frozen=True)
class Injected:
    """What was done to one episode."""

    reward_offset: int = OFFSET
    action_offset: int = OFFSET
    flashes: tuple[tuple[int, int], ...] = ()
    """First frame and number of frames, each."""
    palette: bool = False
    fatal: Fatal | None = None
    frame: int = 0
    """Where the fatal one is, or begins."""
    points: int = 0
    """Of a wrong score."""

    def flashing(self, frame: int) -> bool:
        return any(first <= frame < first + count for first, count in self.flashes)


def draw(defects: Defects, game: str, rewards: Array, rng: np.random.Generator) -> Injected:
    """Choose what is wrong with an episode whose frames bring these rewards `[F]`."""
    frames, names = len(rewards), get_args(Fatal)
    shares = defects.fatal_shares()
    fatal = int(rng.choice(len(names) + 1, p=[*shares, max(0.0, 1 - shares.sum())]))
    offsets = rng.choice(OFFSETS, size=2)
    starts = rng.integers(frames, size=FLASHES).tolist()
    flashes = tuple(zip(starts, rng.integers(1, LONGEST_FLASH + 1, size=FLASHES).tolist(), strict=True))
    seen = rewards[rewards > 0]
    has = dict(zip(("reward", "action", "flash", "palette"), rng.random(4), strict=True))
    return Injected(
        reward_offset=int(offsets[0]) if has["reward"] < defects.reward_offset else OFFSET,
        action_offset=int(offsets[1]) if has["action"] < defects.action_offset else OFFSET,
        flashes=flashes if has["flash"] < defects.flashing else (),
        palette=bool(has["palette"] < defects.palette),
        fatal=names[fatal] if fatal < len(names) else None,
        frame=int(rng.integers(frames // 4, frames // 2 + 1)),
        points=int(rng.choice(seen)) if len(seen) else POINTS[game],
    )


def wrong_score(rows: Rows, frame: int, points: int) -> Rows:
    """Rows with points that the screen never shows."""
    rewards = np.array(rows.rewards)
    rewards[frame] += points
    return dataclasses.replace(rows, rewards=rewards, scores=np.cumsum(rewards))


def drifted(actions: Array, frame: int) -> Array:
    """The actions of a run that loses its hold for a moment, and does everything later from then on."""
    return np.concatenate([actions[:frame], np.zeros(DRIFT_FRAMES, actions.dtype), actions[frame:]])[: len(actions)]


def blank_icons(picture: Array, game: str) -> Array:
    """A screen that does not show how many lives are left."""
    if game not in ICONS:
        return picture
    changed = picture.copy()
    changed[ICONS[game]] = 0
    return changed


def break_files(root: Path, game: str, number: int, injected: Injected) -> None:
    """Damage the files of an episode, if that is what is wrong with it."""
    picture = screens_folder(root, game, number) / f"{injected.frame}.png"
    if injected.fatal == "cut_picture":
        os.truncate(picture, picture.stat().st_size // 2)
    elif injected.fatal == "missing_picture":
        picture.unlink()
    elif injected.fatal in ("four_fields", "impossible_action", "no_terminal"):
        text = text_file(root, game, number)
        lines = text.read_text().splitlines()
        line = injected.frame + FIRST_ROW - 1
        lines[line] = broken(lines[line], injected.fatal)
        runs.atomic_write(text, lambda at: at.write_text("\n".join([*lines, ""])))


def broken(row: str, fatal: Fatal) -> str:
    """A row of the text, damaged.

    >>> broken("7,0,120,0,3", "impossible_action")
    '7,0,120,0,19'
    """
    *others, terminal, action = row.split(",")
    changed: dict[Any, list[str]] = {
        "four_fields": [*others, terminal],
        "impossible_action": [*others, terminal, str(ACTIONS + 1)],
        "no_terminal": [*others, "", action],
    }
    return ",".join(changed[fatal])


def copy_episode(root: Path, game: str, number: int, new: int, identity: int | None = None) -> None:
    """Put an episode there a second time, with its own identity or another one. Screens take no further space."""
    shutil.copytree(
        screens_folder(root, game, number), screens_folder(root, game, new), copy_function=os.link
    )  # fmt: skip
    header, rest = text_file(root, game, number).read_text().split("\n", 1)
    kept = identity_of(header.encode()) if identity is None else identity
    runs.atomic_write(text_file(root, game, new), lambda at: at.write_text(f"db traj id : {kept}\n{rest}"))
