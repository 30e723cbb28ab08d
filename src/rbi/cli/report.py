"""`rbi report`: run folders as one HTML page."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from rbi.cli.command import Command
from rbi.config import Interval
from rbi.progress import echo


@dataclass(frozen=True)
class Report(Command):
    """Write one self-contained HTML page about run folders: charts, tables, decisions, settings.

    The page works offline, opens from disk and prints. Several runs are compared on one page. --out names the file:
    report.html in the run folder by default, or in the current folder for several runs.
    """

    EXAMPLE: ClassVar[str] = "rbi report runs/cart runs/cart-apex --out comparison.html"
    writes_folder: ClassVar[bool] = False

    out: Path | None = None
    """HTML file (default: report.html in the run folder, or in the current folder for several runs)."""
    overwrite: bool = False
    """Replace an earlier file."""
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders; the folder of a sweep stands for all of its runs."""
    data: Path | None = None
    """Episodes for the viewer (default: those that the run learned from or was tested on)."""
    policy: Path | None = None
    """Policy in the viewer (default: the run's own)."""
    episodes: Annotated[int, Interval(ge=0, le=20)] | None = None
    """Episodes in the viewer (default: 3; for rbi train none, since its policy has to run fresh ones)."""
    title: str = ""
    """Heading of the page (default: the name of the run)."""
    live: bool = False
    """Serve the page instead of writing it, and refresh it while the runs go on; Ctrl-C ends it."""
    host: str = "127.0.0.1"
    """Address for --live. The default is reachable from this machine only; 0.0.0.0 shows the runs to the network."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8760
    """Port for --live; 0 takes any free one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise ValueError("name at least one run folder")

    def run(self, argv: Sequence[str]) -> None:  # noqa: ARG002
        if self.live:
            self.serve()
            return
        from rbi.report.html import write_report

        path = write_report(
            self.runs,
            self.out,
            data=self.data,
            policy=self.policy,
            episodes=self.episodes,
            title=self.title,
            seed=self.seed,
            overwrite=self.overwrite,
        )
        echo(f"report, {path.stat().st_size / 1e6:.1f} MB: {path}")

    def outcome(self) -> dict[str, Any]:
        from rbi.report.html import default_file

        path = self.out or default_file(self.runs)
        return {"report": str(path), "bytes": path.stat().st_size}

    def serve(self) -> None:
        """Serve the page until Ctrl-C."""
        from rbi.report.live import LiveServer

        if self.out is not None:
            raise ValueError("--live serves the page and writes no file: leave out --out")
        with LiveServer(self.runs, self.host, self.port, self.title) as server, contextlib.suppress(KeyboardInterrupt):
            echo(f"live report: {server.url} (Ctrl-C ends it)")
            server.serve_forever()
