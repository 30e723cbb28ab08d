"""The cluster itself: joined, or started with what this machine has; and a `map` over it. Ray is imported here."""

import collections
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

INSTALL = "--engine ray: Ray is not installed here; pip install 'rbi[ray]'"
LOOPBACK = "127.0.0.1"
RETRIES = 3  # of a piece of work whose machine dies


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """A session with the cluster at `address` ("auto": the one that runs on this machine), or one of our own.

    A cluster of our own has no dashboard, listens on this machine only and asks for Ray's token.
    """
    if not address:
        # Ray's own switch for keeping a cluster on one machine; read when it is imported
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(INSTALL) from None
    refuse_silent(address)
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            cores = max(2, os.cpu_count() or 1)  # learner and worker share a single one
            ray.init("local", num_cpus=cores, include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
    except (ConnectionError, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"--address {address}: no cluster answers there, or it wants another token; {told}") from None
    if in_main:
        signal.signal(signal.SIGTERM, before)  # Ray takes it for itself
    try:
        yield
    finally:
        ray.shutdown()


def refuse_silent(address: str) -> None:
    """Refuse a host and port where nobody listens: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--address {address}: nobody answers there; {error}") from None


def processors() -> float:
    """The processors of the cluster that this process has joined."""
    import ray

    return float(ray.cluster_resources().get("CPU", 0))


@contextlib.contextmanager
def cluster_map(address: str, cpus: float = 1.0, gpus: float = 0.0) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over the cluster, in order; work whose machine dies is done again elsewhere."""
    with joined(address):
        import ray
        from ray.exceptions import RayTaskError

        def each(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
            wrapped: Any = ray.remote(function)
            task = wrapped.options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)
            waiting: collections.deque[Any] = collections.deque()
            for one in zip(*items, strict=True):
                waiting.append(task.remote(*one))
                if len(waiting) > 4 * max(1, processors()):
                    yield got(waiting.popleft())
            while waiting:
                yield got(waiting.popleft())

        def got(ref: Any) -> Any:
            try:
                return ray.get(ref)
            except RayTaskError as error:
                raise error.cause from None

        yield each
