"""GPU backend: Triton kernels, CUDA streams and graphs, and layers with a faster backward pass.

Each kernel is called by one function that computes the same in plain PyTorch where Triton cannot run; tests compare the
two. `rbi.gpu.kernels` imports Triton, so it is imported inside the functions that launch its kernels. What each
hand-written piece gains is measured in `docs/decisions/013-hand-written-kernels.md`.
"""

import contextlib
import functools
import importlib.util
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

WARM_UP_RUNS = 3


def prepare_for_many_streams() -> None:
    """Open 32 connections to a GPU instead of 8, so that learners on different streams do not wait for each other.

    A number in the environment stands. There is no effect once the process uses CUDA.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


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


class SideStream:
    """A second CUDA stream, for work that overlaps with the current one; on a CPU, work runs in program order.

    Inside a CUDA graph capture the side stream is captured along.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None

    @contextlib.contextmanager
    def overlapping(self) -> Iterator[None]:
        """Run the block on the side stream, after what is queued so far and overlapping with what follows."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Make the current stream wait for the side stream; the host does not wait."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)


def lock_pages(owner: object, memory: Any) -> Callable[[], Any]:
    """Lock the pages of a buffer, so that copies from it to a GPU need no copy on the host first, until the function
    that is returned is called or `owner` is gone. Nothing happens without a GPU."""
    if not torch.cuda.is_available():
        return lambda: None
    pages, runtime = np.frombuffer(memory, np.uint8), torch.cuda.cudart()
    if int(runtime.cudaHostRegister(pages.ctypes.data, pages.nbytes, 0)):  # the system allows no more locked pages
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")  # the next kernel would raise the error
        return lambda: None
    return weakref.finalize(owner, runtime.cudaHostUnregister, pages.ctypes.data)


def capture_graph(
    function: Callable[[], None],
    stream: torch.cuda.Stream,
    generators: Sequence[torch.Generator],
    keep: Sequence[Tensor],
) -> torch.cuda.CUDAGraph:
    """Capture a function as a CUDA graph, after warm-up runs.

    `keep`: the tensors that the function changes; they and the `generators` are restored to what they were before.
    """
    torch.cuda.synchronize()
    before = [tensor.detach().clone() for tensor in keep]
    random = [generator.get_state() for generator in generators]
    exact = {"deterministic": torch.backends.cudnn.deterministic, "allow_tf32": torch.backends.cudnn.allow_tf32}
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, **exact):  # warm-up runs choose the fastest kernels
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                function()
        torch.cuda.synchronize()
        graph = capture(function, stream, generators)
    with torch.no_grad():
        for tensor, value in zip(keep, before, strict=True):
            tensor.copy_(value)
    for generator, state in zip(generators, random, strict=True):
        generator.set_state(state)
    torch.cuda.synchronize()
    return graph


def capture(
    function: Callable[[], None], stream: torch.cuda.Stream, generators: Sequence[torch.Generator]
) -> torch.cuda.CUDAGraph:
    """Capture a function that needs no warm-up."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=stream):
        function()
    return graph
