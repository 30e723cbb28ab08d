"""Digests of episodes, which show whether two datasets share any: policies keep those of their training episodes."""

import numpy as np

from rbi.data.dataset import Dataset
from rbi.data.episode import Array

CHUNK = 4096  # observations hashed at a time
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def episode_digests(data: Dataset) -> Array:
    """`[E]` uint64: one number per episode from its observations (without the final one), actions and rewards.

    Of images only the first one counts, since all of them may be a hundred gigabytes. Names of players and files are
    no part of it, so a copy under another name has the same digest. Equal episodes have equal digests; different ones
    differ but for a chance of about 2^-64.
    """
    records = data.records
    steps = records["steps"].astype(np.int64)
    first = np.cumsum(steps) - steps
    position = np.arange(steps.sum()) - np.repeat(first, steps)
    if data.spec.is_image:
        observed = np.zeros(len(position), np.uint64)
        observed[first] = row_hashes(data.arrays["observations"][records["first_observation"]])
    else:
        observed = row_hashes(data.arrays["observations"])[position + np.repeat(records["first_observation"], steps)]
    taken = row_hashes(np.stack([data.arrays["actions"], data.arrays["rewards"].view(np.int32)], 1))
    own = position + np.repeat(records["first_step"], steps)
    with np.errstate(over="ignore"):
        each = mix(observed + GOLDEN * taken[own] + mix(position.astype(np.uint64) + np.uint64(1)))
        return mix(np.add.reduceat(each, first) if len(first) else each)


def row_hashes(array: Array) -> Array:
    """`[N]` uint64: a multilinear hash of the bytes of each row."""
    rows = np.ascontiguousarray(array).reshape(len(array), -1)
    width = rows.shape[1] * rows.dtype.itemsize
    kind = next(kind for kind in (np.uint64, np.uint32, np.uint8) if width % np.dtype(kind).itemsize == 0)
    words = rows.view(np.uint8).view(kind)
    with np.errstate(over="ignore"):
        factors = mix(np.arange(1, words.shape[1] + 1, dtype=np.uint64) * GOLDEN) | np.uint64(1)
        chunks = [words[n : n + CHUNK].astype(np.uint64) @ factors for n in range(0, len(words), CHUNK)]
    return np.concatenate([np.zeros(0, np.uint64), *chunks])


def mix(x: Array) -> Array:
    """SplitMix64's finaliser: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Array = x ^ (x >> np.uint64(31))
    return found


def shared_episodes(digests: Array, training: Array) -> Array:
    """`[E]` booleans: the episodes that are part of the training episodes, by their digests.

    Episodes that equal one another (a few features, a reward of 0 or 1) may also equal a training episode by chance. If
    as many match as that explains, none counts as shared: a digest says nothing about such data.
    """
    matching = np.isin(digests, training)
    _, which, counts = np.unique(digests, return_inverse=True, return_counts=True)
    repeated = float((counts[which] > 1).mean()) if len(digests) else 0.0
    # sum_x p_x (1 - (1 - p_x)^n) grows at most in proportion to n
    by_chance = min(1.0, 3 * repeated * max(1.0, len(training) / max(1, len(digests))))
    return matching if matching.mean() > by_chance else np.zeros_like(matching)
