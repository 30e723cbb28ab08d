"""The frame that policies see, made of the emulator's screens as ale-py's vector environment makes it.

Screens become grey one by one, of the last two of a step each pixel keeps its larger value, and the result is averaged
over areas down to 84 x 84. In that order: the other ones differ by dozens of grey levels.
"""

import numpy as np

from rbi.data.episode import Array

HEIGHT, WIDTH = 210, 160
SIZE = 84


def shares(pixels: int, strips: int) -> Array:
    """`[pixels, strips]`: the weight of each pixel in the mean of each of so many equal strips."""
    edges = np.linspace(0, pixels, strips + 1)
    starts = np.arange(pixels)[:, None]
    overlap = np.minimum(edges[1:], starts + 1) - np.maximum(edges[:-1], starts)
    return (overlap.clip(0) * strips / pixels).astype(np.float32)


COLUMNS = shares(40, 21) / 5
"""40 columns become 21, four times side by side. The rows come in as sums of fifths."""


def shrink(grey: Array) -> Array:
    """`[B, 210, 160]` bytes averaged over areas to `[B, 84, 84]` bytes."""
    # Five rows make two: rows 0, 1 and half of 2, then the other half of 2, and 3, 4. Sums of fifths are whole numbers.
    rows = np.asarray(grey).reshape(-1, SIZE // 2, 5, WIDTH)
    middle, fifths = rows[:, :, 2], np.empty((len(rows), SIZE // 2, 2, WIDTH), np.uint16)
    fifths[:, :, 0] = 2 * np.add(rows[:, :, 0], rows[:, :, 1], dtype=np.uint16) + middle
    fifths[:, :, 1] = 2 * np.add(rows[:, :, 3], rows[:, :, 4], dtype=np.uint16) + middle
    # Products this small stay on one thread: readers run side by side, and threads of theirs would wait for each other.
    means = fifths.reshape(-1, 2 * SIZE, len(COLUMNS)).astype(np.float32) @ COLUMNS
    return np.rint(means).astype(np.uint8).reshape(-1, SIZE, SIZE)
