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
FLASH = 24
"""Frames for which icons may be gone without a meaning: they flash."""
LASTING = 120
"""Frames after which even an unlikely number is believed."""
DELAYS = {"revenge": 1, "qbert": 1}
"""Frames from the emulator's own counter to the icons, measured with ale-py; none in the other games. In Qbert they are
sometimes none either."""


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


SHOWN = 64
"""Frames for which Space Invaders shows its digit after a loss, measured with ale-py."""
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
    falls = numbers_that_fall(without_flashes(lives.counts), lives.counts != NOTHING)
    if game == "qbert":
        return np.array([hidden_loss(before, back, lives.still) for before, back in falls], np.int64)
    if game == "spaceinvaders":
        return np.array([shown_from(back, lives.counts != NOTHING) for _, back in falls], np.int64)
    return np.array([back - DELAYS.get(game, 0) for _, back in falls], np.int64)


def numbers_that_fall(counts: Array, known: Array) -> list[tuple[int, int]]:
    """Where a number is smaller than the one before: the last frame with that one, and the first with the smaller one.

    Lives go one at a time: a number that is smaller by more, and does not stay, is a flash.
    """
    frames = np.flatnonzero(known)
    runs = np.split(frames, np.flatnonzero(np.diff(counts[frames])) + 1)
    found, trusted, last = [], -1, -1
    for run in runs if len(frames) else []:
        number = int(counts[run[0]])
        if number < trusted - 1 and len(run) < LASTING:
            continue
        if number < trusted:
            found.append((last, int(run[0])))
        trusted, last = number, int(run[-1])
    return found


def without_flashes(counts: Array) -> Array:
    """The largest number within the next frames: a fall that is soon undone was none."""
    ahead = np.append(counts, np.full(FLASH - 1, NOTHING))
    found: Array = np.lib.stride_tricks.sliding_window_view(ahead, FLASH).max(1)
    return found


def shown_from(back: int, known: Array) -> int:
    """When Space Invaders' digit, first seen at `back`, was put there: a flash may have hidden its beginning."""
    later = np.flatnonzero(known[back:]) + back
    pauses = np.flatnonzero(np.diff(later) > FLASH)
    gone = int(later[pauses[0] if len(pauses) else -1]) + 1
    put = gone - SHOWN
    return put if back - FLASH <= put < back and gone < len(known) else back


def hidden_loss(before: int, back: int, still: Array) -> int:
    """When Qbert lost its life, if its number was last seen at `before` and is one less at `back`."""
    gap = back - before - 1
    if gap == 0:
        return back - DELAYS["qbert"]
    moves = np.flatnonzero(~still[before : back + 1]) + before
    rests = np.diff(moves) - 1
    caught = np.flatnonzero((rests >= CAUGHT[0]) & (rests <= CAUGHT[1]))
    if len(caught):
        return int(moves[caught[-1]])
    return back - AIRBORNE.get(gap, min(AIRBORNE.values()))
