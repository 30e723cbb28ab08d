"""Shared by all rules: one arithmetic for NumPy, PyTorch and JAX, the order of actions, and the checks of arguments.

A rule checks its arguments (`check_*`), computes on a `State`, and converts the result back with `State.answer`.
"""

import contextlib
import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat.numpy
import numpy as np
from array_api_compat import array_namespace, is_jax_array

NUMBERS = (int, float, np.integer, np.floating)
LARGEST = {4: 3.4e38, 8: 1.7e308}  # finite numbers, by the bytes of the dtype

numpy_xp: Any = array_api_compat.numpy


# Libraries. PyTorch is not imported here: whoever has a tensor has imported it.


def is_torch(array: Any) -> bool:
    """Whether the array is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def namespace(*arrays: Any) -> Any:
    """The array-standard namespace of the arrays' library (spelled out so that torch.compile traces it silently)."""
    if isinstance(arrays[0], np.ndarray):
        return numpy_xp
    if is_torch(arrays[0]):
        import array_api_compat.torch

        return array_api_compat.torch
    return array_namespace(*arrays)


def is_torch_namespace(xp: Any) -> bool:
    return bool(xp.__name__ == "array_api_compat.torch")


def is_exporting(xp: Any) -> bool:
    """Whether torch.export traces the code: the number of states is then not known yet."""
    if not is_torch_namespace(xp):
        return False
    compiler = sys.modules["torch"].compiler
    return bool(compiler.is_exporting() if hasattr(compiler, "is_exporting") else compiler.is_compiling())


def library(array: Any) -> str | None:
    """The name of the array's library; None if it is not an array of NumPy, PyTorch or JAX."""
    if isinstance(array, np.ndarray):
        return None if isinstance(array, np.matrix | np.ma.MaskedArray) else "NumPy"
    if is_torch(array):
        return "PyTorch"
    return "JAX" if is_jax_array(array) else None


def is_torch_dtype(dtype: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def is_floating(dtype: Any) -> bool:
    if is_torch_dtype(dtype):
        return bool(dtype.is_floating_point)
    return bool(dtype.kind == "f") or dtype.name == "bfloat16"  # ml_dtypes' bfloat16 is of kind "V"


def is_real(dtype: Any) -> bool:
    """Whether the rules can compute with a dtype: floating with 2, 4 or 8 bytes, integer or boolean."""
    if is_torch_dtype(dtype):
        return not dtype.is_complex and "float8" not in str(dtype) and "float4" not in str(dtype)
    return dtype.name == "bfloat16" or (dtype.kind in "fiub" and dtype.itemsize <= 8)


def computing_dtype(xp: Any, *arrays: Any) -> Any:
    """float64 in NumPy (its float32 sums run one by one and drift); elsewhere the arrays' own, at least float32.

    Integers that float32 cannot tell apart need float64 as well.
    """
    if xp is numpy_xp:
        return np.dtype(np.float64)  # the type np.float64 does not know its size
    wide = any(a.dtype.itemsize == 8 or (a.dtype.itemsize == 4 and not is_floating(a.dtype)) for a in arrays)
    return widest_dtype(xp, arrays[0]) if wide else xp.float32


def widest_dtype(xp: Any, like: Any) -> Any:
    """float64 where it exists: not in JAX unless jax_enable_x64 is set, not on Apple's GPUs."""
    if xp is numpy_xp:
        return xp.float64
    if is_torch_namespace(xp):
        return xp.float32 if like.device.type == "mps" else xp.float64
    return xp.asarray(0.0).dtype


def at_most(xp: Any, x: Any, limit: Any) -> Any:
    """min(x, limit) for a number or an array, which torch.minimum does not take."""
    return x.clamp(max=limit) if is_torch_namespace(xp) else xp.minimum(x, limit)


def at_least(xp: Any, x: Any, limit: Any) -> Any:
    """max(x, limit) for a number or an array."""
    return x.clamp(min=limit) if is_torch_namespace(xp) else xp.maximum(x, limit)


def action_indices(xp: Any, like: Any) -> Any:
    """0 .. A-1 on the device of `like` `[..., A]` (a traced JAX array has none yet)."""
    actions = like.shape[-1]
    return xp.arange(actions, device=like.device) if is_torch_namespace(xp) else xp.arange(actions)


def argsort_descending(xp: Any, x: Any) -> Any:
    """The order that sorts x along the last axis from the largest down; of equals the lower index comes first."""
    if xp is numpy_xp:
        return (-x).argsort(axis=-1, kind="stable")
    if is_torch_namespace(xp):
        if is_exporting(xp):  # ONNX has no stable sort, but its TopK ranks the lower index first
            return x.topk(x.shape[-1], dim=-1).indices
        return x.argsort(dim=-1, descending=True, stable=True)
    return xp.argsort(-x, axis=-1, stable=True)


def take_along(xp: Any, x: Any, order: Any) -> Any:
    """x in the given order along the last axis."""
    if is_torch_namespace(xp):
        return x.gather(-1, order)
    return x[order] if xp is numpy_xp and x.ndim == 1 else xp.take_along_axis(x, order, axis=-1)


def put_along(xp: Any, order: Any, x: Any) -> Any:
    """The inverse of `take_along`: x back from the given order."""
    if is_torch_namespace(xp):
        return xp.empty_like(x).scatter_(-1, order, x)
    if xp is not numpy_xp:  # JAX arrays do not change in place
        return xp.take_along_axis(x, xp.argsort(order, axis=-1), axis=-1)
    back = np.empty_like(x)
    if x.ndim == 1:
        back[order] = x
    else:
        np.put_along_axis(back, order, x, axis=-1)
    return back


def stop_gradient(xp: Any, x: Any) -> Any:
    """The same values, cut off from differentiation."""
    if xp is numpy_xp:
        return x
    if is_torch_namespace(xp):
        return x.detach()
    from jax import lax

    return lax.stop_gradient(x)


def without_warnings(xp: Any) -> Any:
    """NumPy warns about infinities that are intended (gaps to -inf, temperatures near 0); the others do not."""
    return np.errstate(all="ignore") if xp is numpy_xp else contextlib.nullcontext()


# States


@dataclass(frozen=True)
class State:
    """A state of a decision problem, or a batch of them, ready for arithmetic: beta normalised over legal actions.

    `beta`, `advantage`: `[..., A]` arrays of namespace `xp`. `legal`: boolean, the same shape, or None for all.
    `dtype` is that of the answer: beta's own, or the computing one if beta holds integers (a one-hot beta).
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
        """pi in the dtype of the answer."""
        return self.xp.astype(pi, self.dtype, copy=False)

    def parameter(self, value: Any) -> Any:
        """A rule's parameter in the computing precision; infinity becomes the largest number, so that 0 * it is 0."""
        largest = LARGEST[self.beta.dtype.itemsize]
        if isinstance(value, np.floating):
            value = float(value)  # NumPy would warn that `largest` is infinite in float32
        if isinstance(value, NUMBERS):
            return largest if value > largest else float(value)
        return at_most(self.xp, self.xp.astype(value, self.beta.dtype, copy=False), largest)

    @property
    def support(self) -> Any:
        """True where beta > 0."""
        return self.beta > 0

    @property
    def untried(self) -> Any:
        """True for legal actions with beta = 0."""
        return ~self.support if self.legal is None else self.legal & ~self.support

    def sum(self, values: Any) -> Any:
        """The sum over actions, `[..., 1]`."""
        return values.sum(axis=-1, keepdims=True)

    def fill(self, budget: Any, room: Any) -> Any:
        """Distribute the budget in the order of advantages, at most `room` to each action."""
        return fill(self.xp, budget, room, self.advantage)

    def best(self, among: Any) -> Any:
        """True at the first action of the total order among the marked ones (None: all)."""
        return first(self.xp, self.advantage, among)

    def gap(self) -> Any:
        """The best supported advantage minus each advantage (negative off the support). Ties are exact zeros."""
        xp = self.xp
        best = xp.max(xp.where(self.support, self.advantage, -xp.inf), axis=-1, keepdims=True)
        with without_warnings(xp):
            return xp.where(self.advantage == best, 0.0, best - self.advantage)


# The total order of actions (higher advantage first, then lower index), and distributing mass along it: `fill` is the
# step that Max-Reroute, Max-TV and Max-PPO share, the while-loops of the paper without the loop.

MAX_COLUMNS = 3  # actions; from four on PyTorch's sort is as fast
MIN_COLUMN_SIZE = 2**13  # numbers from which PyTorch's calls for columns pay
MAX_PAIRED_ACTIONS = 32
MAX_PAIRS = 2**28  # 1 GiB of float32 where nothing fuses them


def fill(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Distribute `budget` `[..., 1]` in the total order, at most `room` `[..., A]` to each action.

    taken_i = sum_j room_j [j ranks before i],    given_i = min(max(budget - taken_i, 0), room_i)
    """
    if not isinstance(budget, float) and budget.shape[:-1] != room.shape[:-1]:
        budget, room, advantage = xp.broadcast_arrays(budget, room, advantage)
    elif advantage.shape != room.shape:
        room, advantage = xp.broadcast_arrays(room, advantage)
    return fill_method(xp, advantage)(xp, budget, room, advantage)


def fill_method(xp: Any, advantage: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """The fastest method for this library, device and size, as measured (docs/decisions/002-fill.md)."""
    actions = advantage.shape[-1]
    if xp is numpy_xp:
        return fill_by_columns if actions <= MAX_COLUMNS else fill_by_sorting
    if is_exporting(xp):
        return fill_by_pairs if actions <= MAX_PAIRED_ACTIONS else fill_by_sorting
    if is_torch_namespace(xp) and advantage.device.type == "cpu":
        large = math.prod(advantage.shape) >= MIN_COLUMN_SIZE
        return fill_by_columns if actions <= MAX_COLUMNS and large else fill_by_sorting
    few = actions <= MAX_PAIRED_ACTIONS and math.prod(advantage.shape) * actions <= MAX_PAIRS
    return fill_by_pairs if few else fill_by_sorting


def fill_by_pairs(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Compare every action with every other: no sort, `[..., A, A]` intermediate values (none once fused)."""
    mine, theirs = advantage[..., :, None], advantage[..., None, :]
    index = action_indices(xp, advantage)
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
    """Sort, add up along the order, and undo the sort."""
    order = argsort_descending(xp, advantage)
    room = take_along(xp, room, order)
    taken = room.cumsum(-1) - room
    return put_along(xp, order, at_most(xp, at_least(xp, budget - taken, 0.0), room))


def first(xp: Any, advantage: Any, among: Any) -> Any:
    """True at the first action of the total order among the marked ones, False elsewhere. Shape `[..., A]`."""
    if fill_method(xp, advantage) is fill_by_columns:  # the action that takes all of a budget of 1 is the first
        room = xp.ones_like(advantage) if among is None else xp.astype(among, advantage.dtype)
        return fill_by_columns(xp, 1.0, room, advantage) > 0
    if among is None:
        at = xp.argmax(advantage, axis=-1, keepdims=True)
    else:
        top = xp.max(xp.where(among, advantage, -xp.inf), axis=-1, keepdims=True)
        at = xp.argmax(xp.astype(among & (advantage == top), xp.int8), axis=-1, keepdims=True)
    return action_indices(xp, advantage) == at


# Checks: one ValueError with the argument, the index of the first bad value, and the value. Reading values makes a GPU
# wait, so the rules call these only under `check=True`. Where values do not exist yet (inside torch.compile or jax.jit,
# or while a CUDA graph is captured) only shapes and libraries are checked.

BOUNDS_TOLERANCE = 1e-6  # rounding of sums of bounds
SUM_TOLERANCE = 1e-4  # float32 softmaxes over 10,000 actions stay within 1e-5; hand-typed tables do not


def check_state(
    beta: Any,
    advantage: Any,
    legal: Any,
    parameters: dict[str, Any],
    *,
    per_action: bool = False,
    names: tuple[str, str] = ("beta", "advantage"),
) -> None:
    """beta is a distribution, advantage has no NaN or +inf, some action is legal, and all arrays broadcast."""
    check_shapes(beta, advantage, legal, names)
    check_parameters(parameters, {names[0]: beta, names[1]: advantage}, per_action=per_action)
    if not has_values(beta, advantage, legal):
        return
    check_probabilities(names[0], beta, legal)
    xp = namespace(advantage)
    refuse(names[1], advantage, xp.isnan(advantage) | (advantage == xp.inf), "must be a number or -inf")


def check_pair(pi: Any, other: Any, first: str, second: str) -> None:
    """Two distributions over the same actions."""
    check_shapes(pi, other, None, (first, second))
    if has_values(pi, other):
        check_probabilities(first, pi)
        check_probabilities(second, other)


def check_shapes(beta: Any, advantage: Any, legal: Any, names: tuple[str, str] = ("beta", "advantage")) -> None:
    """All have the same number of actions on the last axis and broadcast; legal is boolean."""
    arrays = {names[0]: beta, names[1]: advantage}
    if legal is not None:
        arrays["legal"] = legal  # torch.compile of PyTorch 2.6 cannot trace `dict | dict`
    check_library(arrays)
    for name, array in arrays.items():
        if array.ndim == 0 or array.shape[-1] == 0:
            raise ValueError(f"{name} has shape {tuple(array.shape)}: the last axis holds the actions, at least one")
        if array.shape[-1] != beta.shape[-1]:
            raise ValueError(
                f"{name} has {array.shape[-1]} actions (shape {tuple(array.shape)}), "
                f"{names[0]} has {beta.shape[-1]} (shape {tuple(beta.shape)})"
            )
    check_broadcast(arrays)
    if legal is not None and "bool" not in str(legal.dtype):
        raise ValueError(f"legal has dtype {legal.dtype}: must be boolean, True for the actions that may be taken")


def check_parameters(values: dict[str, Any], states: dict[str, Any], *, per_action: bool = False) -> None:
    """Numbers, or arrays that broadcast: per state `[..., 1]` or, with `per_action`, per action `[..., A]`."""
    arrays = {name: v for name, v in values.items() if not isinstance(v, NUMBERS)}
    check_library({**states, **arrays})
    actions = next(iter(states.values())).shape[-1]
    for name, array in arrays.items():
        if array.ndim > 0 and array.shape[-1] not in ((1, actions) if per_action else (1,)):
            last = f"1 or {actions}" if per_action else "1"
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}: its last axis must be {last}, "
                "one value per state" + (" or per action" if per_action else "")
            )
        check_broadcast({**states, name: array})


def check_broadcast(arrays: dict[str, Any]) -> None:
    """The shapes broadcast against each other. (torch.compile of PyTorch 2.6 cannot trace numpy.broadcast_shapes.)"""
    shapes = [tuple(array.shape) for array in arrays.values()]
    for axis in range(1, max(len(shape) for shape in shapes) + 1):
        sizes = [shape[-axis] for shape in shapes if len(shape) >= axis and shape[-axis] != 1]
        if any(size != sizes[0] for size in sizes):
            shown = ", ".join(f"{name} {shape}" for name, shape in zip(arrays, shapes, strict=True))
            raise ValueError(f"shapes do not broadcast: {shown}")


def check_library(arrays: dict[str, Any]) -> None:
    """All are real arrays of one library, on one device."""
    libraries = {name: library(array) for name, array in arrays.items()}
    for name, found in libraries.items():
        if found is None:
            raise ValueError(f"{name} is a {type(arrays[name]).__name__}: must be a NumPy, PyTorch or JAX array")
        if not is_real(arrays[name].dtype):
            raise ValueError(f"{name} has dtype {arrays[name].dtype}: must be floating (16, 32, 64 bits) or integer")
    if len(set(libraries.values())) > 1:
        shown = ", ".join(f"{name} is {found}" for name, found in libraries.items())
        raise ValueError(f"arrays of one library are needed: {shown}")
    devices = {n: str(a.device) for n, a in arrays.items() if is_torch(a) and a.ndim > 0}
    if len(set(devices.values())) > 1:
        shown = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise ValueError(f"arrays on one device are needed: {shown}")


def check_probabilities(name: str, pi: Any, legal: Any = None) -> None:
    """Not negative, not NaN, summing to 1, and with some probability on a legal action."""
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


def check_reroute_bounds(beta: Any, legal: Any, c_min: Any, c_max: Any) -> None:
    """0 <= c_min <= c_max and sum c_min beta <= 1 <= sum c_max beta: some policy lies between the bounds."""
    if isinstance(c_min, NUMBERS) and isinstance(c_max, NUMBERS):
        check_range("c_min", c_min, 0, 1)
        check_range("c_max", c_max, 1, float("inf"))
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


def check_floor(f: Any, pi: Any, legal: Any) -> None:
    """A floor under all legal actions takes no more than there is: A f <= 1."""
    if has_values(pi, f, legal):
        s = State.of(pi, pi, legal)
        count = s.sum(s.xp.ones_like(s.beta) if legal is None else s.xp.astype(s.legal, s.beta.dtype))
        needed = count * s.parameter(f)
        refuse("f * legal actions", needed[..., 0], ~(needed[..., 0] <= 1 + BOUNDS_TOLERANCE), "must be <= 1")


def check_range(name: str, value: Any, least: float, most: float) -> None:
    """A number, or an array of numbers, inside a closed interval."""
    limits = f"must be >= {least:g}" if most == float("inf") else f"must be in [{least:g}, {most:g}]"
    if isinstance(value, NUMBERS):
        if not least <= value <= most:
            raise ValueError(f"{name} = {value:g}: {limits}")
    elif value is not None and has_values(value):
        refuse(name, value, ~((value >= least) & (value <= most)), limits)


def check_positive(name: str, value: Any) -> None:
    """A positive number, or an array of them."""
    if isinstance(value, NUMBERS):
        if not value > 0:
            raise ValueError(f"{name} = {value:g}: must be > 0")
    elif value is not None and has_values(value):
        refuse(name, value, ~(value > 0), "must be > 0")


def check_exactly_one(**options: Any) -> None:
    """One of several optional arguments is given."""
    if sum(value is not None for value in options.values()) != 1:
        shown = " or ".join(options)
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f"give exactly one of {shown}: got {given}")


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
    """Whether the arrays hold values that can be read now, rather than symbols of a trace."""
    torch = sys.modules.get("torch")
    if torch is not None:
        if torch.compiler.is_compiling():
            return False
        if any(is_torch(a) and a.is_cuda for a in arrays) and torch.cuda.is_current_stream_capturing():
            return False
    return not any(is_symbol(a) for a in arrays)


def is_symbol(array: Any) -> bool:
    """Whether the array is traced by JAX or batched by torch.func.vmap, so that it has no values yet."""
    if is_torch(array):
        return bool(sys.modules["torch"]._C._functorch.is_batchedtensor(array))
    return "jax" in sys.modules and isinstance(array, sys.modules["jax"].core.Tracer)


def epsilon_of(dtype: Any) -> float:
    """The relative rounding error of a floating dtype; integers have none."""
    if not is_floating(dtype):
        return 0.0
    return {2: 2.0**-7 if "bfloat16" in str(dtype) else 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}[dtype.itemsize]
