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

from benchmarks.tables import load, measured_on
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


# The section of docs/results.md

PAGE_HEAD = """
## Speed of offline learning

Updates/s at batch size 32 with the paper's networks (hidden size 1024, batch norm), sampling and Adam included.
"""

ROWS = {
    "beta": "beta alone",
    "q": "Q alone, Monte-Carlo",
    "beta_and_q": "beta and Q in each update",
    "dqfd": "DQfD",
    "bcq": "BCQ",
    "cql": "CQL",
    "all_four_at_once": "all four learners in parallel, each",
    "all_four_of_3_seeds_at_once": "all four learners of three seeds in parallel, each",
    "bc": "d3rlpy's DiscreteBC",
    "double_dqn": "d3rlpy's DoubleDQN",
}

GPU_AIM = 3000

FORWARD = [2 * m * k * n for m, k, n in ((400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 1024))]
OPERATIONS = 3 * sum(FORWARD) - FORWARD[0]  # a sample: forward, and backward without the input's own gradient


def page_part():
    """The section of docs/results.md, one table per machine, if it was measured."""
    results = [found for kind in ("cpu", "cuda") if (found := load(f"offline-speed-{kind}.json"))]
    parts = [PAGE_HEAD]
    for result in results:
        lines = ["| | updates/s |", "|---|--:|"]
        for name, value in {**result["ours"], **result.get("d3rlpy", {})}.items():
            lines.append(f"| {ROWS[name]} | {value:,.1f} |" if value < 100 else f"| {ROWS[name]} | {value:,.0f} |")
        parts.append("\n".join(lines))
        parts.append(compare_with_d3rlpy(result) if "times" in result else on_gpu(result))
        parts.append(f"\n{measured_on(result)}\n")
    return parts if results else []


def on_gpu(result):
    """The result on the GPU compared with its aim."""
    beta, critic, both = (result["ours"][name] for name in ("beta", "q", "beta_and_q"))
    verdict = "reached" if min(beta, critic) >= GPU_AIM else "not reached"
    return (
        f"\n**Aim {verdict}:** {GPU_AIM:,} updates/s of each alone (beta {beta:,.0f}, Q {critic:,.0f}; both in one "
        f"update {both:,.0f}). {compared(result)}"
    )


def compared(result):
    """The same measurement of an earlier commit in the same call, if there was one."""
    if "previous_commit" not in result:
        return ""
    before = result["previous_commit"]
    rates = ", ".join(f"{ROWS[name]} {value:,.0f}" for name, value in before["ours"].items())
    return f"Commit {before['commit']} in the same call: {rates}."


def compare_with_d3rlpy(result):
    """The ratio to the peer, and the largest ratio that arithmetic allows."""
    beta, critic, both = (result["times"][name] for name in ("beta", "critic", "both"))
    monte_carlo = result["ours"]["q"] / result["d3rlpy"]["double_dqn"]
    limit = result["operations_limit"]
    most = limit / OPERATIONS / result["batch"]
    return (
        f"\nRatios to d3rlpy {result['d3rlpy_version']}: beta {beta:.1f} times DiscreteBC; Monte-Carlo Q, the paper's "
        f"critic, which evaluates no next state, {monte_carlo:.1f} times DoubleDQN; a critic with DoubleDQN's work and "
        f"CQL's penalty {critic:.1f} times; beta and Q in one update {both:.1f} times both of theirs in turn. **The "
        f"aim, 2 times each, is {'reached' if min(beta, critic) >= 2 else 'not reached by all'}.** Arithmetic is the "
        f"bound: {limit / 1e9:.0f} GFLOP/s in a large product and {OPERATIONS / 1e6:.0f} MFLOP per sample allow "
        f"{most:.0f} updates/s of one network, {most / result['d3rlpy']['bc']:.1f} times DiscreteBC."
    )


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
