"""An episode: what one player saw, did and got, from first frame to last. Everything else is derived from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rbi.returns import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

Array = np.ndarray[Any, Any]
MOST_ACTIONS = 1_000_000


@dataclass(frozen=True)
class DatasetSpec:
    """What all episodes of a data set share."""

    obs_shape: tuple[int, ...]
    """The shape of one observation: pictures `(height, width)` or `(height, width, channels)` of bytes, or vectors
    `(size,)` of float32."""
    num_actions: int
    """Actions are numbered from 0 to one less."""
    frame_stack: int = 1
    """How many observations, oldest first, make a state: 4 for Atari."""
    env: str = ""
    """The environment's Gymnasium id, if there is one."""
    has_action_probs: bool = False
    """Whether the probability of each action taken was logged."""
    has_action_masks: bool = False
    """Whether it was logged which actions were legal."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs_shape", tuple(int(size) for size in self.obs_shape))
        if len(self.obs_shape) not in (1, 2, 3) or min(self.obs_shape) < 1:
            raise ValueError(
                f"obs_shape = {self.obs_shape}: observations are vectors (size,) or pictures (height, width, ...)"
            )
        if not 1 <= self.num_actions <= MOST_ACTIONS:
            raise ValueError(f"num_actions = {self.num_actions}: must be at least 1 and at most {MOST_ACTIONS:,}")
        if self.frame_stack < 1:
            raise ValueError(f"frame_stack = {self.frame_stack}: must be at least 1")

    @property
    def is_image(self) -> bool:
        return len(self.obs_shape) > 1

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.is_image else np.float32)


@dataclass(frozen=True, eq=False)
class Episode:
    """T steps. Arrays are checked when it is made, and cannot be written to afterwards.

    Step t saw `observations[t]`, took `actions[t]` and got `rewards[t]`. Its three ends are three columns: the
    environment was over (`terminated`), the episode was cut off (`truncated`), a life was lost and the game went on
    (`life_lost`). The last step and no other is terminated or truncated; if it is both, the environment was over.
    """

    observations: Array
    """`[T + 1, *frame]`, or `[T, *frame]` where nobody kept the last one. Single frames; states stack them."""
    actions: Array
    """`[T]` integers."""
    rewards: Array
    """`[T]`, as the environment gave them."""
    terminated: Array
    """`[T]` booleans."""
    truncated: Array
    """`[T]` booleans."""
    life_lost: Array = None  # type: ignore[assignment]  # becomes an array when the episode is made
    """`[T]` booleans; none if not given. The step that ends the game loses no further life."""
    action_probs: Array | None = None
    """`[T]`: the probability with which whoever acted took its action."""
    action_masks: Array | None = None
    """`[T, A]` booleans: which actions could be taken."""
    abandoned: bool = False
    """Truncated because the player left, not by a time limit."""
    player: str = ""
    """Who played."""
    source: str = ""
    """Where it came from: a file, or a run."""
    line: int = 0
    """The line, row or episode of the source at which it begins, from 1; 0 if that means nothing."""

    def __post_init__(self) -> None:
        steps = len(np.atleast_1d(self.actions))
        if steps == 0:
            raise ValueError("an episode without steps")
        if not isinstance(self.player, str) or not isinstance(self.source, str):
            raise ValueError(f"player {self.player!r} and source {self.source!r}: must be texts")
        put = object.__setattr__
        put(self, "observations", frozen(np.asarray(self.observations)))
        put(self, "actions", whole_numbers(self.actions))
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
            put(self, "rewards", frozen(np.asarray(self.rewards, dtype=np.float32)))
        for name in ("terminated", "truncated", "life_lost"):
            given = getattr(self, name)
            put(
                self,
                name,
                frozen(np.zeros(steps, bool) if given is None else np.asarray(given).astype(bool, copy=False)),
            )
        if self.action_probs is not None:
            put(self, "action_probs", frozen(np.asarray(self.action_probs, dtype=np.float32)))
        if self.action_masks is not None:
            put(self, "action_masks", frozen(np.asarray(self.action_masks).astype(bool, copy=False)))
        self.check_shapes(steps)
        self.check_values(steps)

    def check_shapes(self, steps: int) -> None:
        if len(self.observations) not in (steps, steps + 1):
            raise ValueError(f"{len(self.observations)} observations for {steps} steps: must be as many, or one more")
        for name in ("actions", "rewards", "terminated", "truncated", "life_lost", "action_probs"):
            column = getattr(self, name)
            if column is not None and column.shape != (steps,):
                raise ValueError(f"{name} of shape {column.shape} for {steps} steps")
        if self.action_masks is not None and (self.action_masks.ndim != 2 or len(self.action_masks) != steps):
            raise ValueError(
                f"action_masks of shape {self.action_masks.shape} for {steps} steps: must be [steps, actions]"
            )
        kind = self.observations.dtype
        if self.observations.ndim not in (2, 3, 4) or kind != (np.uint8 if self.observations.ndim > 2 else np.float32):
            raise ValueError(
                f"observations of shape {self.observations.shape} and type {kind}: must be pictures of uint8 or "
                "vectors of float32"
            )

    def check_values(self, steps: int) -> None:
        refuse(~np.isfinite(self.rewards), self.rewards, "reward")
        refuse(self.actions < 0, self.actions, "action")
        if self.observations.dtype != np.uint8:
            refuse(~np.isfinite(self.observations).all(1), self.observations, "observation")
        ended = self.terminated | self.truncated
        if not ended[-1]:
            raise ValueError("an episode without end: its last step is neither terminated nor truncated")
        if ended[:-1].any():
            raise ValueError(f"step {int(ended.argmax())} of {steps} is marked as the end")
        if self.abandoned and (self.terminated[-1] or not self.truncated[-1]):
            raise ValueError("a player who quits leaves an episode truncated, not terminated")
        if self.life_lost[-1] and self.terminated[-1]:
            raise ValueError("the step that ends the game loses no further life")
        if self.action_probs is not None:
            refuse(~((self.action_probs > 0) & (self.action_probs <= 1)), self.action_probs, "logging probability")
        if self.action_masks is not None:
            width = self.action_masks.shape[1]
            refuse(self.actions >= width, self.actions, "action", f" among {width}")
            refuse(~self.action_masks[np.arange(steps), self.actions], self.actions, "illegal action")

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def ends(self) -> Array:
        """`[T]` uint8: the three ends as one of `returns.CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED`."""
        return one_column(self.terminated, self.truncated, self.life_lost)

    @property
    def score(self) -> float:
        """The sum of its rewards, not clipped and not discounted."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def has_final(self) -> bool:
        """Whether the observation after the last step was kept."""
        return len(self.observations) > len(self)

    def fits(self, spec: DatasetSpec) -> None:
        """Refuse an episode that does not belong to a data set of this kind."""
        if self.observations.shape[1:] != spec.obs_shape:
            raise ValueError(f"observations of shape {self.observations.shape[1:]}, where others have {spec.obs_shape}")
        refuse(self.actions >= spec.num_actions, self.actions, "action", f" among {spec.num_actions}")
        if spec.has_action_probs and self.action_probs is None:
            raise ValueError("no logging probabilities, where other episodes have them")
        if spec.has_action_masks and (self.action_masks is None or self.action_masks.shape[1] != spec.num_actions):
            raise ValueError(f"no action masks of {spec.num_actions} actions, where other episodes have them")


def one_column(terminated: Any, truncated: Any, life_lost: Any) -> Array:
    """The three ends as the codes of `returns`. A life lost in the very step of a cut ends its return: nothing of it is
    missing."""
    ends = np.where(truncated, TRUNCATED, CONTINUES)
    ends = np.where(life_lost, LIFE_LOST, ends)
    return np.where(terminated, TERMINATED, ends).astype(np.uint8)


def frozen(array: Array) -> Array:
    """The array itself if nobody can write to it, else a copy that nobody can write to."""
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def whole_numbers(values: Any) -> Array:
    given = np.asarray(values)
    if given.dtype.kind not in "iubf":
        raise ValueError(f"actions of type {given.dtype}: must be whole numbers")
    if given.dtype.kind == "f":
        refuse(given != np.floor(given), given, "action")  # NaN is refused here too
    refuse(np.abs(given) > MOST_ACTIONS, given, "action")
    return frozen(given.astype(np.int32, copy=False))


def refuse(bad: Any, values: Array, name: str, more: str = "") -> None:
    """Name the first bad value and its step."""
    if bad.any():
        where = np.flatnonzero(bad)
        raise ValueError(f"step {where[0]}: {name} {values[where[0]]} is not possible{more}")
