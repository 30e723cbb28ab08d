"""Tables in Parquet files, through pyarrow: our own, RLlib's, and any others with columns that we know."""

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.seam import needs
from rbi.data.formats.table_files import Block, Lists, table_files
from rbi.data.formats.table_rows import flags_of_numbers, flags_of_texts, note, numbers_of_texts
from rbi.data.formats.tables import TableReader

BLOCK_NUMBERS, BLOCK_ROWS = 1 << 22, 1 << 16
SUFFIX = ".parquet"
OWN_KEY = b"rbi"
"""Where the schema of our own files keeps what episodes share."""


def recognises(path: Path) -> bool:
    return bool(table_files(path, SUFFIX))


def open_reader(path: Path, settings: Any) -> TableReader:
    return TableReader(path, ParquetFiles(), settings)


class ParquetFiles:
    """Parquet files."""

    suffix = SUFFIX

    def names(self, path: Path) -> list[str]:
        with open_file(path) as file:
            return list(file.schema_arrow.names)

    def own_spec(self, path: Path) -> DatasetSpec | None:
        with open_file(path) as file:
            kept = (file.schema_arrow.metadata or {}).get(OWN_KEY)
        if kept is None:
            return None
        try:
            return DatasetSpec(**json.loads(kept))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: what our writer left in its schema is not understood ({error})") from None

    def lists(self, path: Path, name: str) -> Lists | None:
        """The shape of the first list."""
        with open_file(path) as file, understood(path):
            if not is_list(file.schema_arrow.field(name).type):
                return None
            for batch in file.iter_batches(batch_size=16, columns=[name]):
                column = batch.column(0).drop_null()
                if len(column):
                    return shape_of(column, path, name)
        return None

    def blocks(self, path: Path, source: str, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        pa, first = needs("pyarrow"), 1
        with open_file(path) as file:
            batches = file.iter_batches(batch_size=self.block_rows(path, columns), columns=list(columns))
            while True:
                try:
                    batch = next(batches, None)
                except (pa.ArrowException, OSError) as error:
                    yield RejectedEpisode(source, first, f"the file is damaged from here on ({one_line(error)})")
                    return
                if batch is None:
                    return
                if len(batch):
                    yield ArrowBlock(path, source, batch, first)
                first += len(batch)

    def block_rows(self, path: Path, columns: Sequence[str]) -> int:
        """As many rows as are read at once."""
        lists = (self.lists(path, name) for name in columns)
        numbers = sum(math.prod(found.shape) if found else 1 for found in lists)
        return max(1, min(BLOCK_NUMBERS // numbers, BLOCK_ROWS))


class ArrowBlock:
    """Some rows of a file."""

    def __init__(self, path: Path, source: str, batch: Any, first: int) -> None:
        self.path, self.source, self.batch, self.faults = path, source, batch, dict[int, str]()
        self.lines = np.arange(first, first + len(batch))

    def numbers(self, name: str) -> Array:
        pa = needs("pyarrow")
        column = self.plain(name)
        if is_text(column.type):
            return numbers_of_texts(column.to_pylist(), name, self.faults)
        with understood(self.path, name):
            if pa.types.is_boolean(column.type):
                column = column.cast("uint8")
            return column.cast("float64", safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)

    def flags(self, name: str) -> Array:
        column = self.plain(name)
        if is_text(column.type):
            return flags_of_texts(column.to_pylist(), name, self.faults)
        return flags_of_numbers(self.numbers(name), name, self)

    def texts(self, name: str) -> Array:
        pa = needs("pyarrow")
        column = self.plain(name)
        if pa.types.is_integer(column.type):
            if not column.null_count:
                return column.to_numpy(zero_copy_only=False)
            return np.array(column.to_pylist(), dtype=object)
        with understood(self.path, name):
            if pa.types.is_floating(column.type):
                compute = needs("pyarrow.compute")
                column = compute.if_else(compute.is_nan(column), None, column)
            column = column.cast("string").dictionary_encode()
            texts = np.array([*column.dictionary.to_pylist(), None], dtype=object)
            return texts[column.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)]

    def lists(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        column = self.batch.column(name)
        with understood(self.path, name):
            there = column.is_valid().to_numpy(zero_copy_only=False)
            fits = of_shape(column, shape)
            note(self, there & ~fits, name, None, f"is not of shape {shape}, as the first one is")
            inner = column.filter(fits)
            for _ in shape:
                inner = inner.flatten()
            if inner.null_count:
                holes = np.zeros(len(column), bool)
                holes[fits] = inner.is_null().to_numpy(zero_copy_only=False).reshape(-1, math.prod(shape)).any(1)
                note(self, holes, name, None, "holds a number that is missing")
                inner = inner.fill_null(0)
            if not is_bytes(inner.type):
                inner = inner.cast("float32", safe=False)
            values = inner.to_numpy(zero_copy_only=False).reshape(-1, *shape)
        if fits.all():
            return values, there
        found = np.zeros((len(column), *shape), values.dtype)
        found[fits] = values
        return found, there

    def holds_text(self, name: str) -> bool:
        return is_text(self.plain(name).type)

    def plain(self, name: str) -> Any:
        """A column, each value written out."""
        column = self.batch.column(name)
        return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def open_file(path: Path) -> Any:
    """A Parquet file of which only what is overrides for comes into memory."""
    parquet = needs("pyarrow.parquet")
    with understood(path):
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


@contextlib.contextmanager
def understood(path: Path, name: str = "") -> Iterator[None]:
    """What pyarrow cannot read is told in one line, with the file."""
    pa = needs("pyarrow")
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        column = f", column {name!r}" if name else ""
        raise ValueError(f"{path}{column}: cannot be read ({one_line(error)})") from None


def one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def is_list(kind: Any) -> bool:
    types = needs("pyarrow").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_text(kind: Any) -> bool:
    types = needs("pyarrow").types
    return types.is_string(kind) or types.is_large_string(kind)


def is_bytes(kind: Any) -> bool:
    return needs("pyarrow").types.is_uint8(kind)


def shape_of(column: Any, path: Path, name: str) -> Lists:
    """The shape of the first list of a column."""
    shape: list[int] = []
    inner = column.slice(0, 1)
    while is_list(inner.type):
        inner = inner.slice(0, 1).flatten()
        shape.append(len(inner))
    if 0 in shape:
        raise ValueError(f"{path}: column {name!r} begins with an empty list")
    return Lists(tuple(shape), is_bytes(inner.type))


def of_shape(column: Any, shape: tuple[int, ...]) -> Array:
    """`[N]` booleans: where a column holds lists of lists of these sizes."""
    compute = needs("pyarrow.compute")
    sizes = compute.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    fits: Array = sizes == shape[0]
    if len(shape) > 1:
        inner = of_shape(column.filter(fits).flatten(), shape[1:])
        fits[fits] = inner.reshape(-1, shape[0]).all(1)
    return fits
