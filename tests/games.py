"""Small games with image observations: `gymnasium.make("tests.games:Catch-v0")`."""

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


for game in (Catch, Broken, Nan):
    gymnasium.register(id=f"{game.__name__}-v0", entry_point=game)
