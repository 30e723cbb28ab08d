"""The engine of a training run with its environments, on this machine or a cluster, once it is known to fit."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from rbi import envs
from rbi.commands.command import say
from rbi.engines.local import LocalEngine
from rbi.engines.ray.cluster import joined, processors
from rbi.engines.ray.settings import ClusterConfig
from rbi.engines.seam import Engine
from rbi.online.plan import GROUPS, Plan
from rbi.replay import bytes_needed
from rbi.sight import Sight


@contextlib.contextmanager
def on_machine(plan: Plan, seed: int, device: torch.device) -> Iterator[Engine]:
    sight = seen_in(plan.world)
    refuse_too_large(plan, sight, device)
    players = plan.pace.players // GROUPS
    alone = device.type == "cpu"  # then games and networks take turns on the cores, and so do the groups
    threads = plan.pace.threads or max(1, (os.cpu_count() or 1) // (1 if alone else GROUPS))
    say(f"making {plan.pace.players} environments of {plan.world.id}", stderr=True)
    if alone and plan.world.atari:
        say("no GPU: pictures learn slowly on a processor; fewer --pace.players and --pace.updates help", stderr=True)
    worlds = [envs.make(plan.world, players, threads, at_once=alone) for _ in range(GROUPS)]
    yield LocalEngine(plan, seed, device, worlds)


@contextlib.contextmanager
def on_cluster(plan: Plan, seed: int, cluster: ClusterConfig, address: str) -> Iterator[Engine]:
    sight = seen_in(plan.world)
    with joined(address):
        from rbi.engines.ray.engine import RayEngine  # needs Ray, which is an extra

        engine = RayEngine(plan, seed, cluster, sight)
        say(f"{engine.workers} workers with {plan.pace.players} environments of {plan.world.id}", stderr=True)
        if (room := cluster.room(processors())) < engine.workers:
            say(f"the cluster has room for {room} of them; the others wait until nodes join", stderr=True)
        try:
            yield engine
        finally:
            engine.close()


def seen_in(world: envs.World) -> Sight:
    """What a policy sees in a world: one environment tells."""
    one = envs.make(world, 1)
    try:
        return Sight(one.frame, one.stack, one.actions)
    except ValueError as error:
        raise ValueError(f"--env {world.id}: {error}") from None
    finally:
        one.close()


def refuse_too_large(plan: Plan, sight: Sight, device: torch.device) -> None:
    """A replay that cannot fit is refused before it takes memory."""
    need = bytes_needed(plan.replay, sight)
    if device.type == "cuda":
        have, where = torch.cuda.mem_get_info(device)[0], "the GPU"
    else:
        have, where = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"
        with_cache = available_memory()
        have = with_cache if with_cache is not None else have
    if need > have:
        fits = int(plan.replay.states * 0.9 * have / need)
        raise ValueError(
            f"--replay.states = {plan.replay.states:,}: needs {need / 1e9:.1f} GB, {where} has {have / 1e9:.1f} GB "
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
