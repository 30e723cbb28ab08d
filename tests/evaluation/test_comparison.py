"""Comparison of policies: intervals, and the verdict against the behavior policy."""

import json
from itertools import product

import numpy as np
import pytest

from rbi.evaluation.comparison import (
    MIN_EPISODES,
    compare,
    human_normalised,
    intervals,
    outcome,
    probability_below_over_seeds,
    verdict,
)
from rbi.statistics import RESAMPLES, iqm

FEW = [[1.0, 4.0, 9.0], [20.0, 22.0]]
OTHERS = [[10.0, 13.0], [2.0, 5.0, 30.0]]
TOLERANCE = 4 * 0.5 / np.sqrt(RESAMPLES)  # four standard errors of a share of resamples


def generator(seed=0):
    return np.random.default_rng(seed)


def skewed(seed, mean=100.0, seeds=3, episodes=100):
    """Scores with a long upper tail; the standard deviation is half the mean."""
    return generator(seed).gamma(4.0, mean / 4.0, (seeds, episodes)).tolist()


def every_resample(scores):
    """All bootstrap samples, equally probable."""
    of_seeds = [list(product(of_seed, repeat=len(of_seed))) for of_seed in scores]
    return [np.concatenate(parts) for parts in product(*of_seeds)]


def slow_iqm(values):
    """Mean of the middle half of a list that has every value four times."""
    long = sorted(v for v in values for _ in range(4))
    return float(np.mean(long[len(values) : 3 * len(values)]))


def test_differences_between_seeds_do_not_widen_the_interval():
    found = intervals([[0.0] * 20, [100.0] * 20], generator())
    assert found.mean == (50.0, 50.0)
    apart, together = intervals([[0.0, 1.0] * 10, [100.0, 101.0] * 10], generator()), [[0.0, 1.0, 100.0, 101.0] * 10]
    assert np.ptp(apart.mean) < 0.05 * np.ptp(intervals(together, generator()).mean)


@pytest.mark.parametrize("of", ["mean", "iqm"])
def test_intervals_contain_95_percent_of_all_resamples(of):
    scores = [[1.0, 4.0, 9.0, 11.0], [20.0, 22.5, 3.0]]
    truth = [{"mean": np.mean, "iqm": slow_iqm}[of](sample) for sample in every_resample(scores)]
    low, high = getattr(intervals(scores, generator()), of)
    error = 4 * np.sqrt(0.025 * 0.975 / RESAMPLES)
    ties = np.mean(np.isclose(truth, low)), np.mean(np.isclose(truth, high))
    assert np.mean(np.array(truth) < low - 1e-9) == pytest.approx(0.025, abs=error + ties[0])
    assert np.mean(np.array(truth) > high + 1e-9) == pytest.approx(0.025, abs=error + ties[1])


def test_intervals_of_many_scores_are_the_normal_ones():
    scores = generator(1).normal(10, 3, (4, 500))
    error = 1.96 * scores.std() / np.sqrt(scores.size)
    low, high = intervals(scores.tolist(), generator()).mean
    assert (low, high) == pytest.approx((scores.mean() - error, scores.mean() + error), abs=0.2 * error)


def test_probability_below_is_the_share_of_pairs_of_resamples():
    row_means = np.array([sample.mean() for sample in every_resample(FEW)])
    their_means = np.array([sample.mean() for sample in every_resample(OTHERS)])
    truth = np.mean([mean < theirs for mean in row_means for theirs in their_means])
    assert 0.1 < truth < 0.9
    assert verdict(FEW, OTHERS, generator()).below == pytest.approx(truth, abs=TOLERANCE)
    assert verdict(FEW, [[11.2]], generator()).below == pytest.approx(np.mean(row_means < 11.2), abs=TOLERANCE)


def test_over_seeds_one_bad_seed_of_three_counts_as_often_as_it_is_drawn():
    """With equal episodes only the choice of seeds is random: below where the bad seed is drawn often enough."""
    behavior = [[10.0] * 20] * 3
    scores = [[11.0] * 20, [11.0] * 20, [8.5] * 20]  # the mean falls below 10 from two draws of the last one on
    twice_or_more = 1 - (2 / 3) ** 3 - 3 * (1 / 3) * (2 / 3) ** 2
    assert probability_below_over_seeds(scores, behavior, generator()) == pytest.approx(twice_or_more, abs=TOLERANCE)
    assert verdict(scores, behavior, generator()).below == 0


def test_over_seeds_each_policy_is_compared_with_the_behavior_policy_of_its_seed():
    behavior = [[0.0] * 20, [100.0] * 20]
    better = [[1.0] * 20, [101.0] * 20]
    assert probability_below_over_seeds(better, behavior, generator()) == 0
    assert probability_below_over_seeds(behavior, behavior, generator()) == 0
    one = [[1.0, 4.0, 9.0]], [[2.0, 5.0, 30.0]]
    assert probability_below_over_seeds(*one, generator()) == pytest.approx(
        verdict(*one, generator(1)).below, abs=1.5 * TOLERANCE
    )


def test_equal_is_not_below():
    same = [[5.0] * 30]
    assert verdict(same, same, generator()) == ("not below", 0, 0, 0, 0)
    assert verdict([[0.0] * 30], [[0.0] * 30], generator()).outcome == "not below"


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(0.01, 0.2, "above"), (-0.1, 0.2, "not below"), (-0.2, -0.01, "below"), (-0.2, 0.0, "open")],
)
def test_a_certain_loss_is_below_unless_it_is_certainly_within_the_margin(lower, upper, expected):
    assert outcome(lower, upper, allowed_loss=0.1) == expected


@pytest.mark.parametrize("score", [0.1, -0.7, 1e9 / 3])
@pytest.mark.parametrize("episodes", [30, 170, 299])
def test_rounding_errors_are_no_difference(score, episodes):
    scores, behavior = [[score] * episodes], [[score] * 300]
    found = verdict(scores, behavior, generator(), margin=0)
    assert (found.outcome, found.below) == ("not below", 0)


def test_a_fifth_less_is_below_and_a_fifth_more_is_above_with_300_episodes():
    pairs = [(skewed(2 * i, 80.0), skewed(2 * i + 1)) for i in range(40)]
    assert np.mean([verdict(less, more, generator()).outcome == "below" for less, more in pairs]) >= 0.95
    assert np.mean([verdict(more, less, generator()).outcome == "above" for less, more in pairs]) >= 0.95


def test_equal_policies_are_rarely_below_or_above():
    calls = [verdict(skewed(2 * i), skewed(2 * i + 1), generator()).outcome for i in range(100)]
    assert calls.count("below") <= 11  # 5 of 100 are expected at most
    assert calls.count("above") <= 11
    assert {"not below", "open"} <= set(calls)


def test_a_policy_that_loses_the_margin_is_rarely_not_below():
    calls = [verdict(skewed(2 * i, 95.0), skewed(2 * i + 1), generator()).outcome for i in range(100)]
    assert calls.count("not below") + calls.count("above") <= 11


@pytest.mark.parametrize(
    ("shift", "outcome"), [(20, "above"), (0, "not below"), (-3, "not below"), (-6, "below"), (-8, "below")]
)
def test_the_verdict_follows_from_the_bounds(shift, outcome):
    """Means 100 and 100 + shift, equal variance: the bounds are 0.9 from the difference; the margin is 5."""
    base = np.array([np.linspace(85, 115, 500)])
    found = verdict((base + shift).tolist(), base.tolist(), generator())
    error = 1.645 * np.sqrt(2 * base.var() / base.size)
    assert found[1:4] == pytest.approx((shift, shift - error, shift + error), abs=0.15)
    assert found.outcome == outcome


def test_more_noise_than_margin_leaves_the_verdict_open():
    assert verdict([[60.0, 140.0] * 5], [[60.0, 140.0] * 5], generator()).outcome == "open"
    assert verdict([[60.0, 140.0] * 5], [[60.0, 140.0] * 5], generator(), margin=0.9).outcome == "not below"


def test_few_episodes_per_seed_leave_the_verdict_open():
    enough, behavior = [[9.0] * MIN_EPISODES], [[5.0] * MIN_EPISODES]
    assert verdict(enough, behavior, generator()).outcome == "above"
    assert verdict([[9.0] * (MIN_EPISODES - 1)] * 20, behavior, generator()).outcome == "open"
    assert verdict(enough, [behavior[0], [5.0] * (MIN_EPISODES - 1)], generator()).outcome == "open"


def test_the_margin_is_relative_to_the_absolute_mean():
    worse = [[-104.0] * 20]
    assert verdict(worse, [[-100.0] * 20], generator()).outcome == "not below"
    assert verdict(worse, [[-100.0] * 20], generator(), margin=0.03).outcome == "below"


def test_compare_agrees_with_its_parts():
    scores, behavior = skewed(1, 92.0), skewed(2)
    row = compare(scores, behavior, generator(), margin=0.2)
    rng, values = generator(), np.ravel(scores)
    of_mean, of_iqm = intervals(scores, rng)
    assert (row["episodes"], row["seeds"]) == (300, 3)
    assert (row["mean"], row["iqm"]) == pytest.approx((values.mean(), iqm(values)))
    assert (row["interval"], row["iqm_interval"]) == (list(of_mean), list(of_iqm))
    assert (row["min"], row["median"], row["max"]) == (values.min(), np.median(values), values.max())
    assert row["quartiles"] == pytest.approx(np.percentile(values, [25, 75]).tolist())
    assert row["seed_means"] == pytest.approx(np.mean(scores, 1).tolist())
    call, difference, *bounds, below = verdict(scores, behavior, rng, margin=0.2)
    assert (row["verdict"], row["difference"], row["difference_bounds"]) == (call, difference, bounds)
    assert row["below"] == below
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_compare_without_behavior_has_the_same_keys():
    alone, beside = compare(FEW, None, generator()), compare(FEW, OTHERS, generator())
    assert list(alone) == list(beside)
    empty = {name for name, value in alone.items() if value is None}
    assert empty == {"below", "verdict", "difference", "difference_bounds"}
    assert all(alone[name] == beside[name] for name in alone if name not in empty)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([], "scores: at least one seed"),
        ([[1.0], []], r"scores of seed 1, shape \(0,\): must be a list of one episode or more"),
        ([1.0, 2.0], r"scores of seed 0, shape \(\)"),
        ([[1.0, float("nan")]], "scores of seed 0: nan is not finite"),
    ],
)
def test_invalid_scores_are_rejected(scores, message):
    with pytest.raises(ValueError, match=message):
        compare(scores, None, generator())


def test_invalid_margins_are_rejected():
    with pytest.raises(ValueError, match=r"margin = -0.1: must lie in \[0, 1\)"):
        verdict(FEW, OTHERS, generator(), margin=-0.1)


def test_human_normalised_scores_are_0_for_random_play_and_1_for_the_human_tester():
    assert human_normalised("ALE/Qbert-v5", 163.9) == 0
    assert human_normalised("ALE/Qbert-v5", 13455) == 1
    assert human_normalised("CartPole-v1", 500) is None
