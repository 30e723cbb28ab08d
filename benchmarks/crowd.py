"""The paper's table of section 4 for one game: players are trained, a crowd of them is recorded, and learned from.

python -m benchmarks.crowd SpaceInvaders --seeds 3 --episodes 100
python -m benchmarks.crowd MontezumaRevenge --minds climb climb random    by players that need no training

The crowd stands in for people: policies of several ages, from nearly random to the last, each with a manner of its own.
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
    """A command as a user would give it; what was begun goes on, what is done stays. The seconds it took in all."""
    told = out.with_suffix(".seconds")
    before = float(told.read_text()) if told.exists() else 0.0
    if (out / "result.json").exists():
        return before
    words = [*map(str, words), "--out", str(out), *(["--resume"] if (out / "config.json").exists() else [])]
    print("rbi", *words, flush=True)
    start = time.perf_counter()
    try:
        if rbi(words):
            raise SystemExit(f"rbi {words[0]} failed")
    finally:
        told.write_text(str(before + time.perf_counter() - start))
    return float(told.read_text())


def kept(run, took, about, command):
    """What the page needs of a run: its result, and the curve without single scores."""
    curve = [
        {
            "updates": line["updates"],
            "episodes": sum(map(len, line["scores"]["behavior"])),
            "means": {name: [sum(s) / len(s) for s in seeds] for name, seeds in line["scores"].items()},
        }
        for line in run.metrics
        if line["kind"] == "played"
    ]
    looked = [line for line in run.metrics if line["kind"] == "looked"]
    about = {"command": command, "machine": about, "took": took}
    return {**about, **run.finished(), "curve": curve, "looked": looked}


def command(words):
    """What to say to get the same again, wherever it is kept."""
    places = [i for i, word in enumerate(words) if word in ("--work", "--out")]
    return shlex.join(
        ["python", "-m", "benchmarks.crowd", *(w for i, w in enumerate(words) if not {i, i - 1} & {*places})]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game")
    parser.add_argument("--players-updates", type=int, default=30_000, help="updates of those who play in the crowd")
    parser.add_argument("--ages", type=int, default=6)
    parser.add_argument("--minds", nargs="+", default=[], help="who plays in the crowd, in place of trained players")
    parser.add_argument("--crowd", type=int, default=48)
    parser.add_argument("--recorded", type=int, default=240, help="episodes")
    parser.add_argument("--updates", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--train", type=str.split, default=[], help="more words for rbi train, in quotes after =")
    parser.add_argument("--record", type=str.split, default=[], help="more words for rbi data record")
    parser.add_argument("--offline", type=str.split, default=[], help="more words for rbi offline")
    parser.add_argument("--work", type=Path, help="keep runs and data here, and go on from what is there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    env = f"ALE/{asked.game}-v5"
    about = machine()
    with contextlib.nullcontext(asked.work) if asked.work else tempfile.TemporaryDirectory() as name:
        at, took = Path(name) / asked.game, {}
        at.mkdir(parents=True, exist_ok=True)
        train = ["--schedule.updates", asked.players_updates, "--save-snapshots", asked.ages]
        train += ["--eval-episodes", 0, *asked.train]
        if not asked.minds:
            took["players"] = step("train", "--env", env, "--preset", "fast", *train, out=at / "players")
        crowd = ["--crowd", asked.crowd, "--episodes", asked.recorded, "--environments", 3 * asked.crowd]
        minds = asked.minds or [at / "players", "random"]
        took["recording"] = step("data", "record", *minds, "--env", env, *crowd, *asked.record, out=at / "crowd")
        learn = ["--seeds", asked.seeds, "--episodes", asked.episodes, "--points", asked.points]
        learn += ["--preset", asked.preset, "--updates", asked.updates]
        try:
            took["learning"] = step("offline", at / "crowd", *learn, *asked.offline, out=at / "run")
        finally:  # what is known of a run that does not end
            if (lines := at / "run" / "metrics.jsonl").exists():
                (asked.out / f"{asked.game.lower()}-metrics.jsonl").write_bytes(lines.read_bytes())
        found = kept(runs.read(at / "run"), took, about, command(sys.argv[1:]))
        (asked.out / f"offline-{asked.game.lower()}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
