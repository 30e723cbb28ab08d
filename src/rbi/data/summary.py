"""Scores, lengths, ends, actions, rewards and players of a dataset, counted episode by episode or by columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rbi.data.episode import Array, Episode, RejectedEpisode, Rejections

if TYPE_CHECKING:
    from rbi.data.dataset import Dataset

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
        """None if only an import can find them."""
        self.reward_range = (np.inf, -np.inf)
        self.has_action_probs = True
        self.players: dict[str, tuple[int, float]] = {}
        """Number of episodes and sum of scores."""
        self.rejections = Rejections()
        self.num_lost = 0

    @classmethod
    def of_dataset(cls, dataset: "Dataset") -> "DatasetSummary":
        """The summary of a dataset in memory or a store, without a Python object per episode."""
        found = cls(dataset.spec.num_actions)
        found.add_lost(dataset)
        found.add_dataset(dataset)
        return found

    def add_lost(self, dataset: "Dataset") -> None:
        """Count the episodes that were rejected by the import of a dataset, and those that it has lost since."""
        self.num_lost += dataset.num_lost
        for item in dataset.rejected:
            self.add(item)

    def add_dataset(self, dataset: "Dataset") -> None:
        """Add all episodes of a dataset whose actions are all possible."""
        self.has_action_probs &= dataset.spec.has_action_probs
        if not len(dataset):
            return
        records, rewards = dataset.records, dataset.arrays["rewards"]
        terminated = dataset.arrays["terminated"][records["first_step"] + records["steps"] - 1]
        abandoned = records["abandoned"].astype(bool)
        self.action_counts += np.bincount(dataset.arrays["actions"], minlength=len(self.action_counts))
        self.scores += records["score"].tolist()
        self.lengths += records["steps"].tolist()
        self.ends["terminated"] += int(terminated.sum())
        self.ends["time limit"] += int((~terminated & ~abandoned).sum())
        self.ends["abandoned"] += int((~terminated & abandoned).sum())
        self.nonzero_rewards += int(np.count_nonzero(rewards))
        if self.lives_lost is not None:
            self.lives_lost += int(dataset.arrays["life_lost"].sum())
        self.add_rewards(rewards)
        players, which, counts = np.unique(records["player"], return_inverse=True, return_counts=True)
        totals = np.bincount(which, records["score"])
        for player, count, total in zip(players.tolist(), counts.tolist(), totals.tolist(), strict=True):
            self.add_player(dataset.texts[player], count, total)

    def add(self, item: Episode | RejectedEpisode) -> None:
        """Add one episode, or count it as rejected."""
        if isinstance(item, RejectedEpisode):
            self.rejections.reject(item)
            return
        invalid = item.actions[(item.actions < 0) | (item.actions >= len(self.action_counts))]
        if len(invalid):
            reason = f"action {int(invalid[0])} is not possible among {len(self.action_counts)}"
            self.rejections.reject(RejectedEpisode(item.source, item.line, reason))
            return
        self.action_counts += np.bincount(item.actions, minlength=len(self.action_counts))
        score = item.score
        self.scores.append(score)
        self.lengths.append(len(item))
        self.ends["terminated" if item.terminated[-1] else "abandoned" if item.abandoned else "time limit"] += 1
        if self.lives_lost is not None:
            self.lives_lost += int(item.life_lost.sum())
        self.nonzero_rewards += int(np.count_nonzero(item.rewards))
        self.add_rewards(item.rewards)
        self.has_action_probs &= item.action_probs is not None
        self.add_player(item.player, 1, score)

    def add_rewards(self, rewards: Array) -> None:
        low, high = self.reward_range
        self.reward_range = min(low, float(rewards.min())), max(high, float(rewards.max()))

    def add_player(self, name: str, episodes: int, total: float) -> None:
        before, score = self.players.get(name, (0, 0.0))
        self.players[name] = before + episodes, score + total

    def to_dict(self) -> dict[str, Any]:
        """All statistics, as result.json keeps them."""
        steps = int(np.sum(self.lengths))
        shares = self.action_counts / max(1, steps)
        taken = shares[shares > 0]
        players = sorted(self.players.items(), key=lambda item: -item[1][0])
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
                {"name": name, "episodes": count, "mean": total / count}
                for name, (count, total) in players[:SHOWN_PLAYERS]
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
    equal = np.ptp(values) <= 1e-9 * max(map(abs, (min(values), max(values))))  # but for rounding
    counts, edges = np.histogram(values, bins=1 if equal else min(BINS, len(set(values))))
    return {
        "mean": float(np.mean(values)),
        "quartiles": np.percentile(values, [25, 50, 75]),
        "min": min(values),
        "max": max(values),
        "counts": counts,
        "edges": edges,
    }
