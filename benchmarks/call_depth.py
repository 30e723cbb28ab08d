"""How many modules and functions of rbi an update, an actor step and `rbi.improve` pass through, on the CPU.

python -m benchmarks.call_depth                  both algorithms on CartPole-v1, and rbi.improve from a CSV file

A reader who follows the computation opens these modules. Counted with `sys.setprofile`; nested functions and
comprehensions count with the function that holds them.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import rbi
from rbi import envs
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LocalEngine

ROOT = Path(rbi.__file__).parent


def passed(function, *args, **options):
    """The modules and functions of rbi that a call passes through."""
    found = set()

    def profile(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)):
            name = frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name
            module = Path(file).relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            found.add((module, name.split(".<locals>")[0]))

    sys.setprofile(profile)
    try:
        function(*args, **options)
    finally:
        sys.setprofile(None)
    return found


def report(title, found):
    modules = sorted({module for module, _ in found})
    print(f"{title}: {len(modules)} modules, {len(found)} functions")
    for module in modules:
        print(f"  {module:<24} {', '.join(sorted(name for m, name in found if m == module))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for algo in ("rbi", "apex"):
        config = TrainConfig.preset(args.env, algo, "small", updates=40)
        groups = [envs.make(config.env, config.schedule.num_envs // GROUPS) for _ in range(GROUPS)]
        engine = LocalEngine(config, 0, torch.device("cpu"), groups)
        for _ in engine.run():
            pass
        batch = engine.replay.sample(config.learner.batch_size, engine.learner.generator)
        states = engine.learner.states(batch)
        step = groups[0].recv() if groups[0].pending else groups[0].reset(0)
        given = [torch.from_numpy(array) for array in step]
        learner, actor = engine.learner, engine.actors[0]
        report(f"{algo}: one gradient update", passed(learner.update, batch, states, log=False))
        report(f"{algo}: one gradient update with its metrics", passed(learner.update, batch, states))
        report(f"{algo}: sample, updates, priorities", passed(learner.learn, engine.replay))
        report(f"{algo}: one actor step with its metrics", passed(actor.act, *given))
    with tempfile.TemporaryDirectory() as folder:
        logs = write_logs(Path(folder) / "logs.csv")
        improve(logs)  # imports what it needs
        report("rbi.improve(load_episodes(CSV))", passed(improve, logs))


def write_logs(path, rows=400):
    """A CSV file of logged decisions, one step each."""
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=rows), rng.integers(3, size=rows)
    lines = [
        f"{row},{s:.3f},{a},{rng.random() + 0.1 * a:.3f},1" for row, (s, a) in enumerate(zip(obs, action, strict=True))
    ]
    path.write_text("\n".join(["episode,obs_0,action,reward,terminated", *lines]) + "\n")
    return path


def improve(path):
    rbi.improve(rbi.load_episodes(path), updates=20, progress=False)


if __name__ == "__main__":
    main()
