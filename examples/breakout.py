"""Record a mixed-skill population that plays Breakout; `make demo` learns from it.

    python examples/breakout.py FOLDER [EPISODES [SEED]]

An observation is the position and velocity of paddle and ball, read from the console's memory; learning from images in
minutes takes a GPU. Sticky actions (Gymnasium's default, probability 0.25) make every episode different.
"""

import sys

import ale_py
import gymnasium
import numpy as np

from rbi.data import DatasetSpec, Episode, StoreWriter
from rbi.data.episode import Feature
from rbi.progress import echo, track

ENV = "breakout:BreakoutPositions-v0"  # Gymnasium imports this module before it makes the environment
EPSILONS = (0.2, 0.3, 0.4, 0.6)  # each player's probability of a random action
ACTIONS = ("NOOP", "FIRE", "RIGHT", "LEFT")
NO_OP, FIRE, RIGHT, LEFT = range(4)
FEATURES = ("paddle x", "ball x", "ball y", "paddle speed", "ball speed x", "ball speed y")
PADDLE_X, BALL_X, BALL_Y = 72, 99, 101  # addresses in memory
SCALE = 100


class Positions(gymnasium.Wrapper):
    """Observations `[6]`: x of the paddle, x and y of the ball, and how much each changed since the last step."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-3, 3, (6,), np.float32)

    def reset(self, **kwargs):
        ram, info = self.env.reset(**kwargs)
        self.now = self.positions(ram)
        return np.append(self.now, np.zeros(3, np.float32)), info

    def step(self, action):
        ram, *rest = self.env.step(action)
        before, self.now = self.now, self.positions(ram)
        return np.append(self.now, self.now - before), *rest

    @staticmethod
    def positions(ram):
        return ram[[PADDLE_X, BALL_X, BALL_Y]].astype(np.float32) / SCALE


def make_env(**kwargs):
    return Positions(gymnasium.make("ALE/Breakout-v5", obs_type="ram", **kwargs))


gymnasium.register_envs(ale_py)
gymnasium.register("BreakoutPositions-v0", entry_point=make_env, max_episode_steps=800)


def follow_ball(obs):
    """The action that moves the paddle below the ball, or serves if there is none."""
    paddle_x, ball_x, ball_y = np.rint(obs[:3] * SCALE)
    distance = ball_x - paddle_x - 8
    return FIRE if ball_y == 0 else RIGHT if distance > 3 else LEFT if distance < -3 else NO_OP


def record_episode(env, epsilon, rng):
    """One episode of a player that follows the ball, except for random actions."""
    num_actions = int(env.action_space.n)
    obs, info = env.reset(seed=int(rng.integers(2**31)))
    observations, steps, done = [obs], [], False
    while not done:
        lives, choice = info["lives"], follow_ball(obs)
        action = int(rng.integers(num_actions)) if rng.random() < epsilon else choice
        obs, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        observations.append(obs)
        steps.append((action, reward, terminated, truncated and not terminated, info["lives"] < lives and not done))
    columns = (np.array(column) for column in zip(*steps, strict=True))
    return Episode(np.array(observations), *columns, player=f"epsilon {epsilon}")


def main(folder, episodes=40, seed=0):
    env, rng = gymnasium.make("BreakoutPositions-v0"), np.random.default_rng(seed)
    features = tuple(Feature(name) for name in FEATURES)
    spec = DatasetSpec(env.observation_space.shape, len(ACTIONS), env=ENV, features=features, action_names=ACTIONS)
    with StoreWriter.create(folder, spec) as store:
        for number in track(range(episodes), "recording"):
            store.append(record_episode(env, EPSILONS[number % len(EPSILONS)], rng))
    env.close()
    echo(f"{episodes} episodes: {folder}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
