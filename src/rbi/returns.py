"""Monte-Carlo and n-step returns.

A step ends in one of four ways: it continues, a life is lost, the episode is terminated, or a time limit truncates it.
A lost life and a terminal state end the return; a truncation does not: the value of the last state is bootstrapped.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from rbi.config import Checked, Interval
from rbi.steps import CONTINUES, TRUNCATED

MAX_N_STEP = 10_000


@dataclass(frozen=True)
class ReturnConfig(Checked):
    """n-step returns."""

    n_step: Annotated[int, Interval(ge=1, le=MAX_N_STEP)] = 3
    """Rewards that are summed before the value is bootstrapped. More propagate rewards faster, with more variance."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor: rewards more than about 1 / (1 - gamma) steps away hardly count."""


class NStepReturns(NamedTuple):
    """n-step returns without their bootstrap: the target is `reward + discount * V(the state `steps` later)`."""

    reward: Tensor
    discount: Tensor
    steps: Tensor


def n_step_returns(rewards: Tensor, ends: Tensor, gamma: float) -> NStepReturns:
    """From `[B, n]` rewards and ends: sum_k gamma^k r_k up to the first end, and the discount of the bootstrap.

    >>> rewards, ends = torch.tensor([[1.0, 1.0, 1.0]] * 3), torch.tensor([[0, 0, 0], [0, 1, 0], [3, 0, 0]])
    >>> reward, discount, steps = n_step_returns(rewards, ends, 0.5)
    >>> reward, discount, steps
    (tensor([1.7500, 1.5000, 1.0000]), tensor([0.1250, 0.0000, 0.5000]), tensor([3, 2, 1]))
    """
    # Departs from the paper: its R_i = sum_{t=1..n} gamma^t r_{i+t} is read as the usual n-step return.
    n = rewards.shape[1]
    continues = (ends == CONTINUES).to(rewards.dtype)
    reached = torch.cat([torch.ones_like(continues[:, :1]), continues[:, :-1].cumprod(1)], dim=1)
    powers = gamma ** torch.arange(n + 1, device=rewards.device, dtype=rewards.dtype)
    steps = reached.sum(1).long()
    last = ends.gather(1, steps[:, None] - 1).squeeze(1)
    bootstraps = (last == CONTINUES) | (last == TRUNCATED)
    return NStepReturns((reached * powers[:n] * rewards).sum(1), powers[steps] * bootstraps, steps)


class MonteCarloReturns(NamedTuple):
    """Discounted sums of all rewards to come, and the number of steps to the end of each sum."""

    returns: Tensor
    left: Tensor


def monte_carlo_returns(rewards: Tensor, ends: Tensor, gamma: float) -> MonteCarloReturns:
    """From `[S]` rewards and ends of consecutive episodes: sum_k gamma^k r_{t+k} up to the next end.

    Every end but CONTINUES ends the sum; to let returns continue over lost lives, clear those first. What comes after a
    truncation is unknown: gamma^left is its weight. Computed by doubling the length of sums, log2 times.

    >>> returns, left = monte_carlo_returns(torch.tensor([1.0, 1.0, 1.0, 8.0]), torch.tensor([0, 0, 2, 3]), 0.5)
    >>> returns, left
    (tensor([1.7500, 1.5000, 1.0000, 8.0000]), tensor([3, 2, 1, 1]))
    """
    size = len(rewards)
    ended = torch.nonzero(ends != CONTINUES).squeeze(1)
    if size and (not len(ended) or ended[-1] != size - 1):
        raise ValueError("ends: the last step must be an end")
    step = torch.arange(size, device=rewards.device)
    left = ended[torch.searchsorted(ended, step)] - step + 1 if size else step
    sums, reach = rewards.to(torch.float64, copy=True), 1
    while size and reach < int(left.max()):
        sums[:-reach] += torch.where(left[:-reach] > reach, gamma**reach * sums[reach:], 0.0)
        reach *= 2
    return MonteCarloReturns(sums.to(rewards.dtype), left)


def exploration_ladder(num_envs: int, base: float = 0.4, exponent: float = 7.0) -> Tensor:
    """Ape-X's exploration rates `[num_envs]`: eps_i = base^(1 + exponent * i / (num_envs - 1)).

    >>> exploration_ladder(3)
    tensor([0.4000, 0.0162, 0.0007])
    """
    rung = torch.arange(num_envs) / max(1, num_envs - 1)
    return base ** (1 + exponent * rung)
