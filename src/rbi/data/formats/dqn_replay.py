"""DQN Replay Dataset: the experience of five DQN agents on each of sixty Atari games, as logged by Dopamine.

    <Game>/<run>/replay_logs/$store$_{observation,action,reward,terminal}_ckpt.<N>.gz    one million rows each
    <Game>/<run>/replay_logs/add_count_ckpt.<N>.gz                                       rows logged so far, per file N

The path may be a game, a run or its replay_logs; the run's number is the player. Row t holds observation, action and
reward of step t, with rewards clipped to [-1, 1]; there is no final observation. Files are streamed: the small columns
of one file and the frames of one or two episodes are in memory.

Properties of the logs, from the program that wrote them:

- Three rows of zeros precede each episode (padding of the stack of four frames). They are dropped.
- A file is a ring buffer, written when all but its last slot were new. So the last slot of file N + 1 holds the row
  between the last new row of file N and the first row of file N + 1. If the add_counts of both files show that nothing
  else lies between them, it is inserted there; otherwise it is dropped, and an episode that spans both files lacks one
  step. The last file was written before its ring was full again: its add_count says how many rows are new; without it,
  the rows up to its end that equal those of the file before are old.
- The time limit of 27,000 steps was logged as terminal. An episode of exactly this length is `truncated`.
"""

import contextlib
import re
import tokenize
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from rbi.data.episode import Array, DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats.reader import SpecOverrides, max_action, placeholder_observations

LIMIT, PADDING = 27_000, 3  # steps of an episode at most, rows of zeros before it
SMALL = ("action", "reward", "terminal")
OBSERVATION = "observation"
LOST = "an episode without beginning: the rows before it are missing"
NAME = re.compile(rf"\$store\$_({'|'.join((*SMALL, OBSERVATION))})_ckpt\.(\d+)\.gz")
LOGS = "replay_logs"
GAME = re.compile(r"[A-Z][A-Za-z0-9]*")
CHUNK, SKIPPED = 1 << 18, 1 << 24  # bytes that are read from a file, and decompressed to skip rows, at a time
GZIP = 31  # zlib's code for a 32 KB window and a gzip header


class GzippedArray:
    """An array that `np.save` wrote into a gzip file, read row by row, since it may exceed memory.

    All rows of a truncated file are read before `fault` is set. `gzip.GzipFile` raises instead and loses what it had
    decompressed, so this uses zlib directly.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.fault, self.taken = path, "", 0
        self._file = path.open("rb")
        self._inflate = zlib.decompressobj(GZIP)
        try:
            version = np.lib.format.read_magic(self)  # type: ignore[arg-type]  # only `read` is used
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in header:
                raise ValueError(f"unsupported version {version} of the array format")
            self.shape, fortran, self.dtype = header[version](self)  # type: ignore[arg-type]
            if fortran or self.dtype.kind not in "iubf":
                raise ValueError(f"an array of {self.dtype}{' in Fortran order' if fortran else ''}")
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError) as error:
            self._file.close()
            raise ValueError(f"{path}: is not a gzipped array: {self.fault or error}") from None

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def rows(self, count: int) -> Array:
        """The next rows, or as many as are left."""
        found = np.empty((count, *self.shape[1:]), self.dtype)
        got = self._fill(found.reshape(-1).view(np.uint8).data) // max(1, self._row_bytes) if found.size else 0
        self.taken += got
        return found[:got]

    def skip(self, count: int) -> None:
        """Skip the next rows."""
        block = max(1, SKIPPED // max(1, self._row_bytes))
        while count > 0 and not self.fault:
            count -= len(self.rows(min(block, count)))

    def read(self, size: int) -> bytes:
        """The next bytes: NumPy reads the header with it."""
        found = bytearray(size)
        return bytes(found[: self._fill(memoryview(found))])

    def fault_text(self) -> str:
        """Why no more rows can be read, and what to do."""
        return f"{self.fault} after row {self.taken:,}: download it again"

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def _fill(self, view: Any) -> int:
        filled = 0
        while filled < len(view) and not self.fault:
            piece = self._more(len(view) - filled)
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _more(self, most: int) -> bytes:
        """At most `most` bytes; sets `fault` at the end of the data."""
        data = self._inflate.unconsumed_tail
        if self._inflate.eof:  # a file may have several gzip members
            data, self._inflate = self._inflate.unused_data, zlib.decompressobj(GZIP)
        data = data or self._file.read(CHUNK)
        try:
            piece = self._inflate.decompress(data, most)
        except zlib.error as error:
            self.fault = f"is damaged ({error})"
            return b""
        if not data and not piece:
            self.fault = "is truncated"
        return piece


def numbers(logs: Path) -> list[int]:
    """The numbers of the files in a folder of logs."""
    return sorted({int(found[2]) for file in logs.iterdir() if (found := NAME.fullmatch(file.name))})


def file_of(logs: Path, column: str, number: int) -> Path:
    return logs / f"$store$_{column}_ckpt.{number}.gz"


@dataclass(frozen=True)
class Fault:
    """Why no more rows can be read, and where."""

    file: Path
    row: int
    reason: str


@dataclass(frozen=True, eq=False)
class Log:
    """File N of a run without its frames."""

    logs: Path
    number: int
    size: int
    """Slots of the ring buffer."""
    valid: int
    """Number of new rows, from the first slot on, that all small columns have."""
    count: int | None
    """Rows logged when the file was written, if known; for the last file, its own rows."""
    columns: dict[str, Array]
    fault: Fault | None

    def comes_after(self, other: "Log | None") -> bool:
        """Whether its last slot holds the one row between the other's rows and its own."""
        if other is None or other.count is None or self.count is None or other.size != self.size:
            return False
        full = self.number == other.number + 1 and other.valid == other.size - 1
        return full and (self.count == other.count + self.size or self.goes_on_with(other))

    def goes_on_with(self, other: "Log") -> bool:
        """Whether it is the last file and its old slots equal those of the other."""
        old = slice(self.valid, self.size - 1)
        same = all(np.array_equal(self.columns[name][old], other.columns[name][old]) for name in SMALL)
        return same and self.count == self.valid

    def repeats(self, other: "Log | None") -> bool:
        """Whether the run stopped right after the other was written, which was then written again as the last file."""
        same = other is not None and all(np.array_equal(self.columns[name], other.columns[name]) for name in SMALL)
        return same and self.count == self.size - 1

    def without_old_rows(self, other: "Log | None") -> "Log":
        """The last file of a run whose add_count is unknown, without the rows at its end that the other has, too."""
        if self.count is not None or other is None or self.fault or other.fault or other.size != self.size:
            return self
        differs = np.logical_or.reduce([self.columns[name] != other.columns[name] for name in SMALL])[:-1]
        return replace(self, valid=int(np.max(np.flatnonzero(differs) + 1, initial=0)))

    def may_come_after(self, other: "Log | None") -> bool:
        """Whether the two files may be adjacent: nothing shows that rows lie between them."""
        if other is None:
            return self.number == 0 and (self.count is None or self.count < self.size)
        known = other.count is not None and self.count is not None
        return self.number == other.number + 1 and (not known or self.comes_after(other))


def read_log(logs: Path, number: int, *, last: bool, with_frames: bool) -> Log:
    """The small columns of a file; of its frames only the number, if they are read at all."""
    columns, sizes, faults = {name: np.zeros(0) for name in SMALL}, [0], []
    for name in (*SMALL, OBSERVATION) if with_frames else SMALL:
        file = file_of(logs, name, number)
        try:
            with GzippedArray(file) as array:
                sizes.append(len(array))
                if name in SMALL:
                    columns[name] = array.rows(len(array)).reshape(-1)
                if array.fault:
                    faults.append(Fault(file, array.taken, array.fault_text()))
        except FileNotFoundError:
            faults.append(Fault(file, 0, "is missing"))
        except (OSError, ValueError) as error:
            faults.append(Fault(file, 0, str(error).removeprefix(f"{file}: ")))
    size = max(sizes)
    for name in SMALL:
        if len(columns[name]) < size:
            short = f"has {len(columns[name]):,} rows, where others of its number have {size:,}"
            faults.append(Fault(file_of(logs, name, number), len(columns[name]), short))
    count = add_count(logs, number, size, last=last)
    valid = size - 1 if count is None else count % size
    fault = min(faults, key=lambda fault: fault.row, default=None)  # of two at the same row, the first is the cause
    if fault:
        valid, count = min(valid, fault.row), None
    return Log(logs, number, size, valid, count, columns, fault)


def add_count(logs: Path, number: int, size: int, *, last: bool) -> int | None:
    """Number of rows logged when a file was written: one less than its ring, or fewer in the last file.

    None if unknown or inconsistent.
    """
    try:
        with GzippedArray(logs / f"add_count_ckpt.{number}.gz") as array:
            [found] = np.frombuffer(array.read(array.dtype.itemsize), array.dtype)
            count = int(found)
    except (OSError, ValueError):
        return None
    return count if size and (count % size == size - 1 or (last and 0 <= count < size)) else None


@dataclass(eq=False)
class Piece:
    """Consecutive rows of an episode in one file; their frames are read later."""

    log: Log
    first: int
    rows: int
    frames: Array | None = None

    def column(self, name: str) -> Array:
        return self.log.columns[name][self.first : self.first + self.rows]

    @property
    def file(self) -> Path:
        return file_of(self.log.logs, OBSERVATION, self.log.number)


def pieces_of(log: Log, *, joined: bool) -> Iterator[tuple[Piece, bool]]:
    """A file split after each terminal row, and whether a piece has one. `joined`: its last slot precedes its first."""
    terminal = log.columns["terminal"]
    if joined:
        yield Piece(log, log.size - 1, 1), bool(terminal[-1])
    stops = (np.flatnonzero(terminal[: log.valid]) + 1).tolist()
    for start, stop in pairwise([0, *stops]):
        yield Piece(log, start, stop - start), True
    if rest := log.valid - [0, *stops][-1]:
        yield Piece(log, log.valid - rest, rest), False


def padding(piece: Piece) -> int:
    """Number of padding rows at the start of an episode: all zeros, at most three."""
    zero = np.logical_and.reduce([piece.column(name)[:PADDING] == 0 for name in SMALL])
    if piece.frames is not None:
        zero &= ~piece.frames[:PADDING].any(axis=tuple(range(1, piece.frames.ndim)))
    return int(np.argmin([*zero, False]))


class LogWalker:
    """The episodes of a run, each as its pieces, and the faults, from the first file to the last.

    An episode that spans two files comes after the others of the second file, since the row between the two is at that
    file's end.
    """

    def __init__(self, logs: Path, *, with_frames: bool) -> None:
        self.logs, self.with_frames = logs, with_frames
        self.pieces: list[Piece] = []
        self.reason = ""

    def items(self) -> Iterator[list[Piece] | Fault]:
        previous = None
        present = numbers(self.logs)
        for number in present:
            log = read_log(self.logs, number, last=number == present[-1], with_frames=self.with_frames)
            if number == present[-1]:
                log = log.without_old_rows(previous)
            if log.repeats(previous):
                continue
            if not log.may_come_after(previous):
                yield from self.stop("an episode without end: the rows after it are not there")
                self.begin(LOST)
            yield from self.file(log, joined=log.comes_after(previous))
            previous = log
        yield from self.stop("an episode without end: the log stops")

    def file(self, log: Log, *, joined: bool) -> Iterator[list[Piece] | Fault]:
        """The episodes that end in a file. `joined`: its last slot comes before its first."""
        between: Piece | None = None
        waiting: list[Piece] = []
        with self.open_frames(log, wanted=joined or log.valid > 0) as frames:
            for piece, ended in pieces_of(log, joined=joined):
                if joined and between is None:
                    between = piece
                else:
                    self.read_frames(piece, frames)
                if self.pieces and not joined and self.is_a_start(piece):
                    yield from self.stop("an episode without end: its last row was not logged")
                self.pieces.append(piece)
                if frames is not None and frames.fault:
                    break
                if ended:
                    item = self.finish()
                    if isinstance(item, list) and between in item:
                        waiting = item
                    else:
                        yield item
            fault = self.read_last(between, frames) or log.fault
        if waiting:
            yield Fault(waiting[0].file, waiting[0].first, "a step of it cannot be read") if fault else waiting
        if fault:
            yield fault
            yield from self.stop("an episode without end: the rows after it cannot be read")
            self.begin(LOST)

    def read_frames(self, piece: Piece, frames: GzippedArray | None) -> None:
        """Read the frames of a piece, unless its episode is unusable."""
        if sum(found.rows for found in self.pieces) + piece.rows > LIMIT + PADDING:
            self.reason = self.reason or f"more than {LIMIT:,} steps, the time limit: an end is missing"
            for found in self.pieces:
                found.frames = None
        if frames is not None and self.reason:
            frames.skip(piece.rows)
        elif frames is not None:
            piece.frames = frames.rows(piece.rows)

    def read_last(self, between: Piece | None, frames: GzippedArray | None) -> Fault | None:
        """Read the frame in the last slot if needed; returns why no more could be read."""
        if frames is not None and between is not None:
            frames.skip(between.first - frames.taken)
            between.frames = frames.rows(1)
        if frames is not None and frames.fault:
            return Fault(frames.path, frames.taken, frames.fault_text())
        return None

    def is_a_start(self, piece: Piece) -> bool:
        """Whether an episode begins with a piece; only frames distinguish padding from no-ops."""
        return piece.first == 0 and piece.frames is not None and padding(piece) == PADDING

    @contextlib.contextmanager
    def open_frames(self, log: Log, *, wanted: bool) -> Iterator[GzippedArray | None]:
        if not (self.with_frames and wanted):
            yield None
            return
        with GzippedArray(file_of(self.logs, OBSERVATION, log.number)) as frames:
            yield frames

    def begin(self, reason: str = "") -> None:
        """Start a new episode; with a reason, an unusable one."""
        self.pieces, self.reason = [], reason

    def finish(self) -> list[Piece] | Fault:
        """End an episode."""
        pieces, reason = self.pieces, self.reason
        self.begin()
        return Fault(pieces[0].file, pieces[0].first, reason) if reason else pieces

    def stop(self, reason: str) -> Iterator[Fault]:
        """End the rows within an episode."""
        if self.pieces:
            yield Fault(self.pieces[0].file, self.pieces[0].first, self.reason or reason)
        self.begin()


def recognises(path: Path) -> bool:
    try:
        return any(numbers(logs) for logs in runs_at(path))
    except OSError:
        return False


def open_reader(path: Path, settings: Any) -> "DqnReplayReader":
    return DqnReplayReader(path, settings.overrides)


def runs_at(path: Path) -> list[Path]:
    """The folders of logs that a path denotes."""
    if not path.is_dir():
        return []
    if (path / LOGS).is_dir():
        return [path / LOGS]
    found = [run / LOGS for run in path.iterdir() if run.name.isdecimal() and (run / LOGS).is_dir()]
    return sorted(found, key=lambda logs: int(logs.parent.name)) or [path]


class DqnReplayReader:
    """Episodes of one or more runs; a part is a run's folder of logs."""

    parallel = False  # a run is too large to be sent between processes
    knows_lives = True

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path = path
        self.runs = [logs for logs in runs_at(path) if numbers(logs)]
        if not self.runs:
            raise ValueError(f"{path}: holds no files like {file_of(Path(), OBSERVATION, 0)}")
        self.spec = DatasetSpec(
            frame_of(self.runs, path),
            overrides.num_actions
            or 1 + max(largest_action(logs, number) for logs in self.runs for number in numbers(logs)),
            frame_stack=overrides.frame_stack or 4,
            env=overrides.env or env_of(self.runs[0]),
        )

    def parts(self) -> Sequence[Path]:
        return self.runs

    def read(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        for item in LogWalker(part, with_frames=True).items():
            yield self.rejected(item) if isinstance(item, Fault) else self.episode(part, item, self.spec)

    def summaries(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        without_frames = replace(self.spec, obs_shape=(1,))
        for item in LogWalker(part, with_frames=False).items():
            yield self.rejected(item) if isinstance(item, Fault) else self.episode(part, item, without_frames)

    def episode(self, logs: Path, pieces: list[Piece], spec: DatasetSpec) -> Episode | RejectedEpisode:
        """The episode of some pieces, without the padding before it."""
        pieces = without_padding(pieces)
        actions, rewards, terminal = (
            np.concatenate([piece.column(name) for piece in pieces]) for name in ("action", "reward", "terminal")
        )
        frames = [piece.frames for piece in pieces if piece.frames is not None]
        observed = frames[0] if len(frames) == 1 else np.concatenate(frames or [placeholder_observations(len(actions))])
        observed.flags.writeable = False  # not shared, so that the episode need not copy it
        ended = terminal != 0
        try:
            episode = Episode(
                observations=observed,
                actions=actions,
                rewards=rewards,
                terminated=ended & (len(ended) != LIMIT),
                truncated=ended & (len(ended) == LIMIT),
                player=logs.parent.name if logs.parent.name.isdecimal() else "",
                source=self.source(pieces[0].file),
                line=pieces[0].first + 1,
            )
            episode.check_fits(spec)
            return episode
        except ValueError as error:
            return RejectedEpisode(self.source(pieces[0].file), pieces[0].first + 1, str(error))

    def rejected(self, fault: Fault) -> RejectedEpisode:
        return RejectedEpisode(self.source(fault.file), fault.row + 1, fault.reason)

    def source(self, file: Path) -> str:
        return str(file.relative_to(self.path))


def without_padding(pieces: list[Piece]) -> list[Piece]:
    """An episode without its padding, which may span two files."""
    left = PADDING
    for number, piece in enumerate(pieces):
        drop = min(left, padding(piece))
        left -= drop
        if drop < piece.rows:
            frames = None if piece.frames is None else piece.frames[drop:]
            return [Piece(piece.log, piece.first + drop, piece.rows - drop, frames), *pieces[number + 1 :]]
    return []


def frame_of(runs: Sequence[Path], path: Path) -> tuple[int, ...]:
    """The shape of a frame, from the first readable file."""
    fault: Exception | None = None
    for logs in runs:
        for number in numbers(logs):
            try:
                with GzippedArray(file_of(logs, OBSERVATION, number)) as array:
                    return tuple(array.shape[1:])
            except (OSError, ValueError) as error:
                fault = fault or error
    raise ValueError(f"{path}: no file of observations can be read: {fault}")


def largest_action(logs: Path, number: int) -> int:
    """The largest action of a file, without slots that were never filled."""
    try:
        with GzippedArray(file_of(logs, "action", number)) as array:
            count = add_count(logs, number, len(array), last=number == numbers(logs)[-1])
            actions = array.rows(len(array) - 1 if count is None else count % len(array))
    except (OSError, ValueError):
        return 0  # reported when the file is read
    return max_action(actions)


def env_of(logs: Path) -> str:
    """The environment id, from the name of the game's folder."""
    run = logs.resolve().parent
    game = run.parent.name
    return f"ALE/{game}-v5" if run.name.isdecimal() and GAME.fullmatch(game) else ""
