"""Logged decisions of a web shop whose truth is known, for docs/deploy.md: customers, offers, and who buys.

    python logged_decisions.py log decisions.csv --rows 20000        # what the old system did
    python logged_decisions.py truth runs/better                     # exact values of the old policy and of a saved one
    python logged_decisions.py live http://127.0.0.1:8000 --rows 500 # customers who ask examples/serve.py for an offer

There are 3 segments x 10 numbers of visits = 30 kinds of customers, so every value is a sum and not an estimate.
"""

import argparse
import csv
import itertools
import json
import urllib.request
from pathlib import Path

import numpy as np

SEGMENTS, VISITS = ("new", "regular", "vip"), range(10)
OFFERS = ("bundle", "discount", "none")
KINDS = list(itertools.product(SEGMENTS, VISITS))
SHARE = np.array([{"new": 0.5, "regular": 0.35, "vip": 0.15}[segment] / len(VISITS) for segment, _ in KINDS])


def buys(segment, visits):
    """The probabilities of a purchase after bundle, discount and no offer: what nobody knows."""
    base = {"new": 0.05, "regular": 0.15, "vip": 0.30}[segment]
    bundle = 0.02 * visits if segment != "new" else -0.04  # for customers who come back
    discount = 0.15 - 0.015 * visits  # for those who hardly know the shop
    return base + np.array([bundle, discount, 0.0])


def old_policy(segment):
    """What the shop does today: mostly nothing, more discounts for regular customers, and some of everything."""
    return np.array([0.2, 0.4, 0.4] if segment == "regular" else [0.2, 0.2, 0.6])


BUYS = np.array([buys(*kind) for kind in KINDS])  # [30, 3]
OLD = np.array([old_policy(segment) for segment, _ in KINDS])


def value(probs):
    """The exact value of a policy `[30, 3]`: purchases per customer."""
    return float(SHARE @ (probs * BUYS).sum(1))


def customers(rows, rng):
    return rng.choice(len(KINDS), rows, p=SHARE / SHARE.sum())


def log(path, rows, seed):
    """Decisions of the old system, with the probability of each, as CSV or JSON lines."""
    rng = np.random.default_rng(seed)
    with Path(path).open("w", newline="") as file:
        names = ("segment", "visits", "action", "action_prob", "reward")
        writer = csv.DictWriter(file, names)
        if not path.endswith(".jsonl"):
            writer.writeheader()
        for kind in customers(rows, rng):
            offer = rng.choice(len(OFFERS), p=OLD[kind])
            paid = int(rng.random() < BUYS[kind, offer])
            row = dict(zip(names, (*KINDS[kind], OFFERS[offer], float(OLD[kind, offer]), paid), strict=True))
            file.write(json.dumps(row) + "\n") if path.endswith(".jsonl") else writer.writerow(row)
    print(f"{rows:,} decisions of the old system: {path}")


def probabilities(policy):
    """Those of a saved policy for all kinds of customers, `[30, 3]`."""
    import pyarrow as pa

    segments, visits = zip(*KINDS, strict=True)
    return policy.predict_proba(pa.table({"segment": segments, "visits": visits}))


def truth(path):
    """The exact value of a saved policy next to that of the old one and of the best possible."""
    import rbi

    new, best = value(probabilities(rbi.load_policy(path))), float(SHARE @ BUYS.max(1))
    print(f"purchases per 1,000 customers: old {1000 * value(OLD):.1f}, new {1000 * new:.1f}, ", end="")
    print(f"best possible {1000 * best:.1f}; true gain per customer {new - value(OLD):+.4f}")


def live(url, rows, seed):
    """Customers who ask the server for an offer, and then buy or do not."""
    rng = np.random.default_rng(seed)
    paid = 0
    for kind in customers(rows, rng):
        segment, visits = KINDS[kind]
        decision = post(f"{url}/decide", {"segment": segment, "visits": visits})
        reward = int(rng.random() < BUYS[kind, OFFERS.index(decision["action"])])
        post(f"{url}/outcome", {"id": decision["id"], "reward": reward})
        paid += reward
    print(f"{rows:,} customers, {paid:,} purchases")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("log", "truth", "live"))
    parser.add_argument("target", help="a file to write, a saved policy, or the address of the server")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.task == "truth":
        truth(given.target)
    else:
        {"log": log, "live": live}[given.task](given.target, given.rows, given.seed)
