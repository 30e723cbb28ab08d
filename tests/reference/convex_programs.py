"""The KL rules' own optimisation problems, handed to a conic solver that knows nothing of the rules: Clarabel."""

import warnings

import cvxpy as cp
import numpy as np


def conic(beta, advantage, divergence, radius):
    """The optimum, or None where the solver itself doubts its answer. It is given advantages of unit size."""
    scale = abs(advantage).max() or 1.0
    pi = cp.Variable(len(beta), nonneg=True)
    problem = cp.Problem(cp.Maximize((advantage / scale) @ pi), [cp.sum(pi) == 1, divergence(pi) <= radius])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")
        value = problem.solve(solver=cp.CLARABEL)
    return value * scale if problem.status == cp.OPTIMAL else None


def forward_kl(beta, advantage, radius):
    """max A.pi   with   KL(pi || beta) <= radius, on beta's support (elsewhere the divergence is infinite)"""
    beta, advantage = beta[beta > 0], advantage[beta > 0]
    return conic(beta, advantage, lambda pi: cp.sum(cp.rel_entr(pi, beta)), radius)


def backward_kl(beta, advantage, radius):
    """max A.pi   with   KL(beta || pi) <= radius"""
    on = np.flatnonzero(beta > 0)
    return conic(beta, advantage, lambda pi: cp.sum(cp.rel_entr(beta[on], pi[on])), radius)
