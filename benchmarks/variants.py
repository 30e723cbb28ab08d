"""Variants of the preset `fast` that benchmarks compare: the settings that each one changes."""

from typing import Any

FRESH = {  # each state is sampled four times, soon after it was collected
    "states_per_update": 64.0,
    "batch_size": 256,
    "learning_rate": 5e-4,
    "target_update_interval": 200,
    "capacity": 250_000,
}
STORED = {"improve_in": "actor", "bootstrap_policy": "stored"}  # the policy at the time of acting, as in the paper

VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "cmax2": {"rule": "reroute(0.1,2)"},
    "stored": STORED,
    "stored-cmax2": STORED | {"rule": "reroute(0.1,2)"},
    "bootstrap-stored": {"bootstrap_policy": "stored"},
    "bootstrap-net": {"bootstrap_policy": "net"},
    "learner": {"improve_in": "learner"},
    "greedy.3": {"c_greedy": 0.3},
    "n5": {"n_step": 5},
    "n10": {"n_step": 10},
    "target500": {"target_update_interval": 500},
    "target200": {"target_update_interval": 200},
    "target2000": {"target_update_interval": 2000},
    "replay250k": {"capacity": 250_000},
    "rate5": {"learning_rate": 5e-4},
    "nowpi": {"policy_weighting": False},
    "pi": {"advantage_baseline": "pi"},
    "uniform": {"priority_exponent": 0.0},
    "fresh": FRESH,
    "unshifted": {"augmentation": 0},
    "without-norm": {"norm": "none"},
    # the preset before layer norm and augmentation
    "plain": {"norm": "none", "augmentation": 0, "learning_rate": 1e-4, "final_lr_fraction": 1.0},
}
