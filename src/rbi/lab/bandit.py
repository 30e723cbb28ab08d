"""The Gaussian bandit of the paper's section 3: what one improvement step from a batch gains, and learning curves.

Arms are the last axis. In the two-armed case arm 1 (the paper's a_2) is the better one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from rbi import measures
from rbi.lab.estimates import draw
from rbi.rules.types import Rule

Floats = np.ndarray
NO_SAMPLE = 1e12


@dataclass(frozen=True)
class Arms:
    """Rewards of arm i are normal with mean `means[i]` and standard deviation `stds[i]`."""

    means: tuple[float, ...]
    stds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.means) != len(self.stds) or len(self.means) < 2:
            raise ValueError(f"means {self.means} and stds {self.stds}: one of each an arm, at least two arms")
        if min(self.stds) < 0:
            raise ValueError(f"stds {self.stds}: must be >= 0")


class Gain(NamedTuple):
    """R^beta - R^pi over batches: its mean (what the paper plots) and standard deviation, and how often the worse arm
    looks better, 1 - P(I). All `[K]`."""

    mean: Floats
    std: Floats
    missed: Floats


def gain(rule: Rule, better: Floats, samples: float, arms: Arms, nodes: int = 64) -> Gain:
    """R^beta - R^pi of one step in the two-armed bandit, exactly.      (paper: Figure 1)

        P(I) V^pi_I + (1 - P(I)) V^pi_notI - V^beta,      I: the better arm looks better in the batch

    `better` is beta(a_2) `[K]`; arm i has N beta_i samples (fractions too). The estimated difference of the arms is
    normal, so P(I) is a normal CDF. Rules that see only the ranking are constant on either side of it; for those that
    see magnitudes (forward KL at a temperature) each side is integrated over its quantiles with `nodes` points.
    """
    beta = np.stack([1 - better, better], axis=-1)
    lead = arms.means[1] - arms.means[0]
    spread = np.sqrt((mean_errors(samples * beta, arms) ** 2).sum(-1))
    missed = special.ndtr(-lead / np.maximum(spread, 1e-300))  # 1 - P(I)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    points, weights = (points + 1) / 2, weights / 2
    expected, squared = np.zeros_like(better), np.zeros_like(better)
    for start, width in ((np.zeros_like(missed), missed), (missed, 1 - missed)):
        quantile = start[:, None] + width[:, None] * points
        estimated = lead + spread[:, None] * special.ndtri(quantile)
        pi = rule(beta[:, None, :], np.stack([np.zeros_like(estimated), estimated], axis=-1))
        expected += width * (pi[..., 1] @ weights)
        squared += width * (pi[..., 1] ** 2 @ weights)
    return Gain(lead * (expected - better), lead * np.sqrt(np.maximum(squared - expected**2, 0)), missed)


def mean_errors(samples: Floats, arms: Arms) -> Floats:
    """Standard errors of the arms' empirical means. No sample at all says nothing: far more than any reward."""
    some = samples > 1e-12
    return np.where(some, np.asarray(arms.stds) / np.sqrt(np.where(some, samples, 1.0)), NO_SAMPLE)


def simulated_gain(
    rule: Rule, better: Floats, samples: float, arms: Arms, repetitions: int, rng: np.random.Generator
) -> Gain:
    """The same by Monte-Carlo, from batches whose arms have N beta_i samples (fractions too)."""
    beta = np.stack([1 - better, better], axis=-1)
    noise = rng.standard_normal((repetitions, *beta.shape))
    estimated = np.asarray(arms.means) + mean_errors(samples * beta, arms) * noise
    gained = (rule(beta, estimated) - beta) @ np.asarray(arms.means)
    return Gain(gained.mean(0), gained.std(0), (estimated[..., 1] <= estimated[..., 0]).mean(0))


@dataclass(frozen=True)
class Learning:
    """Off-policy learning with a fixed exploration.      (paper: Figure 2)

    `rate` is the learning rate of Q, or None for 1/n, the mean of all samples. `first` samples of each repetition are
    drawn uniformly before learning starts.
    """

    exploration: float = 0.1
    floor: float = 1e-3
    first: int = 10
    rate: float | None = None


def learn(
    rule: Rule, arms: Arms, learning: Learning, repetitions: int, steps: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """The value sum_a pi(a) mu(a) of each repetition `[R]`, after every step.

    Each step: sample an arm from pi mixed with exploration, move its Q towards the reward, improve pi by the rule.
    The paper leaves the rule's base open; here it is the last pi, not the mixture, which only draws the samples
    (docs/decisions/005-what-the-paper-leaves-open.md).
    """
    n = len(arms.means)
    means, stds = np.asarray(arms.means), np.asarray(arms.stds)
    q, counts = np.zeros((n, repetitions)).T, np.zeros((n, repetitions)).T  # an arm is a column in memory: few, long
    pi = np.full((n, repetitions), 1 / n).T
    everyone = np.arange(repetitions)
    for step in range(-learning.first, steps):
        exploration = learning.exploration if step >= 0 else 1.0
        arm = draw((1 - exploration) * pi + exploration / n, rng)
        reward = means[arm] + stds[arm] * rng.standard_normal(repetitions)
        counts[everyone, arm] += 1
        rate = 1 / counts[everyone, arm] if learning.rate is None else learning.rate
        q[everyone, arm] += rate * (reward - q[everyone, arm])
        if step >= 0:
            pi = (1 - n * learning.floor) * rule(pi, q, check=False) + learning.floor
            yield pi @ means


@dataclass(frozen=True)
class Curve:
    """How the value of pi grew: at each of `times`, its mean and quartiles over repetitions, all `[T]`."""

    times: tuple[int, ...]
    mean: tuple[float, ...]
    standard_error: tuple[float, ...]
    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]


def curve(
    rule: Rule,
    arms: Arms,
    learning: Learning,
    repetitions: int,
    steps: int,
    rng: np.random.Generator,
    points: int = 120,
) -> Curve:
    """The learning curve at about `points` moments, evenly spaced in log time."""
    decades = 10 ** np.arange(int(np.log10(steps)) + 1)
    times = np.unique([*np.geomspace(1, steps, points).round().astype(int), *decades])
    wanted = set(times.tolist())
    values = (v for t, v in enumerate(learn(rule, arms, learning, repetitions, steps, rng), 1) if t in wanted)
    kept = np.stack(list(values))
    lower, median, upper = np.quantile(kept, (0.25, 0.5, 0.75), axis=1)
    error = kept.std(1) / np.sqrt(repetitions)
    return Curve(tuple(times.tolist()), *(tuple(x.tolist()) for x in (kept.mean(1), error, lower, median, upper)))


# ---- from rbi.lab.one_state: Every rule on one state: what it does to beta, what it promises, and what estimation errors can cost it.


@dataclass(frozen=True)
class Step:
    """One rule's step from beta. `promise` is what it gains if the advantages are right, `risk` is one standard
    deviation of what errors in them can cost (independent errors, N_s visits: the paper's section 2.3)."""

    rule: str
    pi: tuple[float, ...]
    c_min: float
    c_max: float
    total_variation: float
    kl: float
    promise: float
    risk: float


def steps(
    rules: Sequence[Rule], beta: Sequence[float], advantage: Sequence[float], *, visits: int, return_std: float
) -> list[Step]:
    """The step of each rule, in the order given."""
    return [one_step(rule, np.asarray(beta, float), np.asarray(advantage, float), visits, return_std) for rule in rules]


def one_step(rule: Rule, beta: np.ndarray, advantage: np.ndarray, visits: int, return_std: float) -> Step:
    pi = rule(beta, advantage)
    ratio = measures.reroute_bounds(pi, beta)
    variance = measures.penalty_term(pi, beta).sum() * return_std**2 / visits
    return Step(
        rule=str(rule),
        pi=tuple(pi.tolist()),
        c_min=float(ratio.c_min),
        c_max=float(ratio.c_max),
        total_variation=float(measures.total_variation(pi, beta)),
        kl=float(measures.kl(pi, beta)),
        promise=float(measures.improvement_step(pi, advantage, beta=beta)),
        risk=float(np.sqrt(variance)),
    )
