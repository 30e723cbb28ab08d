"""The networks of iterative RL: the duelling Q-net and the pi-net, for pictures or for vectors.

Both networks read `seen = Sight.look(frames)`, made once for all networks that look at the same states.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbi.nets.convolution import convolve, convolve_relu
from rbi.nets.dense import dense
from rbi.nets.layer_norm import normalise_relu
from rbi.sight import Sight

Norm = Literal["none", "layer"]
NORMS: tuple[Norm, ...] = ("none", "layer")
MOST_HIDDEN = 65_536  # numbers in a hidden layer; more is a slip of the hand


class Trunk(nn.Module):
    """From what is seen to features: DQN's convolutions, or one hidden layer for vectors."""

    def __init__(self, sight: Sight, hidden: int, norm: Norm = "none") -> None:
        super().__init__()
        self.layers, self.norm = sight.layers, norm
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        channels = sight.channels() if self.layers else 0
        for layer in self.layers:
            self.add(layer.kernel**2 * channels, layer.filters)
            channels = layer.filters
        self.features = sight.features()
        if not self.layers:
            self.add(self.features, hidden)
            self.features = hidden

    def add(self, inputs: int, outputs: int) -> None:
        """Weights drawn as PyTorch draws those of its layers."""
        bound = 1 / math.sqrt(inputs)
        self.weights.append(nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound)))
        self.biases.append(nn.Parameter(torch.empty(outputs).uniform_(-bound, bound)))

    def forward(self, seen: Tensor) -> Tensor:
        if not self.layers:
            return dense_relu(seen, self.weights[0], self.biases[0], self.norm)
        for layer, weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            if self.norm == "layer":
                seen = normalise_relu(convolve(seen, weight, layer.kernel, layer.stride), bias)
            else:
                seen = convolve_relu(seen, weight, bias, layer.kernel, layer.stride)
        return seen.flatten(1)


def dense_relu(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, groups: int = 1) -> Tensor:
    """A hidden layer: a product, and then bias and relu, with layer norm of each group of outputs before or without."""
    if norm == "layer":
        return normalise_relu(dense(x, weight), bias, groups)
    return functional.relu(dense(x, weight, bias))


class QNet(nn.Module):
    """The duelling network: a value and an advantage stream.      (paper: appendix, RL with RBI)"""

    def __init__(self, sight: Sight, hidden: int, norm: Norm = "none") -> None:
        super().__init__()
        self.trunk = Trunk(sight, hidden, norm)
        self.hidden = nn.Linear(self.trunk.features, 2 * hidden)  # both streams in one product
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, sight.actions)

    def forward(self, seen: Tensor, pi: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Q(s, .) `[B, A]` and V(s) `[B]`, in float32."""
        value, advantage = self.streams(seen)
        return duel(value, advantage, pi), value.squeeze(1)

    def streams(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The value `[B, 1]` and the advantages `[B, A]` before they are centred."""
        both = dense_relu(self.trunk(seen), self.hidden.weight, self.hidden.bias, self.trunk.norm, groups=2)
        of_value, of_advantage = both.chunk(2, dim=1)
        value = dense(of_value, self.value.weight, self.value.bias)
        return value.float(), dense(of_advantage, self.advantage.weight, self.advantage.bias).float()

    def values(self, seen: Tensor) -> Tensor:
        """V(s) `[B]` alone: half of the work."""
        half = self.value.in_features
        weight, bias = self.hidden.weight[:half], self.hidden.bias[:half]
        value: Tensor = self.value(dense_relu(self.trunk(seen), weight, bias, self.trunk.norm))
        return value.float().squeeze(1)


def duel(value: Tensor, advantage: Tensor, pi: Tensor | None) -> Tensor:
    """Q `[B, A]` from a value `[B, 1]` and advantages:

        Q = V + a - sum_a pi(a) a

    so that V is the value of pi: sum_a pi(a) Q(a) = V. Without pi the mean takes its place, as in Ape-X.
    """
    centre = advantage.mean(1, keepdim=True) if pi is None else (pi * advantage).sum(1, keepdim=True)
    return value + advantage - centre


class PiNet(nn.Module):
    """The advantage branch of the duelling network; its softmax is the policy."""

    def __init__(self, sight: Sight, hidden: int, norm: Norm = "none") -> None:
        super().__init__()
        self.trunk = Trunk(sight, hidden, norm)
        self.hidden = nn.Linear(self.trunk.features, hidden)
        self.logits = nn.Linear(hidden, sight.actions)

    def forward(self, seen: Tensor) -> Tensor:
        """Logits `[B, A]`, in float32."""
        hidden = dense_relu(self.trunk(seen), self.hidden.weight, self.hidden.bias, self.trunk.norm)
        return dense(hidden, self.logits.weight, self.logits.bias).float()


class Networks(nn.Module):
    """A Q-net, and a pi-net beside it where a policy is learned."""

    def __init__(self, sight: Sight, hidden: int, *, with_pi: bool, norm: Norm = "none") -> None:
        super().__init__()
        self.sight, self.hidden, self.norm = sight, hidden, norm
        self.q = QNet(sight, hidden, norm)
        self.pi = PiNet(sight, hidden, norm) if with_pi else None


def drawn(sight: Sight, hidden: int, *, with_pi: bool, seed: int, norm: Norm = "none") -> Networks:
    """Networks with weights drawn from a seed, on the CPU; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Networks(sight, hidden, with_pi=with_pi, norm=norm)
