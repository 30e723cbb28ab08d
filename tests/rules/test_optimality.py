"""Each rule is the optimum of its optimisation problem, according to independent solvers."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pytest import approx

import rbi
from rbi import measures
from tests.generators import examples, floats, states
from tests.reference import linear_programs

pytest.importorskip("cvxpy")
from tests.reference import convex_programs


def assert_policy(pi):
    assert (pi >= 0).all()
    assert pi.sum() == approx(1, abs=1e-12)


def near(value, advantage, tolerance=1e-6):
    """The solver's optimum, to its own precision: constraints may be off by 1e-7 in units of probability."""
    return approx(value, abs=tolerance * (1 + abs(advantage).max()))


@given(states(), floats(0, 1), floats(1, 4))
def test_max_reroute_is_the_linear_programs_optimum(state, c_min, c_max):
    beta, advantage = state
    pi = rbi.max_reroute(beta, advantage, c_min, c_max)
    assert_policy(pi)
    assert measures.is_reroute(pi, beta, c_min, c_max, tolerance=1e-12)
    assert pi @ advantage == near(linear_programs.max_reroute(beta, advantage, c_min, c_max), advantage)


@given(states(), st.randoms(use_true_random=False))
def test_max_reroute_with_bounds_per_action_is_the_linear_programs_optimum(state, random):
    beta, advantage = state
    c_min = np.array([random.uniform(0, 1) for _ in beta])
    c_max = np.array([random.uniform(1, 3) for _ in beta])
    pi = rbi.max_reroute(beta, advantage, c_min, c_max)
    assert_policy(pi)
    assert measures.is_reroute(pi, beta, c_min, c_max, tolerance=1e-12)
    assert pi @ advantage == near(linear_programs.max_reroute(beta, advantage, c_min, c_max), advantage)


@given(states(), floats(0, 1))
def test_max_tv_is_the_linear_programs_optimum(state, delta):
    beta, advantage = state
    pi = rbi.max_tv(beta, advantage, delta)
    assert_policy(pi)
    assert measures.total_variation(pi, beta) <= delta + 1e-12
    assert pi @ advantage == near(linear_programs.max_tv(beta, advantage, delta), advantage)


@given(states(zeros=False), floats(0, 1))
def test_max_ppo_reaches_the_maximum_of_the_ppo_objective(state, epsilon):
    beta, advantage = state
    centred = advantage - beta @ advantage
    pi = rbi.max_ppo(beta, advantage, epsilon)
    assert_policy(pi)
    reached = measures.ppo_objective(pi, beta, centred, epsilon)
    if np.ptp(advantage) == 0:
        assert pi == approx(beta, abs=1e-12)  # "no positive advantage": beta, where the objective is 0 as well
    else:
        assert reached == near(linear_programs.max_ppo(beta, centred, epsilon), advantage)


@given(states())
def test_greedy_is_the_best_of_all_policies(state):
    beta, advantage = state
    pi = rbi.greedy(beta, advantage)
    assert_policy(pi)
    assert pi @ advantage == advantage.max()


@given(states(), floats(0.05, 10))
def test_forward_kl_at_a_temperature_beats_every_other_policy_on_its_own_objective(state, temperature):
    beta, advantage = state
    pi = rbi.forward_kl(beta, advantage, temperature)
    assert_policy(pi)

    def objective(p):
        return p @ advantage - temperature * measures.kl(p, beta)

    others = np.random.default_rng(0).dirichlet(np.ones(len(beta)), size=50) * (beta > 0)
    others = others / others.sum(-1, keepdims=True)
    assert all(objective(pi) >= objective((pi + p) / 2) - 1e-9 for p in [beta, *others])


@examples(0.6)
@given(states(rare=False), floats(1e-3, 2))  # conic solvers lose precision at a millionth
def test_forward_kl_with_a_radius_is_the_convex_programs_optimum(state, radius):
    beta, advantage = state
    pi = rbi.forward_kl(beta, advantage, radius=radius)
    assert_policy(pi)
    assert measures.kl(pi, beta) <= radius + 1e-9
    optimum = convex_programs.forward_kl(beta, advantage, radius)
    assume(optimum is not None)
    assert pi @ advantage == near(optimum, advantage, 1e-5)


@examples(0.6)
@given(states(rare=False), floats(1e-3, 2))  # conic solvers lose precision at a millionth
def test_backward_kl_is_the_convex_programs_optimum(state, radius):
    beta, advantage = state
    pi = rbi.backward_kl(beta, advantage, radius)
    assert_policy(pi)
    assert measures.kl(beta, pi) <= radius + 1e-9
    optimum = convex_programs.backward_kl(beta, advantage, radius)
    assume(optimum is not None)
    assert pi @ advantage == near(optimum, advantage, 1e-5)


@given(states(least=2, zeros=False), floats(1e-4, 0.5), st.sampled_from(["forward", "backward"]))
def test_kl_radius_is_met_to_a_millionth_wherever_it_can_bind(state, radius, direction):
    beta, advantage = state
    if direction == "forward":
        divergence = measures.kl(rbi.forward_kl(beta, advantage, radius=radius), beta)
        limit = -np.log(beta[advantage == advantage.max()].sum())  # all mass on the best actions
    else:
        divergence = measures.kl(beta, rbi.backward_kl(beta, advantage, radius))
        limit = 680 * (1 - beta[advantage == advantage.max()].sum())  # probabilities down to 1e-300
    assert divergence <= radius + 1e-9
    if radius < 0.9 * limit:
        assert divergence == approx(radius, abs=1e-6)
