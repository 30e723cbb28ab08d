"""Statistics: IQM, CVaR, bootstraps, paired leads, Student's bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytest import approx
from scipy import stats

from rbi import statistics
from rbi.statistics import (
    bootstrap_ratio,
    bootstrap_runs,
    bootstrap_samples,
    bootstrap_weights,
    cvar,
    describe,
    iqm,
    iqm_of_tasks,
    paired_lead,
    percentile_interval,
    performance_profile,
    probability_of_improvement,
    student_lower_bound,
)


def generator(seed=0):
    return np.random.default_rng(seed)


def slow_iqm(values):
    """Mean of the middle half of a list that has every value four times."""
    long = sorted(v for v in values for _ in range(4))
    return float(np.mean(long[len(values) : 3 * len(values)]))


@given(st.integers(1, 10).flatmap(lambda n: arrays(float, 4 * n, elements=st.floats(-1e6, 1e6))))
def test_iqm_is_the_mean_trimmed_by_a_quarter_at_each_end(values):
    assert iqm(values) == approx(stats.trim_mean(values, 0.25), abs=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_iqm_weights_values_at_the_quartiles_by_their_part_inside(values):
    assert iqm(values) == approx(slow_iqm(values), abs=1e-6)


def test_iqm_of_many_rows_is_that_of_each():
    rows = generator().normal(size=(5, 7))
    assert iqm(rows) == approx([iqm(row) for row in rows])


@pytest.mark.parametrize("n", [2, 99, 300, 1001])
def test_cvar_is_the_mean_of_the_lowest_percent(n):
    scores = np.random.default_rng(0).standard_normal((n, 3))
    lowest = np.sort(scores, 0)[: int(np.ceil(n / 100))]
    assert cvar(scores) == approx(lowest.mean(0))


def test_cvar_of_a_resample_is_that_of_its_values():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((250, 2))
    chosen = rng.integers(250, size=(20, 250))
    weights = np.stack([np.bincount(c, minlength=250) for c in chosen])
    for c, found in zip(chosen, cvar(scores, weights=weights), strict=True):
        assert found == approx(np.sort(scores[c], 0)[:3].mean(0))


def test_cvar_of_a_resample_without_the_lowest_scores():
    scores = np.arange(1000.0)[:, None]
    weights = np.zeros((1, 1000), dtype=int)
    weights[0, 999] = 1000
    assert cvar(scores, weights=weights) == approx(999)


def test_student_lower_bound_has_its_coverage():
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((20_000, 10)) + 1
    bound = student_lower_bound(samples, 0.05)
    assert (bound < samples.mean(-1)).all()
    assert (bound > 1).mean() == approx(0.05, abs=0.006)


def test_student_lower_bound_expects_a_tighter_bound_from_more_samples():
    samples = generator().standard_normal(10)
    expected = samples.mean() - stats.t.ppf(0.95, 999) * samples.std(ddof=1) / np.sqrt(1000)
    assert student_lower_bound(samples, 0.05) < student_lower_bound(samples, 0.05, 1000) == approx(expected)
    assert student_lower_bound(samples[:1], 0.05) == samples[0]


def test_bootstrap_samples_stay_within_strata_and_reach_all_values():
    strata = [np.array([1.0, 4.0, 9.0]), np.array([20.0, 22.0])]
    drawn = bootstrap_samples(strata, generator())
    assert drawn.shape == (statistics.RESAMPLES, 5)
    assert set(drawn[:, :3].ravel()) == {1.0, 4.0, 9.0}
    assert set(drawn[:, 3:].ravel()) == {20.0, 22.0}


def test_all_bootstraps_draw_the_same_indices():
    values, lengths = generator(1).normal(size=50), generator(2).integers(1, 30, 50)
    means, weights = bootstrap_samples([values], generator()).mean(1), bootstrap_weights(50, generator())
    assert weights @ values / 50 == approx(means)
    assert bootstrap_ratio(values, np.ones(50), generator()) == approx(means)
    assert bootstrap_ratio(values, lengths, generator()) == approx((weights @ values) / (weights @ lengths))


def test_blocks_of_indices_do_not_change_the_draws(monkeypatch):
    values, lengths = generator(1).normal(size=7), generator(2).integers(1, 5, 7)
    whole = bootstrap_ratio(values, lengths, generator(), 100)
    monkeypatch.setattr(statistics, "BLOCK_INDICES", 20)
    assert (bootstrap_ratio(values, lengths, generator(), 100) == whole).all()


def test_the_ratio_of_many_pairs_has_the_variance_of_single_pairs(monkeypatch):
    lengths = generator(1).integers(1, 5, 4003)
    sums = lengths * generator(2).normal(3, 1, 4003)
    single = bootstrap_ratio(sums, lengths, generator())
    monkeypatch.setattr(statistics, "MAX_PAIRS", 400)
    grouped = bootstrap_ratio(sums, lengths, generator())
    assert grouped.mean() == approx(sums.sum() / lengths.sum(), abs=3 * single.std() / np.sqrt(len(grouped)))
    assert grouped.std() == approx(single.std(), rel=0.15)


def test_the_cluster_bootstrap_is_wider_than_one_of_single_steps():
    sums, lengths = generator(3).normal(size=30) * 10, np.full(30, 10)  # steps of an episode are all equal
    clusters = percentile_interval(bootstrap_ratio(sums, lengths, generator()))
    single = percentile_interval(bootstrap_samples([np.repeat(sums / 10, 10)], generator()).mean(1))
    assert np.ptp(clusters) > 2 * np.ptp(single)


def test_paired_leads_cancel_what_columns_share():
    shared = 100 * generator(4).normal(size=(200, 1))
    values = shared + [0.0, 1.0] + 0.1 * generator(5).normal(size=(200, 2))
    weights = bootstrap_weights(200, generator(), 500)
    estimate, low, high = paired_lead(values.mean(0), weights @ values / 200, 1)
    assert low[0] < estimate[0] < high[0]
    assert high[0] - low[0] < 0.1
    assert (estimate[1], low[1], high[1]) == (0, 0, 0)


def test_describe_agrees_with_numpy_and_with_the_normal_interval():
    scores = generator(1).normal(10, 3, 200)
    found = describe(scores.tolist())
    assert (found["mean"], found["median"]) == approx((scores.mean(), np.median(scores)))
    assert found["quartiles"] == approx(np.percentile(scores, [25, 75]).tolist())
    assert (found["min"], found["max"], found["episodes"]) == (scores.min(), scores.max(), 200)
    error = 1.96 * scores.std() / np.sqrt(200)
    assert found["interval"] == approx([scores.mean() - error, scores.mean() + error], abs=0.15)
    assert describe([3.0])["interval"] == [3.0, 3.0]


def test_the_seed_decides_the_interval_of_scores():
    one, again, other = (describe(generator(3).normal(size=40).tolist(), seed) for seed in (1, 1, 2))
    assert one == again
    assert one["interval"] != other["interval"]


# Algorithms on several tasks

tables = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=4), min_size=1, max_size=3)
pairs_of_tables = st.integers(1, 3).flatmap(
    lambda tasks: st.tuples(
        *[st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=4), min_size=tasks, max_size=tasks)] * 2
    )
)


def as_runs(table):
    return [np.array(of_task, dtype=float) for of_task in table]


def slow_probability_of_improvement(ours, theirs):
    """Every run against every run, task by task."""
    of_tasks = []
    for xs, ys in zip(ours, theirs, strict=True):
        wins = [1.0 if x > y else 0.5 if x == y else 0.0 for x in xs for y in ys]
        of_tasks.append(sum(wins) / len(wins))
    return sum(of_tasks) / len(of_tasks)


@given(pairs_of_tables)
def test_probability_of_improvement_compares_all_pairs_of_runs_of_a_task(pair):
    ours, theirs = map(as_runs, pair)
    found = probability_of_improvement(ours, theirs)
    assert found == approx(slow_probability_of_improvement(*pair))
    assert found + probability_of_improvement(theirs, ours) == approx(1)


def test_probability_of_improvement_of_a_hand_computed_table():
    ours, theirs = as_runs([[1, 4], [2, 2, 2]]), as_runs([[0, 2, 4], [3]])
    assert probability_of_improvement(ours, theirs) == approx(((1 + 0 + 0 + 1 + 1 + 0.5) / 6 + 0) / 2)


@given(tables)
def test_a_performance_profile_falls_from_all_runs_to_none(table):
    profile = performance_profile(as_runs(table), np.arange(-4.0, 4.0))
    assert profile[0] == 1
    assert profile[-1] == 0
    assert (np.diff(profile) <= 0).all()
    shares = [sum(x > 0 for x in of_task) / len(of_task) for of_task in table]
    assert profile[4] == approx(sum(shares) / len(shares))


def test_runs_are_resampled_within_their_task_and_their_algorithm():
    ours, theirs = as_runs([[1, 2, 3], [10, 20]]), as_runs([[100], [200, 300]])
    seen = []

    def statistic(a, b):
        seen.append([a, b])
        return sum(map(np.sum, a)), sum(map(np.sum, b))

    found = bootstrap_runs(statistic, generator(), ours, theirs, resamples=300)
    assert found.shape == (300, 2)
    for sample in seen:
        for tasks, runs in zip(sample, (ours, theirs), strict=True):
            for drawn, of_task in zip(tasks, runs, strict=True):
                assert len(drawn) == len(of_task)
                assert set(drawn) <= set(of_task)
    assert {tuple(sorted(sample[0][0])) for sample in seen} >= {(1, 1, 1), (1, 2, 3), (3, 3, 3)}
    assert len({(sample[0][1].sum(), sample[1][1].sum()) for sample in seen}) == 9  # every combination of both


def test_a_task_with_more_runs_weighs_no_more_in_the_iqm_over_tasks():
    few = [np.array([1.0, 3.0]), np.array([5.0, 9.0]), np.array([2.0, 4.0])]
    more = [np.tile(of_task, times) for of_task, times in zip(few, (1, 3, 2), strict=True)]
    assert iqm_of_tasks(few) == approx(iqm(np.concatenate(few)))
    assert iqm_of_tasks(more) == approx(iqm_of_tasks(few))


def test_the_interval_of_an_iqm_over_tasks_covers_the_truth():
    rng, covered = generator(3), 0
    for _ in range(60):
        runs = [rng.normal(mean, 1, size=10) for mean in (0.0, 1.0, 2.0, 3.0)]
        low, high = percentile_interval(bootstrap_runs(iqm_of_tasks, rng, runs, resamples=200))
        covered += low < 1.5 < high
    assert covered >= 48  # of 60; 95% are 57
