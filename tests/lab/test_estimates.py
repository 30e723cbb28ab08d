"""Estimates of Q from samples: unbiased, with correct standard errors."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab import mdp as exact
from rbi.lab.estimates import (
    Trajectories,
    first_visit_monte_carlo,
    n_step_td,
    phased_td,
    rollout,
    sample_categorical,
    td_error_bound,
)
from rbi.lab.mdp import MDP
from tests.lab.test_mdp import random_mdp, random_policy

SHAPE = (5, 3)


def world_and_policy(seed=0):
    rng = np.random.default_rng(seed)
    return random_mdp(rng, ending=0.2), 0.8 * random_policy(rng) + 0.2 / 3


def test_rollouts_have_the_discounted_visitation_rho():
    world, pi = world_and_policy()
    episodes = rollout(world, pi, 20_000, 60, np.random.default_rng(1))
    discounted = world.discount ** np.arange(60) * episodes.mask
    visits = np.bincount(episodes.states.reshape(-1), discounted.reshape(-1), 5) / 20_000
    assert visits == approx(exact.visitation(world, pi)[0], rel=0.03)
    returns = (world.discount ** np.arange(60) * episodes.rewards).sum(-1)
    assert returns.mean() == approx(exact.performance(world, pi), abs=4 * returns.std() / np.sqrt(20_000))


def test_first_visit_monte_carlo_is_unbiased_with_correct_standard_errors():
    world, pi = world_and_policy()
    q = exact.q_values(world, pi)
    scores = []
    for seed in range(30):
        found = first_visit_monte_carlo(
            rollout(world, pi, 400, 80, np.random.default_rng(seed), 0.5), SHAPE, world.discount
        )
        enough = found.counts > 30
        scores.append(((found.q - q) / found.standard_error)[enough])
    scores = np.concatenate(scores)
    assert scores.mean() == approx(0, abs=0.15)
    assert scores.std() == approx(1, abs=0.15)


def test_only_the_first_visit_of_an_episode_counts():
    episodes = Trajectories(
        states=np.array([[0, 1, 0, 0]]),
        actions=np.array([[0, 0, 0, 1]]),
        rewards=np.array([[1.0, 2.0, 4.0, 8.0]]),
        lengths=np.array([3]),  # the last column is padding
    )
    found = first_visit_monte_carlo(
        Trajectories(episodes.states, episodes.actions, episodes.rewards * [1, 1, 1, 0], episodes.lengths), (2, 2), 0.5
    )
    assert found.counts.tolist() == [[1, 0], [1, 0]]
    assert found.q.tolist() == [[1 + 0.5 * 2 + 0.25 * 4, 0], [2 + 0.5 * 4, 0]]
    assert np.isinf(found.standard_error).all()


@pytest.mark.parametrize("n", [1, 3])
def test_n_step_td_converges_to_q(n):
    world, pi = world_and_policy()
    episodes = rollout(world, pi, 10_000, 60, np.random.default_rng(2))
    found = n_step_td(episodes, pi, world.discount, n, sweeps=50)
    assert found.q == approx(exact.q_values(world, pi), abs=0.08)
    assert found.counts.sum() == episodes.lengths.sum()


def test_one_sweep_of_td_with_large_n_is_every_visit_monte_carlo():
    world, pi = world_and_policy()
    episodes = rollout(world, pi, 50, 60, np.random.default_rng(3), reward_std=1.0)
    returns = {}
    for states, actions, rewards, length in zip(
        episodes.states, episodes.actions, episodes.rewards, episodes.lengths, strict=True
    ):
        for t in range(length):
            rest = rewards[t:length] @ world.discount ** np.arange(length - t)
            returns.setdefault((states[t], actions[t]), []).append(rest)
    found = n_step_td(episodes, pi, world.discount, 60, sweeps=1)
    for pair, seen in returns.items():
        assert found.q[pair] == approx(np.mean(seen))
        assert found.counts[pair] == len(seen)


def unit_world(seed):
    """Rewards such that all values lie in [-1, 1], where the error bound of TD holds."""
    rng = np.random.default_rng(seed)
    world = random_mdp(rng, ending=0.0, discount=0.8)
    rewards = rng.uniform(-1, 1, world.rewards.shape) * (1 - world.discount)
    return MDP(world.transitions, rewards, world.start, world.discount), random_policy(rng)


def test_td_error_bound_has_the_papers_numbers():
    assert td_error_bound(0.5, 1, 1, np.exp(-3), 9) == approx(1 + 0.5)  # sqrt(3 * 3 / 9) = 1
    assert td_error_bound(0.5, 2, 1, 2 * np.exp(-3), 9) == approx(1.5 + 0.25)
    assert td_error_bound(0.5, 2, 2, 2 * np.exp(-3), 36) == approx(1.875 / 2 + 0.0625)


@pytest.mark.parametrize(("n", "phases", "samples"), [(1, 1, 20), (1, 10, 50), (3, 4, 200)])
def test_td_error_bound_holds_under_its_conditions(n, phases, samples):
    delta, missed = 0.1, 0
    for seed in range(40):
        world, beta = unit_world(seed)
        found = phased_td(world, beta, n, phases, samples, np.random.default_rng(seed))
        error = abs(found - exact.q_values(world, beta)).max()
        missed += error > td_error_bound(world.discount, n, phases, delta, samples)
    assert missed <= delta * 40


def test_td_error_bound_fails_for_rewards_of_1_whose_values_exceed_1():
    world = MDP(np.ones((1, 1, 1)), np.ones((1, 1)), np.ones(1), 0.9)
    found = phased_td(world, np.ones((1, 1)), 1, 3, 1000, np.random.default_rng(0))
    error = abs(found - 10).max()  # the value is 1 / (1 - 0.9)
    assert error == approx(10 * 0.9**3)
    assert error > td_error_bound(0.9, 1, 3, 0.1, 10_000)


def test_sample_categorical_follows_the_probabilities():
    probs = np.tile([0.2, 0.0, 0.3, 0.5], (50_000, 1))
    frequency = np.bincount(sample_categorical(probs, np.random.default_rng(0)), minlength=4) / 50_000
    assert frequency == approx([0.2, 0, 0.3, 0.5], abs=0.01)
