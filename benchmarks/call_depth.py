"""How many modules and functions of rbi one learner update and one actor step pass through, on the CPU.

python -m benchmarks.call_depth                  both algorithms, CartPole-v1, after a run of some updates

A reader who follows the computation opens these modules. Counted with `sys.setprofile`; nested functions and
comprehensions count with the function that holds them.
"""

import argparse
import sys
from pathlib import Path

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
        report(f"{algo}: one actor step", passed(actor.act, *given))


if __name__ == "__main__":
    main()
