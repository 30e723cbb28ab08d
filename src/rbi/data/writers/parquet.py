"""Episodes as a Parquet table, one row a step: for pandas, RLlib and whatever else reads tables.

    episode_id, t        episodes and their steps, numbered from 0
    obs                  a list; lists of lists for pictures
    action, reward, terminated, truncated, life_lost
    final_obs            what was observed after the last step, in that row, if it was kept; null in all others
    action_prob          the logging probability, where the data set has it
    action_mask          a list of booleans, one for each action, where the data set has it
    player, source, line, quit

The schema keeps under the key `rbi` what all episodes share, as JSON, so that our reader gives back what was written.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rbi import runs
from rbi.data.episode import Array, Episode, Spec
from rbi.data.readers.parquet import OWN_KEY
from rbi.data.readers.seam import needs

GROUP_BYTES = 1 << 25


def write_parquet(episodes: Iterable[Episode], spec: Spec, path: Path) -> None:
    """Write episodes into one file, which appears when it is whole."""
    parquet = needs("pyarrow.parquet")
    schema = schema_of(spec)

    def write(growing: Path) -> None:
        with parquet.ParquetWriter(growing, schema) as writer:
            for tables in groups(to_table(episode, number, spec, schema) for number, episode in enumerate(episodes)):
                writer.write_table(needs("pyarrow").concat_tables(tables))

    runs.write_whole(path, write)


def groups(tables: Iterator[Any]) -> Iterator[list[Any]]:
    """Tables one after the other, as many as are written together."""
    waiting: list[Any] = []
    size = 0
    for table in tables:
        waiting.append(table)
        size += table.nbytes
        if size >= GROUP_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def schema_of(spec: Spec) -> Any:
    """The columns, their types, and what all episodes share."""
    pa = needs("pyarrow")
    observation = pa.from_numpy_dtype(spec.dtype)
    for size in reversed(spec.frame):
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
        "quit": pa.bool_(),
    }
    if spec.has_probs:
        columns["action_prob"] = pa.float32()
    if spec.has_legal:
        columns["action_mask"] = pa.list_(pa.bool_(), spec.actions)
    return pa.schema(list(columns.items()), metadata={OWN_KEY: json.dumps(asdict(spec))})


def to_table(episode: Episode, number: int, spec: Spec, schema: Any) -> Any:
    """The rows of one episode."""
    pa = needs("pyarrow")
    try:
        episode.fits(spec)
    except ValueError as error:
        raise ValueError(f"episode {number + 1}: {error}") from None
    steps = len(episode)
    observation = schema.field("obs").type
    final = nested(episode.observations[steps:]) if episode.has_final else pa.nulls(1, observation)
    columns: dict[str, Any] = {
        "episode_id": np.full(steps, number),
        "t": np.arange(steps),
        "obs": nested(episode.observations[:steps]),
        "action": episode.actions,
        "reward": episode.rewards,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "life_lost": episode.life_lost,
        "final_obs": pa.concat_arrays([pa.nulls(steps - 1, observation), final]),
        "player": pa.repeat(episode.player, steps),
        "source": pa.repeat(episode.source, steps),
        "line": np.full(steps, episode.line),
        "quit": np.full(steps, episode.quit),
    }
    if spec.has_probs:
        columns["action_prob"] = episode.action_probs
    if spec.has_legal:
        columns["action_mask"] = nested(episode.legal)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def nested(array: Array | None) -> Any:
    """`[N, ...]` as an Arrow array of N lists."""
    pa = needs("pyarrow")
    assert array is not None
    found = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found
