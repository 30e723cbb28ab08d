"""Exact values of finite MDPs, and the paper's theory on them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

import rbi
from rbi import measures
from rbi.lab import mdp as exact
from rbi.lab.mdp import MDP
from tests.generators import floats

RULES = [rbi.parse_rule(text) for text in (
    "reroute(0.5,1.5)", "reroute(0,2)", "tv(0.25)", "ppo(0.5)", "forward_kl(1)", "forward_kl(radius=0.1)",
    "backward_kl(0.1)", "greedy", "behavior",
)]  # fmt: skip


def random_mdp(rng, states=5, actions=3, batch=(), discount=0.9, ending=0.1):
    transitions = rng.dirichlet(np.full(states, 0.5), size=(*batch, states, actions)) * (1 - ending)
    return MDP(transitions, rng.normal(size=(*batch, states, actions)), np.eye(states)[0], discount)


def random_policy(rng, states=5, actions=3, batch=()):
    return rng.dirichlet(np.full(actions, 0.7), size=(*batch, states))


seeds = st.integers(0, 2**32 - 1)


def test_values_are_those_of_iterating_the_bellman_operator():
    rng = np.random.default_rng(0)
    world, pi = random_mdp(rng), random_policy(rng)
    v = np.zeros(5)
    for _ in range(2000):
        v = (pi * (world.rewards + world.discount * world.transitions @ v)).sum(-1)
    assert exact.values(world, pi) == approx(v)
    assert (pi * exact.q_values(world, pi)).sum(-1) == approx(v)
    assert (pi * exact.advantages(world, pi)).sum(-1) == approx(np.zeros(5), abs=1e-12)
    assert exact.performance(world, pi) == approx(v[0])


def test_visitation_is_the_discounted_sum_of_powers():
    rng = np.random.default_rng(1)
    world, pi = random_mdp(rng), random_policy(rng)
    step = world.discount * exact.state_transitions(world, pi)
    assert exact.visitation(world, pi) == approx(sum(np.linalg.matrix_power(step, k) for k in range(500)))


def test_many_mdps_and_policies_at_once_equal_one_by_one():
    rng = np.random.default_rng(2)
    worlds, pi = random_mdp(rng, batch=(4, 1)), random_policy(rng, batch=(3,))
    q = exact.q_values(worlds, pi)
    assert q.shape == (4, 3, 5, 3)
    one = MDP(worlds.transitions[2, 0], worlds.rewards[2, 0], worlds.start, worlds.discount)
    assert q[2, 1] == approx(exact.q_values(one, pi[1]))
    assert exact.performance(worlds, pi).shape == (4, 3)


def test_no_policy_beats_the_optimal_one():
    rng = np.random.default_rng(3)
    worlds = random_mdp(rng, batch=(20,))
    best = exact.values(worlds, exact.optimal_policy(worlds))
    for _ in range(20):
        assert (exact.values(worlds, random_policy(rng, batch=(20,))) <= best + 1e-9).all()
    q = exact.q_values(worlds, exact.optimal_policy(worlds))
    assert q.max(-1) == approx(best)  # Bellman optimality


@given(seeds)
def test_performance_difference_identity(seed):
    """J(pi) - J(beta) = sum_s rho^pi(s) sum_a pi A^beta."""
    rng = np.random.default_rng(seed)
    world, beta, pi = random_mdp(rng), random_policy(rng), random_policy(rng)
    steps = measures.improvement_step(pi, exact.advantages(world, beta))
    difference = exact.values(world, pi) - exact.values(world, beta)
    assert exact.visitation(world, pi) @ steps == approx(difference, abs=1e-9)


@given(seeds)
def test_soft_policy_improvement_lemma(seed):
    """A policy whose improvement step is nowhere negative is nowhere worse, and better by at least that step."""
    rng = np.random.default_rng(seed)
    world, beta, pi = random_mdp(rng), random_policy(rng), random_policy(rng)
    advantage = exact.advantages(world, beta)
    pi = np.where(measures.improvement_step(pi, advantage)[:, None] >= 0, pi, beta)
    step = (pi * advantage).sum(-1)
    assert (exact.values(world, pi) - exact.values(world, beta) >= np.maximum(step, 0) - 1e-9).all()


@given(seeds)
def test_rank_based_improvement_corollary(seed):
    """A policy is nowhere worse if its ratios to beta do not fall as the advantage rises."""
    rng = np.random.default_rng(seed)
    world, beta = random_mdp(rng), random_policy(rng)
    advantage = exact.advantages(world, beta)
    ratio = np.sort(rng.exponential(size=beta.shape) ** 2)
    pi = beta * np.take_along_axis(ratio, advantage.argsort(-1).argsort(-1), -1)
    pi /= pi.sum(-1, keepdims=True)
    assert (measures.improvement_step(pi, advantage) >= -1e-12).all()
    assert (exact.values(world, pi) >= exact.values(world, beta) - 1e-9).all()


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=seeds)
def test_with_exact_advantages_every_rule_improves_every_state(rule, seed):
    rng = np.random.default_rng(seed)
    world, beta = random_mdp(rng), random_policy(rng)
    pi = rule(beta, exact.advantages(world, beta))
    assert (exact.values(world, pi) >= exact.values(world, beta) - 1e-9).all()


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(seed=seeds, scale=floats(0, 10))
def test_improvement_penalty_lemma(rule, seed, scale):
    """For any errors, V^pi - V^beta >= -E(s) if the rule improves on the estimate."""
    rng = np.random.default_rng(seed)
    world, beta = random_mdp(rng), random_policy(rng)
    error = scale * rng.normal(size=beta.shape)
    pi = rule(beta, exact.q_values(world, beta) - error)
    penalty = exact.improvement_penalty(world, beta, pi, error)
    assert (exact.values(world, pi) - exact.values(world, beta) >= -penalty - 1e-8).all()


@given(seeds, floats(0, 10))
def test_the_gain_of_any_policy_is_what_the_estimate_promises_less_the_improvement_penalty(seed, scale):
    """Hence the lemma: what the estimate promises, sum_s' rho^pi sum_a pi A_hat, is not negative there."""
    rng = np.random.default_rng(seed)
    world, beta, pi = random_mdp(rng), random_policy(rng), random_policy(rng)
    error = scale * rng.normal(size=beta.shape)
    promised = measures.improvement_step(pi, exact.q_values(world, beta) - error, beta=beta)
    gain = exact.visitation(world, pi) @ promised - exact.improvement_penalty(world, beta, pi, error)
    assert gain == approx(exact.values(world, pi) - exact.values(world, beta), abs=1e-8)


@settings(max_examples=40)
@given(seeds, floats(-0.05, 1))
def test_variance_of_the_penalty_lies_below_the_upper_bound_for_every_correlation(seed, correlation):
    rng = np.random.default_rng(seed)
    world, beta = random_mdp(rng), random_policy(rng)
    pi = rbi.Reroute(0.5, 1.5)(beta, rng.normal(size=beta.shape))
    sigma = measures.value_standard_error(rng.uniform(0.5, 2, beta.shape), 100, beta)
    mixed = (1 - correlation) * np.eye(beta.size) + correlation
    variance = exact.penalty_variance(world, beta, pi, mixed * np.outer(sigma.reshape(-1), sigma.reshape(-1)))
    bounds = measures.penalty_variance_bounds(pi, beta, sigma, exact.visitation(world, pi))
    assert (variance <= bounds.upper * (1 + 1e-9) + 1e-12).all()


@given(seeds)
def test_variance_of_the_penalty_is_the_lower_bound_for_independent_errors(seed):
    rng = np.random.default_rng(seed)
    world, beta, pi = random_mdp(rng), random_policy(rng), random_policy(rng)
    sigma = rng.uniform(0.1, 1, beta.shape)
    variance = exact.penalty_variance(world, beta, pi, np.diag(sigma.reshape(-1) ** 2))
    assert variance == approx(measures.penalty_variance_bounds(pi, beta, sigma, exact.visitation(world, pi)).lower)


def test_positively_correlated_errors_can_have_less_variance_than_the_papers_lower_bound():
    """Within a state sum_a (beta - pi) = 0: errors that all actions share cancel."""
    world = MDP(np.zeros((1, 2, 1)), np.zeros((1, 2)), np.ones(1), 0.9)
    beta, pi = np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])
    variance = exact.penalty_variance(world, beta, pi, np.array([[1, 0.5], [0.5, 1]]))
    lower = measures.penalty_variance_bounds(pi, beta, np.ones((1, 2)), np.ones(1)).lower
    assert variance == approx(lower / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(transitions=np.full((2, 1, 2), 0.6)), r"^transitions\[0, 0\] sum to 1.2: must be probabilities"),
        (dict(transitions=np.zeros((2, 1, 3))), r"must be \[..., S, A, S\]"),
        (dict(rewards=np.zeros((2, 2))), r"do not fit transitions"),
        (dict(discount=1.0), r"^discount = 1: must be in \[0, 1\)$"),
    ],
)
def test_invalid_mdps_are_rejected(change, message):
    whole = dict(transitions=np.full((2, 1, 2), 0.5), rewards=np.zeros((2, 1)), start=np.array([1.0, 0]), discount=0.9)
    with pytest.raises(ValueError, match=message):
        MDP(**(whole | change))
