"""Rules with a Kullback-Leibler constraint: forward KL(pi || beta) and backward KL(beta || pi).

Both optima are one-parameter families in closed form; a radius is met by solving for that parameter, for all states
at once: bisection on a logarithmic scale, then Newton steps, the last of which carries the gradient.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from rbi.rules.arrays import (
    State,
    at_least,
    at_most,
    check_exactly_one,
    check_positive,
    check_range,
    check_state,
    stop_gradient,
    without_warnings,
)

Array = TypeVar("Array")

MINUS_INFINITY_GAP = 1e6  # an advantage of -inf counts as a million times the largest finite gap
BISECTIONS = 21  # halvings of at most 1,382 units of log scale: 0.0007 left
NEWTON_STEPS = 3  # each about squares that


def forward_kl(
    beta: Array,
    advantage: Array,
    temperature: Any = None,
    *,
    radius: Any = None,
    legal: Any = None,
    check: bool = True,
) -> Array:
    """Soft improvement: pi proportional to beta exp(A / temperature).      (paper: appendix, other algorithms)

        maximise  sum_a pi(a) A(a) - temperature KL(pi || beta)

    With `radius` instead, the temperature of each state is the one that meets KL(pi || beta) = radius, the optimum of

        maximise  sum_a pi(a) A(a)   with   KL(pi || beta) <= radius

    Arrays, `legal` and `check` as in `max_reroute`; parameters are numbers or arrays per state `[..., 1]`.

    >>> import numpy as np
    >>> forward_kl(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 1.0).round(3)
    array([0.179, 0.292, 0.529])
    >>> forward_kl(np.array([.5, .3, .2]), np.array([0., 1., 2.]), radius=0.1).round(3)
    array([0.31 , 0.321, 0.369])
    """
    if check:
        check_exactly_one(temperature=temperature, radius=radius)
        check_state(beta, advantage, legal, {"temperature": temperature} if radius is None else {"radius": radius})
        check_positive("temperature", temperature)
        check_range("radius", radius, 0, float("inf"))
    s = State.of(beta, advantage, legal, widest=radius is not None)
    with without_warnings(s.xp):
        if radius is None:
            gap = s.gap()
            excluded = s.xp.isinf(gap) | ~s.support
            gap, inverse = s.xp.where(excluded, 0.0, gap), 1.0 / not_tiny(s, s.parameter(temperature))
        else:
            gap, _ = relative_gaps(s)
            excluded, inverse = ~s.support, inverse_temperature(s, gap, s.parameter(radius))
        weight = s.xp.where(excluded, 0.0, s.beta * s.xp.exp(-gap * inverse))
    return s.answer(weight / s.sum(weight))


def backward_kl(beta: Array, advantage: Array, radius: Any, *, legal: Any = None, check: bool = True) -> Array:
    """The best policy within TRPO's constraint.      (paper: appendix, other algorithms)

        maximise  sum_a pi(a) A(a)   with   KL(beta || pi) <= radius
        pi = beta lambda / (lambda' - A)   with lambda, lambda' such that the constraint binds and pi sums to 1

    Actions with beta = 0 do not enter the divergence: if the best of them ranks above lambda', then lambda' is its
    advantage and it takes the rest of the probability.

    Arrays, `legal` and `check` as in `max_reroute`; parameters are numbers or arrays per state `[..., 1]`.

    >>> import numpy as np
    >>> backward_kl(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 0.1).round(3)
    array([0.32 , 0.289, 0.391])
    >>> backward_kl(np.array([1., 0.]), np.array([0., 1.]), 0.1).round(3)   # 1 - exp(-0.1)
    array([0.905, 0.095])
    """
    if check:
        check_state(beta, advantage, legal, {"radius": radius})
        check_range("radius", radius, 0, float("inf"))
    s = State.of(beta, advantage, legal, widest=True)
    xp, radius = s.xp, s.parameter(radius)
    with without_warnings(xp):
        gap, unsupported_lead = relative_gaps(s)
        x = inverse_multiplier(s, gap, radius)
        weight = s.beta / (1.0 + x * gap)
        on_support = weight / s.sum(weight)

        supported_multiplier = 1.0 / x  # lambda', counted from the best supported advantage
        lead = xp.maximum(unsupported_lead, supported_multiplier)
        log_distance = xp.log(lead + gap)  # log(lambda' - A)
        supported = s.beta * xp.exp(s.sum(s.beta * log_distance) - radius - log_distance)
        best = s.best(among=s.untried)
        with_unsupported = supported + xp.where(best, at_least(xp, 1.0 - s.sum(supported), 0.0), 0.0)
        return s.answer(xp.where(unsupported_lead > supported_multiplier, with_unsupported, on_support))


def relative_gaps(s: State) -> tuple[Any, Any]:
    """Gaps to the best supported action `[..., A]` (0 off the support), and the best unsupported one's lead `[..., 1]`.

    Both in units of the largest finite gap, which makes the solvers independent of the scale of rewards.
    """
    xp, gap = s.xp, s.gap()
    infinite = ~(gap < largest_scale(s) ** 0.5)  # -inf, and finite numbers used in its place
    behind = xp.where(s.support & ~infinite, gap, 0.0)  # keeps infinities out of the arithmetic and its gradient
    unit = xp.max(behind, axis=-1, keepdims=True)
    unit = xp.where(unit > 0, unit, 1.0)
    supported = xp.where(s.support & infinite, MINUS_INFINITY_GAP, behind / unit)
    ahead = xp.where(s.untried & (gap < 0), at_most(xp, -gap, largest_scale(s)), 0.0)
    lead = at_most(xp, xp.max(ahead, axis=-1, keepdims=True) / unit, largest_scale(s))
    return supported, xp.where(xp.any(s.untried & (gap < 0), axis=-1, keepdims=True), lead, -1.0)


def inverse_temperature(s: State, gap: Any, radius: Any) -> Any:
    """The x with KL(pi || beta) = radius for pi ~ beta exp(-x gap); the largest scale if no x reaches it."""
    xp = s.xp

    def divergence(x: Any) -> Any:
        weight = s.beta * xp.exp(-x * gap)
        total = s.sum(weight)
        return -x * s.sum(weight * gap) / total - xp.log(total)

    def slope(x: Any) -> Any:
        weight = s.beta * xp.exp(-x * gap)
        pi = weight / s.sum(weight)
        return x * x * s.sum(pi * (gap - s.sum(pi * gap)) ** 2)

    return solve(s, divergence, slope, radius)


def inverse_multiplier(s: State, gap: Any, radius: Any) -> Any:
    """The x with KL(beta || pi) = radius for pi ~ beta / (1 + x gap); the largest scale if no x reaches it."""
    xp = s.xp

    def divergence(x: Any) -> Any:
        log_distance = xp.log1p(x * gap)
        mean = s.sum(s.beta * log_distance)
        return xp.log1p(s.sum(s.beta * xp.expm1(mean - log_distance)))  # small radii lose no digits this way

    def slope(x: Any) -> Any:
        share = 1.0 / (1.0 + x * gap)
        mean = s.sum(s.beta * share)
        return s.sum(s.beta * (share - mean) ** 2) / mean

    return solve(s, divergence, slope, radius)


def solve(s: State, divergence: Callable[[Any], Any], slope: Callable[[Any], Any], radius: Any) -> Any:
    """The x at which `divergence`, which grows from 0, reaches the radius, state by state. Shape `[..., 1]`.

    `slope` is the derivative of `divergence` in log x. If the radius is never reached, it is the largest scale.
    """
    xp, top = s.xp, largest_scale(s)
    low = xp.zeros_like(s.beta[..., :1]) + 1.0 / top
    high = xp.zeros_like(low) + top
    for _ in range(BISECTIONS):
        middle = xp.sqrt(low) * xp.sqrt(high)
        inside = divergence(middle) <= radius
        low, high = xp.where(inside, middle, low), xp.where(inside, high, middle)
    x, binds = low, high < top
    for _ in range(NEWTON_STEPS):
        x = stop_gradient(xp, x)  # only the last step is differentiated: the implicit function theorem needs no more
        steepness = stop_gradient(xp, slope(x))
        safe = binds & (steepness > 0)
        step = xp.where(safe, (radius - divergence(x)) / xp.where(safe, steepness, 1.0), 0.0)
        x = x * xp.exp(at_most(xp, at_least(xp, step, -0.01), 0.01))
    return x


def largest_scale(s: State) -> float:
    """Upper limit of the solvers: probabilities down to its inverse, and gaps of -inf times it, stay representable."""
    return 1e300 if s.beta.dtype.itemsize == 8 else 1e32


def not_tiny(s: State, value: Any) -> Any:
    """The value, or the smallest number whose inverse is finite."""
    least = 1.0 / largest_scale(s)
    return max(value, least) if isinstance(value, float) else at_least(s.xp, value, least)
