"""Worlds of the SPI study: published values, baselines of the stated quality, and logged data."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab.mdp import MDP, optimal_policy, performance, q_values, values
from rbi.lab.spi import worlds
from rbi.lab.spi.worlds import (
    Logs,
    Task,
    baselines,
    collect_logs,
    count_transitions,
    estimate_model,
    every_visit_monte_carlo,
)


def test_wet_chicken_has_the_published_values():
    world = worlds.wet_chicken_river()
    assert world.transitions.sum(-1) == approx(np.ones((25, 5)))
    assert performance(world, np.full((25, 5), 0.2)) == approx(20.660, abs=5e-4)
    assert performance(world, optimal_policy(world)) == approx(43.080, abs=5e-4)
    assert performance(world, worlds.wet_chicken_baseline(0.1)) == approx(29.750, abs=5e-4)


@pytest.mark.parametrize(("x", "y", "action"), [(0, 0, 0), (2, 2, 2), (4, 4, 0), (3, 1, 4), (1, 3, 3), (0, 4, 1)])
def test_wet_chicken_transitions_are_those_of_a_simulation(x, y, action):
    """A simulation of the description: stream, uniform turbulence, rounding, fall."""
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
def test_random_mdps_have_four_successors_and_a_reachable_goal(seed):
    world = worlds.random_mdp(np.random.default_rng(seed))
    ends = 1 - world.transitions.sum(-1)
    goal = np.flatnonzero((world.transitions == 0).all((1, 2)))  # it has no successors
    assert len(goal) == 1
    assert (world.transitions[:, :, goal] == 0).all()  # entering it terminates
    assert world.rewards == approx(np.where(np.arange(50)[:, None] == goal, 0, ends), abs=1e-12)
    others = np.delete(np.arange(50), goal)
    successors = (world.transitions[others] > 0).sum(-1) + (ends[others] > 1e-12)
    assert set(successors.reshape(-1)) == {4}
    assert performance(world, optimal_policy(world)) > 0.95**50


def test_entering_a_goal_terminates_and_its_optimal_value_is_that_of_the_mdp():
    rng = np.random.default_rng(3)
    transitions = rng.dirichlet(np.ones(6), size=(6, 2))
    reaching = worlds.values_of_reaching(transitions, 0.95)
    for goal in range(6):
        world = worlds.with_goal(transitions, goal, 0.95)
        assert (world.transitions[goal] == 0).all()
        assert world.transitions[goal - 1].sum(-1) == approx(1 - transitions[goal - 1, :, goal])
        assert world.rewards[goal - 1] == approx(transitions[goal - 1, :, goal])
        others = np.arange(6) != goal
        assert reaching[others, goal] == approx(values(world, optimal_policy(world))[others], abs=1e-10)


def generators(*seeds):
    return [np.random.default_rng(seed) for seed in seeds]


@pytest.mark.parametrize(
    ("make", "quality"),
    [(worlds.random_mdps, q) for q in (0.1, 0.5, 0.9)] + [(worlds.gridworlds, q) for q in (0.5, 0.7, 0.9)],
)
def test_baselines_have_the_stated_quality(make, quality):
    task = make(quality, generators(0, 1, 2))
    assert task.beta.sum(-1) == approx(np.ones(task.beta.shape[:-1]))
    best = optimal_policy(task.mdp)
    uniform = np.full(best.shape, 1 / best.shape[-1])
    low, reached, high = (performance(task.mdp, pi) for pi in (uniform, task.beta, best))
    share = (reached - low) / (high - low)
    assert (share > quality - 0.03).all()
    assert (share <= quality + 1e-9).all()
    assert (values(task.mdp, task.beta) <= values(task.mdp, best) + 1e-9).all()


def slow_baseline(world, quality, rng):
    """The published recipe, one world and one evaluation at a time."""
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
def test_baselines_agree_with_the_slow_recipe_and_do_not_depend_on_other_worlds(quality):
    made = [worlds.random_mdp(rng) for rng in generators(0, 1, 2)]
    together = MDP(np.stack([w.transitions for w in made]), np.stack([w.rewards for w in made]), made[0].start, 0.95)
    found = baselines(together, quality, generators(10, 11, 12))
    for seed, world, beta in zip((10, 11, 12), made, found, strict=True):
        assert beta == approx(slow_baseline(world, quality, np.random.default_rng(seed)), abs=1e-9)


def test_an_impossible_quality_is_rejected():
    """In the gridworld a policy without its optimal actions is still better than uniform."""
    with pytest.raises(ValueError, match="no baseline of this quality"):
        worlds.gridworlds(0.1, generators(0, 1))


def test_gridworld_transitions_and_rewards():
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


def test_tasks_reject_inconsistent_shapes():
    river = worlds.wet_chicken(0.1)
    with pytest.raises(ValueError, match="arrival"):
        Task(river.mdp, river.arrival[:-1], river.beta)
    with pytest.raises(ValueError, match="beta"):
        Task(river.mdp, river.arrival, river.beta[0])


def indexed_generators(number, seed=0):
    return [np.random.default_rng([seed, i]) for i in range(number)]


def grid_logs(trajectories, steps=50, number=2):
    task = worlds.gridworlds(0.5, indexed_generators(number))
    uniforms = np.random.default_rng(1).random((steps, number, 1, trajectories), dtype=np.float32)
    return task, collect_logs(task, uniforms)


def split(logs):
    """State, action and successor of every step."""
    pair, reached = logs.steps // (logs.states + 1), logs.steps % (logs.states + 1)
    return pair // logs.actions, pair % logs.actions, reached


def test_logged_steps_follow_each_other_until_termination():
    _, logs = grid_logs(200)
    state, _, reached = split(logs)
    happened = logs.steps >= 0
    assert (state[0] == 0).all()
    continues = happened[:-1] & (reached[:-1] < 25)
    assert (happened[1:] == continues).all()
    assert (state[1:][continues] == reached[:-1][continues]).all()
    assert (reached == 25).any()


def test_logged_frequencies_agree_with_transitions_and_baseline():
    task, logs = grid_logs(20_000)
    counts = count_transitions(logs)[:, 0]
    visits = counts.sum((-1, -2))
    actions = counts.sum(-1) / np.maximum(visits, 1)[..., None]
    often = visits > 500
    beta = task.beta[:, 0]
    error = np.sqrt(beta * (1 - beta) / np.maximum(visits, 1)[..., None])
    assert (abs(actions - beta) < 5 * error + 1e-9)[often].all()
    n = counts.sum(-1)
    truth = np.concatenate([task.mdp.transitions, 1 - task.mdp.transitions.sum(-1, keepdims=True)], -1)[:, 0]
    error = np.sqrt(truth.clip(0) * (1 - truth) / np.maximum(n, 1)[..., None])
    off = abs(counts / np.maximum(n, 1)[..., None] - truth)
    assert (off < 5 * error + 1e-9)[n > 100].all()
    assert often.sum() > 20


def test_count_transitions_agrees_with_a_loop():
    _, logs = grid_logs(30, number=3)
    slow = np.zeros((3, 1, 25, 4, 26), dtype=int)
    state, action, reached = split(logs)
    for t, w, d, n in np.argwhere(logs.steps >= 0):
        slow[w, d, state[t, w, d, n], action[t, w, d, n], reached[t, w, d, n]] += 1
    assert (count_transitions(logs) == slow).all()


def test_smaller_datasets_are_parts_of_larger_ones():
    _, logs = grid_logs(40)
    assert (logs.first(10).steps == logs.steps[..., :10]).all()
    assert (logs.first(1).first(1).steps == logs.steps[..., :1]).all()  # one trajectory is not one step
    river = collect_logs(worlds.wet_chicken(0.1), np.random.default_rng(0).random((300, 1, 5, 1), dtype=np.float32))
    assert (river.first(100).steps == river.steps[:100]).all()
    assert (count_transitions(river.first(100)) <= count_transitions(river)).all()
    assert count_transitions(river.first(100)).sum() == 500


def test_logs_do_not_depend_on_other_worlds():
    """World 1 alone and among others."""
    task, logs = grid_logs(50, number=3)
    uniforms = np.random.default_rng(1).random((50, 3, 1, 50), dtype=np.float32)
    alone = Task(
        MDP(task.mdp.transitions[1:2], task.mdp.rewards[1:2], task.mdp.start, 0.95),
        task.arrival,
        task.beta[1:2],
    )
    assert (collect_logs(alone, uniforms[:, 1:2]).steps == logs.steps[:, 1:2]).all()


def test_the_estimated_model_has_frequencies_true_rewards_and_zeros_for_untried_pairs():
    task, logs = grid_logs(20)
    counts = count_transitions(logs)
    world = estimate_model(task, counts)
    n = counts.sum(-1)
    assert (world.transitions[n == 0] == 0).all()
    assert (world.rewards[n == 0] == 0).all()
    w, d, s, a = np.argwhere(n > 3)[0]
    assert world.transitions[w, d, s, a] == approx(counts[w, d, s, a, :25] / n[w, d, s, a])
    assert world.rewards[w, d, s, a] == approx(counts[w, d, s, a] @ task.arrival / n[w, d, s, a])


def test_the_estimated_model_converges_to_the_true_mdp():
    task = worlds.wet_chicken(0.9)
    logs = collect_logs(task, np.random.default_rng(0).random((2000, 1, 200, 1), dtype=np.float32))
    pooled = count_transitions(logs).sum(1, keepdims=True)
    world = estimate_model(task, pooled)
    often = pooled.sum(-1) > 1000
    assert often.mean() > 0.5
    assert world.rewards[often] == approx(task.mdp.rewards[often], abs=0.2)
    assert q_values(world, task.beta)[often] == approx(q_values(task.mdp, task.beta)[often], rel=0.02)


def test_every_visit_monte_carlo_agrees_with_a_loop():
    task, logs = grid_logs(60)
    state, action, reached = split(logs)
    returns, visits = np.zeros((2, 1, 25, 4)), np.zeros((2, 1, 25, 4))
    for w in range(2):
        for n in range(60):
            following = 0.0
            for t in reversed(range(50)):
                if logs.steps[t, w, 0, n] >= 0:
                    following = task.arrival[reached[t, w, 0, n]] + 0.95 * following
                    returns[w, 0, state[t, w, 0, n], action[t, w, 0, n]] += following
                    visits[w, 0, state[t, w, 0, n], action[t, w, 0, n]] += 1
    assert every_visit_monte_carlo(task, logs) == approx(returns / np.maximum(visits, 1))


def test_every_visit_monte_carlo_of_a_continuing_world_is_near_the_truth():
    task = worlds.wet_chicken(0.5)
    logs = collect_logs(task, np.random.default_rng(0).random((50_000, 1, 1, 1), dtype=np.float32))
    n = count_transitions(logs).sum(-1)
    truth = q_values(task.mdp, task.beta)
    assert abs(every_visit_monte_carlo(task, logs) - truth)[n > 300] == approx(0, abs=2.5)
    assert task.continuing


@pytest.mark.parametrize("size", [1, 49])
def test_empty_logs_have_no_counts(size):
    steps = np.full((size, 1, 1, 2), -1, dtype=np.int32)
    assert count_transitions(Logs(steps, 25, 4, False)).sum() == 0


def test_resource_gathering_is_a_continuing_task_whose_best_policy_brings_both_resources_home():
    world, arrival = worlds.resource_gathering()
    assert world.transitions.sum(-1) == approx(np.ones((101, 4)))
    assert world.rewards == approx(world.transitions @ arrival[:-1])
    pi = optimal_policy(world)
    v = values(world, pi)
    state, visited = int(np.argmax(world.start)), []
    for _ in range(40):  # the most likely way
        action = pi[state].argmax()
        state = int(world.transitions[state, action].argmax())
        visited.append(arrival[state])
        assert v[state] > 0
    assert max(visited) == 2
    assert min(visited) == 0  # death is never the likely outcome


def test_a_second_goal_terminates_with_reward_one_and_leaves_the_baseline_as_it_was():
    task = worlds.random_mdps(0.7, [np.random.default_rng(0), np.random.default_rng(1)])
    more = worlds.with_second_goal(task, [np.random.default_rng(2), np.random.default_rng(3)])
    assert (more.beta == task.beta).all()
    ending = 1 - more.mdp.transitions.sum(-1)
    before = 1 - task.mdp.transitions.sum(-1)
    assert ((ending > 1 - 1e-9).all(-1).sum(-1) == 2).all()  # two states in which nothing happens any more
    acting = ending.min(-1) < 1 - 1e-9
    assert more.mdp.rewards[acting] == approx(ending[acting])
    assert (ending >= before - 1e-12).all()
    assert (performance(more.mdp, more.beta) > performance(task.mdp, task.beta)).all()
