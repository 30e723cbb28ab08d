"""Whole training runs spread over a cluster, one a task: what `rbi train --engine ray` does with several of them."""

import dataclasses
import io
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rbi.online.ray.config import ClusterConfig
from rbi.online.ray.driver import cluster_map
from rbi.progress import echo

Job = Any  # a command that trains, as a frozen dataclass with `out` and `resume`
Run = Callable[[Job, Sequence[str]], Any]


class Spreading(Protocol):
    """The settings that say where runs are spread."""

    @property
    def address(self) -> str: ...
    @property
    def cluster(self) -> ClusterConfig: ...


def spread(command: Spreading, run: Run, jobs: Sequence[tuple[Job, Path]], argv: Sequence[str]) -> None:
    """Run every job on the local engine of some node. Where nodes share the folder of the sweep, a run whose node dies
    goes on from its checkpoint; elsewhere it begins again, and comes back as a whole."""
    if not jobs:
        return
    folder = jobs[0][1].parent
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".{uuid.uuid4().hex}.tmp"
    mark.touch()
    config = command.cluster
    try:
        with cluster_map(command.address, config.learner_cpus, config.learner_gpus or 0.0) as each:
            count = len(jobs)
            plain, places = zip(*jobs, strict=True)
            found = each(one_run, [run] * count, plain, [list(argv)] * count, places, [mark] * count)
            for number, ((job, at), packed) in enumerate(zip(jobs, found, strict=True), 1):
                if packed is not None:
                    unpack(packed, at)
                echo(f"== {number} of {len(jobs)}: {job.algo} on {job.env}, seed {job.seed}: done")
    finally:
        mark.unlink(missing_ok=True)


def one_run(run: Run, job: Job, argv: Sequence[str], at: Path, mark: Path) -> bytes | None:
    """A whole run, in its own folder where this node can see it; elsewhere as the bytes of that folder."""
    if mark.exists():
        run(dataclasses.replace(job, out=at, resume=(at / "config.json").is_file()), argv)
        return None
    with tempfile.TemporaryDirectory() as place:
        run(dataclasses.replace(job, out=Path(place) / at.name, resume=False), argv)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in sorted((Path(place) / at.name).iterdir()):
                archive.add(file, file.name)
        return packed.getvalue()


def unpack(packed: bytes, at: Path) -> None:
    """A run that came back, whole or not at all."""
    growing = at.with_name(f".{at.name}.{uuid.uuid4().hex}.tmp")
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(growing, filter="data")
        shutil.rmtree(at, ignore_errors=True)
        growing.replace(at)
    finally:
        shutil.rmtree(growing, ignore_errors=True)
