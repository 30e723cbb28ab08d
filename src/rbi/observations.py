"""What a policy sees, and how networks look at it: pictures as blocks of pixels."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rbi import gpu


class Layer(NamedTuple):
    filters: int
    kernel: int
    stride: int


NATURE = (Layer(32, 8, 4), Layer(64, 4, 2), Layer(64, 3, 1))
"""The convolutions of DQN, for pictures of 36 pixels or more."""
SMALL = (Layer(16, 3, 1), Layer(16, 3, 1))
"""For games of a few pixels."""
SMALLEST_NATURE, SMALLEST = 36, 5
NUMBERS_A_BLOCK = 1024
BRIGHTEST = 256  # a power of two, so that a byte divided by it is exact in bfloat16


@dataclass(frozen=True)
class ObservationSpec:
    """What a network sees, and among how many actions it chooses.

    `shape`: the shape of one frame, `(height, width)` or `(height, width, channels)` of bytes, or `(size,)` of floats.
    `stack`: how many frames, oldest first, make a state.
    """

    shape: tuple[int, ...]
    stack: int
    num_actions: int

    def __post_init__(self) -> None:
        if len(self.shape) not in (1, 2, 3) or min(self.shape) < 1 or self.stack < 1 or self.num_actions < 1:
            raise ValueError(f"no network sees frames of shape {self.shape}, {self.stack} at a time")
        if self.is_image and min(self.shape[:2]) < SMALLEST:
            raise ValueError(f"frames of {self.shape[0]} x {self.shape[1]} pixels are too small: {SMALLEST} at least")

    @property
    def is_image(self) -> bool:
        return len(self.shape) > 1

    @property
    def block(self) -> int:
        """The stride of the first convolution: pictures are seen in blocks of so many pixels squared."""
        return self.kind[0].stride

    @property
    def kind(self) -> tuple[Layer, ...]:
        """The convolutions as they are usually written, none for vectors."""
        if not self.is_image:
            return ()
        return NATURE if min(self.shape[:2]) >= SMALLEST_NATURE else SMALL

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions over what `preprocess` gives: the first one, with stride 1, over blocks of pixels."""
        if not self.is_image:
            return ()
        first, *others = self.kind
        return (Layer(first.filters, first.kernel // first.stride, 1), *others)

    def preprocess(self, frames: Tensor, dtype: torch.dtype, shifts: Tensor | None = None) -> Tensor:
        """`[B, stack, *frame]` as the networks read it, in their precision; pictures moved by `shifts` if given.

        Pictures become `[B, H / s, W / s, s * s * channels]` for a first convolution of stride s: a kernel of 8 x 8
        pixels and stride 4 is one of 2 x 2 blocks and stride 1, with channels enough for fast kernels.
        """
        if not self.is_image:
            return frames.flatten(1).to(dtype)
        if gpu.usable(frames):
            return self._preprocess_on_gpu(frames, dtype, shifts)
        frames = frames if shifts is None else shift_images(frames, shifts)
        s, (height, width) = self.block, self.shape[:2]
        high, wide = height // s, width // s
        frames = frames[:, :, : high * s, : wide * s]
        # a pixel's history lies together first, so that the rest moves in longer runs: half the time
        near = torch.stack(frames.unbind(1), 3)
        blocks = near.view(len(frames), high, s, wide, -1).transpose(2, 3)
        seen = torch.empty(blocks.shape, dtype=dtype, device=frames.device)
        return torch.mul(blocks, 1 / BRIGHTEST, out=seen).view(len(frames), high, wide, -1)

    def _preprocess_on_gpu(self, frames: Tensor, dtype: torch.dtype, shifts: Tensor | None) -> Tensor:
        """The same by one kernel."""
        from rbi.gpu.kernels import look_kernel

        (height, width, *_), colours = self.shape, math.prod(self.shape[2:])
        high, wide = height // self.block, width // self.block
        seen = torch.empty((len(frames), high, wide, self.channels()), dtype=dtype, device=frames.device)
        programs = len(frames), -(-seen.shape[1:].numel() // NUMBERS_A_BLOCK)
        if len(frames):
            gpu.launch(
                look_kernel, programs, frames,
                frames.contiguous(), shifts, seen, len(frames), high, wide, 1 / BRIGHTEST, shifts is not None,
                self.stack, height, width, colours, self.block, NUMBERS_A_BLOCK,
            )  # fmt: skip
        return seen

    def channels(self) -> int:
        """How many numbers `preprocess` gives for a block."""
        return self.block**2 * self.stack * math.prod(self.shape[2:])

    def features(self) -> int:
        """How many numbers leave the convolutions."""
        if not self.is_image:
            return self.stack * self.shape[0]
        height, width = (size // self.block for size in self.shape[:2])
        for layer in self.layers:
            height, width = (out_size(size, layer.kernel, layer.stride) for size in (height, width))
        return height * width * self.layers[-1].filters


def out_size(size: int, kernel: int, stride: int) -> int:
    """How many pixels leave a convolution."""
    return (size - kernel) // stride + 1


# ---- from rbi.obs_spec.shift: Pictures moved by a few pixels, at random: whoever is shown the same state again sees another picture.
#
# Networks can learn pictures by heart: the score at the top, or the bricks that are left, may tell one game from all
# others, and so what came of it. A shift takes the pixels that they would know it by from their places.


def random_shifts(states: int, most: int, generator: torch.Generator) -> Tensor:
    """How far down and right each state is seen from, `[2, states]`: up to `most` pixels either way."""
    return torch.randint(-most, most + 1, (2, states), generator=generator, device=generator.device)


def shift_images(frames: Tensor, shifts: Tensor) -> Tensor:
    """Pictures `[B, stack, H, W, ...]` seen from aside; what comes in at an edge repeats it."""
    row, column = (
        (torch.arange(size, device=frames.device) + move[:, None]).clamp(0, size - 1)
        for size, move in zip(frames.shape[2:4], shifts, strict=True)
    )
    state, moment = (torch.arange(size, device=frames.device) for size in frames.shape[:2])
    return frames[state[:, None, None, None], moment[:, None, None], row[:, None, :, None], column[:, None, None, :]]
