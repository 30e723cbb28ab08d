"""`map` over worker processes that exit with their parent."""

import collections
import concurrent.futures
import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from rbi.progress import stop_signals


@contextlib.contextmanager
def parallel_map(workers: int, *, max_results: float = math.inf) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over worker processes, which computes ahead at most `max_results`; the built-in one for a single worker.

    An exception, such as that of Ctrl-C, ends the processes at once, in the middle of their work.
    """
    if workers == 1:
        yield map
        return
    context = SpawnedProcesses()
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, start_worker, (os.getpid(),))
    with before_interrupt(context.terminate), pool:

        def each(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
            pending: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
            for arguments in zip(*items, strict=False):
                pending.append(pool.submit(function, *arguments))
                if len(pending) > max_results:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

        try:
            yield each
        except BrokenProcessPool:
            raise ChildProcessError("a worker process ended unexpectedly; if memory ran out, use fewer") from None
        except BaseException:
            context.terminate()  # nothing is cancelled: the pool's thread fails when a cancelled task loses its process
            raise


def bounded_map(workers: int) -> contextlib.AbstractContextManager[Callable[..., Iterable[Any]]]:
    """A `map` over worker processes for large results: at most `2 * workers` of them exist at a time."""
    return parallel_map(workers, max_results=2 * workers)


@contextlib.contextmanager
def before_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Call a function at Ctrl-C before KeyboardInterrupt is raised, where it would be.

    An `except` is not enough: a second Ctrl-C may come before its first line, and Python waits for the processes of a
    pool at its end.
    """
    raises = signal.default_int_handler

    def handler(number: int, frame: Any) -> None:
        act()
        raises(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    replaced = [number for number in stop_signals() if signal.getsignal(number) is raises]
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, raises)


class SpawnedProcesses(SpawnContext):
    """Processes that can be terminated together. Spawned: forking a process that has threads can deadlock."""

    def __init__(self) -> None:
        self.made: list[SpawnProcess] = []

    def Process(self, *args: Any, **settings: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        self.made.append(SpawnProcess(*args, **settings))
        return self.made[-1]

    def terminate(self) -> None:
        for process in self.made:
            if process.pid is not None:  # it has been started
                process.terminate()


def start_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and exit with it."""
    # an interrupted worker may keep a lock of the pool, and then the others wait for ever
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent(parent)


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
