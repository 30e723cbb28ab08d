"""The worlds of the safe-policy-improvement study are the ones the field uses."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab.mdp import MDP, optimal_policy, performance, values
from rbi.lab.spi import worlds
from rbi.lab.spi.worlds import baselines


def test_wet_chicken_has_the_published_values():
    world = worlds.wet_chicken_river()
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
    world = worlds.wet_chicken_river()
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


def generators(*seeds):
    return [np.random.default_rng(seed) for seed in seeds]


@pytest.mark.parametrize(
    ("make", "quality"),
    [(worlds.random_mdps, q) for q in (0.1, 0.5, 0.9)] + [(worlds.gridworlds, q) for q in (0.5, 0.7, 0.9)],
)
def test_baselines_stand_at_their_stated_quality(make, quality):
    problem = make(quality, generators(0, 1, 2))
    assert problem.beta.sum(-1) == approx(np.ones(problem.beta.shape[:-1]))
    best = optimal_policy(problem.mdp)
    uniform = np.full(best.shape, 1 / best.shape[-1])
    low, reached, high = (performance(problem.mdp, pi) for pi in (uniform, problem.beta, best))
    share = (reached - low) / (high - low)
    assert (share > quality - 0.03).all()
    assert (share <= quality + 1e-9).all()
    assert (values(problem.mdp, problem.beta) <= values(problem.mdp, best) + 1e-9).all()


def slow_baseline(world, quality, rng):
    """The recipe as it is told, one world and one evaluation after the other."""
    best = optimal_policy(world)
    low, high = performance(world, np.full(best.shape, 1 / best.shape[-1])), performance(world, best)
    q = world.rewards + world.discount * np.einsum("sat,t->sa", world.transitions, values(world, best))
    coldness = 2e6
    while True:
        weight = np.exp(coldness * (q - q.max(-1, keepdims=True)))
        pi = weight / weight.sum(-1, keepdims=True)
        if performance(world, pi) <= low + (1 + quality) / 2 * (high - low):
            break
        coldness *= 0.9
    while True:
        for state in rng.integers(len(pi), size=256):
            if performance(world, pi) <= low + quality * (high - low):
                return pi
            pi[state, q[state].argmax()] *= 0.9
            pi[state] /= pi[state].sum()


@pytest.mark.parametrize("quality", [0.2, 0.8])
def test_baselines_are_those_of_the_slow_recipe_whatever_their_company(quality):
    made = [worlds.random_world(rng) for rng in generators(0, 1, 2)]
    together = MDP(np.stack([w.transitions for w in made]), np.stack([w.rewards for w in made]), made[0].start, 0.95)
    found = baselines(together, quality, generators(10, 11, 12))
    for seed, world, beta in zip((10, 11, 12), made, found, strict=True):
        assert beta == approx(slow_baseline(world, quality, np.random.default_rng(seed)), abs=1e-9)


def test_a_quality_that_no_baseline_has_is_refused():
    """In the gridworld a policy without its best actions is still better than chance."""
    with pytest.raises(ValueError, match="no baseline of this quality"):
        worlds.gridworlds(0.1, generators(0, 1))


def test_the_gridworld_is_slippery_has_walls_swamps_and_an_end():
    grid = worlds.gridworld()
    up, _, _, right = range(4)
    assert grid.transitions[0, up] == approx(0.9 * np.eye(25)[0] + 0.1 * np.eye(25)[1])  # against the border
    middle = grid.transitions[7, right]  # row 1, column 2: ahead lies a swamp, so does one below
    assert middle[[8, 2, 12]] == approx([0.8, 0.1, 0.1])
    assert grid.rewards[7, right] == approx(-0.5 * 0.9)
    assert grid.transitions[23, right].sum() == approx(0.2)  # beside the goal, which ends the episode
    assert grid.rewards[23, right] == approx(0.8 + 0.1 * -0.5 * 0 + 0.1 * -0.5 * 1)
    assert (grid.transitions[24] == 0).all()
    assert performance(grid, optimal_policy(grid)) > 0.3


def test_problems_refuse_shapes_that_do_not_fit():
    river = worlds.wet_chicken(0.1)
    with pytest.raises(ValueError, match="arrival"):
        worlds.Problem(river.mdp, river.arrival[:-1], river.beta)
    with pytest.raises(ValueError, match="beta"):
        worlds.Problem(river.mdp, river.arrival, river.beta[0])
