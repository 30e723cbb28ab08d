"""The interface of format readers, and what they share."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge

from rbi.config import check_fields
from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec, Episode


@dataclass(frozen=True)
class SpecOverrides:
    """Properties of a dataset that its files do not state, or state wrongly."""

    env: str = ""
    """Gymnasium id of the environment, such as ALE/Qbert-v5 or CartPole-v1."""
    num_actions: Annotated[int, Ge(1)] | None = None
    """Number of actions. Default: what the data states, or the largest action plus one."""
    frame_stack: Annotated[int, Ge(1)] | None = None
    """Number of observations that are stacked to a state. Default: 4 for images, 1 for vectors."""

    def __post_init__(self) -> None:
        check_fields(self, "--")


class EpisodeSummary(NamedTuple):
    """An episode without its observations."""

    actions: Array
    rewards: Array
    terminated: bool
    abandoned: bool
    lives_lost: int | None
    """None if only an import can find them."""
    has_action_probs: bool
    player: str
    source: str
    line: int


class Reader(Protocol):
    """Reads a dataset in some format. It can be pickled, so it holds no open files.

    `path`: the data. `spec`: what all episodes share. `parallel`: parts are small and can be read by several processes.
    """

    path: Path
    parallel: bool

    @property
    def spec(self) -> DatasetSpec: ...

    def parts(self) -> Sequence[Any]:
        """What can be read independently, in order: files or episodes."""

    def read(self, part: Any) -> Iterator[Episode | RejectedEpisode]:
        """The episodes of a part, in order; unusable ones come as `RejectedEpisode`."""

    def summaries(self, part: Any) -> Iterator[EpisodeSummary | RejectedEpisode]:
        """The same without observations, which is cheaper in some formats."""


@runtime_checkable
class OneEpisodePerPart(Protocol):
    """A reader whose parts are single episodes in files of their own."""

    def file_of(self, part: Any) -> str:
        """The `source` of a part's episode, known without reading it."""


def summarize(episode: Episode) -> EpisodeSummary:
    """An episode without its observations."""
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


def summarize_all(items: Iterator[Episode | RejectedEpisode]) -> Iterator[EpisodeSummary | RejectedEpisode]:
    """Summaries from full episodes, for formats in which skipping observations saves nothing."""
    for item in items:
        yield item if isinstance(item, RejectedEpisode) else summarize(item)


def require_package(package: str, extra: str = "data") -> Any:
    """Import an optional package, or raise a ValueError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        raise ValueError(f"this format needs {name}: pip install 'rbi[{extra}]'") from None
