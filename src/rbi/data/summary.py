"""Statistics of a dataset, from episode summaries and a few sampled episodes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rbi.data.dataset import Dataset, RejectedEpisode
from rbi.data.episode import Array, Episode
from rbi.data.formats.common import EpisodeSummary, Reader
from rbi.data.importing import Progress

BINS = 30
SHOWN_PLAYERS = 20


class DatasetSummary:
    """Scores, lengths, ends, actions and rewards of a dataset; keeps a few numbers per episode."""

    def __init__(self, num_actions: int) -> None:
        self.action_counts = np.zeros(num_actions, dtype=np.int64)
        self.scores: list[float] = []
        self.lengths: list[int] = []
        self.ends = {"terminated": 0, "time limit": 0, "abandoned": 0}
        self.nonzero_rewards = 0
        self.lives_lost: int | None = 0
        self.reward_range = (np.inf, -np.inf)
        self.has_action_probs = True
        self.player_scores: dict[str, list[float]] = {}
        self.rejections = Progress()
        self.num_lost = 0

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> "DatasetSummary":
        """The summary of a dataset in memory or a store, without a Python object per episode."""
        found, records = cls(dataset.spec.num_actions), dataset.records
        found.add_lost(dataset)
        found.has_action_probs = dataset.spec.has_action_probs
        if not len(dataset):
            return found
        rewards = dataset.arrays["rewards"]
        terminated = dataset.arrays["terminated"][records["first_step"] + records["steps"] - 1]
        abandoned = records["abandoned"].astype(bool)
        found.action_counts += np.bincount(dataset.arrays["actions"], minlength=len(found.action_counts))
        found.scores, found.lengths = records["score"].tolist(), records["steps"].tolist()
        found.ends = {
            "terminated": int(terminated.sum()),
            "time limit": int((~terminated & ~abandoned).sum()),
            "abandoned": int((~terminated & abandoned).sum()),
        }
        found.nonzero_rewards = int(np.count_nonzero(rewards))
        found.lives_lost = int(dataset.arrays["life_lost"].sum())
        found.reward_range = float(rewards.min()), float(rewards.max())
        for player in np.unique(records["player"]).tolist():
            found.player_scores[dataset.texts[player]] = records["score"][records["player"] == player].tolist()
        return found

    def add_lost(self, dataset: Dataset) -> None:
        """Count the episodes that were rejected by the import of a dataset, and those that it has lost since."""
        self.num_lost += dataset.num_lost
        for item in dataset.rejected:
            self.add(item)

    def add(self, item: EpisodeSummary | RejectedEpisode) -> None:
        if isinstance(item, RejectedEpisode):
            self.rejections.reject(item)
            return
        invalid = item.actions[(item.actions < 0) | (item.actions >= len(self.action_counts))]
        if len(invalid):
            reason = f"action {int(invalid[0])} is not possible among {len(self.action_counts)}"
            self.rejections.reject(RejectedEpisode(item.source, item.line, reason))
            return
        self.action_counts += np.bincount(item.actions, minlength=len(self.action_counts))
        score = float(item.rewards.sum(dtype=np.float64))
        self.scores.append(score)
        self.lengths.append(len(item.actions))
        self.ends["terminated" if item.terminated else "abandoned" if item.abandoned else "time limit"] += 1
        if self.lives_lost is not None:
            self.lives_lost = None if item.lives_lost is None else self.lives_lost + item.lives_lost
        self.nonzero_rewards += int(np.count_nonzero(item.rewards))
        low, high = self.reward_range
        self.reward_range = (min(low, float(item.rewards.min())), max(high, float(item.rewards.max())))
        self.has_action_probs &= item.has_action_probs
        self.player_scores.setdefault(item.player, []).append(score)

    def to_dict(self) -> dict[str, Any]:
        """All statistics, as result.json keeps them."""
        steps = int(np.sum(self.lengths))
        shares = self.action_counts / max(1, steps)
        taken = shares[shares > 0]
        players = sorted(self.player_scores.items(), key=lambda item: -len(item[1]))
        low, high = self.reward_range
        return {
            "episodes": len(self.scores),
            "steps": steps,
            "scores": distribution(self.scores),
            "lengths": distribution(self.lengths),
            "ends": self.ends,
            "lives_lost": self.lives_lost,
            "rewards": {"min": low, "max": high, "nonzero_share": self.nonzero_rewards / max(1, steps)},
            "actions": {int(action): int(self.action_counts[action]) for action in np.flatnonzero(self.action_counts)},
            "effective_actions": float(np.exp(-(taken * np.log(taken)).sum())) if len(taken) else 0.0,
            "has_action_probs": self.has_action_probs and bool(self.scores),
            "players": [
                {"name": name, "episodes": len(scores), "mean": float(np.mean(scores))}
                for name, scores in players[:SHOWN_PLAYERS]
            ],
            "num_players": len(players),
            "lost": self.num_lost,
            "rejected": self.rejections.rejected,
            "rejected_examples": self.rejections.examples(),
        }

    def __repr__(self) -> str:
        found = self.to_dict()
        lines = [f"{found['episodes']:,} episodes, {found['steps']:,} steps"]
        if self.scores:
            scores, lengths = found["scores"], found["lengths"]
            lines += [
                f"score:   mean {scores['mean']:.4g}, min {scores['min']:.4g}, max {scores['max']:.4g}",
                f"length:  mean {lengths['mean']:.4g}, min {lengths['min']:,}, max {lengths['max']:,}",
                f"ends:    {', '.join(f'{count:,} {name}' for name, count in self.ends.items() if count)}",
                f"actions: {len(found['actions'])} of {len(self.action_counts):,} taken",
            ]
        lines += [f"rejected: {found['rejected']:,}"] if found["rejected"] else []
        lines += [f"lost:    {found['lost']:,}"] if found["lost"] else []
        return "\n".join(lines)


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Quartiles, mean and a histogram."""
    if not values:
        return {"mean": None, "quartiles": None, "min": None, "max": None, "counts": [], "edges": []}
    counts, edges = np.histogram(values, bins=min(BINS, max(1, len(set(values)))))
    return {
        "mean": float(np.mean(values)),
        "quartiles": np.percentile(values, [25, 50, 75]),
        "min": min(values),
        "max": max(values),
        "counts": counts,
        "edges": edges,
    }


def part_summaries(reader: Reader) -> Iterator[Iterator[EpisodeSummary | RejectedEpisode]]:
    """The episode summaries of every part."""
    return (reader.summaries(part) for part in reader.parts())


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
    for number in rng.permutation(len(parts))[: 4 * episodes].tolist():
        found += [item for item in first(reader.read(parts[number]), 64) if isinstance(item, Episode)]
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
