"""Encoding of table rows as observations, with the columns and categories of a dataset or a policy.

A dataset that was read from a table keeps its observed columns in `DatasetSpec.features`, and a policy those of its
training data in `Policy.columns`; later rows are encoded with them, so that every number keeps its place.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.episode import Array, Feature, feature_slices
from rbi.data.formats.reader import require_package
from rbi.data.formats.table_columns import Block, encode, plain

FRAME = Path("DataFrame")


class EncodedRows(NamedTuple):
    """Rows of a table as observations."""

    observations: Array
    """`[N, D]` float32."""
    unknown: dict[str, dict[str, int]]
    """Texts that are no category of their column, with the number of rows that have them; all places of such a column
    are 0."""
    blanks: dict[str, int]
    """Rows with a missing number, by column, where the training data never misses one; the column's `fill` is used."""


def is_frame(value: Any) -> bool:
    """Whether a value is a pandas or polars DataFrame or a pyarrow Table."""
    return type(value).__module__.split(".")[0] in ("pandas", "polars", "pyarrow")


def to_table(frame: Any) -> Any:
    """A pandas or polars DataFrame or a pyarrow Table as a pyarrow Table."""
    pa = require_package("pyarrow")
    if isinstance(frame, pa.Table):
        return frame
    has_columns = hasattr(frame, "columns")  # a Series has none
    if has_columns and hasattr(frame, "to_arrow"):
        return frame.to_arrow()
    if has_columns and type(frame).__module__.split(".")[0] == "pandas":
        try:
            return pa.Table.from_pandas(frame, preserve_index=False)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ValueError(f"DataFrame: cannot be converted ({' '.join(str(error).split())[:200]})") from None
    raise ValueError(f"{type(frame).__name__}: must be a pandas or polars DataFrame or a pyarrow Table")


def encode_rows(frame: Any, features: Sequence[Feature]) -> EncodedRows:
    """The rows of a DataFrame as the observations that these features describe; other columns are ignored.

    Raises ValueError for a missing column, and for the first row in which a number is none, or is missing although the
    feature has no `fill`. A text that is no category is reported in `unknown`.

    >>> import pyarrow as pa
    >>> rows = pa.table({"segment": ["new", "other"], "age": [30, 41]})
    >>> encode_rows(rows, [Feature("age"), Feature("segment", ("new", "old"))])
    EncodedRows(observations=array([[30.,  1.,  0.],
           [41.,  0.,  0.]], dtype=float32), unknown={'segment': {'other': 1}}, blanks={})
    """
    table = to_table(frame)
    for feature in features:
        if feature.name not in table.schema.names:
            raise ValueError(f"DataFrame: no column {feature.name!r}; its columns are {list(table.schema.names)[:30]}")
    parts, unknown, blanks, first = [], dict[str, Counter[str]](), Counter[str](), 0
    for batch in table.select([feature.name for feature in features]).to_batches():
        block = Block(FRAME, plain(batch), range(first, first + len(batch)))
        parts.append(encode_block(block, features, unknown, blanks))
        first += len(batch)
        if block.faults:
            row = min(block.faults)
            raise ValueError(f"DataFrame, row {block.line_numbers[row]}: {block.faults[row]}")
    empty = np.zeros((0, sum(feature.size for feature in features)), np.float32)
    found = {name: dict(texts) for name, texts in unknown.items()}
    return EncodedRows(np.concatenate([empty, *parts]), found, dict(blanks))


def encode_block(
    block: Block,
    features: Sequence[Feature],
    unknown: dict[str, Counter[str]] | None = None,
    blanks: Counter[str] | None = None,
) -> Array:
    """Observations of a block. What is wrong is noted in the block.

    Counted where it is given: in `unknown` texts that are no category, in `blanks` missing numbers of columns that the
    training data never misses.
    """
    found = np.zeros((len(block), sum(feature.size for feature in features)), np.float32)
    for feature, place in feature_slices(features):
        numbers = found[:, place]
        if feature.categories:
            codes = category_codes(block, feature, unknown, blank_allowed=True)
            known = codes >= 0
            numbers[np.flatnonzero(known), codes[known]] = 1
        else:
            values = block.days(feature.name) if feature.is_date else block.numbers(feature.name)
            missing = np.isnan(values)
            if feature.fill is not None and missing.any():
                values = np.where(missing, feature.fill, values)
                if feature.has_missing:
                    numbers[:, 1] = missing
                elif blanks is not None:
                    blanks[feature.name] += int(missing.sum())
            numbers[:, 0] = possible(block, feature.name, values)
    return found


def category_codes(
    block: Block,
    feature: Feature,
    unknown: dict[str, Counter[str]] | None = None,
    *,
    blank_allowed: bool = False,
) -> Array:
    """The place of each row's text among the categories; -1 where it is none, which is counted in `unknown` or noted
    (a missing text only unless `blank_allowed`)."""
    column = block.column(feature.name)
    texts, codes = encode(column if block.holds_text(feature.name) else column.cast("string"))
    places = {text: place for place, text in enumerate(feature.categories)}
    numbers = np.array([places.get(text or "", -1) for text in texts], np.int64)
    if (numbers >= 0).all():
        return numbers[codes]
    found = numbers[codes]
    if unknown is None:
        values = np.array([text or None for text in texts], dtype=object)[codes]
        missing = values == np.array(None)
        if not blank_allowed:
            block.note((found < 0) & missing, feature.name, None, "is missing")
        block.note(
            (found < 0) & ~missing, feature.name, values, f"is not one of the {len(places):,} texts of its column"
        )
    else:
        counts = np.bincount(codes, minlength=len(texts)).tolist()
        for text, number, count in zip(texts, numbers.tolist(), counts, strict=True):
            if number < 0 and count:
                unknown.setdefault(feature.name, Counter())[text or ""] += count
    return found


def finite_numbers(block: Block, name: str) -> Array:
    """Numbers that float32 can hold; 0 where they are not, which is noted."""
    return possible(block, name, block.numbers(name))


def possible(block: Block, name: str, values: Array) -> Array:
    """The values that float32 can hold; 0 where they are not, which is noted."""
    bad = ~(np.abs(values) <= np.finfo(np.float32).max)
    if not bad.any():
        return values
    block.note(np.isnan(values), name, values, "is missing")
    block.note(bad, name, values, "is not possible")
    return np.where(bad, 0, values)


class TableSchema(NamedTuple):
    """How the rows of a table were encoded: observed columns, and names of actions that are not their numbers."""

    features: tuple[Feature, ...] = ()
    action_names: tuple[str, ...] = ()
