"""Lower bounds of a policy's value beside those of vw-estimators, OBP, SCOPE-RL and HCOPE, on the same logs.

One-step episodes with a known truth and logged probabilities of the taken actions. Peers bound the value V(pi), so ours
is used for the value here, too; `rbi.certify` applies it to the gain. Every bound has the level 95%. "missed": share of
repetitions in which a bound exceeds the true value. "width": mean distance below its estimate. "adjusted": the width
after all of its widths were multiplied by the number that makes it miss in exactly 5% of the repetitions.

    python -m benchmarks.coverage_peers               # about twenty minutes on 2 cores
    python -m benchmarks.coverage_peers --sizes 1000
    python -m benchmarks.coverage_peers --ours   # only bounds that need no other package; peers' rows are kept
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks import coverage
from benchmarks.timing import machine, run_peer
from rbi.certification import bounds

HERE = Path(__file__).parent
ALPHA, SIZES, REPETITIONS = 0.05, (1000, 10_000, 100_000), {1000: 200, 10_000: 100, 100_000: 50}
WORLDS = (
    "gain of 10% of 0.5, taken actions logged",
    "gain of 10% of 0.1, taken actions logged",
    "binary rewards",
    "rare lucky action, greedy, worse",
)
HCOPE_SPLIT = 20  # a twentieth of the values selects the threshold at which HCOPE truncates
PROVED = (
    "betting, ours",
    "betting, ours, limited weights",
    "betting, plug-in",
    "empirical Bernstein",
    "HCOPE",
    "Anderson",
)


def hcope_bound(x, alpha):
    """Thomas, Theocharous and Ghavamzadeh, 2015, Theorem 1 with one threshold c, chosen on a twentieth of the values:

        mean min(x, c) - 7 c log(2/alpha) / (3 (n - 1)) - sqrt(2 V log(2/alpha) / n),    V: variance of min(x, c)

    The threshold maximises the bound that the chosen twentieth predicts for the others (their equation 7).
    """
    few = len(x) // HCOPE_SPLIT
    chosen, rest = x[:few], x[few:]
    log, n = math.log(2 / alpha), len(rest)

    def bound(values, c):
        y = np.minimum(values, c)
        return y.mean() - 7 * c * log / (3 * (n - 1)) - math.sqrt(2 * y.var(ddof=1) * log / n)

    thresholds = np.unique(
        np.concatenate([np.quantile(chosen, np.linspace(0.05, 1, 40)), chosen.max() * np.array([1.0, 2.0])])
    )
    thresholds = thresholds[thresholds > 0]
    best = max(thresholds, key=lambda c: bound(chosen, c)) if len(thresholds) else 1.0
    return bound(rest, best)


def ours(world, weights, rewards):
    """By name the estimates and lower bounds of every repetition, by bounds that need no other package."""
    high, (_, w_max) = world.most_reward, world.weights
    half = high / 2
    found = {}

    def add(name, terms, bound):
        found[name] = [(float(x.mean()), float(bound(x))) for x in terms]

    terms, centred = weights * rewards, weights * (rewards - half) + half
    add("betting, ours", terms, lambda x: bounds.betting_lower_bound(x, 0.0, ALPHA, half))
    if math.isfinite(w_max) and w_max <= 2:
        floor = half - w_max * half
        add("betting, ours, limited weights", centred, lambda x: bounds.betting_lower_bound(x, floor, ALPHA, half / 2))
    add("betting, plug-in", terms, lambda x: coverage.plug_in_bound(x, 0.0, ALPHA, half))
    add("empirical Bernstein", terms, lambda x: bounds.empirical_bernstein_lower_bound(x, 0.0, w_max * high, ALPHA))
    add("HCOPE", terms, lambda x: hcope_bound(x, ALPHA))
    add("Anderson", terms, lambda x: coverage.anderson_bound(x, 0.0, ALPHA))
    return found


def of_peers(world, weights, rewards, python):
    """The same by the peers' packages, with their versions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logs.npz"
        w_min, w_max = world.weights
        np.savez(path, weights=weights, rewards=rewards, w_min=w_min, w_max=w_max, most=world.most_reward)
        found = run_peer(python, HERE / "peers" / "ope_bounds.py", path, ALPHA)
    return found["bounds"], found["versions"]


def summarise(world, n, name, values):
    """Missed share, width, and width at equal measured coverage."""
    estimate, lower = np.array(values, float).T
    width, missed = estimate - lower, int((lower > world.value).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.quantile(np.nan_to_num((estimate - world.value) / width), 1 - ALPHA))
    return {
        "world": world.name,
        "episodes": n,
        "bound": name,
        "proved": name in PROVED,
        "repetitions": len(lower),
        "missed": missed / len(lower),
        "holds": bool(stats.binomtest(missed, len(lower), ALPHA, "greater").pvalue > 1e-3),
        "width": float(width.mean()),
        "adjusted": factor * float(width.mean()),
        "below_truth": float((world.value - lower).mean()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--peer", default=".venv-peers/bin/python", help="Python with the peers' packages")
    parser.add_argument("--ours", action="store_true", help="keep the peers' rows of the file: logs are the same")
    parser.add_argument("--out", type=Path, default=coverage.RESULTS / "coverage-peers.json")
    args = parser.parse_args()
    kept = json.loads(args.out.read_text()) if args.ours else {"rows": [], "versions": {}}
    rows, versions = [], kept["versions"]
    for world in coverage.all_worlds(simulated=False):
        if world.name not in WORLDS:
            continue
        for n in args.sizes:
            repetitions = REPETITIONS.get(n, 100)
            weights, rewards = world.logs(np.random.default_rng([1, n]), (repetitions, n))
            found = ours(world, weights, rewards)
            theirs = [
                r for r in kept["rows"] if (r["world"], r["episodes"]) == (world.name, n) and r["bound"] not in found
            ]
            if not args.ours:
                peers, versions = of_peers(world, weights, rewards, args.peer)
                found |= peers
            rows += [summarise(world, n, name, values) for name, values in found.items()] + theirs
            head = {
                "benchmark": "coverage_peers",
                "command": "python -m benchmarks.coverage_peers",
                "machine": machine(),
            }
            args.out.write_text(json.dumps(head | {"versions": versions, "rows": rows}, indent=1) + "\n")
            shown = [
                f"{r['bound']} {r['width']:.4f} ({r['missed']:.3f})"
                for r in rows
                if r["episodes"] == n and r["world"] == world.name
            ]
            print(f"{world.name}, {n:,}: {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
