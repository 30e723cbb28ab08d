"""One arithmetic for three libraries: which one an array is of, and the few things the array standard leaves out."""

import contextlib
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
