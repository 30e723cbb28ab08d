"""Logged experience: what is recorded, counted and estimated is what the baseline does in the world."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab.mdp import q_values
from rbi.lab.spi import worlds
from rbi.lab.spi.worlds import Logs, count, every_visit_monte_carlo, model, record


def generators(number, seed=0):
    return [np.random.default_rng([seed, i]) for i in range(number)]


def grid_logs(trajectories, steps=50, number=2):
    problem = worlds.gridworlds(0.5, generators(number))
    uniforms = np.random.default_rng(1).random((steps, number, 1, trajectories), dtype=np.float32)
    return problem, record(problem, uniforms)


def split(logs):
    """(state, action, successor) of every step."""
    pair, reached = logs.steps // (logs.states + 1), logs.steps % (logs.states + 1)
    return pair // logs.actions, pair % logs.actions, reached


def test_a_step_starts_where_the_last_one_led_and_nothing_follows_the_end():
    _, logs = grid_logs(200)
    state, _, reached = split(logs)
    happened = logs.steps >= 0
    assert (state[0] == 0).all()
    goes_on = happened[:-1] & (reached[:-1] < 25)
    assert (happened[1:] == goes_on).all()
    assert (state[1:][goes_on] == reached[:-1][goes_on]).all()
    assert (reached == 25).any()


def test_recorded_frequencies_are_the_worlds_and_the_baselines_within_their_errors():
    problem, logs = grid_logs(20_000)
    counts = count(logs)[:, 0]
    visits = counts.sum((-1, -2))
    actions = counts.sum(-1) / np.maximum(visits, 1)[..., None]
    often = visits > 500
    beta = problem.beta[:, 0]
    error = np.sqrt(beta * (1 - beta) / np.maximum(visits, 1)[..., None])
    assert (abs(actions - beta) < 5 * error + 1e-9)[often].all()
    tries = counts.sum(-1)
    truth = np.concatenate([problem.mdp.transitions, 1 - problem.mdp.transitions.sum(-1, keepdims=True)], -1)[:, 0]
    error = np.sqrt(truth.clip(0) * (1 - truth) / np.maximum(tries, 1)[..., None])
    off = abs(counts / np.maximum(tries, 1)[..., None] - truth)
    assert (off < 5 * error + 1e-9)[tries > 100].all()
    assert often.sum() > 20


def test_counts_are_those_of_going_through_the_steps():
    _, logs = grid_logs(30, number=3)
    slow = np.zeros((3, 1, 25, 4, 26), dtype=int)
    state, action, reached = split(logs)
    for t, w, d, n in np.argwhere(logs.steps >= 0):
        slow[w, d, state[t, w, d, n], action[t, w, d, n], reached[t, w, d, n]] += 1
    assert (count(logs) == slow).all()


def test_smaller_logs_lie_inside_larger_ones():
    _, logs = grid_logs(40)
    assert (logs.first(10).steps == logs.steps[..., :10]).all()
    assert (logs.first(1).first(1).steps == logs.steps[..., :1]).all()  # one trajectory is not one step
    river = record(worlds.wet_chicken(0.1), np.random.default_rng(0).random((300, 1, 5, 1), dtype=np.float32))
    assert (river.first(100).steps == river.steps[:100]).all()
    assert (count(river.first(100)) <= count(river)).all()
    assert count(river.first(100)).sum() == 500


def test_a_world_is_logged_the_same_in_any_company():
    """World 1 alone, and among others: the table that draws must not mix them up."""
    problem, logs = grid_logs(50, number=3)
    uniforms = np.random.default_rng(1).random((50, 3, 1, 50), dtype=np.float32)
    alone = worlds.Problem(
        worlds.MDP(problem.mdp.transitions[1:2], problem.mdp.rewards[1:2], problem.mdp.start, 0.95),
        problem.arrival,
        problem.beta[1:2],
    )
    assert (record(alone, uniforms[:, 1:2]).steps == logs.steps[:, 1:2]).all()


def test_the_model_has_frequencies_true_rewards_and_nothing_for_pairs_never_tried():
    problem, logs = grid_logs(20)
    counts = count(logs)
    world = model(problem, counts)
    tries = counts.sum(-1)
    assert (world.transitions[tries == 0] == 0).all()
    assert (world.rewards[tries == 0] == 0).all()
    w, d, s, a = np.argwhere(tries > 3)[0]
    assert world.transitions[w, d, s, a] == approx(counts[w, d, s, a, :25] / tries[w, d, s, a])
    assert world.rewards[w, d, s, a] == approx(counts[w, d, s, a] @ problem.arrival / tries[w, d, s, a])


def test_with_much_data_the_model_is_the_world():
    problem = worlds.wet_chicken(0.9)
    logs = record(problem, np.random.default_rng(0).random((2000, 1, 200, 1), dtype=np.float32))
    pooled = count(logs).sum(1, keepdims=True)
    world = model(problem, pooled)
    often = pooled.sum(-1) > 1000
    assert often.mean() > 0.5
    assert world.rewards[often] == approx(problem.mdp.rewards[often], abs=0.2)
    assert q_values(world, problem.beta)[often] == approx(q_values(problem.mdp, problem.beta)[often], rel=0.02)


def test_monte_carlo_values_are_means_of_returns_over_all_visits():
    problem, logs = grid_logs(60)
    state, action, reached = split(logs)
    returns, visits = np.zeros((2, 1, 25, 4)), np.zeros((2, 1, 25, 4))
    for w in range(2):
        for n in range(60):
            following = 0.0
            for t in reversed(range(50)):
                if logs.steps[t, w, 0, n] >= 0:
                    following = problem.arrival[reached[t, w, 0, n]] + 0.95 * following
                    returns[w, 0, state[t, w, 0, n], action[t, w, 0, n]] += following
                    visits[w, 0, state[t, w, 0, n], action[t, w, 0, n]] += 1
    assert every_visit_monte_carlo(problem, logs) == approx(returns / np.maximum(visits, 1))


def test_monte_carlo_values_of_a_world_without_end_are_near_the_truth():
    problem = worlds.wet_chicken(0.5)
    logs = record(problem, np.random.default_rng(0).random((50_000, 1, 1, 1), dtype=np.float32))
    tries = count(logs).sum(-1)
    truth = q_values(problem.mdp, problem.beta)
    assert abs(every_visit_monte_carlo(problem, logs) - truth)[tries > 300] == approx(0, abs=2.5)
    assert problem.continuing


@pytest.mark.parametrize("size", [1, 49])
def test_an_empty_part_of_the_world_has_no_counts(size):
    steps = np.full((size, 1, 1, 2), -1, dtype=np.int32)
    assert count(Logs(steps, 25, 4, False)).sum() == 0
