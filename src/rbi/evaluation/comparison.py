"""Is a policy worse than the one that it came from? Scores of several seeds, held against the behaviour policy's.

Scores are `[seeds][episodes]`, a sequence for each seed. Every episode counts alike. Bootstraps draw a seed's episodes
from that seed's, as many as it has, and keep the seeds: what they say is of these seeds' policies, not of other seeds.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Scores = Sequence[Sequence[float]]
Call = Literal["above", "not below", "below", "open"]
MARGIN, CONFIDENCE = 0.05, 0.95
FEWEST = 10
"""Episodes a seed: a bootstrap of fewer is too sure of itself."""
ROUNDING = 1e-12  # relative: means of equal scores differ by less, whatever their number


class Intervals(NamedTuple):
    """95% intervals of the mean and of the interquartile mean."""

    mean: tuple[float, float]
    iqm: tuple[float, float]


class Verdict(NamedTuple):
    """What was found, the row's mean less the behaviour's, and the one-sided bounds of that difference."""

    call: Call
    difference: float
    lower: float
    upper: float


def iqm(values: Any) -> Array:
    """The interquartile mean over the last axis: of the middle half of the values, `[..., N]` to `[...]`.

    A value that lies half inside the middle half has half its weight.

    >>> float(iqm([1, 2, 3, 100]))
    2.5
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), -1)
    N = ordered.shape[-1]
    i = np.arange(N)
    weights = np.maximum(np.minimum(i + 1, 0.75 * N) - np.maximum(i, 0.25 * N), 0)
    middle: Array = ordered @ weights / weights.sum()
    return middle


def resampled(scores: Scores, rng: np.random.Generator) -> Array:
    """Bootstrap samples `[RESAMPLES, episodes of all seeds]`, each seed's episodes drawn among its own."""
    return np.concatenate([rng.choice(of_seed, (RESAMPLES, len(of_seed))) for of_seed in by_seed(scores)], 1)


def intervals(scores: Scores, rng: np.random.Generator) -> Intervals:
    """Where the mean and the interquartile mean lie, in 95% of bootstrap samples."""
    drawn = resampled(scores, rng)
    (low, high), (iqm_low, iqm_high) = (np.percentile(of, [2.5, 97.5]).tolist() for of in (drawn.mean(1), iqm(drawn)))
    return Intervals((low, high), (iqm_low, iqm_high))


def differences(scores: Scores, behaviour: Scores, rng: np.random.Generator) -> Array:
    """The row's mean less the behaviour's in bootstrap samples of both, `[RESAMPLES]`; what is rounding is 0."""
    ours, theirs = (resampled(of, rng).mean(1) for of in (scores, behaviour))
    return np.where(np.isclose(ours, theirs, rtol=ROUNDING, atol=0), 0.0, ours - theirs)


def below(scores: Scores, behaviour: Scores, rng: np.random.Generator) -> float:
    """The bootstrap probability that the row's mean is below the behaviour's; equal is not below."""
    return share_below(differences(scores, behaviour, rng))


def verdict(
    scores: Scores,
    behaviour: Scores,
    rng: np.random.Generator,
    *,
    margin: float = MARGIN,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """A test of non-inferiority by the one-sided bootstrap bounds of D = mean(row) - mean(behaviour), first that holds:

        above        lower(D) > 0
        not below    lower(D) >= -margin |mean(behaviour)|        what is lost, if anything, is within the margin
        below        upper(D) < 0
        open         otherwise, and wherever a seed has fewer than FEWEST episodes

    Each bound alone has the stated confidence. A loss that is sure but surely within the margin is "not below". Where
    the behaviour's mean is near 0 the margin is too, and more episodes are needed.
    """
    return judged(differences(scores, behaviour, rng), scores, behaviour, margin, confidence)


def judged(drawn: Array, scores: Scores, behaviour: Scores, margin: float, confidence: float) -> Verdict:
    """`verdict` from bootstrap differences."""
    if not 0 <= margin < 1:
        raise ValueError(f"margin = {margin}: must lie in [0, 1)")
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence = {confidence}: must lie in [0.5, 1)")
    lower, upper = np.quantile(drawn, [1 - confidence, confidence]).tolist()
    base = mean(behaviour)
    enough = min(len(of_seed) for of_seed in (*scores, *behaviour)) >= FEWEST
    call = called(lower, upper, margin * abs(base)) if enough else "open"
    return Verdict(call, mean(scores) - base, lower, upper)


def called(lower: float, upper: float, room: float) -> Call:
    """What bounds of the difference say, where losing up to `room` is allowed."""
    if lower > 0:
        return "above"
    if lower >= -room:
        return "not below"
    return "below" if upper < 0 else "open"


def row(
    scores: Scores,
    behaviour: Scores | None,
    rng: np.random.Generator,
    *,
    margin: float = MARGIN,
    confidence: float = CONFIDENCE,
) -> dict[str, Any]:
    """All that a table says of a policy; what compares it is None where there is nothing to compare it with."""
    values = by_seed(scores)
    least, quarter, median, three_quarters, most = np.percentile(np.concatenate(values), [0, 25, 50, 75, 100]).tolist()
    found = intervals(scores, rng)
    told: dict[str, Any] = {
        "episodes": sum(map(len, values)),
        "seeds": len(values),
        "mean": mean(scores),
        "interval": list(found.mean),
        "iqm": float(iqm(np.concatenate(values))),
        "iqm_interval": list(found.iqm),
        "median": median,
        "quartiles": [quarter, three_quarters],
        "least": least,
        "most": most,
        "seed_means": [float(of_seed.mean()) for of_seed in values],
    }
    if behaviour is None:
        return told | dict.fromkeys(("below", "verdict", "difference", "difference_bounds"))
    drawn = differences(scores, behaviour, rng)
    call, difference, lower, upper = judged(drawn, scores, behaviour, margin, confidence)
    compared = {"verdict": call, "difference": difference, "difference_bounds": [lower, upper]}
    return told | {"below": share_below(drawn)} | compared


def share_below(drawn: Array) -> float:
    return float((drawn < 0).mean())


def mean(scores: Scores) -> float:
    """Of all episodes."""
    return float(np.concatenate(by_seed(scores)).mean())


def by_seed(scores: Scores) -> list[Array]:
    """Each seed's scores as an array; what cannot be compared is refused."""
    values = [np.asarray(of_seed, dtype=np.float64) for of_seed in scores]
    if not values:
        raise ValueError("scores: of no seed; at least one is needed")
    for seed, of_seed in enumerate(values):
        if of_seed.ndim != 1 or not len(of_seed):
            raise ValueError(f"scores of seed {seed}, shape {of_seed.shape}: must be a list of one episode or more")
        if not np.isfinite(of_seed).all():
            raise ValueError(f"scores of seed {seed}: {of_seed[~np.isfinite(of_seed)][0]} is not finite")
    return values


# ---- from rbi.evaluation.scores: What a set of scores says, and the published ones to hold it against.

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
