"""Small environments; those with images are also ids: `gymnasium.make("tests.games:Catch-v0")`.

Worker processes import this module to unpickle them: it imports no PyTorch.
"""

import time

import gymnasium
import numpy as np


class Catch(gymnasium.Env):
    """Balls fall one after the other; the paddle at the bottom moves left, stays or moves right. Five balls a game."""

    SIZE, BALLS = 10, 5
    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (Gymnasium's own form)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (self.SIZE, self.SIZE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.paddle, self.left = self.SIZE // 2, self.BALLS
        self.drop()
        return self.image(), {}

    def drop(self):
        self.row, self.column = 0, int(self.np_random.integers(self.SIZE))

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + action - 1, 0, self.SIZE - 1))
        self.row += 1
        reward = 0.0
        if self.row == self.SIZE - 1:
            reward = 1.0 if abs(self.column - self.paddle) <= 1 else -1.0
            self.left -= 1
            self.drop()
        return self.image(), reward, self.left == 0, False, {}

    def image(self):
        screen = np.zeros((self.SIZE, self.SIZE), np.uint8)
        screen[self.row, self.column] = 255
        screen[-1, max(0, self.paddle - 1) : self.paddle + 2] = 255
        return screen

    def render(self):
        return np.repeat(self.image()[:, :, None], 3, axis=2).repeat(8, 0).repeat(8, 1)


class Broken(Catch):
    """Raises KeyError after the first ball."""

    def drop(self):
        super().drop()
        if self.left < self.BALLS:
            raise KeyError("a cable")


class Nan(Catch):
    """Returns NaN rewards."""

    def step(self, action):
        image, _, *rest = super().step(action)
        return (image, float("nan"), *rest)


class Doors(gymnasium.Env):
    """Some of five doors are open, at random; a closed one is an error, an open one pays its number. 8 steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.time = 0
        return self.observe(over=False)

    def step(self, action):
        assert self.open[action], "a closed door"
        self.time += 1
        over = self.time == 8
        return *self.observe(over=over)[:1], float(action), over, False, {"action_mask": self.open}

    def observe(self, *, over):
        self.open = (self.np_random.random(5) < 0.4).astype(np.int8)
        self.open[self.np_random.integers(5)] = 1
        self.open *= not over  # as in some games: no action is legal when all is over
        return self.np_random.random(3).astype(np.float32), {"action_mask": self.open}

    def render(self):
        return np.full((8, 8, 3), self.time, np.uint8)


class Dice(gymnasium.Env):
    """Pays the action plus a random number; ends at random, and fails if asked to."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4, start=-1)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002 - as Gymnasium calls it
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        if action == 2:
            raise RuntimeError("a broken\nwire")
        return self.observe(), action + self.np_random.random(), self.np_random.random() < 0.2, False, {}

    def observe(self):
        return self.np_random.random(3).astype(np.float32)


class Stuck(Dice):
    """Takes minutes for a step."""

    def step(self, action):
        time.sleep(600)
        return super().step(action)


for game in (Catch, Broken, Nan):
    gymnasium.register(id=f"{game.__name__}-v0", entry_point=game)
