"""Every loss as a pure function of network outputs that returns one number per example, `[B]`.

Learners weight the examples and take the mean. Where a fast path differentiates by hand, the gradient of the (weighted)
mean at the network output, `*_loss_grad` `[B, A]`, stands next to its loss; `torch.autograd.grad(outputs, parameters,
output_grads)` continues from there. The loss itself is then needed for metrics only.

    rbi      L_q      q_loss(R - Q(s, a)), R = n-step return        L_pi     w^pi KL(pi || pi-net), eq. 5
    offline  beta     behavior_loss, cross-entropy                  Q        monte_carlo_q_loss
    dqfd     J_DQ, J_n: td_error + huber      J_E: large_margin_loss         J_L2: l2_loss
    bcq      bcq_filter + double_q_value      cql: cql_penalty      ppo: ppo_loss
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from rbi import measures

QLoss = Literal["huber", "squared"]
POLICY_NOISE = 43.7  # c_mix = m / (43.7 + m) for m actions
WEIGHT_DAMPING = 0.1  # the two constants of w^pi


def action_values(q: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) `[B]` of the actions taken, from Q `[B, A]`."""
    return q.gather(1, actions[:, None]).squeeze(1)


def mask_illegal(values: Tensor, legal: Tensor | None) -> Tensor:
    """Values or logits `[B, A]` with -inf where an action is illegal; None: all are legal."""
    return values if legal is None else values.masked_fill(~legal, -torch.inf)


def spread(mass: Any, num_actions: int, legal: Tensor | None) -> Any:
    """Probability mass, a number or `[B, 1]`, in equal parts on all (legal) actions.

    >>> spread(0.5, 4, torch.tensor([[True, False, True, False]]))
    tensor([[0.2500, 0.0000, 0.2500, 0.0000]])
    """
    return mass / num_actions if legal is None else mass * legal / legal.sum(1, keepdim=True)


# Q-learning with n-step returns


def td_error(q: Tensor, actions: Tensor, returns: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """returns + discount * V(s') - Q(s, a), `[B]`; `returns` are the rewards of an n-step return."""
    return returns + discount * next_value - action_values(q, actions)


def huber(error: Tensor) -> Tensor:
    """Squared near zero, linear beyond 1: the loss of Q where rewards are clipped to [-1, 1].

    >>> huber(torch.tensor([0.5, -2.0]))
    tensor([0.1250, 1.5000])
    """
    size = error.abs()
    return torch.where(size <= 1, 0.5 * size.square(), size - 0.5)


def q_loss(error: Tensor, kind: QLoss = "huber") -> Tensor:
    """L_q `[B]` of the error R - Q(s, a).      (paper: Algorithm RBI learner)"""
    # Departs from the paper: its squared error is an option; Huber is what the authors' code used (decision 007).
    return huber(error) if kind == "huber" else error.square()


def q_loss_grad(error: Tensor, actions: Tensor, q: Tensor, weight: Tensor, kind: QLoss = "huber") -> Tensor:
    """The gradient of mean_i weight_i L_q_i at Q `[B, A]`: -weight clip(error, -1, 1) / B at the actions taken.

    >>> q = torch.zeros(2, 2)
    >>> q_loss_grad(torch.tensor([0.5, -2.0]), torch.tensor([0, 1]), q, torch.ones(2))
    tensor([[-0.2500,  0.0000],
            [ 0.0000,  0.5000]])
    """
    slope = error.clamp(-1, 1) if kind == "huber" else 2 * error
    at_action = -weight * slope / len(error)
    return torch.zeros_like(q).scatter_(1, actions[:, None], at_action[:, None])


def double_q_value(q_next: Tensor, target_next: Tensor, allowed: Tensor | None = None) -> Tensor:
    """V(s') `[B]` of double Q-learning: the target network's value of the action that the learning network prefers
    among `allowed` `[B, A]`."""
    return target_next.gather(1, mask_illegal(q_next, allowed).argmax(1, keepdim=True)).squeeze(1)


# The policy network of RBI


def policy_loss(pi_net: Tensor, pi: Tensor) -> Tensor:
    """L_pi `[B]` before its weight: KL(pi || pi-net).      (paper: Algorithm RBI learner)"""
    return measures.kl(pi, pi_net)


def policy_loss_grad(pi_net: Tensor, pi: Tensor, weight: Tensor) -> Tensor:
    """The gradient of mean_i weight_i KL(pi_i || softmax(logits_i)) at the logits: weight (pi-net - pi) / B.

    >>> policy_loss_grad(torch.tensor([[0.75, 0.25]]), torch.tensor([[1.0, 0.0]]), torch.tensor([2.0]))
    tensor([[-0.5000,  0.5000]])
    """
    return (weight / len(weight))[:, None] * (pi_net - pi)


def policy_weight(
    pi: Tensor,
    q: Tensor,
    alpha: float,
    noise: float,
    mean: Callable[[Tensor], Tensor] = torch.mean,
    legal: Tensor | None = None,
) -> Tensor:
    """w^pi `[B]`, with batch mean 1: large where a small error of the policy costs much.      (paper: eq. 5)

        w ~ ((sum_a pi_mix(a) A(a)^2 + 0.1) / (|V| + 0.1))^alpha,   pi_mix = (1 - noise) pi + noise / m

    with V = sum_a pi(a) Q(a) and A = Q - V; `noise` is `c_mix(m)`, `mean` the mean of the batch that this is part of.
    """
    value = (pi * q).sum(1)
    mixed = (1 - noise) * pi + spread(noise, pi.shape[-1], legal)
    variance = (mixed * (q - value[:, None]).square()).sum(1)
    weight = ((variance + WEIGHT_DAMPING) / (value.abs() + WEIGHT_DAMPING)) ** alpha
    return weight / mean(weight)


def c_mix(num_actions: int) -> float:
    """Uniform noise mixed into the policy before its advantage variance is taken.      (paper: table of settings)

    >>> round(c_mix(4), 4)
    0.0839
    """
    return num_actions / (POLICY_NOISE + num_actions)


# Behaviour and its Q-values from a fixed data set


def behavior_loss(logits: Tensor, actions: Tensor, legal: Tensor | None = None) -> Tensor:
    """-log beta(a | s) `[B]`: cross-entropy of the logged actions.      (paper: section 4)

    >>> behavior_loss(torch.log(torch.tensor([[0.75, 0.25]])), torch.tensor([1]))
    tensor([1.3863])
    """
    return -action_values(torch.log_softmax(mask_illegal(logits, legal), 1), actions)


def behavior_loss_grad(beta: Tensor, actions: Tensor) -> Tensor:
    """The gradient of mean -log beta(a | s) at the logits, given beta = softmax(logits): (beta - [a]) / B.

    >>> behavior_loss_grad(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    tensor([[-0.2500,  0.2500]])
    """
    share = 1 / len(beta)
    return (beta * share).scatter_(1, actions[:, None], -share, reduce="add")


def monte_carlo_q_loss(q: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
    """(Q(s, a) - R)^2 `[B]`, with R the Monte-Carlo return.      (paper: section 4)"""
    return (action_values(q, actions) - returns).square()


def monte_carlo_q_loss_grad(error: Tensor, actions: Tensor, num_actions: int) -> Tensor:
    """The gradient of mean error^2 at Q, where error = Q(s, a) - R: 2 error [a] / B.

    >>> monte_carlo_q_loss_grad(torch.tensor([3.0, 1.0]), torch.tensor([0, 1]), 2)
    tensor([[3., 0.],
            [0., 1.]])
    """
    grad = error.new_zeros(len(error), num_actions)
    return grad.scatter_(1, actions[:, None], (error * (2 / len(error)))[:, None])


# DQfD, BCQ, CQL, PPO


def large_margin_loss(q: Tensor, actions: Tensor, margin: float, legal: Tensor | None = None) -> Tensor:
    """DQfD's supervised loss `[B]`: max_a [Q(s, a) + margin (a != a_E)] - Q(s, a_E).      (paper: section 4, DQfD)

    Zero where the demonstrated action leads all others by the margin.

    >>> large_margin_loss(torch.tensor([[1.0, 0.0], [1.0, 0.9]]), torch.tensor([0, 0]), 0.8)
    tensor([0.0000, 0.7000])
    """
    best, _ = max_with_margin(q, actions, margin, legal)
    return best - action_values(q, actions)


def max_with_margin(q: Tensor, actions: Tensor, margin: float, legal: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The maximum over a of Q(s, a) + margin (a != a_E), and the action that has it, `[B]` each."""
    taken = actions[:, None]
    return mask_illegal((q + margin).scatter(1, taken, q.gather(1, taken)), legal).max(1)


def dqfd_loss(errors: Tensor, margin_loss: Tensor, n_step_weight: float, margin_weight: float) -> Tensor:
    """DQfD's loss of each example `[B]`: J_DQ + lambda_n J_n + lambda_E J_E; `l2_loss` is added to its mean.

    `errors` `[B, 2]`: the 1-step and the n-step TD error.
    """
    one_step, n_step = huber(errors).unbind(1)
    return one_step + n_step_weight * n_step + margin_weight * margin_loss


def dqfd_loss_grad(
    errors: Tensor,
    actions: Tensor,
    best: Tensor,
    q: Tensor,
    weight: Tensor,
    n_step_weight: float,
    margin_weight: float,
) -> Tensor:
    """The gradient of mean_i weight_i dqfd_loss_i at Q `[B, A]`; `best` are the actions of `max_with_margin`:

        -weight (clip(error, -1, 1) + lambda_n clip(n-step error, -1, 1) + lambda_E) / B    at the actions taken
        +weight lambda_E / B                                                                at the best ones

    >>> errors, weight = torch.tensor([[0.5, 2.0]]), torch.ones(1)
    >>> dqfd_loss_grad(errors, torch.tensor([0]), torch.tensor([1]), torch.zeros(1, 3), weight, 1.0, 0.25)
    tensor([[-1.7500,  0.2500,  0.0000]])
    """
    one_step, n_step = errors.clamp(-1, 1).unbind(1)
    share = weight / len(q)
    at_action = (torch.add(one_step, n_step, alpha=n_step_weight) + margin_weight) * -share
    grad = torch.zeros_like(q).scatter_(1, actions[:, None], at_action[:, None])
    return grad.scatter_add_(1, best[:, None], (share * margin_weight)[:, None])


def l2_loss(parameters: Tensor) -> Tensor:
    """Sum of all squared weights, of a flat parameter vector (a number, not `[B]`); its gradient is 2 parameters."""
    return torch.dot(parameters, parameters)


def bcq_filter(logits: Tensor, threshold: float) -> Tensor:
    """Discrete BCQ's actions `[B, A]`: at least `threshold` times as probable under beta as the most probable one.

    >>> bcq_filter(torch.log(torch.tensor([[0.6, 0.3, 0.1]])), 0.3)
    tensor([[ True,  True, False]])
    """
    log_probs = torch.log_softmax(logits, 1)
    ratio = (log_probs - log_probs.amax(1, keepdim=True)).exp()
    return ratio >= threshold


def cql_penalty(q: Tensor, actions: Tensor, legal: Tensor | None = None) -> Tensor:
    """CQL's penalty `[B]`: log sum_a exp Q(s, a) - Q(s, a_data), which keeps down actions that were not taken."""
    q = mask_illegal(q, legal)
    return q.logsumexp(1) - action_values(q, actions)


def ppo_loss(pi: Tensor, beta: Tensor, advantage: Tensor, epsilon: float) -> Tensor:
    """-J^PPO `[B]`: -sum_a beta min(A c, A clip(c, 1 - epsilon, 1 + epsilon)), c = pi / beta.    (paper: section 4)"""
    objective: Tensor = measures.ppo_objective(pi, beta, advantage, epsilon)
    return -objective
