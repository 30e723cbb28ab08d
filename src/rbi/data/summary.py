"""What can be said about a data set from its summaries and a few of its episodes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, Episode
from rbi.data.formats.seam import EpisodeSummary, Reader
from rbi.data.importing import Tally

BINS = 30
SHOWN_PLAYERS = 20


class DatasetSummary:
    """Adds up summaries as they come: numbers an episode, never its steps."""

    def __init__(self, actions: int) -> None:
        self.taken = np.zeros(actions, dtype=np.int64)
        self.scores: list[float] = []
        self.lengths: list[int] = []
        self.ends = {"terminated": 0, "time limit": 0, "abandoned": 0}
        self.rewarded = 0
        self.lives_lost: int | None = 0
        self.rewards = (np.inf, -np.inf)
        self.logged = True
        self.of_player: dict[str, list[float]] = {}
        self.rejected = Tally()

    def add(self, item: EpisodeSummary | RejectedEpisode) -> None:
        if isinstance(item, RejectedEpisode):
            self.rejected.add(item)
            return
        strange = item.actions[(item.actions < 0) | (item.actions >= len(self.taken))]
        if len(strange):
            reason = f"action {int(strange[0])} is not possible among {len(self.taken)}"
            self.rejected.add(RejectedEpisode(item.source, item.line, reason))
            return
        self.taken += np.bincount(item.actions, minlength=len(self.taken))
        score = float(item.rewards.sum(dtype=np.float64))
        self.scores.append(score)
        self.lengths.append(len(item.actions))
        self.ends["terminated" if item.terminated else "abandoned" if item.abandoned else "time limit"] += 1
        if self.lives_lost is not None:
            self.lives_lost = None if item.lives_lost is None else self.lives_lost + item.lives_lost
        self.rewarded += int(np.count_nonzero(item.rewards))
        low, high = self.rewards
        self.rewards = (min(low, float(item.rewards.min())), max(high, float(item.rewards.max())))
        self.logged &= item.has_action_probs
        self.of_player.setdefault(item.player, []).append(score)

    def told(self) -> dict[str, Any]:
        """Everything, as result.json keeps it."""
        steps = int(np.sum(self.lengths))
        shares = self.taken / max(1, steps)
        seen = shares[shares > 0]
        players = sorted(self.of_player.items(), key=lambda item: -len(item[1]))
        return {
            "episodes": len(self.scores),
            "steps": steps,
            "scores": spread(self.scores),
            "lengths": spread(self.lengths),
            "ends": self.ends,
            "lives_lost": self.lives_lost,
            "rewards": {"least": self.rewards[0], "most": self.rewards[1], "share": self.rewarded / max(1, steps)},
            "actions": {int(action): int(self.taken[action]) for action in np.flatnonzero(self.taken)},
            "actions_effective": float(np.exp(-(seen * np.log(seen)).sum())) if len(seen) else 0.0,
            "logging_probabilities": self.logged and bool(self.scores),
            "players": [
                {"name": name, "episodes": len(scores), "mean": float(np.mean(scores))}
                for name, scores in players[:SHOWN_PLAYERS]
            ],
            "players_in_all": len(players),
            "set_aside": self.rejected.set_aside,
            "problems": [{"kind": kind, "first": str(first)} for kind, first in self.rejected.reasons.items()],
        }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Quartiles, mean and a histogram."""
    if not values:
        return {"mean": None, "quartiles": None, "least": None, "most": None, "counts": [], "edges": []}
    counts, edges = np.histogram(values, bins=min(BINS, max(1, len(set(values)))))
    return {
        "mean": float(np.mean(values)),
        "quartiles": np.percentile(values, [25, 50, 75]),
        "least": min(values),
        "most": max(values),
        "counts": counts,
        "edges": edges,
    }


def summaries(reader: Reader) -> Iterator[Iterator[EpisodeSummary | RejectedEpisode]]:
    """The summaries of every part."""
    return (reader.summaries(part) for part in reader.parts())


class Sampled(NamedTuple):
    """What a few episodes show."""

    frames: Array
    """`[N, *frame]`"""
    distinct: int
    """Different observations among those looked at."""
    looked_at: int


def sample(reader: Reader, rng: np.random.Generator, episodes: int = 4, frames: int = 12) -> Sampled | None:
    """Observations of some episodes that can be used; None if none can."""
    found: list[Episode] = []
    for part in pick(reader.parts(), rng, 4 * episodes):
        found += [item for item in first(reader.read(part), 64) if isinstance(item, Episode)]
        if len(found) >= episodes:
            break
    if not found:
        return None
    seen = np.concatenate([episode.observations for episode in found])
    rows = np.ascontiguousarray(seen).reshape(len(seen), -1).view(np.uint8)
    distinct = len({row.tobytes() for row in rows})
    chosen = np.linspace(0, len(seen) - 1, min(frames, len(seen))).astype(int)
    return Sampled(seen[chosen], distinct, len(seen))


def pick(parts: Sequence[Any], rng: np.random.Generator, count: int) -> list[Any]:
    chosen = rng.permutation(len(parts))[:count]
    return [parts[int(i)] for i in chosen]


def first(items: Iterable[Any], count: int) -> Iterator[Any]:
    return (item for item, _ in zip(items, range(count), strict=False))
