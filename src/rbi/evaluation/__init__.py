"""How good a policy is: episodes under a stated protocol, their scores, a film."""

from rbi.evaluation.outcomes import EpisodeScores, Outcome, RecentScores
from rbi.evaluation.rollout import Protocol, play
from rbi.evaluation.scores import PUBLISHED, human_normalised, summary

__all__ = [
    "PUBLISHED",
    "EpisodeScores",
    "Outcome",
    "Protocol",
    "RecentScores",
    "human_normalised",
    "play",
    "summary",
]
