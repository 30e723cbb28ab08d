"""What a set of scores says, and the published ones to hold it against."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 2000


class Published(NamedTuple):
    """Scores of one Atari game: random play, a human tester, Rainbow (no-op starts), and the paper's two columns."""

    random: float
    human: float
    rainbow: float
    paper_rbi: float | None
    paper_apex: float | None


PUBLISHED = {
    "Asterix": Published(210, 8503.3, 428200.3, 838018.3, 926429.2),
    "Berzerk": Published(123.7, 2630.4, 2545.6, 12159.3, 43867.7),
    "Breakout": Published(1.7, 30.5, 417.5, 780.4, 515.2),
    "Enduro": Published(0, 860.5, 2125.9, 2260.9, 2276.1),
    "Freeway": Published(0, 29.6, 34.0, 34.0, 34.0),
    "Frostbite": Published(65.2, 4334.7, 9590.5, 9655.0, 8917.3),
    "IceHockey": Published(-11.2, 0.9, 1.1, 40.4, 39.9),
    "Kangaroo": Published(52, 3035, 14637.5, 14426.7, 14897.5),
    "MsPacman": Published(307.3, 6951.6, 5380.4, 8193.9, 6401.8),
    "Qbert": Published(163.9, 13455, 33817.5, 32894.2, 26127.5),
    "Seaquest": Published(68.4, 42054.7, 15898.9, 26963.7, 12920.7),
    "SpaceInvaders": Published(148, 1668.7, 18729.0, 45155.8, 40923.4),
    "MontezumaRevenge": Published(0, 4753.3, 384.0, None, None),
}


def game_name(env: str) -> str:
    """The game of a Gymnasium id.

    >>> game_name("ALE/Breakout-v5")
    'Breakout'
    """
    return env.removeprefix("ALE/").rsplit("-v", 1)[0]


def human_normalised(env: str, score: float) -> float | None:
    """0 for random play, 1 for the human tester; None where nobody has published the two.

    >>> human_normalised("ALE/Breakout-v5", 30.5)
    1.0
    """
    known = PUBLISHED.get(game_name(env)) if env.startswith("ALE/") else None
    return None if known is None else (score - known.random) / (known.human - known.random)


def summary(scores: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """Mean with its 95% bootstrap interval, median, quartiles, range."""
    values = np.asarray(scores, dtype=np.float64)
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    low, high = np.percentile(drawn.mean(1), [2.5, 97.5])
    quarter, median, three_quarters = np.percentile(values, [25, 50, 75])
    return {
        "episodes": len(values),
        "mean": float(values.mean()),
        "interval": [float(low), float(high)],
        "median": float(median),
        "quartiles": [float(quarter), float(three_quarters)],
        "least": float(values.min()),
        "most": float(values.max()),
    }
