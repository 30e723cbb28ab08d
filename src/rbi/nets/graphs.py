"""Work on a GPU as CUDA graphs: captured once, launched as one."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UPS = 3


def warmed(
    function: Callable[[], None],
    stream: torch.cuda.Stream,
    generators: Sequence[torch.Generator],
    keep: Sequence[Tensor],
) -> torch.cuda.CUDAGraph:
    """A function as a graph, after a few trial runs that leave no trace in the tensors to keep."""
    torch.cuda.synchronize()
    before = [tensor.detach().clone() for tensor in keep]
    random = [generator.get_state() for generator in generators]
    exact = {"deterministic": torch.backends.cudnn.deterministic, "allow_tf32": torch.backends.cudnn.allow_tf32}
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, **exact):  # trial runs choose the fastest kernels
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
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
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=stream):
        function()
    return graph
