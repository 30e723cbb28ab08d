"""Measures of an improvement step: distances, gains, and the paper's variance terms."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from pytest import approx
from scipy import stats

import rbi
from rbi import measures
from tests.generators import floats, states


@given(states(rare=False))
def test_divergences_are_scipys(state):
    beta, advantage = state
    pi = rbi.forward_kl(beta, advantage, 2.0)
    assert measures.kl(pi, beta) == approx(stats.entropy(pi, beta), abs=1e-9)
    assert measures.entropy(pi) == approx(stats.entropy(pi), abs=1e-9)
    assert measures.total_variation(pi, beta) == approx(np.abs(pi - beta).sum() / 2)


def test_divergences_are_infinite_where_mass_appears_from_nothing():
    assert measures.kl(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == np.inf
    assert measures.kl(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == approx(np.log(2))
    assert measures.penalty_term(np.array([0.5, 0.5]), np.array([1.0, 0.0])).tolist() == [0.25, np.inf]
    assert measures.probability_ratio(np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])).tolist() == [0.5, np.inf, 1]
    bounds = measures.reroute_bounds(np.array([0.5, 0.4, 0.1]), np.array([0.5, 0.5, 0.0]))
    assert (bounds.c_min, bounds.c_max) == approx((0.8, np.inf))


@given(states(), floats(0, 1), floats(1, 4))
def test_the_tightest_bounds_contain_the_policy_and_nothing_tighter_does(state, c_min, c_max):
    beta, advantage = state
    pi = rbi.max_reroute(beta, advantage, c_min, c_max)
    bounds = measures.reroute_bounds(pi, beta)
    assert c_min - 1e-9 <= bounds.c_min <= 1 <= bounds.c_max <= c_max + 1e-9
    assert measures.is_reroute(pi, beta, bounds.c_min, bounds.c_max, tolerance=1e-9)
    for tighter in ((bounds.c_min + 0.01, np.inf), (0, bounds.c_max - 0.01)):
        if beta.max() < 1:  # of a sure action every bound but 1 is loose
            assert not measures.is_reroute(pi, beta, *tighter, tolerance=0)


def test_membership_answers_per_state_and_takes_bounds_per_action():
    beta, pi = np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([[0.25, 0.75], [0.1, 0.9]])
    assert measures.is_reroute(pi, beta, 0.5, 1.5).tolist() == [True, False]
    assert measures.is_reroute(pi, beta, np.array([0.2, 0.5]), np.array([1.0, 1.8])).tolist() == [True, True]
    assert not measures.is_reroute(np.array([0.9, 0.1]), np.array([1.0, 0.0]), 0, np.inf)


@given(states(), floats(0, 1), floats(1, 4))
def test_reroute_bounds_every_penalty_term(state, c_min, c_max):
    """With reroute each (beta - pi)^2 / beta is beta (1 - c)^2, at most beta max(1 - c_min, c_max - 1)^2."""
    beta, advantage = state
    pi = rbi.max_reroute(beta, advantage, c_min, c_max)
    term = measures.penalty_term(pi, beta)
    assert term == approx(beta * (1 - measures.probability_ratio(pi, beta)) ** 2, abs=1e-12)
    assert (term <= beta * max(1 - c_min, c_max - 1) ** 2 + 1e-9).all()


@given(states(zeros=False), floats(0.1, 10), floats(1, 1e6), floats(0, 20))
def test_the_variance_of_an_element_of_the_penalty_is_proportional_to_its_term(state, return_std, visits, rho):
    """Var(rho eps (beta - pi)) = rho^2 sigma_z^2 / N_s (beta - pi)^2 / beta."""
    beta, advantage = state
    pi = rbi.max_tv(beta, advantage, 0.25)
    error = measures.value_standard_error(return_std, visits, beta)
    found = measures.penalty_variance_bounds(pi[None], beta[None], error[None], np.array([rho])).lower
    assert found == approx(rho**2 * return_std**2 / visits * measures.penalty_term(pi, beta).sum())


@given(floats(0.001, 1), floats(0.01, 10))
def test_tv_and_backward_kl_do_not_bound_it(share, radius):
    """The paper's appendix: an action with beta = 0 gains probability at unbounded cost."""
    beta, advantage = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert measures.penalty_term(rbi.max_tv(beta, advantage, share), beta)[1] == np.inf
    assert measures.penalty_term(rbi.backward_kl(beta, advantage, radius), beta)[1] == np.inf


def test_standard_error_is_that_of_simulated_monte_carlo_means():
    rng = np.random.default_rng(0)
    beta, visits, std = np.array([0.75, 0.25]), 40, np.array([1.0, 3.0])
    expected = measures.value_standard_error(std, visits, beta)
    for action in range(2):
        means = rng.normal(0, std[action], size=(20_000, int(visits * beta[action]))).mean(-1)
        assert means.std() == approx(expected[action], rel=0.02)


def simulated_penalties(pi, beta, errors, visitation):
    """E = sum_s rho(s) sum_a eps(s,a) (beta - pi), for many draws of errors `[draws, S, A]`."""
    return (visitation[:, None] * errors * (beta - pi)).sum((-2, -1))


@given(states(batch=(3,), zeros=False, rare=False, least=2, most=4))
def test_variance_of_the_penalty_with_independent_errors_is_the_lower_bound(state):
    beta, advantage = state
    pi, visitation, sigma = rbi.Reroute(0.5, 1.5)(beta, advantage), np.array([1.0, 0.5, 2.0]), 0.3 / np.sqrt(beta)
    lower, upper = measures.penalty_variance_bounds(pi, beta, sigma, visitation)
    errors = np.random.default_rng(0).normal(size=(20_000, *beta.shape)) * sigma
    variance = simulated_penalties(pi, beta, errors, visitation).var()
    assert variance == approx(lower, rel=0.06, abs=1e-12)
    assert variance <= 1.06 * upper + 1e-12


@given(states(batch=(2,), zeros=False, rare=False, least=2, most=4), floats(-0.3, 1))
def test_upper_variance_bound_holds_whatever_the_correlation(state, correlation):
    beta, advantage = state
    pi, visitation, sigma = rbi.Reroute(0.5, 1.5)(beta, advantage), np.array([1.0, 2.0]), np.full(beta.shape, 0.7)
    n = beta.size
    correlation = max(correlation, -1 / (n - 1))  # below that no such correlation matrix exists
    covariance = 0.7**2 * ((1 - correlation) * np.eye(n) + correlation)
    weights = (visitation[:, None] * (beta - pi)).reshape(-1)
    upper = measures.penalty_variance_bounds(pi, beta, sigma, visitation).upper
    assert weights @ covariance @ weights <= upper + 1e-12
    assert (np.abs(weights) @ sigma.reshape(-1)) ** 2 == approx(upper)  # errors that all raise the penalty together


def test_lower_variance_bound_fails_for_correlated_errors():
    """Two actions, correlation .5, mass d moved: the total variance is d^2, the sum of the variances 2 d^2."""
    d = 0.25
    beta, pi = np.array([[0.5, 0.5]]), np.array([[0.5 - d, 0.5 + d]])
    lower = measures.penalty_variance_bounds(pi, beta, np.ones((1, 2)), np.ones(1)).lower
    moved = (beta - pi)[0]
    total = moved @ np.array([[1.0, 0.5], [0.5, 1.0]]) @ moved
    assert lower == approx(2 * d**2)
    assert total == approx(d**2)


@given(states(), states(least=8, most=8, zeros=False), floats(0, 1))
def test_ppo_objective_is_the_papers_sum_over_actions_of_positive_and_of_negative_advantage(state, other, epsilon):
    beta, advantage = state
    weights = other[0][: len(beta)] * (beta > 0)
    pi = weights / weights.sum()
    expected = 0.0
    for b, p, a in zip(beta, pi, advantage, strict=True):
        if b > 0 and a > 0:
            expected += b * a * min(p / b, 1 + epsilon)
        elif b > 0:
            expected -= b * -a * max(p / b, 1 - epsilon)
    assert measures.ppo_objective(pi, beta, advantage, epsilon) == approx(expected, abs=1e-9)


def test_ppo_objective_has_many_maximisers_some_of_unbounded_ratio():
    beta, advantage = np.array([0.98, 0.01, 0.01]), np.array([-1.0, 49.0, 49.0])
    maximisers = [np.array([0.0, 0.5, 0.5]), np.array([0.49, 0.015, 0.495]), np.array([0.0, 0.985, 0.015])]
    reached = [float(measures.ppo_objective(pi, beta, advantage, 0.5)) for pi in maximisers]
    best = measures.ppo_objective(rbi.max_ppo(beta, advantage, 0.5), beta, advantage, 0.5)
    assert reached == approx([best] * 3)
    assert measures.reroute_bounds(maximisers[2], beta).c_max > 90


def test_improvement_step_of_q_values_is_that_of_advantages():
    beta, pi, q = np.array([0.5, 0.5]), np.array([0.25, 0.75]), np.array([10.0, 12.0])
    assert measures.improvement_step(pi, q, beta=beta) == approx(measures.improvement_step(pi, q - beta @ q))


def test_infinite_advantages_and_errors_give_infinities_not_nan():
    worst = np.array([-np.inf, 2.0])
    assert measures.improvement_step(np.array([0.0, 1.0]), worst) == 2
    assert measures.improvement_step(np.array([0.2, 0.8]), worst, beta=np.array([0.5, 0.5])) == np.inf
    assert measures.ppo_objective(np.array([0.0, 1.0]), np.array([0.5, 0.5]), worst, 0.5) == -np.inf
    assert measures.ppo_objective(np.array([0.0, 1.0]), np.array([0.5, 0.5]), worst, 1.0) == approx(2)
    pi, beta, error = np.array([[0.25, 0.75], [1, 0]]), np.array([[0.5, 0.5], [0, 1]]), np.array([[1, 1], [np.inf, 1]])
    unvisited = measures.penalty_variance_bounds(pi, beta, error, np.array([1.0, 0.0]))
    assert unvisited == measures.penalty_variance_bounds(pi[:1], beta[:1], error[:1], np.array([1.0]))


@pytest.mark.parametrize(("c_min", "c_max"), [(0.9, 3.0), (0.0, 1.2), (0.5, 1.5), (1.0, 1.0)])
def test_the_tv_radius_of_arrays_is_that_of_numbers(c_min, c_max):
    number = measures.reroute_tv_radius(c_min, c_max)
    assert measures.reroute_tv_radius(np.array([c_min]), c_max) == approx([number])
    assert measures.reroute_tv_radius(c_min, np.array([c_max])) == approx([number])


@pytest.mark.parametrize("make", [torch.tensor, jnp.asarray], ids=["torch", "jax"])
def test_measures_take_every_library(make):
    beta, pi, advantage = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.3, 0.5]]), np.array([[0.0, 1.0, 2.0]])
    b, p, a = (make(x) for x in (beta, pi, advantage))
    pairs = [
        (measures.probability_ratio(p, b), measures.probability_ratio(pi, beta)),
        (measures.total_variation(p, b), measures.total_variation(pi, beta)),
        (measures.kl(p, b), measures.kl(pi, beta)),
        (measures.entropy(p), measures.entropy(pi)),
        (measures.improvement_step(p, a, beta=b), measures.improvement_step(pi, advantage, beta=beta)),
        (measures.penalty_term(p, b), measures.penalty_term(pi, beta)),
        (measures.value_standard_error(2.0, 50, b), measures.value_standard_error(2.0, 50, beta)),
        (measures.reroute_bounds(p, b).c_max, measures.reroute_bounds(pi, beta).c_max),
        (measures.is_reroute(p, b, 0.1, 3), measures.is_reroute(pi, beta, 0.1, 3)),
        (measures.ppo_objective(p, b, a, 0.2), measures.ppo_objective(pi, beta, advantage, 0.2)),
        (measures.reroute_tv_radius(b, 1 + b), measures.reroute_tv_radius(beta, 1 + beta)),
        (measures.reroute_tv_radius(0.5, 1 + b), measures.reroute_tv_radius(0.5, 1 + beta)),
    ]
    for got, expected in pairs:
        assert type(got) is type(b)
        assert np.asarray(got) == approx(expected)


def test_bound_hits_are_the_actions_at_the_bounds():
    beta, pi = np.array([[0.5, 0.3, 0.2, 0.0]]), np.array([[0.25, 0.45, 0.3, 0.0]])
    hits = measures.bound_hits(pi, beta, 0.5, 1.5)
    assert hits.at_c_min.tolist() == [[True, False, False, False]]
    assert hits.at_c_max.tolist() == [[False, True, True, False]]
    assert not measures.bound_hits(pi, beta, 0.0, np.inf).at_c_max.any()
    shares = measures.bound_shares(pi, beta, 0.5, 1.5)
    assert (shares.at_c_min.tolist(), shares.at_c_max.tolist()) == ([0.5], [0.5])
