"""`rbi data import`, `info` and `export`: data of any format into a store, summarised, and into other formats."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import tyro

from rbi import fileio, runs
from rbi.cli.command import Command, show
from rbi.config import Interval
from rbi.data.formats import (
    AgcConfig,
    Format,
    FormatSettings,
    Reader,
    SpecOverrides,
    TableConfig,
    open_reader,
    recognise,
)
from rbi.data.importing import ExportFormat, export_dataset, import_dataset, sample_observations, summarize_data
from rbi.data.store import MAX_LOST, REJECTED, Store, is_store
from rbi.progress import echo, track

TABLE_OPTIONS = ("table.action", "table.reward", "table.observations", "table.one-step", "table.action-prob")
DATA_OPTIONS = ("format", *TABLE_OPTIONS)
"""What the short help of the commands that read data shows."""


@dataclass(frozen=True)
class FromData(Command):
    """Options of commands that read data."""

    path: Annotated[Path | None, tyro.conf.Positional] = None
    """The data: a file or a folder."""
    format: Format | None = None
    """Format of the data (default: recognised from the files)."""
    overrides: Annotated[SpecOverrides, tyro.conf.arg(name="")] = field(default_factory=SpecOverrides)
    agc: AgcConfig = field(default_factory=AgcConfig)
    table: TableConfig = field(default_factory=TableConfig)
    max_lost: Annotated[float, Interval(ge=0, le=1)] = MAX_LOST
    """Largest share of a store's episodes that may be lost, as after a power failure; more are refused."""

    def reader(self) -> Reader:
        """The reader of the data, once its spec is known: bad input is refused before a folder is made."""
        found = open_reader(self.place, self.format, self.format_settings)
        assert found.spec
        return found

    @property
    def format_settings(self) -> FormatSettings | None:
        """How to read the data; None for the defaults."""
        given = FormatSettings(self.overrides, self.agc, self.table, self.max_lost)
        return None if given == FormatSettings() else given

    def settings_as_trained(self, policy: Path) -> FormatSettings | None:
        """How to read the data: a table as the one that trained a policy, unless --table names columns. Says so."""
        from rbi.certification.decision import encoded_as
        from rbi.policy import load_policy

        found = encoded_as(load_policy(policy), policy, self.place, self.format, self.format_settings)
        if found and not self.table.roles() and (options := found.table.options()):
            echo(f"the table is read like the one that trained {policy}: {options}")
        return found

    @property
    def place(self) -> Path:
        """The path of the data, which must not overlap with the output folder."""
        if self.path is None:
            raise ValueError("name the data: a file or a folder")
        if self.out is not None and runs.overlaps(self.out, self.path):
            raise ValueError(f"--out {self.out}: overlaps with the data; choose another folder")
        return self.path


@dataclass(frozen=True)
class Import(FromData):
    """Import data of any format into a store: one folder that grows, is memory-mapped, and survives a kill.

    Unusable episodes are rejected with file, line and reason; the rest is imported.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (*DATA_OPTIONS, "env", "strict", "workers", "resume")
    EXAMPLE: ClassVar[str] = "rbi data import logs.csv --table.action offer --table.reward paid --out runs/store"

    strict: bool = False
    """Stop at the first unusable episode."""
    workers: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Processes that read, if the format allows it; 0: one per core. The store does not depend on it."""
    resume: bool = False
    """Continue the interrupted import into --out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the interrupted import with --out, without --overwrite")

    def run(self, argv: Sequence[str]) -> None:
        started, reader = time.monotonic(), self.reader()
        with self.resume_run("data-import") if self.resume else self.create_run("data-import", argv) as run:
            store, state = import_dataset(
                reader,
                run.path,
                strict=self.strict,
                workers=self.workers,
                callback=lambda metrics: run.log(**metrics),
            )
            seconds = time.monotonic() - started
            counts = {"episodes": len(store), "steps": store.steps, "rejected": len(store.rejected)}
            run.result({**counts, "spec": asdict(store.spec), "seconds": seconds})
        if state.skipped:
            echo(f"{state.skipped:,} episodes were imported before")
        if state.rejected:
            show_rejected(state.examples(), state.rejected)
            echo(f"all of them: {fileio.shown(run.path) / REJECTED}")
        rate = f", {state.steps / max(seconds, 1e-9):,.0f} steps a second" if state.steps else ""
        rejected = f"{len(store.rejected):,} rejected"
        echo(f"{len(store):,} episodes, {store.steps:,} steps{rate}; {rejected}: {fileio.shown(run.path)}")
        if not len(store):
            why = f"usable episodes; {run.path / REJECTED} says why" if store.rejected else "episodes"
            raise ValueError(f"{self.path}: no {why}")


@dataclass(frozen=True)
class Info(FromData):
    """Summarise a dataset of any format without importing it."""

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (*DATA_OPTIONS, "verify")
    EXAMPLE: ClassVar[str] = "rbi data info runs/store"

    verify: bool = False
    """Also compare every episode of a store with its checksum."""

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import data as pages

        if self.verify:
            self.check_store()
        reader = replace(self, max_lost=1.0).reader()  # whatever is lost is shown
        summary = summarize_data(reader)
        sampled = sample_observations(reader, np.random.default_rng(self.seed))
        facts: dict[str, Any] = {
            "path": str(self.path),
            "format": self.format or recognise(self.place),
            "spec": asdict(reader.spec),
            "sampled_observations": sampled and {"distinct": sampled.distinct, "total": sampled.total},
        }
        with self.create_run("data-info", argv) as run:
            run.result(summary.to_dict() | facts)
            found = runs.read(run.path).finished()
            if found["episodes"]:
                run.figure("data", pages.info_figure(found))
            if sampled and reader.spec.is_image:
                run.figure("frames", pages.frame_figure(sampled.frames))
        for table in pages.info_tables(found):
            show(table)
        echo(f"numbers and figures: {fileio.shown(run.path)}")

    def check_store(self) -> None:
        if not is_store(self.place):
            raise ValueError(f"--verify: {self.path} is not a store")
        damaged = list(track(Store(self.place).verify(), "verifying"))
        if damaged:
            raise ValueError(f"{damaged[0]} ({len(damaged)} such faults in all)")


@dataclass(frozen=True)
class Export(FromData):
    """Write data in another format into the folder --out."""

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = ("to", *DATA_OPTIONS, "strict")
    EXAMPLE: ClassVar[str] = "rbi data export runs/store --to parquet --out runs/parquet"

    to: ExportFormat = "parquet"
    """parquet: one row per step, in episodes.parquet; minari: a Minari dataset; store: our store."""
    strict: bool = False
    """Stop at the first unusable episode."""

    def run(self, argv: Sequence[str]) -> None:
        reader = self.reader()
        with self.create_run("data-export", argv) as run:
            spec, state = export_dataset(reader, run.path, self.to, strict=self.strict)
            run.result({**state.counts(), "to": self.to, "spec": asdict(spec)})
        if state.rejected:
            show_rejected(state.examples(), state.rejected)
        echo(f"{state.episodes:,} episodes, {state.steps:,} steps as {self.to}: {fileio.shown(run.path)}")
        if not state.episodes:
            raise ValueError(f"{self.path}: no {'usable ' if state.rejected else ''}episodes")


def show_rejected(examples: list[dict[str, str]], count: int) -> None:
    from rbi.report.data import rejected_table

    show(rejected_table(examples, count))
