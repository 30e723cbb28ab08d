"""Random time steps of environments, to feed actors and the replay with."""

from typing import NamedTuple

import numpy as np
import torch

from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED


class Step(NamedTuple):
    """One time step of `[N]` environments; the final frame of an episode is followed by the first of the next one."""

    obs: torch.Tensor
    is_first: torch.Tensor
    reward: torch.Tensor
    end: torch.Tensor
    legal: torch.Tensor


class RandomEnvs:
    """Environments with short episodes whose steps end in every way; `mask_size` actions have masks."""

    def __init__(self, num_envs, shape, rng, odds=(0.7, 0.1, 0.1, 0.1), mask_size=0):
        self.num_envs, self.shape, self.rng, self.odds, self.mask_size = num_envs, shape, rng, odds, mask_size
        self.over = np.ones(num_envs, dtype=bool)  # the first time step starts an episode

    def step(self):
        """The next time step of all environments; no frame is zero, and no two are alike."""
        first = self.over
        end = self.rng.choice([CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED], self.num_envs, p=self.odds)
        end = np.where(first, CONTINUES, end).astype(np.uint8)
        reward = np.where(first, 0, self.rng.normal(scale=2, size=self.num_envs)).astype(np.float32)
        self.over = (end == TERMINATED) | (end == TRUNCATED)
        shape = (self.num_envs, *self.shape)
        is_image = len(self.shape) > 1
        frame = self.rng.integers(1, 256, shape, dtype=np.uint8) if is_image else self.rng.normal(size=shape)
        frame = frame if is_image else frame.astype(np.float32)
        legal = self.rng.random((self.num_envs, self.mask_size)) < 0.5
        if self.mask_size:
            legal[np.arange(self.num_envs), self.rng.integers(self.mask_size, size=self.num_envs)] = True
        return Step(*(torch.from_numpy(array) for array in (frame, first, reward, end, legal)))

    def reset(self):
        self.over = np.ones(self.num_envs, dtype=bool)
