"""Batches of offline learning, one step at a time. Slow twins for the tests."""

import numpy as np


def state(episode, t, stack):
    """The newest `stack` frames at step t, zeros before the first."""
    frames = [episode.observations[t - back] if t - back >= 0 else None for back in range(stack - 1, -1, -1)]
    zeros = np.zeros(episode.observations.shape[1:], episode.observations.dtype)
    return np.stack([zeros if frame is None else frame for frame in frames])


def ended(episode, t, terminal_on_life_loss):
    """How step t ends a return: None, "over" (terminal) or "cut" (truncated)."""
    if episode.terminated[t] or (terminal_on_life_loss and episode.life_lost[t]):
        return "over"
    return "cut" if episode.truncated[t] else None


def monte_carlo(episode, t, gamma, terminal_on_life_loss, clip):
    """The return of step t, and the weight of the missing rest: gamma^steps if it was truncated, else 0."""
    total, weight = 0.0, 1.0
    for k in range(t, len(episode)):
        reward = float(episode.rewards[k])
        total += weight * (max(-1.0, min(1.0, reward)) if clip else reward)
        weight *= gamma
        if how := ended(episode, k, terminal_on_life_loss):
            return total, weight if how == "cut" else 0.0
    raise AssertionError("an episode without end")


def n_step(episode, t, n, gamma, terminal_on_life_loss, clip):
    """The rewards of up to n steps, the discount of the bootstrap, and the step that is bootstrapped from."""
    total, weight = 0.0, 1.0
    for k in range(t, min(t + n, len(episode))):
        reward = float(episode.rewards[k])
        total += weight * (max(-1.0, min(1.0, reward)) if clip else reward)
        weight *= gamma
        how = ended(episode, k, terminal_on_life_loss)
        if how == "over":
            return total, 0.0, k + 1
        if how == "cut":
            return total, weight, k + 1
    return total, weight, k + 1
