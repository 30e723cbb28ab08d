"""CUDA streams and graphs: overlapping work on a second stream, capturing work as a graph that is launched as one."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

WARM_UP_RUNS = 3


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
