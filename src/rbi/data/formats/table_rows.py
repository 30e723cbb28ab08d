"""Rows of a table as validated arrays. An invalid row is noted with its reason; no row is dropped."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.episode import Array, DatasetSpec, Feature, bad_behavior_probs, differing_probs
from rbi.data.formats.table_columns import Block, encode, is_missing, is_number, parse_days, parse_number
from rbi.data.formats.table_features import category_codes, encode_block, finite_numbers
from rbi.data.formats.table_layout import Layout

MAX_CATEGORIES = 10_000
MAX_ID = 1 << 53
SPARSE_FROM, SPARSE_FACTOR = 1000, 10
"""Actions become 0, 1, ... if the largest one is at least this, and this many times their number."""
SAMPLED = 1000  # numbers of a block, for the median of a column
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
MISSING_ID = np.iinfo(np.int64).min
FIRST_TEXT_ID = 1 << 62


# What must be known of the whole table before its rows can be converted


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


# Rows


@dataclass(frozen=True)
class Rows:
    """N consecutive rows as validated arrays."""

    files: Array
    """`[N]`: the index of each row's file."""
    lines: Array
    faults: Mapping[int, str]
    """Reasons, by row."""
    steps: dict[str, Array]
    """The columns of a dataset, `[N, ...]`."""
    ids: Array | None = None
    numbers: Array | None = None
    """The step number within the episode."""
    final: Array | None = None
    has_final: Array | None = None
    player: Array | None = None
    abandoned: Array | None = None
    source: Array | None = None
    """Where our writer says that the episode comes from."""
    line: Array | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def arrays(self) -> dict[str, Array]:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def take(self, start: int, stop: int) -> "Rows":
        faults = {row - start: reason for row, reason in self.faults.items() if start <= row < stop}
        steps = {name: column[start:stop] for name, column in self.steps.items()}
        return replace(self, faults=faults, steps=steps, **{k: v[start:stop] for k, v in self.arrays().items()})

    def sorted(self) -> "Rows":
        """By episode, in the order in which they first appear, and by step number within each."""
        assert self.ids is not None
        assert self.numbers is not None
        _, firsts, which = np.unique(self.ids, return_index=True, return_inverse=True)
        order = np.lexsort((self.numbers, firsts[which]))
        place = np.argsort(order)
        faults = {int(place[row]): reason for row, reason in self.faults.items()}
        steps = {name: column[order] for name, column in self.steps.items()}
        return replace(self, faults=faults, steps=steps, **{k: v[order] for k, v in self.arrays().items()})

    @staticmethod
    def join(pieces: list["Rows"]) -> "Rows":
        """Rows one after the other; the list is emptied."""
        if len(pieces) == 1:
            return pieces.pop()
        starts = np.cumsum([0, *(len(piece) for piece in pieces)]).tolist()
        faults = {
            start + row: reason
            for start, piece in zip(starts, pieces, strict=False)
            for row, reason in piece.faults.items()
        }
        arrays = [piece.arrays() for piece in pieces]
        joined: dict[str, Any] = {name: np.concatenate([one[name] for one in arrays]) for name in arrays[0]}
        columns = {name: np.concatenate([piece.steps[name] for piece in pieces]) for name in pieces[0].steps}
        pieces.clear()
        return Rows(faults=faults, steps=columns, **joined)


def number_ids(ids: Array, known: dict[Any, int]) -> Array:
    """Integers for ids: integers stay (large ones of uint64 wrap), texts are numbered as they appear, None is
    `MISSING_ID`."""

    def number(value: Any) -> int:
        if value is None:
            return MISSING_ID
        if isinstance(value, int):
            return (value + (1 << 63)) % (1 << 64) - (1 << 63)
        return known.setdefault(value, FIRST_TEXT_ID + len(known))

    return np.fromiter(map(number, ids.tolist()), np.int64, len(ids))


@dataclass(frozen=True)
class Checker:
    """Converts blocks to validated rows."""

    layout: Layout
    spec: DatasetSpec
    action_ids: Array | None
    """The actions' numbers in the table, sorted, where they are not 0, 1, ..."""
    action_texts: tuple[str, ...]
    """The actions' names in the table, where they are texts."""
    list_shape: tuple[int, ...] | None
    """The shape of lists if observations are one column of lists."""
    accept_unknown: bool = False
    """Whether texts that are no category of their column are encoded as zeros, and not rejected."""

    def rows(self, block: Block, file: int, ids: dict[Any, int]) -> Rows:
        """The order of the checks decides which of several faults of a row is reported."""
        layout, size = self.layout, len(block)
        final, has_final = self.final(block, layout.final) if layout.final else (None, None)
        found: dict[str, Any] = {
            "ids": self.ids(block, layout.episode, ids) if layout.episode else None,
            "numbers": self.integers(block, layout.step, 1 << 53) if layout.step else None,
        }
        over = np.ones(size, bool) if layout.one_step else np.zeros(size, bool)
        steps = {
            "actions": self.actions(block).astype(np.int32),
            "rewards": finite_numbers(block, layout.reward).astype(np.float32),
            "terminated": block.flags(layout.terminated) if layout.terminated else over,
            "truncated": block.flags(layout.truncated) if layout.truncated else np.zeros(size, bool),
            "life_lost": block.flags(layout.life_lost) if layout.life_lost else np.zeros(size, bool),
            "observations": self.observations(block),
        }
        if layout.action_prob:
            steps["action_probs"] = self.probabilities(block, layout.action_prob)
        if layout.action_mask:
            steps["action_masks"] = self.masks(block)
        if layout.behavior_probs:
            steps["behavior_probs"] = self.behavior_probs(block, steps)
        found["player"] = block.texts(layout.player) if layout.player else None
        found["abandoned"] = block.flags(layout.abandoned) if layout.abandoned else None
        found["source"] = block.texts(layout.source) if layout.source else None
        found["line"] = block.numbers(layout.line) if layout.line else None
        if layout.action_mask:
            legal = steps["action_masks"][np.arange(size), steps["actions"]]
            block.note(~legal, "action", steps["actions"], "is not one of the possible ones (action_mask)")
        return Rows(
            files=np.full(size, file, np.int32),
            lines=block.lines,
            faults=block.faults,
            steps=steps,
            final=final,
            has_final=has_final,
            **found,
        )

    def actions(self, block: Block) -> Array:
        """Actions 0, 1, ...; 0 where there is none."""
        name = self.layout.action
        if self.action_texts:
            return np.maximum(category_codes(block, Feature(name, self.action_texts)), 0)
        if self.action_ids is None:
            return self.integers(block, name, self.spec.num_actions)
        values = self.integers(block, name, MAX_ID)
        places = np.searchsorted(self.action_ids, values).clip(max=len(self.action_ids) - 1)
        block.note(self.action_ids[places] != values, name, values, "is not one of the known actions")
        return places

    def integers(self, block: Block, name: str, below: int) -> Array:
        """Integers from 0; 0 where they are not."""
        values = finite_numbers(block, name)
        odd, negative, large = values != np.floor(values), values < 0, values >= below
        block.note(odd, name, values, "is not a whole number")
        block.note(negative, name, values, "is negative")
        block.note(large, name, values, f"is too large: there are {below}, from 0 to {below - 1}")
        return np.where(odd | negative | large, 0, values).astype(np.int64)

    def ids(self, block: Block, name: str, known: dict[Any, int]) -> Array:
        """Episode ids as integers, texts numbered. A row without id counts to the episode before, which it spoils."""
        found = block.texts(name)
        if found.dtype != object:
            return found.astype(np.int64)
        block.note(found == np.array(None), name, found, "is missing")
        return number_ids(found, known)

    def probabilities(self, block: Block, name: str) -> Array:
        given = finite_numbers(block, name)
        with np.errstate(over="ignore"):
            values = np.exp(given) if name == "action_logp" else given
        values = np.minimum(values, np.finfo(np.float32).max).astype(np.float32)
        bad = ~((values > 0) & (values <= 1))
        block.note(bad, name, given, "is not the probability of an action that was taken")
        return np.where(bad, np.float32(1), values)

    def masks(self, block: Block) -> Array:
        names = self.layout.action_mask
        if not block.holds_lists(names[0]):
            return np.stack([block.flags(name) for name in names], 1)
        values, present = block.lists(names[0], (self.spec.num_actions,))
        block.note(~present, names[0], None, "is missing")
        wrong = ((values != 0) & (values != 1)).any(1)
        block.note(present & wrong, names[0], None, "holds more than true and false")
        return values.astype(bool)

    def behavior_probs(self, block: Block, steps: dict[str, Array]) -> Array:
        """Probabilities of all actions. Noted: those that do not sum to 1 or contradict the taken action."""
        names, actions = self.layout.behavior_probs, steps["actions"]
        if block.holds_lists(names[0]):
            values, present = block.lists(names[0], (self.spec.num_actions,))
            block.note(~present, names[0], None, "is missing")
        else:
            values = np.stack([finite_numbers(block, name) for name in names], 1)
        values = values.astype(np.float32)
        block.note(np.isnan(values).any(1), names[0], None, "holds a number that is missing")
        bad = bad_behavior_probs(values)
        block.note(bad, names[0], values.sum(1), "is the sum of the probabilities of all actions, which must be 1")
        taken = values[np.arange(len(values)), actions]
        block.note(~bad & ~(taken > 0), names[0], taken, "is the probability of the action that was taken")
        if "action_probs" in steps:
            differs = ~bad & differing_probs(steps["action_probs"], taken)
            block.note(differs, names[0], taken, f"is the taken action's, which {self.layout.action_prob} contradicts")
        return values

    def observations(self, block: Block) -> Array:
        names = self.layout.observations
        if self.list_shape:
            values, present = self.lists(block, names[0], self.list_shape)
            block.note(~present, names[0], None, "is missing")
            return values
        return encode_block(block, self.spec.features, {} if self.accept_unknown else None)

    def final(self, block: Block, name: str) -> tuple[Array, Array]:
        """Observations after the step, and where there are any."""
        if self.list_shape:
            return self.lists(block, name, self.list_shape)
        present = ~np.isnan(block.numbers(name))
        values = np.where(present, block.numbers(name), 0)
        bad = np.abs(values) > np.finfo(np.float32).max
        block.note(bad, name, values, "is not possible")
        return np.where(bad, 0, values).astype(np.float32).reshape(-1, *self.spec.obs_shape), present

    def lists(self, block: Block, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Observations in lists, and where there are any."""
        values, present = block.lists(name, shape)
        if self.spec.is_image:
            if values.dtype != np.uint8:
                raise ValueError(
                    f"{block.path.name}: column {name!r} holds {values.dtype}, not bytes as in the first file"
                )
            return values, present
        values = values.reshape(-1, *self.spec.obs_shape)
        bad: Array = np.any(~(np.abs(values) <= np.finfo(np.float32).max), axis=1)
        block.note(bad, name, None, "holds a number that is not finite")
        if bad.any():
            values = np.where(bad[:, None], 0, values)
        return values.astype(np.float32, copy=False), present
