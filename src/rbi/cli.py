"""The command line: the only place that parses arguments, chooses folders and turns a seed into generators."""

import contextlib
import datetime
import io
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from tyro.extras import SubcommandApp

import rbi
from rbi import runs

HELP = """Better policies from logged experience, without making things worse.

Every command shows what it does, takes --out and --seed, and writes a run folder that holds its configuration,
metrics, results and figures. `rbi --version` prints the version, `rbi COMMAND --help` the options of a command."""

USAGE_ERROR, INTERRUPTED = 2, 130
MOST_RULES = 20  # more do not fit a picture that can be read


class Command(Protocol):
    """What the parser makes of the command line: settings that can run."""

    def run(self, argv: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class Rules:
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
    out: Path | None = None
    """Folder for the results; a new one under runs/ if not given."""
    seed: int = 0
    """Written into the run folder; this command draws nothing at random."""
    overwrite: bool = False
    """Replace an earlier run in the same folder."""

    def __post_init__(self) -> None:
        if self.visits < 1:
            raise ValueError(f"--visits = {self.visits}: must be at least 1")
        if not 0 <= self.return_std <= 1e100:
            raise ValueError(f"--return-std = {self.return_std}: must be in [0, 1e100]")
        if not 1 <= len(self.rules) <= MOST_RULES:
            raise ValueError(f"--rules: give 1 to {MOST_RULES} of them, not {len(self.rules)}")

    def run(self, argv: Sequence[str]) -> None:
        from rbi.lab import one_state
        from rbi.report import one_state as report

        rules = [rbi.parse_rule(text) for text in self.rules]
        steps = one_state.steps(rules, self.beta, self.advantage, visits=self.visits, return_std=self.return_std)
        with new_run("rules", self.out, self, self.seed, argv, self.overwrite) as run:
            for step in steps:
                run.metric(**asdict(step))
            run.result({"steps": steps})
            done = runs.read(run.path)
            run.figure("rules", report.figure(done))
        Console().print(report.table(done))
        say(f"wrote {run.path} (figures/rules.png)")


def new_run(
    command: str, out: Path | None, settings: object, seed: int, argv: Sequence[str], overwrite: bool
) -> runs.Writer:
    """The run folder of a command: --out, or a new one under runs/ named by time and command."""
    stamp = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    path = out if out is not None else Path("runs") / f"{stamp}-{command}"
    kept = {k: v for k, v in vars(settings).items() if k not in ("out", "seed", "overwrite")}
    return runs.Writer.create(path, command=command, settings=kept, seed=seed, argv=argv, overwrite=overwrite)


def parse(argv: Sequence[str]) -> Command:
    """The command that the arguments ask for. tyro explains a mistake in a box; users get its first sentence."""
    app = SubcommandApp()
    app.command(name="rules")(Rules)
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
    return re.sub(r"^Error parsing [A-Z]\w*: ", "", " ".join(lines[:end]))


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


def say(line: str, *, stderr: bool = False) -> None:
    """One line, as it is: not wrapped, not coloured, brackets left alone."""
    Console(stderr=stderr).print(line, highlight=False, soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
