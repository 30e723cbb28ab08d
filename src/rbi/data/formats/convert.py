"""Observations of other packages converted to ours: images with channels last, vectors, one-hot states."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from gymnasium import spaces

from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.reader import SpecOverrides
from rbi.steps import COLOURS, MAX_BYTE, FrameLayout, are_channels_first, overlap

LAYOUT_EPISODES = 8
"""Episodes that decide whether leading channels are a stack of frames."""
MAX_STATES = 10_000
MAX_SPACE = 300  # characters of a space in a message


def frame_layout(shape: tuple[int, ...], episodes: Iterable[Array], *, channels_first: bool) -> FrameLayout:
    """The layout of images of this shape, from the images `[T, *shape]` of some episodes.

    Channels may come first or last; `channels_first` decides if both are possible. Three leading channels are colours.

    >>> moving = np.arange(7)[:, None, None, None] + np.arange(4)[:, None, None] + np.zeros((9, 9), int)
    >>> frame_layout((4, 9, 9), [moving], channels_first=True)
    FrameLayout(channels_first=True, stacked=True)
    >>> frame_layout((4, 9, 9), [moving[:, ::-1]], channels_first=True)
    FrameLayout(channels_first=True, stacked=False)
    """
    if len(shape) == 4:
        if not all(overlap(images) for images in episodes):
            raise ValueError(f"its observations have the shape {shape} and are not stacks of images")
        return FrameLayout(channels_first=True, stacked=True)
    if len(shape) != 3:
        return FrameLayout()
    if not are_channels_first(shape, if_unclear=channels_first):
        return FrameLayout()
    several = [images for images in islice(episodes, LAYOUT_EPISODES) if len(images) > 1]
    stacks = shape[0] not in (1, COLOURS) and bool(several) and all(overlap(images) for images in several)
    return FrameLayout(channels_first=True, stacked=stacks)


def is_image(observations: Any) -> bool:
    """Whether observations `[T, ...]` are images: bytes of two or more dimensions. Everything else becomes vectors."""
    return bool(observations.dtype == np.uint8 and observations.ndim > 2)


def spec_of_episode(
    observations: Array, frames: FrameLayout, num_actions: int, overrides: SpecOverrides
) -> DatasetSpec:
    """The spec of a dataset, from the observations `[T, ...]` of an episode."""
    image, shape = is_image(observations), observations.shape[1:]
    return DatasetSpec(
        frames.single_frames(observations[:1]).shape[1:] if image else (int(np.prod(shape)),),
        num_actions,
        frame_stack=overrides.frame_stack or (frames.frame_stack(shape) if image else 1),
        env=overrides.env,
    )


def vectors(values: Any) -> Array:
    """`[T, size]` float32. Values beyond float32 become infinite, which rejects their episode."""
    values = np.asarray(values)
    with np.errstate(over="ignore"):
        return values.reshape(len(values), int(np.prod(values.shape[1:]))).astype(np.float32)


def one_hot(values: Any, states: int) -> Array:
    """`[T, states]` float32 from integers below `states`."""
    if states > MAX_STATES:
        raise ValueError(f"{states:,} states: one-hot vectors are limited to {MAX_STATES:,}")
    values = np.asarray(values)
    wrong = (values < 0) | (values >= states)
    if wrong.any():
        raise ValueError(f"step {wrong.argmax()}: state {values[wrong][0]} is not one of {states}")
    return np.equal(values[:, None], np.arange(states)).astype(np.float32)


def is_image_space(space: spaces.Space[Any]) -> bool:
    """Whether observations are images, as in environments (`rbi.envs.gym`): bytes that may reach 255."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3, 4):
        return False
    return bool((space.high == MAX_BYTE).any())


def observed_shape(space: spaces.Space[Any], frames: FrameLayout) -> tuple[tuple[int, ...], int]:
    """The shape of one observation of a space as we keep it, and how many of them make a state."""
    if not is_image_space(space):
        return (spaces.flatdim(space),), 1
    shape = space.shape or ()
    return frames.single_frames(np.zeros((1, *shape), np.uint8)).shape[1:], frames.frame_stack(shape)


def flatten_observations(space: spaces.Space[Any], values: Any) -> Array:
    """`[T, size]` float32: each value of a Gymnasium space as `gymnasium.spaces.flatten` gives it.

    >>> space = spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)])
    >>> flatten_observations(space, (np.array([1, 3]), np.array([[0, 1], [1, 1]])))
    array([[1., 0., 0., 0., 1.],
           [0., 0., 1., 1., 1.]], dtype=float32)
    """
    match space:
        case spaces.Dict():
            return np.concatenate(
                [flatten_observations(part, values[name]) for name, part in space.spaces.items()], axis=1
            )
        case spaces.Tuple():
            parts = zip(space.spaces, values, strict=True)
            return np.concatenate([flatten_observations(part, value) for part, value in parts], axis=1)
        case spaces.Discrete():
            return one_hot(np.asarray(values).reshape(-1) - int(space.start), int(space.n))
        case spaces.MultiDiscrete():
            numbers = np.asarray(values).reshape(len(values), -1) - space.start.ravel()
            return np.concatenate([one_hot(*pair) for pair in zip(numbers.T, space.nvec.ravel(), strict=True)], axis=1)
        case spaces.Box() | spaces.MultiBinary():
            return vectors(values)
    raise ValueError(f"observations of the space {space} cannot be converted to vectors")


def observed_space(space: spaces.Space[Any], key: str) -> Any:
    """The part of a space that is observed; raises ValueError if it cannot be an image or a vector."""
    parts = space_parts(space)
    if key:
        if key not in parts:
            raise ValueError(f"--obs-key {key}: its observations have {', '.join(parts) or 'no parts'}")
        space, parts = parts[key], {}
    if not is_flat(space):
        usable = [name for name, part in parts.items() if is_flat(part)]
        more = f"; choose a part with --obs-key: {', '.join(usable)}" if usable else ""
        shown = text if len(text := str(space)) <= MAX_SPACE else f"{text[:MAX_SPACE]} ..."
        raise ValueError(f"its observations are {shown}, of which texts and the like cannot be numbers{more}")
    return space


def observed_part(values: Any, key: str) -> Any:
    """The part of observations, a dict or tuple of arrays, that is observed."""
    if not key:
        return values
    return values[key] if isinstance(values, Mapping) else values[int(key)]


def space_parts(space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
    """The parts of a Dict or Tuple space by name or number; none of other spaces."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return {str(n): part for n, part in enumerate(space.spaces)} if isinstance(space, spaces.Tuple) else {}


def is_flat(space: spaces.Space[Any]) -> bool:
    """Whether `flatten_observations` can convert it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return all(map(is_flat, space_parts(space).values()))
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box | spaces.MultiBinary)
