"""`rbi report`: run folders as one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rbi.cli.command import Command
from rbi.progress import echo


@dataclass(frozen=True)
class Report(Command):
    """Write one self-contained HTML page about run folders: charts, tables, decisions, settings.

    The page works offline, opens from disk and prints. Several runs are compared on one page. --out names the file:
    report.html in the run folder by default, or in the current folder for several runs.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders; the folder of a sweep stands for all of its runs."""
    title: str = ""
    """Heading of the page (default: the name of the run)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise ValueError("name at least one run folder")

    def run(self, argv: Sequence[str]) -> None:  # noqa: ARG002
        from rbi.report.html import write_report

        path = write_report(self.runs, self.out, title=self.title, overwrite=self.overwrite)
        echo(f"report, {path.stat().st_size / 1e6:.1f} MB: {path}")
