"""What the rules refuse, and how they say it: one ValueError with the argument, the first bad place and the value.

Looking at values makes a GPU wait, so the rules call these only under `check=True`. Where values do not exist yet
(inside torch.compile, jax.jit, or while a CUDA graph is captured) only shapes and libraries are checked.
"""

import sys
from typing import Any

import numpy as np
import torch

from rbi.arrays import NUMBERS, is_floating, is_real, library, namespace
from rbi.rules.state import State

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
