"""Networks: a convolutional or dense trunk, one hidden layer, and the heads of the dueling Q- and policy networks.

                      image                                    vector
    trunk    3 (or 2) convolutions                     1 dense layer                     or a module of the user's
    hidden   1 dense layer, `hidden_size` per stream   1 dense layer
    heads    Q-network: value and advantages           policy network: logits

Every layer of trunk and hidden is followed by its normalisation (none, layer or batch norm; "hidden": layer norm of the
hidden layer only) and a ReLU. All networks read `ObservationSpec.preprocess(frames)`, which is computed once for all
networks that read the same states.
"""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbi.config import Checked, Interval
from rbi.gpu.layers import conv_output_size, convolve, convolve_relu, dense, normalise_relu
from rbi.observations import ObservationSpec

Norm = Literal["none", "layer", "hidden", "batch"]
AdvantageBaseline = Literal["pi", "mean"]
MAX_HIDDEN_SIZE = 65_536  # larger values are almost certainly a mistake
SMALL_LAYER = 2**18  # weights; in smaller layers threads wait for each other longer than they compute
GLOBAL_GENERATOR = threading.RLock()  # PyTorch's, which initialises layers; other threads may make networks as well
LONG_ROW = 1024  # inputs of a dense layer, from which on a CPU computes W x^T faster than x W^T (measured on a Xeon)

TrunkFactory = Callable[[ObservationSpec], nn.Module]
"""Makes a trunk of one's own: a module from `[B, stack * channels, H, W]` (images, values in [0, 1)) or
`[B, stack * size]` (vectors) to features `[B, F]`."""


@dataclass(frozen=True)
class NetworkConfig(Checked):
    """Architecture of the Q- and the policy network."""

    hidden_size: Annotated[int, Interval(ge=1, le=MAX_HIDDEN_SIZE)] = 512
    """Units of the hidden layer, for each of its streams."""
    norm: Norm = "none"
    """Normalisation of trunk and hidden layer: none, layer norm, layer norm of the hidden layer only ("hidden"), or
    batch norm. Layer norm of a vector's first layer discards the vector's length, which "hidden" keeps. Batch norm is
    for learning from a fixed data set: its statistics are not part of the weights that online actors receive."""
    streams: Literal["separate", "shared"] = "separate"
    """Dueling: "separate" gives value and advantages a hidden layer each, centred by any policy (paper: section 5);
    "shared" computes both from one hidden layer and centres advantages by their mean (section 4)."""
    input_dropout: Annotated[float, Interval(ge=0, le=0.99)] = 0.0
    """Dropout of the network input while learning (in steps of 1/256)."""
    hidden_dropout: Annotated[float, Interval(ge=0, le=0.99)] = 0.0
    """Dropout of the hidden layer while learning (in steps of 1/256)."""

    @property
    def trunk_norm(self) -> Norm:
        return "none" if self.norm == "hidden" else self.norm

    @property
    def hidden_norm(self) -> Norm:
        return "layer" if self.norm == "hidden" else self.norm


def offline_network(hidden_size: int = 1024, input_dropout: float = 0.25, hidden_dropout: float = 0.5) -> NetworkConfig:
    """The networks for beta and Q of section 4.      (paper: table of hyperparameters)"""
    return NetworkConfig(hidden_size, "batch", "shared", input_dropout, hidden_dropout)


class ConvLayer(NamedTuple):
    filters: int
    kernel: int
    stride: int


NATURE_CNN = (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1))
"""The convolutions of DQN (Mnih et al. 2015), for images of 36 pixels or more."""
SMALL_CNN = (ConvLayer(16, 3, 1), ConvLayer(16, 3, 1))
"""For smaller images."""


def conv_layers(obs_spec: ObservationSpec) -> tuple[ConvLayer, ...]:
    """The convolutions over pixels, none for vectors."""
    if not obs_spec.is_image:
        return ()
    return NATURE_CNN if obs_spec.block_size == NATURE_CNN[0].stride else SMALL_CNN


class Layer(nn.Module):
    """A dense or convolutional layer with normalisation and ReLU.

    Weights `[outputs, inputs]`, for a convolution `[filters, kernel * kernel * channels]`. Layer norm has no gain: the
    next layer's weights scale its output anyway.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        norm: Norm,
        kernel: int = 0,
        stride: int = 1,
        *,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups, self.norm_kind = kernel, stride, groups, norm
        self.weight = uniform_parameter((outputs, inputs), inputs)
        self.norm = nn.BatchNorm1d(outputs) if norm == "batch" else None
        self.bias = uniform_parameter((outputs,), inputs) if bias and norm != "batch" else None

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """relu(norm(x W) + b), where `bias` replaces the layer's own."""
        bias = self.bias if bias is None else bias
        if bias is None:
            return self.batch_norm_relu(x)
        if not self.kernel:
            return dense_relu(x, self.weight, bias, self.norm_kind, self.groups)
        if self.norm_kind == "layer":
            return normalise_relu(convolve(x, self.weight, self.kernel, self.stride), bias)
        return convolve_relu(x, self.weight, bias, self.kernel, self.stride)

    def batch_norm_relu(self, x: Tensor) -> Tensor:
        norm = self.norm
        assert norm is not None
        if not self.kernel:
            # a CPU multiplies long rows faster with the weights on the left, and short ones up to 6 times slower
            transposed = not x.is_cuda and x.shape[1] >= LONG_ROW
            product = (self.weight @ x.T).T.contiguous() if transposed else dense(x, self.weight)
            return functional.relu_(norm(product))
        product = convolve(x, self.weight, self.kernel, self.stride)
        if not product.is_cuda:
            return functional.relu_(norm(product.flatten(0, 2))).view_as(product)
        # as channels-last images: over rows of numbers the GPU's kernels use only a few multiprocessors
        images = functional.batch_norm(
            product.permute(0, 3, 1, 2), norm.running_mean, norm.running_var, norm.weight, norm.bias, self.training,
            norm.momentum or 0.0, norm.eps,
        )  # fmt: skip
        return functional.relu_(images).permute(0, 2, 3, 1)

    @torch.no_grad()
    def fold_batch_norm(self) -> None:
        """Make batch norm's running statistics part of weights and bias: the same function, for use after training."""
        norm = self.norm
        if norm is None:
            return
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        self.weight.mul_(scale[:, None])
        self.bias = nn.Parameter(norm.bias - norm.running_mean * scale, requires_grad=False)
        self.norm, self.norm_kind = None, "none"


def uniform_parameter(shape: tuple[int, ...], inputs: int) -> nn.Parameter:
    """A parameter with PyTorch's default initialisation of layers."""
    bound = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def dense_relu(x: Tensor, weight: Tensor, bias: Tensor, norm: Norm, groups: int = 1) -> Tensor:
    """A dense layer and ReLU, with layer norm of each group of outputs if `norm` is "layer"."""
    if norm == "layer":
        return normalise_relu(dense(x, weight), bias, groups)
    return functional.relu_(dense(x, weight, bias))


class Trunk(nn.Module):
    """From network input to features: convolutions for images, one dense layer for vectors."""

    def __init__(self, obs_spec: ObservationSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.layers, self.biases = nn.ModuleList(), nn.ParameterList()  # weights precede biases in the flat vector
        if obs_spec.is_image:
            # `preprocess` gives blocks of pixels, over which the first convolution has stride 1
            first, *others = conv_layers(obs_spec)
            blocks = first._replace(kernel=first.kernel // first.stride, stride=1)
            channels, sizes = obs_spec.block_channels, [size // obs_spec.block_size for size in obs_spec.shape[:2]]
            for filters, kernel, stride in (blocks, *others):
                self.add(kernel**2 * channels, filters, config.trunk_norm, kernel, stride)
                channels, sizes = filters, [conv_output_size(size, kernel, stride) for size in sizes]
            self.out_features = math.prod(sizes) * channels
        else:
            self.add(obs_spec.stack * obs_spec.shape[0], config.hidden_size, config.trunk_norm)
            self.out_features = config.hidden_size

    def add(self, inputs: int, outputs: int, norm: Norm, kernel: int = 0, stride: int = 1) -> None:
        self.layers.append(Layer(inputs, outputs, norm, kernel, stride, bias=False))
        if norm != "batch":
            self.biases.append(uniform_parameter((outputs,), inputs))

    def forward(self, x: Tensor) -> Tensor:
        """Features `[B, out_features]`."""
        for layer, bias in zip_longest(self.layers, self.biases):
            x = layer(x, bias)
        return x.flatten(1)


class CustomTrunk(nn.Module):
    """A module of the user's as trunk; images reach it as `[B, stack * channels, H, W]`."""

    def __init__(self, obs_spec: ObservationSpec, make: TrunkFactory) -> None:
        super().__init__()
        self.obs_spec, self.module = obs_spec, make_module(obs_spec, make)
        example = obs_spec.preprocess(
            torch.zeros((2, obs_spec.stack, *obs_spec.shape), dtype=obs_spec.dtype), torch.float32
        )
        was_training = self.module.training
        try:
            with torch.enable_grad():
                features = self.eval()(example)
        except RuntimeError as error:
            shape = tuple(self.obs_spec.as_images(example).shape if obs_spec.is_image else example.shape)
            raise ValueError(f"trunk: failed on an input of shape {shape}: {' '.join(str(error).split())}") from error
        self.train(was_training)
        if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
            found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"trunk: must return features [B, F], and gave {found} for B = 2")
        if unused := unused_parameters(self.module, features):
            raise ValueError(f"trunk: the features have no gradient for its parameter {unused[0]}; remove it")
        self.out_features = features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.obs_spec.as_images(x) if self.obs_spec.is_image else x)

    def is_random(self) -> bool:
        """Whether the same states have other features in each call, as with dropout in training mode."""
        rows = 4 if self.obs_spec.is_image else 256
        with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(0)
            frames = torch.randint(2, (rows, self.obs_spec.stack, *self.obs_spec.shape)).to(self.obs_spec.dtype)
            x = self.obs_spec.preprocess(frames, torch.float32)
            return not torch.allclose(self(x), self(x), equal_nan=True)


def make_module(obs_spec: ObservationSpec, make: TrunkFactory) -> nn.Module:
    """The user's module. Raises ValueError if the function gives the same parameters again: each network has its own,
    and each actor a copy of both."""
    module = None if isinstance(make, nn.Module) else make(obs_spec)
    if not isinstance(module, nn.Module):
        found = "is a module" if module is None else f"returned {type(module).__name__}"
        raise ValueError(f"trunk: {found}; must be a function that makes a torch.nn.Module from an ObservationSpec")
    with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        again = make(obs_spec)
    own = {id(parameter) for parameter in module.parameters()}
    if any(id(parameter) in own for parameter in again.parameters()):  # as of a module from outside the function
        raise ValueError("trunk: the function returned the same parameters twice; make new ones each time")
    return module


def unused_parameters(module: nn.Module, features: Tensor) -> list[str]:
    """The names of trainable parameters that the features have no gradient for: they do not depend on them, or only
    under `no_grad`."""
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not named or not features.requires_grad:
        return list(named)
    gradients = torch.autograd.grad(features.sum(), list(named.values()), allow_unused=True)
    return [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]


class QNetwork(nn.Module):
    """The dueling Q-network: Q = V + A, with advantages centred by a policy or by their mean."""

    def __init__(self, obs_spec: ObservationSpec, config: NetworkConfig, trunk: TrunkFactory | None = None) -> None:
        super().__init__()
        self.trunk = make_trunk(obs_spec, config, trunk)
        self.shared, self.hidden_dropout = config.streams == "shared", config.hidden_dropout
        size, features = config.hidden_size, self.trunk.out_features
        if self.shared:
            self.hidden = Layer(features, size, config.hidden_norm)
            self.heads = nn.Linear(size, obs_spec.num_actions + 1)  # advantages, then the value
        else:
            self.hidden = Layer(features, 2 * size, config.hidden_norm, groups=2)  # both streams in one matrix product
            self.value = nn.Linear(size, 1)
            self.advantage = nn.Linear(size, obs_spec.num_actions)

    def forward(
        self, x: Tensor, pi: Tensor | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Q(s, .) `[B, A]` and V(s) `[B]`, in float32; with a generator, dropout is on.

        Advantages are centred by `pi` `[B, A]`, so that V is its value; by their mean without it, and always if streams
        are shared.
        """
        if self.shared:
            out = self.joint(x, generator)
            return _MeanCentred.apply(out), out[:, -1]
        value, advantage = self.value_and_advantage(x, generator)
        return dueling_q(value, advantage, pi), value.squeeze(1)

    def joint(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Advantages and value from the shared stream, `[B, A + 1]`."""
        hidden = dropout(self.hidden(self.trunk(x)), self.hidden_dropout, generator)
        return dense(hidden, self.heads.weight, self.heads.bias).float()

    def value_and_advantage(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """V `[B, 1]` and advantages `[B, A]`, not yet centred."""
        if self.shared:
            out = self.joint(x, generator)
            return out[:, -1:], out[:, :-1]
        hidden = dropout(self.hidden(self.trunk(x)), self.hidden_dropout, generator)
        of_value, of_advantage = hidden.chunk(2, dim=1)
        value = dense(of_value, self.value.weight, self.value.bias)
        return value.float(), dense(of_advantage, self.advantage.weight, self.advantage.bias).float()

    def features(self, x: Tensor) -> Tensor:
        """The last hidden layer `[B, H]`: values and advantages are linear in it."""
        return self.hidden(self.trunk(x))

    @torch.no_grad()
    def scale_outputs(self, factor: float) -> None:
        """Change the heads so that values and advantages are `factor` times what they were."""
        for head in (self.heads,) if self.shared else (self.value, self.advantage):
            head.weight.mul_(factor)
            head.bias.mul_(factor)

    def predict_value(self, x: Tensor) -> Tensor:
        """V(s) `[B]` alone; with separate streams that is half the work of the hidden layer."""
        if self.shared or self.hidden.bias is None:
            return self.value_and_advantage(x)[0].squeeze(1)
        half = self.value.in_features
        weight, bias = self.hidden.weight[:half], self.hidden.bias[:half]
        value: Tensor = self.value(dense_relu(self.trunk(x), weight, bias, self.hidden.norm_kind))
        return value.float().squeeze(1)


def dueling_q(value: Tensor, advantage: Tensor, pi: Tensor | None) -> Tensor:
    """Q `[B, A]` from a value `[B, 1]` and advantages `[B, A]`:      (paper: appendix, RL with RBI)

        Q = V + a - sum_a pi(a) a

    so that V is the value of pi: sum_a pi(a) Q(a) = V. Without pi the mean takes its place, as in Ape-X.
    """
    centre = advantage.mean(1, keepdim=True) if pi is None else (pi * advantage).sum(1, keepdim=True)
    return value + advantage - centre


class _MeanCentred(torch.autograd.Function):
    """`dueling_q` without pi, from `[B, A + 1]`: few kernels in either direction, since the tensors are small."""

    @staticmethod
    def forward(_ctx: Any, out: Tensor) -> Tensor:
        advantage, value = out[:, :-1], out[:, -1:]
        return advantage + (value - advantage.mean(1, keepdim=True))

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        (dq,) = grads
        d_value = dq.sum(1, keepdim=True)
        return torch.cat([torch.sub(dq, d_value, alpha=1 / dq.shape[1]), d_value], 1)


class PolicyNetwork(nn.Module):
    """A policy, softmax of its logits: the learned pi online, the behaviour policy beta offline."""

    def __init__(self, obs_spec: ObservationSpec, config: NetworkConfig, trunk: TrunkFactory | None = None) -> None:
        super().__init__()
        self.trunk = make_trunk(obs_spec, config, trunk)
        self.shared, self.hidden_dropout = config.streams == "shared", config.hidden_dropout
        self.hidden = Layer(self.trunk.out_features, config.hidden_size, config.hidden_norm)
        # with shared streams the network has the shape of the Q-network; its last output is unused
        self.logits = nn.Linear(config.hidden_size, obs_spec.num_actions + self.shared)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits `[B, A]`, in float32; with a generator, dropout is on."""
        hidden = dropout(self.hidden(self.trunk(x)), self.hidden_dropout, generator)
        logits = dense(hidden, self.logits.weight, self.logits.bias).float()
        return logits[:, :-1] if self.shared else logits


def make_trunk(obs_spec: ObservationSpec, config: NetworkConfig, make: TrunkFactory | None) -> Trunk | CustomTrunk:
    return Trunk(obs_spec, config) if make is None else CustomTrunk(obs_spec, make)


def dropout(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Dropout with probability `p`, in steps of 1/256; the identity without a generator.

    One random 64-bit word decides about eight numbers: to draw a number for each takes far longer.
    """
    threshold = round(256 * p)
    if generator is None or not threshold:
        return x
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
    words.random_(-(2**63), None, generator=generator)
    kept = torch.ge(words.view(torch.uint8)[: x.numel()].view(x.shape), threshold, out=torch.empty_like(x))
    return x * kept.mul_(256 / (256 - threshold))


class Networks(nn.Module):
    """A Q-network, and a policy network where one is learned.

    `trunk` makes a trunk of one's own, a new one for each network. Policies with such a trunk are saved without its
    code: to load one, the same function must be passed again.
    """

    def __init__(
        self,
        obs_spec: ObservationSpec,
        config: NetworkConfig,
        *,
        with_policy: bool = True,
        trunk: TrunkFactory | None = None,
    ) -> None:
        super().__init__()
        self.obs_spec, self.config, self.custom_trunk = obs_spec, config, trunk is not None
        self.q = QNetwork(obs_spec, config, trunk)
        self.pi = PolicyNetwork(obs_spec, config, trunk) if with_policy else None

    def describe(self) -> dict[str, Any]:
        """Everything but weights, observation spec and a custom trunk's code, for `from_description`."""
        return {**asdict(self.config), "with_policy": self.pi is not None, "custom_trunk": self.custom_trunk}

    @classmethod
    def from_description(
        cls, obs_spec: ObservationSpec, description: dict[str, Any], trunk: TrunkFactory | None = None
    ) -> "Networks":
        """Networks of a `describe` result; the weights are random until loaded."""
        config = dict(description)
        with_policy, custom = config.pop("with_policy"), config.pop("custom_trunk", False)
        if custom and trunk is None:
            raise ValueError("trunk: these networks have a custom trunk; pass the function that makes it")
        if trunk is not None and not custom:
            raise ValueError("trunk: these networks have no custom trunk")
        return cls(obs_spec, NetworkConfig(**config), with_policy=with_policy is True, trunk=trunk)


def make_networks(
    obs_spec: ObservationSpec,
    config: NetworkConfig,
    seed: int,
    *,
    with_policy: bool = True,
    trunk: TrunkFactory | None = None,
) -> Networks:
    """Networks initialised from a seed, on the CPU; PyTorch's global generators are left as they were."""
    with GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would also seed those of GPUs
        networks = Networks(obs_spec, config, with_policy=with_policy, trunk=trunk)
    if frozen := [name for name, parameter in networks.named_parameters() if not parameter.requires_grad]:
        raise ValueError(
            f"trunk: its parameter {frozen[0].partition('module.')[2]} is frozen, and training changes all of them; "
            "compute fixed features before, such as in a wrapper of the environment"
        )
    return networks


# Threads


@contextlib.contextmanager
def cpu_threads(device: torch.device, obs_shape: tuple[int, ...], hidden_size: int) -> Iterator[None]:
    """PyTorch's number of intra-op threads that suits the networks: one for small networks of vectors on a CPU.

    Image networks, large ones and those on a GPU keep the number as it is, and so does a number that the user chose: by
    OMP_NUM_THREADS, or by `torch.set_num_threads` with fewer threads than half of the cores, where PyTorch starts with
    all of them or, with two hardware threads a core, half. The number is restored at the end.
    """
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    chosen = "OMP_NUM_THREADS" in os.environ or threads < cores // 2
    small = len(obs_shape) == 1 and max(obs_shape[0], hidden_size) * hidden_size < SMALL_LAYER
    if chosen or not small or device.type != "cpu":
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
