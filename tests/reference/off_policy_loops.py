"""Off-policy estimates episode by episode, as the papers write them."""

import itertools

import numpy as np


def episodes_of(logged):
    """The slices of steps of each episode."""
    return [slice(start, start + steps) for start, steps in zip(logged.first, logged.steps, strict=True)]


def per_decision_term(rewards, rho, gamma):
    weight, total = 1.0, 0.0
    for t, reward in enumerate(rewards):
        weight *= rho[t]
        total += gamma**t * (weight - 1) * reward
    return total


def doubly_robust_value(rewards, rho, v, q_taken, gamma):
    value = 0.0
    for reward, ratio, state_value, q in reversed(list(zip(rewards, rho, v, q_taken, strict=True))):
        value = state_value + ratio * (reward + gamma * value - q)
    return value


def all_trajectories(transitions, rewards, beta, horizon):
    """Every trajectory from state 0 with its probability under beta: (probability, states, actions, rewards)."""
    S, A = beta.shape
    for actions in itertools.product(range(A), repeat=horizon):
        for later in itertools.product(range(S), repeat=horizon - 1):
            states = (0, *later)
            probability = np.prod([beta[s, a] for s, a in zip(states, actions, strict=True)])
            probability *= np.prod([transitions[states[t], actions[t], states[t + 1]] for t in range(horizon - 1)])
            yield probability, states, actions, [rewards[s, a] for s, a in zip(states, actions, strict=True)]


def finite_horizon_value(transitions, rewards, pi, horizon, gamma):
    """V(0) of a policy by dynamic programming."""
    v = np.zeros(len(pi))
    for _ in range(horizon):
        v = (pi * (rewards + gamma * transitions @ v)).sum(1)
    return v[0]
