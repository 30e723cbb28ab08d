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
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi.config import Checked, Ge, Gt, Interval, check_fields
from rbi.data.sampler import Sampler
from rbi.losses import action_values, dqfd_loss, dqfd_loss_grad, huber, l2_loss, max_with_margin
from rbi.networks import NetworkConfig, Networks
from rbi.offline_rl.learner import (
    MetricMeans,
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
class DQfDConfig(Checked):
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


class JointBatch(NamedTuple):
    """B steps with both their returns. The target of Q(state, action) is `returns + discount * V(next states)`."""

    states: Tensor
    """`[3 B, stack, *obs_shape]`: the states, the next ones of the 1-step returns, those of the n-step returns."""
    actions: Tensor
    """`[B]`"""
    returns: Tensor
    """`[B, 2]`: of one step and of n steps."""
    discount: Tensor
    """`[B, 2]`"""
    action_masks: Tensor | None
    """`[B, A]` if logged."""
    next_masks: Tensor | None
    """`[2 B, A]`: of the next states."""


class JointSampler:
    """Steps of two samplers at once: a gather each for their integers, floats and frames."""

    def __init__(self, one_step: Sampler, n_step: Sampler) -> None:
        self.sampler = one_step
        place, age = one_step.frame_index, one_step.age
        ahead = [torch.zeros_like(place), one_step.bootstrap_steps, n_step.bootstrap_steps]
        ages = [(age + steps).clamp(max=one_step.stack - 1) for steps in ahead]
        self.integers = torch.stack([*(place + steps for steps in ahead), *ages, one_step.actions], 1)
        self.floats = torch.stack([one_step.returns, n_step.returns, one_step.discount, n_step.discount], 1)
        masks = [table for sampler in (one_step, n_step) if (table := next_action_masks(sampler)) is not None]
        self.next_masks = torch.stack(masks, 1).to(place.device) if masks else None

    def batch(self, steps: Tensor) -> JointBatch:
        """The batch of these steps of the dataset."""
        sampler = self.sampler
        integers, floats = self.integers.index_select(0, steps).T, self.floats.index_select(0, steps)
        masks = None if sampler.action_masks is None else sampler.action_masks.index_select(0, steps)
        next_masks = None if self.next_masks is None else self.next_masks.index_select(0, steps)
        found = JointBatch(
            sampler.states(integers[:3].flatten(), integers[3:6].flatten()),
            integers[6],
            floats[:, :2],
            floats[:, 2:],
            masks,
            None if next_masks is None else next_masks.transpose(0, 1).flatten(0, 1),
        )
        sampler.limit_memory()
        if sampler.frames.device == sampler.device:
            return found
        return JointBatch(*(None if t is None else t.to(sampler.device, non_blocking=True) for t in found))  # type: ignore[arg-type]


class DQfD:
    """Trains a Q-network on two samplers of the same episodes, of 1-step and of n-step returns, on their device."""

    prefetcher = None

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
        self.joint = JointSampler(one_step, n_step)
        self.sums = MetricMeans(METRICS, self.device)
        self.updates = 0

    def update(self) -> None:
        """One gradient step of Q, and new priorities of the sampled steps; `dqfd_loss_grad` is the loss's gradient."""
        config = self.config
        self.networks.train()
        positions, importance = self.priorities.draw(self.one_step.config.batch_size, self.one_step.generator)
        importance = importance.to(self.device, non_blocking=True)
        batch = self.joint.batch(self.steps.index_select(0, positions))
        obs = self.obs_spec.preprocess(batch.states, torch.float32)
        now = len(batch.actions)
        next_values = self.target.next_value(obs[now:], batch.next_masks).view(2, now).T
        q, _ = self.networks.q(obs[:now])
        with torch.no_grad():
            value = action_values(q, batch.actions)
            errors = torch.addcmul(batch.returns, batch.discount, next_values) - value[:, None]
            best_value, best = max_with_margin(q, batch.actions, config.margin, batch.action_masks)
            weights = config.n_step_weight, config.margin_weight
            output_grad = dqfd_loss_grad(errors, batch.actions, best, q, importance, *weights)
            l2 = l2_loss(self.trained.vector)
            with self.sums.overlapping():
                margin = best_value - value
                loss = importance * dqfd_loss(errors, margin, *weights) + config.l2_weight * l2
                self.sums.add(loss, *huber(errors).unbind(1), margin, l2, value, importance)
                self.priorities.update(positions, errors[:, 0])
        self.trained.step([q], [output_grad], l2_weight=config.l2_weight)
        self.sums.join()

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
    """Refuse samplers that differ in more than the length of their returns."""
    if one_step.config.n_step != 1:
        raise ValueError(f"one_step.n_step = {one_step.config.n_step}: must be 1")
    if n_step.config.n_step != config.n_step:
        raise ValueError(f"n_step.n_step = {n_step.config.n_step}: must be {config.n_step}, the config's n_step")
    if one_step.data is not n_step.data or one_step.device != n_step.device:
        raise ValueError("one_step and n_step: must be samplers of the same episodes, on one device")
    if dataclasses.replace(one_step.config, n_step=config.n_step) != n_step.config:
        raise ValueError("one_step and n_step: their settings must be the same, except for the length of returns")
