# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""Adam in one pass over memory. Imported only where Triton is installed; the arithmetic is that of `torch.optim.Adam`.

PyTorch's own fused kernel gives each block 65,536 numbers: a network of a few million keeps half of a large GPU idle.
"""

import triton
import triton.language as tl


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
