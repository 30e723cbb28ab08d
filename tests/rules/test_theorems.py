"""Theorems and claims of the paper about the rules, and identities between rules."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pytest import approx

import rbi
from rbi import measures
from tests.generators import examples, floats, states
from tests.reference import paper_loops
from tests.rules.cases import RULES, numbers

LINEAR = [
    (rbi.max_reroute, paper_loops.max_reroute, (0.5, 1.5)),
    (rbi.max_reroute, paper_loops.max_reroute, (0.0, 2.0)),
    (rbi.max_tv, paper_loops.max_tv, (0.25,)),
    (rbi.max_ppo, paper_loops.max_ppo, (0.5,)),
]


@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, rbi.BCQ)], ids=str)
@given(state=states())
def test_ratios_never_fall_as_the_advantage_rises_the_condition_of_the_rank_based_corollary(rule, state):
    beta, advantage = state
    on = beta > 0
    ranked = np.lexsort((-np.arange(on.sum()), advantage[on]))  # worst first; of equals the higher index first
    pi, base = rule(beta, advantage)[on][ranked], beta[on][ranked]
    assert (pi[1:] * base[:-1] >= pi[:-1] * base[1:] - 1e-14).all()


@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, rbi.BCQ)], ids=str)
@given(state=states())
def test_improvement_step_of_every_rule_is_never_negative(rule, state):
    beta, advantage = state
    scale = 1 + abs(advantage).max()
    assert measures.improvement_step(rule(beta, advantage), advantage, beta=beta) >= -1e-9 * scale


def test_bcqs_rule_has_no_such_promise_since_what_it_leaves_out_may_be_the_best():
    beta, advantage = np.array([0.9, 0.1]), np.array([0.0, 1.0])
    assert measures.improvement_step(rbi.BCQ(0.3)(beta, advantage), advantage, beta=beta) < -0.09


@given(states(), floats(0, 1), floats(1, 4))
def test_reroute_lies_in_its_tv_ball(state, c_min, c_max):
    beta, advantage = state
    pi = rbi.max_reroute(beta, advantage, c_min, c_max)
    assert measures.total_variation(pi, beta) <= measures.reroute_tv_radius(c_min, c_max) + 1e-12


@given(floats(0, 1), floats(1, 4))
def test_the_papers_tv_ball_is_the_smallest_for_symmetric_bounds_and_larger_for_others(c_min, c_max):
    """Reached with two actions, where the worse one may lose just what the better one may gain."""
    up, down = c_max - 1, 1 - c_min
    assume(min(up, down) > 0.01 and abs(up - down) > 0.01)
    for top, smallest in ((c_max, up * down / (up + down)), (2 - c_min, down / 2)):
        beta = np.array([top - 1, down]) / (top - 1 + down)
        pi = rbi.max_reroute(beta, np.array([0.0, 1.0]), c_min, top)
        assert measures.total_variation(pi, beta) == approx(smallest)
    assert measures.reroute_tv_radius(c_min, 2 - c_min) == approx(down / 2)
    assert measures.reroute_tv_radius(c_min, c_max) > up * down / (up + down)


@given(floats(0.01, 1))
def test_tv_does_not_lie_in_any_reroute(delta):
    pi = rbi.max_tv(np.array([1.0, 0.0]), np.array([0.0, 1.0]), delta)
    assert measures.reroute_bounds(pi, np.array([1.0, 0.0])).c_max == np.inf


@given(states())
def test_reroute_with_both_bounds_one_returns_beta(state):
    beta, advantage = state
    assert rbi.max_reroute(beta, advantage, 1, 1) == approx(beta, abs=1e-15)


@given(states())
def test_reroute_without_bounds_is_greedy_on_the_support(state):
    beta, advantage = state
    expected = rbi.greedy(beta, np.where(beta > 0, advantage, -np.inf))
    assert rbi.max_reroute(beta, advantage, 0, np.inf) == approx(expected, abs=1e-15)


@given(states(least=2, most=2, zeros=False), floats(0, 1))
def test_two_armed_max_ppo_is_the_greedy_step(state, epsilon):
    beta, advantage = state
    assume(abs(advantage[0] - advantage[1]) > 1e-3 and beta.min() > 1e-4)
    assert rbi.max_ppo(beta, advantage, epsilon) == approx(rbi.greedy(beta, advantage), abs=1e-12)


@given(states(zeros=False), floats(0, 2))
def test_max_ppo_is_reroute_0_1_plus_epsilon_where_positive_actions_have_room_for_all_mass(state, epsilon):
    beta, advantage = state
    positive = advantage > beta @ advantage + 1e-9
    assume((1 + epsilon) * beta[positive].sum() >= 1)
    expected = rbi.max_reroute(beta, advantage, 0, 1 + epsilon)
    assert rbi.max_ppo(beta, advantage, epsilon) == approx(expected, abs=1e-9)


@pytest.mark.parametrize("rule", [rbi.Reroute(0.5, 1.5), rbi.TotalVariation(0.25), rbi.PPO(0.5), rbi.Greedy()], ids=str)
@given(state=states(), scale=st.sampled_from([0.25, 2.0, 1024.0]), shift=st.integers(-8, 8))
def test_ranking_rules_do_not_see_scale_and_shift_of_advantages(rule, state, scale, shift):
    beta, advantage = state
    advantage = np.round(advantage)  # integers and powers of two: scaling and shifting them rounds nothing
    assert rule(beta, scale * advantage + shift) == approx(rule(beta, advantage), abs=1e-12)


@pytest.mark.parametrize("rule", [rbi.ForwardKL(radius=0.1), rbi.BackwardKL(0.1)], ids=str)
@given(state=states(), scale=floats(0.01, 100), shift=floats(-100, 100))
def test_kl_balls_do_not_see_scale_and_shift_of_advantages_either(rule, state, scale, shift):
    beta, advantage = state
    advantage = np.round(advantage)
    assert rule(beta, scale * advantage + shift) == approx(rule(beta, advantage), abs=1e-4)


@pytest.mark.parametrize(("rule", "twin", "parameters"), LINEAR)
@given(state=states(batch=(6,)))
@example(state=(np.array([[9.99999e-07, 0.999999]]), np.array([[-3.0, -3.0]])))  # a rounded mean below both
def test_batched_rules_are_the_papers_loops_state_by_state(rule, twin, parameters, state):
    beta, advantage = state
    looped = np.stack([twin(b, a, *parameters) for b, a in zip(beta, advantage, strict=True)])
    assert rule(beta, advantage, *parameters) == approx(looped, abs=1e-9)


@given(states(batch=(4,)), st.randoms(use_true_random=False))
def test_bounds_per_state_and_per_action_are_the_papers_loop_with_those_bounds(state, random):
    beta, advantage = state
    c_min = np.array([[random.uniform(0, 1) for _ in row] for row in beta])
    c_max = np.array([[random.uniform(1, 3)] for _ in beta])
    rows = zip(beta, advantage, c_min, c_max, strict=True)
    looped = np.stack([paper_loops.max_reroute(*row) for row in rows])
    assert rbi.max_reroute(beta, advantage, c_min, c_max) == approx(looped, abs=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=str)
@examples(0.25)
@given(state=states(batch=(2, 3)))
def test_batched_equals_looped(rule, state):
    beta, advantage = state
    pi = rule(beta, advantage)
    for at in np.ndindex(2, 3):
        assert pi[at] == approx(rule(beta[at], advantage[at]), abs=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
@examples(0.25)
@given(state=states(least=5, most=5, batch=(6,), extremes=True))  # one shape: JAX compiles anew for each
def test_numpy_pytorch_and_jax_agree(rule, state):
    beta, advantage = state
    expected = rule(beta, advantage)
    assert numbers(rule(torch.tensor(beta), torch.tensor(advantage))) == approx(expected, abs=1e-7)
    assert numbers(rule(jnp.asarray(beta), jnp.asarray(advantage))) == approx(expected, abs=1e-7)


@given(floats(0.01, 1))
def test_papers_example_under_tv_gives_delta_to_the_action_that_beta_never_takes(delta):
    assert rbi.max_tv(np.array([1.0, 0.0]), np.array([0.0, 1.0]), delta) == approx([1 - delta, delta])


@given(floats(0.01, 5))
def test_papers_example_under_backward_kl_corrected_gives_1_minus_exp_of_minus_delta(delta):
    """The paper has exp(-delta); KL(beta || pi) = -log(1 - a) gives 1 - exp(-delta). The ratio is unbounded still."""
    pi = rbi.backward_kl(np.array([1.0, 0.0]), np.array([0.0, 1.0]), delta)
    assert pi == approx([np.exp(-delta), 1 - np.exp(-delta)])
    assert measures.probability_ratio(pi, np.array([1.0, 0.0]))[1] == np.inf


@given(floats(0.01, 5))
def test_papers_example_under_forward_kl_stays_at_beta(delta):
    assert rbi.forward_kl(np.array([1.0, 0.0]), np.array([0.0, 1.0]), radius=delta) == approx([1, 0])


@given(floats(0, 0.95), floats(1.05, 4), floats(0, 1), floats(2, 12))
def test_a_noisy_rule_moves_on_to_the_action_that_is_best_often_enough(c_min, c_max, often, actions):
    """Decision 032: on average over Q, probability near 1 grows if the share in which the action is the best is above
    (c_max - 1) / (c_max - c_min)."""
    threshold, others = (c_max - 1) / (c_max - c_min), int(actions) - 1
    assume(abs(often - threshold) > 1e-6)
    beta = np.array([0.99, *[0.01 / others] * others])
    best, worst = (rbi.max_reroute(beta, sign * np.eye(1 + others)[0], c_min, c_max)[0] for sign in (1, -1))
    drift = often * best + (1 - often) * worst - beta[0]
    assert (drift > 0) == (often > threshold)
