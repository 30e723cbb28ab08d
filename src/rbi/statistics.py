"""Statistics of scores: bootstrap intervals, the interquartile mean, CVaR, paired differences and confidence bounds;
probability of improvement and performance profiles of algorithms on several tasks.

All bootstraps draw indices with replacement and differ in what they resample: values, within strata where there are any
(`bootstrap_samples`), the runs of each task (`bootstrap_runs`), clusters of unequal size (`bootstrap_ratio`), or rows
that many columns share (`bootstrap_weights`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RESAMPLES = 2000
QUANTILES_95 = (0.025, 0.975)  # of a two-sided 95% percentile interval
BLOCK_INDICES = 1 << 20  # drawn at a time: 8 MB, whatever the number of values
MAX_PAIRS = 10_000  # that are resampled one by one


def score_text(score: float) -> str:
    """A score for the terminal: one decimal, or three digits below 10, since scores of some environments are in [0, 1].

    >>> score_text(1234.56), score_text(0.9123)
    ('1,234.6', '0.912')
    """
    return f"{score:,.1f}" if abs(score) >= 10 else f"{score:.3g}"


def resample_indices(n: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> Iterator[Array]:
    """Indices of bootstrap samples of n items, in blocks `[R, n]` that hold `resamples` rows in all."""
    rows = max(1, BLOCK_INDICES // n)
    for start in range(0, resamples, rows):
        yield rng.integers(n, size=(min(rows, resamples - start), n))


def bootstrap_samples(strata: Sequence[Array], rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Bootstrap samples `[resamples, N]` of N values; each stratum is resampled within itself.

    Strata are what stays fixed, such as the seeds of a study whose episodes are resampled.
    """
    drawn = [values[rng.integers(len(values), size=(resamples, len(values)))] for values in strata]
    return drawn[0] if len(drawn) == 1 else np.concatenate(drawn, 1)


def bootstrap_weights(n: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """How often each of n items is part of each bootstrap sample, `[resamples, n]`.

    Statistics of many columns that share their rows are then matrix products, and differences of columns are paired.
    """
    return np.stack([np.bincount(row, minlength=n) for block in resample_indices(n, rng, resamples) for row in block])


def bootstrap_ratio(
    numerators: Array, denominators: Array, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Array:
    """sum(numerators) / sum(denominators) in bootstrap samples of the pairs, `[resamples]`.

    With the sums and the lengths of clusters (the steps of an episode belong together) this is the cluster bootstrap of
    the mean. More than `MAX_PAIRS` pairs are added up in random groups of nearly equal size first, which leaves the
    variance of the ratio as it is.
    """
    if len(numerators) > MAX_PAIRS:
        group = rng.permutation(np.arange(len(numerators)) % MAX_PAIRS)
        numerators, denominators = (np.bincount(group, part) for part in (numerators, denominators))
    blocks = resample_indices(len(numerators), rng, resamples)
    return np.concatenate([numerators[block].sum(1) / denominators[block].sum(1) for block in blocks])


def percentile_interval(samples: Array, quantiles: Sequence[float] = QUANTILES_95) -> Array:
    """The percentile interval of bootstrap statistics `[resamples, ...]`: lower and upper bound, `[2, ...]`."""
    return np.quantile(samples, quantiles, axis=0)


def iqm(values: Any) -> Array:
    """Interquartile mean over the last axis, `[..., N]` to `[...]`: the mean of the middle half of the values.

    A value that lies partly inside the middle half counts with that part.

    >>> float(iqm([1, 2, 3, 100]))
    2.5
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), -1)
    N = ordered.shape[-1]
    i = np.arange(N)
    weights = np.maximum(np.minimum(i + 1, 0.75 * N) - np.maximum(i, 0.25 * N), 0)
    return ordered @ weights / weights.sum()


def iqm_of_tasks(runs: Sequence[Array]) -> float:
    """Interquartile mean of the runs of all tasks; every task has the same weight, however many runs it has.

    >>> iqm_of_tasks([np.array([0.0]), np.array([1.0]), np.array([2.0]), np.array([8.0, 8.0, 8.0])])
    1.5
    """
    most = math.lcm(*map(len, runs))
    return float(iqm(np.concatenate([np.repeat(of_task, most // len(of_task)) for of_task in runs])))


def cvar(values: Array, tail: float = 0.01, weights: Array | None = None) -> Array:
    """Conditional value at risk: the mean of the lowest `tail` (at least one) of the values `[n, K]`, `[K]`.

    With weights `[B, n]`, integers that sum to n in each row, it is `[B, K]`: that of every bootstrap sample, in which
    value i occurs weights[b, i] times. Only the lowest few values can be part of it, so no sample is sorted.

    >>> cvar(np.arange(200.0)[:, None])
    array([0.5])
    """
    n = len(values)
    size = int(np.ceil(tail * n))
    counts = np.ones((1, n), dtype=int) if weights is None else weights
    order = np.argsort(values, 0)
    found = np.empty((len(counts), values.shape[1]))
    for column in range(values.shape[1]):
        lowest = order[:, column]
        reached = min(n, 3 * size + 20)
        while (counts[:, lowest[:reached]].sum(1) < size).any():
            reached = min(n, 2 * reached)
        counted = counts[:, lowest[:reached]]
        used = np.clip(size - (np.cumsum(counted, 1) - counted), 0, counted)
        found[:, column] = used @ values[lowest[:reached], column] / size
    return found[0] if weights is None else found


def paired_lead(estimate: Array, resampled: Array, column: int) -> Array:
    """How far one column is ahead of every column: the estimate and its paired 95% interval, `[3, ..., K]`.

    `estimate` is a statistic `[..., K]`, `resampled` the same in bootstrap samples that all columns share, `[B, ...,
    K]`: what the columns have in common cancels.
    """
    ahead = resampled[..., column, None] - resampled
    return np.concatenate([(estimate[..., column, None] - estimate)[None], percentile_interval(ahead)])


# Algorithms on several tasks (Agarwal et al., 2021, "Deep RL at the edge of the statistical precipice"). `runs` holds
# one array of scores per task, one score per run; tasks may differ in their number of runs.


def probability_of_improvement(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """Probability that a run of ours beats a run of theirs on a task drawn at random; ties count one half.

    >>> probability_of_improvement([np.array([1, 3]), np.array([5])], [np.array([2, 2]), np.array([5])])
    0.5
    """
    wins = [np.sign(x[:, None] - y[None, :]).mean() for x, y in zip(ours, theirs, strict=True)]
    return float(np.mean(wins) + 1) / 2


def performance_profile(runs: Sequence[Array], thresholds: Array) -> Array:
    """Share of runs with a score above each threshold `[T]`; every task has the same weight.

    >>> performance_profile([np.array([0.5, 2.0]), np.array([3.0])], np.array([0.0, 1.0, 2.0]))
    array([1.  , 0.75, 0.5 ])
    """
    return np.mean([(of_task[None, :] > thresholds[:, None]).mean(1) for of_task in runs], 0)


def bootstrap_runs(
    statistic: Callable[..., Any],
    rng: np.random.Generator,
    *algorithms: Sequence[Array],
    resamples: int = RESAMPLES,
) -> Array:
    """A statistic of one or more algorithms' runs in bootstrap samples, `[resamples, ...]`.

    Runs are resampled within their task, and independently for each algorithm: tasks are fixed, seeds are not.
    """
    drawn = [
        [of_task[rng.integers(len(of_task), size=(resamples, len(of_task)))] for of_task in runs] for runs in algorithms
    ]
    samples = [statistic(*([of_task[sample] for of_task in tasks] for tasks in drawn)) for sample in range(resamples)]
    return np.asarray(samples)


def student_lower_bound(samples: Array, delta: float, size: int | None = None) -> Array:
    """Student's lower confidence bound of the mean at level 1 - delta, over the last axis `[..., n]`.

    With `size` it is the bound to expect from another `size` samples with the same mean and standard deviation. A
    single sample has no standard deviation: its value comes back as it is.
    """
    from scipy.special import stdtrit

    n = samples.shape[-1]
    mean: Array = samples.mean(-1)
    if n < 2:
        return mean
    size = n if size is None else size
    return mean + stdtrit(size - 1, delta) * samples.std(-1, ddof=1) / np.sqrt(size)


def describe(scores: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """Mean with its 95% bootstrap interval, median, quartiles and range of scores."""
    values = np.asarray(scores, dtype=np.float64)
    means = bootstrap_ratio(values, np.ones(len(values)), np.random.default_rng(seed))
    quarter, median, three_quarters = np.percentile(values, [25, 50, 75]).tolist()
    return {
        "episodes": len(values),
        "mean": float(values.mean()),
        "interval": percentile_interval(means).tolist(),
        "median": median,
        "quartiles": [quarter, three_quarters],
        "min": float(values.min()),
        "max": float(values.max()),
    }
