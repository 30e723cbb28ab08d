"""Logged experience of a baseline in many finite worlds at once: recording, counting, models and Monte-Carlo values.

W worlds have D datasets each: transitions `[W, 1, S, A, S]`, baseline `[W, 1, S, A]`, counts and models `[W, D, ...]`.
Many worlds with one dataset (Random MDPs) and one world with many datasets (Wet Chicken) are the same to it.
"""

from dataclasses import dataclass, replace

import numpy as np

from rbi.lab.mdp import MDP, Floats
from rbi.lab.worlds import Problem


@dataclass(frozen=True)
class Logs:
    """Steps `[T, W, D, N]` of N trajectories a dataset: state, action and successor in one number, -1 after the end.

    Data sizes count trajectories, or the steps of the only one.
    """

    steps: np.ndarray
    states: int
    actions: int
    by_steps: bool

    @property
    def pairs(self) -> np.ndarray:
        """The number s*A + a of each step; -1 stays -1."""
        return self.steps // (self.states + 1)

    def first(self, size: int) -> "Logs":
        """The first `size` trajectories or steps: smaller logs lie inside larger ones."""
        return replace(self, steps=self.steps[:size] if self.by_steps else self.steps[..., :size])


def record(problem: Problem, uniforms: Floats) -> Logs:
    """Let the baseline act: one uniform number a step (`[T, W, D, N]`) draws the action and the successor together.

    All outcomes of all states stand in one table of cumulated probabilities, where state i has the stretch [i, i+1).
    """
    W, _, S, A = problem.beta.shape
    transitions, beta = problem.mdp.transitions[:, 0], problem.beta[:, 0]
    ending = np.maximum(1 - transitions.sum(-1, keepdims=True), 0)
    outcomes = beta[..., None] * np.concatenate([transitions, np.where(ending > 1e-12, ending, 0)], -1)
    outcomes = outcomes.reshape(W * S, A * (S + 1))
    row, code = np.nonzero(outcomes)
    table = np.cumsum(outcomes, -1)
    table = (np.arange(W * S)[:, None] + table / table[:, -1:])[row, code]
    table[np.flatnonzero(np.diff(row, append=W * S))] = np.arange(1, W * S + 1)  # a stretch ends where the next begins
    following = row - row % S + code % (S + 1)
    following = np.where(code % (S + 1) == S, -1, following).astype(np.int32)
    code = (row % S * A * (S + 1) + code).astype(np.int32)

    first = np.argmax(problem.mdp.start) + S * np.arange(W)[:, None, None]
    state = np.broadcast_to(first, uniforms.shape[1:]).astype(np.int32).reshape(-1)
    steps = np.full((len(uniforms), state.size), -1, dtype=np.int32)
    alive = np.arange(state.size)
    for t, uniform in enumerate(uniforms.reshape(len(uniforms), -1)):
        drawn = np.searchsorted(table, state + uniform[alive].astype(float), side="right")
        steps[t, alive] = code[drawn]
        state = following[drawn]
        if (state < 0).any():
            alive, state = alive[state >= 0], state[state >= 0]
    return Logs(steps.reshape(uniforms.shape), S, A, problem.continuing)


def count(logs: Logs) -> np.ndarray:
    """How often each successor followed each pair, `[W, D, S, A, S + 1]`; the last successor is the end."""
    _, W, D, _ = logs.steps.shape
    S, A = logs.states, logs.actions
    size = S * A * (S + 1)
    offsets = size * np.arange(W * D).reshape(W, D, 1)
    happened = logs.steps >= 0
    found = np.bincount((logs.steps + offsets)[happened], minlength=W * D * size)
    return found.reshape(W, D, S, A, S + 1)


def model(problem: Problem, counts: np.ndarray) -> MDP:
    """The maximum-likelihood world: relative frequencies and true rewards; a pair never tried leads nowhere, for 0."""
    tries = np.maximum(counts.sum(-1, keepdims=True), 1)
    frequencies = counts / tries
    return MDP(frequencies[..., :-1], frequencies @ problem.arrival, problem.mdp.start, problem.mdp.discount)


def every_visit_monte_carlo(problem: Problem, logs: Logs) -> Floats:
    """Q `[W, D, S, A]` of the baseline as mean returns after each visit; 0 where there is none.

    Where the world goes on for ever, what lies behind the last step is filled in with the mean reward of the data.
    """
    T, W, D, N = logs.steps.shape
    happened = logs.steps >= 0
    rewards = np.where(happened, problem.arrival[logs.steps % (logs.states + 1)], 0.0)
    discount = problem.mdp.discount
    following = np.zeros((W, D, N))
    if problem.continuing:
        following = following + rewards.mean((0, -1), keepdims=True)[0] / (1 - discount)
    returns = np.empty_like(rewards)
    for t in reversed(range(T)):
        following = rewards[t] + discount * following
        returns[t] = following
    size = logs.states * logs.actions
    where = (logs.pairs + size * np.arange(W * D).reshape(W, D, 1))[happened]
    total = np.bincount(where, returns[happened], W * D * size)
    visits = np.bincount(where, minlength=W * D * size)
    return (total / np.maximum(visits, 1)).reshape(W, D, logs.states, logs.actions)
