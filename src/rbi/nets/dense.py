"""A dense layer whose weight learns its gradient beside the way back to the layers below."""

from typing import Any

import torch
from torch import Tensor

from rbi.nets.beside import beside_the_way_back


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[B, in]` times weight `[out, in]`, and bias `[out]`: `torch.nn.functional.linear`."""
    answer: Tensor = _Dense.apply(x, weight, bias)
    return answer


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = grads
        x, weight = ctx.saved_tensors
        wants_x, _, wants_bias = ctx.needs_input_grad
        d_weight = beside_the_way_back(lambda: dy.T @ x, dy, x) if wants_x else dy.T @ x
        return dy @ weight if wants_x else None, d_weight, dy.sum(0) if wants_bias else None
