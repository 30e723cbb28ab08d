"""PyTorch's settings for the whole process or thread: rbi computes in float32, on the device of its arguments, and puts
the settings of the calling program back."""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def with_own_settings(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with PyTorch's defaults while it runs: those of `with_own_thread`, and float32.

    The default dtype is that of all threads, so what a program calls while it computes something else must not need it.
    """
    run_in_thread = with_own_thread(function)

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        with FLOAT32:
            return run_in_thread(*args, **options)

    return run


def with_own_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with PyTorch's defaults in its thread while it runs: gradients, no autocast, no default device.

    A program may have changed them for its own models. Some would stop rbi, and others, such as autocast to bfloat16,
    would change its results.
    """

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            if not torch.is_grad_enabled():
                stack.enter_context(torch.enable_grad())
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            if torch.empty(0).device.type != "cpu":  # PyTorch 2.6's get_default_device misses `with torch.device(...)`
                stack.enter_context(torch.device("cpu"))
            return function(*args, **options)

    return run


class Shared(Generic[T]):
    """A setting of the whole process while runs need it: the first of several threads sets it, the last restores it."""

    def __init__(self, get: Callable[[], T], put: Callable[[T], object], value: T) -> None:
        self._get, self._put, self._value = get, put, value
        self._lock, self._users, self._before = threading.Lock(), 0, value

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = self._get()
                self._put(self._value)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._put(self._before)


def float32_matmul_precision() -> str:
    """PyTorch's setting. It cannot be read where a program has turned TF32 on by `torch.backends` (PyTorch 2.9)."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high"


FLOAT32 = Shared(torch.get_default_dtype, torch.set_default_dtype, torch.float32)
TF32 = Shared(float32_matmul_precision, torch.set_float32_matmul_precision, "high")


def matmul_precision(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """TF32 for float32 on a GPU."""
    return TF32 if device.type == "cuda" else contextlib.nullcontext()
