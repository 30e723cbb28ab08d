"""A Ray cluster: connecting to it or starting one here, and a `map` over it.

Ray reads some of its switches when it is imported, so nothing here imports it at the top.
"""

import collections
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rbi.parallel import reaper

LOOPBACK = "127.0.0.1"
MAX_RETRIES = 3  # of a task whose machine dies


@contextlib.contextmanager
def connect(address: str) -> Iterator[bool]:
    """A connection to the cluster at `address` ("auto": the one running on this machine), or to a new local one. Gives
    whether nodes may join it.

    A local cluster has no dashboard, listens on this machine only and requires Ray's token. If Ray was imported before,
    it has read its switches, and the cluster is one as Ray itself starts it.
    """
    if not address and "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's switch for binding to loopback
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        # a restarted process waits this long for calls that were lost with the previous one; 30 by default
        os.environ.setdefault("RAY_actor_scheduling_queue_max_reorder_wait_seconds", "10")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray: Ray is not installed; pip install 'rbi[ray]'") from None
    check_reachable(address)
    if ray.is_initialized():
        yield True
        return
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    cleanup = contextlib.ExitStack()
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            cpus = max(2, os.cpu_count() or 1)  # learner and worker share a single core
            ray.init("local", num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
            # Ray's agents would stay for a minute after this process was killed
            cleanup.enter_context(reaper(ray.get_runtime_context().get_node_id()))
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if not address:
            raise ValueError(f"--engine ray: no cluster can be started on this machine; {reason}") from None
        raise ValueError(f"--address {address}: no cluster answers, or it requires another token; {reason}") from None
    if in_main:
        signal.signal(signal.SIGTERM, before)  # Ray installs its own handler
    with cleanup:
        try:
            yield bool(address)
        finally:
            ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise ValueError for a host and port where nothing listens: Ray itself would retry for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--address {address}: nothing answers there; {error}") from None


def cluster_size() -> tuple[float, float]:
    """The CPUs and GPUs of the connected cluster."""
    import ray

    found = ray.cluster_resources()
    return float(found.get("CPU", 0)), float(found.get("GPU", 0))


@contextlib.contextmanager
def cluster_map(address: str, cpus: float = 1.0, gpus: float = 0.0) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over a cluster that returns results in order; tasks whose machine dies run again elsewhere."""
    with connect(address) as grows:
        import ray
        from ray.exceptions import RayTaskError

        size = cluster_size()
        if not grows and (cpus > size[0] or gpus > size[1]):
            raise ValueError(
                f"--engine ray: a run reserves {cpus:g} CPUs and {gpus:g} GPUs, and this machine has {size[0]:g} and "
                f"{size[1]:g}; lower --cluster.learner-cpus or --cluster.learner-gpus"
            )

        def map_tasks(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
            remote: Any = ray.remote(function)
            task = remote.options(num_cpus=cpus, num_gpus=gpus, max_retries=MAX_RETRIES)
            waiting: collections.deque[Any] = collections.deque()
            for arguments in zip(*items, strict=True):
                waiting.append(task.remote(*arguments))
                if len(waiting) > 4 * max(1, cluster_size()[0]):
                    yield result(waiting.popleft())
            while waiting:
                yield result(waiting.popleft())

        def result(ref: Any) -> Any:
            try:
                return ray.get(ref)
            except RayTaskError as error:
                raise error.cause from None

        yield map_tasks
