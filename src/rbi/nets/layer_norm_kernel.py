# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""Layer norm, bias and relu in one pass over memory each way. Imported only where Triton is installed.

PyTorch's own kernel gives each row a block, and a position of a picture has but 32 or 64 numbers.
"""

import triton
import triton.language as tl


@triton.jit
def normal(x, place, inside, width, epsilon):
    """Rows with mean 0 and spread 1, zero outside; and what they were divided by, inverted."""
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    away = tl.where(inside, value - (tl.sum(value, 1) / width)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 1) / width + epsilon)
    return away * scale[:, None], scale


@triton.jit
def forward_kernel(x, bias, y, rows, width, groups, epsilon, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row, at, group = tl.program_id(0) * HIGH + tl.arange(0, HIGH), tl.arange(0, WIDE), tl.program_id(1)
    inside = (row < rows)[:, None] & (at < width)[None, :]
    place = (row[:, None] * groups + group) * width + at[None, :]
    hat, _ = normal(x, place, inside, width, epsilon)
    shift = tl.load(bias + group * width + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(y + place, tl.maximum(hat + shift[None, :], 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(dy, x, bias, dx, parts, rows, width, groups, epsilon, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """With g what relu lets back:  dx = (g - mean(g) - hat mean(g hat)) scale,  and g's sum over rows is bias's."""
    block, at, group = tl.program_id(0), tl.arange(0, WIDE), tl.program_id(1)
    shift = tl.load(bias + group * width + at, mask=at < width, other=0.0).to(tl.float32)
    total = tl.zeros((WIDE,), tl.float32)
    for start in range(block * HIGH, rows, tl.num_programs(0) * HIGH):
        row = start + tl.arange(0, HIGH)
        inside = (row < rows)[:, None] & (at < width)[None, :]
        place = (row[:, None] * groups + group) * width + at[None, :]
        hat, scale = normal(x, place, inside, width, epsilon)
        g = tl.where(hat + shift[None, :] > 0, tl.load(dy + place, mask=inside, other=0.0).to(tl.float32), 0.0)
        total += tl.sum(g, 0)
        along = tl.sum(g * hat, 1) / width
        slope = (g - (tl.sum(g, 1) / width)[:, None] - hat * along[:, None]) * scale[:, None]
        tl.store(dx + place, slope.to(dx.dtype.element_ty), mask=inside)
    tl.store(parts + (block * groups + group) * width + at, total, mask=at < width)
