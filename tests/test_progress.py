"""Messages and signals: a run can save itself at the first signal, and the second one interrupts it."""

import errno
import io
import os
import signal
import sys
import threading

import pytest

from rbi.progress import (
    MAX_PROCESSES,
    PlainConsole,
    ProcessStatus,
    echo,
    graceful_stop,
    status_line,
    status_table,
    track,
    track_updates,
)


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_a_run_to_stop_and_the_second_interrupts_it(number):
    before = signal.getsignal(number)
    with graceful_stop() as stopped:
        signal.raise_signal(number)
        assert stopped.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_under_nohup_a_closed_terminal_stops_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with graceful_stop() as stopped:
            signal.raise_signal(signal.SIGHUP)
            assert not stopped.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_no_signal_is_handled():
    handlers = []

    def run():
        with graceful_stop() as stopped:
            handlers.append((stopped.is_set(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [(False, signal.getsignal(signal.SIGINT))]


class BrokenStream(io.StringIO):
    """A stream whose writes fail, as those to a closed terminal (EIO), a full disk or a pipe without a reader."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def isatty(self):
        return True

    def write(self, *_):
        raise OSError(self.number, os.strerror(self.number))

    flush = write


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPIPE])
def test_messages_and_bars_that_cannot_be_written_stop_nothing(number, monkeypatch):
    monkeypatch.setattr(sys, "stderr", BrokenStream(number))
    echo("a message", stderr=True)
    assert list(track(range(3), "counting")) == [0, 1, 2]
    assert list(track_updates(range(3), "counting", 3, lambda n: n, str)) == [0, 1, 2]


def test_output_that_cannot_be_written_is_an_error_unless_nobody_reads_it(monkeypatch):
    for number in (errno.EPIPE, errno.EIO):
        monkeypatch.setattr(sys, "stdout", BrokenStream(number))
        echo("a line")
    monkeypatch.setattr(sys, "stdout", BrokenStream(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        echo("a line")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_only_a_terminal_wraps_a_message_and_only_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    line = "- continue with --resume in a/folder/with/a/long/name"
    for stream, shown in (
        (Terminal(), "- continue with --resume\n  in\n  a/folder/with/a/long/name\n"),
        (io.StringIO(), f"{line}\n"),
    ):
        monkeypatch.setattr(sys, "stdout", stream)
        echo(line)
        assert stream.getvalue() == shown


def test_messages_appear_where_no_column_is_said_to_fit(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "0")
    echo("a message")
    assert capsys.readouterr().out == "a message\n"


def test_a_notebook_shows_progress_bars():
    assert PlainConsole(stderr=True, force_jupyter=True).is_live
    assert not PlainConsole(file=io.StringIO(), force_jupyter=False).is_live


def processes(count):
    learner = ProcessStatus("learner 0", "10.0.0.1", True, 1, 80.0, "updates/s")
    waiting = ProcessStatus("rollout worker 0", "", False, 0)
    workers = [
        ProcessStatus(f"rollout worker {n}", "10.0.0.2", True, 0, 100.0 * n, "steps/s") for n in range(1, count - 1)
    ]
    return [learner, waiting, *workers]


def shown(table):
    console = PlainConsole(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


def test_a_status_names_every_process_with_its_rate():
    text = shown(status_table(processes(4)))
    rows = [line.split() for line in text.splitlines()]
    assert rows[1] == ["learner", "0", "10.0.0.1", "running", "1", "80", "updates/s"]
    assert rows[2] == ["rollout", "worker", "0", "pending", "0", "-"]
    assert rows[4] == ["rollout", "worker", "2", "10.0.0.2", "running", "0", "200", "steps/s"]
    line = "learner 0: 80 updates/s, rollout worker 0: pending, rollout worker 1: 100 steps/s, "
    assert status_line(processes(4)) == line + "rollout worker 2: 200 steps/s"


def test_a_status_of_many_processes_is_short():
    text = shown(status_table(processes(1000)))
    assert len(text.splitlines()) == MAX_PROCESSES + 2
    assert "pending" in text
    assert "and 984 more" in text
    assert status_line(processes(1000)) == "999 of 1000 processes run, 100 to 99,800 steps/s, median 49,950"
