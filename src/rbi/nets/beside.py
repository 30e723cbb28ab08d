"""Work on a GPU beside other work: a second stream, which a graph that is captured takes along."""

import contextlib
from collections.abc import Iterator

import torch


class Beside:
    """A second stream of a device. On a processor there is none, and everything happens in turn."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

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
