# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""Max-Reroute in Triton. Imported by `fused.py` alone, and only where Triton is there."""

import triton
import triton.language as tl


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
