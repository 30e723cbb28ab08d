"""Bad files of every format, damaged byte by byte and in structured ways."""

import functools
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

from tests.faults.bad_inputs import (
    ACCEPT,
    DQN,
    EITHER,
    ODD_JSON,
    ODD_VALUES,
    REFUSE,
    Case,
    damages,
    edit_json,
    odd_json,
    save_npy,
    write,
)

INFO = ("data", "info", "--out", "out")
CSV_HEADER = "episode_id,t,action,reward,terminated,obs_0\n"


def csv_cases() -> Iterator[Case]:
    info = (*INFO, "log.csv")
    for name, damage in damages("log.csv", 12):
        status = REFUSE if name in ("missing", "empty", "zeros", "a link to itself", "a folder instead") else EITHER
        yield Case(f"csv {name}", info, status, damage, episodes=8)
    long = "x" * 200_000
    files = {
        "long header field": (long + "," + CSV_HEADER, REFUSE),
        "long quoted header": (f'"{long}\n', REFUSE),
        "long field": (CSV_HEADER + f"{long},0,0,0,1,1\n", EITHER),
        "million columns": ("a," * 1_000_000 + "b\n", REFUSE),
        "million observations": (",".join(f"obs_{i}" for i in range(300_000)) + "," + CSV_HEADER, REFUSE),
        "header only": (CSV_HEADER, REFUSE),
        "two equal columns": ("t,t," + CSV_HEADER, REFUSE),
        "UTF-16": (CSV_HEADER.encode("utf-16"), REFUSE),
        "no newline": (CSV_HEADER.strip(), REFUSE),
        "quotes": (CSV_HEADER + 'a,0,0,"1,1,1\n' * 50, EITHER),
        "NUL": (CSV_HEADER + "a\0,0,0,1,1,1\n", EITHER),
        "huge number": (CSV_HEADER + "a,0,0,1e400,1,1\n", EITHER),
        "smallest action": (CSV_HEADER + f"a,0,{-(2**63)},1,1,1\n", EITHER),
        "action nan": (CSV_HEADER + "a,0,nan,1,1,1\n", EITHER),
        "huge action": (CSV_HEADER + "a,0,1000000000000,1,1,1\n", EITHER),
        "action 1e18": (CSV_HEADER + "a,0,1e18,1,1,1\n", EITHER),
        "action of 999999": (CSV_HEADER + "a,0,999999,1,1,1\n", EITHER),
        "step 1e18": (CSV_HEADER + "a,1e18,0,1,1,1\n", EITHER),
        "obs 1e39": (CSV_HEADER + "a,0,0,1,1,1e39\n", EITHER),
        "text as obs": (CSV_HEADER + "a,0,0,1,1,red\n", EITHER),
        "many digits": (CSV_HEADER + "a,0,0," + "1" * 5000 + ",1,1\n", EITHER),
        "surrogates": (CSV_HEADER.encode() + b"\xed\xa0\x80,0,0,1,1,1\n", EITHER),
        "not UTF-8": (b"\xff" + CSV_HEADER.encode(), EITHER),
        "only newlines": ("\n" * 1000, REFUSE),
        "only commas": ("," * 1000, REFUSE),
        "escapes": (CSV_HEADER.replace("action", "\x1b[31m"), REFUSE),
        "CR only": (CSV_HEADER.replace("\n", "\r") + "a,0,0,1,1,1\r", EITHER),
        "semicolons": (CSV_HEADER.replace(",", ";") + "a;0;0;1;1;1\n", ACCEPT),
        "no end": (CSV_HEADER + "a,0,0,1,0,1\n", EITHER),
        "extra fields": (CSV_HEADER + "a,0,0,1,1,1,9,9\n", EITHER),
        "few fields": (CSV_HEADER + "a,0\n", EITHER),
        "BOM": ("\ufeff" + CSV_HEADER + "a,0,0,1,1,1\n", ACCEPT),
        "spaces": (CSV_HEADER + " a , 0 , 0 , 1 , 1 , 1 \n", EITHER),
    }
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
            yield Case(f"{file} {name}", (*INFO, file), REFUSE if refused else EITHER, damage, episodes=8)

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
        "episode_id": pa.array(np.arange(size) // 4),
        "action": pa.array(np.arange(size) % 2),
        "reward": pa.array(np.ones(size)),
        "terminated": pa.array(np.arange(size) % 4 == 3),
        "obs": pa.array([[1.0, 2.0]] * size),
    }
    odd = {
        "strings": pa.array(["a"] * size),
        "nulls": pa.nulls(size),
        "booleans": pa.array([True] * size),
        "dates": pa.array([0] * size, pa.date32()),
        "decimals": pa.array([1] * size).cast(pa.decimal128(38, 2)),
        "binary": pa.array([b"\xff"] * size),
        "lists": pa.array([[1]] * size),
        "structs": pa.array([{"a": 1}] * size),
        "maps": pa.array([[("a", 1)]] * size, pa.map_(pa.string(), pa.int64())),
        "smallest": pa.array([-(2**63)] * size),
        "largest": pa.array([2**64 - 1] * size, pa.uint64()),
        "nan": pa.array([np.nan] * size),
        "inf": pa.array([np.inf] * size),
        "nested lists": pa.array([[[1.0]]] * size),
        "empty lists": pa.array([[]] * size, pa.list_(pa.float64())),
        "ragged lists": pa.array([[1.0] * (i % 3) for i in range(size)]),
        "durations": pa.array([1] * size, pa.duration("s")),
        "times": pa.array([0] * size, pa.timestamp("ns")),
        "half": pa.array(np.ones(size, np.float16)),
        "dictionary": pa.array(["a", "b"] * 4).dictionary_encode(),
        "lists of text": pa.array([["a"]] * size),
    }
    for column in columns:
        for name, values in odd.items():
            table = pa.table(columns | {column: values})
            damage = functools.partial(pq.write_table, table, "log.parquet")
            yield Case(f"parquet {column} of {name}", (*INFO, "log.parquet"), EITHER, damage)


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
        "text": "x",
        "scalar": 1.5,
        "nan": np.nan,
        "negative": -1,
        "huge": 10**12,
        "empty": np.zeros(0),
        "matrix": np.ones((6, 2)),
        "strings": ["a"] * 6,
        "nested": np.ones((6, 1, 1, 1, 1)),
        "complex": np.ones(6, complex),
        "smallest": np.full(6, -(2**63)),
        "short": np.zeros(2),
        "bytes": np.zeros((6, 4, 84, 84), np.uint8),
        "infinite": np.full(6, np.inf),
        "booleans": np.ones(6, bool),
    }

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
    for space in (
        '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 1000000000000}',
        '{"type": "Box"}',
        '{"type": "What"}',
        "[" * 100_000,
        '{"type": "Discrete", "dtype": "object", "start": "a", "n": -1}',
        '{"type": "MultiBinary", "n": [1000000, 1000000]}',
    ):
        for key in ("observation_space", "action_space"):
            yield Case(f"minari {key} {space:.40}", info, EITHER, edit_json(metadata, key, value=space))
    file = "minari-v0/data/main_data.hdf5"
    for name, damage in damages(file, 12):
        yield Case(f"minari file {name}", info, EITHER, damage, episodes=8)

    def attribute(value: object) -> Callable[[], object]:
        def damage() -> None:
            with h5py.File(file, "a") as opened:
                opened["episode_1"].attrs["rbi"] = value

        return damage

    for value in (
        "{",
        "[]",
        "7",
        '{"line": "x"}',
        '{"line": true}',
        '{"player": 7}',
        '{"has_final": 3}',
        '{"actions": 1}',
        "[" * 50_000,
        7,
        b"\xff",
        '{"abandoned": "x"}',
        '{"source": null}',
        '{"line": -5}',
        '{"line": 1e30}',
        '{"player": "\\ud800"}',
        '{"player": "\\u001b[31m"}',
    ):
        for command in (info, ("data", "import", "minari-v0", "--out", "out", "--workers", "1")):
            yield Case(f"{command[1]} minari episode {value!r:.30}", command, EITHER, attribute(value))


def dqn_cases() -> Iterator[Case]:
    info = (*INFO, "Pong")
    for column in ("action", "reward", "terminal"):
        for name, damage in damages(f"{DQN}/$store$_{column}_ckpt.0.gz", 4):
            yield Case(f"dqn {column} {name}", info, EITHER, damage, episodes=1)
    odd = {
        "objects": np.array([{}] * 30, dtype=object),
        "text": np.array(["a"] * 30),
        "matrix": np.ones((30, 2)),
        "scalar": np.array(1),
        "floats": np.full(30, np.nan),
        "structured": np.zeros(30, [("a", "i4")]),
        "short": np.zeros(3, np.int32),
        "smallest": np.full(30, -(2**63)),
        "complex": np.ones(30, complex),
        "dates": np.zeros(30, "M8[s]"),
        "empty": np.zeros(0, np.int32),
        "negative": np.full(30, -7, np.int32),
    }
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

    for name in ("metrics.jsonl", "result.json"):
        for kind, damage in damages(f"run/{name}", 3):
            yield Case(f"run {name} {kind}", resume, EITHER, damage)
    yield from checkpoint_cases(resume)
    yield from improve_cases()


def checkpoint_cases(resume: tuple[str, ...]) -> Iterator[Case]:
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


def improve_cases() -> Iterator[Case]:
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
            yield Case(f"store {file} {name}", (*info, "--verify"), EITHER, damage, episodes=8)
        for name, damage in list(damages(f"store/{file}", 0))[:8]:
            argv = ("improve", "store", "--updates", "2", "--batch-size", "4", "--hidden-size", "4", "--out", "out")
            yield Case(f"improve store {file} {name}", argv, EITHER, damage)


GROUPS = (csv_cases, parquet_cases, hdf5_cases, minari_cases, dqn_cases, policy_cases, run_cases, store_cases)
