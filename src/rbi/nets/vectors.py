"""A network's weights as one vector: to step, publish, copy to the target and save them are single operations.

The optimiser steps a float32 vector. Where networks compute in bfloat16, their parameters are views of a second
vector, refreshed by one copy after each step; in float32 they are views of the stepped vector itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def attach(module: nn.Module, vector: Tensor) -> None:
    """Make the parameters of the module views of a vector that holds their values, in their order."""
    start = 0
    for parameter in module.parameters():
        end = start + parameter.numel()
        parameter.data = vector[start:end].view(parameter.shape)
        start = end


def to_vector(module: nn.Module) -> Tensor:
    """The parameters of a module, one after the other, in float32."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).float()


def joined(gradients: Sequence[Tensor]) -> Tensor:
    """Gradients of the parameters as one float32 vector."""
    return torch.cat([g.reshape(-1) for g in gradients]).float()


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def computing_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies matrices of it, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return torch.bfloat16 if amx() else torch.float32
