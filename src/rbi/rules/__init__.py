"""Improvement rules: from a behaviour policy beta and its advantages to a better policy, state by state.

`linear.py` and `divergence.py` hold the rules as functions, `named.py` as values with parameters, `counts.py` bounds
from counts. Beneath them stand
`ranking.py` (the order of actions), `arrays.py` (one arithmetic for three libraries), `checks.py` (what is refused)
and `fused.py` (Max-Reroute as one CUDA kernel).
"""

from rbi.rules.counts import count_bounds
from rbi.rules.kl import backward_kl, forward_kl
from rbi.rules.linear import bcq, floor, greedy, max_ppo, max_reroute, max_tv, mix
from rbi.rules.types import BCQ, PPO, BackwardKL, Behavior, ForwardKL, Greedy, Reroute, Rule, TotalVariation, parse_rule

__all__ = [
    "BCQ",
    "PPO",
    "BackwardKL",
    "Behavior",
    "ForwardKL",
    "Greedy",
    "Reroute",
    "Rule",
    "TotalVariation",
    "backward_kl",
    "bcq",
    "count_bounds",
    "floor",
    "forward_kl",
    "greedy",
    "max_ppo",
    "max_reroute",
    "max_tv",
    "mix",
    "parse_rule",
]
