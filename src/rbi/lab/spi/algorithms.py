"""Algorithms for safe policy improvement from logged data: policy iteration in reroute sets (SPIBB, RBI, count-aware).

Most of them are policy iteration in an estimated MDP, constrained to a reroute set of the baseline: c_min <= pi/beta <=
c_max. Basic RL has no constraint, SPIBB frees pairs with many samples, the paper's reroute has the same bounds for all
pairs, and count-aware reroute has bounds that depend on counts. Every algorithm takes `LogStatistics` and returns
policies `[W, D, S, A]`, for many datasets at once. Published algorithms of other kinds are in `peers`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rbi.lab.mdp import MDP, Floats, q_values, values
from rbi.lab.spi.worlds import Logs, Task, count_transitions, estimate_model, every_visit_monte_carlo
from rbi.rules.counts import count_bounds
from rbi.rules.linear import greedy, max_reroute

MAX_ITERATIONS = 100
PRIOR = 10.0  # pseudo-counts of the shrunken model (docs/count-aware.md)
TOLERANCE = 1e-9  # of Q-values: policy iteration has converged

Improve = Callable[[Floats, Floats, np.ndarray], Floats]  # Q-values, the policy, which datasets -> a new policy


@dataclass(frozen=True)
class LogStatistics:
    """What an algorithm knows: the baseline, the logs, and the maximum-likelihood model."""

    task: Task
    logs: Logs

    @cached_property
    def counts(self) -> np.ndarray:
        """Counts of (s, a, s'), `[W, D, S, A, S + 1]`; the last successor is termination."""
        return count_transitions(self.logs)

    @cached_property
    def pair_counts(self) -> np.ndarray:
        """Counts of (s, a), `[W, D, S, A]`."""
        found: np.ndarray = self.counts.sum(-1)
        return found

    @cached_property
    def model(self) -> MDP:
        """Maximum-likelihood MDP of each dataset."""
        return estimate_model(self.task, self.counts)

    @cached_property
    def beta(self) -> Floats:
        """The baseline of each dataset, `[W, D, S, A]`."""
        return np.broadcast_to(self.task.beta, self.pair_counts.shape)


def baseline(data: LogStatistics) -> Floats:
    """The behavior policy of the logs."""
    return data.beta


def basic_rl(data: LogStatistics) -> Floats:
    """The optimal policy of the estimated MDP."""
    return policy_iteration(data.model, data.beta, lambda q, pi, _: greedy(pi, q, check=False))


def pi_b_spibb(data: LogStatistics, n_wedge: float) -> Floats:
    """Pi_b-SPIBB: pairs with more than n_wedge samples are free, all others keep the baseline's probability."""
    known = data.pair_counts > n_wedge
    return constrained_policy_iteration(data.model, data.beta, np.where(known, 0.0, 1.0), free_where(known, data.beta))


def pi_le_b_spibb(data: LogStatistics, n_wedge: float) -> Floats:
    """Pi_<=b-SPIBB: pairs with more than n_wedge samples are free, others may not exceed the baseline's probability."""
    c_max = free_where(data.pair_counts > n_wedge, data.beta)
    return constrained_policy_iteration(data.model, data.beta, np.zeros(data.beta.shape), c_max)


def rbi_monte_carlo(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """The paper's step: Max-Reroute with Monte-Carlo Q-values of the baseline."""
    return max_reroute(data.beta, every_visit_monte_carlo(data.task, data.logs), c_min, c_max, check=False)


def rbi_model(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """The paper's step with the baseline's Q-values in the estimated MDP."""
    return max_reroute(data.beta, q_values(data.model, data.beta), c_min, c_max, check=False)


def rbi_iterated(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """Policy iteration constrained to the reroute set of the baseline."""
    shape = data.beta.shape
    return constrained_policy_iteration(data.model, data.beta, np.full(shape, c_min), np.full(shape, c_max))


def count_aware(data: LogStatistics, tau: float) -> Floats:
    """Policy iteration in the shrunken model, constrained to the count-aware reroute set; see docs/count-aware.md."""
    c_min, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    return constrained_policy_iteration(shrunken_model(data), data.beta, c_min, c_max)


def count_aware_draining(data: LogStatistics, tau: float) -> Floats:
    """Ablation of `count_aware` without c_min: untried actions may lose probability. Not a safe method."""
    c_min, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    return constrained_policy_iteration(shrunken_model(data), data.beta, np.zeros_like(c_min), c_max)


def shrunken_model(data: LogStatistics) -> MDP:
    """The estimated MDP with PRIOR pseudo-samples of every pair that follow the baseline's transitions in that state.

    An untried pair then has its state's value instead of 0. Rewards are reduced by the prior's share times sigma / (n +
    PRIOR), where sigma is the standard deviation of r + gamma V(s') pooled over all pairs: the fewer samples, the
    larger the penalty.
    """
    model, n = data.model, data.pair_counts
    weight = data.beta * (n > 0)
    weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-12)
    prior_transitions = weight[..., None, :] @ model.transitions  # [W, D, S, 1, S]
    prior_rewards = (weight * model.rewards).sum(-1, keepdims=True)
    share = PRIOR / (n + PRIOR)
    transitions = (1 - share)[..., None] * model.transitions + share[..., None] * prior_transitions
    penalty = pooled_std(data)[..., None, None] * share / (n + PRIOR)
    rewards = (1 - share) * model.rewards + share * prior_rewards - penalty
    return MDP(transitions, rewards, model.start, model.discount)


def pooled_std(data: LogStatistics) -> Floats:
    """Standard deviation `[W, D]` of r + gamma V^beta(s') around the mean of each pair, pooled over all pairs."""
    v = values(data.model, data.beta)
    targets = data.task.arrival + data.model.discount * np.concatenate([v, np.zeros_like(v[..., :1])], -1)
    total = data.counts @ targets[..., None, :, None]
    squares = data.counts @ (targets**2)[..., None, :, None]
    n = data.pair_counts
    within = squares[..., 0] - total[..., 0] ** 2 / np.maximum(n, 1)
    freedom = np.maximum(n - 1, 0).sum((-2, -1))
    return np.sqrt(np.maximum(within.sum((-2, -1)), 0) / np.maximum(freedom, 1))


def constrained_policy_iteration(mdp: MDP, beta: Floats, c_min: Floats, c_max: Floats) -> Floats:
    """Policy iteration constrained to the reroute set c_min <= pi/beta <= c_max, all `[W, D, S, A]`."""
    _, _, S, A = beta.shape
    base, low, high = (x.reshape(-1, S, A) for x in (beta, c_min, c_max))
    return policy_iteration(mdp, beta, lambda q, _, at: max_reroute(base[at], q, low[at], high[at], check=False))


def policy_iteration(mdp: MDP, beta: Floats, improve: Improve) -> Floats:
    """Evaluate and improve from the baseline until Q converges, for all datasets together, each as long as it needs."""
    *_, S, A = beta.shape
    transitions, rewards = mdp.transitions.reshape(-1, S, A, S), mdp.rewards.reshape(-1, S, A)
    pi = beta.reshape(-1, S, A).copy()
    active, before = np.arange(len(pi)), np.full(rewards.shape, np.inf)
    for _ in range(MAX_ITERATIONS):
        part = transitions if active.size == len(pi) else transitions[active]
        q = evaluate(part, rewards[active], mdp.discount, pi[active])
        changed = abs(q - before).max((1, 2)) > TOLERANCE
        active, before = active[changed], q[changed]
        if not active.size:
            break
        pi[active] = improve(before, pi[active], active)
    return pi.reshape(beta.shape)


def evaluate(transitions: Floats, rewards: Floats, discount: float, pi: Floats) -> Floats:
    """Q^pi `[M, S, A]`: `q_values` without the checks of an MDP, for the inner loop."""
    M, S, A = rewards.shape
    bellman = np.eye(S) - discount * (pi[:, :, None, :] @ transitions)[:, :, 0]
    v = np.linalg.solve(bellman, (pi * rewards).sum(-1)[..., None])
    return rewards + discount * (transitions.reshape(M, S * A, S) @ v).reshape(M, S, A)


def free_where(known: np.ndarray, beta: Floats) -> Floats:
    """c_max that lets known actions take all probability and limits all others to beta."""
    return np.where(known & (beta > 0), 1 / np.where(beta > 0, beta, 1.0), 1.0)
