"""Observation spec, preprocessing, frame stacking and random-shift augmentation.

A state is the last `stack` frames of an episode, oldest first; frames before the episode's first one are zeros (black):

    episode   f0  f1  f2  f3  f4 ...
    state 1   [0, 0, f0, f1]
    state 4   [f1, f2, f3, f4]

Acting rolls such stacks forward (`zero_stacks`, `roll_stacks`); replay and data sets store every frame once and gather
stacks when they are read (`stack_offsets`, `stack_index`).
"""

import functools
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rbi import gpu

MIN_IMAGE_SIZE = 5  # pixels that the smallest convolutional network needs
BLOCK_IMAGE_SIZE, BLOCK_SIZE = 36, 4  # images of at least this size are read in blocks of 4 x 4 pixels
PIXEL_SCALE = 1 / 256  # a power of two, so that the division of a byte is exact in bfloat16
KERNEL_ELEMENTS = 1024  # output numbers of one Triton program

Stacks = TypeVar("Stacks", Tensor, np.ndarray[Any, Any])


@dataclass(frozen=True)
class ObservationSpec:
    """Shape of an observation, number of stacked frames and number of actions.

    `shape`: one frame, `(height, width)` or `(height, width, channels)` of bytes, or `(size,)` of floats.
    `stack`: frames in a state.
    `scale`: factors `(size,)` by which `preprocess` multiplies vectors; none leaves them as they are.
    `has_action_masks`: whether observations come with masks of legal actions.
    """

    shape: tuple[int, ...]
    stack: int
    num_actions: int
    scale: tuple[float, ...] = ()
    has_action_masks: bool = False

    def __post_init__(self) -> None:
        sizes = (*self.shape, self.stack, self.num_actions)
        if any(isinstance(size, bool) or not isinstance(size, numbers.Integral) for size in sizes):
            raise ValueError(f"shape = {self.shape}, stack = {self.stack}, num_actions = {self.num_actions}: integers")
        if len(self.shape) not in (1, 2, 3) or min(self.shape) < 1 or self.stack < 1 or self.num_actions < 1:
            raise ValueError(
                f"shape = {self.shape}, stack = {self.stack}, num_actions = {self.num_actions}: must be a vector, "
                "(height, width) or (height, width, channels), and all sizes at least 1"
            )
        if self.scale and (self.is_image or len(self.scale) != self.shape[0]):
            raise ValueError(f"scale: {len(self.scale)} factors for observations of shape {self.shape}")
        if not all(isinstance(factor, float) and 0 < factor < math.inf for factor in self.scale):
            raise ValueError("scale: must be positive numbers")
        if not isinstance(self.has_action_masks, bool):
            raise ValueError(f"has_action_masks = {self.has_action_masks!r}: must be true or false")
        if self.is_image and min(self.shape[:2]) < MIN_IMAGE_SIZE:
            raise ValueError(
                f"images of {self.shape[0]} x {self.shape[1]} pixels are too small: at least {MIN_IMAGE_SIZE}"
            )

    @property
    def is_image(self) -> bool:
        return len(self.shape) > 1

    @property
    def mask_size(self) -> int:
        """Numbers in a mask of legal actions; 0 without masks."""
        return self.num_actions if self.has_action_masks else 0

    @property
    def dtype(self) -> torch.dtype:
        """How frames are stored: bytes for images, float32 for vectors."""
        return torch.uint8 if self.is_image else torch.float32

    @property
    def block_size(self) -> int:
        """Pixels per side of the blocks that `preprocess` makes; equals the stride of the first convolution."""
        return BLOCK_SIZE if min(self.shape[:2]) >= BLOCK_IMAGE_SIZE else 1

    @property
    def block_channels(self) -> int:
        """Numbers per block that `preprocess` gives."""
        return self.block_size**2 * self.stack * math.prod(self.shape[2:])

    def preprocess(self, frames: Tensor, dtype: torch.dtype, shifts: Tensor | None = None) -> Tensor:
        """States `[B, stack, *shape]` as network input in `dtype`; images shifted by `shifts` `[2, B]` if given.

        Vectors are flattened to `[B, stack * size]`. Images become space-to-depth blocks with values in [0, 1),
        `[B, H / s, W / s, s * s * stack * channels]` for s = `block_size`: a convolution with a kernel of 8 x 8 pixels
        and stride 4 is one of 2 x 2 blocks and stride 1, with enough channels for fast kernels.
        """
        if not self.is_image:
            if self.scale:
                frames = frames * scale_tensor(self.scale, frames.device)
            return frames.flatten(1).to(dtype)
        if gpu.usable(frames):
            return self._preprocess_triton(frames, dtype, shifts)
        frames = frames if shifts is None else shift_images(frames, shifts)
        s, (height, width) = self.block_size, self.shape[:2]
        high, wide = height // s, width // s
        frames = frames[:, :, : high * s, : wide * s]
        # stacking a pixel's history first makes the following copy move longer runs: half the time
        pixels = torch.stack(frames.unbind(1), 3)
        batch = frames.shape[0]  # not len(frames), which torch.export takes for a constant
        blocks = pixels.view(batch, high, s, wide, self.block_channels // s).transpose(2, 3)
        if torch.compiler.is_compiling():  # tracing loses the memory layout of `out`
            return (blocks.to(dtype) * PIXEL_SCALE).reshape(batch, high, wide, self.block_channels)
        obs = torch.empty(blocks.shape, dtype=dtype, device=frames.device)
        return torch.mul(blocks, PIXEL_SCALE, out=obs).view(batch, high, wide, self.block_channels)

    def _preprocess_triton(self, frames: Tensor, dtype: torch.dtype, shifts: Tensor | None) -> Tensor:
        """`preprocess` of images by one kernel, which reads and writes each number once."""
        from rbi.gpu.kernels import preprocess_kernel

        (height, width, *_), channels = self.shape, math.prod(self.shape[2:])
        high, wide = height // self.block_size, width // self.block_size
        obs = torch.empty((len(frames), high, wide, self.block_channels), dtype=dtype, device=frames.device)
        programs = len(frames), -(-obs.shape[1:].numel() // KERNEL_ELEMENTS)
        if len(frames):
            gpu.launch(
                preprocess_kernel, programs, frames,
                frames.contiguous(), shifts, obs, len(frames), high, wide, PIXEL_SCALE, shifts is not None,
                self.stack, height, width, channels, self.block_size, KERNEL_ELEMENTS,
            )  # fmt: skip
        return obs

    def as_images(self, obs: Tensor) -> Tensor:
        """Undo the blocks of `preprocess`: `[B, stack * channels, H, W]`, as ordinary convolutions take images.

        Rows and columns beyond a multiple of `block_size` are missing.
        """
        batch, high, wide, _ = obs.shape
        s = self.block_size
        pixels = obs.view(batch, high, wide, s, s, -1).permute(0, 5, 1, 3, 2, 4)
        return pixels.reshape(batch, -1, high * s, wide * s)


def scale_tensor(scale: tuple[float, ...], device: torch.device) -> Tensor:
    """The factors of `ObservationSpec.scale` on a device, made once; a tensor of torch.export's tracing is not kept."""
    return (make_scale_tensor if torch.compiler.is_compiling() else cached_scale_tensor)(scale, device)


def make_scale_tensor(scale: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(scale, dtype=torch.float32, device=device)


cached_scale_tensor = functools.lru_cache(maxsize=64)(make_scale_tensor)


# Shrinking images


def shrink(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Grey images of bytes `[N, H, W]`, shrunk to a height and width: pixels are means of areas, halves become even.

    Screens of 210 x 160 pixels become those of ale-py but for one grey level in 5 of 100,000 pixels.

    >>> shrink(torch.tensor([[[0, 100, 200], [0, 100, 200]]], dtype=torch.uint8), (1, 2))
    tensor([[[ 33, 167]]], dtype=torch.uint8)
    """
    rows, columns = (area_weights(*sizes, images.device) for sizes in zip(images.shape[1:], shape, strict=True))
    sums = rows @ images.float() @ columns.T  # whole numbers, and those of screens so small that TF32 has them exactly
    return (sums / (rows[0].sum() * columns[0].sum())).round().byte()


def area_weights(size: int, smaller: int, device: torch.device) -> Tensor:
    """How much each of `size` pixels has in common with each of `smaller` ones, in whole numbers `[smaller, size]`.

    >>> area_weights(5, 2, torch.device("cpu")).tolist()
    [[2.0, 2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0, 2.0]]
    """
    unit = math.gcd(size, smaller)
    length, area = smaller // unit, size // unit
    start, of_area = torch.arange(size, device=device) * length, torch.arange(smaller, device=device)[:, None] * area
    shared = torch.minimum(start + length, of_area + area) - torch.maximum(start, of_area)
    return shared.clamp(min=0).float()


# Frame stacking


def zero_stacks(obs_spec: ObservationSpec, num_envs: int) -> np.ndarray[Any, Any]:
    """Stacks `[num_envs, stack, *shape]` before the first frame."""
    return np.zeros((num_envs, obs_spec.stack, *obs_spec.shape), np.uint8 if obs_spec.is_image else np.float32)


def roll_stacks(stacks: Stacks, obs: Stacks, is_first: Stacks) -> Stacks:
    """Append one frame per environment to `stacks` `[N, stack, *shape]`, in place; zeros precede a first frame.

    >>> stacks = np.array([[[1.0], [2.0]], [[1.0], [2.0]]])
    >>> roll_stacks(stacks, np.array([[3.0], [3.0]]), np.array([False, True])).tolist()
    [[[2.0], [3.0]], [[0.0], [3.0]]]
    """
    same_episode = ~is_first.reshape(-1, *[1] * (stacks.ndim - 1))
    stacks[:, :-1] = stacks[:, 1:] * same_episode
    stacks[:, -1] = obs
    return stacks


def stack_offsets(stack: int, device: torch.device | None = None) -> Tensor:
    """How many frames before the newest one each frame of a stack lies: `[stack - 1, ..., 0]`."""
    return torch.arange(stack - 1, -1, -1, device=device)


def stack_index(newest: Tensor, age: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Where the frames of stacks lie in time, `[B, stack]`, and which of them precede their episode and are zeros.

    `newest` `[B]`: position of each stack's newest frame; `age` `[B]`: frames of the same episode before it (more than
    `stack - 1` may be given as that).

    >>> stack_index(torch.tensor([7]), torch.tensor([1]), stack_offsets(4))
    (tensor([[4, 5, 6, 7]]), tensor([[ True,  True, False, False]]))
    """
    return newest[:, None] - offsets, offsets > age[:, None]


# Random-shift augmentation: prevents networks from recognising a recorded state by single pixels and overfitting to it


def random_shifts(batch: int, max_shift: int, generator: torch.Generator) -> Tensor:
    """Vertical and horizontal shifts `[2, batch]` of up to `max_shift` pixels in either direction."""
    return torch.randint(-max_shift, max_shift + 1, (2, batch), generator=generator, device=generator.device)


def shift_images(frames: Tensor, shifts: Tensor) -> Tensor:
    """Images `[B, stack, H, W, ...]` shifted by `shifts` `[2, B]`; border pixels are repeated."""
    row, column = (
        (torch.arange(size, device=frames.device) + shift[:, None]).clamp(0, size - 1)
        for size, shift in zip(frames.shape[2:4], shifts, strict=True)
    )
    state, frame = (torch.arange(size, device=frames.device) for size in frames.shape[:2])
    return frames[state[:, None, None, None], frame[:, None, None], row[:, None, :, None], column[:, None, None, :]]
