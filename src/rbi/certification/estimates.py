"""Off-policy estimates of the gain D = V(pi) - V(beta) from logged episodes, one term per episode.

    rho_t = pi(a_t | s_t) / p(a_t | s_t)         W_t = rho_0 ... rho_t         G = sum_t gamma^t r_t

    importance sampling      D_i = (W_T - 1) (G - low)                        (Precup, Sutton and Singh, 2000)
    per decision             D_i = sum_t gamma^t (W_t - 1) r_t                (the same)
    doubly robust            D_i = DR_pi - DR_beta,  DR^t = V(s_t) + rho_t (r_t + gamma DR^{t+1} - Q(s_t, a_t))
                                                                              (Jiang and Li, 2016, equation 10)
    weighted                 sum_i W_i G_i / sum_i W_i - mean G
    fitted Q                 mean_i sum_a pi(a | s_0) Q_pi(s_0, a) - mean G   (Le, Voloshin and Yue, 2019)

The mean of the first three is unbiased if p is the probability with which a_t was drawn. `low` is a lower limit of G:
E[W_T] = 1, so it changes nothing but the range. Terms are at least -(high - low) whatever the weights, since W >= 0.

Where players are the unit, a term is the mean over a player's episodes and keeps the limits of an episode's. Weights
are normalised over all players, sum_u mean_u(W G) / sum_u mean_u(W), mean_u over the episodes of player u: normalised
within a player, they would be biased, since one may have few episodes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rbi.data.dataset import concat_ranges
from rbi.data.episode import Array

Estimator = Literal["importance_sampling", "per_decision", "doubly_robust"]
MAX_FITTED_SIZE = 1000  # weights of fitted Q evaluation
FITTED_NUMBERS = 1 << 24  # of one block of rows
BLOCK_NUMBERS = 1 << 20  # of one block of rows `[rows, A]`, so that many actions take no more memory than few
RIDGE = 1e-7


@dataclass(frozen=True)
class LoggedSteps:
    """Steps of held-out episodes, one after the other, with what was logged or estimated about beta.

    `beta` `[S, A]` holds the probabilities of all actions; None if only those of the taken actions are known. `q`
    `[S, A]` must not depend on these episodes.
    """

    steps: Array
    """`[E]`: the length of each episode."""
    actions: Array
    """`[S]`"""
    rewards: Array
    """`[S]`"""
    action_probs: Array
    """`[S]`: p(a_t | s_t), logged or estimated."""
    q: Array
    beta: Array | None = None
    gamma: float = 1.0
    units: Array | None = None
    """`[E]`: the player of each episode, from 0, where players are the unit; None: each episode is a unit."""

    @property
    def first(self) -> Array:
        """`[E]`: the first step of each episode."""
        return np.cumsum(self.steps) - self.steps

    @property
    def horizon(self) -> int:
        """The length of the longest episode."""
        return int(self.steps.max())

    def taken(self, values: Array) -> Array:
        """`[S]`: the entries of the taken actions in `[S, A]`."""
        return values[np.arange(len(self.actions)), self.actions].astype(np.float64)

    def over_time(self) -> Iterator[tuple[Array, Array]]:
        """For t = 0, 1, ...: the episodes that have a step t, longest episodes first, and the indices of that step.

        Vectorised over episodes: the number of iterations is the horizon.
        """
        order = np.argsort(-self.steps, kind="stable")
        active = np.searchsorted(-self.steps[order], -np.arange(self.horizon), side="left")
        first = self.first
        for t, count in enumerate(active.tolist()):
            episodes = order[:count]
            yield episodes, first[episodes] + t

    def discounts(self) -> Array:
        """`[S]`: gamma^t."""
        return self.gamma ** concat_ranges(0, self.steps)

    def per_episode(self, values: Array) -> Array:
        """`[E]`: sums of `[S]` values over the steps of each episode."""
        return np.add.reduceat(values, self.first)

    def returns(self) -> Array:
        """`[E]`: G_i."""
        return self.per_episode(self.discounts() * self.rewards)

    @property
    def num_units(self) -> int:
        return len(self.steps) if self.units is None else int(self.units.max()) + 1

    def per_unit(self, values: Array) -> Array:
        """`[U]`: means of `[E]` values over the episodes of each unit, each of which counts once."""
        return values if self.units is None else unit_means(values, self.units)


def unit_means(values: Array, units: Array) -> Array:
    """Means `[U]` of values `[E]` over the episodes of each unit.

    >>> unit_means(np.array([1.0, 0.0, 5.0]), np.array([0, 0, 1]))
    array([0.5, 5. ])
    """
    found: Array = np.bincount(units, values) / np.bincount(units)
    return found


class Ratios(NamedTuple):
    """Limits of pi / p that hold before any action is seen, such as reroute's with a known beta."""

    low: float = 0.0
    high: float = math.inf


class Terms(NamedTuple):
    """The terms `[E]` or `[U]` of an estimate of D, and limits that they cannot pass if the stated ranges are right."""

    values: Array
    floor: float
    ceiling: float
    spread: float
    """A guess of their standard deviation that no outcome has influenced."""


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of consecutive rows of `width` numbers, at most `BLOCK_NUMBERS` in each.

    >>> list(row_blocks(5, BLOCK_NUMBERS // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = max(1, BLOCK_NUMBERS // width)
    return (slice(first, min(first + size, rows)) for first in range(0, rows, size))


def expected_q(probs: Array, q: Array, low: float, high: float) -> Array:
    """sum_a p(a) Q(a) `[S]` of probabilities `[S, A]`, with Q clipped to [low, high]."""
    found = np.empty(len(q))
    for rows in row_blocks(*q.shape):
        found[rows] = (probs[rows] * np.clip(q[rows].astype(np.float64), low, high)).sum(1)
    return found


def ratios(logged: LoggedSteps, pi_taken: Array) -> Array:
    """rho `[S]`: pi(a) / p(a) of the taken actions."""
    return pi_taken / logged.action_probs


def cumulative_weights(logged: LoggedSteps, rho: Array) -> Array:
    """W_t `[S]`: products of rho from the start of the episode.

    >>> steps = LoggedSteps(np.array([2, 1]), np.zeros(3, int), np.zeros(3), np.ones(3), np.zeros((3, 1)))
    >>> cumulative_weights(steps, np.array([2.0, 3.0, 0.5]))
    array([2. , 6. , 0.5])
    """
    weights, product = np.empty(len(rho)), np.ones(len(logged.steps))
    with np.errstate(over="ignore", under="ignore"):
        for episodes, at in logged.over_time():
            product[episodes] *= rho[at]
            weights[at] = product[episodes]
    return weights


def episode_weights(logged: LoggedSteps, weights: Array) -> Array:
    """W_T `[E]`: the weight of each whole episode."""
    return weights[logged.first + logged.steps - 1]


def importance_sampling(logged: LoggedSteps, weights: Array, low: float, high: float) -> Terms:
    """(W_T - 1) (G - low): at least -(high - low), and not limited above."""
    whole = episode_weights(logged, weights)
    return Terms((whole - 1) * (logged.returns() - low), low - high, math.inf, (high - low) / 2)


def per_decision(logged: LoggedSteps, weights: Array, high: float) -> Terms:
    """sum_t gamma^t (W_t - 1) r_t, for rewards that are never negative: at least -G >= -high."""
    if (logged.rewards < 0).any():
        raise ValueError("per_decision: rewards must not be negative")
    values = logged.per_episode(logged.discounts() * (weights - 1) * logged.rewards)
    return Terms(values, -high, math.inf, high / 2)


def doubly_robust(logged: LoggedSteps, v_pi: Array, rho: Array, low: float, high: float, limits: Ratios) -> Terms:
    """DR_pi - DR_beta with Q clipped to [low, high]; without beta `[S, A]`, G takes the place of DR_beta.

    `v_pi` `[S]` is sum_a pi(a) Q(a) with that Q (`expected_q`). With a horizon of 1 and a known beta the term is
    sum_a (pi - beta) Q + (rho - 1) (r - Q(a)). With `limits` on rho it is limited on both sides.
    """
    q_taken = np.clip(logged.taken(logged.q), low, high)
    of_pi = doubly_robust_values(logged, v_pi, q_taken, rho)
    if logged.beta is None:
        of_beta, beta_limits = logged.returns(), (low, high)
    else:
        v_beta = expected_q(logged.beta, logged.q, low, high)
        of_beta = doubly_robust_values(logged, v_beta, q_taken, np.ones(len(rho)))
        beta_limits = doubly_robust_limits(logged, low, high, Ratios(1.0, 1.0))
    if logged.horizon == 1 and logged.beta is not None:
        widest = max(1 - limits.low, limits.high - 1)
        moved = reroute_total_variation(limits)
        reach = (widest + moved) * (high - low)
        floor, ceiling = -reach, reach
    else:
        pi_limits = doubly_robust_limits(logged, low, high, limits)
        floor, ceiling = pi_limits[0] - beta_limits[1], pi_limits[1] - beta_limits[0]
    guess = min(1.0, limits.high - 1, max(1 - limits.low, limits.high - 1)) / 2 * (high - low)
    return Terms(of_pi - of_beta, floor, ceiling, guess or (high - low) / 4)


def doubly_robust_values(logged: LoggedSteps, v: Array, q_taken: Array, rho: Array) -> Array:
    """DR^0 `[E]` by the recursion from the last step to the first."""
    found = np.zeros(len(logged.steps))
    for episodes, at in reversed(list(logged.over_time())):
        found[episodes] = v[at] + rho[at] * (logged.rewards[at] + logged.gamma * found[episodes] - q_taken[at])
    return found


def doubly_robust_limits(logged: LoggedSteps, low: float, high: float, limits: Ratios) -> tuple[float, float]:
    """Limits of DR^0 by the same recursion, for rewards, V and Q in [low, high].

    One of several rewards may also be less than the least return, down to 0.
    """
    least = most = 0.0
    reward = low if logged.horizon == 1 else min(low, 0.0)
    for _ in range(logged.horizon if math.isfinite(limits.high) else 0):
        worst, best = reward + logged.gamma * least - high, high + logged.gamma * most - low
        least = min(least, low + min(limits.low * worst, limits.high * worst))
        most = max(most, high + max(limits.low * best, limits.high * best))
    return (least, most) if math.isfinite(limits.high) else (-math.inf, math.inf)


def reroute_total_variation(limits: Ratios) -> float:
    """The largest total variation between pi and beta with low <= pi / beta <= high.

    >>> reroute_total_variation(Ratios(0.5, 1.5))
    0.25
    """
    down, up = 1 - limits.low, limits.high - 1
    return down if math.isinf(up) else down * up / (down + up) if down + up > 0 else 0.0


# Estimates without terms, for comparison


def weighted_importance_sampling(logged: LoggedSteps, weights: Array) -> tuple[float, float]:
    """D and its standard error (delta method) by weights that are normalised to sum 1."""
    whole, of_episodes = episode_weights(logged, weights), logged.returns()
    weight, weighted, returns = (logged.per_unit(x) for x in (whole, whole * of_episodes, of_episodes))
    total = weight.sum()
    if total <= 0:
        return math.nan, math.inf
    value = float(weighted.sum() / total)
    influence = (weighted - value * weight) / weight.mean() - (returns - returns.mean())
    return value - float(returns.mean()), float(influence.std() / math.sqrt(len(returns)))


def fitted_q_evaluation(logged: LoggedSteps, pi: Array, features: Array) -> float:
    """D by the fixed point of fitted Q evaluation with linear Q, by action, of features `[S, F]`, time and a constant.

        sum_t phi_t (phi_t - gamma E_pi[phi_{t+1}])^T w = sum_t phi_t r_t      (LSTD-Q: Lagoudakis and Parr, 2003)

    It needs no weights and is biased where the features cannot express Q; its data are the same episodes, so it is a
    second opinion, never a bound.
    """
    t = concat_ranges(0, logged.steps)[:, None]
    x = np.concatenate([features, t, np.ones((len(features), 1))], 1).astype(np.float64)
    x[:, :-1] = (x[:, :-1] - x[:, :-1].mean(0)) / np.maximum(x[:, :-1].std(0), 1e-6)
    A, size = pi.shape[1], x.shape[1]
    last = np.zeros(len(x), bool)
    last[logged.first + logged.steps - 1] = True
    matrix, target = np.zeros((A, size, A * size)), np.zeros((A, size))
    for a in range(A):
        for rows in np.array_split(np.flatnonzero(logged.actions == a), 1 + len(x) * A * size // FITTED_NUMBERS):
            now, then = x[rows], np.where(last[rows], 0, rows + 1)
            later = (pi[then] * ~last[rows, None])[:, :, None] * x[then][:, None]  # [rows, A, size]
            matrix[a] -= logged.gamma * now.T @ later.reshape(len(rows), A * size)
            matrix[a, :, a * size : (a + 1) * size] += now.T @ now
            target[a] += now.T @ logged.rewards[rows]
    square = matrix.reshape(A * size, A * size) + RIDGE * len(x) * np.eye(A * size)
    w = np.linalg.solve(square, target.reshape(-1)).reshape(A, size)
    values = (pi[logged.first] * (x[logged.first] @ w.T)).sum(1)
    return float(logged.per_unit(values - logged.returns()).mean())


# Diagnostics


def effective_sample_size(weights: Array) -> float:
    """(sum W)^2 / sum W^2: how many equally weighted episodes (or players) say as much      (Kong, 1992).

    >>> effective_sample_size(np.array([1.0, 1.0, 0.0, 0.0]))
    2.0
    """
    top = weights.max()
    scaled = weights / top if top > 0 else weights
    squares = float(np.square(scaled).sum())
    return float(scaled.sum()) ** 2 / squares if squares else 0.0


def weight_diagnostics(logged: LoggedSteps, rho: Array, weights: Array) -> dict[str, float]:
    """Effective sample size and size of the weights, and the horizon from which they decide nothing.

    Per step E[W^2] grows by E[rho^2]; from `max_useful_horizon` on, the effective sample size is below 100.
    """
    whole = episode_weights(logged, weights)
    growth = float(np.square(rho).mean())
    enough = math.log(max(1.0, len(whole) / 100))
    return {
        "effective_sample_size": effective_sample_size(logged.per_unit(whole)),
        "mean_weight": float(whole.mean()),
        "max_weight": float(whole.max()),
        "zero_weights": float((whole == 0).mean()),
        "max_ratio": float(rho.max()),
        "squared_ratio": growth,
        "max_useful_horizon": enough / math.log(growth) if growth > 1 + 1e-9 else math.inf,
    }
