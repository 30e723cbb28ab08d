"""Our own store, as a format among others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Episode
from rbi.data.formats.seam import EpisodeSummary, SpecOverrides
from rbi.data.store import Store, is_store


def recognises(path: Path) -> bool:
    return is_store(path)


def open_reader(path: Path, settings: Any) -> "StoreReader":
    return StoreReader(path, settings.overrides)


class StoreReader:
    """Episodes of a store; a part is an episode's number."""

    parallel = False

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path, self.store = path, Store(path)
        spec = self.store.spec
        if overrides.num_actions is not None and (overrides.num_actions < spec.num_actions or spec.has_action_masks):
            raise ValueError(f"--actions {overrides.num_actions}: {path} has {spec.num_actions}")
        self.spec = replace(
            spec,
            num_actions=overrides.num_actions or spec.num_actions,
            frame_stack=overrides.frame_stack or spec.frame_stack,
            env=overrides.env or spec.env,
        )

    def parts(self) -> Sequence[int]:
        return range(len(self.store))

    def read(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        try:
            yield self.store[part]
        except ValueError as error:
            yield RejectedEpisode(str(self.path), part + 1, str(error))

    def summaries(self, part: int) -> Iterator[EpisodeSummary | RejectedEpisode]:
        record = self.store.records[part]
        columns = {name: self.store.part(name, record) for name in ("actions", "rewards", "terminated", "life_lost")}
        yield EpisodeSummary(
            columns["actions"],
            columns["rewards"],
            bool(columns["terminated"][-1]),
            bool(record["abandoned"]),
            int(np.sum(columns["life_lost"])),
            self.spec.has_action_probs,
            self.store.texts[record["player"]],
            self.store.texts[record["source"]],
            int(record["line"]),
        )
