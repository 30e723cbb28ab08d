"""Lower bounds of a mean: equal to slow loops, and they cover as often as they promise."""

import math

import numpy as np
import pytest
from pytest import approx
from scipy import stats

from rbi.certification.bounds import (
    MAX_STAKE,
    METHODS,
    REBETS,
    SHARES,
    all_equal_before,
    bca_lower_bound,
    betting_lower_bound,
    betting_rejects,
    empirical_bernstein_lower_bound,
    log_capital_peak,
    lower_bound,
    lower_confidence_sequence,
    mixture_capital,
    predictable_std,
)
from tests.reference.betting_loops import mixture_capitals, plug_in_log_capitals, star_log_capital


def weighted_returns(rng, shape, gain=0.0):
    """(W - 1) G of a step from uniform to (0.25, 0.75) between two actions that pay 0.3 -+ gain; mean 0.5 gain."""
    action = rng.random(shape) < 0.5
    paid = rng.random(shape) < np.where(action, 0.3 + gain, 0.3 - gain)
    return np.where(action, 0.5, -0.5) * paid


def rare_weights(rng, shape):
    """(W - 1) G with an action of probability 0.02 that the new policy always takes: mean 0, at most 49, never -1."""
    return np.where(rng.random(shape) < 0.02, 50.0, 0.0) * rng.random(shape) - rng.random(shape)


@pytest.mark.parametrize("m", [-0.4, 0.0, 0.2])
def test_capital_of_recalculated_bets_is_that_of_the_loop(m):
    values = weighted_returns(np.random.default_rng(1), 60, 0.2)
    found = log_capital_peak(values, np.array(m), -0.5, 0.05)
    assert float(found) == approx(star_log_capital(values.tolist(), m, -0.5, 0.05, 0.25, MAX_STAKE), abs=1e-9)


@pytest.mark.parametrize("m", [0.01, -0.45])
def test_capital_of_bets_of_all_sizes_is_that_of_the_loop(m):
    values = weighted_returns(np.random.default_rng(2), 50, 0.2)
    found = mixture_capital(values, predictable_std(values, np.arange(50), 0.3), m, -0.5)
    assert found == approx(mixture_capitals(values.tolist(), m, -0.5, 0.3, SHARES.tolist(), MAX_STAKE))


def test_the_largest_capital_may_lie_between_two_recalculations_of_the_bet():
    """Each bet lasts for a gain and an equal loss, which together lose."""
    x = np.tile([0.5, -0.5], REBETS)
    assert log_capital_peak(x, np.array(0.0), -0.5, 0.05, spread=0.5) > 0


def test_a_batch_of_samples_is_tested_as_each_alone():
    x = weighted_returns(np.random.default_rng(3), (5, 300), 0.1)
    m = np.linspace(-0.02, 0.05, 5)
    together = log_capital_peak(x, m, -0.5, 0.05)
    assert together == approx(
        [float(log_capital_peak(row, np.array(at), -0.5, 0.05)) for row, at in zip(x, m, strict=True)]
    )


@pytest.mark.parametrize("draw", [weighted_returns, rare_weights])
@pytest.mark.parametrize("n", [20, 400])
def test_betting_rejects_the_true_mean_at_most_as_often_as_alpha(draw, n):
    x = draw(np.random.default_rng(4), (3000, n))
    errors = int(betting_rejects(x, np.zeros(3000), -1.0, 0.05).sum())
    assert stats.binomtest(errors, 3000, 0.05, "greater").pvalue > 1e-4


def test_betting_bound_is_nearly_as_high_as_the_normal_one():
    x = weighted_returns(np.random.default_rng(5), 5000)
    normal = x.mean() - 1.645 * x.std() / math.sqrt(5000)
    assert (x.mean() - betting_lower_bound(x, -0.5, 0.05)) / (x.mean() - normal) < 1.2


def test_rare_large_values_hardly_widen_the_bound():
    """Bets that trust the small spread of the values before the first large one lose: 2.4 in place of 1.1."""
    x = np.where(np.random.default_rng(7).random((12, 10_000)) < 0.02, 50.0, 0.0)
    widths = [row.mean() - betting_lower_bound(row, 0.0, 0.05, spread=0.5) for row in x]
    assert np.mean(widths) / (1.645 * x.std(-1).mean() / 100) < 1.3


def test_what_is_equal_so_far_is_known_from_earlier_values_only():
    starts = np.array([0, 1, 2, 3, 4])
    found = all_equal_before(np.array([[2.0, 2.0, 2.0, 5.0, 2.0], [2.0, 2.0, 2.0, 2.0, 7.0]]), starts)
    assert found.tolist() == [[True, True, True, True, False], [True] * 5]


def test_betting_bound_is_the_smallest_mean_that_is_not_rejected():
    x = weighted_returns(np.random.default_rng(6), 800, 0.2)
    bound, error = betting_lower_bound(x, -0.5, 0.05), x.std() / math.sqrt(800)
    below = np.linspace(-0.499, bound, 200)
    assert betting_rejects(x, below, -0.5, 0.05).all()
    assert not betting_rejects(x, np.array(bound + 0.01 * error), -0.5, 0.05)


def test_few_or_constant_values_have_a_bound():
    assert -1 <= betting_lower_bound([0.5], -1.0, 0.05) < 0
    assert betting_lower_bound([-1.0, -1.0], -1.0, 0.05) == -1
    assert 0 < betting_lower_bound([1.0] * 50, -1.0, 0.05) < 1


SHAPES = {  # of values in [0, 1], and their mean
    "half ones": (lambda rng, n: (rng.random(n) < 0.5).astype(float), 0.5),
    "few ones": (lambda rng, n: (rng.random(n) < 0.05).astype(float), 0.05),
    "nearly all ones": (lambda rng, n: (rng.random(n) < 0.95).astype(float), 0.95),
    "skewed": (lambda rng, n: rng.beta(0.2, 1.8, n), 0.1),
    "narrow": (lambda rng, n: rng.uniform(0.45, 0.55, n), 0.5),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_confidence_sequence_covers_at_all_times_together(shape):
    draw, mean = SHAPES[shape]
    rng, missed = np.random.default_rng(7), 0
    for _ in range(1000):
        values = draw(rng, 500)
        missed += mixture_capital(values, predictable_std(values, np.arange(500), 0.25), mean, 0.0).max() >= 10
    assert stats.binomtest(missed, 1000, 0.1, "greater").pvalue > 1e-3
    assert missed > 10  # it promises 100: a bound that never misses would be far too low


@pytest.mark.parametrize(("shape", "factor"), [("half ones", 1.3), ("few ones", 1.1), ("skewed", 1.1)])
def test_confidence_sequence_is_mostly_narrower_than_with_plug_in_bets(shape, factor):
    rng, wider = np.random.default_rng(8), 0
    for _ in range(15):
        x = SHAPES[shape][0](rng, 500)
        (bound,) = lower_confidence_sequence(x, 0.0, 0.05, 0.25, [len(x)])
        m = x.mean() - factor * (x.mean() - bound)
        wider += max(plug_in_log_capitals(x.tolist(), m, 0.0, 0.05, 0.25, MAX_STAKE)) < math.log(20)
    assert wider > 7


def test_how_often_one_looks_changes_no_bound():
    x = SHAPES["skewed"][0](np.random.default_rng(9), 900)
    times = [1, 7, 40, 200, 333, 900]
    often = lower_confidence_sequence(x, 0.0, 0.05, 0.25, times)
    once = [lower_confidence_sequence(x[:t], 0.0, 0.05, 0.25, [t])[0] for t in times]
    assert often == approx(once, abs=0.01 * x.std() / 30)


def test_confidence_sequence_moves_with_the_unit_and_the_origin_of_the_values():
    x = SHAPES["skewed"][0](np.random.default_rng(10), 400)
    unit, other = (
        lower_confidence_sequence(scale * x + shift, shift, 0.05, scale * 0.25, [20, 400])
        for scale, shift in ((1.0, 0.0), (300.0, -7.0))
    )
    assert other == approx(300 * unit - 7, abs=1e-6)


def test_confidence_sequence_is_lower_with_more_confidence():
    x = SHAPES["skewed"][0](np.random.default_rng(11), 300)
    bounds = [lower_confidence_sequence(x, 0.0, alpha, 0.25, [50, 300]) for alpha in (0.001, 0.05, 0.3)]
    assert (np.diff(bounds, axis=0) > 0).all()


def test_confidence_sequence_never_falls_and_finds_a_gain():
    bounds = lower_confidence_sequence(
        weighted_returns(np.random.default_rng(8), 4000, 0.2), -0.5, 0.05, 0.25, times=[100, 1000, 4000]
    )
    assert (np.diff(bounds) >= 0).all()
    assert 0 < bounds[-1] < 0.1


def test_what_a_confidence_sequence_rejects_between_two_looks_stays_rejected():
    """A high mean for a while, then an ordinary one: a single late look knows what an earlier one would have found."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.normal(mean, 0.7, n) for mean, n in ((0.0, 100), (0.5, 200), (0.0, 1200))]).clip(-3, 3)
    (early,), (late,) = (lower_confidence_sequence(x, -3.0, 0.05, 0.3, times=[t]) for t in (300, 1500))
    assert late >= min(early, x.mean()) - 1e-4  # the resolution of the search


def test_empirical_bernstein_is_its_formula():
    x = np.array([0.0, 1.0, 1.0, 0.0])
    log = math.log(40)
    expected = 0.5 - math.sqrt(2 * (1 / 3) * log / 4) - 7 * log / 9
    assert empirical_bernstein_lower_bound(x, 0, 1, 0.05) == approx(expected)


def test_bca_bound_is_scipys():
    x = np.random.default_rng(9).exponential(size=80)
    theirs = stats.bootstrap(
        (x,),
        np.mean,
        confidence_level=0.95,
        alternative="greater",
        n_resamples=9999,
        random_state=np.random.default_rng(1),
    ).confidence_interval.low
    assert bca_lower_bound(x, 0.05, np.random.default_rng(2), 20_000) == approx(theirs, abs=0.006)


def test_every_method_gives_a_bound_below_the_mean_that_says_what_it_assumes():
    x = weighted_returns(np.random.default_rng(10), 6000, 0.1)
    for method in METHODS:
        found = lower_bound(method, x, 0.05, floor=-0.5, ceiling=0.5)
        assert -0.1 < found.lower < x.mean()
        assert found.assumptions
    assert lower_bound("betting", x, 0.05).lower == -math.inf


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_values_hardly_matters_and_the_bound_is_the_same_each_time(method):
    x = np.random.default_rng(11).permutation(np.repeat([-0.5, 0.5], [5600, 6400]))
    mixed, ordered, again = (
        lower_bound(method, values, 0.05, floor=-0.5, ceiling=0.5).lower for values in (x, np.sort(x), np.sort(x))
    )
    assert mixed == approx(ordered, abs=0.5 * x.std() / math.sqrt(len(x)))
    assert ordered == again


@pytest.mark.parametrize("method", ["student", "bca"])
def test_a_single_value_has_no_bound_that_rests_on_its_spread(method):
    assert lower_bound(method, np.array([0.5]), 0.05).lower == -math.inf


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "no values"), ([0.1, float("nan")], "value 1: nan is not finite"), ([0.0, -2.0], "value 1: -2 is below")],
)
def test_impossible_values_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        betting_lower_bound(values, -1.0, 0.05)


def test_a_value_above_the_ceiling_is_named():
    with pytest.raises(ValueError, match="value 1: 2 is above the ceiling 1"):
        empirical_bernstein_lower_bound([0.5, 2.0], 0.0, 1.0, 0.05)
