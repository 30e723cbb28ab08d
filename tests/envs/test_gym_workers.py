"""Gymnasium environments in worker processes: the same steps as in this process, and what goes wrong is named."""

import os
import signal
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest

import rbi
from rbi import envs
from rbi.envs.gym import GymVector
from rbi.envs.gym_workers import GymWorkers
from rbi.envs.types import EnvConfig
from tests.games import Dice, Doors, Stuck

NUM_ENVS, WORKERS = 5, 2
PRINTS_IGNORED = "from signal import *; print([n for n in (SIGTERM, SIGHUP) if getsignal(n) == SIG_IGN])"


@pytest.fixture(params=[lambda: Dice(), "CartPole-v1"], ids=["function", "id"])
def pair(request):
    """The same environments here and in two processes."""
    config = EnvConfig.of(request.param)
    here, there = GymVector(config, NUM_ENVS), envs.make(config, NUM_ENVS, processes=WORKERS)
    assert isinstance(there, GymWorkers)
    assert len(there.processes) == WORKERS
    yield here, there
    there.close()


def assert_equal(ours, theirs):
    for own, other in zip(ours, theirs, strict=True):
        assert own.dtype == other.dtype
        assert np.array_equal(own, other)


def step(vector, actions):
    vector.send(actions)
    return vector.recv()


def actions_of(vector, rng):
    return rng.integers(min(vector.num_actions, 3), size=NUM_ENVS)


def test_workers_take_the_same_steps(pair):
    here, there = pair
    for name in ("num_actions", "obs_shape", "frame_stack", "obs_scale", "has_action_masks"):
        assert getattr(here, name) == getattr(there, name)
    rng = np.random.default_rng(0)
    for seed in (7, None):
        assert_equal(here.reset(seed), there.reset(seed))
        for _ in range(20):
            actions = actions_of(here, rng)
            assert_equal(step(here, actions), step(there, actions))
    for vector in pair:
        vector.stop(1)
        vector.stop(4)
    before = step(there, actions := actions_of(here, rng))
    assert_equal(step(here, actions), before)
    after = step(there, actions_of(here, rng))
    for stopped in (1, 4):
        assert np.array_equal(after.obs[stopped], before.obs[stopped])
    assert not np.array_equal(after.obs[0], before.obs[0])


def test_a_state_from_between_send_and_recv_continues_here_and_there(pair):
    rng, steps = np.random.default_rng(1), 12
    for vector, other in (pair, pair[::-1]):
        vector.reset(3)
        for _ in range(steps):
            step(vector, actions_of(vector, rng))
        vector.send(actions_of(vector, rng))
        state = vector.state()
        assert other.restore(state)
        assert other.pending
        assert_equal(vector.recv(), other.recv())
        for _ in range(steps):
            actions = actions_of(vector, rng)
            assert_equal(step(vector, actions), step(other, actions))
        assert not other.restore({"starts": [1]})
        assert_equal(vector.reset(5), other.reset(5))


def test_workers_have_the_masks_of_their_environments():
    config = EnvConfig.of(Doors)
    here, there = GymVector(config, NUM_ENVS), envs.make(config, NUM_ENVS, processes=WORKERS)
    assert there.has_action_masks
    shown = here.reset(2)
    assert_equal(shown, there.reset(2))
    for _ in range(20):
        actions = shown.legal.argmax(1)
        shown = step(here, actions)
        assert_equal(shown, step(there, actions))
    there.close()


def test_an_environment_that_fails_in_a_worker_is_named_in_one_line():
    there = GymWorkers(EnvConfig.of(Dice), 2, 2)
    there.reset(0)
    there.send(np.array([0, 3]))
    with pytest.raises(ValueError, match="--env Dice: failed with RuntimeError: a broken wire"):
        there.recv()
    assert not there.processes


def test_what_environments_print_goes_to_standard_error(capfd):
    class Talking(Dice):
        def step(self, action):
            print("hello")  # noqa: T201
            return super().step(action)

    there = GymWorkers(EnvConfig.of(Talking), 2, 1)
    there.reset(0)
    step(there, np.zeros(2, int))
    there.close()
    out, err = capfd.readouterr()
    assert not out
    assert err.count("hello") == 2


def test_a_training_run_ends_with_the_error_of_a_worker():
    """Action 2 of the environment's four fails; the run ends, though its other group is in the middle of a step."""
    with pytest.raises(ValueError, match="--env Dice: failed with RuntimeError: a broken wire"):
        rbi.train(Dice, env_processes=1, updates=20, device="cpu", progress=False)


def test_environments_that_cannot_be_made_or_sent_are_refused():
    with pytest.raises(ValueError, match="--env Pendulum-v1: its actions are"):
        GymWorkers(EnvConfig("Pendulum-v1"), 2, 1)
    lock = threading.Lock()
    with pytest.raises(ValueError, match="cannot be sent to another process: "):
        GymWorkers(EnvConfig.of(lambda: (lock, Dice())), 2, 1)


def test_a_worker_that_dies_is_reported():
    there = GymWorkers(EnvConfig.of(Dice), 2, 2)
    there.reset(0)
    os.kill(there.processes[1].pid, signal.SIGKILL)
    there.processes[1].wait()
    with pytest.raises(ChildProcessError, match=r"--env Dice: a process .* ended unexpectedly \(exit status -9\)"):
        step(there, np.zeros(2, int))
    there.close()


def test_environments_that_a_script_registered_are_known_to_workers():
    gymnasium.register("Dice-v0", lambda sides: Dice() if sides == 4 else None)
    try:
        config = EnvConfig("Dice-v0(sides=4)")
        here, there = GymVector(config, 2), GymWorkers(config, 2, 1)
        assert_equal(here.reset(1), there.reset(1))
        there.close()
    finally:
        del gymnasium.registry["Dice-v0"]


def test_workers_in_the_middle_of_long_steps_are_killed_together(monkeypatch):
    monkeypatch.setattr("rbi.envs.gym_workers.CLOSING_SECONDS", 0.2)
    envs = GymWorkers(EnvConfig.of(lambda: Stuck()), NUM_ENVS, WORKERS)
    envs.reset(3)
    envs.send(np.zeros(NUM_ENVS, int))
    processes = envs.processes
    envs.close()
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * WORKERS


def test_worker_processes_leave_the_signals_of_a_terminal_or_scheduler_to_the_caller(tmp_path):
    """But what their environments start is not deaf to them."""

    class Simulator(Dice):
        def reset(self, *, seed=None, options=None):
            ignored = subprocess.run([sys.executable, "-c", PRINTS_IGNORED], capture_output=True, text=True).stdout
            (tmp_path / "ignored").write_text(ignored)
            return super().reset(seed=seed, options=options)

    vector = envs.make(EnvConfig.of(lambda: Simulator()), 1, processes=1)
    try:
        vector.reset(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            vector.processes[0].send_signal(number)
        step(vector, np.zeros(1, int))
        assert (tmp_path / "ignored").read_text().strip() == "[]"
    finally:
        vector.close()
