"""Policies and other players at play: scores under a stated protocol, films, recordings of episodes."""

from rbi.evaluation.arena import Arena, play
from rbi.evaluation.outcomes import EpisodeScores, Outcome, RecentScores
from rbi.evaluation.rollout import Protocol
from rbi.evaluation.scores import PUBLISHED, human_normalised, summary

__all__ = [
    "PUBLISHED",
    "Arena",
    "EpisodeScores",
    "Outcome",
    "Protocol",
    "RecentScores",
    "human_normalised",
    "play",
    "summary",
]
