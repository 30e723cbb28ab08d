"""The paper's table of section 4 for one game: players are trained, a crowd of them is recorded, and learned from.

python -m benchmarks.crowd SpaceInvaders --seeds 3 --episodes 100

The crowd stands in for people: policies of several ages, from nearly random to the last, each with a manner of its own.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.timing import machine
from rbi import runs
from rbi.cli import main as rbi

RESULTS = Path(__file__).parent / "results"


def step(*words):
    """A command as a user would give it."""
    print("rbi", *words, flush=True)
    start = time.perf_counter()
    if rbi([str(word) for word in words]):
        raise SystemExit(f"rbi {words[0]} failed")
    return time.perf_counter() - start


def kept(run, took, about, command):
    """What the page needs of a run: its result, and the curve without single scores."""
    curve = [
        {
            "updates": line["updates"],
            "means": {name: [sum(s) / len(s) for s in seeds] for name, seeds in line["scores"].items()},
        }
        for line in run.metrics
        if line["kind"] == "played"
    ]
    looked = [line for line in run.metrics if line["kind"] == "looked"]
    return {"command": command, "machine": about, "seconds": took, **run.finished(), "curve": curve, "looked": looked}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game")
    parser.add_argument("--players-updates", type=int, default=30_000, help="updates of those who play in the crowd")
    parser.add_argument("--ages", type=int, default=6)
    parser.add_argument("--crowd", type=int, default=48)
    parser.add_argument("--recorded", type=int, default=240, help="episodes")
    parser.add_argument("--updates", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--train", type=str.split, default=[], help="more words for rbi train, in quotes after =")
    parser.add_argument("--offline", type=str.split, default=[], help="more words for rbi offline")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    env = f"ALE/{asked.game}-v5"
    about = machine()
    with tempfile.TemporaryDirectory() as name:
        at, took = Path(name), {}
        train = ["--pace.updates", asked.players_updates, "--ages", asked.ages, "--episodes", 0, *asked.train]
        took["players"] = step("train", "--env", env, "--preset", "fast", *train, "--out", at / "players")
        crowd = ["--crowd", asked.crowd, "--episodes", asked.recorded, "--out", at / "crowd"]
        took["recording"] = step("data", "record", at / "players", "random", *crowd)
        learn = ["--seeds", asked.seeds, "--episodes", asked.episodes, "--points", asked.points]
        learn += ["--preset", asked.preset, "--updates", asked.updates]
        try:
            took["learning"] = step("offline", at / "crowd", *learn, *asked.offline, "--out", at / "run")
        finally:  # what is known of a run that does not end
            (asked.out / f"{asked.game.lower()}-metrics.jsonl").write_bytes((at / "run" / "metrics.jsonl").read_bytes())
        command = f"python -m benchmarks.crowd {asked.game} --seeds {asked.seeds} --episodes {asked.episodes}"
        found = kept(runs.read(at / "run"), took, about, command)
        (asked.out / f"offline-{asked.game.lower()}.json").write_text(json.dumps(found, indent=1) + "\n")
        for figure in (at / "run" / "figures").glob("*.png"):
            (asked.out / f"{asked.game.lower()}-{figure.name}").write_bytes(figure.read_bytes())
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
