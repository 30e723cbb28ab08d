"""The worlds of the safe-policy-improvement study are the ones the field uses."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab import worlds
from rbi.lab.mdp import optimal_policy, performance, values


def test_wet_chicken_has_the_published_values():
    world = worlds.wet_chicken()
    assert world.transitions.sum(-1) == approx(np.ones((25, 5)))
    assert performance(world, np.full((25, 5), 0.2)) == approx(20.660, abs=5e-4)
    assert performance(world, optimal_policy(world)) == approx(43.080, abs=5e-4)
    assert performance(world, worlds.wet_chicken_baseline(0.1)) == approx(29.750, abs=5e-4)


@pytest.mark.parametrize(("x", "y", "action"), [(0, 0, 0), (2, 2, 2), (4, 4, 0), (3, 1, 4), (1, 3, 3), (0, 4, 1)])
def test_wet_chicken_moves_as_its_simulation_does(x, y, action):
    """The river as it is told: stream, uniform turbulence, rounding, the fall."""
    rng = np.random.default_rng(0)
    dx, dy = ((0, 0), (-1, 0), (-2, 0), (0, -1), (0, 1))[action]
    stream = 3 * y / 5
    landing = np.round(x + dx + stream + rng.uniform(-1, 1, 100_000) * (3.5 - stream)).astype(int)
    fallen = landing >= 5
    state = np.where(fallen, 0, 5 * np.maximum(landing, 0) + np.clip(y + dy, 0, 4))
    world = worlds.wet_chicken()
    assert np.bincount(state, minlength=25) / 100_000 == approx(world.transitions[5 * x + y, action], abs=0.006)
    assert (state // 5).mean() == approx(world.rewards[5 * x + y, action], abs=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_random_worlds_have_four_successors_and_a_goal_that_is_hard_but_not_hopeless(seed):
    world = worlds.random_world(np.random.default_rng(seed))
    ends = 1 - world.transitions.sum(-1)
    goal = np.flatnonzero((world.transitions == 0).all((1, 2)))  # nothing leads on from it
    assert len(goal) == 1
    assert (world.transitions[:, :, goal] == 0).all()  # entering it is ending
    assert world.rewards == approx(np.where(np.arange(50)[:, None] == goal, 0, ends), abs=1e-12)
    others = np.delete(np.arange(50), goal)
    successors = (world.transitions[others] > 0).sum(-1) + (ends[others] > 1e-12)
    assert set(successors.reshape(-1)) == {4}
    assert performance(world, optimal_policy(world)) > 0.95**50


def test_the_chosen_goal_is_the_hardest_of_all():
    rng = np.random.default_rng(3)
    transitions = rng.dirichlet(np.ones(6), size=(6, 2))
    every = worlds.with_goals(transitions, np.arange(1, 6), 0.95)
    for goal, world in zip(range(1, 6), every.transitions, strict=True):
        assert (world[goal] == 0).all()
        assert world.sum(-1)[0] == approx(1 - transitions[0, :, goal])
    assert every.rewards[2, 0] == approx(transitions[0, :, 3])


@pytest.mark.parametrize("quality", [0.1, 0.5, 0.9])
def test_baselines_stand_at_their_stated_quality(quality):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        world = worlds.random_world(rng)
        beta = worlds.baseline(world, quality, rng)
        assert beta.sum(-1) == approx(np.ones(50))
        low, reached, high = (performance(world, p) for p in (np.full((50, 4), 0.25), beta, optimal_policy(world)))
        assert quality - 0.02 < (reached - low) / (high - low) <= quality
        assert (values(world, beta) <= values(world, optimal_policy(world)) + 1e-9).all()
