"""Blocks of rows as Arrow columns, and their conversion to NumPy."""

import contextlib
import datetime
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.episode import Array
from rbi.data.formats.reader import require_package

FEW_TEXTS, FEW_TEXTS_ROWS = 100, 1000
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "#n/a", "<na>", "nat", r"\n"))
"""As pandas, R, Excel and SQL write missing values."""
ISO_DATE = re.compile(r"\s*\d{4}-\d{2}-\d{2}([T ]\d.*)?\s*$")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
BOOLEANS = {"true": 1.0, "false": 0.0}
FLAGS = {"0": False, "1": True, "false": False, "true": True, "f": False, "t": True, "no": False, "yes": True}
FLAGS |= {"n": False, "y": True}


class ListShape(NamedTuple):
    """A column of lists: the shape of one list, and whether it holds uint8."""

    shape: tuple[int, ...]
    is_bytes: bool

    @property
    def is_image(self) -> bool:
        return self.is_bytes and len(self.shape) in (2, 3)


class Block:
    """Consecutive rows of a file: Arrow columns, the line of each row, and what is wrong with some rows."""

    def __init__(
        self,
        path: Path,
        table: Any,
        lines: range | list[int],
        faults: dict[int, str] | None = None,
        *,
        is_text_file: bool = False,
    ) -> None:
        """`is_text_file`: an empty text is a missing value."""
        self.path, self.table, self.line_numbers, self.is_text_file = path, table, lines, is_text_file
        self.faults: dict[int, str] = faults or {}
        """Reasons, by row of the block; the first one noted stays."""

    def __len__(self) -> int:
        return len(self.line_numbers)

    @property
    def lines(self) -> Array:
        """`[N]`: the line of each row."""
        given = self.line_numbers
        return np.arange(given.start, given.stop) if isinstance(given, range) else np.array(given, np.int64)

    def without_faults(self) -> "Block":
        """The rows without a fault."""
        if not self.faults:
            return self
        kept = np.setdiff1d(np.arange(len(self)), list(self.faults))
        return Block(self.path, self.table.take(kept), self.lines[kept].tolist(), is_text_file=self.is_text_file)

    def compact(self, names: Sequence[str | None]) -> "Block":
        """The same block with less memory: few distinct texts become dictionaries, plain numbers become numbers, except
        in columns of names: 007 is another name than 7."""
        pa = require_package("pyarrow")
        columns = []
        for name, column in zip(self.table.schema.names, self.table.columns, strict=True):
            if is_text(column.type):
                encoded = column.slice(0, FEW_TEXTS_ROWS).dictionary_encode()
                few = len(encoded.dictionary) <= FEW_TEXTS or name in names
                numbers = None if few else fast_numbers(column)
                if numbers is not None:
                    column = pa.array(numbers)
                else:
                    encoded = column.dictionary_encode()
                    small = pa.int8() if len(encoded.dictionary) < 128 else pa.int32()
                    column = pa.DictionaryArray.from_arrays(encoded.indices.cast(small), encoded.dictionary)
            columns.append(column)
        table = pa.RecordBatch.from_arrays(columns, names=self.table.schema.names)
        return Block(self.path, table, self.line_numbers, self.faults, is_text_file=self.is_text_file)

    def with_constants(self, values: dict[str, str | None]) -> "Block":
        """The block with further columns of one text each."""
        pa = require_package("pyarrow")
        table = self.table
        for name, value in values.items():
            if name not in table.schema.names:
                table = table.append_column(name, pa.array([value] * len(self), pa.string()))
        return Block(self.path, table, self.line_numbers, self.faults, is_text_file=self.is_text_file)

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

    def note_texts(
        self, wrong: Sequence[bool], texts: Sequence[str | None], codes: Array, name: str, reason: str
    ) -> None:
        """Note a reason for every row with a wrong one of the distinct texts (see `encode`), unless it has one."""
        if any(wrong):
            for row in np.flatnonzero(np.array(wrong)[codes]).tolist():
                self.faults.setdefault(row, f"{name} {(texts[codes[row]] or '')[:40]!r} {reason}")

    def numbers(self, name: str, *, noted: bool = True) -> Array:
        """`[N]` float64; NaN where a number is missing, or is none, which is `noted`."""
        pa = require_package("pyarrow")
        column = self.column(name)
        if is_text(column.type):
            numbers = fast_numbers(column)
            return self.parse_numbers(column, name, noted=noted) if numbers is None else numbers
        if pa.types.is_temporal(column.type) or pa.types.is_nested(column.type):
            what = f"cannot be read (it holds {column.type}): make it numbers, such as seconds"
            raise ValueError(f"{self.path}, column {name!r}: {what}")
        with as_value_error(self.path, name):
            if pa.types.is_boolean(column.type):
                column = column.cast("uint8")
            return column.cast("float64", safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)

    def parse_numbers(self, column: Any, name: str, *, noted: bool) -> Array:
        """Numbers written in any way that Python reads; each distinct text is parsed once."""
        texts, codes = encode(column)
        values = np.array([parse_number(text) for text in texts])
        if noted:
            words = [text if text is not None and is_word(text) else "" for text in texts]
            digits = [any(map(str.isdecimal, word)) for word in words]
            times = [has and not {"/", ":"}.isdisjoint(word) for has, word in zip(digits, words, strict=True)]
            self.note_texts(times, texts, codes, name, "is neither a number nor a date such as 2026-05-31")
            self.note_texts(digits, texts, codes, name, "is not a number such as 1200.5")
            self.note_texts([word != "" for word in words], texts, codes, name, "is not a number")
        return values[codes]

    def days(self, name: str) -> Array:
        """`[N]` float64: dates or times as days since 1970-01-01; NaN where one is missing, or is none (noted)."""
        column = self.column(name)
        if not is_text(column.type):
            return arrow_days(column, self.path, name) if is_date(column.type) else self.numbers(name)
        texts, codes = encode(column)
        values = np.array([parse_days(text) for text in texts])
        wrong = [not is_missing(text) and math.isnan(value) for text, value in zip(texts, values, strict=True)]
        self.note_texts(wrong, texts, codes, name, "is not a date such as 2026-05-31")
        return values[codes]

    def flags(self, name: str, *, noted: bool = True) -> Array:
        """`[N]` booleans; False where a value is neither true nor false, which is `noted`."""
        column = self.column(name)
        if not is_text(column.type):
            values = self.numbers(name, noted=noted)
            if not noted:
                return values == 1
            self.note(np.isnan(values), name, values, "is missing")
            self.note((values != 0) & (values != 1), name, values, "is neither true nor false")
            return values == 1
        given, codes = encode(column)
        texts = [(text or "").strip() for text in given]
        flags = [parse_flag(text) for text in texts]
        if noted:
            self.note(np.array([not text for text in texts], bool)[codes], name, None, "is missing")
            wrong = [flag is None for flag in flags]
            self.note_texts(wrong, texts, codes, name, "is neither true nor false")
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
        empty = self.is_text_file
        return np.array([None if empty and text == "" else text for text in texts], dtype=object)[codes]

    def identities(self, name: str) -> Array:
        """`[N]` numbers if the column holds numbers and none is missing, else `texts`: enough to tell ids apart."""
        pa = require_package("pyarrow")
        column = self.column(name)
        if pa.types.is_floating(column.type) and not column.null_count:
            found: Array = column.to_numpy(zero_copy_only=False)
            if not np.isnan(found).any():
                return found
        return self.texts(name)

    def lists(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """`[N, *shape]`, and `[N]` booleans: where there is a list. Lists of another shape are noted."""
        column = self.table.column(name)
        if require_package("pyarrow").types.is_null(column.type):  # JSON lines of a block without any list
            return np.zeros((len(column), *shape), np.float32), np.zeros(len(column), bool)
        if not is_list(column.type):
            raise ValueError(f"{self.path.name}: column {name!r} must hold lists, as in the first file")
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

    def holds_names(self, name: str) -> bool:
        """Whether the column holds texts or integers."""
        kind = self.column(name).type
        return is_text(kind) or require_package("pyarrow").types.is_integer(kind)

    def holds_dates(self, name: str) -> bool:
        """Whether the column is of a type of dates or times."""
        return is_date(self.column(name).type)

    def begins_with_date(self, name: str) -> bool:
        """Whether the first value is a date or time, as a text or by its type."""
        if self.holds_dates(name):
            return True
        return self.holds_text(name) and not math.isnan(parse_days(self.column(name)[0].as_py()))

    def holds_lists(self, name: str) -> bool:
        """Whether the column holds lists."""
        return is_list(self.table.column(name).type)

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
    """The number that a text is; true and false are 1 and 0, NaN stands for anything else."""
    if text is None or is_missing(text):
        return math.nan
    return float(text) if is_number(text) else BOOLEANS.get(text.strip().lower(), math.nan)


def is_word(text: str) -> bool:
    """Whether a text is neither a number, nor true or false, nor a missing value."""
    return not is_missing(text) and not is_number(text) and text.strip().lower() not in BOOLEANS


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


def parse_days(text: str | None) -> float:
    """Days since 1970-01-01 of a date or time in ISO 8601, in UTC unless it names its zone; NaN for anything else.

    >>> parse_days("1970-01-02T12:00"), parse_days("1970-01-03 00:00:00 UTC"), parse_days("2/1/1970")
    (1.5, 2.0, nan)
    """
    if text is None or not ISO_DATE.match(text):
        return math.nan
    try:
        found = datetime.datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError:
        return math.nan
    zoned = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return (zoned - EPOCH) / datetime.timedelta(days=1)


def parse_flag(text: str) -> bool | None:
    """True or False in one of the usual spellings, else None.

    >>> [parse_flag(text) for text in ("TRUE", "n", "1.0", "2")]
    [True, False, True, None]
    """
    number = float(text) if is_number(text) else None
    return number == 1 if number in (0, 1) else FLAGS.get(text.lower())


# Types and shapes


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


def plain(batch: Any) -> Any:
    """A record batch whose extension columns are what they store: tensors of fixed shape become nested lists."""
    pa = require_package("pyarrow")
    columns, changed = [], False
    for field, column in zip(batch.schema, batch.columns, strict=True):
        shape = tensor_shape(field)
        if isinstance(column.type, pa.BaseExtensionType):
            column, changed = column.storage, True
        if shape is not None and is_list(column.type):
            column, changed = nested_lists(column, shape), True
        if pa.types.is_string_view(column.type):
            column, changed = column.cast("string"), True
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names) if changed else batch


def tensor_shape(field: Any) -> tuple[int, ...] | None:
    """The shape of the tensors in a column of Arrow or Ray Data, whether or not their types are registered here."""
    shape = getattr(field.type, "shape", None)
    if shape is None and b"tensor" in (field.metadata or {}).get(b"ARROW:extension:name", b""):
        with contextlib.suppress(ValueError, RecursionError):
            shape = json.loads(field.metadata.get(b"ARROW:extension:metadata", b"null"))
            shape = shape.get("shape") if isinstance(shape, dict) else shape
    if not isinstance(shape, list | tuple) or not shape or any(type(size) is not int or size < 1 for size in shape):
        return None
    permutation = getattr(field.type, "permutation", None)
    if permutation and list(permutation) != sorted(permutation):
        raise ValueError(f"column {field.name!r}: tensors whose axes are permuted are not supported")
    return tuple(shape)


def nested_lists(column: Any, shape: tuple[int, ...]) -> Any:
    """Flat lists of tensors as lists of lists; those of another size stay flat, and are noted when they are read."""
    pa = require_package("pyarrow")
    if len(shape) == 1 or not has_shape(column, (math.prod(shape),))[column.is_valid().to_numpy(False)].all():
        return column
    inner = column.drop_null().flatten()
    for size in reversed(shape):
        inner = pa.FixedSizeListArray.from_arrays(inner, size)
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        inner = inner.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    return inner


def is_list(kind: Any) -> bool:
    types = require_package("pyarrow").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_text(kind: Any) -> bool:
    types = require_package("pyarrow").types
    return types.is_string(kind) or types.is_large_string(kind)


def is_date(kind: Any) -> bool:
    types = require_package("pyarrow").types
    return types.is_date(kind) or types.is_timestamp(kind)


def arrow_days(column: Any, path: Path, name: str) -> Array:
    """A column of dates or times as days since 1970-01-01; NaN where there is none."""
    with as_value_error(path, name):
        micros = column.cast(require_package("pyarrow").timestamp("us"), safe=False).cast("int64").cast("float64")
        found: Array = micros.fill_null(np.nan).to_numpy(zero_copy_only=False)
        return found / 86_400e6


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
