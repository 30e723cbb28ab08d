"""Readers of data formats: their interface, summaries of episodes, and the files and packages they need."""

import importlib
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np

from rbi.config import Checked, Ge, check_fields
from rbi.data.episode import MAX_ACTIONS, Array, DatasetSpec, Episode, RejectedEpisode

FAULTS = (
    ValueError, LookupError, TypeError, ArithmeticError, AttributeError, AssertionError, RuntimeError, OSError,
    EOFError, MemoryError, zipfile.BadZipFile,
)  # fmt: skip
"""What h5py, pyarrow, msgpack, Minari and NumPy raise for damaged episodes."""
MAX_REASON = 1000  # characters of an error message: it may quote a file
OF_RUN_FOLDERS = ("metrics.jsonl", "rejected.jsonl")
"""Files beside data that are no data."""


@dataclass(frozen=True)
class SpecOverrides(Checked):
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

    def applied_to(self, spec: DatasetSpec) -> DatasetSpec:
        """A spec with these properties in place of what its files state."""
        return replace(
            spec,
            num_actions=self.num_actions or spec.num_actions,
            frame_stack=self.frame_stack or spec.frame_stack,
            env=self.env or spec.env,
        )


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


@runtime_checkable
class OneEpisodePerPart(Protocol):
    """A reader whose parts are files with one episode each."""

    def file_of(self, part: Any) -> str:
        """The `source` of a part's episode, known without reading it."""


@runtime_checkable
class SummaryReader(Protocol):
    """A reader that leaves out observations where only summaries are wanted.

    `knows_lives`: lost lives are known without observations.
    """

    knows_lives: bool

    def summaries(self, part: Any) -> Iterator[Episode | RejectedEpisode]:
        """The episodes of a part as `Reader.read` gives them, with placeholders in place of observations."""


@runtime_checkable
class TableLikeReader(Protocol):
    """A reader of a table, or of a store that was made of one.

    `table_roles`: how its columns were named (`TableConfig.roles`).
    """

    table_roles: dict[str, Any]


def table_roles(reader: Reader) -> dict[str, Any]:
    """How the columns of a table were named; empty for other data."""
    return reader.table_roles if isinstance(reader, TableLikeReader) else {}


def summaries_of(reader: Reader, part: Any) -> Iterator[Episode | RejectedEpisode]:
    """The episodes of a part, whose observations are not read where the format allows it."""
    return reader.summaries(part) if isinstance(reader, SummaryReader) else reader.read(part)


def end_flags(steps: int, *, terminated: bool) -> dict[str, Any]:
    """`terminated` and `truncated` of an episode, of which one is set in the last step.

    >>> end_flags(2, terminated=True)
    {'terminated': array([False,  True]), 'truncated': array([False, False])}
    """
    last = np.arange(steps) == steps - 1
    return {"terminated": last & terminated, "truncated": last & (not terminated)}


def one_line(error: Exception) -> str:
    """An error message without line breaks."""
    return " ".join(str(error).split())[:MAX_REASON] or type(error).__name__


def require_package(package: str) -> Any:
    """Import an optional package, or raise a ValueError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        raise ValueError(f"this format needs {name}: pip install 'rbi[data]'") from None


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


def name_in(data: Path, file: Path) -> str:
    """What messages call a file of the data: its path within the data, or its name if it is all of the data."""
    return file.name if file == data else file.relative_to(data).as_posix()


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that compares the numbers in names as numbers.

    >>> sorted(["obs_10", "obs_2"], key=natural)
    ['obs_2', 'obs_10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def max_action(actions: Array) -> int:
    """The largest action that is possible; 0 if there is none."""
    return int(np.max(actions, initial=0, where=(actions >= 0) & (actions < MAX_ACTIONS)))


def placeholder_observations(steps: int) -> Array:
    """Placeholder where observations are not read."""
    return np.zeros((steps, 1), np.float32)
