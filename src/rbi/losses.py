"""Losses of learning from a fixed data set, an example at a time: `[B]`. Weighting and means happen elsewhere; but the
slopes of beta's and Q's own losses, `[B, A]`, are those of their means."""

import torch
from torch import Tensor


def td_error(q: Tensor, actions: Tensor, returns: Tensor, discount: Tensor, ahead: Tensor) -> Tensor:
    """returns + discount * V(s') - Q(s, a), with V(s') given as `ahead`."""
    return returns + discount * ahead - chosen(q, actions)


def double_q(q_ahead: Tensor, target_ahead: Tensor, allowed: Tensor | None = None) -> Tensor:
    """What the target network says of the action that the learning one prefers, `[B]`, among `allowed` `[B, A]`."""
    preferred = q_ahead if allowed is None else q_ahead.masked_fill(~allowed, -torch.inf)
    return target_ahead.gather(1, preferred.argmax(1, keepdim=True)).squeeze(1)


def large_margin(q: Tensor, actions: Tensor, margin: float) -> Tensor:
    """DQfD's supervised loss: max_a [Q(s, a) + margin (a != a_E)] - Q(s, a_E).      (paper: section 4, DQfD)

    Zero where the demonstrated action leads all others by the margin.

    >>> large_margin(torch.tensor([[1.0, 0.0], [1.0, 0.9]]), torch.tensor([0, 0]), 0.8)
    tensor([0.0000, 0.7000])
    """
    others = torch.full_like(q, margin).scatter_(1, actions[:, None], 0.0)
    return (q + others).amax(1) - chosen(q, actions)


def conservative(q: Tensor, actions: Tensor) -> Tensor:
    """CQL's penalty: log sum_a exp Q(s, a) - Q(s, a_data): actions that nobody took are kept down."""
    return q.logsumexp(1) - chosen(q, actions)


def familiar(logits: Tensor, threshold: float) -> Tensor:
    """BCQ's actions `[B, A]`: those at least `threshold` times as probable as the most probable one under beta.

    >>> familiar(torch.log(torch.tensor([[0.6, 0.3, 0.1]])), 0.3)
    tensor([[ True,  True, False]])
    """
    log_probs = torch.log_softmax(logits, 1)
    ratio = (log_probs - log_probs.amax(1, keepdim=True)).exp()
    return ratio >= threshold


def imitation_slope(beta: Tensor, actions: Tensor) -> Tensor:
    """The gradient of mean -log beta(a | s) at beta's logits: (beta - [a]) / B.

    >>> imitation_slope(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    tensor([[-0.2500,  0.2500]])
    """
    share = 1 / len(beta)
    return (beta * share).scatter_(1, actions[:, None], -share, reduce="add")


def error_slope(error: Tensor, actions: Tensor, count: int) -> Tensor:
    """The gradient of mean error^2 at Q, where error = Q(s, a) - R: 2 error [a] / B.

    >>> error_slope(torch.tensor([3.0, 1.0]), torch.tensor([0, 1]), 2)
    tensor([[3., 0.],
            [0., 1.]])
    """
    slope = error.new_zeros(len(error), count)
    return slope.scatter_(1, actions[:, None], (error * (2 / len(error)))[:, None])


def chosen(q: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) `[B]` of the actions taken."""
    return q.gather(1, actions[:, None]).squeeze(1)
