"""Behaviour cloning and Monte-Carlo Q-values from a fixed dataset.      (paper: section 4)

    beta:  minimise  -log beta(a | s)        behaviour cloning
    Q:     minimise  (R - Q(s, a))^2          R: the Monte-Carlo return, ended by lost lives, rewards clipped

Both networks train on the same batches. Networks without a policy network train Q alone: where the probabilities of all
actions were logged, beta is known.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi.config import Checked, Interval
from rbi.data.dataset import Dataset
from rbi.data.episode import Array, FeatureRange
from rbi.data.sampler import Sampler
from rbi.gpu import SideStream
from rbi.losses import action_values, behavior_loss_grad, mask_illegal, monte_carlo_q_loss_grad
from rbi.networks import Layer, NetworkConfig, Networks, PolicyNetwork, QNetwork, Trunk, offline_network
from rbi.offline_rl.learner import MetricMeans, Prefetcher, frozen_copy
from rbi.optim import ModuleOptimizer

Q_METRICS = ("q_loss", "q")
METRICS = (*Q_METRICS, "beta_loss", "beta_accuracy")
BLOCK_ROWS = 1 << 16  # of float64 at a time: a copy of all vectors would take twice their memory


@dataclass(frozen=True)
class BehaviorQConfig(Checked):
    """Hyperparameters of beta and Q.      (paper: table of hyperparameters)"""

    learning_rate: Annotated[float, Interval(gt=0, lt=1)] = 0.00025
    """Learning rate of Adam, for both networks."""
    adam_epsilon: Annotated[float, Interval(gt=0, lt=1)] = 1e-8
    """Epsilon of Adam."""
    network: NetworkConfig = field(default_factory=offline_network)


class BehaviorQ:
    """Trains beta and Q on batches of a sampler, on its device."""

    def __init__(
        self, config: BehaviorQConfig, networks: Networks, sampler: Sampler, generator: torch.Generator
    ) -> None:
        self.config, self.sampler, self.generator = config, sampler, generator
        self.networks, self.obs_spec = networks, networks.obs_spec
        # input dropout has its own generator, so that batches can be prefetched
        self.dropout_generator = torch.Generator(generator.device).manual_seed(generator.initial_seed() + 1)
        self.prefetcher = Prefetcher(sampler, self.obs_spec, config.network.input_dropout, self.dropout_generator)
        self.trained = ModuleOptimizer(networks.train(), sampler.device, config.learning_rate, config.adam_epsilon)
        self.sums = MetricMeans(Q_METRICS if networks.pi is None else METRICS, sampler.device)
        self.side_stream = SideStream(sampler.device)
        self.updates = 0

    def update(self) -> None:
        """One gradient step of both networks. The gradients of the losses at the networks' outputs are closed forms:

        dL_beta / dlogits = (beta - [a]) / B,        dL_q / dQ(s, a) = 2 (Q(s, a) - R) / B
        """
        self.networks.train()
        batch, obs = self.prefetcher.next()
        outputs: list[Tensor] = []  # of beta, if it is learned
        if self.networks.pi is not None:
            with self.side_stream.overlapping():
                outputs = [self.networks.pi(obs, self.generator)]
        q, _ = self.networks.q(obs, generator=self.generator)
        self.side_stream.join()
        with torch.no_grad():
            error = action_values(q, batch.actions) - batch.returns
            if batch.complete is not None:
                # Departs from the paper: Q ignores returns of abandoned episodes that are mostly missing, beta does not
                error = error * batch.complete
            beta = [torch.softmax(mask_illegal(logits, batch.action_masks), 1) for logits in outputs]
            output_grads = [behavior_loss_grad(probs, batch.actions) for probs in beta]
            output_grads.append(monte_carlo_q_loss_grad(error, batch.actions, q.shape[1]))
            with self.sums.overlapping():
                self.add_metrics(beta, batch.actions, error, q)
        self.trained.step([*outputs, q], output_grads, side_stream=self.side_stream)
        self.sums.join()

    def after_update(self) -> None:
        self.updates += 1

    def add_metrics(self, betas: list[Tensor], actions: Tensor, error: Tensor, q: Tensor) -> None:
        found = [error.square(), q.mean(1)]
        for beta in betas:
            probs = action_values(beta, actions).clamp(min=1e-30)
            correct = beta.scatter(1, actions[:, None], 0.0).amax(1) < probs
            found += [-probs.log(), correct.float()]
        self.sums.add(*found)

    def metrics(self) -> dict[str, float]:
        """Means since the last call, and the RMSE of Q on complete returns. Waits for the device."""
        found, sampler = self.sums.means(), self.sampler
        complete = 1 if sampler.complete is None else 1 - sampler.excluded_fraction  # the others count as errors of 0
        return found | {"q_rmse": math.sqrt(found["q_loss"] / complete)}

    def generators(self) -> list[torch.Generator]:
        """All generators that an update draws from."""
        return [self.sampler.generator, self.generator, self.dropout_generator]

    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes, not copied. Generators are saved separately."""
        return self.trained.state() | {"sums": self.sums.sums}


def feature_range(sampler: Sampler) -> FeatureRange | None:
    """The range of every feature in a sampler's steps, which policies keep; None for images."""
    if sampler.data.spec.is_image:
        return None
    rows = sampler.frame_index[sampler.candidates].split(BLOCK_ROWS)
    low = torch.stack([sampler.frames[part].amin(0) for part in rows]).amin(0)
    high = torch.stack([sampler.frames[part].amax(0) for part in rows]).amax(0)
    return FeatureRange(tuple(low.tolist()), tuple(high.tolist()), tuple(feature_names(sampler.data)))


def feature_names(data: Dataset) -> list[str]:
    """Names of the numbers of a vector observation: the table's columns if known, else their index."""
    return data.feature_names or [f"observation {number}" for number in range(math.prod(data.spec.obs_shape))]


class Standardization(NamedTuple):
    """Means and scales that standardise vector observations and returns for training.

        x' = (x - shift) / scale        R' = (R - mean) / std

    `shift`, `scale`: `[size]` float64, or None for images, which are not standardised.
    """

    # Departs from the paper: Atari has images and clipped rewards; logs have observations and rewards of any scale.

    shift: Array | None
    scale: Array | None
    mean: float
    std: float


def fit_standardization(sampler: Sampler, *, observations: bool = True) -> Standardization:
    """Means and standard deviations of a sampler's steps. A constant feature keeps its scale.

    Stacked vectors are padded with zeros before the first one, so zero has to stay zero: no shift then. Without
    `observations` only returns are standardised.
    """
    known = sampler.candidates if sampler.complete is None else sampler.candidates[sampler.complete[sampler.candidates]]
    returns = sampler.returns[known].double().cpu().numpy()
    mean, std = float(returns.mean()), float(returns.std()) or 1.0
    if sampler.data.spec.is_image or not observations:
        return Standardization(None, None, mean, std)
    rows = sampler.frame_index[sampler.candidates].split(BLOCK_ROWS)

    def mean_of(statistic: Callable[[Tensor], Tensor]) -> Tensor:
        sums = [statistic(sampler.frames[part].double()).sum(0) for part in rows]
        return torch.stack(sums).sum(0) / len(sampler.candidates)

    shift = mean_of(lambda obs: obs if sampler.stack == 1 else torch.zeros_like(obs))
    scale = mean_of(lambda obs: (obs - shift).square()).sqrt().cpu().numpy()
    largest = torch.stack([sampler.frames[part].abs().amax(0) for part in rows]).amax(0).double().cpu().numpy()
    smallest = 1e-6 * largest  # anything smaller is rounding
    scale = np.where(scale > smallest, scale, np.maximum(largest, 1.0))
    return Standardization(shift.cpu().numpy(), scale, mean, std)


def standardize(sampler: Sampler, by: Standardization) -> None:
    """Make a sampler draw standardised observations and returns. Copies the vectors; the dataset is not changed."""
    sampler.returns.copy_((sampler.returns.double() - by.mean) / by.std)
    if by.shift is not None and by.scale is not None:
        shift, scale = (torch.from_numpy(part).to(sampler.frames.device) for part in (by.shift, by.scale))
        raw, sampler.frames = sampler.frames, torch.empty_like(sampler.frames)
        for part, out in zip(raw.split(BLOCK_ROWS), sampler.frames.split(BLOCK_ROWS), strict=True):
            out.copy_((part.double() - shift) / scale)


def unstandardize(networks: Networks, by: Standardization) -> Networks:
    """A copy of networks trained on standardised data that takes raw observations and predicts raw returns.

    The first layer computes W x' before its batch norm: W / scale takes x, and the running mean of batch norm moves by
    W shift / scale. The heads of Q are multiplied by std, and its value moves by mean.
    """
    found = frozen_copy(networks)
    for net in (found.pi, found.q):
        if net is not None:
            unstandardize_input(net, by, networks.obs_spec.stack)
    found.q.scale_outputs(by.std)
    with torch.no_grad():
        found.q.heads.bias[-1] += by.mean
    return found


def unstandardize_input(net: PolicyNetwork | QNetwork, by: Standardization, stack: int) -> None:
    """Change the first layer of a vector network so that it takes raw observations."""
    if by.shift is None or by.scale is None:
        return
    assert isinstance(net.trunk, Trunk)
    layer, device = net.trunk.layers[0], net.hidden.weight.device
    assert isinstance(layer, Layer)
    assert layer.norm is not None
    assert layer.norm.running_mean is not None
    shift, scale = (torch.from_numpy(np.tile(part, stack)).to(device) for part in (by.shift, by.scale))
    with torch.no_grad():
        weight = layer.weight.double() / scale
        layer.weight.copy_(weight)
        layer.norm.running_mean.add_((weight @ shift).float())
