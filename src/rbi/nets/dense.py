"""A dense layer that learns fast on a GPU: its weight, where asked, beside the way back, its bias by one kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rbi.nets.beside import learns_beside, may_learn_beside
from rbi.nets.sums import column_sums


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[B, in]` times weight `[out, in]`, and bias `[out]`: `torch.nn.functional.linear`."""
    if not may_learn_beside(x, weight):
        return product(x, weight, bias)
    return learns_beside(product(x, weight.detach(), bias), x, weight, weight_gradient)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None or not x.is_cuda:
        return functional.linear(x, weight, bias)
    answer: Tensor = _WithBias.apply(x, weight, bias)
    return answer


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return torch.mm(dy.T, x)


class _WithBias(torch.autograd.Function):
    """PyTorch's dense layer, but for the way its bias learns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = grads[0].contiguous()
        of_x, of_weight, _ = ctx.needs_input_grad
        return (
            dy @ weight if of_x else None,
            weight_gradient(dy, x) if of_weight else None,
            column_sums(dy, weight.dtype),
        )
