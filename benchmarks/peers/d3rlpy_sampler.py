"""d3rlpy's frame-stack sampler, for benchmarks/data.py; runs in an environment of its own.

.venv-peers/bin/python benchmarks/peers/d3rlpy_sampler.py EPISODES.npz BATCH
"""

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import d3rlpy  # noqa: E402
import numpy as np  # noqa: E402
from d3rlpy.dataset import Episode, FrameStackTransitionPicker, InfiniteBuffer, ReplayBuffer  # noqa: E402

data, batch = np.load(sys.argv[1]), int(sys.argv[2])
observations, actions, rewards = (data[name] for name in ("observations", "actions", "rewards"))
episodes, start = [], 0
for length in data["lengths"]:
    part = slice(start, start + length)
    frames, taken, got = observations[part][:, None], actions[part][:, None], rewards[part][:, None]
    episodes.append(Episode(observations=frames, actions=taken, rewards=got, terminated=True))
    start += length
buffer = ReplayBuffer(
    InfiniteBuffer(),
    episodes=episodes,
    transition_picker=FrameStackTransitionPicker(4),
    action_space=d3rlpy.constants.ActionSpace.DISCRETE,
    action_size=int(actions.max()) + 1,
)
times = []
buffer.sample_transition_batch(batch)
while sum(times) < 2.0:
    begin = time.perf_counter()
    buffer.sample_transition_batch(batch)
    times.append(time.perf_counter() - begin)
print(json.dumps({"samples_per_second": batch / float(np.median(times)), "version": d3rlpy.__version__}))
