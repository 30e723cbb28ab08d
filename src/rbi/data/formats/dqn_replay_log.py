"""The logs of a DQN Replay run, walked from the first file to the last; `dqn_replay` says what they are like."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from rbi.data.episode import Array
from rbi.data.formats.gzipped_array import GzippedArray

LIMIT, PADDING = 27_000, 3
SMALL = ("action", "reward", "terminal")
OBSERVATION = "observation"
LOST = "an episode without beginning: the rows before it are not there"
NAME = re.compile(rf"\$store\$_({'|'.join((*SMALL, OBSERVATION))})_ckpt\.(\d+)\.gz")


def numbers(logs: Path) -> list[int]:
    """The numbers of the files in a folder of logs."""
    return sorted({int(found[2]) for file in logs.iterdir() if (found := NAME.fullmatch(file.name))})


def file_of(logs: Path, column: str, number: int) -> Path:
    return logs / f"$store$_{column}_ckpt.{number}.gz"


@dataclass(frozen=True)
class Fault:
    """Why no more can be read, and where."""

    file: Path
    row: int
    reason: str


@dataclass(frozen=True, eq=False)
class Log:
    """File N of a run but for its pictures."""

    logs: Path
    number: int
    size: int
    """Slots of the ring buffer."""
    valid: int
    """How many rows, from the first slot on, are new and there in each small column."""
    count: int | None
    """Rows of the run when this was written, if that is known; of the last file, its own."""
    columns: dict[str, Array]
    fault: Fault | None

    def comes_after(self, other: "Log | None") -> bool:
        """Whether its last slot is known to hold the one row between the other's rows and its own."""
        if other is None or other.count is None or self.count is None or other.size != self.size:
            return False
        full = self.number == other.number + 1 and other.valid == other.size - 1
        return full and (self.count == other.count + self.size or self.goes_on_with(other))

    def goes_on_with(self, other: "Log") -> bool:
        """Whether it is the last, and its slots that are not new are still those of the other."""
        old = slice(self.valid, self.size - 1)
        same = all(np.array_equal(self.columns[name][old], other.columns[name][old]) for name in SMALL)
        return same and self.count == self.valid

    def repeats(self, other: "Log | None") -> bool:
        """Whether the run stopped just when the other was written: then it was written a second time, as the last."""
        same = other is not None and all(np.array_equal(self.columns[name], other.columns[name]) for name in SMALL)
        return same and self.count == self.size - 1

    def may_come_after(self, other: "Log | None") -> bool:
        """Whether nothing shows that rows lie between the other's and its own."""
        if other is None:
            return self.number == 0 and (self.count is None or self.count < self.size)
        known = other.count is not None and self.count is not None
        return self.number == other.number + 1 and (not known or self.comes_after(other))


def read_log(logs: Path, number: int, *, last: bool, look: bool) -> Log:
    """The small columns of a file; of its pictures only how many there should be, and only to look at them."""
    columns, sizes, faults = {name: np.zeros(0) for name in SMALL}, [0], []
    for name in (*SMALL, OBSERVATION) if look else SMALL:
        file = file_of(logs, name, number)
        try:
            with GzippedArray(file) as array:
                sizes.append(len(array))
                if name in SMALL:
                    columns[name] = array.rows(len(array)).reshape(-1)
                if array.fault:
                    faults.append(Fault(file, array.taken, f"{array.fault} after row {array.taken:,}: get it again"))
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
    fault = min(faults, key=lambda fault: fault.row) if faults else None  # of two at one row, the cause comes first
    if fault:
        valid, count = min(valid, fault.row), None
    return Log(logs, number, size, valid, count, columns, fault)


def add_count(logs: Path, number: int, size: int, *, last: bool) -> int | None:
    """How many rows the run had when a file was written: one less than its ring, or in the last file fewer.

    None where nothing says so, or something else than that program can have written.
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
    """Rows of an episode that lie side by side in one file. Their pictures come when they are read."""

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
    """A file cut behind each end, and whether a piece has one. `joined`: its last slot comes before its first."""
    terminal = log.columns["terminal"]
    if joined:
        yield Piece(log, log.size - 1, 1), bool(terminal[-1])
    stops = (np.flatnonzero(terminal[: log.valid]) + 1).tolist()
    for start, stop in pairwise([0, *stops]):
        yield Piece(log, start, stop - start), True
    if rest := log.valid - [0, *stops][-1]:
        yield Piece(log, log.valid - rest, rest), False


def padding(piece: Piece) -> int:
    """How many rows at the start of an episode are not its own: all zeros, and three at most."""
    zero = np.logical_and.reduce([piece.column(name)[:PADDING] == 0 for name in SMALL])
    if piece.frames is not None:
        zero &= ~piece.frames[:PADDING].any(axis=tuple(range(1, piece.frames.ndim)))
    return int(np.argmin([*zero, False]))


class Walk:
    """Episodes of a run, each as its pieces, and what cannot be used.

    One that goes over into a file comes after the others of that file, since the row between the two stands at the
    file's end. Pictures are read only to `look` at them.
    """

    def __init__(self, logs: Path, *, look: bool) -> None:
        self.logs, self.look = logs, look
        self.pieces: list[Piece] = []
        self.reason = ""

    def items(self) -> Iterator[list[Piece] | Fault]:
        previous = None
        present = numbers(self.logs)
        for number in present:
            log = read_log(self.logs, number, last=number == present[-1], look=self.look)
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
        with self.pictures(log, wanted=joined or log.valid > 0) as frames:
            for piece, ended in pieces_of(log, joined=joined):
                if joined and between is None:
                    between = piece
                else:
                    self.take(piece, frames)
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
            fault = self.take_last(between, frames) or log.fault
        if waiting:
            yield Fault(waiting[0].file, waiting[0].first, "a step of it cannot be read") if fault else waiting
        if fault:
            yield fault
            yield from self.stop("an episode without end: the rows after it cannot be read")
            self.begin(LOST)

    def take(self, piece: Piece, frames: GzippedArray | None) -> None:
        """Read the pictures of a piece, unless its episode is of no use."""
        if sum(found.rows for found in self.pieces) + piece.rows > LIMIT + PADDING:
            self.reason = self.reason or f"more than {LIMIT:,} steps, which no agent played: an end is missing"
            for found in self.pieces:
                found.frames = None
        if frames is not None and self.reason:
            frames.skip(piece.rows)
        elif frames is not None:
            piece.frames = frames.rows(piece.rows)

    def take_last(self, between: Piece | None, frames: GzippedArray | None) -> Fault | None:
        """Read the picture in the last slot, if it is wanted; why no more could be read."""
        if frames is not None and between is not None:
            frames.skip(between.first - frames.taken)
            between.frames = frames.rows(1)
        if frames is not None and frames.fault:
            return Fault(frames.path, frames.taken, f"{frames.fault} after row {frames.taken:,}: get it again")
        return None

    def is_a_start(self, piece: Piece) -> bool:
        """Whether an episode begins with a piece, as far as one sees: only pictures tell padding from doing nothing."""
        return piece.first == 0 and piece.frames is not None and padding(piece) == PADDING

    @contextlib.contextmanager
    def pictures(self, log: Log, *, wanted: bool) -> Iterator[GzippedArray | None]:
        if not (self.look and wanted):
            yield None
            return
        with GzippedArray(file_of(self.logs, OBSERVATION, log.number)) as frames:
            yield frames

    def begin(self, reason: str = "") -> None:
        """A new episode; with a reason, one that cannot be used."""
        self.pieces, self.reason = [], reason

    def finish(self) -> list[Piece] | Fault:
        """The end of an episode."""
        pieces, reason = self.pieces, self.reason
        self.begin()
        return Fault(pieces[0].file, pieces[0].first, reason) if reason else pieces

    def stop(self, reason: str) -> Iterator[Fault]:
        """The end of the rows, but not of the episode."""
        if self.pieces:
            yield Fault(self.pieces[0].file, self.pieces[0].first, self.reason or reason)
        self.begin()
