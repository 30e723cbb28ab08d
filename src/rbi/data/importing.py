"""Import data of any format into a store, export it, and summarise it without importing it.

Unusable episodes are left out and listed with their reasons.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rbi import fileio
from rbi.data.dataset import Dataset
from rbi.data.episode import Array, DatasetSpec, Episode, RejectedEpisode, Rejections
from rbi.data.formats import ColumnReader, Format, FormatSettings, StoreReader, open_reader
from rbi.data.formats.reader import OneEpisodePerPart, Reader, SummaryReader, summaries_of, table_roles
from rbi.data.store import Store, StoreWriter, is_store
from rbi.data.summary import DatasetSummary
from rbi.parallel import bounded_map
from rbi.progress import echo, track, track_updates

Map = Callable[..., Iterable[Any]]
Done = Counter[tuple[str, int]]  # how often a store has each source and line
ExportFormat = Literal["parquet", "minari", "store"]
REPORT_EPISODES, REPORT_SECONDS = 200, 10
GROUP_BYTES, ROW_BYTES = 1 << 25, 64  # exported together
SAMPLED_EPISODES, SAMPLED_FRAMES = 4, 12  # about as many, of data that is summarised
MAX_SAMPLED = 64  # episodes whose observations are read for that, if there are many parts
SOURCE = "source.json"
"""In the folder of an import: what identifies the data it was made from."""


# Import


@dataclass
class Progress(Rejections):
    """What an import or export has done so far."""

    strict: bool = False
    """Whether an unusable episode raises ValueError."""
    verb: str = "imported"
    """What happens to the usable ones."""
    parts: int = 0
    episodes: int = 0
    steps: int = 0
    skipped: int = 0
    """Episodes that an earlier, interrupted import had processed."""

    def accept(self, episodes: int, steps: int) -> None:
        self.episodes += episodes
        self.steps += steps

    def leave_out(self, item: RejectedEpisode) -> None:
        """Count an unusable episode; raises ValueError where every episode must be usable."""
        if self.strict:
            raise ValueError(f"{item} (without --strict it would be rejected and the rest {self.verb})")
        self.reject(item)

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("parts", "episodes", "steps", "rejected", "skipped")}

    def __str__(self) -> str:
        words = f"{self.episodes:,} episodes, {self.steps:,} steps"
        return words + (f", {self.rejected:,} rejected" if self.rejected else "")


def import_dataset(
    data: Path | str | Reader,
    out: Path | str,
    format: Format | None = None,  # noqa: A002 - the word that users look for
    *,
    settings: FormatSettings | None = None,
    strict: bool = False,
    workers: int = 0,
    progress: bool = True,
    callback: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[Store, Progress]:
    """Import data of any format (a path or a reader) into the store `out`; continues an interrupted import.

    `workers`: processes that read, if format and size of the data allow it (0: one per core); the store is the same.
    With `strict` the first unusable episode raises a ValueError. `callback` gets counts every ten seconds.
    """
    out, reader = fileio.as_path(out), open_reader(data, format, settings) if isinstance(data, Path | str) else data
    state, total = Progress(strict=strict), len(reader.parts())
    started, reported = time.monotonic(), -float(REPORT_SECONDS)
    resumes = is_store(out)
    if not resumes:
        out.mkdir(parents=True, exist_ok=True)
        # first: a store without it could not be resumed
        fileio.write_json(out / SOURCE, fileio.data_stats(reader.path))
    opened = resume_store(out, reader) if resumes else StoreWriter.create(out, reader.spec, table_roles(reader))
    count = min(workers or os.cpu_count() or 1, max(1, total)) if reader.parallel else 1
    with opened as writer, bounded_map(count) as mapped:
        states: Iterable[Progress] = append_all(reader, writer, mapped, state)
        if progress:
            states = track_updates(states, "importing", total, lambda s: s.parts + s.skipped * reader.parallel, str)
        for _ in states:
            seconds = time.monotonic() - started
            if callback and (seconds - reported > REPORT_SECONDS or state.parts == total):
                reported = seconds
                callback({**state.counts(), "seconds": seconds})
    return Store(out), state


def resume_store(out: Path, reader: Reader) -> StoreWriter:
    """The store of an interrupted import, if the data has not changed."""
    before = fileio.parse(out / SOURCE, fileio.read_text(out / SOURCE), 1) if (out / SOURCE).exists() else None
    if before is not None and before != fileio.data_stats(reader.path):
        raise ValueError(f"{reader.path}: has changed since its import into {out} began; import it again")
    Store(out).check_values()
    writer = StoreWriter.append_to(out, repair=True)
    if writer.spec != reader.spec:
        writer.release()
        raise ValueError(f"{out}: holds {writer.spec}, and {reader.path} is {reader.spec}")
    for item in writer.lost:
        echo(f"{item}; they are imported again", stderr=True)
    return writer


def append_all(reader: Reader, writer: StoreWriter, mapped: Map, state: Progress) -> Iterator[Progress]:
    """Append every episode of the reader; yields the progress now and then, and after each part.

    Sources and lines that the store already has are skipped. `mapped` maps over parts that can be read in parallel.
    """
    done = processed(writer)
    if isinstance(reader, ColumnReader):
        for part in reader.parts():
            for dataset, rejected in reader.datasets(part):
                append_columns(dataset, rejected, writer, state, done)
                yield state
            state.parts += 1
            yield state
    else:
        yield from append_episodes(reader, writer, mapped, state, done)
    if unknown := sorted(place for place, count in done.items() if count):
        where = ", line ".join(map(str, unknown[0]))
        raise ValueError(f"{writer.path}: holds an episode of {where}, which {reader.path} does not; import it again")


def append_episodes(
    reader: Reader, writer: StoreWriter, mapped: Map, state: Progress, done: Done
) -> Iterator[Progress]:
    """`append_all` for episodes that come one at a time."""
    parts = reader.parts()
    if isinstance(reader, OneEpisodePerPart):  # these need not be read again
        sources = {source for source, _ in done}
        skipped = {reader.file_of(part) for part in parts} & sources
        parts = [part for part in parts if reader.file_of(part) not in skipped]
        state.skipped = len(reader.parts()) - len(parts)
        for place in [place for place in done if place[0] in skipped]:
            del done[place]
    read = mapped(read_part, itertools.repeat(reader), parts) if reader.parallel else map(reader.read, parts)
    for items in read:
        for number, item in enumerate(items, 1):
            found = checked(item, writer.spec)
            if done and taken((item.source, item.line), done):
                state.skipped += 1
            elif isinstance(found, RejectedEpisode):
                state.leave_out(found)
                writer.reject(found)
            else:
                writer.append(found)
                state.accept(1, len(found))
            if number % REPORT_EPISODES == 0:
                yield state
        state.parts += 1
        yield state


def append_columns(
    dataset: Dataset, rejected: list[RejectedEpisode], writer: StoreWriter, state: Progress, done: Done
) -> None:
    """Append the episodes of a dataset that the store does not have."""
    if done:
        texts, total = dataset.texts, len(dataset) + len(rejected)
        lines = dataset.records["line"].tolist()
        keys = [(texts[source], line) for source, line in zip(dataset.records["source"].tolist(), lines, strict=True)]
        dataset = dataset.select([number for number, key in enumerate(keys) if not taken(key, done)])
        rejected = [item for item in rejected if not taken((item.source, item.line), done)]
        state.skipped += total - len(dataset) - len(rejected)
    for item in rejected:
        state.leave_out(item)
    writer.extend(dataset)
    state.accept(len(dataset), dataset.steps)
    for item in rejected:
        writer.reject(item)


def taken(key: tuple[str, int], done: Done) -> bool:
    """Whether the store has the episode of this source and line; it counts once."""
    if done[key] == 0:
        return False
    done[key] -= 1
    return True


def checked(item: Episode | RejectedEpisode, spec: DatasetSpec) -> Episode | RejectedEpisode:
    """An episode that fits the spec, or why there is none."""
    if isinstance(item, Episode):
        try:
            item.check_fits(spec)
        except ValueError as error:
            return RejectedEpisode(item.source, item.line, str(error))
    return item


def processed(writer: StoreWriter) -> Done:
    """How often the store has each source and line, taken or rejected: some data repeats them."""
    store = Store(writer.path)
    lines = zip(store.records["source"].tolist(), store.records["line"].tolist(), strict=True)
    sources = ((store.texts[source], line) for source, line in lines)
    return Counter([*sources, *((item.source, item.line) for item in store.rejected)])


def read_part(reader: Reader, part: Any) -> list[Episode | RejectedEpisode]:
    """A whole part, in another process."""
    return list(reader.read(part))


# Export


def export_dataset(
    data: Path | str | Reader,
    out: Path | str,
    to: ExportFormat = "parquet",
    format: Format | None = None,  # noqa: A002 - the word that users look for
    *,
    settings: FormatSettings | None = None,
    strict: bool = False,
    progress: bool = True,
) -> tuple[DatasetSpec, Progress]:
    """Write data of any format into the folder `out`: `episodes.parquet`, a Minari dataset, or a store."""
    from rbi.data.formats import minari, parquet_writer

    out, state = fileio.as_path(out), Progress(strict=strict, verb="exported")
    reader = open_reader(data, format, settings) if isinstance(data, Path | str) else data
    datasets: Iterable[Dataset] = valid_datasets(reader, state)
    if progress:
        datasets = track(datasets, "exporting")
    if to == "parquet":
        out.mkdir(parents=True, exist_ok=True)
        parquet_writer.write_parquet(datasets, reader.spec, out / "episodes.parquet")
    elif to == "minari":
        minari.write_minari(itertools.chain.from_iterable(datasets), reader.spec, out)
    else:
        with StoreWriter.create(out, reader.spec, table_roles(reader)) as writer:
            for dataset in datasets:
                writer.extend(dataset)
    return reader.spec, state


def valid_datasets(reader: Reader, state: Progress) -> Iterator[Dataset]:
    """The usable episodes of a reader, many at a time; the others are counted."""
    if not isinstance(reader, ColumnReader):
        for group in grouped(valid_episodes(reader, state)):
            yield Dataset.from_episodes(group, reader.spec)
        return
    for part in reader.parts():
        for dataset, rejected in reader.datasets(part):
            for item in rejected:
                state.leave_out(item)
            state.accept(len(dataset), dataset.steps)
            yield dataset


def grouped(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    """Consecutive episodes of about `GROUP_BYTES`."""
    waiting: list[Episode] = []
    size = 0
    for episode in episodes:
        waiting.append(episode)
        size += episode.observations.nbytes + ROW_BYTES * len(episode)
        if size >= GROUP_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def valid_episodes(reader: Reader, state: Progress) -> Iterator[Episode]:
    """The usable episodes of a reader; the others are counted."""
    for part in reader.parts():
        for item in reader.read(part):
            found = checked(item, reader.spec)
            if isinstance(found, RejectedEpisode):
                state.leave_out(found)
            else:
                state.accept(1, len(found))
                yield found


# Summary


def summarize_data(reader: Reader) -> DatasetSummary:
    """The summary of data in any format, without importing it: columns where the format has them, else episodes."""
    found = DatasetSummary(reader.spec.num_actions)
    if isinstance(reader, StoreReader):
        found.add_lost(reader.store)
    if isinstance(reader, SummaryReader) and not reader.knows_lives:
        found.lives_lost = None
    for part in track(reader.parts(), "reading"):
        if isinstance(reader, ColumnReader):
            for dataset, rejected in reader.datasets(part):
                found.add_dataset(dataset)
                for item in rejected:
                    found.add(item)
        else:
            for episode in summaries_of(reader, part):
                found.add(episode)
    return found


class SampledObservations(NamedTuple):
    """Observations of a few episodes."""

    frames: Array
    """`[N, *obs_shape]`"""
    distinct: int
    """Distinct observations among all of these episodes."""
    total: int


def sample_observations(reader: Reader, rng: np.random.Generator) -> SampledObservations | None:
    """Observations of some valid episodes; None if there are none."""
    parts = reader.parts()
    found: list[Episode] = []
    each = max(1, MAX_SAMPLED // max(1, len(parts)))
    for number in rng.permutation(len(parts))[: 4 * SAMPLED_EPISODES].tolist():
        found += [item for item in itertools.islice(reader.read(parts[number]), each) if isinstance(item, Episode)]
        if len(found) >= SAMPLED_EPISODES:
            break
    if not found:
        return None
    observed = np.concatenate([episode.observations for episode in found])
    rows = np.ascontiguousarray(observed).reshape(len(observed), -1).view(np.uint8)
    distinct = len({row.tobytes() for row in rows})
    chosen = np.linspace(0, len(observed) - 1, min(SAMPLED_FRAMES, len(observed))).astype(int)
    return SampledObservations(observed[chosen], distinct, len(observed))
