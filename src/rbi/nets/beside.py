"""Work on a GPU beside other work: a second stream, which a graph that is captured takes along."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd import Variable


class Beside:
    """A second stream of a device. On a processor there is none, and everything happens in turn."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.read: list[Tensor] = []

    @contextlib.contextmanager
    def overlapping(self, *read: Tensor) -> Iterator[None]:
        """What is done within runs beside what is done after, until `join`. What is `read` there is kept until then:
        given back earlier, its memory would be written to by what is done after."""
        if self.stream is None:
            yield
            return
        self.read += read
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Wait, on the device, for the second stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            self.read.clear()


@functools.cache
def second_of(stream: torch.cuda.Stream) -> Beside:
    """The stream beside a stream."""
    return Beside(stream.device)


def beside_the_way_back(gradient: Callable[[], Tensor], *read: Tensor) -> Tensor:
    """The gradient of a weight, for use in the backward step of a layer: nothing below needs it, so on a GPU it is
    computed while the way back goes on to the layers below. At its end, autograd waits for all of them."""
    if not read[0].is_cuda:
        return gradient()
    beside = second_of(torch.cuda.current_stream(read[0].device))
    if not beside.read:
        Variable._execution_engine.queue_callback(beside.join)
    with beside.overlapping(*read):
        return gradient()
