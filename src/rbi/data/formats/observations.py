"""Observations as other packages keep them, turned into ours: single pictures with channels last, or flat vectors."""

from typing import Any

import numpy as np
from gymnasium import spaces

from rbi.data.episode import Array

CHANNELS = range(1, 5)
"""So many planes are colours or stacked frames; a picture is larger."""
COLOURS = 3
MOST_STATES = 10_000


def single_frames(pictures: Array, *, channels_first: bool) -> Array:
    """`[T, H, W]` or `[T, H, W, C]` from pictures in one of the usual shapes.

    Planes may come before the picture or after it; where both could be, `channels_first` says which. One plane goes
    away, three before the picture are its colours. Any other number before the picture is a stack of grey frames,
    oldest first: states overlap then, and the newest frame of each is all that is new. Stacks of colour pictures,
    `[T, stack, H, W, C]`, give their newest one too. What a first stack held before its newest frame is padding.

    >>> [single_frames(np.zeros((7, *shape), np.uint8), channels_first=True).shape[1:] for shape in
    ...  [(84, 84), (1, 84, 84), (3, 84, 84), (4, 84, 84), (84, 84, 3), (4, 84, 84, 3)]]
    [(84, 84), (84, 84), (84, 84, 3), (84, 84), (84, 84, 3), (84, 84, 3)]
    """
    if pictures.ndim == 5:
        pictures, channels_first = pictures[:, -1], False
    if pictures.ndim != 4:
        return pictures
    before, after = (pictures.shape[axis] in CHANNELS for axis in (1, 3))
    if before == after:
        before = channels_first
    if not before:
        return pictures[..., 0] if pictures.shape[3] == 1 else pictures
    return np.moveaxis(pictures, 1, 3) if pictures.shape[1] == COLOURS else pictures[:, -1]


def vectors(values: Any) -> Array:
    """`[T, size]` float32. What float32 cannot hold becomes infinite, and is refused with its episode."""
    values = np.asarray(values)
    with np.errstate(over="ignore"):
        return values.reshape(len(values), -1).astype(np.float32)


def one_hot(values: Any, states: int) -> Array:
    """`[T, states]` float32 from numbers below `states`."""
    if states > MOST_STATES:
        raise ValueError(f"{states:,} numbered states: vectors for more than {MOST_STATES:,} are not made")
    values = np.asarray(values)
    wrong = (values < 0) | (values >= states)
    if wrong.any():
        raise ValueError(f"step {wrong.argmax()}: state {values[wrong][0]} is not one of {states}")
    return np.equal(values[:, None], np.arange(states)).astype(np.float32)


def flattened(space: spaces.Space[Any], values: Any) -> Array:
    """`[T, size]` float32: each value of a Gymnasium space as `gymnasium.spaces.flatten` gives it.

    >>> space = spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)])
    >>> flattened(space, (np.array([1, 3]), np.array([[0, 1], [1, 1]])))
    array([[1., 0., 0., 0., 1.],
           [0., 0., 1., 1., 1.]], dtype=float32)
    """
    match space:
        case spaces.Dict():
            return np.concatenate([flattened(part, values[name]) for name, part in space.spaces.items()], axis=1)
        case spaces.Tuple():
            parts = zip(space.spaces, values, strict=True)
            return np.concatenate([flattened(part, value) for part, value in parts], axis=1)
        case spaces.Discrete():
            return one_hot(np.asarray(values).reshape(-1) - int(space.start), int(space.n))
        case spaces.MultiDiscrete():
            numbers = np.asarray(values).reshape(len(values), -1) - space.start.ravel()
            return np.concatenate([one_hot(*pair) for pair in zip(numbers.T, space.nvec.ravel(), strict=True)], axis=1)
        case spaces.Box() | spaces.MultiBinary():
            return vectors(values)
    raise ValueError(f"observations of the space {space} cannot be made into vectors")


def unseen(steps: int) -> Array:
    """Stands for the observations of so many steps where nobody looks at them."""
    return np.zeros((steps, 1), np.float32)
