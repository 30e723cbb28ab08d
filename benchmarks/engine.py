"""How fast actors and learner run together, as ratios to the bare emulator and to Stable-Baselines3's DQN.

python -m benchmarks.engine                     on the GPU, or on the CPU where there is none
python -m benchmarks.engine --peer PYTHON       compared with Stable-Baselines3, which that interpreter can import
python -m benchmarks.engine --compare start-up  emulators in this process and in worker processes, taking turns
python -m benchmarks.engine --compare frames    screens shrunk by the emulators' cores and by the GPU, taking turns
"""

import argparse
import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import machine, run_peer, seconds_a_call
from rbi import fileio
from rbi.envs import make
from rbi.envs.atari import AtariVector
from rbi.envs.types import EnvConfig
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LocalEngine

RESULTS = Path(__file__).parent / "results"
PEER = Path(__file__).parent / "peers" / "sb3_dqn.py"
GAME = "ALE/Breakout-v5"
NUM_ENVS_ON_CPU = 128
WORK = ((4, 32), (16, 128), (256, 128))  # states per update and batch size: DQN's, about the preset's, the paper's

FRESH = {  # each state is sampled four times, soon after it was collected
    "states_per_update": 64.0,
    "batch_size": 256,
    "learning_rate": 5e-4,
    "target_update_interval": 200,
    "capacity": 250_000,
}
LATEST = {"improve_from": "latest"}  # the networks of the last update, not the target networks
STORED = LATEST | {"improve_in": "actor", "bootstrap_policy": "stored"}  # the policy when acting, as in the paper

VARIANTS = {  # of the preset `fast`: the settings that each one changes
    "base": {},
    "cmax2": {"rule": "reroute(0.1,2)"},
    "latest": LATEST,  # the preset before decision 033
    "latest-cmax2": LATEST | {"rule": "reroute(0.1,2)"},
    "latest-cmax2-greedy.01": LATEST | {"rule": "reroute(0.1,2)", "c_greedy": 0.01},
    "latest-cmin0": LATEST | {"rule": "reroute(0,10)"},
    "latest-cmin.01": LATEST | {"rule": "reroute(0.01,10)"},
    "stored": STORED,
    "stored-cmax2": STORED | {"rule": "reroute(0.1,2)"},
    "bootstrap-stored": LATEST | {"bootstrap_policy": "stored"},
    "bootstrap-net": LATEST | {"bootstrap_policy": "net"},
    "learner": {"improve_in": "learner"},
    "greedy.3": {"c_greedy": 0.3},
    "n5": {"n_step": 5},
    "n10": {"n_step": 10},
    "target500": {"target_update_interval": 500},
    "target200": {"target_update_interval": 200},
    "target2000": {"target_update_interval": 2000},
    "replay250k": {"capacity": 250_000},
    "rate5": {"learning_rate": 5e-4},
    "nowpi": {"policy_weighting": False},
    "pi": {"advantage_baseline": "pi"},
    "uniform": {"priority_exponent": 0.0},
    "fresh": FRESH,
    "unshifted": {"augmentation": 0},
    "without-norm": {"norm": "none"},
    # the preset before layer norm and augmentation
    "plain": {"norm": "none", "augmentation": 0, "learning_rate": 1e-4, "final_lr_fraction": 1.0},
}


def bare_emulator(envs, seconds):
    """Steps/s with random actions in the same two alternating groups, and nothing else."""
    draw = np.random.default_rng(0)
    for group, env in enumerate(envs):
        env.reset(group * env.num_envs)
        env.send(draw.integers(env.num_actions, size=env.num_envs))
    tick, steps, start = 0, 0, None
    while start is None or time.perf_counter() - start < seconds:
        if tick == 2 * GROUPS:
            start, steps = time.perf_counter(), 0
        env = envs[tick % GROUPS]
        env.recv()
        env.send(draw.integers(env.num_actions, size=env.num_envs))
        steps += env.num_envs
        tick += 1
    took = time.perf_counter() - start
    drain(envs)
    return steps / took


def drain(envs):
    """Receive pending steps, so that the environments can be reused: making them takes long."""
    for env in envs:
        if env.pending:
            env.recv()


def started(config, device, envs):
    """An engine that has collected enough states to learn."""
    engine = LocalEngine(config, 0, device, envs)
    ticks = engine.run()
    while not engine.updates:
        next(ticks)
    return engine, ticks


def together(engine, ticks, seconds):
    """Steps/s and updates/s while acting and learning."""
    engine.synchronize()
    states, updates, start = engine.states, engine.updates, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(ticks)
    engine.synchronize()
    took = time.perf_counter() - start
    return (engine.states - states) / took, (engine.updates - updates) / took


def alone(engine, seconds):
    """Updates/s of the learner alone, with sampling and priority updates."""
    calls, rounds = engine.backend, 0
    engine.synchronize()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(5):
            calls.learn()
        rounds += 5
        engine.synchronize()
    return rounds * engine.config.learner.updates_per_sample / (time.perf_counter() - start)


def measured(config, device, envs, bare, seconds, change="base"):
    """One row: acting and learning together, and the learner alone."""
    engine, ticks = started(config, device, envs)
    together(engine, ticks, seconds / 4)  # warm-up
    steps, updates = together(engine, ticks, seconds)
    learner = alone(engine, seconds / 2)
    drain(envs)
    row = {
        "algo": config.algo,
        "variant": change,
        "num_envs": config.schedule.num_envs,
        "batch": config.learner.batch_size,
        "states_per_update": config.schedule.states_per_update,
        "steps_per_second": steps,
        "of_the_bare_emulator": steps / bare,
        "updates_per_second": updates,
        "learner_alone_updates_per_second": learner,
    }
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def on_gpu(seconds, out, num_envs, threads, algos, ratios, changes):
    device = torch.device("cuda")
    envs = [make(EnvConfig(GAME), num_envs // GROUPS, threads, for_gpu=True) for _ in range(GROUPS)]
    bare = bare_emulator(envs, seconds)
    print(f"bare emulator: {bare:,.0f} steps/s", flush=True)
    rows = []
    for algo, change, ratio in itertools.product(algos, changes, ratios):
        config = TrainConfig.preset(GAME, algo, "fast", **VARIANTS[change])
        schedule = replace(config.schedule, num_envs=num_envs, env_threads=threads, states_per_update=ratio)
        rows.append(measured(replace(config, schedule=schedule), device, envs, bare, seconds, change))
        torch.cuda.empty_cache()
    result = {
        "command": f"python -m benchmarks.engine --num-envs {num_envs} --algos {' '.join(algos)} "
        f"--variants {' '.join(changes)} --ratios {' '.join(f'{ratio:g}' for ratio in ratios)} --seconds {seconds:g}",
        "machine": machine(),
        "game": GAME,
        "num_envs": num_envs,
        "bare_emulator_steps_per_second": bare,
        "bare_emulator_again": bare_emulator(envs, seconds),
        "rows": rows,
    }
    out.write_text(fileio.to_json(result, indent=1) + "\n")


def kinds_of_environments(comparison, threads):
    """The options of `AtariVector` that are compared, by name."""
    if comparison == "start-up":
        return {"this process": {"workers": 0}, f"{threads} worker processes per group": {"workers": threads}}
    return {"emulators' cores": {}, "GPU": {"for_gpu": True}}


def taking_turns(comparison, seconds, out, num_envs, threads, turns):
    """Seconds to make and reset environments of two kinds, and the steps/s of both."""
    config, vectors, rows = TrainConfig.preset(GAME, "rbi", "fast", num_envs=num_envs), {}, {}
    for kind, options in kinds_of_environments(comparison, threads).items():
        start = time.perf_counter()
        vectors[kind] = [AtariVector(config.env, num_envs // GROUPS, threads, **options) for _ in range(GROUPS)]
        made = time.perf_counter()
        for group, env in enumerate(vectors[kind]):
            env.reset(group * env.num_envs)
            env.reset = lambda _, again=env.reset: again(None)  # seeding makes an emulator load its game again
        rows[kind] = {"make_seconds": made - start, "reset_seconds": time.perf_counter() - made, "turns": []}
    for _ in range(turns):
        for kind, envs in vectors.items():
            row = {"bare_emulator_steps_per_second": bare_emulator(envs, seconds / 2)}
            if torch.cuda.is_available():
                engine, ticks = started(config, torch.device("cuda"), envs)
                together(engine, ticks, seconds / 4)
                row["steps_per_second"], row["updates_per_second"] = together(engine, ticks, seconds)
                drain(envs)
                del engine, ticks
                torch.cuda.empty_cache()
            rows[kind]["turns"].append(row)
            print(kind, rows[kind], flush=True)
            command = f"python -m benchmarks.engine --compare {comparison} --seconds {seconds:g} --turns {turns}"
            result = {"command": command, "machine": machine(), "game": GAME, "num_envs": num_envs, "kinds": rows}
            out.write_text(fileio.to_json(result, indent=1) + "\n")


def on_cpu(seconds, out, peer):
    """Compared with Stable-Baselines3 on the same cores: same game, batch size, states per update, duelling network.

    Ours is Ape-X without double Q-learning, so that both evaluate the same networks on the same states.
    """
    device, rows = torch.device("cpu"), []
    envs = [make(EnvConfig(GAME), NUM_ENVS_ON_CPU // GROUPS, os.cpu_count(), synchronous=True) for _ in range(GROUPS)]
    bare = bare_emulator(envs, seconds / 4)
    for ratio, batch in WORK:
        config = TrainConfig.preset(GAME, "apex", "fast")
        config = replace(
            config,
            learner=replace(config.learner, batch_size=batch, updates_per_sample=2, double_q=False, augmentation=0),
            replay=replace(config.replay, capacity=10_000),
            schedule=replace(
                config.schedule,
                num_envs=NUM_ENVS_ON_CPU,
                states_per_update=float(ratio),
                learning_starts=1000,
                norm="none",
            ),
        )
        row = measured(config, device, envs, bare, seconds, "no norm, no augmentation, single Q-learning")
        for count in (1, 8):
            peer_result = run_peer(peer, PEER, GAME, count, ratio, batch, seconds)
            row[f"sb3_{count}"] = peer_result
            row[f"times_sb3_{count}"] = row["steps_per_second"] / peer_result["steps_per_second"]
            print(f"  Stable-Baselines3, {count} environments: {peer_result}", flush=True)
        rows.append(row | {"multiply_adds_limit": multiply_adds()})
    result = {"command": "python -m benchmarks.engine --peer PYTHON", "machine": machine(), "game": GAME}
    written = result | {"bare_emulator_steps_per_second": bare, "rows": rows}
    out.write_text(fileio.to_json(written, indent=1) + "\n")


def multiply_adds():
    """FLOP/s of a large float32 matrix product: the limit of the cores."""
    a = torch.rand(2048, 2048)
    return 2 * 2048**3 / seconds_a_call(lambda: a @ a)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--num-envs", type=int, default=TrainConfig.preset(GAME, "rbi", "fast").schedule.num_envs)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--algos", nargs="+", default=["rbi", "apex"])
    parser.add_argument(
        "--ratios", nargs="+", type=float, default=[TrainConfig.preset(GAME, "rbi", "fast").schedule.states_per_update]
    )
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["base"], help="variants of the preset")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", choices=("start-up", "frames"), help="environments of two kinds, taking turns")
    parser.add_argument("--turns", type=int, default=3, help="of each kind")
    parser.add_argument("--peer", default=".venv-peers/bin/python")
    args = parser.parse_args()
    if args.compare:
        out = args.out or RESULTS / f"engine-{args.compare}.json"
        taking_turns(args.compare, args.seconds, out, args.num_envs, args.threads, args.turns)
    elif torch.cuda.is_available():
        on_gpu(
            args.seconds,
            args.out or RESULTS / f"engine-cuda-{args.num_envs}.json",
            args.num_envs,
            args.threads,
            args.algos,
            args.ratios,
            args.variants,
        )
    else:
        on_cpu(args.seconds, args.out or RESULTS / "engine-cpu.json", args.peer)


if __name__ == "__main__":
    main()
