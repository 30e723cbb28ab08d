"""How many episodes does monitor need, and are its bounds narrow?      python -m benchmarks.monitor

Widths of confidence sequences for one mean, beside published ones; how often they exclude the true mean at some time;
the number of live episodes until the alarm after a drop. docs/howto/certify.md and decision 028 have the numbers.
"""

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.timing import machine
from rbi.certification import bounds
from rbi.certification.monitor import bounds_over_time, difference_over_time

RESULT = Path(__file__).parent / "results" / "monitor.json"
ALPHA, SPREAD = 0.05, 0.25
SHAPES = {  # of returns in [0, 1]
    "success of 50%": lambda rng, shape: (rng.random(shape) < 0.5).astype(float),
    "success of 5%": lambda rng, shape: (rng.random(shape) < 0.05).astype(float),
    "normal, sd 0.15": lambda rng, shape: rng.normal(0.5, 0.15, shape).clip(0, 1),
    "exponential, mean 0.1": lambda rng, shape: rng.exponential(0.1, shape).clip(0, 1),
    "95% zeros": lambda rng, shape: np.where(rng.random(shape) < 0.05, rng.random(shape), 0.0),
    "uniform in 0.45 to 0.55": lambda rng, shape: rng.uniform(0.45, 0.55, shape),
    "uniform in 0.02 to 0.04": lambda rng, shape: rng.uniform(0.02, 0.04, shape),
}
MEANS = (0.5, 0.05, 0.5, 0.1 * (1 - math.exp(-10)), 0.025, 0.5, 0.03)
REPETITIONS = {30: 100, 100: 100, 300: 50, 1000: 25, 10_000: 6}
GROUPS, PAIRS = ((100, 100), (300, 300), (1000, 1000), (300, 1200), (300, 6000)), 20
COVERED, HORIZON = 4000, 3000  # samples and values of each for the coverage
RATE, DROPS = 0.3, (0.05, 0.1, 0.2)  # of success
SETTINGS = {"old value": 0, "control of the same size": 1, "5% of traffic": 19}  # control episodes per live episode
LONGEST, COMPARISONS, EQUAL = 12_800, 60, 100


# Other sequences: a lower bound of the mean of each row, above 0, that holds at all times together


def bisect(rejects, x, steps=24):
    low, high = np.full(len(x), 1e-9), x.mean(1).clip(1e-9)
    for _ in range(steps):
        middle = (low + high) / 2
        rejected = rejects(middle[:, None])
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return low


def sigma_before(x):
    return bounds.predictable_std(x, np.arange(x.shape[1]), SPREAD)


def mean_before(x):
    """The mean of the values before each, and of one guess of 1/2."""
    t = np.arange(1, x.shape[1] + 1)
    return (0.5 + x.cumsum(1) - x) / t


def ours(x, alpha):
    return np.array([bounds.lower_confidence_sequence(row, 0.0, alpha, SPREAD, [len(row)])[0] for row in x])


def plug_in(x, alpha):
    """Predictable plug-in bets (Waudby-Smith and Ramdas, 2024), which monitor had before."""
    t = np.arange(1, x.shape[1] + 1)
    bets = np.sqrt(2 * math.log(1 / alpha) / (t * np.log1p(t))) / sigma_before(x)
    path = lambda m: np.log1p(np.minimum(bets, 0.9 / m) * (x - m)).cumsum(1)  # noqa: E731
    return bisect(lambda m: path(m).max(1) >= -math.log(alpha), x)


def approximate_kelly(x, alpha):
    """Their approximate GRAPA bets, with at most 3/4 of the capital."""
    mean, variance = mean_before(x), sigma_before(x) ** 2
    bets = lambda m: np.clip((mean - m) / (variance + (mean - m) ** 2), 0, 0.75 / m)  # noqa: E731
    return bisect(lambda m: np.log1p(bets(m) * (x - m)).cumsum(1).max(1) >= -math.log(alpha), x)


def universal_portfolio(x, alpha):
    """Cover's: all constant fractions of the capital, equally weighted."""

    def rejects(m):
        with np.errstate(over="ignore"):
            paths = (np.exp(np.log1p(f / m * (x - m)).cumsum(1)) for f in (np.arange(50) + 0.5) / 50)
            return (sum(paths) / 50).max(1) >= 1 / alpha

    return bisect(rejects, x, 16)


def empirical_bernstein(x, alpha):
    """The sub-exponential mixture of Howard et al. (2021) on a grid, with their empirical variance."""
    variance = np.square(x - mean_before(x)).cumsum(1)[:, -1:]
    bets = np.minimum(2.0 ** -np.arange(14), 0.95)
    exponents = lambda m: bets * (x - m).sum(1, keepdims=True) + (np.log1p(-bets) + bets) * variance  # noqa: E731
    return bisect(lambda m: np.exp(exponents(m).clip(max=700)).mean(1) >= 1 / alpha, x)


def asymptotic(x, alpha):
    """Waudby-Smith et al. (2024), tuned to 500 values: no proof for few values."""
    n, level = x.shape[1], 2 * alpha
    rho = (-2 * math.log(level) + math.log(-2 * math.log(level)) + 1) / 500
    return x.mean(1) - x.std(1) * math.sqrt(
        2 * (n * rho + 1) / (n * n * rho) * math.log(math.sqrt(n * rho + 1) / level)
    )


def one_look(x, alpha):
    """The normal bound for a single look, which no sequence reaches."""
    assert alpha == ALPHA
    return x.mean(1) - 1.645 * x.std(1) / math.sqrt(x.shape[1])


METHODS = (ours, plug_in, approximate_kelly, universal_portfolio, empirical_bernstein, asymptotic, one_look)


def widths(shape):
    """The mean distance of lower and upper bounds, of each method and number of values."""
    found = []
    for n, repetitions in REPETITIONS.items():
        x = SHAPES[shape](np.random.default_rng(n), (repetitions, n))
        for method in METHODS:
            lower, upper = method(x, ALPHA).clip(0), 1 - method(1 - x, ALPHA).clip(0)
            row = {"shape": shape, "episodes": n, "method": method.__name__}
            found.append(row | {"width": float((upper - lower).mean())})
    return found


def plug_in_difference(new, control, alpha):
    """Bounds of the difference as monitor had them before: half of the error for each group."""
    lower = lambda x: plug_in(x[None], alpha / 2)[0]  # noqa: E731
    return lower(new) - 1 + lower(1 - control), 1 - lower(1 - new) - lower(control)


def group_widths(shape):
    """The mean distance of lower and upper bounds of the difference of two groups of these sizes."""
    found = []
    for sizes in GROUPS:
        rng, total = np.random.default_rng(sum(sizes)), np.zeros(2)
        for _ in range(PAIRS):
            samples = [SHAPES[shape](rng, n) for n in sizes]
            ours = difference_over_time(samples, (0.0, 1.0), ALPHA, [np.array([n]) for n in sizes])
            before = plug_in_difference(*samples, ALPHA)
            total += [ours[1][-1] - ours[0][-1], before[1] - before[0]]
        found.append({"shape": shape, "groups": sizes, "width": total[0] / PAIRS, "plug_in": total[1] / PAIRS})
    return found


def coverage(shape):
    """Of many samples, those whose bounds exclude the true mean at some time."""
    rng, mean, misses = np.random.default_rng(1), MEANS[list(SHAPES).index(shape)], [0, 0]
    for _ in range(COVERED):
        x = SHAPES[shape](rng, HORIZON)
        for side, (values, m) in enumerate(((x, mean), (1 - x, 1 - mean))):
            peak = bounds.mixture_capital(values, sigma_before(values[None])[0], m, 0.0).max()
            misses[side] += int(peak >= 1 / ALPHA)
    return {
        "shape": shape,
        "samples": COVERED,
        "episodes": HORIZON,
        "lower_misses": misses[0],
        "upper_misses": misses[1],
    }


def upper_bound(live, control, alpha=ALPHA):
    """Of the gain: monitor's."""
    n, m = (np.array([len(values)]) for values in (live, control))
    if not len(control):
        return bounds_over_time(live, (0.0, 1.0), alpha, n)[1][-1] - RATE
    return difference_over_time([live, control], (0.0, 1.0), alpha, [n, m])[1][-1]


def plug_in_upper_bound(live, control, alpha=ALPHA):
    """The one that monitor had before: half of the error for each group."""
    return plug_in_difference(live, control, alpha)[1] if len(control) else 1 - plug_in(1 - live[None], alpha)[0] - RATE


def episodes_until_alarm(bound, setting, drop, seed):
    """Live episodes until the alarm: no alarm is withdrawn later, so that doubling and bisection find the first."""
    rng, each = np.random.default_rng(seed), SETTINGS[setting]
    live = (rng.random(LONGEST) < RATE - drop).astype(float)
    control = (rng.random(LONGEST * each) < RATE).astype(float)
    low, high = 0, 25
    while high < LONGEST and bound(live[:high], control[: each * high]) >= 0:
        low, high = high, 2 * high
    while high < LONGEST and high - low > max(1, high // 30):
        middle = (low + high) // 2
        low, high = (low, middle) if bound(live[:middle], control[: each * middle]) < 0 else (middle, high)
    return min(high, LONGEST)


def detection(bound, setting, drop):
    """Quantiles of the number of live episodes until the alarm; `LONGEST` if there was none."""
    found = [episodes_until_alarm(bound, setting, drop, seed) for seed in range(COMPARISONS)]
    median, most = np.quantile(found, (0.5, 0.9), method="higher").tolist()
    row = {"bound": bound.__name__, "against": setting, "drop": drop, "comparisons": COMPARISONS}
    return row | {"median": median, "90%": most}


def false_alarms(setting):
    """Of many comparisons of equal policies, those with an alarm at some time."""
    count = 0
    for seed in range(EQUAL):
        rng = np.random.default_rng(seed)
        live, control = ((rng.random(HORIZON * each) < RATE).astype(float) for each in (1, SETTINGS[setting]))
        count += bool(upper_bound(live, control) < 0)
    return {"against": setting, "comparisons": EQUAL, "episodes": HORIZON, "alarms": count}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", choices=("widths", "groups", "coverage", "detection", "false_alarms"), help="one part"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.only and args.out.exists() else {}
    found |= {"command": "python -m benchmarks.monitor", "machine": machine()}
    cases = list(product((upper_bound, plug_in_upper_bound), SETTINGS, DROPS))
    with ProcessPoolExecutor() as pool:
        if args.only in (None, "widths"):
            found["widths"] = [row for rows in pool.map(widths, SHAPES) for row in rows]
        if args.only in (None, "groups"):
            found["groups"] = [row for rows in pool.map(group_widths, SHAPES) for row in rows]
        if args.only in (None, "coverage"):
            found["coverage"] = list(pool.map(coverage, SHAPES))
        if args.only in (None, "detection"):
            found["detection"] = list(pool.map(detection, *zip(*cases, strict=True)))
        if args.only in (None, "false_alarms"):
            found["false_alarms"] = list(pool.map(false_alarms, SETTINGS))
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
