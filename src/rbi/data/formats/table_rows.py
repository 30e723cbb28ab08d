"""Rows of a table as validated arrays. An invalid row is noted with its reason; no row is dropped."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rbi.data.episode import Array, DatasetSpec, Feature, bad_behavior_probs, differing_probs, feature_slices
from rbi.data.formats.table_columns import Block, encode
from rbi.data.formats.table_layout import Layout

MAX_ID = 1 << 53
MISSING_ID = np.iinfo(np.int64).min
FIRST_TEXT_ID = 1 << 62
StepKind = Literal["counts", "dates", "times"]
"""What a column of steps holds. Times are numbers: seconds since 1970, or another unit."""


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
    """The step number within the episode, or its time."""
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

    def begins(self, first_step: int | None) -> Array:
        """`[N - 1]` booleans: whether an episode begins with the next row, in a table whose flags tell them apart:
        after an end, with another player, where the steps count from `first_step` again or times go back."""
        found: Array = (self.steps["terminated"] | self.steps["truncated"])[:-1]
        if self.player is not None:
            found |= self.player[1:] != self.player[:-1]
        if self.numbers is not None:
            found |= (self.numbers[1:] == first_step) | (self.numbers[1:] < self.numbers[:-1])
        return found

    def sorted(self, ids: Array, numbers: Array | None = None) -> "Rows":
        """By ids, in the order in which they first appear, and by numbers, or in the order of the rows, within each."""
        _, firsts, which = np.unique(ids, return_index=True, return_inverse=True)
        order = np.lexsort((firsts[which],) if numbers is None else (numbers, firsts[which]))
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
    accept_unknown: bool
    """Whether texts that are no category of their column are encoded as zeros, and not rejected."""
    first_step: int
    """The number of the first step of an episode: 0 or 1."""
    steps_are: StepKind
    scattered: bool
    """Whether rows of an episode do not stand together, so that all rows have to be sorted."""

    def rows(self, block: Block, file: int, ids: dict[Any, int]) -> Rows:
        """The order of the checks decides which of several faults of a row is reported."""
        layout, size = self.layout, len(block)
        final, has_final = self.final(block, layout.final) if layout.final else (None, None)
        found: dict[str, Any] = {
            "ids": self.ids(block, layout.episode, ids) if layout.episode else None,
            "numbers": self.order(block, layout.step) if layout.step else None,
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
        if layout.is_done_column:
            steps["terminated"] = np.logical_and(steps["terminated"], np.logical_not(steps["truncated"]))
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
            self.note_illegal(block, steps["actions"], steps["action_masks"])
        return Rows(
            files=np.full(size, file, np.int32),
            lines=block.lines,
            faults=block.faults,
            steps=steps,
            final=final,
            has_final=has_final,
            **found,
        )

    def order(self, block: Block, name: str) -> Array:
        """The numbers of steps, or their times."""
        if self.steps_are == "counts":
            return self.integers(block, name, 1 << 53)
        return possible(block, name, block.days(name) if self.steps_are == "dates" else block.numbers(name))

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
        rule = ": actions are names, or numbers from 0" if name == self.layout.action else ""
        block.note(odd, name, values, f"is not a whole number{rule}")
        block.note(negative, name, values, f"is negative{rule}")
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

    def note_illegal(self, block: Block, actions: Array, masks: Array) -> None:
        """Note actions that are not legal, by their names and with the column that says so."""
        names, legal = self.layout.action_mask, masks[np.arange(len(actions)), actions]
        for action in np.unique(actions[~legal]).tolist():
            name = self.action_texts[action] if self.action_texts else action
            shown = np.full(len(actions), name, object)
            reason = f"is not one of the possible ones ({names[action if len(names) > 1 else 0]})"
            block.note(~legal & (actions == action), self.layout.action, shown, reason)

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


def encode_block(
    block: Block,
    features: Sequence[Feature],
    unknown: dict[str, Counter[str]] | None,
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
