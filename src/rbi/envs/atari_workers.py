"""Atari emulators in worker processes, which are started and stepped side by side.

ale-py makes its emulators one after another while holding Python's lock: a minute for 512 of them on a machine with 16
cores. Worker processes make their shares at the same time, and the caller goes on until it needs the first frames.

    caller     actions -> shared memory, a command to every worker ... wait for every worker, read shared memory
    worker     wait for a command, step its own emulators, results -> shared memory, answer

This file is also what a worker runs, as a script: it imports neither `rbi` nor PyTorch, which would take seconds.
"""

import contextlib
import itertools
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

COMMAND = struct.Struct("<cBq")  # reset or step, where the results go, the seed of a reset
RESET, STEP, DONE = b"r", b"s", b"."
NO_SEED = -1
SKIP = -1  # the action of an emulator that is not stepped
SLOTS = 2  # results alternate between them, so that a caller's frames last until the second next command
MIN_EMULATORS = 2  # of a worker
MIN_ENVS = 32  # fewer games run in the caller's process
THREADS = 2  # of a worker: one that resets a game does not keep the others of its share waiting
NICENESS = 10  # of a worker: the caller, which all of them wait for, comes first where cores are short


class Results(NamedTuple):
    """What emulators return, one row each."""

    frames: Array
    rewards: Array
    terminated: Array
    truncated: Array
    lives: Array


SCALARS: tuple[type, ...] = (np.float32, np.bool_, np.bool_, np.int64)  # of the rows of `Results` after the frames


class SharedArrays:
    """Actions `[N]` and the slots of results as arrays in memory that processes share through a file descriptor."""

    def __init__(self, descriptor: int, num_envs: int, frame_shape: Sequence[int]) -> None:
        results: list[tuple[Sequence[int], type]] = [(frame_shape, np.uint8), *(((), dtype) for dtype in SCALARS)]
        rows = [((), np.int64), *results * SLOTS]
        parts = [((num_envs, *shape), np.dtype(dtype)) for shape, dtype in rows]
        sizes = [-(-int(np.prod(shape)) * dtype.itemsize // 64) * 64 for shape, dtype in parts]
        if os.fstat(descriptor).st_size < sum(sizes):
            os.ftruncate(descriptor, sum(sizes))
        self.memory = memory = mmap.mmap(descriptor, sum(sizes))
        starts = np.cumsum([0, *sizes]).tolist()
        self.actions, *columns = (
            np.ndarray(shape, dtype, memory, start) for (shape, dtype), start in zip(parts, starts, strict=False)
        )
        width = len(results)
        self.slots = [Results(*columns[slot * width : (slot + 1) * width]) for slot in range(SLOTS)]


def anonymous_file() -> BinaryIO:
    """A file in memory; on Linux it is not limited by /dev/shm, which has 64 MB in a Docker container."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("rbi-emulators"), "w+b")
    return tempfile.TemporaryFile()


class EmulatorProcesses:
    """The part of ale-py's `AtariVectorEnv` that `rbi.envs.atari` uses, over emulators in worker processes.

    The constructor returns at once; the first `reset` waits until all emulators are made. Frames that `reset` and
    `recv` return are overwritten by the second next command.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        workers: int,
        settings: dict[str, Any],
        frame_shape: Sequence[int],
        *,
        separate: bool = False,
    ) -> None:
        """`settings`: the arguments of `AtariVectorEnv` but for the number of emulators and threads.

        `frame_shape`: height and width of the frames that these give. `separate`: workers have `SeparateEmulators`.
        """
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []
        self.memory = anonymous_file()
        descriptor = self.memory.fileno()
        self.shared, self.slot = SharedArrays(descriptor, num_envs, frame_shape), 0
        bounds = [num_envs * i // workers for i in range(workers + 1)]
        self.firsts = bounds[:-1]
        for first, end in itertools.pairwise(bounds):
            ours, theirs = socket.socketpair()
            share = {"game": game, "num_envs": num_envs, "first": first, "end": end}
            share |= {"settings": settings, "frame_shape": frame_shape, "separate": separate, "niceness": NICENESS}
            places = {"memory": descriptor, "socket": theirs.fileno()}
            command = [sys.executable, "-P", __file__, json.dumps(share | places)]  # -P: rbi/envs has a types.py
            with theirs:
                self.processes.append(
                    subprocess.Popen(command, pass_fds=tuple(places.values()), stdin=subprocess.DEVNULL)
                )
            self.sockets.append(ours)

    def reset(self, *, seed: int | None) -> tuple[Array, dict[str, Array]]:
        """Start new episodes; emulator i gets the seed `seed + i`, or continues its random numbers."""
        seeds = [NO_SEED if seed is None else seed + first for first in self.firsts]
        self.command(RESET, seeds)
        results = self.wait()
        return results.frames[:, None], {"lives": results.lives.copy()}

    def send(self, actions: Array) -> None:
        """Start a step of every emulator."""
        self.shared.actions[:] = actions
        self.command(STEP, [NO_SEED] * len(self.sockets))

    def recv(self) -> tuple[Array, Array, Array, Array, dict[str, Array]]:
        """The results of the step."""
        frames, *others = self.wait()
        rewards, terminated, truncated, lives = (array.copy() for array in others)
        return frames[:, None], rewards, terminated, truncated, {"lives": lives}

    def command(self, kind: bytes, seeds: Sequence[int]) -> None:
        self.slot = (self.slot + 1) % SLOTS
        for connection, seed in zip(self.sockets, seeds, strict=True):
            try:
                connection.sendall(COMMAND.pack(kind, self.slot, seed))
            except OSError:
                raise ChildProcessError(self.failure()) from None

    def wait(self) -> Results:
        """The results of the last command, when all workers have answered."""
        for connection in self.sockets:
            try:
                answer = connection.recv(1)
            except OSError:
                answer = b""
            if answer != DONE:
                raise ChildProcessError(self.failure())
        return self.shared.slots[self.slot]

    def failure(self) -> str:
        ended = [str(code) for process in self.processes if (code := process.poll()) is not None]
        return f"a process with Atari emulators ended unexpectedly (exit status {', '.join(ended) or 'unknown'})"

    def close(self) -> None:
        """End the processes; they have nothing to save."""
        for process, connection in zip(self.processes, self.sockets, strict=True):
            process.kill()
            connection.close()
        for process in self.processes:
            process.wait()
        self.sockets, self.processes = [], []
        self.memory.close()

    def __del__(self) -> None:
        self.close()


class SeparateEmulators:
    """The part of `AtariVectorEnv` that is used here, over emulators that are stepped one by one: with the action SKIP
    one keeps its frame and takes no time. `AtariVectorEnv` steps all of its emulators, also where a game is over that
    nobody waits for."""

    def __init__(self, game: str, num_envs: int, settings: dict[str, Any]) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.emulators = [AtariVectorEnv(game, 1, num_threads=1, **settings) for _ in range(num_envs)]
        self.sent: list[int] = []

    def reset(self, *, seed: int | None) -> tuple[Array, dict[str, Array]]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            seeds = [None if seed is None else seed + i for i in range(len(self.emulators))]
            found = list(pool.map(lambda emulator, own: emulator.reset(seed=own), self.emulators, seeds))
        self.frames = np.concatenate([frames for frames, _ in found])
        self.lives = np.concatenate([info["lives"] for _, info in found])
        return self.frames.copy(), {"lives": self.lives.copy()}

    def send(self, actions: Array) -> None:
        self.sent = np.flatnonzero(actions != SKIP).tolist()
        for i in self.sent:
            self.emulators[i].send(actions[i : i + 1])

    def recv(self) -> tuple[Array, Array, Array, Array, dict[str, Array]]:
        count = len(self.emulators)
        rewards, terminated, truncated = np.zeros(count, np.float32), np.zeros(count, bool), np.zeros(count, bool)
        for i in self.sent:
            (self.frames[i],), (rewards[i],), (terminated[i],), (truncated[i],), info = self.emulators[i].recv()
            self.lives[i] = info["lives"][0]
        return self.frames.copy(), rewards, terminated, truncated, {"lives": self.lives.copy()}

    def close(self) -> None:
        for emulator in self.emulators:
            emulator.close()


def num_workers(num_envs: int, threads: int) -> int:
    """How many processes to use for emulators that may keep `threads` cores busy (0: all); 0 for none."""
    threads = threads or os.cpu_count() or 1
    if os.name != "posix" or threads < 2:
        return 0
    return min(threads, num_envs // MIN_EMULATORS) if num_envs >= MIN_ENVS else 0


# What a worker runs


def serve(share: dict[str, Any]) -> None:
    """Make a share of the emulators and obey commands until the caller closes the connection."""
    os.nice(share["niceness"])
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    own, count = slice(share["first"], share["end"]), share["end"] - share["first"]
    shared = SharedArrays(share["memory"], share["num_envs"], share["frame_shape"])
    connection = socket.socket(fileno=share["socket"])
    if share["separate"]:
        envs: Any = SeparateEmulators(share["game"], count, share["settings"])
    else:
        envs = AtariVectorEnv(share["game"], count, num_threads=THREADS, **share["settings"])
    while message := connection.recv(COMMAND.size, socket.MSG_WAITALL):
        kind, slot, seed = COMMAND.unpack(message)
        into = shared.slots[slot]
        if kind == RESET:
            frames, info = envs.reset(seed=None if seed == NO_SEED else seed)
        else:
            envs.send(shared.actions[own])
            frames, into.rewards[own], into.terminated[own], into.truncated[own], info = envs.recv()
        into.frames[own], into.lives[own] = frames[:, 0], info["lives"]
        connection.sendall(DONE)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ctrl-C, schedulers and closed terminals signal
        signal.signal(number, signal.SIG_IGN)  # all processes; the caller stops at a step, for which it needs these
    with contextlib.suppress(ConnectionError):  # the caller has ended
        serve(json.loads(sys.argv[1]))
