"""Players that need no learning: at random, after the ball of a paddle game, across Freeway's road."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rbi.evaluation.scores import game_name

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
