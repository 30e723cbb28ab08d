# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""Pictures moved by some pixels, each number read and written once. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def shift_kernel(frames, moves, out, size, states, stack, height, width, colours, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    pixel, colour = at // colours, at % colours
    picture, y, x = pixel // (width * height), pixel // width % height, pixel % width
    down = tl.load(moves + picture // stack, mask=inside, other=0)
    right = tl.load(moves + states + picture // stack, mask=inside, other=0)
    y = tl.minimum(tl.maximum(y + down, 0), height - 1)
    x = tl.minimum(tl.maximum(x + right, 0), width - 1)
    seen = tl.load(frames + ((picture * height + y) * width + x) * colours + colour, mask=inside, other=0)
    tl.store(out + at, seen, mask=inside)
