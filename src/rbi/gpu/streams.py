"""Work on a GPU beside other work: a second stream, which a graph that is captured takes along."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


class Beside:
    """A second stream of a device. On a processor there is none, and everything happens in turn."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None

    @contextlib.contextmanager
    def overlapping(self) -> Iterator[None]:
        """What is done within runs beside what is done after, until `join`."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Wait, on the device, for the second stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)


_wanted = contextvars.ContextVar("weights_beside", default=False)


@contextlib.contextmanager
def weights_beside() -> Iterator[None]:
    """Networks that answer within have their weights' gradients computed beside the way back, on a second stream. Where
    a learner has a GPU for itself that is faster; where several share it, it is slower."""
    before = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(before)


def may_learn_beside(x: Tensor, weight: Tensor) -> bool:
    """Whether that is wanted, and the way back goes on to layers below, so that there is something to be beside of."""
    learns = x.requires_grad and weight.requires_grad and torch.is_grad_enabled()
    return _wanted.get() and x.is_cuda and learns


def learns_beside(y: Tensor, x: Tensor, weight: Tensor, gradient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`y`, a layer's answer to `x` with its weight detached, from which the weight learns all the same.

    Nothing below a layer needs its weight's gradient, so it is computed beside the way back: `gradient` is called with
    y's gradient and x. Autograd takes each step back on the stream on which the step forward was taken, and waits by
    itself where streams meet. So the weight gets a step of its own, taken on a second stream, with no work forward:

        x ------ layer, weight detached ------> y --.
        weight -- tap, on a second stream --> y ----+-- joined --> y
    """
    with on_second_stream(x):
        tap = _Tap.apply(weight, x.detach(), y.detach(), gradient)
    joined: Tensor = _Joined.apply(y, tap)
    return joined


@contextlib.contextmanager
def on_second_stream(read: Tensor) -> Iterator[None]:
    """What is done within happens on the stream beside the current one; the memory of what is `read` there, now or on
    the way back, is not used again before. On a processor there is no such stream."""
    if not read.is_cuda:
        yield
        return
    stream = second_of(torch.cuda.current_stream(read.device))
    read.record_stream(stream)
    with torch.cuda.stream(stream):
        yield


@functools.cache
def second_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """The stream beside a stream."""
    return torch.cuda.Stream(stream.device)


class _Tap(torch.autograd.Function):
    """A layer's answer as it is, forward; the gradient of the layer's weight backward."""

    @staticmethod
    def forward(ctx: Any, _weight: Tensor, x: Tensor, y: Tensor, gradient: Any) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gradient = gradient
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.gradient(grads[0], *ctx.saved_tensors), None, None, None


class _Joined(torch.autograd.Function):
    """The first of two forward, and the gradient to both backward."""

    @staticmethod
    def forward(_ctx: Any, y: Tensor, _tap: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


# ---- from rbi.nets.graphs: Work on a GPU as CUDA graphs: captured once, launched as one.

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
