"""Count-aware reroute: bounds per action for Max-Reroute, from how often each action was tried."""

from typing import Any

from rbi.rules.arrays import (
    at_least,
    at_most,
    check_probabilities,
    check_range,
    check_shapes,
    computing_dtype,
    has_values,
    namespace,
)

MAX_COUNT = 1e15  # also of tau; larger values are almost certainly a mistake
FEW = 3.0  # tries that open no bound beyond c_max: their mean has no finite variance
SIGNIFICANT = 3.0  # standard errors


def count_bounds(beta: Any, counts: Any, tau: float, c_max: float = 2.0, *, check: bool = True) -> tuple[Any, Any]:
    """Bounds (c_min, c_max) `[..., A]` that are wider for actions with more tries, and (1, 1) for those with none.

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
    effective = counts * (at_least(xp, counts - FEW, 0.0) / at_least(xp, counts - 1.0, 1.0))
    some = xp.where(beta > 0, beta, 1.0)
    upper = at_least(xp, 1.0 + tau * xp.sqrt(effective) / some, c_max)
    untouched = xp.ones_like(upper)
    tried = (counts > 0) & (beta > 0)
    return xp.where(tried, xp.zeros_like(upper), untouched), xp.where(tried, upper, untouched)


def significant_counts(beta: Any, q: Any, counts: Any, sigma: Any, z: float = SIGNIFICANT) -> Any:
    """Counts for `count_bounds` where an action is clearly better than beta; at most 3 elsewhere, so that c_max holds.

        Q(s, a) - z sigma / sqrt(n) > V(s) = sum_a beta Q

    `sigma` is the standard deviation of one return around its estimate. Bounds of counts limit what noise can cost in
    one state. Where values are learned by a network, its errors have the same sign in many states, and add up.

    >>> import numpy as np
    >>> significant_counts(np.array([.5, .5]), np.array([1., 2.]), np.array([100, 100]), 1.0).tolist()
    [3.0, 100.0]
    >>> significant_counts(np.array([.5, .5]), np.array([1., 1.5]), np.array([100, 100]), 1.0).tolist()
    [3.0, 3.0]
    """
    xp = namespace(beta, counts)
    counts = xp.astype(counts, computing_dtype(xp, beta))
    error = sigma / xp.sqrt(at_least(xp, counts, 1e-6))
    better = q - z * error > xp.sum(beta * q, axis=-1, keepdims=True)
    return xp.where(better, counts, at_most(xp, counts, FEW))
