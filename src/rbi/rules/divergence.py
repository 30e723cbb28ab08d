"""The improvement rules inside a Kullback-Leibler ball: forward KL(pi || beta) and backward KL(beta || pi).

Both optima are one-parameter families in closed form; a radius is met by solving for that parameter, for all states
at once: bisection on a logarithmic scale, then one Newton step that polishes the root and carries its gradient.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from rbi.rules import checks
from rbi.rules.arrays import at_least, at_most, constant, quiet
from rbi.rules.state import State

Array = TypeVar("Array")

MINUS_INFINITY_GAP = 1e6  # an advantage of -inf counts as a million times the largest finite gap
BISECTIONS = 48  # halvings of at most 500 units of log scale: 2e-12 left, and Newton squares that


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

    >>> import numpy as np
    >>> forward_kl(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 1.0).round(3)
    array([0.179, 0.292, 0.529])
    >>> forward_kl(np.array([.5, .3, .2]), np.array([0., 1., 2.]), radius=0.1).round(3)
    array([0.296, 0.321, 0.383])
    """
    if check:
        checks.exactly_one(temperature=temperature, radius=radius)
        checks.state(beta, advantage, legal, {"temperature": temperature, "radius": radius})
        checks.positive("temperature", temperature)
        checks.between("radius", radius, 0, float("inf"))
    s = State.of(beta, advantage, legal)
    with quiet(s.xp):
        if radius is None:
            exponent = -s.xp.where(s.support, s.gap(), 0.0) / s.parameter(temperature)
        else:
            gap, _ = relative_gaps(s)
            exponent = -gap * inverse_temperature(s, gap, s.parameter(radius))
        weight = s.beta * s.xp.exp(exponent)
    return s.answer(weight / s.sum(weight))


def backward_kl(beta: Array, advantage: Array, radius: Any, *, legal: Any = None, check: bool = True) -> Array:
    """The policy that TRPO's constraint allows.      (paper: appendix, other algorithms)

        maximise  sum_a pi(a) A(a)   with   KL(beta || pi) <= radius
        pi = beta lambda / (lambda' - A)   with lambda, lambda' such that the constraint binds and pi sums to 1

    Actions with beta = 0 cost nothing here: if the best of them ranks above lambda', then lambda' is its advantage
    and it takes all that the constraint leaves over.

    >>> import numpy as np
    >>> backward_kl(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 0.1).round(3)
    array([0.342, 0.278, 0.381])
    >>> backward_kl(np.array([1., 0.]), np.array([0., 1.]), 0.1).round(3)   # 1 - exp(-0.1)
    array([0.905, 0.095])
    """
    if check:
        checks.state(beta, advantage, legal, {"radius": radius})
        checks.between("radius", radius, 0, float("inf"))
    s = State.of(beta, advantage, legal)
    xp, radius = s.xp, s.parameter(radius)
    with quiet(xp):
        gap, unsupported_lead = relative_gaps(s)
        supported_multiplier = 1.0 / inverse_multiplier(s, gap, radius)  # lambda' above the best supported advantage
        weight = s.beta / (supported_multiplier + gap)
        on_support = weight / s.sum(weight)

        lead = xp.maximum(unsupported_lead, supported_multiplier)
        log_distance = xp.log(lead + gap)  # log(lambda' - A)
        supported = s.beta * xp.exp(s.sum(s.beta * log_distance) - radius - log_distance)
        best = s.best(among=s.untried)
        with_unsupported = supported + xp.where(best, at_least(xp, 1.0 - s.sum(supported), 0.0), 0.0)
        return s.answer(xp.where(unsupported_lead > supported_multiplier, with_unsupported, on_support))


def relative_gaps(s: State) -> tuple[Any, Any]:
    """Gaps to the best supported action `[..., A]` (0 off the support), and the best unsupported one's lead `[..., 1]`.

    Both in units of the largest finite gap, which makes the solvers blind to the scale of rewards.
    """
    xp, gap = s.xp, s.gap()
    unit = xp.max(xp.where(s.support & xp.isfinite(gap), gap, 0.0), axis=-1, keepdims=True)
    unit = xp.where(unit > 0, unit, 1.0)
    supported = xp.where(s.support, xp.where(xp.isinf(gap), MINUS_INFINITY_GAP, gap / unit), 0.0)
    lead = xp.max(xp.where(s.untried, -gap / unit, -1.0), axis=-1, keepdims=True)
    return supported, at_most(xp, lead, largest_scale(s))


def inverse_temperature(s: State, gap: Any, radius: Any) -> Any:
    """The x with KL(pi || beta) = radius for pi ~ beta exp(-x gap); the largest scale where no x reaches it."""
    xp = s.xp

    def divergence(x: Any) -> tuple[Any, Any]:
        weight = s.beta * xp.exp(-x * gap)
        total = s.sum(weight)
        pi = weight / total
        mean = s.sum(pi * gap)
        return -x * mean - xp.log(total), x * x * s.sum(pi * (gap - mean) ** 2)

    return solve(s, divergence, radius)


def inverse_multiplier(s: State, gap: Any, radius: Any) -> Any:
    """The x with KL(beta || pi) = radius for pi ~ beta / (1 + x gap); the largest scale where no x reaches it."""
    xp = s.xp

    def divergence(x: Any) -> tuple[Any, Any]:
        log_distance = xp.log1p(x * gap)
        spread = s.sum(s.beta * log_distance) - log_distance
        share = 1.0 / (1.0 + x * gap)
        mean = s.sum(s.beta * share)
        slope = s.sum(s.beta * (share - mean) ** 2) / mean
        return xp.log1p(s.sum(s.beta * xp.expm1(spread))), slope

    return solve(s, divergence, radius)


def solve(s: State, divergence: Callable[[Any], tuple[Any, Any]], radius: Any) -> Any:
    """The x at which `divergence`, which grows from 0, reaches the radius, state by state. Shape `[..., 1]`.

    `divergence(x)` returns its value and its slope in log x. Where it never gets there, the largest scale stands.
    """
    xp, top = s.xp, largest_scale(s)
    low = xp.zeros_like(s.beta[..., :1]) + 1.0 / top
    high = xp.zeros_like(low) + top
    for _ in range(BISECTIONS):
        middle = xp.sqrt(low) * xp.sqrt(high)
        inside = divergence(middle)[0] <= radius
        low, high = xp.where(inside, middle, low), xp.where(inside, high, middle)
    x = constant(xp, low)
    value, slope = divergence(x)
    binds = (x < 0.5 * top) & (slope > 0)
    step = xp.where(binds, (radius - value) / constant(xp, xp.where(binds, slope, 1.0)), 0.0)
    return x * xp.exp(at_most(xp, at_least(xp, step, -0.1), 0.1))


def largest_scale(s: State) -> float:
    """How far the solvers look: probabilities down to its inverse stay representable."""
    return 1e200 if s.beta.dtype.itemsize == 8 else 1e25
