"""Random lives of players, moment by moment, as environments show them: what actors and the replay are fed with."""

from typing import NamedTuple

import numpy as np
import torch

from rbi.returns import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED


class Shown(NamedTuple):
    """One moment of `[N]` players; after an episode's last step its final frame, then the first of the next one."""

    frame: torch.Tensor
    first: torch.Tensor
    reward: torch.Tensor
    end: torch.Tensor


class Players:
    """Players side by side whose steps end in every way: mostly not at all, and with short episodes."""

    def __init__(self, players, frame, rng, odds=(0.7, 0.1, 0.1, 0.1)):
        self.players, self.frame, self.rng, self.odds = players, frame, rng, odds
        self.over = np.ones(players, dtype=bool)  # before the first moment: it starts an episode

    def show(self):
        """The next moment of all players; no frame is black, and no two are alike."""
        first = self.over
        end = self.rng.choice([CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED], self.players, p=self.odds)
        end = np.where(first, CONTINUES, end).astype(np.uint8)
        reward = np.where(first, 0, self.rng.normal(scale=2, size=self.players)).astype(np.float32)
        self.over = (end == TERMINATED) | (end == TRUNCATED)
        shape = (self.players, *self.frame)
        pictures = len(self.frame) > 1
        frame = self.rng.integers(1, 256, shape, dtype=np.uint8) if pictures else self.rng.normal(size=shape)
        frame = frame if pictures else frame.astype(np.float32)
        return Shown(*(torch.from_numpy(array) for array in (frame, first, reward, end)))

    def start_afresh(self):
        self.over = np.ones(self.players, dtype=bool)
