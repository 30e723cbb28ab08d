"""The paper's table of section 4 for one game: train policies, record a mixed-skill population, learn offline.

python -m benchmarks.population SpaceInvaders --seeds 3 --episodes 100
python -m benchmarks.population MontezumaRevenge --policies climb climb random    with scripted policies

The population stands in for people: snapshots of one training run, from nearly random to the last, each with its own
perturbations.
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

RESULTS = Path(__file__).parent / "results"


def step(*words, out):
    """Run or resume a command, unless it is complete; the seconds that it took in total."""
    clock = out.with_suffix(".seconds")
    before = float(clock.read_text()) if clock.exists() else 0.0
    if (out / "result.json").exists():
        return before
    words = [*map(str, words), "--out", str(out), *(["--resume"] if (out / "config.json").exists() else [])]
    print("rbi", *words, flush=True)
    start = time.perf_counter()
    try:
        if rbi(words):
            raise SystemExit(f"rbi {words[0]} failed")
    finally:
        clock.write_text(str(before + time.perf_counter() - start))
    return float(clock.read_text())


def summary(run, took, about, command):
    """What the results page needs of a run: its result, and the curve without single scores."""
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
    about = {"command": command, "machine": about, "took": took}
    return {**about, **run.finished(), "curve": curve, "validated": validated}


def command(words):
    """The command that repeats this run, without its folders."""
    places = [i for i, word in enumerate(words) if word in ("--work", "--out")]
    return shlex.join(
        ["python", "-m", "benchmarks.population", *(w for i, w in enumerate(words) if not {i, i - 1} & {*places})]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game")
    parser.add_argument("--policy-updates", type=int, default=30_000, help="updates of the policies of the population")
    parser.add_argument("--snapshots", type=int, default=6, help="saved during their training")
    parser.add_argument("--policies", nargs="+", default=[], help="scripted policies in place of trained ones")
    parser.add_argument("--population", type=int, default=48, help="size")
    parser.add_argument("--recorded", type=int, default=240, help="episodes")
    parser.add_argument("--updates", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--train", type=str.split, default=[], help="more options of rbi train, in quotes after =")
    parser.add_argument("--record", type=str.split, default=[], help="more options of rbi data record")
    parser.add_argument("--offline", type=str.split, default=[], help="more options of rbi offline")
    parser.add_argument("--work", type=Path, help="folder for runs and data, to resume from")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    env = f"ALE/{asked.game}-v5"
    about = machine()
    with contextlib.nullcontext(asked.work) if asked.work else tempfile.TemporaryDirectory() as name:
        at, took = Path(name) / asked.game, {}
        at.mkdir(parents=True, exist_ok=True)
        train = [
            "--schedule.updates",
            asked.policy_updates,
            "--save-snapshots",
            asked.snapshots,
            "--episodes",
            0,
            *asked.train,
        ]
        if not asked.policies:
            took["training_policies"] = step("train", "--env", env, "--preset", "fast", *train, out=at / "policies")
        population = [
            "--population",
            asked.population,
            "--episodes",
            asked.recorded,
            "--num-envs",
            3 * asked.population,
        ]
        policies = asked.policies or [at / "policies", "random"]
        took["recording"] = step("data", "record", *policies, "--env", env, *population, *asked.record, out=at / "data")
        learn = ["--seeds", asked.seeds, "--episodes", asked.episodes, "--evaluations", asked.evaluations]
        learn += ["--preset", asked.preset, "--updates", asked.updates]
        try:
            took["learning"] = step("offline", at / "data", *learn, *asked.offline, out=at / "run")
        finally:  # also for a run that does not end
            if (lines := at / "run" / "metrics.jsonl").exists():
                (asked.out / f"{asked.game.lower()}-metrics.jsonl").write_bytes(lines.read_bytes())
        found = summary(runs.read(at / "run"), took, about, command(sys.argv[1:]))
        (asked.out / f"offline-{asked.game.lower()}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
