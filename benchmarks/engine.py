"""How fast actors and learner run together, as ratios to the bare emulator and to Stable-Baselines3's DQN.

python -m benchmarks.engine                     on this machine's GPU, or on its processor where there is none
python -m benchmarks.engine --peer PYTHON       beside Stable-Baselines3, which that interpreter can import
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import machine
from rbi import runs
from rbi.engines.local import LocalEngine
from rbi.envs import World, make
from rbi.online.plan import GROUPS, plan

RESULTS = Path(__file__).parent / "results"
GAME = "ALE/Breakout-v5"


def bare_emulator(worlds, seconds):
    """Steps a second with random actions, in the same two groups that take turns, and nothing else to do."""
    draw = np.random.default_rng(0)
    for group, world in enumerate(worlds):
        world.reset(group * world.players)
        world.send(draw.integers(world.actions, size=world.players))
    tick, steps, start = 0, 0, None
    while start is None or time.perf_counter() - start < seconds:
        if tick == 2 * GROUPS:
            start, steps = time.perf_counter(), 0
        world = worlds[tick % GROUPS]
        world.recv()
        world.send(draw.integers(world.actions, size=world.players))
        steps += world.players
        tick += 1
    took = time.perf_counter() - start
    come_to_rest(worlds)
    return steps / took


def come_to_rest(worlds):
    """Let environments finish the steps they are in, so that they can be used again: making them takes long."""
    for world in worlds:
        if world.moving:
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
    return rounds * engine.plan.learner.round_updates / (time.perf_counter() - start)


def measured(whole, device, worlds, bare, seconds):
    """One row: acting and learning together, and the learner alone."""
    engine, ticks = started(whole, device, worlds)
    together(engine, ticks, seconds / 4)  # caches and clocks settle
    steps, updates = together(engine, ticks, seconds)
    learner = alone(engine, seconds / 2)
    come_to_rest(worlds)
    row = {
        "algo": whole.algo,
        "players": whole.pace.players,
        "batch": whole.learner.batch,
        "states_per_update": whole.pace.states_per_update,
        "steps_per_second": steps,
        "of_the_bare_emulator": steps / bare,
        "updates_per_second": updates,
        "learner_alone_updates_per_second": learner,
    }
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def on_gpu(seconds, out, players, threads, algos, ratios):
    device = torch.device("cuda")
    worlds = [make(World(GAME), players // GROUPS, threads) for _ in range(GROUPS)]
    bare = bare_emulator(worlds, seconds)
    print(f"bare emulator: {bare:,.0f} steps/s", flush=True)
    rows = []
    for algo in algos:
        for ratio in ratios:
            whole = plan("fast", GAME, algo)
            pace = replace(whole.pace, players=players, threads=threads, states_per_update=ratio)
            rows.append(measured(replace(whole, pace=pace), device, worlds, bare, seconds))
            torch.cuda.empty_cache()
    found = {
        "command": "python -m benchmarks.engine",
        "machine": machine(),
        "game": GAME,
        "players": players,
        "bare_emulator_steps_per_second": bare,
        "bare_emulator_again": bare_emulator(worlds, seconds),
        "rows": rows,
    }
    out.write_text(runs.to_json(found, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--players", type=int, default=512)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--algos", nargs="+", default=["rbi", "apex"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[25.0, 15.0])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if torch.cuda.is_available():
        on_gpu(
            asked.seconds,
            asked.out or RESULTS / "engine-cuda.json",
            asked.players,
            asked.threads,
            asked.algos,
            asked.ratios,
        )


if __name__ == "__main__":
    main()
