"""Count-aware bounds: how far an action may move follows from how often it was tried."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

import rbi
from rbi.rules.counts import significant_counts
from tests.generators import floats, simplexes, states
from tests.rules.cases import LIBRARIES


@st.composite
def counted(draw):
    beta, advantage = draw(states())
    counts = draw(st.lists(st.integers(0, 50), min_size=beta.size, max_size=beta.size))
    return beta, advantage, np.array(counts)


@given(case=counted(), tau=floats(0, 2), c_max=floats(1, 4))
def test_count_bounds_are_feasible_and_an_action_never_tried_keeps_its_beta(case, tau, c_max):
    beta, advantage, counts = case
    pi = rbi.max_reroute(beta, advantage, *rbi.count_bounds(beta, counts, tau, c_max))
    assert pi.sum() == approx(1)
    assert pi[counts == 0] == approx(beta[counts == 0], abs=1e-15)


@given(case=counted(), tau=floats(0, 2))
def test_no_action_moves_further_up_than_its_count_allows(case, tau):
    beta, advantage, counts = case
    pi = rbi.max_reroute(beta, advantage, *rbi.count_bounds(beta, counts, tau))
    effective = np.array([n * (n - 3) / (n - 1) if n > 3 else 0.0 for n in counts])
    assert (pi <= np.maximum(2 * beta, beta + tau * np.sqrt(effective)) + 1e-12).all()


@given(case=counted(), sigma=floats(0, 3), z=floats(0, 4))
def test_counts_count_where_an_action_is_better_than_beta_beyond_its_standard_error(case, sigma, z):
    beta, q, counts = case
    found = significant_counts(beta, q, counts, sigma, z)
    for a, n in enumerate(counts):
        better = n > 0 and q[a] - z * sigma / n**0.5 > (beta * q).sum()
        assert found[a] == (n if better else min(n, 3)) or q[a] - z * sigma / n**0.5 == approx((beta * q).sum())


@given(case=counted(), tau=floats(0, 2))
def test_without_significance_no_action_gets_more_than_twice_its_beta(case, tau):
    beta, q, counts = case
    pi = rbi.max_reroute(beta, q, *rbi.count_bounds(beta, significant_counts(beta, q, counts, 1e6), tau))
    assert (pi <= 2 * beta + 1e-12).all()


@given(beta=simplexes(zeros=False), tau=floats(0, 2), n=st.integers(1, 100))
def test_more_tries_never_narrow_the_bounds(beta, tau, n):
    tries = np.full(beta.shape, n)
    (low, high), (lower, higher) = rbi.count_bounds(beta, tries, tau), rbi.count_bounds(beta, tries + 1, tau)
    assert (lower <= low).all()
    assert (higher >= high).all()


def test_with_tau_0_they_are_the_plain_bounds_for_all_that_was_tried():
    beta = np.array([0.5, 0.3, 0.2])
    low, high = rbi.count_bounds(beta, np.array([1000, 1, 0]), 0.0, 1.5)
    assert low.tolist() == [0, 0, 1]
    assert high.tolist() == [1.5, 1.5, 1]


def test_the_spread_they_allow_is_that_of_a_mean_whose_variance_is_estimated_too():
    """n returns of unknown variance: mean - mu is s/sqrt(n) times Student's t, of variance (n-1)/(n-3)."""
    rng = np.random.default_rng(0)
    n = 8
    returns = rng.standard_normal((400_000, n))
    t = returns.mean(1) / (returns.std(1, ddof=1) / np.sqrt(n))
    _, high = rbi.count_bounds(np.array([0.5, 0.5]), np.array([n, n]), 1.0, 1.0)
    allowed = (high[0] - 1) * 0.5  # tau sqrt(n_eff)
    assert 1 / allowed**2 == approx(t.var() / n, rel=0.02)


def test_half_precision_is_no_obstacle_to_large_counts():
    beta, counts = torch.tensor([0.9, 0.1]), torch.tensor([270_000, 300])
    for dtype in (torch.float16, torch.bfloat16):
        low, high = rbi.count_bounds(beta.to(dtype), counts, 0.01)
        assert np.asarray(high) == approx(np.asarray(rbi.count_bounds(beta, counts, 0.01)[1]), rel=0.02)
        assert rbi.max_reroute(beta.to(dtype), torch.tensor([0.0, 1.0], dtype=dtype), low, high)[1] < 0.3


@pytest.mark.slow
def test_count_bounds_compile_with_their_checks():
    compiled = torch.compile(lambda b, n: rbi.count_bounds(b, n, 0.1), fullgraph=True)
    beta, counts = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([30, 8, 0])
    for mine, plain in zip(compiled(beta, counts), rbi.count_bounds(beta, counts, 0.1), strict=True):
        assert torch.allclose(mine, plain)


@pytest.mark.parametrize("library", LIBRARIES)
def test_count_bounds_answer_in_the_arrays_library(library):
    make = LIBRARIES[library]
    beta, counts = np.array([[0.5, 0.3, 0.2]]), np.array([[30, 8, 0]])
    got = rbi.count_bounds(make(beta), make(counts), 0.1)
    for mine, plain in zip(got, rbi.count_bounds(beta, counts, 0.1), strict=True):
        assert type(mine) is type(make(beta))
        assert np.asarray(mine) == approx(plain)


@pytest.mark.parametrize(
    ("counts", "tau", "c_max", "name"),
    [
        (np.array([1, -1]), 0.1, 2.0, "counts"),
        (np.array([1.0, np.nan]), 0.1, 2.0, "counts"),
        (np.array([1, 2, 3]), 0.1, 2.0, "counts"),
        (np.array([1, 2]), -0.1, 2.0, "tau"),
        (np.array([1, 2]), 0.1, 0.5, "c_max"),
    ],
)
def test_invalid_arguments_are_named(counts, tau, c_max, name):
    with pytest.raises(ValueError, match=name):
        rbi.count_bounds(np.array([0.5, 0.5]), counts, tau, c_max)
