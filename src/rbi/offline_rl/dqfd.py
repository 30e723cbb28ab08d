"""DQfD: Q-learning from demonstrations, the pre-training phase only.      (paper: section 4; Hester et al. 2018)

    J = mean_i w_i [huber(1-step error_i) + lambda_n huber(n-step error_i) + lambda_E margin_i] + lambda_l2 |weights|^2
    margin_i = max_a [Q(s_i, a) + l (a != a_i)] - Q(s_i, a_i)

Both TD errors use double Q-learning. Steps are drawn by priority, (|1-step error_i| + epsilon)^exponent, and the
importance weights w_i correct a part of the bias. Hester et al. use the last 1-step error too. Their epsilon is 1 for
demonstrations, which is all there is here, and 0.001 for the agent's own experience; ours is 0.001, from the paper's
table.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from rbi.config import Ge, Gt, Interval, check_fields
from rbi.data.sampler import Batch, Sampler
from rbi.losses import action_values, dqfd_loss, huber, l2_loss, large_margin_loss, td_error
from rbi.networks import NetworkConfig, Networks
from rbi.offline_rl.learner import (
    MetricMeans,
    Prefetcher,
    TargetNetwork,
    check_td_inputs,
    next_action_masks,
    refuse_dropout,
    without_dropout,
)
from rbi.optim import ModuleOptimizer
from rbi.replay import PrioritySampler

METRICS = ("dqfd_loss", "dqfd_1_step", "dqfd_n_step", "dqfd_margin", "dqfd_l2", "dqfd_q", "dqfd_importance")


@dataclass(frozen=True)
class DQfDConfig:
    """Hyperparameters of DQfD.      (paper: table of hyperparameters, DQfD; the loss weights: Hester et al. 2018)"""

    learning_rate: Annotated[float, Interval(gt=0, lt=1)] = 0.0000625
    """Learning rate of Adam."""
    adam_epsilon: Annotated[float, Interval(gt=0, lt=1)] = 1e-8
    """Epsilon of Adam."""
    target_update_interval: Annotated[int, Ge(1)] = 16_384
    """Updates between two updates of the target network."""
    n_step: Annotated[int, Interval(ge=1, le=1_000_000)] = 10
    """Length of the n-step return, used in addition to the 1-step return."""
    margin: Annotated[float, Ge(0)] = 0.8
    """Margin l by which the demonstrated action should lead."""
    n_step_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the n-step loss, lambda_n."""
    margin_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the large-margin loss, lambda_E."""
    l2_weight: Annotated[float, Ge(0)] = 1e-5
    """Weight of the L2 regularisation, lambda_l2."""
    priority_exponent: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Exponent of the priorities (0: uniform sampling, 1: proportional to the TD error)."""
    importance_exponent: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the importance weights (0: no correction, 1: full correction of prioritised sampling)."""
    priority_epsilon: Annotated[float, Gt(0)] = 0.001
    """Added to each TD error before the exponent."""
    network: NetworkConfig = field(default_factory=without_dropout)

    def __post_init__(self) -> None:
        check_fields(self)
        refuse_dropout(self.network)


class DQfD:
    """Trains a Q-network on two samplers of the same episodes, of 1-step and of n-step returns, on their device."""

    prefetcher: Prefetcher | None = None

    def __init__(self, config: DQfDConfig, networks: Networks, one_step: Sampler, n_step: Sampler) -> None:
        check_samplers(config, one_step, n_step)
        for sampler in (one_step, n_step):
            check_td_inputs(networks, sampler)
        self.config, self.networks, self.obs_spec = config, networks.train(), networks.obs_spec
        self.one_step, self.n_step, self.device = one_step, n_step, one_step.device
        usable = np.intersect1d(one_step.usable, n_step.usable)
        if not len(usable):
            raise ValueError("no step has both a 1-step and an n-step return: nothing to sample")
        at = one_step.candidates.device
        self.steps = torch.from_numpy(usable).to(at)
        self.priorities = PrioritySampler(
            len(usable), config.priority_exponent, config.importance_exponent, config.priority_epsilon, at
        )
        self.trained = ModuleOptimizer(networks, self.device, config.learning_rate, config.adam_epsilon)
        self.target = TargetNetwork(networks, self.trained.vector)
        self.next_masks = [next_action_masks(sampler) for sampler in (one_step, n_step)]
        self.sums = MetricMeans(METRICS, self.device)
        self.updates = 0

    def update(self) -> None:
        """One gradient step of Q, and new priorities of the sampled steps."""
        config = self.config
        self.networks.train()
        positions, importance = self.priorities.draw(self.one_step.config.batch_size, self.one_step.generator)
        importance = importance.to(self.device, non_blocking=True)
        steps = self.steps.index_select(0, positions)
        one, n = self.one_step.batch(steps), self.n_step.batch(steps)
        next_value, n_step_value = self.next_values(one, n)
        q, _ = self.networks.q(self.obs_spec.preprocess(one.states, torch.float32))
        error = td_error(q, one.actions, one.returns, one.discount, next_value)
        n_step_error = td_error(q, n.actions, n.returns, n.discount, n_step_value)
        margin = large_margin_loss(q, one.actions, config.margin, one.action_masks)
        losses = dqfd_loss(error, n_step_error, margin, config.n_step_weight, config.margin_weight)
        loss = (importance * losses).mean()
        with torch.no_grad():
            l2 = l2_loss(self.trained.vector)
        with torch.no_grad(), self.sums.overlapping():
            parts = [huber(error), huber(n_step_error), margin, l2, action_values(q, one.actions), importance]
            self.sums.add(loss + config.l2_weight * l2, *(part.mean() for part in parts))
            self.priorities.update(positions, error.detach())
        self.trained.step([loss], l2_weight=config.l2_weight)
        self.sums.join()

    def next_values(self, one: Batch, n: Batch) -> tuple[Tensor, Tensor]:
        """V one step and n steps ahead, `[B]` each, in one pass through each network."""
        assert one.next_states is not None
        assert n.next_states is not None
        next_obs = self.obs_spec.preprocess(torch.cat([one.next_states, n.next_states]), torch.float32)
        masks = [table.index_select(0, one.steps) for table in self.next_masks if table is not None]
        next_value, n_step_value = self.target.next_value(next_obs, torch.cat(masks) if masks else None).chunk(2)
        return next_value, n_step_value

    def after_update(self) -> None:
        self.updates += 1
        if self.updates % self.config.target_update_interval == 0:
            self.target.synchronize()

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        return self.sums.means()

    def generators(self) -> list[torch.Generator]:
        """All generators that an update draws from."""
        return [self.one_step.generator]

    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes, not copied. Generators are saved separately."""
        return self.trained.state() | self.target.state() | self.priorities.state() | {"sums": self.sums.sums}


def check_samplers(config: DQfDConfig, one_step: Sampler, n_step: Sampler) -> None:
    """Refuse samplers that differ in more than the length of their returns, or that have weights."""
    if one_step.config.n_step != 1:
        raise ValueError(f"one_step.n_step = {one_step.config.n_step}: must be 1")
    if n_step.config.n_step != config.n_step:
        raise ValueError(f"n_step.n_step = {n_step.config.n_step}: must be {config.n_step}, the config's n_step")
    if one_step.data is not n_step.data or one_step.device != n_step.device:
        raise ValueError("one_step and n_step: must be samplers of the same episodes, on one device")
    if dataclasses.replace(one_step.config, n_step=config.n_step) != n_step.config:
        raise ValueError("one_step and n_step: their settings must be the same, except for the length of returns")
    if one_step.mass is not None or n_step.mass is not None:
        raise ValueError("weights: DQfD samples by its own priorities")
