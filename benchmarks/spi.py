"""The published safe-policy-improvement studies: `rbi spi` with all peers, summarised as JSON.

python -m benchmarks.spi                   all studies, one after the other
python -m benchmarks.spi --study spi-held-out --repetitions 300

Finished blocks are kept in --blocks: an interrupted study resumes, and more repetitions add to those that are done.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.timing import machine
from rbi import fileio
from rbi.cli.spi import Spi
from rbi.lab.spi import study as spi

RESULTS = Path(__file__).parent / "results"
SEED = 7  # 2 to 6 were used to report earlier forms of count_aware
REPORTED = (
    *(f"random({eta})" for eta in (0.9, 0.7, 0.5, 0.3)),
    *(f"chicken({epsilon})" for epsilon in (0.1, 0.2, 0.5)),
    *(f"grid({eta})" for eta in (0.5, 0.7)),
)
HELD_OUT = ("gathering(0.75)", "large(0.75)", "two_goals(0.75)")  # nothing was tuned on them
STUDIES = {  # file -> worlds, baseline
    "spi": (REPORTED, "known"),
    "spi-held-out": (HELD_OUT, "known"),
    "spi-estimated": (REPORTED, "estimated"),
}
SPEED = {
    "300 Random MDPs, 5 sizes, all algorithms": (60, "random(0.9)", (10, 50, 100, 200, 500), 300),
    "1,000 Wet Chicken datasets, 5 sizes, all algorithms": (60, "chicken(0.1)", (100, 500, 1000, 2000, 5000), 1000),
}


def speed(out):
    """Seconds for complete runs of the command, including start-up of processes, intervals and figures."""
    rows, load = [], os.getloadavg()[0]
    for name, (aim, world, sizes, repetitions) in SPEED.items():
        with tempfile.TemporaryDirectory() as folder:
            start, cpu = time.perf_counter(), cpu_seconds()
            Spi(out=Path(folder) / "run", worlds=(world,), sizes=sizes, repetitions=repetitions).run(["spi"])
            seconds = time.perf_counter() - start
            rows.append({"study": name, "aim": aim, "seconds": seconds, "cpu_seconds": cpu_seconds() - cpu})
    written = {"command": "python -m benchmarks.spi --speed", "machine": machine(), "load": load, "rows": rows}
    out.write_text(fileio.to_json(rounded(written), indent=1) + "\n")


def cpu_seconds():
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--study", choices=STUDIES, nargs="+", default=tuple(STUDIES))
    parser.add_argument("--repetitions", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--blocks", type=Path, default=Path(tempfile.gettempdir()) / "rbi-spi")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.speed:
        speed(RESULTS / "spi-speed.json")
        return
    for name in args.study:
        study(name, args)


def study(name, args):
    """Run, resume or extend one study and write its summary."""
    worlds, baseline = STUDIES[name]
    args.blocks.mkdir(parents=True, exist_ok=True)
    path = args.blocks / f"{name}.jsonl"
    finished = read_blocks(path, args.repetitions)
    with path.open("a") as file:
        result = spi.spi_study(
            worlds,
            baseline=baseline,
            repetitions=args.repetitions,
            workers=args.workers,
            seed=SEED,
            finished=finished,
            callback=lambda block: print(fileio.to_json(block), file=file, flush=True),
            progress=False,
        )
    written = {
        "command": f"python -m benchmarks.spi --study {name} --repetitions {args.repetitions}",
        "machine": machine(),
        "seed": SEED,
        "baseline": baseline,
        "worlds": result.worlds,
    }
    (args.out / f"{name}.json").write_text(fileio.to_json(rounded(json.loads(fileio.to_json(written)))) + "\n")


def read_blocks(path, repetitions):
    """Finished blocks of a study with this number of repetitions, by (world, first repetition)."""
    lines = path.read_text().splitlines() if path.exists() else []
    finished = {}
    for block in map(json.loads, lines):
        wanted = {r.start: len(r) for r in spi.split_blocks(spi.parse_world(block["world"]), repetitions)}
        if wanted.get(block["first"]) == len(block["scores"]):
            finished[block["world"], block["first"]] = block["scores"]
    return finished


def rounded(value):
    """Numbers with five decimals, for committed files."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
