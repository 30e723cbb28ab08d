"""SPI algorithms: each agrees with its paper, and count-aware reroute keeps its guarantees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from scipy.optimize import minimize

from rbi.lab.mdp import MDP, optimal_policy, performance, q_values, values
from rbi.lab.spi import algorithms, peers, worlds
from rbi.lab.spi.algorithms import LogStatistics
from rbi.lab.spi.worlds import Logs, Task, collect_logs
from rbi.rules.counts import count_bounds
from rbi.rules.linear import greedy, max_reroute
from tests.generators import floats, states
from tests.reference import spibb_loops


def random_data(trajectories=50, quality=0.7, number=4, seed=0):
    """Random MDPs with logged data."""
    rngs = [np.random.default_rng([seed, i]) for i in range(number)]
    task = worlds.random_mdps(quality, rngs)
    uniforms = np.stack([rng.random((50, trajectories), dtype=np.float32) for rng in rngs], 1)[:, :, None]
    return LogStatistics(task, collect_logs(task, uniforms))


DATA = random_data()
ALL = {
    "basic_rl": algorithms.basic_rl,
    "pi_b_spibb": lambda data: algorithms.pi_b_spibb(data, 10),
    "pi_le_b_spibb": lambda data: algorithms.pi_le_b_spibb(data, 10),
    "soft_spibb": lambda data: peers.soft_spibb(data, 1),
    "exact_soft_spibb": lambda data: peers.exact_soft_spibb(data, 1),
    "adv_soft_spibb": lambda data: peers.adv_soft_spibb(data, 1),
    "lower_soft_spibb": lambda data: peers.lower_soft_spibb(data, 0.5),
    "r_min": lambda data: peers.r_min(data, 3),
    "mbie": lambda data: peers.mbie(data, 0.5),
    "duipi": lambda data: peers.duipi(data, 0.5),
    "duipi_bayes": lambda data: peers.duipi_bayes(data, 0.5),
    "ramdp": lambda data: peers.ramdp(data, 0.05),
    "hcpi": lambda data: peers.hcpi(data, 0.05),
    "rbi_monte_carlo": lambda data: algorithms.rbi_monte_carlo(data, 0, 2),
    "rbi_model": lambda data: algorithms.rbi_model(data, 0, 2),
    "rbi_iterated": lambda data: algorithms.rbi_iterated(data, 0, 2),
    "count_aware": lambda data: algorithms.count_aware(data, 0.2, 0.5),
    "count_aware_pinned": lambda data: algorithms.count_aware_pinned(data, 0.2),
    "count_aware_draining": lambda data: algorithms.count_aware_draining(data, 0.2),
}


@pytest.mark.parametrize("name", ALL)
def test_every_algorithm_returns_policies_that_do_not_depend_on_other_worlds(name):
    pi = ALL[name](DATA)
    assert pi.shape == DATA.pair_counts.shape
    assert (pi >= -1e-12).all()
    assert pi.sum(-1) == approx(np.ones(pi.shape[:-1]))
    task = DATA.task
    alone = Task(
        MDP(task.mdp.transitions[2:3], task.mdp.rewards[2:3], task.mdp.start, 0.95),
        task.arrival,
        task.beta[2:3],
    )
    mine = ALL[name](LogStatistics(alone, Logs(DATA.logs.steps[:, 2:3], 50, 4, False)))
    assert mine == approx(pi[2:3], abs=1e-9)


@given(case=states(least=2, batch=(3,), zeros=False), threshold=st.integers(0, 4), seed=st.integers(0, 99))
def test_spibb_steps_are_max_reroute_with_spibbs_bounds(case, threshold, seed):
    """Both SPIBB sets are reroute sets."""
    beta, q = case
    known = np.random.default_rng(seed).integers(0, 6, size=beta.shape) > threshold
    upper = algorithms.free_where(known, beta)
    for lower, slow in ((np.where(known, 0.0, 1.0), spibb_loops.pi_b_spibb), (0.0, spibb_loops.pi_le_b_spibb)):
        pi = max_reroute(beta, q, lower + np.zeros_like(beta), upper, check=False)
        for i in range(3):
            assert pi[i] == approx(slow(beta[i], q[i], known[i]), abs=1e-9)


@given(case=states(least=2, batch=(3,), zeros=False), epsilon=floats(0, 4), seed=st.integers(0, 99))
def test_soft_spibb_steps_are_the_papers_loop_and_keep_the_error_budget(case, epsilon, seed):
    beta, q = case
    n = np.random.default_rng(seed).integers(0, 20, size=beta.shape)
    errors = np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), np.inf)
    pi = peers.soft_step(q, beta, errors, epsilon)
    for i in range(3):
        assert pi[i] == approx(spibb_loops.soft_spibb(beta[i], q[i], errors[i], epsilon), abs=1e-9)
    moved = abs(pi - beta)
    assert (np.where(n > 0, errors, 0) * moved).sum(-1).max() <= epsilon + 1e-9
    assert moved[n == 0] == approx(0)


@given(case=states(least=2, batch=(3,), zeros=False), epsilon=floats(0, 4), seed=st.integers(0, 99))
def test_lower_and_adv_soft_spibb_steps_are_the_papers_loops(case, epsilon, seed):
    beta, q = case
    rng = np.random.default_rng(seed)
    n, q_beta = rng.integers(0, 20, size=beta.shape), rng.normal(size=beta.shape)
    errors = np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), np.inf)
    lower = peers.soft_step(q, beta, errors, epsilon, lower=True)
    adv = peers.soft_step(q, beta, errors, epsilon, q_beta=q_beta)
    for i in range(3):
        assert lower[i] == approx(spibb_loops.lower_soft_spibb(beta[i], q[i], errors[i], epsilon), abs=1e-9)
        assert adv[i] == approx(spibb_loops.adv_soft_spibb(beta[i], q[i], errors[i], epsilon, q_beta[i]), abs=1e-9)
    added = np.maximum(lower - beta, 0)
    assert (np.where(n > 0, errors, 0) * added).sum(-1).max() <= epsilon + 1e-9
    assert added[n == 0] == approx(0, abs=1e-12)
    assert ((adv - beta) * q_beta).sum(-1).min() >= -1e-9


@pytest.mark.parametrize("seed", range(20))
def test_exact_soft_spibb_steps_solve_the_papers_linear_program(seed):
    rng = np.random.default_rng(seed)
    A = int(rng.integers(2, 7))
    beta, q, n = rng.dirichlet(np.ones(A)), rng.normal(size=A), rng.integers(0, 12, size=A)
    errors = np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), np.inf)
    epsilon = rng.uniform(0, 2)
    pi = peers.exact_soft_step(q[None], beta[None], errors[None], epsilon)[0]
    assert (np.where(n > 0, errors, 0) * abs(pi - beta)).sum() <= epsilon + 1e-9
    assert pi[n == 0] == approx(beta[n == 0])
    assert pi @ q == approx(spibb_loops.exact_soft_spibb(beta, q, errors, epsilon) @ q, abs=1e-7)


def grid_data(trajectories=30):
    rngs = [np.random.default_rng(3)]
    task = worlds.gridworlds(0.7, rngs)
    return LogStatistics(task, collect_logs(task, rngs[0].random((50, 1, 1, trajectories), dtype=np.float32)))


@pytest.mark.parametrize("trajectories", [30, 100])  # with 30 the worst case is the same for every delta
def test_r_min_and_mbie_choose_the_best_actions_of_their_papers_value_iteration(trajectories):
    data = grid_data(trajectories)
    counts, arrival, discount = data.counts[0, 0], data.task.arrival, data.task.mdp.discount
    for pi, q in (
        (peers.r_min(data, 3), spibb_loops.r_min(counts, arrival, discount, 3)),
        *((peers.mbie(data, delta), spibb_loops.mbie(counts, arrival, discount, delta)) for delta in (0.5, 1e-3)),
    ):
        assert (pi[0, 0] * q).sum(-1) == approx(q.max(-1), abs=1e-4)


@pytest.mark.parametrize("bayes", [False, True])
def test_duipi_is_its_papers_loop(bayes):
    data = grid_data()
    counts, n = data.counts[0, 0], data.pair_counts[0, 0][..., None]
    if bayes:
        alpha = counts + 0.1
        p = alpha / alpha.sum(-1, keepdims=True)
        var_p = alpha * (alpha.sum(-1, keepdims=True) - alpha)
        var_p = var_p / alpha.sum(-1, keepdims=True) ** 2 / (alpha.sum(-1, keepdims=True) + 1)
    else:
        p = counts / np.maximum(n, 1)
        var_p = np.where(n > 1, p * (1 - p) / np.maximum(n - 1, 1), 0.25)
    found = (peers.duipi_bayes if bayes else peers.duipi)(data, 0.3)[0, 0]
    slow = spibb_loops.duipi(p, var_p, data.task.arrival, 0.95, n[..., 0] > 0, 0.3, 500, 1e-5)
    assert found == approx(slow, abs=1e-6)


def test_basic_rl_is_optimal_in_the_estimated_mdp():
    pi = algorithms.basic_rl(DATA)
    assert values(DATA.model, pi) == approx(values(DATA.model, optimal_policy(DATA.model)), abs=1e-8)


@pytest.mark.parametrize("name", ["pi_b_spibb", "pi_le_b_spibb", "rbi_iterated"])
def test_constrained_policy_iteration_is_optimal_in_its_set(name):
    """Policy iteration ends at a policy whose Q-values allow no better step inside the set."""
    known = DATA.pair_counts > 10
    zero = np.zeros(DATA.beta.shape)
    bounds = {
        "pi_b_spibb": (np.where(known, 0.0, 1.0), algorithms.free_where(known, DATA.beta)),
        "pi_le_b_spibb": (zero, algorithms.free_where(known, DATA.beta)),
        "rbi_iterated": (zero, zero + 2),
    }[name]
    pi = ALL[name](DATA)
    q = q_values(DATA.model, pi)
    better = max_reroute(DATA.beta, q, *bounds)
    assert (better * q).sum(-1) == approx((pi * q).sum(-1), abs=1e-8)
    ratio = pi / DATA.beta
    assert (ratio >= bounds[0] - 1e-9).all()
    assert (pi <= np.minimum(bounds[1] * DATA.beta, 1) + 1e-9).all()


def test_ramdp_without_penalty_is_basic_rl_if_all_pairs_were_tried():
    task = worlds.gridworlds(0.5, [np.random.default_rng(0)])
    mixed = Task(task.mdp, task.arrival, 0.5 * task.beta + 0.5 / 4)  # so that all pairs are tried
    data = LogStatistics(
        mixed, collect_logs(mixed, np.random.default_rng(1).random((50, 1, 1, 5000), dtype=np.float32))
    )
    assert (data.pair_counts[..., :-1, :] > 0).all()  # the last state is the goal
    assert peers.ramdp(data, 0.0) == approx(algorithms.basic_rl(data))


def river_logs(epsilon, steps, datasets=1, seed=0):
    uniforms = np.random.default_rng(seed).random((steps, 1, datasets, 1), dtype=np.float32)
    return collect_logs(worlds.wet_chicken(epsilon), uniforms)


@pytest.mark.parametrize("trajectories", [5, 50, 500])
def test_count_aware_pinned_keeps_untried_actions_and_its_bounds(trajectories):
    data = random_data(trajectories, quality=0.9)
    pi = algorithms.count_aware_pinned(data, 0.2)
    assert (data.pair_counts == 0).any()
    assert pi[data.pair_counts == 0] == approx(data.beta[data.pair_counts == 0], abs=1e-12)
    low, high = count_bounds(np.array(data.beta), data.pair_counts, 0.2)
    assert (pi >= low * data.beta - 1e-9).all()
    assert (pi <= high * data.beta + 1e-9).all()


@pytest.mark.parametrize("trajectories", [5, 50, 500])
@pytest.mark.parametrize("z", [0, 0.5, 1e9])
def test_count_aware_never_gives_a_never_tried_action_more_than_beta(trajectories, z):
    data = random_data(trajectories, quality=0.9)
    pi = algorithms.count_aware(data, 0.2, z)
    untried = data.pair_counts == 0
    assert (pi[untried] <= data.beta[untried] + 1e-12).all()
    unseen = untried.all(-1)
    assert unseen.any()
    assert pi[unseen] == approx(data.beta[unseen])


def test_count_aware_without_data_is_the_baseline():
    data = random_data(1)
    nothing = LogStatistics(data.task, Logs(np.full_like(data.logs.steps, -1), 50, 4, False))
    assert algorithms.count_aware(nothing, 0.25, 0.5) == approx(data.beta)


def pessimistic(data):
    """The learned prior, and the model with it and its bad tries."""
    prior = algorithms.learned_prior(data)
    return prior, algorithms.with_bad_tries(data, algorithms.with_prior(data, prior), prior)


def test_count_aware_exceeds_its_bounds_only_through_the_gate():
    data = random_data(200, quality=0.9)
    _, high = count_bounds(np.array(data.beta), data.pair_counts, 0.2)
    prior, mdp = pessimistic(data)
    variance = algorithms.posterior_variance(data, prior, values(mdp, data.beta))
    gate = algorithms.clearly_better(data, prior, q_values(mdp, data.beta), variance)
    exceeded = algorithms.count_aware(data, 0.2, 0.5) > data.beta * high + 1e-9
    assert exceeded.any()
    assert gate[exceeded].all()
    assert algorithms.count_aware(data, 0.2, 1e9) == approx(data.beta, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_count_aware_is_its_derivation_written_with_loops(seed):
    data = random_data(30, quality=0.8, number=1, seed=seed)
    prior = algorithms.learned_prior(data)
    mean, variance, samples = spibb_loops.learned_prior(
        data.counts[0, 0],
        data.beta[0, 0],
        data.task.arrival,
        0.95,
        values(algorithms.shrunken_model(data), data.beta)[0, 0],
    )
    assert prior.mean[0, 0] == approx(mean, abs=1e-9)
    assert prior.variance[0, 0, :, 0] == approx(variance)
    assert prior.samples.item() == approx(samples)
    expected = algorithms.shrunken_model(data, samples, np.sqrt(variance)[:, None]).rewards[0, 0].copy()
    for s, a in np.ndindex(50, 4):
        expected[s, a] += (samples / (data.pair_counts[0, 0, s, a] + samples)) ** 4 * mean[s, a]
    assert algorithms.with_prior(data, prior).rewards[0, 0] == approx(expected, abs=1e-9)


def test_bad_tries_are_their_formula_written_with_loops():
    """One in twenty of the prior's samples of a pair has the worst outcome that any action of the state had."""
    data = random_data(30, quality=0.5, number=1)
    prior = algorithms.learned_prior(data)
    before = algorithms.with_prior(data, prior)
    after = algorithms.with_bad_tries(data, before, prior)
    q, v = q_values(before, data.beta)[0, 0], values(before, data.beta)[0, 0]
    targets = [*(data.task.arrival[s] + 0.95 * v[s] for s in range(50)), data.task.arrival[50]]
    counts, samples = data.counts[0, 0], prior.samples.item()
    lost = 0
    for s, a in np.ndindex(50, 4):
        seen = [targets[t] for b in range(4) for t in range(51) if counts[s, b, t]]
        n, bad = counts[s, a].sum() + samples, samples / 20
        expected = ((n - bad) * q[s, a] + bad * min(seen)) / n if seen and min(seen) < q[s, a] else q[s, a]
        assert after.rewards[0, 0, s, a] + 0.95 * after.transitions[0, 0, s, a] @ v == approx(expected)
        lost += expected < q[s, a]
    assert lost > 100


def test_the_gate_is_its_formula_written_with_loops():
    """An action opens after two tries, if one more with the worst outcome of its state would not change the verdict."""
    data = random_data(30, quality=0.5, number=1)
    prior, mdp = pessimistic(data)
    q, v = q_values(mdp, data.beta), values(mdp, data.beta)[0, 0]
    variance = algorithms.posterior_variance(data, prior, v[None, None])
    found = algorithms.clearly_better(data, prior, q, variance)[0, 0]
    targets = [*(data.task.arrival[s] + 0.95 * v[s] for s in range(50)), data.task.arrival[50]]
    counts, samples = data.counts[0, 0], prior.samples.item()
    without_risk = 0
    for s, a in np.ndindex(50, 4):
        n = counts[s, a].sum()
        seen = [targets[t] for b in range(4) for t in range(51) if counts[s, b, t]]
        least = q[0, 0, s, a] - 0.3 * variance[0, 0, s, a] ** 0.5
        worst = max(q[0, 0, s, a] - min(seen), 0) if seen else 0.0
        margin = least - worst / (n + samples + 1) - v[s]
        assert found[s, a] == (n >= 2 and margin > 0) or abs(margin) < 1e-9  # rounding decides between equal actions
        without_risk += n >= 2 and least > v[s]
    assert 0 < found.sum() < without_risk


def test_the_variance_of_one_try_is_shrunken_towards_its_states():
    data = random_data(60, quality=0.5, number=1)
    prior = algorithms.learned_prior(data)
    v = values(algorithms.with_prior(data, prior), data.beta)
    targets = data.task.arrival + 0.95 * np.append(v[0, 0], 0.0)
    counts = data.counts[0, 0]
    states = spibb_loops.state_variances(counts, targets)
    found = algorithms.posterior_variance(data, prior, v)[0, 0]
    for s, a in np.ndindex(50, 4):
        sample = np.repeat(targets, counts[s, a])
        squares = ((sample - sample.mean()) ** 2).sum() if sample.size else 0.0
        one = (squares + 10 * states[s]) / (sample.size + 10)
        assert found[s, a] == approx(one / (sample.size + prior.samples.item()))


def small_mdp(rng, states=4, actions=3):
    """A random MDP, a baseline and a variance of every pair, with the axes of worlds and datasets."""
    transitions = rng.dirichlet(np.ones(states), (1, 1, states, actions))
    mdp = MDP(transitions, rng.normal(size=(1, 1, states, actions)), np.eye(states)[0], 0.8)
    return mdp, rng.dirichlet(np.ones(actions), (1, 1, states)), rng.uniform(0.01, 0.5, (1, 1, states, actions))


@pytest.mark.parametrize("z", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_largest_lower_bound_is_what_a_general_solver_finds(seed, z):
    """The same program over occupancies d [S, A], written as balances of visits and bounds on their ratios."""
    mdp, beta, variance = small_mdp(np.random.default_rng(seed))
    c_max = np.full(beta.shape, 1.7)
    S, A = beta.shape[2:]
    base = algorithms.occupancy(mdp, beta)[0, 0]
    smooth = (0.05**2 * variance[0, 0] * base**2).sum()

    def loss(d):
        moved = d.reshape(S, A) - base
        return -(moved * mdp.rewards[0, 0]).sum() + z * np.sqrt((variance[0, 0] * moved**2).sum() + smooth)

    visits = np.repeat(np.eye(S), A, axis=1)
    balance = visits - 0.8 * mdp.transitions[0, 0].reshape(S * A, S).T
    bounds = np.eye(S * A) - (c_max * beta)[0, 0].reshape(-1, 1) * np.repeat(visits, A, axis=0)
    solved = minimize(
        loss,
        base.reshape(-1),
        method="SLSQP",
        bounds=[(0, None)] * (S * A),
        constraints=[
            {"type": "eq", "fun": lambda d: balance @ d - mdp.start},
            {"type": "ineq", "fun": lambda d: -bounds @ d},
        ],
    )
    pi = algorithms.largest_lower_bound(mdp, beta, variance, z, c_max)
    assert (pi <= c_max * beta + 1e-9).all()
    assert pi.sum(-1) == approx(1)
    best, found = -solved.fun, -loss(algorithms.occupancy(mdp, pi)[0, 0].reshape(-1))
    assert solved.success
    assert found >= best - 0.02 * (best - -loss(base.reshape(-1))) - 1e-6


def test_the_deviation_of_the_gain_is_what_repeated_logs_show():
    """For a policy near the baseline: sum (d - d_beta)^2 Var[r + gamma V^beta(s')] / n, for rewards r(s, a) known."""
    rng = np.random.default_rng(0)
    mdp, beta, _ = small_mdp(rng)
    pi = 0.9 * beta + 0.1 * greedy(beta, q_values(mdp, beta))
    n, repetitions = 400, 4000
    drawn = rng.multinomial(n, mdp.transitions[0, 0], size=(repetitions, 4, 3)) / n
    models = MDP(drawn[:, None], np.broadcast_to(mdp.rewards, (repetitions, 1, 4, 3)), mdp.start, 0.8)
    gains = performance(models, pi) - performance(models, beta)
    v = values(mdp, beta)
    squares = (mdp.transitions * v[:, :, None, None] ** 2).sum(-1)
    variance = 0.8**2 * (squares - (mdp.transitions @ v[..., None])[..., 0] ** 2) / n
    moved = algorithms.occupancy(mdp, pi) - algorithms.occupancy(mdp, beta)
    assert np.sqrt((variance * moved**2).sum()) == approx(gains.std(), rel=0.15)


def test_the_learned_prior_finds_the_temperature_of_a_softmax_baseline():
    """With many samples and beta = softmax(Q^beta / T), predicted advantages are the true ones."""
    data = random_data(1, number=1)
    beta = np.array(data.beta)
    for _ in range(200):  # a fixed point: beta is the softmax of its own Q-values
        beta = 0.5 * beta + 0.5 * worlds.softmax(q_values(data.task.mdp, beta) / 0.05)
    task = Task(data.task.mdp, data.task.arrival, beta)
    logs = collect_logs(task, np.random.default_rng(0).random((50, 1, 1, 20_000), dtype=np.float32))
    q = q_values(task.mdp, beta)
    found = algorithms.learned_prior(LogStatistics(task, logs))
    assert found.mean == approx(q - (beta * q).sum(-1, keepdims=True), abs=0.02)
    assert found.samples.item() == algorithms.PRIOR


def coin_data(trajectories, seed):
    """One decision between success with probability 0.3 and 0.6; a failure stays in its state for ever."""
    transitions, rewards = np.zeros((1, 1, 2, 2, 2)), np.zeros((1, 1, 2, 2))
    transitions[..., 0, :, 1] = 0.7, 0.4
    rewards[..., 0, :] = 0.3, 0.6
    transitions[..., 1, :, 1] = 1.0
    mdp = MDP(transitions, rewards, np.array([1.0, 0.0]), 0.9)
    task = Task(mdp, np.array([0.0, 0.0, 1.0]), np.full((1, 1, 2, 2), 0.5))
    uniforms = np.random.default_rng(seed).random((60, 1, 1, trajectories), dtype=np.float32)
    return LogStatistics(task, collect_logs(task, uniforms))


def test_the_loss_bound_certifies_a_better_policy_and_holds_for_a_worse_one():
    pi = np.array([[0.1, 0.9], [0.5, 0.5]])[None, None]
    data = coin_data(2000, 0)
    assert algorithms.loss_bound(data, pi, 0.05).item() == 0
    assert algorithms.loss_bound(coin_data(20, 0), pi, 0.05).item() > 0
    worse = pi[..., ::-1]
    loss = performance(data.task.mdp, data.task.beta) - performance(data.task.mdp, worse)
    assert (algorithms.loss_bound(data, worse, 0.05) >= loss).all()


def test_the_loss_bound_holds_as_often_as_it_says():
    """Both sides of every Q^beta at once, for 300 datasets of 30 trajectories."""
    misses = 0
    for seed in range(300):
        data = coin_data(30, seed)
        low, high = algorithms.first_visit_bounds(data, 0.2)
        q = q_values(data.task.mdp, data.beta)
        misses += bool((low > q + 1e-9).any() or (high < q - 1e-9).any())
    assert misses <= 0.2 * 300


def test_the_loss_bound_refuses_one_long_trajectory():
    data = LogStatistics(worlds.wet_chicken(0.1), river_logs(0.1, 100))
    with pytest.raises(ValueError, match="independent trajectories"):
        algorithms.loss_bound(data, data.beta, 0.05)


def test_an_estimated_baseline_is_relative_frequencies():
    data = algorithms.with_estimated_baseline(random_data(5))
    n = data.pair_counts
    visited = n.sum(-1) > 0
    assert data.beta[visited] == approx((n / np.maximum(n.sum(-1, keepdims=True), 1))[visited])
    assert (data.beta[~visited] == 0.25).all()
    assert algorithms.basic_rl(data).sum(-1) == approx(np.ones(visited.shape))


def test_count_aware_becomes_optimal_with_data():
    """With many samples of every pair, bounds, prior and shrinkage vanish."""
    reached = []
    for steps in (1_000, 10_000, 100_000):
        data = LogStatistics(worlds.wet_chicken(0.9), river_logs(0.9, steps))
        reached.append(performance(data.task.mdp, algorithms.count_aware(data, 0.25, 0.5)).item())
    assert reached[0] < reached[1] < reached[2] + 0.2
    assert reached[2] > 42.6  # of 43.08


def test_the_shrunken_model_has_ten_pseudo_samples_of_the_baseline_and_a_penalty():
    data = random_data(10)
    world, tries = algorithms.shrunken_model(data), data.pair_counts
    sigma = data.pooled_std
    for w, s, a in np.ndindex(4, 50, 4):
        tried = [b for b in range(4) if tries[w, 0, s, b] > 0]
        share = data.beta[w, 0, s, tried] / max(data.beta[w, 0, s, tried].sum(), 1e-12)
        usual = share @ data.model.transitions[w, 0, s, tried] if tried else np.zeros(50)
        n = tries[w, 0, s, a]
        expected = (n * data.model.transitions[w, 0, s, a] + 10 * usual) / (n + 10)
        assert world.transitions[w, 0, s, a] == approx(expected, abs=1e-12)
        usual_reward = share @ data.model.rewards[w, 0, s, tried] if tried else 0.0
        earned = (n * data.model.rewards[w, 0, s, a] + 10 * usual_reward) / (n + 10)
        assert world.rewards[w, 0, s, a] == approx(earned - 10 * sigma[w, 0] / (n + 10) ** 2)


def test_pooled_std_is_the_pooled_deviation_of_targets():
    data = random_data(30, number=1)
    v = np.append(values(data.model, data.beta)[0, 0], 0.0)
    targets = data.task.arrival + 0.95 * v
    squares, freedom = 0.0, 0
    for s, a in np.ndindex(50, 4):
        sample = np.repeat(targets, data.counts[0, 0, s, a])
        squares += ((sample - sample.mean()) ** 2).sum() if sample.size else 0.0
        freedom += max(sample.size - 1, 0)
    assert data.pooled_std[0, 0] == approx(np.sqrt(squares / freedom))


def test_rbi_with_much_data_is_the_papers_step_with_exact_values():
    data = LogStatistics(worlds.wet_chicken(0.9), river_logs(0.9, 100_000))
    exact = max_reroute(np.array(data.beta), q_values(data.task.mdp, data.task.beta), 0.5, 1.5)
    for made in (algorithms.rbi_model(data, 0.5, 1.5), algorithms.rbi_monte_carlo(data, 0.5, 1.5)):
        assert performance(data.task.mdp, made).item() == approx(performance(data.task.mdp, exact).item(), rel=0.01)


def test_doubly_robust_gains_are_unbiased():
    """The mean over many trajectories is the true gain for any model: here one from little data."""
    few, many = random_data(20, quality=0.5, number=3), random_data(20_000, quality=0.5, number=3, seed=0)
    pi = 0.8 * few.beta + 0.2 * algorithms.basic_rl(few)
    samples = peers.gains(few, pi[None], many.logs)[0]
    truth = performance(few.task.mdp, pi) - performance(few.task.mdp, few.beta)
    error = samples.std(-1) / np.sqrt(samples.shape[-1])
    assert (abs(samples.mean(-1) - truth) < 4 * error + 0.01).all()  # what 50 steps leave out is below 0.01


def test_hcpi_keeps_the_baseline_without_enough_evidence():
    data = random_data(5, quality=0.9)
    kept = (peers.hcpi(data, 1e-6) == data.beta).all((-1, -2))
    assert kept.all()
    one = LogStatistics(data.task, data.logs.first(1))
    assert (peers.hcpi(one, 0.05) == one.beta).all()


def test_hcpi_splits_a_continuing_trajectory_into_segments():
    logs = river_logs(0.1, 1030, datasets=3)
    segments = peers.split_segments(logs)
    assert segments.steps.shape == (50, 1, 3, 20)
    assert (segments.steps[:, 0, 1, 2] == logs.steps[100:150, 0, 1, 0]).all()
