"""Progress bars and messages: on a terminal, in a notebook, and as plain lines in a log."""

import contextlib
import errno
import signal
import statistics
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import track as rich_track
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

SECONDS_PER_LINE = 30  # between progress lines where there is neither a terminal nor a notebook
UNPRINTABLE = (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Control characters (ESC starts terminal commands), line separators, and marks that reverse the order of text."""
ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in UNPRINTABLE}
MAX_LINE, DEFAULT_WIDTH = 2000, 80
MAX_PROCESSES = 16  # that a status shows one by one


class LossyStream:
    """A stream whose writes may fail without a word: as its reader is gone, as in `rbi rules | head -1`, or its
    terminal is closed; with `always`, for any reason, such as a full disk."""

    def __init__(self, stream: IO[str], *, always: bool = False) -> None:
        self._stream, self._always = stream, always

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, act: Callable[..., object], *arguments: str) -> None:
        try:
            act(*arguments)
        except OSError as error:
            if not self._always and error.errno not in (errno.EPIPE, errno.EIO):
                raise


class PlainConsole(Console):
    """A console that shows text as it is: names from files contain no markup, emoji or terminal commands for us.

    No run ends because its messages (standard error) cannot be written, or because nobody reads its output.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.width < 1:  # COLUMNS=0, which some tools set where there is no terminal: nothing would be printed
            self.width = DEFAULT_WIDTH

    @property
    def is_live(self) -> bool:
        """Whether it can show a progress bar: on a terminal or in a notebook, which is none for rich."""
        return self.is_terminal or self.is_jupyter

    @property
    def file(self) -> IO[str]:
        found = super().file
        return cast("IO[str]", LossyStream(found, always=self.stderr))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        lines = (printable(line) for line in text.split("\n"))
        shown = "\n".join(lines).encode(self.encoding, "backslashreplace").decode(self.encoding)
        return super().render_str(shown, **(options | {"markup": False, "emoji": False}))


def printable(text: str) -> str:
    r"""One line of text in which control characters, also line breaks, are escaped.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return text.translate(ESCAPES)


def one_line(text: str) -> str:
    """Text on one line of limited length, for messages that quote files."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 200]} ... {line[-190:]}"


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate over items with a progress bar on stderr, if that is a terminal or a notebook."""
    console = PlainConsole(stderr=True)
    hidden = not console.is_live
    return iter(rich_track(items, description, total=total, console=console, disable=hidden, transient=True))


def track_updates(
    items: Iterable[T], description: str, total: int | None, completed: Callable[[T], int], text: Callable[[T], str]
) -> Iterator[T]:
    """Iterate over items with a progress bar that shows `text(item)`; in a log, one line every 30 seconds."""
    console = PlainConsole(stderr=True)
    named, measured = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[text]}"))
    columns = (named, BarColumn(), measured, TimeRemainingColumn())
    last_line = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_live, transient=True) as bar:
        task = bar.add_task(description, total=total, text="")
        for item in items:
            bar.update(task, completed=completed(item), text=text(item))
            if not console.is_live and time.monotonic() - last_line > SECONDS_PER_LINE:
                last_line = time.monotonic()
                echo(f"{description}: {text(item)}", stderr=True)
            yield item


def stop_signals() -> list[signal.Signals]:
    """Ctrl-C, SIGTERM as schedulers send it, and SIGHUP as a closed terminal does, unless `nohup` ignores that.

    A signal whose handler is not Python's, as in a program that embeds it, is left alone: it could not be restored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    return [number for number in numbers if signal.getsignal(number) is not None]


@contextlib.contextmanager
def graceful_stop() -> Iterator[threading.Event]:
    """An event that the first of `stop_signals` sets, so that a run can save itself; a second one interrupts at once.

    Outside the main thread, where Python allows no signal handlers, the event is never set.
    """
    stopped = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if stopped.is_set():
            signal.default_int_handler(number, frame)
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def echo(line: str, *, stderr: bool = False) -> None:
    """Print one line without highlighting or markup; control characters are escaped. Only a terminal wraps it, between
    words."""
    console, text = PlainConsole(stderr=stderr), printable(line)
    if console.is_terminal and len(text) > console.width:
        text = wrapped(text, console.width)
    console.print(text, highlight=False, soft_wrap=True)


def wrapped(line: str, width: int) -> str:
    """A line wrapped between words, aligned with the text of an item; longer words, such as paths, stay whole.

    >>> print(wrapped("- results and figures: runs/cart", 24))
    - results and figures:
      runs/cart
    """
    indent = " " * (len(line) - len(line.lstrip(" -")))
    lines = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def text_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table: the first column is left-aligned, the others are right-aligned if there are more than two.

    >>> print(text_table("scores", [("policy", "mean"), ("beta", "2")]))
    scores
      policy  mean
      beta    2
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [title]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) if len(row) > 2 else text for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


class ProcessStatus(NamedTuple):
    """A process of a distributed run, for the status that is shown while it trains."""

    name: str
    host: str
    """The machine that it is on; empty while it waits for one."""
    alive: bool
    restarts: int
    rate: float | None = None
    unit: str = ""
    """Of the rate, such as steps/s."""

    @property
    def state(self) -> str:
        if self.alive:
            return "running"
        return "restarting" if self.restarts else "pending"

    @property
    def speed(self) -> str:
        return f"{self.rate:,.0f} {self.unit}" if self.alive and self.rate is not None else "-"


def status_table(processes: Sequence[ProcessStatus]) -> Table:
    """Processes with their rates; of many, those that do not run and the slowest."""
    table = Table("process", "host", "state", "restarts", "rate", box=None, pad_edge=False)
    left_out = len(processes) - MAX_PROCESSES
    if left_out > 0:
        processes = sorted(processes, key=lambda one: (one.alive, one.rate is None, one.rate))[:MAX_PROCESSES]
    for one in processes:
        table.add_row(printable(one.name), printable(one.host), one.state, str(one.restarts), one.speed)
    if left_out > 0:
        table.add_row(f"and {left_out} more")
    return table


def status_line(processes: Sequence[ProcessStatus]) -> str:
    """Processes with their rates on one line, for logs.

    >>> status_line([ProcessStatus("worker 0", "a", True, 0, 99.6, "steps/s"), ProcessStatus("worker 1", "", False, 1)])
    'worker 0: 100 steps/s, worker 1: restarting'
    """
    if len(processes) <= MAX_PROCESSES:
        return ", ".join(f"{one.name}: {one.speed if one.alive else one.state}" for one in processes)
    rates = sorted(one.rate for one in processes if one.alive and one.unit == "steps/s" and one.rate is not None)
    spread = f", {rates[0]:,.0f} to {rates[-1]:,.0f} steps/s, median {statistics.median(rates):,.0f}" if rates else ""
    return f"{sum(one.alive for one in processes)} of {len(processes)} processes run{spread}"
