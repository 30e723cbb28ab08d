"""A dense layer whose weight learns, on a GPU, beside the way back to the layers below."""

import torch
from torch import Tensor
from torch.nn import functional

from rbi.nets.beside import learns_beside, may_learn_beside


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[B, in]` times weight `[out, in]`, and bias `[out]`: `torch.nn.functional.linear`."""
    if not may_learn_beside(x, weight):
        return functional.linear(x, weight, bias)
    return learns_beside(functional.linear(x, weight.detach(), bias), x, weight, weight_gradient)


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return torch.mm(dy.T, x)
