"""Scores of episodes as they finish: raw rewards, summed from the first frame to the last."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from rbi.envs import Seen
from rbi.returns import TERMINATED, TRUNCATED


@dataclass(frozen=True)
class Outcome:
    """A finished episode of one player."""

    player: int
    score: float
    steps: int
    cut_off: bool
    """Whether time ran out."""


class EpisodeScores:
    """Adds up the rewards of players side by side."""

    def __init__(self, players: int) -> None:
        self.score = np.zeros(players)
        self.steps = np.zeros(players, dtype=np.int64)

    def see(self, seen: Seen) -> list[Outcome]:
        """Count a step of every player; the episodes that it ended."""
        self.score = np.where(seen.first, 0.0, self.score + seen.reward)
        self.steps = np.where(seen.first, 0, self.steps + 1)
        over = (seen.end == TERMINATED) | (seen.end == TRUNCATED)
        if not over.any():
            return []
        return [
            Outcome(int(i), float(self.score[i]), int(self.steps[i]), bool(seen.end[i] == TRUNCATED))
            for i in np.flatnonzero(over)
        ]


class RecentScores:
    """The newest finished episodes of the players that explore least, and of all: two a player, 20 to 100 in all."""

    def __init__(self, careful_players: int) -> None:
        window = max(20, min(100, 2 * careful_players))
        self.of_all: deque[float] = deque(maxlen=window)
        self.of_careful: deque[float] = deque(maxlen=window)
        self.episodes = 0

    def add(self, episode: Outcome, *, careful: bool) -> None:
        self.episodes += 1
        self.of_all.append(episode.score)
        if careful:
            self.of_careful.append(episode.score)

    def metrics(self) -> dict[str, Any]:
        """Mean scores, and quartiles of the careful players'; None until an episode has finished."""
        low, high = np.percentile(self.of_careful, [25, 75]).tolist() if self.of_careful else (None, None)
        return {
            "score": float(np.mean(self.of_careful)) if self.of_careful else None,
            "score_low": low,
            "score_high": high,
            "score_all": float(np.mean(self.of_all)) if self.of_all else None,
            "episodes": self.episodes,
        }

    def state(self) -> dict[str, Any]:
        return {"of_all": list(self.of_all), "of_careful": list(self.of_careful), "episodes": self.episodes}

    def restore(self, state: dict[str, Any]) -> None:
        self.of_all.extend(state["of_all"])
        self.of_careful.extend(state["of_careful"])
        self.episodes = state["episodes"]
