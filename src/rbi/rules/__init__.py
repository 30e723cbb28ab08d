"""Improvement rules: from a behaviour policy beta and its advantages to a better policy, state by state.

`linear.py` and `kl.py` hold the rules as functions, `types.py` as values with parameters, `counts.py` bounds from visit
counts, and `arrays.py` the shared array code.
"""

from rbi.rules.counts import count_bounds
from rbi.rules.kl import backward_kl, forward_kl
from rbi.rules.linear import bcq, behavior, floor, greedy, max_ppo, max_reroute, max_tv, mix
from rbi.rules.types import (
    BCQ,
    PPO,
    BackwardKL,
    Behavior,
    CountAware,
    ForwardKL,
    Greedy,
    Reroute,
    Rule,
    TotalVariation,
    parse_rule,
    register_rule,
)

__all__ = [
    "BCQ",
    "PPO",
    "BackwardKL",
    "Behavior",
    "CountAware",
    "ForwardKL",
    "Greedy",
    "Reroute",
    "Rule",
    "TotalVariation",
    "backward_kl",
    "bcq",
    "behavior",
    "count_bounds",
    "floor",
    "forward_kl",
    "greedy",
    "max_ppo",
    "max_reroute",
    "max_tv",
    "mix",
    "parse_rule",
    "register_rule",
]
