"""Small training runs that tests of the engines share."""

from dataclasses import replace

import torch

from rbi import envs
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LocalEngine


def small_config(algo="rbi", env="CartPole-v1", **changes):
    """A run of 60 updates; `changes` are settings by part, such as schedule={"updates": 20}."""
    config = TrainConfig.preset(env, algo, "small")
    schedule = {
        "updates": 60,
        "num_envs": 8,
        "states_per_update": 4.0,
        "learning_starts": 64,
        "hidden_size": 16,
        "publish_interval": 2,
    }
    learner = {"batch_size": 16, "target_update_interval": 8, "updates_per_sample": 2}
    defaults = {"schedule": schedule, "learner": learner, "replay": {"capacity": 2000}, "actor": {}}
    parts = {name: replace(getattr(config, name), **(d | changes.get(name, {}))) for name, d in defaults.items()}
    return replace(config, **parts)


def make_engine(config, seed=0, device="cpu"):
    groups = [envs.make(config.env, config.schedule.num_envs // GROUPS, 1) for _ in range(GROUPS)]
    return LocalEngine(config, seed, torch.device(device), groups)


def run_to_end(engine):
    for _ in engine.run():
        pass
    return engine
