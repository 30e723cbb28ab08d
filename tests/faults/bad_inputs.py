"""Bad inputs, generated: command lines and files of every format, damaged byte by byte and in structured ways.

A case is a command that runs in a folder with good files (`make_good_files`) after one of them was changed. What it
must do is stated beside it:

    REFUSE   exit status 2 and one line on stderr
    ACCEPT   exit status 0
    EITHER   one of the two: a random byte may or may not matter

`python -m tests.faults.bad_inputs [WORDS ...]` runs all cases, or those whose names contain one of the words, and prints
every case that ends in another way: a traceback, several lines, another status, or no end within the time limit.
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
import typing
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

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
    write_parquet(iter(data), data.spec, Path("own.parquet"))
    columns = {
        "episode_id": np.arange(steps) // 5, "t": np.arange(steps) % 5, "action": np.arange(steps) % 2,
        "reward": rng.normal(size=steps), "terminated": ends, "obs": list(rng.normal(size=(steps, 3))),
    }  # fmt: skip
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
        "observation": frames, "action": np.arange(rows, dtype=np.int32) % 3,
        "reward": np.zeros(rows, np.float32), "terminal": terminal,
    }.items():  # fmt: skip
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
    "a list": "[]", "null": "null", "a number": "7", "deeply nested": "[" * 100_000, "nested objects": '{"a":' * 100_000,
    "not JSON": "{", "a long number": '{"format": ' + "1" * 5000 + "}", "no UTF-8": b"\xff\xfe{}", "an empty object": "{}",
}  # fmt: skip
ODD_VALUES = (None, True, -1, 0, 10**30, 1.5, 1e999, "x", "", [], [[]], {}, "\x1b[31m", [10**9], ["a"])


def odd_json(path: str, argv: tuple[str, ...]) -> Iterator[Case]:
    for name, content in ODD_JSON.items():
        yield Case(f"{path}: {name}", argv, REFUSE, write(path, content))


# Command lines


BASE = {
    "rules": "",
    "bandit regret": "--points 3 --samples 10",
    "bandit learn": "--repetitions 2 --steps 3 --workers 1",
    "spi": "--worlds random(0.9) --sizes 10 --repetitions 2 --resamples 2 --workers 1 --algorithms basic_rl",
    "data info": "log.csv",
    "data import": "log.csv --workers 1",
    "data export": "log.csv",
    "data record": "random --env CartPole-v1 --episodes 2",
    "evaluate": "policy --episodes 1",
    "improve": "log.csv --updates 2 --batch-size 4 --hidden-size 4",
    "offline": "store --preset small",
    "train": "--env CartPole-v1 --schedule.updates 4 --schedule.learning-starts 16 --schedule.num-envs 2 "
    "--replay.capacity 100 --learner.batch-size 4 --schedule.hidden-size 4 --eval-episodes 0 --replay.release-interval 0",
}
SLOW = {"offline"}
"""Commands of which only the command line is tried."""
HARMLESS = {
    "--seed", "--checkpoint-minutes", "--report-interval", "--save-snapshots", "--max-frames", "--workers",
    "--save-replay", "--advantage", "--means", "--floor", "--perturbation.abandon-rate", "--schedule.publish-interval",
    "--schedule.refresh-interval", "--table", "--visits",
}  # fmt: skip
"""Options that may take a very large value at no cost."""


def numeric_options(kind: object, prefix: str = "--") -> Iterator[tuple[str, type]]:
    """The options of a command that take numbers."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        choices = [part for part in (hint, *typing.get_args(hint)) if part in (int, float)]
        inner = field.name not in ("overrides", "config", "evaluation")
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            yield from numeric_options(hint, f"{name}." if inner else prefix)
        elif choices and bool not in typing.get_args(hint):
            yield name, choices[0]


def command_line_cases() -> Iterator[Case]:
    """Every number of every command with values that make no sense."""
    import importlib

    for command, base in BASE.items():
        module, attribute, _ = cli.COMMANDS[command]
        for option, kind in numeric_options(getattr(importlib.import_module(module), attribute)):
            if option.startswith(("--cluster", "--agc")):
                continue
            start = (*command.split(), *base.split(), "--out", "out")
            yield Case(f"{command} {option} nan", (*start, option, "nan"))
            yield Case(f"{command} {option} text", (*start, option, "\x1b[31m"))
            if command not in SLOW:
                huge = "1000000000000000000" if kind is int else "1e308"
                yield Case(f"{command} {option} {huge}", (*start, option, huge), EITHER)
                yield Case(f"{command} {option} -1", (*start, option, "-1"), EITHER)
    for command in BASE:
        words = tuple(command.split())
        yield Case(f"{command}: unknown option", (*words, "--nonsense"))
        yield Case(f"{command}: a second positional", (*words, "a", "b", "c", "--nonsense"))
        yield Case(f"{command}: --out is a file", (*words, *BASE[command].split(), "--out", "log.csv"))
        yield Case(f"{command}: --out below a file", (*words, *BASE[command].split(), "--out", "log.csv/x"))
        yield Case(f"{command}: --out too long", (*words, *BASE[command].split(), "--out", "x" * 300))
        loop = lambda: Path("loop").symlink_to("loop")  # noqa: E731
        yield Case(f"{command}: --out is a loop", (*words, *BASE[command].split(), "--out", "loop/x"), REFUSE, loop)
    yield from other_command_lines()


def other_command_lines() -> Iterator[Case]:
    for text in (
        "",
        "rules2",
        "data",
        "data nothing",
        "\x1b[31m",
        "-x",
        "--out",
        "bandit",
        "bandit what",
        "--",
        "\udcff",
    ):
        yield Case(f"command {text!r}", tuple(text.split(" ")))
    for name, option in {
        "advantage of -inf": "--advantage -inf -inf --beta 0.5 0.5", "advantage inf": "--advantage inf 0 --beta .5 .5",
        "advantage nan": "--advantage nan 0 --beta .5 .5", "beta of 2": "--beta 2 -1 --advantage 0 0",
        "beta nan": "--beta nan 1 --advantage 0 0", "two lengths": "--beta 1 --advantage 0 0",
        "no rule": "--rules", "unknown rule": "--rules what(1)", "open rule": "--rules reroute(", "rule nan": "--rules tv(nan)",
        "nested rule": "--rules " + "(" * 5000, "rule of code": "--rules __import__('os').system('true')",
        "huge radius": "--rules tv(1e400)", "negative": "--rules reroute(-1,2)", "many": "--rules " + "greedy " * 50,
        "no beta": "--beta --advantage", "one action": "--beta 1 --advantage 1",
        "huge advantage": "--advantage 1e308 -1e308 --beta .5 .5",
    }.items():  # fmt: skip
        either = name in ("advantage of -inf", "one action", "huge advantage", "many", "huge radius")
        yield Case(f"rules: {name}", ("rules", *option.split(), "--out", "out"), EITHER if either else REFUSE)
    for name, options in {
        "no policy": "data record --env CartPole-v1 --episodes 1", "unknown policy": "data record nothing --episodes 1",
        "unknown environment": "data record random --env Nothing-v0 --episodes 1",
        "module that is not there": "data record random --env nothing_here:X-v0 --episodes 1",
        "environment with continuous actions": "data record random --env Pendulum-v1 --episodes 1",
        "no Atari game": "data record random --env ALE/Nothing-v5 --episodes 1",
        "episodes and steps": "data record random --env CartPole-v1 --episodes 1 --steps 1",
        "another environment": "evaluate policy --env Acrobot-v1", "evaluate nothing": "evaluate nothing",
        "evaluate a file": "evaluate log.csv", "evaluate data": "evaluate store", "video txt": "evaluate policy --video a.txt",
        "train without environment": "train --env", "train nowhere": "train --env Nothing-v0",
        "resume nothing": "train --resume --out nothing", "resume without out": "train --resume",
        "resume data": "train --resume --out store", "resume another": "train --resume --out improved",
        "import policy": "data import policy", "info nothing": "data info nothing", "info without path": "data info",
        "wrong format": "data info log.csv --format minari", "wrong format 2": "data info minari-v0 --format parquet",
        "wrong format 3": "data info log.csv --format d3rlpy", "wrong format 4": "data info policy --format store",
        "wrong format 5": "data info log.csv --format dqn_replay", "wrong format 6": "data info log.csv --format agc",
        "wrong format 7": "data info store --format csv", "verify a CSV": "data info log.csv --verify",
        "column that is not there": "data info log.csv --table.action nothing",
        "empty column": "data info log.csv --table.action=", "columns of a store": "data info store --table.action a",
        "device": "evaluate policy --device tpu", "improve a policy": "improve policy", "improve nothing": "improve nothing",
        "improve with an unknown rule": "improve log.csv --rule what", "out inside data": "data import store --out store/x",
        "out is the data": "data import store --out store", "resume import of nothing": "data import log.csv --resume --out no",
        "spi worlds": "spi --worlds nothing(1)", "spi algorithms": "spi --algorithms nothing", "spi sizes": "spi --sizes 0",
        "spi huge size": "spi --worlds random(0.9) --sizes 1000000000000000 --repetitions 2",
        "spi nan": "spi --worlds random(nan)", "stds": "bandit regret --stds 1", "stds text": "bandit regret --stds a,b",
        "stds negative": "bandit regret --stds -1,2", "stds nan": "bandit learn --stds nan,1", "means": "bandit regret --means 1",
        "learning rate": "bandit learn --learning-rates 2", "samples": "bandit regret --samples 0",
        "many arms": "bandit learn --means " + "0 " * 3 + "--stds 1", "a pipe": "data info pipe", "a device": "data info /dev/zero",
        "a device as CSV": "data info /dev/zero --format csv", "a loop": "data info loop", "a long name": "data info " + "x" * 5000,
        "root": "data info /proc/self/mem", "the current folder": "evaluate .", "an empty folder": "data info empty",
    }.items():  # fmt: skip
        yield Case(name, tuple(options.split()), REFUSE, make_odd_places)
    for name in ("\x1b[31m", "[red]x", ":smile:", "a\nb", "\udcff\udcfe", "ü" * 50, "\u202e"):
        yield Case(f"data info {name!r}", ("data", "info", name))
        rename = lambda name=name: shutil.copy("log.csv", f"{name}.csv")  # noqa: E731
        yield Case(f"data info {name!r}.csv", ("data", "info", f"{name}.csv", "--out", "out"), ACCEPT, rename)


def make_odd_places() -> None:
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("empty").mkdir()


# Files


INFO = ("data", "info", "--out", "out")
CSV_HEADER = "episode_id,t,action,reward,terminated,obs_0\n"


def csv_cases() -> Iterator[Case]:
    info = (*INFO, "log.csv")
    for name, damage in damages("log.csv", 12):
        status = REFUSE if name in ("missing", "empty", "zeros", "a link to itself", "a folder instead") else EITHER
        yield Case(f"csv {name}", info, status, damage)
    long = "x" * 200_000
    files = {
        "long header field": (long + "," + CSV_HEADER, REFUSE), "long quoted header": (f'"{long}\n', REFUSE),
        "long field": (CSV_HEADER + f"{long},0,0,0,1,1\n", EITHER), "million columns": ("a," * 1_000_000 + "b\n", REFUSE),
        "million observations": (",".join(f"obs_{i}" for i in range(300_000)) + "," + CSV_HEADER, REFUSE),
        "header only": (CSV_HEADER, REFUSE), "two equal columns": ("t,t," + CSV_HEADER, REFUSE), "UTF-16": (CSV_HEADER.encode("utf-16"), REFUSE),
        "no newline": (CSV_HEADER.strip(), REFUSE), "quotes": (CSV_HEADER + 'a,0,0,"1,1,1\n' * 50, EITHER),
        "NUL": (CSV_HEADER + "a\0,0,0,1,1,1\n", EITHER), "huge number": (CSV_HEADER + "a,0,0,1e400,1,1\n", EITHER),
        "smallest action": (CSV_HEADER + f"a,0,{-(2**63)},1,1,1\n", EITHER), "action nan": (CSV_HEADER + "a,0,nan,1,1,1\n", EITHER),
        "huge action": (CSV_HEADER + "a,0,1000000000000,1,1,1\n", EITHER), "action 1e18": (CSV_HEADER + "a,0,1e18,1,1,1\n", EITHER),
        "action of 999999": (CSV_HEADER + "a,0,999999,1,1,1\n", EITHER), "step 1e18": (CSV_HEADER + "a,1e18,0,1,1,1\n", EITHER),
        "obs 1e39": (CSV_HEADER + "a,0,0,1,1,1e39\n", EITHER), "text as obs": (CSV_HEADER + "a,0,0,1,1,red\n", EITHER),
        "many digits": (CSV_HEADER + "a,0,0," + "1" * 5000 + ",1,1\n", EITHER), "surrogates": (CSV_HEADER.encode() + b"\xed\xa0\x80,0,0,1,1,1\n", EITHER),
        "not UTF-8": (b"\xff" + CSV_HEADER.encode(), EITHER), "only newlines": ("\n" * 1000, REFUSE), "only commas": ("," * 1000, REFUSE),
        "escapes": (CSV_HEADER.replace("action", "\x1b[31m"), REFUSE), "CR only": (CSV_HEADER.replace("\n", "\r") + "a,0,0,1,1,1\r", EITHER),
        "semicolons": (CSV_HEADER.replace(",", ";") + "a;0;0;1;1;1\n", ACCEPT), "no end": (CSV_HEADER + "a,0,0,1,0,1\n", EITHER),
        "extra fields": (CSV_HEADER + "a,0,0,1,1,1,9,9\n", EITHER), "few fields": (CSV_HEADER + "a,0\n", EITHER),
        "BOM": ("\ufeff" + CSV_HEADER + "a,0,0,1,1,1\n", ACCEPT), "spaces": (CSV_HEADER + " a , 0 , 0 , 1 , 1 , 1 \n", EITHER),
    }  # fmt: skip
    for name, (content, status) in files.items():
        yield Case(f"csv {name}", info, status, write("log.csv", content))
        if status is not REFUSE:
            yield Case(
                f"csv {name}, import", ("data", "import", "log.csv", "--out", "out"), EITHER, write("log.csv", content)
            )


def parquet_cases() -> Iterator[Case]:
    for file in ("log.parquet", "own.parquet"):
        for name, damage in damages(file, 12):
            refused = name in (
                "missing",
                "empty",
                "zeros",
                "noise",
                "half",
                "all but one byte",
                "a link to itself",
                "a folder instead",
            )
            yield Case(f"{file} {name}", (*INFO, file), REFUSE if refused else EITHER, damage)

    def with_metadata(value: bytes) -> Callable[[], object]:
        def damage() -> None:
            table = pq.read_table("own.parquet")
            pq.write_table(table.replace_schema_metadata({"rbi": value}), "own.parquet")

        return damage

    good = {
        "obs_shape": [4],
        "num_actions": 2,
        "frame_stack": 1,
        "env": "",
        "has_action_probs": False,
        "has_action_masks": False,
    }
    for name, content in ODD_JSON.items():
        data = content if isinstance(content, bytes) else content.encode()
        yield Case(f"own.parquet metadata {name}", (*INFO, "own.parquet"), REFUSE, with_metadata(data))
    for key, value in ((k, v) for k in good for v in ODD_VALUES):
        data = json.dumps(good | {key: value}).encode()
        yield Case(f"own.parquet {key} = {value!r:.20}", (*INFO, "own.parquet"), EITHER, with_metadata(data))
    size = 8
    columns = {
        "episode_id": pa.array(np.arange(size) // 4), "action": pa.array(np.arange(size) % 2), "reward": pa.array(np.ones(size)),
        "terminated": pa.array(np.arange(size) % 4 == 3), "obs": pa.array([[1.0, 2.0]] * size),
    }  # fmt: skip
    odd = {
        "strings": pa.array(["a"] * size), "nulls": pa.nulls(size), "booleans": pa.array([True] * size),
        "dates": pa.array([0] * size, pa.date32()), "decimals": pa.array([1] * size).cast(pa.decimal128(38, 2)),
        "binary": pa.array([b"\xff"] * size), "lists": pa.array([[1]] * size), "structs": pa.array([{"a": 1}] * size),
        "maps": pa.array([[("a", 1)]] * size, pa.map_(pa.string(), pa.int64())), "smallest": pa.array([-(2**63)] * size),
        "largest": pa.array([2**64 - 1] * size, pa.uint64()), "nan": pa.array([np.nan] * size), "inf": pa.array([np.inf] * size),
        "nested lists": pa.array([[[1.0]]] * size), "empty lists": pa.array([[]] * size, pa.list_(pa.float64())),
        "ragged lists": pa.array([[1.0] * (i % 3) for i in range(size)]), "durations": pa.array([1] * size, pa.duration("s")),
        "times": pa.array([0] * size, pa.timestamp("ns")), "half": pa.array(np.ones(size, np.float16)),
        "dictionary": pa.array(["a", "b"] * 4).dictionary_encode(), "lists of text": pa.array([["a"]] * size),
    }  # fmt: skip
    for column in columns:
        for name, values in odd.items():
            make = lambda column=column, values=values: pq.write_table(
                pa.table(columns | {column: values}), "log.parquet"
            )  # noqa: E731
            yield Case(f"parquet {column} of {name}", (*INFO, "log.parquet"), EITHER, make)


def hdf5_cases() -> Iterator[Case]:
    for file in ("v1.h5", "v2.h5"):
        for name, damage in damages(file, 20):
            refused = name in ("missing", "empty", "zeros", "noise", "half", "a link to itself", "a folder instead")
            yield Case(f"{file} {name}", (*INFO, file), REFUSE if refused else EITHER, damage)
    names = {
        "v1.h5": ("observations", "actions", "rewards", "terminals"),
        "v2.h5": ("columns", "num_episodes", "version", "observations_0", "actions_1", "terminated_1"),
    }
    odd = {
        "text": "x", "scalar": 1.5, "nan": np.nan, "negative": -1, "huge": 10**12, "empty": np.zeros(0), "matrix": np.ones((6, 2)),
        "strings": ["a"] * 6, "nested": np.ones((6, 1, 1, 1, 1)), "complex": np.ones(6, complex), "smallest": np.full(6, -(2**63)),
        "short": np.zeros(2), "bytes": np.zeros((6, 4, 84, 84), np.uint8), "infinite": np.full(6, np.inf), "booleans": np.ones(6, bool),
    }  # fmt: skip

    def put(file: str, name: str, value: object) -> Callable[[], object]:
        def damage() -> None:
            with h5py.File(file, "a") as opened:
                del opened[name]
                if value is h5py.Group:
                    opened.create_group(name)
                elif value is not None:
                    opened[name] = value

        return damage

    for file, columns in names.items():
        for column in columns:
            yield Case(f"{file} without {column}", (*INFO, file), EITHER, put(file, column, None))
            yield Case(f"{file} {column} is a group", (*INFO, file), EITHER, put(file, column, h5py.Group))
            for name, value in odd.items():
                yield Case(f"{file} {column} is {name}", (*INFO, file), EITHER, put(file, column, value))


def minari_cases() -> Iterator[Case]:
    metadata, info = "minari-v0/data/metadata.json", (*INFO, "minari-v0")
    yield from odd_json(metadata, info)
    keys = (
        "total_episodes",
        "total_steps",
        "observation_space",
        "action_space",
        "data_format",
        "env_spec",
        "rbi",
        "jpeg_encoding",
    )
    for key in keys:
        yield Case(f"minari without {key}", info, EITHER, edit_json(metadata, key, remove=True))
        for value in ODD_VALUES:
            yield Case(f"minari {key} = {value!r:.20}", info, EITHER, edit_json(metadata, key, value=value))
    for space in ('{"type": "Discrete", "dtype": "int64", "start": 0, "n": 1000000000000}', '{"type": "Box"}', '{"type": "What"}', "[" * 100_000,
                  '{"type": "Discrete", "dtype": "object", "start": "a", "n": -1}', '{"type": "MultiBinary", "n": [1000000, 1000000]}'):  # fmt: skip
        for key in ("observation_space", "action_space"):
            yield Case(f"minari {key} {space:.40}", info, EITHER, edit_json(metadata, key, value=space))
    file = "minari-v0/data/main_data.hdf5"
    for name, damage in damages(file, 12):
        yield Case(f"minari file {name}", info, EITHER, damage)

    def attribute(value: object) -> Callable[[], object]:
        def damage() -> None:
            with h5py.File(file, "a") as opened:
                opened["episode_1"].attrs["rbi"] = value

        return damage

    for value in ("{", "[]", "7", '{"line": "x"}', '{"line": true}', '{"player": 7}', '{"has_final": 3}', '{"actions": 1}', "[" * 50_000, 7, b"\xff",
                  '{"abandoned": "x"}', '{"source": null}', '{"line": -5}', '{"line": 1e30}', '{"player": "\\ud800"}', '{"player": "\\u001b[31m"}'):  # fmt: skip
        for command in (info, ("data", "import", "minari-v0", "--out", "out", "--workers", "1")):
            yield Case(f"{command[1]} minari episode {value!r:.30}", command, EITHER, attribute(value))


def dqn_cases() -> Iterator[Case]:
    info = (*INFO, "Pong")
    for column in ("action", "reward", "terminal"):
        for name, damage in damages(f"{DQN}/$store$_{column}_ckpt.0.gz", 4):
            yield Case(f"dqn {column} {name}", info, EITHER, damage)
    odd = {
        "objects": np.array([{}] * 30, dtype=object), "text": np.array(["a"] * 30), "matrix": np.ones((30, 2)), "scalar": np.array(1),
        "floats": np.full(30, np.nan), "structured": np.zeros(30, [("a", "i4")]), "short": np.zeros(3, np.int32), "smallest": np.full(30, -(2**63)),
        "complex": np.ones(30, complex), "dates": np.zeros(30, "M8[s]"), "empty": np.zeros(0, np.int32), "negative": np.full(30, -7, np.int32),
    }  # fmt: skip
    for column in ("action", "reward", "terminal", "observation"):
        for name, array in odd.items():
            make = lambda c=column, a=array: save_npy(f"{DQN}/$store$_{c}_ckpt.0.gz", a, pickled=True)  # noqa: E731
            yield Case(f"dqn {column} of {name}", info, EITHER, make)
    header = (
        b"\x93NUMPY\x01\x00"
        + (118).to_bytes(2, "little")
        + b"{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
        + b"\n"
    )
    big = lambda: Path(f"{DQN}/$store$_action_ckpt.0.gz").write_bytes(gzip.compress(header))  # noqa: E731
    yield Case("dqn promises 10^12 rows", info, EITHER, big)
    yield Case("dqn add_count of text", info, EITHER, lambda: save_npy(f"{DQN}/add_count_ckpt.0.gz", np.array("x")))
    yield Case("dqn add_count negative", info, EITHER, lambda: save_npy(f"{DQN}/add_count_ckpt.0.gz", np.array(-5)))


def policy_cases() -> Iterator[Case]:
    config, weights, evaluate = (
        "policy/policy.json",
        "policy/weights.safetensors",
        ("evaluate", "policy", "--episodes", "1", "--out", "out"),
    )
    yield from odd_json(config, evaluate)
    for name, damage in damages(weights, 10):
        yield Case(f"policy weights {name}", evaluate, EITHER if "changed" in name else REFUSE, damage)
    for key in ("format", "obs_spec", "networks", "rule", "c_greedy", "temperature", "env", "metadata"):
        yield Case(f"policy without {key}", evaluate, REFUSE, edit_json(config, key, remove=True))
        for value in ODD_VALUES:
            yield Case(f"policy {key} = {value!r:.20}", evaluate, EITHER, edit_json(config, key, value=value))
    for keys in (
        ("obs_spec", "shape"),
        ("obs_spec", "stack"),
        ("obs_spec", "num_actions"),
        ("networks", "hidden_size"),
        ("networks", "norm"),
        ("networks", "with_policy"),
        ("networks", "streams"),
    ):
        for value in ODD_VALUES:
            yield Case(
                f"policy {'.'.join(keys)} = {value!r:.20}", evaluate, EITHER, edit_json(config, *keys, value=value)
            )

    def change(**tensors: object) -> Callable[[], object]:
        def damage() -> None:
            held = load_file(weights)
            first = next(iter(held))
            held[first] = (
                np.array(tensors["value"], np.float32)
                if "value" in tensors
                else np.full_like(held[first], tensors["fill"])
            )
            save_file(held, weights)

        return damage

    yield Case("policy weights nan", evaluate, REFUSE, change(fill=np.nan))
    yield Case("policy weights inf", evaluate, REFUSE, change(fill=np.inf))
    yield Case("policy weights of another shape", evaluate, REFUSE, change(value=[1, 2, 3]))
    yield Case("policy weights 1e38", evaluate, EITHER, change(fill=1e38))


def run_cases() -> Iterator[Case]:
    resume = ("train", "--resume", "--out", "run", "--schedule.updates", "8", "--device", "cpu")
    yield from odd_json("run/config.json", resume)
    for name, damage in damages("run/config.json", 4):
        yield Case(f"run config {name}", resume, EITHER, damage)
    for key in ("command", "settings", "seed"):
        yield Case(f"run config without {key}", resume, EITHER, edit_json("run/config.json", key, remove=True))
        for value in ODD_VALUES:
            yield Case(
                f"run config {key} = {value!r:.20}", resume, EITHER, edit_json("run/config.json", key, value=value)
            )
    for key in ("algo", "env", "preset", "actor", "learner", "schedule", "max_frames"):
        for value in ODD_VALUES:
            yield Case(
                f"run setting {key} = {value!r:.20}",
                resume,
                EITHER,
                edit_json("run/config.json", "settings", key, value=value),
            )

    def in_checkpoint(act: Callable[[str], Callable[[], object]]) -> Callable[[], object]:
        return lambda: act(str(next(Path("run/checkpoints").iterdir())))()

    for name, content in ODD_JSON.items():
        yield Case(
            f"checkpoint state {name}",
            resume,
            REFUSE,
            in_checkpoint(lambda at, c=content: write(f"{at}/state.json", c)),
        )
    for key in ("kind", "counters", "info", "files"):
        for value in ODD_VALUES:
            damage = in_checkpoint(lambda at, key=key, value=value: edit_json(f"{at}/state.json", key, value=value))
            yield Case(f"checkpoint {key} = {value!r:.20}", resume, EITHER, damage)
    for name in ("metrics.jsonl", "result.json"):
        for kind, damage in damages(f"run/{name}", 3):
            yield Case(f"run {name} {kind}", resume, EITHER, damage)
    improve = (
        "improve",
        "log.csv",
        "--updates",
        "4",
        "--batch-size",
        "4",
        "--hidden-size",
        "4",
        "--resume",
        "--out",
        "improved",
    )
    yield from odd_json("improved/config.json", improve)
    for name, damage in damages("improved/result.json", 3):
        yield Case(f"improved result {name}", improve, EITHER, damage)


def store_cases() -> Iterator[Case]:
    info = (*INFO, "store")
    yield from odd_json("store/store.json", info)
    for key in ("obs_shape", "num_actions", "frame_stack", "env", "has_action_probs", "has_action_masks"):
        for value in ODD_VALUES:
            yield Case(f"store {key} = {value!r:.20}", info, EITHER, edit_json("store/store.json", key, value=value))
    for file in ("actions.bin", "observations.bin", "rewards.bin", "episodes.bin", "texts.jsonl"):
        for name, damage in damages(f"store/{file}", 4):
            yield Case(f"store {file} {name}", (*info, "--verify"), EITHER, damage)
        for name, damage in list(damages(f"store/{file}", 0))[:8]:
            argv = ("improve", "store", "--updates", "2", "--batch-size", "4", "--hidden-size", "4", "--out", "out")
            yield Case(f"improve store {file} {name}", argv, EITHER, damage)


GROUPS = (
    command_line_cases,
    csv_cases,
    parquet_cases,
    hdf5_cases,
    minari_cases,
    dqn_cases,
    policy_cases,
    run_cases,
    store_cases,
)


def all_cases() -> list[Case]:
    return [case for group in GROUPS for case in group()]


# Running


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
    signal.setitimer(signal.ITIMER_PROF, seconds)  # processor time: the machine may be busy
    signal.alarm(10 * seconds)
    status: object
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with unittest.mock.patch.object(runs.Writer, "figure"):  # most of the time, and no input is read by it
                status = cli.main(argv)
    except TimeUpError:
        status = f"no end after {seconds} seconds of processor time"
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
