"""Comparison of policies by their scores: is a policy worse than the behaviour policy? And human-normalised scores.

Scores are `[seeds][episodes]`: one sequence of episode scores for each seed. All episodes have the same weight.
Bootstraps resample the episodes of each seed and keep the seeds, so intervals are about these seeds' policies, not
about other seeds.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rbi.statistics import Array, bootstrap_samples, iqm, percentile_interval

Scores = Sequence[Sequence[float]]
Outcome = Literal["above", "not below", "below", "open"]
MARGIN, CONFIDENCE = 0.05, 0.95
MIN_EPISODES = 10
"""Episodes per seed; bootstrap intervals of fewer are too narrow."""
ROUNDING = 1e-12  # relative: means of equal scores differ by less, whatever their number


class Intervals(NamedTuple):
    """95% bootstrap intervals of the mean and of the interquartile mean."""

    mean: tuple[float, float]
    iqm: tuple[float, float]


class Verdict(NamedTuple):
    """Outcome of the test, mean(policy) - mean(behavior), one-sided confidence bounds of that difference, and the
    bootstrap probability that it is below 0; equal is not below."""

    outcome: Outcome
    difference: float
    lower: float
    upper: float
    below: float


def intervals(scores: Scores, rng: np.random.Generator) -> Intervals:
    """95% bootstrap intervals of the mean and the interquartile mean."""
    drawn = bootstrap_samples(by_seed(scores), rng)
    (low, high), (iqm_low, iqm_high) = (percentile_interval(of).tolist() for of in (drawn.mean(1), iqm(drawn)))
    return Intervals((low, high), (iqm_low, iqm_high))


def bootstrap_differences(scores: Scores, behavior: Scores, rng: np.random.Generator) -> Array:
    """mean(policy) - mean(behavior) in bootstrap samples of both, `[resamples]`; rounding errors count as 0."""
    ours, theirs = (bootstrap_samples(by_seed(of), rng).mean(1) for of in (scores, behavior))
    return differences_of(ours, theirs)


def differences_of(ours: Array, theirs: Array) -> Array:
    """ours - theirs; rounding errors count as 0."""
    return np.where(np.isclose(ours, theirs, rtol=ROUNDING, atol=0), 0.0, ours - theirs)


def probability_below_over_seeds(scores: Scores, behavior: Scores, rng: np.random.Generator) -> float:
    """Bootstrap probability that the policies of other seeds have a mean below the behaviour policy's.

    Seeds are resampled in pairs, the policy's with the behaviour policy's, and the episodes of each within it.
    """
    ours, theirs = (seed_means(by_seed(of), rng) for of in (scores, behavior))
    chosen = rng.integers(ours.shape[1], size=ours.shape)
    ours, theirs = (np.take_along_axis(of, chosen, axis=1).mean(1) for of in (ours, theirs))
    return share_below(differences_of(ours, theirs))


def seed_means(values: Sequence[Array], rng: np.random.Generator) -> Array:
    """The mean of each seed in bootstrap samples of its episodes, `[resamples, seeds]`."""
    return np.stack([bootstrap_samples([of_seed], rng).mean(1) for of_seed in values], 1)


def verdict(scores: Scores, behavior: Scores, rng: np.random.Generator, *, margin: float = MARGIN) -> Verdict:
    """Non-inferiority test by one-sided bootstrap bounds of D = mean(policy) - mean(behavior); the first that holds:

        above        lower(D) > 0
        not below    lower(D) >= -margin |mean(behavior)|        a loss, if there is one, is within the margin
        below        upper(D) < 0
        open         otherwise, and whenever a seed has fewer than MIN_EPISODES episodes

    Each bound alone has a confidence of 95%. A certain loss within the margin is "not below". The margin is relative:
    where the behaviour policy's mean is near 0, more episodes are needed.
    """
    if not 0 <= margin < 1:
        raise ValueError(f"margin = {margin}: must lie in [0, 1)")
    differences = bootstrap_differences(scores, behavior, rng)
    lower, upper = percentile_interval(differences, (1 - CONFIDENCE, CONFIDENCE)).tolist()
    base = mean(behavior)
    enough = min(len(of_seed) for of_seed in (*scores, *behavior)) >= MIN_EPISODES
    called = outcome(lower, upper, margin * abs(base)) if enough else "open"
    return Verdict(called, mean(scores) - base, lower, upper, share_below(differences))


def outcome(lower: float, upper: float, allowed_loss: float) -> Outcome:
    """What bounds of the difference say, where losses up to `allowed_loss` are acceptable."""
    if lower > 0:
        return "above"
    if lower >= -allowed_loss:
        return "not below"
    return "below" if upper < 0 else "open"


def compare(
    scores: Scores, behavior: Scores | None, rng: np.random.Generator, *, margin: float = MARGIN
) -> dict[str, Any]:
    """Statistics of a policy's scores and its verdict against the behaviour policy, as `result.json` stores them.

    The entries that compare are None without a behaviour policy.
    """
    values = by_seed(scores)
    smallest, quarter, median, three_quarters, largest = np.percentile(
        np.concatenate(values), [0, 25, 50, 75, 100]
    ).tolist()
    found = intervals(scores, rng)
    row: dict[str, Any] = {
        "episodes": sum(map(len, values)),
        "seeds": len(values),
        "mean": mean(scores),
        "interval": list(found.mean),
        "iqm": float(iqm(np.concatenate(values))),
        "iqm_interval": list(found.iqm),
        "median": median,
        "quartiles": [quarter, three_quarters],
        "min": smallest,
        "max": largest,
        "seed_means": [float(of_seed.mean()) for of_seed in values],
    }
    if behavior is None:
        return row | dict.fromkeys(("below", "verdict", "difference", "difference_bounds"))
    compared = verdict(scores, behavior, rng, margin=margin)
    return row | {
        "below": compared.below,
        "verdict": compared.outcome,
        "difference": compared.difference,
        "difference_bounds": [compared.lower, compared.upper],
    }


def share_below(differences: Array) -> float:
    """Share of differences below 0."""
    return float((differences < 0).mean())


def mean(scores: Scores) -> float:
    """Mean over all episodes of all seeds."""
    return float(np.concatenate(by_seed(scores)).mean())


def by_seed(scores: Scores) -> list[Array]:
    """Each seed's scores as an array; empty, nested or non-finite ones raise ValueError."""
    values = [np.asarray(of_seed, dtype=np.float64) for of_seed in scores]
    if not values:
        raise ValueError("scores: at least one seed is needed")
    for seed, of_seed in enumerate(values):
        if of_seed.ndim != 1 or not len(of_seed):
            raise ValueError(f"scores of seed {seed}, shape {of_seed.shape}: must be a list of one episode or more")
        if not np.isfinite(of_seed).all():
            raise ValueError(f"scores of seed {seed}: {of_seed[~np.isfinite(of_seed)][0]} is not finite")
    return values


class Published(NamedTuple):
    """Published scores of a game: random play, human tester, Rainbow (no-op starts), the paper's RBI and Ape-X, and
    those of Ape-X and R2D2 by their authors."""

    random: float
    human: float
    rainbow: float | None = None
    paper_rbi: float | None = None
    paper_apex: float | None = None
    apex: float | None = None
    r2d2: float | None = None


PUBLISHED = {
    "Asterix": Published(210, 8503.3, 428200.3, 838018.3, 926429.2, 313305.0, 999153.3),
    "Berzerk": Published(123.7, 2630.4, 2545.6, 12159.3, 43867.7, 57196.7, 53318.7),
    "Breakout": Published(1.7, 30.5, 417.5, 780.4, 515.2, 800.9, 837.7),
    "Enduro": Published(0, 860.5, 2125.9, 2260.9, 2276.1, 2177.4, 2372.7),
    "Freeway": Published(0, 29.6, 34.0, 34.0, 34.0, 33.7, 32.5),
    "Frostbite": Published(65.2, 4334.7, 9590.5, 9655.0, 8917.3, 9328.6, 315456.4),
    "IceHockey": Published(-11.2, 0.9, 1.1, 40.4, 39.9, 33.0, 79.3),
    "Kangaroo": Published(52, 3035, 14637.5, 14426.7, 14897.5, 1416.0, 14130.7),
    "MsPacman": Published(307.3, 6951.6, 5380.4, 8193.9, 6401.8, 11255.2, 42281.7),
    "Qbert": Published(163.9, 13455, 33817.5, 32894.2, 26127.5, 302391.3, 408850.0),
    "Seaquest": Published(68.4, 42054.7, 15898.9, 26963.7, 12920.7, 392952.3, 999996.7),
    "SpaceInvaders": Published(148, 1668.7, 18729.0, 45155.8, 40923.4, 54681.0, 43223.4),
    "MontezumaRevenge": Published(0, 4753.3, 384.0, None, None, 2500.0, 2061.3),
    # games that settings were chosen on
    "Assault": Published(222.4, 742.0),
    "BeamRider": Published(363.9, 16926.5),
    "Phoenix": Published(761.4, 7242.6),
    "Pong": Published(-20.7, 14.6),
}


def game_name(env: str) -> str:
    """Name of the game in a Gymnasium id.

    >>> game_name("ALE/Breakout-v5")
    'Breakout'
    """
    return env.removeprefix("ALE/").rsplit("-v", 1)[0]


def human_normalised(env: str, score: float) -> float | None:
    """Human-normalised score: 0 for random play, 1 for the human tester; None if no such scores are published.

    >>> human_normalised("ALE/Breakout-v5", 30.5)
    1.0
    """
    known = PUBLISHED.get(game_name(env)) if env.startswith("ALE/") else None
    return None if known is None else (score - known.random) / (known.human - known.random)
