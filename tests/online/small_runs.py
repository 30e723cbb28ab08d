"""Training runs of a second: settings, engines, and running them to their end."""

import torch

from rbi import envs
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LocalEngine

TINY = {
    "updates": 60,
    "num_envs": 8,
    "states_per_update": 4.0,
    "learning_starts": 64,
    "hidden_size": 16,
    "publish_interval": 2,
    "batch_size": 16,
    "target_update_interval": 8,
    "updates_per_sample": 2,
    "capacity": 2000,
}


def small_config(algo="rbi", env="CartPole-v1", **changes):
    """A run of 60 updates; `changes` as in `TrainConfig.changed`."""
    return TrainConfig.preset(env, algo, "small", **(TINY | changes))


def make_engine(config, seed=0, device="cpu", trunk=None):
    groups = [envs.make(config.env, config.schedule.num_envs // GROUPS, 1) for _ in range(GROUPS)]
    return LocalEngine(config, seed, torch.device(device), groups, trunk)


def run_to_end(engine):
    for _ in engine.run():
        pass
    return engine


def run_steps(engine, steps):
    for _ in engine.run():
        if engine.steps >= steps:
            break
    return engine
