"""Learning curves at equal budgets of updates and frames, kept as raw JSON that `make results` draws.

python -m benchmarks.learning --algos rbi apex --updates 120000 --seeds 0 1
python -m benchmarks.learning --from RUN        keeps the curve of a run that `rbi train` made
"""

import argparse
import math
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.engine import come_to_rest
from benchmarks.timing import machine
from benchmarks.variants import VARIANTS, variant
from rbi import runs
from rbi.cli.evaluate import evaluated
from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.evaluation.rollouts import Protocol
from rbi.online.config import GROUPS, PAPER_FRAMES, plan
from rbi.online.engine import LocalEngine

RESULTS = Path(__file__).parent / "results"
POINTS = 100
KEPT = ("updates", "states", "seconds", "score", "score_low", "score_high", "score_all", "q", "td_error", "pi_entropy")


def learned(whole, seed, device, worlds, seconds=math.inf):
    """Train, and look at the scores a hundred times on the way; the engine, and what to keep of it."""
    engine = LocalEngine(whole, seed, device, worlds)
    start, curve, every = time.perf_counter(), [], whole.schedule.updates // POINTS
    for _ in engine.ticks():
        if time.perf_counter() - start > seconds:
            break
        if engine.learner.updates >= every * (len(curve) + 1):
            curve.append(engine.metrics() | {"seconds": time.perf_counter() - start})
            if len(curve) % 10 == 0:
                print(whole.algo, seed, {k: curve[-1].get(k) for k in ("updates", "seconds", "score", "q")}, flush=True)
    took = time.perf_counter() - start
    come_to_rest(worlds)
    return engine, {
        "env": whole.env.id,
        "algo": whole.algo,
        "seed": seed,
        "seconds": took,
        "updates": engine.learner.updates,
        "settings": {part: getattr(whole, part) for part in ("actor", "learner", "replay", "returns", "schedule")},
        "curve": [{k: point.get(k) for k in KEPT} for point in curve],
        "evaluation": None,
    }


def scored(engine, found, device, episodes):
    """The same with what the last policy scores."""
    played = evaluated(engine.policy().to(device), Protocol("paper"), found["env"], episodes, found["seed"])
    print(found["algo"], found["seed"], "evaluation", played["mean"], played["interval"], played["median"], flush=True)
    return found | {"evaluation": played}


def from_run(path):
    """The curve of a run folder, thinned to as many points."""
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


def keep(found, folder, command, about, change="base"):
    """One file a run, named by what it is."""
    game = found["env"].removeprefix("ALE/").rsplit("-v", 1)[0].lower()
    kind = "" if change == "base" else f"-{change}"
    name = f"learning-{game}-{found['algo']}-{found['updates'] // 1000}k{kind}-seed{found['seed']}.json"
    written = {"command": command, "machine": about, **found}
    (folder / name).write_text(runs.to_json(written) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--algos", nargs="+", default=["rbi", "apex"])
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--updates", type=int, default=120_000)
    parser.add_argument("--players", type=int)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop training after so long")
    parser.add_argument("--variant", choices=VARIANTS, default="base", help="a change of the preset")
    parser.add_argument("--from", dest="run", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.run:
        keep(from_run(asked.run), asked.out, "rbi train", machine())
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    whole = plan(asked.preset, asked.env, "rbi")
    whole = replace(
        whole,
        schedule=replace(whole.schedule, updates=asked.updates, num_envs=asked.players or whole.schedule.num_envs),
    )
    whole = variant(whole, VARIANTS[asked.variant])
    world = EnvConfig(asked.env, max_frames=PAPER_FRAMES)
    worlds = [make(world, whole.schedule.num_envs // GROUPS, asked.threads) for _ in range(GROUPS)]
    command = shlex.join(["python", "-m", "benchmarks.learning", *sys.argv[1:]])
    for seed in asked.seeds:
        for algo in asked.algos:
            engine, found = learned(replace(whole, algo=algo), seed, device, worlds, asked.seconds)
            keep(found, asked.out, command, machine(), asked.variant)  # now, since an evaluation can be long
            keep(scored(engine, found, device, asked.episodes), asked.out, command, machine(), asked.variant)


if __name__ == "__main__":
    main()
