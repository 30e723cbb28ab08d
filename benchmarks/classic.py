"""RBI and Ape-X with the preset for a CPU, untouched, beside Stable-Baselines3's tuned DQN, on small environments.

python -m benchmarks.classic --minutes 30                    runs cells (environment, algorithm, seed) that are missing
python -m benchmarks.classic --envs FrozenLake-v1 --seeds 0  only these
python -m benchmarks.classic --status                        shows which cells are there, and the table

All algorithms get the same number of environment steps, the preset's. A cell is one JSON file, written when it is
complete, so any number of short runs add up; cells of an earlier preset are run again. Stable-Baselines3's runs are
slow: one that does not end in time goes on in the next call. LunarLander needs
`pip install box2d pygame` here and in .venv-peers; the DQN runs in .venv-peers (`make bench` makes it) or with the
Python of --peer, with rl-baselines3-zoo's settings (benchmarks/peers/sb3_classic.py).
"""

import argparse
import dataclasses
import itertools
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.atari import load_cells, rounded, save_cell
from benchmarks.tables import load, measured_on
from benchmarks.timing import machine
from rbi.online.config import PARTS, TrainConfig
from rbi.online.train import train
from rbi.statistics import describe

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "classic"
PEER = ROOT / ".venv-peers" / "bin" / "python"
EPISODES = 100
MORE_EPISODES = {"FrozenLake-v1": 1000}  # scores are 0 or 1, and the optimum's mean of 0.74 is close to the aim
AIMS = {
    "CartPole-v1": 475,
    "Acrobot-v1": -100,
    "MountainCar-v0": -130,
    "FrozenLake-v1": 0.7,
    "Taxi-v4": 7,
    "LunarLander-v3": 200,
}
"""Environments, and the mean scores that count as learned."""
ALGOS = ("rbi", "apex", "sb3")
FIRST_SECONDS = 600  # of a cell, where none was measured yet


@dataclass(frozen=True)
class Cell:
    """One training run and the evaluation of its policy."""

    env: str
    algo: str
    seed: int

    @property
    def name(self):
        return f"{self.env}-{self.algo}-seed{self.seed}"

    @property
    def command(self):
        return f"python -m benchmarks.classic --envs {self.env} --algos {self.algo} --seeds {self.seed}"


def steps_of(env):
    """Environment steps of the preset, for all algorithms."""
    return TrainConfig.preset(env).states


def episodes_of(env):
    return MORE_EPISODES.get(env, EPISODES)


def settings_of(cell):
    """The preset's settings of a cell, but for those that do not change a run: processes, the size of rewards, which is
    measured as 1 in all these environments, and for Ape-X the networks to improve from."""
    config = TrainConfig.preset(cell.env, cell.algo)
    found = {part: dataclasses.asdict(getattr(config, part)) for part in PARTS}
    del found["schedule"]["env_processes"], found["actor"]["reward_scale"]
    if cell.algo == "apex":
        del found["learner"]["improve_from"]
    return found


def current_cells(folder):
    """The results of complete cells by name, without those of a preset that has changed since."""
    found = {}
    for name, result in load_cells(folder).items():
        cell = Cell(result["env"], result["algo"], result["seed"])
        same = cell.algo == "sb3" or result["settings"] == rounded(settings_of(cell))
        if same and result["steps"] == steps_of(cell.env) and len(result["scores"]) == episodes_of(cell.env):
            found[name] = result
    return found


def run_ours(cell):
    """Train and evaluate with one call, as a user would."""
    start = time.monotonic()
    result = train(cell.env, cell.algo, seed=cell.seed, eval_episodes=episodes_of(cell.env), progress=False)
    if result.stopped:  # by Ctrl-C or SIGTERM: no complete cell
        raise KeyboardInterrupt
    curve = [{name: line[name] for name in ("states", "score", "seconds")} for line in result.metrics[::25]]
    return {
        "states": result.states,
        "updates": result.updates,
        "seconds": {"training": result.seconds, "evaluation": time.monotonic() - start - result.seconds},
        "scores": result.scores,
        "settings": settings_of(cell),
        "curve": curve,
    }


def run_peer(cell, python, folder, seconds):
    """Stable-Baselines3's DQN, in a process of the Python that has it; None if it is to go on another time."""
    script = ROOT / "benchmarks" / "peers" / "sb3_classic.py"
    given = map(str, (steps_of(cell.env), cell.seed, episodes_of(cell.env), folder / "unfinished" / cell.name, seconds))
    done = subprocess.run([python, script, cell.env, *given], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


def run_cells(cells, minutes, about, folder, peer):
    """Run missing cells as long as the next one can end in time."""
    deadline = time.monotonic() + 60 * minutes
    for cell in cells:
        done = current_cells(folder)
        if cell.name in done:
            continue
        expected, left = expected_seconds(cell, done), deadline - time.monotonic()
        if expected > left and cell.algo != "sb3":
            print(f"{cell.name}: needs about {expected:.0f} s, {left:.0f} s are left", flush=True)
            continue
        result = run_peer(cell, peer, folder, left) if cell.algo == "sb3" else run_ours(cell)
        if result is None:
            print(f"{cell.name}: stopped, and will go on", flush=True)
            continue
        statistics = describe(result["scores"], cell.seed)
        found = {"command": cell.command, "machine": about, **dataclasses.asdict(cell), "steps": steps_of(cell.env)}
        found["evaluation"] = statistics
        save_cell(folder, cell, found | rounded(result))
        print(f"{cell.name}: {statistics['mean']:.2f} in {result['seconds']['training']:.0f} s", flush=True)


def expected_seconds(cell, done):
    """How long a cell takes: as the slowest of its environment and algorithm, or of its environment."""
    of_env = [r for r in done.values() if r["env"] == cell.env]
    alike = [r for r in of_env if r["algo"] == cell.algo] or of_env
    return max((sum(r["seconds"].values()) for r in alike), default=FIRST_SECONDS)


def show_status(done):
    """The table: mean scores of the seeds that are there."""
    print(f"{'environment':16} {'steps':>9} {'aim':>7}  " + "".join(f"{algo:>24}" for algo in ALGOS))
    for env, aim in AIMS.items():
        cells = {algo: [done.get(Cell(env, algo, seed).name) for seed in range(3)] for algo in ALGOS}
        texts = [
            " ".join("-" if r is None else f"{r['evaluation']['mean']:.2f}" for r in row) for row in cells.values()
        ]
        print(f"{env:16} {steps_of(env):9,} {aim:7}  " + "".join(f"{text:>24}" for text in texts))


# The section of docs/results.md

PAGE_HEAD = """
## Small environments with the preset for a CPU

`rbi train ENV` untouched ([decision 016](decisions/016-the-small-preset.md)) beside Stable-Baselines3's DQN with
rl-baselines3-zoo's settings at equal environment steps (the zoo has no settings for FrozenLake and Taxi: those of
LunarLander). Mean scores of 100 episodes (FrozenLake: 1,000) for seeds 0, 1 and 2, and the training time of the slowest
seed in one thread, with other runs on all other cores. An optimal policy reaches 0.74 in FrozenLake.
"""

PAGE_END = """
Stable-Baselines3's cells were made in parts, on several machines. The zoo's settings for CartPole are for 50,000 steps,
after which it scores {zoo} (seeds 0, 1 and 2); with more steps it gets worse. On Acrobot it is ahead of both
of ours. Taxi has action masks: RBI and Ape-X respect them, and the DQN ignores them. RBI and Ape-X have the same
scores there, episode by episode: a seed gives both the same starts, and both take the shortest routes. RBI's runs, and
Ape-X's on Taxi, shared two cores with other programs, so their times are too long: before the learner improved its
target networks, RBI took 109 to 238 s with a core for each run.
"""


def page_part():
    """The section, if it was measured: one row per environment, one column per algorithm, with all seeds' mean scores
    and the time of the slowest."""
    done = current_cells(RESULTS)
    if not done:
        return []
    names = {"rbi": "RBI", "apex": "Ape-X", "sb3": "Stable-Baselines3"}
    lines = [f"| environment | steps | aim | {' | '.join(names.values())} |", "|---|--:|--:|" + "--:|" * len(names)]
    for env, aim in AIMS.items():
        cells = []
        for algo in names:
            found = [result for result in done.values() if (result["env"], result["algo"]) == (env, algo)]
            scores = ", ".join(f"{result['evaluation']['mean']:.{0 if abs(aim) > 10 else 2}f}" for result in found)
            slowest = max((result["seconds"]["training"] for result in found), default=0)
            cells.append(f"{scores} ({slowest:.0f} s)" if found else "-")
        lines.append(f"| {env} | {steps_of(env):,} | {aim} | {' | '.join(cells)} |")
    machines = {}  # cells of one machine were made at several commits
    for about in (result["machine"] for result in done.values()):
        place = measured_on({"command": "python -m benchmarks.classic", "machine": about | {"commit": "{}"}})
        machines.setdefault(place, {})[about["commit"]] = None
    zoo = ", ".join(f"{np.mean(run['scores']):.0f}" for run in load("classic-zoo.json")["runs"])
    end = PAGE_END.format(zoo=zoo)
    return [PAGE_HEAD, *lines, end, *(f"{text.format(', '.join(c))}\n" for text, c in machines.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", nargs="+", choices=AIMS, default=list(AIMS), help="only these environments")
    parser.add_argument("--algos", nargs="+", choices=ALGOS, default=list(ALGOS), help="only these algorithms")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="only these seeds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no cell that would end later")
    parser.add_argument("--status", action="store_true", help="show which cells are there, and run none")
    parser.add_argument("--commit", help="the commit, on a machine without the repository's history")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--peer", type=Path, default=PEER, help="the Python that Stable-Baselines3 is installed for")
    args = parser.parse_args()
    if args.status:
        show_status(current_cells(args.out))
        return
    if "sb3" in args.algos and not args.peer.exists():
        sys.exit(f"{args.peer}: is missing; make bench makes it, or leave out --algos sb3")
    cells = [Cell(env, algo, seed) for seed, env, algo in itertools.product(args.seeds, args.envs, args.algos)]
    run_cells(cells, args.minutes, machine(args.commit), args.out, args.peer)


if __name__ == "__main__":
    main()
