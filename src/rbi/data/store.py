"""The store: a folder of append-only arrays, and an index of the episodes in them.

    store.json         format version, `DatasetSpec`, and how the columns of a table were named
    observations.bin   all observations, `[F, *obs_shape]`
    actions.bin ...    one file per column, `[S]`: actions, rewards, terminated, truncated, life_lost, and if logged
                       action_probs, and action_masks and behavior_probs `[S, A]`
    texts.jsonl        names of players and sources, one JSON string per line
    episodes.bin       one record of fixed size per episode: start, length, player, source, score (`RECORD`)
    rejected.jsonl    episodes that were not imported, with source, line and reason

Data is only appended, the index last: an episode exists when its record does. A write that fails is undone. What a
killed writer left after the last record is truncated by the next writer; readers ignore it. docs/store.md has the
layout for other readers.
"""

import contextlib
import fcntl
import json
import math
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from rbi import fileio
from rbi.data.dataset import (
    RECORD,
    Dataset,
    columns,
    continued,
    episode_sums,
    fill_record,
    invalid_episodes,
    part_fields,
)
from rbi.data.digests import checksum, checksums, record_checksums
from rbi.data.episode import Array, DatasetSpec, Episode, RejectedEpisode

FORMAT = 2
FIRST_FORMAT, FIRST_RECORD = 1, np.dtype([(name, RECORD[name]) for name in RECORD.names[:-1]])  # type: ignore[index]
"""The earlier format, without checksums of records; it is read and appended to."""
UNKNOWN = "(unknown: its record was damaged)"
"""Player and source of an episode whose record was damaged."""
CONFIG, INDEX, TEXTS, REJECTED = "store.json", "episodes.bin", "texts.jsonl", "rejected.jsonl"
FILES_OF_A_NEW_RUN = ("config.json", "metrics.jsonl", "source.json", fileio.LOCK)
MAX_LOST = 0.05
"""Default of the largest share of a store's episodes that may be lost."""
DAMAGED_RECORD = "its record is damaged, so that its player, source and line are lost"
REPEATED = "repeats an earlier name, so that names of episodes may be wrong"
BUFFERED_BYTES, BUFFERED_SECONDS = 1 << 20, 1.0  # short episodes are written together; none waits longer
SYNCED_BYTES = 1 << 28
CHECKED_ENTRIES = 1 << 20  # at a time


class Store(Dataset):
    """A memory-mapped dataset. `num_lost` episodes are incomplete, as after a power failure; `lost` says why.

    `unindexed_steps` belong to no episode: their writer was killed before it wrote the index, or the index was cut. The
    store shows the state at opening; `refresh` updates it, while another process may be appending.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = fileio.as_path(path)
        self.maps: dict[str, mmap.mmap] = {}
        self.lost: list[RejectedEpisode] = []
        spec, roles = read_config(self.path)
        super().__init__(spec, {}, np.zeros(0, RECORD), [])
        self.table_roles = roles
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its path and spec, which may be a changed one: another process maps the same files."""
        return type(self), (self.path.absolute(),), {"spec": self.spec}

    def __copy__(self) -> Self:
        """Shares the maps: to read a large index again takes seconds, and may find more than was checked."""
        found = object.__new__(type(self))
        vars(found).update(vars(self))
        return found

    def refresh(self) -> None:
        """Include the episodes that were appended since."""
        index = read_index(self.path, self.spec)
        self.records, self.texts, self.lost, self.num_lost, self.unindexed_steps, self.damaged = index
        self.rejected = read_rejected(self.path)
        self.arrays = {name: self.mapped(name) for name in columns(self.spec)}

    def mapped(self, name: str) -> Array:
        """A memory-mapped column."""
        dtype, shape = columns(self.spec)[name]
        count = self.frames if name == "observations" else self.steps
        if not count:
            return np.zeros((0, *shape), dtype)
        size = count * dtype.itemsize * math.prod(shape)
        with (self.path / f"{name}.bin").open("rb") as file:
            # private, so that PyTorch accepts it; it is never written to
            self.maps[name] = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        array = np.frombuffer(self.maps[name], dtype).reshape(count, *shape)
        array.flags.writeable = False
        return array

    def release_memory(self) -> None:
        """Release the memory of pages that were read; they are read again on use."""
        for mapped in self.maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)

    def verify(self) -> Iterator[RejectedEpisode]:
        """What is damaged: records, incomplete episodes, repeated names, and bytes that differ from those that were
        written."""
        yield from self.lost
        for number in self.damaged:
            yield RejectedEpisode(str(self.path / INDEX), number + 1, DAMAGED_RECORD)
        if (repeated := repeated_text(self.texts)) is not None:
            yield RejectedEpisode(str(self.path / TEXTS), repeated + 1, REPEATED)
        changed = checksums(self) != self.records["checksum"]
        scores = episode_sums(self.arrays["rewards"], self.records["first_step"], self.records["steps"])
        inconsistent = (self.records["score"] != scores) | (self.records["abandoned"] > 1)
        for number in np.flatnonzero(changed | inconsistent).tolist():
            if changed[number]:
                yield RejectedEpisode(str(self.path), number + 1, "its bytes differ from those that were written")
            else:
                yield RejectedEpisode(str(self.path / INDEX), number + 1, "its record differs from its rewards")

    def lost_text(self) -> str:
        """One line about lost episodes; empty if there are none."""
        if self.num_lost:
            return f"{self.num_lost:,} of {len(self) + self.num_lost:,} episodes are lost ({self.lost[0]})"
        if self.unindexed_steps:
            steps = f"{self.unindexed_steps:,} of {self.steps + self.unindexed_steps:,} steps"
            return f"{steps} belong to no episode: their writer was killed, or {self.path / INDEX} was cut"
        if self.damaged:
            first = RejectedEpisode(str(self.path / INDEX), self.damaged[0] + 1, DAMAGED_RECORD)
            return f"{len(self.damaged):,} records are damaged ({first})"
        return ""

    def check_lost(self, max_lost: float = MAX_LOST) -> None:
        """Raise ValueError if more than this share of the episodes, or of the steps, is lost."""
        episodes = self.num_lost / max(1, len(self) + self.num_lost)
        steps = self.unindexed_steps / max(1, self.steps + self.unindexed_steps)
        if max(episodes, steps) > max_lost:
            raise ValueError(
                f"{self.path}: {self.lost_text()}; --max-lost {max_lost:g} allows less (--resume completes an "
                "interrupted import or recording)"
            )

    def invalid(self) -> Array:
        """`[E]` booleans: the episodes with impossible values, such as those of a bad disk."""
        invalid = np.zeros(len(self), bool)
        if len(self):
            frames = {"observations": np.zeros((len(self.arrays["actions"]), 1), np.uint8)}
            starts, sizes = self.records["first_step"], self.records["steps"].astype(np.int64)
            abandoned = self.records["abandoned"].astype(bool)
            invalid = invalid_episodes(self.spec, self.arrays | frames, starts, sizes, abandoned)
        for name, array in self.arrays.items():
            for first in range(0, len(array) if array.dtype != np.uint8 else 0, CHECKED_ENTRIES):
                part = array[first : first + CHECKED_ENTRIES]
                bad = part.view(np.uint8) > 1 if part.dtype == bool else ~np.isfinite(part)
                entries = first + np.flatnonzero(bad.reshape(len(part), -1).any(1))
                invalid[np.searchsorted(self.records[part_fields(name)[0]], entries, side="right") - 1] = True
        return invalid

    def check_values(self) -> None:
        """Raise ValueError for the first episode with impossible values."""
        if (invalid := self.invalid()).any():
            number = int(invalid.argmax())
            raise ValueError(f"{self.path}, episode {number + 1}: is damaged ({self.reason(number)})")

    def reason(self, number: int) -> str:
        """What is impossible about an episode."""
        try:
            self[number].check_fits(self.spec)
        except ValueError as error:
            return str(error)
        return "a flag is neither 0 nor 1"


class StoreWriter:
    """Appends episodes. Made by `StoreWriter.create` or `StoreWriter.append_to`; a store has one writer at a time."""

    def __init__(self, path: Path, *, repair: bool = False) -> None:
        self.path, self.spec, self.format = path, read_spec(path), read_format(path)
        self._files: dict[str, int] = {}
        self._lock = (path / CONFIG).open("rb")
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"{path}: another process is writing to this store") from None
            index = read_index(path, self.spec)
            self.lost, self.num_lost = index.lost, index.num_lost
            if self.num_lost and not repair:
                raise ValueError(f"{self.lost[0]}; append_to(path, repair=True) continues without them")
            if index.damaged and not repair:
                where = f"{path / INDEX}, record {index.damaged[0] + 1}"
                raise ValueError(f"{where}: {DAMAGED_RECORD}; append_to(path, repair=True) continues")
            if (repeated := repeated_text(index.texts)) is not None:
                raise ValueError(f"{path / TEXTS}, line {repeated + 1}: {REPEATED}; make the store again")
            if index.damaged:
                write_repaired(path, index)
            self.open_files(index.records)
        except BaseException:
            self.release()
            raise
        self.episodes = len(index.records)
        self._texts = {text: number for number, text in enumerate(index.texts)}
        self._texts_written = len(self._texts)
        self._waiting: list[tuple[dict[str, Array], Array]] = []  # columns and records
        self._incomplete = False  # whether files may hold a part of a flush
        self._bytes, self._since_sync, self._since = 0, 0, time.monotonic()

    def open_files(self, records: Array) -> None:
        """Open all files to append, the index first, and truncate what belongs to no episode."""
        self.frames, self.steps = end_of(records, "observations"), end_of(records, "actions")
        sizes = {INDEX: len(records) * record_type(self.format).itemsize}
        sizes |= {name: whole_lines(self.path / name) for name in (TEXTS, REJECTED)}
        for name, (dtype, shape) in columns(self.spec).items():
            count = self.frames if name == "observations" else self.steps
            sizes[f"{name}.bin"] = count * dtype.itemsize * math.prod(shape)
        for name, size in sizes.items():
            self._files[name] = os.open(self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.ftruncate(self._files[name], size)

    @classmethod
    def create(cls, path: Path | str, spec: DatasetSpec, table_roles: dict[str, Any] | None = None) -> Self:
        """A new store in a new or empty folder, or in that of a new run; `table_roles` are those of its `Dataset`."""
        path = fileio.as_path(path)
        names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name] if path.exists() else []
        if any(name not in FILES_OF_A_NEW_RUN and not fileio.TEMPORARY.fullmatch(name) for name in names):
            raise ValueError(f"{path}: is not empty; a new store needs a new folder")
        path.mkdir(parents=True, exist_ok=True)
        fileio.write_json(path / CONFIG, {"format": FORMAT, **asdict(spec), "table": table_roles or {}})
        return cls(path)

    @classmethod
    def append_to(cls, path: Path | str, *, repair: bool = False) -> Self:
        """An existing store; what a killed writer left unfinished is truncated.

        Episodes that the index has and a column lacks, as after a power failure, are dropped only with `repair`.
        """
        return cls(fileio.as_path(path), repair=repair)

    def append(self, episode: Episode) -> None:
        """Append an episode; raises a ValueError if it does not match the spec."""
        episode.check_fits(self.spec)
        record = np.zeros(1, RECORD)
        fill_record(record[0], episode, self.frames, self.steps, self._texts)
        arrays = {name: getattr(episode, name) for name in columns(self.spec)}
        record["checksum"] = checksum(arrays.values())
        self._add(arrays, record)

    def extend(self, episodes: Dataset) -> None:
        """Append all episodes of a dataset with the same spec, which has validated them."""
        if episodes.spec != self.spec:
            raise ValueError(f"{self.path}: holds {self.spec}, not {episodes.spec}")
        if len(episodes):
            records = continued(episodes, self.frames, self.steps, self._texts)
            records["checksum"] = checksums(episodes)
            self._add(episodes.arrays, records)

    def _add(self, arrays: dict[str, Array], records: Array) -> None:
        if self._lock.closed:
            raise ValueError(f"{self.path}: this writer is closed")
        self.frames += len(arrays["observations"])
        self.steps += len(arrays["actions"])
        self.episodes += len(records)
        self._waiting.append((arrays, records))
        self._bytes += sum(array.nbytes for array in arrays.values())
        if self._bytes >= BUFFERED_BYTES or time.monotonic() - self._since >= BUFFERED_SECONDS:
            self.flush()

    def reject(self, item: RejectedEpisode) -> None:
        """Record an episode that is not imported, and why."""
        self.flush()
        source, line, reason = item
        kept = RejectedEpisode(str(source), line if type(line) is int and 0 <= line < 2**63 else 0, str(reason))
        with fileio.writing(self.path):
            fileio.append_whole(self._files[REJECTED], (fileio.to_json(kept._asdict()) + "\n").encode())

    def flush(self) -> None:
        """Write everything to the operating system, the index last. If that fails, nothing is written."""
        if self._incomplete:
            raise ValueError(f"{self.path}: an earlier write was interrupted; open the store again")
        if not self._waiting:
            return
        texts = "".join(json.dumps(text) + "\n" for text in list(self._texts)[self._texts_written :])
        records = record_bytes(np.concatenate([records for _, records in self._waiting]), self.format)
        before = {file: os.fstat(file).st_size for file in self._files.values()}
        self._incomplete = True
        try:
            with fileio.writing(self.path):
                if texts:  # on disk first: without its names a store cannot be opened, without its last steps it can
                    fileio.write_whole(self._files[TEXTS], texts.encode())
                    os.fsync(self._files[TEXTS])
                for name in columns(self.spec):
                    parts = [arrays[name] for arrays, _ in self._waiting]
                    array = np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
                    fileio.write_whole(self._files[f"{name}.bin"], array.data)
                self._since_sync += self._bytes
                if self._since_sync >= SYNCED_BYTES:
                    self.sync()
                fileio.write_whole(self._files[INDEX], records)
        except BaseException:
            index = self._files[INDEX]
            if os.fstat(index).st_size == before[index] + len(records):
                self.flushed()
            else:
                for file, size in before.items():
                    os.ftruncate(file, size)
                self._incomplete = False
            raise
        self.flushed()

    def flushed(self) -> None:
        """The index is written: all waiting episodes are in the store."""
        self._waiting, self._texts_written, self._bytes = [], len(self._texts), 0
        self._incomplete, self._since = False, time.monotonic()

    def sync(self) -> None:
        """Write everything to disk."""
        for file in self._files.values():
            os.fsync(file)
        self._since_sync = 0

    def close(self) -> None:
        try:
            self.flush()
            self.sync()
        finally:
            self.release()

    def release(self) -> None:
        """Close the files without writing anything."""
        while self._files:
            os.close(self._files.popitem()[1])
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
            return
        try:  # the disk may be full: keep what can be kept
            if not self._incomplete:
                with contextlib.suppress(OSError):
                    self.flush()
        finally:
            self.release()


def is_store(path: Path) -> bool:
    return (path / CONFIG).is_file()


def read_spec(path: Path) -> DatasetSpec:
    """The spec of a store."""
    return read_config(path)[0]


def read_config(path: Path) -> tuple[DatasetSpec, dict[str, Any]]:
    """The spec of a store, and how the columns of its table were named (`TableConfig.roles`)."""
    fileio.check_exists(path)
    if not is_store(path):
        raise ValueError(f"{path}: is not a store (it has no {CONFIG})")
    config = fileio.parse(path / CONFIG, fileio.read_text(path / CONFIG), 1)
    if config.pop("format", None) not in (FIRST_FORMAT, FORMAT):
        raise ValueError(f"{path / CONFIG}: has another format version; this version reads up to {FORMAT}")
    kinds: dict[str, Any] = {
        "obs_shape": list, "num_actions": int, "frame_stack": int, "env": str,
        "has_action_probs": bool, "has_action_masks": bool, "has_behavior_probs": bool,
        "features": list, "action_names": list, "table": dict,
    }  # fmt: skip
    later: dict[str, Any] = {"has_behavior_probs": False, "features": [], "action_names": [], "table": {}}
    config = later | config  # stores of earlier versions
    if set(config) != set(kinds) or any(type(config[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"{path / CONFIG}: must hold format, {', '.join(kinds)} with valid types")
    roles = config.pop("table")
    try:
        return DatasetSpec(**config), roles
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None


def read_format(path: Path) -> int:
    """The format version of a store."""
    return int(fileio.parse(path / CONFIG, fileio.read_text(path / CONFIG), 1)["format"])


def record_type(format_: int) -> np.dtype[Any]:
    return RECORD if format_ == FORMAT else FIRST_RECORD


def record_bytes(records: Array, format_: int) -> bytes:
    """Records as the index holds them."""
    if format_ == FIRST_FORMAT:
        found = np.zeros(len(records), FIRST_RECORD)
        for name in FIRST_RECORD.names or ():
            found[name] = records[name]
        return found.tobytes()
    records = records.copy()
    records["record_checksum"] = record_checksums(records)
    return records.tobytes()


class StoreIndex(NamedTuple):
    """What a store holds."""

    records: Array
    """`[E]`: the complete episodes."""
    texts: list[str]
    lost: list[RejectedEpisode]
    """Which file lacks what."""
    num_lost: int
    """Episodes that are in the index and not complete in every column."""
    unindexed_steps: int
    """Complete steps after those of the last episode."""
    damaged: list[int]
    """Records that are restored from their neighbours, without player, source and line."""


def read_index(path: Path, spec: DatasetSpec) -> StoreIndex:
    """The records of complete episodes, all texts, and what is lost.

    The index is read first: what it refers to was written before it, even while another process is writing.
    """
    written = (path / INDEX).read_bytes() if (path / INDEX).exists() else b""
    kind = record_type(read_format(path))
    stored = np.frombuffer(written[: len(written) // kind.itemsize * kind.itemsize], kind)
    index = stored
    if kind == FIRST_RECORD:
        index = np.zeros(len(stored), RECORD)
        for name in FIRST_RECORD.names or ():
            index[name] = stored[name]
    files = {name: path / f"{name}.bin" for name in columns(spec)}
    if not (path / INDEX).exists() and any(file.exists() and file.stat().st_size for file in files.values()):
        raise ValueError(f"{path / INDEX}: is missing; without it the episodes cannot be found")
    texts = read_texts(path)
    damaged: list[int] = []
    if kind == RECORD and len(index):
        index, texts, damaged = restored(path, index, texts)
    check_records(path, index, len(texts))
    complete, unused, lost = len(index), math.inf, list[RejectedEpisode]()
    for name, (dtype, shape) in columns(spec).items():
        file, size = files[name], dtype.itemsize * math.prod(shape)
        if len(index) and not file.exists():
            raise ValueError(f"{file}: is missing")
        entries = file.stat().st_size // size if file.exists() else 0
        first, count = part_fields(name)
        there = int((index[first] + index[count] <= entries).sum())  # a power failure may have taken the last ones
        wanted, short = end_of(index, name), len(index) - there
        if short:
            reason = f"holds {entries:,} of {wanted:,} entries, so {short:,} episodes are lost"
            lost.append(RejectedEpisode(str(file), 0, reason))
        complete = min(complete, there)
        unused = min(unused, entries - wanted) if name != "observations" else unused
    lost_records = len(stored) - len(index)
    if lost_records:
        lost.append(RejectedEpisode(str(path / INDEX), len(index) + 1, "the last records are damaged"))
    found = [number for number in damaged if number < complete]
    return StoreIndex(index[:complete], texts, lost, len(stored) - complete, max(0, int(unused)), found)


def restored(path: Path, index: Array, texts: list[str]) -> tuple[Array, list[str], list[int]]:
    """Records whose checksums are wrong, restored from their neighbours; the last ones are dropped.

    Episodes lie one after the other, so that neighbours tell where a damaged one begins and ends, and the flags of its
    steps where one of several ends. Player, source, line and whether it was abandoned are lost.
    """
    good = record_checksums(index) == index["record_checksum"]
    if good.all():
        return index, texts, []
    last = int(np.flatnonzero(good)[-1]) + 1 if good.any() else 0
    index, good = index[:last].copy(), good[:last]
    damaged = np.flatnonzero(~good).tolist()
    if not damaged:
        return index, texts, []
    if UNKNOWN not in texts:
        texts = [*texts, UNKNOWN]
    flags = [np.fromfile(path / f"{name}.bin", np.uint8) for name in ("terminated", "truncated")]
    steps = min(map(len, flags))
    ends = flags[0][:steps] | flags[1][:steps]
    rewards = np.memmap(path / "rewards.bin", "<f4", "r")
    for first in [number for number in damaged if number == 0 or good[number - 1]]:
        after = first + int(good[first:].argmax())
        step, frame = (end_of(index[:first], column) for column in ("actions", "observations"))
        stop, stop_frame = int(index[after]["first_step"]), int(index[after]["first_observation"])
        stops = step + np.flatnonzero(ends[step:stop]) + 1
        sizes = np.diff(stops, prepend=step)
        finals, odd = divmod(stop_frame - frame - (stop - step), after - first)
        if len(stops) != after - first or odd or finals not in (0, 1) or stops[-1] != stop:
            raise ValueError(f"{path / INDEX}, record {first + 1}: is damaged, and cannot be restored from the others")
        for number, size in zip(range(first, after), sizes.tolist(), strict=True):
            record = np.zeros(1, RECORD)[0]
            record["first_step"], record["first_observation"] = step, frame
            record["steps"], record["observations"] = size, size + finals
            record["player"] = record["source"] = texts.index(UNKNOWN)
            record["score"] = rewards[step : step + size].sum(dtype=np.float64)
            record["checksum"] = index[number]["checksum"]
            index[number] = record
            step, frame = step + size, frame + size + finals
    return index, texts, damaged


def write_repaired(path: Path, index: StoreIndex) -> None:
    """Replace the index by its restored records; the name that they refer to is written first."""
    if UNKNOWN not in read_texts(path):
        with (path / TEXTS).open("r+b") as file:
            file.truncate(whole_lines(path / TEXTS))
            file.seek(0, os.SEEK_END)
            file.write((json.dumps(UNKNOWN) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
    data = record_bytes(index.records, FORMAT)
    fileio.atomic_write(path / INDEX, lambda temporary: temporary.write_bytes(data))


def end_of(records: Array, column: str) -> int:
    """The number of entries that all episodes together have in a column."""
    first, count = part_fields(column)
    return int(records[-1][first] + records[-1][count]) if len(records) else 0


def repeated_text(texts: Sequence[str]) -> int | None:
    """The position of the first text that occurs a second time."""
    seen: set[str] = set()
    for number, text in enumerate(texts):
        if text in seen:
            return number
        seen.add(text)
    return None


def check_records(path: Path, index: Array, texts: int) -> None:
    """Raise if the index is damaged: episodes must be consecutive and refer to existing texts."""
    steps, observations = index["steps"].astype(np.int64), index["observations"].astype(np.int64)
    good = (steps >= 1) & (observations >= steps) & (observations <= steps + 1)
    good &= index["first_step"] == np.cumsum(steps) - steps
    good &= index["first_observation"] == np.cumsum(observations) - observations
    if not good.all():
        raise ValueError(f"{path / INDEX}, record {int(good.argmin()) + 1}: is damaged")
    named = np.stack([index["player"], index["source"]]) if len(index) else np.zeros((2, 0), np.int32)
    if (named < 0).any() or (named >= texts).any():
        raise ValueError(f"{path / TEXTS}: lacks names that episodes refer to (it holds {texts})")


def read_rejected(path: Path) -> list[RejectedEpisode]:
    """The episodes that were not imported."""
    found = []
    lines, damaged = fileio.read_lines(path / REJECTED)
    if damaged:
        raise ValueError(damaged[0])
    for number, line in enumerate(lines, 1):
        kinds = {name: type(value) for name, value in line.items()}
        if kinds != {"source": str, "line": int, "reason": str}:
            raise ValueError(f"{path / REJECTED}, line {number}: is not a source, line and reason")
        found.append(RejectedEpisode(**line))
    return found


def read_texts(path: Path) -> list[str]:
    if not (path / TEXTS).exists():
        return []
    *lines, _torn = (path / TEXTS).read_bytes().split(b"\n")
    try:
        found = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        found = [None]
    if any(type(text) is not str for text in found):
        raise ValueError(f"{path / TEXTS}: holds a line that is not a JSON string")
    return found


def whole_lines(path: Path) -> int:
    """Number of bytes of a file that are complete lines."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
