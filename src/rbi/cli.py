"""The command line: the only place that parses arguments, chooses folders and turns a seed into generators."""

import concurrent.futures
import contextlib
import datetime
import io
import math
import multiprocessing
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tyro.extras import SubcommandApp

import rbi
from rbi import runs
from rbi.lab import bandit

HELP = """Better policies from logged experience, without making things worse.

Every command shows what it does, takes --out and --seed, and writes a run folder that holds its configuration,
metrics, results and figures. `rbi --version` prints the version, `rbi COMMAND --help` the options of a command."""

T = TypeVar("T")

USAGE_ERROR, INTERRUPTED = 2, 130
MOST_RULES = 8  # more cannot be told apart in one picture


@dataclass(frozen=True)
class Command(ABC):
    """What the parser makes of the command line: settings that can run. All commands share where and how they write."""

    out: Path | None = None
    """Folder for the results; a new one under runs/ if not given."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    overwrite: bool = False
    """Replace an earlier run in the same folder."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"--seed = {self.seed}: must be at least 0")

    @abstractmethod
    def run(self, argv: Sequence[str]) -> None:
        """Do the work, write the run folder, show the result."""

    def new_run(self, name: str, argv: Sequence[str]) -> runs.Writer:
        """The run folder: --out, or a new one under runs/ named by time and command."""
        path = self.out if self.out is not None else Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}"
        settings = {k: v for k, v in vars(self).items() if k not in ("out", "seed", "overwrite")}
        return runs.Writer.create(
            path, command=name, settings=settings, seed=self.seed, argv=argv, overwrite=self.overwrite
        )


@dataclass(frozen=True)
class Rules(Command):
    """Every improvement rule on one state: probabilities, ratios, what each promises and what it risks."""

    beta: tuple[float, ...] = (0.55, 0.25, 0.12, 0.06, 0.02)
    """Behaviour policy: one probability an action, summing to 1."""
    advantage: tuple[float, ...] = (0.0, 0.4, -0.8, -0.2, 1.0)
    """Estimated advantages (or Q-values), one an action; -inf ranks last."""
    rules: tuple[str, ...] = (
        "reroute(0.5,1.5)",
        "reroute(0,2)",
        "tv(0.25)",
        "ppo(0.5)",
        "forward_kl(1)",
        "backward_kl(0.1)",
        "greedy",
    )
    """The rules to compare, written like reroute(0.5,1.5)."""
    visits: int = 100
    """How often the state was visited: the estimates' error falls with it."""
    return_std: float = 1.0
    """Standard deviation of returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.visits < 1:
            raise ValueError(f"--visits = {self.visits}: must be at least 1")
        if not 0 <= self.return_std <= 1e100:
            raise ValueError(f"--return-std = {self.return_std}: must be in [0, 1e100]")
        object.__setattr__(self, "rules", some_rules(self.rules))

    def run(self, argv: Sequence[str]) -> None:
        from rbi.lab import one_state
        from rbi.report import one_state as report

        rules = [rbi.parse_rule(text) for text in self.rules]
        steps = one_state.steps(rules, self.beta, self.advantage, visits=self.visits, return_std=self.return_std)
        with self.new_run("rules", argv) as run:
            for step in steps:
                run.metric(**asdict(step))
            run.result({"steps": steps})
            done = runs.read(run.path)
            run.figure("rules", report.figure(done))
        show(report.table(done))
        say(f"wrote {run.path} (figures/rules.png)")


@dataclass(frozen=True)
class BanditRegret(Command):
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
        object.__setattr__(self, "rules", some_rules(self.rules))
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
        from rbi.report import bandit as report

        better, rng = np.linspace(0, 1, self.points), np.random.default_rng(self.seed)
        cases = [(rbi.parse_rule(r), s, n) for s in self.stds for n in self.samples for r in self.rules]
        with self.new_run("bandit-regret", argv) as run:
            curves, scores = [], []
            for rule, stds, n in progress(cases, "regret of one step"):
                arms = arms_of(self.means, stds)
                exact = bandit.gain(rule, better, n, arms)
                found = {"rule": str(rule), "stds": stds, "samples": n, "better": better, "gain": exact.mean}
                if self.monte_carlo:
                    simulated = bandit.simulated_gain(rule, better, n, arms, self.monte_carlo, rng).mean
                    error = exact.std / np.sqrt(self.monte_carlo)
                    found |= {"simulated": simulated, "standard_error": error}
                    often = self.monte_carlo * exact.missed >= 10  # where errors are too rare they are not normal
                    scores += ((simulated - exact.mean) / np.maximum(error, 1e-12))[often & (exact.std > 1e-9)].tolist()
                run.metric(rule=str(rule), stds=stds, samples=n, worst=exact.mean.min())
                curves.append(found)
            run.result({"curves": curves, "simulated_minus_exact_in_standard_errors": scores})
            done = runs.read(run.path)
            run.figure("regret", report.regret_figure(done))
        show(report.regret_table(done))
        if scores:
            near = np.mean(np.abs(scores) < 2)
            say(f"simulation: of {len(scores)} points {near:.1%} lie within 2 standard errors of the closed form")
        say(f"wrote {run.path} (figures/regret.png)")


@dataclass(frozen=True)
class BanditLearn(Command):
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
        object.__setattr__(self, "rules", some_rules(self.rules))
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
        from rbi.report import bandit as report

        cases = [(s, rate, r) for s in self.stds for rate in self.rates for r in self.rules]
        generators = [np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(len(cases))]
        tasks = [
            (
                rbi.parse_rule(rule),
                arms_of(self.means, stds),
                bandit.Learning(self.exploration, self.floor, self.first, learning_rate(rate)),
                self.repetitions,
                self.steps,
                rng,
            )
            for (stds, rate, rule), rng in zip(cases, generators, strict=True)
        ]
        with self.new_run("bandit-learn", argv) as run:
            curves = []
            with parallel_map(self.workers or os.cpu_count() or 1) as each:
                finished = each(bandit.curve, *zip(*tasks, strict=True))
                for (stds, rate, rule), curve in progress(zip(cases, finished, strict=True), "learning", len(cases)):
                    curves.append({"stds": stds, "rate": rate, "rule": rule} | asdict(curve))
                    run.metric(stds=stds, rate=rate, rule=rule, final=curve.mean[-1])
            run.result({"curves": curves})
            done = runs.read(run.path)
            run.figure("learning", report.learning_figure(done))
        show(report.learning_table(done))
        say(f"wrote {run.path} (figures/learning.png)")


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


def some_rules(rules: Sequence[str]) -> tuple[str, ...]:
    """As many rules as a picture can show, each in its one spelling."""
    if not 1 <= len(rules) <= MOST_RULES:
        raise ValueError(f"--rules: give 1 to {MOST_RULES} of them, not {len(rules)}")
    return tuple(str(rbi.parse_rule(text)) for text in rules)


@contextlib.contextmanager
def parallel_map(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over processes; the plain one for a single worker. Processes start afresh: forks of threads can hang."""
    if workers == 1:
        yield map
        return
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield pool.map


def progress(items: Iterable[T], told: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on the error stream while it is a terminal."""
    console = Console(stderr=True)
    return iter(track(items, told, total=total, console=console, disable=not console.is_terminal, transient=True))


def parse(argv: Sequence[str]) -> Command:
    """The command that the arguments ask for. tyro explains a mistake in a box; users get its first sentence."""
    app, bandit = SubcommandApp(), SubcommandApp()
    app.command(name="rules")(Rules)
    bandit.command(name="regret")(BanditRegret)
    bandit.command(name="learn")(BanditLearn)
    app.command(bandit, name="bandit", help="The paper's Gaussian bandit: regret of one step, learning curves.")
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            made: Command = app.cli(args=argv, prog="rbi", description=HELP)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(f"{first_sentence(told.getvalue())} (see rbi --help)") from None
    return made


def first_sentence(box: str) -> str:
    """The first part below the title of tyro's box, on one line, without what is drawn around it."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    lines = ["" if set(line) <= set("─-") else line for line in lines]
    lines = lines[1:] if lines and not lines[0] else lines  # plain boxes have a rule under the title
    end = lines.index("") if "" in lines else len(lines)
    return re.sub(r"^Error parsing (?!-)\S+: ", "", " ".join(lines[:end]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it worked, 2 with one line for a bad argument or file, 130 if interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if list(argv) in (["--version"], ["-V"]):
        say(f"rbi {rbi.__version__}")
        return 0
    try:
        parse(argv).run(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has gone; the run itself is complete
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, OverflowError) as error:
        if os.environ.get("RBI_TRACEBACK"):
            raise
        say(f"rbi: {error}", stderr=True)
        return USAGE_ERROR
    except KeyboardInterrupt:
        say("rbi: interrupted", stderr=True)
        return INTERRUPTED
    return 0


def show(table: Table) -> None:
    """A table, in full where no terminal limits its width."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def say(line: str, *, stderr: bool = False) -> None:
    """One line, as it is: not wrapped, not coloured, brackets left alone."""
    Console(stderr=stderr).print(line, highlight=False, soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
