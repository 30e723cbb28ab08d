"""Scripted policies, which need no training: random, paddle games, Freeway, the first key of Montezuma's Revenge."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.evaluation.comparison import game_name

Array = np.ndarray[Any, Any]
NO_OP, FIRE, RIGHT, LEFT = range(4)  # the first actions of both paddle games; in Pong right is up and left is down


class ActionModel(Protocol):
    """Anything that predicts action probabilities `[B, A]` in states `[B, stack, *frame]`; every `rbi.Policy` does."""

    def predict_proba(self, states: Any) -> Array: ...


class RandomPolicy:
    """The uniform policy."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def predict_proba(self, states: Any) -> Array:
        return np.full((len(states), self.num_actions), 1 / self.num_actions)


class FollowBallPolicy:
    """Breakout and Pong: moves the paddle to where the ball will be, computed from the two newest 84 x 84 frames."""

    def __init__(self, env: str, num_actions: int) -> None:
        game = game_name(env)
        if game not in PADDLE_GAMES:
            raise ValueError(f"follow: plays {' and '.join(PADDLE_GAMES)}, not {env}")
        self.choose, self.num_actions = PADDLE_GAMES[game], num_actions

    def predict_proba(self, states: Any) -> Array:
        return np.eye(self.num_actions)[self.choose(np.asarray(states)[:, -2:])]


class CrossRoadPolicy:
    """Freeway: always moves up."""

    UP = 1

    def __init__(self, env: str, num_actions: int) -> None:
        if game_name(env) != "Freeway":
            raise ValueError(f"cross: plays Freeway, not {env}")
        self.num_actions = num_actions

    def predict_proba(self, states: Any) -> Array:
        return np.tile(np.eye(self.num_actions)[self.UP], (len(states), 1))


class ReachKeyPolicy:
    """Montezuma's Revenge: nearest-neighbour replay of one known episode that reaches the first key.

    It takes the action of the known frame that is nearest to the newest one; after the last known frame, actions are
    uniform.
    """

    PLAN = (  # action*steps to the first key, found by a search over emulator states
        "12*6 11*3 4*2 11*8 2*4 11*5 1*3 5*9 12*5 4*4 1*4 2*1 5*6 2*6 12*2 0*2 4*7 11*4 1*1 0*1 4*8 12*3 2*17 1*4 "
        "4*8 12*2"
    )

    def __init__(self, env: str, num_actions: int) -> None:
        if game_name(env) != "MontezumaRevenge":
            raise ValueError(f"climb: plays Montezuma's Revenge, not {env}")
        repeats = (map(int, part.split("*")) for part in self.PLAN.split())
        plan = [action for action, steps in repeats for _ in range(steps)]
        self.frames = self.rollout(env, plan).reshape(len(plan) + 1, -1).astype(np.float32)
        self.squares = np.square(self.frames).sum(1)
        self.probs = np.vstack([np.eye(num_actions)[plan], np.full(num_actions, 1 / num_actions)])

    @staticmethod
    def rollout(env: str, plan: list[int]) -> Array:
        """Frames of the known episode, one more than it has steps."""
        vector_env = make(EnvConfig(env, noop_max=0), 1, 1)
        frames = [vector_env.reset(0).obs[0].copy()]
        for action in plan:
            vector_env.send(np.array([action]))
            frames.append(vector_env.recv().obs[0].copy())
        vector_env.close()
        return np.stack(frames)

    def predict_proba(self, states: Any) -> Array:
        newest = np.asarray(states)[:, -1].reshape(len(states), -1).astype(np.float32)
        distances = self.squares - 2 * newest @ self.frames.T  # squared, without |newest|^2, which all share
        probs: Array = self.probs[distances.argmin(1)]
        return probs


def breakout(frames: Any) -> Array:
    """Actions for Breakout: the ball is the bright spot between bricks and paddle; if there is none, fire."""
    field = frames[:, :, 38:75, 5:79] > 0  # [B, 2, 37, 74]: inside the walls
    seen: Array = field.any((2, 3))
    x, y = centre(field.any(2)), centre(field.any(3))
    paddle = centre(frames[:, 1, 76, 5:79] > 0)
    fall = y[:, 1] - y[:, 0]
    falls = seen.all(1) & (fall > 0.2)
    ahead = np.where(falls, (37 - y[:, 1]) / np.maximum(fall, 0.2), 0.0) * (x[:, 1] - x[:, 0])
    goal = 74 - np.abs(np.abs(x[:, 1] + ahead) % 148 - 74)  # it bounces off the walls
    chosen = towards(goal - paddle, 2.0, RIGHT, LEFT)
    return np.where(seen[:, 1], chosen, FIRE)


def pong(frames: Any) -> Array:
    """Actions for Pong: the ball is the brightest spot between the paddles."""
    field, paddle = frames[:, 1, 14:77, 12:73] > 200, frames[:, 1, 14:77, 74] > 120
    chosen = towards(centre(field.any(2)) - centre(paddle), 2.0, LEFT, RIGHT)
    return np.where(field.any((1, 2)), chosen, NO_OP)


def towards(gap: Array, near: float, more: int, less: int) -> Array:
    """The action that reduces a gap; no-op where it is small."""
    return np.where(gap > near, more, np.where(gap < -near, less, NO_OP))


def centre(seen: Any) -> Array:
    """Mean index of the true values along the last axis; the middle of the axis where there are none."""
    count = seen.sum(-1)
    return np.where(count > 0, (seen * np.arange(seen.shape[-1])).sum(-1) / np.maximum(count, 1), seen.shape[-1] / 2)


PADDLE_GAMES: dict[str, Callable[[Array], Array]] = {"Breakout": breakout, "Pong": pong}

SCRIPTED: dict[str, Callable[[str, int], ActionModel]] = {
    "random": lambda _, num_actions: RandomPolicy(num_actions),
    "follow": FollowBallPolicy,
    "cross": CrossRoadPolicy,
    "climb": ReachKeyPolicy,
}
"""Scripted policies by name; each is made from an environment's id and its number of actions."""
