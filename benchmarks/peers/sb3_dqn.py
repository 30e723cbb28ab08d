"""Stable-Baselines3's DQN on an Atari game, for benchmarks/engine.py; runs in its own environment.

pip install stable-baselines3 ale-py opencv-python-headless     into .venv-peers
.venv-peers/bin/python benchmarks/peers/sb3_dqn.py GAME ENVS STATES_PER_UPDATE BATCH SECONDS
"""

import json
import sys
import time

import ale_py
import gymnasium
import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack
from stable_baselines3.dqn.policies import CnnPolicy, QNetwork

FIRST = 1000  # random steps before learning starts


class Convolutions(BaseFeaturesExtractor):
    def __init__(self, space, features_dim=3136):
        super().__init__(space, features_dim)
        layers = [(4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)]
        pairs = [(torch.nn.Conv2d(i, o, k, s), torch.nn.ReLU()) for i, o, k, s in layers]
        self.net = torch.nn.Sequential(*[m for pair in pairs for m in pair], torch.nn.Flatten())

    def forward(self, frames):
        return self.net(frames)


class Duelling(QNetwork):
    """The duelling network of ours: two streams of 512."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        actions = int(self.action_space.n)
        stream = lambda out: torch.nn.Sequential(  # noqa: E731
            torch.nn.Linear(3136, 512), torch.nn.ReLU(), torch.nn.Linear(512, out)
        )
        self.q_net, self.value = stream(actions), stream(1)

    def forward(self, obs):
        features = self.extract_features(obs, self.features_extractor)
        advantage = self.q_net(features)
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)


class DuellingPolicy(CnnPolicy):
    def make_q_net(self):
        return Duelling(**self._update_features_extractor(self.net_args, features_extractor=None)).to(self.device)


class Clock(BaseCallback):
    """Counts from a little after learning has started."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.start, self.found = seconds, None, None

    def _on_step(self):
        now = time.perf_counter()
        if self.start is None and self.model._n_updates >= 3:
            self.start, self.steps, self.updates = now, self.num_timesteps, self.model._n_updates
        if self.start is not None and now - self.start > self.seconds:
            took = now - self.start
            self.found = ((self.num_timesteps - self.steps) / took, (self.model._n_updates - self.updates) / took)
        return self.found is None


def main():
    game, envs, ratio, batch, seconds = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
    gymnasium.register_envs(ale_py)
    options = {"frameskip": 1, "repeat_action_probability": 0.0}
    worlds = VecFrameStack(make_atari_env(game, n_envs=envs, seed=0, env_kwargs=options), 4)
    every, times = max(1, ratio // envs), max(1, envs // ratio)
    extractor = {"features_extractor_class": Convolutions, "normalize_images": True}
    model = DQN(
        DuellingPolicy, worlds, buffer_size=10_000, learning_starts=FIRST, batch_size=batch, train_freq=every,
        gradient_steps=times, policy_kwargs=extractor, device="cpu",
    )  # fmt: skip
    clock = Clock(seconds)
    model.learn(10**7, callback=clock)
    steps, updates = clock.found
    versions = {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    print(json.dumps({"steps_per_second": steps, "updates_per_second": updates, "versions": versions}))


if __name__ == "__main__":
    main()
