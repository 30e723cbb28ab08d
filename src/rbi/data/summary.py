"""Summaries of data in any format, without importing it, and a few of its observations."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rbi.data.dataset_summary import DatasetSummary
from rbi.data.episode import Array, Episode
from rbi.data.formats import ColumnReader, StoreReader
from rbi.data.formats.reader import Reader, summaries_of
from rbi.progress import track

MAX_SAMPLED = 64  # episodes with observations


def summarize_data(reader: Reader) -> DatasetSummary:
    """The summary of data in any format, without importing it: columns where the format has them, else episodes."""
    found = DatasetSummary(reader.spec.num_actions)
    if isinstance(reader, StoreReader):
        found.add_lost(reader.store)
    for part in track(reader.parts(), "reading"):
        if isinstance(reader, ColumnReader):
            for dataset, rejected in reader.datasets(part):
                found.add_dataset(dataset)
                for item in rejected:
                    found.add(item)
        else:
            for episode in summaries_of(reader, part):
                found.add(episode)
    return found


class SampledObservations(NamedTuple):
    """Observations of a few episodes."""

    frames: Array
    """`[N, *obs_shape]`"""
    distinct: int
    """Distinct observations among all of these episodes."""
    total: int


def sample_observations(
    reader: Reader, rng: np.random.Generator, episodes: int = 4, frames: int = 12
) -> SampledObservations | None:
    """Observations of some valid episodes; None if there are none."""
    parts = reader.parts()
    found: list[Episode] = []
    each = max(1, MAX_SAMPLED // max(1, len(parts)))
    for number in rng.permutation(len(parts))[: 4 * episodes].tolist():
        found += [item for item in first(reader.read(parts[number]), each) if isinstance(item, Episode)]
        if len(found) >= episodes:
            break
    if not found:
        return None
    observed = np.concatenate([episode.observations for episode in found])
    rows = np.ascontiguousarray(observed).reshape(len(observed), -1).view(np.uint8)
    distinct = len({row.tobytes() for row in rows})
    chosen = np.linspace(0, len(observed) - 1, min(frames, len(observed))).astype(int)
    return SampledObservations(observed[chosen], distinct, len(observed))


def first(items: Iterable[Any], count: int) -> Iterator[Any]:
    return (item for item, _ in zip(items, range(count), strict=False))
