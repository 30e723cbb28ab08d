"""How the frames of a human game become steps, as the paper's appendix and our notes say it, one frame at a time."""

from itertools import pairwise

import numpy as np


def steps(actions, rewards, phase, action_offset, reward_offset):
    """`(action, reward, first frame, last frame)` of each step.

    A frame's action and reward stand `offset` rows below it. Every fourth frame is seen, from the phase on, and the
    last one. A step goes from a frame that is seen to the next: it has the action of its first frame and the sum of
    its rewards. A step whose action the text no longer has is none; rewards that come later belong to the last one.
    """
    frames, found = len(actions), []
    seen = [frame for frame in range(frames) if frame >= phase and (frame - phase) % 4 == 0]
    if seen and seen[-1] != frames - 1:
        seen.append(frames - 1)
    for start, stop in pairwise(seen):
        if start + 1 + action_offset >= frames:
            break
        total = 0
        for frame in range(start + 1, stop + 1):
            if frame + reward_offset < frames:
                total += rewards[frame + reward_offset]
        found.append([actions[start + 1 + action_offset], total, start, stop])
    if found:
        for frame in range(found[-1][3] + 1, frames):
            if frame + reward_offset < frames:
                found[-1][1] += rewards[frame + reward_offset]
    return [tuple(step) for step in found]


def frame_seen(grey, frame):
    """The larger of a frame's pixels and those of the one before."""
    return np.maximum(grey[frame], grey[max(0, frame - 1)])
