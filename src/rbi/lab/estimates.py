"""Q-values from samples of a finite MDP: first-visit Monte-Carlo, n-step TD, and how far TD can be off."""

from dataclasses import dataclass

import numpy as np

from rbi.lab.mdp import MDP, Floats


@dataclass(frozen=True)
class Episodes:
    """N episodes side by side: states and actions `[N, T]` of integers, rewards `[N, T]`, lengths `[N]` (at most T)."""

    states: np.ndarray
    actions: np.ndarray
    rewards: Floats
    lengths: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """True `[N, T]` where a step was made."""
        return np.arange(self.states.shape[1]) < self.lengths[:, None]


def rollout(
    mdp: MDP, pi: Floats, episodes: int, steps: int, rng: np.random.Generator, reward_std: float = 0.0
) -> Episodes:
    """Episodes of at most `steps` steps in one MDP; rewards are r(s,a) plus normal noise.

    An episode that is cut at the limit looks like one that ended there: choose a limit that discounting makes far.
    """
    states, actions = (np.zeros((episodes, steps), dtype=np.intp) for _ in range(2))
    rewards, lengths = np.zeros((episodes, steps)), np.full(episodes, steps)
    ended = mdp.start.shape[-1]  # the index that stands for the end
    state, alive = draw(np.tile(mdp.start, (episodes, 1)), rng), np.ones(episodes, dtype=bool)
    for t in range(steps):
        action = draw(pi[state], rng)
        states[:, t], actions[:, t] = state, action
        rewards[:, t] = mdp.rewards[state, action] + reward_std * rng.standard_normal(episodes)
        row = mdp.transitions[state, action]
        following = draw(np.hstack([row, 1 - row.sum(-1, keepdims=True)]), rng)
        finished = alive & (following == ended)
        lengths[finished] = t + 1
        alive &= ~finished
        state = np.where(following == ended, 0, following)
        if not alive.any():
            break
    return Episodes(states, actions, np.where(np.arange(steps) < lengths[:, None], rewards, 0.0), lengths)


@dataclass(frozen=True)
class Estimate:
    """Q `[S, A]`, its standard error (infinite below two samples), and the number of samples behind each."""

    q: Floats
    standard_error: Floats
    counts: np.ndarray


def average(pairs: np.ndarray, targets: Floats, shape: tuple[int, int]) -> Estimate:
    """The mean target of each state-action pair (an index `[M]` into S*A), 0 where there is none."""
    size = shape[0] * shape[1]
    counts = np.bincount(pairs, minlength=size)
    some = np.maximum(counts, 1)
    mean = np.bincount(pairs, targets, size) / some
    squares = np.bincount(pairs, (targets - mean[pairs]) ** 2, size)
    error = np.where(counts > 1, np.sqrt(squares / np.maximum(counts - 1, 1) / some), np.inf)
    return Estimate(*(x.reshape(shape) for x in (mean, error, counts)))


def monte_carlo(episodes: Episodes, shape: tuple[int, int], discount: float) -> Estimate:
    """First-visit Monte-Carlo: of a pair's visits in an episode only the first counts, so samples are independent."""
    returns = np.zeros_like(episodes.rewards)
    following = np.zeros(len(episodes.lengths))
    for t in reversed(range(returns.shape[1])):
        following = episodes.rewards[:, t] + discount * following
        returns[:, t] = following
    pair = episodes.states * shape[1] + episodes.actions
    number = np.arange(len(pair))[:, None] * (shape[0] * shape[1]) + pair
    places = np.flatnonzero(episodes.inside)
    _, first = np.unique(number.reshape(-1)[places], return_index=True)
    chosen = places[first]
    return average(pair.reshape(-1)[chosen], returns.reshape(-1)[chosen], shape)


def temporal_difference(episodes: Episodes, beta: Floats, discount: float, n: int, passes: int) -> Estimate:
    """n-step TD: `passes` times through the data, each averaging sum_k gamma^k r_k + gamma^n V(s_n) over all visits."""
    shape = (beta.shape[0], beta.shape[1])
    steps = episodes.rewards.shape[1]
    inside = episodes.inside
    partial = np.zeros_like(episodes.rewards)
    for k in range(n):
        partial[:, : steps - k] += discount**k * episodes.rewards[:, k:]
    after = np.minimum(np.arange(steps) + n, steps - 1)
    goes_on = (np.arange(steps) + n) < episodes.lengths[:, None]  # the n-th state lies inside the episode
    later = episodes.states[:, after]
    pair = (episodes.states * shape[1] + episodes.actions)[inside]
    found = Estimate(np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, dtype=int))
    for _ in range(passes):
        value = (beta * found.q).sum(-1)
        target = partial + discount**n * np.where(goes_on, value[later], 0.0)
        found = average(pair, target[inside], shape)
    return found


def phased_td(mdp: MDP, beta: Floats, n: int, phases: int, samples: int, rng: np.random.Generator) -> Floats:
    """Q `[S, A]` by phases of fresh data: in each, `samples` n-step paths from every pair.      (paper: eq. 3)"""
    S, A = mdp.rewards.shape
    q = np.zeros((S, A))
    starts = np.repeat(np.arange(S * A), samples)
    for _ in range(phases):
        state, action = starts // A, starts % A
        target, alive, weight = np.zeros(len(starts)), np.ones(len(starts), dtype=bool), 1.0
        for _ in range(n):
            target += weight * alive * mdp.rewards[state, action]
            row = mdp.transitions[state, action]
            following = draw(np.hstack([row, 1 - row.sum(-1, keepdims=True)]), rng)
            alive &= following < S
            state = np.where(following < S, following, 0)
            action = draw(beta[state], rng)
            weight *= mdp.discount
        target += weight * alive * (beta * q).sum(-1)[state]
        q = target.reshape(S * A, samples).mean(-1).reshape(S, A)
    return q


def td_error_bound(discount: float, n: int, phases: int, failure: float, samples: float) -> float:
    """(1 - gamma^nt)/(1 - gamma) sqrt(3 log(n/delta)/N) + gamma^nt: the largest error of Q, with probability 1 - delta.

    (paper: eq. 3.) Its conditions: N is the smallest N_s beta(a|s), every phase has fresh samples, and values (not only
    rewards) lie in [-1, 1]: at the first phase the bound is 1, which no estimate of a larger value can meet.
    """
    bias = discount ** (n * phases)
    return float((1 - bias) / (1 - discount) * np.sqrt(3 * np.log(n / failure) / samples) + bias)


# ---- from rbi.lab.sampling: Drawing from many distributions at once.


def draw(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One index a row of `probs` `[R, n]`; what rows lack to 1 counts for the last index."""
    left = rng.random(len(probs))
    index = np.zeros(len(probs), dtype=np.intp)
    for column in probs.T[:-1]:
        left = left - column
        index += left > 0
        left = np.where(left > 0, left, -1.0)  # found: stays so
    return index
