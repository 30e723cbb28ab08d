"""The paper's algorithms as the paper writes them: one state, one while-loop. References for the tests."""

from fractions import Fraction

import numpy as np


def best_first(advantage, among):
    """arg max, and of equals the lowest index (the paper leaves ties open)."""
    return min(among, key=lambda a: (-advantage[a], a))


def worst_first(advantage, among):
    """arg min, and of equals the highest index: the same order from its other end."""
    return max(among, key=lambda a: (-advantage[a], a))


def max_reroute(beta, advantage, c_min, c_max):
    """Algorithm Max-Reroute; bounds may be given per action."""
    c_min, c_max = np.broadcast_to(c_min, beta.shape), np.broadcast_to(c_max, beta.shape)
    actions = set(range(len(beta)))
    pi = c_min * beta
    left = 1 - sum(c_min * beta)
    while left > 0 and actions:
        a = best_first(advantage, actions)
        more = min(left, (c_max[a] - c_min[a]) * beta[a])
        actions -= {a}
        left -= more
        pi[a] += more
    return pi


def max_tv(beta, advantage, delta):
    """Algorithm Max-TV."""
    actions = set(range(len(beta)))
    pi = beta.copy()
    a = best_first(advantage, actions)
    left = min(delta, 1 - beta[a])
    pi[a] += left
    while left > 0 and actions:
        a = worst_first(advantage, actions)
        less = min(left, beta[a])
        actions -= {a}
        left -= less
        pi[a] -= less
    return pi


def max_ppo(beta, advantage, epsilon):
    """Algorithm Ad hoc PPO Maximization, on centred advantages, with the actions that beta never takes left out."""
    supported = {a for a in range(len(beta)) if beta[a] > 0}
    actions = positive_actions(beta, advantage, supported)
    if not actions:
        return beta.copy()
    pi = np.zeros_like(beta)
    left = 1.0
    while left > 0 and actions:
        a = best_first(advantage, actions)
        more = min(left, (1 + epsilon) * beta[a])
        actions -= {a}
        left -= more
        pi[a] += more
    pi[best_first(advantage, supported)] += left
    return pi


def positive_actions(beta, advantage, supported):
    """The actions with A(a) > sum_a beta(a) A(a), in exact arithmetic.

    A floating-point mean of equal advantages can lie below all of them. The inputs are floating-point numbers too, so
    that an action whose distance to the mean is a 1e-13th of the mean's distance to the best counts as at the mean.
    """
    best = max(Fraction(advantage[a]) for a in supported)
    gap = {a: best - Fraction(advantage[a]) for a in supported}
    mean = sum(Fraction(beta[a]) * gap[a] for a in supported) / sum(Fraction(beta[a]) for a in supported)
    return {a for a in supported if gap[a] < (1 - Fraction(1, 10**13)) * mean}
