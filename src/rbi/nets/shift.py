"""Pictures moved by a few pixels, at random: whoever is shown the same state again sees another picture.

Networks can learn pictures by heart: the score at the top, or the bricks that are left, may tell one game from all
others, and so what came of it. A shift takes the pixels that they would know it by from their places.
"""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

NUMBERS_A_BLOCK = 1024


def shifted(frames: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Pictures `[B, stack, H, W, ...]`, each state moved at random by up to `most` pixels either way; what comes in at
    an edge repeats it."""
    moves = torch.randint(-most, most + 1, (2, len(frames)), generator=generator, device=frames.device)
    if frames.is_cuda and kernel() is not None:
        frames = frames.contiguous()
        states, stack, height, width = frames.shape[:4]
        out, colours = torch.empty_like(frames), frames.shape[4:].numel()
        blocks = -(-height * width * colours // NUMBERS_A_BLOCK)
        kernel()[(states * stack, blocks)](
            frames, moves.int(), out, states, stack, height, width, colours, NUMBERS_A_BLOCK
        )
        return out
    row, column = (
        (torch.arange(size, device=frames.device) + move[:, None]).clamp(0, size - 1)
        for size, move in zip(frames.shape[2:4], moves, strict=True)
    )
    state, moment = (torch.arange(size, device=frames.device) for size in frames.shape[:2])
    return frames[state[:, None, None, None], moment[:, None, None], row[:, None, :, None], column[:, None, None, :]]


@functools.cache
def kernel() -> Any:
    """The fused kernel, or None where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    from rbi.nets.shift_kernel import shift_kernel

    return shift_kernel
