"""What every reader of a format gives: what the data is, its parts, and the episodes of a part."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec, Episode


@dataclass(frozen=True)
class SpecOverrides:
    """What the user says about data that does not say it itself."""

    env: str = ""
    """The environment's Gymnasium id, such as ALE/Qbert-v5 or CartPole-v1."""
    num_actions: int | None = None
    """How many actions there are; if not given, what the data says, or one more than the largest one seen."""
    frame_stack: int | None = None
    """How many observations make a state; if not given, 4 for pictures and 1 for vectors."""

    def __post_init__(self) -> None:
        for name in ("num_actions", "frame_stack"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} = {getattr(self, name)}: must be at least 1")


class EpisodeSummary(NamedTuple):
    """An episode without its observations."""

    actions: Array
    rewards: Array
    terminated: bool
    abandoned: bool
    lives_lost: int | None
    """None where only an import finds them."""
    has_action_probs: bool
    player: str
    source: str
    line: int


class Reader(Protocol):
    """A data set in some format. It can be sent to another process, so it holds no open files.

    `path`: where it is. `spec`: what its episodes share. `parallel`: parts are small and can be read side by side.
    """

    path: Path
    spec: DatasetSpec
    parallel: bool

    def parts(self) -> Sequence[Any]:
        """What can be read on its own, in order: files, or episodes."""

    def read(self, part: Any) -> Iterator[Episode | RejectedEpisode]:
        """The episodes of a part, in order, one at a time; one that cannot be used is told as a problem."""

    def summaries(self, part: Any) -> Iterator[EpisodeSummary | RejectedEpisode]:
        """The same without observations, where that is cheaper."""


@runtime_checkable
class OneEach(Protocol):
    """A reader whose parts are one episode each, in a file of its own."""

    def file_of(self, part: Any) -> str:
        """The source of the only episode of a part, known without reading it."""


def summarize(episode: Episode) -> EpisodeSummary:
    """What an episode is like without its observations."""
    return EpisodeSummary(
        episode.actions,
        episode.rewards,
        bool(episode.terminated[-1]),
        episode.abandoned,
        int(np.sum(episode.life_lost)),
        episode.action_probs is not None,
        episode.player,
        episode.source,
        episode.line,
    )


def summaries(found: Iterator[Episode | RejectedEpisode]) -> Iterator[EpisodeSummary | RejectedEpisode]:
    """Outlines by reading everything: for formats in which nothing is gained by less."""
    for item in found:
        yield item if isinstance(item, RejectedEpisode) else summarize(item)


def needs(package: str, extra: str = "data") -> Any:
    """An optional package, or one line that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        raise ValueError(f"this format needs {name}: pip install 'rbi[{extra}]'") from None
