"""Our episodes as d3rlpy's replay buffer of four stacked frames, for the scripts beside this one."""

import d3rlpy
import numpy as np
from d3rlpy.dataset import Episode, FrameStackTransitionPicker, InfiniteBuffer, ReplayBuffer


def buffer_of(path):
    """The episodes of an .npz, and how many actions they have."""
    data = np.load(path)
    observations, actions, rewards = (data[name] for name in ("observations", "actions", "rewards"))
    episodes, start = [], 0
    for length in data["lengths"]:
        part = slice(start, start + length)
        frames, taken, got = observations[part][:, None], actions[part][:, None], rewards[part][:, None]
        episodes.append(Episode(observations=frames, actions=taken, rewards=got, terminated=True))
        start += length
    count = int(actions.max()) + 1
    buffer = ReplayBuffer(
        InfiniteBuffer(),
        episodes=episodes,
        transition_picker=FrameStackTransitionPicker(4),
        action_space=d3rlpy.constants.ActionSpace.DISCRETE,
        action_size=count,
    )
    return buffer, count
