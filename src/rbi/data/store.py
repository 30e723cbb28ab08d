"""The store: a folder of append-only arrays, and an index of the episodes in them.

    store.json         format version and `DatasetSpec`
    observations.bin   all observations, `[F, *obs_shape]`
    actions.bin ...    one file per column, `[S]`: actions, rewards, terminated, truncated, life_lost, and if logged
                       action_probs and action_masks `[S, A]`
    texts.jsonl        names of players and sources, one JSON string per line
    episodes.bin       one record of fixed size per episode: start, length, player, source, score (`RECORD`)
    rejected.jsonl    episodes that were not imported, with source, line and reason

Data is only appended, the index last: an episode exists when its record does. What a killed writer left after the last
record is truncated by the next writer; readers ignore it. docs/store.md has the layout for other readers.
"""

import contextlib
import fcntl
import json
import math
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from rbi import runs
from rbi.data.dataset import RECORD, Dataset, RejectedEpisode, checksum, columns, fill_record
from rbi.data.episode import Array, DatasetSpec, Episode

FORMAT = 1
CONFIG, INDEX, TEXTS, REJECTED = "store.json", "episodes.bin", "texts.jsonl", "rejected.jsonl"
RUN_FILES = ("config.json", "metrics.jsonl")
BUFFERED_BYTES, BUFFERED_SECONDS = 1 << 20, 1.0  # short episodes are written together; none waits longer
SYNCED_BYTES = 1 << 28


class Store(Dataset):
    """A memory-mapped dataset; `lost` says which episodes are incomplete, as after a power failure.

    It shows the state at opening; `refresh` updates it, while another process may be appending.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.maps: dict[str, mmap.mmap] = {}
        self.lost: list[RejectedEpisode] = []
        super().__init__(read_spec(self.path), {}, np.zeros(0, RECORD), [])
        self.refresh()

    def refresh(self) -> None:
        """Include the episodes that were appended since."""
        self.records, self.texts, self.lost = read_index(self.path, self.spec)
        self.rejected = read_rejected(self.path)
        self.arrays = {name: self.mapped(name) for name in columns(self.spec)}

    def mapped(self, name: str) -> Array:
        """A memory-mapped column."""
        dtype, shape = columns(self.spec)[name]
        count = self.frames if name == "observations" else self.steps
        if not count:
            return np.zeros((0, *shape), dtype)
        with (self.path / f"{name}.bin").open(
            "rb"
        ) as file:  # private, so that PyTorch accepts it; it is never written to
            size = count * dtype.itemsize * math.prod(shape)
            self.maps[name] = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        array = np.frombuffer(self.maps[name], dtype).reshape(count, *shape)
        array.flags.writeable = False
        return array

    def release_memory(self) -> None:
        """Release the memory of pages that were read; they are read again on use."""
        for mapped in self.maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)

    def verify(self) -> Iterator[RejectedEpisode]:
        """The episodes whose bytes differ from their checksum, and the incomplete ones."""
        yield from self.lost
        for number, record in enumerate(self.records, 1):
            if checksum(self.part(name, record) for name in self.arrays) != record["checksum"]:
                yield RejectedEpisode(str(self.path), number, "its bytes differ from those that were written")


class StoreWriter:
    """Appends episodes. Made by `StoreWriter.create` or `StoreWriter.append_to`; a store has one writer at a time."""

    def __init__(self, path: Path, *, repair: bool = False) -> None:
        self.path, self.spec = path, read_spec(path)
        self._lock = (path / CONFIG).open("rb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(f"{path}: another process is writing to this store") from None
        try:
            index, texts, self.lost = read_index(path, self.spec)
            if self.lost and not repair:
                raise ValueError(f"{self.lost[0]}; append_to(path, repair=True) continues without them")
        except ValueError:
            self._lock.close()
            raise
        last = index[-1] if len(index) else None
        self.steps = int(last["first_step"] + last["steps"]) if last is not None else 0
        self.frames = int(last["first_observation"] + last["observations"]) if last is not None else 0
        self.episodes = len(index)
        cut(path / INDEX, len(index) * RECORD.itemsize)
        self._files = {name: self.open_column(name) for name in columns(self.spec)}
        self._index = (path / INDEX).open("ab", buffering=0)
        self._texts = {text: number for number, text in enumerate(texts)}
        self._texts_written = len(self._texts)
        self._texts_file = (path / TEXTS).open("ab", buffering=0)
        cut(path / TEXTS, whole_lines(path / TEXTS))
        cut(path / REJECTED, whole_lines(path / REJECTED))
        self._rejected_file = (path / REJECTED).open("ab", buffering=0)
        self._waiting: list[tuple[Episode, Array]] = []
        self._bytes, self._since_sync, self._since = 0, 0, time.monotonic()

    @classmethod
    def create(cls, path: Path | str, spec: DatasetSpec) -> Self:
        """A new store in a new or empty folder, or in that of a new run."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(file.name not in RUN_FILES for file in path.iterdir())):
            raise ValueError(f"{path}: is not empty; a new store needs a new folder")
        path.mkdir(parents=True, exist_ok=True)
        runs.write_json(path / CONFIG, {"format": FORMAT, **asdict(spec)})
        return cls(path)

    @classmethod
    def append_to(cls, path: Path | str, *, repair: bool = False) -> Self:
        """An existing store; what a killed writer left unfinished is truncated.

        Episodes that the index has and a column lacks, as after a power failure, are dropped only with `repair`.
        """
        return cls(Path(path), repair=repair)

    def open_column(self, name: str) -> Any:
        dtype, shape = columns(self.spec)[name]
        count = self.frames if name == "observations" else self.steps
        file = (self.path / f"{name}.bin").open("ab", buffering=0)
        cut(self.path / f"{name}.bin", count * dtype.itemsize * math.prod(shape))
        return file

    def append(self, episode: Episode) -> None:
        """Append an episode; raises a ValueError if it does not match the spec."""
        if self._lock.closed:
            raise ValueError(f"{self.path}: this writer is closed")
        episode.check_fits(self.spec)
        record = np.zeros(1, RECORD)
        fill_record(record[0], episode, self.frames, self.steps, self._texts)
        record["checksum"] = checksum(getattr(episode, name) for name in self._files)
        self.frames += len(episode.observations)
        self.steps += len(episode)
        self.episodes += 1
        self._waiting.append((episode, record))
        self._bytes += episode.observations.nbytes + len(episode)
        if self._bytes >= BUFFERED_BYTES or time.monotonic() - self._since >= BUFFERED_SECONDS:
            self.flush()

    def reject(self, item: RejectedEpisode) -> None:
        """Record an episode that is not imported, and why."""
        self.flush()
        put(self._rejected_file, (runs.to_json(item._asdict()) + "\n").encode())

    def flush(self) -> None:
        """Write everything to the operating system, the index last."""
        new = list(self._texts)[self._texts_written :]
        put(self._texts_file, "".join(json.dumps(text) + "\n" for text in new).encode())
        for name, file in self._files.items():
            parts = [getattr(episode, name) for episode, _ in self._waiting]
            if len(parts) == 1:
                put(file, np.ascontiguousarray(parts[0]))
            elif parts:
                put(file, np.concatenate(parts))
        self._since_sync += self._bytes
        if self._since_sync >= SYNCED_BYTES:
            self.sync()
        if self._waiting:
            put(self._index, np.concatenate([record for _, record in self._waiting]).tobytes())
        self._waiting, self._texts_written, self._bytes = [], len(self._texts), 0
        self._since = time.monotonic()

    def sync(self) -> None:
        """Write everything to disk."""
        for file in (self._texts_file, *self._files.values(), self._index, self._rejected_file):
            os.fsync(file.fileno())
        self._since_sync = 0

    def close(self) -> None:
        self.flush()
        self.sync()
        self.release()

    def release(self) -> None:
        for file in (*self._files.values(), self._texts_file, self._index, self._rejected_file, self._lock):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the disk may be full: keep what can be kept
            with contextlib.suppress(OSError):
                self.flush()
            self.release()


def is_store(path: Path) -> bool:
    return (path / CONFIG).is_file()


def read_spec(path: Path) -> DatasetSpec:
    """The spec of a store."""
    if not is_store(path):
        raise ValueError(f"{path}: is not a store (it has no {CONFIG})")
    config = runs.parse(path / CONFIG, runs.read_text(path / CONFIG), 1)
    if config.pop("format", None) != FORMAT:
        raise ValueError(f"{path / CONFIG}: has another format version; this version reads {FORMAT}")
    kinds: dict[str, Any] = {
        "obs_shape": list, "num_actions": int, "frame_stack": int, "env": str,
        "has_action_probs": bool, "has_action_masks": bool,
    }  # fmt: skip
    if set(config) != set(kinds) or any(type(config[name]) is not kind for name, kind in kinds.items()):
        raise ValueError(f"{path / CONFIG}: must hold format, {', '.join(kinds)} with valid types")
    try:
        return DatasetSpec(**config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None


def read_index(path: Path, spec: DatasetSpec) -> tuple[Array, list[str], list[RejectedEpisode]]:
    """The records of complete episodes, all texts, and which columns lack which episodes.

    The index is read first: what it refers to was written before it, even while another process is writing.
    """
    written = (path / INDEX).read_bytes() if (path / INDEX).exists() else b""
    index = np.frombuffer(written[: len(written) // RECORD.itemsize * RECORD.itemsize], RECORD)
    if not (path / INDEX).exists() and any((path / f"{name}.bin").exists() for name in columns(spec)):
        raise ValueError(f"{path / INDEX}: is missing; without it the episodes cannot be found")
    texts = read_texts(path)
    check_records(path, index, len(texts))
    whole, lost = index, []
    for name, (dtype, shape) in columns(spec).items():
        file, size = path / f"{name}.bin", dtype.itemsize * math.prod(shape)
        if len(index) and not file.exists():
            raise ValueError(f"{file}: is missing")
        entries = file.stat().st_size // size if file.exists() else 0
        which = ("first_observation", "observations") if name == "observations" else ("first_step", "steps")
        there = index[which[0]] + index[which[1]] <= entries  # after a power failure the disk may lack the last ones
        if not there.all():
            wanted, short = int(index[-1][which[0]] + index[-1][which[1]]), int((~there).sum())
            lost.append(
                RejectedEpisode(
                    str(file), 0, f"holds {entries:,} of {wanted:,} entries, so {short:,} episodes are lost"
                )
            )
        whole = whole if len(whole) <= there.sum() else index[: int(there.sum())]
    return whole, texts, lost


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
    for number, line in enumerate(runs.read_lines(path / REJECTED), 1):
        if [type(line.get(name)) for name in RejectedEpisode._fields] != [str, int, str] or len(line) != len(
            RejectedEpisode._fields
        ):
            raise ValueError(f"{path / REJECTED}, line {number}: is not a source, line and reason")
        found.append(RejectedEpisode(**line))
    return found


def read_texts(path: Path) -> list[str]:
    if not (path / TEXTS).exists():
        return []
    *lines, _torn = (path / TEXTS).read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        raise ValueError(f"{path / TEXTS}: holds a line that is not a JSON string") from None


def put(file: Any, data: Any) -> None:
    """Write all of it: one call may write only a part."""
    left = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
    while left:
        left = left[file.write(left) :]


def whole_lines(path: Path) -> int:
    """Number of bytes of a file that are complete lines."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def cut(path: Path, size: int) -> None:
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
