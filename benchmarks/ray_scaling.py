"""How the Ray engine scales on this machine, what the wiring costs, and on paper where 100 and 1,000 workers end.

python -m benchmarks.ray_scaling                       1, 2, 4 and 8 workers beside the local engine (four minutes)
python -m benchmarks.ray_scaling --seconds 3 --workers 2
"""

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import machine, seconds_a_call
from rbi import runs
from rbi.envs import make
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LocalEngine
from rbi.online.ray.config import ClusterConfig
from rbi.online.ray.driver import joined
from rbi.online.ray.workers import Block, Shard
from rbi.optim import flat_size

RESULTS = Path(__file__).parent / "results"
LIGHT = "CartPole-v1"
PLAYERS = 64
NETWORK = 1.25e9  # bytes a second of a machine's 10 Gb/s
ATARI = ObservationSpec((84, 84), 4, 18)
ON_PAPER = (1, 10, 100, 1000)
WORKERS_A_NODE = 16
TICK = os.sysconf("SC_CLK_TCK")


def light_plan():
    """A light environment: the small preset with more players, no end and a large replay."""
    whole = TrainConfig.preset(LIGHT, "rbi", "small")
    schedule = replace(
        whole.schedule, num_envs=PLAYERS, updates=10**9, learning_starts=2000, publish_interval=40, refresh_interval=8
    )
    return replace(whole, schedule=schedule, replay=replace(whole.replay, capacity=200_000))


def processor_seconds(process):
    """What a process has used of the processors."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


def counts(engine, posts):
    used = {name: sum(processor_seconds(p) for p in processes) for name, processes in posts.items()}
    moved, waited = {}, 0.0
    if not isinstance(engine, LocalEngine):
        moved = {"blocks": engine.block_bytes, "batches": engine.batch_bytes, "weights": engine.company.weight_bytes}
        waited = engine.waited
    return time.perf_counter(), engine.states, engine.updates, moved, used, waited


def rates(engine, ticks, posts, seconds):
    """Steps, updates and bytes a second, and processor seconds of each role for a thousand steps."""
    before = counts(engine, posts)
    while time.perf_counter() - before[0] < seconds:
        next(ticks)
    after = counts(engine, posts)
    took, steps = after[0] - before[0], after[1] - before[1]
    return {
        "steps_per_second": steps / took,
        "updates_per_second": (after[2] - before[2]) / took,
        "bytes_per_second": {name: (after[3][name] - before[3][name]) / took for name in after[3]},
        "processor_ms_per_1000_steps": {n: 1e6 * (after[4][n] - before[4][n]) / max(1, steps) for n in after[4]},
        "learner_waited": (after[5] - before[5]) / took,
    }


def of_local(whole, seconds, threads):
    torch.set_num_threads(threads)
    worlds = [make(whole.env, whole.schedule.num_envs // GROUPS) for _ in range(GROUPS)]
    engine = LocalEngine(whole, 0, torch.device("cpu"), worlds)
    ticks = engine.run()
    while not engine.updates:
        next(ticks)
    rates(engine, ticks, {}, seconds / 4)
    return {"threads": threads} | rates(engine, ticks, {"all": [os.getpid()]}, seconds)


def of_ray(whole, workers, seconds):
    from rbi.online.ray.driver import RayEngine

    cores = os.cpu_count() or 1
    config = ClusterConfig(
        workers=workers, evaluate_episodes=0, actor_cpus=0.5 * cores / workers, learner_cpus=0.5 * cores
    )
    world = make(whole.env, 1)
    engine = RayEngine(whole, 0, config, ObservationSpec(world.obs_shape, world.frame_stack, world.num_actions))
    ticks = engine.run()
    while not (engine.updates and all(slot.live for slot in engine.company.slots)):
        next(ticks)
    posts = {
        "driver": [os.getpid()],
        "learner": [engine.company.learner.process],
        "shard": [store.process for store in engine.company.stores],
        "workers": [slot.process for slot in engine.company.slots],
    }
    rates(engine, ticks, posts, seconds / 4)
    found = {"workers": workers, "blocks_of_states": config.block_steps * GROUPS * PLAYERS // GROUPS // workers}
    found |= rates(engine, ticks, posts, seconds)
    engine.close()
    return found


def block_of(obs_spec, ticks, each, draw):
    """A block as full as one of a game."""
    cells = (ticks, each)
    kind = np.uint8 if obs_spec.is_image else np.float32
    return Block(
        draw.integers(0, 255, (*cells, *obs_spec.shape)).astype(kind), np.zeros(cells, bool), np.zeros(cells, np.float32),
        np.zeros(cells, np.uint8), np.zeros(cells, np.int16), np.full((*cells, obs_spec.num_actions), 1 / 18, np.float32),
        draw.random(cells).astype(np.float32),
    )  # fmt: skip


def pieces_of_atari():
    """What an Atari run asks of a shard, and how many bytes it moves, with the fast preset and 32 players a worker."""
    whole = TrainConfig.preset("ALE/Breakout-v5", "rbi", "fast")
    whole = replace(
        whole,
        schedule=replace(whole.schedule, num_envs=32, learning_starts=1000),
        replay=replace(whole.replay, capacity=8000),
        learner=replace(whole.learner, batch_size=128),
    )
    draw, ticks, each = np.random.default_rng(0), 32, 16
    shard = Shard(whole, ATARI, 0, 0, 1, 1)
    block = block_of(ATARI, ticks, each, draw)
    for start in range(0, 320, ticks):
        shard.add(0, start, False, block)
    adding = seconds_a_call(lambda: shard.add(0, 320, False, block)) / (ticks * each)
    batch = whole.learner.batch_size * whole.learner.updates_per_sample
    drawing = seconds_a_call(lambda: shard.sample(batch)) / whole.learner.updates_per_sample
    found = shard.sample(batch)
    weights = flat_size(make_networks(ATARI, NetworkConfig(whole.schedule.hidden_size), 0)) * 4
    return {
        "states_per_block": ticks * each,
        "block_bytes_per_state": sum(column.nbytes for column in block) / (ticks * each),
        "batch_bytes_per_update": sum(column.nbytes for column in found.batch) / whole.learner.updates_per_sample,
        "weight_bytes": weights,
        "shard_seconds_per_state": adding,
        "shard_seconds_per_update": drawing,
    }


def driver_seconds_per_block():
    """What a block costs the driver: two calls and two answers, with nothing to do in between."""
    import ray

    class Echo:
        def play(self):
            return np.zeros(1), 1

        def add(self, block):
            return len(block)

    player, shard = (ray.remote(Echo).options(num_cpus=0).remote() for _ in range(2))
    count = 300

    def blocks():
        flying = [player.play.options(num_returns=2).remote() for _ in range(count)]
        taken = []
        for block, told in flying:
            ray.get(told)
            taken.append(shard.add.remote(block))
        ray.get(taken)

    blocks()
    before = processor_seconds(os.getpid())
    took = seconds_a_call(blocks, budget=2.0)
    used = processor_seconds(os.getpid()) - before
    return {"seconds_per_block": took / count, "driver_processor_seconds_total": used}


def on_paper(atari, driver, worker_steps, learner, ratio, publish):
    """How much of each resource N workers use at so many states an update; the first to pass 1 breaks first."""
    table = []
    for workers in ON_PAPER:
        steps = workers * worker_steps
        updates, blocks = steps / ratio, steps / atari["states_per_block"]
        nodes = max(1, workers / WORKERS_A_NODE)
        fetched = min(updates / publish, blocks / nodes)  # versions that a node takes each second
        adding, drawing = (atari[f"shard_seconds_per_{name}"] for name in ("state", "update"))
        uses = {
            "one shard's processor": steps * adding + updates * drawing,
            "driver's processor": blocks * driver,
            "network: blocks to one shard": steps * atari["block_bytes_per_state"] / NETWORK,
            "network: batches from shards elsewhere": updates * atari["batch_bytes_per_update"] / NETWORK,
            "network: weights to the nodes": fetched * atari["weight_bytes"] * nodes / NETWORK,
            "learner": updates / learner,
        }
        table.append({"workers": workers, "steps_per_second": steps, "updates_per_second": updates, "uses": uses})
    limits = {name: worker_steps / use for name, use in table[0]["uses"].items()}  # steps/s at which each is full
    return {"states_per_update": ratio, "publish_interval": publish, "rows": table, "full_at_steps_per_second": limits}


def learner_speed():
    """Updates a second of the local engine's learner alone on a GPU, as benchmarks.engine has measured it."""
    rows = json.loads((RESULTS / "engine-cuda.json").read_text())["rows"]
    return max(row["learner_alone_updates_per_second"] for row in rows)


def shown(found):
    local = found["local"]["steps_per_second"]
    for row in (found["local"], *found["ray"]):
        steps, moved = row["steps_per_second"], sum(row["bytes_per_second"].values()) / 1e6
        spent = ", ".join(f"{name} {ms:.0f}" for name, ms in row["processor_ms_per_1000_steps"].items())
        told = f"{steps:,.0f} steps/s ({steps / local:.2f} of local), {row['updates_per_second']:,.0f} updates/s"
        name = f"{row['workers']} workers" if "workers" in row else "local engine"
        print(f"{name}: {told}, {moved:,.1f} MB/s; processor ms for 1,000 steps: {spent}")
    for case in found["on_paper"]:
        print(
            f"on paper, {case['states_per_update']} states an update, weights every {case['publish_interval']} updates"
        )
        for row in case["rows"]:
            told = ", ".join(f"{name} {use:.2f}" for name, use in sorted(row["uses"].items(), key=lambda u: -u[1]))
            print(f"  {row['workers']:,} workers: {told}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--worker-steps", type=float, default=1000.0, help="steps/s of one Atari worker, on paper")
    parser.add_argument("--out", type=Path, default=RESULTS / "ray-scaling.json")
    asked = parser.parse_args()
    whole = light_plan()
    tried = [of_local(whole, asked.seconds, threads) for threads in sorted({1, os.cpu_count() or 1}, reverse=True)]
    local = max(tried, key=lambda found: found["steps_per_second"])  # as fast as it goes here
    with joined(""):
        rows = [of_ray(whole, workers, asked.seconds) for workers in asked.workers]
        driver = driver_seconds_per_block()
    atari = pieces_of_atari()
    found = {
        "command": f"python -m benchmarks.ray_scaling --seconds {asked.seconds:g}",
        "machine": machine(),
        "env": LIGHT,
        "players": PLAYERS,
        "states_per_update": whole.schedule.states_per_update,
        "batch": whole.learner.batch_size,
        "local": local,
        "ray": rows,
        "driver": driver,
        "atari": atari,
        "on_paper": [
            on_paper(atari, driver["seconds_per_block"], asked.worker_steps, learner_speed(), ratio, publish)
            for ratio, publish in ((16, 10), (16, 100), (256, 100))
        ],
    }
    shown(found)
    asked.out.write_text(runs.to_json(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
