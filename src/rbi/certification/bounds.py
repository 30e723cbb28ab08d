"""One-sided lower confidence bounds of a mean, and confidence sequences that may be looked at at any time.

    betting              proved for values above a stated floor, for every sample size; nothing bounds them above
    empirical_bernstein  proved for values in a stated range
    student              asymptotic: Student's t
    bca                  heuristic: the bias-corrected and accelerated bootstrap

All assume independent, identically distributed values (of episodes, or of players). Betting (Waudby-Smith and Ramdas,
2024, "Estimating means of bounded random variables by betting", JRSS B): whoever bets that the mean exceeds m, in a
game that is fair if it equals m, multiplies a capital of 1 by

    K_t(m) = prod_{i <= t} (1 + lambda_i (x_i - m)),        0 <= lambda_i <= 1 / (m - floor)     (their capital process)

where lambda_i depends on earlier values only. Were the mean m or less, K would be a non-negative supermartingale, which
ever reaches 1 / alpha with probability at most alpha (Ville). The lower bound is the smallest m that is not rejected.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rbi.statistics import RESAMPLES, Array, bootstrap_samples, student_lower_bound

Method = Literal["betting", "empirical_bernstein", "student", "bca"]
Status = Literal["proved", "asymptotic", "heuristic"]

METHODS: tuple[Method, ...] = ("betting", "empirical_bernstein", "student", "bca")
STATUS: dict[Method, Status] = {
    "betting": "proved", "empirical_bernstein": "proved", "student": "asymptotic", "bca": "heuristic",
}  # fmt: skip
MAX_STAKE = 0.9  # of the capital that one value may cost: lambda <= MAX_STAKE / (m - floor)
SHARES = 2.0 ** -np.arange(1, 11)  # of the capital, and bets per standard deviation; the last is for ten million values
REBETS = 256  # times that the bets of a fixed-sample bound are recalculated
FIRST_GRID = (64.0, 32.0, 16.0, 12.0, 8.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0)  # standard errors
GRID_POINTS = 16
RESOLUTION = 0.003  # of a bound, in standard errors of the mean
MAX_ROUNDS = 40
BCA_VALUES = 5_000  # more values are averaged in groups first


@dataclass(frozen=True)
class Bound:
    """A lower confidence bound of a mean."""

    method: Method
    lower: float
    status: Status
    """proved, asymptotic or heuristic."""
    assumptions: tuple[str, ...]
    """What it takes for the status to hold."""


def check_values(values: Any, floor: float, alpha: float, ceiling: float = math.inf) -> Array:
    """Values `[..., n]` in float64. Raises ValueError for what no bound can be computed from."""
    x = np.asarray(values, dtype=np.float64)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha = {alpha}: must lie between 0 and 1")
    if not x.size:
        raise ValueError("no values: a bound takes at least one")
    for bad, why in (
        (~np.isfinite(x), "is not finite"),
        (x < floor, f"is below the floor {floor:g}"),
        (x > ceiling, f"is above the ceiling {ceiling:g}"),
    ):
        if bad.any():
            at = int(bad.reshape(-1).argmax())
            raise ValueError(f"value {at}: {x.reshape(-1)[at]:g} {why}")
    return x


# Betting with a fixed number of values


def log_capital_peak(values: Array, m: Array, floor: float, alpha: float, spread: float | None = None) -> Array:
    """The largest log K_t(m), t <= n, of target-recalculating bets: `[..., n]` and `[...]` (broadcast) to `[...]`.

        lambda_t = h(z) / (sigma_{t-1} sqrt(n - t + 1)),    P(Z > z) = alpha K_{t-1}(m),    h = density / P(Z > z)

    Bets aim at the capital 1 / alpha after n values: what is missing and how many values are left set the next bet
    (Voracek and Orabona, 2025, "STaR-Bets"). Theirs is sqrt(2 log(1 / (alpha K))) in place of h(z); h is the stake with
    which a normal limit replicates the payoff 1 / alpha if the sum exceeds its (1 - alpha) quantile, so that the
    bound tends to the normal one. Betting stops at the target. Bets are recalculated `REBETS` times, with a constant
    lambda in between, as a predictable lambda may be: then a million values take no Python loop over them.

    While all values are equal, as zeros are before the first large weight of a rare action, an estimate of sigma is far
    too small, and bets that trust it lose most of the capital: nothing is bet then, in the first half of the values.

    `spread`: a guess of the standard deviation, made before looking; by default half of the distance from floor to 0.
    """
    from scipy.special import log_ndtr, ndtri_exp

    n, target = values.shape[-1], -math.log(alpha)
    edges = np.unique(np.linspace(0, n, min(n, REBETS) + 1).round().astype(int))
    starts, guess = edges[:-1], spread if spread is not None else max(-floor, 0.0) / 2
    sigma = predictable_std(values, starts, guess)
    waits = all_equal_before(values, starts) & (2 * starts < n)
    most = MAX_STAKE / np.maximum(m - floor, np.finfo(float).tiny)
    capital = np.zeros(np.broadcast_shapes(values.shape[:-1], m.shape))
    peak = capital.copy()
    for number, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        z = -ndtri_exp(np.minimum(capital - target, -1e-12))
        hazard = np.exp(-0.5 * z * z - log_ndtr(-z)) / math.sqrt(2 * math.pi)
        bet = np.minimum(hazard / (sigma[..., number] * math.sqrt(n - start)), most)
        bet = np.where(waits[..., number] | (peak >= target), 0.0, bet)
        growth = np.log1p(bet[..., None] * (values[..., start:stop] - m[..., None]))
        path = capital[..., None] + growth.cumsum(-1)
        capital, peak = path[..., -1], np.maximum(peak, path.max(-1))
    return peak


def sums_before(x: Array, starts: Array) -> Array:
    """Sums of the values before each start, `[..., n]` to `[..., J]`; starts rise from 0."""
    blocks = np.add.reduceat(x, starts, axis=-1)
    return np.concatenate([np.zeros_like(x[..., :1]), blocks.cumsum(-1)[..., :-1]], -1)


def predictable_std(values: Array, starts: Array, spread: float) -> Array:
    """Standard deviation of the values before each start, with one guess of `spread` among them: `[..., J]`.

    The predictable plug-in variance of Waudby-Smith and Ramdas, whose guess for values in [0, 1] is 1/2.
    """
    centred = values - values[..., :1]  # the first value is known before any later bet; it only avoids cancellation
    left = sums_before(np.square(centred), starts) - np.square(sums_before(centred, starts)) / np.maximum(starts, 1)
    found: Array = np.sqrt((spread**2 + np.maximum(left, 0.0)) / (starts + 1))
    return np.maximum(found, 1e-9 * spread + np.finfo(float).tiny)


def all_equal_before(values: Array, starts: Array) -> Array:
    """Whether the values before each start are all equal, `[..., J]`: then nothing is known of their spread."""
    differs = values != values[..., :1]
    first = np.where(differs.any(-1), differs.argmax(-1), values.shape[-1])
    return first[..., None] >= starts


def betting_rejects(values: Any, m: Any, floor: float, alpha: float, spread: float | None = None) -> Array:
    """Whether "the mean is at most m" is rejected at level alpha: exact for a single m, whatever the true mean."""
    x, at = check_values(values, floor, alpha), np.asarray(m, dtype=np.float64)
    return log_capital_peak(x, at, floor, alpha, spread) >= -math.log(alpha)


def betting_lower_bound(values: Any, floor: float, alpha: float, spread: float | None = None) -> float:
    """The smallest m >= floor that betting does not reject, for values `[n]` above `floor`; at most the sample mean.

    m is searched on grids that are refined below the first m that is not rejected. Zero is always tried, so that the
    bound is positive only if "the mean is at most 0" is rejected: that test is exact by itself. The search takes for
    granted that what is rejected at m is rejected below m, too. It holds for bets that do not depend on m; here it
    holds in the limit of small bets, and no sample has been found where it does not.

    >>> x = np.random.default_rng(0).random(2000)      # mean 0.5
    >>> round(betting_lower_bound(x, 0.0, 0.05, spread=0.3), 2)
    0.49
    """
    x = check_values(values, floor, alpha)
    mean, error = float(x.mean()), float(x.std()) / math.sqrt(len(x))
    if mean <= floor:
        return floor
    error = error or (mean - floor) * 1e-3
    low, grid = floor, np.unique([*(mean - error * np.array(FIRST_GRID)), min(mean, max(0.0, floor))])
    for _ in range(MAX_ROUNDS):
        grid = grid[grid > low]
        rejected = betting_rejects(x, grid, floor, alpha, spread)
        first = int(rejected.argmin()) if not rejected.all() else len(grid)
        if first == len(grid):  # nothing below the sample mean is left
            return float(grid[-1])
        low, high = (float(grid[first - 1]) if first else low), float(grid[first])
        if high - low <= RESOLUTION * error:
            break
        grid = np.linspace(low, high, GRID_POINTS + 1)[1:]
    return low


# Betting without a fixed number of values


def mixture_capital(values: Array, sigma: Array, m: float, floor: float) -> Array:
    """K_t(m) at every time t, `[n]`, of bets of all sizes side by side; `sigma`: `predictable_std` before each value.

        K_t(m) = sum_j 2^-j prod_{i <= t} (1 + lambda_ij (x_i - m)),    lambda_ij = min(2^-j / sigma_{i-1}, most)

    Half of the capital bets 1/2 per standard deviation, a quarter 1/4, and so on. For n values the best bet is about
    3 / (sigma sqrt(n)): whatever n is, one of the bets is close to it. A mixture as those of Robbins (1970) and of
    Howard et al. (2021), of bets in units of a predictable standard deviation.
    """
    most = MAX_STAKE / max(m - floor, np.finfo(float).tiny)
    capital = np.zeros(len(values))
    with np.errstate(over="ignore"):
        for share in SHARES:
            capital += share * np.exp(np.log1p(np.minimum(share / sigma, most) * (values - m)).cumsum())
    return capital


def lower_confidence_sequence(values: Any, floor: float, alpha: float, spread: float, times: Sequence[int]) -> Array:
    """Lower bounds after these numbers of values, in ascending order: they hold at all times together at 1 - alpha.

    K_t(m) falls with m at every t, since bets fall with m and depend on no capital, so bisection finds each bound.
    """
    x = check_values(values, floor, alpha)
    sigma, bounds, low = predictable_std(x, np.arange(len(x)), spread), np.empty(len(times)), floor
    for number, t in enumerate(times):
        high = max(low, float(x[:t].mean()))
        resolution = RESOLUTION * float(sigma[t - 1]) / math.sqrt(t)
        for _ in range(math.ceil(math.log2(max(1.0, (high - low) / resolution)))):
            middle = (low + high) / 2
            rejected = mixture_capital(x[:t], sigma[:t], middle, floor).max() >= 1 / alpha
            low, high = (middle, high) if rejected else (low, middle)
        bounds[number] = low  # later bounds are never lower: what was rejected once stays rejected
    return bounds


# Other bounds


def empirical_bernstein_lower_bound(values: Any, floor: float, ceiling: float, alpha: float) -> float:
    """mean - sqrt(2 V log(2/alpha) / n) - 7 (ceiling - floor) log(2/alpha) / (3 (n - 1))     (Maurer and Pontil, 2009,
    Theorem 4), for values in [floor, ceiling]; -inf for a single one."""
    x = check_values(values, floor, alpha, ceiling)
    n, log = len(x), math.log(2 / alpha)
    if n < 2:
        return -math.inf
    return float(x.mean() - math.sqrt(2 * float(x.var(ddof=1)) * log / n) - 7 * (ceiling - floor) * log / (3 * (n - 1)))


def bca_lower_bound(values: Any, alpha: float, rng: np.random.Generator, resamples: int = RESAMPLES) -> float:
    """The bias-corrected and accelerated bootstrap bound of a mean      (DiCiccio and Efron, 1996, equation 2.3).

    The jackknife's acceleration of a mean is skewness / (6 sqrt(n)). More than `BCA_VALUES` values are averaged in
    groups first, which leaves mean, variance and skewness of their mean as they are.
    """
    from scipy.special import ndtr, ndtri

    x = check_values(values, -math.inf, alpha)
    if len(x) > BCA_VALUES:
        groups = np.array_split(rng.permutation(x), BCA_VALUES)
        x = np.array([group.mean() for group in groups])
    centred = x - x.mean()
    if not centred.any():
        return float(x.mean())
    means = bootstrap_samples([x], rng, resamples).mean(1) if len(x) < 500 else chunked_means(x, rng, resamples)
    below = np.clip(((means < x.mean()) + 0.5 * (means == x.mean())).mean(), 1 / resamples, 1 - 1 / resamples)
    z0, z = ndtri(below), ndtri(alpha)
    acceleration = float((centred**3).sum() / (6 * (centred**2).sum() ** 1.5))
    level = ndtr(z0 + (z0 + z) / (1 - acceleration * (z0 + z)))
    return float(np.quantile(means, np.clip(level, 0, 1)))


def chunked_means(x: Array, rng: np.random.Generator, resamples: int) -> Array:
    """Means of bootstrap samples, a few at a time."""
    rows = max(1, (1 << 20) // len(x))
    return np.concatenate(
        [bootstrap_samples([x], rng, min(rows, resamples - done)).mean(1) for done in range(0, resamples, rows)]
    )


def lower_bound(
    method: Method,
    values: Array,
    alpha: float,
    *,
    floor: float = -math.inf,
    ceiling: float = math.inf,
    spread: float | None = None,
    unit: str = "episode",
) -> Bound:
    """A bound by name. Betting takes the values in a random order, so that the order of a log does not matter.

    unit: whose values these are, for the assumptions. A bound that the given floor or ceiling does not allow is -inf.
    """
    rng = np.random.default_rng(0)
    compute: dict[Method, tuple[bool, Callable[[], float], str]] = {
        "betting": (
            math.isfinite(floor),
            lambda: betting_lower_bound(rng.permutation(values), floor, alpha, spread),
            f"no {unit}'s difference is below {floor:.4g}",
        ),
        "empirical_bernstein": (
            math.isfinite(floor) and math.isfinite(ceiling),
            lambda: empirical_bernstein_lower_bound(values, floor, ceiling, alpha),
            f"differences lie in [{floor:.4g}, {ceiling:.4g}]",
        ),
        "student": (
            len(values) > 1,
            lambda: float(student_lower_bound(np.asarray(values, dtype=np.float64), alpha)),
            "there are enough of them for a nearly normal mean",
        ),
        "bca": (
            len(values) > 1,
            lambda: bca_lower_bound(values, alpha, rng),
            f"resampled {unit}s vary as new ones would",
        ),
    }
    possible, bound, assumption = compute[method]
    independent = f"{unit}s are independent and identically distributed"
    return Bound(method, bound() if possible else -math.inf, STATUS[method], (independent, assumption))
