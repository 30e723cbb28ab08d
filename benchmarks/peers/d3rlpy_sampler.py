"""d3rlpy's frame-stack sampler, for benchmarks/data.py; runs in its own environment.

.venv-peers/bin/python benchmarks/peers/d3rlpy_sampler.py EPISODES.npz BATCH [LARGER]

LARGER: the size of a batch that is drawn first, after which glibc keeps freed memory instead of returning it.
"""

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import d3rlpy  # noqa: E402
import numpy as np  # noqa: E402
from d3rlpy_buffer import buffer_of  # noqa: E402

buffer, _ = buffer_of(sys.argv[1])
batch = int(sys.argv[2])
times = []
if len(sys.argv) > 3:
    buffer.sample_transition_batch(int(sys.argv[3]))
buffer.sample_transition_batch(batch)
while sum(times) < 2.0:
    begin = time.perf_counter()
    buffer.sample_transition_batch(batch)
    times.append(time.perf_counter() - begin)
print(json.dumps({"samples_per_second": batch / float(np.median(times)), "version": d3rlpy.__version__}))
