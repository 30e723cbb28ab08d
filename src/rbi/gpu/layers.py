"""Sums over rows: what a bias's gradient is made of. PyTorch's own kernels take up to ten microseconds for a few."""

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rbi import gpu
from rbi.gpu.streams import learns_beside, may_learn_beside

COLUMNS_A_BLOCK = 16
MOST_ROWS = 1024  # held at once by a block


def column_sums(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """`[N, C]`: the sums `[C]`, added up in float32 and given in `dtype`."""
    count, columns = rows.shape
    if not gpu.usable(rows) or not 0 < count <= MOST_ROWS:
        return rows.sum(0, dtype=torch.float32).to(dtype)
    from rbi.gpu.kernels import sums_kernel

    total = torch.empty(columns, dtype=dtype, device=rows.device)
    high = 1 << (count - 1).bit_length()
    blocks = -(-columns // COLUMNS_A_BLOCK)
    gpu.launch(sums_kernel, (blocks,), rows, rows.contiguous(), total, count, columns, high, COLUMNS_A_BLOCK)
    return total


# ---- from rbi.nets.dense: A dense layer that learns fast on a GPU: its weight, where asked, beside the way back, its bias by one kernel.


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


# ---- from rbi.nets.convolution: Convolution, bias and relu as one step, channels last: cuDNN's kernels on a GPU, matrix products on a processor.
#
# On a processor a convolution with kernel k and a stride s that divides it is three matrix products, one forward and two
# backward, over patches that are copied once: about 1.5 times as fast as `torch.conv2d` where that has no fast backward
# (measured on two Neoverse-N1 cores with the network of DQN).


def conv_output_size(size: int, kernel: int, stride: int) -> int:
    """Pixels per side after a convolution without padding."""
    return (size - kernel) // stride + 1


CUDNN_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def convolve_relu(x: Tensor, weight: Tensor, bias: Tensor, kernel: int, stride: int) -> Tensor:
    """relu(convolution + bias) of `[B, H, W, C]` with weight `[out, kernel * kernel * C]`: `[B, h, w, out]`."""
    x = x.contiguous()
    answer: Tensor
    if not x.is_cuda or x.dtype not in CUDNN_DTYPES:
        answer = _ByPatches.apply(x, weight, bias, kernel, stride)
        return answer
    beside = may_learn_beside(x, weight)
    answer = _Fused.apply(x, weight.detach() if beside else weight, bias, kernel, stride)
    if beside:
        answer = learns_beside(answer, x, weight, partial(convolution_weight_gradient, weight.shape, kernel, stride))
    answer = _Masked.apply(answer)
    return answer


def convolve(x: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
    """The convolution alone, without bias and relu."""
    x = x.contiguous()
    if not x.is_cuda:
        answer: Tensor = _Products.apply(x, weight, kernel, stride)
        return answer
    if not may_learn_beside(x, weight):
        return by_cudnn(x, weight, kernel, stride)
    y = by_cudnn(x, weight.detach(), kernel, stride)
    return learns_beside(y, x, weight, partial(convolution_weight_gradient, weight.shape, kernel, stride))


def by_cudnn(x: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
    pictures = functional.conv2d(x.permute(0, 3, 1, 2), as_filters(weight, x, kernel), stride=stride)
    return pictures.permute(0, 2, 3, 1)


def as_filters(weight: Tensor, x: Tensor, kernel: int) -> Tensor:
    """Weight `[out, kernel * kernel * C]` as PyTorch's convolutions take it, without a copy."""
    return weight.view(-1, kernel, kernel, x.shape[3]).permute(0, 3, 1, 2)


def back(
    dy: Tensor, x: Tensor, filters: Tensor, stride: int, *, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a convolution's input `[B, H, W, C]` and weight `[out, kernel * kernel * C]`, if wanted."""
    dx, d_filters, _ = torch.ops.aten.convolution_backward(
        dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), filters, None,
        [stride] * 2, [0] * 2, [1] * 2, False, [0] * 2, 1, [of_x, of_weight, False],
    )  # fmt: skip
    return (
        dx.permute(0, 2, 3, 1) if of_x else None,
        d_filters.permute(0, 2, 3, 1).reshape(len(d_filters), -1) if of_weight else None,
    )


def convolution_weight_gradient(shape: torch.Size, kernel: int, stride: int, dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of a convolution's weight, whose numbers it does not depend on."""
    _, d_weight = back(dy, x, as_filters(x.new_empty(shape), x, kernel), stride, of_x=False, of_weight=True)
    assert d_weight is not None
    return d_weight


class _Fused(torch.autograd.Function):
    """Convolution, bias and relu in one kernel forward; backward without relu, whose mask `_Masked` puts on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: int, stride: int) -> Tensor:
        filters = as_filters(weight, x, kernel)
        y = torch.cudnn_convolution_relu(x.permute(0, 3, 1, 2), filters, bias, [stride] * 2, [0] * 2, [1] * 2, 1)
        ctx.save_for_backward(x, weight)
        ctx.geometry = (kernel, stride)
        return y.permute(0, 2, 3, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        kernel, stride = ctx.geometry
        of_x, of_weight, *_ = ctx.needs_input_grad
        dx, d_weight = back(grads[0], x, as_filters(weight, x, kernel), stride, of_x=of_x, of_weight=of_weight)
        flat = grads[0].reshape(-1, len(weight))
        d_bias = (flat.new_ones(1, len(flat)) @ flat).view(-1)  # a product sums faster than a reduction here
        return dx, d_weight, d_bias, None, None


class _Masked(torch.autograd.Function):
    """What relu has given forward, and its mask backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        masked: Tensor = torch.ops.aten.threshold_backward(grads[0], ctx.saved_tensors[0], 0)
        return masked


class _ByPatches(torch.autograd.Function):
    """Matrix products over patches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: int, stride: int) -> Tensor:
        seen = patches(x, kernel, stride)
        y = torch.addmm(bias, seen.flatten(0, 2), weight.T).relu_()
        ctx.save_for_backward(seen, weight, y)
        ctx.geometry = (x.shape, kernel, stride)
        return y.view(*seen.shape[:3], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        seen, weight, y = ctx.saved_tensors
        x_shape, kernel, stride = ctx.geometry
        dy = torch.ops.aten.threshold_backward(grads[0].reshape(y.shape), y, 0)
        d_weight = dy.T @ seen.flatten(0, 2)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = input_gradient(dy.view(*seen.shape[:3], -1), weight, x_shape, kernel, stride)
        return dx, d_weight, dy.sum(0), None, None


class _Products(torch.autograd.Function):
    """The same without bias and relu."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
        seen = patches(x, kernel, stride)
        ctx.save_for_backward(seen, weight)
        ctx.geometry = (x.shape, kernel, stride)
        return (seen.flatten(0, 2) @ weight.T).view(*seen.shape[:3], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        seen, weight = ctx.saved_tensors
        x_shape, kernel, stride = ctx.geometry
        dy = grads[0].reshape(-1, len(weight))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = input_gradient(dy.view(*seen.shape[:3], -1), weight, x_shape, kernel, stride)
        return dx, dy.T @ seen.flatten(0, 2), None, None


def patches(x: Tensor, kernel: int, stride: int) -> Tensor:
    """`[B, H, W, C]`, contiguous, to `[B, h, w, kernel * kernel * C]`: what each output pixel of a convolution sees."""
    batch, height, width, channels = x.shape
    h, w = conv_output_size(height, kernel, stride), conv_output_size(width, kernel, stride)
    row = width * channels
    strides = (height * row, stride * row, stride * channels, row, 1)
    seen = x.as_strided((batch, h, w, kernel, kernel * channels), strides, x.storage_offset())
    return seen.reshape(batch, h, w, kernel * kernel * channels)


def input_gradient(dy: Tensor, weight: Tensor, x_shape: Any, kernel: int, stride: int) -> Tensor:
    """The gradient of a convolution's input: with stride 1, what each output pixel sends back to what it saw; else a
    convolution of the padded output gradient.

    With kernel = m * stride, each block of stride x stride input pixels is seen by the same m x m output pixels:

        dx[block i, j] = sum over p, q of dy[i - p, j - q] @ weight[:, p, :, q, :]
    """
    _, height, width, channels = x_shape
    batch, h, w, out = dy.shape
    if stride == 1:
        sent = (dy.reshape(-1, out) @ weight).view(batch, h, w, kernel, kernel, channels)
        dx = dy.new_zeros(x_shape)
        for p, q in itertools.product(range(kernel), repeat=2):
            dx[:, p : p + h, q : q + w] += sent[:, :, :, p, q]
        return dx
    m, s = kernel // stride, stride
    around = patches(functional.pad(dy, (0, 0, m - 1, m - 1, m - 1, m - 1)), m, 1)
    back = weight.view(out, m, s, m, s, channels).flip(1, 3).permute(1, 3, 0, 2, 4, 5).reshape(m * m * out, -1)
    blocks = (around.flatten(0, 2) @ back).view(batch, h + m - 1, w + m - 1, s, s, channels)
    dx = blocks.transpose(2, 3).reshape(batch, (h + m - 1) * s, (w + m - 1) * s, channels)
    unseen = (0, 0, 0, width - dx.shape[2], 0, height - dx.shape[1])  # rows and columns that no patch reaches
    return functional.pad(dx, unseen) if any(unseen) else dx


# ---- from rbi.nets.layer_norm: Layer norm, bias and relu as one step: what each row of numbers differs by from its mean, in units of its spread.
#
#     y = relu((x - mean(x)) / sqrt(var(x) + epsilon) + bias)
#
# There is no gain: relu lets a positive factor through, and the layer above has factors of its own. Of a picture each
# position is a row, so that a ball of two pixels is as large in its place as a wall is in its own.

EPSILON = 1e-5
NUMBERS_A_BLOCK = 2048
MOST_BLOCKS = min(528, MOST_ROWS)  # each adds up its share of the bias's gradient: four for each core of a large GPU


def normalise_relu(x: Tensor, bias: Tensor, groups: int = 1) -> Tensor:
    """`[..., groups * C]` and bias `[groups * C]`: each group of C numbers is a row by itself."""
    if gpu.usable(x):
        answer: Tensor = layer_norm__Fused.apply(x.contiguous(), bias, groups)
        return answer
    rows = x.reshape(*x.shape[:-1], groups, -1)
    return (torch.layer_norm(rows, rows.shape[-1:], eps=EPSILON).flatten(-2) + bias).relu()


class layer_norm__Fused(torch.autograd.Function):
    """One kernel forward; one and a sum backward, where all else is computed again from x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, groups: int) -> Tensor:
        from rbi.gpu.kernels import forward_kernel

        width = len(bias) // groups
        y, rows = torch.empty_like(x), x.numel() // len(bias)
        high, wide = block_of(width)
        sizes = rows, width, groups, EPSILON, high, wide
        gpu.launch(forward_kernel, (-(-rows // high), groups), x, x, bias, y, *sizes)
        ctx.save_for_backward(x, bias)
        ctx.groups = groups
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from rbi.gpu.kernels import backward_kernel

        x, bias = ctx.saved_tensors
        width, dx, rows = len(bias) // ctx.groups, torch.empty_like(x), x.numel() // len(bias)
        high, wide = block_of(width)
        blocks = min(-(-rows // high), MOST_BLOCKS)
        parts = torch.empty((blocks, len(bias)), device=x.device)
        sizes = rows, width, ctx.groups, EPSILON, high, wide
        gpu.launch(backward_kernel, (blocks, ctx.groups), x, grads[0].contiguous(), x, bias, dx, parts, *sizes)
        return dx, column_sums(parts, bias.dtype), None


def block_of(width: int) -> tuple[int, int]:
    """How many rows of so many numbers a block takes, and their width; powers of two."""
    wide = 1 << (width - 1).bit_length()
    return max(1, NUMBERS_A_BLOCK // wide), wide
