"""Evaluation of policies: rollouts under a stated protocol, comparison, recording of episodes, video."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbi.evaluation.comparison import PUBLISHED, compare, human_normalised, verdict
    from rbi.evaluation.rollouts import (
        EpisodeResult,
        EpisodeStatistics,
        EvaluationResult,
        Protocol,
        RecentScores,
        VectorEvaluator,
        evaluate,
        run_episodes,
    )

__all__ = [
    "PUBLISHED",
    "EpisodeResult",
    "EpisodeStatistics",
    "EvaluationResult",
    "Protocol",
    "RecentScores",
    "VectorEvaluator",
    "compare",
    "evaluate",
    "human_normalised",
    "run_episodes",
    "verdict",
]


def __getattr__(name: str) -> Any:
    """Import public names when they are used: rollouts need PyTorch, which is slow to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rbi.evaluation import comparison, rollouts

    return getattr(comparison if hasattr(comparison, name) else rollouts, name)
