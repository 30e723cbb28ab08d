"""One long training run, stopped and resumed: `rbi train` in parts of a few minutes each.

    python -m benchmarks.long_run Breakout --frames 60 --minutes 9 --work /tmp/long     again, until it is complete

A part ends by SIGINT, as Ctrl-C would, and the next one resumes from its checkpoint, which contains the replay. The
last part writes the result: frames, seconds of all parts, the learning curve and the final policy's evaluation.
"""

import argparse
import os
import signal
from pathlib import Path

from benchmarks.atari import FRAME_SKIP, MILLION, Cell, rounded
from benchmarks.population import step
from benchmarks.timing import machine
from rbi import fileio, runs

RESULTS = Path(__file__).parent / "results"
POINTS = 100  # of the learning curve
NEVER = 1000  # minutes: the only checkpoint is the one at the end of a part


def interrupt_after(seconds):
    """Send SIGINT to this process after a time limit."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("game")
    parser.add_argument("--algo", choices=["rbi", "apex"], default="rbi")
    parser.add_argument("--frames", type=float, default=60, help="million frames of the whole run")
    parser.add_argument("--minutes", type=float, default=9, help="time limit of this part, without its checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, help="in place of --frames, for a quick trial")
    parser.add_argument("--train", type=str.split, default=[], help="more options of rbi train, in quotes after =")
    parser.add_argument("--work", type=Path, required=True, help="folder of the run, to resume from")
    parser.add_argument("--commit", help="the commit, on a machine without the repository's history")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    folder = asked.work / f"{asked.game}-{asked.algo}-seed{asked.seed}"
    config = Cell(asked.game, asked.algo, "base", asked.seed, round(asked.frames * MILLION)).config()
    options = ["--env", config.env.id, "--algo", asked.algo, "--preset", "fast", "--seed", asked.seed]
    options += ["--schedule.updates", asked.updates or config.schedule.updates]
    options += ["--save-replay", "True", "--checkpoint-minutes", NEVER, *asked.train]
    interrupt_after(60 * asked.minutes)
    seconds = step("train", *options, out=folder)
    signal.setitimer(signal.ITIMER_REAL, 0)
    run = runs.read(folder)
    every = max(1, len(run.metrics) // POINTS)
    written = {
        "command": f"python -m benchmarks.long_run {asked.game} --algo {asked.algo} --frames {asked.frames:g}",
        "machine": machine(asked.commit),
        "game": asked.game,
        "algo": asked.algo,
        "seed": asked.seed,
        "frames": FRAME_SKIP * run.result["last"]["states"],
        "seconds": seconds,
        "parts": 1 + run.result.get("resumed", {"times": 0})["times"],
        "result": run.result,
        "curve": rounded(run.metrics[every - 1 :: every]),
    }
    path = asked.out / f"long-{asked.game.lower()}-{asked.algo}.json"
    path.write_text(fileio.to_json(written) + "\n")
    print(f"{path}: {written['frames']:,} frames in {seconds:,.0f} s and {written['parts']} parts", flush=True)


if __name__ == "__main__":
    main()
