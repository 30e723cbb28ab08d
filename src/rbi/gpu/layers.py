"""Dense layer, convolution, layer norm and column sums, each with the fastest forward and backward pass we measured.

On a GPU: PyTorch's and cuDNN's kernels, bias gradients and layer norm by our own (Triton). On a CPU: PyTorch's own
layers; on ARM, where PyTorch has no fast backward convolution, matrix products over patches.
"""

import functools
import itertools
import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rbi import gpu

LAYER_NORM_EPSILON = 1e-5
CUDNN_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# 1.5 times as fast as conv2d on two Neoverse-N1 cores; on x86 conv2d is 1.3 to 1.8 times as fast (decision 013)
PATCHES_ON_CPU = platform.machine() in ("aarch64", "arm64")

SUM_COLUMNS = 16  # columns of one program of the column-sum kernel
SUM_MAX_ROWS = 1024  # rows that it holds at once
NORM_ELEMENTS = 2048  # numbers of one program of the layer-norm kernels
NORM_MAX_PROGRAMS = min(528, SUM_MAX_ROWS)  # partial sums of the bias gradient: four per multiprocessor of a large GPU


# Column sums


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums `[C]` over the rows of `[N, C]`, accumulated in float32 and returned in `dtype`."""
    rows, columns = x.shape
    if not gpu.usable(x) or not 0 < rows <= SUM_MAX_ROWS:
        return x.sum(0, dtype=torch.float32).to(dtype)
    from rbi.gpu.kernels import column_sum_kernel

    total = torch.empty(columns, dtype=dtype, device=x.device)
    block_rows = 1 << (rows - 1).bit_length()
    programs = -(-columns // SUM_COLUMNS)
    gpu.launch(column_sum_kernel, (programs,), x, x.contiguous(), total, rows, columns, block_rows, SUM_COLUMNS)
    return total


# Dense layer


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: `[B, in]` times weight `[out, in]`, plus bias `[out]`."""
    if bias is None or not x.is_cuda:
        return functional.linear(x, weight, bias)
    y: Tensor = _LinearWithBias.apply(x, weight, bias)
    return y


class _LinearWithBias(torch.autograd.Function):
    """PyTorch's dense layer, except that the bias gradient comes from `column_sums`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = grads[0].contiguous()
        needs_x, needs_weight, _ = ctx.needs_input_grad
        return (
            dy @ weight if needs_x else None,
            torch.mm(dy.T, x) if needs_weight else None,
            column_sums(dy, weight.dtype),
        )


# Convolution without padding over channels-last images, weight `[filters, kernel * kernel * channels]`


def conv_output_size(size: int, kernel: int, stride: int) -> int:
    """Pixels per side after a convolution without padding."""
    return (size - kernel) // stride + 1


def convolve(x: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
    """The convolution of `[B, H, W, C]`: `[B, h, w, filters]`."""
    x = x.contiguous()
    if uses_patches(x):
        y: Tensor = _PatchConv.apply(x, weight, kernel, stride)
        return y
    images = functional.conv2d(x.permute(0, 3, 1, 2), as_filters(weight, x, kernel), stride=stride)
    return images.permute(0, 2, 3, 1)


def convolve_relu(x: Tensor, weight: Tensor, bias: Tensor, kernel: int, stride: int) -> Tensor:
    """relu(convolution + bias) of `[B, H, W, C]`: `[B, h, w, filters]`."""
    x = x.contiguous()
    own: type[torch.autograd.Function] | None = None
    if x.is_cuda and x.dtype in CUDNN_DTYPES:
        own = _CudnnConvRelu
    elif uses_patches(x):
        own = _PatchConvRelu
    if own is not None:
        y: Tensor = own.apply(x, weight, bias, kernel, stride)
        return y
    images = functional.conv2d(x.permute(0, 3, 1, 2), as_filters(weight, x, kernel), bias, stride=stride)
    return functional.relu_(images).permute(0, 2, 3, 1)


def uses_patches(x: Tensor) -> bool:
    """Whether matrix products over patches are faster here. A graph for another runtime has ordinary convolutions."""
    return PATCHES_ON_CPU and not x.is_cuda and not torch.compiler.is_compiling()


def as_filters(weight: Tensor, x: Tensor, kernel: int) -> Tensor:
    """Weight `[filters, kernel * kernel * C]` as a view in the layout of PyTorch's convolutions."""
    return weight.view(-1, kernel, kernel, x.shape[3]).permute(0, 3, 1, 2)


class _CudnnConvRelu(torch.autograd.Function):
    """Convolution, bias and ReLU in one cuDNN kernel forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: int, stride: int) -> Tensor:
        filters = as_filters(weight, x, kernel)
        y = torch.cudnn_convolution_relu(x.permute(0, 3, 1, 2), filters, bias, [stride] * 2, [0] * 2, [1] * 2, 1)
        y = y.permute(0, 2, 3, 1)
        ctx.save_for_backward(x, weight, y)
        ctx.geometry = (kernel, stride)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        kernel, stride = ctx.geometry
        needs_x, needs_weight, *_ = ctx.needs_input_grad
        dy = torch.ops.aten.threshold_backward(grads[0], y, 0)
        dx, d_filters, _ = torch.ops.aten.convolution_backward(
            dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), as_filters(weight, x, kernel), None,
            [stride] * 2, [0] * 2, [1] * 2, False, [0] * 2, 1, [needs_x, needs_weight, False],
        )  # fmt: skip
        flat = dy.reshape(-1, len(weight))
        return (
            dx.permute(0, 2, 3, 1) if needs_x else None,
            d_filters.permute(0, 2, 3, 1).reshape(len(weight), -1) if needs_weight else None,
            (flat.new_ones(1, len(flat)) @ flat).view(-1),  # a matrix product sums faster than a reduction here
            None,
            None,
        )


class _PatchConvRelu(torch.autograd.Function):
    """Convolution, bias and ReLU as three matrix products, one forward and two backward, over patches copied once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: int, stride: int) -> Tensor:
        seen = patches(x, kernel, stride)
        y = torch.addmm(bias, seen.flatten(0, 2), weight.T).relu_()
        ctx.save_for_backward(seen, weight, y)
        ctx.geometry = (x.shape, kernel, stride)
        return y.view(*seen.shape[:3], len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        seen, weight, y = ctx.saved_tensors
        dy = torch.ops.aten.threshold_backward(grads[0].reshape(y.shape), y, 0)
        d_weight = dy.T @ seen.flatten(0, 2)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = patch_input_gradient(dy.view(*seen.shape[:3], -1), weight, *ctx.geometry)
        return dx, d_weight, dy.sum(0), None, None


class _PatchConv(torch.autograd.Function):
    """The same without bias and ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
        seen = patches(x, kernel, stride)
        ctx.save_for_backward(seen, weight)
        ctx.geometry = (x.shape, kernel, stride)
        return (seen.flatten(0, 2) @ weight.T).view(*seen.shape[:3], len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        seen, weight = ctx.saved_tensors
        dy = grads[0].reshape(-1, len(weight))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = patch_input_gradient(dy.view(*seen.shape[:3], -1), weight, *ctx.geometry)
        return dx, dy.T @ seen.flatten(0, 2), None, None


def patches(x: Tensor, kernel: int, stride: int) -> Tensor:
    """`[B, H, W, C]`, contiguous, to `[B, h, w, kernel * kernel * C]`: the receptive field of each output pixel."""
    batch, height, width, channels = x.shape
    h, w = conv_output_size(height, kernel, stride), conv_output_size(width, kernel, stride)
    row = width * channels
    strides = (height * row, stride * row, stride * channels, row, 1)
    seen = x.as_strided((batch, h, w, kernel, kernel * channels), strides, x.storage_offset())
    return seen.reshape(batch, h, w, kernel * kernel * channels)


def patch_input_gradient(dy: Tensor, weight: Tensor, x_shape: Any, kernel: int, stride: int) -> Tensor:
    """The gradient of a convolution's input: with stride 1 a scatter of what each output pixel sends back, otherwise a
    convolution of the padded output gradient.

    With kernel = m * stride, each block of stride x stride input pixels is read by the same m x m output pixels:

        dx[block i, j] = sum over p, q of dy[i - p, j - q] @ weight[:, p, :, q, :]
    """
    _, height, width, channels = x_shape
    batch, h, w, filters = dy.shape
    if stride == 1:
        sent = (dy.reshape(-1, filters) @ weight).view(batch, h, w, kernel, kernel, channels)
        dx = dy.new_zeros(x_shape)
        for p, q in itertools.product(range(kernel), repeat=2):
            dx[:, p : p + h, q : q + w] += sent[:, :, :, p, q]
        return dx
    m, s = kernel // stride, stride
    around = patches(functional.pad(dy, (0, 0, m - 1, m - 1, m - 1, m - 1)), m, 1)
    flipped = weight.view(filters, m, s, m, s, channels).flip(1, 3).permute(1, 3, 0, 2, 4, 5)
    blocks = (around.flatten(0, 2) @ flipped.reshape(m * m * filters, -1)).view(
        batch, h + m - 1, w + m - 1, s, s, channels
    )
    dx = blocks.transpose(2, 3).reshape(batch, (h + m - 1) * s, (w + m - 1) * s, channels)
    unread = (0, 0, 0, width - dx.shape[2], 0, height - dx.shape[1])  # rows and columns that no patch reaches
    return functional.pad(dx, unread) if any(unread) else dx


# Layer norm, bias and ReLU


def normalise_relu(x: Tensor, bias: Tensor, groups: int = 1) -> Tensor:
    """relu((x - mean(x)) / sqrt(var(x) + epsilon) + bias) of `[..., groups * C]`, bias `[groups * C]`.

    Each group of C numbers is normalised by itself, and each position of an image. There is no gain: ReLU lets a
    positive factor through, and the next layer has weights of its own.
    """
    if gpu.usable(x):
        y: Tensor = _LayerNormRelu.apply(x.contiguous(), bias, groups)
        return y
    rows = x.reshape(*x.shape[:-1], groups, len(bias) // groups)
    width = rows.shape[-1]
    one, zero = (None, None) if torch.compiler.is_compiling() else identity_affine(width, x.dtype, x.device)
    normalised = torch.layer_norm(rows, (width,), one, zero, LAYER_NORM_EPSILON)
    return normalised.add_(bias.view(groups, -1)).relu_().flatten(-2)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def identity_affine(width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A gain of 1 and a bias of 0, made once: without them a CPU's layer norm takes 1.4 times as long (on a Xeon)."""
    return torch.ones(width, dtype=dtype, device=device), torch.zeros(width, dtype=dtype, device=device)


class _LayerNormRelu(torch.autograd.Function):
    """One kernel forward; one kernel and a column sum backward, which recomputes everything from x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, groups: int) -> Tensor:
        from rbi.gpu.kernels import layer_norm_forward_kernel

        width = len(bias) // groups
        y, rows = torch.empty_like(x), x.numel() // len(bias)
        high, wide = norm_block(width)
        sizes = rows, width, groups, LAYER_NORM_EPSILON, high, wide
        gpu.launch(layer_norm_forward_kernel, (-(-rows // high), groups), x, x, bias, y, *sizes)
        ctx.save_for_backward(x, bias)
        ctx.groups = groups
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from rbi.gpu.kernels import layer_norm_backward_kernel

        x, bias = ctx.saved_tensors
        width, dx, rows = len(bias) // ctx.groups, torch.empty_like(x), x.numel() // len(bias)
        high, wide = norm_block(width)
        programs = min(-(-rows // high), NORM_MAX_PROGRAMS)
        partial_sums = torch.empty((programs, len(bias)), device=x.device)
        sizes = rows, width, ctx.groups, LAYER_NORM_EPSILON, high, wide
        dy = grads[0].contiguous()
        gpu.launch(layer_norm_backward_kernel, (programs, ctx.groups), x, dy, x, bias, dx, partial_sums, *sizes)
        return dx, column_sums(partial_sums, bias.dtype), None


def norm_block(width: int) -> tuple[int, int]:
    """Rows and columns of one program of the layer-norm kernels, powers of two."""
    wide = 1 << (width - 1).bit_length()
    return max(1, NORM_ELEMENTS // wide), wide
