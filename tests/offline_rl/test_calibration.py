"""The temperature found is the best there is, and bins hold what they say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rbi.offline_rl.validation import best_temperature, likelihood, log_probs, reliability


@given(st.integers(0, 2**32), st.floats(0.3, 4.0))
def test_no_other_temperature_makes_the_actions_more_likely(seed, scale):
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(200, 4))
    actions = np.array([rng.choice(4, p=np.exp(row)) for row in log_probs(logits / scale)])
    best = best_temperature(logits, actions)
    for other in np.geomspace(0.06, 18, 40):
        assert likelihood(logits, actions, other) <= likelihood(logits, actions, best) + 1e-5


def test_logits_that_are_too_sure_are_cooled_by_as_much():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 5))
    actions = np.array([rng.choice(5, p=np.exp(row)) for row in log_probs(logits)])
    assert best_temperature(3 * logits, actions) == approx(3, rel=0.05)
    assert best_temperature(logits / 2, actions) == approx(0.5, rel=0.05)


def test_bins_are_of_equal_size_and_in_order_and_their_means_are_those_of_the_whole():
    rng = np.random.default_rng(1)
    values, returns = rng.normal(size=103), rng.normal(size=103)
    found = reliability(values, returns, bins=10)
    assert found.steps.sum() == 103
    assert found.steps.max() - found.steps.min() <= 1
    assert (np.diff(found.predicted) > 0).all()
    assert (found.predicted * found.steps).sum() / 103 == approx(values.mean())
    assert (found.seen * found.steps).sum() / 103 == approx(returns.mean())
