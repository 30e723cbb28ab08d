"""Returns, priorities and exploration of iterative RL: pure functions over tensors.

A step ends in one of four ways, which stay apart: it goes on, a life is lost, the game is over, or time is up. A lost
life and a finished game end the return; time running out does not: what would have come is bootstrapped.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED = range(4)
MOST_STEPS = 10_000


@dataclass(frozen=True)
class ReturnConfig:
    """How far returns look ahead, and what the future counts."""

    n_step: int = 3
    """Rewards that are summed before the value takes over."""
    gamma: float = 0.99
    """What a reward one step later counts."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_step <= MOST_STEPS:
            raise ValueError(f"n_step = {self.n_step}: a return needs at least 1, and {MOST_STEPS:,} at most")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma = {self.gamma}: must lie in [0, 1]")


class NStep(NamedTuple):
    """n-step returns without their bootstrap: the target is `reward + discount * V(state `steps` later)`."""

    reward: Tensor
    discount: Tensor
    steps: Tensor


def n_step_returns(rewards: Tensor, ends: Tensor, gamma: float) -> NStep:
    """From `[B, n]` rewards and ends: sum_k gamma^k r_k up to the first end, and what the bootstrap counts.

    >>> rewards, ends = torch.tensor([[1.0, 1.0, 1.0]] * 3), torch.tensor([[0, 0, 0], [0, 1, 0], [3, 0, 0]])
    >>> n_step_returns(rewards, ends, 0.5)
    NStep(reward=tensor([1.7500, 1.5000, 1.0000]), discount=tensor([0.1250, 0.0000, 0.5000]), steps=tensor([3, 2, 1]))
    """
    n = rewards.shape[1]
    goes_on = (ends == CONTINUES).to(rewards.dtype)
    reached = torch.cat([torch.ones_like(goes_on[:, :1]), goes_on[:, :-1].cumprod(1)], dim=1)
    powers = gamma ** torch.arange(n + 1, device=rewards.device, dtype=rewards.dtype)
    steps = reached.sum(1).long()
    last = ends.gather(1, steps[:, None] - 1).squeeze(1)
    bootstraps = (last == CONTINUES) | (last == TRUNCATED)
    return NStep((reached * powers[:n] * rewards).sum(1), powers[steps] * bootstraps, steps)


class MonteCarlo(NamedTuple):
    """Discounted sums of all rewards to come, and how many steps there are to the end of each sum."""

    returns: Tensor
    left: Tensor


def monte_carlo(rewards: Tensor, ends: Tensor, gamma: float) -> MonteCarlo:
    """From `[S]` rewards and ends of episodes one after the other: sum_k gamma^k r_{t+k} up to the next end.

    Every end but CONTINUES ends the sum; a caller who lets returns run over lost lives clears those first. What comes
    after a truncation is unknown: gamma^left says how much of it is missing. Sums are doubled in length, log2 times.

    >>> monte_carlo(torch.tensor([1.0, 1.0, 1.0, 8.0]), torch.tensor([0, 0, 2, 3]), 0.5)
    MonteCarlo(returns=tensor([1.7500, 1.5000, 1.0000, 8.0000]), left=tensor([3, 2, 1, 1]))
    """
    size = len(rewards)
    ended = torch.nonzero(ends != CONTINUES).squeeze(1)
    if size and (not len(ended) or ended[-1] != size - 1):
        raise ValueError("the last step of all must be an end")
    step = torch.arange(size, device=rewards.device)
    left = ended[torch.searchsorted(ended, step)] - step + 1 if size else step
    sums, reach = rewards.to(torch.float64, copy=True), 1
    while size and reach < int(left.max()):
        sums[:-reach] += torch.where(left[:-reach] > reach, gamma**reach * sums[reach:], 0.0)
        reach *= 2
    return MonteCarlo(sums.to(rewards.dtype), left)


def exploration_ladder(players: int, base: float = 0.4, exponent: float = 7.0) -> Tensor:
    """Ape-X's exploration, one rate a player: eps_i = base^(1 + exponent * i / (players - 1)).

    >>> exploration_ladder(3)
    tensor([0.4000, 0.0162, 0.0007])
    """
    rung = torch.arange(players) / max(1, players - 1)
    return base ** (1 + exponent * rung)
