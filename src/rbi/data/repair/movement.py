"""Where the player's figure is on the screen, and when it begins to move."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rbi.data.episode import Array
from rbi.data.repair.screens import HEIGHT, WIDTH

TOLERANCE = 10
FASTEST = 8
"""Pixels a frame; whatever goes further was put there."""
NEAR, MOVED, FAR = 4, 0.3, 1.4
"""A movement begins with a step of `MOVED` pixels; for `NEAR` frames before there was none like it, and in the next
ones it goes `FAR`. Less is a figure that moves its limbs."""
REST, HOP_FRAMES, HOP_PIXELS = 2, 26, 8
"""Qbert sits on a cube for so many frames before it hops, and goes so far to the side in so many frames."""


@dataclass(frozen=True)
class Figure:
    """What the player moves: its rows, and its colours in the palettes of AGC and of ALE."""

    rows: slice
    colours: tuple[tuple[int, int, int], tuple[int, int, int]]
    vertical: bool = False
    """Whether it moves up and down as freely as to the sides."""
    hidden: tuple[int, int] = (0, 0)
    """Rows in which something else has its colours."""


FIGURES = {
    "spaceinvaders": Figure(slice(185, 195), ((64, 124, 64), (50, 132, 50))),
    "qbert": Figure(slice(10, 200), ((172, 80, 48), (181, 83, 40)), hidden=(136, 142)),
    "mspacman": Figure(slice(2, 171), ((204, 160, 92), (210, 164, 74)), vertical=True),
    "revenge": Figure(slice(48, 180), ((192, 88, 88), (200, 72, 72))),
}


def positions(game: str, colour: Array) -> Array:
    """`[B, 2]`: column and row of the figure's middle on screens `[B, 3, 210, 160]`; NaN where it is not there."""
    figure = FIGURES[game]
    seen = np.zeros((len(colour), HEIGHT, WIDTH), bool)
    for rgb in figure.colours:
        red, green, blue = (
            plane - np.uint8(value - TOLERANCE) <= 2 * TOLERANCE  # what lies below wraps around to large bytes
            for plane, value in zip(colour[:, :, figure.rows].swapaxes(0, 1), rgb, strict=True)
        )
        seen[:, figure.rows] |= red & green & blue
    seen[:, slice(*figure.hidden)] = False
    frame, pixel = np.divmod(np.flatnonzero(seen), HEIGHT * WIDTH)
    row, column = np.divmod(pixel, WIDTH)
    mass, columns, rows = (np.bincount(frame, weights, len(colour)) for weights in (None, column, row))
    with np.errstate(invalid="ignore"):
        return np.stack([columns / mass, rows / mass], 1)


class Onsets(NamedTuple):
    """Moments at which the figure begins to move."""

    frames: Array
    axes: Array
    """0 to the sides, 1 up and down"""
    signs: Array
    """1 to the right or down, -1 to the left or up"""


def onsets(game: str, places: Array) -> Onsets:
    """When the figure begins to move in a direction, from its places `[F, 2]`."""
    steps = np.diff(places, axis=0, prepend=places[:1])
    lost: Array = np.logical_not((np.abs(steps) <= FASTEST).all(1))  # also where it was not there
    steps[lost] = 0
    if game == "qbert":
        return hops(places, steps, lost)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(steps, ((NEAR, NEAR - 1), (0, 0))), NEAR, axis=0)
    before, after = windows[: len(steps)], windows[NEAR:].sum(2)
    signs = np.sign(after)
    begins = (np.abs(steps) > MOVED) & (np.sign(steps) == signs) & (np.abs(after) > FAR)
    begins &= ~(before * signs[..., None] > MOVED).any(2)
    frames, axes = np.nonzero(begins if FIGURES[game].vertical else begins[:, :1])
    return Onsets(frames, axes, signs[frames, axes].astype(int))


def hops(places: Array, steps: Array, lost: Array) -> Onsets:
    """When Qbert leaves a cube on which it rested, and whether to the right or to the left."""
    moves = (np.abs(steps) > 0.05).any(1) | lost
    count = np.cumsum(np.append(0, moves))
    frames = np.flatnonzero(moves & ~lost)
    frames = frames[(frames >= REST) & (frames + HOP_FRAMES < len(places))]
    frames = frames[count[frames] == count[frames - REST]]
    way = places[frames + HOP_FRAMES, 0] - places[frames - 1, 0]
    clear = np.abs(way) >= HOP_PIXELS  # not where it is NaN
    return Onsets(frames[clear], np.zeros(clear.sum(), int), np.sign(way[clear]).astype(int))
