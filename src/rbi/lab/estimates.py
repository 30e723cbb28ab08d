"""Q-values from samples of a finite MDP: first-visit Monte-Carlo, n-step TD, and the paper's TD error bound."""

from dataclasses import dataclass

import numpy as np

from rbi.lab.mdp import MDP, Floats


def sample_categorical(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sample one index from each row of `probs` `[R, n]`; probability missing to 1 belongs to the last index."""
    left = rng.random(len(probs))
    index = np.zeros(len(probs), dtype=np.intp)
    for column in probs.T[:-1]:
        left = left - column
        index += left > 0
        left = np.where(left > 0, left, -1.0)  # sampled: no later column counts
    return index


@dataclass(frozen=True)
class Trajectories:
    """N episodes in a finite MDP: integer states and actions `[N, T]`, rewards `[N, T]`, lengths `[N]` (at most T)."""

    states: np.ndarray
    actions: np.ndarray
    rewards: Floats
    lengths: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """True `[N, T]` for the steps of the episodes, False for padding."""
        return np.arange(self.states.shape[1]) < self.lengths[:, None]


def rollout(
    mdp: MDP, pi: Floats, episodes: int, steps: int, rng: np.random.Generator, reward_std: float = 0.0
) -> Trajectories:
    """Sample episodes of at most `steps` steps in one MDP; rewards are r(s,a) plus normal noise.

    Truncated episodes are not marked: choose a limit after which discounted rewards are negligible.
    """
    states, actions = (np.zeros((episodes, steps), dtype=np.intp) for _ in range(2))
    rewards, lengths = np.zeros((episodes, steps)), np.full(episodes, steps)
    ended = mdp.start.shape[-1]  # the index of the terminal state
    state, alive = sample_categorical(np.tile(mdp.start, (episodes, 1)), rng), np.ones(episodes, dtype=bool)
    for t in range(steps):
        action = sample_categorical(pi[state], rng)
        states[:, t], actions[:, t] = state, action
        rewards[:, t] = mdp.rewards[state, action] + reward_std * rng.standard_normal(episodes)
        row = mdp.transitions[state, action]
        following = sample_categorical(np.hstack([row, 1 - row.sum(-1, keepdims=True)]), rng)
        finished = alive & (following == ended)
        lengths[finished] = t + 1
        alive &= ~finished
        state = np.where(following == ended, 0, following)
        if not alive.any():
            break
    return Trajectories(states, actions, np.where(np.arange(steps) < lengths[:, None], rewards, 0.0), lengths)


@dataclass(frozen=True)
class QEstimate:
    """Q `[S, A]`, its standard error (infinite below two samples), and the number of samples of each pair."""

    q: Floats
    standard_error: Floats
    counts: np.ndarray


def mean_targets(pairs: np.ndarray, targets: Floats, shape: tuple[int, int]) -> QEstimate:
    """Mean target of each state-action pair; `pairs` `[M]` are indices s*A + a. 0 for pairs without samples."""
    size = shape[0] * shape[1]
    counts = np.bincount(pairs, minlength=size)
    some = np.maximum(counts, 1)
    mean = np.bincount(pairs, targets, size) / some
    squares = np.bincount(pairs, (targets - mean[pairs]) ** 2, size)
    error = np.where(counts > 1, np.sqrt(squares / np.maximum(counts - 1, 1) / some), np.inf)
    return QEstimate(*(x.reshape(shape) for x in (mean, error, counts)))


def first_visit_monte_carlo(trajectories: Trajectories, shape: tuple[int, int], discount: float) -> QEstimate:
    """First-visit Monte-Carlo: only a pair's first visit in an episode counts, so that samples are independent."""
    returns = np.zeros_like(trajectories.rewards)
    following = np.zeros(len(trajectories.lengths))
    for t in reversed(range(returns.shape[1])):
        following = trajectories.rewards[:, t] + discount * following
        returns[:, t] = following
    pair = trajectories.states * shape[1] + trajectories.actions
    number = np.arange(len(pair))[:, None] * (shape[0] * shape[1]) + pair
    steps_taken = np.flatnonzero(trajectories.mask)
    _, first = np.unique(number.reshape(-1)[steps_taken], return_index=True)
    chosen = steps_taken[first]
    return mean_targets(pair.reshape(-1)[chosen], returns.reshape(-1)[chosen], shape)


def n_step_td(trajectories: Trajectories, beta: Floats, discount: float, n: int, sweeps: int) -> QEstimate:
    """n-step TD: `sweeps` over the data, each averages sum_k gamma^k r_k + gamma^n V(s_n) over all visits of a pair."""
    shape = (beta.shape[0], beta.shape[1])
    steps = trajectories.rewards.shape[1]
    mask = trajectories.mask
    partial = np.zeros_like(trajectories.rewards)
    for k in range(n):
        partial[:, : steps - k] += discount**k * trajectories.rewards[:, k:]
    ahead = np.minimum(np.arange(steps) + n, steps - 1)
    continues = (np.arange(steps) + n) < trajectories.lengths[:, None]  # the n-th state is inside the episode
    later = trajectories.states[:, ahead]
    pair = (trajectories.states * shape[1] + trajectories.actions)[mask]
    found = QEstimate(np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, dtype=int))
    for _ in range(sweeps):
        value = (beta * found.q).sum(-1)
        target = partial + discount**n * np.where(continues, value[later], 0.0)
        found = mean_targets(pair, target[mask], shape)
    return found


def phased_td(mdp: MDP, beta: Floats, n: int, phases: int, samples: int, rng: np.random.Generator) -> Floats:
    """Phased TD: Q `[S, A]` from fresh data in every phase, `samples` n-step paths per pair.      (paper: eq. 3)"""
    S, A = mdp.rewards.shape
    q = np.zeros((S, A))
    starts = np.repeat(np.arange(S * A), samples)
    for _ in range(phases):
        state, action = starts // A, starts % A
        target, alive, weight = np.zeros(len(starts)), np.ones(len(starts), dtype=bool), 1.0
        for _ in range(n):
            target += weight * alive * mdp.rewards[state, action]
            row = mdp.transitions[state, action]
            following = sample_categorical(np.hstack([row, 1 - row.sum(-1, keepdims=True)]), rng)
            alive &= following < S
            state = np.where(following < S, following, 0)
            action = sample_categorical(beta[state], rng)
            weight *= mdp.discount
        target += weight * alive * (beta * q).sum(-1)[state]
        q = target.reshape(S * A, samples).mean(-1).reshape(S, A)
    return q


def td_error_bound(discount: float, n: int, phases: int, delta: float, samples: float) -> float:
    """Bound of the largest error of Q after t phases of n-step TD, with probability 1 - delta.      (paper: eq. 3)

    (1 - gamma^nt)/(1 - gamma) sqrt(3 log(n/delta)/N) + gamma^nt
    """
    # Departs from the paper, which states fewer conditions: N is the smallest N_s beta(a|s), every phase has fresh
    # samples, and values (not only rewards) lie in [-1, 1]; the bound is 1 before the first phase.
    bias = discount ** (n * phases)
    return float((1 - bias) / (1 - discount) * np.sqrt(3 * np.log(n / delta) / samples) + bias)
