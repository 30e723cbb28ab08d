"""What the format readers share: their interface, episode summaries, and observations converted to ours."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge
from gymnasium import spaces

from rbi.config import check_fields
from rbi.data.dataset import Dataset, RejectedEpisode
from rbi.data.episode import Array, DatasetSpec, Episode

CHANNELS = range(1, 5)
"""Axes of these sizes are colour channels or stacked frames; images are larger."""
COLOURS = 3
MAX_STATES = 10_000


@dataclass(frozen=True)
class SpecOverrides:
    """Properties of a dataset that its files do not state, or state wrongly."""

    env: str = ""
    """Gymnasium id of the environment, such as ALE/Qbert-v5 or CartPole-v1."""
    num_actions: Annotated[int, Ge(1)] | None = None
    """Number of actions. Default: what the data states, or the largest action plus one."""
    frame_stack: Annotated[int, Ge(1)] | None = None
    """Number of observations that are stacked to a state. Default: 4 for images, 1 for vectors."""

    def __post_init__(self) -> None:
        check_fields(self, "--")


class EpisodeSummary(NamedTuple):
    """An episode without its observations."""

    actions: Array
    rewards: Array
    terminated: bool
    abandoned: bool
    lives_lost: int | None
    """None if only an import can find them."""
    has_action_probs: bool
    player: str
    source: str
    line: int


class Reader(Protocol):
    """Reads a dataset in some format. It can be pickled, so it holds no open files.

    `path`: the data. `spec`: what all episodes share. `parallel`: parts are small and can be read by several processes.
    """

    path: Path
    parallel: bool

    @property
    def spec(self) -> DatasetSpec: ...

    def parts(self) -> Sequence[Any]:
        """What can be read independently, in order: files or episodes."""

    def read(self, part: Any) -> Iterator[Episode | RejectedEpisode]:
        """The episodes of a part, in order; unusable ones come as `RejectedEpisode`."""

    def summaries(self, part: Any) -> Iterator[EpisodeSummary | RejectedEpisode]:
        """The same without observations, which is cheaper in some formats."""


@runtime_checkable
class OneEpisodePerPart(Protocol):
    """A reader whose parts are single episodes in files of their own."""

    def file_of(self, part: Any) -> str:
        """The `source` of a part's episode, known without reading it."""


@runtime_checkable
class ColumnReader(Protocol):
    """A reader whose episodes come as datasets, many at a time and without a Python object each."""

    def datasets(self, part: Any) -> Iterator[tuple[Dataset, list[RejectedEpisode]]]:
        """The episodes of a part, in order, and those between them that are unusable."""


def summarize(episode: Episode) -> EpisodeSummary:
    """An episode without its observations."""
    return EpisodeSummary(
        episode.actions,
        episode.rewards,
        bool(episode.terminated[-1]),
        episode.abandoned,
        int(np.sum(episode.life_lost)),
        episode.action_probs is not None,
        episode.player,
        episode.source,
        episode.line,
    )


def summarize_all(items: Iterator[Episode | RejectedEpisode]) -> Iterator[EpisodeSummary | RejectedEpisode]:
    """Summaries from full episodes, for formats in which skipping observations saves nothing."""
    for item in items:
        yield item if isinstance(item, RejectedEpisode) else summarize(item)


def require_package(package: str, extra: str = "data") -> Any:
    """Import an optional package, or raise a ValueError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        raise ValueError(f"this format needs {name}: pip install 'rbi[{extra}]'") from None


# Observations of other packages, converted to single images with channels last or flat vectors


def single_frames(images: Array, *, channels_first: bool) -> Array:
    """`[T, H, W]` or `[T, H, W, C]` from images in one of the usual shapes.

    Channels may come first or last; `channels_first` decides if both are possible. A single channel is removed; three
    leading channels are colours. Any other number of leading channels is a stack of grey frames, oldest first, of which
    the newest is kept, because consecutive states overlap. Of stacks of colour images, `[T, stack, H, W, C]`, the
    newest image is kept too. Earlier frames of the first stack are padding.

    >>> [single_frames(np.zeros((7, *shape), np.uint8), channels_first=True).shape[1:] for shape in
    ...  [(84, 84), (1, 84, 84), (3, 84, 84), (4, 84, 84), (84, 84, 3), (4, 84, 84, 3)]]
    [(84, 84), (84, 84), (84, 84, 3), (84, 84), (84, 84, 3), (84, 84, 3)]
    """
    if images.ndim == 5:
        images, channels_first = images[:, -1], False
    if images.ndim != 4:
        return images
    before, after = (images.shape[axis] in CHANNELS for axis in (1, 3))
    if before == after:
        before = channels_first
    if not before:
        return images[..., 0] if images.shape[3] == 1 else images
    return np.moveaxis(images, 1, 3) if images.shape[1] == COLOURS else images[:, -1]


def vectors(values: Any) -> Array:
    """`[T, size]` float32. Values beyond float32 become infinite, which rejects their episode."""
    values = np.asarray(values)
    with np.errstate(over="ignore"):
        return values.reshape(len(values), -1).astype(np.float32)


def one_hot(values: Any, states: int) -> Array:
    """`[T, states]` float32 from integers below `states`."""
    if states > MAX_STATES:
        raise ValueError(f"{states:,} states: one-hot vectors are limited to {MAX_STATES:,}")
    values = np.asarray(values)
    wrong = (values < 0) | (values >= states)
    if wrong.any():
        raise ValueError(f"step {wrong.argmax()}: state {values[wrong][0]} is not one of {states}")
    return np.equal(values[:, None], np.arange(states)).astype(np.float32)


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


def placeholder_observations(steps: int) -> Array:
    """Placeholder where observations are not read."""
    return np.zeros((steps, 1), np.float32)
