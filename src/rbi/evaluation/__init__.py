"""Policies and other players at play: scores under a stated protocol, films, recordings of episodes."""

from rbi.evaluation.comparison import PUBLISHED, human_normalised, summary
from rbi.evaluation.rollouts import Arena, EpisodeResult, EpisodeScores, Protocol, RecentScores, play

__all__ = [
    "PUBLISHED",
    "Arena",
    "EpisodeScores",
    "EpisodeResult",
    "Protocol",
    "RecentScores",
    "human_normalised",
    "play",
    "summary",
]
