"""Statistics of repetitions: tails, intervals and paired leads."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab.spi.study import summarise
from rbi.statistics import cvar


@pytest.mark.parametrize("n", [2, 99, 300, 1001])
def test_cvar_is_the_mean_of_the_lowest_hundredth(n):
    scores = np.random.default_rng(0).standard_normal((n, 3))
    lowest = np.sort(scores, 0)[: int(np.ceil(n / 100))]
    assert cvar(scores) == approx(lowest.mean(0))


def test_cvar_of_a_resample_is_that_of_its_members():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((250, 2))
    chosen = rng.integers(250, size=(20, 250))
    weights = np.stack([np.bincount(c, minlength=250) for c in chosen])
    for c, found in zip(chosen, cvar(scores, weights=weights), strict=True):
        assert found == approx(np.sort(scores[c], 0)[:3].mean(0))


def test_cvar_looks_further_when_the_lowest_scores_were_not_drawn():
    scores = np.arange(1000.0)[:, None]
    weights = np.zeros((1, 1000), dtype=int)
    weights[0, 999] = 1000
    assert cvar(scores, weights=weights) == approx(999)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        found = summarise(rng.standard_normal((60, 1, 1)), 0.0, [0], rng, resamples=300)
        low, high = found.mean_interval[:, 0, 0]
        hits += low <= 0 <= high
    assert 180 <= hits <= 199


def test_leads_are_paired_so_what_algorithms_share_cancels():
    rng = np.random.default_rng(3)
    shared = 100 * rng.standard_normal((200, 1))
    scores = np.concatenate([shared, shared + 1 + 0.1 * rng.standard_normal((200, 1))], 1)[:, None, :]
    found = summarise(scores, 0.0, [1], rng, resamples=200)
    at, low, high = found.mean_lead[0, :, 0, 0]
    assert low < at < high
    assert at == approx(1, abs=0.05)
    assert high - low < 0.1  # unpaired it would be wider than 50
    assert found.mean_lead[0, :, 0, 1] == approx(0)
    assert found.cvar_lead[0, 0, 0, 0] == approx(found.cvar[0, 1] - found.cvar[0, 0])


def test_only_what_is_truly_below_the_baseline_counts_as_below():
    scores = np.array([0.0, -1e-12, -0.1, 0.2])[:, None, None]
    assert summarise(scores, 0.0, [0], np.random.default_rng(0), 10).below[0, 0] == approx(0.25)
