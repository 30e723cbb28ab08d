"""An episode: observations, actions and rewards from start to end. Transitions and states are derived from it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rbi.config import check_value
from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

Array = np.ndarray[Any, Any]
PROBS_TOLERANCE = 1e-3  # of logged probabilities: sums of rounded ones, and two columns that must agree
MAX_ACTIONS, MAX_STACK, MAX_NUMBERS = 1_000_000, 1000, 100_000_000  # more is almost certainly a damaged file


@dataclass(frozen=True)
class Feature:
    """An observed column of a table: a number, a date, or one of several texts, which is one-hot encoded."""

    name: str
    categories: tuple[str, ...] = ()
    """The texts, in the order of their places in the vector; empty for a number. "" stands for a missing one."""
    fill: float | None = None
    """What takes the place of a missing number: the median. None: a row without it cannot be used."""
    has_missing: bool = False
    """Whether numbers were missing: a further number is then 1 where they are, else 0."""
    is_date: bool = False
    """Whether numbers are days since 1970-01-01, from dates or times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        if self.fill is not None and not math.isfinite(self.fill):
            raise ValueError(f"feature {self.name!r}: fill = {self.fill}: must be a finite number")
        if not all(isinstance(text, str) for text in (self.name, *self.categories)):
            raise ValueError(f"feature {self.name!r}: its name and categories must be texts")
        if len(set(self.categories)) < len(self.categories):
            raise ValueError(f"feature {self.name!r}: a category occurs twice")

    @property
    def size(self) -> int:
        """How many numbers of an observation it has."""
        return len(self.categories) or 1 + self.has_missing

    @property
    def number_names(self) -> list[str]:
        """Names of its numbers: `column` and `column is missing`, or `column = text` for each category."""
        if self.categories:
            return [f"{self.name} = {text or '(missing)'}" for text in self.categories]
        return [self.name, *([f"{self.name} is missing"] if self.has_missing else [])]

    @staticmethod
    def from_json(values: Any) -> "tuple[Feature, ...]":
        """Features from what `dataclasses.asdict` made of them."""
        return tuple(value if isinstance(value, Feature) else Feature(**value) for value in values)


def feature_slices(features: Sequence[Feature]) -> Iterator[tuple[Feature, slice]]:
    """Each feature with the part of an observation that holds its numbers."""
    start = 0
    for feature in features:
        yield feature, slice(start, start + feature.size)
        start += feature.size


@dataclass(frozen=True)
class FeatureRange:
    """Smallest and largest value of each feature of vector observations in the training data, and their names."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    names: tuple[str, ...] = ()
    """Of the numbers of an observation (`Feature.number_names`)."""

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or len(self.names) not in (0, len(self.low)):
            raise ValueError("features: low, high and names must have the same length")
        if not all(-math.inf < low <= high < math.inf for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("features: low and high must be finite, and low at most high")

    def outside(self, obs: Array, columns: Sequence[Feature] = ()) -> Array:
        """`[B, D]` booleans: values further outside the range than it is wide, and columns in which no text is set.

        `columns`: those that the observations were made of, if they come from a table.

        >>> FeatureRange((0.0, 0.0), (1.0, 10.0)).outside(np.array([[2.0, -5.0], [2.1, 30.0]])).tolist()
        [[False, False], [True, True]]
        """
        middle, distance = self._bounds
        found: Array = np.abs(obs - middle) > distance
        for column, part in feature_slices(columns):
            if column.categories:
                found[:, part] |= (obs[:, part] == 0).all(1, keepdims=True)
        return found

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        """The middle of each range, and how far from it values may be; made once, not at each step of an evaluation."""
        low, high = np.array(self.low), np.array(self.high)
        return (low + high) / 2, 1.5 * (high - low) + 1e-6 * np.abs(high)

    def describe(self, number: int, value: float, columns: Sequence[Feature] = ()) -> str:
        """What is unusual about a value that is `outside`."""
        for column, part in feature_slices(columns):
            if column.categories and part.start <= number < part.stop and value == 0:
                return f"has none of the texts that {column.name!r} has in the training data"
        name = self.names[number] if self.names else f"feature {number}"
        return f"has {name!r} = {value:g}, where the training data has {self.low[number]:g} to {self.high[number]:g}"


@dataclass(frozen=True)
class DatasetSpec:
    """What all episodes of a dataset share."""

    obs_shape: tuple[int, ...]
    """Shape of one observation: images `(height, width)` or `(height, width, channels)` of uint8, or vectors
    `(size,)` of float32."""
    num_actions: int
    """Actions are 0 to num_actions - 1."""
    frame_stack: int = 1
    """Number of observations, oldest first, that are stacked to a state: 4 for Atari."""
    env: str = ""
    """Gymnasium id of the environment, if known; with the arguments that differ from those it is registered with, as in
    FrozenLake-v1(is_slippery=False)."""
    has_action_probs: bool = False
    """Whether the probability of each taken action was logged."""
    has_action_masks: bool = False
    """Whether the set of legal actions was logged."""
    has_behavior_probs: bool = False
    """Whether the behaviour policy's probabilities of all actions were logged."""
    features: tuple[Feature, ...] = ()
    """The columns that vector observations were made of, if they come from a table; none are named otherwise."""
    action_names: tuple[str, ...] = ()
    """What each action is called in the source, where that is not its number."""

    def __post_init__(self) -> None:
        kinds = {"obs_shape": tuple[int, ...], "num_actions": int, "frame_stack": int}
        kinds |= dict.fromkeys(("has_action_probs", "has_action_masks", "has_behavior_probs"), bool)
        for name, kind in kinds.items():
            check_value(name, getattr(self, name), kind)
        if not isinstance(self.env, str):
            raise ValueError(f"env is of type {type(self.env).__name__}: must be an id, such as CartPole-v1")
        object.__setattr__(self, "obs_shape", tuple(int(size) for size in self.obs_shape))
        if len(self.obs_shape) not in (1, 2, 3) or min(self.obs_shape) < 1:
            raise ValueError(
                f"obs_shape = {self.obs_shape}: observations are vectors (size,) or images (height, width, ...)"
            )
        if not 1 <= self.num_actions <= MAX_ACTIONS:
            raise ValueError(f"num_actions = {self.num_actions}: must be at least 1 and at most {MAX_ACTIONS:,}")
        if not 1 <= self.frame_stack <= MAX_STACK:
            raise ValueError(f"frame_stack = {self.frame_stack}: must be at least 1 and at most {MAX_STACK:,}")
        if math.prod(self.obs_shape) > MAX_NUMBERS:
            raise ValueError(f"obs_shape = {self.obs_shape}: observations have up to {MAX_NUMBERS:,} numbers")
        object.__setattr__(self, "features", Feature.from_json(self.features))
        object.__setattr__(self, "action_names", tuple(self.action_names))
        if self.features and (sum(feature.size for feature in self.features),) != self.obs_shape:
            raise ValueError(f"features: they do not have the numbers of observations of shape {self.obs_shape}")
        if self.action_names and len(self.action_names) != self.num_actions:
            raise ValueError(f"action_names: {len(self.action_names)} for {self.num_actions} actions")
        if not all(isinstance(name, str) for name in self.action_names):
            raise ValueError("action_names: must be texts")

    @property
    def is_image(self) -> bool:
        return len(self.obs_shape) > 1

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.is_image else np.float32)


@dataclass(frozen=True, eq=False)
class Episode:
    """T steps, validated on construction; the arrays are read-only.

    In step t, `actions[t]` was taken at `observations[t]` and gave `rewards[t]`. Three columns distinguish the kinds of
    ends: the environment terminated (`terminated`), the episode was cut off (`truncated`), a life was lost and the game
    continued (`life_lost`). Exactly the last step is terminated or truncated; if both are set, it terminated.
    """

    observations: Array
    """`[T + 1, *obs_shape]`, or `[T, *obs_shape]` without the final observation. Single frames; states stack them."""
    actions: Array
    """`[T]` integers."""
    rewards: Array
    """`[T]`, unclipped."""
    terminated: Array
    """`[T]` booleans."""
    truncated: Array
    """`[T]` booleans."""
    life_lost: Array = None  # type: ignore[assignment]  # becomes an array when the episode is made
    """`[T]` booleans, all False by default. A terminated step is not also a lost life."""
    action_probs: Array | None = None
    """`[T]`: the logged probability of each taken action (propensity)."""
    action_masks: Array | None = None
    """`[T, A]` booleans: the legal actions."""
    behavior_probs: Array | None = None
    """`[T, A]`: the logged probabilities of all actions, beta(. | s)."""
    abandoned: bool = False
    """Truncated because the player left, not by a time limit."""
    player: str = ""
    """Who played."""
    source: str = ""
    """Where it comes from: a file or a run."""
    line: int = 0
    """Line, row or episode of the source at which it begins, from 1; 0 if not applicable."""

    def __post_init__(self) -> None:
        steps = len(np.atleast_1d(self.actions))
        if steps == 0:
            raise ValueError("an episode without steps")
        if not isinstance(self.player, str) or not isinstance(self.source, str):
            raise ValueError(f"player {self.player!r} and source {self.source!r}: must be strings")
        if isinstance(self.line, bool) or not isinstance(self.line, int | np.integer) or not 0 <= self.line < 2**63:
            raise ValueError(f"line {self.line!r}: must be a whole number from 0")
        if not isinstance(self.abandoned, bool | np.bool_):
            raise ValueError(f"abandoned {self.abandoned!r}: must be true or false")
        put = object.__setattr__
        put(self, "observations", frozen(np.asarray(self.observations)))
        put(self, "actions", integer_actions(self.actions))
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused below
            put(self, "rewards", frozen(np.asarray(self.rewards, dtype=np.float32)))
        for name in ("terminated", "truncated", "life_lost"):
            given = getattr(self, name)
            put(self, name, frozen(np.zeros(steps, bool) if given is None else booleans(name, given)))
        if self.action_probs is not None:
            put(self, "action_probs", frozen(np.asarray(self.action_probs, dtype=np.float32)))
        if self.action_masks is not None:
            put(self, "action_masks", frozen(booleans("action_masks", self.action_masks)))
        if self.behavior_probs is not None:
            put(self, "behavior_probs", frozen(np.asarray(self.behavior_probs, dtype=np.float32)))
        self.check_shapes(steps)
        self.check_values(steps)

    def check_shapes(self, steps: int) -> None:
        if len(self.observations) not in (steps, steps + 1):
            raise ValueError(f"{len(self.observations)} observations for {steps} steps: must be as many, or one more")
        for name in ("actions", "rewards", "terminated", "truncated", "life_lost", "action_probs"):
            column = getattr(self, name)
            if column is not None and column.shape != (steps,):
                raise ValueError(f"{name} of shape {column.shape} for {steps} steps")
        for name in ("action_masks", "behavior_probs"):
            column = getattr(self, name)
            if column is not None and (column.ndim != 2 or len(column) != steps):
                raise ValueError(f"{name} of shape {column.shape} for {steps} steps: must be [steps, actions]")
        kind = self.observations.dtype
        if self.observations.ndim not in (2, 3, 4) or kind != (np.uint8 if self.observations.ndim > 2 else np.float32):
            raise ValueError(
                f"observations of shape {self.observations.shape} and type {kind}: must be images of uint8 or "
                "vectors of float32"
            )

    def check_values(self, steps: int) -> None:
        check(~np.isfinite(self.rewards), self.rewards, "reward")
        check(self.actions < 0, self.actions, "action")
        if self.observations.dtype != np.uint8:
            check(~np.isfinite(self.observations).all(1), self.observations, "observation")
        ended = self.terminated | self.truncated
        if not ended[-1]:
            raise ValueError("an episode without end: its last step is neither terminated nor truncated")
        if ended[:-1].any():
            raise ValueError(f"step {int(ended.argmax())} of {steps} is marked as the end")
        if self.abandoned and (self.terminated[-1] or not self.truncated[-1]):
            raise ValueError("an abandoned episode must be truncated, not terminated")
        if self.life_lost[-1] and self.terminated[-1]:
            raise ValueError("a terminated step cannot also be a lost life")
        if self.action_probs is not None:
            check(~((self.action_probs > 0) & (self.action_probs <= 1)), self.action_probs, "logging probability")
        if self.action_masks is not None:
            width = self.action_masks.shape[1]
            check(self.actions >= width, self.actions, "action", f" among {width}")
            check(~self.action_masks[np.arange(steps), self.actions], self.actions, "illegal action")
        if self.behavior_probs is not None:
            width = self.behavior_probs.shape[1]
            check(self.actions >= width, self.actions, "action", f" among {width}")
            check(bad_behavior_probs(self.behavior_probs), self.behavior_probs, "behavior_probs")
            taken = self.behavior_probs[np.arange(steps), self.actions]
            check(taken <= 0, self.actions, "action", ": its logged probability is 0")
            if self.action_probs is not None:
                differs = differing_probs(self.action_probs, taken)
                check(differs, self.action_probs, "logging probability", " beside behavior_probs that differ from it")

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def ends(self) -> Array:
        """`[T]` uint8: end codes of `rbi.steps` (CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED)."""
        return end_codes(self.terminated, self.truncated, self.life_lost)

    @property
    def score(self) -> float:
        """Undiscounted sum of the unclipped rewards."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def has_final(self) -> bool:
        """Whether the observation after the last step is present."""
        return len(self.observations) > len(self)

    def check_fits(self, spec: DatasetSpec) -> None:
        """Raise a ValueError if the episode does not match the spec."""
        if self.observations.shape[1:] != spec.obs_shape:
            raise ValueError(f"observations of shape {self.observations.shape[1:]}, where others have {spec.obs_shape}")
        check(self.actions >= spec.num_actions, self.actions, "action", f" among {spec.num_actions}")
        if spec.has_action_probs and self.action_probs is None:
            raise ValueError("no logging probabilities, where other episodes have them")
        if spec.has_action_masks and (self.action_masks is None or self.action_masks.shape[1] != spec.num_actions):
            raise ValueError(f"no action masks of {spec.num_actions} actions, where other episodes have them")
        if spec.has_behavior_probs and (
            self.behavior_probs is None or self.behavior_probs.shape[1] != spec.num_actions
        ):
            raise ValueError(f"no behavior_probs of {spec.num_actions} actions, where other episodes have them")


class RejectedEpisode(NamedTuple):
    """An episode that cannot be used: where it is and why."""

    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}{f', line {self.line}' if self.line else ''}: {self.reason}"


@dataclass
class Rejections:
    """How many episodes were rejected, and the first one of each kind."""

    rejected: int = 0
    reasons: dict[str, RejectedEpisode] = field(default_factory=dict)
    """The first of each kind, by its reason without numbers."""

    def reject(self, item: RejectedEpisode) -> None:
        self.rejected += 1
        self.reasons.setdefault(kind_of_reason(item.reason), item)

    def examples(self) -> list[dict[str, str]]:
        """The first rejected episode of each kind, as result.json keeps it."""
        return [{"kind": kind, "first": str(first)} for kind, first in self.reasons.items()]


def kind_of_reason(reason: str) -> str:
    """A reason without its numbers, so that equal ones count together.

    >>> kind_of_reason("step 3: action 19 is not possible")
    'step #: action # is not possible'
    """
    words = ["#" if any(c.isdigit() for c in word) else word for word in reason.replace(":", " :").split()]
    return " ".join(words).replace(" :", ":")


def bad_behavior_probs(probs: Array) -> Array:
    """`[T]` booleans: probabilities `[T, A]` that are negative, not finite or do not sum to 1."""
    return ~(probs >= 0).all(1) | ~(np.abs(probs.sum(1, dtype=np.float64) - 1) <= PROBS_TOLERANCE)


def differing_probs(one: Array, other: Array) -> Array:
    """`[T]` booleans: two probabilities of the same action that differ by more than rounding."""
    return np.abs(one - other) > PROBS_TOLERANCE * np.maximum(one, other)


def end_codes(terminated: Any, truncated: Any, life_lost: Any) -> Array:
    """The three kinds of ends as codes of `rbi.steps`. A life lost in a truncated step counts as LIFE_LOST: its
    return is complete."""
    ends = np.where(truncated, TRUNCATED, CONTINUES)
    ends = np.where(life_lost, LIFE_LOST, ends)
    return np.where(terminated, TERMINATED, ends).astype(np.uint8)


def frozen(array: Array) -> Array:
    """The array itself if it is read-only, else a read-only copy."""
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def as_array(values: Any) -> Array:
    """An array of a user's values, also of a tensor with a gradient or on a GPU."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError("a masked array, whose masked values would count: leave these steps out, or fill them")
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def booleans(name: str, values: Any) -> Array:
    """Booleans, also from 1 and 0. Anything else is refused: NumPy takes the text "False" and NaN for true."""
    given = as_array(values)
    if given.dtype == bool:
        return given
    try:
        numbers = given.astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if not ((numbers == 0) | (numbers == 1)).all():
        raise ValueError(f"{name}: must be true or false, or 1 or 0, in every step")
    return numbers == 1


def integer_actions(values: Any) -> Array:
    """Actions as read-only int32; floats must be integral."""
    given = as_array(values)
    if given.dtype.kind not in "iubf":
        raise ValueError(f"actions of type {given.dtype}: must be integers")
    if given.dtype.kind == "f":
        check(given != np.floor(given), given, "action")  # NaN is refused here too
    check((given < -MAX_ACTIONS) | (given > MAX_ACTIONS), given, "action")  # np.abs(-2**63) is negative
    return frozen(given.astype(np.int32, copy=False))


def check(bad: Any, values: Array, name: str, more: str = "") -> None:
    """Raise for the first bad value, naming its step."""
    if bad.any():
        where = np.flatnonzero(bad)
        raise ValueError(f"step {where[0]}: {name} {values[where[0]]} is not possible{more}")
