"""Learning curves at equal budgets of updates and frames, as raw JSON for `make results`.

python -m benchmarks.learning --algos rbi apex --updates 120000 --seeds 0 1
python -m benchmarks.learning --from RUN        takes the curve of an `rbi train` run
"""

import argparse
import math
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.engine import drain
from benchmarks.timing import machine
from benchmarks.variants import VARIANTS, variant
from rbi import runs
from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.evaluation.rollouts import evaluate
from rbi.online.config import GROUPS, PAPER_MAX_FRAMES, TrainConfig
from rbi.online.engine import LocalEngine

RESULTS = Path(__file__).parent / "results"
POINTS = 100
KEPT = ("updates", "states", "seconds", "score", "score_low", "score_high", "score_all", "q", "td_error", "pi_entropy")


def learned(config, seed, device, envs, seconds=math.inf):
    """Train and record metrics a hundred times; returns the engine and the result."""
    engine = LocalEngine(config, seed, device, envs)
    start, curve, every = time.perf_counter(), [], config.schedule.updates // POINTS
    for _ in engine.run():
        if time.perf_counter() - start > seconds:
            break
        if engine.updates >= every * (len(curve) + 1):
            curve.append(engine.metrics() | {"seconds": time.perf_counter() - start})
            if len(curve) % 10 == 0:
                print(
                    config.algo, seed, {k: curve[-1].get(k) for k in ("updates", "seconds", "score", "q")}, flush=True
                )
    took = time.perf_counter() - start
    drain(envs)
    return engine, {
        "env": config.env.id,
        "algo": config.algo,
        "seed": seed,
        "seconds": took,
        "updates": engine.updates,
        "settings": {part: getattr(config, part) for part in ("actor", "learner", "replay", "returns", "schedule")},
        "curve": [{k: point.get(k) for k in KEPT} for point in curve],
        "evaluation": None,
    }


def scored(engine, result, device, episodes):
    """The result with the evaluation of the final policy."""
    settings = {"episodes": episodes, "seed": result["seed"], "device": device}
    played = evaluate(engine.policy(), result["env"], **settings).to_dict()
    print(
        result["algo"], result["seed"], "evaluation", played["mean"], played["interval"], played["median"], flush=True
    )
    return result | {"evaluation": played}


def from_run(path):
    """The learning curve of a run folder, subsampled."""
    run = runs.read(path)
    lines = run.metrics[:: max(1, len(run.metrics) // POINTS)]
    settings = run.config["settings"]
    return {
        "env": settings["env"],
        "algo": settings["algo"],
        "seed": run.config["seed"],
        "seconds": run.finished()["seconds"],
        "updates": run.finished()["last"]["updates"],
        "settings": {part: settings[part] for part in ("actor", "learner", "replay", "returns", "schedule")},
        "curve": [{k: line.get(k) for k in KEPT} for line in lines],
        "evaluation": run.finished()["evaluation"],
    }


def keep(result, folder, command, about, change="base"):
    """One file per run."""
    game = result["env"].removeprefix("ALE/").rsplit("-v", 1)[0].lower()
    kind = "" if change == "base" else f"-{change}"
    name = f"learning-{game}-{result['algo']}-{result['updates'] // 1000}k{kind}-seed{result['seed']}.json"
    written = {"command": command, "machine": about, **result}
    (folder / name).write_text(runs.to_json(written) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--algos", nargs="+", default=["rbi", "apex"])
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--updates", type=int, default=120_000)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of training, in seconds")
    parser.add_argument("--variant", choices=VARIANTS, default="base", help="variant of the preset")
    parser.add_argument("--from", dest="run", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.run:
        keep(from_run(args.run), args.out, "rbi train", machine())
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = TrainConfig.preset(args.env, "rbi", args.preset)
    config = replace(
        config,
        schedule=replace(config.schedule, updates=args.updates, num_envs=args.num_envs or config.schedule.num_envs),
    )
    config = variant(config, VARIANTS[args.variant])
    env = EnvConfig(args.env, max_frames=PAPER_MAX_FRAMES)
    envs = [make(env, config.schedule.num_envs // GROUPS, args.threads) for _ in range(GROUPS)]
    command = shlex.join(["python", "-m", "benchmarks.learning", *sys.argv[1:]])
    for seed in args.seeds:
        for algo in args.algos:
            engine, result = learned(replace(config, algo=algo), seed, device, envs, args.seconds)
            keep(result, args.out, command, machine(), args.variant)  # before the evaluation, which can be long
            keep(scored(engine, result, device, args.episodes), args.out, command, machine(), args.variant)


if __name__ == "__main__":
    main()
