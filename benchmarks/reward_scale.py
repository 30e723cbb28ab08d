"""Does the size of rewards matter to the preset `small`, with and without `reward_scale`?

python -m benchmarks.reward_scale                 CartPole that pays 0.01, 1 or 100 a step; 3 seeds, an hour on one core

Every run is one JSON line of benchmarks/results/reward-scale.json; runs that are there are not repeated.
"""

import argparse
import itertools
import json
from pathlib import Path

import gymnasium
import numpy as np

from benchmarks.timing import machine
from rbi import fileio
from rbi.online.train import train

RESULTS = Path(__file__).parent / "results" / "reward-scale.json"
ENV, UPDATES, EPISODES = "CartPole-v1", 6000, 100
UNITS = (0.01, 1.0, 100.0)
REWARD_SCALES = {"as they are": 1.0, "measured": 0.0}


def paying(unit):
    """The environment with `unit` for each step, in place of 1."""
    return lambda: gymnasium.wrappers.TransformReward(gymnasium.make(ENV), lambda reward: reward * unit)


def run(algo, unit, rewards, seed):
    """One training run; its score in steps."""
    settings = {"updates": UPDATES, "reward_scale": REWARD_SCALES[rewards], "eval_episodes": EPISODES}
    result = train(paying(unit), algo, preset="small", seed=seed, device="cpu", progress=False, **settings)
    score = float(np.mean(result.scores)) / unit
    return {"algo": algo, "unit": unit, "rewards": rewards, "seed": seed, "score": round(score, 1)}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--commit", help="the commit that is measured, where there is no repository")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    found = {"runs": []} if not args.out.exists() else json.loads(args.out.read_text())
    found |= {"command": "python -m benchmarks.reward_scale", "machine": machine(args.commit)}
    found |= {"env": ENV, "updates": UPDATES, "episodes": EPISODES}
    done = {(line["algo"], line["unit"], line["rewards"], line["seed"]) for line in found["runs"]}
    for seed, algo, unit, rewards in itertools.product(args.seeds, ("rbi", "apex"), UNITS, REWARD_SCALES):
        if (algo, unit, rewards, seed) not in done:
            found["runs"].append(run(algo, unit, rewards, seed))
            fileio.write_json(args.out, found)
            print(found["runs"][-1], flush=True)


if __name__ == "__main__":
    main()
