"""Max-Reroute in Triton. Imported by `fused.py` alone, and only where Triton is there."""

import triton
import triton.language as tl

# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.


@triton.jit
def max_reroute_kernel(
    beta_at, advantage_at, pi_at, states, c_min, c_max, A: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Thread h of a state answers for its actions h, h + STRIDE, h + 2 STRIDE, ...; each is compared with all others.

    With beta normalised, all actions share one scale of room, so what ranks before an action is a sum of plain betas:

        taken_i = (c_max - c_min) sum_j beta_j [j ranks before i]
    """
    thread = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    thread = tl.minimum(thread, states * STRIDE - 1)  # the last block's spare threads repeat its last answer
    state = (thread // STRIDE) * A
    h = thread % STRIDE

    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(A):
        total += tl.load(beta_at + state + j).to(tl.float32)

    answers = ()
    for start in tl.static_range(0, A, STRIDE):
        mine = tl.minimum(h + start, A - 1)
        advantage = tl.load(advantage_at + state + mine).to(tl.float32)
        before = tl.zeros((BLOCK,), tl.float32)
        for j in tl.static_range(A):
            theirs = tl.load(advantage_at + state + j).to(tl.float32)
            if j < start:  # a lower index: ties rank before
                ahead = theirs >= advantage
            elif j >= start + STRIDE:  # a higher index: ties rank behind
                ahead = theirs > advantage
            else:
                ahead = (theirs > advantage) | ((theirs == advantage) & (j < mine))
            before += tl.where(ahead, tl.load(beta_at + state + j).to(tl.float32), 0.0)
        beta = tl.load(beta_at + state + mine).to(tl.float32) / total
        taken = (c_max - c_min) * (before / total)
        answers += (c_min * beta + tl.minimum(tl.maximum(1.0 - c_min - taken, 0.0), (c_max - c_min) * beta),)

    for k in tl.static_range(len(answers)):
        tl.store(pi_at + state + tl.minimum(h + k * STRIDE, A - 1), answers[k].to(pi_at.dtype.element_ty))


# ---- from rbi.nets.adam_kernel: Adam in one pass over memory. Imported only where Triton is installed; the arithmetic is that of `torch.optim.Adam`.
#
# PyTorch's own fused kernel gives each block 65,536 numbers: a network of a few million keeps half of a large GPU idle.

# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.


@triton.jit
def adam_kernel(
    vector, computing, gradient, mean, square, count, size,
    learning_rate, fall_a_step, fall, beta_1, beta_2, epsilon, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    t = tl.load(count)
    g = tl.load(gradient + at, mask=inside).to(tl.float32)
    m = tl.load(mean + at, mask=inside)
    v = tl.load(square + at, mask=inside)
    p = tl.load(vector + at, mask=inside)
    m += (g - m) * (1 - beta_1)
    v = beta_2 * v + (1 - beta_2) * g * g
    correction_1 = 1 - tl.exp(t * tl.log(beta_1))
    correction_2 = 1 - tl.exp(t * tl.log(beta_2))
    rate = learning_rate * (1 - tl.minimum((t - 1) * fall_a_step, fall))
    p -= rate / correction_1 * m / (tl.sqrt(v) / tl.sqrt(correction_2) + epsilon)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    tl.store(vector + at, p, mask=inside)
    tl.store(computing + at, p.to(computing.dtype.element_ty), mask=inside)


# ---- from rbi.nets.layer_norm_kernel: Layer norm, bias and relu in one pass over memory each way. Imported only where Triton is installed.
#
# PyTorch's own kernel gives each row a block, and a position of a picture has but 32 or 64 numbers.

# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.


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


# ---- from rbi.nets.sums_kernel: Sums over rows in one step. Imported only where Triton is installed.

# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.


@triton.jit
def sums_kernel(rows, total, count, columns, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row, at = tl.arange(0, HIGH), tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = (row < count)[:, None] & (at < columns)[None, :]
    found = tl.load(rows + row[:, None] * columns + at[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(total + at, tl.sum(found, 0).to(total.dtype.element_ty), mask=at < columns)


# ---- from rbi.obs_spec.preprocess_kernel: From bytes of pictures to blocks of pixels in the networks' precision, moved or not: each number is read and written
# once. Imported only where Triton is installed.

# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.


@triton.jit
def preprocess_kernel(
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
