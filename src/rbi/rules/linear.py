"""Rules in closed form: Max-Reroute, Max-TV, Max-PPO and greedy steps, discrete BCQ's filter, mixing and flooring.

Arguments of all rules: `beta` and `advantage` are arrays `[..., A]` of NumPy, PyTorch or JAX, and the answer comes
back in that library, dtype, shape and device. Q-values may stand for advantages. `legal` (boolean `[..., A]`)
restricts the rule: beta is first renormalised over the legal actions. `check=False` skips the validation of values,
and with it every device synchronisation, for use in hot loops.
"""

import functools
import importlib.metadata
import math
import sys
from typing import Any, TypeVar

from rbi.rules.arrays import (
    NUMBERS,
    State,
    at_least,
    at_most,
    check_floor,
    check_pair,
    check_parameters,
    check_range,
    check_reroute_bounds,
    check_state,
    is_torch,
)

Array = TypeVar("Array")
ROUNDING = {2: 8e-3, 4: 1e-6, 8: 1e-13}  # of a mean under beta, by the bytes of its dtype

# Of the CUDA kernel
MAX_ACTIONS = 64  # the comparisons of all pairs are unrolled
ACTIONS_PER_THREAD = 9  # measured on one H200: fewer re-read more, more hold too many registers
THREADS_PER_BLOCK = 128
MIN_TRITON = (3, 5)  # the first that allows tuples in a kernel
LARGEST = 3e38  # in place of c_max = inf, so that 0 * c_max is 0


def max_reroute(
    beta: Array, advantage: Array, c_min: Any, c_max: Any, *, legal: Any = None, check: bool = True
) -> Array:
    """The reroute policy with the largest improvement step.      (paper: Algorithm Max-Reroute, eq. 4)

        maximise  sum_a pi(a) A(a)   with   c_min*beta <= pi <= c_max*beta,   sum_a pi(a) = 1

    `beta` and `advantage` (or Q-values) are arrays `[..., A]` of NumPy, PyTorch or JAX; the answer has beta's library,
    dtype, shape and device. `c_min` and `c_max` are numbers, or arrays per state `[..., 1]` or per action `[..., A]`.
    `legal`, boolean `[..., A]`, restricts the rule to some actions, with beta renormalised over them. Of equal
    advantages the lower index ranks first; -inf ranks last. Invalid values raise a ValueError that names the argument
    and the index; `check=False` skips reading values, and with it every device synchronisation.

    >>> import numpy as np
    >>> max_reroute(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 0.5, 1.5)
    array([0.25, 0.45, 0.3 ])
    """
    if check:
        check_state(beta, advantage, legal, {"c_min": c_min, "c_max": c_max}, per_action=True)
        check_reroute_bounds(beta, legal, c_min, c_max)
    if kernel_applies(beta, advantage, c_min, c_max, legal):
        return fused_max_reroute(beta, advantage, c_min, c_max)
    s = State.of(beta, advantage, legal)
    low = s.parameter(c_min) * s.beta
    high = at_most(s.xp, s.parameter(c_max) * s.beta, 1.0)
    if not (isinstance(c_max, NUMBERS) and c_max < math.inf):  # where beta = 0, its slope is 0 and not infinite
        high = s.xp.where(s.support | (c_max < math.inf), high, 0.0)
    return s.answer(low + s.fill(1.0 - s.sum(low), high - low))


def max_tv(beta: Array, advantage: Array, delta: Any, *, legal: Any = None, check: bool = True) -> Array:
    """The policy within total variation `delta` with the largest improvement step.      (paper: Algorithm Max-TV)

        maximise  sum_a pi(a) A(a)   with   1/2 sum_a |pi(a) - beta(a)| <= delta,   sum_a pi(a) = 1

    The best action gains the mass that the worst ones lose, even where beta is 0.

    Arrays, `legal` and `check` as in `max_reroute`; parameters are numbers or arrays per state `[..., 1]`.

    >>> import numpy as np
    >>> max_tv(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 0.25)
    array([0.25, 0.3 , 0.45])
    """
    if check:
        check_state(beta, advantage, legal, {"delta": delta})
        check_range("delta", delta, 0, 1)
    s = State.of(beta, advantage, legal)
    best = s.best(among=s.legal)
    moved = at_most(s.xp, 1.0 - s.sum(s.xp.where(best, s.beta, 0.0)), s.parameter(delta))
    return s.answer(s.fill(1.0 - moved, s.beta) + s.xp.where(best, moved, 0.0))


def max_ppo(beta: Array, advantage: Array, epsilon: Any, *, legal: Any = None, check: bool = True) -> Array:
    """A maximiser of the PPO objective.      (paper: Algorithm Ad hoc PPO Maximization)

        maximise  sum_a beta(a) min(A(a) c(a), A(a) clip(c(a), 1-epsilon, 1+epsilon))   with   c = pi/beta

    Actions of positive advantage take up to (1+epsilon)*beta in order; the rest goes to the best of them. Advantages
    are centred by sum_a beta(a) A(a), and what is 0 up to rounding counts as 0. Where none is positive, pi = beta.

    Arrays, `legal` and `check` as in `max_reroute`; parameters are numbers or arrays per state `[..., 1]`.

    >>> import numpy as np
    >>> max_ppo(np.array([.5, .3, .2]), np.array([0., 1., 2.]), 0.5)
    array([0.  , 0.45, 0.55])
    """
    if check:
        check_state(beta, advantage, legal, {"epsilon": epsilon})
        check_range("epsilon", epsilon, 0, float("inf"))
    s = State.of(beta, advantage, legal)
    # Departs from the paper: the rule depends on signs, so it centres advantages itself; Q-values may stand for them.
    # Where no advantage is positive, its algorithm is greedy; all are then equal, and beta is as good.
    gap = s.xp.where(s.support, s.gap(), 0.0)
    positive = s.support & (gap < (1.0 - ROUNDING[s.dtype.itemsize]) * s.sum(s.beta * gap))
    pi = s.fill(1.0, s.xp.where(positive, at_most(s.xp, (1.0 + s.parameter(epsilon)) * s.beta, 1.0), 0.0))
    rest = s.xp.where(s.best(among=s.support), 1.0 - s.sum(pi), 0.0)
    return s.answer(s.xp.where(s.xp.any(positive, axis=-1, keepdims=True), pi + at_least(s.xp, rest, 0.0), s.beta))


def greedy(beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
    """All probability on the best action, independent of beta.      (paper: section 2.1)

    Arrays, `legal` and `check` as in `max_reroute`.

    >>> import numpy as np
    >>> greedy(np.array([.5, .3, .2]), np.array([0., 1., 2.]))
    array([0., 0., 1.])
    """
    if check:
        check_state(beta, advantage, legal, {})
    s = State.of(beta, advantage, legal)
    return s.answer(s.best(among=s.legal))


def bcq(beta: Array, advantage: Array, threshold: Any, *, legal: Any = None, check: bool = True) -> Array:
    """Discrete BCQ's policy: the best action among those with beta(a) >= threshold max_a beta(a).

    Arrays, `legal` and `check` as in `max_reroute`; parameters are numbers or arrays per state `[..., 1]`.

    >>> import numpy as np
    >>> bcq(np.array([.6, .3, .1]), np.array([0., 1., 2.]), 0.3)
    array([0., 1., 0.])
    """
    if check:
        check_state(beta, advantage, legal, {"threshold": threshold})
        check_range("threshold", threshold, 0, 1)
    s = State.of(beta, advantage, legal)
    least = s.parameter(threshold) * (1 - 1e-6)  # up to rounding
    frequent = s.beta >= least * s.xp.max(s.beta, axis=-1, keepdims=True)
    return s.answer(s.best(among=frequent if s.legal is None else frequent & s.legal))


def behavior(beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
    """beta, renormalised over the legal actions: the rule that changes nothing, for comparison."""
    if check:
        check_state(beta, advantage, legal, {})
    s = State.of(beta, advantage, legal)
    return s.answer(s.beta)


def mix(pi: Array, other: Array, weight: Any, *, check: bool = True) -> Array:
    """(1 - weight) pi + weight other: exploration, or the greedy mix of the paper's actors (section 5).

    >>> import numpy as np
    >>> mix(np.array([.8, .2]), np.array([0., 1.]), 0.1)
    array([0.72, 0.28])
    """
    if check:
        check_pair(pi, other, "pi", "other")
        check_parameters({"weight": weight}, {"pi": pi, "other": other})
        check_range("weight", weight, 0, 1)
    s = State.of(pi, other)
    weight = s.parameter(weight)
    return s.answer((1.0 - weight) * s.beta + weight * (s.advantage / s.sum(s.advantage)))


def floor(pi: Any, f: Any, *, legal: Any = None, check: bool = True) -> Any:
    """(1 - A f) pi + f: every action has at least probability f. With `legal`, A counts the legal actions.

    >>> import numpy as np
    >>> floor(np.array([1., 0.]), 0.001)
    array([0.999, 0.001])
    """
    if check:
        check_state(pi, pi, legal, {"f": f}, names=("pi", "pi"))
        check_range("f", f, 0, 1)
        check_floor(f, pi, legal)
    s = State.of(pi, pi, legal)
    f, legal = s.parameter(f), s.xp.ones_like(s.beta) if s.legal is None else s.xp.astype(s.legal, s.beta.dtype)
    return s.answer((1.0 - s.sum(legal) * f) * s.beta + f * legal)


# Max-Reroute as one CUDA kernel (`rbi.gpu.kernels`), for its hot case: PyTorch on CUDA, numbers as bounds, no gradient.
# The arithmetic of `max_reroute`; beta and advantage are read once and pi is written once, so a step over a million
# states costs about as much as copying them.


def kernel_applies(beta: Any, advantage: Any, c_min: Any, c_max: Any, legal: Any) -> bool:
    """Whether the kernel computes this case of `max_reroute`."""
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


def fused_max_reroute(beta: Any, advantage: Any, c_min: float, c_max: float) -> Any:
    """`max_reroute` where `kernel_applies`."""
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
