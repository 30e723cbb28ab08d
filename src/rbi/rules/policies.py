"""Small maps between policies: mixing two of them, a floor under every probability, and what is familiar."""

from typing import Any, TypeVar

from rbi.rules import checks
from rbi.rules.state import State

Array = TypeVar("Array")


def mix(pi: Array, other: Array, weight: Any, *, check: bool = True) -> Array:
    """(1 - weight) pi + weight other: exploration, or the greedy mix of the paper's actors (section 5).

    >>> import numpy as np
    >>> mix(np.array([.8, .2]), np.array([0., 1.]), 0.1)
    array([0.72, 0.28])
    """
    if check:
        checks.pair(pi, other, "pi", "other")
        checks.parameters({"weight": weight}, {"pi": pi, "other": other})
        checks.between("weight", weight, 0, 1)
    s = State.of(pi, other)
    weight = s.parameter(weight)
    return s.answer((1.0 - weight) * s.beta + weight * (s.advantage / s.sum(s.advantage)))


def floor(pi: Any, f: Any, *, legal: Any = None, check: bool = True) -> Any:
    """(1 - A f) pi + f: no action falls below probability f. With `legal`, A counts the legal actions.

    >>> import numpy as np
    >>> floor(np.array([1., 0.]), 0.001)
    array([0.999, 0.001])
    """
    if check:
        checks.state(pi, pi, legal, {"f": f}, names=("pi", "pi"))
        checks.between("f", f, 0, 1)
        checks.floor(f, pi, legal)
    s = State.of(pi, pi, legal)
    f, legal = s.parameter(f), s.xp.ones_like(s.beta) if s.legal is None else s.xp.astype(s.legal, s.beta.dtype)
    return s.answer((1.0 - s.sum(legal) * f) * s.beta + f * legal)


def familiar(beta: Array, advantage: Array, threshold: float, *, legal: Any = None, check: bool = True) -> Array:
    """All probability on the best action among those that beta takes at least `threshold` times as often as its
    commonest: the policy of discrete BCQ.

    >>> import numpy as np
    >>> familiar(np.array([.6, .3, .1]), np.array([0., 1., 2.]), 0.3)
    array([0., 1., 0.])
    """
    if check:
        checks.state(beta, advantage, legal, {})
        checks.between("threshold", threshold, 0, 1)
    s = State.of(beta, advantage, legal)
    known = s.beta >= threshold * (1 - 1e-6) * s.xp.max(s.beta, axis=-1, keepdims=True)  # rounding is no reason
    return s.answer(s.best(among=known if s.legal is None else known & s.legal))


def behavior(beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
    """beta itself, over the legal actions: the rule that changes nothing, for tables and comparisons."""
    if check:
        checks.state(beta, advantage, legal, {})
    s = State.of(beta, advantage, legal)
    return s.answer(s.beta)
