"""Scaling of the Ray engine on this machine, its overhead, and the parts of the projection in `ray_page`.

python -m benchmarks.ray_scaling                       1, 2, 4 and 8 workers and the local engine (four minutes)
python -m benchmarks.ray_scaling --seconds 3 --workers 2
python -m benchmarks.ray_scaling --only learner        a learner process alone, without Ray, against the local engine's
python -m benchmarks.ray_scaling --only engines --env ALE/Breakout-v5 --workers 4 --cluster learner_gpus=0.5 \\
    worker_gpus=0.1 worker_cpus=3 learner_cpus=1 --rounds 2    one GPU that the learner and the workers' actors share
python -m benchmarks.ray_scaling --only driver --workers 1 5 10 25 50    the driver's cost per block, with workers
    that do nothing
python -m benchmarks.ray_scaling --only learning --env ALE/Breakout-v5 --workers 4 --updates 80000 --cluster ...
    scores of both engines while they learn, with two seeds each

Ray is imported only once `connect` has set its switches.
"""

import argparse
import collections
import contextlib
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.ray_page import mean_rate
from benchmarks.timing import machine, seconds_a_call
from rbi import fileio
from rbi.config import choose_device
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, ClusterConfig, TrainConfig
from rbi.online.distributed import RolloutStatistics
from rbi.online.engine import LocalEngine
from rbi.online.ray import Cluster
from rbi.online.ray.cluster import connect
from rbi.online.stream import BlockReplay, ExperienceBlock, LearnerProcess, Shard
from rbi.online.train import Local, make_observation_spec, train
from rbi.optim import flat_size

RESULTS = Path(__file__).parent / "results"
LIGHT = "CartPole-v1"
NUM_ENVS = 64
ATARI = ObservationSpec((84, 84), 4, 18)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def endless_config(env):
    """A run without end: the preset `small` with more environments, or `fast` for an Atari game."""
    config = TrainConfig.preset(env)
    if config.env.is_atari:
        return config.changed(updates=10**9, learning_starts=20_000)
    return config.changed(
        num_envs=NUM_ENVS, updates=10**9, learning_starts=2000, publish_interval=40, refresh_interval=8
    )


def cpu_ticks(stat):
    """CPU time of a process or thread, in ticks, and its parent."""
    words = stat.read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12]), int(words[1])


def with_children(pids):
    """Processes and all of their descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = cpu_ticks(stat)[1]
    found, more = set(), set(pids)
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in found} - found
    return sorted(found)


def thread_seconds(pids):
    """CPU time of processes by kind of thread: a process's first one, or the name of the others."""
    used = collections.Counter()
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                name = "first thread" if task.name == str(pid) else (task / "comm").read_text().strip()
                used[re.sub(r"[-_.:/ ]*[0-9]+$", "", name)] += cpu_ticks(task / "stat")[0] / CLOCK_TICKS
    return used


def idle_seconds():
    """Time that all cores of the machine together have been idle."""
    return int(Path("/proc/stat").read_text().split()[4]) / CLOCK_TICKS


def counts(engine, processes):
    used = {name: thread_seconds(pids) for name, pids in processes.items()}
    moved, waited = {}, 0.0
    if not isinstance(engine, LocalEngine):
        moved = {
            "blocks": engine.statistics.bytes,
            "batches": engine.batch_bytes,
            "weights": engine.supervisor.weight_bytes,
        }
        waited = engine.waited_seconds
    return time.perf_counter(), engine.states, engine.updates, moved, used, waited, idle_seconds()


def mps_running():
    """Whether CUDA's Multi-Process Service runs: without it the processes that share a GPU take turns."""
    names = Path("/proc").glob("[0-9]*/comm")
    return any(name.read_text().startswith("nvidia-cuda-mps") for name in names if name.exists())


def rates(engine, steps_of, processes, seconds):
    """Steps, updates and bytes per second, and CPU milliseconds of processes per thousand steps."""
    before = counts(engine, processes)
    while time.perf_counter() - before[0] < seconds:
        next(steps_of)
    after = counts(engine, processes)
    took, steps = after[0] - before[0], after[1] - before[1]
    return {
        "steps_per_second": steps / took,
        "updates_per_second": (after[2] - before[2]) / took,
        "bytes_per_second": {name: (after[3][name] - before[3][name]) / took for name in after[3]},
        "cpu_ms_per_1000_steps": {n: 1e6 * (after[4][n] - before[4][n]).total() / max(1, steps) for n in after[4]},
        "thread_ms_per_1000_steps": {
            name: {
                thread: round(1e6 * s / max(1, steps), 2) for thread, s in (threads - before[4][name]).most_common(6)
            }
            for name, threads in after[4].items()
        },
        "idle_cores": (after[6] - before[6]) / took,
        "learner_waited": (after[5] - before[5]) / took,
    }


def of_local(config, seconds, threads):
    torch.set_num_threads(threads)
    with Local()(config, 0, None, progress=False) as engine:
        run = engine.run()
        while not engine.updates:
            next(run)
        rates(engine, run, {}, seconds / 4)
        return {"threads": threads} | rates(engine, run, {"all": with_children([os.getpid()])}, seconds)


def of_ray(config, workers, seconds, changes):
    from rbi.online.ray.driver import RayEngine

    cores = os.cpu_count() or 1
    layout = {"worker_cpus": 0.5 * cores / workers, "learner_cpus": 0.5 * cores, "evaluation_episodes": 0} | changes
    cluster = ClusterConfig(workers=workers, **layout)
    engine = RayEngine(config, 0, cluster, make_observation_spec(config))
    run = engine.run()
    while not (engine.updates and all(worker.alive for worker in engine.supervisor.workers)):
        next(run)
    supervisor = engine.supervisor
    shards = supervisor.replays if cluster.replay == "shards" else []
    named = {
        "learner": supervisor.learners, "replay shard": shards, "inference": supervisor.inference,
        "rollout workers": supervisor.workers,
    }  # fmt: skip
    processes = {name: [actor.pid for actor in actors] for name, actors in named.items() if actors}
    processes = {name: with_children(pids) for name, pids in processes.items()}
    processes["driver"] = [os.getpid()]
    processes["Ray itself"] = sorted(set(with_children([os.getpid()])).difference(*processes.values()))
    rates(engine, run, processes, seconds / 4)
    states = cluster.steps_per_block(config.schedule) * config.schedule.num_envs // workers
    found = {"workers": workers, "cluster": changes, "blocks_of_states": states}
    found |= rates(engine, run, processes, seconds)
    engine.close()
    return found


def learner_alone(args):
    """A learner process with a filled replay: its updates/s, and the time that it takes to store a state. No Ray.

    The local engine's learner does the same updates on the same replay, without blocks and publications.
    """
    config, seconds = endless_config(args.env), args.seconds
    device = choose_device("auto")
    obs_spec = make_observation_spec(config)
    workers, steps = 4, 32
    per_group = config.schedule.num_envs // workers // GROUPS
    blocks = BlockReplay(config, obs_spec, 0, workers, 1, device)
    process = LearnerProcess(config, obs_spec, 0, device, blocks)
    block = random_block(obs_spec, steps, per_group, np.random.default_rng(0))
    fills, states = 40, steps * per_group
    for turn in range(fills):
        blocks.add(turn % workers, turn // workers * steps, turn < workers, block)
    blocks.status()
    starts = iter(range(fills // workers * steps, 10**9, steps))
    per_sample = config.learner.updates_per_sample
    samples = max(1, round(states / config.schedule.states_per_update / per_sample))

    def store():
        blocks.add(0, next(starts), False, block)

    def learn():
        process.learn(samples)

    def round_of_both():
        store()
        process.learn(samples)
        process.publish()
        process.newest_weights(wait=False)

    def timed(function):
        function()
        blocks.synchronize()
        before, calls = time.perf_counter(), 0
        while time.perf_counter() - before < seconds:
            function()
            calls += 1
        blocks.synchronize()
        return (time.perf_counter() - before) / calls

    return {
        "device": str(device),
        "states_per_block": states,
        "updates_per_round": samples * per_sample,
        "updates_per_second_alone": samples * per_sample / timed(learn),
        "updates_per_second_with_blocks_and_weights": samples * per_sample / timed(round_of_both),
        "seconds_per_stored_state": timed(store) / states,
    }


def random_block(obs_spec, steps, envs, rng):
    """A block of random experience."""
    cells = (steps, envs)
    dtype = np.uint8 if obs_spec.is_image else np.float32
    return ExperienceBlock(
        rng.integers(0, 255, (*cells, *obs_spec.shape)).astype(dtype), np.zeros(cells, bool),
        np.zeros(cells, np.float32), np.zeros(cells, np.uint8), np.zeros(cells, np.int16),
        np.full((*cells, obs_spec.num_actions), 1 / obs_spec.num_actions, np.float32),
        rng.random(cells).astype(np.float32), np.ones((*cells, obs_spec.mask_size), bool),
    )  # fmt: skip


def atari_parts():
    """Time and bytes of a replay shard in an Atari run, with the fast preset and 32 environments per worker."""
    config = TrainConfig.preset("ALE/Breakout-v5", "rbi", "fast")
    config = replace(
        config,
        schedule=replace(config.schedule, num_envs=32, learning_starts=1000),
        replay=replace(config.replay, capacity=8000),
        learner=replace(config.learner, batch_size=128),
    )
    rng, steps, envs = np.random.default_rng(0), 32, 16
    shard = Shard(config, ATARI, 0, 0, 1, 1)
    block = random_block(ATARI, steps, envs, rng)
    for start in range(0, 320, steps):
        shard.blocks.add(0, start, False, block)
    adding = seconds_a_call(lambda: shard.blocks.add(0, 320, False, block)) / (steps * envs)
    batch = config.learner.batch_size * config.learner.updates_per_sample
    drawing = seconds_a_call(lambda: shard.sample(batch)) / config.learner.updates_per_sample
    found = shard.sample(batch)
    weights = flat_size(make_networks(ATARI, NetworkConfig(config.schedule.hidden_size), 0)) * 4
    return {
        "states_per_block": steps * envs,
        "block_bytes_per_state": sum(column.nbytes for column in block) / (steps * envs),
        "batch_bytes_per_update": sum(column.nbytes for column in found.batch) / config.learner.updates_per_sample,
        "weight_bytes": weights,
        "shard_seconds_per_state": adding,
        "shard_seconds_per_update": drawing,
    }


LIGHT_STEPS = 16  # of a light worker's block, of one environment in each group
LIGHT_BLOCKS = 40.0  # per second, of all light workers together


def light_pool(workers):
    """A learner and workers that do nothing (`benchmarks.ray_light`), with the engine's own handles."""
    import ray

    from benchmarks.ray_light import LightLearner, LightWorker
    from rbi.online.distributed import ReplayHandle, WorkerHandle
    from rbi.online.ray.supervisor import start

    config = TrainConfig.preset(LIGHT)
    metrics = len(RolloutStatistics(config, 1).sums)
    learner = ReplayHandle(*start(LightLearner, "learner 0", config.learner.updates_per_sample, num_cpus=0))
    named = [(f"rollout worker {n}", n) for n in range(workers)]
    pool = [WorkerHandle(*start(LightWorker, name, metrics, num_cpus=0), index=n, replay=learner) for name, n in named]
    ray.get([worker.handle.identity.remote() for worker in pool])
    return learner, pool


def driver_cost(learner, pool, seconds):
    """CPU time of the driver per block: all of its threads, and Python's own."""
    import ray

    from rbi.online.ray import driver, supervisor

    workers = len(pool)
    ray.get([worker.handle.pace.remote(workers / LIGHT_BLOCKS) for worker in pool])
    config = TrainConfig.preset(LIGHT).changed(
        num_envs=GROUPS * workers, updates=10**9, learning_starts=10, states_per_update=4.0, publish_interval=100
    )
    layout = ClusterConfig(workers=workers, block_steps=LIGHT_STEPS // GROUPS, evaluation_episodes=0)
    handles = [replace(worker) for worker in pool]
    driver.launch = lambda *_: supervisor.RemoteActors([learner], [learner], [], handles, print)
    engine = driver.RayEngine(config, 0, layout, ObservationSpec((4,), 1, 2))
    run = engine.run()

    def go_on(until):
        while time.perf_counter() < until or not all(worker.alive for worker in engine.supervisor.workers):
            next(run)
        return time.perf_counter(), engine.states, time.process_time(), time.thread_time()

    next(run)
    before = go_on(time.perf_counter() + 5)
    after = go_on(time.perf_counter() + seconds)
    took, states, cpu, python = (new - old for new, old in zip(after, before, strict=True))
    engine.supervisor.drain()
    blocks = states / LIGHT_STEPS
    return {
        "workers": workers,
        "blocks_per_second": blocks / took,
        "cpu_ms_per_block": 1e3 * cpu / blocks,
        "python_ms_per_block": 1e3 * python / blocks,
    }


def driver_alone(args):
    """The driver's cost per block with more and more light workers, which make the same number of blocks in all."""
    with connect(""):
        learner, pool = light_pool(max(args.workers))
        return {"light_workers": [driver_cost(learner, pool[:count], args.seconds) for count in args.workers]}


def show(result):
    local = mean_rate(result["local"], "steps_per_second")
    for row in (*result["local"], *result["ray"]):
        steps, moved = row["steps_per_second"], sum(row["bytes_per_second"].values()) / 1e6
        spent = ", ".join(f"{name} {ms:.0f}" for name, ms in row["cpu_ms_per_1000_steps"].items())
        speed = f"{steps:,.0f} steps/s ({steps / local:.2f} of local), {row['updates_per_second']:,.0f} updates/s"
        name = f"{row['workers']} workers" if "workers" in row else "local engine"
        print(f"{name}: {speed}, {moved:,.1f} MB/s; CPU ms per 1,000 steps: {spent}")


def learning(args):
    """Scores of both engines while they learn, over the same number of updates, one run for every seed."""
    config = TrainConfig.preset(args.env).changed(updates=args.updates)
    layout = ClusterConfig(workers=args.workers[0], evaluation_episodes=0, **dict(args.cluster))
    rows = []
    for seed in args.seeds:
        for name, engine in (("local", Local()), ("ray", Cluster(layout))):
            run = train(config=config, seed=seed, engine=engine, eval_episodes=0, progress=False)
            names, lines = ("updates", "states", "score", "q_loss", "weights_behind", "seconds"), run.metrics
            curve = [{n: line.get(n) for n in names} for line in [*lines[:: max(1, len(lines) // 20)], lines[-1]]]
            print(f"{name}, seed {seed}: {curve[-1]['score']:.1f} after {run.seconds:.0f} s", file=sys.stderr)
            rows.append({"engine": name, "seed": seed, "seconds": run.seconds, "curve": curve})
    return {"updates": args.updates, "runs": rows}


def setting(text):
    """`name=value` of a cluster setting."""
    name, _, value = text.partition("=")
    return name, value if name == "replay" else json.loads(value)


def engines(args):
    """The local engine and the Ray engine with several numbers of workers, in turns."""
    config = endless_config(args.env)
    threads = [0] if torch.cuda.is_available() else sorted({1, os.cpu_count() or 1}, reverse=True)
    local, rows = [], []
    with connect(""):
        for _ in range(args.rounds):
            tried = [of_local(config, args.seconds, count or os.cpu_count()) for count in threads]
            local.append(max(tried, key=lambda found: found["steps_per_second"]))  # the fastest number of threads
            rows += [of_ray(config, workers, args.seconds, dict(args.cluster)) for workers in args.workers]
    return {
        "env": args.env,
        "mps": mps_running(),
        "num_envs": config.schedule.num_envs,
        "states_per_update": config.schedule.states_per_update,
        "batch": config.learner.batch_size,
        "local": local,
        "ray": rows,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--env", default=LIGHT)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--cluster", type=setting, nargs="*", default=[], metavar="NAME=VALUE", help="cluster settings")
    parser.add_argument(
        "--only", choices=["engines", "learner", "driver", "learning"], help="measure a part, and print it"
    )
    parser.add_argument("--rounds", type=int, default=1, help="measurements of every engine, in turns")
    parser.add_argument("--updates", type=int, default=80_000, help="of a run that learns")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of runs that learn")
    parser.add_argument("--out", type=Path, default=RESULTS / "ray-scaling.json")
    args = parser.parse_args()
    if args.only:
        parts = {"engines": engines, "learner": learner_alone, "driver": driver_alone, "learning": learning}
        part = parts[args.only](args)
        command = " ".join(["python -m benchmarks.ray_scaling", *sys.argv[1:]])
        print(fileio.to_json({"command": command, "env": args.env, "machine": machine()} | part, indent=1))
        return
    found = {"command": f"python -m benchmarks.ray_scaling --seconds {args.seconds:g}", "machine": machine()}
    found |= engines(args)
    found["atari"] = atari_parts()
    show(found)
    args.out.write_text(fileio.to_json(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
