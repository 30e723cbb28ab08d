"""The linear rules' own optimisation problems, handed to a solver that knows nothing of the rules: HiGHS.

All return the largest improvement step (or objective), not the policy: where optima are not unique, only it is.
"""

import numpy as np
from scipy.optimize import linprog


def highs(gain, **constraints):
    """The maximum of a linear program over x, with sum(pi) = 1 among the constraints that are passed on.

    Without presolve, which calls programs infeasible when their room is as small as its tolerance (TV with delta = 0).
    """
    solution = linprog(-gain, method="highs", options={"presolve": False}, **constraints)
    assert solution.status == 0, solution.message
    return -solution.fun


def max_reroute(beta, advantage, c_min, c_max):
    """max A.pi   with   c_min beta <= pi <= c_max beta,   sum pi = 1      (eq. 4)"""
    bounds = np.stack([c_min * beta, np.minimum(c_max * beta, 1)], axis=-1)
    return highs(advantage, A_eq=np.ones((1, len(beta))), b_eq=[1], bounds=bounds)


def max_tv(beta, advantage, delta):
    """max A.pi   with   sum d <= 2 delta,   -d <= pi - beta <= d,   sum pi = 1"""
    n = len(beta)
    eye, one, zero = np.eye(n), np.ones(n), np.zeros(n)
    above, below = np.hstack([eye, -eye]), np.hstack([-eye, -eye])
    rows = np.vstack([above, below, np.hstack([zero, one])[None]])
    return highs(
        np.hstack([advantage, zero]),
        A_ub=rows,
        b_ub=np.hstack([beta, -beta, 2 * delta]),
        A_eq=np.hstack([one, zero])[None],
        b_eq=[1],
    )


def max_ppo(beta, advantage, epsilon):
    """max sum y   with   y <= A pi,   y <= A (1 +- epsilon) beta,   sum pi = 1: J^PPO is a sum of minima of lines."""
    n = len(beta)
    eye = np.eye(n)
    clipped = advantage * np.where(advantage > 0, 1 + epsilon, 1 - epsilon) * beta
    bounds = [(0, 1)] * n + [(None, limit) for limit in clipped]
    return highs(
        np.hstack([np.zeros(n), np.ones(n)]),
        A_ub=np.hstack([-np.diag(advantage), eye]),
        b_ub=np.zeros(n),
        A_eq=np.hstack([np.ones(n), np.zeros(n)])[None],
        b_eq=[1],
        bounds=bounds,
    )
