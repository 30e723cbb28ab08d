"""Shapes on the screen, recognised pixel by pixel whatever their colours: two emulators have two palettes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rbi.data.episode import Array
from rbi.data.repair.screens import HEIGHT, WIDTH

LIT = 40
"""Grey above this is drawn, the rest is background."""
NOTHING = -1
SHIFTS = sorted(((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)), key=lambda s: abs(s[0]) + abs(s[1]))
"""Emulators differ by a pixel in where they put things: the plain place first."""


def drawn(text: str, width: int) -> Array:
    """`[K, height, width]` booleans: shapes side by side in text, each `width` wide and one apart."""
    lines = np.array([list(line) for line in text.strip("\n").splitlines()]) == "#"
    return np.stack([lines[:, x : x + width] for x in range(0, lines.shape[1], width + 1)])


@dataclass(frozen=True, eq=False)
class Places:
    """Where shapes are drawn, and which ones may be there."""

    top: int
    lefts: Sequence[int]
    shapes: Array
    """`[K, height, width]` booleans"""

    @cached_property
    def pixels(self) -> Array:
        """`[shifts, places, height * width]`: which pixels of the screen lie in a place."""
        height, width = self.shapes.shape[1:]
        y, x = np.mgrid[:height, :width]
        corners = [[((self.top + dy) * WIDTH + left + dx) for left in self.lefts] for dy, dx in SHIFTS]
        return np.array(corners)[..., None] + (y * WIDTH + x).reshape(-1)

    @cached_property
    def signs(self) -> Array:
        """`[height * width, K]`: 1 where a shape is drawn, -1 where not."""
        found: Array = np.where(self.shapes.reshape(len(self.shapes), -1).T, 1, -1).astype(np.float32)
        return found

    def read(self, grey: Array) -> Array:
        """`[B, places]`: which shape is in each place of screens `[B, 210, 160]`; all -1 where any place has none."""
        seen = np.where(grey.reshape(-1, HEIGHT * WIDTH)[:, self.pixels] > LIT, np.float32(1), np.float32(-1))
        same = seen @ self.signs == len(self.signs)  # [B, shifts, places, K]
        good = same.any(3).all(2)  # [B, shifts]
        shift = good.argmax(1)
        which = same[np.arange(len(same)), shift].argmax(2)
        return np.where(good.any(1)[:, None], which, NOTHING)
