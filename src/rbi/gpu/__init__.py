"""GPU backend: Triton kernels, CUDA streams and graphs, and layers with a faster backward pass.

Each kernel is called by one function that computes the same in plain PyTorch where Triton cannot run; tests compare the
two. `rbi.gpu.kernels` imports Triton, so it is imported inside the functions that launch its kernels. What each
hand-written piece gains is measured in `docs/decisions/013-hand-written-kernels.md`.
"""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor


def usable(tensor: Tensor) -> bool:
    """Whether Triton kernels can run on a tensor: on a GPU, where Triton is installed (PyTorch for CUDA brings it)."""
    return tensor.is_cuda and triton_installed()


def launch(kernel: Any, grid: tuple[int, ...], on: Tensor, *arguments: Any) -> None:
    """Launch a Triton kernel on the device of a tensor; Triton itself would take the current device."""
    with torch.cuda.device_of(on):
        kernel[grid](*arguments)


@functools.cache
def triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None
