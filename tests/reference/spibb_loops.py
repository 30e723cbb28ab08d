"""Improvement steps of the SPIBB papers as loops over one state: slow references for the tests."""

import numpy as np


def best_first(q):
    """Actions by descending Q, ties by index."""
    return sorted(range(len(q)), key=lambda a: (-q[a], a))


def pi_b_spibb(beta, q, known):
    """Unknown actions keep beta; the best known one gets the rest."""
    pi = np.where(known, 0.0, beta)
    for a in best_first(q):
        if known[a]:
            pi[a] = 1 - np.where(known, 0.0, beta).sum()
            return pi
    return beta.copy()


def pi_le_b_spibb(beta, q, known):
    """In descending order of Q: unknown actions get at most beta, the first known one the rest."""
    pi, left = np.zeros_like(beta), 1.0
    for a in best_first(q):
        pi[a] = left if known[a] else min(beta[a], left)
        left -= pi[a]
    return pi


def soft_spibb(beta, q, errors, epsilon):
    """Approx-Soft-SPIBB: mass moves from the worst actions to the largest gain per unit of error."""
    pi, left = beta.copy(), epsilon
    for worst in sorted(range(len(q)), key=lambda a: (q[a], a)):
        for best in best_first((q - q[worst]) / errors):
            if q[best] <= q[worst] or np.isinf(errors[best]):
                break  # later actions do not gain either
            if np.isfinite(errors[worst]):
                moved = min(pi[worst], left / (2 * errors[worst]), left / (2 * errors[best]))
                pi[worst] -= moved
                pi[best] += moved
                left -= moved * (errors[worst] + errors[best])
    return pi
