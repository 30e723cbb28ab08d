"""File formats of episodes: recognition, readers, and `load_episodes`."""

import contextlib
import copy
import functools
import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from rbi import fileio
from rbi.config import Checked, Interval, check_fields, check_kind
from rbi.data.dataset import Dataset
from rbi.data.episode import Array, Episode, RejectedEpisode
from rbi.data.formats.agc import AgcConfig
from rbi.data.formats.reader import Reader, SpecOverrides, table_roles
from rbi.data.formats.table_layout import TableConfig
from rbi.data.formats.tables import FILES, TableReader, open_table, table_formats
from rbi.data.store import MAX_LOST, Store, is_store
from rbi.progress import echo
from rbi.suggestions import with_suggestions

__all__ = [
    "AgcConfig",
    "ColumnReader",
    "Format",
    "FormatSettings",
    "Reader",
    "SpecOverrides",
    "TableConfig",
    "load_episodes",
    "open_reader",
    "recognise",
]

Format = Literal[
    "store", "agc", "dqn_replay", "minari", "d3rlpy", "rllib", "npz", "dsjson", "rlds",
    "parquet", "feather", "jsonl", "csv",
]  # fmt: skip
"""In the order in which they are tried; the tables come last."""


@dataclass(frozen=True)
class FormatSettings(Checked):
    """How data is read: properties that it does not state, and settings of single formats."""

    overrides: SpecOverrides = field(default_factory=SpecOverrides)
    agc: AgcConfig = field(default_factory=AgcConfig)
    table: TableConfig = field(default_factory=TableConfig)
    max_lost: Annotated[float, Interval(ge=0, le=1)] = MAX_LOST
    """Largest share of a store's episodes that may be lost, as after a power failure; more are refused."""

    def __post_init__(self) -> None:
        check_fields(self, "--")


PART_BYTES = 1 << 25  # of a store, at a time
IN_PYTHON = (
    "In Python, options are fields of rbi.data.formats.FormatSettings: --table.action NAME is settings=FormatSettings("
    "table=TableConfig(action=NAME)), --env NAME is settings=FormatSettings(overrides=SpecOverrides(env=NAME))."
)


@runtime_checkable
class ColumnReader(Protocol):
    """A reader whose episodes come as datasets, many at a time and without a Python object each."""

    def datasets(self, part: Any) -> Iterator[tuple[Dataset, list[RejectedEpisode]]]:
        """The episodes of a part, in order, and those between them that are unusable."""


def module_of(name: str) -> Any:
    """The module of a format that is neither a store nor a table, imported on use: `recognises` and `open_reader`."""
    return importlib.import_module(f"rbi.data.formats.{name}")


def recognise(path: Path) -> Format:
    """The format of the data at a path."""
    check_readable(path)
    if is_store(path):
        return "store"
    for name in get_args(Format):
        if name != "store" and name not in FILES and module_of(name).recognises(path):
            return name
    tables: list[Any] = table_formats(path)
    if len(tables) > 1:
        raise ValueError(f"{path}: holds tables of several formats ({', '.join(tables)}); name one with --format")
    if tables:
        return tables[0]
    raise ValueError(f"{path}: holds no known format; name it with --format ({', '.join(get_args(Format))})")


def check_readable(path: Path) -> None:
    """Raise ValueError unless there is a file or a folder; reading a pipe or a device might never end."""
    fileio.check_exists(path, "file or folder")
    if not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path}: is neither a file nor a folder")


def open_reader(path: Path | str, format_: Format | None = None, settings: FormatSettings | None = None) -> Reader:
    """The reader of the data at a path."""
    if format_ is not None and format_ not in get_args(Format):
        raise ValueError(f"format = {format_!r}: must be one of {', '.join(get_args(Format))}")
    path = fileio.as_path(path)
    name = format_ or recognise(path)
    check_readable(path)
    check_kind("settings", settings, FormatSettings)
    settings = settings or FormatSettings()
    if settings.table != TableConfig() and name not in FILES:
        raise ValueError(f"--table: {path} is read as {name}, not as a table")
    if settings.overrides.obs_key and name not in ("minari", "rllib", "rlds"):
        raise ValueError(f"--obs-key: {path} is read as {name}, whose observations have no parts")
    if settings.agc != AgcConfig() and name != "agc":
        raise ValueError(f"--agc: {path} is read as {name}, not as AGC")
    if name == "store":
        return StoreReader(path, settings)
    return open_table(path, settings, name) if name in FILES else module_of(name).open_reader(path, settings)


@contextlib.contextmanager
def note_for_python() -> Iterator[None]:
    """Errors that name options get a note, which tracebacks show and the command line does not."""
    try:
        yield
    except ValueError as error:
        if "--" in str(error):
            error.add_note(IN_PYTHON)
        raise


@with_suggestions
@note_for_python()
def load_episodes(
    path: Path | str,
    format: Format | None = None,  # noqa: A002 - the word that users look for
    *,
    settings: FormatSettings | None = None,
    strict: bool = False,
) -> Dataset:
    """Load the episodes at a path, in any supported format, which is recognised if not given.

    A store is memory-mapped; everything else is read into memory (`rbi data import` makes a store of larger data).
    Unusable episodes are left out and listed in `.rejected`; with `strict` the first one raises a ValueError. A store
    that has lost episodes says so, and raises a ValueError if they are more than a share of `settings.max_lost`.

    `settings` holds what the command line takes as options, for example
    `FormatSettings(table=TableConfig(observations=("age", "income")), overrides=SpecOverrides(env="CartPole-v1"))`.
    What `minari.load_dataset` returns may stand for its path.
    """
    reader = open_reader(minari_folder(path) or path, format, settings)
    if isinstance(reader, StoreReader):
        return reader.load()
    if isinstance(reader, ColumnReader):  # an archive of arrays is one dataset
        found = reader.load() if isinstance(reader, TableReader) else next(reader.datasets(reader.parts()[0]))[0]
        if strict and found.rejected:
            raise ValueError(str(found.rejected[0]))
        return found
    episodes: list[Episode] = []
    rejected: list[RejectedEpisode] = []
    for part in reader.parts():
        for item in reader.read(part):
            if isinstance(item, Episode):
                episodes.append(item)
            elif strict:
                raise ValueError(str(item))
            else:
                rejected.append(item)
    loaded = Dataset.from_episodes(episodes, reader.spec, rejected)
    loaded.table_roles = table_roles(reader)
    return loaded


def dataset_or_path(data: Any) -> Dataset | Path:
    """What the user gave as data. Raises TypeError if it is neither a dataset nor a path."""
    data = minari_folder(data) or data
    if isinstance(data, str | os.PathLike):
        return fileio.as_path(data)
    if not isinstance(data, Dataset):
        raise TypeError(
            f"the data is of type {type(data).__name__}: must be a Dataset or a path; rbi.Dataset.from_frame and "
            "from_arrays make a Dataset of a table and of arrays"
        )
    return data


def minari_folder(data: Any) -> Path | None:
    """The folder of what `minari.load_dataset` returns; None for anything else."""
    if type(data).__name__ != "MinariDataset":
        return None
    chosen, stored, folder = len(data.episode_indices), data.storage.total_episodes, Path(data.storage.data_path)
    if chosen != stored:
        raise ValueError(
            f"{chosen} of the {stored} episodes of a Minari dataset: load all of them with rbi.load_episodes "
            f"({folder}), and choose with select"
        )
    return folder


def open_dataset(
    data: Dataset | Path | str,
    format_: Format | None = None,
    settings: FormatSettings | None = None,
) -> Dataset:
    """A dataset as `load_episodes` gives it, from a path or from itself: a store is checked in both cases."""
    if isinstance(data, Store):
        check_store(data, (settings or FormatSettings()).max_lost).check_values()
    return data if isinstance(data, Dataset) else load_episodes(data, format_, settings=settings)


def check_store(store: Store, max_lost: float = MAX_LOST) -> Store:
    """The store, if not too much of it is lost, which raises ValueError; says how many episodes are."""
    store.check_lost(max_lost)
    if lost := store.lost_text():
        echo(f"{store.path}: {lost}", stderr=True)
    return store


class StoreReader:
    """Episodes of a store, as a format among others; a part is a range of them."""

    parallel = False

    def __init__(self, path: Path, settings: FormatSettings) -> None:
        self.path, self.store, overrides = path, check_store(Store(path), settings.max_lost), settings.overrides
        spec = self.store.spec
        asked, wide = overrides.num_actions or spec.num_actions, spec.has_action_masks or spec.has_behavior_probs
        if asked < spec.num_actions or (wide and asked != spec.num_actions):
            raise ValueError(f"--num-actions {overrides.num_actions}: {path} has {spec.num_actions}")
        self.spec, self.table_roles = overrides.applied_to(spec), self.store.table_roles

    def load(self) -> Store:
        """The store, memory-mapped, with the spec that was asked for."""
        self.store.check_values()
        found = copy.copy(self.store)
        found.spec = self.spec
        return found

    @functools.cached_property
    def invalid(self) -> Array:
        return self.store.invalid()

    def parts(self) -> Sequence[slice]:
        return self.store.ranges(PART_BYTES)

    def read(self, part: slice) -> Iterator[Episode | RejectedEpisode]:
        for number in range(part.start, part.stop):
            try:
                yield self.store[number]
            except ValueError as error:
                yield RejectedEpisode(str(self.path), number + 1, str(error))

    def datasets(self, part: slice) -> Iterator[tuple[Dataset, list[RejectedEpisode]]]:
        found, invalid = self.store[part], self.invalid[part]
        numbers = (part.start + np.flatnonzero(invalid)).tolist()
        rejected = [RejectedEpisode(str(self.path), n + 1, self.store.reason(n)) for n in numbers]
        found = found.select(np.flatnonzero(~invalid)) if rejected else found
        yield Dataset(self.spec, found.arrays, found.records, found.texts), rejected
