"""The score that a screen shows, and whether the text of an episode agrees with it.

Digits are as ale-py draws them; a test lets it draw each one and compares.
"""

from dataclasses import dataclass

import numpy as np

from rbi.data.episode import Array
from rbi.data.repair.shapes import NOTHING, Places, drawn

QBERT = """
.###....#....###...###.....#..#####...###.#####..###...###.
#...#..##...#...#.#...#...##..#......#........#.#...#.#...#
#...#...#.......#.....#..#.#..####..#........#..#...#.#...#
#...#...#....###....##..#..#......#.####....#....###...####
#...#...#...#.........#.#####.....#.#...#..#....#...#.....#
#...#...#...#.....#...#....#..#...#.#...#..#....#...#....#.
.###...###..#####..###.....#...###...###...#.....###..###..
"""
MSPACMAN = """
..###......##....#####..######..##..##..######...#####..#######..#####...#####.
.##.##....###...##...##......##.##..##..##......##...........##.##...##.##...##
##...##....##........##......##.##..##..##......##..........##..##...##.##...##
##...##....##.....####...#####..#######.######..######.....##....#####...######
##...##....##...###..........##.....##.......##.##...##....##...##...##......##
.##.##.....##...##...........##.....##.......##.##...##...##....##...##......##
..###....######.#######.######......##..######...#####....##.....#####...#####.
"""
REVENGE = """
.###....##...###...###....##..#####..###..#####..###...###.
##.##..###..##.##.##.##...##..##....##.##....##.##.##.##.##
##.##...##.....##....##..###..##....##.......##.##.##.##.##
##.##...##....##....##...#.#..####..####....##...###...####
##.##...##...##......##.##.#.....##.##.##...##..##.##....##
##.##...##..##.##.##.##.#####.##.##.##.##..##...##.##.##.##
#####..####.#####.#####.#####.#####.#####..##...#####.#####
.###...####.#####..###....##...###...###...##....###...###.
"""
INVADERS = """
###..#..###.###.#.#.###.#...###.###.###
#.#.##....#...#.#.#.#...#.....#.#.#.#.#
#.#..#..###.###.###.###.###...#.###.###
#.#..#..#.....#...#...#.#.#...#.#.#...#
###.###.###.###...#.###.###...#.###...#
"""
BLANK = 10
LAST_READINGS, SLACK = 10, 2
"""How many of the last screens with a score are compared with the text, and by how many frames it may be off."""


@dataclass(frozen=True)
class Counter:
    """A score on the screen: places from left to right, of which some may have their own row."""

    places: tuple[Places, ...]
    columns: tuple[int, ...]
    """Where the digits of `places`, one after the other, stand in the number."""
    modulus: int
    """It shows the score modulo this."""
    delay: int
    """Frames from a reward to the screen that shows it, measured with ale-py."""
    unit: int = 1
    """It shows the score to this: the last digits below it are not the game's."""

    def read(self, grey: Array) -> Array:
        """`[B]`: the score on screens `[B, 210, 160]`, or -1 where none can be read."""
        digits = np.concatenate([place.read(grey) for place in self.places], axis=1)[:, np.argsort(self.columns)]
        shown = (digits != BLANK).astype(np.int64)
        readable = (digits != NOTHING).all(1) & shown.any(1) & (np.diff(shown, axis=1) >= 0).all(1)
        values = np.where(shown, digits, 0) @ 10 ** np.arange(len(self.columns))[::-1]
        return np.where(readable, values // self.unit * self.unit, NOTHING)

    def shows(self, score: Array) -> Array:
        """What is on the screen at a score."""
        return score % self.modulus // self.unit * self.unit

    def contradiction(self, shown: Array, scores: Array, offset: int) -> tuple[int, int] | None:
        """The last scores of the text and of the screens, if they contradict each other.

        `shown` `[F]` are those read off the screens, `scores` `[F]` those of the text, `offset` frames late. What the
        last readable screens show must mostly be the text's score of about then.
        """
        frames = np.flatnonzero(shown != NOTHING)[-LAST_READINGS:]
        rows = frames - self.delay + offset + np.arange(-SLACK, SLACK + 1)[:, None]
        agree = (self.shows(scores[rows.clip(0, len(scores) - 1)]) == shown[frames]).any(0)
        return None if 2 * agree.sum() >= len(frames) else (int(scores[-1]), int(shown[frames[-1]]))


def or_blank(shapes: Array) -> Array:
    return np.concatenate([shapes, np.zeros_like(shapes[:1])])


def invaders_digits() -> tuple[Places, Places]:
    """The outer two digits lie in every other row, the inner two in the rows between."""
    shapes = np.kron(drawn(INVADERS, 3), np.array([[[1] * 4], [[0] * 4]]).reshape(1, 2, 4)).astype(bool)
    return Places(10, (4, 52), shapes), Places(11, (20, 36), shapes)


COUNTERS = {
    "qbert": Counter((Places(6, range(34, 67, 8), drawn(QBERT, 5)),), tuple(range(5)), 10**5, delay=2),
    "mspacman": Counter(
        (Places(187, range(55, 96, 8), or_blank(drawn(MSPACMAN, 7))),), tuple(range(6)), 10**6, delay=0, unit=10
    ),
    "revenge": Counter((Places(6, range(57, 98, 8), or_blank(drawn(REVENGE, 5))),), tuple(range(6)), 10**6, delay=1),
    "spaceinvaders": Counter(invaders_digits(), (0, 3, 1, 2), 10**4, delay=1),
}
