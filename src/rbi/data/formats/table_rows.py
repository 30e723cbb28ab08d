"""Rows of a table as checked arrays. A row that cannot be used is noted with its reason; no row is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Self

import numpy as np

from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.table_files import Block
from rbi.data.formats.table_layout import Layout

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none"))
FLAGS = {"0": False, "1": True, "False": False, "True": True, "false": False, "true": True}


@dataclass(frozen=True)
class Rows:
    """N rows that follow each other in a file."""

    source: str
    lines: Array
    faults: Mapping[int, str]
    """Reasons, by line."""
    ids: Array | None
    steps: Array | None
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    life_lost: Array
    observations: Array
    final: Array | None
    """`[N, *frame]`: what was observed after the step, where `has_final`."""
    has_final: Array | None
    action_probs: Array | None
    action_masks: Array | None
    player: Array | None
    abandoned: Array | None
    from_source: Array | None
    """Where our writer says that the episode came from."""
    from_line: Array | None

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, which: slice | Array) -> Self:
        """Some of the rows."""
        arrays: dict[str, Any] = {k: v[which] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, **arrays)

    @classmethod
    def join(cls, pieces: Sequence[Self]) -> Self:
        """Rows one after the other, told as if they were all in the first file."""
        if len(pieces) == 1:
            return pieces[0]
        arrays = [k for k, v in vars(pieces[0]).items() if isinstance(v, np.ndarray)]
        joined: dict[str, Any] = {k: np.concatenate([vars(piece)[k] for piece in pieces]) for k in arrays}
        return replace(pieces[0], **joined)


@dataclass(frozen=True)
class Checker:
    """Makes checked rows of blocks."""

    layout: Layout
    spec: DatasetSpec
    categories: Mapping[str, Mapping[str, int]]
    """The texts of observed columns, numbered."""
    lists: tuple[int, ...] | None
    """The shape of the lists that are observations, if these are one column of lists."""
    mask_lists: bool
    """Whether masks are one column of lists."""

    def rows(self, block: Block) -> Rows:
        layout, size = self.layout, len(block.lines)
        no, yes = frozen(np.zeros(size, bool)), frozen(np.ones(size, bool))
        final = has_final = None
        if layout.final:
            final, has_final = (frozen(array) for array in self.final(block, layout.final))
        columns: dict[str, Any] = {
            "ids": self.ids(block, layout.episode) if layout.episode else None,
            "steps": self.whole(block, layout.step, 1 << 53) if layout.step else None,
            "actions": self.actions(block),
            "rewards": self.finite(block, layout.reward).astype(np.float32),
            "terminated": block.flags(layout.terminated) if layout.terminated else yes if layout.one_step else no,
            "truncated": block.flags(layout.truncated) if layout.truncated else no,
            "life_lost": block.flags(layout.life_lost) if layout.life_lost else no,
            "observations": self.observations(block),
            "action_probs": self.probs(block, layout.action_prob) if layout.action_prob else None,
            "action_masks": self.masks(block) if layout.action_mask else None,
            "player": block.texts(layout.player) if layout.player else None,
            "abandoned": block.flags(layout.abandoned) if layout.abandoned else None,
            "from_source": block.texts(layout.source) if layout.source else None,
            "from_line": block.numbers(layout.line) if layout.line else None,
        }
        for array in columns.values():
            if array is not None:
                frozen(array)
        if columns["action_masks"] is not None:
            legal = columns["action_masks"][np.arange(size), columns["actions"]]
            note(block, ~legal, "action", columns["actions"], "is not one of the possible ones (action_mask)")
        return Rows(
            source=block.source,
            lines=block.lines,
            faults={int(block.lines[row]): reason for row, reason in block.faults.items()},
            final=final,
            has_final=has_final,
            **columns,
        )

    def finite(self, block: Block, name: str) -> Array:
        """Numbers that float32 can hold; 0 where they are not."""
        values = block.numbers(name)
        note(block, np.isnan(values), name, values, "is missing")
        bad = ~(np.abs(values) <= np.finfo(np.float32).max)
        note(block, bad, name, values, "is not possible")
        return np.where(bad, 0, values)

    def whole(self, block: Block, name: str, below: int) -> Array:
        """Whole numbers from 0; 0 where they are not."""
        values = self.finite(block, name)
        odd, negative, large = values != np.floor(values), values < 0, values >= below
        note(block, odd, name, values, "is not a whole number")
        note(block, negative, name, values, "is negative")
        note(block, large, name, values, f"is too large: there are {below}, from 0 to {below - 1}")
        return np.where(odd | negative | large, 0, values).astype(np.int64)

    def actions(self, block: Block) -> Array:
        return self.whole(block, self.layout.action, self.spec.num_actions).astype(np.int32)

    def ids(self, block: Block, name: str) -> Array:
        """What tells episodes apart; a row without it counts to the episode before, which it spoils."""
        found = block.texts(name)
        if found.dtype != object:
            return found
        missing = absent(found)
        note(block, missing, name, found, "is missing")
        return found[np.maximum.accumulate(np.where(missing, 0, np.arange(len(found))))]

    def probs(self, block: Block, name: str) -> Array:
        given = self.finite(block, name)
        with np.errstate(over="ignore"):
            values = np.exp(given) if name == "action_logp" else given
        values = np.minimum(values, np.finfo(np.float32).max).astype(np.float32)
        bad = ~((values > 0) & (values <= 1))
        note(block, bad, name, given, "is not the probability of an action that was taken")
        return np.where(bad, np.float32(1), values)

    def masks(self, block: Block) -> Array:
        names = self.layout.action_mask
        if not self.mask_lists:
            return np.stack([block.flags(name) for name in names], 1)
        values, there = block.lists(names[0], (self.spec.num_actions,))
        note(block, ~there, names[0], None, "is missing")
        note(block, there & ((values != 0) & (values != 1)).any(1), names[0], None, "holds more than true and false")
        return values.astype(bool)

    def observations(self, block: Block) -> Array:
        names = self.layout.observations
        if self.lists:
            values, there = self.listed(block, names[0], self.lists)
            note(block, ~there, names[0], None, "is missing")
            return values
        found = np.zeros((len(block.lines), *self.spec.obs_shape), np.float32)
        at = 0
        for name in names:
            if name in self.categories:
                codes = self.codes(block, name)
                found[np.arange(len(codes)), at + codes] = 1
                at += len(self.categories[name])
            else:
                found[:, at] = self.finite(block, name)
                at += 1
        return found

    def codes(self, block: Block, name: str) -> Array:
        """The number of each row's text."""
        known, texts = self.categories[name], block.texts(name)
        codes = np.fromiter(map(known.get, texts.tolist(), repeat(-1)), np.int64, len(texts))
        note(block, codes < 0, name, texts, "is missing")
        return np.maximum(codes, 0)

    def final(self, block: Block, name: str) -> tuple[Array, Array]:
        """Observations after the step, and where there are any."""
        if self.lists:
            return self.listed(block, name, self.lists)
        there = ~np.isnan(block.numbers(name))
        values = np.where(there, block.numbers(name), 0)
        bad = np.abs(values) > np.finfo(np.float32).max
        note(block, bad, name, values, "is not possible")
        return np.where(bad, 0, values).astype(np.float32).reshape(-1, *self.spec.obs_shape), there

    def listed(self, block: Block, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Observations in lists, and where there are any."""
        values, there = block.lists(name, shape)
        if self.spec.is_image:
            if values.dtype != np.uint8:
                raise ValueError(
                    f"{block.source}: column {name!r} holds {values.dtype}, not bytes as in the first file"
                )
            return values, there
        values = values.reshape(-1, *self.spec.obs_shape)
        bad: Array = np.any(~(np.abs(values) <= np.finfo(np.float32).max), axis=1)
        note(block, bad, name, None, "holds a number that is not finite")
        if bad.any():
            values = np.where(bad[:, None], 0, values)
        return values.astype(np.float32, copy=False), there


def note(block: Block, bad: Array, name: str, values: Array | None, reason: str) -> None:
    """Say what is wrong with rows. What was said first about a row stays."""
    for row in np.flatnonzero(bad).tolist():
        value = None if values is None else values[row]
        told = "" if value is None or value != value else f" {value!r}" if isinstance(value, str) else f" {value:.10g}"
        block.faults.setdefault(row, f"{name}{told} {reason}")


def numbers_of_texts(texts: Sequence[str | None], name: str, faults: dict[int, str]) -> Array:
    """Numbers written as text; NaN where one is missing, or is none, which is noted."""
    try:
        if "_" not in "".join(texts):  # type: ignore[arg-type]
            return np.fromiter(map(float, texts), np.float64, len(texts))  # type: ignore[arg-type]
        return np.array([number(text, row, name, faults) for row, text in enumerate(texts)])
    except (TypeError, ValueError):
        return np.array([number(text, row, name, faults) for row, text in enumerate(texts)])


def number(text: str | None, row: int, name: str, faults: dict[int, str]) -> float:
    if text is None or text.strip().lower() in MISSING:
        return np.nan
    if is_number(text):
        return float(text)
    faults.setdefault(row, f"{name} {text[:40]!r} is not a number")
    return np.nan


def is_number(text: str) -> bool:
    """Whether people would read it as a number: Python also reads 1_0 as ten."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def flags_of_texts(texts: Sequence[str | None], name: str, faults: dict[int, str]) -> Array:
    """True and false written as text; false where it is neither, which is noted."""
    found = list(map(FLAGS.get, texts))  # type: ignore[arg-type]
    if None in found:
        for row in [row for row, flag in enumerate(found) if flag is None]:
            text = (texts[row] or "").strip()
            found[row] = FLAGS.get(text.capitalize(), FLAGS.get(text.removesuffix(".0")))
            if found[row] is None:
                told = f"{text[:40]!r} is neither true nor false" if text else "is missing"
                faults.setdefault(row, f"{name} {told}")
                found[row] = False
    return np.array(found, bool)


def flags_of_numbers(values: Array, name: str, block: Block) -> Array:
    """True and false written as 1 and 0; false where it is neither, which is noted."""
    note(block, np.isnan(values), name, values, "is missing")
    note(block, (values != 0) & (values != 1), name, values, "is neither true nor false")
    return values == 1


def absent(texts: Array) -> Array:
    """`[N]` booleans: where there is no text."""
    found: Array = texts == np.array(None)
    return found


def frozen(array: Array) -> Array:
    """Nobody writes to it from here on, so that episodes need no copies."""
    array.flags.writeable = False
    return array
