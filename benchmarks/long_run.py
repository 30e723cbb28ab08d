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
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    folder = args.work / f"{args.game}-{args.algo}-seed{args.seed}"
    config = Cell(args.game, args.algo, "base", args.seed, round(args.frames * MILLION)).config()
    options = ["--env", config.env.id, "--algo", args.algo, "--preset", "fast", "--seed", args.seed]
    options += ["--schedule.updates", args.updates or config.schedule.updates]
    options += ["--save-replay", "True", "--checkpoint-minutes", NEVER, *args.train]
    interrupt_after(60 * args.minutes)
    seconds = step("train", *options, out=folder)
    signal.setitimer(signal.ITIMER_REAL, 0)
    run = runs.read(folder)
    every = max(1, len(run.metrics) // POINTS)
    written = {
        "command": f"python -m benchmarks.long_run {args.game} --algo {args.algo} --frames {args.frames:g}",
        "machine": machine(args.commit),
        "game": args.game,
        "algo": args.algo,
        "seed": args.seed,
        "frames": FRAME_SKIP * run.result["last"]["states"],
        "seconds": seconds,
        "parts": 1 + run.result.get("resumed", {"times": 0})["times"],
        "result": run.result,
        "curve": rounded(run.metrics[every - 1 :: every]),
    }
    path = args.out / f"long-{args.game.lower()}-{args.algo}.json"
    path.write_text(fileio.to_json(written) + "\n")
    print(f"{path}: {written['frames']:,} frames in {seconds:,.0f} s and {written['parts']} parts", flush=True)


if __name__ == "__main__":
    main()
