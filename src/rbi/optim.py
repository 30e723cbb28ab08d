"""Flat parameter vectors, Adam on them, and the optimiser step of a module.

All parameters of a module lie in one vector, so that an optimiser step, publishing weights, copying them to a target
network and saving them are single operations. The optimiser updates a float32 vector. Where networks compute in
bfloat16, their parameters are views of a second vector, refreshed by one copy after each step; in float32 they are
views of the optimised vector itself.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor, nn

from rbi import gpu
from rbi.gpu import SideStream

ALIGNMENT = 64  # parameters start at multiples of 64 numbers: fast kernels need 16-byte alignment
LARGE_PARAMETER = 1 << 20
ADAM_BETAS = (0.9, 0.999)
KERNEL_ELEMENTS = 1024  # numbers of one program of the Adam kernel


# Flat parameter vectors


def parameter_offsets(module: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """The parameters of a module and where each starts in the flat vector."""
    offsets, start = [], 0
    for parameter in module.parameters():
        offsets.append((parameter, start))
        start += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
    return offsets


def flat_size(module: nn.Module) -> int:
    """Length of a module's flat vector."""
    parameter, start = parameter_offsets(module)[-1]
    return start + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT


def flatten_parameters(module: nn.Module) -> Tensor:
    """The parameters of a module in one float32 vector, with zeros between them."""
    vector = torch.zeros(flat_size(module))
    for parameter, start in parameter_offsets(module):
        vector[start : start + parameter.numel()] = parameter.detach().reshape(-1)
    return vector


def bind_parameters(module: nn.Module, vector: Tensor) -> None:
    """Make the parameters of a module views of a flat vector, which holds their values."""
    for parameter, start in parameter_offsets(module):
        parameter.data = vector[start : start + parameter.numel()].view(parameter.shape)


def parameter_slots(module: nn.Module, vector: Tensor) -> list[Tensor]:
    """The parts of a flat vector that belong to a module's parameters, in their shapes."""
    offsets = parameter_offsets(module)
    return [vector[start : start + parameter.numel()].view(parameter.shape) for parameter, start in offsets]


def write_gradients(gradients: Sequence[Tensor], slots: Sequence[Tensor]) -> None:
    """Copy the gradients of a module's parameters into the `parameter_slots` of a flat vector."""
    small: list[tuple[Tensor, Tensor]] = []
    for slot, gradient in zip(slots, gradients, strict=True):
        if slot.is_cuda and slot.numel() < LARGE_PARAMETER:
            small.append((slot.view(-1), gradient.reshape(-1)))
        else:  # one kernel for all tensors would give each of its few blocks too much of a large one
            slot.copy_(gradient)
    if small:
        torch._foreach_copy_([slot for slot, _ in small], [gradient for _, gradient in small])


def compute_dtype(device: torch.device, precision: Literal["auto", "float32"] = "auto") -> torch.dtype:
    """bfloat16 where the hardware has matrix units for it, float32 elsewhere or on request."""
    if precision == "float32":
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return torch.bfloat16 if amx() else torch.float32


class PeerLostError(Exception):
    """Another learner of a data-parallel run does not answer."""


class Peers:
    """The learners of a data-parallel run, each with an equal part of every batch; by default there is only one.

    With more they are the default group of torch.distributed. Means and maxima are those of the whole batch, so that
    one update of all learners is one update on the batch of the sum, and their weights stay equal.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the whole batch."""
        return self.average_(values.mean())

    def max(self, values: Tensor) -> Tensor:
        """The largest value of the whole batch."""
        return self.reduce_(values.max(), torch.distributed.ReduceOp.MAX)

    def average_(self, tensor: Tensor) -> Tensor:
        """The mean of all learners' tensors, in place."""
        return tensor if self.size == 1 else self.reduce_(tensor, torch.distributed.ReduceOp.SUM).div_(self.size)

    def reduce_(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.size > 1:
            try:
                torch.distributed.all_reduce(tensor, operation)
            except RuntimeError as error:  # Gloo's; NCCL ends the process
                raise PeerLostError(str(error)) from error
        return tensor


class Adam:
    """Adam on a flat float32 vector; `compute_vector` is the vector itself or its copy in a shorter precision.

    The learning rate falls linearly by the fraction `decay` over `decay_steps` steps and then stays. Steps are counted
    on the device, so that a captured or restored optimiser continues its schedule.
    """

    def __init__(
        self,
        vector: Tensor,
        compute_vector: Tensor,
        learning_rate: float,
        epsilon: float,
        decay: float = 0.0,
        decay_steps: int = 1,
    ) -> None:
        self.vector, self.compute_vector = vector, compute_vector
        # our kernel takes gradients in the networks' precision, PyTorch's in that of the vector
        self.own_kernel = gpu.usable(vector)
        self.gradient = torch.zeros_like(compute_vector if self.own_kernel else vector)
        self.learning_rate, self.epsilon, self.decay, self.decay_steps = learning_rate, epsilon, decay, decay_steps
        self.mean, self.square = torch.zeros_like(vector), torch.zeros_like(vector)
        self.count = torch.zeros((), device=vector.device)

    def step(self) -> None:
        """One step along `gradient`. On a GPU one kernel reads and writes each number once."""
        if self.own_kernel:
            from rbi.gpu.kernels import adam_kernel

            self.count += 1
            programs = -(-len(self.vector) // KERNEL_ELEMENTS)
            gpu.launch(
                adam_kernel, (programs,), self.vector,
                self.vector, self.compute_vector, self.gradient, self.mean, self.square, self.count, len(self.vector),
                self.learning_rate, self.decay / self.decay_steps, self.decay, *ADAM_BETAS, self.epsilon,
                KERNEL_ELEMENTS,
            )  # fmt: skip
            return
        rate = self.current_learning_rate()
        self.count += 1
        torch._fused_adam_(
            [self.vector], [self.gradient], [self.mean], [self.square], [], [self.count],
            lr=rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1], weight_decay=0.0,
            eps=self.epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip
        if self.compute_vector is not self.vector:
            self.compute_vector.copy_(self.vector)

    def current_learning_rate(self) -> float | Tensor:
        """The learning rate of the next step."""
        if not self.decay:
            return self.learning_rate
        decayed = (self.count * (self.decay / self.decay_steps)).clamp(max=self.decay)
        rate = self.learning_rate * (1 - decayed)
        return rate if self.vector.is_cuda else float(rate)

    def state(self) -> dict[str, Tensor]:
        return {"adam_mean": self.mean, "adam_square": self.square, "adam_count": self.count}


class ModuleOptimizer:
    """A module with its parameters in one flat `vector`, and Adam on it. Never synchronises with the device.

    The module computes in `dtype`; `compute_vector` holds its parameters in that precision (in float32 it is `vector`).
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        learning_rate: float,
        epsilon: float = 1e-8,
        *,
        dtype: torch.dtype = torch.float32,
        decay: float = 0.0,
        decay_steps: int = 1,
        peers: Peers | None = None,
    ) -> None:
        """`peers`: the learners of a data-parallel run, whose gradients are averaged."""
        self.peers = peers or Peers()
        self.vector = flatten_parameters(module).to(device)
        self.module = module.to(device, dtype).requires_grad_(True)
        self.compute_vector = self.vector if dtype == torch.float32 else self.vector.to(dtype)
        bind_parameters(module, self.compute_vector)
        self.parameters = list(module.parameters())
        self.adam = Adam(self.vector, self.compute_vector, learning_rate, epsilon, decay, decay_steps)
        self.slots = parameter_slots(module, self.adam.gradient)

    def step(
        self,
        outputs: Sequence[Tensor],
        output_grads: Sequence[Tensor] | None = None,
        *,
        side_stream: SideStream | None = None,
        l2_weight: float = 0.0,
    ) -> None:
        """One gradient step.

        `output_grads`: gradients of the losses at the outputs (`rbi.losses`); without them the outputs are scalar
        losses. Outputs that were computed on `side_stream` are differentiated there. `l2_weight` times the sum of all
        squared parameters is added to the loss.
        """
        gradients = torch.autograd.grad(outputs, self.parameters, output_grads)
        if side_stream is not None:
            side_stream.join()
        write_gradients(gradients, self.slots)
        self.peers.average_(self.adam.gradient)
        if l2_weight:
            self.adam.gradient.add_(self.compute_vector, alpha=2 * l2_weight)
        self.adam.step()

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, without copies: parameters, buffers (batch norm statistics), Adam's state."""
        buffers = {f"buffer.{name}": buffer for name, buffer in self.module.named_buffers()}
        return {"vector": self.vector, **buffers, **self.adam.state()}
