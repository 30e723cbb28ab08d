"""The networks of section 4, for data that does not grow: DQN's, held back from learning it by heart.

dropout -> (convolution -> batch norm -> ReLU) x 3 -> linear -> batch norm -> ReLU -> dropout -> actions, value
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbi.nets.convolution import convolve
from rbi.nets.dense import dense
from rbi.nets.networks import MOST_HIDDEN
from rbi.sight import Sight

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
    """A number for every action and one for the state. It looks at what `Sight.look` gives."""

    def __init__(self, sight: Sight, config: LogNetConfig) -> None:
        super().__init__()
        self.latent_dropout = config.latent_dropout
        self.layers = nn.ModuleList()
        channels = sight.channels() if sight.layers else 0
        for layer in sight.layers:
            self.layers.append(Normalised(layer.kernel**2 * channels, layer.filters, layer.kernel, layer.stride))
            channels = layer.filters
        features = sight.features()
        self.dense = nn.ModuleList()
        for _ in range(1 if sight.pictures else 2):  # a vector gets a second layer in place of the convolutions
            self.dense.append(Normalised(features, config.latent))
            features = config.latent
        self.heads = nn.Linear(config.latent, sight.actions + 1)

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

    def __init__(self, sight: Sight, config: LogNetConfig) -> None:
        super().__init__()
        self.net = LogNet(sight, config)

    def forward(self, seen: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits `[B, A]`."""
        out: Tensor = self.net(seen, generator)
        return out[:, :-1]


class LoggedQNet(nn.Module):
    """Q of beta, duelling: Q = V + a - mean a."""

    def __init__(self, sight: Sight, config: LogNetConfig) -> None:
        super().__init__()
        self.net = LogNet(sight, config)

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

    def __init__(self, sight: Sight, config: LogNetConfig, *, with_pi: bool = True) -> None:
        super().__init__()
        self.sight, self.config = sight, config
        self.q = LoggedQNet(sight, config)
        self.pi = LoggedPolicyNet(sight, config) if with_pi else None


def networks_for(sight: Sight, config: LogNetConfig, seed: int, *, with_pi: bool = True) -> LogNetworks:
    """Networks with weights drawn from a seed, on the CPU; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LogNetworks(sight, config, with_pi=with_pi)
