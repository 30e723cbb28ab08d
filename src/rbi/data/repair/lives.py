"""Lost lives, found by what screens show of the lives that are left.

Three games show an icon for each life after the one being played, Space Invaders a digit for a second or two when the
number changes. Where nothing can be read nothing is concluded: a black screen has no icons and no meaning. A life is
lost where the number is smaller than the one read before; it may rise again.
"""

from dataclasses import dataclass

import numpy as np

from rbi.data.episode import Array
from rbi.data.repair.scores import INVADERS
from rbi.data.repair.shapes import LIT, NOTHING, Places, drawn

QBERT = """
....##..
...####.
..#.#.#.
..#.#.##
..#.#.##
..#.#.##
..######
.#######
########
#.######
##.####.
"""
MSPACMAN = """
.#.###.
#.#####
.##.###
.####..
.##....
.##....
.####..
.######
..#####
...###.
"""
REVENGE = """
..###..
..###..
..###..
#######
#######
"""
STEADY = 3
"""Frames for which a number must stay to be believed, unless the episode ends."""


def strips(text: str, most: int, pitch: int) -> Array:
    """`[most + 1, height, width]`: no icon, one, and so on, side by side."""
    icon = drawn(text, len(text.split()[0]))[0]
    found = np.zeros((most + 1, icon.shape[0], (most - 1) * pitch + icon.shape[1]), bool)
    for count in range(1, most + 1):
        found[count:, :, (count - 1) * pitch : (count - 1) * pitch + icon.shape[1]] |= icon
    return found


ICONS = {
    "qbert": Places(16, (33,), strips(QBERT, 3, 8)),
    "mspacman": Places(173, (12,), strips(MSPACMAN, 3, 16)),
    "revenge": Places(15, (56,), strips(REVENGE, 6, 8)),
    "spaceinvaders": Places(185, (84,), np.kron(drawn(INVADERS, 3), np.ones((1, 2, 4))).astype(bool)),
}
MAZE = (slice(2, 171), 0.1)
"""Rows of Ms. Pac-Man's maze, and a share of pixels that are lit unless the screen is black."""


def count(game: str, grey: Array, scores: Array) -> Array:
    """`[B]`: lives after this one on screens `[B, 210, 160]`, or -1 where they do not say.

    No icons mean something only beside a score: that is how a hidden line differs from a last life.
    """
    found = ICONS[game].read(grey)[:, 0]
    if game == "spaceinvaders":
        return found
    found = np.where(scores == NOTHING, NOTHING, found)
    if game == "mspacman":
        rows, share = MAZE
        found = np.where((grey[:, rows] > LIT).mean((1, 2)) < share, NOTHING, found)
    return found


CAUGHT = (120, 130)
"""Frames for which Qbert stands still when an enemy has caught it: 127, measured with ale-py."""
TOP = (slice(28, 76), slice(40, 120))
"""The top of Qbert's pyramid. While it is there the line with score and icons is hidden."""
AIRBORNE = {36: 20, 44: 12}
"""How long the line is hidden when Qbert jumps off the top to the right or left, and how long before it is back the
life is lost: measured with ale-py."""


@dataclass(frozen=True)
class Lives:
    """What F screens say of lives."""

    counts: Array
    """`[F]`: lives after this one, or -1"""
    still: Array
    """`[F]` booleans: the top of the screen is as it was one frame before"""


def losses(game: str, lives: Lives) -> Array:
    """The frames at which a life is lost, within two frames of the emulator's own counter."""
    known = np.flatnonzero(steady(lives.counts))
    numbers = lives.counts[known]
    fallen = np.flatnonzero(np.diff(numbers) < 0)
    times = known[fallen + 1]
    if game != "qbert":
        return times
    return np.array([hidden_loss(int(before), int(back), lives.still) for before, back in zip(known[fallen], times)], int)


def steady(counts: Array) -> Array:
    """`[F]`: where a number was read that stays for a while, or to the end."""
    edges = np.flatnonzero(np.diff(counts)) + 1
    starts, ends = np.append(0, edges), np.append(edges, len(counts))
    long = (ends - starts >= STEADY) | (ends == len(counts))
    return np.repeat(long & (counts[starts] != NOTHING), ends - starts)


def hidden_loss(before: int, back: int, still: Array) -> int:
    """When Qbert lost its life, if its number was last seen at `before` and is one less at `back`."""
    gap = back - before - 1
    if gap == 0:
        return back
    moves = np.flatnonzero(~still[before : back + 1]) + before
    rests = np.diff(moves) - 1
    caught = np.flatnonzero((rests >= CAUGHT[0]) & (rests <= CAUGHT[1]))
    if len(caught):
        return int(moves[caught[-1]])
    return back - AIRBORNE.get(gap, min(AIRBORNE.values()))
