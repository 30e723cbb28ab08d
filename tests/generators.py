"""Hypothesis strategies: behaviour policies with zeros and rare actions, advantages with ties and extremes."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

floats = st.floats


def examples(share):
    """A share of the profile's number of examples, for expensive tests: `@examples(0.5)`."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


@st.composite
def simplexes(draw, least=1, most=8, zeros=True, batch=(), rare=True):
    """Distributions `[*batch, A]`: round weights, so that sums and ties come out often, some of them rare or 0."""
    actions = draw(st.integers(least, most))
    weight = st.sampled_from([0.0] * zeros + [1e-6, 0.001] * rare + [0.1, 1.0, 2.0, 3.0, 5.0, 7.0]) | floats(0.1, 10)
    states = int(np.prod(batch))
    rows = [draw(st.lists(weight, min_size=actions, max_size=actions).filter(any)) for _ in range(states)]
    weights = np.array(rows).reshape(*batch, actions)
    return weights / weights.sum(-1, keepdims=True)


@st.composite
def states(draw, least=1, most=8, zeros=True, batch=(), rare=True, extremes=False):
    """(beta, advantage) `[*batch, A]`: small integers (ties) or floats, and with `extremes` 1e30 and -inf too."""
    beta = draw(simplexes(least, most, zeros, batch, rare))
    value = st.integers(-3, 3).map(float) | floats(-100, 100).map(lambda x: round(x, 3))
    if extremes:
        value |= st.sampled_from([1e30, -1e30, 1e-30, -np.inf])
    flat = draw(st.lists(value, min_size=beta.size, max_size=beta.size))
    return beta, np.array(flat).reshape(beta.shape)
