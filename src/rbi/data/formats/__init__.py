"""Every format that episodes come in, one file each, recognised by what is there."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rbi.data.dataset import Dataset, RejectedEpisode
from rbi.data.episode import Episode
from rbi.data.formats.agc_settings import AgcConfig
from rbi.data.formats.seam import EpisodeSummary, Reader, SpecOverrides
from rbi.data.formats.table_settings import TableConfig
from rbi.data.store import Store, is_store

__all__ = [
    "SpecOverrides",
    "Format",
    "EpisodeSummary",
    "Reader",
    "FormatSettings",
    "load_episodes",
    "open_reader",
    "recognise",
]

Format = Literal["store", "agc", "dqn_replay", "minari", "d3rlpy", "parquet", "csv"]
"""In the order in which they are tried."""


@dataclass(frozen=True)
class FormatSettings:
    """What the user says about the data, in general and for some formats."""

    overrides: SpecOverrides = field(default_factory=SpecOverrides)
    agc: AgcConfig = field(default_factory=AgcConfig)
    table: TableConfig = field(default_factory=TableConfig)


def module(name: str) -> Any:
    """The file of a format: it has `recognises(path)` and `open_reader(path, settings)`."""
    return importlib.import_module(f"rbi.data.formats.{name}")


def recognise(path: Path) -> Format:
    """What kind of data lies there."""
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    found: list[Format] = [name for name in get_args(Format) if module(name).recognises(path)]
    if set(found) >= {"parquet", "csv"}:
        raise ValueError(f"{path}: holds both .parquet and .csv files; name one with --format")
    if found:
        return found[0]
    raise ValueError(f"{path}: no format that we know is there; name it with --format ({', '.join(get_args(Format))})")


def open_reader(path: Path | str, format_: Format | None = None, settings: FormatSettings | None = None) -> Reader:
    """The reader of the data at a path."""
    path = Path(path)
    name = format_ or recognise(path)
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    settings = settings or FormatSettings()
    if settings.table != TableConfig() and name not in ("parquet", "csv"):
        raise ValueError(f"--table: {path} is read as {name}, not as a table")
    if settings.agc != AgcConfig() and name != "agc":
        raise ValueError(f"--agc: {path} is read as {name}, not as AGC")
    found: Reader = module(name).open_reader(path, settings)
    return found


def load_episodes(
    path: Path | str,
    format: Format | None = None,  # noqa: A002 - the word that users look for
    *,
    settings: FormatSettings | None = None,
    strict: bool = False,
) -> Dataset:
    """The episodes at a path, in any supported format, recognised by what is there.

    A store is read where it lies; everything else is read into memory (`rbi data import` makes a store of what is too
    large). Dataset that cannot be used are left out and told in `.rejected`; with `strict` the first is an error.
    """
    path = Path(path)
    if (format_ := format) in (None, "store") and is_store(path) and settings is None:
        return Store(path)
    reader = open_reader(path, format_, settings)
    problems: list[RejectedEpisode] = []

    def good() -> Iterator[Episode]:
        for part in reader.parts():
            for item in reader.read(part):
                if isinstance(item, RejectedEpisode):
                    if strict:
                        raise ValueError(str(item))
                    problems.append(item)
                else:
                    yield item

    found = Dataset.from_episodes(good(), reader.spec)
    found.rejected = problems
    found.feature_names = getattr(reader, "feature_names", ())
    return found
