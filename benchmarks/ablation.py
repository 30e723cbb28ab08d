"""Ablations of RBI: short runs on one game that differ in one setting each, in one process.

python -m benchmarks.ablation --updates 30000 --num-envs 256
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
from rbi.online.config import GROUPS, PAPER_MAX_FRAMES, TrainConfig

RESULTS = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--states-per-update", type=float, help="new states per update; default: the preset's")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = TrainConfig.preset(args.env, "rbi", "fast")
    base = replace(base, schedule=replace(base.schedule, updates=args.updates, num_envs=args.num_envs))
    if args.states_per_update:
        base = replace(base, schedule=replace(base.schedule, states_per_update=args.states_per_update))
    env = EnvConfig(args.env, max_frames=PAPER_MAX_FRAMES)
    envs = [make(env, args.num_envs // GROUPS, args.threads) for _ in range(GROUPS)]
    found = {}
    for name in args.variants:
        _, run = learned(variant(base, VARIANTS[name]), 0, device, envs)
        found[name] = run["curve"]
        game = args.env.removeprefix("ALE/").rsplit("-v", 1)[0].lower()
        result = {
            "command": f"python -m benchmarks.ablation --updates {args.updates} --num-envs {args.num_envs}",
            "machine": machine(),
            "env": args.env,
            "updates": args.updates,
            "num_envs": args.num_envs,
            "states_per_update": base.schedule.states_per_update,
            "seed": 0,
            "variants": found,
        }
        (args.out / f"ablation-{game}-{args.updates // 1000}k.json").write_text(runs.to_json(result) + "\n")


if __name__ == "__main__":
    main()
