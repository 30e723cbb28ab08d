"""How often do certify and monitor err where an assumption fails?      python -m benchmarks.assumptions

Customers whose gains differ and who have many rows each, groups of few customers, and losses so rare that the log may
not show them. The new policy prefers action 1, which gains nothing on average in these worlds, or loses: every
"deploy", and every winner of two equal groups, is wrong. docs/concepts/certificates.md has the numbers.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import rbi
from benchmarks.timing import machine
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec

RESULT = Path(__file__).parent / "results" / "assumptions.json"
KNOWN = ("taken", "all")  # whose probabilities were logged
CUSTOMERS = ((20, 100, 0.0, 0.0), (20, 100, 0.2, 0.0), (20, 100, 0.0, 0.1), (200, 10, 0.0, 0.1))
"""Customers, rows of each, the standard deviation of their averages, and what the new policy gains or loses by each."""
MOVED = 0.25  # probability that the new policy moves to action 1
LOSS, LOSSES, EXTRA, DECISIONS = -400.0, 1 / 1000, 0.3, 1000


class PrefersActionOne(rbi.Policy):
    """Reroute(0.5, 1.5) from a uniform beta, with a higher Q of action 1 everywhere."""

    def __init__(self, known):
        networks = make_networks(ObservationSpec((1,), 1, 2), NetworkConfig(4), seed=0)
        super().__init__(networks, rbi.Reroute(0.5, 1.5), behavior="logged" if known == "all" else "cloned")

    def beta_and_q(self, obs, beta=None, legal=None):  # noqa: ARG002 (the rule takes them)
        uniform, q = torch.full((len(obs), 2), 0.5), torch.tensor([[0.0, 0.1]])
        return (uniform if beta is None else beta), q.expand(len(obs), 2).to(uniform if beta is None else beta)


def dataset(actions, rewards, known):
    count = len(actions)
    probs = {"behavior_probs": np.full((count, 2), 0.5)} if known == "all" else {"action_probs": np.full(count, 0.5)}
    return rbi.Dataset.from_arrays(np.ones((count, 1)), actions, rewards, np.ones(count), **probs)


def purchases(rng, customers, rows, averages, gains, actions):
    """Purchases of customers, one after the other; the new policy gains or loses by each with equal probability."""
    average = np.repeat(rng.normal(0, averages, customers), rows)
    effect = np.repeat(rng.choice([-1, 1], customers) * gains / MOVED, rows)  # of action 1 in place of action 0
    return (rng.random(customers * rows) < np.clip(0.5 + average + effect * (actions - 0.5), 0, 1)).astype(float)


def deployed(policy, data, return_range):
    return rbi.certify(policy, data, return_range=return_range, compare=False, accept_equal=True).deploy


def customers_that_differ(known, setting, logs):
    """Of this many logs, those on which a policy is deployed that gains nothing."""
    policy, count = PrefersActionOne(known), 0
    for seed in range(logs):
        rng = np.random.default_rng(seed)
        actions = rng.integers(0, 2, setting[0] * setting[1])
        count += deployed(policy, dataset(actions, purchases(rng, *setting, actions), known), (0, 1))
    return count


def groups_of_customers(shuffled, setting, logs):
    """Of this many comparisons of two groups under the same policy, those in which monitor names a better one."""
    count = 0
    for seed in range(logs):
        rng, groups = np.random.default_rng(1000 + seed), []
        for _ in range(2):
            actions = np.zeros(setting[0] * setting[1], int)
            bought = purchases(rng, *setting, actions)
            groups.append(dataset(actions, rng.permutation(bought) if shuffled else bought, "taken"))
        count += rbi.monitor(*groups, return_range=(0, 1), accept_equal=True).outcome != "continue"
    return count


def rare_losses(known, stated, logs):
    """Of this many logs, those on which a policy is deployed that prefers an action with a rare, large loss."""
    policy, count = PrefersActionOne(known), 0
    for seed in range(logs):
        rng = np.random.default_rng(seed)
        actions = rng.integers(0, 2, DECISIONS)
        rewards = rng.normal(0, 1, DECISIONS).clip(-5, 5) + EXTRA * actions
        rewards[(actions == 1) & (rng.random(DECISIONS) < LOSSES)] = LOSS
        count += deployed(policy, dataset(actions, rewards, known), (-500, 20) if stated else None)
    return count


def all_customers(logs):
    return [
        {"known": known, "customers": n, "rows": rows, "averages": averages, "gains": gains}
        | {"deployed": customers_that_differ(known, (n, rows, averages, gains), logs)}
        for known in KNOWN
        for n, rows, averages, gains in CUSTOMERS
    ]


def all_groups(logs):
    few = CUSTOMERS[1]
    return [
        {"shuffled": shuffled, "averages": setting[2], "decided": groups_of_customers(shuffled, setting, logs)}
        for shuffled, setting in ((False, CUSTOMERS[0]), (False, few), (True, few))
    ]


def all_rare_losses(logs):
    return [
        {"known": known, "stated_range": stated, "deployed": rare_losses(known, stated, logs)}
        for known in KNOWN
        for stated in (True, False)
    ]


PARTS = {"customers": all_customers, "groups": all_groups, "rare_losses": all_rare_losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=300, help="of each setting")
    parser.add_argument("--only", choices=tuple(PARTS), help="one part; the others stay as they were measured before")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.only else {}
    parts = (args.only,) if args.only else tuple(PARTS)
    found |= {"command": "python -m benchmarks.assumptions", "logs": args.logs}
    found["machines"] = found.get("machines", {}) | dict.fromkeys(parts, machine())
    found |= {part: PARTS[part](args.logs) for part in parts}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({part: found[part] for part in parts}, indent=1))


if __name__ == "__main__":
    main()
