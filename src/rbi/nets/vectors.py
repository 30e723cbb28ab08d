"""A network's weights as one vector: to step, publish, copy to the target and save them are single operations.

The optimiser steps a float32 vector. Where networks compute in bfloat16, their parameters are views of a second
vector, refreshed by one copy after each step; in float32 they are views of the stepped vector itself.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

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
