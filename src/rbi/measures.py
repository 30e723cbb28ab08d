"""Measures of an improvement step from beta to pi: distances, expected gain, and the cost of estimation errors.

All functions take arrays `[..., A]` of NumPy, PyTorch or JAX and return `[...]` (or `[..., A]` where documented),
in float64 for NumPy and at least float32 elsewhere. They use values only in arithmetic, so they run inside
torch.compile and jax.jit too.
"""

from typing import Any, NamedTuple

from rbi.rules.arrays import at_least, at_most, computing_dtype, namespace, without_warnings

BOUND_TOLERANCE = 1e-3  # a ratio this close to a reroute bound counts as at the bound


def probability_ratio(pi: Any, beta: Any) -> Any:
    """c = pi / beta, `[..., A]`. Where beta = 0: infinite if pi > 0, and 1 (unchanged) if pi = 0.

    >>> import numpy as np
    >>> probability_ratio(np.array([.25, .75, 0.]), np.array([.5, .5, 0.]))
    array([0.5, 1.5, 1. ])
    """
    xp, pi, beta = in_computing_dtype(pi, beta)
    with without_warnings(xp):
        return xp.where(beta > 0, pi / xp.where(beta > 0, beta, 1.0), xp.where(pi > 0, xp.inf, 1.0))


def total_variation(pi: Any, beta: Any) -> Any:
    """1/2 sum_a |pi(a) - beta(a)|.

    >>> import numpy as np
    >>> float(total_variation(np.array([.75, .25]), np.array([.5, .5])))
    0.25
    """
    xp, pi, beta = in_computing_dtype(pi, beta)
    return xp.sum(abs(pi - beta), axis=-1) / 2


def kl(p: Any, q: Any) -> Any:
    """KL(p || q) = sum_a p(a) log(p(a) / q(a)); infinite where p > 0 and q = 0.

    The forward divergence of a step is `kl(pi, beta)`, the backward one, TRPO's, is `kl(beta, pi)`.

    >>> import numpy as np
    >>> float(kl(np.array([1., 0.]), np.array([.5, .5])).round(6))
    0.693147
    """
    xp, p, q = in_computing_dtype(p, q)
    with without_warnings(xp):
        inside = (p > 0) & (q > 0)
        terms = p * (xp.log(xp.where(inside, p, 1.0)) - xp.log(xp.where(inside, q, 1.0)))
        return xp.sum(xp.where((p > 0) & ~(q > 0), xp.inf, terms), axis=-1)


def entropy(pi: Any) -> Any:
    """-sum_a pi(a) log pi(a), in nats.

    >>> import numpy as np
    >>> float(entropy(np.array([.5, .5, 0.])).round(6))
    0.693147
    """
    xp, pi = in_computing_dtype(pi)
    return -xp.sum(pi * xp.log(xp.where(pi > 0, pi, 1.0)), axis=-1)


def improvement_step(pi: Any, advantage: Any, beta: Any = None) -> Any:
    """sum_a pi(a) A(a): the expected gain if the advantages are exact.      (paper: Lemma Soft Policy Improvement)

    With `beta` it is sum_a (pi(a) - beta(a)) A(a), so that Q-values may stand for advantages. Moving mass away from an
    action at -inf then gains infinity.

    >>> import numpy as np
    >>> float(improvement_step(np.array([.25, .75]), np.array([0., 2.]), beta=np.array([.5, .5])))
    0.5
    """
    xp, pi, advantage, beta = in_computing_dtype(pi, advantage, pi * 0 if beta is None else beta)
    return expectation(xp, pi - beta, advantage)


def penalty_term(pi: Any, beta: Any) -> Any:
    """(beta - pi)^2 / beta, `[..., A]`: the variance of the improvement penalty is proportional to it (section 2.3).

    Infinite where pi moves mass to an action that beta never takes.

    >>> import numpy as np
    >>> penalty_term(np.array([.25, .75]), np.array([.5, .5]))
    array([0.125, 0.125])
    """
    xp, pi, beta = in_computing_dtype(pi, beta)
    squared = (beta - pi) ** 2
    with without_warnings(xp):
        return xp.where(beta > 0, squared / xp.where(beta > 0, beta, 1.0), xp.where(pi > 0, xp.inf, 0.0))


def value_standard_error(return_std: Any, visits: Any, beta: Any) -> Any:
    """sigma_z / sqrt(N_s beta), `[..., A]`: the standard error of Monte-Carlo Q from N_s visits.      (paper: eq. 1)

    `return_std` is the standard deviation of returns `[..., A]`, `visits` is N_s, `[..., 1]` or a number.

    >>> import numpy as np
    >>> value_standard_error(2.0, 100, np.array([.25, .04, 0.]))
    array([0.4, 1. , inf])
    """
    xp, beta = in_computing_dtype(beta)
    with without_warnings(xp):
        samples = visits * beta
        return xp.where(samples > 0, return_std / xp.where(samples > 0, samples, 1.0) ** 0.5, xp.inf)


class VarianceBounds(NamedTuple):
    """Bounds on the variance of the improvement penalty, `[...]` each."""

    lower: Any
    upper: Any


def penalty_variance_bounds(pi: Any, beta: Any, standard_error: Any, visitation: Any) -> VarianceBounds:
    """Between sum sigma_x^2 and (sum sigma_x)^2, over states and actions.      (paper: section 2.3)

        sigma_x(s, a) = rho(s) sigma_eps(s, a) |beta(a|s) - pi(a|s)|

    `pi`, `beta` and `standard_error` are `[..., S, A]`; `visitation` is rho^pi(s'|s), `[..., S]`. The upper bound
    (Cauchy-Schwarz) always holds. The lower one is exact for independent errors but does not hold in general for
    correlated ones: within a state sum_a (beta - pi) = 0, so errors that the actions share cancel.

    >>> import numpy as np
    >>> pi, beta = np.array([[.25, .75]]), np.array([[.5, .5]])
    >>> lower, upper = penalty_variance_bounds(pi, beta, np.ones((1, 2)), np.ones(1))
    >>> float(lower), float(upper)
    (0.125, 0.25)
    """
    xp, pi, beta = in_computing_dtype(pi, beta)
    moved = abs(beta - pi)
    with without_warnings(xp):
        weight = visitation[..., None] * moved
        sigma = xp.where(weight > 0, weight * standard_error, 0.0)  # 0 without a visit or a move
    return VarianceBounds(xp.sum(sigma**2, axis=(-2, -1)), xp.sum(sigma, axis=(-2, -1)) ** 2)


def reroute_tv_radius(c_min: Any, c_max: Any) -> Any:
    """The TV ball that contains reroute(c_min, c_max): min(1 - c_min, max((c_max - 1)/2, (1 - c_min)/2)).

    The smallest one has the radius (c_max - 1)(1 - c_min)/(c_max - c_min), which is the same for symmetric bounds.

    >>> reroute_tv_radius(0.5, 1.5)
    0.25
    """
    if isinstance(c_min, int | float) and isinstance(c_max, int | float):
        return min(1 - c_min, max((c_max - 1) / 2, (1 - c_min) / 2))
    xp = namespace(*(c for c in (c_min, c_max) if not isinstance(c, int | float)))
    up, down = (c_max - 1) / 2, (1 - c_min) / 2
    larger = at_least(xp, down, up) if isinstance(up, float) else at_least(xp, up, down)
    return at_most(xp, larger, 1 - c_min)


class RerouteBounds(NamedTuple):
    """The tightest reroute set that contains a policy, `[...]` each."""

    c_min: Any
    c_max: Any


def reroute_bounds(pi: Any, beta: Any) -> RerouteBounds:
    """The largest c_min and the smallest c_max for which pi is a reroute of beta; c_max is inf if there is none.

    >>> import numpy as np
    >>> bounds = reroute_bounds(np.array([.25, .75]), np.array([.5, .5]))
    >>> float(bounds.c_min), float(bounds.c_max)
    (0.5, 1.5)
    """
    xp, pi, beta = in_computing_dtype(pi, beta)
    ratio = probability_ratio(pi, beta)
    untouched = ~((beta > 0) | (pi > 0))  # 0 = c * 0 holds for every c
    least = xp.min(xp.where(untouched, xp.inf, ratio), axis=-1)
    most = xp.max(xp.where(untouched, -xp.inf, ratio), axis=-1)
    return RerouteBounds(at_most(xp, least, 1.0), at_least(xp, most, 1.0))


class BoundHits(NamedTuple):
    """Actions whose ratio to beta is at a reroute bound, boolean `[..., A]` each, or their share of beta `[...]`."""

    at_c_min: Any
    at_c_max: Any


def bound_hits(pi: Any, beta: Any, c_min: Any, c_max: Any, *, tolerance: float = BOUND_TOLERANCE) -> BoundHits:
    """Whether pi/beta is at c_min or at c_max, action by action: where the reroute constraint is active.

    >>> import numpy as np
    >>> hits = bound_hits(np.array([.25, .35, .4]), np.array([.5, .3, .2]), 0.5, 2.0)
    >>> hits.at_c_min, hits.at_c_max
    (array([ True, False, False]), array([False, False,  True]))
    """
    ratio = probability_ratio(pi, beta)
    return BoundHits(ratio <= c_min + tolerance, ratio >= c_max - tolerance)


def bound_shares(pi: Any, beta: Any, c_min: Any, c_max: Any) -> BoundHits:
    """How much of beta is on actions at c_min, and at c_max: how far the reroute constraint decides.

    >>> import numpy as np
    >>> shares = bound_shares(np.array([.25, .35, .4]), np.array([.5, .3, .2]), 0.5, 2.0)
    >>> float(shares.at_c_min), float(shares.at_c_max)
    (0.5, 0.2)
    """
    return BoundHits(*((beta * at).sum(-1) for at in bound_hits(pi, beta, c_min, c_max)))


def is_reroute(pi: Any, beta: Any, c_min: Any, c_max: Any, *, tolerance: float = 1e-6) -> Any:
    """Whether c_min beta <= pi <= c_max beta for every action, to within an absolute tolerance. Boolean `[...]`.

    `c_min` and `c_max` are numbers or arrays that broadcast with `[..., A]`.

    >>> import numpy as np
    >>> bool(is_reroute(np.array([.25, .75]), np.array([.5, .5]), 0.5, 1.5))
    True
    """
    xp, pi, beta = in_computing_dtype(pi, beta)
    with without_warnings(xp):
        most = xp.where(beta > 0, c_max * xp.where(beta > 0, beta, 1.0), 0.0)
        return xp.all((pi >= c_min * beta - tolerance) & (pi <= most + tolerance), axis=-1)


def ppo_objective(pi: Any, beta: Any, advantage: Any, epsilon: Any) -> Any:
    """J^PPO of one state: sum_a beta min(A c, A clip(c, 1 - epsilon, 1 + epsilon)), c = pi/beta.      (paper: appendix)

    Its maximiser is not unique: an action of negative advantage earns the same anywhere below (1 - epsilon) beta.

    >>> import numpy as np
    >>> beta, advantage = np.array([.5, .5]), np.array([-1., 1.])
    >>> [float(ppo_objective(np.array(pi), beta, advantage, 0.5)) for pi in ([.25, .75], [0., 1.])]
    [0.5, 0.5]
    """
    xp, pi, beta, advantage = in_computing_dtype(pi, beta, advantage)
    ratio = xp.where(beta > 0, pi / xp.where(beta > 0, beta, 1.0), 1.0)
    clipped = at_most(xp, at_least(xp, ratio, 1.0 - epsilon), 1.0 + epsilon)
    worse = xp.where(advantage < 0, xp.maximum(ratio, clipped), xp.minimum(ratio, clipped))  # the smaller product
    return expectation(xp, beta * worse, advantage)


def expectation(xp: Any, pi: Any, values: Any) -> Any:
    """sum_a pi(a) values(a), with 0 * -inf = 0."""
    with without_warnings(xp):
        return xp.sum(pi * xp.where(pi != 0, values, 0.0), axis=-1)


def in_computing_dtype(*arrays: Any) -> tuple[Any, ...]:
    """The arrays' namespace, and the arrays converted to the dtype that measures compute in."""
    xp = namespace(*arrays)
    wide = computing_dtype(xp, *arrays)
    return xp, *(xp.astype(a, wide, copy=False) for a in arrays)
