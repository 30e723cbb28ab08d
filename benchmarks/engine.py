"""How fast actors and learner run together, as ratios to the bare emulator and to Stable-Baselines3's DQN.

python -m benchmarks.engine                     on this machine's GPU, or on its processor where there is none
python -m benchmarks.engine --peer PYTHON       beside Stable-Baselines3, which that interpreter can import
"""

import argparse
import itertools
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import machine, seconds_a_call
from benchmarks.variants import VARIANTS, variant
from rbi import runs
from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.online.config import GROUPS, plan
from rbi.online.engine import LocalEngine

RESULTS = Path(__file__).parent / "results"
GAME = "ALE/Breakout-v5"
PLAYERS_ON_CPU = 128
WORK = ((4, 32), (16, 128), (256, 128))  # states an update and batch: DQN's, about our preset's, the paper's


def bare_emulator(worlds, seconds):
    """Steps a second with random actions, in the same two groups that take turns, and nothing else to do."""
    draw = np.random.default_rng(0)
    for group, world in enumerate(worlds):
        world.reset(group * world.num_envs)
        world.send(draw.integers(world.num_actions, size=world.num_envs))
    tick, steps, start = 0, 0, None
    while start is None or time.perf_counter() - start < seconds:
        if tick == 2 * GROUPS:
            start, steps = time.perf_counter(), 0
        world = worlds[tick % GROUPS]
        world.recv()
        world.send(draw.integers(world.num_actions, size=world.num_envs))
        steps += world.num_envs
        tick += 1
    took = time.perf_counter() - start
    come_to_rest(worlds)
    return steps / took


def come_to_rest(worlds):
    """Let environments finish the steps they are in, so that they can be used again: making them takes long."""
    for world in worlds:
        if world.pending:
            world.recv()


def started(whole, device, worlds):
    """An engine that has filled its replay far enough to learn."""
    engine = LocalEngine(whole, 0, device, worlds)
    ticks = engine.ticks()
    while not engine.learner.updates:
        next(ticks)
    return engine, ticks


def together(engine, ticks, seconds):
    """Steps and updates a second while acting and learning."""
    engine.settle()
    states, updates, start = engine.states, engine.learner.updates, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(ticks)
    engine.settle()
    took = time.perf_counter() - start
    return (engine.states - states) / took, (engine.learner.updates - updates) / took


def alone(engine, seconds):
    """Updates a second of the learner, with sampling and new priorities."""
    calls, rounds = engine.calls, 0
    engine.settle()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(5):
            calls.learn()
        rounds += 5
        engine.settle()
    return rounds * engine.plan.learner.updates_per_sample / (time.perf_counter() - start)


def measured(whole, device, worlds, bare, seconds, change="base"):
    """One row: acting and learning together, and the learner alone."""
    engine, ticks = started(whole, device, worlds)
    together(engine, ticks, seconds / 4)  # caches and clocks settle
    steps, updates = together(engine, ticks, seconds)
    learner = alone(engine, seconds / 2)
    come_to_rest(worlds)
    row = {
        "algo": whole.algo,
        "variant": change,
        "players": whole.schedule.num_envs,
        "batch": whole.learner.batch_size,
        "states_per_update": whole.schedule.states_per_update,
        "steps_per_second": steps,
        "of_the_bare_emulator": steps / bare,
        "updates_per_second": updates,
        "learner_alone_updates_per_second": learner,
    }
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def on_gpu(seconds, out, players, threads, algos, ratios, changes):
    device = torch.device("cuda")
    worlds = [make(EnvConfig(GAME), players // GROUPS, threads) for _ in range(GROUPS)]
    bare = bare_emulator(worlds, seconds)
    print(f"bare emulator: {bare:,.0f} steps/s", flush=True)
    rows = []
    for algo, change, ratio in itertools.product(algos, changes, ratios):
        whole = variant(plan("fast", GAME, algo), VARIANTS[change])
        schedule = replace(whole.schedule, num_envs=players, env_threads=threads, states_per_update=ratio)
        rows.append(measured(replace(whole, schedule=schedule), device, worlds, bare, seconds, change))
        torch.cuda.empty_cache()
    found = {
        "command": f"python -m benchmarks.engine --players {players} --algos {' '.join(algos)} "
        f"--variants {' '.join(changes)} --ratios {' '.join(f'{ratio:g}' for ratio in ratios)} --seconds {seconds:g}",
        "machine": machine(),
        "game": GAME,
        "players": players,
        "bare_emulator_steps_per_second": bare,
        "bare_emulator_again": bare_emulator(worlds, seconds),
        "rows": rows,
    }
    out.write_text(runs.to_json(found, indent=1) + "\n")


def on_cpu(seconds, out, peer):
    """Beside Stable-Baselines3 on the same cores: same game, batch, states an update, and duelling network.

    Ours is Ape-X without double Q-learning, so that both ask the same networks about the same states.
    """
    device, rows = torch.device("cpu"), []
    worlds = [make(EnvConfig(GAME), PLAYERS_ON_CPU // GROUPS, os.cpu_count(), synchronous=True) for _ in range(GROUPS)]
    bare = bare_emulator(worlds, seconds / 4)
    for ratio, batch in WORK:
        whole = plan("fast", GAME, "apex")
        whole = replace(
            whole,
            learner=replace(whole.learner, batch_size=batch, updates_per_sample=2, double_q=False, augmentation=0),
            replay=replace(whole.replay, capacity=10_000),
            schedule=replace(
                whole.schedule,
                num_envs=PLAYERS_ON_CPU,
                states_per_update=float(ratio),
                learning_starts=1000,
                norm="none",
            ),
        )
        row = measured(whole, device, worlds, bare, seconds, "no norm, no shift, single Q-learning")
        for envs in (1, 8):
            script = str(Path(__file__).parent / "peers" / "sb3_dqn.py")
            command = [peer, script, GAME, str(envs), str(ratio), str(batch), str(seconds)]
            told = json.loads(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
            )
            row[f"sb3_{envs}"] = told
            row[f"times_sb3_{envs}"] = row["steps_per_second"] / told["steps_per_second"]
            print(f"  Stable-Baselines3, {envs} environments: {told}", flush=True)
        rows.append(row | {"multiply_adds_limit": multiply_adds()})
    found = {"command": "python -m benchmarks.engine --peer PYTHON", "machine": machine(), "game": GAME}
    written = found | {"bare_emulator_steps_per_second": bare, "rows": rows}
    out.write_text(runs.to_json(written, indent=1) + "\n")


def multiply_adds():
    """Floating-point operations a second in a large float32 matrix product: what the cores can do at most."""
    a = torch.rand(2048, 2048)
    return 2 * 2048**3 / seconds_a_call(lambda: a @ a)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--players", type=int, default=plan("fast", GAME, "rbi").schedule.num_envs)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--algos", nargs="+", default=["rbi", "apex"])
    parser.add_argument(
        "--ratios", nargs="+", type=float, default=[plan("fast", GAME, "rbi").schedule.states_per_update]
    )
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["base"], help="changes of the preset")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", default=".venv-peers/bin/python")
    asked = parser.parse_args()
    if torch.cuda.is_available():
        on_gpu(
            asked.seconds,
            asked.out or RESULTS / f"engine-cuda-{asked.players}.json",
            asked.players,
            asked.threads,
            asked.algos,
            asked.ratios,
            asked.variants,
        )
    else:
        on_cpu(asked.seconds, asked.out or RESULTS / "engine-cpu.json", asked.peer)


if __name__ == "__main__":
    main()
