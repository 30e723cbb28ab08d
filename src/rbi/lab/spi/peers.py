"""Published algorithms for safe policy improvement: soft SPIBB in four forms, RaMDP, R-MIN, MDP-MBIE, DUIPI and HCPI.

Names and definitions follow Scholl et al. (2022), "Safe Policy Improvement Approaches on Discrete Markov Decision
Processes". All return policies `[W, D, S, A]`, for many datasets at once.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse

from rbi.lab.mdp import MDP, Floats, lookahead, values
from rbi.lab.spi.algorithms import LogStatistics, basic_rl, evaluate, policy_iteration
from rbi.lab.spi.worlds import Logs, every_visit_monte_carlo
from rbi.rules.linear import greedy
from rbi.statistics import student_lower_bound

PRICE_BISECTIONS = 60
DIRICHLET_PRIOR = 0.1  # pseudo-counts of every successor in DUIPI's Bayesian form
MAX_SWEEPS = 5000
EXACT_SOLUTIONS = 20  # of MDP-MBIE, before plain sweeps
SWEEP_TOLERANCE = 1e-9  # of Q-values
DUIPI_SWEEPS, DUIPI_TOLERANCE = 500, 1e-5  # the published 5,000 and 1e-9 change no score by more than .005


# Soft SPIBB


def soft_spibb(data: LogStatistics, epsilon: float) -> Floats:
    """Approx-Soft-SPIBB: sum_a e(s,a) |pi - beta| <= epsilon."""
    return soft_policy_iteration(data, lambda q, beta, errors, _: soft_step(q, beta, errors, epsilon))


def exact_soft_spibb(data: LogStatistics, epsilon: float) -> Floats:
    """Exact-Soft-SPIBB: the best policy with sum_a e(s,a) |pi - beta| <= epsilon."""
    return soft_policy_iteration(data, lambda q, beta, errors, _: exact_soft_step(q, beta, errors, epsilon))


def adv_soft_spibb(data: LogStatistics, epsilon: float) -> Floats:
    """Adv-Approx-Soft-SPIBB: Approx-Soft-SPIBB whose policy is also not worse than the baseline by its Monte-Carlo Q.

    It is the variant whose bound on the loss is proved (Scholl et al. 2022).
    """
    q_beta = every_visit_monte_carlo(data.task, data.logs).reshape(-1, *data.beta.shape[2:])
    return soft_policy_iteration(
        data, lambda q, beta, errors, at: soft_step(q, beta, errors, epsilon, q_beta=q_beta[at])
    )


def lower_soft_spibb(data: LogStatistics, epsilon: float) -> Floats:
    """Lower-Approx-Soft-SPIBB: only added probability counts, sum_a e(s,a) max(0, pi - beta) <= epsilon."""
    return soft_policy_iteration(data, lambda q, beta, errors, _: soft_step(q, beta, errors, epsilon, lower=True))


def soft_policy_iteration(
    data: LogStatistics, step: Callable[[Floats, Floats, Floats, np.ndarray], Floats], delta: float = 1.0
) -> Floats:
    """Policy iteration with a soft SPIBB step; errors e = sqrt(2 ln(2 S A / delta) / n), infinite for n = 0."""
    _, _, S, A = data.pair_counts.shape
    n = data.pair_counts.reshape(-1, S, A)
    errors = np.where(n > 0, np.sqrt(2 * np.log(2 * S * A / delta) / np.maximum(n, 1)), np.inf)
    beta = data.beta.reshape(-1, S, A)

    def improve(q: Floats, pi: Floats, at: np.ndarray) -> Floats:
        new = step(q, beta[at], errors[at], at)
        better = (new * q).sum(-1) >= (pi * q).sum(-1)  # most steps are approximate: keep the better policy
        return np.where(better[..., None], new, pi)

    return policy_iteration(data.model, data.beta, improve)


def soft_step(
    q: Floats, beta: Floats, errors: Floats, epsilon: float, *, lower: bool = False, q_beta: Floats | None = None
) -> Floats:
    """One improvement step of Approx-Soft-SPIBB: mass moves from the worst actions to the largest gain per error.

    Each move may spend half of the remaining error budget on either side; with `lower` removed mass costs nothing. With
    `q_beta`, moves that lose by the baseline's Q-values are limited by what earlier moves have gained. (The published
    code checks the worse side only once before several moves and can therefore exceed the budget.)
    """
    pi, budget = beta.copy(), np.full(q.shape[:-1], float(epsilon))
    advantage = np.zeros_like(budget)
    down = np.zeros_like(errors) if lower else errors
    finite = np.isfinite(errors)
    up_cost, down_cost = np.where(finite, errors, 0.0), np.where(finite, down, 0.0)  # nothing moves to infinite errors
    for worst in np.moveaxis(np.argsort(q, -1, kind="stable"), -1, 0):
        active = np.ones(budget.shape, dtype=bool)
        gain = (q - pick(q, worst)[..., None]) / errors
        for best in np.moveaxis(np.argsort(-gain, -1, kind="stable"), -1, 0)[:-1]:
            active &= pick(gain, best) > 0  # later actions do not gain either
            each = pick(errors, best) if lower else 2 * np.maximum(pick(errors, worst), pick(errors, best))
            moved = np.where(active, np.minimum(pick(pi, worst), budget / each), 0.0)
            if q_beta is not None:
                known = pick(q_beta, best) - pick(q_beta, worst)
                moved = np.where(known < 0, np.minimum(moved, advantage / np.where(known < 0, -known, 1.0)), moved)
                advantage = np.maximum(advantage + known * moved, 0.0)
            budget = budget - moved * (pick(down_cost, worst) + pick(up_cost, best))
            np.put_along_axis(pi, worst[..., None], (pick(pi, worst) - moved)[..., None], -1)
            np.put_along_axis(pi, best[..., None], (pick(pi, best) + moved)[..., None], -1)
    return pi


def exact_soft_step(q: Floats, beta: Floats, errors: Floats, epsilon: float) -> Floats:
    """max_pi sum_a pi q subject to sum_a e |pi - beta| <= epsilon, for each state.

    With a price p of errors, all mass of actions with q + p e below the best q - p e moves to that action. The smallest
    price that keeps the budget is found by bisection; at that price the solutions just above and just below it are
    mixed so that the budget is spent.
    """
    finite = np.isfinite(errors)
    cost = np.where(finite, errors, 0.0)

    def solution(price: Floats) -> tuple[Floats, Floats]:
        top = np.where(finite, q - price[..., None] * cost, -np.inf)
        best = top.argmax(-1)
        drained = finite & (q + price[..., None] * cost < pick(top, best)[..., None])
        pi = np.where(drained, 0.0, beta)
        moved = 1 - pi.sum(-1)
        np.put_along_axis(pi, best[..., None], (pick(pi, best) + moved)[..., None], -1)
        return pi, (cost * abs(pi - beta)).sum(-1)

    low = np.zeros(q.shape[:-1])
    high = np.ptp(q, axis=-1) / np.where(finite, errors, np.inf).min(-1) + 1e-12  # nothing moves at this price
    for _ in range(PRICE_BISECTIONS):
        middle = (low + high) / 2
        enough = solution(middle)[1] <= epsilon
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    (more, spent_more), (less, spent_less) = solution(low), solution(high)
    share = np.clip((epsilon - spent_less) / np.maximum(spent_more - spent_less, 1e-300), 0.0, 1.0)
    return less + share[..., None] * (more - less)


def ramdp(data: LogStatistics, kappa: float) -> Floats:
    """Reward-adjusted MDP: a penalty of kappa / sqrt(n) on every reward, prohibitively large for untried pairs."""
    model = data.model
    n = np.where(data.pair_counts > 0, data.pair_counts, 1e-5)
    adjusted = MDP(model.transitions, model.rewards - kappa / np.sqrt(n), model.start, model.discount)
    return policy_iteration(adjusted, data.beta, lambda q, pi, _: greedy(pi, q, check=False))


def r_min(data: LogStatistics, n_wedge: float) -> Floats:
    """R-MIN: optimal in the estimated MDP where pairs with at most n_wedge samples give the least reward for ever."""
    known = data.pair_counts > n_wedge
    model = data.model
    worst = data.task.arrival.min() / (1 - model.discount)
    pessimistic = MDP(
        np.where(known[..., None], model.transitions, 0.0),
        np.where(known, model.rewards, worst),
        model.start,
        model.discount,
    )
    return policy_iteration(pessimistic, data.beta, lambda q, pi, _: greedy(pi, q, check=False))


def mbie(data: LogStatistics, delta: float) -> Floats:
    """MDP-MBIE: optimal for the worst transitions in the L1 ball that holds the true ones with probability 1 - delta.

    The radius of each pair is sqrt(2 ln(2 S A (2^S - 2) / delta) / n), and 2 for untried pairs.
    """
    W, D, S, A = data.pair_counts.shape
    n = data.pair_counts.reshape(-1, S, A)
    logarithm = np.log(2 * S * A / delta) + S * np.log(2) + np.log1p(-(2.0 ** (1 - S)))
    radius = np.where(n > 0, np.minimum(np.sqrt(2 * logarithm / np.maximum(n, 1)), 2.0), 2.0)
    model = data.counts.reshape(-1, S, A, S + 1) / np.maximum(n, 1)[..., None]
    discount = data.task.mdp.discount
    v, changing = np.zeros((len(n), S)), True
    for sweep in range(MAX_SWEEPS):
        after = data.task.arrival + discount * np.append(v, np.zeros((len(v), 1)), -1)
        worst = worst_transitions(model, radius, after)
        q = (worst @ after[:, None, :, None])[..., 0]
        before, exact = v, sweep < EXACT_SOLUTIONS and changing
        if exact:  # solve for the current worst case and best actions: fewer sweeps
            pi = np.eye(A)[q.argmax(-1)]
            v = (pi * evaluate(worst[..., :-1], worst @ data.task.arrival, discount, pi)).sum(-1)
        else:
            v = q.max(-1)
        changing = bool(abs(v - before).max() >= SWEEP_TOLERANCE)
        if not (changing or exact):  # a plain sweep changes nothing
            break
    return greedy(data.beta, q.reshape(W, D, S, A), check=False)


def worst_transitions(model: Floats, radius: Floats, after: Floats) -> Floats:
    """Transitions `[M, S, A, S+1]` within an L1 radius of the model's that have the least value `after` `[M, S+1]`."""
    order = np.argsort(-after, -1, kind="stable")  # best successors first
    p = np.take_along_axis(model, order[:, None, None, :], -1)
    added = np.minimum(radius / 2, 1 - p[..., -1])
    before = np.cumsum(p, -1) - p
    p = p - np.clip(added[..., None] - before, 0.0, p)
    p[..., -1] += added
    worst = np.empty_like(p)
    np.put_along_axis(worst, np.broadcast_to(order[:, None, None, :], p.shape), p, -1)
    return worst


def duipi(data: LogStatistics, xi: float) -> Floats:
    """DUIPI with relative frequencies: see `uncertainty_iteration`."""
    return uncertainty_iteration(data, xi, 0.0)


def duipi_bayes(data: LogStatistics, xi: float) -> Floats:
    """DUIPI with a Dirichlet prior of DIRICHLET_PRIOR per successor: see `uncertainty_iteration`."""
    return uncertainty_iteration(data, xi, DIRICHLET_PRIOR)


def uncertainty_iteration(data: LogStatistics, xi: float, prior: float) -> Floats:
    """DUIPI (Hans and Udluft 2009): the action with the largest Q - xi sd(Q), with variances propagated diagonally.

        Q <- P (r + gamma V),    Var Q <- (gamma P)^2 Var V + Var P (r + gamma V)^2,    Var V <- pi^2 Var Q

    In sweep t the policy moves by 1/t towards the best action. Untried actions are never the best (Scholl et al. 2022).
    """
    *_, S, A = data.beta.shape
    counts = data.counts.reshape(-1, S * A, S + 1)
    result: Floats = np.empty((len(counts), S, A))
    active: np.ndarray = np.arange(len(counts))
    uncertain = UncertainModel(counts, prior, data.task.mdp.discount)
    pi = np.full(result.shape, 1 / A)
    q, var_q = np.zeros_like(pi), np.zeros_like(pi)
    tried = data.pair_counts.reshape(pi.shape) > 0
    changing: np.ndarray = np.ones(len(pi), dtype=bool)
    for sweep in range(1, DUIPI_SWEEPS + 1):
        before = q
        after = np.append(data.task.mdp.discount * (pi * q).sum(-1), np.zeros((len(pi), 1)), -1) + data.task.arrival
        q, var_q = uncertain.backup(after, (pi**2 * var_q).sum(-1))
        best = np.where(tried, q - xi * np.sqrt(var_q), -np.inf).argmax(-1)[..., None]
        others = 1 - np.take_along_axis(pi, best, -1)
        step = np.minimum(1 / sweep, others)
        pi *= np.where(others > step, (others - step) / np.maximum(others, 1e-300), 0.0)
        np.put_along_axis(pi, best, 1 - others + step, -1)
        result[active[changing]] = pi[changing]
        changing &= np.linalg.norm((q - before).reshape(len(q), -1), axis=-1) > DUIPI_TOLERANCE
        if not changing.any():
            break
        if 2 * changing.sum() <= len(active):  # keep the datasets that still change
            active, pi, q, var_q, tried = (x[changing] for x in (active, pi, q, var_q, tried))
            uncertain = UncertainModel(counts[active], prior, data.task.mdp.discount)
            changing = changing[changing]
    return result.reshape(data.beta.shape)


class UncertainModel:
    """Transitions p = (c + prior)/n and their variances for DUIPI: sparse counts c plus a constant per pair.

    With a prior, p is the mean of a Dirichlet distribution; without one it is a relative frequency, and a pair with
    fewer than two samples has the largest variance there is, 1/4.
    """

    def __init__(self, counts: np.ndarray, prior: float, discount: float) -> None:
        M, pairs, successors = counts.shape
        data, pair, successor = np.nonzero(counts)
        c = counts[data, pair, successor].astype(float)
        where = (data * pairs + pair, data * successors + successor)
        shape = (M * pairs, M * successors)
        self.counts = scipy.sparse.csr_array((c, where), shape)
        self.squares = scipy.sparse.csr_array((c**2 + 2 * prior * c, where), shape)  # (c + prior)^2 - prior^2
        n = counts.sum(-1)
        self.n = np.maximum(n + successors * prior, 1.0)
        self.freedom = n + successors * prior + 1 if prior else np.where(n > 1, n - 1.0, np.inf)
        self.unknown = np.where(np.isinf(self.freedom), 0.25, 0.0)
        self.prior, self.discount = prior, discount

    def backup(self, after: Floats, var_v: Floats) -> tuple[Floats, Floats]:
        """Q and Var Q `[M, S, A]`, for `after` = r + gamma V `[M, S+1]` and Var V `[M, S]`."""
        M, S = var_v.shape
        spread = np.append(self.discount**2 * var_v, np.zeros((M, 1)), -1)
        mean, second = self.product(self.counts, np.stack([after, after**2], -1), self.prior)
        p2_second, p2_spread = self.product(self.squares, np.stack([after**2, spread], -1), self.prior**2)
        local = (second / self.n - p2_second / self.n**2) / self.freedom
        local += self.unknown * (after**2).sum(-1, keepdims=True)
        var_q = p2_spread / self.n**2 + np.maximum(local, 0.0)
        return (mean / self.n).reshape(M, S, -1), var_q.reshape(M, S, -1)

    def product(self, matrix: scipy.sparse.csr_array, x: Floats, constant: float) -> Floats:
        """(matrix + constant) x of each dataset: `[2, M, pairs]` from x `[M, successors, 2]`."""
        M, pairs = self.n.shape
        found = (matrix @ x.reshape(-1, 2)).reshape(M, pairs, 2) + constant * x.sum(1)[:, None]
        return np.moveaxis(found, -1, 0)


# High-confidence policy improvement

TRAINING_SHARE = 0.2  # of the trajectories for the candidate; the others are the test set
MIXTURES = np.arange(1, 11) / 10  # weights of the greedy policy in the candidates
SEGMENT_STEPS = 50  # a continuing trajectory is split into segments of this length


def hcpi(data: LogStatistics, delta: float) -> Floats:
    """High-confidence policy improvement: a candidate if a t-test at level `delta` accepts it, else the baseline.

    Candidates mix the baseline with the greedy policy of the training set's model; the training set also selects one of
    them, by the lower bound to expect from the test. Gains over the baseline are doubly robust estimates per trajectory
    with the training set's model. Only the selected candidate is tested, so the bound is valid. In continuing worlds
    the samples are segments of the one trajectory.
    """
    segments = split_segments(data.logs)
    trajectories = segments.steps.shape[-1]
    n = training_size(trajectories)
    train = LogStatistics(data.task, segments.first(n), data.known_beta)
    best = basic_rl(train)
    test_size = trajectories - n
    if test_size < 2:
        return data.beta
    candidates = [(1 - w) * data.beta + w * best for w in MIXTURES]
    usual = doubly_robust(train, train.beta, train.logs)
    gained = (doubly_robust(train, pi, train.logs) - usual for pi in candidates)
    expected = np.stack([student_lower_bound(sample, delta, test_size) for sample in gained])
    chosen = np.take_along_axis(np.stack(candidates), expected.argmax(0)[None, ..., None, None], 0)[0]
    test = replace(segments, steps=segments.steps[..., n:])
    accepted = student_lower_bound(gains(train, chosen, test), delta, test_size) > 0
    return np.where(accepted[..., None, None], chosen, data.beta)


def training_size(trajectories: int) -> int:
    """Number of training trajectories: a fifth, at least one."""
    return max(1, int(TRAINING_SHARE * trajectories))


def split_segments(logs: Logs) -> Logs:
    """Split a continuing trajectory into segments `[SEGMENT_STEPS, W, D, T/SEGMENT_STEPS]`; others stay as they are."""
    T, W, D, _ = logs.steps.shape
    if not logs.by_steps or T < 2 * SEGMENT_STEPS:
        return replace(logs, by_steps=False)
    whole = T // SEGMENT_STEPS
    steps = logs.steps[: whole * SEGMENT_STEPS].reshape(whole, SEGMENT_STEPS, W, D)
    return replace(logs, steps=np.moveaxis(steps, 0, -1), by_steps=False)


def gains(train: LogStatistics, pi: Floats, logs: Logs) -> Floats:
    """Gain of pi over beta on each trajectory `[W, D, N]`, by doubly robust estimates of both.

        DR = V(s) + pi/beta (r + gamma DR' - Q(s, a)),    backwards

    The value after termination is 0. Truncated trajectories continue with the baseline's value for both: the model
    overestimates a candidate that was optimised in it, and every candidate would pass.
    """
    return doubly_robust(train, pi, logs) - doubly_robust(train, train.beta, logs)


def doubly_robust(train: LogStatistics, pi: Floats, logs: Logs) -> Floats:
    """Doubly robust estimate of pi's value on each trajectory, `[W, D, N]`."""
    T, W, D, N = logs.steps.shape
    S, A = logs.states, logs.actions
    v = values(train.model, pi)
    q = lookahead(train.model, v).reshape(W * D, S * A)
    ratio = (pi / np.where(train.beta > 0, train.beta, 1.0)).reshape(W * D, S * A)
    v = v.reshape(W * D, S)
    afterwards = np.append(values(train.model, train.beta).reshape(W * D, S), np.zeros((W * D, 1)), -1)
    row = np.arange(W * D)[:, None]
    steps = logs.steps.reshape(T, W * D, N)
    following = afterwards[row, steps[-1] % (S + 1)]
    for step in steps[::-1]:
        happened = step >= 0
        pair, reached = step // (S + 1), step % (S + 1)
        after = np.where(reached == S, 0.0, following)
        gained = train.task.arrival[reached] + train.model.discount * after - q[row, pair]
        following = np.where(happened, v[row, pair // A] + ratio[row, pair] * gained, following)
    return following.reshape(W, D, N)


def pick(x: Floats, index: np.ndarray) -> Floats:
    """x[..., index] with one index per row."""
    return np.take_along_axis(x, index[..., None], -1)[..., 0]
