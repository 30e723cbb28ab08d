"""What the format readers share: their interface, episode summaries, and observations converted to ours."""

import importlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge
from gymnasium import spaces

from rbi.config import check_fields
from rbi.data.dataset import Dataset, RejectedEpisode
from rbi.data.episode import Array, DatasetSpec, Episode
from rbi.steps import COLOURS, FrameLayout, are_channels_first, overlap

FAULTS = (
    ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, RuntimeError, OSError,
    EOFError, MemoryError, zipfile.BadZipFile,
)  # fmt: skip
"""What h5py, pyarrow, msgpack, Minari and NumPy raise for damaged episodes."""
LAYOUT_EPISODES = 8
"""Episodes that decide whether leading channels are a stack of frames."""
MAX_STATES = 10_000
OF_RUN_FOLDERS = ("metrics.jsonl", "rejected.jsonl")
"""Files beside data that are no data."""


@dataclass(frozen=True)
class SpecOverrides:
    """Properties of a dataset that its files do not state, or state wrongly."""

    env: str = ""
    """Gymnasium id of the environment, such as ALE/Qbert-v5 or CartPole-v1; arguments may follow, as in
    FrozenLake-v1(is_slippery=False) (default: what the data states)."""
    num_actions: Annotated[int, Ge(1)] | None = None
    """Number of actions. Default: what the data states, or the largest action plus one."""
    frame_stack: Annotated[int, Ge(1)] | None = None
    """Number of observations that are stacked to a state. Default: 4 for images, 1 for vectors."""
    obs_key: str = ""
    """Part of Dict or Tuple observations to use, such as image. Default: all parts, as one vector (Minari, RLlib)."""

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


# Files


def find_files(path: Path, *suffixes: str) -> list[Path]:
    """The file, or the files of a folder and the folders in it, in natural order; hidden ones are left out."""
    if path.is_file():
        return [path] if path.name.lower().endswith(suffixes) else []
    if not path.is_dir():
        return []
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name[0] not in "._"]
        named = [name for name in names if name.lower().endswith(suffixes)]
        found += [Path(folder, name) for name in named if name[0] not in "._" and name not in OF_RUN_FOLDERS]
    return sorted(filter(Path.is_file, found), key=lambda file: [natural(part) for part in file.parts])


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that compares the numbers in names as numbers.

    >>> sorted(["obs_10", "obs_2"], key=natural)
    ['obs_2', 'obs_10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


# Observations of other packages, converted to single images with channels last or flat vectors


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
            raise ValueError(f"its observations have the shape {shape} and are no stacks of images")
        return FrameLayout(channels_first=True, stacked=True)
    if len(shape) != 3:
        return FrameLayout()
    if not are_channels_first(shape, if_unclear=channels_first):
        return FrameLayout()
    several = [images for images in islice(episodes, LAYOUT_EPISODES) if len(images) > 1]
    stacks = shape[0] not in (1, COLOURS) and bool(several) and all(overlap(images) for images in several)
    return FrameLayout(channels_first=True, stacked=stacks)


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
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)


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
        raise ValueError(f"its observations are {space}, of which texts and the like cannot be numbers{more}"[:600])
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


def placeholder_observations(steps: int) -> Array:
    """Placeholder where observations are not read."""
    return np.zeros((steps, 1), np.float32)
