"""The engine of a training run with its environments, on this machine or a cluster, once it is known to fit."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from rbi import envs
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import Engine, LocalEngine
from rbi.online.ray.config import ClusterConfig
from rbi.online.ray.driver import joined, processors
from rbi.progress import echo
from rbi.replay import bytes_needed


@contextlib.contextmanager
def on_machine(plan: TrainConfig, seed: int, device: torch.device) -> Iterator[Engine]:
    obs_spec = seen_in(plan.env)
    refuse_too_large(plan, obs_spec, device)
    players = plan.schedule.num_envs // GROUPS
    alone = device.type == "cpu"  # then games and networks take turns on the cores, and so do the groups
    threads = plan.schedule.env_threads or max(1, (os.cpu_count() or 1) // (1 if alone else GROUPS))
    echo(f"making {plan.schedule.num_envs} environments of {plan.env.id}", stderr=True)
    if alone and plan.env.is_atari:
        echo(
            "no GPU: pictures learn slowly on a processor; fewer --schedule.num-envs and --schedule.updates help",
            stderr=True,
        )
    worlds = [envs.make(plan.env, players, threads, synchronous=alone) for _ in range(GROUPS)]
    yield LocalEngine(plan, seed, device, worlds)


@contextlib.contextmanager
def on_cluster(plan: TrainConfig, seed: int, cluster: ClusterConfig, address: str) -> Iterator[Engine]:
    obs_spec = seen_in(plan.env)
    with joined(address):
        from rbi.online.ray.driver import RayEngine  # needs Ray, which is an extra

        engine = RayEngine(plan, seed, cluster, obs_spec)
        echo(f"{engine.workers} workers with {plan.schedule.num_envs} environments of {plan.env.id}", stderr=True)
        if (room := cluster.room(processors())) < engine.workers:
            echo(f"the cluster has room for {room} of them; the others wait until nodes join", stderr=True)
        try:
            yield engine
        finally:
            engine.close()


def seen_in(world: envs.EnvConfig) -> ObservationSpec:
    """What a policy sees in a world: one environment tells."""
    one = envs.make(world, 1)
    try:
        return ObservationSpec(one.obs_shape, one.frame_stack, one.num_actions)
    except ValueError as error:
        raise ValueError(f"--env {world.id}: {error}") from None
    finally:
        one.close()


def refuse_too_large(plan: TrainConfig, obs_spec: ObservationSpec, device: torch.device) -> None:
    """A replay that cannot fit is refused before it takes memory."""
    need = bytes_needed(plan.replay, obs_spec)
    if device.type == "cuda":
        have, where = torch.cuda.mem_get_info(device)[0], "the GPU"
    else:
        have, where = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"
        with_cache = available_memory()
        have = with_cache if with_cache is not None else have
    if need > have:
        fits = int(plan.replay.capacity * 0.9 * have / need)
        raise ValueError(
            f"--replay.capacity = {plan.replay.capacity:,}: needs {need / 1e9:.1f} GB, {where} has {have / 1e9:.1f} GB "
            f"free; up to {fits:,} would fit"
        )


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
