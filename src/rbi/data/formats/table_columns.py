"""Rows of CSV and Parquet files as Arrow columns, block by block, and their conversion to NumPy.

A CSV file is cut into blocks of whole lines. pyarrow parses a block; a block in which anything is odd (a line with too
few fields, an open quote, bytes that are not UTF-8, an empty line) is parsed again line by line, so that each bad line
is noted in `Block.faults` and the others are kept.
"""

import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.common import require_package

CSV_SUFFIX, PARQUET_SUFFIX = ".csv", ".parquet"
CSV_BLOCK_BYTES = 1 << 20
PARQUET_BLOCK_NUMBERS, PARQUET_BLOCK_ROWS = 1 << 22, 1 << 16
FEW_TEXTS, FEW_TEXTS_ROWS = 100, 1000
MAX_HEADER_BYTES = 1 << 26
DELIMITERS = ",;\t|"
NEWLINE = re.compile(rb"\r\n|\r|\n")
SPEC_KEY = b"rbi"
"""Where the schema of our own Parquet files keeps the `DatasetSpec`."""
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
FLAGS = {"0": False, "1": True, "False": False, "True": True, "false": False, "true": True}


class ListShape(NamedTuple):
    """A column of lists: the shape of one list, and whether it holds uint8."""

    shape: tuple[int, ...]
    is_bytes: bool


class Block:
    """Consecutive rows of a file: Arrow columns, the line of each row, and what is wrong with some rows."""

    def __init__(self, path: Path, table: Any, lines: range | list[int], faults: dict[int, str] | None = None) -> None:
        self.path, self.table, self.line_numbers = path, table, lines
        self.faults: dict[int, str] = faults or {}
        """Reasons, by row of the block; the first one noted stays."""

    def __len__(self) -> int:
        return len(self.line_numbers)

    @property
    def lines(self) -> Array:
        """`[N]`: the line of each row."""
        given = self.line_numbers
        return np.arange(given.start, given.stop) if isinstance(given, range) else np.array(given, np.int64)

    def compact(self) -> "Block":
        """The same block with less memory: few distinct texts become dictionaries, plain numbers become numbers."""
        pa = require_package("pyarrow")
        columns = []
        for column in self.table.columns:
            if is_text(column.type):
                encoded = column.slice(0, FEW_TEXTS_ROWS).dictionary_encode()
                numbers = None if len(encoded.dictionary) <= FEW_TEXTS else fast_numbers(column)
                if numbers is not None:
                    column = pa.array(numbers)
                else:
                    encoded = column.dictionary_encode()
                    small = pa.int8() if len(encoded.dictionary) < 128 else pa.int32()
                    column = pa.DictionaryArray.from_arrays(encoded.indices.cast(small), encoded.dictionary)
            columns.append(column)
        table = pa.RecordBatch.from_arrays(columns, names=self.table.schema.names)
        return Block(self.path, table, self.line_numbers, self.faults)

    def note(self, bad: Array, name: str, values: Array | None, reason: str) -> None:
        """Note a reason for every bad row that has none yet."""
        if not bad.any():
            return
        for row in np.flatnonzero(bad).tolist():
            value = None if values is None else values[row]
            shown = ""
            if value is not None and value == value:
                shown = f" {value!r}" if isinstance(value, str) else f" {value:.10g}"
            self.faults.setdefault(row, f"{name}{shown} {reason}")

    def numbers(self, name: str) -> Array:
        """`[N]` float64; NaN where a number is missing, or is none, which is noted."""
        pa = require_package("pyarrow")
        column = self.column(name)
        if is_text(column.type):
            numbers = fast_numbers(column)
            return self.parse_numbers(column, name) if numbers is None else numbers
        with as_value_error(self.path, name):
            if pa.types.is_boolean(column.type):
                column = column.cast("uint8")
            return column.cast("float64", safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)

    def parse_numbers(self, column: Any, name: str) -> Array:
        """Numbers written in any way that Python reads; each distinct text is parsed once."""
        texts, codes = encode(column)
        values = np.array([parse_number(text) for text in texts])
        wrong: Array = np.array([text is not None and not is_missing(text) and not is_number(text) for text in texts])
        if wrong.any():
            for row in np.flatnonzero(wrong[codes]).tolist():
                self.faults.setdefault(row, f"{name} {(texts[codes[row]] or '')[:40]!r} is not a number")
        return values[codes]

    def flags(self, name: str) -> Array:
        """`[N]` booleans; False where a value is neither true nor false, which is noted."""
        column = self.column(name)
        if not is_text(column.type):
            values = self.numbers(name)
            self.note(np.isnan(values), name, values, "is missing")
            self.note((values != 0) & (values != 1), name, values, "is neither true nor false")
            return values == 1
        texts, codes = encode(column)
        flags = [parse_flag(text) for text in texts]
        wrong = np.array([flag is None for flag in flags], bool)
        if wrong.any():
            for row in np.flatnonzero(wrong[codes]).tolist():
                text = (texts[codes[row]] or "").strip()
                reason = f"{text[:40]!r} is neither true nor false" if text else "is missing"
                self.faults.setdefault(row, f"{name} {reason}")
        return np.array([bool(flag) for flag in flags], bool)[codes]

    def texts(self, name: str) -> Array:
        """`[N]` integers, or strings with None where one is missing."""
        pa = require_package("pyarrow")
        column = self.column(name)
        if pa.types.is_integer(column.type):
            if not column.null_count:
                return column.to_numpy(zero_copy_only=False)
            return np.array(column.to_pylist(), dtype=object)
        with as_value_error(self.path, name):
            if pa.types.is_floating(column.type):
                compute = require_package("pyarrow.compute")
                column = compute.if_else(compute.is_nan(column), None, column)
            texts, codes = encode(column if is_text(column.type) else column.cast("string"))
        is_csv = self.path.suffix.lower() == CSV_SUFFIX
        return np.array([None if is_csv and text == "" else text for text in texts], dtype=object)[codes]

    def lists(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """`[N, *shape]`, and `[N]` booleans: where there is a list. Lists of another shape are noted."""
        column = self.table.column(name)
        if not is_list(column.type):
            raise ValueError(f"{self.path.name}: column {name!r} must hold lists, which this format has not")
        with as_value_error(self.path, name):
            present = column.is_valid().to_numpy(zero_copy_only=False)
            fits = has_shape(column, shape)
            self.note(present & ~fits, name, None, f"is not of shape {shape}, as the first one is")
            inner = column if fits.all() else column.filter(fits)
            for _ in shape:
                inner = inner.flatten()
            if inner.null_count:
                holes = np.zeros(len(column), bool)
                holes[fits] = inner.is_null().to_numpy(zero_copy_only=False).reshape(-1, math.prod(shape)).any(1)
                self.note(holes, name, None, "holds a number that is missing")
                inner = inner.fill_null(0)
            if not is_uint8(inner.type):
                inner = inner.cast("float32", safe=False)
            values = inner.to_numpy(zero_copy_only=False).reshape(-1, *shape)
        if fits.all():
            return values, present
        found = np.zeros((len(column), *shape), values.dtype)
        found[fits] = values
        return found, present

    def holds_text(self, name: str) -> bool:
        """Whether the column is not of a number type."""
        return is_text(self.column(name).type)

    def column(self, name: str) -> Any:
        """A column, with dictionaries decoded."""
        column = self.table.column(name)
        return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


# Texts


def encode(column: Any) -> tuple[list[str | None], Array]:
    """The distinct texts of a column, and the index of each row's text."""
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    if encoded.indices.null_count:
        texts = [*texts, None]
    return texts, encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)


def fast_numbers(column: Any) -> Array | None:
    """A text column as float64 if every text is a plain number, else None."""
    pa = require_package("pyarrow")
    try:
        found: Array = column.cast("float64").to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return found if not column.null_count and not np.isnan(found).any() else None


def parse_number(text: str | None) -> float:
    return float(text) if text is not None and not is_missing(text) and is_number(text) else np.nan


def is_missing(text: str | None) -> bool:
    return text is None or text.strip().lower() in MISSING


def is_number(text: str) -> bool:
    """Whether a text is a number; unlike Python, `1_0` is not.

    >>> [is_number(text) for text in ("1e3", " +.5 ", "1_0", "one")]
    [True, True, False, False]
    """
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def parse_flag(text: str | None) -> bool | None:
    """True or False in one of the usual spellings, else None."""
    stripped = (text or "").strip()
    found = FLAGS.get(stripped)
    return FLAGS.get(stripped.capitalize(), FLAGS.get(stripped.removesuffix(".0"))) if found is None else found


# CSV


class CsvFiles:
    """CSV files: the first line names the columns and determines the delimiter; a row is a line."""

    suffix = CSV_SUFFIX

    def header(self, path: Path) -> tuple[list[str], str, int]:
        """Column names, delimiter, and the number of bytes of the first line."""
        with open_binary(path) as file:
            start = file.read(1 << 16)
            while not NEWLINE.search(start) and (more := file.read(len(start))):
                start += more
                if len(start) > MAX_HEADER_BYTES:
                    raise ValueError(f"{path}: the first line is longer than {MAX_HEADER_BYTES:,} bytes")
        end = NEWLINE.search(start)
        size = end.end() if end and (end.group() != b"\r" or end.end() < len(start)) else len(start)
        line = start[:size].removeprefix(b"\xef\xbb\xbf")
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path}, line 1: is not UTF-8 text") from None
        delimiter = max(DELIMITERS, key=text.count)  # a comma unless another one is more frequent
        try:
            names = next(csv.reader([text], delimiter=delimiter), [])
        except csv.Error as error:
            raise ValueError(f"{path}, line 1: cannot be read as names of columns ({error})") from None
        if not names:
            raise ValueError(f"{path}: the first line must name the columns, and is empty")
        return [name.strip() for name in names], delimiter, size

    def names(self, path: Path) -> list[str]:
        return self.header(path)[0]

    def spec(self, _path: Path) -> DatasetSpec | None:
        return None

    def list_shape(self, _path: Path, _name: str) -> ListShape | None:
        return None

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        names, delimiter, header = self.header(path)
        positions = {name: names.index(name) for name in columns}
        line = 2
        with open_binary(path) as file:
            file.seek(header)
            for chunk in line_chunks(file):
                block = parse_csv(path, chunk, line, positions, len(names), delimiter)
                line += count_lines(chunk)
                if len(block):
                    yield block


def line_chunks(file: Any) -> Iterator[bytes]:
    """The rest of a file in chunks of whole lines."""
    rest = b""
    while data := file.read(CSV_BLOCK_BYTES):
        data = rest + data
        end = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest


def count_lines(data: bytes) -> int:
    """The number of lines, which may end with any of the usual line ends; the last one may have none.

    >>> count_lines(b"a\\r\\nb\\rc\\n\\nd")
    5
    """
    count = data.count(b"\n")
    if b"\r" in data:
        count += data.count(b"\r") - data.count(b"\r\n")
    return count + (not data.endswith((b"\n", b"\r")))


def parse_csv(path: Path, chunk: bytes, line: int, positions: dict[str, int], width: int, delimiter: str) -> Block:
    """The rows of whole lines, of which the first one has this number."""
    body = chunk.rstrip(b"\r\n")  # empty lines at the end are no rows
    table = (
        fast_csv(body, positions, width, delimiter)
        if body and is_utf8(body) and plain_quotes(body, delimiter)
        else None
    )
    if table is not None and table.num_rows == count_lines(body):
        return Block(path, table, range(line, line + table.num_rows))
    return parse_csv_lines(path, chunk, line, positions, width, delimiter)


def fast_csv(data: bytes, positions: dict[str, int], width: int, delimiter: str) -> Any | None:
    """The columns as text, or None if pyarrow finds a line it cannot parse."""
    pa, arrow_csv = require_package("pyarrow"), require_package("pyarrow.csv")
    wanted = [str(place) for place in positions.values()]
    try:
        table = arrow_csv.read_csv(
            pa.py_buffer(data),
            arrow_csv.ReadOptions(
                column_names=[str(place) for place in range(width)], block_size=len(data) + 1, use_threads=False
            ),
            arrow_csv.ParseOptions(delimiter=delimiter),
            arrow_csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                strings_can_be_null=False,
                check_utf8=False,
            ),
            memory_pool=pa.system_memory_pool(),  # the default one keeps what is freed
        )
    except pa.ArrowInvalid:
        return None
    batches = table.combine_chunks().to_batches()
    return pa.RecordBatch.from_arrays(batches[0].columns, names=list(positions)) if len(batches) == 1 else None


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def plain_quotes(data: bytes, delimiter: str) -> bool:
    """Whether every quote is at the edge of a field or doubled: pyarrow and Python agree on those."""
    if b'"' not in data:
        return True
    edge = re.escape(delimiter.encode())
    odd = rb'[^\r\n"' + edge + rb']"[^\r\n"' + edge + rb"]"
    return re.search(odd, data) is None


def parse_csv_lines(
    path: Path, chunk: bytes, line: int, positions: dict[str, int], width: int, delimiter: str
) -> Block:
    """The same by Python's csv module, line by line: bad lines are noted, and kept for the sake of their episode."""
    pa = require_package("pyarrow")
    faults: dict[int, str] = {}
    rows: list[list[str]] = []
    lines: list[int] = []
    text = io.StringIO(chunk.decode(errors="surrogateescape"), newline="")
    for number, written in enumerate(text, line):
        fault = (
            ""
            if written.isascii() or is_utf8(written.encode(errors="surrogateescape"))
            else "the line is not UTF-8 text"
        )
        try:
            row = next(csv.reader([written], delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            fault = f"the line cannot be read ({error}); a row must be on one line"
            row = written.rstrip("\r\n").replace('"', "").split(delimiter)  # mostly enough to find its episode
        if not row or (len(row) == 1 and not row[0].strip()):
            continue
        if len(row) != width:
            fault = fault or f"the line has {len(row)} fields, where the header has {width}"
            row = [*row[:width], *[""] * (width - len(row))]
        if fault:
            faults[len(rows)] = fault
        rows.append(row)
        lines.append(number)
    arrays = [pa.array([clean(row[place]) for row in rows], pa.string()) for place in positions.values()]
    return Block(path, pa.RecordBatch.from_arrays(arrays, names=list(positions)), lines, faults)


def clean(text: str) -> str:
    """Text without bytes that are not UTF-8."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="replace")


def open_binary(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror})") from None


# Parquet


class ParquetFiles:
    """Parquet files: ours, RLlib's, and others with known columns."""

    suffix = PARQUET_SUFFIX

    def names(self, path: Path) -> list[str]:
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)

    def spec(self, path: Path) -> DatasetSpec | None:
        """The spec that our writer left in the schema."""
        with open_parquet(path) as file:
            written = (file.schema_arrow.metadata or {}).get(SPEC_KEY)
        if written is None:
            return None
        try:
            return DatasetSpec(**json.loads(written))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: the spec in its schema cannot be read ({error})") from None

    def list_shape(self, path: Path, name: str) -> ListShape | None:
        """The shape of the first list of a column; None for other columns, and without rows."""
        with open_parquet(path) as file, as_value_error(path):
            if not is_list(file.schema_arrow.field(name).type):
                return None
            for batch in file.iter_batches(batch_size=16, columns=[name]):
                column = batch.column(0).drop_null()
                if len(column):
                    return first_list_shape(column, path, name)
        return None

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        pa, first = require_package("pyarrow"), 1
        with open_parquet(path) as file:
            batches = file.iter_batches(batch_size=self.block_rows(path, columns), columns=list(columns))
            while True:
                try:
                    batch = next(batches, None)
                except (pa.ArrowException, OSError) as error:
                    reason = f"the file is damaged from here on ({first_line(error)})"
                    yield RejectedEpisode(path.name, first, reason)
                    return
                if batch is None:
                    return
                if len(batch):
                    yield Block(path, batch, range(first, first + len(batch)))
                first += len(batch)

    def block_rows(self, path: Path, columns: Sequence[str]) -> int:
        shapes = (self.list_shape(path, name) for name in columns)
        numbers = sum(math.prod(found.shape) if found else 1 for found in shapes)
        return max(1, min(PARQUET_BLOCK_NUMBERS // numbers, PARQUET_BLOCK_ROWS))


class FrameFiles:
    """A pyarrow Table in memory in place of a file."""

    suffix = ""

    def __init__(self, table: Any) -> None:
        self.table = table

    def names(self, _path: Path) -> list[str]:
        return list(self.table.schema.names)

    def spec(self, _path: Path) -> DatasetSpec | None:
        return None

    def list_shape(self, path: Path, name: str) -> ListShape | None:
        column = self.table.column(name)
        if not is_list(column.type):
            return None
        column = column.drop_null().combine_chunks()
        return first_list_shape(column, path, name) if len(column) else None

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        first = 1
        for batch in self.table.select(list(columns)).to_batches(max_chunksize=PARQUET_BLOCK_ROWS):
            if len(batch):
                yield Block(path, batch, range(first, first + len(batch)))
            first += len(batch)


TableFiles = CsvFiles | ParquetFiles | FrameFiles


def open_parquet(path: Path) -> Any:
    """A Parquet file that is read only as far as needed."""
    parquet = require_package("pyarrow.parquet")
    with as_value_error(path):
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


@contextlib.contextmanager
def as_value_error(path: Path, name: str = "") -> Iterator[None]:
    """Turn pyarrow's errors into a ValueError that names the file and column."""
    pa = require_package("pyarrow")
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        column = f", column {name!r}" if name else ""
        raise ValueError(f"{path}{column}: cannot be read ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def is_list(kind: Any) -> bool:
    types = require_package("pyarrow").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_text(kind: Any) -> bool:
    types = require_package("pyarrow").types
    return types.is_string(kind) or types.is_large_string(kind)


def is_uint8(kind: Any) -> bool:
    return require_package("pyarrow").types.is_uint8(kind)


def first_list_shape(column: Any, path: Path, name: str) -> ListShape:
    """The shape of a column's first list."""
    shape: list[int] = []
    inner = column.slice(0, 1)
    while is_list(inner.type):
        inner = inner.slice(0, 1).flatten()
        shape.append(len(inner))
    if 0 in shape:
        raise ValueError(f"{path}: column {name!r} begins with an empty list")
    return ListShape(tuple(shape), is_uint8(inner.type))


def has_shape(column: Any, shape: tuple[int, ...]) -> Array:
    """`[N]` booleans: where a column holds nested lists of this shape."""
    compute = require_package("pyarrow.compute")
    sizes = compute.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    fits: Array = sizes == shape[0]
    if len(shape) > 1:
        inner = has_shape(column.filter(fits).flatten(), shape[1:])
        fits[fits] = inner.reshape(-1, shape[0]).all(1)
    return fits
