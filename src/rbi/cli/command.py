"""Shared by all commands: --out, --seed, the run folder, resuming, presets, and tables on the terminal."""

import contextlib
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, TypeVar

import tyro

from rbi import fileio, runs
from rbi.cli import help as pages
from rbi.config import MAX_SEED, Interval, check_fields
from rbi.progress import PlainConsole, echo
from rbi.suggestions import nearest

if TYPE_CHECKING:
    from rich.table import Table

C = TypeVar("C", bound="Command")

MAX_RULES = 8  # distinguishable in one figure
NO_TEXTS = (tyro.conf.HelptextFromCommentsOff,)  # help pages are ours: tyro need not search the source of each config


@dataclass(frozen=True)
class Command(ABC):
    """A command line, parsed: options that can run. Every command has --out, --seed and --overwrite."""

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = ("workers", "resume")
    """Settings that a resumed run may change, because they do not affect its results."""
    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Options that --help shows, such as schedule.updates; by default all. --help-all shows the others too."""
    EXAMPLE: ClassVar[str] = ""
    """A command line that --help shows."""
    FIRST_WORD: ClassVar[str] = ""
    """The option that a first word without dashes is the value of."""
    writes_folder: ClassVar[bool] = True

    out: Path | None = None
    """Folder for the results; by default a new one under runs/."""
    seed: Annotated[int, Interval(ge=0, lt=MAX_SEED)] = 0
    """Seed of all random numbers."""
    overwrite: bool = False
    """Replace an earlier run in the same folder."""
    json: bool = False
    """Print the result as one JSON object on standard output, and everything else on standard error."""

    def __post_init__(self) -> None:
        check_fields(self, prefix="--")

    @classmethod
    def defaults(cls, given: Any) -> Self | None:  # noqa: ARG003 - for subclasses
        """Defaults that depend on other options, such as presets; None keeps those of the class.

        `given` is the command line parsed with the defaults of the class, without the command's own checks. Values in
        what this returns become the defaults: --help shows them, and options on the command line override them.
        """
        return None

    @abstractmethod
    def run(self, argv: Sequence[str]) -> int | None:
        """Do the work, write the run folder, show the result. Returns the exit status, if it is not 0."""

    def create_run(self, name: str, argv: Sequence[str]) -> runs.Writer:
        """A new run folder: --out, or one under runs/ named by time and command."""
        path = self.out if self.out is not None else runs.default_folder(name)
        return runs.Writer.create(
            path, command=name, settings=self.settings(), seed=self.seed, argv=argv, overwrite=self.overwrite
        )

    def resume_run(self, name: str) -> runs.Writer:
        """The run folder in --out, opened to continue it."""
        if self.out is None:
            raise ValueError("--resume: name the run with --out")
        settings = self.settings()
        without = runs.check_resumable(
            self.out,
            command=name,
            settings=settings,
            seed=self.seed,
            defaults={option.name: pages.default_of(option) for option in fields(self)},
            may_change=self.MAY_CHANGE_ON_RESUME,
        )
        writer = runs.Writer.reopen(self.out)
        if without:
            echo(without, stderr=True)
            runs.save_changed_settings(self.out, settings)
        return writer

    def settings(self) -> dict[str, Any]:
        """The options that config.json stores, apart from the seed."""
        return {k: v for k, v in vars(self).items() if k not in ("out", "seed", "overwrite", "json")}

    def outcome(self) -> dict[str, Any]:
        """What --json prints of the run in --out."""
        assert self.out is not None
        run = runs.read(self.out)
        return {"run": str(self.out), "command": run.config["command"], "result": run.result}


def parse(command: type[C], argv: Sequence[str], prog: str) -> C:
    """Parse the options of a command; `Command.defaults` sees a first reading of them."""
    if command.FIRST_WORD and argv and not argv[0].startswith("-"):
        if any(word.partition("=")[0] == command.FIRST_WORD for word in argv):
            raise ValueError(f"{argv[0]}: stands for {command.FIRST_WORD} {argv[0]}, but {command.FIRST_WORD} is given")
        argv = [command.FIRST_WORD, *argv]
    argv = [with_home(word) for word in argv]
    given = parse_unchecked(command, argv) if "defaults" in vars(command) else None
    default = command.defaults(given) if given is not None else None
    if pages.HELP_ALL in argv or not set(pages.HELP).isdisjoint(argv):
        pages.show_page(pages.command_page(command, prog, default, everything=pages.HELP_ALL in argv))
        raise SystemExit(0)
    check_names(command, argv, prog)
    start = tyro.MISSING_NONPROP if default is None else default
    return tyro.cli(command, args=argv, prog=prog, default=start, config=NO_TEXTS)


def with_home(word: str) -> str:
    """A word of the command line with the home directory in place of ~, which shells leave in --out=~/runs/a."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + os.path.expanduser(value)  # noqa: PTH111 - most words are no paths


def check_names(command: type[Command], argv: Sequence[str], prog: str) -> None:
    """Raise ValueError for an option or a choice that does not exist, with the nearest that does."""
    found = {name: option for option in pages.options(command) for name in option.names}
    name, option = "", None  # of the word, or the option before it, whose value it may be
    for word in argv:
        is_option, value = bool(re.match(r"--|-[a-zA-Z]$", word)), word
        if is_option:
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            if name not in found:
                raise ValueError(f"{name}: no such option{suggestion(name, command)} (see {prog} {pages.HELP_ALL})")
            option = found[name]
        choices = option.choices if option else ()
        if choices and value and value not in (*choices, "None"):
            raise ValueError(f"{name} {value}: must be one of {', '.join(choices)}{nearest(value, choices)}")
        if not is_option and not (option and option.repeats):
            option = None


def suggestion(name: str, command: type[Command]) -> str:
    """The option that is meant by one that does not exist, also without the part before the dot; empty if none is."""
    shown: dict[str, str] = {}
    for option in pages.options(command):
        for text in (option.name, option.name.rpartition(".")[2]):
            meant = f"{option.metavar}, without {name}" if option.positional else option.name
            shown.setdefault(text.lstrip("-").replace("-", "_"), meant)
    return nearest(name.lstrip("-").replace("-", "_"), shown, shown)


def parse_unchecked(command: type[C], argv: Sequence[str]) -> C | None:
    """A first reading of the options without the command's checks; None where it fails, which `parse` then explains."""
    unchecked: type[C] = dataclass(frozen=True)(type(command.__name__, (command,), {"__post_init__": lambda _: None}))
    options = [word for word in argv if word not in (*pages.HELP, pages.HELP_ALL)]
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        return tyro.cli(unchecked, args=options, console_outputs=False, config=NO_TEXTS)
    return None


def canonical_rules(rules: Sequence[str]) -> tuple[str, ...]:
    """Rules in their canonical spelling; at most as many as one figure can show."""
    from rbi.rules.types import parse_rule

    if not 1 <= len(rules) <= MAX_RULES:
        raise ValueError(f"--rules: give 1 to {MAX_RULES} of them, not {len(rules)}")
    return tuple(str(parse_rule(text)) for text in rules)


class ReportModule(Protocol):
    """A module that reports runs of one kind: tables, figures and closing lines of a complete run."""

    def tables(self, run: runs.Run) -> list["Table"]: ...
    def figures(self, run: runs.Run) -> dict[str, Any]: ...
    def closing(self, run: runs.Run) -> list[str]: ...


def show_run(path: Path, report: ReportModule) -> None:
    """Draw the figures of a complete run and print its tables and closing lines."""
    run = runs.read(path)
    for line in run.damaged:
        echo(f"rbi: {line}; it was skipped", stderr=True)
    with fileio.naming(path / "result.json"):
        with runs.Writer.reopen(path) as writer:
            for name, figure in report.figures(run).items():
                writer.figure(name, figure)
        for table in report.tables(run):
            show(table)
        for line in report.closing(run):
            echo(line)


def show(table: "Table") -> None:
    """Print a table; 160 columns wide where no terminal limits its width."""
    console = PlainConsole()
    (console if console.is_terminal else PlainConsole(width=160)).print(table)
