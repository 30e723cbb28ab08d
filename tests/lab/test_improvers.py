"""The algorithms of the study: each is its paper's, and count-aware reroute does what it promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rbi.lab.mdp import MDP, optimal_policy, performance, q_values, values
from rbi.lab.spi import algorithms as hcpi
from rbi.lab.spi import algorithms as improvers
from rbi.lab.spi import worlds
from rbi.lab.spi.algorithms import Evidence
from rbi.lab.spi.worlds import Logs, record
from rbi.rules.counts import count_bounds
from rbi.rules.linear import max_reroute
from tests.generators import floats, states
from tests.reference import spibb_loops


def evidence(trajectories=50, quality=0.7, number=4, seed=0):
    """Random MDPs with their logs."""
    rngs = [np.random.default_rng([seed, i]) for i in range(number)]
    problem = worlds.random_mdps(quality, rngs)
    uniforms = np.stack([rng.random((50, trajectories), dtype=np.float32) for rng in rngs], 1)[:, :, None]
    return Evidence(problem, record(problem, uniforms))


SEEN = evidence()
ALL = {
    "basic_rl": improvers.basic_rl,
    "pi_b_spibb": lambda seen: improvers.pi_b_spibb(seen, 10),
    "pi_le_b_spibb": lambda seen: improvers.pi_le_b_spibb(seen, 10),
    "soft_spibb": lambda seen: improvers.soft_spibb(seen, 1),
    "ramdp": lambda seen: improvers.ramdp(seen, 0.05),
    "hcpi": lambda seen: hcpi.hcpi(seen, 0.05),
    "rbi_monte_carlo": lambda seen: improvers.rbi_monte_carlo(seen, 0, 2),
    "rbi_model": lambda seen: improvers.rbi_model(seen, 0, 2),
    "rbi_iterated": lambda seen: improvers.rbi_iterated(seen, 0, 2),
    "count_aware": lambda seen: improvers.count_aware(seen, 0.2),
    "count_aware_draining": lambda seen: improvers.count_aware_draining(seen, 0.2),
}


@pytest.mark.parametrize("name", ALL)
def test_every_algorithm_makes_policies_and_each_world_has_its_own_in_any_company(name):
    pi = ALL[name](SEEN)
    assert pi.shape == SEEN.tries.shape
    assert (pi >= -1e-12).all()
    assert pi.sum(-1) == approx(np.ones(pi.shape[:-1]))
    problem = SEEN.problem
    alone = worlds.Problem(
        MDP(problem.mdp.transitions[2:3], problem.mdp.rewards[2:3], problem.mdp.start, 0.95),
        problem.arrival,
        problem.beta[2:3],
    )
    mine = ALL[name](Evidence(alone, Logs(SEEN.logs.steps[:, 2:3], 50, 4, False)))
    assert mine == approx(pi[2:3], abs=1e-9)


@given(case=states(least=2, batch=(3,), zeros=False), threshold=st.integers(0, 4), seed=st.integers(0, 99))
def test_spibb_steps_are_max_reroute_with_spibbs_bounds(case, threshold, seed):
    """Both SPIBB sets are reroute sets: one linear program, one solver."""
    beta, q = case
    known = np.random.default_rng(seed).integers(0, 6, size=beta.shape) > threshold
    upper = improvers.free(beta, known)
    for lower, slow in ((np.where(known, 0.0, 1.0), spibb_loops.pi_b_spibb), (0.0, spibb_loops.pi_le_b_spibb)):
        pi = max_reroute(beta, q, lower + np.zeros_like(beta), upper, check=False)
        for i in range(3):
            assert pi[i] == approx(slow(beta[i], q[i], known[i]), abs=1e-9)


@given(case=states(least=2, batch=(3,), zeros=False), epsilon=floats(0, 4), seed=st.integers(0, 99))
def test_soft_steps_are_the_papers_loop_and_keep_their_budget(case, epsilon, seed):
    beta, q = case
    n = np.random.default_rng(seed).integers(0, 20, size=beta.shape)
    errors = np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), np.inf)
    pi = improvers.soft_step(q, beta, errors, epsilon)
    for i in range(3):
        assert pi[i] == approx(spibb_loops.soft_spibb(beta[i], q[i], errors[i], epsilon), abs=1e-9)
    moved = abs(pi - beta)
    assert (np.where(n > 0, errors, 0) * moved).sum(-1).max() <= epsilon + 1e-9
    assert moved[n == 0] == approx(0)


def test_basic_rl_is_optimal_in_the_estimated_world():
    pi = improvers.basic_rl(SEEN)
    assert values(SEEN.model, pi) == approx(values(SEEN.model, optimal_policy(SEEN.model)), abs=1e-8)


@pytest.mark.parametrize("name", ["pi_b_spibb", "pi_le_b_spibb", "rbi_iterated"])
def test_no_policy_of_the_set_is_better_in_the_estimated_world(name):
    """Policy iteration ends at a policy whose own Q-values have no better step inside the set."""
    known = SEEN.tries > 10
    zero = np.zeros(SEEN.beta.shape)
    bounds = {
        "pi_b_spibb": (np.where(known, 0.0, 1.0), improvers.free(SEEN.beta, known)),
        "pi_le_b_spibb": (zero, improvers.free(SEEN.beta, known)),
        "rbi_iterated": (zero, zero + 2),
    }[name]
    pi = ALL[name](SEEN)
    q = q_values(SEEN.model, pi)
    better = max_reroute(SEEN.beta, q, *bounds)
    assert (better * q).sum(-1) == approx((pi * q).sum(-1), abs=1e-8)
    ratio = pi / SEEN.beta
    assert (ratio >= bounds[0] - 1e-9).all()
    assert (pi <= np.minimum(bounds[1] * SEEN.beta, 1) + 1e-9).all()


def test_ramdp_without_a_cost_is_basic_rl_where_all_was_tried():
    problem = worlds.gridworlds(0.5, [np.random.default_rng(0)])
    mixed = worlds.Problem(problem.mdp, problem.arrival, 0.5 * problem.beta + 0.5 / 4)  # so that all is tried
    seen = Evidence(mixed, record(mixed, np.random.default_rng(1).random((50, 1, 1, 5000), dtype=np.float32)))
    assert (seen.tries[..., :-1, :] > 0).all()  # the last state is the goal, where nothing is done
    assert improvers.ramdp(seen, 0.0) == approx(improvers.basic_rl(seen))


def river_logs(epsilon, steps, datasets=1, seed=0):
    uniforms = np.random.default_rng(seed).random((steps, 1, datasets, 1), dtype=np.float32)
    return record(worlds.wet_chicken(epsilon), uniforms)


@pytest.mark.parametrize("trajectories", [5, 50, 500])
def test_count_aware_keeps_never_tried_actions_and_its_bounds(trajectories):
    seen = evidence(trajectories, quality=0.9)
    pi = improvers.count_aware(seen, 0.2)
    assert (seen.tries == 0).any()
    assert pi[seen.tries == 0] == approx(seen.beta[seen.tries == 0], abs=1e-12)
    low, high = count_bounds(np.array(seen.beta), seen.tries, 0.2)
    assert (pi >= low * seen.beta - 1e-9).all()
    assert (pi <= high * seen.beta + 1e-9).all()


def test_count_aware_becomes_optimal_with_data():
    """Where every pair is tried often, nothing is left of bounds and caution."""
    reached = []
    for steps in (1_000, 10_000, 100_000):
        seen = Evidence(worlds.wet_chicken(0.9), river_logs(0.9, steps))
        reached.append(performance(seen.problem.mdp, improvers.count_aware(seen, 0.2)).item())
    assert reached[0] < reached[1] < reached[2] + 0.2
    assert reached[2] > 42.6  # of 43.08


def test_the_cautious_world_is_the_estimated_one_with_ten_more_tries_of_the_usual_and_a_cost():
    seen = evidence(10)
    world, tries = improvers.cautious_model(seen), seen.tries
    sigma = improvers.spread(seen)
    for w, s, a in np.ndindex(4, 50, 4):
        tried = [b for b in range(4) if tries[w, 0, s, b] > 0]
        share = seen.beta[w, 0, s, tried] / max(seen.beta[w, 0, s, tried].sum(), 1e-12)
        usual = share @ seen.model.transitions[w, 0, s, tried] if tried else np.zeros(50)
        n = tries[w, 0, s, a]
        expected = (n * seen.model.transitions[w, 0, s, a] + 10 * usual) / (n + 10)
        assert world.transitions[w, 0, s, a] == approx(expected, abs=1e-12)
        usual_reward = share @ seen.model.rewards[w, 0, s, tried] if tried else 0.0
        earned = (n * seen.model.rewards[w, 0, s, a] + 10 * usual_reward) / (n + 10)
        assert world.rewards[w, 0, s, a] == approx(earned - 10 * sigma[w, 0] / (n + 10) ** 2)


def test_the_spread_is_the_pooled_deviation_of_targets():
    seen = evidence(30, number=1)
    v = np.append(values(seen.model, seen.beta)[0, 0], 0.0)
    targets = seen.problem.arrival + 0.95 * v
    squares, freedom = 0.0, 0
    for s, a in np.ndindex(50, 4):
        sample = np.repeat(targets, seen.counts[0, 0, s, a])
        squares += ((sample - sample.mean()) ** 2).sum() if sample.size else 0.0
        freedom += max(sample.size - 1, 0)
    assert improvers.spread(seen)[0, 0] == approx(np.sqrt(squares / freedom))


def test_one_step_rbi_with_exact_values_is_the_papers_step():
    seen = Evidence(worlds.wet_chicken(0.9), river_logs(0.9, 100_000))
    exact = max_reroute(np.array(seen.beta), q_values(seen.problem.mdp, seen.problem.beta), 0.5, 1.5)
    for made in (improvers.rbi_model(seen, 0.5, 1.5), improvers.rbi_monte_carlo(seen, 0.5, 1.5)):
        assert performance(seen.problem.mdp, made).item() == approx(
            performance(seen.problem.mdp, exact).item(), rel=0.01
        )


def test_doubly_robust_gains_are_unbiased():
    """The mean over many trajectories is what the policy earns more, whatever the model: here one from few data."""
    few, many = evidence(20, quality=0.5, number=3), evidence(20_000, quality=0.5, number=3, seed=0)
    pi = 0.8 * few.beta + 0.2 * improvers.basic_rl(few)
    samples = hcpi.gains(few, pi, many.logs)
    truth = performance(few.problem.mdp, pi) - performance(few.problem.mdp, few.beta)
    error = samples.std(-1) / np.sqrt(samples.shape[-1])
    assert (abs(samples.mean(-1) - truth) < 4 * error + 0.01).all()  # what 50 steps leave out is below 0.01


def test_the_lower_bound_lies_below_the_mean_and_holds_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((20_000, 10)) + 1
    bound = hcpi.student_lower_bound(samples, 0.05, 10)
    assert (bound < samples.mean(-1)).all()
    assert (bound > 1).mean() == approx(0.05, abs=0.006)


def test_hcpi_keeps_the_baseline_where_it_cannot_tell():
    seen = evidence(5, quality=0.9)
    kept = (hcpi.hcpi(seen, 1e-6) == seen.beta).all((-1, -2))
    assert kept.all()
    one = Evidence(seen.problem, seen.logs.first(1))
    assert (hcpi.hcpi(one, 0.05) == one.beta).all()


def test_hcpi_cuts_an_endless_trajectory_into_pieces():
    logs = river_logs(0.1, 1030, datasets=3)
    pieces = hcpi.cut(logs)
    assert pieces.steps.shape == (50, 1, 3, 20)
    assert (pieces.steps[:, 0, 1, 2] == logs.steps[100:150, 0, 1, 0]).all()
