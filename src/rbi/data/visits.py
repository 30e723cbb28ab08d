"""Visits of states: how often each action was taken in each of the few different states of a dataset."""

from typing import NamedTuple

import numpy as np

from rbi.data.dataset import Dataset
from rbi.data.digests import row_hashes
from rbi.data.episode import Array

MAX_STATES = 10_000
MIN_MEAN_VISITS = 10  # per state; with fewer, observations are in effect all different


class VisitCounts(NamedTuple):
    """How often each action was taken in each state. A state is known by a 64-bit hash of its observation."""

    keys: Array
    """`[N]` uint64, increasing."""
    counts: Array
    """`[N, A]` int32."""

    def of(self, obs: Array) -> Array:
        """Counts `[B, A]` for observations `[B, D]`; 0 where a state was never visited."""
        if not len(self.keys):
            return np.zeros((len(obs), self.counts.shape[1]), self.counts.dtype)
        keys = state_keys(obs)
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where((self.keys[at] == keys)[:, None], self.counts[at], 0)


def state_keys(obs: Array) -> Array:
    """`[B]` uint64 for observations `[B, D]`, as float32; -0 equals 0."""
    return row_hashes(np.asarray(obs, np.float32).reshape(len(obs), -1) + np.float32(0))


def count_visits(data: Dataset, episodes: Array) -> VisitCounts | str:
    """The visit counts of some episodes, or why there are none: images, stacks, or too many different states."""
    if data.spec.is_image or data.spec.frame_stack > 1:
        return "states are images or stacks of observations"
    records = data.records[episodes]
    sizes = records["steps"].astype(np.int64)
    offset = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    steps = offset + np.repeat(records["first_step"], sizes)
    obs = data.arrays["observations"][offset + np.repeat(records["first_observation"], sizes)]
    keys, which = np.unique(state_keys(obs), return_inverse=True)
    if len(keys) > MAX_STATES or len(keys) * MIN_MEAN_VISITS > len(steps):
        return f"{len(keys):,} of {len(steps):,} training states are different"
    counts = np.zeros((len(keys), data.spec.num_actions), np.int32)
    np.add.at(counts, (which, data.arrays["actions"][steps]), 1)
    return VisitCounts(keys, counts)
