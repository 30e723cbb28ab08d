"""Off-policy estimates: unbiased over all trajectories, equal to slow loops, inside their stated limits."""

import dataclasses
import math

import numpy as np
import pytest
from pytest import approx

import rbi
from rbi.certification import estimates
from rbi.certification.estimates import LoggedSteps, Ratios, reroute_total_variation
from tests.reference.off_policy_loops import (
    all_trajectories,
    doubly_robust_value,
    episodes_of,
    finite_horizon_value,
    per_decision_term,
)

GAMMA = 0.9


def random_steps(seed=0, episodes=50, longest=6, actions=3, c=(0.5, 1.5)):
    """Episodes of different lengths with rewards in [0, 1], and a reroute policy."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, episodes)
    S = int(lengths.sum())
    beta, q = rng.dirichlet(np.ones(actions), S), rng.random((S, actions))
    taken = (rng.random((S, 1)) > beta.cumsum(1)).sum(1)
    logged = LoggedSteps(lengths, taken, rng.random(S), beta[np.arange(S), taken], q, beta, GAMMA)
    return logged, rbi.max_reroute(beta, q, *c)


def ratios(logged, pi):
    return estimates.ratios(logged, logged.taken(pi))


def doubly_robust(logged, pi, rho, low, high, limits):
    return estimates.doubly_robust(logged, estimates.expected_q(pi, logged.q, low, high), rho, low, high, limits)


def test_weights_are_normalised_over_players_whatever_the_number_of_their_episodes():
    """The weighted estimate of players equals that of episodes which are repeated until all players have as many."""
    logged, pi = random_steps(episodes=6)
    units, times = np.array([0, 1, 1, 0, 2, 0]), np.array([2, 3, 3, 2, 6, 2])
    weights = estimates.cumulative_weights(logged, ratios(logged, pi))
    whole, returns = (np.repeat(x, times) for x in (estimates.episode_weights(logged, weights), logged.returns()))
    by_player = dataclasses.replace(logged, units=units)
    value, error = estimates.weighted_importance_sampling(by_player, weights)
    assert value == approx((whole * returns).sum() / whole.sum() - returns.mean())
    assert error > 0
    assert by_player.num_units == 3
    assert estimates.weight_diagnostics(by_player, ratios(logged, pi), weights)["effective_sample_size"] <= 3


def test_expected_q_is_the_same_in_blocks_of_any_size(monkeypatch):
    logged, pi = random_steps()
    wanted = (pi * np.clip(logged.q, 0.2, 0.7)).sum(1)
    for numbers in (1, 10, 1000):
        monkeypatch.setattr(estimates, "BLOCK_NUMBERS", numbers)
        np.testing.assert_array_equal(estimates.expected_q(pi, logged.q, 0.2, 0.7), wanted)


def exhaustive(horizon=3):
    """Every trajectory of a small MDP as an episode, with its probability, and the true gain of a policy."""
    rng = np.random.default_rng(1)
    transitions, rewards = rng.dirichlet(np.ones(2), (2, 2)), rng.random((2, 2))
    beta, pi = rng.dirichlet(np.ones(2), 2), rng.dirichlet(np.ones(2), 2)
    found = list(all_trajectories(transitions, rewards, beta, horizon))
    states, actions, paid = (np.concatenate([np.array(row[n]) for row in found]) for n in (1, 2, 3))
    q = rng.random((2, 2))[states]
    logged = LoggedSteps(np.full(len(found), horizon), actions, paid, beta[states, actions], q, beta[states], GAMMA)
    gain = np.subtract(*(finite_horizon_value(transitions, rewards, policy, horizon, GAMMA) for policy in (pi, beta)))
    return logged, pi[states], np.array([row[0] for row in found]), gain


@pytest.mark.parametrize("name", ["importance_sampling", "per_decision", "doubly_robust", "doubly_robust_without_beta"])
def test_the_mean_over_all_trajectories_is_the_true_gain(name):
    logged, pi, probability, gain = exhaustive()
    rho = ratios(logged, pi)
    weights = estimates.cumulative_weights(logged, rho)
    if name == "importance_sampling":
        terms = estimates.importance_sampling(logged, weights, -2.0, 5.0)
    elif name == "per_decision":
        terms = estimates.per_decision(logged, weights, 5.0)
    else:
        known = (
            logged
            if name == "doubly_robust"
            else LoggedSteps(logged.steps, logged.actions, logged.rewards, logged.action_probs, logged.q, None, GAMMA)
        )
        terms = doubly_robust(known, pi, rho, 0.0, 3.0, Ratios())
    assert probability.sum() == approx(1)
    assert probability @ terms.values == approx(gain)
    assert probability @ estimates.episode_weights(logged, weights) == approx(1)


def test_terms_are_those_of_the_loops():
    logged, pi = random_steps()
    rho = ratios(logged, pi)
    weights = estimates.cumulative_weights(logged, rho)
    parts, q = episodes_of(logged), logged.taken(logged.q)
    v, v_beta = (pi * logged.q).sum(1), (logged.beta * logged.q).sum(1)
    assert estimates.per_decision(logged, weights, 6.0).values == approx(
        [per_decision_term(logged.rewards[p], rho[p], GAMMA) for p in parts]
    )
    found = doubly_robust(logged, pi, rho, 0.0, 6.0, Ratios(0.5, 1.5))
    ones = np.ones(len(rho))
    assert found.values == approx(
        [
            doubly_robust_value(logged.rewards[p], rho[p], v[p], q[p], GAMMA)
            - doubly_robust_value(logged.rewards[p], ones[p], v_beta[p], q[p], GAMMA)
            for p in parts
        ]
    )
    assert estimates.episode_weights(logged, weights) == approx([rho[p].prod() for p in parts])


@pytest.mark.parametrize("longest", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_terms_stay_inside_their_limits(longest, seed):
    c = Ratios(0.25, 2.0)
    logged, pi = random_steps(seed, 200, longest, c=c)
    logged = LoggedSteps(
        logged.steps, logged.actions, np.round(logged.rewards), logged.action_probs, np.round(logged.q), logged.beta
    )
    rho = ratios(logged, pi)
    weights, high = estimates.cumulative_weights(logged, rho), float(longest)
    for terms in (
        estimates.importance_sampling(logged, weights, 0.0, high),
        estimates.per_decision(logged, weights, high),
        doubly_robust(logged, pi, rho, 0.0, high, c),
    ):
        assert terms.floor - 1e-9 <= terms.values.min() <= terms.values.max() <= terms.ceiling + 1e-9
    assert math.isinf(doubly_robust(logged, pi, rho, 0.0, high, Ratios()).floor)


def test_a_weight_of_0_takes_away_the_whole_range_of_returns():
    logged, pi = random_steps(0, 300, 1, c=(0.0, 2.0))
    logged = dataclasses.replace(logged, rewards=np.sign(logged.rewards - 0.5))
    weights = estimates.cumulative_weights(logged, ratios(logged, pi))
    terms = estimates.importance_sampling(logged, weights, -1.0, 1.0)
    assert terms.floor == -2
    assert terms.floor <= terms.values.min() < -1


def test_q_outside_the_range_of_returns_is_clipped():
    c = Ratios(0.5, 1.5)
    logged, pi = random_steps(0, 300, 1, c=c)
    outside = dataclasses.replace(logged, q=50 * (logged.q - 0.5))
    clipped = dataclasses.replace(logged, q=np.clip(outside.q, 0.0, 1.0))
    rho = ratios(logged, pi)
    found = doubly_robust(outside, pi, rho, 0.0, 1.0, c)
    assert found.values == approx(doubly_robust(clipped, pi, rho, 0.0, 1.0, c).values)
    assert found.floor <= found.values.min() <= found.values.max() <= found.ceiling


def test_limits_of_doubly_robust_values_are_those_of_the_recursion():
    """Rewards, V and Q in [0, 1], ratios in [0.5, 1.5]: v + rho (r + gamma DR' - q) at its extremes, twice."""
    logged = LoggedSteps(np.array([2, 1]), np.zeros(3, int), np.zeros(3), np.ones(3), np.zeros((3, 1)), None, GAMMA)
    last_least, last_most = 0 + 1.5 * (0 - 1), 1 + 1.5 * (1 - 0)
    least, most = 1.5 * (GAMMA * last_least - 1), 1 + 1.5 * (1 + GAMMA * last_most)
    assert estimates.doubly_robust_limits(logged, 0.0, 1.0, Ratios(0.5, 1.5)) == approx((least, most))


def test_one_of_several_rewards_may_be_below_the_least_return():
    """V and Q in [0.5, 1], but rewards in [0, 1]; a single reward is a return, in [0.5, 1]."""
    steps = LoggedSteps(np.array([2]), np.zeros(2, int), np.zeros(2), np.ones(2), np.zeros((2, 1)), None, GAMMA)
    least = 0.5 + 1.5 * (0 + GAMMA * (0.5 + 1.5 * (0 - 1)) - 1)
    assert estimates.doubly_robust_limits(steps, 0.5, 1.0, Ratios(0.5, 1.5))[0] == approx(least)
    single = LoggedSteps(np.array([1]), np.zeros(1, int), np.ones(1), np.ones(1), np.zeros((1, 1)), None, GAMMA)
    assert estimates.doubly_robust_limits(single, 0.5, 1.0, Ratios(0.5, 1.5))[0] == approx(0.5 + 1.5 * (0.5 - 1))


def test_without_beta_the_limits_of_a_gain_are_widened_by_those_of_returns():
    logged, pi = random_steps(2, 50, 1)
    logged, rho, c = dataclasses.replace(logged, beta=None), ratios(logged, pi), Ratios(0.5, 1.5)
    found = doubly_robust(logged, pi, rho, -1.0, 1.0, c)
    least, most = estimates.doubly_robust_limits(logged, -1.0, 1.0, c)
    assert (found.floor, found.ceiling) == approx((least - 1, most + 1))


def test_per_decision_terms_refuse_negative_rewards():
    logged, pi = random_steps()
    weights = estimates.cumulative_weights(logged, ratios(logged, pi))
    with pytest.raises(ValueError, match="rewards must not be negative"):
        estimates.per_decision(dataclasses.replace(logged, rewards=-logged.rewards), weights, 6.0)


def test_a_one_step_term_is_the_formula_with_control_variate():
    logged, pi = random_steps(2, 300, 1)
    rho = ratios(logged, pi)
    q = logged.taken(logged.q)
    expected = ((pi - logged.beta) * logged.q).sum(1) + (rho - 1) * (logged.rewards - q)
    found = doubly_robust(logged, pi, rho, 0.0, 1.0, Ratios(0.5, 1.5))
    assert found.values == approx(expected)
    assert (found.floor, found.ceiling) == (-0.75, 0.75)


def test_doubly_robust_terms_vary_less_than_weighted_returns():
    rng = np.random.default_rng(3)
    S = 4000
    beta, truth = rng.dirichlet(np.ones(3), S), rng.random((S, 3))
    taken = (rng.random((S, 1)) > beta.cumsum(1)).sum(1)
    paid = truth[np.arange(S), taken] + 0.1 * rng.normal(size=S)
    logged = LoggedSteps(np.ones(S, int), taken, paid, beta[np.arange(S), taken], truth, beta)
    pi = rbi.max_reroute(beta, truth, 0.5, 1.5)
    rho = ratios(logged, pi)
    robust = doubly_robust(logged, pi, rho, -1.0, 2.0, Ratios(0.5, 1.5)).values
    plain = estimates.importance_sampling(logged, estimates.cumulative_weights(logged, rho), 0.0, 1.0).values
    assert robust.std() < 0.5 * plain.std()
    assert robust.mean() == approx(((pi - beta) * truth).sum(1).mean(), abs=0.01)


def test_weighted_importance_sampling_and_fitted_q_find_the_gain():
    rng = np.random.default_rng(4)
    S = 20_000
    x = rng.integers(0, 2, S)
    beta, means = np.full((S, 2), 0.5), np.array([[0.2, 0.6], [0.7, 0.1]])[x]
    taken = rng.integers(0, 2, S)
    paid = (rng.random(S) < means[np.arange(S), taken]).astype(float)
    logged = LoggedSteps(np.ones(S, int), taken, paid, np.full(S, 0.5), means, beta)
    pi = rbi.max_reroute(beta, means, 0.5, 1.5)
    gain = ((pi - beta) * means).sum(1).mean()
    estimate, error = estimates.weighted_importance_sampling(
        logged, estimates.cumulative_weights(logged, ratios(logged, pi))
    )
    assert abs(estimate - gain) < 4 * error < 0.03
    assert estimates.weighted_importance_sampling(logged, np.ones(S)) == approx((0, 0))  # the old policy itself
    assert estimates.fitted_q_evaluation(logged, pi, np.eye(2)[x]) == approx(gain, abs=0.03)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_fitted_q_evaluation_bootstraps_over_the_horizon(gamma):
    """Two steps: the second pays 1 if action 1 was taken in both; the feature is the first action."""
    rng, E = np.random.default_rng(5), 20_000
    one, two = rng.integers(0, 2, E), rng.integers(0, 2, E)
    state = np.stack([np.eye(3)[np.zeros(E, int)], np.eye(3)[1 + one]], 1).reshape(2 * E, 3)
    rewards = np.stack([np.zeros(E), one * two], 1).reshape(-1)
    taken = np.stack([one, two], 1).reshape(-1)
    logged = LoggedSteps(np.full(E, 2), taken, rewards, np.full(2 * E, 0.5), np.zeros((2 * E, 2)), None, gamma)
    pi = np.tile([0.2, 0.8], (2 * E, 1))
    assert estimates.fitted_q_evaluation(logged, pi, state) == approx(gamma * (0.64 - rewards.sum() / E), abs=0.02)


def test_diagnostics_of_weights():
    logged, pi = random_steps(6, 400, 3)
    rho = ratios(logged, pi)
    weights = estimates.cumulative_weights(logged, rho)
    found = estimates.weight_diagnostics(logged, rho, weights)
    assert 100 < found["effective_sample_size"] < 400
    assert found["max_ratio"] == approx(1.5)
    assert found["max_useful_horizon"] == approx(math.log(4) / math.log(np.square(rho).mean()))


@pytest.mark.parametrize(
    ("c", "moved"), [((0.0, 1.5), 1 / 3), ((0.75, 3.0), 2 / 9), ((0.5, math.inf), 0.5), ((1, 1), 0)]
)
def test_a_reroute_policy_moves_at_most_what_balances_both_bounds(c, moved):
    """down * up / (down + up): the actions that lose 1 - c_min pay for those that gain c_max - 1."""
    assert reroute_total_variation(Ratios(*c)) == approx(moved)


def test_an_action_that_was_never_taken_is_no_obstacle():
    logged, pi = random_steps(7, 50, 2)
    wider = [np.concatenate([part, np.zeros((len(part), 1))], 1) for part in (pi, logged.q, logged.beta)]
    more = LoggedSteps(logged.steps, logged.actions, logged.rewards, logged.action_probs, wider[1], wider[2], GAMMA)
    x = np.random.default_rng(0).random((len(pi), 2))
    assert np.isfinite(estimates.fitted_q_evaluation(more, wider[0], x))
    assert estimates.fitted_q_evaluation(more, wider[0], x) == approx(estimates.fitted_q_evaluation(logged, pi, x))
