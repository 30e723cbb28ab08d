"""Logs with a known truth, and policies whose beta and Q are tables over one-hot states."""

import numpy as np
import torch

import rbi
from rbi.data.dataset import Dataset
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy

MEANS = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.2]])
"""Mean reward of each action in two states."""
BETA = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])


class TablePolicy(Policy):
    """beta and Q `[S, A]` of one-hot states."""

    def __init__(self, beta, q, rule="reroute(0.5,1.5)", **options):
        networks = make_networks(ObservationSpec((len(beta),), 1, beta.shape[1]), NetworkConfig(4), 0)
        super().__init__(networks, rbi.parse_rule(rule), **options)
        self.tables = [torch.as_tensor(table, dtype=torch.float32) for table in (beta, q)]

    def beta_and_q(self, obs, beta=None, legal=None):  # noqa: ARG002 (its rule takes them)
        found = [obs[:, -1] @ table for table in self.tables]
        return (found[0] if beta is None else beta), found[1]


def bandit_log(seed=0, episodes=2000, means=MEANS, beta=BETA, logged="taken", steps=1):
    """A log of episodes with independent steps and binary rewards; `logged`: which probabilities."""
    rng, count = np.random.default_rng(seed), episodes * steps
    x = rng.integers(0, len(beta), count)
    actions = (rng.random((count, 1)) > beta[x].cumsum(1)).sum(1)
    rewards = rng.random(count) < means[x, actions]
    ends = np.arange(count) % steps == steps - 1
    probs = {
        "taken": {"action_probs": beta[x, actions]},
        "all": {"behavior_probs": beta[x]},
        "estimated": {},
    }[logged]
    return Dataset.from_arrays(np.eye(len(beta))[x], actions, rewards, ends, num_actions=beta.shape[1], **probs)


def true_gain(rule, means=MEANS, beta=BETA, q=None):
    """V(pi) - V(beta) with states equally likely."""
    pi = rbi.parse_rule(rule)(beta, means if q is None else q)
    return float(((pi - beta) * means).sum(1).mean())
