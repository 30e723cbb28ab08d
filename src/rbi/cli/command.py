"""What all commands share: where they write, and how they show progress and results."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from rich.console import Console
from rich.table import Table

from rbi import runs
from rbi.progress import echo
from rbi.rules.types import parse_rule

T = TypeVar("T")

MOST_RULES = 8  # more cannot be told apart in one picture


@dataclass(frozen=True)
class Command(ABC):
    """What the parser makes of the command line: settings that can run. All commands share where and how they write."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("workers", "resume")
    """Settings that a resumed run may have otherwise: they do not change what is computed."""
    BEFORE_IT_WAS: ClassVar[dict[str, Any]] = {}
    """Settings that runs of earlier versions do not name, and what they then were."""

    out: Path | None = None
    """Folder for the results; a new one under runs/ if not given."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    overwrite: bool = False
    """Replace an earlier run in the same folder."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed = {self.seed}: must be at least 0, and less than 2^63")

    @abstractmethod
    def run(self, argv: Sequence[str]) -> None:
        """Do the work, write the run folder, show the result."""

    def new_run(self, name: str, argv: Sequence[str]) -> runs.Writer:
        """The run folder: --out, or a new one under runs/ named by time and command."""
        path = self.out if self.out is not None else runs.default_folder(name)
        return runs.Writer.create(
            path, command=name, settings=self.settings(), seed=self.seed, argv=argv, overwrite=self.overwrite
        )

    def resumed_run(self, name: str) -> runs.Writer:
        """The run folder --out of the same command, settings and seed, to go on with."""
        self.refuse_other_run(name)
        return runs.Writer.reopen(self.out or Path())

    def refuse_other_run(self, name: str) -> None:
        """--resume goes on with the run in --out: it must be of this command, with these settings and this seed."""
        if self.out is None:
            raise ValueError("--resume: name the run with --out")
        runs.check_resumable(
            self.out,
            command=name,
            settings=self.settings(),
            seed=self.seed,
            may_change=self.MAY_CHANGE,
            defaults=self.BEFORE_IT_WAS,
        )

    def settings(self) -> dict[str, Any]:
        """What config.json keeps of the command line, beside the seed."""
        return {k: v for k, v in vars(self).items() if k not in ("out", "seed", "overwrite")}


def related(one: Path, other: Path) -> bool:
    """Whether one folder or file is the other or lies inside it."""
    one, other = one.resolve(), other.resolve()
    return one == other or one in other.parents or other in one.parents


def some_rules(rules: Sequence[str]) -> tuple[str, ...]:
    """As many rules as a picture can show, each in its one spelling."""
    if not 1 <= len(rules) <= MOST_RULES:
        raise ValueError(f"--rules: give 1 to {MOST_RULES} of them, not {len(rules)}")
    return tuple(str(parse_rule(text)) for text in rules)


def value_of(argv: Sequence[str], flag: str) -> str:
    """What an argument is given as, in either spelling; empty if it is not."""
    for word, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.split("=", 1)[1]
    return ""


class Pages(Protocol):
    """What a report says of a complete run."""

    def tables(self, run: runs.Run) -> list[Table]: ...
    def figures(self, run: runs.Run) -> dict[str, Any]: ...
    def closing(self, run: runs.Run) -> list[str]: ...


def tell(path: Path, pages: Pages) -> None:
    """Draw the figures of a complete run, again where they were lost, and show its tables and last words."""
    run = runs.read(path)
    with runs.Writer.reopen(path) as writer:
        for name, figure in pages.figures(run).items():
            writer.figure(name, figure)
    for table in pages.tables(run):
        show(table)
    for line in pages.closing(run):
        echo(line)


def show(table: Table) -> None:
    """A table, in full where no terminal limits its width."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)
