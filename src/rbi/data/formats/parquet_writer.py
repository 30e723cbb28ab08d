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
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rbi import runs
from rbi.data.episode import Array, DatasetSpec, Episode
from rbi.data.formats.common import require_package
from rbi.data.formats.table_files import SPEC_KEY

GROUP_BYTES, ROW_BYTES = 1 << 25, 64
EACH = ("player", "source", "line", "abandoned")


def write_parquet(episodes: Iterable[Episode], spec: DatasetSpec, path: Path) -> None:
    """Write episodes into one file, atomically."""
    parquet = require_package("pyarrow.parquet")
    schema = schema_of(spec)

    def write(growing: Path) -> None:
        with parquet.ParquetWriter(growing, schema) as writer:
            written = 0
            for group in groups(episodes):
                writer.write_table(to_table(group, written, spec, schema))
                written += len(group)

    runs.atomic_write(path, write)


def groups(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    """Groups of consecutive episodes that are written together."""
    waiting: list[Episode] = []
    size = 0
    for episode in episodes:
        waiting.append(episode)
        size += episode.observations.nbytes + ROW_BYTES * len(episode)
        if size >= GROUP_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


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


def to_table(episodes: list[Episode], first: int, spec: DatasetSpec, schema: Any) -> Any:
    """The rows of some episodes; `first` is the number of the first one."""
    pa = require_package("pyarrow")
    for number, episode in enumerate(episodes, first + 1):
        try:
            episode.check_fits(spec)
        except ValueError as error:
            raise ValueError(f"episode {number}: {error}") from None
    steps = np.array([len(episode) for episode in episodes])
    kept = np.array([episode.has_final for episode in episodes])
    columns: dict[str, Any] = {
        "episode_id": np.repeat(np.arange(first, first + len(episodes)), steps),
        "t": np.arange(steps.sum()) - np.repeat(steps.cumsum() - steps, steps),
        "obs": nested(np.concatenate([episode.observations[: len(episode)] for episode in episodes])),
        "action": joined(episodes, "actions"),
        "reward": joined(episodes, "rewards"),
        **{name: joined(episodes, name) for name in ("terminated", "truncated", "life_lost")},
        "final_obs": pa.nulls(int(steps.sum()), schema.field("obs").type),
        **{name: each(episodes, name).take(pa.array(np.repeat(np.arange(len(episodes)), steps))) for name in EACH},
    }
    if kept.any():
        last = np.zeros(steps.sum(), np.int64)
        last[steps.cumsum() - 1] = kept.cumsum() - 1
        none = np.ones(steps.sum(), bool)
        none[steps.cumsum() - 1] = ~kept
        finals = nested(np.stack([episode.observations[-1] for episode in episodes if episode.has_final]))
        columns["final_obs"] = finals.take(pa.array(last, mask=none))
    if spec.has_action_probs:
        columns["action_prob"] = joined(episodes, "action_probs")
    if spec.has_action_masks:
        columns["action_mask"] = nested(joined(episodes, "action_masks"))
    if spec.has_behavior_probs:
        columns["behavior_probs"] = nested(joined(episodes, "behavior_probs"))
    return pa.table([columns[name] for name in schema.names], schema=schema)


def joined(episodes: list[Episode], name: str) -> Array:
    return np.concatenate([getattr(episode, name) for episode in episodes])


def each(episodes: list[Episode], name: str) -> Any:
    """One value per episode."""
    return require_package("pyarrow").array([getattr(episode, name) for episode in episodes])


def nested(array: Array | None) -> Any:
    """`[N, ...]` as an Arrow array of N lists."""
    pa = require_package("pyarrow")
    assert array is not None
    found = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found
