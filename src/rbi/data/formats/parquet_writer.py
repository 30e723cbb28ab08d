"""Writes episodes as a Parquet table with one row per step, for pandas, RLlib and other readers of tables.

    episode_id, t        episodes and their steps, numbered from 0
    obs                  a list; nested lists for images
    action, reward, terminated, truncated, life_lost
    final_obs            the observation after the last step, in that row, if present; null in all others
    action_prob          the logged probability, if the dataset has it
    action_mask          a list of booleans, one per action, if the dataset has it
    behavior_probs       a list of the logged probabilities of all actions, if the dataset has it
    player, source, line, abandoned

The schema holds the `DatasetSpec` as JSON under the key `rbi`, so that our reader restores everything.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rbi import fileio
from rbi.data.dataset import Dataset, concat_ranges
from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.reader import require_package
from rbi.data.formats.table_files import SPEC_KEY

GROUP_BYTES = 1 << 25  # of rows that are written together
LOGGED = {"action_prob": "action_probs", "action_mask": "action_masks", "behavior_probs": "behavior_probs"}
"""Columns that a dataset may have, and their names in it."""


def write_parquet(datasets: Iterable[Dataset], spec: DatasetSpec, path: Path) -> None:
    """Write the episodes of datasets of one spec into one file, atomically."""
    parquet = require_package("pyarrow.parquet")
    schema = schema_of(spec)

    def write(growing: Path) -> None:
        with parquet.ParquetWriter(growing, schema) as writer:
            written = 0
            for dataset in datasets:
                for part in dataset.ranges(GROUP_BYTES):
                    writer.write_table(to_table(dataset[part], written, schema))
                    written += part.stop - part.start

    fileio.atomic_write(path, write)


def schema_of(spec: DatasetSpec) -> Any:
    """The columns with their types, and the spec."""
    pa = require_package("pyarrow")
    observation = pa.from_numpy_dtype(spec.dtype)
    for size in reversed(spec.obs_shape):
        observation = pa.list_(observation, size)
    columns = {
        "episode_id": pa.int64(),
        "t": pa.int64(),
        "obs": observation,
        "action": pa.int32(),
        "reward": pa.float32(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "life_lost": pa.bool_(),
        "final_obs": observation,
        "player": pa.string(),
        "source": pa.string(),
        "line": pa.int64(),
        "abandoned": pa.bool_(),
    }
    if spec.has_action_probs:
        columns["action_prob"] = pa.float32()
    if spec.has_action_masks:
        columns["action_mask"] = pa.list_(pa.bool_(), spec.num_actions)
    if spec.has_behavior_probs:
        columns["behavior_probs"] = pa.list_(pa.float32(), spec.num_actions)
    return pa.schema(list(columns.items()), metadata={SPEC_KEY: json.dumps(asdict(spec))})


def to_table(dataset: Dataset, first: int, schema: Any) -> Any:
    """The rows of a dataset; `first` is the number of its first episode."""
    pa, arrays, records = require_package("pyarrow"), dataset.arrays, dataset.records
    steps, observed = records["steps"].astype(np.int64), arrays["observations"]
    rows, last = int(steps.sum()), steps.cumsum() - 1
    episode = np.repeat(np.arange(len(records)), steps)
    kept = records["observations"] > steps  # these have an observation after the last step
    texts = pa.array(dataset.texts, pa.string())
    columns: dict[str, Any] = {
        "episode_id": first + episode,
        "t": concat_ranges(0, steps),
        "obs": nested(dataset.step_observations()),
        "action": arrays["actions"],
        "reward": arrays["rewards"],
        **{name: arrays[name] for name in ("terminated", "truncated", "life_lost")},
        "final_obs": pa.nulls(rows, schema.field("obs").type),
        **{name: texts.take(pa.array(records[name][episode])) for name in ("player", "source")},
        "line": records["line"][episode],
        "abandoned": records["abandoned"].astype(bool)[episode],
    }
    if kept.any():
        number = np.zeros(rows, np.int64)
        number[last] = kept.cumsum() - 1
        none = np.ones(rows, bool)
        none[last] = ~kept
        finals = nested(observed[(records["first_observation"] + steps)[kept]])
        columns["final_obs"] = finals.take(pa.array(number, mask=none))
    columns |= {name: nested(arrays[column]) for name, column in LOGGED.items() if column in arrays}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def nested(array: Array) -> Any:
    """`[N, ...]` as an Arrow array of N lists."""
    pa = require_package("pyarrow")
    found = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found
