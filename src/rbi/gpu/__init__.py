"""Whether kernels in Triton's language can run: on a GPU, where Triton is installed (PyTorch brings it along for GPUs).

Modules named `..._kernel` import Triton, so they are imported only where they are used.
"""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor


def usable(where: Tensor) -> bool:
    """Whether kernels can run where a tensor lies."""
    return where.is_cuda and installed()


def launch(kernel: Any, grid: tuple[int, ...], where: Tensor, *given: Any) -> None:
    """Run a kernel over a grid of programs, on the device that a tensor lies on: Triton takes the current one."""
    with torch.cuda.device_of(where):
        kernel[grid](*given)


@functools.cache
def installed() -> bool:
    return importlib.util.find_spec("triton") is not None
