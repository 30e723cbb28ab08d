"""`map` over worker processes: order, bounds, errors, Ctrl-C, and processes that end."""

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rbi.parallel import bounded_map, parallel_map

STUDY = """
import signal, time
from rbi.parallel import parallel_map

def wait(seconds):
    print("working", flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    with parallel_map(2) as each:
        list(each(wait, [600] * 6))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items(workers):
    with parallel_map(workers) as each:
        assert list(each(math.comb, range(4, 10), itertools.repeat(2))) == [6, 10, 15, 21, 28, 36]
    with bounded_map(workers) as each:
        assert list(each(abs, range(-9, 0))) == list(range(9, 0, -1))


def test_large_results_are_computed_ahead_up_to_a_bound():
    taken = []

    def items():
        for item in range(100):
            taken.append(item)
            yield item

    with bounded_map(2) as each:
        results = iter(each(abs, items()))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        assert len(taken) == 3 + 2 * 2


def test_an_exception_of_a_worker_is_raised_here_and_ends_the_others(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"), parallel_map(2) as each:
        list(each(read_or_write, [tmp_path / "missing", tmp_path / "late"]))
    assert not (tmp_path / "late").exists()


def read_or_write(path):
    if path.name == "late":
        time.sleep(60)
        path.touch()
    return path.read_text()


def test_a_process_that_is_killed_is_named_as_the_cause():
    with pytest.raises(ChildProcessError, match="worker process ended unexpectedly"), parallel_map(2) as each:
        list(each(kill_self, range(2)))


def kill_self(_item):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("gap", [None, 0.0, 0.05])
def test_ctrl_c_in_a_terminal_ends_all_processes(gap, tmp_path):
    """A terminal sends SIGINT to every process of the group, and impatient users send it twice."""
    script = tmp_path / "study.py"
    script.write_text(STUDY)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        watchdog = threading.Timer(120, os.killpg, (process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            assert process.stdout.readline() == "working\n"
            os.killpg(process.pid, signal.SIGINT)
            if gap is not None:
                time.sleep(gap)
                os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate()  # ends when the last process has closed the pipe
        finally:
            watchdog.cancel()
    assert process.returncode == -signal.SIGINT
    assert "InvalidStateError" not in errors
