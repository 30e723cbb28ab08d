"""The replay as the paper thinks of it: whole lives of players in lists. A slow twin for the tests."""

import numpy as np

from rbi.returns import CONTINUES, TERMINATED, TRUNCATED
from tests.reference.iterative import n_step_return


class Lane:
    """All that one player ever saw and did; moment t is entry t of each list.

    `rewards[t]` and `ends[t]` are of the step that led to moment t, so step t of the paper has `rewards[t + 1]`.
    """

    def __init__(self, rows, stack, steps, gamma):
        self.rows, self.stack, self.steps, self.gamma = rows, stack, steps, gamma
        self.frames, self.firsts, self.rewards, self.ends = [], [], [], []
        self.actions, self.policies, self.errors = [], [], []
        self.finals, self.revealed = set(), set()

    def add(self, frame, first, reward, end, action, pi, error):
        if end in (TERMINATED, TRUNCATED):
            self.finals.add(len(self.frames))
        for column, value in (
            (self.frames, frame), (self.firsts, first), (self.rewards, reward), (self.ends, end),
            (self.actions, action), (self.policies, pi), (self.errors, error),
        ):  # fmt: skip
            column.append(value)

    def cut(self):
        """The player starts afresh: the newest frame is its last, as if time had run out."""
        newest = len(self.frames) - 1
        self.finals.add(newest)
        if self.ends[newest] == CONTINUES:
            self.ends[newest] = TRUNCATED

    def state(self, t):
        """The last frames up to moment t, oldest first, black where the episode had not begun."""
        seen = [self.frames[t]]
        while len(seen) < self.stack and not self.firsts[t]:
            t -= 1
            seen.insert(0, self.frames[t])
        black = np.zeros_like(seen[0])
        return np.stack([black] * (self.stack - len(seen)) + seen)

    def is_complete(self, t):
        """Whether a ring of `rows` moments still holds the frames before t and already the n moments after it."""
        newest = len(self.frames) - 1
        return t - (self.stack - 1) > newest - self.rows and t + self.steps <= newest

    def drawable(self):
        """The moments that were acted on and are complete."""
        return [t for t in range(len(self.frames)) if self.is_complete(t) and t not in self.finals]

    def reveal(self, whole_episodes):
        """Show the learner what is complete now, or only that of episodes that are over."""
        last = max(self.finals, default=-1)
        self.revealed |= {t for t in self.drawable() if t < last or not whole_episodes}

    def followed(self, t):
        """The n-step reward after moment t, the discount of what comes then, and the moment from which it is valued."""
        coming = range(t + 1, t + 1 + self.steps)
        reward, discount, steps = n_step_return(
            [self.rewards[k] for k in coming], [self.ends[k] for k in coming], self.gamma
        )
        return reward, discount, t + steps

    def error(self, t):
        """The TD error of moment t was told n moments later."""
        return self.errors[t + self.steps]
