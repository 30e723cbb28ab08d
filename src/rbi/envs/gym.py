"""Any Gymnasium environment with discrete actions: vectors, pictures, or numbered states."""

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rbi.envs.types import EnvConfig, TimeStep
from rbi.returns import CONTINUES, TERMINATED, TRUNCATED


class GymVector:
    """Gymnasium environments, stepped one after the other when their results are asked for."""

    def __init__(self, world: EnvConfig, players: int, *, rendered: bool = False) -> None:
        self.world, self.players = world, players
        mode = "rgb_array" if rendered else None
        self.envs = [make_one(world.id, mode)]
        self.envs += [make_one(world.id, None) for _ in range(players - 1)]
        actions, seen = self.envs[0].action_space, self.envs[0].observation_space
        if not isinstance(actions, spaces.Discrete):
            raise ValueError(f"--env {world.id}: its actions are {actions}; only discrete ones can be learned")
        self.actions, self.lowest = int(actions.n), int(actions.start)
        self.numbered = isinstance(seen, spaces.Discrete)
        self.frame, self.stack = frame_of(world.id, seen)
        self.over = np.zeros(players, dtype=bool)
        self.moving = False
        self.pending = np.zeros(players, dtype=np.int64)

    def reset(self, seed: int | None) -> TimeStep:
        self.over[:] = False
        with self.named():
            frames = [
                self.read(env.reset(seed=None if seed is None else seed + i)[0]) for i, env in enumerate(self.envs)
            ]
        none = np.zeros(self.players)
        first = np.ones(self.players, dtype=bool)
        return TimeStep(np.stack(frames), first, none.astype(np.float32), none.astype(np.uint8))

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.moving = True
        self.pending[:] = actions

    def recv(self) -> TimeStep:
        self.moving = False
        frames = []
        first, reward = self.over.copy(), np.zeros(self.players, dtype=np.float32)
        end = np.full(self.players, CONTINUES, dtype=np.uint8)
        with self.named():
            for i, env in enumerate(self.envs):
                if first[i]:
                    observation, _ = env.reset()
                else:
                    observation, r, terminated, truncated, _ = env.step(self.pending[i] + self.lowest)
                    reward[i] = r
                    end[i] = TERMINATED if terminated else TRUNCATED if truncated else CONTINUES
                frames.append(self.read(observation))
        self.over = end != CONTINUES
        return TimeStep(np.stack(frames), first, reward, end)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Whatever goes wrong inside an environment is told in one line with its name."""
        try:
            yield
        except Exception as error:
            told = " ".join(str(error).split())
            raise ValueError(f"--env {self.world.id}: failed with {type(error).__name__}: {told}") from error

    def read(self, observation: Any) -> np.ndarray[Any, Any]:
        """One frame: a picture as it is, a vector in float32, a numbered state as a vector of zeros and a one."""
        if self.numbered:
            space: Any = self.envs[0].observation_space
            return np.eye(self.frame[0], dtype=np.float32)[int(observation) - int(space.start)]
        seen = np.asarray(observation)
        if len(self.frame) == 1:
            seen = seen.astype(np.float32).reshape(-1)
        if seen.shape != self.frame:
            raise ValueError(f"shows {seen.shape} where its space says {self.frame}")
        return seen

    def state(self) -> bytes | None:
        try:
            return pickle.dumps((self.envs, self.over, self.pending))
        except (pickle.PicklingError, TypeError, AttributeError):
            return None

    def restore(self, state: bytes) -> None:
        self.envs, self.over, self.pending = pickle.loads(state)
        self.moving = True

    def screen(self) -> np.ndarray[Any, Any]:
        """The first player's screen, `[H, W, 3]` bytes, for people to look at."""
        try:
            picture: Any = self.envs[0].render()
        except gymnasium.error.Error as error:
            raise ValueError(f"--env {self.world.id}: cannot be filmed; {error}") from None
        return np.asarray(picture, dtype=np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make_one(id_: str, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(id_, render_mode=render_mode) if render_mode else gymnasium.make(id_)
    except Exception as error:  # whatever its constructor raises
        told = " ".join(str(error).split())
        raise ValueError(f"--env {id_}: {told}") from None


def frame_of(id_: str, space: spaces.Space[Any]) -> tuple[tuple[int, ...], int]:
    """The shape of a frame, and how many make a state: four pictures, or one of anything else."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), 1
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        return space.shape, 4
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return (int(np.prod(space.shape)),), 1
    raise ValueError(f"--env {id_}: sees {space}; only pictures, vectors and numbered states can be learned from")
