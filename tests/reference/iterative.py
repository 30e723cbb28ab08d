"""Section 5 of the paper in plain loops over states, steps and actions. Slow twins for the tests."""

import numpy as np
import torch

from rbi.steps import LIFE_LOST, TERMINATED, TRUNCATED
from tests.reference import paper_loops


def n_step_return(rewards, ends, gamma):
    """R = r_0 + gamma r_1 + ..., up to the first end: the sum, the discount of V after it, and the number of steps."""
    total = 0.0
    for k, (reward, end) in enumerate(zip(rewards, ends, strict=True)):
        total += gamma**k * reward
        if end in (LIFE_LOST, TERMINATED):
            return total, 0.0, k + 1
        if end == TRUNCATED:
            return total, gamma ** (k + 1), k + 1
    return total, gamma ** len(rewards), len(rewards)


def exploration(num_envs, base, exponent):
    """eps_i = base^(1 + exponent i / (N - 1)); a single environment gets the base."""
    return [base ** (1 + (exponent * i / (num_envs - 1) if num_envs > 1 else 0)) for i in range(num_envs)]


def policy_weights(pi, q, alpha, c_mix):
    """w^pi of eq. 5 for states `[B, A]`, scaled to mean 1."""
    weights = []
    for pi_s, q_s in zip(pi, q, strict=True):
        m = len(pi_s)
        value = sum(pi_s[a] * q_s[a] for a in range(m))
        variance = sum(((1 - c_mix) * pi_s[a] + c_mix / m) * (q_s[a] - value) ** 2 for a in range(m))
        weights.append(((variance + 0.1) / (abs(value) + 0.1)) ** alpha)
    return [w / (sum(weights) / len(weights)) for w in weights]


def actor_policy(pi_hat, q, c_min, c_max, c_greedy):
    """pi = (1 - c_greedy) MaxReroute(pi_hat, Q) + c_greedy greedy(Q), for one state `[A]`."""
    best = paper_loops.best_first(q, range(len(q)))
    greedy = np.array([float(a == best) for a in range(len(q))])
    return (1 - c_greedy) * paper_loops.max_reroute(pi_hat, q, c_min, c_max) + c_greedy * greedy


def among_legal(legal, policy, *arrays):
    """A policy computed as if only the legal actions existed; the others have probability 0. Masks may be empty."""
    if not len(legal):
        return policy(*arrays)
    found = np.zeros(len(legal))
    found[legal] = policy(*(array[legal] for array in arrays))
    return found


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def td_error(rewards, ends, values, start_value, gamma):
    """|R_n - Q(s, a)| of a step, from rewards, ends and values V of the n states after it, and Q (or V) at it."""
    total, discount, steps = n_step_return(rewards, ends, gamma)
    return abs(total + discount * values[steps - 1] - start_value)


def square(error):
    return error**2


def huber(error):
    return 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5


def rbi_losses(batch, q, logits, next_value, targets, loss, weights):
    """The two losses of Algorithm RBI learner, scalars that autograd can follow, and the errors R_i - Q_i.

    `q`, `logits`: `[B, A]` of the learning networks. `next_value`: V of the target network n steps later.
    `targets`: the policies to imitate. `weights`: w^pi. The last three carry no gradient.
    """
    N = len(q)
    loss_q, loss_pi, errors = 0.0, 0.0, []
    for i in range(N):
        R = batch.reward[i] + batch.discount[i] * next_value[i]
        error = R - q[i, batch.action[i]]
        errors.append(error.detach().item())
        loss_q = loss_q + batch.weight[i] * loss(error) / N
        if logits is None:
            continue
        log_pi = torch.log_softmax(logits[i], 0)
        divergence = sum(p * (np.log(p) - log_pi[a]) for a, p in enumerate(targets[i].tolist()) if p > 0)
        loss_pi = loss_pi + batch.weight[i] * weights[i] * divergence / N
    return loss_q, loss_pi, errors
