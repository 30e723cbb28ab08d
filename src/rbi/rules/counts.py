"""Count-aware reroute: bounds per action for Max-Reroute, from how often each action was tried."""

from typing import Any

from rbi.rules.arrays import (
    at_least,
    check_probabilities,
    check_range,
    check_shapes,
    computing_dtype,
    has_values,
    namespace,
)

MAX_COUNT = 1e15  # also of tau; larger values are almost certainly a mistake


def count_bounds(beta: Any, counts: Any, tau: float, c_max: float = 2.0, *, check: bool = True) -> tuple[Any, Any]:
    """Bounds (c_min, c_max) `[..., A]` that are wide for frequent actions and tight for rare ones.

        pi <= max(c_max beta, beta + tau sqrt(n_eff)),    n_eff = n (n - 3)/(n - 1) for n > 3, else 0
        pi = beta  where an action was never tried

    Moving an action by d adds d sigma / sqrt(n) to the standard deviation of the improvement penalty; `tau` limits
    what each action may add, in units of sigma. With sigma unknown, the mean of n returns has the variance of n_eff
    returns with known sigma; up to n = 3 it has no finite variance and the plain bound c_max holds
    (derivation: `docs/count-aware.md`). Bounds are float64 for NumPy, else in beta's precision and at least float32.

    >>> import numpy as np
    >>> count_bounds(np.array([.5, .3, .2]), np.array([30, 8, 0]), 0.1)
    (array([0., 0., 1.]), array([2.0569964, 2.       , 1.       ]))
    """
    if check:
        check_shapes(beta, counts, None, ("beta", "counts"))
        if has_values(beta, counts):
            check_probabilities("beta", beta)
        check_range("counts", counts, 0, MAX_COUNT)
        check_range("tau", tau, 0, MAX_COUNT)
        check_range("c_max", c_max, 1, float("inf"))
    xp = namespace(beta, counts)
    beta, counts = (xp.astype(x, computing_dtype(xp, beta)) for x in (beta, counts))
    effective = counts * (at_least(xp, counts - 3.0, 0.0) / at_least(xp, counts - 1.0, 1.0))
    some = xp.where(beta > 0, beta, 1.0)
    upper = at_least(xp, 1.0 + tau * xp.sqrt(effective) / some, c_max)
    untouched = xp.ones_like(upper)
    tried = (counts > 0) & (beta > 0)
    return xp.where(tried, xp.zeros_like(upper), untouched), xp.where(tried, upper, untouched)
