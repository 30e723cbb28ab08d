"""Gymnasium environments with discrete actions; observations may be vectors, images or discrete states."""

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rbi.envs.types import EnvConfig, TimeStep
from rbi.returns import CONTINUES, TERMINATED, TRUNCATED

IMAGE_STACK = 4


class GymVector:
    """Gymnasium environments, stepped one after the other in `recv`."""

    def __init__(self, config: EnvConfig, num_envs: int, *, render: bool = False) -> None:
        """`render`: the first environment can be asked for its `screen`."""
        self.config, self.num_envs = config, num_envs
        self.envs = [make_one(config, render=render)]
        self.envs += [make_one(config) for _ in range(num_envs - 1)]
        action_space, obs_space = self.envs[0].action_space, self.envs[0].observation_space
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(f"--env {config.id}: its actions are {action_space}; only Discrete is supported")
        self.num_actions, self.lowest_action = int(action_space.n), int(action_space.start)
        self.is_discrete = isinstance(obs_space, spaces.Discrete)
        self.obs_shape, self.frame_stack = shape_and_stack(config.id, obs_space)
        self.over = np.zeros(num_envs, dtype=bool)
        self.pending = False
        self.actions = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seed: int | None) -> TimeStep:
        self.over[:] = False
        with self.errors_named():
            obs = [self.read(env.reset(seed=None if seed is None else seed + i)[0]) for i, env in enumerate(self.envs)]
        zeros = np.zeros(self.num_envs)
        is_first = np.ones(self.num_envs, dtype=bool)
        return self.finite(TimeStep(np.stack(obs), is_first, zeros.astype(np.float32), zeros.astype(np.uint8)))

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.pending = True
        self.actions[:] = actions

    def recv(self) -> TimeStep:
        self.pending = False
        obs = []
        is_first, reward = self.over.copy(), np.zeros(self.num_envs, dtype=np.float32)
        end = np.full(self.num_envs, CONTINUES, dtype=np.uint8)
        with self.errors_named():
            for i, env in enumerate(self.envs):
                if is_first[i]:
                    observation, _ = env.reset()
                else:
                    observation, r, terminated, truncated, _ = env.step(self.actions[i] + self.lowest_action)
                    reward[i] = r
                    end[i] = TERMINATED if terminated else TRUNCATED if truncated else CONTINUES
                obs.append(self.read(observation))
        self.over = end != CONTINUES
        return self.finite(TimeStep(np.stack(obs), is_first, reward, end))

    def finite(self, step: TimeStep) -> TimeStep:
        """The time step; raises ValueError if an observation or a reward is not finite in float32."""
        if not np.isfinite(step.reward).all() or not (step.obs.dtype == np.uint8 or np.isfinite(step.obs).all()):
            raise ValueError(f"--env {self.config.id}: gave a reward or an observation that is not a finite number")
        return step

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn an exception inside an environment into a ValueError of one line with the environment's id."""
        try:
            yield
        except Exception as error:
            message = " ".join(str(error).split())
            raise ValueError(f"--env {self.config.id}: failed with {type(error).__name__}: {message}") from error

    def read(self, observation: Any) -> np.ndarray[Any, Any]:
        """One frame: an image unchanged, a vector as flat float32, a discrete state one-hot encoded."""
        if self.is_discrete:
            space: Any = self.envs[0].observation_space
            return np.eye(self.obs_shape[0], dtype=np.float32)[int(observation) - int(space.start)]
        obs = np.asarray(observation)
        if len(self.obs_shape) == 1:
            with np.errstate(over="ignore"):  # infinite values are refused by `finite`
                obs = obs.astype(np.float32).reshape(-1)
        if obs.shape != self.obs_shape:
            raise ValueError(f"returned an observation of shape {obs.shape} where its space says {self.obs_shape}")
        return obs

    def state(self) -> bytes | None:
        try:
            return pickle.dumps((self.envs, self.over, self.actions))
        except (pickle.PicklingError, TypeError, AttributeError):
            return None

    def restore(self, state: bytes) -> None:
        self.envs, self.over, self.actions = pickle.loads(state)
        self.pending = True

    def screen(self) -> np.ndarray[Any, Any]:
        """The first environment's screen, uint8 `[H, W, 3]`."""
        try:
            image: Any = self.envs[0].render()
        except gymnasium.error.Error as error:
            raise ValueError(f"--env {self.config.id}: cannot be rendered; {error}") from None
        return np.asarray(image, dtype=np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make_one(config: EnvConfig, *, render: bool = False) -> gymnasium.Env[Any, Any]:
    """One Gymnasium environment, by its id or from the config's factory."""
    settings: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    try:
        env = config.factory(**settings) if config.factory else gymnasium.make(config.id, **settings)
    except Exception as error:  # whatever its constructor raises
        message = " ".join(str(error).split())
        raise ValueError(f"--env {config.id}: {message}") from None
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"--env {config.id}: the function made {type(env).__name__}, not a gymnasium.Env")
    return env


def shape_and_stack(id_: str, space: spaces.Space[Any]) -> tuple[tuple[int, ...], int]:
    """The shape of one frame, and the frames in one observation: 4 for images, 1 for anything else."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), 1
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        return space.shape, IMAGE_STACK
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return (int(np.prod(space.shape)),), 1
    raise ValueError(
        f"--env {id_}: its observations are {space}; only Box (vectors, images), MultiBinary and Discrete are supported"
    )
