"""`map` over worker processes that exit with their parent."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def parallel_map(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over worker processes; the built-in one for a single worker."""
    if workers == 1:
        yield map
        return
    with process_pool(workers) as pool:
        yield pool.map


@contextlib.contextmanager
def bounded_map(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over worker processes for large results: at most `2 * workers` of them exist at a time."""
    if workers == 1:
        yield map
        return
    with process_pool(workers) as pool:

        def bounded(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            pending: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

        try:
            yield bounded
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def process_pool(workers: int) -> concurrent.futures.ProcessPoolExecutor:
    """Spawned worker processes: forking a process that has threads can deadlock."""
    spawn = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(workers, spawn, exit_with_parent, (os.getpid(),))


def exit_with_parent(parent: int) -> None:
    """Exit this process when its parent is gone, so that no worker survives a killed run."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


REAPER = """
import os, signal, sys
from pathlib import Path
sys.stdin.read()
for process in Path("/proc").glob("[0-9]*"):
    try:
        if sys.argv[1].encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)
    except OSError:
        pass
"""


@contextlib.contextmanager
def reaper(marker: str) -> Iterator[None]:
    """At the end, or when this process is killed, kill all processes that have a text in their environment (Linux).

    A process of its own waits for that. For services that start processes of their own, which may outlive them.
    """
    if not marker or not Path("/proc/self/environ").exists():  # an empty text would be in every environment
        yield
        return
    command = [sys.executable, "-c", REAPER, marker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield
        process.communicate()  # closes its input
