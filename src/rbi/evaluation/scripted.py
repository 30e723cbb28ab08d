"""Players that need no learning: one that acts at random, and one that follows the ball of a paddle game."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

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
    """Moves the paddle to where the ball is, in Breakout and Pong, from the newest frame of 84 x 84 grey pixels."""

    def __init__(self, env: str, actions: int) -> None:
        game = env.removeprefix("ALE/").rsplit("-v", 1)[0]
        if game not in FOLLOWED:
            raise ValueError(f"--players follow: follows the ball in {' and '.join(FOLLOWED)}, not in {env}")
        self.choose, self.actions = FOLLOWED[game], actions

    def predict_proba(self, states: Any) -> Array:
        return np.eye(self.actions)[self.choose(np.asarray(states)[:, -1])]


def breakout(frames: Array) -> Array:
    """Actions for Breakout: the ball is what shines between the bricks and the paddle; without one, serve."""
    field, paddle = frames[:, 38:74, 4:80] > 0, frames[:, 76, 4:80] > 0
    ball, where = centre(field.any(1)), centre(paddle)
    chosen = np.where(ball > where + 1.5, RIGHT, np.where(ball < where - 1.5, LEFT, NO_OP))
    return np.where(field.any((1, 2)), chosen, FIRE)


def pong(frames: Array) -> Array:
    """Actions for Pong: the ball is brighter than all else between the paddles."""
    field, paddle = frames[:, 14:77, 12:73] > 200, frames[:, 14:77, 74] > 120
    ball, where = centre(field.any(2)), centre(paddle)
    chosen = np.where(ball < where - 2, RIGHT, np.where(ball > where + 2, LEFT, NO_OP))
    return np.where(field.any((1, 2)), chosen, NO_OP)


def centre(seen: Any) -> Array:
    """The middle of what is seen, `[B]` from `[B, N]` booleans; the middle of all where nothing is."""
    places = np.arange(seen.shape[1])
    count = seen.sum(1)
    return np.where(count > 0, (seen * places).sum(1) / np.maximum(count, 1), seen.shape[1] / 2)


FOLLOWED: dict[str, Callable[[Array], Array]] = {"Breakout": breakout, "Pong": pong}
