"""PPO's step as the paper takes it: gradient ascent on its objective, from beta.      (paper: section 4, appendix)

    maximise  mean_s sum_a beta(a|s) min(A c, A clip(c, 1 - eps, 1 + eps)),   c = pi(a|s) / beta(a|s)

with A = Q - sum_a beta Q. The maximiser is not unique; where an ascent ends depends on where it starts and how long it
takes, unlike `max_ppo`, which gives one of them in closed form.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rbi import measures
from rbi.data import Sampler
from rbi.nets import Adam, attach, join, to_vector
from rbi.nets.from_logs import LogNetworks


@dataclass(frozen=True)
class AscentConfig:
    """How PPO's objective is climbed."""

    epsilon: float = 0.5
    """How far the ratio to beta is rewarded: up to 1 + epsilon."""
    updates: int = 10_000
    """Batches to learn from."""
    learning_rate: float = 0.00025
    """Step size of Adam."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon = {self.epsilon}: must lie between 0 and 1")
        if self.updates < 1:
            raise ValueError(f"updates = {self.updates}: must be at least 1")
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate = {self.learning_rate}: must lie between 0 and 1")


class PpoAscent:
    """A policy network that starts as beta's and climbs. Statistics of batch norm stay those of beta, without dropout:
    at the start the ratio is 1 in every state."""

    def __init__(self, config: AscentConfig, learned: LogNetworks, sampler: Sampler, temperature: float = 1.0) -> None:
        self.config, self.learned, self.sampler, self.temperature = config, learned.eval(), sampler, temperature
        self.sight = learned.sight
        self.pi = copy.deepcopy(learned.pi).eval().requires_grad_(True)
        self.vector = to_vector(self.pi).to(sampler.device)
        attach(self.pi, self.vector)
        self.parameters = list(self.pi.parameters())
        self.adam = Adam(self.vector, self.vector, config.learning_rate, 1e-8)
        self.updates = 0

    def learn(self) -> Iterator[float]:
        """Take all updates; the objective of each batch before its update."""
        while self.updates < self.config.updates:
            yield self.update()

    def update(self) -> float:
        """One step uphill."""
        seen = self.sight.look(self.sampler.draw().states, torch.float32)
        objective = self.objective(seen).mean()
        gradients = torch.autograd.grad(-objective, self.parameters)
        join(gradients, self.pi, self.adam.gradient)
        self.adam.step()
        self.updates += 1
        return float(objective.detach())

    def objective(self, seen: Tensor) -> Tensor:
        """What each state earns, `[B]`."""
        with torch.no_grad():
            beta = torch.softmax(self.learned.pi(seen) / self.temperature, 1)
            q, _ = self.learned.q(seen)
            advantage = q - (beta * q).sum(1, keepdim=True)
        pi = torch.softmax(self.pi(seen) / self.temperature, 1)
        earned: Tensor = measures.ppo_objective(pi, beta, advantage, self.config.epsilon)
        return earned

    def networks(self) -> LogNetworks:
        """The networks of a policy whose behaviour is what was climbed to."""
        found = copy.deepcopy(self.learned)
        found.pi = copy.deepcopy(self.pi).requires_grad_(False)
        return found.eval()
