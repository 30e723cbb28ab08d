"""Published algorithms for safe policy improvement: soft SPIBB in four forms, RaMDP, R-MIN, MDP-MBIE, DUIPI and HCPI.

Names and definitions follow Scholl et al. (2022), "Safe Policy Improvement Approaches on Discrete Markov Decision
Processes". All return policies `[W, D, S, A]`, for many datasets at once.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse

from rbi.lab.mdp import MDP, Floats, lookahead, values
from rbi.lab.spi.algorithms import LogStatistics, basic_rl, policy_iteration
from rbi.lab.spi.worlds import Logs
from rbi.rules.linear import greedy
from rbi.statistics import student_lower_bound

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
    q_beta = data.monte_carlo.reshape(-1, *data.beta.shape[2:])
    return soft_policy_iteration(
        data, lambda q, beta, errors, at: soft_step(q, beta, errors, epsilon, q_beta=q_beta[at])
    )


def lower_soft_spibb(data: LogStatistics, epsilon: float) -> Floats:
    """Lower-Approx-Soft-SPIBB: only added probability counts, sum_a e(s,a) max(0, pi - beta) <= epsilon."""
    return soft_policy_iteration(data, lambda q, beta, errors, _: soft_step(q, beta, errors, epsilon, lower=True))


def soft_policy_iteration(data: LogStatistics, step: Callable[[Floats, Floats, Floats, np.ndarray], Floats]) -> Floats:
    """Policy iteration with a soft SPIBB step; errors e = sqrt(2 ln(2 S A / delta) / n) with delta = 1, infinite for
    n = 0."""
    _, _, S, A = data.pair_counts.shape
    n = data.pair_counts.reshape(-1, S, A)
    errors = np.where(n > 0, np.sqrt(2 * np.log(2 * S * A) / np.maximum(n, 1)), np.inf)
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
    order = np.argsort(q, -1, kind="stable")  # from the worst action to the best
    q, pi, errors = (np.take_along_axis(x, order, -1) for x in (q, beta, errors))
    q_beta = None if q_beta is None else np.take_along_axis(q_beta, order, -1)
    budget, advantage = np.full(q.shape[:-1], float(epsilon)), np.zeros(q.shape[:-1])
    cost = np.where(np.isfinite(errors), errors, 0.0)  # nothing moves to infinite errors
    for worst in range(q.shape[-1] - 1):
        better = slice(worst + 1, None)
        gain = (q[..., better] - q[..., worst, None]) / errors[..., better]
        ranked = worst + 1 + np.lexsort((order[..., better], -gain))  # of equal gains the lower index first
        for best in np.moveaxis(ranked, -1, 0):
            error = pick(errors, best)
            each = error if lower else 2 * np.maximum(errors[..., worst], error)
            gains = pick(q, best) > q[..., worst]
            moved = np.where(gains, np.minimum(pi[..., worst], budget / each), 0.0)
            if q_beta is not None:
                known = pick(q_beta, best) - q_beta[..., worst]
                moved = np.where(known < 0, np.minimum(moved, advantage / np.where(known < 0, -known, 1.0)), moved)
                advantage = np.maximum(advantage + known * moved, 0.0)
            budget = budget - moved * (pick(cost, best) if lower else cost[..., worst] + pick(cost, best))
            pi[..., worst] -= moved
            np.put_along_axis(pi, best[..., None], (pick(pi, best) + moved)[..., None], -1)
    result = np.empty_like(pi)
    np.put_along_axis(result, order, pi, -1)
    return result


def exact_soft_step(q: Floats, beta: Floats, errors: Floats, epsilon: float) -> Floats:
    """max_pi sum_a pi q subject to sum_a e |pi - beta| <= epsilon, for each state.

    With a price p of errors, all mass of actions with q + p e below the best q - p e moves to that action. The solution
    changes only at prices where two of these numbers are equal. Between two such prices is the smallest that keeps the
    budget, and the solutions on either side of it are mixed so that the budget is spent.
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

    prices = prices_between_ties(q, errors)
    low = np.zeros(q.shape[:-1], dtype=int)
    high = np.full(low.shape, prices.shape[-1] - 1)  # nothing moves at the largest price
    while (high > low + 1).any():
        middle = (low + high + 1) // 2
        enough = solution(pick(prices, middle))[1] <= epsilon
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    (more, spent_more), (less, spent_less) = solution(pick(prices, low)), solution(pick(prices, high))
    share = np.clip((epsilon - spent_less) / np.maximum(spent_more - spent_less, 1e-300), 0.0, 1.0)
    return less + share[..., None] * (more - less)


def prices_between_ties(q: Floats, errors: Floats) -> Floats:
    """Price 0, one price between each two at which q +- p e of two actions are equal, and one above all of them."""
    i, j = np.triu_indices(q.shape[-1], 1)
    gap, e = abs(q[..., i] - q[..., j]), np.minimum(errors, 1e300)
    unequal = np.where(q[..., i] > q[..., j], 1, -1) * (e[..., i] - e[..., j])
    drained, overtaken = gap / (e[..., i] + e[..., j]), gap / np.where(unequal > 0, unequal, np.inf)
    ties = np.sort(np.concatenate([np.zeros_like(q[..., :1]), drained, overtaken], -1), -1)
    return np.concatenate([ties[..., :1], (ties[..., 1:] + ties[..., :-1]) / 2, 2 * ties[..., -1:] + 1], -1)


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
    counts = data.counts.reshape(-1, S, A, S + 1)
    most = (counts > 0).sum(-1).max()
    seen = np.argsort(counts == 0, -1, kind="stable")[..., :most]  # successors with samples first
    p = np.take_along_axis(counts, seen, -1) / np.maximum(n, 1)[..., None]
    arrival, discount = data.task.arrival, data.task.mdp.discount
    v, changing = np.zeros((len(n), S)), True
    for sweep in range(MAX_SWEEPS):
        after = arrival + discount * with_termination(v)
        worst = worst_transitions(seen, p, radius, after)
        q = (worst @ after[:, None, :, None])[..., 0]
        before, exact = v, sweep < EXACT_SOLUTIONS and changing
        if exact:  # solve for the current worst case and best actions: fewer sweeps
            chosen = np.take_along_axis(worst, q.argmax(-1)[..., None, None], 2)[:, :, 0]
            rewards, chosen = chosen @ arrival, chosen[..., :-1]
            v = np.linalg.solve(np.eye(S) - discount * chosen, rewards[..., None])
            v = rewards + discount * (chosen @ v)[..., 0]
        else:
            v = q.max(-1)
        changing = bool(abs(v - before).max() >= SWEEP_TOLERANCE)
        if not (changing or exact):  # a plain sweep changes nothing
            break
    return greedy(data.beta, q.reshape(W, D, S, A), check=False)


def worst_transitions(seen: np.ndarray, p: Floats, radius: Floats, after: Floats) -> Floats:
    """Transitions `[M, S, A, S+1]` of the least value `after` `[M, S+1]` within an L1 radius of the model's.

    The model gives the successors `seen` the probabilities `p`, both `[M, S, A, K]`. Probability moves from the best of
    them to the worst successor of all.
    """
    order = np.argsort(-after, -1, kind="stable")  # best successors first
    rank = np.argsort(order, -1)[:, None, None]
    best_first = np.argsort(np.take_along_axis(rank, seen, -1), -1)
    seen, p = np.take_along_axis(seen, best_first, -1), np.take_along_axis(p, best_first, -1)
    last = order[:, None, None, -1:]
    added = np.minimum(radius / 2, 1 - (p * (seen == last)).sum(-1))[..., None]
    before = np.cumsum(p, -1) - p
    worst = np.zeros((*radius.shape, after.shape[-1]))
    np.put_along_axis(worst, seen, p - np.clip(added - before, 0.0, p), -1)
    np.put_along_axis(worst, last, np.take_along_axis(worst, last, -1) + added, -1)
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
    Arrays are `[A, M, S]`, actions first: NumPy sums whole arrays several times faster than short rows.
    """
    W, D, S, A = data.beta.shape
    counts = np.moveaxis(data.counts.reshape(-1, S, A, S + 1), 2, 0)
    uncertain = UncertainModel(counts, prior, data.task.arrival, data.task.mdp.discount)
    untried = np.where(counts.any(-1), 0.0, np.inf)
    pi = np.full(untried.shape, 1 / A)
    q, var_q = np.zeros_like(pi), np.zeros_like(pi)
    result: Floats = np.empty_like(pi)
    active: np.ndarray = np.arange(W * D)
    changing: np.ndarray = np.ones(active.shape, dtype=bool)
    for sweep in range(1, DUIPI_SWEEPS + 1):
        before = q
        q, var_q = uncertain.backup((pi * q).sum(0), (pi * pi * var_q).sum(0))
        best = first_largest(q - xi * np.sqrt(var_q) - untried)
        others = 1 - (pi * best).sum(0)
        step = np.minimum(1 / sweep, others)
        pi = np.where(best, 1 - others + step, pi * ((others - step) / np.maximum(others, 1e-300)))
        converged = changing & (((q - before) ** 2).sum((0, 2)) <= DUIPI_TOLERANCE**2)
        if not converged.any():
            continue
        result[:, active[converged]] = pi[:, converged]
        changing &= ~converged
        if not changing.any():
            break
        if 2 * changing.sum() <= len(active):  # keep the datasets that still change
            active, counts = active[changing], counts[:, changing]
            pi, q, var_q, untried = (x[:, changing] for x in (pi, q, var_q, untried))
            uncertain = UncertainModel(counts, prior, data.task.arrival, data.task.mdp.discount)
            changing = changing[changing]
    result[:, active[changing]] = pi[:, changing]
    return np.moveaxis(result, 0, -1).reshape(data.beta.shape)


def first_largest(x: Floats) -> np.ndarray:
    """Whether an action is the first of those with the largest x `[A, ...]`."""
    largest: np.ndarray = x == x.max(0)
    found = largest[0].copy()
    for one in largest[1:]:
        one &= ~found
        found |= one
    return largest


class UncertainModel:
    """Transitions p = (c + prior)/n and their variances for DUIPI, from counts c `[A, M, S, S+1]`.

    With a prior, p is the mean of a Dirichlet distribution; without one it is a relative frequency, and a pair with
    fewer than two samples has the largest variance there is, 1/4.

    All successors without samples have the same p and Var p. So the matrices are sparse: one entry for the sum over all
    successors, and the difference for each successor with samples.
    """

    def __init__(self, counts: np.ndarray, prior: float, arrival: Floats, discount: float) -> None:
        *self.shape, successors = counts.shape
        _, M, S = self.shape
        counts = counts.reshape(-1, successors)
        n = counts.sum(-1)
        samples = np.maximum(n + successors * prior, 1.0)
        freedom = samples + 1 if prior else np.where(n > 1, n - 1.0, np.inf)
        unknown = np.where(np.isinf(freedom), 0.25, 0.0)

        def moments(c: Floats, pair: np.ndarray) -> Floats:
            """p, p^2 and Var p of successors with c samples, `[3, ...]`."""
            p = (c + prior) / samples[pair]
            return np.stack([p, p**2, p * (1 - p) / freedom[pair] + unknown[pair]])

        pairs = np.arange(n.size)
        dataset = pairs // S % M
        pair, successor = np.nonzero(counts)
        without_samples = moments(np.zeros(n.size), pairs)
        more = moments(counts[pair, successor], pair) - without_samples[:, pair]
        where = np.where(successor < S, dataset[pair] * S + successor, M * S)
        order = np.argsort(np.append(pair, pairs), kind="stable")
        column = np.append(where, M * S + 1 + dataset)[order]
        rows = np.searchsorted(pair, np.arange(n.size + 1)) + np.arange(n.size + 1)
        self.p, self.p_squared, self.var_p = (
            scipy.sparse.csr_array((x[order], column, rows), (n.size, M * S + 1 + M))
            for x in np.append(more, without_samples, -1)
        )
        self.arrival, self.discount = arrival, discount

    def backup(self, v: Floats, var_v: Floats) -> tuple[Floats, Floats]:
        """Q and Var Q `[A, M, S]`, for V and Var V `[M, S]`."""
        after, last = self.arrival[:-1] + self.discount * v, self.arrival[-1]
        q = self.p @ columns(after, last)
        var_q = self.p_squared @ columns(self.discount**2 * var_v, 0.0) + self.var_p @ columns(after**2, last**2)
        return q.reshape(self.shape), var_q.reshape(self.shape)


def columns(x: Floats, at_termination: float) -> Floats:
    """x `[M, S]` of all states, x at termination, and the sum of both for each dataset, in one vector."""
    return np.concatenate([x.reshape(-1), [at_termination], x.sum(-1) + at_termination])


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
    candidates = np.stack([(1 - w) * data.beta + w * best for w in MIXTURES])
    expected = student_lower_bound(gains(train, candidates, train.logs), delta, test_size)
    chosen = np.take_along_axis(candidates, expected.argmax(0)[None, ..., None, None], 0)
    test = replace(segments, steps=segments.steps[..., n:])
    accepted = student_lower_bound(gains(train, chosen, test), delta, test_size) > 0
    return np.where(accepted[..., None, None], chosen, data.beta)[0]


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


def gains(train: LogStatistics, policies: Floats, logs: Logs) -> Floats:
    """Gain of each policy `[C, W, D, S, A]` over beta on each trajectory `[C, W, D, N]`, by doubly robust estimates."""
    usual, *estimates = doubly_robust(train, np.concatenate([train.beta[None], policies]), logs)
    return np.stack(estimates) - usual


def doubly_robust(train: LogStatistics, policies: Floats, logs: Logs) -> Floats:
    """Doubly robust estimate of each policy's value on each trajectory, `[C, W, D, N]`.

        DR = V(s) + pi/beta (r + gamma DR' - Q(s, a)),    backwards

    The value after termination is 0. Truncated trajectories continue with the baseline's value for all policies: the
    model overestimates a candidate that was optimised in it, and every candidate would pass.
    """
    T, W, D, N = logs.steps.shape
    S, A = logs.states, logs.actions
    C, dataset = len(policies), np.repeat(np.arange(W * D), N)
    v = values(train.model, policies)
    ratio = policies / np.where(train.beta > 0, train.beta, 1.0)
    constant = v[..., None] - ratio * lookahead(train.model, v)  # DR = constant + pi/beta (r + gamma DR')
    constant, ratio = (np.ascontiguousarray(x.reshape(C, -1).T) for x in (constant, ratio))  # [all pairs, C]
    afterwards = with_termination(train.v_beta.reshape(W * D, S))
    steps = logs.steps.reshape(T, W * D * N)
    found = np.repeat(afterwards[dataset, steps[-1] % (S + 1)][:, None], C, 1)
    for step in steps[::-1]:
        happened = np.flatnonzero(step >= 0)
        pair, reached = np.divmod(step[happened], S + 1)
        pair += S * A * dataset[happened]
        reward = train.task.arrival[reached][:, None]
        found[happened] = constant[pair] + ratio[pair] * (reward + train.model.discount * found[happened])
    return found.T.reshape(C, W, D, N)


def with_termination(v: Floats) -> Floats:
    """Append the value after termination, 0: `[M, S + 1]` from `[M, S]`."""
    return np.append(v, np.zeros((len(v), 1)), -1)


def pick(x: Floats, index: np.ndarray) -> Floats:
    """x[..., index] with one index per row."""
    return np.take_along_axis(x, index[..., None], -1)[..., 0]
