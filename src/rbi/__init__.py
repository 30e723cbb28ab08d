"""rbi: better policies from logged experience, without making things worse."""

import rbi.memory  # noqa: F401 - before PyTorch, which reads what it sets
from rbi import measures, runs
from rbi.data.episode import Episode
from rbi.data.formats import load_episodes
from rbi.policy import Policy, load_policy
from rbi.rules.counts import count_bounds
from rbi.rules.kl import backward_kl, forward_kl
from rbi.rules.linear import floor, greedy, max_ppo, max_reroute, max_tv, mix
from rbi.rules.types import PPO, BackwardKL, Behavior, ForwardKL, Greedy, Reroute, Rule, TotalVariation, parse_rule
from rbi.version import __version__

__all__ = [
    "PPO",
    "BackwardKL",
    "Behavior",
    "Episode",
    "ForwardKL",
    "Greedy",
    "Policy",
    "Reroute",
    "Rule",
    "TotalVariation",
    "__version__",
    "backward_kl",
    "count_bounds",
    "floor",
    "forward_kl",
    "greedy",
    "load_episodes",
    "load_policy",
    "max_ppo",
    "max_reroute",
    "max_tv",
    "measures",
    "mix",
    "parse_rule",
    "runs",
]
