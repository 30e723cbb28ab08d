"""What worker processes gain for a simulator with slow steps: steps/s of `rbi.train` with 0, 1 and 2 per group.

python -m benchmarks.env_processes
"""

import argparse
import json
import time
from pathlib import Path

import gymnasium
import numpy as np

from benchmarks.timing import machine
from rbi import train

RESULTS = Path(__file__).parent / "results" / "env-processes.json"


class SlowEnv(gymnasium.Env):
    """Each step keeps a core busy for 2 ms; an episode has 50."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    seconds = 0.002

    def reset(self, *, seed=None, options=None):  # noqa: ARG002 - as Gymnasium calls it
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(8, np.float32), {}

    def step(self, action):
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        self.steps += 1
        return self.np_random.random(8, np.float32), float(action), False, self.steps == 50, {}


def measure(processes, updates):
    """Steps/s between the first and the last report of a run."""
    run = train(
        SlowEnv, env_processes=processes, updates=updates, learning_starts=200, report_interval=40, eval_episodes=0,
        device="cpu", progress=False,
    )  # fmt: skip
    first, last = run.metrics[0], run.metrics[-1]
    return (last["states"] - first["states"]) / (last["seconds"] - first["seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=240)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = [
        {"processes": processes, "steps_per_second": measure(processes, args.updates)}
        for _ in range(args.repetitions)
        for processes in (0, 1, 2)
    ]
    found = {"command": "python -m benchmarks.env_processes", "machine": machine(), "step_seconds": SlowEnv.seconds}
    args.out.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")
    for row in rows:
        print(row["processes"], round(row["steps_per_second"]))


if __name__ == "__main__":
    main()
