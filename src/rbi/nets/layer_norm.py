"""Layer norm, bias and relu as one step: what each row of numbers differs by from its mean, in units of its spread.

    y = relu((x - mean(x)) / sqrt(var(x) + epsilon) + bias)

There is no gain: relu lets a positive factor through, and the layer above has factors of its own. Of a picture each
position is a row, so that a ball of two pixels is as large in its place as a wall is in its own.
"""

from typing import Any

import torch
from torch import Tensor

from rbi import kernels
from rbi.nets.sums import MOST_ROWS, column_sums

EPSILON = 1e-5
NUMBERS_A_BLOCK = 2048
MOST_BLOCKS = min(528, MOST_ROWS)  # each adds up its share of the bias's gradient: four for each core of a large GPU


def normalise_relu(x: Tensor, bias: Tensor, groups: int = 1) -> Tensor:
    """`[..., groups * C]` and bias `[groups * C]`: each group of C numbers is a row by itself."""
    if kernels.usable(x):
        answer: Tensor = _Fused.apply(x.contiguous(), bias, groups)
        return answer
    rows = x.reshape(*x.shape[:-1], groups, -1)
    return (torch.layer_norm(rows, rows.shape[-1:], eps=EPSILON).flatten(-2) + bias).relu()


class _Fused(torch.autograd.Function):
    """One kernel forward; one and a sum backward, where all else is computed again from x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, groups: int) -> Tensor:
        from rbi.nets.layer_norm_kernel import forward_kernel

        width = len(bias) // groups
        y, rows = torch.empty_like(x), x.numel() // len(bias)
        high, wide = block_of(width)
        sizes = rows, width, groups, EPSILON, high, wide
        kernels.launch(forward_kernel, (-(-rows // high), groups), x, x, bias, y, *sizes)
        ctx.save_for_backward(x, bias)
        ctx.groups = groups
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from rbi.nets.layer_norm_kernel import backward_kernel

        x, bias = ctx.saved_tensors
        width, dx, rows = len(bias) // ctx.groups, torch.empty_like(x), x.numel() // len(bias)
        high, wide = block_of(width)
        blocks = min(-(-rows // high), MOST_BLOCKS)
        parts = torch.empty((blocks, len(bias)), device=x.device)
        sizes = rows, width, ctx.groups, EPSILON, high, wide
        kernels.launch(backward_kernel, (blocks, ctx.groups), x, grads[0].contiguous(), x, bias, dx, parts, *sizes)
        return dx, column_sums(parts, bias.dtype), None


def block_of(width: int) -> tuple[int, int]:
    """How many rows of so many numbers a block takes, and their width; powers of two."""
    wide = 1 << (width - 1).bit_length()
    return max(1, NUMBERS_A_BLOCK // wide), wide
