"""Tables of text, the names of the columns in the first line, which also tells what separates them. A row is a line."""

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.table_files import Block, Lists, table_files
from rbi.data.formats.table_rows import flags_of_texts, numbers_of_texts
from rbi.data.formats.tables import TableReader

BLOCK_CHARACTERS = 1 << 18  # larger ones are slower: the texts leave the cache
SUFFIX = ".csv"
SEPARATORS = ",;\t|"


def recognises(path: Path) -> bool:
    return bool(table_files(path, SUFFIX))


def open_reader(path: Path, settings: Any) -> TableReader:
    return TableReader(path, CsvFiles(), settings)


class CsvFiles:
    """Files of comma-separated values."""

    suffix = SUFFIX

    def names(self, path: Path) -> list[str]:
        with open_text(path) as file:
            line = file.readline()
            header = next(csv.reader([line], delimiter=separator(line)), [])
        if not header:
            raise ValueError(f"{path}: the first line must name the columns, and is empty")
        if damaged("".join(header)):
            raise ValueError(f"{path}, line 1: is not UTF-8 text")
        return [name.strip() for name in header]

    def own_spec(self, _path: Path) -> DatasetSpec | None:
        return None

    def lists(self, _path: Path, _name: str) -> Lists | None:
        return None

    def blocks(self, path: Path, source: str, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        names = self.names(path)
        places = {name: names.index(name) for name in columns}
        with open_text(path) as file:
            by = separator(file.readline())
            line = 2
            while lines := file.readlines(BLOCK_CHARACTERS):
                block = TextBlock(source, places, len(names), lines, line, by)
                line += len(lines)
                if len(block.lines):
                    yield block


class TextBlock:
    """Some lines of a file."""

    def __init__(
        self, source: str, places: dict[str, int], width: int, lines: list[str], first: int, separator: str
    ) -> None:
        self.source, self.places, self.faults, self.separator = source, places, dict[int, str](), separator
        rows = self.parse(lines)
        blank = [number for number, row in enumerate(rows) if not row or (len(row) == 1 and not row[0].strip())]
        self.lines = np.delete(np.arange(first, first + len(rows)), blank)
        if blank:
            self.faults = {int(self.lines.searchsorted(first + at)): why for at, why in self.faults.items()}
            rows = [row for row in rows if row and (len(row) > 1 or row[0].strip())]
        if set(map(len, rows)) - {width}:
            rows = [row if len(row) == width else self.fit(number, row, width) for number, row in enumerate(rows)]
        self.columns = list(zip(*rows, strict=True))

    def parse(self, lines: list[str]) -> list[list[str]]:
        """The fields of each line; one by one only where something is wrong."""
        if not damaged("".join(lines)):
            try:
                rows = list(csv.reader(lines, delimiter=self.separator, strict=True))
            except csv.Error:
                rows = []
            if len(rows) == len(lines):  # a quote that is not closed swallows the lines after it
                return rows
        return [self.parse_line(number, line) for number, line in enumerate(lines)]

    def parse_line(self, number: int, line: str) -> list[str]:
        if damaged(line):
            self.faults[number] = "the line is not UTF-8 text"
        try:
            return next(csv.reader([line], delimiter=self.separator, strict=True), [])
        except csv.Error as error:
            self.faults[number] = f"the line cannot be read ({error}); a row must be on one line"
            return line.rstrip("\r\n").replace('"', "").split(self.separator)  # whose episode it was can mostly be told

    def fit(self, number: int, row: list[str], width: int) -> list[str]:
        """A row with too few or too many fields: noted, and kept for the sake of its episode."""
        self.faults.setdefault(number, f"the line has {len(row)} fields, where the header has {width}")
        return list(chain(row[:width], [""] * (width - len(row))))

    def numbers(self, name: str) -> Array:
        return numbers_of_texts(self.columns[self.places[name]], name, self.faults)

    def flags(self, name: str) -> Array:
        return flags_of_texts(self.columns[self.places[name]], name, self.faults)

    def texts(self, name: str) -> Array:
        found = np.array(self.columns[self.places[name]], dtype=object)
        found[found == ""] = None
        return found

    def lists(self, name: str, _shape: tuple[int, ...]) -> tuple[Array, Array]:
        raise ValueError(f"{self.source}: column {name!r} must hold lists, which this format has not")

    def holds_text(self, _name: str) -> bool:
        return True


def separator(header: str) -> str:
    """What stands between the names of a header: a comma unless another sign is more frequent."""
    return max(SEPARATORS, key=header.count)


def open_text(path: Path) -> Any:
    """A text file; bytes that are not UTF-8 stay visible, for `damaged` to find."""
    try:
        return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror})") from None


def damaged(text: str) -> bool:
    """Whether it came from bytes that are not UTF-8."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
