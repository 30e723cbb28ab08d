"""Algorithms for safe policy improvement from logged data: policy iteration in reroute sets (SPIBB, RBI, count-aware).

Most of them are policy iteration in an estimated MDP, constrained to a reroute set of the baseline: c_min <= pi/beta <=
c_max. Basic RL has no constraint, SPIBB frees pairs with many samples, the paper's reroute has the same bounds for all
pairs, and count-aware reroute has bounds that depend on counts and maximises a lower bound of the gain. Every algorithm
takes `LogStatistics` and returns policies `[W, D, S, A]`, for many datasets at once. Published algorithms of other
kinds are in `peers`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rbi.lab.mdp import MDP, Floats, bellman_matrix, lookahead, q_values, values
from rbi.lab.spi.worlds import Logs, Task, count_transitions, estimate_model, every_visit_monte_carlo
from rbi.rules.counts import count_bounds
from rbi.rules.linear import greedy, max_reroute

MAX_ITERATIONS = 100
PRIOR = 10.0  # pseudo-samples of the shrunken model, and the most of the learned prior (docs/count-aware.md)
MIN_SAMPLES = 0.5  # of the learned prior
PRIOR_POWER = 4  # the learned advantages have the weight (samples/(n + samples))^4
PRIOR_FREEDOM = 5.0  # pseudo-samples of the pooled variance in each state's
BAD_SHARE = 0.05  # of the prior's samples: they end as badly as any try in their state
GATE_TRIES = 2  # fewer tries open no bound
GATE_DEVIATIONS = 0.3  # by which an action must be better to have no bound
FRANK_WOLFE_ROUNDS, STEP_BISECTIONS = 8, 20
SMOOTHING = 0.05  # of the deviation that is minimised, as a share of the baseline's own
MIN_PROBABILITY = 1e-6  # in logarithms
TINY = 1e-12
TOLERANCE = 1e-9  # of Q-values: policy iteration has converged

Improve = Callable[[Floats, Floats, np.ndarray], Floats]  # Q-values, the policy, which datasets -> a new policy


@dataclass(frozen=True)
class LogStatistics:
    """What an algorithm knows: the baseline, the logs, and the maximum-likelihood model."""

    task: Task
    logs: Logs
    known_beta: Floats | None = None
    """The baseline `[W, D, S, A]` if it is not the task's: an estimate from the logs."""

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
    def monte_carlo(self) -> Floats:
        """Every-visit Monte-Carlo Q of the baseline `[W, D, S, A]`; 0 for untried pairs."""
        return every_visit_monte_carlo(self.task, self.logs)

    @cached_property
    def v_beta(self) -> Floats:
        """The baseline's values in the estimated MDP, `[W, D, S]`."""
        return values(self.model, self.beta)

    @cached_property
    def pooled_std(self) -> Floats:
        """Standard deviation `[W, D]` of r + gamma V^beta(s') around the mean of each pair, pooled over all pairs."""
        n = self.pair_counts
        mean, square = target_moments(self, self.v_beta)
        within = n * (square - mean**2)
        freedom = np.maximum(n - 1, 0).sum((-2, -1))
        return np.sqrt(np.maximum(within.sum((-2, -1)), 0) / np.maximum(freedom, 1))

    @cached_property
    def beta(self) -> Floats:
        """The baseline of each dataset, `[W, D, S, A]`."""
        return np.broadcast_to(self.task.beta if self.known_beta is None else self.known_beta, self.pair_counts.shape)


@dataclass(frozen=True)
class AdvantagePrior:
    """The baseline's advantages as its own probabilities predict them: A ~ N(mean, variance / samples) per pair.

    `mean` `[W, D, S, A]` is T (log beta - its average in the state): a softmax policy with temperature T has exactly
    these advantages. `variance` `[W, D, S, 1]` is that of one try's r + gamma V(s') around the mean of its pair.
    `samples` `[W, D, 1, 1]` says what the prediction is worth, in tries of a pair.
    """

    mean: Floats
    variance: Floats
    samples: Floats


def with_estimated_baseline(data: LogStatistics) -> LogStatistics:
    """The same logs with relative frequencies in place of the true baseline; uniform in states without samples."""
    n = data.pair_counts
    visits = n.sum(-1, keepdims=True)
    estimate = np.where(visits > 0, n / np.maximum(visits, 1), 1 / n.shape[-1])
    return replace(data, known_beta=estimate)


def baseline(data: LogStatistics) -> Floats:
    """The behaviour policy of the logs."""
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


def rbi_monte_carlo(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """The paper's step: Max-Reroute with Monte-Carlo Q-values of the baseline."""
    return max_reroute(data.beta, data.monte_carlo, c_min, c_max, check=False)


def rbi_model(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """The paper's step with the baseline's Q-values in the estimated MDP."""
    return max_reroute(data.beta, lookahead(data.model, data.v_beta), c_min, c_max, check=False)


def rbi_iterated(data: LogStatistics, c_min: float, c_max: float) -> Floats:
    """Policy iteration constrained to the reroute set of the baseline."""
    shape = data.beta.shape
    return constrained_policy_iteration(data.model, data.beta, np.full(shape, c_min), np.full(shape, c_max))


def count_aware(data: LogStatistics, tau: float, z: float) -> Floats:
    """Count-aware reroute: the policy whose gain over the baseline has the largest lower bound, z deviations wide.

        max_pi  J(pi) - J(beta) - z sd[J(pi) - J(beta)]
        0 <= pi <= max(2 beta, beta + tau sqrt(n_eff)),    pi <= beta  where an action was never tried
        no upper bound  where Q^beta - risk - 0.3 sd > V^beta: better than the baseline beyond its uncertainty

    Values and deviations are those of a model with the learned prior and imagined bad tries; risk is what Q^beta loses
    by one more try that ends as badly as any try in its state. Derivation, assumptions: docs/count-aware.md.
    """
    prior = learned_prior(data)
    mdp = with_bad_tries(data, with_prior(data, prior), prior)
    q = q_values(mdp, data.beta)
    variance = posterior_variance(data, prior, (data.beta * q).sum(-1))
    _, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    free = free_where(clearly_better(data, prior, q, variance), data.beta)
    return largest_lower_bound(mdp, data.beta, variance, z, np.maximum(c_max, free))


def clearly_better(data: LogStatistics, prior: AdvantagePrior, q: Floats, variance: Floats) -> np.ndarray:
    """The significance gate `[W, D, S, A]`: where an action is better than the baseline beyond its uncertainty."""
    n, v = data.pair_counts, (data.beta * q).sum(-1, keepdims=True)
    risk = np.maximum(q - worst_targets(data, v[..., 0])[..., None], 0) / (n + prior.samples + 1)
    better: np.ndarray = (n >= GATE_TRIES) & (q - risk - GATE_DEVIATIONS * np.sqrt(variance) > v)
    return better


def largest_lower_bound(mdp: MDP, beta: Floats, variance: Floats, z: float, c_max: Floats) -> Floats:
    """The policy `[W, D, S, A]` with pi <= c_max beta that maximises <d - d_beta, r> - z sd(d) over occupancies d.

        sd(d)^2 = sum_{s,a} (d - d_beta)^2 variance + SMOOTHING^2 sum_{s,a} d_beta^2 variance

    d = rho^pi pi. The objective is concave, and policies inside bounds are a convex set of occupancies: Frank-Wolfe.
    Each round solves the MDP with the gradient r - z (d - d_beta) variance / sd as its rewards, and moves d towards
    the solution as far as the objective rises.
    """
    baseline_d = occupancy(mdp, beta)
    smooth = SMOOTHING**2 * total(variance * baseline_d**2) + TINY**2
    d, pi = baseline_d, beta
    for _ in range(FRANK_WOLFE_ROUNDS):
        moved = d - baseline_d
        sd = np.sqrt(total(variance * moved**2) + smooth)
        rewards = mdp.rewards - z * variance * moved / sd
        linear = MDP(mdp.transitions, rewards, mdp.start, mdp.discount)
        pi = constrained_policy_iteration(linear, beta, np.zeros_like(c_max), c_max, start=pi)
        step = occupancy(mdp, pi) - d
        rise = total(mdp.rewards * step)
        a, b, c = sd**2, total(variance * moved * step), total(variance * step**2)  # of sd^2 = a + 2 b t + c t^2
        low, high = np.zeros_like(rise), np.ones_like(rise)
        for _ in range(STEP_BISECTIONS):
            t = (low + high) / 2
            rising = rise > z * (b + c * t) / np.sqrt(np.maximum(a + 2 * b * t + c * t**2, TINY**2))
            low, high = np.where(rising, t, low), np.where(rising, high, t)
        d = d + high * step
    visits = d.sum(-1, keepdims=True)
    return np.where(visits > TINY, d / np.maximum(visits, TINY), beta)


def occupancy(mdp: MDP, pi: Floats) -> Floats:
    """Discounted visits `[..., S, A]` of every pair from the start states, not normalised."""
    start = np.broadcast_to(mdp.start, pi.shape[:-1])[..., None]
    visits: Floats = np.linalg.solve(np.swapaxes(bellman_matrix(mdp, pi), -1, -2), start)
    return visits * pi


def count_aware_draining(data: LogStatistics, tau: float) -> Floats:
    """`count_aware` without the learned prior, and with the bounds of counts only."""
    _, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    return constrained_policy_iteration(shrunken_model(data), data.beta, np.zeros_like(c_max), c_max)


def count_aware_pinned(data: LogStatistics, tau: float) -> Floats:
    """`count_aware_draining` in which a never-tried action keeps exactly its probability."""
    c_min, c_max = count_bounds(data.beta, data.pair_counts, tau, check=False)
    return constrained_policy_iteration(shrunken_model(data), data.beta, c_min, c_max)


def learned_prior(data: LogStatistics) -> AdvantagePrior:
    """Temperature and precision of the prior from the data: least squares, and the method of moments.

        T = sum m x a / sum m x^2,    1/samples = sum m ((a - T x)^2 - noise) / sum M

    a: advantages of the tried pairs, measured by one-step targets r + gamma V^beta(s'); x: centred log beta; M = min(n,
    PRIOR), m = M / variance of one try in the state. T is never negative, and the prior is never worth more than PRIOR
    tries.
    """
    n, beta = data.pair_counts, data.beta
    v = values(shrunken_model(data), beta)
    target, _ = target_moments(data, v)
    variance = state_variance(data, v)
    tried = tried_shares(data)
    log_beta = np.log(np.maximum(beta, MIN_PROBABILITY))
    seen = n.sum(-1, keepdims=True) > 0
    x = np.where(seen, log_beta - (tried * log_beta).sum(-1, keepdims=True), 0.0)
    a = target - (tried * target).sum(-1, keepdims=True)
    most = np.minimum(n, PRIOR)
    m = most / variance
    temperature = np.maximum(total(m * x * a) / np.maximum(total(m * x**2), TINY), 0.0)
    noise = variance * centred_variance(1 / np.maximum(n, 1), tried)
    spread = total(m * ((a - temperature * x) ** 2 - noise))
    spread = np.maximum(spread / np.maximum(total(most * centred_variance(np.ones(n.shape), tried)), TINY), TINY)
    return AdvantagePrior(temperature * x, variance, np.clip(1 / spread, MIN_SAMPLES, PRIOR))


def state_variance(data: LogStatistics, v: Floats) -> Floats:
    """Variance `[W, D, S, 1]` of r + gamma V(s') around the mean of each pair, pooled over the actions of a state.

    PRIOR_FREEDOM pseudo-samples have the variance that is pooled over all states.
    """
    n = data.pair_counts
    mean, square = target_moments(data, v)
    within = np.maximum(n * (square - mean**2), 0.0).sum(-1, keepdims=True)
    freedom = np.maximum(n - 1, 0).sum(-1, keepdims=True)
    pooled = total(within) / np.maximum(total(freedom), 1)
    return np.maximum((within + PRIOR_FREEDOM * pooled) / (freedom + PRIOR_FREEDOM), TINY)


def with_prior(data: LogStatistics, prior: AdvantagePrior) -> MDP:
    """The model shrunken by what the prior is worth; its rewards contain the prior's advantages, falling like 1/n^4."""
    model = shrunken_model(data, prior.samples, np.sqrt(prior.variance))
    weight = (prior.samples / (data.pair_counts + prior.samples)) ** PRIOR_POWER
    return MDP(model.transitions, model.rewards + weight * prior.mean, model.start, model.discount)


def with_bad_tries(data: LogStatistics, mdp: MDP, prior: AdvantagePrior) -> MDP:
    """The MDP as if BAD_SHARE of the prior's samples of each pair had ended with the worst outcome of its state."""
    v = values(mdp, data.beta)
    loss = np.maximum(lookahead(mdp, v) - worst_targets(data, v)[..., None], 0.0)
    share = prior.samples / (data.pair_counts + prior.samples)
    return MDP(mdp.transitions, mdp.rewards - BAD_SHARE * share * loss, mdp.start, mdp.discount)


def posterior_variance(data: LogStatistics, prior: AdvantagePrior, v: Floats) -> Floats:
    """Variance `[W, D, S, A]` of the mean of r + gamma V(s') after a pair's own tries and the prior's.

    The variance of one try is shrunken towards its state's: few tries alone would often have none.
    """
    n = data.pair_counts
    mean, square = target_moments(data, v)
    one = (n * np.maximum(square - mean**2, 0.0) + PRIOR * state_variance(data, v)) / (n + PRIOR)
    return one / (n + prior.samples)


def target_moments(data: LogStatistics, v: Floats) -> tuple[Floats, Floats]:
    """Means of r + gamma V(s') and of its square over the samples of each pair, `[W, D, S, A]`; 0 for untried pairs."""
    targets = arrival_targets(data, v)
    n = np.maximum(data.pair_counts, 1)
    mean, square = ((data.counts @ x[..., None, :, None])[..., 0] / n for x in (targets, targets**2))
    return mean, square


def worst_targets(data: LogStatistics, v: Floats) -> Floats:
    """The least r + gamma V(s') that any action of a state led to, `[W, D, S]`; V itself in states without samples."""
    reached = data.counts.sum(-2) > 0
    worst: Floats = np.where(reached, arrival_targets(data, v)[..., None, :], np.inf).min(-1)
    return np.where(reached.any(-1), worst, v)


def arrival_targets(data: LogStatistics, v: Floats) -> Floats:
    """r + gamma V(s') of arriving in each state, and of termination, `[W, D, S + 1]`."""
    targets: Floats = data.task.arrival + data.model.discount * np.concatenate([v, np.zeros_like(v[..., :1])], -1)
    return targets


def tried_shares(data: LogStatistics) -> Floats:
    """The baseline's probabilities among the tried actions of each state."""
    weight = data.beta * (data.pair_counts > 0)
    shares: Floats = weight / np.maximum(weight.sum(-1, keepdims=True), TINY)
    return shares


def centred_variance(variance: Floats, weight: Floats) -> Floats:
    """Variance of u_a - sum_b w_b u_b for independent u with these variances."""
    return (1 - 2 * weight) * variance + (weight**2 * variance).sum(-1, keepdims=True)


def total(x: Floats) -> Floats:
    """Sum over all pairs, `[W, D, 1, 1]`."""
    return x.sum((-2, -1), keepdims=True)


def shrunken_model(data: LogStatistics, samples: Floats | float = PRIOR, std: Floats | None = None) -> MDP:
    """The estimated MDP with pseudo-samples of every pair that follow the baseline's transitions in that state.

    An untried pair then has its state's value instead of 0. Rewards are reduced by their share times std / (n +
    samples): the fewer samples, the larger the penalty. `std` is the standard deviation of r + gamma V(s'), by default
    pooled over all pairs.
    """
    model, n = data.model, data.pair_counts
    weight = tried_shares(data)
    prior_transitions = weight[..., None, :] @ model.transitions  # [W, D, S, 1, S]
    prior_rewards = (weight * model.rewards).sum(-1, keepdims=True)
    share = samples / (n + samples)
    transitions = (1 - share)[..., None] * model.transitions + share[..., None] * prior_transitions
    penalty = (data.pooled_std[..., None, None] if std is None else std) * share / (n + samples)
    rewards = (1 - share) * model.rewards + share * prior_rewards - penalty
    return MDP(transitions, rewards, model.start, model.discount)


def loss_bound(data: LogStatistics, pi: Floats, delta: float) -> Floats:
    """Upper bound `[W, D]` on J(beta) - J(pi) that holds with probability 1 - delta, for any pi made from the logs.

        J(pi) - J(beta) = sum_s rho^pi(s) sum_a (pi - beta)(a|s) Q^beta(s, a)        (paper: Lemma, without errors)

    Returns after the first visit of a pair are independent and have the mean Q^beta, so Hoeffding's inequality bounds
    every Q^beta from both sides, with delta / (2 S A) each. Mass that pi adds counts with the lower bound and mass that
    it removes with the upper bound; at most 1/(1 - gamma) discounted visits happen in the worst state. It assumes a
    known beta, independent trajectories and bounded rewards, nothing about the world. 0 certifies that pi is not worse.
    """
    if data.logs.by_steps:
        raise ValueError("loss_bound: takes independent trajectories, not the steps of one")
    low, high = first_visit_bounds(data, delta)
    gain = (np.maximum(pi - data.beta, 0) * low - np.maximum(data.beta - pi, 0) * high).sum(-1)
    smallest, largest = value_range(data.task)
    bound: Floats = np.maximum(-gain.min(-1), 0.0) / (1 - data.task.mdp.discount)
    return np.minimum(bound, largest - smallest)


def first_visit_bounds(data: LogStatistics, delta: float) -> tuple[Floats, Floats]:
    """Lower and upper bounds of Q^beta `[W, D, S, A]`, all true with probability 1 - delta."""
    T, W, D, N = data.logs.steps.shape
    S, A = data.logs.states, data.logs.actions
    happened, reached = data.logs.steps >= 0, data.logs.steps % (S + 1)
    smallest, largest = value_range(data.task)
    returns = np.empty((2, T, W, D, N))  # with the least and the largest value after the last step
    following = np.array([smallest, largest])[:, None, None, None] * np.ones((W, D, N))
    for t in reversed(range(T)):
        after = np.where(reached[t] == S, 0.0, following)
        following = np.where(happened[t], data.task.arrival[reached[t]] + data.task.mdp.discount * after, following)
        returns[:, t] = following
    pair = data.logs.pairs + S * A * np.arange(W * D * N).reshape(W, D, N)
    _, first = np.unique(np.where(happened, pair, -1), return_index=True)
    first = first[happened.reshape(-1)[first]]
    where = (data.logs.pairs + S * A * np.arange(W * D).reshape(W, D, 1)).reshape(-1)[first]
    n = np.bincount(where, minlength=W * D * S * A)
    radius = (largest - smallest) * np.sqrt(np.log(2 * S * A / delta) / (2 * np.maximum(n, 1)))
    sums = (np.bincount(where, side.reshape(-1)[first], n.size) for side in returns)
    low, high = (total / np.maximum(n, 1) + sign * radius for total, sign in zip(sums, (-1, 1), strict=True))
    low, high = (
        np.where(n > 0, np.maximum(low, smallest), smallest),
        np.where(n > 0, np.minimum(high, largest), largest),
    )
    return low.reshape(data.beta.shape), high.reshape(data.beta.shape)


def value_range(task: Task) -> tuple[float, float]:
    """The least and the largest possible return: for ever the same reward, or termination at once."""
    *rewards, termination = task.arrival
    for_ever = np.array(rewards) / (1 - task.mdp.discount)
    if task.continuing:
        return float(for_ever.min()), float(for_ever.max())
    return min(float(for_ever.min()), termination, 0.0), max(float(for_ever.max()), termination, 0.0)


def constrained_policy_iteration(
    mdp: MDP, beta: Floats, c_min: Floats, c_max: Floats, start: Floats | None = None
) -> Floats:
    """Policy iteration constrained to the reroute set c_min <= pi/beta <= c_max, all `[W, D, S, A]`."""
    _, _, S, A = beta.shape
    base, low, high = (x.reshape(-1, S, A) for x in (beta, c_min, c_max))
    first = beta if start is None else start
    return policy_iteration(mdp, first, lambda q, _, at: max_reroute(base[at], q, low[at], high[at], check=False))


def policy_iteration(mdp: MDP, first: Floats, improve: Improve) -> Floats:
    """Evaluate and improve a first policy until Q converges, for all datasets together, each as long as it needs."""
    *_, S, A = first.shape
    transitions, rewards = mdp.transitions.reshape(-1, S, A, S), mdp.rewards.reshape(-1, S, A)
    pi = first.reshape(-1, S, A).copy()
    active, before = np.arange(len(pi)), np.full(rewards.shape, np.inf)
    for _ in range(MAX_ITERATIONS):
        part = transitions if active.size == len(pi) else transitions[active]
        q = evaluate(part, rewards[active], mdp.discount, pi[active])
        changed = abs(q - before).max((1, 2)) > TOLERANCE
        active, before = active[changed], q[changed]
        if not active.size:
            break
        better = improve(before, pi[active], active)
        changed = (better != pi[active]).any((1, 2))  # the same policy has the same Q
        active, before = active[changed], before[changed]
        pi[active] = better[changed]
    return pi.reshape(first.shape)


def evaluate(transitions: Floats, rewards: Floats, discount: float, pi: Floats) -> Floats:
    """Q^pi `[M, S, A]`: `q_values` without the checks of an MDP, for the inner loop."""
    M, S, A = rewards.shape
    bellman = np.eye(S) - discount * (pi[:, :, None, :] @ transitions)[:, :, 0]
    v = np.linalg.solve(bellman, (pi * rewards).sum(-1)[..., None])
    return rewards + discount * (transitions.reshape(M, S * A, S) @ v).reshape(M, S, A)


def free_where(known: np.ndarray, beta: Floats) -> Floats:
    """c_max that lets known actions take all probability and limits all others to beta."""
    return np.where(known & (beta > 0), 1 / np.where(beta > 0, beta, 1.0), 1.0)
