"""Stable-Baselines3's DQN with rl-baselines3-zoo's settings, for benchmarks/classic.py; runs in .venv-peers.

.venv-peers/bin/python benchmarks/peers/sb3_classic.py ENV STEPS SEED EPISODES FOLDER SECONDS

It stops after SECONDS or on SIGTERM, with what it needs to go on in FOLDER; then it prints nothing.
"""

import json
import signal
import sys
import time
from pathlib import Path

import gymnasium
import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

NETWORK = {"net_arch": [256, 256], "optimizer_kwargs": {"fused": True}}  # Adam in one kernel: the same numbers, faster
DEFAULT = {
    "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
    "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1, "policy_kwargs": NETWORK,
}  # fmt: skip
"""rl-baselines3-zoo's settings of LunarLander and Acrobot (hyperparams/dqn.yml, commit 22e3ff2); it has none for
FrozenLake and Taxi, which get these too."""
TUNED = {
    "CartPole-v1": {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
        "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04, "policy_kwargs": NETWORK,
    },
    "MountainCar-v0": {
        "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1000, "gamma": 0.98,
        "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8, "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07, "policy_kwargs": NETWORK,
    },
}  # fmt: skip


def load_or_make(id_, seed, folder, settings):
    """The model and the seconds that it has trained for."""
    env = gymnasium.make(id_)
    if not (folder / "state.json").exists():
        return DQN("MlpPolicy", env, seed=seed, device="cpu", **settings), 0.0
    model = DQN.load(folder / "model", env=env, device="cpu")
    model.load_replay_buffer(folder / "replay")
    return model, json.loads((folder / "state.json").read_text())["seconds"]


def save(model, seconds, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model")
    model.save_replay_buffer(folder / "replay")
    (folder / "state.json").write_text(json.dumps({"seconds": seconds, "states": model.num_timesteps}))


def main():
    id_, steps, seed, episodes = sys.argv[1], *map(int, sys.argv[2:5])
    folder, limit = Path(sys.argv[5]), float(sys.argv[6])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # Adam's moments below 1e-38 are 0: a quarter less time a gradient step
    settings = TUNED.get(id_, DEFAULT)
    model, before = load_or_make(id_, seed, folder, settings)
    begun = time.perf_counter()
    start = time.process_time()  # CPU seconds of one thread do not depend on other processes
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    model.learn(
        steps - model.num_timesteps,
        callback=lambda *_: not stopped and time.perf_counter() - begun < limit,
        reset_num_timesteps=False,
    )
    training = before + time.process_time() - start
    if model.num_timesteps < steps:
        save(model, training, folder)
        return
    start = time.process_time()
    test = Monitor(gymnasium.make(id_))
    test.reset(seed=10_000 + seed)
    scores, lengths = evaluate_policy(model, test, n_eval_episodes=episodes, return_episode_rewards=True)
    seconds = {"training": training, "evaluation": time.process_time() - start}
    versions = {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    found = {"states": model.num_timesteps, "updates": model._n_updates, "seconds": seconds, "scores": scores}
    print(json.dumps(found | {"mean_steps": sum(lengths) / len(lengths), "settings": settings, "versions": versions}))


if __name__ == "__main__":
    main()
