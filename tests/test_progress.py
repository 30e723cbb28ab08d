"""Messages and signals: a run can save itself at the first signal, and the second one interrupts it."""

import signal
import threading

import pytest

from rbi.progress import graceful_stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_a_run_to_stop_and_the_second_interrupts_it(number):
    before = signal.getsignal(number)
    with graceful_stop() as stopped:
        signal.raise_signal(number)
        assert stopped.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_outside_the_main_thread_no_signal_is_handled():
    handlers = []

    def run():
        with graceful_stop() as stopped:
            handlers.append((stopped.is_set(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [(False, signal.getsignal(signal.SIGINT))]
