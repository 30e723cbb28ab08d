"""The text of an AGC episode: which action, reward and score stand at each frame.

    db traj id : 1234
    frame,reward,score,terminal,action
    0,0,0,0,0
    ...

Version 1 puts spaces around fields and writes `True` and `False` for the terminal column; both are read.
"""

import re
from dataclasses import dataclass

import numpy as np

from rbi.data.episode import Array

FIELDS = ("frame", "reward", "score", "terminal", "action")
FIRST_ROW = 3
"""The line of the first frame."""
ACTIONS = 18


class EpisodeError(Exception):
    """Why an episode cannot be used, and the line of its text that shows it."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


@dataclass(frozen=True)
class Trajectory:
    """An episode's text, F frames."""

    identity: int
    """Its number in the collectors' data base."""
    rewards: Array
    """`[F]`"""
    scores: Array
    """`[F]`"""
    actions: Array
    """`[F]`, of 18"""
    terminal: bool
    """Whether the last frame ends the game; else the player quit."""

    def __len__(self) -> int:
        return len(self.actions)


def identity_of(first_line: bytes) -> int:
    """The number in `db traj id : 1234`."""
    found = re.fullmatch(rb"\s*db traj id\s*:\s*(\d{1,18})\s*", first_line)
    if found is None:
        raise EpisodeError(1, f"{first_line[:40]!r} is not a line such as 'db traj id : 1234'")
    return int(found[1])


def parse(written: bytes) -> Trajectory:
    """The text of an episode, checked."""
    if not written.strip():
        raise EpisodeError(1, "is empty")
    lines = written.rstrip().split(b"\n")
    identity = identity_of(lines[0])
    header = lines[1].replace(b" ", b"").strip().split(b",") if len(lines) > 1 else []
    if header != [name.encode() for name in FIELDS]:
        raise EpisodeError(2, f"the columns must be {','.join(FIELDS)}")
    if len(lines) < FIRST_ROW:
        raise EpisodeError(FIRST_ROW, "has no frames")
    rows = numbers(lines[FIRST_ROW - 1 :])
    frame, reward, score, terminal, action = rows.T
    refuse(frame != np.arange(len(rows)), frame, "frame {}: frames must be consecutive from 0")
    refuse((terminal != 0) & (terminal != 1), terminal, "terminal {}: must be 0 or 1")
    refuse((action < 0) | (action >= ACTIONS), action, f"action {{}}: must lie in 0 to {ACTIONS - 1}")
    refuse(terminal[:-1] == 1, terminal, "terminal {}: the game is over, and the file goes on")
    return Trajectory(identity, reward, score, action, bool(terminal[-1]))


def numbers(lines: list[bytes]) -> Array:
    """`[F, 5]` int64: the fields of each line."""
    fields = [line.replace(b"True", b"1").replace(b"False", b"0").split(b",") for line in lines]
    counts = np.fromiter(map(len, fields), np.int64, len(fields))
    refuse(counts != len(FIELDS), counts, f"{{}} fields: must be {len(FIELDS)}")
    try:
        found = [int(field) for row in fields for field in row]
        return np.array(found, np.int64).reshape(-1, len(FIELDS))
    except (ValueError, OverflowError):
        line, field = next((i, f) for i, row in enumerate(fields) for f in row if not whole(f))
        raise EpisodeError(line + FIRST_ROW, f"{field[:40].decode(errors='replace')!r} is not a whole number") from None


def whole(field: bytes) -> bool:
    try:
        return abs(int(field)) < 2**63
    except ValueError:
        return False


def refuse(bad: Array, values: Array, reason: str) -> None:
    """Name the first bad value and its line."""
    where = np.flatnonzero(bad)
    if len(where):
        raise EpisodeError(int(where[0]) + FIRST_ROW, reason.format(values[where[0]]))
