"""Files of tables as blocks of rows: CSV and TSV (also gzipped), JSON lines, Parquet and Feather.

A CSV file is cut into blocks of whole rows. pyarrow parses a block; a block in which anything is odd (a line with too
few fields, a line break in quotes, bytes that are not UTF-8, an empty line) is parsed again row by row, so that each
bad line is noted in `Block.faults` and the others are kept.
"""

import contextlib
import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.episode import DatasetSpec, RejectedEpisode
from rbi.data.formats.reader import require_package
from rbi.data.formats.table_columns import (
    Block,
    ListShape,
    as_value_error,
    first_line,
    first_list_shape,
    is_list,
    plain,
)

TEXT_BLOCK_BYTES = 1 << 20
PARQUET_BLOCK_NUMBERS, PARQUET_BLOCK_ROWS = 1 << 22, 1 << 16
MAX_HEADER_BYTES = 1 << 26
MAX_ROW_LINES = 100  # of a row with line breaks in quotes
GZIP = b"\x1f\x8b"
DELIMITERS = ",;\t|"
NEWLINE = re.compile(rb"\r\n|\r|\n")
HEAD_LINES = 100
"""Lines of a JSON file that name its columns."""
DAMAGED = (OSError, EOFError, zlib.error)
"""What reading raises for truncated or damaged files."""
SPEC_KEY = b"rbi"
"""Where the schema of our own Parquet files keeps the `DatasetSpec`."""


# CSV


class CsvFiles:
    """CSV files: the first line names the columns and determines the delimiter; a row is a line, or several if it has
    line breaks in quotes."""

    suffixes = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
    is_text = True

    def header(self, path: Path) -> tuple[list[str], str, int]:
        """Column names, delimiter, and the number of bytes of the first line."""
        with open_binary(path) as file:
            start = read_some(path, file, 1 << 16)
            while not NEWLINE.search(start) and (more := read_some(path, file, len(start))):
                start += more
                if len(start) > MAX_HEADER_BYTES:
                    raise ValueError(f"{path}: the first line is longer than {MAX_HEADER_BYTES:,} bytes")
        end = NEWLINE.search(start)
        size = end.end() if end and (end.group() != b"\r" or end.end() < len(start)) else len(start)
        if start.startswith(GZIP):
            raise ValueError(f"{path}: is compressed by gzip, so that its name must end with .gz")
        line = start[:size].removeprefix(b"\xef\xbb\xbf")
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path}, line 1: is not UTF-8 text; save the file as UTF-8") from None
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

    def list_shape(self, _path: Path, _name: str) -> ListShape | None:
        return None

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        names, delimiter, header = self.header(path)
        positions = {name: names.index(name) for name in columns}
        line = 2
        with open_binary(path) as file:
            file.seek(header)
            for chunk in row_chunks(line_chunks(file)):
                if isinstance(chunk, str):
                    yield RejectedEpisode(path.name, line, chunk)
                    return
                block = parse_csv(path, chunk, line, positions, len(names), delimiter)
                line += count_lines(chunk)
                if len(block):
                    yield block


def read_some(path: Path, file: Any, size: int) -> bytes:
    """Some bytes of a file, which must not be damaged there."""
    try:
        found: bytes = file.read(size)
    except DAMAGED as error:
        raise ValueError(f"{path}: cannot be read ({first_line(error)})") from None
    return found


def line_chunks(file: Any) -> Iterator[bytes | str]:
    """The rest of a file in chunks of whole lines; a text says that it is damaged from there on."""
    rest = b""
    while True:
        try:
            data = file.read(TEXT_BLOCK_BYTES)
        except DAMAGED as error:
            yield f"the file is damaged from here on ({first_line(error)})"
            return
        if not data:
            break
        data = rest + data
        end = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest


def row_chunks(chunks: Iterable[bytes | str]) -> Iterator[bytes | str]:
    """Chunks of whole lines, cut where no quote is open."""
    rest = b""
    for chunk in chunks:
        if isinstance(chunk, str):
            yield from (rest, chunk) if rest else (chunk,)
            return
        data = rest + chunk
        end = end_of_row(data)
        rest = data[end:]
        yield data[:end]
    if rest:
        yield rest


def end_of_row(data: bytes) -> int:
    """Where the last whole row of lines ends: before the last line with an open quote, if there is one."""
    end = len(data)
    if data.count(b'"') % 2:
        for _ in range(MAX_ROW_LINES):
            start = data.rfind(b"\n", 0, max(0, end - 1)) + 1
            if start and data.count(b'"', start, end) % 2:
                return start
            end = start
    return len(data)


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
        if body and is_utf8(body) and plain_quotes(body, delimiter) and not has_blank_rows(body, delimiter)
        else None
    )
    if table is not None and table.num_rows == count_lines(body):
        return Block(path, table, range(line, line + table.num_rows), is_text_file=True)
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


def has_blank_rows(data: bytes, delimiter: str) -> bool:
    """Whether a line has no values, but delimiters."""
    edge = delimiter.encode()
    blank = rb"\n[\s%s]+[\r\n]" % re.escape(edge)
    return edge * 2 in data and re.search(blank, b"\n%s\n" % data) is not None


def parse_csv_lines(
    path: Path, chunk: bytes, line: int, positions: dict[str, int], width: int, delimiter: str
) -> Block:
    """The same by Python's csv module, line by line: bad lines are noted, and kept for the sake of their episode."""
    pa = require_package("pyarrow")
    faults: dict[int, str] = {}
    rows: list[list[str]] = []
    lines: list[int] = []
    texts = list(io.StringIO(chunk.decode(errors="surrogateescape"), newline=""))
    for number, written in whole_rows(texts, line, width, delimiter):
        fault = (
            ""
            if written.isascii() or is_utf8(written.encode(errors="surrogateescape"))
            else "the line is not UTF-8 text"
        )
        try:
            row = next(csv.reader([written], delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            fault = f"the line cannot be read ({error})"
            row = written.rstrip("\r\n").replace('"', "").split(delimiter)  # mostly enough to find its episode
        if not "".join(row).strip():  # of a spreadsheet
            continue
        if len(row) != width:
            fault = fault or f"the line has {len(row)} fields, where the header has {width}"
            row = [*row[:width], *[""] * (width - len(row))]
        if fault:
            faults[len(rows)] = fault
        rows.append(row)
        lines.append(number)
    arrays = [pa.array([clean(row[place]) for row in rows], pa.string()) for place in positions.values()]
    return Block(path, pa.RecordBatch.from_arrays(arrays, names=list(positions)), lines, faults, is_text_file=True)


def whole_rows(texts: list[str], line: int, width: int, delimiter: str) -> Iterator[tuple[int, str]]:
    """Rows with the number of their first line. A quoted field may go on in the next lines; lines that are no row
    together come one by one."""
    at = 0
    while at < len(texts):
        odd, end = texts[at].count('"') % 2, at + 1
        while odd and end < min(at + MAX_ROW_LINES, len(texts)):
            odd, end = (odd + texts[end].count('"')) % 2, end + 1
        whole = "".join(texts[at:end])
        if end > at + 1 and (odd or not is_row(whole, width, delimiter)):
            whole, end = texts[at], at + 1
        yield line + at, whole
        at = end


def is_row(text: str, width: int, delimiter: str) -> bool:
    """Whether lines are one row of this width."""
    try:
        rows = list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and len(rows[0]) == width


def clean(text: str) -> str:
    """Text without bytes that are not UTF-8."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="replace")


def open_binary(path: Path) -> Any:
    """The bytes of a file, decompressed if it ends with .gz."""
    try:
        return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror})") from None


# Parquet


class ParquetFiles:
    """Parquet files: ours, RLlib's, and others with known columns."""

    suffixes = (".parquet", ".pq")
    is_text = False

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
        with open_parquet(path) as file, as_value_error(path):
            return batches_list_shape(file.iter_batches(batch_size=16, columns=[name]), path, name)

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
                    yield Block(path, plain(batch), range(first, first + len(batch)))
                first += len(batch)

    def block_rows(self, path: Path, columns: Sequence[str]) -> int:
        shapes = (self.list_shape(path, name) for name in columns)
        numbers = sum(math.prod(found.shape) if found else 1 for found in shapes)
        return max(1, min(PARQUET_BLOCK_NUMBERS // numbers, PARQUET_BLOCK_ROWS))


def batches_list_shape(batches: Iterable[Any], path: Path, name: str) -> ListShape | None:
    """The shape of the first list in record batches of one column; None for other columns, and without rows."""
    for batch in batches:
        column = plain(batch).column(0).drop_null()
        if not is_list(column.type):
            return None
        if len(column):
            return first_list_shape(column, path, name)
    return None


class FrameFiles:
    """A pyarrow Table in memory in place of a file."""

    suffixes = ()
    is_text = False

    def __init__(self, table: Any) -> None:
        self.table = table

    def names(self, _path: Path) -> list[str]:
        return list(self.table.schema.names)

    def list_shape(self, path: Path, name: str) -> ListShape | None:
        return batches_list_shape(self.table.select([name]).to_batches(max_chunksize=16), path, name)

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        first = 1
        for batch in self.table.select(list(columns)).to_batches(max_chunksize=PARQUET_BLOCK_ROWS):
            if len(batch):
                yield Block(path, plain(batch), range(first, first + len(batch)))
            first += len(batch)


class FeatherFiles:
    """Arrow files: Feather, Arrow's file and stream formats (Hugging Face datasets, polars)."""

    suffixes = (".feather", ".arrow", ".ipc")
    is_text = False

    def batches(self, path: Path) -> Iterator[Any]:
        """Record batches; the file is mapped, not read at once."""
        pa, ipc = require_package("pyarrow"), require_package("pyarrow.ipc")
        with as_value_error(path), pa.memory_map(str(path)) as mapped:
            magic = mapped.read(6)
            mapped.seek(0)
            if magic[:4] == b"FEA1":
                yield from require_package("pyarrow.feather").read_table(path).to_batches()
            elif magic == b"ARROW1":
                with ipc.open_file(mapped) as file:
                    yield from (file.get_batch(number) for number in range(file.num_record_batches))
            else:
                with ipc.open_stream(mapped) as file:
                    yield from file

    def table(self, path: Path) -> FrameFiles:
        pa = require_package("pyarrow")
        batches = list(self.batches(path))
        if not batches:
            raise ValueError(f"{path}: holds no rows")
        return FrameFiles(pa.Table.from_batches(batches))

    def names(self, path: Path) -> list[str]:
        return self.table(path).names(path)

    def list_shape(self, path: Path, name: str) -> ListShape | None:
        return self.table(path).list_shape(path, name)

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        return self.table(path).blocks(path, columns)


class JsonFiles:
    """JSON lines: one object per line, whose keys are the columns."""

    suffixes = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
    is_text = False

    def names(self, path: Path) -> list[str]:
        """The keys of the first lines."""
        with open_binary(path) as file:
            start = read_some(path, file, TEXT_BLOCK_BYTES)
            while b"\n" not in start and (more := read_some(path, file, TEXT_BLOCK_BYTES)):
                start += more
                if len(start) > MAX_HEADER_BYTES:
                    raise ValueError(f"{path}: the first line is longer than {MAX_HEADER_BYTES:,} bytes")
        rows = [parse_object(line) for line in start.splitlines()[:HEAD_LINES]]
        names = dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row)
        if not names:
            raise ValueError(f"{path}, line 1: is not a JSON object ({rows[0] if rows else 'the file is empty'})")
        return list(names)

    def list_shape(self, path: Path, name: str) -> ListShape | None:
        for block in self.blocks(path, [name]):
            if isinstance(block, Block):
                column = block.table.column(0).drop_null()
                if len(column):
                    return first_list_shape(column, path, name) if is_list(column.type) else None
        return None

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        line = 1
        with open_binary(path) as file:
            for chunk in line_chunks(file):
                if isinstance(chunk, str):
                    yield RejectedEpisode(path.name, line, chunk)
                    return
                block = parse_json(path, chunk, line, columns)
                line += count_lines(chunk)
                if len(block):
                    yield block


def parse_json(path: Path, chunk: bytes, line: int, columns: Sequence[str]) -> Block:
    """The rows of whole lines, of which the first one has this number."""
    pa, arrow_json = require_package("pyarrow"), require_package("pyarrow.json")
    try:
        options = arrow_json.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
        table = arrow_json.read_json(pa.py_buffer(chunk), options).combine_chunks()
    except pa.ArrowInvalid:
        table = None
    if table is not None and table.num_rows == count_lines(chunk) and table.num_rows:
        count = table.num_rows
        arrays = [table.column(n).combine_chunks() if n in table.schema.names else pa.nulls(count) for n in columns]
        arrays = [a.chunk(0) if isinstance(a, pa.ChunkedArray) else a for a in arrays]
        if not any(map(may_be_rounded, arrays)):
            return Block(path, pa.RecordBatch.from_arrays(arrays, names=list(columns)), range(line, line + count))
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    faults: dict[int, str] = {}
    for number, written in enumerate(NEWLINE.split(chunk), line):
        if written.strip():
            row = parse_object(written)
            if isinstance(row, str):
                faults[len(rows)] = f"the line is not a JSON object ({row})"
            rows.append({} if isinstance(row, str) else row)
            lines.append(number)
    arrays = [json_column([row.get(name) for row in rows]) for name in columns]
    return Block(path, pa.RecordBatch.from_arrays(arrays, names=list(columns)), lines, faults)


def parse_object(line: bytes) -> dict[str, Any] | str:
    """The object of a line, or why it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return first_line(error)
    return found if isinstance(found, dict) else f"it is {type(found).__name__}"


def may_be_rounded(column: Any) -> bool:
    """Whether a column of floats holds numbers that pyarrow may have rounded: integers beyond int64, such as hashes."""
    is_floating = require_package("pyarrow").types.is_floating(column.type)
    return is_floating and bool((np.abs(column.to_numpy(zero_copy_only=False)) >= 2.0**63).any())


def json_column(values: list[Any]) -> Any:
    """Values of a column as one Arrow array; values of several types become texts."""
    pa = require_package("pyarrow")
    whole = all(value is None or type(value) is int for value in values)
    for kind in (None, pa.uint64()) if whole else (None,):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return pa.array(values, kind)
    return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


TableFiles = CsvFiles | ParquetFiles | FeatherFiles | JsonFiles | FrameFiles


def open_parquet(path: Path) -> Any:
    """A Parquet file that is read only as far as needed."""
    parquet = require_package("pyarrow.parquet")
    with as_value_error(path):
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
