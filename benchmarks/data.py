"""Speed of the sampler beside d3rlpy's on the same episodes, and its memory on a store that is larger.

python -m benchmarks.data            with d3rlpy in .venv-peers (see Makefile, bench)

Both draw transitions of four stacked 84 x 84 frames with the state one step ahead, in turns, in one run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import machine, seconds_a_call
from rbi import envs
from rbi.data.episode import DatasetSpec
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.data.store import Store, StoreWriter
from rbi.envs.types import EnvConfig
from rbi.evaluation.recording import PerturbedPolicy, Recorder
from rbi.evaluation.scripted import RandomPolicy

RESULTS = Path(__file__).parent / "results"
GAME = "ALE/Breakout-v5"
PEER = Path(__file__).parent / "peers" / "d3rlpy_sampler.py"
ROUNDS = 3


def recorded(path, steps):
    """A store of Breakout, played at random."""
    worlds = envs.make(EnvConfig(GAME), 8)
    mind = RandomPolicy(worlds.num_actions)
    spec = DatasetSpec(worlds.obs_shape, worlds.num_actions, worlds.frame_stack, GAME)
    players = [PerturbedPolicy("random", mind)] * worlds.num_envs
    recorder = Recorder(worlds, players, spec, "benchmark", np.random.default_rng(0))
    with StoreWriter.create(path, spec) as writer:
        for episode in recorder.episodes(None, steps):
            writer.append(episode)
    worlds.close()
    return Store(path)


def larger(path, store, size):
    """The same episodes again and again, up to so many bytes."""
    with StoreWriter.create(path, store.spec) as writer:
        while writer.frames * 84 * 84 < size:
            for episode in store:
                writer.append(episode)
    return Store(path)


def ours(store, batch):
    sampler = Sampler(store, SamplerConfig(batch_size=batch, n_step=1), torch.Generator().manual_seed(0))
    return batch / seconds_a_call(sampler.draw, budget=2.0)


def peers(python, folder, store, batch):
    """d3rlpy's samples a second, in its own process, from the same arrays."""
    lengths = [len(episode) for episode in store]
    np.savez(
        folder / "episodes.npz",
        observations=np.concatenate([episode.observations[: len(episode)] for episode in store]),
        actions=store.arrays["actions"],
        rewards=store.arrays["rewards"],
        lengths=lengths,
    )
    told = subprocess.run(
        [python, PEER, folder / "episodes.npz", str(batch)], capture_output=True, text=True, check=False
    )
    if told.returncode:
        sys.exit(f"{python} {PEER}: {told.stderr.strip().splitlines()[-1]}")
    return json.loads(told.stdout.splitlines()[-1])


def resident_bytes():
    """This process' memory now, files that are mapped included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory(path, allowed, batches):
    """What drawing from a large store takes: bytes after each tenth of the batches, above those before the first."""
    store = Store(path)
    config = SamplerConfig(batch_size=32, n_step=1, memory_bytes=allowed)
    sampler = Sampler(store, config, torch.Generator().manual_seed(0))
    sampler.draw()
    before, taken = resident_bytes(), []
    for _ in range(10):
        most = 0
        for _ in range(batches // 10):
            sampler.draw()
            most = max(most, resident_bytes() - before)
        taken.append(most)
    return {"store_bytes": store.frames * 84 * 84, "allowed_bytes": allowed, "batches": batches, "taken_bytes": taken}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--allowed", type=int, default=512 << 20, help="bytes of memory for the large store")
    parser.add_argument("--out", type=Path, default=RESULTS / "data.json")
    overrides = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        store = recorded(folder / "store", overrides.steps)
        rows = []
        for batch in (32, 256):
            rounds = [(ours(store, batch), peers(overrides.peer, folder, store, batch)) for _ in range(ROUNDS)]
            mine = float(np.median([r[0] for r in rounds]))
            theirs = float(np.median([r[1]["samples_per_second"] for r in rounds]))
            row = {"batch": batch, "ours": mine, "d3rlpy": theirs, "times": mine / theirs}
            rows.append(row | {"d3rlpy_version": rounds[0][1]["version"]})
        larger(folder / "large", store, 4 * overrides.allowed)
        taken = memory(folder / "large", overrides.allowed, 20_000)
    told = {"command": "python -m benchmarks.data", "machine": machine(), "rows": rows, "memory": taken}
    overrides.out.write_text(json.dumps(told, indent=2) + "\n")
    table = Table(title="samples a second, four stacked frames and the next state")
    for column in ("batch", "ours", "d3rlpy", "times"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(str(row["batch"]), f"{row['ours']:,.0f}", f"{row['d3rlpy']:,.0f}", f"{row['times']:.1f}")
    Console().print(table)
    most = max(taken["taken_bytes"]) / 2**20
    print(f"store of {taken['store_bytes'] / 2**20:,.0f} MiB: {most:,.0f} MiB of memory at most")


if __name__ == "__main__":
    main()
