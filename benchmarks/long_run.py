"""One long training run, stopped and resumed: `rbi train` in parts of a few minutes each.

    python -m benchmarks.long_run Breakout --frames 60 --minutes 9 --work /tmp/long     again, until it is complete

A part ends by SIGINT, as Ctrl-C would, and the next one resumes from its checkpoint, which contains the replay. The
last one writes what was measured: frames, seconds of all parts, the learning curve and the final policy's evaluation.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.atari import FRAME_SKIP, MILLION, Cell, rounded
from benchmarks.timing import machine
from rbi import runs

RESULTS = Path(__file__).parent / "results"
POINTS = 100  # of the learning curve
STOP_SECONDS = 90  # for a checkpoint with the replay of an Atari game
INTERRUPTED = 130


def train(words, seconds):
    """Run `rbi train` for so many seconds at most; its exit status."""
    process = subprocess.Popen([sys.executable, "-m", "rbi", "train", *map(str, words)])
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait(STOP_SECONDS)


def run_part(asked, folder):
    """One part of the run; the list of all parts so far."""
    config = Cell(asked.game, asked.algo, "base", asked.seed, round(asked.frames * MILLION)).config()
    updates = asked.updates or config.schedule.updates
    words = ["--env", config.env.id, "--algo", asked.algo, "--preset", "fast", "--seed", asked.seed]
    words += ["--schedule.updates", updates, "--save-replay", "True", "--checkpoint-minutes", 1000, *asked.train]
    resume = ["--resume"] if (folder / "config.json").exists() else []
    start = time.time()
    status = train([*words, "--out", folder, *resume], 60 * asked.minutes)
    if status not in (0, INTERRUPTED):
        raise SystemExit(f"rbi train: exit status {status}")
    log = folder.with_suffix(".parts.json")
    parts = json.loads(log.read_text()) if log.exists() else []
    last = (runs.read(folder).metrics or [{"updates": 0, "states": 0}])[-1]
    parts.append({"seconds": time.time() - start, "updates": last["updates"], "states": last["states"]})
    log.write_text(json.dumps(parts))
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game")
    parser.add_argument("--algo", choices=["rbi", "apex"], default="rbi")
    parser.add_argument("--frames", type=float, default=60, help="million frames")
    parser.add_argument("--minutes", type=float, default=9, help="of this part, without the checkpoint at its end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, help="in place of --frames, for a quick trial")
    parser.add_argument("--train", type=str.split, default=[], help="more options of rbi train, in quotes after =")
    parser.add_argument("--work", type=Path, required=True, help="folder of the run, to resume from")
    parser.add_argument("--commit", help="the commit, on a machine without the repository's history")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    folder = asked.work / f"{asked.game}-{asked.algo}-seed{asked.seed}"
    parts = run_part(asked, folder)
    run = runs.read(folder)
    seconds = sum(part["seconds"] for part in parts)
    print(f"part {len(parts)}: {parts[-1]['states']:,} steps after {seconds:,.0f} s", flush=True)
    if run.result is None:
        return
    reports = [line for line in run.metrics if "updates" in line]
    every = max(1, len(reports) // POINTS)
    written = {
        "command": f"python -m benchmarks.long_run {asked.game} --algo {asked.algo} --frames {asked.frames:g}",
        "machine": machine(asked.commit),
        "game": asked.game,
        "algo": asked.algo,
        "seed": asked.seed,
        "frames": FRAME_SKIP * parts[-1]["states"],
        "parts": rounded(parts),
        "result": run.result,
        "curve": rounded(reports[every - 1 :: every]),
    }
    (asked.out / f"long-{asked.game.lower()}-{asked.algo}.json").write_text(runs.to_json(written) + "\n")


if __name__ == "__main__":
    main()
