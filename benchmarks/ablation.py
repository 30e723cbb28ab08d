"""Which setting of RBI matters: short runs on one game that differ in one thing each, in one process.

python -m benchmarks.ablation --updates 30000 --players 256
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.learning import learned
from benchmarks.timing import machine
from benchmarks.variants import VARIANTS, variant
from rbi import runs
from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.online.config import GROUPS, PAPER_FRAMES, plan

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--players", type=int, default=256)
    parser.add_argument("--states", type=float, help="new states an update; the preset's if not given")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = plan("fast", asked.env, "rbi")
    base = replace(base, schedule=replace(base.schedule, updates=asked.updates, num_envs=asked.players))
    if asked.states:
        base = replace(base, schedule=replace(base.schedule, states_per_update=asked.states))
    world = EnvConfig(asked.env, max_frames=PAPER_FRAMES)
    worlds = [make(world, asked.players // GROUPS, asked.threads) for _ in range(GROUPS)]
    found = {}
    for name in asked.variants:
        _, run = learned(variant(base, VARIANTS[name]), 0, device, worlds)
        found[name] = run["curve"]
        game = asked.env.removeprefix("ALE/").rsplit("-v", 1)[0].lower()
        told = {
            "command": f"python -m benchmarks.ablation --updates {asked.updates} --players {asked.players}",
            "machine": machine(),
            "env": asked.env,
            "updates": asked.updates,
            "players": asked.players,
            "states_per_update": base.schedule.states_per_update,
            "seed": 0,
            "variants": found,
        }
        (asked.out / f"ablation-{game}-{asked.updates // 1000}k.json").write_text(runs.to_json(told) + "\n")


if __name__ == "__main__":
    main()
