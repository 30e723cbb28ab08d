"""All Triton kernels. Imported by the functions that launch them, and only where Triton is installed.

max_reroute_kernel           rules/linear.py       a state's reroute policy in registers
adam_kernel                  optim.py              one pass over memory; the arithmetic of `torch.optim.Adam`
layer_norm_*_kernel          gpu/layers.py         layer norm, bias and ReLU in one pass in each direction
column_sum_kernel            gpu/layers.py         bias gradients
preprocess_kernel            observations.py       bytes to network input, with random shifts
"""

# mypy: ignore-errors
# Reason: Triton's language looks like Python but is compiled for the GPU; its names carry no types.

import triton
import triton.language as tl


@triton.jit
def max_reroute_kernel(
    beta_at, advantage_at, pi_at, states, c_min, c_max, A: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Thread h of a state computes its actions h, h + STRIDE, h + 2 STRIDE, ...; each is compared with all others.

    With beta normalised, all actions share one scale of room, so what ranks before an action is a sum of plain betas:

        taken_i = (c_max - c_min) sum_j beta_j [j ranks before i]
    """
    thread = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    thread = tl.minimum(thread, states * STRIDE - 1)  # spare threads of the last block repeat its last result
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


# PyTorch's fused Adam gives each thread block 65,536 numbers, so a network of a few million leaves half a GPU idle.


@triton.jit
def adam_kernel(
    vector, compute_vector, gradient, mean, square, count, size,
    learning_rate, decay_per_step, decay, beta_1, beta_2, epsilon, BLOCK: tl.constexpr,
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
    rate = learning_rate * (1 - tl.minimum((t - 1) * decay_per_step, decay))
    p -= rate / correction_1 * m / (tl.sqrt(v) / tl.sqrt(correction_2) + epsilon)
    tl.store(mean + at, m, mask=inside)
    tl.store(square + at, v, mask=inside)
    tl.store(vector + at, p, mask=inside)
    tl.store(compute_vector + at, p.to(compute_vector.dtype.element_ty), mask=inside)


# PyTorch's layer norm gives each row a thread block, and a position of an image has only 32 or 64 channels.


@triton.jit
def normalise(x, place, inside, width, epsilon):
    """Rows with mean 0 and variance 1, zero outside; and the reciprocal standard deviation."""
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    away = tl.where(inside, value - (tl.sum(value, 1) / width)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 1) / width + epsilon)
    return away * scale[:, None], scale


@triton.jit
def layer_norm_forward_kernel(x, bias, y, rows, width, groups, epsilon, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row, at, group = tl.program_id(0) * HIGH + tl.arange(0, HIGH), tl.arange(0, WIDE), tl.program_id(1)
    inside = (row < rows)[:, None] & (at < width)[None, :]
    place = (row[:, None] * groups + group) * width + at[None, :]
    hat, _ = normalise(x, place, inside, width, epsilon)
    shift = tl.load(bias + group * width + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(y + place, tl.maximum(hat + shift[None, :], 0.0).to(y.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_backward_kernel(
    dy, x, bias, dx, partial_sums, rows, width, groups, epsilon, HIGH: tl.constexpr, WIDE: tl.constexpr
):
    """With g the gradient behind ReLU:  dx = (g - mean(g) - hat mean(g hat)) scale; sums of g are the bias gradient."""
    block, at, group = tl.program_id(0), tl.arange(0, WIDE), tl.program_id(1)
    shift = tl.load(bias + group * width + at, mask=at < width, other=0.0).to(tl.float32)
    total = tl.zeros((WIDE,), tl.float32)
    for start in range(block * HIGH, rows, tl.num_programs(0) * HIGH):
        row = start + tl.arange(0, HIGH)
        inside = (row < rows)[:, None] & (at < width)[None, :]
        place = (row[:, None] * groups + group) * width + at[None, :]
        hat, scale = normalise(x, place, inside, width, epsilon)
        g = tl.where(hat + shift[None, :] > 0, tl.load(dy + place, mask=inside, other=0.0).to(tl.float32), 0.0)
        total += tl.sum(g, 0)
        along = tl.sum(g * hat, 1) / width
        slope = (g - (tl.sum(g, 1) / width)[:, None] - hat * along[:, None]) * scale[:, None]
        tl.store(dx + place, slope.to(dx.dtype.element_ty), mask=inside)
    tl.store(partial_sums + (block * groups + group) * width + at, total, mask=at < width)


@triton.jit
def column_sum_kernel(x, total, rows, columns, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row, at = tl.arange(0, HIGH), tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = (row < rows)[:, None] & (at < columns)[None, :]
    found = tl.load(x + row[:, None] * columns + at[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(total + at, tl.sum(found, 0).to(total.dtype.element_ty), mask=at < columns)


@triton.jit
def preprocess_kernel(
    frames, shifts, obs, batch, high, wide, scale, SHIFTED: tl.constexpr, STACK: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """A program writes a part of one state's blocks; a block is ordered by row, column, frame, channel."""
    state, at = tl.program_id(0), tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    block_size: tl.constexpr = SIDE * SIDE * STACK * CHANNELS
    block, channel, frame = at // block_size, at % CHANNELS, at // CHANNELS % STACK
    y = block // wide * SIDE + at // (SIDE * STACK * CHANNELS) % SIDE
    x = block % wide * SIDE + at // (STACK * CHANNELS) % SIDE
    if SHIFTED:
        y = tl.minimum(tl.maximum(y + tl.load(shifts + state).to(tl.int32), 0), HEIGHT - 1)
        x = tl.minimum(tl.maximum(x + tl.load(shifts + batch + state).to(tl.int32), 0), WIDTH - 1)
    inside = at < high * wide * block_size
    image = state.to(tl.int64) * (STACK * HEIGHT * WIDTH * CHANNELS)
    byte = tl.load(frames + image + ((frame * HEIGHT + y) * WIDTH + x) * CHANNELS + channel, mask=inside, other=0)
    start = state.to(tl.int64) * (high * wide * block_size)
    tl.store(obs + start + at, (byte.to(tl.float32) * scale).to(obs.dtype.element_ty), mask=inside)
