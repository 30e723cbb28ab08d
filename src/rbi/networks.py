"""The networks of iterative RL: the duelling Q-net and the pi-net, for pictures or for vectors.

Both networks read `seen = Sight.look(frames)`, made once for all networks that look at the same states.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbi.gpu.layers import convolve, convolve_relu, dense, normalise_relu
from rbi.observations import ObservationSpec

Norm = Literal["none", "layer"]
NORMS: tuple[Norm, ...] = ("none", "layer")
MOST_HIDDEN = 65_536  # numbers in a hidden layer; more is a slip of the hand


class Trunk(nn.Module):
    """From what is seen to features: DQN's convolutions, or one hidden layer for vectors."""

    def __init__(self, obs_spec: ObservationSpec, hidden: int, norm: Norm = "none") -> None:
        super().__init__()
        self.layers, self.norm = obs_spec.layers, norm
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        channels = obs_spec.channels() if self.layers else 0
        for layer in self.layers:
            self.add(layer.kernel**2 * channels, layer.filters)
            channels = layer.filters
        self.features = obs_spec.features()
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

    def __init__(self, obs_spec: ObservationSpec, hidden: int, norm: Norm = "none") -> None:
        super().__init__()
        self.trunk = Trunk(obs_spec, hidden, norm)
        self.hidden = nn.Linear(self.trunk.features, 2 * hidden)  # both streams in one product
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, obs_spec.num_actions)

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

    def __init__(self, obs_spec: ObservationSpec, hidden: int, norm: Norm = "none") -> None:
        super().__init__()
        self.trunk = Trunk(obs_spec, hidden, norm)
        self.hidden = nn.Linear(self.trunk.features, hidden)
        self.logits = nn.Linear(hidden, obs_spec.num_actions)

    def forward(self, seen: Tensor) -> Tensor:
        """Logits `[B, A]`, in float32."""
        hidden = dense_relu(self.trunk(seen), self.hidden.weight, self.hidden.bias, self.trunk.norm)
        return dense(hidden, self.logits.weight, self.logits.bias).float()


class Networks(nn.Module):
    """A Q-net, and a pi-net beside it where a policy is learned."""

    def __init__(self, obs_spec: ObservationSpec, hidden: int, *, with_pi: bool, norm: Norm = "none") -> None:
        super().__init__()
        self.obs_spec, self.hidden, self.norm = obs_spec, hidden, norm
        self.q = QNet(obs_spec, hidden, norm)
        self.pi = PiNet(obs_spec, hidden, norm) if with_pi else None


def drawn(obs_spec: ObservationSpec, hidden: int, *, with_pi: bool, seed: int, norm: Norm = "none") -> Networks:
    """Networks with weights drawn from a seed, on the CPU; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Networks(obs_spec, hidden, with_pi=with_pi, norm=norm)


# ---- from rbi.nets.from_logs: The networks of section 4, for data that does not grow: DQN's, held back from learning it by heart.
#
# dropout -> (convolution -> batch norm -> ReLU) x 3 -> linear -> batch norm -> ReLU -> dropout -> actions, value

MOST_DROPPED = 0.99  # shares are counted in 256ths


@dataclass(frozen=True)
class LogNetConfig:
    """The networks for beta and Q.      (paper: table of hyperparameters)"""

    latent: int = 1024
    """Numbers in the last hidden layer."""
    input_dropout: float = 0.25
    """The share of what is seen that is blanked while learning."""
    latent_dropout: float = 0.5
    """The share of the last hidden layer that is blanked while learning."""

    def __post_init__(self) -> None:
        if not 1 <= self.latent <= MOST_HIDDEN:
            raise ValueError(f"latent = {self.latent}: must lie in [1, {MOST_HIDDEN:,}]")
        for name in ("input_dropout", "latent_dropout"):
            if not 0 <= getattr(self, name) <= MOST_DROPPED:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, {MOST_DROPPED}]")


class Normalised(nn.Module):
    """A layer without bias, batch norm and ReLU: over pictures with a kernel, over vectors without."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 0, stride: int = 0) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, seen: Tensor) -> Tensor:
        if not self.kernel:
            return functional.relu_(self.norm(product_of(seen, self.weight)))
        product = convolve(seen, self.weight, self.kernel, self.stride)
        if product.is_cuda:  # as pictures, channels last: over rows of numbers its kernels keep a few cores busy
            return functional.relu_(self.normed(product.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        return functional.relu_(self.norm(product.flatten(0, 2))).view_as(product)

    def normed(self, pictures: Tensor) -> Tensor:
        """Batch norm of `[B, C, H, W]`."""
        norm = self.norm
        means, variances = norm.running_mean, norm.running_var
        return functional.batch_norm(
            pictures, means, variances, norm.weight, norm.bias, self.training, norm.momentum or 0.0, norm.eps
        )


def product_of(seen: Tensor, weight: Tensor) -> Tensor:
    """`seen` `[B, in]` times `weight` `[out, in]`. A processor is faster with the larger matrix on the left."""
    return dense(seen, weight) if seen.is_cuda else (weight @ seen.T).T.contiguous()


class LogNet(nn.Module):
    """A number for every action and one for the state. It looks at what `ObservationSpec.look` gives."""

    def __init__(self, obs_spec: ObservationSpec, config: LogNetConfig) -> None:
        super().__init__()
        self.latent_dropout = config.latent_dropout
        self.layers = nn.ModuleList()
        channels = obs_spec.channels() if obs_spec.layers else 0
        for layer in obs_spec.layers:
            self.layers.append(Normalised(layer.kernel**2 * channels, layer.filters, layer.kernel, layer.stride))
            channels = layer.filters
        features = obs_spec.features()
        self.dense = nn.ModuleList()
        for _ in range(1 if obs_spec.is_image else 2):  # a vector gets a second layer in place of the convolutions
            self.dense.append(Normalised(features, config.latent))
            features = config.latent
        self.heads = nn.Linear(config.latent, obs_spec.num_actions + 1)

    def forward(self, seen: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """`[B, A + 1]`, in float32. With a generator, a share of the last hidden layer is blanked."""
        for layer in self.layers:
            seen = layer(seen)
        seen = seen.flatten(1)
        for layer in self.dense:
            seen = layer(seen)
        kept = dropped(seen, self.latent_dropout, generator)
        return dense(kept, self.heads.weight, self.heads.bias).float()


def dropped(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Blank a share of the numbers, in 256ths, and enlarge the others, so that their sum is expected to stay; nothing
    without a generator. A random word decides about eight of them: to draw one number for each takes far longer."""
    blank = round(256 * share)
    if generator is None or not blank:
        return x
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
    words.random_(-(2**63), None, generator=generator)
    kept = torch.ge(words.view(torch.uint8)[: x.numel()].view(x.shape), blank, out=torch.empty_like(x))
    return x * kept.mul_(256 / (256 - blank))


class LoggedPolicyNet(nn.Module):
    """beta: who acted, as a network; its softmax is the policy."""

    def __init__(self, obs_spec: ObservationSpec, config: LogNetConfig) -> None:
        super().__init__()
        self.net = LogNet(obs_spec, config)

    def forward(self, seen: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits `[B, A]`."""
        out: Tensor = self.net(seen, generator)
        return out[:, :-1]


class LoggedQNet(nn.Module):
    """Q of beta, duelling: Q = V + a - mean a."""

    def __init__(self, obs_spec: ObservationSpec, config: LogNetConfig) -> None:
        super().__init__()
        self.net = LogNet(obs_spec, config)

    def forward(
        self, seen: Tensor, _pi: Tensor | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Q(s, .) `[B, A]` and V(s) `[B]`."""
        out = self.net(seen, generator)
        return _Duel.apply(out), out[:, -1]


class _Duel(torch.autograd.Function):
    """`[B, A + 1]`, advantages a and V, to Q = V + a - mean a; with few kernels, since they are small."""

    @staticmethod
    def forward(_ctx: Any, out: Tensor) -> Tensor:
        advantage, value = out[:, :-1], out[:, -1:]
        return advantage + (value - advantage.mean(1, keepdim=True))

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        (dq,) = grads
        of_value = dq.sum(1, keepdim=True)
        return torch.cat([torch.sub(dq, of_value, alpha=1 / dq.shape[1]), of_value], 1)


class LogNetworks(nn.Module):
    """Both networks, as `rbi.Policy` takes them; without a pi-net where a Q is learned alone."""

    def __init__(self, obs_spec: ObservationSpec, config: LogNetConfig, *, with_pi: bool = True) -> None:
        super().__init__()
        self.obs_spec, self.config = obs_spec, config
        self.q = LoggedQNet(obs_spec, config)
        self.pi = LoggedPolicyNet(obs_spec, config) if with_pi else None


def networks_for(obs_spec: ObservationSpec, config: LogNetConfig, seed: int, *, with_pi: bool = True) -> LogNetworks:
    """Networks with weights drawn from a seed, on the CPU; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LogNetworks(obs_spec, config, with_pi=with_pi)
