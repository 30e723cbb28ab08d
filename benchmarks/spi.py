"""The published safe-policy-improvement study: `rbi spi` with 5,500 repetitions per world, summarised as JSON.

python -m benchmarks.spi                   about 80 minutes of CPU time; resumes if it was interrupted
python -m benchmarks.spi --repetitions 300 --out /tmp/spi.json
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.timing import machine
from rbi import runs
from rbi.cli.spi import Spi

RESULTS = Path(__file__).parent / "results"
SEED = 1
SPEED = {
    "300 Random MDPs, 5 sizes, all algorithms": (120, "random(0.9)", (10, 50, 100, 200, 500), 300),
    "1,000 Wet Chicken datasets, 5 sizes, all algorithms": (60, "chicken(0.1)", (100, 500, 1000, 2000, 5000), 1000),
}


def speed(out):
    """Seconds for complete runs of the command, including start-up of processes, intervals and figures."""
    rows = []
    for name, (aim, world, sizes, repetitions) in SPEED.items():
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            Spi(out=Path(folder) / "run", worlds=(world,), sizes=sizes, repetitions=repetitions).run(["spi"])
            rows.append({"study": name, "aim": aim, "seconds": time.perf_counter() - start})
    written = {"command": "python -m benchmarks.spi --speed", "machine": machine(), "rows": rows}
    out.write_text(runs.to_json(rounded(written), indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--repetitions", type=int, default=5500)
    parser.add_argument("--run", type=Path, default=Path(tempfile.gettempdir()) / "rbi-spi-published")
    parser.add_argument("--out", type=Path, default=RESULTS / "spi.json")
    arguments = parser.parse_args()
    if arguments.speed:
        speed(RESULTS / "spi-speed.json")
        return
    resume = (arguments.run / "config.json").exists()
    start = time.perf_counter()
    Spi(out=arguments.run, repetitions=arguments.repetitions, seed=SEED, resume=resume).run(["spi"])
    result = {
        "command": f"rbi spi --repetitions {arguments.repetitions} --seed {SEED}",
        "machine": machine(),
        "seconds": None if resume else time.perf_counter() - start,
        "seed": SEED,
        **runs.read(arguments.run).finished(),
    }
    arguments.out.write_text(runs.to_json(rounded(result)) + "\n")


def rounded(value):
    """Numbers with five decimals, for committed files."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
