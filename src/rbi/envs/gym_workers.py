"""Gymnasium environments in worker processes, for simulators whose steps take longer than a message.

    caller     actions -> every worker ... wait for every worker, join their shares
    worker     wait for a message, step its own `GymVector`, answer

A worker is a new Python process: a fork would share CUDA's state, and multiprocessing's "spawn" would run the caller's
script again. The environment comes by cloudpickle, so that functions and classes of that script work too.
"""

import contextlib
import itertools
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from rbi.config import parse_env
from rbi.envs.gym import GymVector, Snapshot
from rbi.envs.types import EnvConfig, TimeStep

SCRIPT = """import json, signal, sys
# Ctrl-C, schedulers and closed terminals signal all processes; the caller stops at a step, for which it needs these
signal.signal(signal.SIGINT, signal.SIG_IGN)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: None)  # what environments start would inherit SIG_IGN
sys.path[:] = json.loads(sys.argv[2])
from rbi.envs.gym_workers import serve
serve(int(sys.argv[1]))"""
CLOSING_SECONDS = 5  # until workers that are in the middle of a long step are killed
STDERR = 2  # where prints of environments go: standard output may be one JSON object


class GymWorkers:
    """Gymnasium environments, stepped by worker processes between `send` and `recv`.

    Environment i has the same seeds and random numbers as in a `GymVector`, and a saved `state` fits both.
    """

    def __init__(self, config: EnvConfig, num_envs: int, workers: int) -> None:
        self.config, self.num_envs, self.pending = config, num_envs, False
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection] = []
        if os.name != "posix":
            raise ValueError("env_processes: processes that step environments need Linux or macOS; use 0")
        bounds = [num_envs * i // workers for i in range(workers + 1)]
        self.shares = [slice(*pair) for pair in itertools.pairwise(bounds)]
        self.stopped: list[int] = []
        self.ready: TimeStep | None = None
        for share in self.shares:
            self.start((config, registered(config), share.stop - share.start))
        about, *_ = self.answers()
        self.num_actions: int = about["num_actions"]
        self.obs_shape: tuple[int, ...] = about["obs_shape"]
        self.frame_shape = self.obs_shape
        self.frame_stack: int = about["frame_stack"]
        self.obs_scale: tuple[float, ...] = about["obs_scale"]
        self.has_action_masks: bool = about["has_action_masks"]

    def start(self, task: Any) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-c", SCRIPT, str(theirs.fileno()), json.dumps(sys.path)]
        with theirs:
            places: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": STDERR}
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), **places)
        self.processes.append(process)
        self.connections.append(ours)
        try:
            packed = cloudpickle.dumps(task)
        except Exception as error:  # whatever objects raise that cannot be copied
            self.close()
            reason = " ".join(str(error).split())
            raise ValueError(f"--env {self.config.id}: cannot be sent to another process: {reason}") from None
        self.tell(ours, packed)

    def tell(self, connection: Connection, message: bytes) -> None:
        try:
            connection.send_bytes(message)
        except OSError:
            raise ChildProcessError(self.failure()) from None

    def ask(self, method: str, *of_shares: Any) -> None:
        """Call a method of every `Worker` with its own arguments."""
        for number, connection in enumerate(self.connections):
            self.tell(connection, pickle.dumps((method, *(argument[number] for argument in of_shares))))

    def answers(self) -> list[Any]:
        """What the workers return, when all of them have answered. Raises ValueError for an error in one of them."""
        found = []
        for connection in self.connections:
            try:
                found.append(connection.recv())
            except (OSError, EOFError):
                raise ChildProcessError(self.failure()) from None
        if errors := [answer for answer in found if isinstance(answer, ValueError)]:
            self.close()
            raise errors[0]
        return found

    def failure(self) -> str:
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may have closed the connection, and not ended yet
                process.wait(timeout=0.5)
        ended = [str(code) for process in self.processes if (code := process.poll()) is not None]
        status = ", ".join(ended) or "unknown"
        return f"--env {self.config.id}: a process with environments ended unexpectedly (exit status {status})"

    def reset(self, seed: int | None) -> TimeStep:
        if self.pending:
            self.recv()
        self.stopped = []
        self.ask("reset", [None if seed is None else seed + share.start for share in self.shares])
        return joined(self.answers())

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        stopped = [[i - share.start for i in self.stopped if share.start <= i < share.stop] for share in self.shares]
        self.ask("step", [np.asarray(actions[share]) for share in self.shares], stopped)
        self.pending, self.stopped = True, []

    def recv(self) -> TimeStep:
        ready, self.ready, self.pending = self.ready, None, False
        return ready or joined(self.answers())

    def stop(self, env_index: int) -> None:
        self.stopped.append(env_index)

    def state(self) -> dict[str, Any] | None:
        if self.pending and self.ready is None:
            self.ready = joined(self.answers())
        self.ask("state")
        states = self.answers()
        if None in states:
            return None
        return {name: [value for state in states for value in state[name]] for name in states[0]}

    def restore(self, state: Any) -> bool:
        try:
            shares = [{name: values[share] for name, values in state.items()} for share in self.shares]
        except (AttributeError, TypeError, KeyError):
            return False
        self.ask("restore", shares)
        if not all(self.answers()):
            return False
        self.ask("step", [None] * len(self.shares), [[] for _ in self.shares])  # with the saved actions
        self.pending, self.ready = True, None
        return True

    def close(self) -> None:
        """End the processes; each closes its environments first."""
        self.pending = False
        for connection in self.connections:
            connection.close()
        deadline = time.monotonic() + CLOSING_SECONDS
        for process in self.processes:
            try:
                process.wait(timeout=max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # in the middle of a long step
                process.kill()
                process.wait()
        self.connections, self.processes = [], []

    def __del__(self) -> None:
        self.close()


def joined(parts: list[TimeStep]) -> TimeStep:
    return TimeStep(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def registered(config: EnvConfig) -> gymnasium.envs.registration.EnvSpec | None:
    """What is registered for an environment's id, since a script may have registered it; None for a function or an id
    that Gymnasium finds itself."""
    return None if config.factory else gymnasium.registry.get(parse_env(config.id)[0])


# What a worker runs


class Worker:
    """A share of the environments. Each step is taken at once; `state` is that before it."""

    def __init__(self, config: EnvConfig, spec: gymnasium.envs.registration.EnvSpec | None, count: int) -> None:
        if spec is not None:
            gymnasium.registry.setdefault(spec.id, spec)
        self.vector = GymVector(config, count)
        self.before: Snapshot | None = None

    def about(self) -> dict[str, Any]:
        names = ("num_actions", "obs_shape", "frame_stack", "obs_scale", "has_action_masks")
        return {name: getattr(self.vector, name) for name in names}

    def reset(self, seed: int | None) -> TimeStep:
        return self.vector.reset(seed)

    def step(self, actions: np.ndarray[Any, Any] | None, stopped: list[int]) -> TimeStep:
        for env_index in stopped:
            self.vector.stop(env_index)
        if actions is not None:
            self.vector.send(actions)
        self.before = self.vector.snapshot()
        return self.vector.recv()

    def state(self) -> dict[str, Any] | None:
        return None if self.before is None else self.before.state()

    def restore(self, state: Any) -> bool:
        return self.vector.restore(state)


def serve(descriptor: int) -> None:
    """Make a share of the environments and answer messages until the caller closes the connection."""
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):  # the caller has ended
        for answer in answer_messages(connection):
            connection.send(answer)


def answer_messages(connection: Connection) -> Iterator[Any]:
    """The answers of a worker, errors of environments among them; closes the environments at the end."""
    try:
        worker = Worker(*pickle.loads(connection.recv_bytes()))
    except ValueError as error:
        yield error
        return
    except ImportError as error:
        yield ValueError(f"env_processes: a process cannot import the environment: {error}")
        return
    try:
        yield worker.about()
        while True:
            method, *arguments = pickle.loads(connection.recv_bytes())
            try:
                yield getattr(worker, method)(*arguments)
            except ValueError as error:
                yield error
    finally:
        worker.vector.close()
