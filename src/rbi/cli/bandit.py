"""`rbi bandit`: the paper's Gaussian bandit, its Figures 1 and 2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rbi import fileio, runs
from rbi.cli.command import Command, canonical_rules, show
from rbi.config import Interval
from rbi.lab import bandit
from rbi.progress import echo


@dataclass(frozen=True)
class Regret(Command):
    """Expected gain of one step over beta in the two-armed bandit, in closed form (the paper's Figure 1)."""

    rules: tuple[str, ...] = bandit.REGRET_RULES
    """Rules to compare. reroute(0.5,2) is included to show that asymmetric bounds can lose."""
    means: tuple[float, float] = (-1.0, 1.0)
    """Mean rewards; the second arm is the better one."""
    stds: tuple[str, ...] = ("1,10", "10,1")
    """Scenarios: standard deviations of the two arms, written 1,10."""
    samples: tuple[float, ...] = (10, 100, 1000)
    """Batch sizes N; arm i has N beta_i samples."""
    points: Annotated[int, Interval(ge=2, le=1_000_000)] = 101
    """Number of values of beta(better arm) between 0 and 1."""
    monte_carlo: Annotated[int, Interval(ge=0, le=100_000_000)] = 0
    """Also simulate this many batches per point and report the agreement (0: do not simulate)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        for stds in self.stds:
            parse_stds(self.means, stds)
        if not (self.samples and self.stds):
            raise ValueError("--samples and --stds: give at least one of each")
        if not min(self.samples) > 0:
            raise ValueError(f"--samples {min(self.samples):g}: must be above 0")
        if not self.means[1] > self.means[0]:
            raise ValueError(f"--means {self.means[0]:g} {self.means[1]:g}: the second arm must be the better one")

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import bandit as report

        with self.create_run("bandit-regret", argv) as run:
            study = bandit.regret_study(
                self.rules,
                means=self.means,
                stds=[parse_stds(self.means, stds) for stds in self.stds],
                samples=self.samples,
                points=self.points,
                monte_carlo=self.monte_carlo,
                seed=self.seed,
                callback=lambda metrics: run.log(**metrics),
            )
            run.result(study.to_dict())
            done = runs.read(run.path)
            run.figure("regret", report.regret_figure(done))
        show(report.regret_table(done))
        if study.deviations:
            near = sum(abs(deviation) < 2 for deviation in study.deviations) / len(study.deviations)
            echo(
                f"simulation: {near:.1%} of {len(study.deviations)} points within 2 standard errors of the closed form"
            )
        echo(f"wrote {fileio.shown(run.path)} (figures/regret.png)")


@dataclass(frozen=True)
class Learn(Command):
    """Off-policy learning curves in the Gaussian bandit (the paper's Figure 2)."""

    rules: tuple[str, ...] = bandit.LEARNING_RULES
    """Rules to compare."""
    means: tuple[float, ...] = (-1.0, 1.0)
    """Mean rewards, one per arm."""
    stds: tuple[str, ...] = ("1,10", "10,1")
    """Scenarios: standard deviations, one per arm, written 1,10."""
    learning_rates: tuple[str, ...] = ("1/n", "0.01")
    """Learning rates of Q: a number, or 1/n for the mean of all samples."""
    repetitions: Annotated[int, Interval(ge=1, le=10_000_000)] = 2000
    """Independent learners per curve."""
    steps: Annotated[int, Interval(ge=1, le=100_000_000)] = 10_000
    """Samples per learner."""
    exploration: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """Share of uniform exploration in the policy that draws the samples."""
    floor: float = 1e-3
    """Smallest probability of an arm."""
    initial_samples: Annotated[int, Interval(ge=1, le=1_000_000)] = 10
    """Uniform samples before learning starts."""
    workers: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Number of processes (0: one per core). The results do not depend on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        if not 0 <= self.floor <= 1 / len(self.means):
            raise ValueError(f"--floor = {self.floor:g}: must be in [0, 1/{len(self.means)}]")
        if not (self.stds and self.learning_rates):
            raise ValueError("--stds and --learning-rates: give at least one of each")
        for stds in self.stds:
            parse_stds(self.means, stds)
        for rate in self.learning_rates:
            parse_rate(rate)

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import bandit as report

        with self.create_run("bandit-learn", argv) as run:
            study = bandit.learning_study(
                self.rules,
                means=self.means,
                stds=[parse_stds(self.means, stds) for stds in self.stds],
                learning_rates=[parse_rate(rate) for rate in self.learning_rates],
                repetitions=self.repetitions,
                steps=self.steps,
                exploration=self.exploration,
                floor=self.floor,
                initial_samples=self.initial_samples,
                seed=self.seed,
                workers=self.workers,
                callback=lambda metrics: run.log(**metrics),
            )
            run.result(study.to_dict())
            done = runs.read(run.path)
            run.figure("learning", report.learning_figure(done))
        show(report.learning_table(done))
        echo(f"wrote {fileio.shown(run.path)} (figures/learning.png)")


def parse_stds(means: tuple[float, ...], stds: str) -> tuple[float, ...]:
    """Standard deviations of the arms, written like 1,10."""
    try:
        return bandit.Arms(means, tuple(float(word) for word in stds.split(","))).stds
    except ValueError as error:
        raise ValueError(f"--stds {stds}: {error}; write them like 1,10") from None


def parse_rate(text: str) -> float | None:
    """A learning rate in (0, 1], or None for 1/n."""
    if text == "1/n":
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1:
        raise ValueError(f"--learning-rates {text}: must be 1/n or a number in (0, 1]")
    return rate
