"""How fast actors and learner run together, as ratios to the bare emulator and to Stable-Baselines3's DQN.

python -m benchmarks.engine                     on this machine's GPU, or on its processor where there is none
python -m benchmarks.engine --peer PYTHON       beside Stable-Baselines3, which that interpreter can import
"""

import argparse
import json
import subprocess
import sys
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


def bare_emulator(players, threads, seconds):
    """Steps a second with random actions, in the same two groups that take turns, and nothing else to do."""
    worlds = [make(World(GAME), players // GROUPS, threads) for _ in range(GROUPS)]
    draw = np.random.default_rng(0)
    for group, world in enumerate(worlds):
        world.reset(group * players)
        world.send(draw.integers(world.actions, size=world.players))
    tick, start = 0, None
    while start is None or time.perf_counter() - start < seconds:
        if tick == 2 * GROUPS:
            start = time.perf_counter()
        world = worlds[tick % GROUPS]
        world.recv()
        world.send(draw.integers(world.actions, size=world.players))
        tick += 1
    took = time.perf_counter() - start
    for world in worlds:
        world.recv()
        world.close()
    return (tick - 2 * GROUPS) * players / GROUPS / took


def started(whole, device):
    """An engine that has filled its replay far enough to learn."""
    worlds = [make(whole.world, whole.pace.players // GROUPS, whole.pace.threads) for _ in range(GROUPS)]
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


def on_gpu(seconds, out, players, threads, algos):
    bare = bare_emulator(players, threads, seconds)
    print(f"bare emulator: {bare:,.0f} steps/s", flush=True)
    rows = []
    for algo in algos:
        whole = plan("fast", GAME, algo)
        whole = replace(whole, pace=replace(whole.pace, players=players, threads=threads))
        engine, ticks = started(whole, torch.device("cuda"))
        steps, updates = together(engine, ticks, seconds)
        learner = alone(engine, seconds)
        rows.append(
            {
                "algo": algo,
                "steps_per_second": steps,
                "updates_per_second": updates,
                "of_the_bare_emulator": steps / bare,
                "learner_alone_updates_per_second": learner,
                "states_per_update": whole.pace.states_per_update,
                "batch": whole.learner.batch,
            }
        )
        print(rows[-1], flush=True)
        close(engine)
        del engine, ticks
        torch.cuda.empty_cache()
    found = {
        "command": "python -m benchmarks.engine",
        "machine": machine(),
        "game": GAME,
        "players": players,
        "bare_emulator_steps_per_second": bare,
        "bare_again": bare_emulator(players, threads, seconds),
        "rows": rows,
    }
    out.write_text(runs.to_json(found, indent=1) + "\n")


def close(engine):
    for world in engine.worlds:
        world.recv()
        world.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--players", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--algos", nargs="+", default=["rbi", "apex"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if torch.cuda.is_available():
        on_gpu(asked.seconds, asked.out or RESULTS / "engine-cuda.json", asked.players, asked.threads, asked.algos)


if __name__ == "__main__":
    main()
