"""Pictures moved by a few pixels, at random: whoever is shown the same state again sees another picture.

Networks can learn pictures by heart: the score at the top, or the bricks that are left, may tell one game from all
others, and so what came of it. A shift takes the pixels that they would know it by from their places.
"""

import torch
from torch import Tensor


def random_moves(states: int, most: int, generator: torch.Generator) -> Tensor:
    """How far down and right each state is seen from, `[2, states]`: up to `most` pixels either way."""
    return torch.randint(-most, most + 1, (2, states), generator=generator, device=generator.device)


def moved(frames: Tensor, moves: Tensor) -> Tensor:
    """Pictures `[B, stack, H, W, ...]` seen from aside; what comes in at an edge repeats it."""
    row, column = (
        (torch.arange(size, device=frames.device) + move[:, None]).clamp(0, size - 1)
        for size, move in zip(frames.shape[2:4], moves, strict=True)
    )
    state, moment = (torch.arange(size, device=frames.device) for size in frames.shape[:2])
    return frames[state[:, None, None, None], moment[:, None, None], row[:, None, :, None], column[:, None, None, :]]
