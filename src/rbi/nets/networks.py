"""The networks of iterative RL: the duelling Q-net and the pi-net, for pictures or for vectors.

Both networks read `seen = Sight.look(frames)`, made once for all networks that look at the same states.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbi.nets.convolution import convolve_relu, out_size


class Layer(NamedTuple):
    filters: int
    kernel: int
    stride: int


NATURE = (Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1))
"""The convolutions of DQN, for pictures of 36 pixels or more."""
SMALL = (Layer(16, 3, 1), Layer(16, 3, 1))
"""For games of a few pixels."""
SMALLEST_NATURE, SMALLEST = 36, 5
BRIGHTEST = 256  # a power of two, so that a byte divided by it is exact in bfloat16


@dataclass(frozen=True)
class Sight:
    """What a network sees, and among how many actions it chooses.

    `frame`: the shape of one frame, `(height, width)` or `(height, width, channels)` of bytes, or `(size,)` of floats.
    `stack`: how many frames, oldest first, make a state.
    """

    frame: tuple[int, ...]
    stack: int
    actions: int

    def __post_init__(self) -> None:
        if len(self.frame) not in (1, 2, 3) or min(self.frame) < 1 or self.stack < 1 or self.actions < 1:
            raise ValueError(f"no network sees frames of shape {self.frame}, {self.stack} at a time")
        if self.pictures and min(self.frame[:2]) < SMALLEST:
            raise ValueError(f"frames of {self.frame[0]} x {self.frame[1]} pixels are too small: {SMALLEST} at least")

    @property
    def pictures(self) -> bool:
        return len(self.frame) > 1

    @property
    def block(self) -> int:
        """The stride of the first convolution: pictures are seen in blocks of so many pixels squared."""
        return self.kind[0].stride

    @property
    def kind(self) -> tuple[Layer, ...]:
        """The convolutions as they are usually written, none for vectors."""
        if not self.pictures:
            return ()
        return NATURE if min(self.frame[:2]) >= SMALLEST_NATURE else SMALL

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions over what `look` gives: the first one, with stride 1, over blocks of pixels."""
        if not self.pictures:
            return ()
        first, *others = self.kind
        return (Layer(first.filters, first.kernel // first.stride, 1), *others)

    def look(self, frames: Tensor, dtype: torch.dtype) -> Tensor:
        """`[B, stack, *frame]` as the networks read it, in their precision.

        Pictures become `[B, H / s, W / s, s * s * channels]` for a first convolution of stride s: a kernel of 8 x 8
        pixels and stride 4 is one of 2 x 2 blocks and stride 1, with channels enough for fast kernels.
        """
        if not self.pictures:
            return frames.flatten(1).to(dtype)
        s, (height, width) = self.block, self.frame[:2]
        high, wide = height // s, width // s
        frames = frames[:, :, : high * s, : wide * s].view(len(frames), self.stack, high, s, wide, s, -1)
        blocks = frames.permute(0, 2, 4, 3, 5, 1, 6)
        seen = torch.empty(blocks.shape, dtype=dtype, device=frames.device)
        return torch.mul(blocks, 1 / BRIGHTEST, out=seen).view(len(frames), high, wide, -1)

    def channels(self) -> int:
        """How many numbers `look` gives for a block."""
        return self.block**2 * self.stack * math.prod(self.frame[2:])

    def features(self) -> int:
        """How many numbers leave the convolutions."""
        if not self.pictures:
            return self.stack * self.frame[0]
        height, width = (size // self.block for size in self.frame[:2])
        for layer in self.layers:
            height, width = (out_size(size, layer.kernel, layer.stride) for size in (height, width))
        return height * width * self.layers[-1].filters


class Trunk(nn.Module):
    """From what is seen to features: DQN's convolutions, or one hidden layer for vectors."""

    def __init__(self, sight: Sight, hidden: int) -> None:
        super().__init__()
        self.layers = sight.layers
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
            return functional.relu(functional.linear(seen, self.weights[0], self.biases[0]))
        for layer, weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            seen = convolve_relu(seen, weight, bias, layer.kernel, layer.stride)
        return seen.flatten(1)


class QNet(nn.Module):
    """The duelling network: a value and an advantage stream.      (paper: appendix, RL with RBI)"""

    def __init__(self, sight: Sight, hidden: int) -> None:
        super().__init__()
        self.trunk = Trunk(sight, hidden)
        self.hidden = nn.Linear(self.trunk.features, 2 * hidden)  # both streams in one product
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, sight.actions)

    def forward(self, seen: Tensor, pi: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Q(s, .) `[B, A]` and V(s) `[B]`, in float32.

            Q = V + a - sum_a pi(a) a

        so that V is the value of pi: sum_a pi(a) Q(a) = V. Without pi the mean takes its place, as in Ape-X.
        """
        of_value, of_advantage = functional.relu(self.hidden(self.trunk(seen))).chunk(2, dim=1)
        value = self.value(of_value).float()
        advantage = self.advantage(of_advantage).float()
        centre = advantage.mean(1, keepdim=True) if pi is None else (pi * advantage).sum(1, keepdim=True)
        return value + advantage - centre, value.squeeze(1)

    def values(self, seen: Tensor) -> Tensor:
        """V(s) `[B]` alone: half of the work."""
        half = self.value.in_features
        hidden = functional.linear(self.trunk(seen), self.hidden.weight[:half], self.hidden.bias[:half])
        value: Tensor = self.value(functional.relu(hidden))
        return value.float().squeeze(1)


class PiNet(nn.Module):
    """The advantage branch of the duelling network; its softmax is the policy."""

    def __init__(self, sight: Sight, hidden: int) -> None:
        super().__init__()
        self.trunk = Trunk(sight, hidden)
        self.hidden = nn.Linear(self.trunk.features, hidden)
        self.logits = nn.Linear(hidden, sight.actions)

    def forward(self, seen: Tensor) -> Tensor:
        """Logits `[B, A]`, in float32."""
        logits: Tensor = self.logits(functional.relu(self.hidden(self.trunk(seen))))
        return logits.float()


class Networks(nn.Module):
    """A Q-net, and a pi-net beside it where a policy is learned."""

    def __init__(self, sight: Sight, hidden: int, *, with_pi: bool) -> None:
        super().__init__()
        self.sight, self.hidden = sight, hidden
        self.q = QNet(sight, hidden)
        self.pi = PiNet(sight, hidden) if with_pi else None


def drawn(sight: Sight, hidden: int, *, with_pi: bool, seed: int) -> Networks:
    """Networks with weights drawn from a seed, on the CPU; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Networks(sight, hidden, with_pi=with_pi)
