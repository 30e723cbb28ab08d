"""`rbi data import`, `info` and `export`: experience in any format, into the store, looked at, and out again."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from rbi import runs
from rbi.cli.command import Command, overlaps, show
from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.formats import Format, FormatSettings, open_reader, recognise
from rbi.data.formats.agc_settings import AgcConfig
from rbi.data.formats.seam import Reader, SpecOverrides
from rbi.data.formats.store import StoreReader
from rbi.data.formats.table_settings import TableConfig
from rbi.data.importing import Tally, bring_in
from rbi.data.store import Store, StoreWriter
from rbi.data.summary import DatasetSummary, sample, summaries
from rbi.data.writers import minari, parquet
from rbi.parallel import bounded_map
from rbi.progress import echo, track, track_updates
from rbi.report import data as pages

SECONDS_A_METRIC = 10
SOURCE = "source.json"


@dataclass(frozen=True)
class FromData(Command):
    """What commands that read data share."""

    path: Annotated[Path | None, tyro.conf.Positional] = None
    """The data: a file or a folder."""
    format: Format | None = None
    """Its format; recognised by what is there if not given."""
    about: Annotated[SpecOverrides, tyro.conf.arg(name="")] = field(default_factory=SpecOverrides)
    agc: AgcConfig = field(default_factory=AgcConfig)
    table: TableConfig = field(default_factory=TableConfig)

    def reader(self) -> Reader:
        return open_reader(self.place, self.format, FormatSettings(self.about, self.agc, self.table))

    @property
    def place(self) -> Path:
        """Where the data is."""
        if self.path is None:
            raise ValueError("name the data: a file or a folder")
        return self.path

    def refuse_own_data(self) -> None:
        """What is read must not be what is written."""
        if self.out is not None and overlaps(self.out, self.place):
            raise ValueError(
                f"--out {self.out}: is the data that is read, holds it or lies in it; choose another folder"
            )


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
        with self.resume_run("data-import") if self.resume else self.create_run("data-import", argv) as run:
            there = (run.path / "store.json").exists()
            writing = self.old_store(run.path, reader) if there else StoreWriter.create(run.path, reader.spec)
            if not there:
                runs.write_json(run.path / SOURCE, fingerprint(self.place))
            total = len(reader.parts())
            workers = min(self.workers or os.cpu_count() or 1, max(1, total)) if reader.parallel else 1
            with writing as writer, bounded_map(workers) as each:
                told = bring_in(reader, writer, each, strict=self.strict)
                for tally in track_updates(
                    told, "importing", total, lambda t: t.parts + t.before * reader.parallel, in_words
                ):
                    if time.monotonic() - noted > SECONDS_A_METRIC or tally.parts == total:
                        noted = time.monotonic()
                        run.log(**without_reasons(tally), seconds=noted - started)
            seconds = time.monotonic() - started
            store = Store(run.path)
            run.result(
                {
                    "episodes": len(store),
                    "steps": store.steps,
                    "set_aside": len(store.rejected),
                    "spec": asdict(store.spec),
                    "seconds": seconds,
                }
            )
        if tally.before:
            echo(f"{tally.before:,} episodes were there already")
        if tally.set_aside:
            show(pages.problem_table(told_problems(tally), tally.set_aside))
            echo(f"all of them: {run.path}/set_aside.jsonl")
        rate = f", {tally.steps / max(seconds, 1e-9):,.0f} steps a second" if tally.steps else ""
        echo(f"{len(store):,} episodes, {store.steps:,} steps{rate}; {len(store.rejected):,} set aside: {run.path}")
        if not len(store):
            why = f"could be used; {run.path}/set_aside.jsonl says why" if store.rejected else "is there"
            raise ValueError(f"{self.path}: no episode {why}")

    def old_store(self, path: Path, reader: Reader) -> StoreWriter:
        """The store of an import that was stopped, if the data is still what it was."""
        before = json.loads((path / SOURCE).read_text()) if (path / SOURCE).exists() else None
        if before is not None and before != fingerprint(self.place):
            raise ValueError(f"{self.path}: has changed since its import into {path} began; import it anew")
        writer = StoreWriter.append_to(path, repair=True)
        if writer.spec != reader.spec:
            writer.release()
            raise ValueError(f"{path}: holds {writer.spec}, and {self.path} is {reader.spec}")
        for problem in writer.lost:
            echo(f"{problem}; they are read again", stderr=True)
        return writer


@dataclass(frozen=True)
class Info(FromData):
    """Say what a data set holds, in any format, without importing it."""

    verify: bool = False
    """Also compare every episode of a store with its checksum."""

    def run(self, argv: Sequence[str]) -> None:
        self.refuse_own_data()
        reader = self.reader()
        store = reader.store if isinstance(reader, StoreReader) else None
        if self.verify:
            self.refuse_damage(store)
        about = DatasetSummary(reader.spec.num_actions)
        for problem in [*store.rejected, *store.lost] if store else []:
            about.add(problem)
        for part in track(summaries(reader), "reading", len(reader.parts())):
            for item in part:
                about.add(item)
        seen = sample(reader, np.random.default_rng(self.seed))
        told = about.told() | {
            "path": str(self.path),
            "format": self.format or recognise(self.place),
            "spec": asdict(reader.spec),
            "observations_seen": seen and {"distinct": seen.distinct, "looked_at": seen.looked_at},
        }
        with self.create_run("data-info", argv) as run:
            run.result(told)
            found = runs.read(run.path).finished()
            if found["episodes"]:
                run.figure("data", pages.info_figure(found))
            if seen and reader.spec.is_image:
                run.figure("frames", pages.frame_figure(seen.frames))
        for table in pages.info_tables(found):
            show(table)
        echo(f"numbers and figures: {run.path}")

    def refuse_damage(self, store: Store | None) -> None:
        if store is None:
            raise ValueError(f"--verify: {self.path} is no store")
        damaged = list(track(store.verify(), "verifying"))
        if damaged:
            raise ValueError(f"{damaged[0]} ({len(damaged)} such faults in all)")


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
        with self.create_run("data-export", argv) as run:
            episodes = track(self.usable(reader, tally), "exporting")
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
            show(pages.problem_table(told_problems(tally), tally.set_aside))
        echo(f"{tally.episodes:,} episodes, {tally.steps:,} steps as {self.to}: {run.path}")
        if not tally.episodes:
            raise ValueError(f"{self.path}: no episode {'could be used' if tally.set_aside else 'is there'}")

    def usable(self, reader: Reader, tally: Tally) -> Iterator[Episode]:
        """The episodes that can be used; the others are counted."""
        for part in reader.parts():
            for item in reader.read(part):
                problem = item if isinstance(item, RejectedEpisode) else unfit(item, reader.spec)
                if problem is None and isinstance(item, Episode):
                    tally.episodes, tally.steps = tally.episodes + 1, tally.steps + len(item)
                    yield item
                elif problem is not None:
                    if self.strict:
                        raise ValueError(f"{problem} (without --strict it would be set aside)")
                    tally.add(problem)


def fingerprint(path: Path) -> dict[str, Any]:
    """What shows that data has changed: its files but pictures, how many, how large, and when the last was written."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix != ".png" and p.is_file()]
    stats = [file.stat() for file in files]
    return {
        "files": len(stats),
        "bytes": sum(s.st_size for s in stats),
        "newest": max((s.st_mtime_ns for s in stats), default=0),
    }


def unfit(episode: Episode, spec: DatasetSpec) -> RejectedEpisode | None:
    """Why an episode does not belong to the others, if it does not."""
    try:
        episode.fits(spec)
    except ValueError as error:
        return RejectedEpisode(episode.source, episode.line, str(error))
    return None


def in_words(tally: Tally) -> str:
    told = f"{tally.episodes:,} episodes, {tally.steps:,} steps"
    return told + (f", {tally.set_aside:,} set aside" if tally.set_aside else "")


def without_reasons(tally: Tally) -> dict[str, Any]:
    return {k: v for k, v in vars(tally).items() if k != "reasons"}


def told_problems(tally: Tally) -> list[dict[str, Any]]:
    return [{"kind": kind, "first": str(first)} for kind, first in tally.reasons.items()]
