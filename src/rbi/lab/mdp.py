"""Finite Markov decision processes: exact values, visitation and the improvement penalty, for many MDPs at once.

Arrays have any leading shape (MDPs, policies, or both, broadcast): transitions `[..., S, A, S]`, rewards and policies
`[..., S, A]`. If a row of transitions sums to less than 1, the episode ends with the remaining probability.
"""

from dataclasses import dataclass

import numpy as np

Floats = np.ndarray


@dataclass(frozen=True)
class MDP:
    """P(s'|s,a) `[..., S, A, S]`, expected rewards r(s,a) `[..., S, A]`, start distribution `[..., S]`, discount."""

    transitions: Floats
    rewards: Floats
    start: Floats
    discount: float

    def __post_init__(self) -> None:
        shape = self.transitions.shape
        if len(shape) < 3 or shape[-1] != shape[-3]:
            raise ValueError(f"transitions have shape {shape}: must be [..., S, A, S]")
        if self.rewards.shape[-2:] != shape[-3:-1] or self.start.shape[-1] != shape[-1]:
            raise ValueError(
                f"rewards {self.rewards.shape} and start {self.start.shape} do not fit transitions {shape}"
            )
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount = {self.discount:g}: must be in [0, 1)")
        rows = self.transitions.sum(-1)
        bad = np.argwhere((self.transitions < 0).any(-1) | (rows > 1 + 1e-9) | ~np.isfinite(rows))
        if len(bad):
            place = tuple(int(i) for i in bad[0])
            raise ValueError(
                f"transitions{list(place)} sum to {rows[place]:g}: must be probabilities, at most 1 in sum"
            )


def state_transitions(mdp: MDP, pi: Floats) -> Floats:
    """P^pi(s'|s) = sum_a pi(a|s) P(s'|s,a), `[..., S, S]`."""
    return np.einsum("...sa,...sat->...st", pi, mdp.transitions)


def values(mdp: MDP, pi: Floats) -> Floats:
    """V^pi `[..., S]`: the solution of V = r^pi + gamma P^pi V."""
    rewards = (pi * mdp.rewards).sum(-1)
    return np.linalg.solve(bellman_matrix(mdp, pi), rewards[..., None])[..., 0]


def q_values(mdp: MDP, pi: Floats) -> Floats:
    """Q^pi `[..., S, A]` = r + gamma P V^pi."""
    return lookahead(mdp, values(mdp, pi))


def lookahead(mdp: MDP, v: Floats) -> Floats:
    """One-step lookahead r + gamma P V, `[..., S, A]`, for next-state values V `[..., S]`."""
    return mdp.rewards + mdp.discount * np.einsum("...sat,...t->...sa", mdp.transitions, v)


def advantages(mdp: MDP, pi: Floats) -> Floats:
    """A^pi `[..., S, A]` = Q^pi - V^pi."""
    return q_values(mdp, pi) - values(mdp, pi)[..., None]


def visitation(mdp: MDP, pi: Floats) -> Floats:
    """rho^pi(s'|s) `[..., S, S]` = sum_k gamma^k P(s -k-> s' | pi): discounted state visitation, not normalised."""
    return np.linalg.inv(bellman_matrix(mdp, pi))


def performance(mdp: MDP, pi: Floats) -> Floats:
    """J(pi) `[...]`: the expected value of the start state."""
    return (mdp.start * values(mdp, pi)).sum(-1)


def bellman_matrix(mdp: MDP, pi: Floats) -> Floats:
    """I - gamma P^pi, `[..., S, S]`."""
    transitions = state_transitions(mdp, pi)
    return np.eye(transitions.shape[-1]) - mdp.discount * transitions


def optimal_policy(mdp: MDP, sweeps: int = 10) -> Floats:
    """An optimal deterministic policy `[..., S, A]`, by policy iteration over all MDPs at once.

    It starts from the greedy policy after a few sweeps of value iteration, which are cheaper than the linear solves
    saved.
    """
    q = mdp.rewards
    for _ in range(sweeps):
        q = lookahead(mdp, q.max(-1))
    pi = np.eye(q.shape[-1])[q.argmax(-1)]
    while True:
        q = q_values(mdp, pi)
        optimal = (pi * q).sum(-1) >= q.max(-1) - 1e-10 * (1 + abs(q).max())
        greedy = np.eye(q.shape[-1])[q.argmax(-1)]
        better = np.where((optimal & (pi.max(-1) == 1))[..., None], pi, greedy)
        if (better == pi).all():
            return pi
        pi = better


def improvement_penalty(mdp: MDP, beta: Floats, pi: Floats, error: Floats) -> Floats:
    """E(s) `[..., S]` = sum_s' rho^pi(s'|s) sum_a eps(s',a) (beta - pi)(a|s').      (paper: eq. 2, Lemma)

    If pi does not make the step with the estimate Q^beta - eps negative, then V^pi - V^beta >= -E in every state.
    """
    return np.einsum("...st,...t->...s", visitation(mdp, pi), (error * (beta - pi)).sum(-1))


def penalty_variance(mdp: MDP, beta: Floats, pi: Floats, covariance: Floats) -> Floats:
    """Var E(s) `[..., S]` of the improvement penalty for errors with covariance `[..., S*A, S*A]`."""
    weight = visitation(mdp, pi)[..., None] * (beta - pi)[..., None, :, :]
    weight = weight.reshape(*weight.shape[:-2], -1)
    return np.einsum("...si,...ij,...sj->...s", weight, covariance, weight)
