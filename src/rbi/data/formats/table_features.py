"""Columns of a table as features of observations: found by a scan of the table, or those of earlier data.

A dataset that was read from a table keeps its observed columns in `DatasetSpec.features`, and a policy those of its
training data in `Policy.columns`; later rows are encoded with them, so that every number keeps its place.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.episode import Array, Feature
from rbi.data.formats.reader import require_package
from rbi.data.formats.table_columns import Block, encode, is_missing, is_number, parse_days, parse_number, plain
from rbi.data.formats.table_layout import EarlierTable, Layout, TableConfig
from rbi.data.formats.table_rows import MAX_ID, StepKind, encode_block

MAX_CATEGORIES = 10_000
SPARSE_FROM, SPARSE_FACTOR = 1000, 10
"""Actions become 0, 1, ... if the largest one is at least this, and this many times their number."""
SAMPLED = 1000  # numbers of a block, for the median of a column
NUMBER_OR_DATE = re.compile(
    r"[-+]?[$€£¥]?\s?\d[\d.,' ]*\s?[$€£¥%]?"  # 1.200,5 or $20 or 15%
    r"|(\d{1,2}([./-])\d{1,2}\2\d{2,4}|\d{4}([./-])\d{1,2}\3\d{1,2})(\D.*)?"  # 31.5.2026 or 5/31/26 10:00
)
UNIX_TIME = 1e8
"""Steps are not counted up to this: it is a day in 1973, in seconds."""
MAX_UNORDERED = 0.1
"""Rows that may be out of order before a table without a column of episodes is refused, as a share of ends."""
MANY_TEXTS = 20
"""More texts than this, of which most occur once, identify rows."""
FRAME = Path("DataFrame")


class TableSchema(NamedTuple):
    """How the rows of a table were encoded: observed columns, names of actions that are not their numbers, roles of its
    other columns, and what messages call the table."""

    features: tuple[Feature, ...] = ()
    action_names: tuple[str, ...] = ()
    has_action_masks: bool = False
    config: TableConfig = TableConfig()
    name: str = "the earlier data"

    @property
    def earlier(self) -> EarlierTable:
        """The table, like which another one is read."""
        observed = tuple(feature.name for feature in self.features)
        config = replace(self.config, observations=()) if observed else self.config  # which may be prefixes
        return EarlierTable(self.name, config, observed)


# Found by a scan: what must be known of the whole table before its rows can be converted


class ColumnScan:
    """What a column holds, counted block by block: rows with numbers, words or dates, and the different texts."""

    def __init__(self, name: str, *, is_observed: bool) -> None:
        self.name, self.is_observed = name, is_observed
        self.numbers = self.booleans = self.words = self.dates = 0
        """Rows; those with dates have words, too. Where texts are observed, those such as NA are no words."""
        self.missing = self.blank = 0
        """Rows without a number; without a text. Texts such as NA are missing numbers, but texts."""
        self.texts: set[str] = set()
        self.samples: list[Array] = []
        """Some numbers, or dates as days, of each block, for the median."""
        self.has_number_blocks = False

    def add(self, block: Block) -> None:
        if self.is_observed and block.holds_lists(self.name):
            raise ValueError(
                f"{block.path}: column {self.name!r} holds lists, which must be the only observed column; give each "
                "number a column"
            )
        if block.holds_text(self.name):
            self.add_texts(block)
            return
        values = block.days(self.name)
        self.missing += int(np.isnan(values).sum())
        self.sample(values)
        if block.holds_dates(self.name):
            self.words += len(block)
            self.dates += len(block)
        else:
            self.numbers += len(block)
            self.has_number_blocks = True

    def add_texts(self, block: Block) -> None:
        many = len(self.texts) > MAX_CATEGORIES  # too many to become categories anyway
        if many and not np.isnan(values := block.numbers(self.name, noted=False)).any():
            self.numbers += len(block)
            self.sample(values)
            return
        texts, codes = encode(block.column(self.name))
        counts = np.bincount(codes, minlength=len(texts)).tolist()
        found = np.full(len(texts), np.nan)
        for place, (text, count) in enumerate(zip(texts, counts, strict=True)):
            self.missing += count * is_missing(text)
            if not text:
                self.blank += count
                continue
            found[place] = parse_number(text)
            if is_number(text):
                self.numbers += count
            elif found[place] == found[place]:
                self.booleans += count
            elif not (self.is_observed and is_missing(text)):
                self.words += count
                found[place] = parse_days(text)
                self.dates += count * bool(found[place] == found[place])
            if len(self.texts) <= MAX_CATEGORIES:
                self.texts.add(text)
        self.sample(found[codes])

    def sample(self, values: Array) -> None:
        """Keep some of the numbers of an observed column that are not missing."""
        if self.is_observed:
            there = values[np.isfinite(values)]
            self.samples.append(there[:: max(1, len(there) // SAMPLED)])

    @property
    def num_words(self) -> int:
        """Rows with a word. True and false are numbers, unless the column has other words."""
        return self.words and self.words + self.booleans

    @property
    def is_text(self) -> bool:
        """Whether more rows have words than numbers."""
        return self.num_words > self.numbers

    def categories(self, path: Path) -> tuple[str, ...]:
        """The sorted texts of a column of texts; empty for a column of numbers."""
        if not self.is_text:
            return ()
        if len(self.texts) > MAX_CATEGORIES:
            raise ValueError(
                f"{path}: column {self.name!r} holds more than {MAX_CATEGORIES:,} different texts; name the "
                "columns to observe with --table.observations"
            )
        return tuple(sorted(self.texts))

    def feature(self, path: Path) -> Feature:
        """How the column is encoded: as categories, or as a number with the median for missing ones."""
        is_date = self.is_text and 2 * self.dates > self.num_words
        categories = () if is_date else self.categories(path)
        if categories:
            return Feature(self.name, ("", *categories) if self.blank else categories)
        values = np.concatenate(self.samples) if self.samples else np.zeros(0)
        fill = float(np.float32(np.median(values))) if len(values) else 0.0
        return Feature(self.name, fill=fill, has_missing=self.missing > 0, is_date=is_date)

    def rule_text(self, feature: Feature) -> str:
        """What is done about odd values, such as dates, prices and missing numbers; empty if there are none."""
        name, texts = self.name, [text for text in feature.categories if text]
        odd = [text for text in texts if NUMBER_OR_DATE.fullmatch(text)]
        if 2 * len(odd) > len(texts):
            some = next((text for text in odd if not is_number(text)), odd[0])
            return (
                f"{name!r} has {len(texts):,} texts such as {some!r}, a category each: if they are numbers or dates, "
                "write them like 1200.5 and 2026-05-31, and leave missing ones empty"
            )
        if len(texts) > MANY_TEXTS and 2 * len(texts) > self.num_words + self.numbers:
            return (
                f"{name!r} has {len(texts):,} different texts, most of them once, a category each: leave out a column "
                "that identifies rows"
            )
        if "" in feature.categories:
            return f"{name!r} is missing in {self.blank:,} rows, which have a category of their own"
        seen: dict[str, str] = {}
        for text in texts:
            if (other := seen.setdefault(text.strip().casefold(), text)) != text:
                return f"{name!r} has {other!r} and {text!r}, which are two categories"
        rules = [f"dates in {name!r} become days since 1970-01-01"] if feature.is_date else []
        if not (feature.categories or feature.is_date) and (alike := self.alike()):
            rules.append(f"{name!r} has numbers that are equal in 32 bits, such as {alike}: subtract the smallest one")
        if feature.has_missing and not any(map(len, self.samples)):
            rules.append(f"{name!r} is missing in all rows: leave it out")
        elif feature.has_missing:
            rule = f"the median {feature.fill:g} takes their place, and {name + ' is missing'!r} is a further feature"
            rules.append(f"{name!r} is missing in {self.missing:,} rows: {rule}")
        return ", ".join(rules)

    def alike(self) -> str:
        """Two different numbers that float32 cannot tell apart, if that is so of most; else empty."""
        values = np.unique(np.concatenate(self.samples)) if self.samples else np.zeros(0)
        with np.errstate(over="ignore"):
            kept, first = np.unique(values.astype(np.float32), return_index=True)
        if 2 * len(kept) > len(values):
            return ""
        at = int(np.setdiff1d(np.arange(len(values)), first)[0]) if len(values) else 0
        return f"{values[at - 1]:.17g} and {values[at]:.17g}" if at else ""


class OrderScan:
    """Whether the rows of each episode stand together, from the ids and step numbers of the rows."""

    def __init__(self, layout: Layout) -> None:
        self.episode, self.step = layout.episode, layout.step
        self.seen: set[Any] = set()
        self.increasing: list[Array] = []
        """Ids that rise from block to block, which are the usual case, until one does not."""
        self.highest = -np.inf
        self.last: Any = None
        self.returning: Counter[int] = Counter()
        """How often an episode's rows go on after those of another, by the step number there (at most 2)."""

    def begin_file(self) -> None:
        """Ids belong to their file where no steps are counted."""
        if not self.step:
            self.seen.clear()
            self.increasing.clear()
            self.highest = -np.inf

    def add(self, block: Block) -> None:
        if not self.episode:
            return
        ids = block.identities(self.episode)
        starts = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)
        named = ids[starts]
        if ids.dtype != object and named[0] >= self.highest and (named[1:] > named[:-1]).all():
            self.highest, self.last = named[-1], named[-1]
            self.increasing.append(named)
            return
        while self.increasing:
            self.seen.update(self.increasing.pop().tolist())
        self.highest = np.inf
        is_time = self.step is None or block.begins_with_date(self.step)
        steps = None if self.step is None or is_time else block.numbers(self.step, noted=False)
        for row, id_ in zip(starts.tolist(), named.tolist(), strict=True):
            if id_ is None or id_ == self.last:
                continue
            if id_ in self.seen:
                self.returning[2 if steps is None else math.ceil(np.nan_to_num(steps[row]).clip(0, 2))] += 1
            self.seen.add(id_)
            self.last = id_

    def scattered(self, first_step: int) -> int:
        """How often an episode goes on after another one; a second episode with the same id begins anew instead."""
        return sum(count for step, count in self.returning.items() if step > first_step)


class EndScan:
    """What the flags of ends say of the order of the rows, in a table without a column of episodes."""

    def __init__(self, layout: Layout) -> None:
        self.flags = [name for name in (layout.terminated, layout.truncated) if name]
        self.step, self.player, self.ids = layout.step, layout.player, layout.unused_ids
        self.columns = (*self.flags, self.step, self.player, *self.ids)
        self.last: dict[str | None, tuple[bool, float]] = {}
        """Whether the last row of each player so far is an end, and its step number or time."""
        self.latest: str | None = None
        """The player of the last row so far."""
        self.is_new_file = False
        self.ends = self.interleaved = self.backward = 0
        """Rows: those that are ends; those that go on with an episode after rows of another player, or with a smaller
        number than the row before."""
        self.uncounted = [0, 0]
        """Rows that do not have the next number, nor begin an episode with the first one, which is 0 or 1."""
        self.lowest, self.num_lowest = np.inf, 0
        self.changing: Counter[str] = Counter()
        """Rows that go on with an episode although an unused id changes, by its column."""
        self.repeating: set[str] = set()
        """Columns of ids that occur more than once."""

    def begin_file(self) -> None:
        self.is_new_file = not self.player

    def add(self, block: Block) -> None:
        over = np.logical_or.reduce([block.flags(name, noted=False) for name in self.flags])
        texts, codes = encode_ids(block, self.player) if self.player else ([None], np.zeros(len(block), np.int64))
        numbers = np.zeros(len(block))
        if self.step:
            is_date = block.begins_with_date(self.step)
            numbers = np.nan_to_num(block.days(self.step) if is_date else block.numbers(self.step, noted=False))
            self.count_lowest(numbers)
        self.ends += int(over.sum())
        order = np.argsort(codes, kind="stable")
        same = codes[order][1:] == codes[order][:-1]
        before, after = order[:-1][same], order[1:][same]  # consecutive rows of a player
        going_on = ~over[before]
        self.interleaved += int((going_on & (after != before + 1)).sum())
        self.add_numbers(going_on, numbers[before], numbers[after])
        for name in filter(block.holds_names, self.ids):
            known, ids = encode_ids(block, name)
            self.changing[name] += int((going_on & (ids[after] != ids[before])).sum())
            if len(known) < len(block):
                self.repeating.add(name)
        heads, tails = np.append(True, ~same), np.append(~same, True)
        for head, tail in zip(order[heads].tolist(), order[tails].tolist(), strict=True):
            name = texts[codes[head]]
            was_over, number = self.last.pop(name, (True, 0.0))
            self.interleaved += not was_over and (head > 0 or name != self.latest)
            if self.is_new_file:  # an episode may go on there, but times may go back
                number = min(number, float(numbers[head]))
            self.add_numbers(np.array([not was_over]), np.array([number]), numbers[[head]])
            self.last[name] = bool(over[tail]), float(numbers[tail])
        self.latest, self.is_new_file = texts[codes[-1]], False

    def add_numbers(self, going_on: Array, before: Array, after: Array) -> None:
        """Count the rows `after` those `before` that are not in order."""
        self.backward += int((going_on & (after < before)).sum())
        for first in (0, 1):
            self.uncounted[first] += int(((after != first) & ~(going_on & (after == before + 1))).sum())

    def count_lowest(self, numbers: Array) -> None:
        lowest = min(self.lowest, float(numbers.min()))
        self.num_lowest = int((numbers == lowest).sum()) + self.num_lowest * (lowest == self.lowest)
        self.lowest = lowest

    @property
    def counts_on(self) -> bool:
        """Whether the steps are not counted in each episode anew, but through the table, or through a player's rows."""
        return self.step is not None and self.num_lowest <= len(self.last) and self.num_lowest < self.ends

    def scattered(self, _first_step: int) -> int:
        return self.interleaved

    def check(self, path: Path, steps_are: StepKind, first_step: int, option: Callable[[str], str]) -> None:
        """Raise ValueError if the rows are in no order of time."""
        odd = self.uncounted[first_step] if steps_are == "counts" else self.backward
        if self.step and odd > MAX_UNORDERED * self.ends:
            raise ValueError(
                f"{path}: its rows are not in the order of {self.step!r} ({odd:,} rows do not follow the one before), "
                f"and no column identifies episodes: sort it by {self.step}, or name a column with "
                f"{option('episode')}, or one whose rows are an order of their own with {option('player')}"
            )

    def rule_text(self, option: Callable[[str], str]) -> str:
        """How the rows become episodes."""
        ends = " or ".join(map(repr, self.flags))
        whose = f"the rows of each {self.player!r}" if self.player else "its rows"
        odd = next((name for name in self.ids if self.changing[name] and name in self.repeating), "")
        warning = (
            f"; {odd!r} changes {self.changing[odd]:,} times before an end: if it says which rows belong together, "
            f"name it with {option('episode')} or {option('player')}"
        )
        nowhere = ", which no row is: drop these columns if every row is an episode"
        rule = f"no column identifies episodes: {whose} are cut after each end ({ends})"
        return rule + (warning if odd else "") + (nowhere if not self.ends else "")


def encode_ids(block: Block, name: str) -> tuple[list[str | None], Array]:
    """The distinct ids of a column as texts, and the index of each row's id."""
    column = block.column(name)
    return encode(column if block.holds_text(name) else column.cast("string"))


class Scan:
    """Actions, first step, texts of observed columns and order of the rows, collected block by block."""

    def __init__(self, layout: Layout, *, need_actions: bool, need_texts: bool, need_order: bool) -> None:
        self.layout, self.need_actions = layout, need_actions
        observed = layout.observations if layout.texts and need_texts else ()
        self.counted = {layout.action: ColumnScan(layout.action, is_observed=False)} if need_actions else {}
        self.counted |= {name: ColumnScan(name, is_observed=True) for name in observed}
        self.ends = EndScan(layout) if layout.cut_at_ends else None
        self.order = self.ends or (OrderScan(layout) if need_order else None)
        more = self.ends.columns if self.ends else (layout.episode if need_order else None,)
        needed = (layout.step, *more, *self.counted)
        self.columns = tuple(dict.fromkeys(name for name in needed if name))
        self.largest_action = -1
        self.action_ids: set[int] | None = set()
        """The different actions; None if there are very many."""
        self.first_step, self.lowest_step, self.has_dates = 1, np.inf, False
        self.later = self.fractions = 0
        """Rows: those with a step number above 0, and with one that is not whole."""
        self.rows = self.file = 0

    def add(self, block: Block, file: int = 0) -> None:
        self.rows += len(block)
        step = self.layout.step
        whole = block.without_faults()  # half a line has no action or category that is worth a place
        if self.need_actions:
            self.add_actions(whole)
        for column in self.counted.values():
            column.add(whole)
        if step and (self.has_dates or block.begins_with_date(step)):
            self.has_dates = True
        elif step:
            numbers = block.numbers(step, noted=False)
            self.later += int((numbers > 0).sum())
            self.fractions += int((np.isfinite(numbers) & (numbers != np.floor(numbers))).sum())
            self.first_step = int(self.first_step and not (numbers == 0).any())
            self.lowest_step = float(np.fmin.reduce(numbers, initial=self.lowest_step))
        if self.order:
            if file != self.file:
                self.order.begin_file()
            self.order.add(block)
        self.file = file

    def add_actions(self, block: Block) -> None:
        actions = block.numbers(self.layout.action, noted=False)  # texts may be names
        possible = np.unique(actions[(actions >= 0) & (actions < MAX_ID) & (actions == np.floor(actions))])
        self.largest_action = int(possible.max(initial=self.largest_action))
        if self.action_ids is not None:
            self.action_ids.update(possible.astype(np.int64).tolist())
            if len(self.action_ids) > MAX_CATEGORIES:
                self.action_ids = None

    def gaps_text(self) -> str:
        """What numbers of actions no row has, if 0 or half of them are among these; else empty."""
        found, largest = self.action_ids or {0}, self.largest_action
        if 0 in found and 2 * len(found) > largest + 1:
            return ""
        return (
            f"rows have {len(found):,} of the {largest + 1:,} actions 0 to {largest:,}, and the others get some "
            "probability all the same: number actions from 0 without gaps, or name them"
        )

    @property
    def steps_are(self) -> StepKind:
        """What the column of steps holds: counts from 0 or 1, or times that order the rows of an episode."""
        if self.has_dates:
            return "dates"
        counts_on = self.ends is not None and self.ends.counts_on
        is_time = UNIX_TIME <= self.lowest_step < np.inf or 0 < self.later <= 2 * self.fractions
        return "times" if counts_on or is_time else "counts"

    @property
    def scattered(self) -> int:
        """How often an episode goes on after another one."""
        return self.order.scattered(self.first_step) if self.order else 0

    @property
    def lost_texts(self) -> bool:
        """Whether a column of texts has blocks of numbers: compacted ones, whose texts are not known any more."""
        return any(column.has_number_blocks and column.is_text for column in self.counted.values())

    def action_names(self, path: Path) -> tuple[str, ...]:
        """The sorted names of actions that are texts; empty if they are numbers."""
        column = self.counted.get(self.layout.action)
        return column.categories(path) if column else ()

    def features(self, path: Path) -> tuple[Feature, ...]:
        """How the observed columns are encoded."""
        names = self.layout.observations
        return tuple(self.counted[name].feature(path) if name in self.counted else Feature(name) for name in names)

    def rule_texts(self, features: Sequence[Feature]) -> list[str]:
        """What is done about odd values of features, for those that have any."""
        texts = (self.counted[feature.name].rule_text(feature) for feature in features if feature.name in self.counted)
        return [text for text in texts if text]

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
    """A pandas or polars DataFrame or a pyarrow Table as a pyarrow Table; a named index of pandas is a column."""
    pa = require_package("pyarrow")
    if isinstance(frame, pa.Table):
        return frame
    has_columns = hasattr(frame, "columns")  # a Series has none
    if has_columns and hasattr(frame, "to_arrow"):
        return frame.to_arrow()
    if has_columns and type(frame).__module__.split(".")[0] == "pandas":
        try:
            index = [name for name in frame.index.names if name is not None and name not in frame.columns]
            return pa.Table.from_pandas(frame.reset_index(index) if index else frame, preserve_index=False)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
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
