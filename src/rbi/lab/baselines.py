"""Baseline policies of a stated quality, for many worlds at once."""

from collections.abc import Sequence

import numpy as np

from rbi.lab.mdp import MDP, Floats, optimal_policy, performance, q_values, visitation

BLOCK = 256  # states drawn at a time
PATIENCE = 200  # times that each state may be drawn, on average; .9^200 is nothing


def baselines(mdp: MDP, quality: float, rngs: Sequence[np.random.Generator]) -> Floats:
    """Stochastic policies `[W, S, A]` whose values stand `quality` of the way from the uniform to the optimal policy's.

    First the softmax of optimal Q-values, cooled less and less until it stands at (1 + quality)/2; then, state by state
    at random, the best action becomes rarer by a tenth until the target is met. Each world (`[W, ...]`) has its own
    generator, so its baseline does not depend on the company.
    """
    optimal = optimal_policy(mdp)
    q = q_values(mdp, optimal)
    worst, best = performance(mdp, np.full(q.shape, 1 / q.shape[-1])), performance(mdp, optimal)
    pi = warmest_softmax(mdp, q, worst + (1 + quality) / 2 * (best - worst))
    return perturbed(mdp, pi, q.argmax(-1), worst + quality * (best - worst), rngs)


def warmest_softmax(mdp: MDP, q: Floats, target: Floats) -> Floats:
    """softmax(coldness * q) `[W, S, A]`, with coldness 2e6 times a power of 0.9: the first that is not above target."""
    coldness = np.full(len(q), 2e6)
    pi = softmax(coldness[:, None, None] * q)
    above = np.flatnonzero(performance(mdp, pi) > target)
    while above.size:
        coldness[above] *= 0.9
        pi[above] = softmax(coldness[above, None, None] * q[above])
        part = MDP(mdp.transitions[above], mdp.rewards[above], mdp.start, mdp.discount)
        above = above[performance(part, pi[above]) > target[above]]
    return pi


def perturbed(mdp: MDP, pi: Floats, best: np.ndarray, target: Floats, rngs: Sequence[np.random.Generator]) -> Floats:
    """Make the best action of one random state after the other rarer, until no value is above its target.

    A change in one state changes one row of I - gamma P^pi, so the inverse follows by Sherman and Morrison's formula.
    """
    pi, inverse = pi.copy(), visitation(mdp, pi)
    rewards = (pi * mdp.rewards).sum(-1)
    start = np.argmax(mdp.start)
    above = np.flatnonzero((inverse[:, start] * rewards).sum(-1) > target)
    step = 0
    while above.size:
        if step == PATIENCE * pi.shape[1]:
            raise ValueError("no baseline of this quality: even without best actions one is better; ask for a higher")
        if step % BLOCK == 0:
            draws = np.stack([rng.integers(pi.shape[1], size=BLOCK) for rng in rngs])
        state = draws[above, step % BLOCK]
        step += 1
        row = pi[above, state].copy()
        row[np.arange(above.size), best[above, state]] *= 0.9
        row /= row.sum(-1, keepdims=True)
        change = row - pi[above, state]
        pi[above, state] = row
        rewards[above, state] += (change * mdp.rewards[above, state]).sum(-1)
        moved = -mdp.discount * (change[:, :, None] * mdp.transitions[above, state]).sum(1)
        column = inverse[above, :, state]
        across = (moved[:, None, :] @ inverse[above])[:, 0]
        scale = 1 + (moved * column).sum(-1, keepdims=True)
        inverse[above] -= column[:, :, None] * (across / scale)[:, None, :]
        above = above[(inverse[above, start] * rewards[above]).sum(-1) > target[above]]
    return pi


def softmax(x: Floats) -> Floats:
    weight = np.exp(x - x.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)
