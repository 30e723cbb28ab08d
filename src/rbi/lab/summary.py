"""What many repetitions say: mean, tail and violations, with intervals, and paired comparisons of algorithms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rbi.lab.mdp import Floats

TAIL = 0.01  # CVaR is the mean of this share of the worst
LEVEL = 0.95  # of intervals
BELOW = 1e-9  # how far below the baseline a score must be to count as below: rounding is not


@dataclass(frozen=True)
class Summary:
    """Of scores `[repetitions, sizes, algorithms]`: statistics `[sizes, algorithms]` and their intervals `[2, ...]`.

    `mean_lead` and `cvar_lead` `[compared, 3, sizes, algorithms]` are what each compared algorithm is ahead of the
    others: the estimate and its paired interval.
    """

    mean: Floats
    cvar: Floats
    below: Floats
    mean_interval: Floats
    cvar_interval: Floats
    below_interval: Floats
    mean_lead: Floats
    cvar_lead: Floats


def summarise(
    scores: Floats, baseline: float, compared: Sequence[int], rng: np.random.Generator, resamples: int = 2000
) -> Summary:
    """Statistics with percentile intervals of the bootstrap; all algorithms share the resampled repetitions."""
    n = len(scores)
    flat = scores.reshape(n, -1)
    shape = scores.shape[1:]
    weights = np.stack([np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(resamples)])
    below = (flat < baseline - BELOW).astype(float)
    means, tails, belows = weights @ flat / n, weighted_cvar(flat, weights), weights @ below / n
    mean, cvar = flat.mean(0), weighted_cvar(flat, np.ones((1, n), dtype=int))[0]

    def interval(x: Floats) -> Floats:
        return np.quantile(x, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0).reshape(2, *shape)

    def lead(value: Floats, resampled: Floats, one: int) -> Floats:
        value, resampled = value.reshape(shape), resampled.reshape(resamples, *shape)
        ahead = (resampled[..., one, None] - resampled).reshape(resamples, -1)
        return np.concatenate([(value[:, one, None] - value)[None], interval(ahead)])

    return Summary(
        mean.reshape(shape),
        cvar.reshape(shape),
        below.mean(0).reshape(shape),
        interval(means),
        interval(tails),
        interval(belows),
        np.stack([lead(mean, means, one) for one in compared]),
        np.stack([lead(cvar, tails, one) for one in compared]),
    )


def weighted_cvar(scores: Floats, weights: np.ndarray) -> Floats:
    """The mean of the lowest hundredth (at least one) of scores `[n, K]`, each counted weights `[B, n]` times.

    Only the lowest few scores can be among them, so no resample is sorted.
    """
    n = len(scores)
    tail = int(np.ceil(TAIL * n))
    order = np.argsort(scores, 0)
    found = np.empty((len(weights), scores.shape[1]))
    for column in range(scores.shape[1]):
        lowest = order[:, column]
        reached = min(n, 3 * tail + 20)
        while (weights[:, lowest[:reached]].sum(1) < tail).any():
            reached = min(n, 2 * reached)
        counted = weights[:, lowest[:reached]]
        used = np.clip(tail - (np.cumsum(counted, 1) - counted), 0, counted)
        found[:, column] = used @ scores[lowest[:reached], column] / tail
    return found
