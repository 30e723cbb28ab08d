"""Discrete BCQ and CQL: double Q-learning from a fixed dataset, restricted to actions that the data supports.

    minimise   mean_i [ huber(R_i + gamma_i Q_target(s'_i, a'_i) - Q(s_i, a_i))
                        + alpha (log sum_a exp Q(s_i, a) - Q(s_i, a_i)) ]
    a'_i     = argmax_a Q(s'_i, a)   among   beta(a | s'_i) >= threshold * max_b beta(b | s'_i)

    threshold > 0   discrete BCQ (Fujimoto et al. 2019): targets use only actions that are likely under beta
    alpha > 0       discrete CQL (Kumar et al. 2020): Q of actions that are not in the data is pushed down
    neither         double DQN

Both are baselines that the paper does not have. Our BCQ departs from the original, whose beta shares its first layers
with Q and trains with it: here beta is the network that all other methods of the table use.
"""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from rbi.config import Checked, Ge, Interval, check_fields
from rbi.data.sampler import Batch, Sampler
from rbi.losses import action_values, bcq_filter, cql_penalty, huber, mask_illegal, td_error
from rbi.networks import NetworkConfig, Networks
from rbi.offline_rl.learner import (
    MetricMeans,
    TargetNetwork,
    check_td_inputs,
    eval_mode,
    next_action_masks,
    refuse_dropout,
    without_dropout,
)
from rbi.optim import ModuleOptimizer

METRICS = ("td_loss", "td_error", "td_q", "cql_penalty", "bcq_allowed")


@dataclass(frozen=True)
class OfflineDQNConfig(Checked):
    """Hyperparameters of BCQ and CQL."""

    learning_rate: Annotated[float, Interval(gt=0, lt=1)] = 0.0000625
    """Learning rate of Adam."""
    adam_epsilon: Annotated[float, Interval(gt=0, lt=1)] = 1e-8
    """Epsilon of Adam."""
    target_update_interval: Annotated[int, Ge(1)] = 2500
    """Updates between two updates of the target network. With 1-step targets a reward propagates one state per target
    update: the 625 of a whole run of the paper's length cover the horizon of gamma = 0.99; the 95 that DQfD's interval
    of 16,384 would give (with its 10-step returns) do not."""
    cql_alpha: Annotated[float, Ge(0)] = 0.0
    """Weight of CQL's penalty, alpha (0 disables)."""
    bcq_threshold: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """BCQ: least probability of an action under beta, relative to the most probable action (0 disables)."""
    network: NetworkConfig = field(default_factory=without_dropout)

    def __post_init__(self) -> None:
        check_fields(self)
        refuse_dropout(self.network)


class OfflineDQN:
    """Trains a Q-network on a sampler of n-step returns, on its device.

    `beta` is the behaviour policy's network: BCQ needs it, nothing else does.
    """

    prefetcher = None

    def __init__(self, config: OfflineDQNConfig, networks: Networks, sampler: Sampler, beta: nn.Module | None) -> None:
        if config.bcq_threshold and beta is None:
            raise ValueError(f"bcq_threshold = {config.bcq_threshold}: needs beta")
        if not config.bcq_threshold and beta is not None:
            raise ValueError("bcq_threshold = 0: beta would not be used")
        check_td_inputs(networks, sampler)
        self.config, self.sampler, self.networks, self.obs_spec = config, sampler, networks.train(), networks.obs_spec
        self.trained = ModuleOptimizer(networks, sampler.device, config.learning_rate, config.adam_epsilon)
        self.target = TargetNetwork(networks, self.trained.vector)
        self.beta = None if beta is None else beta.to(sampler.device)
        self.next_masks = next_action_masks(sampler)
        self.sums = MetricMeans(METRICS, sampler.device)
        self.updates = 0

    def update(self) -> None:
        """One gradient step of Q."""
        self.networks.train()
        batch = self.sampler.draw()
        assert batch.next_states is not None
        next_obs = self.obs_spec.preprocess(batch.next_states, torch.float32)
        allowed = self.allowed_actions(batch, next_obs)
        next_value = self.target.next_value(next_obs, allowed)
        q, _ = self.networks.q(self.obs_spec.preprocess(batch.states, torch.float32))
        error = td_error(q, batch.actions, batch.returns, batch.discount, next_value)
        penalty = cql_penalty(q, batch.actions, batch.action_masks)
        loss = (huber(error) + self.config.cql_alpha * penalty).mean()
        with torch.no_grad(), self.sums.overlapping():
            share = self.sums.one if allowed is None else allowed.float().mean()
            self.sums.add(huber(error), error.abs(), action_values(q, batch.actions), penalty, share)
        self.trained.step([loss])
        self.sums.join()

    def allowed_actions(self, batch: Batch, next_obs: Tensor) -> Tensor | None:
        """Actions that targets may use, `[B, A]`: legal ones, and under BCQ those likely under beta. None: all."""
        legal = None if self.next_masks is None else self.next_masks.index_select(0, batch.steps)
        if self.beta is None:
            return legal
        with eval_mode(self.beta):
            return bcq_filter(mask_illegal(self.beta(next_obs), legal), self.config.bcq_threshold)

    def after_update(self) -> None:
        self.updates += 1
        if self.updates % self.config.target_update_interval == 0:
            self.target.synchronize()

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        return self.sums.means()

    def generators(self) -> list[torch.Generator]:
        """All generators that an update draws from."""
        return [self.sampler.generator]

    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes, not copied; beta too, which its owner updates now and then."""
        beta = {} if self.beta is None else {f"beta.{name}": t for name, t in self.beta.state_dict().items()}
        return self.trained.state() | self.target.state() | beta | {"sums": self.sums.sums}
