"""Max-Reroute as one CUDA kernel: when it applies, and its launch. The kernel itself is in `rbi.gpu.kernels`.

The same arithmetic as `linear.max_reroute` for its hot case (PyTorch on CUDA, numbers as bounds, no gradient): beta
and advantage are read once, pi is written once, so a step over a million states costs about as much as copying them.
"""

import functools
import importlib.metadata
import math
import sys
from typing import Any

from rbi.rules.arrays import is_torch

MAX_ACTIONS = 64  # the comparisons of all pairs are unrolled
ACTIONS_PER_THREAD = 9  # measured on one H200: fewer re-read more, more hold too many registers
THREADS_PER_BLOCK = 128
MIN_TRITON = (3, 5)  # the first that allows tuples in a kernel
LARGEST = 3e38  # in place of c_max = inf, so that 0 * c_max is 0


def can_run(beta: Any, advantage: Any, c_min: Any, c_max: Any, legal: Any) -> bool:
    """Whether the kernel computes this case of `linear.max_reroute`."""
    if not is_torch(beta):
        return False
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling() or not beta.is_cuda:
        return False
    return bool(
        legal is None
        and isinstance(c_min, int | float)
        and isinstance(c_max, int | float)
        and beta.shape == advantage.shape
        and beta.dtype == advantage.dtype
        and beta.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and 1 <= beta.shape[-1] <= MAX_ACTIONS
        and 0 < beta.numel() < 2**31
        and not is_differentiated(beta, advantage)
        and kernel() is not None
    )


def max_reroute(beta: Any, advantage: Any, c_min: float, c_max: float) -> Any:
    """`linear.max_reroute` where `can_run` is True."""
    torch = sys.modules["torch"]
    beta, advantage = beta.contiguous(), advantage.contiguous()
    pi = torch.empty_like(beta)
    actions = beta.shape[-1]
    states = beta.numel() // actions
    stride = math.ceil(actions / ACTIONS_PER_THREAD)
    grid = (math.ceil(states * stride / THREADS_PER_BLOCK),)
    c_max = min(float(c_max), LARGEST)
    with torch.cuda.device(beta.device):
        kernel()[grid](
            beta, advantage, pi, states, float(c_min), c_max, actions, stride, THREADS_PER_BLOCK,
            num_warps=THREADS_PER_BLOCK // 32,
        )  # fmt: skip
    return pi


def is_differentiated(*arrays: Any) -> bool:
    """Whether autograd, forward-mode or a transform of torch.func applies, none of which the kernel supports."""
    import torch
    from torch.autograd import forward_ad

    if any(torch._C._functorch.is_functorch_wrapped_tensor(a) for a in arrays):
        return True
    backward = torch.is_grad_enabled() and any(a.requires_grad for a in arrays)
    return backward or forward_ad._current_level >= 0


@functools.cache
def kernel() -> Any:
    """The kernel, or None where Triton is not installed or too old."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_TRITON:
        return None
    from rbi.gpu.kernels import max_reroute_kernel

    return max_reroute_kernel
