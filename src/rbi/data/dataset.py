"""Many episodes, laid out one after the other: a column of each kind, and an index that says where each one lies."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self, overload

import numpy as np

from rbi.data.episode import Array, DatasetSpec, Episode, one_column

RECORD = np.dtype(
    [
        ("first_observation", "<i8"),
        ("first_step", "<i8"),
        ("observations", "<i4"),
        ("steps", "<i4"),
        ("player", "<i4"),  # numbers of texts
        ("source", "<i4"),
        ("line", "<i8"),
        ("score", "<f8"),
        ("abandoned", "<u4"),
        ("checksum", "<u4"),  # CRC-32 of its bytes in all columns, in their order
    ]
)


class RejectedEpisode(NamedTuple):
    """An episode that was set aside."""

    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}{f', line {self.line}' if self.line else ''}: {self.reason}"


def columns(spec: DatasetSpec) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """The columns of a data set, each with the type and shape of one entry."""
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "observations": (spec.dtype, spec.obs_shape),
        "actions": (np.dtype("<i4"), ()),
        "rewards": (np.dtype("<f4"), ()),
        "terminated": (np.dtype(bool), ()),
        "truncated": (np.dtype(bool), ()),
        "life_lost": (np.dtype(bool), ()),
    }
    if spec.has_action_probs:
        found["action_probs"] = (np.dtype("<f4"), ())
    if spec.has_action_masks:
        found["action_masks"] = (np.dtype(bool), (spec.num_actions,))
    return found


class Dataset(Sequence[Episode]):
    """Dataset of one kind. `episodes[i]` copies nothing; `arrays` holds each column of all of them.

    `arrays["observations"]` is `[F, *frame]`, every other column `[S, ...]`; `records` has a `RECORD` an episode.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        arrays: dict[str, Array],
        records: Array,
        texts: Sequence[str],
        rejected: Sequence[RejectedEpisode] = (),
    ) -> None:
        self.spec, self.arrays, self.records, self.texts, self.rejected = spec, arrays, records, texts, list(rejected)
        self.feature_names: Sequence[str] = ()  # of vector observations, where the format has them

    @classmethod
    def from_episodes(
        cls, episodes: Iterable[Episode], spec: DatasetSpec | None = None, rejected: Sequence[RejectedEpisode] = ()
    ) -> Self:
        """Dataset in memory. Without a spec it is what they have in common."""
        episodes = list(episodes)
        spec = spec or common(episodes)
        texts: dict[str, int] = {}
        records = np.zeros(len(episodes), RECORD)
        frames = steps = 0
        for record, episode in zip(records, episodes, strict=True):
            episode.fits(spec)
            fill(record, episode, spec, frames, steps, texts)
            frames, steps = frames + len(episode.observations), steps + len(episode)
        arrays = {
            name: np.concatenate([np.zeros((0, *shape), dtype), *(getattr(episode, name) for episode in episodes)])[:]
            for name, (dtype, shape) in columns(spec).items()
        }
        for array in arrays.values():  # views, of memory that PyTorch may take
            array.flags.writeable = False
        return cls(spec, arrays, records, list(texts), rejected)

    @property
    def steps(self) -> int:
        return int(self.records["steps"].sum())

    @property
    def frames(self) -> int:
        return int(self.records["observations"].sum())

    @property
    def scores(self) -> Array:
        """The sum of each episode's rewards."""
        found: Array = self.records["score"]
        return found

    @property
    def players(self) -> list[str]:
        """Who played each episode."""
        return [self.texts[number] for number in self.records["player"]]

    def ends(self, *, lives: bool = True) -> Array:
        """`[S]` uint8: the three ends as codes of `returns`; without `lives` a lost one is none."""
        lost = self.arrays["life_lost"] if lives else np.zeros(1, bool)
        return one_column(self.arrays["terminated"], self.arrays["truncated"], lost)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, i: int) -> Episode: ...
    @overload
    def __getitem__(self, i: slice) -> list[Episode]: ...
    def __getitem__(self, i: int | slice) -> Episode | list[Episode]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        record = self.records[i]
        return Episode(
            **{name: self.part(name, record) for name in self.arrays},
            abandoned=bool(record["abandoned"]),
            player=self.texts[record["player"]],
            source=self.texts[record["source"]],
            line=int(record["line"]),
        )

    def part(self, name: str, record: Any) -> Array:
        """The part of a column that belongs to one episode."""
        which = ("first_observation", "observations") if name == "observations" else ("first_step", "steps")
        start, count = int(record[which[0]]), int(record[which[1]])
        return self.arrays[name][start : start + count]


def common(episodes: Sequence[Episode]) -> DatasetSpec:
    """What episodes share, as far as they show it."""
    if not episodes:
        raise ValueError("no episodes, and nothing said about them")
    masks = [episode.action_masks for episode in episodes]
    has_action_masks = all(mask is not None for mask in masks)
    return DatasetSpec(
        obs_shape=episodes[0].observations.shape[1:],
        num_actions=masks[0].shape[1] if has_action_masks else max(int(e.actions.max()) for e in episodes) + 1,  # type: ignore[union-attr]
        has_action_probs=all(episode.action_probs is not None for episode in episodes),
        has_action_masks=has_action_masks,
    )


def fill(record: Any, episode: Episode, spec: DatasetSpec, frames: int, steps: int, texts: dict[str, int]) -> None:
    """Describe an episode that begins at these places; texts get numbers as they appear."""
    record["first_observation"], record["first_step"] = frames, steps
    record["observations"], record["steps"] = len(episode.observations), len(episode)
    record["player"] = texts.setdefault(episode.player, len(texts))
    record["source"] = texts.setdefault(episode.source, len(texts))
    record["line"], record["score"], record["abandoned"] = episode.line, episode.score, episode.abandoned
    record["checksum"] = checksum(getattr(episode, name) for name in columns(spec))


def checksum(parts: Iterable[Array]) -> int:
    """CRC-32 of arrays, one after the other."""
    value = 0
    for part in parts:
        value = zlib.crc32(np.ascontiguousarray(part).data.cast("B"), value)
    return value
