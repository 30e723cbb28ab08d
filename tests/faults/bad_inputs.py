"""Bad inputs, one command each: what they must do, and the loop that runs them.

A case is a command that runs in a folder with good files (`make_good_files`) after one of them was changed. What it
must do is stated beside it:

    REFUSE   exit status 2 and one line on stderr
    ACCEPT   exit status 0
    EITHER   one of the two: a random byte may or may not matter

`python -m tests.faults.bad_inputs [WORDS ...]` runs all cases, or those whose names contain one of the words. It prints
every case that ends in another way: a traceback, several lines, another status, no end, or episodes lost in silence.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rbi
from rbi import cli, runs
from rbi.data.formats.minari import write_minari
from rbi.data.formats.parquet_writer import write_parquet
from rbi.data.store import StoreWriter
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy

REFUSE, ACCEPT, EITHER = (2,), (0,), (0, 2)
SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A command in a folder of good files after `damage`, and the exit statuses that it may end with."""

    name: str
    argv: tuple[str, ...]
    status: tuple[int, ...] = REFUSE
    damage: Callable[[], object] = lambda: None
    episodes: int = 0
    """Episodes of the good data: fewer may be accepted only if others are reported as rejected or lost."""


# Good files


def make_good_files() -> None:
    """Small good files of every format, in the current folder."""
    rng = np.random.default_rng(0)
    steps, ends = 40, np.arange(40) % 5 == 4
    data = rbi.Dataset.from_arrays(
        rng.normal(size=(steps, 4)), rng.integers(0, 2, steps), rng.normal(size=steps), ends, env="CartPole-v1"
    )
    with Path("log.csv").open("w") as file:
        file.write("episode_id,t,action,reward,terminated,obs_0,obs_1,player\n")
        for row in range(steps):
            file.write(
                f"e{row // 5},{row % 5},{row % 2},{row / 7:.3f},{int(ends[row])},{row / 3:.4f},{-row},p{row // 10}\n"
            )
    write_parquet([data], data.spec, Path("own.parquet"))
    columns = {
        "episode_id": np.arange(steps) // 5,
        "t": np.arange(steps) % 5,
        "action": np.arange(steps) % 2,
        "reward": rng.normal(size=steps),
        "terminated": ends,
        "obs": list(rng.normal(size=(steps, 3))),
    }
    pq.write_table(pa.table(columns), "log.parquet")
    with StoreWriter.create("store", data.spec) as writer:
        for episode in data:
            writer.append(episode)
    write_minari(iter(data), data.spec, "minari-v0")
    write_d3rlpy()
    write_dqn_replay()
    networks = make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(8), 0)
    Policy(networks, rbi.Reroute(0.5, 1.5), 0.1, env="CartPole-v1", metadata={"a": 1}).save("policy")
    settings = {"updates": 4, "learning_starts": 16, "num_envs": 2, "capacity": 100, "batch_size": 4, "hidden_size": 4}
    rbi.train("CartPole-v1", out="run", eval_episodes=0, progress=False, **settings)
    rbi.improve("log.csv", out="improved", updates=4, batch_size=4, hidden_size=4, progress=False)


def write_d3rlpy() -> None:
    with h5py.File("v1.h5", "w") as file:
        file["observations"], file["actions"] = np.arange(18.0).reshape(6, 3).astype("f4"), np.array([0, 1, 0, 1, 0, 1])
        file["rewards"], file["terminals"] = np.arange(6.0), np.array([0, 0, 1, 0, 0, 1])
    with h5py.File("v2.h5", "w") as file:
        file["columns"], file["num_episodes"], file["version"] = ["observations", "actions"], 2, "2.1"
        for part in range(2):
            file[f"observations_{part}"] = np.arange(9.0).reshape(3, 3).astype("f4")
            file[f"actions_{part}"], file[f"rewards_{part}"] = np.array([[0], [1], [0]]), np.ones((3, 1))
            file[f"terminated_{part}"] = 1.0


DQN = "Pong/1/replay_logs"


def write_dqn_replay() -> None:
    Path(DQN).mkdir(parents=True)
    rng = np.random.default_rng(1)
    rows = 30
    frames = rng.integers(1, 255, (rows, 84, 84), dtype=np.uint8)
    frames[:3] = 0
    terminal = np.zeros(rows, np.uint8)
    terminal[25] = 1
    for name, array in {
        "observation": frames,
        "action": np.arange(rows, dtype=np.int32) % 3,
        "reward": np.zeros(rows, np.float32),
        "terminal": terminal,
    }.items():
        save_npy(f"{DQN}/$store$_{name}_ckpt.0.gz", array)
    save_npy(f"{DQN}/add_count_ckpt.0.gz", np.array(rows))


def save_npy(path: str, array: np.ndarray, *, pickled: bool = False) -> None:
    with gzip.open(path, "wb", 1) as file:
        np.save(file, array, allow_pickle=pickled)


# Damage


def write(path: str, content: str | bytes) -> Callable[[], object]:
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    return lambda: Path(path).write_bytes(data)


def edit_text(path: str, old: str, new: str) -> Callable[[], object]:
    def damage() -> None:
        text = Path(path).read_text()
        assert old in text, (path, old)
        Path(path).write_text(text.replace(old, new))

    return damage


def edit_json(path: str, *keys: str, value: object = None, remove: bool = False) -> Callable[[], object]:
    """Set or remove a value inside a JSON file."""

    def damage() -> None:
        whole = json.loads(Path(path).read_text())
        at = whole
        for key in keys[:-1]:
            at = at[key]
        if remove:
            del at[keys[-1]]
        else:
            at[keys[-1]] = value
        Path(path).write_text(json.dumps(whole))

    return damage


def flip(path: str, seed: int, count: int = 1) -> Callable[[], object]:
    """Change some bytes of a file."""

    def damage() -> None:
        rng, data = random.Random(seed), bytearray(Path(path).read_bytes())
        for _ in range(count):
            data[rng.randrange(len(data))] = rng.randrange(256)
        Path(path).write_bytes(data)

    return damage


def cut(path: str, share: float) -> Callable[[], object]:
    """Keep the first part of a file only."""
    return lambda: os.truncate(path, int(share * Path(path).stat().st_size))


def nothing(_: object) -> None:
    """Leave it as it is."""


def damages(path: str, flips: int = 6) -> Iterator[tuple[str, Callable[[], object]]]:
    """Ways to damage any file."""
    yield "missing", lambda: Path(path).unlink()
    yield "empty", write(path, b"")
    yield "zeros", lambda: Path(path).write_bytes(bytes(Path(path).stat().st_size))
    yield "noise", lambda: Path(path).write_bytes(random.Random(1).randbytes(500))
    yield "half", cut(path, 0.5)
    yield "all but one byte", lambda: os.truncate(path, Path(path).stat().st_size - 1)
    yield "a folder instead", lambda: (Path(path).unlink(), Path(path).mkdir())
    yield "a link to itself", lambda: (Path(path).unlink(), Path(path).symlink_to(Path(path).name))
    for seed in range(flips):
        yield f"{1 + 3 * (seed % 2)} bytes changed ({seed})", flip(path, seed, 1 + 3 * (seed % 2))


ODD_JSON = {
    "a list": "[]",
    "null": "null",
    "a number": "7",
    "deeply nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "not JSON": "{",
    "a long number": '{"format": ' + "1" * 5000 + "}",
    "no UTF-8": b"\xff\xfe{}",
    "an empty object": "{}",
}
ODD_VALUES = (None, True, -1, 0, 10**30, 1.5, 1e999, "x", "", [], [[]], {}, "\x1b[31m", [10**9], ["a"])


def odd_json(path: str, argv: tuple[str, ...]) -> Iterator[Case]:
    for name, content in ODD_JSON.items():
        yield Case(f"{path}: {name}", argv, REFUSE, write(path, content))


# Running


def all_cases() -> list[Case]:
    """Every case, in the order of the groups."""
    from tests.faults import bad_command_lines, bad_files

    return [case for group in (*bad_command_lines.GROUPS, *bad_files.GROUPS) for case in group()]


class TimeUpError(BaseException):
    """A case ran into the time limit."""


def run_case(case: Case, good: Path, seconds: int = SECONDS) -> str:
    """What is wrong about how a case ended; empty if nothing is."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(good, folder, symlinks=True, dirs_exist_ok=True)
        os.chdir(folder)
        try:
            case.damage()
            return judge(case, *run_command(case.argv, seconds))
        finally:
            os.chdir(before)


def run_command(argv: tuple[str, ...], seconds: int) -> tuple[object, str, str]:
    """Exit status (or traceback), stdout and stderr of a command run in this process."""

    def stop(*_: object) -> None:
        raise TimeUpError

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True) for _ in range(2))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPROF)}
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time: the machine may be busy
    signal.alarm(10 * seconds)
    status: object
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with unittest.mock.patch.object(runs.Writer, "figure"):  # most of the time, and no input is read by it
                status = cli.main(argv)
    except TimeUpError:
        status = f"no end after {seconds} seconds of CPU time"
    except SystemExit as stopped:
        status = stopped.code
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/rbi/" in f.filename] or [None]
        status = f"{type(error).__name__}: {error}"[:300] + f" in {frames[-1]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return status, *(stream.buffer.getvalue().decode(errors="replace") for stream in (out, err))


def judge(case: Case, status: object, out: str, err: str) -> str:
    if not isinstance(status, int):
        return f"traceback or hang: {status}"
    if status not in case.status:
        return f"status {status}, not one of {case.status}: {err[-300:]}{out[-300:] if not status else ''}"
    if {"\x1b", "\u202e"} & set(out + err):
        return "control characters on the terminal"
    if status == 0 and case.episodes:
        found = json.loads(Path("out/result.json").read_text())
        told = found["rejected"] or found.get("lost") or "belong to no episode" in err
        if found["episodes"] < case.episodes and not told:
            return f"{found['episodes']} of {case.episodes} episodes, and nothing is reported as rejected or lost"
    lines = [line for line in err.splitlines() if line.startswith("rbi: ")]
    if status == 2 and (len(lines) != 1 or not err.rstrip("\n").endswith(lines[0])):
        return f"status 2 and {len(lines)} lines instead of one: {err[-300:]}"
    return ""


def main(words: list[str]) -> int:
    """Run the cases and print what is wrong."""
    cases = [case for case in all_cases() if not words or any(word in case.name for word in words)]
    started, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as good:
        before = Path.cwd()
        os.chdir(good)
        make_good_files()
        os.chdir(before)
        for case in cases:
            begun = time.monotonic()
            found = run_case(case, Path(good))
            taken = time.monotonic() - begun
            if found or taken > 5:
                wrong += bool(found)
                sys.stdout.write(
                    f"== {case.name} ({taken:.1f} s)\n{' '.join(case.argv)[:200]}\n{found}\n".encode(
                        "utf-8", "replace"
                    ).decode()
                )
                sys.stdout.flush()
    sys.stdout.write(f"{len(cases)} cases, {wrong} wrong, {time.monotonic() - started:.0f} s\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
