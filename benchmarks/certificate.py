"""How much of a policy's true gain is certified, by the number of logged decisions? python -m benchmarks.certificate

One policy of the simulated shop (examples/logged_decisions.py), certified on fresh logs of several sizes. The figure in
docs/concepts/certificates.md shows the result (docs/figures.py draws it).
"""

import argparse
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import rbi
from benchmarks.timing import machine

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "certificate.json"
SHOP = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "logged_decisions.py")))
KINDS = np.eye(len(SHOP.OLD), dtype=np.float32)  # observations: the kind of customer, one-hot
SIZES, LOGS = (250, 500, 1000, 2500, 5000, 10_000, 20_000), 50


def logged(rows, seed):
    """Decisions of the old system."""
    rng = np.random.default_rng(seed)
    kinds = SHOP.customers(rows, rng)
    offers = (rng.random((rows, 1)) > SHOP.OLD[kinds].cumsum(1)).sum(1)
    paid = rng.random(rows) < SHOP.BUYS[kinds, offers]
    return rbi.Dataset.from_arrays(KINDS[kinds], offers, paid, np.ones(rows), action_probs=SHOP.OLD[kinds, offers])


def improved_policy():
    """The policy to certify, and its true gain."""
    policy = rbi.improve(logged(5000, 0), rbi.Reroute(0.2, 3), updates=1000, progress=False).policy
    return policy, float(SHOP.value(policy.predict_proba(KINDS)) - SHOP.value(SHOP.OLD))


def lower_bound(policy, size, log):
    """The certified gain on one log."""
    seed = 1 + SIZES.index(size) * LOGS + log
    return rbi.certify(policy, logged(size, seed), return_range=(0, 1), compare=False).lower


def measure():
    policy, gain = improved_policy()
    lower = {str(size): [lower_bound(policy, size, log) for log in range(LOGS)] for size in SIZES}
    return {"true_gain": gain, "lower": lower}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    found = {"command": "python -m benchmarks.certificate", "machine": machine()} | measure()
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    above = np.mean(np.array(list(found["lower"].values())) > found["true_gain"])
    print(f"{above:.1%} of the bounds are above the true gain: {args.out}")


if __name__ == "__main__":
    main()
