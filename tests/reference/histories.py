"""The replay as whole histories of environments in lists. A slow twin for the tests."""

import numpy as np

from rbi.steps import CONTINUES, TERMINATED, TRUNCATED
from tests.reference.iterative import n_step_return


class History:
    """Everything that happened in one environment; time step t is entry t of each list.

    `rewards[t]` and `ends[t]` are of the step that led to observation t, so step t of the paper has `rewards[t + 1]`.
    """

    def __init__(self, rows, stack, steps, gamma):
        self.rows, self.stack, self.steps, self.gamma = rows, stack, steps, gamma
        self.frames, self.firsts, self.rewards, self.ends = [], [], [], []
        self.actions, self.policies, self.errors, self.masks = [], [], [], []
        self.finals, self.released = set(), set()

    def add(self, frame, first, reward, end, action, pi, error, legal):
        if end in (TERMINATED, TRUNCATED):
            self.finals.add(len(self.frames))
        for column, value in (
            (self.frames, frame), (self.firsts, first), (self.rewards, reward), (self.ends, end),
            (self.actions, action), (self.policies, pi), (self.errors, error), (self.masks, legal),
        ):  # fmt: skip
            column.append(value)

    def truncate(self):
        """The environment is reset: the newest frame is its last, as by a time limit."""
        newest = len(self.frames) - 1
        self.finals.add(newest)
        if self.ends[newest] == CONTINUES:
            self.ends[newest] = TRUNCATED

    def state(self, t):
        """The last frames up to step t, oldest first, zeros before the episode."""
        seen = [self.frames[t]]
        while len(seen) < self.stack and not self.firsts[t]:
            t -= 1
            seen.insert(0, self.frames[t])
        zeros = np.zeros_like(seen[0])
        return np.stack([zeros] * (self.stack - len(seen)) + seen)

    def is_complete(self, t):
        """Whether a ring buffer of `rows` steps still holds the frames before t and already the n steps after it."""
        newest = len(self.frames) - 1
        return t - (self.stack - 1) > newest - self.rows and t + self.steps <= newest

    def drawable(self):
        """The steps with an action and a complete return."""
        return [t for t in range(len(self.frames)) if self.is_complete(t) and t not in self.finals]

    def release(self, whole_episodes):
        """Release complete states to the learner, or only those of ended episodes."""
        last = max(self.finals, default=-1)
        self.released |= {t for t in self.drawable() if t < last or not whole_episodes}

    def followed(self, t):
        """The n-step reward after step t, the discount of the bootstrap, and the step that is bootstrapped from."""
        coming = range(t + 1, t + 1 + self.steps)
        reward, discount, steps = n_step_return(
            [self.rewards[k] for k in coming], [self.ends[k] for k in coming], self.gamma
        )
        return reward, discount, t + steps

    def error(self, t):
        """The TD error of step t, which is given n steps later."""
        return self.errors[t + self.steps]
