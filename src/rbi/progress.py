"""Progress bars and messages for people: on a terminal, in a notebook, and as plain lines in a log."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import track as rich_track

T = TypeVar("T")

SECONDS_A_LINE = 30  # between lines of progress where there is no terminal


def track(items: Iterable[T], told: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on the error stream while it is a terminal."""
    console = Console(stderr=True)
    return iter(rich_track(items, told, total=total, console=console, disable=not console.is_terminal, transient=True))


def track_updates(
    items: Iterable[T], told: str, total: int | None, done: Callable[[T], int], text: Callable[[T], str]
) -> Iterator[T]:
    """The items, with a bar and a text on a terminal, and a line of text now and then elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
    spoken = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(told, total=total, told="")
        for item in items:
            bar.update(task, completed=done(item), told=text(item))
            if not console.is_terminal and time.monotonic() - spoken > SECONDS_A_LINE:
                spoken = time.monotonic()
                echo(f"{told}: {text(item)}", stderr=True)
            yield item


@contextlib.contextmanager
def graceful_stop() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM asks the run to stop where it can be saved; a second one stops it at once."""
    stopped = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if stopped.is_set():
            signal.default_int_handler(number, frame)
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def echo(line: str, *, stderr: bool = False) -> None:
    """One line, as it is: not wrapped, not coloured, brackets left alone."""
    Console(stderr=stderr).print(line, highlight=False, soft_wrap=True, markup=False)
