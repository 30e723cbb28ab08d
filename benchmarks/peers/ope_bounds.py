"""Lower bounds of a value by vw-estimators, OBP and SCOPE-RL, for benchmarks/coverage_peers.py; runs in its own
environment.

.venv-peers/bin/python benchmarks/peers/ope_bounds.py LOGS.npz ALPHA

The archive holds weights and rewards `[repetitions, episodes]`, the possible weights and the largest reward. Intervals
are two-sided at 2 ALPHA, so that their lower ends have level ALPHA. Printed: by method the estimates and lower bounds.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
from estimators.bandits import clopper_pearson, cressieread, gaussian
from obp.utils import estimate_confidence_interval_by_bootstrap
from scope_rl import utils as scope

RESAMPLED_NUMBERS = 2_000_000  # of one bootstrap; at least 100 and at most 1,000 samples

logs = np.load(sys.argv[1])
alpha = float(sys.argv[2])
weights, rewards = logs["weights"], logs["rewards"]
w_min, w_max, most = (float(logs[name]) for name in ("w_min", "w_max", "most"))


def cressie_read(w, r):
    """`add_example` for all rows at once: it only adds to these sums."""
    interval = cressieread.Interval(w_min, w_max, 0.0, most)
    estimate = cressieread.Estimator(w_min, w_max)
    for found in (interval._impl, estimate._impl):
        found.n += len(w)
        found.sumw += float(w.sum())
        found.sumwsq += float((w**2).sum())
        found.sumwr += float((w * r).sum())
        found.sumwsqr += float((w**2 * r).sum())
    interval._impl.sumwsqrsq += float((w**2 * r**2).sum())
    estimate._impl.sumr += float(r.sum())
    return estimate.get(), interval.get(2 * alpha)[0]


def normal(w, r):
    found = gaussian.Interval()
    found.examples_count, found.weighted_reward = len(w), float((w * r).sum())
    found.weighted_reward_sq = float(((w * r) ** 2).sum())
    return float((w * r).mean()), found.get(2 * alpha)[0]


def binomial(w, r):
    found = clopper_pearson.Interval(0.0, most)
    found.examples_count, found.weighted_reward, found.max_weight = len(w), float((w * r).sum() / most), float(w.max())
    return float((w * r).mean()), float(found.get(2 * alpha)[0])


def of_samples(interval, level=2 * alpha, **options):
    def bound(w, r):
        found = interval(w * r, alpha=level, **options)
        return float((w * r).mean()), float(next(value for name, value in found.items() if "lower" in name))

    return bound


resamples = int(np.clip(RESAMPLED_NUMBERS // weights.shape[1], 100, 1000))
methods = {
    "Cressie-Read (vw-estimators)": cressie_read,
    "Gaussian (vw-estimators)": normal,
    "Clopper-Pearson (vw-estimators)": binomial,
    "bootstrap (OBP)": of_samples(
        estimate_confidence_interval_by_bootstrap, n_bootstrap_samples=resamples, random_state=0
    ),
    "Hoeffding (SCOPE-RL)": of_samples(scope.estimate_confidence_interval_by_hoeffding),
    "empirical Bernstein (SCOPE-RL)": of_samples(scope.estimate_confidence_interval_by_empirical_bernstein),
    "Student (SCOPE-RL)": of_samples(scope.estimate_confidence_interval_by_t_test, alpha),
}
bounds = {name: [method(w, r) for w, r in zip(weights, rewards, strict=True)] for name, method in methods.items()}
versions = {name: version(name) for name in ("vw-estimators", "obp", "scope-rl", "numpy", "scipy")}
print(json.dumps({"bounds": bounds, "versions": versions}))
