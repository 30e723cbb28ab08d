"""Updates per second of offline learners: beta and Q alone and together, DQfD, BCQ, CQL; on a CPU beside d3rlpy.

python -m benchmarks.offline         on a GPU without peers; on a CPU with d3rlpy in .venv-peers (Makefile, bench)

Frames are noise: their content does not change the work. Both sides have the same batch size, convolutions, hidden
size, batch norm and dropout; sampling is included.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import machine, run_peer, seconds_a_call
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.gpu import prepare_for_many_streams
from rbi.losses import action_values, behavior_loss_grad, monte_carlo_q_loss_grad
from rbi.networks import make_networks
from rbi.offline_rl.config import PRESETS
from rbi.offline_rl.learner import advance, make_runner
from rbi.offline_rl.seed_learners import SeedLearners
from rbi.optim import ModuleOptimizer

RESULTS = Path(__file__).parent / "results"
PEER = Path(__file__).parent / "peers" / "d3rlpy_updates.py"
ACTIONS, STEPS, FRAME = 6, 500, (84, 84)
ROUNDS = 3
PROBE = 16  # updates that determine the length of a measurement
BASELINES = ("dqfd", "bcq", "cql")


def noise(steps):
    """Episodes of noise in the shape of Atari."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(steps // STEPS):
        last = np.arange(STEPS) == STEPS - 1
        frames = rng.integers(0, 256, (STEPS + 1, *FRAME), dtype=np.uint8)
        rewards = rng.choice([0.0, 1.0], STEPS, p=[0.9, 0.1])
        found.append(Episode(frames, rng.integers(ACTIONS, size=STEPS), rewards, last, ~last & False))
    return Dataset.from_episodes(found, DatasetSpec(FRAME, ACTIONS, 4))


class Alone:
    """beta or Q by itself, with the same work as in `BehaviorQ`, which trains both."""

    def __init__(self, seed, part):
        self.behavior_q, self.part, self.prefetcher = seed.behavior_q, part, seed.behavior_q.prefetcher
        networks = make_networks(seed.obs_spec, seed.config.behavior_q.network, 0)
        self.trained = ModuleOptimizer(getattr(networks, part).train(), seed.device, 0.00025)
        self.updates = 0

    def update(self):
        batch, obs = self.prefetcher.next()
        outputs = self.trained.module(obs, generator=self.behavior_q.generator)
        output = outputs if self.part == "pi" else outputs[0]
        with torch.no_grad():
            if self.part == "pi":
                grad = behavior_loss_grad(torch.softmax(output, 1), batch.actions)
            else:
                error = action_values(output, batch.actions) - batch.returns
                grad = monte_carlo_q_loss_grad(error, batch.actions, output.shape[1])
        self.trained.step([output], [grad])

    def after_update(self):
        self.updates += 1

    def generators(self):
        return self.behavior_q.generators()

    def state(self):
        return self.trained.state()


def updates_per_second(learners, device, seconds):
    """Updates per second of each learner, while all run in parallel."""
    cuda_graph = device.type == "cuda"
    runners = [make_runner(learner, device, cuda_graph=cuda_graph) for learner in learners]

    def took(updates):
        start = time.perf_counter()
        for _ in advance(runners, [one.learner.updates + updates for one in runners]):
            pass
        return time.perf_counter() - start

    took(3)
    updates = max(3, round(PROBE * seconds / took(PROBE)))
    return updates / took(updates)


def ours(data, device, seconds, seeds):
    """Our updates per second, by name."""
    resident, config = device.type == "cuda", PRESETS["paper"]
    first = SeedLearners(config, BASELINES, data, 0, device, resident=resident)

    found = {
        "beta": updates_per_second([Alone(first, "pi")], device, seconds),
        "q": updates_per_second([Alone(first, "q")], device, seconds),
        "beta_and_q": updates_per_second([first.behavior_q], device, seconds),
    }
    for name in BASELINES:
        found[name] = updates_per_second([first.baselines[name]], device, seconds)
    if resident:
        parallel = [first.behavior_q, *first.baselines.values()]
        found["all_four_at_once"] = updates_per_second(parallel, device, seconds)
        for seed in range(1, seeds):
            other = SeedLearners(config, BASELINES, data, seed, device, resident=resident, first=first)
            parallel += [other.behavior_q, *other.baselines.values()]
        found[f"all_four_of_{seeds}_seeds_at_once"] = updates_per_second(parallel, device, seconds)
    return found


def d3rlpy(python, data, seconds):
    """The peer's updates a second, in its own process, from the same frames."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.npz"
        frames = np.concatenate([episode.observations[: len(episode)] for episode in data])
        arrays = {name: data.arrays[name] for name in ("actions", "rewards")}
        np.savez(path, observations=frames, lengths=[len(episode) for episode in data], **arrays)
        return run_peer(python, PEER, path, seconds)


def products_per_second():
    """Floating-point operations a second in a large float32 matrix product: what bounds everybody."""
    square = torch.randn(2000, 2000)
    return 2 * 2000**3 / seconds_a_call(lambda: square @ square, budget=3.0)


def medians(rounds):
    return {name: float(np.median([r[name] for r in rounds])) for name in rounds[0] if name != "version"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    prepare_for_many_streams()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.set_float32_matmul_precision("high")
    data = noise(args.steps)
    result = {"command": "python -m benchmarks.offline", "machine": machine(), "batch": 32, "steps": args.steps}
    if on_gpu:
        result["ours"] = ours(data, device, args.seconds, args.seeds)
    else:  # in turns, so that both see the same machine
        rounds = [(ours(data, device, args.seconds, 1), d3rlpy(args.peer, data, args.seconds)) for _ in range(ROUNDS)]
        result |= {"ours": medians([r[0] for r in rounds]), "d3rlpy": medians([r[1] for r in rounds])}
        result["operations_limit"] = products_per_second()
        result["d3rlpy_version"] = rounds[0][1]["version"]
        result["times"] = {
            "beta": result["ours"]["beta"] / result["d3rlpy"]["bc"],
            "critic": result["ours"]["cql"] / result["d3rlpy"]["double_dqn"],
            "both": result["ours"]["beta_and_q"] * (1 / result["d3rlpy"]["bc"] + 1 / result["d3rlpy"]["double_dqn"]),
        }
    (args.out / f"offline-speed-{device.type}.json").write_text(json.dumps(result, indent=2) + "\n")
    table = Table(title="updates per second, batch size 32")
    for column in ("", "updates/s"):
        table.add_column(column, justify="right" if column else "left")
    for name, value in [*result["ours"].items(), *result.get("d3rlpy", {}).items(), *result.get("times", {}).items()]:
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
