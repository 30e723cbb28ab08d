"""d3rlpy's DiscreteBC and DoubleDQN, updates per second, for benchmarks/offline.py; runs in its own environment.

.venv-peers/bin/python benchmarks/peers/d3rlpy_updates.py EPISODES.npz SECONDS
"""

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import d3rlpy  # noqa: E402
from d3rlpy.models.encoders import PixelEncoderFactory  # noqa: E402
from d3rlpy.preprocessing import PixelObservationScaler  # noqa: E402
from d3rlpy_buffer import buffer_of  # noqa: E402

BATCH = 32
buffer, actions = buffer_of(sys.argv[1])
seconds = float(sys.argv[2])


def measured(config):
    """Updates per second, sampling included."""
    algorithm = config.create(device="cpu:0")
    algorithm.create_impl((4, 84, 84), actions)
    algorithm.update(buffer.sample_transition_batch(BATCH))
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        algorithm.update(buffer.sample_transition_batch(BATCH))
        count += 1
    return count / (time.perf_counter() - begin)


settings = {"batch_size": BATCH, "observation_scaler": PixelObservationScaler()}
with_dropout = PixelEncoderFactory(feature_size=1024, use_batch_norm=True, dropout_rate=0.5)
plain = PixelEncoderFactory(feature_size=1024, use_batch_norm=True)
found = {
    "bc": measured(d3rlpy.algos.DiscreteBCConfig(encoder_factory=with_dropout, **settings)),
    "double_dqn": measured(d3rlpy.algos.DoubleDQNConfig(encoder_factory=plain, **settings)),
    "version": d3rlpy.__version__,
}
print(json.dumps(found))
