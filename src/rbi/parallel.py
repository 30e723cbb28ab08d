"""A `map` over worker processes that end with their parent."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def parallel_map(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over processes; the plain one for a single worker. Processes start afresh: forks of threads can hang."""
    if workers == 1:
        yield map
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, spawn, leave_with, (os.getpid(),)) as pool:
        yield pool.map


@contextlib.contextmanager
def bounded_map(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over processes for large results: no more of them wait than there are workers."""
    if workers == 1:
        yield map
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, spawn, leave_with, (os.getpid(),)) as pool:

        def each(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            waiting: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        try:
            yield each
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def leave_with(parent: int) -> None:
    """End this process when its parent is gone: whatever kills the parent, no worker stays behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
