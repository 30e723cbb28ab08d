"""Algorithms for safe policy improvement from logged data: SPIBB, soft SPIBB, RaMDP, HCPI, RBI and count-aware reroute.

Most of them are policy iteration in an estimated MDP, constrained to a reroute set of the baseline: c_min <= pi/beta <=
c_max. Basic RL has no constraint, SPIBB frees pairs with many samples, the paper's reroute has the same bounds for all
pairs, and count-aware reroute has bounds that depend on counts. Every algorithm takes `LogStatistics` and returns
policies `[W, D, S, A]`, for many datasets at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rbi.lab.mdp import MDP, Floats, lookahead, q_values, values
from rbi.lab.spi.worlds import Logs, Task, count_transitions, estimate_model, every_visit_monte_carlo
from rbi.rules.counts import count_bounds
from rbi.rules.linear import greedy, max_reroute
from rbi.statistics import student_lower_bound

MAX_ITERATIONS = 100
PRIOR = 10.0  # pseudo-counts of the shrunken model (docs/count-aware.md)
TOLERANCE = 1e-9  # of Q-values: policy iteration has converged

Improve = Callable[[Floats, Floats, np.ndarray], Floats]  # Q-values, the policy, which datasets -> a new policy


@dataclass(frozen=True)
class LogStatistics:
    """What an algorithm knows: the baseline, the logs, and the maximum-likelihood model."""

    task: Task
    logs: Logs

    @cached_property
    def counts(self) -> np.ndarray:
        """Counts of (s, a, s'), `[W, D, S, A, S + 1]`; the last successor is termination."""
        return count_transitions(self.logs)

    @cached_property
    def pair_counts(self) -> np.ndarray:
        """Counts of (s, a), `[W, D, S, A]`."""
        found: np.ndarray = self.counts.sum(-1)
        return found

    @cached_property
    def model(self) -> MDP:
        """Maximum-likelihood MDP of each dataset."""
        return estimate_model(self.task, self.counts)

    @cached_property
    def beta(self) -> Floats:
        """The baseline of each dataset, `[W, D, S, A]`."""
        return np.broadcast_to(self.task.beta, self.pair_counts.shape)


def baseline(data: LogStatistics) -> Floats:
    """The behavior policy of the logs."""
    return data.beta


def basic_rl(data: LogStatistics) -> Floats:
    """The optimal policy of the estimated MDP."""
    return policy_iteration(data.model, data.beta, lambda q, pi, _: greedy(pi, q, check=False))


def pi_b_spibb(data: LogStatistics, n_wedge: float) -> Floats:
    """Pi_b-SPIBB: pairs with more than n_wedge samples are free, all others keep the baseline's probability."""
    known = data.pair_counts > n_wedge
    return constrained_policy_iteration(data.model, data.beta, np.where(known, 0.0, 1.0), free_where(known, data.beta))


def pi_le_b_spibb(data: LogStatistics, n_wedge: float) -> Floats:
    """Pi_<=b-SPIBB: pairs with more than n_wedge samples are free, others may not exceed the baseline's probability."""
    c_max = free_where(data.pair_counts > n_wedge, data.beta)
    return constrained_policy_iteration(data.model, data.beta, np.zeros(data.beta.shape), c_max)


def soft_spibb(data: LogStatistics, epsilon: float, delta: float = 1.0) -> Floats:
    """Approx-Soft-SPIBB: sum_a e(s,a) |pi - beta| <= epsilon, e = sqrt(2 ln(2 S A / delta) / n), infinite for n = 0."""
    _, _, S, A = data.pair_counts.shape
    n = data.pair_counts.reshape(-1, S, A)
    errors = np.where(n > 0, np.sqrt(2 * np.log(2 * S * A / delta) / np.maximum(n, 1)), np.inf)
    beta = data.beta.reshape(-1, S, A)

    def improve(q: Floats, pi: Floats, at: np.ndarray) -> Floats:
        new = soft_step(q, beta[at], errors[at], epsilon)
        better = (new * q).sum(-1) >= (pi * q).sum(-1)  # the step is approximate: keep the better policy
        return np.where(better[..., None], new, pi)

    return policy_iteration(data.model, data.beta, improve)


def soft_step(q: Floats, beta: Floats, errors: Floats, epsilon: float) -> Floats:
    """One improvement step of Approx-Soft-SPIBB: mass moves from the worst actions to the largest gain per error.

    Each move may spend half of the remaining error budget on either side. (The published code checks the worse side
    only once before several moves and can therefore exceed the budget.)
    """
    pi, budget = beta.copy(), np.full(q.shape[:-1], float(epsilon))
    cost = np.where(np.isfinite(errors), errors, 0.0)  # nothing moves where the error is infinite
    for worst in np.moveaxis(np.argsort(q, -1, kind="stable"), -1, 0):
        active = np.ones(budget.shape, dtype=bool)
        gain = (q - pick(q, worst)[..., None]) / errors
        for best in np.moveaxis(np.argsort(-gain, -1, kind="stable"), -1, 0)[:-1]:
            active &= pick(gain, best) > 0  # later actions do not gain either
            affordable = budget / (2 * np.maximum(pick(errors, worst), pick(errors, best)))
            moved = np.where(active, np.minimum(pick(pi, worst), affordable), 0.0)
            budget = budget - moved * (pick(cost, worst) + pick(cost, best))
            np.put_along_axis(pi, worst[..., None], (pick(pi, worst) - moved)[..., None], -1)
            np.put_along_axis(pi, best[..., None], (pick(pi, best) + moved)[..., None], -1)
    return pi


def ramdp(data: LogStatistics, kappa: float) -> Floats:
    """Reward-adjusted MDP: a penalty of kappa / sqrt(n) on every reward, prohibitively large for untried pairs."""
    model = data.model
    n = np.where(data.pair_counts > 0, data.pair_counts, 1e-5)
    adjusted = MDP(model.transitions, model.rewards - kappa / np.sqrt(n), model.start, model.discount)
    return policy_iteration(adjusted, data.beta, lambda q, pi, _: greedy(pi, q, check=False))


def rbi_monte_carlo(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """The paper's step: Max-Reroute with Monte-Carlo Q-values of the baseline."""
    return max_reroute(data.beta, every_visit_monte_carlo(data.task, data.logs), c_min, c_max, check=False)


def rbi_model(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """The paper's step with the baseline's Q-values in the estimated MDP."""
    return max_reroute(data.beta, q_values(data.model, data.beta), c_min, c_max, check=False)


def rbi_iterated(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """Policy iteration constrained to the reroute set of the baseline."""
    shape = data.beta.shape
    return constrained_policy_iteration(data.model, data.beta, np.full(shape, c_min), np.full(shape, c_max))


def count_aware(data: LogStatistics, tau: float) -> Floats:
    """Policy iteration in the shrunken model, constrained to the count-aware reroute set; see docs/count-aware.md."""
    c_min, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    return constrained_policy_iteration(shrunken_model(data), data.beta, c_min, c_max)


def count_aware_draining(data: LogStatistics, tau: float) -> Floats:
    """Ablation of `count_aware` without c_min: untried actions may lose probability. Not a safe method."""
    c_min, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    return constrained_policy_iteration(shrunken_model(data), data.beta, np.zeros_like(c_min), c_max)


def shrunken_model(data: LogStatistics) -> MDP:
    """The estimated MDP with PRIOR pseudo-samples of every pair that follow the baseline's transitions in that state.

    An untried pair then has its state's value instead of 0. Rewards are reduced by the prior's share times sigma / (n +
    PRIOR), where sigma is the standard deviation of r + gamma V(s') pooled over all pairs: the fewer samples, the
    larger the penalty.
    """
    model, n = data.model, data.pair_counts
    weight = data.beta * (n > 0)
    weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-12)
    prior_transitions = weight[..., None, :] @ model.transitions  # [W, D, S, 1, S]
    prior_rewards = (weight * model.rewards).sum(-1, keepdims=True)
    share = PRIOR / (n + PRIOR)
    transitions = (1 - share)[..., None] * model.transitions + share[..., None] * prior_transitions
    penalty = pooled_std(data)[..., None, None] * share / (n + PRIOR)
    rewards = (1 - share) * model.rewards + share * prior_rewards - penalty
    return MDP(transitions, rewards, model.start, model.discount)


def pooled_std(data: LogStatistics) -> Floats:
    """Standard deviation `[W, D]` of r + gamma V^beta(s') around the mean of each pair, pooled over all pairs."""
    v = values(data.model, data.beta)
    targets = data.task.arrival + data.model.discount * np.concatenate([v, np.zeros_like(v[..., :1])], -1)
    total = data.counts @ targets[..., None, :, None]
    squares = data.counts @ (targets**2)[..., None, :, None]
    n = data.pair_counts
    within = squares[..., 0] - total[..., 0] ** 2 / np.maximum(n, 1)
    freedom = np.maximum(n - 1, 0).sum((-2, -1))
    return np.sqrt(np.maximum(within.sum((-2, -1)), 0) / np.maximum(freedom, 1))


def constrained_policy_iteration(mdp: MDP, beta: Floats, c_min: Floats, c_max: Floats) -> Floats:
    """Policy iteration constrained to the reroute set c_min <= pi/beta <= c_max, all `[W, D, S, A]`."""
    _, _, S, A = beta.shape
    base, low, high = (x.reshape(-1, S, A) for x in (beta, c_min, c_max))
    return policy_iteration(mdp, beta, lambda q, _, at: max_reroute(base[at], q, low[at], high[at], check=False))


def policy_iteration(mdp: MDP, beta: Floats, improve: Improve) -> Floats:
    """Evaluate and improve from the baseline until Q converges, for all datasets together, each as long as it needs."""
    *_, S, A = beta.shape
    transitions, rewards = mdp.transitions.reshape(-1, S, A, S), mdp.rewards.reshape(-1, S, A)
    pi = beta.reshape(-1, S, A).copy()
    active, before = np.arange(len(pi)), np.full(rewards.shape, np.inf)
    for _ in range(MAX_ITERATIONS):
        part = transitions if active.size == len(pi) else transitions[active]
        q = evaluate(part, rewards[active], mdp.discount, pi[active])
        changed = abs(q - before).max((1, 2)) > TOLERANCE
        active, before = active[changed], q[changed]
        if not active.size:
            break
        pi[active] = improve(before, pi[active], active)
    return pi.reshape(beta.shape)


def evaluate(transitions: Floats, rewards: Floats, discount: float, pi: Floats) -> Floats:
    """Q^pi `[M, S, A]`: `q_values` without the checks of an MDP, for the inner loop."""
    M, S, A = rewards.shape
    bellman = np.eye(S) - discount * (pi[:, :, None, :] @ transitions)[:, :, 0]
    v = np.linalg.solve(bellman, (pi * rewards).sum(-1)[..., None])
    return rewards + discount * (transitions.reshape(M, S * A, S) @ v).reshape(M, S, A)


def free_where(known: np.ndarray, beta: Floats) -> Floats:
    """c_max that lets known actions take all probability and limits all others to beta."""
    return np.where(known & (beta > 0), 1 / np.where(beta > 0, beta, 1.0), 1.0)


def pick(x: Floats, index: np.ndarray) -> Floats:
    """x[..., index] with one index per row."""
    return np.take_along_axis(x, index[..., None], -1)[..., 0]


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
    train = LogStatistics(data.task, segments.first(n))
    best = basic_rl(train)
    test_size = trajectories - n
    if test_size < 2:
        return data.beta
    candidates = [(1 - w) * data.beta + w * best for w in MIXTURES]
    expected = np.stack([student_lower_bound(gains(train, pi, train.logs), delta, test_size) for pi in candidates])
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
