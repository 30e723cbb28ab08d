# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""From bytes of pictures to blocks of pixels in the networks' precision, moved or not: each number is read and written
once. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def look_kernel(
    frames, moves, seen, states, high, wide, scale, MOVED: tl.constexpr, STACK: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, COLOURS: tl.constexpr, SIDE: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """A program writes a part of one state's blocks; within a block lie row, column, moment, colour."""
    state, at = tl.program_id(0), tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    channels: tl.constexpr = SIDE * SIDE * STACK * COLOURS
    block, colour, moment = at // channels, at % COLOURS, at // COLOURS % STACK
    y = block // wide * SIDE + at // (SIDE * STACK * COLOURS) % SIDE
    x = block % wide * SIDE + at // (STACK * COLOURS) % SIDE
    if MOVED:
        y = tl.minimum(tl.maximum(y + tl.load(moves + state).to(tl.int32), 0), HEIGHT - 1)
        x = tl.minimum(tl.maximum(x + tl.load(moves + states + state).to(tl.int32), 0), WIDTH - 1)
    inside = at < high * wide * channels
    picture = state.to(tl.int64) * (STACK * HEIGHT * WIDTH * COLOURS)
    byte = tl.load(frames + picture + ((moment * HEIGHT + y) * WIDTH + x) * COLOURS + colour, mask=inside, other=0)
    start = state.to(tl.int64) * (high * wide * channels)
    tl.store(seen + start + at, (byte.to(tl.float32) * scale).to(seen.dtype.element_ty), mask=inside)
