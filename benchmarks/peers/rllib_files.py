"""Small recordings written by the real RLlib, for tests/data/test_rllib.py; runs in its own environment.

pip install 'ray[rllib]' msgpack-numpy lz4     into .venv-peers
.venv-peers/bin/python benchmarks/peers/rllib_files.py tests/data/files

Beside each recording stands what RLlib's own objects held, as JSON: `truth.json`. Without `output_max_rows_per_file`
RLlib writes everything again after each round of sampling, into the next `run-*` folder.
"""

import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np

FRAGMENT, FRAGMENTS = 25, 2
KINDS = {
    "episodes": ("CartPole-v1", {}),
    "numbered": ("FrozenLake-v1", {"output_max_rows_per_file": 3, "output_write_remaining_data": True}),
    "rows": ("CartPole-v1", {"output_write_episodes": False, "output_compress_columns": []}),
    "compressed": ("CartPole-v1", {"output_write_episodes": False}),
}
"""What is recorded: an environment, and settings of `offline_data`."""


def record(env: str, settings: dict, folder: Path) -> list:
    """Record some fragments of random play; returns them as RLlib's runner gave them."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import FlattenObservations
    from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

    flatten = {"env_to_module_connector": lambda *_: FlattenObservations()} if env == "FrozenLake-v1" else {}
    config = (
        PPOConfig()
        .environment(env)
        .debugging(seed=0)
        .env_runners(rollout_fragment_length=FRAGMENT, num_env_runners=0, num_envs_per_env_runner=1, **flatten)
        .offline_data(output=str(folder), **settings)
    )
    runner = OfflineSingleAgentEnvRunner(config=config, worker_index=1)
    fragments = []
    for _ in range(FRAGMENTS):
        fragments += runner.sample(num_timesteps=FRAGMENT, random_actions=False)
    runner.stop()
    return fragments


def truth(fragments: list) -> list[dict]:
    """The complete episodes, as JSON."""
    found: dict[str, dict] = {}
    for part in fragments:
        own = found.setdefault(part.id_, {"id": part.id_, "obs": [], "actions": [], "rewards": [], "logp": []})
        count = len(part)
        own["obs"] += [np.asarray(part.get_observations(i)).tolist() for i in range(count)]
        own["actions"] += [int(part.get_actions(i)) for i in range(count)]
        own["rewards"] += [float(part.get_rewards(i)) for i in range(count)]
        own["logp"] += [float(part.get_extra_model_outputs("action_logp", i)) for i in range(count)]
        if part.is_done:
            own["obs"].append(np.asarray(part.get_observations(count)).tolist())
            own["terminated"], own["truncated"] = bool(part.is_terminated), bool(part.is_truncated)
    return list(found.values())


def main(folder: Path) -> None:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, logging_level=logging.ERROR)
    for kind, (env, settings) in KINDS.items():
        out = folder / f"rllib-{kind}"
        shutil.rmtree(out, ignore_errors=True)
        fragments = record(env, settings, out)
        (out / "truth.json").write_text(json.dumps({"ray": ray.__version__, "episodes": truth(fragments)}))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
