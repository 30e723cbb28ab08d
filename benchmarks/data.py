"""Speed of the sampler compared with d3rlpy's, its memory on a large store, and loading of CSV files.

python -m benchmarks.data            with d3rlpy in .venv-peers (see Makefile, bench)
python -m benchmarks.data --tables   only the CSV files

Both samplers draw transitions of four stacked 84 x 84 frames with the next state, each in a new process, alternating:
once as they are, and once after one larger batch, which raises glibc's threshold for mapped memory, so that batches
reuse memory from then on (as in a program that also evaluates in larger batches). CSV files of a million rows are
loaded in a new process each; memory is the peak above that of the imported libraries.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.tables import load, measured_on, table_row
from benchmarks.timing import machine, seconds_a_call
from rbi import envs
from rbi.data.episode import DatasetSpec
from rbi.data.formats import FormatSettings, TableConfig, load_episodes
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.data.store import Store, StoreWriter
from rbi.envs.types import EnvConfig
from rbi.evaluation.recording import PerturbedPolicy, Recorder
from rbi.evaluation.scripted import RandomPolicy

RESULTS = Path(__file__).parent / "results"
GAME = "ALE/Breakout-v5"
PEER = Path(__file__).parent / "peers" / "d3rlpy_sampler.py"
ROUNDS = 3
LARGER = 1024
"""States of the larger batch."""


def recorded(path, steps):
    """A store of Breakout episodes of a random policy."""
    vector_env = envs.make(EnvConfig(GAME), 8)
    spec = DatasetSpec(vector_env.obs_shape, vector_env.num_actions, vector_env.frame_stack, GAME)
    policies = [PerturbedPolicy("random", RandomPolicy(vector_env.num_actions))] * vector_env.num_envs
    recorder = Recorder(vector_env, policies, spec, "benchmark", np.random.default_rng(0))
    with StoreWriter.create(path, spec) as writer:
        for episode in recorder.episodes(None, steps):
            writer.append(episode)
    vector_env.close()
    return Store(path)


def larger(path, store, size):
    """The same episodes repeated up to `size` bytes."""
    with StoreWriter.create(path, store.spec) as writer:
        while writer.frames * 84 * 84 < size:
            for episode in store:
                writer.append(episode)
    return Store(path)


def draw_batches(path, batch, larger):
    """Our samples per second; runs in its own process."""
    sampler = Sampler(Store(path), SamplerConfig(batch_size=batch, n_step=1), torch.Generator().manual_seed(0))
    if larger:
        sampler.draw(larger)
    return {"samples_per_second": batch / seconds_a_call(sampler.draw, budget=2.0)}


def our_samples(folder, batch, larger):
    command = [sys.executable, "-m", "benchmarks.data", "--draw", str(folder / "store"), str(batch), str(larger)]
    return run(command)


def peer_samples(python, folder, batch, larger):
    """d3rlpy's samples per second, from the same arrays."""
    return run([python, PEER, folder / "episodes.npz", str(batch), *([str(larger)] if larger else [])])


def run(command):
    """What a process prints as JSON in its last line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def save_arrays(folder, store):
    """The episodes as d3rlpy's script reads them."""
    np.savez(
        folder / "episodes.npz",
        observations=np.concatenate([episode.observations[: len(episode)] for episode in store]),
        actions=store.arrays["actions"],
        rewards=store.arrays["rewards"],
        lengths=[len(episode) for episode in store],
    )


def resident_bytes():
    """Resident memory of this process, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak_bytes():
    """The largest resident memory of this process (`ru_maxrss` would include its parent's)."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def memory(path, allowed, batches):
    """Additional memory of sampling from a large store: maximum in each tenth of the batches."""
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


ROWS, STEPS = 1_000_000, 100
BANDIT = TableConfig(
    action="offer", reward="paid", observations=("x", "segment"), action_prob="propensity", one_step=True
)


def write_tables(folder):
    """Two CSV files: one-step rows as a bandit logs them, and episodes of 100 steps."""
    rng = np.random.default_rng(0)
    x, actions = rng.standard_normal((ROWS, 4)).round(5), rng.integers(0, 4, ROWS)
    rewards, probs = rng.integers(0, 2, ROWS), rng.choice([0.1, 0.2, 0.3, 0.4], ROWS)
    segments = rng.choice(["young", "old", "new"], ROWS)
    with (folder / "bandit.csv").open("w") as file:
        file.write("x0,x1,x2,x3,segment,offer,paid,propensity\n")
        rows = zip(*x.T.tolist(), segments, actions.tolist(), rewards.tolist(), probs.tolist(), strict=True)
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    number = np.arange(ROWS)
    with (folder / "episodes.csv").open("w") as file:
        file.write("episode_id,t,obs_0,obs_1,obs_2,obs_3,action,reward,terminated,truncated\n")
        columns = number // STEPS, number % STEPS, *x.T, actions, rewards, 1 * (number % STEPS == STEPS - 1), 0 * number
        rows = zip(*(column.tolist() for column in columns), strict=True)
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def load_table(path):
    """Seconds and memory of loading one CSV file; runs in its own process."""
    import pyarrow.compute
    import pyarrow.csv  # noqa: F401 - imported before the clock starts

    settings = FormatSettings(table=BANDIT) if path.name == "bandit.csv" else None
    before, wall, cpu = resident_bytes(), time.perf_counter(), time.process_time()
    data = load_episodes(path, settings=settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_bytes() - before
    return {
        "file": path.name, "file_bytes": path.stat().st_size, "episodes": len(data), "steps": data.steps,
        "wall_seconds": wall, "cpu_seconds": cpu, "peak_bytes": peak, "peak_per_file_byte": peak / path.stat().st_size,
    }  # fmt: skip


def tables(folder):
    """The two CSV files, each loaded in a new process."""
    write_tables(folder)
    found = []
    for name in ("bandit.csv", "episodes.csv"):
        command = [sys.executable, "-m", "benchmarks.data", "--load", str(folder / name)]
        found.append(run(command))
        print(found[-1])
    return {"command": "python -m benchmarks.data --tables", "machine": machine(), "files": found}


def samplers(args):
    """Samples per second of both samplers, and the memory of ours on a large store."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        store = recorded(folder / "store", args.steps)
        save_arrays(folder, store)
        rows = []
        for batch, before in ((32, 0), (32, LARGER), (256, 0), (256, LARGER)):
            rounds = [
                (our_samples(folder, batch, before), peer_samples(args.peer, folder, batch, before))
                for _ in range(ROUNDS)
            ]
            mine, theirs = (float(np.median([r[which]["samples_per_second"] for r in rounds])) for which in (0, 1))
            row = {"batch": batch, "larger_before": before, "ours": mine, "d3rlpy": theirs, "times": mine / theirs}
            rows.append(row | {"d3rlpy_version": rounds[0][1]["version"]})
        larger(folder / "large", store, 4 * args.allowed)
        taken = memory(folder / "large", args.allowed, 20_000)
    table = Table(title="samples per second, four stacked frames and the next state")
    for column in ("batch", "after a batch of", "ours", "d3rlpy", "times"):
        table.add_column(column, justify="right")
    for row in rows:
        before = str(row["larger_before"] or "-")
        table.add_row(str(row["batch"]), before, f"{row['ours']:,.0f}", f"{row['d3rlpy']:,.0f}", f"{row['times']:.1f}")
    Console().print(table)
    most = max(taken["taken_bytes"]) / 2**20
    print(f"store of {taken['store_bytes'] / 2**20:,.0f} MiB: {most:,.0f} MiB of memory at most")
    return {"command": "python -m benchmarks.data", "machine": machine(), "rows": rows, "memory": taken}


# The section of docs/results.md

PAGE_HEAD = """
## Speed of the sampler

Transitions of four stacked 84 x 84 frames of Breakout and the next state, samples/s; rbi reads the store on disk,
d3rlpy its buffer in memory, alternating in one run.
"""

LARGER_NOTE = """
In a fresh process glibc maps and unmaps the memory of every batch; after one larger batch it keeps freed memory. The
rows with "no" are programs that draw batches of one size only, those with "yes" have also drawn a larger batch.
"""


def page_part():
    """The section of docs/results.md, if it was measured."""
    if not (result := load("data.json")):
        return []
    version = result["rows"][0]["d3rlpy_version"]
    both = any("larger_before" in row for row in result["rows"])
    lines = [
        f"| batch |{' after a larger batch |' * both} rbi | d3rlpy {version} | ratio |",
        "|--:|" + "--:|" * (3 + both),
    ]
    for row in result["rows"]:
        before = ["yes" if row.get("larger_before") else "no"] if both else []
        cells = [str(row["batch"]), *before, f"{row['ours']:,.0f}", f"{row['d3rlpy']:,.0f}", f"{row['times']:.1f}"]
        lines.append(table_row(cells))
    lines += [LARGER_NOTE] * both
    m, megabyte = result["memory"], 2**20
    memory = (
        f"\nMemory: {m['batches']:,} batches of 32 from a store of {m['store_bytes'] / megabyte:,.0f} MiB with a limit "
        f"of {m['allowed_bytes'] / megabyte:,.0f} MiB; peak use in each tenth of the run "
        f"{min(m['taken_bytes']) / megabyte:,.0f} to {max(m['taken_bytes']) / megabyte:,.0f} MiB. "
    )
    return [PAGE_HEAD, *lines, memory + measured_on(result)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--allowed", type=int, default=512 << 20, help="bytes of memory for the large store")
    parser.add_argument("--tables", action="store_true", help="only load CSV files")
    parser.add_argument("--load", type=Path, help="load one CSV file and print the figures as JSON")
    parser.add_argument("--draw", nargs=3, help="draw batches from a store: STORE BATCH LARGER")
    parser.add_argument("--out", type=Path, default=RESULTS / "data.json")
    args = parser.parse_args()
    if args.load:
        print(json.dumps(load_table(args.load)))
        return
    if args.draw:
        print(json.dumps(draw_batches(args.draw[0], *map(int, args.draw[1:]))))
        return
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    if not args.tables:
        found |= samplers(args)
    with tempfile.TemporaryDirectory() as folder:
        found["tables"] = tables(Path(folder))
    args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
