"""Columns of a table as features of observations: found by a scan of the table, or those of earlier data.

A dataset that was read from a table keeps its observed columns in `DatasetSpec.features`, and a policy those of its
training data in `Policy.columns`; later rows are encoded with them, so that every number keeps its place.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.episode import Array, Feature
from rbi.data.formats.reader import require_package
from rbi.data.formats.table_columns import Block, encode, is_missing, is_number, parse_days, parse_number, plain
from rbi.data.formats.table_layout import Layout
from rbi.data.formats.table_rows import MAX_ID, encode_block

MAX_CATEGORIES = 10_000
SPARSE_FROM, SPARSE_FACTOR = 1000, 10
"""Actions become 0, 1, ... if the largest one is at least this, and this many times their number."""
SAMPLED = 1000  # numbers of a block, for the median of a column
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
FRAME = Path("DataFrame")


class TableSchema(NamedTuple):
    """How the rows of a table were encoded: observed columns, and names of actions that are not their numbers."""

    features: tuple[Feature, ...] = ()
    action_names: tuple[str, ...] = ()


# Found by a scan: what must be known of the whole table before its rows can be converted


class Scan:
    """Actions, first step and texts of observed columns, collected block by block."""

    def __init__(self, layout: Layout, *, need_actions: bool, need_texts: bool, need_order: bool) -> None:
        self.layout, self.need_actions = layout, need_actions
        self.episode = layout.episode if need_order else None
        self.observed = layout.observations if layout.texts and need_texts else ()
        self.columns = tuple(dict.fromkeys([
            *([layout.action] if need_actions else []), *([layout.step] if layout.step else []),
            *([self.episode] if self.episode else []), *self.observed,
        ]))  # fmt: skip
        self.largest_action = -1
        self.action_ids: set[int] | None = set()
        """The different actions; None if there are very many."""
        self.first_step = 1
        self.numbers: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.booleans: Counter[str] = Counter()
        self.dates: Counter[str] = Counter()
        """How many words are dates."""
        self.missing: Counter[str] = Counter()
        """Rows without a number; `blank`: without a text. Texts such as NA are missing numbers, but texts."""
        self.blank: Counter[str] = Counter()
        self.samples: dict[str, list[Array]] = {name: [] for name in self.observed}
        """Some numbers, or dates as days, of each block, for the median."""
        self.texts: dict[str, set[str]] = {name: set() for name in (*self.observed, layout.action)}
        self.numeric_blocks: set[str] = set()
        self.seen: set[Any] = set()
        self.increasing: list[Array] = []
        self.highest = -np.inf
        self.last: Any = None
        self.file = 0
        self.returning: Counter[int] = Counter()
        """How often an episode's rows go on after those of another, by the step number there (at most 2)."""

    def add(self, block: Block, file: int = 0) -> None:
        if file != self.file and not self.layout.step:  # ids belong to their file
            self.seen.clear()
            self.increasing.clear()
            self.highest = -np.inf
        self.file = file
        if self.layout.step and block.begins_with_date(self.layout.step):
            raise ValueError(
                f"{block.path}: column {self.layout.step!r} holds times, and steps are counted from 0 or 1: sort the "
                f"rows by {self.layout.episode} and {self.layout.step}, and read them without a column of steps"
            )
        if self.need_actions:
            self.add_actions(block)
        if self.layout.step and self.first_step and (block.numbers(self.layout.step) == 0).any():
            self.first_step = 0
        for name in self.observed:
            self.count(block, name)
        if self.episode:
            self.add_order(block, self.episode)

    def add_order(self, block: Block, name: str) -> None:
        ids = block.identities(name)
        starts = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)
        named = ids[starts]
        if ids.dtype != object and named[0] >= self.highest and (named[1:] > named[:-1]).all():  # the usual case
            self.highest, self.last = named[-1], named[-1]
            self.increasing.append(named)
            return
        while self.increasing:
            self.seen.update(self.increasing.pop().tolist())
        self.highest = np.inf
        steps = None if self.layout.step is None else block.numbers(self.layout.step)
        for row, id_ in zip(starts.tolist(), named.tolist(), strict=True):
            if id_ is None or id_ == self.last:
                continue
            if id_ in self.seen:
                self.returning[2 if steps is None else int(np.nan_to_num(steps[row]).clip(0, 2))] += 1
            self.seen.add(id_)
            self.last = id_

    @property
    def scattered(self) -> int:
        """How often an episode goes on after another one; a second episode with the same id begins anew instead."""
        return sum(count for step, count in self.returning.items() if step > self.first_step)

    def add_actions(self, block: Block) -> None:
        name = self.layout.action
        actions = block.numbers(name, noted=False)  # texts may be names
        possible = np.unique(actions[(actions >= 0) & (actions < MAX_ID) & (actions == np.floor(actions))])
        self.largest_action = int(possible.max(initial=self.largest_action))
        if self.action_ids is not None:
            self.action_ids.update(possible.astype(np.int64).tolist())
            if len(self.action_ids) > MAX_CATEGORIES:
                self.action_ids = None
        if name not in self.observed:
            self.count(block, name)

    def count(self, block: Block, name: str) -> None:
        """Count the numbers, words and dates of an observed column."""
        if name in self.observed and block.holds_lists(name):
            raise ValueError(
                f"{block.path}: column {name!r} holds lists, which must be the only observed column; give each number "
                "a column"
            )
        if not block.holds_text(name):
            values = block.days(name)
            self.sample(name, values)
            self.numbers[name] += len(block)
            if block.holds_dates(name):
                self.words[name] += len(block)
                self.dates[name] += len(block)
                self.numbers[name] -= len(block)
            else:
                self.numeric_blocks.add(name)
            return
        many = len(self.texts[name]) > MAX_CATEGORIES  # too many to become categories anyway
        if many and not np.isnan(values := block.numbers(name, noted=False)).any():
            self.numbers[name] += len(block)
            self.sample(name, values)
            return
        texts, codes = encode(block.column(name))
        counts = np.bincount(codes, minlength=len(texts)).tolist()
        found = np.full(len(texts), np.nan)
        for place, (text, count) in enumerate(zip(texts, counts, strict=True)):
            self.missing[name] += count * is_missing(text)
            if not text:
                self.blank[name] += count
                continue
            found[place] = parse_number(text)
            if is_number(text):
                self.numbers[name] += count
            elif found[place] == found[place]:
                self.booleans[name] += count
            else:
                self.words[name] += count
                found[place] = parse_days(text)
                self.dates[name] += count * bool(found[place] == found[place])
            if len(self.texts[name]) <= MAX_CATEGORIES:
                self.texts[name].add(text)
        self.sample(name, found[codes], counted=True)

    def sample(self, name: str, values: Array, *, counted: bool = False) -> None:
        """Keep some of the numbers that are not missing; `counted`: missing ones were counted before."""
        if name not in self.samples:
            return
        there = values[np.isfinite(values)]
        self.missing[name] += 0 if counted else int(np.isnan(values).sum())
        self.samples[name].append(there[:: max(1, len(there) // SAMPLED)])

    def feature(self, path: Path, name: str) -> Feature:
        """How an observed column is encoded: as categories, or as a number with the median for missing ones."""
        if name not in self.observed:
            return Feature(name)
        is_date = 2 * self.dates[name] > self.num_words(name) > self.numbers[name]
        categories = () if is_date else self.categories(path, name)
        if categories:
            return Feature(name, ("", *categories) if self.blank[name] else categories)
        values = np.concatenate(self.samples[name]) if self.samples[name] else np.zeros(0)
        fill = float(np.float32(np.median(values))) if len(values) else 0.0
        return Feature(name, fill=fill, has_missing=self.missing[name] > 0, is_date=is_date)

    def rule_text(self, feature: Feature) -> str:
        """What is done about dates, decimal commas and missing values of a column; empty if it has none."""
        name = feature.name
        with_comma = [text for text in feature.categories if DECIMAL_COMMA.fullmatch(text)]
        if 2 * len(with_comma) > len(feature.categories):
            some = f"{len(feature.categories):,} texts such as {with_comma[0]!r}"
            return f"{name!r} has {some}, a category each: if they are numbers, write them with a point"
        dates = [f"dates in {name!r} become days since 1970-01-01"] if feature.is_date else []
        if feature.categories and "" in feature.categories:
            return f"{name!r} is missing in {self.blank[name]:,} rows, which have a category of their own"
        if feature.has_missing:
            rule = f"the median {feature.fill:g} takes their place, and {name + ' is missing'!r} is a further feature"
            dates.append(f"{name!r} is missing in {self.missing[name]:,} rows: {rule}")
        return ", ".join(dates)

    @property
    def lost_texts(self) -> bool:
        """Whether a column of categories has blocks of numbers: compacted ones, whose texts are not known any more."""
        return any(self.num_words(name) > self.numbers[name] for name in self.numeric_blocks)

    def num_words(self, name: str) -> int:
        """Rows of a column with a word. True and false are numbers, unless the column has other words."""
        return self.words[name] and self.words[name] + self.booleans[name]

    def categories(self, path: Path, name: str) -> tuple[str, ...]:
        """The sorted texts of a column with more words than numbers; empty for a column of numbers."""
        if self.num_words(name) <= self.numbers[name]:
            return ()
        if len(self.texts[name]) > MAX_CATEGORIES:
            raise ValueError(
                f"{path}: column {name!r} holds more than {MAX_CATEGORIES:,} different texts; name the "
                "columns to observe with --table.observations"
            )
        return tuple(sorted(self.texts[name]))

    def sparse_actions(self) -> tuple[int, ...]:
        """The different actions if they are few, with large numbers, such as those of articles; else empty."""
        ids = sorted(self.action_ids or ())
        many = self.largest_action >= SPARSE_FROM and len(ids) * SPARSE_FACTOR <= self.largest_action
        return tuple(ids) if many else ()


# Data frames, encoded as earlier data


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
