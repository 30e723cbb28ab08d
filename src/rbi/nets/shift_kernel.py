# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""Pictures moved by some pixels, each number read and written once. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def shift_kernel(frames, moves, out, states, stack, height, width, colours, BLOCK: tl.constexpr):
    """A block is a part of one picture, so that numbers within it stay small and divisions short."""
    picture, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = height * width * colours
    down, right = tl.load(moves + picture // stack), tl.load(moves + states + picture // stack)
    y, x, colour = at // (width * colours), at // colours % width, at % colours
    y = tl.minimum(tl.maximum(y + down, 0), height - 1)
    x = tl.minimum(tl.maximum(x + right, 0), width - 1)
    start, inside = picture.to(tl.int64) * size, at < size
    seen = tl.load(frames + start + (y * width + x) * colours + colour, mask=inside, other=0)
    tl.store(out + start + at, seen, mask=inside)
