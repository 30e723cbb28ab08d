"""A network's weights as one vector: to step, publish, copy to the target and save them are single operations.

The optimiser steps a float32 vector. Where networks compute in bfloat16, their parameters are views of a second
vector, refreshed by one copy after each step; in float32 they are views of the stepped vector itself.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rbi import gpu
from rbi.gpu.streams import Beside

LARGE = 1 << 20
ALIGNED = 64  # each parameter starts at a multiple of so many numbers: fast kernels want addresses of 16 bytes


def places(module: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """The parameters of a module and where each starts in its vector."""
    found, start = [], 0
    for parameter in module.parameters():
        found.append((parameter, start))
        start += -(-parameter.numel() // ALIGNED) * ALIGNED
    return found


def size(module: nn.Module) -> int:
    """How long a module's vector is."""
    parameter, start = places(module)[-1]
    return start + -(-parameter.numel() // ALIGNED) * ALIGNED


def attach(module: nn.Module, vector: Tensor) -> None:
    """Make the parameters of the module views of a vector that holds their values."""
    for parameter, start in places(module):
        parameter.data = vector[start : start + parameter.numel()].view(parameter.shape)


def to_vector(module: nn.Module) -> Tensor:
    """The parameters of a module in one float32 vector, with zeros between them."""
    vector = torch.zeros(size(module))
    for parameter, start in places(module):
        vector[start : start + parameter.numel()] = parameter.detach().reshape(-1)
    return vector


def join(gradients: Sequence[Tensor], module: nn.Module, vector: Tensor) -> None:
    """Write the gradients of a module's parameters into one vector."""
    spans = [(start, parameter.numel()) for parameter, start in places(module)]
    flat = [gradient.reshape(-1) for gradient in gradients]
    slots = [vector[start : start + count] for start, count in spans]
    large = [i for i, (_, count) in enumerate(spans) if vector.is_cuda and count >= LARGE]
    for i in large:  # one kernel for all would give each of its few blocks too much of them
        slots[i].copy_(flat[i])
    small = [i for i in range(len(spans)) if i not in large]
    torch._foreach_copy_([slots[i] for i in small], [flat[i] for i in small])


def computing_dtype(device: torch.device, precision: Literal["auto", "float32"] = "auto") -> torch.dtype:
    """bfloat16 where the hardware multiplies matrices of it, float32 elsewhere, or where that is asked for."""
    if precision == "float32":
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return torch.bfloat16 if amx() else torch.float32


# ---- from rbi.nets.adam: Adam on one vector of weights, with the copy that networks compute with kept up to date.

BETAS = (0.9, 0.999)
NUMBERS_A_BLOCK = 1024


class Adam:
    """Adam's moments for a float32 vector. `computing` is the vector itself, or its copy in a shorter precision.

    The learning rate falls in a straight line over `span` steps, by the share `fall`, and then stays. The steps that
    were taken are counted on the device, so a captured step goes on falling, and so does a restored one.
    """

    def __init__(
        self, vector: Tensor, computing: Tensor, learning_rate: float, epsilon: float, fall: float = 0.0, span: int = 1
    ) -> None:
        self.vector, self.computing = vector, computing
        own = gpu.usable(vector)  # our kernel takes gradients as networks give them, PyTorch's as the vector is
        self.gradient = torch.zeros_like(computing if own else vector)
        self.learning_rate, self.epsilon, self.fall, self.span = learning_rate, epsilon, fall, span
        self.mean, self.square = torch.zeros_like(vector), torch.zeros_like(vector)
        self.count = torch.zeros((), device=vector.device)

    def step(self) -> None:
        """One step along `gradient`. On a GPU one kernel reads and writes each number once."""
        if gpu.usable(self.vector):
            from rbi.gpu.kernels import adam_kernel

            self.count += 1
            blocks = -(-len(self.vector) // NUMBERS_A_BLOCK)
            gpu.launch(
                adam_kernel, (blocks,), self.vector,
                self.vector, self.computing, self.gradient, self.mean, self.square, self.count, len(self.vector),
                self.learning_rate, self.fall / self.span, self.fall, *BETAS, self.epsilon, NUMBERS_A_BLOCK,
            )  # fmt: skip
            return
        torch._fused_adam_(
            [self.vector], [self.gradient], [self.mean], [self.square], [], [self.count + 1],
            lr=self.rate(), beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=self.epsilon,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        self.count += 1
        if self.computing is not self.vector:
            self.computing.copy_(self.vector)

    def rate(self) -> float | Tensor:
        """The learning rate of the coming step."""
        if not self.fall:
            return self.learning_rate
        falling = self.learning_rate * (1 - (self.count * (self.fall / self.span)).clamp(max=self.fall))
        return falling if self.vector.is_cuda else float(falling)

    def state(self) -> dict[str, Tensor]:
        return {"adam_mean": self.mean, "adam_square": self.square, "adam_count": self.count}


# ---- from rbi.nets.trained: A module that learns: its weights as one vector, and Adam that steps it.


class Trained:
    """`module` with its weights in `vector`, on a device, in float32. Nothing here waits for the device."""

    def __init__(self, module: nn.Module, device: torch.device, learning_rate: float, epsilon: float = 1e-8) -> None:
        self.vector = to_vector(module).to(device)
        self.module = module.to(device).requires_grad_(True)
        attach(module, self.vector)
        self.parameters = list(module.parameters())
        self.adam = Adam(self.vector, self.vector, learning_rate, epsilon)

    def descend(
        self,
        outputs: Sequence[Tensor],
        slopes: Sequence[Tensor] | None = None,
        *,
        beside: Beside | None = None,
        penalty: float = 0.0,
    ) -> None:
        """One step down, where `slopes` are the losses' gradients at the outputs; without them the outputs are losses
        themselves. What was computed on a stream `beside` has its gradient computed there. `penalty` times the sum of
        all weights' squares is part of the loss."""
        gradients = torch.autograd.grad(outputs, self.parameters, slopes)
        if beside is not None:
            beside.join()
        join(gradients, self.module, self.adam.gradient)
        if penalty:
            self.adam.gradient.add_(self.vector, alpha=2 * penalty)
        self.adam.step()

    def state(self) -> dict[str, Tensor]:
        """All that changes, without a copy: weights, what batch norm has seen, Adam's memory."""
        seen = {f"buffer.{name}": buffer for name, buffer in self.module.named_buffers()}
        return {"vector": self.vector, **seen, **self.adam.state()}
