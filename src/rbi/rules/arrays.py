"""One arithmetic for three libraries: which one an array is of, and the few things the array standard leaves out."""

import contextlib
import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat.numpy
import array_api_compat.torch
import numpy as np
import torch
from array_api_compat import array_namespace, is_jax_array

NUMBERS = (int, float, np.integer, np.floating)

numpy_xp: Any = array_api_compat.numpy
torch_xp: Any = array_api_compat.torch


def namespace(*arrays: Any) -> Any:
    """The array-standard namespace of the arrays' library (spelled out, so that torch.compile traces it silently)."""
    if isinstance(arrays[0], torch.Tensor):
        return torch_xp
    return numpy_xp if isinstance(arrays[0], np.ndarray) else array_namespace(*arrays)


def library(array: Any) -> str | None:
    """The library's name, or None for what is no array of NumPy, PyTorch or JAX."""
    if isinstance(array, torch.Tensor):
        return "PyTorch"
    if isinstance(array, np.ndarray):
        return None if isinstance(array, np.matrix | np.ma.MaskedArray) else "NumPy"
    return "JAX" if is_jax_array(array) else None


def is_floating(dtype: Any) -> bool:
    if isinstance(dtype, torch.dtype):
        return dtype.is_floating_point
    return bool(dtype.kind == "f") or dtype.name == "bfloat16"  # ml_dtypes' bfloat16 is of kind "V"


def computing_dtype(xp: Any, *arrays: Any) -> Any:
    """float64 in NumPy (its float32 sums run one by one and drift); elsewhere the arrays' own, at least float32.

    Integers that float32 cannot tell apart need float64 as well.
    """
    if xp is numpy_xp:
        return xp.float64
    wide = any(a.dtype.itemsize == 8 or (a.dtype.itemsize == 4 and not is_floating(a.dtype)) for a in arrays)
    return widest_dtype(xp, arrays[0]) if wide else xp.float32


def widest_dtype(xp: Any, like: Any) -> Any:
    """float64 where it exists: not in JAX unless jax_enable_x64 is set, not on Apple's GPUs."""
    if xp is torch_xp:
        return torch.float32 if like.device.type == "mps" else torch.float64
    return xp.float64 if xp is numpy_xp else xp.asarray(0.0).dtype


def is_real(dtype: Any) -> bool:
    """Floating of 2, 4 or 8 bytes, integer or boolean: what the rules compute with."""
    if isinstance(dtype, torch.dtype):
        return not dtype.is_complex and "float8" not in str(dtype) and "float4" not in str(dtype)
    return dtype.name == "bfloat16" or (dtype.kind in "fiub" and dtype.itemsize <= 8)


def at_most(xp: Any, x: Any, limit: Any) -> Any:
    """min(x, limit) for a number or an array, which torch.minimum does not take."""
    if xp is torch_xp:
        return x.clamp(max=limit)
    return xp.minimum(x, limit)


def at_least(xp: Any, x: Any, limit: Any) -> Any:
    """max(x, limit) for a number or an array."""
    if xp is torch_xp:
        return x.clamp(min=limit)
    return xp.maximum(x, limit)


def indices(xp: Any, like: Any) -> Any:
    """0 .. A-1 on the device of `like` `[..., A]` (a traced JAX array has none yet)."""
    actions = like.shape[-1]
    return xp.arange(actions, device=like.device) if xp is torch_xp else xp.arange(actions)


def descending(xp: Any, x: Any) -> Any:
    """The order that sorts x along the last axis from the largest down, the first of equals first."""
    if xp is torch_xp:
        return torch.argsort(x, dim=-1, descending=True, stable=True)
    if xp is numpy_xp:
        return (-x).argsort(axis=-1, kind="stable")
    return xp.argsort(-x, axis=-1, stable=True)


def take(xp: Any, x: Any, order: Any) -> Any:
    """x in the given order along the last axis."""
    if xp is torch_xp:
        return x.gather(-1, order)
    return x[order] if xp is numpy_xp and x.ndim == 1 else xp.take_along_axis(x, order, axis=-1)


def put(xp: Any, order: Any, x: Any) -> Any:
    """What `take` undoes: x back from the given order."""
    if xp is torch_xp:
        return xp.empty_like(x).scatter_(-1, order, x)
    if xp is not numpy_xp:  # JAX arrays do not change in place
        return xp.take_along_axis(x, xp.argsort(order, axis=-1), axis=-1)
    back = np.empty_like(x)
    if x.ndim == 1:
        back[order] = x
    else:
        np.put_along_axis(back, order, x, axis=-1)
    return back


def constant(xp: Any, x: Any) -> Any:
    """The same numbers, cut off from differentiation."""
    if xp is torch_xp:
        return x.detach()
    if xp is numpy_xp:
        return x
    from jax.lax import stop_gradient

    return stop_gradient(x)


def quiet(xp: Any) -> Any:
    """NumPy warns where infinities are meant (gaps to -inf, temperatures near 0); the other libraries do not."""
    return np.errstate(all="ignore") if xp is numpy_xp else contextlib.nullcontext()


# ---- from rbi.rules.checks: What the rules refuse, and how they say it: one ValueError with the argument, the first bad place and the value.
#
# Looking at values makes a GPU wait, so the rules call these only under `check=True`. Where values do not exist yet
# (inside torch.compile, jax.jit, or while a CUDA graph is captured) only shapes and libraries are checked.

BOUNDS_TOLERANCE = 1e-6  # what rounding may do to sums of bounds
SUM_TOLERANCE = 1e-4  # float32 softmaxes over 10,000 actions stay within 1e-5; hand-typed tables do not


def state(
    beta: Any,
    advantage: Any,
    legal: Any,
    parameters_: dict[str, Any],
    *,
    per_action: bool = False,
    names: tuple[str, str] = ("beta", "advantage"),
) -> None:
    """beta is a distribution, advantage has no NaN or +inf, legal leaves something to do, and all of it broadcasts."""
    shapes(beta, advantage, legal, names)
    parameters(parameters_, {names[0]: beta, names[1]: advantage}, per_action=per_action)
    if not has_values(beta, advantage, legal):
        return
    probabilities(names[0], beta, legal)
    xp = namespace(advantage)
    refuse(names[1], advantage, xp.isnan(advantage) | (advantage == xp.inf), "must be a number or -inf")


def pair(pi: Any, other: Any, first: str, second: str) -> None:
    """Two distributions over the same actions."""
    shapes(pi, other, None, (first, second))
    if has_values(pi, other):
        probabilities(first, pi)
        probabilities(second, other)


def shapes(beta: Any, advantage: Any, legal: Any, names: tuple[str, str] = ("beta", "advantage")) -> None:
    arrays = {names[0]: beta, names[1]: advantage} | ({} if legal is None else {"legal": legal})
    one_library(arrays)
    for name, array in arrays.items():
        if array.ndim == 0 or array.shape[-1] == 0:
            raise ValueError(f"{name} has shape {tuple(array.shape)}: the last axis holds the actions, at least one")
        if array.shape[-1] != beta.shape[-1]:
            raise ValueError(
                f"{name} has {array.shape[-1]} actions (shape {tuple(array.shape)}), "
                f"{names[0]} has {beta.shape[-1]} (shape {tuple(beta.shape)})"
            )
    broadcast(arrays)
    if legal is not None and "bool" not in str(legal.dtype):
        raise ValueError(f"legal has dtype {legal.dtype}: must be boolean, True for the actions that may be taken")


def parameters(values: dict[str, Any], states: dict[str, Any], *, per_action: bool = False) -> None:
    """Numbers, or arrays that broadcast: one value a state `[..., 1]` or, where allowed, one an action `[..., A]`."""
    arrays = {name: v for name, v in values.items() if not isinstance(v, NUMBERS)}
    one_library(states | arrays)
    actions = next(iter(states.values())).shape[-1]
    for name, array in arrays.items():
        if array.ndim > 0 and array.shape[-1] not in ((1, actions) if per_action else (1,)):
            last = f"1 or {actions}" if per_action else "1"
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}: its last axis must be {last}, "
                "one value a state" + (" or an action" if per_action else "")
            )
        broadcast(states | {name: array})


def broadcast(arrays: dict[str, Any]) -> None:
    try:
        np.broadcast_shapes(*(tuple(a.shape) for a in arrays.values()))
    except ValueError:
        told = ", ".join(f"{name} {tuple(a.shape)}" for name, a in arrays.items())
        raise ValueError(f"shapes do not broadcast: {told}") from None


def one_library(arrays: dict[str, Any]) -> None:
    libraries = {name: library(array) for name, array in arrays.items()}
    for name, found in libraries.items():
        if found is None:
            raise ValueError(f"{name} is a {type(arrays[name]).__name__}: must be a NumPy, PyTorch or JAX array")
        if not is_real(arrays[name].dtype):
            raise ValueError(f"{name} has dtype {arrays[name].dtype}: must be floating (16, 32, 64 bits) or integer")
    if len(set(libraries.values())) > 1:
        told = ", ".join(f"{name} is {found}" for name, found in libraries.items())
        raise ValueError(f"arrays of one library are needed: {told}")
    devices = {n: str(a.device) for n, a in arrays.items() if isinstance(a, torch.Tensor) and a.ndim > 0}
    if len(set(devices.values())) > 1:
        told = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise ValueError(f"arrays on one device are needed: {told}")


def probabilities(name: str, pi: Any, legal: Any = None) -> None:
    """Not negative, not NaN, summing to 1; and, of the legal actions, one at least has some probability."""
    xp = namespace(pi)
    refuse(name, pi, ~(pi >= 0), "must be >= 0")
    wide = xp.astype(pi, xp.float32 if pi.dtype.itemsize < 8 else xp.float64)
    total = xp.sum(wide, axis=-1)
    tolerance = max(SUM_TOLERANCE, 4 * epsilon_of(pi.dtype))
    refuse(f"the sum of {name}", total, ~(abs(total - 1) <= tolerance), f"must be 1 within {tolerance:g}")
    if legal is not None:
        pi, legal = xp.broadcast_arrays(wide, legal)
        refuse(
            "the number of legal actions",
            xp.sum(xp.astype(legal, xp.int32), axis=-1),
            ~xp.any(legal, axis=-1),
            "at least one action must be legal",
        )
        total = xp.sum(xp.where(legal, pi, 0.0), axis=-1)
        refuse(f"the sum of {name} over legal actions", total, ~(total > 0), "must be above 0")


def reroute_bounds(beta: Any, legal: Any, c_min: Any, c_max: Any) -> None:
    """0 <= c_min <= c_max and sum c_min beta <= 1 <= sum c_max beta: some policy lies between the bounds."""
    if isinstance(c_min, NUMBERS) and isinstance(c_max, NUMBERS):
        between("c_min", c_min, 0, 1)
        between("c_max", c_max, 1, float("inf"))
        return
    if not has_values(beta, c_min, c_max):
        return
    s = State.of(beta, beta, legal)
    low, high = (s.xp.zeros_like(s.beta) + s.parameter(c) for c in (c_min, c_max))
    refuse("c_min", low, ~(low >= 0), "must be >= 0")
    refuse("c_max", high, ~(high >= low), "must be >= c_min")
    least, most = (s.xp.sum(c * s.beta, axis=-1) for c in (low, high))
    refuse("the sum of c_min * beta", least, ~(least <= 1 + BOUNDS_TOLERANCE), "must be <= 1: no policy lies that high")
    refuse("the sum of c_max * beta", most, ~(most >= 1 - BOUNDS_TOLERANCE), "must be >= 1: no policy lies that low")


def floor(f: Any, pi: Any, legal: Any) -> None:
    """A floor under all legal actions takes no more than there is: A f <= 1."""
    if has_values(pi, f, legal):
        s = State.of(pi, pi, legal)
        count = s.sum(s.xp.ones_like(s.beta) if legal is None else s.xp.astype(s.legal, s.beta.dtype))
        needed = count * s.parameter(f)
        refuse("f * legal actions", needed[..., 0], ~(needed[..., 0] <= 1 + BOUNDS_TOLERANCE), "must be <= 1")


def between(name: str, value: Any, least: float, most: float) -> None:
    """A number, or an array of numbers, inside a closed interval."""
    limits = f"must be >= {least:g}" if most == float("inf") else f"must be in [{least:g}, {most:g}]"
    if isinstance(value, NUMBERS):
        if not least <= value <= most:
            raise ValueError(f"{name} = {value:g}: {limits}")
    elif value is not None and has_values(value):
        refuse(name, value, ~((value >= least) & (value <= most)), limits)


def positive(name: str, value: Any) -> None:
    if isinstance(value, NUMBERS):
        if not value > 0:
            raise ValueError(f"{name} = {value:g}: must be > 0")
    elif value is not None and has_values(value):
        refuse(name, value, ~(value > 0), "must be > 0")


def exactly_one(**options: Any) -> None:
    if sum(value is not None for value in options.values()) != 1:
        told = " or ".join(options)
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f"give exactly one of {told}: got {given}")


def refuse(name: str, values: Any, bad: Any, rule: str) -> None:
    """Raise if any value is marked bad, naming the first one by its index."""
    xp = namespace(bad)
    found = xp.any(bad)
    if is_symbol(found) or not bool(found):
        return
    index = tuple(int(i[0]) for i in xp.nonzero(bad)) if bad.ndim else ()
    place = f"[{', '.join(map(str, index))}]" if index else ""
    raise ValueError(f"{name}{place} = {float(values[index]):g}: {rule}")


def has_values(*arrays: Any) -> bool:
    """Whether the arrays hold numbers that may be looked at now, rather than symbols of a trace."""
    if torch.compiler.is_compiling():
        return False
    if any(isinstance(a, torch.Tensor) and a.is_cuda for a in arrays) and torch.cuda.is_current_stream_capturing():
        return False
    return not any(is_symbol(a) for a in arrays)


def is_symbol(array: Any) -> bool:
    """Whether the array stands for values to come: traced by JAX, or batched by torch.func.vmap."""
    if isinstance(array, torch.Tensor):
        return bool(torch._C._functorch.is_batchedtensor(array))
    return "jax" in sys.modules and isinstance(array, sys.modules["jax"].core.Tracer)


def epsilon_of(dtype: Any) -> float:
    """The relative rounding error of a floating dtype; integers have none."""
    if not is_floating(dtype):
        return 0.0
    return {2: 2.0**-7 if "bfloat16" in str(dtype) else 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}[dtype.itemsize]


# ---- from rbi.rules.ranking: The total order of actions (higher advantage first, then lower index), and handing out mass along it.
#
# `fill` is the step that Max-Reroute, Max-TV and Max-PPO share: the while-loops of the paper, without the loop.

COLUMNS = 3  # actions; from four on PyTorch's sort is as fast
MANY = 2**13  # numbers from which on PyTorch's calls for columns pay
PAIRED_ACTIONS = 32
PAIRS = 2**28  # 1 GiB of float32 where nothing fuses them


def fill(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Hand out `budget` `[..., 1]` in the total order, at most `room` `[..., A]` to each action.

    taken_i = sum_j room_j [j ranks before i],    given_i = min(max(budget - taken_i, 0), room_i)
    """
    if not isinstance(budget, float) and budget.shape[:-1] != room.shape[:-1]:
        budget, room, advantage = xp.broadcast_arrays(budget, room, advantage)
    elif advantage.shape != room.shape:
        room, advantage = xp.broadcast_arrays(room, advantage)
    return way_to_fill(xp, advantage)(xp, budget, room, advantage)


def way_to_fill(xp: Any, advantage: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """The fastest way for this library, device and size, as measured (docs/decisions/002-fill.md)."""
    actions = advantage.shape[-1]
    if xp is numpy_xp:
        return fill_by_columns if actions <= COLUMNS else fill_by_sorting
    if xp is torch_xp and advantage.device.type == "cpu":
        many = math.prod(advantage.shape) >= MANY
        return fill_by_columns if actions <= COLUMNS and many else fill_by_sorting
    few = actions <= PAIRED_ACTIONS and math.prod(advantage.shape) * actions <= PAIRS
    return fill_by_pairs if few else fill_by_sorting


def fill_by_pairs(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Compare every action with every other: no sort, `[..., A, A]` intermediate values (none once fused)."""
    mine, theirs = advantage[..., :, None], advantage[..., None, :]
    index = indices(xp, advantage)
    before = (theirs > mine) | ((theirs == mine) & (index[None, :] < index[:, None]))
    taken = xp.sum(xp.where(before, room[..., None, :], 0.0), axis=-1)
    return at_most(xp, at_least(xp, budget - taken, 0.0), room)


def fill_by_columns(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Compare two actions at a time over all states: neither a sort nor `[..., A, A]` values, for very few actions."""
    actions = range(advantage.shape[-1])
    taken = [xp.zeros_like(room[..., 0]) for _ in actions]
    for i, j in itertools.combinations(actions, 2):
        first = advantage[..., i] >= advantage[..., j]  # i < j: of equals i ranks first
        taken[j] = taken[j] + xp.where(first, room[..., i], 0.0)
        taken[i] = taken[i] + xp.where(first, 0.0, room[..., j])
    taken = xp.moveaxis(xp.stack(taken, axis=0), 0, -1)  # columns stay columns in memory
    return at_most(xp, at_least(xp, budget - taken, 0.0), room)


def fill_by_sorting(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Sort, add up along the order, put everything back."""
    order = descending(xp, advantage)
    room = take(xp, room, order)
    taken = room.cumsum(-1) - room
    return put(xp, order, at_most(xp, at_least(xp, budget - taken, 0.0), room))


def first(xp: Any, advantage: Any, among: Any) -> Any:
    """True at the first action of the total order among the marked ones, False elsewhere. Shape `[..., A]`."""
    if way_to_fill(xp, advantage) is fill_by_columns:  # whoever takes all of a budget of 1 is the first
        room = xp.ones_like(advantage) if among is None else xp.astype(among, advantage.dtype)
        return fill_by_columns(xp, 1.0, room, advantage) > 0
    if among is None:
        at = xp.argmax(advantage, axis=-1, keepdims=True)
    else:
        top = xp.max(xp.where(among, advantage, -xp.inf), axis=-1, keepdims=True)
        at = xp.argmax(xp.astype(among & (advantage == top), xp.int8), axis=-1, keepdims=True)
    return indices(xp, advantage) == at


# ---- from rbi.rules.state: One state of a decision problem (or a batch of them), ready for arithmetic.
#
# Every rule starts with `State.of(beta, advantage, legal)` and ends with `state.answer(pi)`. In between it sees plain
# arrays `[..., A]` of one library, wide enough to compute in, with beta normalised over the legal actions.

LARGEST = {4: 3.4e38, 8: 1.7e308}  # by the bytes of a number


@dataclass(frozen=True)
class State:
    """`beta`, `advantage`: `[..., A]` arrays of namespace `xp`. `legal`: boolean, the same shape, or None for all.

    `dtype` is the answer's: beta's own, or the computing one where beta is of integers (a one-hot beta).
    """

    xp: Any
    beta: Any
    advantage: Any
    legal: Any
    dtype: Any

    @classmethod
    def of(cls, beta: Any, advantage: Any, legal: Any = None, *, widest: bool = False) -> "State":
        """`widest` computes in float64 whatever comes in, for rules that solve equations."""
        xp = namespace(beta, advantage)
        wide = widest_dtype(xp, beta) if widest else computing_dtype(xp, beta, advantage)
        dtype = beta.dtype if is_floating(beta.dtype) else computing_dtype(xp, beta, advantage)
        beta, advantage = xp.astype(beta, wide, copy=False), xp.astype(advantage, wide, copy=False)
        if legal is not None:
            beta, advantage, legal = xp.broadcast_arrays(beta, advantage, legal)
            beta = xp.where(legal, beta, 0.0)
        elif beta.shape != advantage.shape:
            beta, advantage = xp.broadcast_arrays(beta, advantage)
        return cls(xp, beta / beta.sum(axis=-1, keepdims=True), advantage, legal, dtype)

    def answer(self, pi: Any) -> Any:
        return self.xp.astype(pi, self.dtype, copy=False)

    def parameter(self, value: Any) -> Any:
        """A rule's parameter in the computing precision; infinity becomes the largest number, so that 0 * it is 0."""
        largest = LARGEST[self.beta.dtype.itemsize]
        if isinstance(value, NUMBERS):
            return largest if value > largest else float(value)
        return at_most(self.xp, self.xp.astype(value, self.beta.dtype, copy=False), largest)

    @property
    def support(self) -> Any:
        """True where beta ever acts."""
        return self.beta > 0

    @property
    def untried(self) -> Any:
        """True where beta never acts, though it may."""
        return ~self.support if self.legal is None else self.legal & ~self.support

    def sum(self, values: Any) -> Any:
        """Over actions, `[..., 1]`."""
        return values.sum(axis=-1, keepdims=True)

    def fill(self, budget: Any, room: Any) -> Any:
        """Hand out the budget in the order of advantages, at most `room` to each action."""
        return fill(self.xp, budget, room, self.advantage)

    def best(self, among: Any) -> Any:
        """True at the first action of the total order among those marked (None: all)."""
        return first(self.xp, self.advantage, among)

    def gap(self) -> Any:
        """How far each action stands behind the best of the support (below 0: ahead of it). Ties are exact zeros."""
        xp = self.xp
        best = xp.max(xp.where(self.support, self.advantage, -xp.inf), axis=-1, keepdims=True)
        with quiet(xp):
            return xp.where(self.advantage == best, 0.0, best - self.advantage)
