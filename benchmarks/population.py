"""The paper's table of section 4 for one game: train policies, record populations of three skills, learn offline.

python -m benchmarks.population SpaceInvaders --seeds 5 --episodes 40
python -m benchmarks.population MsPacman --run /tmp/long/MsPacman-rbi-seed0 --stages 1 2 4 8 12 16 20 24
python -m benchmarks.population MontezumaRevenge                                   scripted policies

Populations stand in for people. They are snapshots of one training run, each with its own perturbations: early ones and
random policies (weak), all of them (mixed), or late ones (strong). In Montezuma's Revenge a third (weak), two thirds
(mixed) or all (strong) are a scripted policy, and the others random. With --work, an interrupted command resumes.
"""

import argparse
import contextlib
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import machine
from rbi import runs
from rbi.cli import main as rbi
from rbi.gpu import prepare_for_many_streams

RESULTS = Path(__file__).parent / "results"
SKILLS = ("weak", "mixed", "strong")
SCRIPTED = {
    "MontezumaRevenge": {
        "weak": ["climb", "random", "random"],
        "mixed": ["climb", "climb", "random"],
        "strong": ["climb"],
    }
}
SCRIPTED_LIMITS = {  # with larger perturbations hardly anyone leaves the first room; a route takes 5,200 frames
    "perturbation.epsilon": 0.01,
    "perturbation.action-delay": 0,
    "perturbation.abandon-rate": 0.0001,
    "max-frames": 8000,
}


def step(*words, out):
    """Run or resume a command, unless it is complete; the seconds that it took in total."""
    clock, made_by = (out.with_name(f"{out.name}.{kind}") for kind in ("seconds", "command"))
    before = float(clock.read_text()) if clock.exists() else 0.0
    line = shlex.join(map(str, words))
    if made_by.exists() and made_by.read_text() != line:
        raise SystemExit(f"{out}: was made by rbi {made_by.read_text()}, not rbi {line}; choose another --work")
    if (out / "result.json").exists():
        return before
    made_by.write_text(line)
    words = [*map(str, words), "--out", str(out), *(["--resume"] if (out / "config.json").exists() else [])]
    print("rbi", *words, flush=True)
    start = time.perf_counter()
    try:
        if code := rbi(words):
            raise SystemExit(f"rbi {words[0]}: exit code {code}")
    finally:
        clock.write_text(str(before + time.perf_counter() - start))
    return float(clock.read_text())


def summary(run, took):
    """The result of a run, and its curve without single scores."""
    curve = [
        {
            "updates": line["updates"],
            "episodes": sum(map(len, line["scores"]["behavior"])),
            "means": {name: [sum(s) / len(s) for s in seeds] for name, seeds in line["scores"].items()},
        }
        for line in run.metrics
        if line["kind"] == "evaluated"
    ]
    validated = [line for line in run.metrics if line["kind"] == "validated"]
    return {"took": took, **run.finished(), "curve": curve, "validated": validated}


def command(words):
    """The command that repeats this run, without its folders."""
    places = [i for i, word in enumerate(words) if word in ("--work", "--out", "--commit")]
    return shlex.join(
        ["python", "-m", "benchmarks.population", *(w for i, w in enumerate(words) if not {i, i - 1} & {*places})]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game")
    parser.add_argument("--skills", nargs="+", choices=SKILLS, default=SKILLS)
    parser.add_argument("--policy-updates", type=int, default=178_000, help="updates of the policies of the population")
    parser.add_argument("--snapshots", type=int, default=12, help="saved during their training")
    parser.add_argument("--run", type=Path, help="a training run that has snapshots, in place of a new one")
    parser.add_argument("--stages", nargs="+", type=int, help="the snapshots to use, from 1 on; default: all")
    parser.add_argument("--population", type=int, default=48, help="size")
    parser.add_argument("--steps", type=int, default=500_000, help="of each population")
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=40, help="of every row and seed, at the end")
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--fractions", nargs="+", type=float, default=[1.0], help="of the data to learn from")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--train", type=str.split, default=[], help="more options of rbi train, in quotes after =")
    parser.add_argument("--record", type=str.split, default=[], help="more options of rbi data record")
    parser.add_argument("--offline", type=str.split, default=[], help="more options of rbi offline")
    parser.add_argument("--work", type=Path, help="folder for runs and data, to resume from")
    parser.add_argument("--commit", help="the commit, on a machine without the repository's history")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if bad := [value for value in args.fractions if not 0 < value <= 1]:
        parser.error(f"--fractions {bad[0]:g}: must be greater than 0 and at most 1")
    env = f"ALE/{args.game}-v5"
    prepare_for_many_streams()  # recording uses the GPU before learning does
    about = machine(args.commit)
    args.out.mkdir(parents=True, exist_ok=True)
    with contextlib.nullcontext(args.work) if args.work else tempfile.TemporaryDirectory() as work:
        at, took = Path(work) / args.game, {}
        at.mkdir(parents=True, exist_ok=True)
        scripted = SCRIPTED.get(args.game)
        if not scripted and not args.run:
            train = [
                "--schedule.updates",
                args.policy_updates,
                "--save-snapshots",
                args.snapshots,
                "--eval-episodes",
                0,
            ]
            took["training_policies"] = step(
                "train", "--env", env, "--preset", "fast", *train, *args.train, out=at / "policies"
            )
        for skill in args.skills:
            policies = scripted[skill] if scripted else members(args.run or at / "policies", skill, args.stages)
            took["recording"] = record(args, env, policies, at / f"data-{skill}")
            for fraction in args.fractions:
                name = skill + f"-{100 * fraction:g}percent" * (fraction < 1)
                found = learn(args, fraction, at / f"data-{skill}", at / f"run-{name}")
                found |= {"command": command(sys.argv[1:]), "machine": about, "skill": skill, "fraction": fraction}
                found["took"] = took | found["took"]
                (args.out / f"offline-{args.game.lower()}-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
                print(name, json.dumps(found["took"]), flush=True)


def members(run, skill, stages=None):
    """The policies of a population: snapshots of a training run, and random ones where it is not strong."""
    snapshots = sorted((run / "policies").glob("updates-*"))
    if not snapshots or max(stages or [1]) > len(snapshots) or min(stages or [1]) < 1:
        raise SystemExit(f"{run}: {len(snapshots)} snapshots, stages {stages or 'all'}")
    snapshots = [snapshots[stage - 1] for stage in stages] if stages else snapshots
    third = max(2, len(snapshots) // 3)
    return {
        "weak": [*snapshots[:third], "random"],
        "mixed": [*snapshots, "random"],
        "strong": snapshots[-third:],
    }[skill]


def record(args, env, policies, data):
    """Record a population; returns the seconds that took."""
    size = ["--population", args.population, "--steps", args.steps, "--num-envs", 3 * args.population]
    limits = SCRIPTED_LIMITS if args.game in SCRIPTED else {}
    limits = [word for name, value in limits.items() for word in (f"--{name}", value)]
    return step("data", "record", *policies, "--env", env, *size, *limits, *args.record, out=data)


def learn(args, fraction, data, run):
    """Learn from a fraction of a population; what the results page needs."""
    options = ["--seeds", args.seeds, "--episodes", args.episodes, "--evaluations", args.evaluations]
    options += ["--preset", args.preset, "--updates", args.updates, "--data-fraction", fraction, *args.offline]
    took = {"learning": step("offline", data, *options, out=run)}
    return summary(runs.read(run), took)


if __name__ == "__main__":
    main()
