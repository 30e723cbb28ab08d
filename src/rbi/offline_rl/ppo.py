"""PPO's step as the paper takes it: gradient ascent on its objective, from beta.      (paper: section 4, appendix)

    maximise  mean_s sum_a beta(a|s) min(A c, A clip(c, 1 - eps, 1 + eps)),   c = pi(a|s) / beta(a|s)

with A = Q - sum_a beta Q. The maximiser is not unique; where an ascent ends depends on where it starts and how long it
takes, unlike `max_ppo`, which gives one of them in closed form.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from rbi.data.sampler import Sampler
from rbi.losses import ppo_loss
from rbi.networks import Networks
from rbi.offline_rl.behavior_q import Looks, frozen, means
from rbi.optim import ModuleOptimizer

METRICS = ("ppo_objective",)


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

    def __init__(self, config: AscentConfig, learned: Networks, sampler: Sampler, temperature: float = 1.0) -> None:
        assert learned.pi is not None
        self.config, self.learned, self.sampler, self.temperature = config, learned.eval(), sampler, temperature
        self.obs_spec, self.beta = learned.obs_spec, learned.pi
        self.pi = copy.deepcopy(learned.pi).eval()
        self.trained = ModuleOptimizer(self.pi, sampler.device, config.learning_rate)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=sampler.device)
        self.looks = Looks(sampler, self.obs_spec)
        self.steady: Looks | None = self.looks
        self.updates = 0

    def update(self) -> None:
        """One step uphill."""
        _, seen = self.looks.next()
        objective = self.objective(seen).mean()
        self.sums += torch.stack([objective.detach(), torch.ones_like(objective)])
        self.trained.step([-objective])

    def passed(self) -> None:
        """Count an update."""
        self.updates += 1

    def metrics(self) -> dict[str, float]:
        """The mean objective since the last call. Waits for the device."""
        return means(METRICS, self.sums)

    def generators(self) -> list[torch.Generator]:
        return [self.sampler.generator]

    def state(self) -> dict[str, Tensor]:
        return self.trained.state() | {"sums": self.sums}

    def objective(self, seen: Tensor) -> Tensor:
        """What each state earns, `[B]`."""
        with torch.no_grad():
            beta = torch.softmax(self.beta(seen) / self.temperature, 1)
            q, _ = self.learned.q(seen)
            advantage = q - (beta * q).sum(1, keepdim=True)
        pi = torch.softmax(self.pi(seen) / self.temperature, 1)
        return -ppo_loss(pi, beta, advantage, self.config.epsilon)

    def networks(self) -> Networks:
        """The networks of a policy whose behaviour is what was climbed to."""
        found = frozen(self.learned)
        found.pi = copy.deepcopy(self.pi).requires_grad_(False)
        return found
