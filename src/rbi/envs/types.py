"""The interface between agents and environments: `EnvConfig`, `TimeStep` and `VectorEnv`.

After the last step of an episode an environment shows its final observation; the action chosen there is ignored, and
the next observation is the first of a new episode (Gymnasium's "next-step" autoreset).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from rbi.config import Checked, Ge, Interval, check_fields, parse_env
from rbi.steps import NO_MASKS

EnvFactory = Callable[..., Any]
"""A function that makes one Gymnasium environment; it is called without arguments, or with render_mode="rgb_array"."""


class TimeStep(NamedTuple):
    """What `[N]` environments return: the newest frame only. `reward` and `end` belong to the step that led to it."""

    obs: np.ndarray[Any, Any]
    """`[N, *frame_shape]`: uint8 images or float32 vectors, without frame stacking."""
    is_first: np.ndarray[Any, Any]
    """bool `[N]`: whether `obs` is the first of an episode."""
    reward: np.ndarray[Any, Any]
    """float32 `[N]`, not clipped."""
    end: np.ndarray[Any, Any]
    """uint8 `[N]`: an end code of `rbi.steps`."""
    legal: np.ndarray[Any, Any] = NO_MASKS
    """bool `[N, A]`: the actions that are legal in `obs`, if the environments have action masks."""


@dataclass(frozen=True)
class EnvConfig(Checked):
    """Which environment, and the settings that apply to Atari games only."""

    id: str
    """A Gymnasium id with discrete actions, such as ALE/Breakout-v5 or CartPole-v1. It may have arguments of
    `gymnasium.make`, as in FrozenLake-v1(is_slippery=False), and wrappers=["NAME", ["NAME", {ARGUMENTS}]] of
    `gymnasium.wrappers` among them."""
    max_frames: Annotated[int, Ge(1)] = 108_000
    """Length limit of an Atari episode, in emulator frames (60 per second)."""
    repeat_action_probability: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Sticky actions: the probability that an Atari game repeats the previous action."""
    noop_max: Annotated[int, Ge(0)] = 30
    """An Atari episode starts with up to this many no-op actions."""
    factory: EnvFactory | None = None
    """Makes the environment in place of `gymnasium.make(id)`; from Python only."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.id.strip():
            raise ValueError("--env: name an environment, such as CartPole-v1")
        if self.factory is None and parse_env(self.id)[1] and self.is_atari:
            raise ValueError(f"--env {self.id}: Atari games take no arguments; they have settings of their own")

    @property
    def is_atari(self) -> bool:
        return self.factory is None and self.id.startswith("ALE/")

    @classmethod
    def of(cls, env: "str | EnvFactory | EnvConfig", **settings: Any) -> "EnvConfig":
        """The config of a Gymnasium id or of a function that makes an environment.

        >>> EnvConfig.of("CartPole-v1").id
        'CartPole-v1'
        """
        if isinstance(env, EnvConfig):
            return env
        if isinstance(env, str):
            return cls(env, **settings)
        if not callable(env):
            raise ValueError(
                f"env is of type {type(env).__name__}: several are made, so give a Gymnasium id or a function that "
                'makes an environment, such as lambda: gymnasium.make("CartPole-v1")'
            )
        return cls(getattr(env, "__name__", type(env).__name__), factory=env, **settings)


def id_from_file(id_: str, source: Any, advice: str = "name it yourself with --env (Python: env=)") -> str:
    """An environment id that a file names, not the user. Raises ValueError for `module:Id`, also among its arguments:
    Gymnasium would import the module, and thereby run code that the file chose; and for a wrapper that writes files.

    >>> id_from_file("CartPole-v1", "policy.json")
    'CartPole-v1'
    """
    try:
        name, arguments = parse_env(id_)
        imports = ":" in name or has_colon(arguments)
    except ValueError:  # not one environment: its colons may mean anything
        imports = ":" in id_
    if imports or "RecordVideo" in id_:
        does = "imports a module" if imports else "writes files"
        raise ValueError(f"{source} names the environment {id_!r}, which {does}; if you trust it, {advice}")
    return id_


def has_colon(value: Any) -> bool:
    """Whether a text with a colon is within a literal."""
    if isinstance(value, dict):
        return any(map(has_colon, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set):
        return any(map(has_colon, value))
    return ":" in str(value)


class VectorEnv(Protocol):
    """Several environments of one kind, stepped together. `send` and `recv` alternate; environments step in between."""

    num_envs: int
    num_actions: int
    obs_shape: tuple[int, ...]
    """Shape of one frame: `(H, W)` or `(H, W, C)` of an image, `(D,)` of a vector."""
    frame_shape: tuple[int, ...]
    """Shape of one frame as `TimeStep` has it: `obs_shape`, or that of a larger image to be shrunk."""
    frame_stack: int
    """Frames that make up one observation of a policy: 4 for images, 1 for vectors."""
    obs_scale: tuple[float, ...]
    """Factors that stretch numbers of vectors to [-1, 1] that their space confines to less; empty if there are none."""
    has_action_masks: bool
    """Whether time steps say which actions are legal."""
    pending: bool
    """Whether actions were sent whose results have not been received."""

    def reset(self, seed: int | None) -> TimeStep:
        """Start new episodes in all environments, and drop the result of a pending step. The first reset needs a seed;
        later ones without a seed continue the random streams, which is much faster for Atari games."""

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        """Start a step of every environment with actions `[N]`."""

    def recv(self) -> TimeStep:
        """The result of the step that `send` started."""

    def stop(self, env_index: int) -> None:
        """Leave an environment out until the next reset, where that saves time; its steps mean nothing from then on."""

    def state(self) -> dict[str, Any] | None:
        """What `restore` needs to continue between `send` and `recv`, as JSON can hold it; None if there is no way."""

    def restore(self, state: Any) -> bool:
        """Continue from a saved `state`; False if that fails, and `reset` has to start new episodes."""

    def close(self) -> None:
        """Release the environments."""
