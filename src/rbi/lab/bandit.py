"""Problems with one state: several rules on one state, and the paper's Gaussian bandit (section 3, Figures 1 and 2).

    compare_rules    one improvement step of each rule from a given beta and advantages
    regret_study     expected gain of one step from a batch in the two-armed bandit        (paper: Figure 1)
    learning_study   learning curves of off-policy learning in the bandit                  (paper: Figure 2)

Arms are the last axis. In the two-armed bandit arm 1 (the paper's a_2) is the better one.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from rbi import measures
from rbi.config import Ge, Interval, check_fields
from rbi.lab.estimates import sample_categorical
from rbi.parallel import parallel_map
from rbi.progress import track
from rbi.rules.types import Rule, as_text, parse_rule

Floats = np.ndarray
Callback = Callable[[dict[str, Any]], Any]
NO_SAMPLE = 1e12  # standard error of an arm without samples: far larger than any reward
SCENARIOS = ((1.0, 10.0), (10.0, 1.0))
REGRET_RULES = (
    "reroute(0.5,1.5)",
    "greedy",
    "reroute(0,2)",
    "reroute(0.25,1.75)",
    "reroute(0.5,2)",
    "forward_kl(1)",
)
LEARNING_RULES = ("reroute(0.5,1.5)", "greedy", "tv(0.25)", "ppo(0.5)", "forward_kl(1)")


# One improvement step in one state


@dataclass(frozen=True)
class RuleStep:
    """One improvement step from beta by one rule.

    `improvement` is its gain if the advantages are exact; `penalty_std` is the standard deviation of what errors of the
    advantages can cost (independent errors, N_s visits: section 2.3 of the paper).
    """

    rule: str
    pi: tuple[float, ...]
    c_min: float
    c_max: float
    total_variation: float
    kl: float
    improvement: float
    penalty_std: float


def compare_rules(
    rules: Sequence[Rule | str],
    beta: Sequence[float],
    advantage: Sequence[float],
    *,
    visits: int = 100,
    return_std: float = 1.0,
) -> list[RuleStep]:
    """The improvement step of each rule in one state, which was visited `visits` times.

    >>> (step,) = compare_rules(["reroute(0.5,1.5)"], [0.5, 0.3, 0.2], [0.0, 1.0, 2.0])
    >>> [round(p, 6) for p in step.pi]
    [0.25, 0.45, 0.3]
    """
    return [
        rule_step(rule, np.asarray(beta, float), np.asarray(advantage, float), visits, return_std) for rule in rules
    ]


def rule_step(rule: Rule | str, beta: Floats, advantage: Floats, visits: int, return_std: float) -> RuleStep:
    """One improvement step of one rule."""
    rule = parse_rule(rule) if isinstance(rule, str) else rule
    pi = rule(beta, advantage)
    ratio = measures.reroute_bounds(pi, beta)
    variance = measures.penalty_term(pi, beta).sum() * return_std**2 / visits
    return RuleStep(
        rule=str(rule),
        pi=tuple(pi.tolist()),
        c_min=float(ratio.c_min),
        c_max=float(ratio.c_max),
        total_variation=float(measures.total_variation(pi, beta)),
        kl=float(measures.kl(pi, beta)),
        improvement=float(measures.improvement_step(pi, advantage, beta=beta)),
        penalty_std=float(np.sqrt(variance)),
    )


# Gain of one step from a batch (Figure 1)


@dataclass(frozen=True)
class Arms:
    """A Gaussian bandit: rewards of arm i are normal with mean `means[i]` and standard deviation `stds[i]`."""

    means: tuple[float, ...]
    stds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.means) != len(self.stds) or len(self.means) < 2:
            raise ValueError(f"means {self.means} and stds {self.stds}: need one of each per arm, at least two arms")
        if not all(0 <= std < math.inf for std in self.stds):
            raise ValueError(f"stds {self.stds}: must be at least 0 and finite")
        if not all(map(math.isfinite, self.means)):
            raise ValueError(f"means {self.means}: must be finite")


class Gain(NamedTuple):
    """R^beta - R^pi over batches: mean (what the paper plots) and standard deviation, and the probability 1 - P(I) that
    the worse arm has the larger estimate. All `[K]`."""

    mean: Floats
    std: Floats
    misranked: Floats


def expected_gain(rule: Rule, beta_better: Floats, samples: float, arms: Arms, nodes: int = 64) -> Gain:
    """R^beta - R^pi of one step in the two-armed bandit, in closed form.      (paper: Figure 1)

        P(I) V^pi_I + (1 - P(I)) V^pi_notI - V^beta,      I: the better arm has the larger estimate

    `beta_better` is beta(a_2) `[K]`. The estimated difference of the arms is normal: P(I) is a normal CDF. Rules that
    depend on the ranking alone are constant for either ranking; for those that depend on magnitudes (forward KL with a
    temperature) each side is integrated over its quantiles with `nodes` Gauss-Legendre points.
    """
    from scipy import special

    # The paper leaves open how N samples are drawn from beta: here arm i has exactly N beta_i, fractions included.
    beta = np.stack([1 - beta_better, beta_better], axis=-1)
    difference = arms.means[1] - arms.means[0]
    std = np.sqrt((standard_errors(samples * beta, arms) ** 2).sum(-1))
    misranked = special.ndtr(-difference / np.maximum(std, 1e-300))  # 1 - P(I)
    points, weights = np.polynomial.legendre.leggauss(nodes)
    points, weights = (points + 1) / 2, weights / 2
    expected, squared = np.zeros_like(beta_better), np.zeros_like(beta_better)
    for start, width in ((np.zeros_like(misranked), misranked), (misranked, 1 - misranked)):
        quantile = start[:, None] + width[:, None] * points
        errors = np.where(std[:, None] > 0, special.ndtri(quantile), 0.0)
        estimated = difference + std[:, None] * errors
        pi = rule(beta[:, None, :], np.stack([np.zeros_like(estimated), estimated], axis=-1))
        expected += width * (pi[..., 1] @ weights)
        squared += width * (pi[..., 1] ** 2 @ weights)
    gain_std = difference * np.sqrt(np.maximum(squared - expected**2, 0))
    return Gain(difference * (expected - beta_better), gain_std, misranked)


def standard_errors(samples: Floats, arms: Arms) -> Floats:
    """Standard errors of the arms' empirical means; NO_SAMPLE for an arm without samples."""
    sampled = samples > 1e-12
    return np.where(sampled, np.asarray(arms.stds) / np.sqrt(np.where(sampled, samples, 1.0)), NO_SAMPLE)


def simulated_gain(
    rule: Rule, beta_better: Floats, samples: float, arms: Arms, repetitions: int, rng: np.random.Generator
) -> Gain:
    """`expected_gain` by Monte-Carlo simulation of batches with N beta_i samples of arm i."""
    beta = np.stack([1 - beta_better, beta_better], axis=-1)
    noise = rng.standard_normal((repetitions, *beta.shape))
    estimated = np.asarray(arms.means) + standard_errors(samples * beta, arms) * noise
    gained = (rule(beta, estimated) - beta) @ np.asarray(arms.means)
    return Gain(gained.mean(0), gained.std(0), (estimated[..., 1] <= estimated[..., 0]).mean(0))


@dataclass(frozen=True)
class RegretCurve:
    """Gain over beta `[K]` for each beta(better arm) `[K]`: one rule, one scenario, one batch size."""

    rule: str
    stds: tuple[float, ...]
    samples: float
    beta_better: Floats
    gain: Floats
    simulated: Floats | None = None
    standard_error: Floats | None = None
    """Of the simulated gain."""

    def to_dict(self) -> dict[str, Any]:
        """What result.json stores."""
        row = asdict(self) | {"stds": format_stds(self.stds)}
        return {key: value for key, value in row.items() if value is not None}


@dataclass(frozen=True, repr=False)
class RegretStudy:
    """Curves of `regret_study`; with a simulation also its deviations from the closed form, in standard errors."""

    curves: tuple[RegretCurve, ...]
    deviations: tuple[float, ...]

    def __repr__(self) -> str:
        return f"RegretStudy({len(self.curves)} curves)\n{self.summary()}"

    def summary(self) -> str:
        """The worst and the best gain of every rule."""
        lines = []
        for rule in dict.fromkeys(curve.rule for curve in self.curves):
            gains = np.concatenate([curve.gain for curve in self.curves if curve.rule == rule])
            lines.append(f"{rule:24} worst gain {gains.min():+.3f}, best {gains.max():+.3f}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """What result.json stores."""
        return {"curves": [curve.to_dict() for curve in self.curves], "simulation_deviations": self.deviations}


def regret_study(
    rules: Sequence[Rule | str] = REGRET_RULES,
    *,
    means: tuple[float, float] = (-1.0, 1.0),
    stds: Sequence[tuple[float, ...]] = SCENARIOS,
    samples: Sequence[float] = (10, 100, 1000),
    points: int = 101,
    monte_carlo: int = 0,
    seed: int = 0,
    progress: bool = True,
    callback: Callback | None = None,
) -> RegretStudy:
    """Expected gain of one step over beta in the two-armed bandit, for every rule, scenario and batch size (Figure 1).

    `stds` are the scenarios: standard deviations of the two arms. `samples` are batch sizes N. The gain is computed for
    `points` values of beta(better arm) between 0 and 1; with `monte_carlo` > 0 it is also simulated with that many
    batches per point.
    """
    if points < 2 or monte_carlo < 0:
        raise ValueError("points must be at least 2, monte_carlo at least 0")
    if not (len(samples) and min(samples) > 0):
        raise ValueError(f"samples {tuple(samples)}: give at least one, all above 0")
    if not means[1] > means[0]:
        raise ValueError(f"means {means[0]:g} {means[1]:g}: the second arm must be the better one")
    beta_better, rng = np.linspace(0, 1, points), np.random.default_rng(seed)
    parsed = [parse_rule(rule) if isinstance(rule, str) else rule for rule in rules]
    cases = [(rule, Arms(means, std), n) for std in stds for n in samples for rule in parsed]
    curves, deviations = [], []
    for rule, arms, n in track(cases, "regret of one step") if progress else cases:
        exact = expected_gain(rule, beta_better, n, arms)
        simulated = error = None
        if monte_carlo:
            simulated = simulated_gain(rule, beta_better, n, arms, monte_carlo, rng).mean
            error = exact.std / np.sqrt(monte_carlo)
            frequent = monte_carlo * exact.misranked >= 10  # the errors of rare events are not normal
            deviation = (simulated - exact.mean) / np.maximum(error, 1e-12)
            deviations += deviation[frequent & (exact.std > 1e-9)].tolist()
        curves.append(RegretCurve(str(rule), arms.stds, n, beta_better, exact.mean, simulated, error))
        if callback is not None:
            callback({"rule": str(rule), "stds": format_stds(arms.stds), "samples": n, "worst": exact.mean.min()})
    return RegretStudy(tuple(curves), tuple(deviations))


# Off-policy learning (Figure 2)


@dataclass(frozen=True)
class LearningConfig:
    """Off-policy learning in the bandit with a constant share of exploration."""

    exploration: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """Share of uniform exploration in the policy that draws the samples."""
    floor: Annotated[float, Ge(0)] = 1e-3
    """Smallest probability of an arm."""
    initial_samples: Annotated[int, Ge(1)] = 10
    """Uniform samples before learning starts."""
    learning_rate: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Learning rate of Q; None for 1/n, the mean of all samples."""

    def __post_init__(self) -> None:
        check_fields(self)


def simulate_learning(
    rule: Rule, arms: Arms, config: LearningConfig, repetitions: int, steps: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Run `repetitions` independent learners; yields their values sum_a pi(a) mu(a) `[R]` after every step.

    Each step samples an arm from pi mixed with exploration, updates its Q, and improves pi by the rule.
    """
    n = len(arms.means)
    means, stds = np.asarray(arms.means), np.asarray(arms.stds)
    q, counts = np.zeros((n, repetitions)).T, np.zeros((n, repetitions)).T  # an arm is contiguous: few long columns
    pi = np.full((n, repetitions), 1 / n).T
    everyone = np.arange(repetitions)
    for step in range(-config.initial_samples, steps):
        exploration = config.exploration if step >= 0 else 1.0
        arm = sample_categorical((1 - exploration) * pi + exploration / n, rng)
        reward = means[arm] + stds[arm] * rng.standard_normal(repetitions)
        counts[everyone, arm] += 1
        rate = 1 / counts[everyone, arm] if config.learning_rate is None else config.learning_rate
        q[everyone, arm] += rate * (reward - q[everyone, arm])
        if step >= 0:
            # The paper leaves the rule's base open: it is the previous pi, not the mixture with exploration, which only
            # draws the samples (docs/decisions/005-what-the-paper-leaves-open.md).
            pi = (1 - n * config.floor) * rule(pi, q, check=False) + config.floor
            yield pi @ means


@dataclass(frozen=True)
class LearningCurve:
    """Value of pi at `times` (steps): mean and quartiles over repetitions, all `[T]`."""

    times: tuple[int, ...]
    mean: tuple[float, ...]
    standard_error: tuple[float, ...]
    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]


def learning_curve(
    rule: Rule,
    arms: Arms,
    config: LearningConfig,
    repetitions: int,
    steps: int,
    rng: np.random.Generator,
    points: int = 120,
) -> LearningCurve:
    """Learning curve at about `points` steps, equally spaced in log time."""
    decades = 10 ** np.arange(int(np.log10(steps)) + 1)
    times = np.unique([*np.geomspace(1, steps, points).round().astype(int), *decades])
    wanted = set(times.tolist())
    values = (v for t, v in enumerate(simulate_learning(rule, arms, config, repetitions, steps, rng), 1) if t in wanted)
    kept = np.stack(list(values))
    lower, median, upper = np.quantile(kept, (0.25, 0.5, 0.75), axis=1)
    error = kept.std(1) / np.sqrt(repetitions)
    columns = (tuple(x.tolist()) for x in (kept.mean(1), error, lower, median, upper))
    return LearningCurve(tuple(times.tolist()), *columns)


@dataclass(frozen=True, repr=False)
class LearningStudy:
    """Learning curves by (standard deviations, learning rate, rule), in the order of the arguments."""

    curves: dict[tuple[tuple[float, ...], float | None, str], LearningCurve]

    def __repr__(self) -> str:
        return f"LearningStudy({len(self.curves)} curves)\n{self.summary()}"

    def summary(self) -> str:
        """The final mean value of every curve."""
        lines = []
        for (stds, rate, rule), curve in self.curves.items():
            case = f"sigma ({format_stds(stds)}), learning rate {format_rate(rate)}, {rule}"
            lines.append(f"{case}: {curve.mean[-1]:+.3f} after {curve.times[-1]:,} samples")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """What result.json stores."""
        return {"curves": [curve_labels(*case) | asdict(curve) for case, curve in self.curves.items()]}


def learning_study(
    rules: Sequence[Rule | str] = LEARNING_RULES,
    *,
    means: tuple[float, ...] = (-1.0, 1.0),
    stds: Sequence[tuple[float, ...]] = SCENARIOS,
    learning_rates: Sequence[float | None] = (None, 0.01),
    repetitions: int = 2000,
    steps: int = 10_000,
    exploration: float = 0.1,
    floor: float = 1e-3,
    initial_samples: int = 10,
    seed: int = 0,
    workers: int = 0,
    progress: bool = True,
    callback: Callback | None = None,
) -> LearningStudy:
    """Learning curves of every rule, scenario and learning rate (None: 1/n) in the Gaussian bandit (Figure 2).

    `workers` is the number of processes (0: one per core); the curves do not depend on it.
    """
    if min(repetitions, steps) < 1 or workers < 0:
        raise ValueError("repetitions and steps must be at least 1, workers at least 0")
    if not floor <= 1 / len(means):
        raise ValueError(f"floor = {floor:g}: must be in [0, 1/{len(means)}]")
    parsed = [parse_rule(rule) if isinstance(rule, str) else rule for rule in rules]
    cases = [(std, rate, rule) for std in stds for rate in learning_rates for rule in parsed]
    generators = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(len(cases))]
    tasks = [
        (rule, Arms(means, std), LearningConfig(exploration, floor, initial_samples, rate), repetitions, steps, rng)
        for (std, rate, rule), rng in zip(cases, generators, strict=True)
    ]
    curves = {}
    with parallel_map(workers or os.cpu_count() or 1) as each:
        finished = zip(cases, each(learning_curve, *zip(*tasks, strict=True)), strict=True)
        for (std, rate, rule), curve in track(finished, "learning", len(cases)) if progress else finished:
            curves[std, rate, str(rule)] = curve
            if callback is not None:
                callback(curve_labels(std, rate, str(rule)) | {"final": curve.mean[-1]})
    return LearningStudy(curves)


def curve_labels(stds: tuple[float, ...], rate: float | None, rule: str) -> dict[str, str]:
    """The case of a learning curve, as texts."""
    return {"stds": format_stds(stds), "learning_rate": format_rate(rate), "rule": rule}


def format_stds(stds: Sequence[float]) -> str:
    """Standard deviations as the command line writes them.

    >>> format_stds((1.0, 10.0))
    '1,10'
    """
    return ",".join(as_text(std) for std in stds)


def format_rate(rate: float | None) -> str:
    """A learning rate as the command line writes it; None is 1/n."""
    return "1/n" if rate is None else as_text(rate)
