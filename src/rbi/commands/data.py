"""`rbi data import`, `info` and `export`: experience in any format, into the store, looked at, and out again."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from rbi import runs
from rbi.commands.command import Command, bounded_map, progress, say, show, watched
from rbi.data.about import About, outlines, sample
from rbi.data.episode import Episode, Spec
from rbi.data.episodes import Problem
from rbi.data.importing import Tally, bring_in
from rbi.data.readers import Format, Reader, Settings, open_reader, recognise
from rbi.data.readers.agc_settings import AgcConfig
from rbi.data.readers.seam import Asked
from rbi.data.readers.table_settings import TableConfig
from rbi.data.store import Store, StoreWriter
from rbi.data.writers import minari, parquet
from rbi.report import data as pages

SECONDS_A_METRIC = 10


@dataclass(frozen=True)
class FromData(Command):
    """What commands that read data share."""

    path: Annotated[Path, tyro.conf.Positional] = Path()
    """The data: a file or a folder."""
    format: Format | None = None
    """Its format; recognised by what is there if not given."""
    about: Annotated[Asked, tyro.conf.arg(name="")] = field(default_factory=Asked)
    agc: AgcConfig = field(default_factory=AgcConfig)
    table: TableConfig = field(default_factory=TableConfig)

    def reader(self) -> Reader:
        if str(self.path) == ".":
            raise ValueError("name the data: a file or a folder")
        return open_reader(self.path, self.format, Settings(self.about, self.agc, self.table))

    def refuse_own_data(self) -> None:
        """What is read must not be what is written."""
        if self.out is not None and self.out.resolve() == self.path.resolve():
            raise ValueError(f"--out {self.out}: is the data that is read; choose another folder")


@dataclass(frozen=True)
class Import(FromData):
    """Read experience in any format into a store: one folder that grows, is read in place, and survives a kill.

    Episodes that cannot be used are set aside with file, line and reason; the rest is taken.
    """

    strict: bool = False
    """Stop at the first episode that cannot be used."""
    workers: int = 0
    """Processes that read, where the format allows it; 0 for one a core. The store does not depend on it."""
    resume: bool = False
    """Go on with the import into --out that was stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 0:
            raise ValueError(f"--workers {self.workers}: must be at least 0")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped import with --out, without --overwrite")

    def run(self, argv: Sequence[str]) -> None:
        self.refuse_own_data()
        reader = self.reader()
        started, noted, tally = time.monotonic(), 0.0, Tally()
        with self.resumed_run("data-import") if self.resume else self.new_run("data-import", argv) as run:
            there = (run.path / "store.json").exists()
            writing = StoreWriter.append_to(run.path) if there else StoreWriter.create(run.path, reader.spec)
            total = len(reader.parts())
            workers = min(self.workers or os.cpu_count() or 1, max(1, total)) if reader.parallel else 1
            with writing as writer, bounded_map(workers) as each:
                told = bring_in(reader, writer, each, strict=self.strict)
                for tally in watched(
                    told, "importing", total, lambda t: t.parts + t.before * reader.parallel, in_words
                ):
                    if time.monotonic() - noted > SECONDS_A_METRIC or tally.parts == total:
                        noted = time.monotonic()
                        run.metric(**without_reasons(tally), seconds=noted - started)
            seconds = time.monotonic() - started
            store = Store(run.path)
            run.result(
                {
                    "episodes": len(store),
                    "steps": store.steps,
                    "set_aside": len(store.problems),
                    "spec": asdict(store.spec),
                    "seconds": seconds,
                }
            )
        if tally.before:
            say(f"{tally.before:,} episodes were there already")
        if tally.set_aside:
            show(pages.problem_table(told_problems(tally), tally.set_aside, f", all in {run.path}/set_aside.jsonl"))
        rate = f", {tally.steps / max(seconds, 1e-9):,.0f} steps a second" if tally.steps else ""
        say(f"{len(store):,} episodes, {store.steps:,} steps{rate}; {len(store.problems):,} set aside: {run.path}")
        if not len(store):
            raise ValueError(f"{self.path}: no episode could be used; {run.path}/set_aside.jsonl says why")


@dataclass(frozen=True)
class Info(FromData):
    """Say what a data set holds, in any format, without importing it."""

    verify: bool = False
    """Also compare every episode of a store with its checksum."""

    def run(self, argv: Sequence[str]) -> None:
        self.refuse_own_data()
        reader = self.reader()
        about = About(reader.spec.actions)
        for part in progress(outlines(reader), "reading", len(reader.parts())):
            for item in part:
                about.add(item)
        seen = sample(reader, np.random.default_rng(self.seed))
        damaged = list(Store(self.path).verify()) if self.verify and (self.path / "store.json").exists() else []
        told = about.told() | {
            "path": str(self.path),
            "format": self.format or recognise(self.path),
            "spec": asdict(reader.spec),
            "observations_seen": seen and {"distinct": seen.distinct, "looked_at": seen.looked_at},
            "damaged": [str(problem) for problem in damaged],
        }
        with self.new_run("data-info", argv) as run:
            run.result(told)
            found = runs.read(run.path).finished()
            if found["episodes"]:
                run.figure("data", pages.info_figure(found))
            if seen and reader.spec.pictures:
                run.figure("frames", pages.frame_figure(seen.frames))
        show(pages.info_table(found))
        if found["episodes"]:
            show(pages.action_table(found))
        if (players := pages.player_table(found)) is not None:
            show(players)
        if found["set_aside"]:
            show(pages.problem_table(found["problems"], found["set_aside"], " by an import"))
        say(f"figures: {run.path}/figures")
        if damaged:
            raise ValueError(f"{damaged[0]} ({len(damaged)} damaged in all)")


@dataclass(frozen=True)
class Export(FromData):
    """Write experience as another format, into the folder --out."""

    to: Literal["parquet", "minari", "store"] = "parquet"
    """parquet: one row a step, in episodes.parquet; minari: a Minari data set; store: ours."""
    strict: bool = False
    """Stop at the first episode that cannot be used."""

    def run(self, argv: Sequence[str]) -> None:
        self.refuse_own_data()
        reader, tally = self.reader(), Tally()
        with self.new_run("data-export", argv) as run:
            episodes = progress(self.usable(reader, tally), "exporting")
            if self.to == "parquet":
                parquet.write_parquet(episodes, reader.spec, run.path / "episodes.parquet")
            elif self.to == "minari":
                minari.write_minari(episodes, reader.spec, run.path)
            else:
                with StoreWriter.create(run.path, reader.spec) as writer:
                    for episode in episodes:
                        writer.append(episode)
            run.result({**without_reasons(tally), "to": self.to, "spec": asdict(reader.spec)})
        if tally.set_aside:
            show(pages.problem_table(told_problems(tally), tally.set_aside, ""))
        say(f"{tally.episodes:,} episodes, {tally.steps:,} steps as {self.to}: {run.path}")

    def usable(self, reader: Reader, tally: Tally) -> Iterator[Episode]:
        """The episodes that can be used; the others are counted."""
        for part in reader.parts():
            for item in reader.read(part):
                problem = item if isinstance(item, Problem) else unfit(item, reader.spec)
                if problem is None and isinstance(item, Episode):
                    tally.episodes, tally.steps = tally.episodes + 1, tally.steps + len(item)
                    yield item
                elif problem is not None:
                    if self.strict:
                        raise ValueError(f"{problem} (without --strict it would be set aside)")
                    tally.add(problem)


def unfit(episode: Episode, spec: Spec) -> Problem | None:
    """Why an episode does not belong to the others, if it does not."""
    try:
        episode.fits(spec)
    except ValueError as error:
        return Problem(episode.source, episode.line, str(error))
    return None


def in_words(tally: Tally) -> str:
    told = f"{tally.episodes:,} episodes, {tally.steps:,} steps"
    return told + (f", {tally.set_aside:,} set aside" if tally.set_aside else "")


def without_reasons(tally: Tally) -> dict[str, Any]:
    return {k: v for k, v in vars(tally).items() if k != "reasons"}


def told_problems(tally: Tally) -> list[dict[str, Any]]:
    return [{"kind": kind, "first": str(first)} for kind, first in tally.reasons.items()]
