"""Count-aware reroute: per-action bounds for Max-Reroute from how often each action was tried."""

from typing import Any

from rbi.rules import arrays as checks
from rbi.rules.arrays import at_least, computing_dtype, namespace

MOST = 1e15  # tries, or tau: more is a mistake


def count_bounds(beta: Any, counts: Any, tau: float, c_max: float = 2.0, *, check: bool = True) -> tuple[Any, Any]:
    """Bounds (c_min, c_max) `[..., A]` that let well-tried actions move freely and rare ones hardly at all.

        pi <= max(c_max beta, beta + tau sqrt(n_eff)),    n_eff = n (n - 3)/(n - 1) for n > 3, else 0
        pi = beta  where an action was never tried

    Moving an action by d adds d sigma / sqrt(n) to the standard deviation of the improvement penalty; `tau` is what
    each action may add, in units of sigma. With sigma unknown the mean of n returns has the spread of n_eff returns
    with sigma known, and none at all up to n = 3: there the plain bound c_max holds. `docs/count-aware.md` derives it.
    Bounds come in float64 for NumPy, else in beta's precision and at least float32.

    >>> import numpy as np
    >>> count_bounds(np.array([.5, .3, .2]), np.array([30, 8, 0]), 0.1)
    (array([0., 0., 1.]), array([2.0569964, 2.       , 1.       ]))
    """
    if check:
        checks.shapes(beta, counts, None, ("beta", "counts"))
        if checks.has_values(beta, counts):
            checks.probabilities("beta", beta)
        checks.between("counts", counts, 0, MOST)
        checks.between("tau", tau, 0, MOST)
        checks.between("c_max", c_max, 1, float("inf"))
    xp = namespace(beta, counts)
    beta, counts = (xp.astype(x, computing_dtype(xp, beta)) for x in (beta, counts))
    effective = counts * (at_least(xp, counts - 3.0, 0.0) / at_least(xp, counts - 1.0, 1.0))
    some = xp.where(beta > 0, beta, 1.0)
    upper = at_least(xp, 1.0 + tau * xp.sqrt(effective) / some, c_max)
    untouched = xp.ones_like(upper)
    tried = (counts > 0) & (beta > 0)
    return xp.where(tried, xp.zeros_like(upper), untouched), xp.where(tried, upper, untouched)
