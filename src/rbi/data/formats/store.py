"""Our own store, as a format among others."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Episode
from rbi.data.formats.seam import Asked, Outline
from rbi.data.store import Store, is_store


def recognises(path: Path) -> bool:
    return is_store(path)


def open_reader(path: Path, settings: Any) -> "StoreReader":
    return StoreReader(path, settings.asked)


class StoreReader:
    """Episodes of a store; a part is an episode's number."""

    parallel = False

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path, self.store = path, Store(path)
        spec = self.store.spec
        if asked.actions is not None and (asked.actions < spec.actions or spec.has_legal):
            raise ValueError(f"--actions {asked.actions}: {path} has {spec.actions}")
        self.spec = replace(
            spec,
            actions=asked.actions or spec.actions,
            stack=asked.stack or spec.stack,
            env=asked.env or spec.env,
        )

    def parts(self) -> Sequence[int]:
        return range(len(self.store))

    def read(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        try:
            yield self.store[part]
        except ValueError as error:
            yield RejectedEpisode(str(self.path), part + 1, str(error))

    def outline(self, part: int) -> Iterator[Outline | RejectedEpisode]:
        record = self.store.records[part]
        columns = {name: self.store.part(name, record) for name in ("actions", "rewards", "terminated", "life_lost")}
        yield Outline(
            columns["actions"],
            columns["rewards"],
            bool(columns["terminated"][-1]),
            bool(record["quit"]),
            int(np.sum(columns["life_lost"])),
            self.spec.has_probs,
            self.store.texts[record["player"]],
            self.store.texts[record["source"]],
            int(record["line"]),
        )
