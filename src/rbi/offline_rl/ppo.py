"""PPO's objective by gradient ascent from beta, as the paper's baseline.      (paper: section 4, appendix)

    maximise  mean_s sum_a beta(a|s) min(A c, A clip(c, 1 - epsilon, 1 + epsilon)),   c = pi(a|s) / beta(a|s)

with A = Q - sum_a beta Q. The maximiser is not unique: where ascent ends depends on its start and its length. `max_ppo`
returns one maximiser in closed form.
"""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rbi.config import Checked, Interval
from rbi.data.sampler import Sampler
from rbi.losses import mask_illegal, ppo_loss
from rbi.networks import Networks
from rbi.offline_rl.learner import MetricMeans, Prefetcher, frozen_copy
from rbi.optim import ModuleOptimizer

METRICS = ("ppo_objective",)


@dataclass(frozen=True)
class PPOAscentConfig(Checked):
    """Hyperparameters of PPO by gradient ascent."""

    epsilon: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    """Clipping of the probability ratio: gains above 1 + epsilon do not count."""
    updates: Annotated[int, Interval(ge=1, le=1_000_000_000_000)] = 10_000
    """Gradient steps."""
    learning_rate: Annotated[float, Interval(gt=0, lt=1)] = 0.00025
    """Learning rate of Adam."""


class PPOAscent:
    """A policy network that starts as beta and ascends PPO's objective.

    Batch norm keeps the statistics of beta and there is no dropout, so the ratio is 1 in every state at the start.
    """

    def __init__(
        self, config: PPOAscentConfig, behavior_q: Networks, sampler: Sampler, temperature: float = 1.0
    ) -> None:
        assert behavior_q.pi is not None
        self.config, self.behavior_q, self.sampler = config, behavior_q.eval(), sampler
        self.obs_spec, self.temperature = behavior_q.obs_spec, temperature
        self.beta, self.pi = behavior_q.pi, copy.deepcopy(behavior_q.pi).eval()
        self.trained = ModuleOptimizer(self.pi, sampler.device, config.learning_rate)
        self.sums = MetricMeans(METRICS, sampler.device)
        self.prefetcher = Prefetcher(sampler, self.obs_spec)
        self.updates = 0

    def update(self) -> None:
        """One step of gradient ascent."""
        batch, obs = self.prefetcher.next()
        loss = self.loss(obs, batch.action_masks).mean()
        self.sums.add(-loss.detach())
        self.trained.step([loss])

    def loss(self, obs: Tensor, legal: Tensor | None = None) -> Tensor:
        """The negative objective in each state, `[B]`; `legal` `[B, A]`, where actions were masked."""
        with torch.no_grad():
            beta = torch.softmax(mask_illegal(self.beta(obs), legal) / self.temperature, 1)
            q, _ = self.behavior_q.q(obs)
            advantage = q - (beta * q).sum(1, keepdim=True)
        pi = torch.softmax(mask_illegal(self.pi(obs), legal) / self.temperature, 1)
        return ppo_loss(pi, beta, advantage, self.config.epsilon)

    def after_update(self) -> None:
        self.updates += 1

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        return self.sums.means()

    def generators(self) -> list[torch.Generator]:
        return [self.sampler.generator]

    def state(self) -> dict[str, Tensor]:
        return self.trained.state() | {"sums": self.sums.sums}

    def policy_networks(self) -> Networks:
        """Networks of a policy with rule `Behavior()`: the trained policy network in place of beta."""
        found = frozen_copy(self.behavior_q)
        found.pi = copy.deepcopy(self.pi).requires_grad_(False)
        return found
