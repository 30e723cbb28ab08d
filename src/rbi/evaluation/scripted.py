"""Players that need no learning: at random, after a ball, across Freeway's road, to the key of Montezuma's Revenge."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.evaluation.comparison import game_name

Array = np.ndarray[Any, Any]
NO_OP, FIRE, RIGHT, LEFT = range(4)  # the first actions of both paddle games; in Pong right is up and left is down


class Mind(Protocol):
    """What decides: probabilities `[B, A]` of all actions in states `[B, stack, *frame]`. Every `rbi.Policy` is one."""

    def predict_proba(self, states: Any) -> Array: ...


class AtRandom:
    """All actions alike."""

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def predict_proba(self, states: Any) -> Array:
        return np.full((len(states), self.actions), 1 / self.actions)


class FollowsBall:
    """Moves the paddle to where the ball will be, in Breakout and Pong, as the two newest frames of 84 x 84 show it."""

    def __init__(self, env: str, actions: int) -> None:
        game = game_name(env)
        if game not in FOLLOWED:
            raise ValueError(f"follow: follows the ball in {' and '.join(FOLLOWED)}, not in {env}")
        self.choose, self.actions = FOLLOWED[game], actions

    def predict_proba(self, states: Any) -> Array:
        return np.eye(self.actions)[self.choose(np.asarray(states)[:, -2:])]


class Crosses:
    """Walks up Freeway's road, whatever comes."""

    UP = 1

    def __init__(self, env: str, actions: int) -> None:
        if game_name(env) != "Freeway":
            raise ValueError(f"cross: crosses the road of Freeway, not of {env}")
        self.actions = actions

    def predict_proba(self, states: Any) -> Array:
        return np.tile(np.eye(self.actions)[self.UP], (len(states), 1))


class Climbs:
    """Montezuma's Revenge: does what was done in one known game in the moment that looks most like now, and presses
    anything once the last of its moments has come."""

    WAY = (  # action*steps to the first key; found by searching the emulator's states
        "12*6 11*3 4*2 11*8 2*4 11*5 1*3 5*9 12*5 4*4 1*4 2*1 5*6 2*6 12*2 0*2 4*7 11*4 1*1 0*1 4*8 12*3 2*17 1*4 "
        "4*8 12*2"
    )

    def __init__(self, env: str, actions: int) -> None:
        if game_name(env) != "MontezumaRevenge":
            raise ValueError(f"climb: climbs to the key of Montezuma's Revenge, not in {env}")
        held = (map(int, part.split("*")) for part in self.WAY.split())
        way = [action for action, steps in held for _ in range(steps)]
        self.moments = self.played(env, way).reshape(len(way) + 1, -1).astype(np.float32)
        self.sizes = np.square(self.moments).sum(1)
        self.choices = np.vstack([np.eye(actions)[way], np.full(actions, 1 / actions)])

    @staticmethod
    def played(env: str, way: list[int]) -> Array:
        """The frames of the known game, one more than it has steps."""
        world = make(EnvConfig(env, noop_max=0), 1, 1)
        frames = [world.reset(0).obs[0].copy()]
        for action in way:
            world.send(np.array([action]))
            frames.append(world.recv().obs[0].copy())
        world.close()
        return np.stack(frames)

    def predict_proba(self, states: Any) -> Array:
        now = np.asarray(states)[:, -1].reshape(len(states), -1).astype(np.float32)
        apart = self.sizes - 2 * now @ self.moments.T  # squared distances, but for what all moments have in common
        chosen: Array = self.choices[apart.argmin(1)]
        return chosen


def breakout(frames: Any) -> Array:
    """Actions for Breakout: the ball is what shines between the bricks and the paddle; without one, serve."""
    field = frames[:, :, 38:75, 5:79] > 0  # [B, 2, 37, 74]: inside the walls
    seen: Array = field.any((2, 3))
    x, y = centre(field.any(2)), centre(field.any(3))
    paddle = centre(frames[:, 1, 76, 5:79] > 0)
    fall = y[:, 1] - y[:, 0]
    falls = seen.all(1) & (fall > 0.2)
    ahead = np.where(falls, (37 - y[:, 1]) / np.maximum(fall, 0.2), 0.0) * (x[:, 1] - x[:, 0])
    goal = 74 - np.abs(np.abs(x[:, 1] + ahead) % 148 - 74)  # walls send it back
    chosen = towards(goal - paddle, 2.0, RIGHT, LEFT)
    return np.where(seen[:, 1], chosen, FIRE)


def pong(frames: Any) -> Array:
    """Actions for Pong: the ball is brighter than all else between the paddles."""
    field, paddle = frames[:, 1, 14:77, 12:73] > 200, frames[:, 1, 14:77, 74] > 120
    chosen = towards(centre(field.any(2)) - centre(paddle), 2.0, LEFT, RIGHT)
    return np.where(field.any((1, 2)), chosen, NO_OP)


def towards(gap: Array, near: float, more: int, less: int) -> Array:
    """The action that makes a gap smaller; none where it is small."""
    return np.where(gap > near, more, np.where(gap < -near, less, NO_OP))


def centre(seen: Any) -> Array:
    """The middle of what is seen along the last axis of booleans; the middle of all where nothing is."""
    count = seen.sum(-1)
    return np.where(count > 0, (seen * np.arange(seen.shape[-1])).sum(-1) / np.maximum(count, 1), seen.shape[-1] / 2)


FOLLOWED: dict[str, Callable[[Array], Array]] = {"Breakout": breakout, "Pong": pong}
