"""`rbi bandit`: the paper's Gaussian bandit, its Figures 1 and 2."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rbi import runs
from rbi.cli.command import Command, canonical_rules, show
from rbi.lab import bandit
from rbi.parallel import parallel_map
from rbi.progress import echo, track
from rbi.report import bandit as report
from rbi.rules.types import parse_rule


@dataclass(frozen=True)
class Regret(Command):
    """What one step from a batch gains over beta in the two-armed bandit, exactly (the paper's Figure 1)."""

    rules: tuple[str, ...] = (
        "reroute(0.5,1.5)",
        "greedy",
        "reroute(0,2)",
        "reroute(0.25,1.75)",
        "reroute(0.5,2)",
        "forward_kl(1)",
    )
    """The rules to compare. reroute(0.5,2) is here to show that asymmetric bounds can lose."""
    means: tuple[float, float] = (-1.0, 1.0)
    """Mean rewards; the second arm is the better one."""
    stds: tuple[str, ...] = ("1,10", "10,1")
    """Standard deviations of the two arms, written 1,10; one pair a scenario."""
    samples: tuple[float, ...] = (10, 100, 1000)
    """Batch sizes N; arm i has N beta_i samples."""
    points: int = 101
    """How many beta(better arm) between 0 and 1."""
    monte_carlo: int = 0
    """Simulate as well, with this many batches a point, and say how well the two agree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        for stds in self.stds:
            arms_of(self.means, stds)
        if not (self.samples and self.stds):
            raise ValueError("--samples and --stds: give at least one of each")
        if not min(self.samples) > 0:
            raise ValueError(f"--samples {min(self.samples):g}: must be above 0")
        if self.points < 2 or self.monte_carlo < 0:
            raise ValueError("--points must be at least 2, --monte-carlo at least 0")
        if not self.means[1] > self.means[0]:
            raise ValueError(f"--means {self.means[0]:g} {self.means[1]:g}: the second arm must be the better one")

    def run(self, argv: Sequence[str]) -> None:
        better, rng = np.linspace(0, 1, self.points), np.random.default_rng(self.seed)
        cases = [(parse_rule(r), s, n) for s in self.stds for n in self.samples for r in self.rules]
        with self.create_run("bandit-regret", argv) as run:
            curves, scores = [], []
            for rule, stds, n in track(cases, "regret of one step"):
                arms = arms_of(self.means, stds)
                exact = bandit.gain(rule, better, n, arms)
                found = {"rule": str(rule), "stds": stds, "samples": n, "better": better, "gain": exact.mean}
                if self.monte_carlo:
                    simulated = bandit.simulated_gain(rule, better, n, arms, self.monte_carlo, rng).mean
                    error = exact.std / np.sqrt(self.monte_carlo)
                    found |= {"simulated": simulated, "standard_error": error}
                    often = self.monte_carlo * exact.missed >= 10  # where errors are too rare they are not normal
                    scores += ((simulated - exact.mean) / np.maximum(error, 1e-12))[often & (exact.std > 1e-9)].tolist()
                run.log(rule=str(rule), stds=stds, samples=n, worst=exact.mean.min())
                curves.append(found)
            run.result({"curves": curves, "simulated_minus_exact_in_standard_errors": scores})
            done = runs.read(run.path)
            run.figure("regret", report.regret_figure(done))
        show(report.regret_table(done))
        if scores:
            near = np.mean(np.abs(scores) < 2)
            echo(f"simulation: of {len(scores)} points {near:.1%} lie within 2 standard errors of the closed form")
        echo(f"wrote {run.path} (figures/regret.png)")


@dataclass(frozen=True)
class Learn(Command):
    """Off-policy learning curves in the Gaussian bandit (the paper's Figure 2)."""

    rules: tuple[str, ...] = ("reroute(0.5,1.5)", "greedy", "tv(0.25)", "ppo(0.5)", "forward_kl(1)")
    """The rules to compare."""
    means: tuple[float, ...] = (-1.0, 1.0)
    """Mean rewards, one an arm."""
    stds: tuple[str, ...] = ("1,10", "10,1")
    """Standard deviations, one an arm, written 1,10; one list a scenario."""
    rates: tuple[str, ...] = ("1/n", "0.01")
    """Learning rates of Q: a number, or 1/n for the mean of all samples."""
    repetitions: int = 2000
    """Independent learners a curve."""
    steps: int = 10_000
    """Samples a learner."""
    exploration: float = 0.1
    """Share of uniform exploration in the policy that draws the samples."""
    floor: float = 1e-3
    """Least probability of an arm."""
    first: int = 10
    """Uniform samples before learning starts."""
    workers: int = 0
    """Processes to use; 0 for one a core. The result does not depend on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        if self.workers < 0:
            raise ValueError(f"--workers = {self.workers}: must be at least 0")
        for name in ("repetitions", "steps", "first"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} = {getattr(self, name)}: must be at least 1")
        if not 0 <= self.exploration <= 1:
            raise ValueError(f"--exploration = {self.exploration:g}: must be in [0, 1]")
        if not 0 <= self.floor <= 1 / len(self.means):
            raise ValueError(f"--floor = {self.floor:g}: must be in [0, 1/{len(self.means)}]")
        if not (self.stds and self.rates):
            raise ValueError("--stds and --rates: give at least one of each")
        for stds in self.stds:
            arms_of(self.means, stds)
        for rate in self.rates:
            learning_rate(rate)

    def run(self, argv: Sequence[str]) -> None:
        cases = [(s, rate, r) for s in self.stds for rate in self.rates for r in self.rules]
        generators = [np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(len(cases))]
        tasks = [
            (
                parse_rule(rule),
                arms_of(self.means, stds),
                bandit.Learning(self.exploration, self.floor, self.first, learning_rate(rate)),
                self.repetitions,
                self.steps,
                rng,
            )
            for (stds, rate, rule), rng in zip(cases, generators, strict=True)
        ]
        with self.create_run("bandit-learn", argv) as run:
            curves = []
            with parallel_map(self.workers or os.cpu_count() or 1) as each:
                finished = each(bandit.curve, *zip(*tasks, strict=True))
                for (stds, rate, rule), curve in track(zip(cases, finished, strict=True), "learning", len(cases)):
                    curves.append({"stds": stds, "rate": rate, "rule": rule} | asdict(curve))
                    run.log(stds=stds, rate=rate, rule=rule, final=curve.mean[-1])
            run.result({"curves": curves})
            done = runs.read(run.path)
            run.figure("learning", report.learning_figure(done))
        show(report.learning_table(done))
        echo(f"wrote {run.path} (figures/learning.png)")


def arms_of(means: tuple[float, ...], stds: str) -> bandit.Arms:
    """The bandit's arms, with standard deviations written like 1,10."""
    try:
        return bandit.Arms(means, tuple(float(word) for word in stds.split(",")))
    except ValueError as error:
        raise ValueError(f"--stds {stds}: {error}; write them like 1,10") from None


def learning_rate(text: str) -> float | None:
    """A number in (0, 1], or None for 1/n."""
    if text == "1/n":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1:
        raise ValueError(f"--rates {text}: must be 1/n or a number in (0, 1]")
    return rate
