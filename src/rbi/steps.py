"""Steps as environments and datasets write them: how a step ends, and how images are laid out.

PyTorch is not imported here, so that processes which only step environments start without it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED = range(4)
"""End codes of a step."""
MASK = "action_mask"
"""The entry of an environment's info that says which actions are legal."""
NO_MASKS = np.ones((1, 0), dtype=bool)
"""In place of masks `[N, A]` where environments have none: it broadcasts to `[N, 0]`."""
CHANNELS = range(1, 5)  # axes of these sizes are channels or stacked frames; images are larger
COLOURS, IMAGE_STACK, MAX_BYTE = 3, 4, 255


@dataclass(frozen=True)
class FrameLayout:
    """How the images of environments and other packages become single images with channels last.

    Leading channels are a stack of frames, oldest first, only if consecutive observations overlap: the newest frame of
    each is then all that is new. Otherwise they are channels, which are all kept.
    """

    channels_first: bool = False
    """The first axis holds channels or stacked frames."""
    stacked: bool = False
    """They are stacked frames, of which the newest is kept."""

    def single_frames(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`[T, H, W]` or `[T, H, W, C]`. Raises ValueError where a stack does not overlap with the next one."""
        if self.stacked:
            if not overlap(images):
                raise ValueError("its images do not overlap like stacked frames, as those of earlier episodes do")
            images = images[:, -1]
            return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images
        if images.ndim != 4:
            return images
        if self.channels_first:
            images = np.moveaxis(images, 1, 3)
        return images[..., 0] if images.shape[3] == 1 else images

    def frame_stack(self, shape: tuple[int, ...]) -> int:
        """How many of our frames make a state: several leading planes are a state as they are."""
        return 1 if self.channels_first and not self.stacked and shape[0] not in (1, COLOURS) else IMAGE_STACK


def legal_or_none(masks: Any) -> Any:
    """Masks `[..., A]` of legal actions as rules and losses take them: None for `[..., 0]`, if there are no masks."""
    return masks if masks.shape[-1] else None


def are_channels_first(shape: tuple[int, ...], *, if_unclear: bool) -> bool:
    """Whether images of three axes have their channels, or stacked frames, on the first one.

    >>> are_channels_first((3, 84, 84), if_unclear=False), are_channels_first((84, 84, 3), if_unclear=True)
    (True, False)
    """
    first, last = (shape[axis] in CHANNELS for axis in (0, 2))
    return if_unclear if first == last else first


def overlap(images: np.ndarray[Any, Any]) -> bool:
    """Whether each observation `[stack, ...]` continues the one before by a single frame."""
    return bool((images[1:, :-1] == images[:-1, 1:]).all())
