"""Sweeps: several environments, algorithms and seeds, each run in its own folder, here or on a cluster."""

import dataclasses
import io
import itertools
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbi import envs as environments
from rbi import fileio, runs
from rbi.config import Device, check_seed, choose_device
from rbi.online.config import PARTS, Algorithm, Preset, TrainConfig, unused_settings
from rbi.online.run_logger import DivergenceError, RunOptions, take_options
from rbi.online.train import ENV_SETTINGS, Env, check_resumable, train
from rbi.progress import echo
from rbi.statistics import score_text

MapJobs = Callable[..., Iterable[Any]]
"""A `map` over processes or machines that returns results in order."""


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The runs of a sweep and their final scores."""

    out: Path
    """The folder of the sweep."""
    runs: list[Path]
    """Run folders, by environment, algorithm and seed."""
    rows: list[dict[str, Any]]
    """One row per finished run: environment, algorithm, seed, updates and scores."""

    def __repr__(self) -> str:
        return f"SweepResult({len(self.rows)} of {len(self.runs)} runs finished, in {self.out})"

    def summary(self) -> str:
        """One line per run."""
        lines = []
        for row in self.rows:
            score = row["mean"] if row["mean"] is not None else row["score_while_training"]
            shown = "no episode finished" if score is None else f"mean score {score_text(score)}"
            lines.append(f"{row['algo']} on {row['env']}, seed {row['seed']}: {shown} at {row['updates']:,} updates")
        return "\n".join(lines)


@dataclass(frozen=True)
class SweepJob:
    """One run of a sweep."""

    config: TrainConfig
    seed: int
    path: Path

    def __str__(self) -> str:
        return f"{self.config.algo} on {self.config.env.id}, seed {self.seed}"


def sweep(
    envs: Sequence[Env],
    algos: Sequence[Algorithm] = ("rbi",),
    seeds: Sequence[int] = (0,),
    *,
    out: Path | str,
    preset: Preset | None = None,
    device: Device = "auto",
    progress: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    options: RunOptions | None = None,
    map_jobs: MapJobs | None = None,
    argv: Sequence[str] = (),
    **overrides: Any,
) -> SweepResult:
    """Train in every environment with every algorithm and seed, each run in its own folder under `out`/runs.

    Settings are as in `rbi.train`. With `resume=True` finished runs are kept, and interrupted ones continue, as do all
    if there are more updates than before. `map_jobs` runs whole jobs elsewhere, such as on a Ray cluster; without it
    they run here one after the other.

        result = sweep(["CartPole-v1", "Acrobot-v1"], ["rbi", "apex"], range(3), out="runs/sweep")
        print(result.summary())
    """
    envs, algos = check_several("envs", envs), check_several("algos", algos)
    seeds = [check_seed(seed) for seed in check_several("seeds", seeds)]
    if resume and overwrite:
        raise ValueError("resume: name the sweep with out, without overwrite")
    path, options = fileio.as_path(out), take_options(overrides, options)
    if options.mirror:
        raise ValueError(f"mirror = {options.mirror}: is for single runs, not for a sweep")
    if map_jobs is None:
        choose_device(device)
    configs = make_configs(envs, algos, preset, overrides)
    ids = [config.env.id for config in configs[:: len(algos)]]
    check_distinct(envs=[as_file_name(id_) for id_ in ids], algos=algos, seeds=seeds)
    settings = {
        "envs": ids,
        "algos": algos,
        "seeds": seeds,
        "preset": preset,
        **{name: getattr(configs[0].env, name) for name in ENV_SETTINGS},
        **{part: getattr(configs[0], part) for part in PARTS},
    }
    if resume:
        opened = resume_sweep(path, settings, seeds[0], progress=progress)
    else:
        opened = runs.Writer.create(
            path, command="train", settings=settings, seed=seeds[0], argv=argv, overwrite=overwrite
        )
    with opened as writer:
        folder = writer.path / "runs"
        jobs = [
            SweepJob(config, seed, folder / f"{config.algo}-{as_file_name(config.env.id)}-seed{seed}")
            for config, seed in itertools.product(configs, seeds)
        ]
        left = [job for job in jobs if not is_finished(job.path, job.config.schedule.updates)]
        if left and map_jobs is not None:
            run_remotely(left, folder, map_jobs, options, progress=progress)
        else:
            for number, job in enumerate(left, len(jobs) - len(left) + 1):
                if progress:
                    echo(f"== {number} of {len(jobs)}: {job}")
                try:
                    run_job(job, options, device, progress=progress, argv=argv)
                except KeyboardInterrupt:
                    named = ["--envs" if len(ids) > 1 else "--env", ",".join(ids)] if ":" in "".join(ids) else []
                    how = f"{shlex.join([*named, '--resume', '--out', str(writer.path)])} (Python: resume=True)"
                    raise KeyboardInterrupt(f"stopped; the sweep continues with {how}") from None
        rows = [row_of(runs.read(job.path)) for job in jobs if is_finished(job.path)]
        if not rows:
            raise ValueError(f"{writer.path}: no run of the sweep has a result")
        writer.result({"rows": rows})
    return SweepResult(writer.path, [job.path for job in jobs], rows)


def check_several(name: str, values: Any) -> list[Any]:
    """An argument of a sweep as a list. Raises ValueError unless it is one or more values, not a single one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} = {values!r}: must be a list, also of one, such as [{values!r}]")
    found = list(values)
    if not found:
        raise ValueError(f"{name} is empty: name at least one")
    return found


def check_distinct(**arguments: list[Any]) -> None:
    """Raise ValueError for a value that occurs twice: environment, algorithm and seed name the folder of a run."""
    for name, values in arguments.items():
        if twice := [value for value in values if values.count(value) > 1]:
            advice = "runs need different environments, algorithms and seeds, which name their folders"
            raise ValueError(f"{name}: {twice[0]} occurs twice; {advice}")


def make_configs(
    envs: Sequence[Env], algos: Sequence[Algorithm], preset: Preset | None, overrides: Mapping[str, Any]
) -> list[TrainConfig]:
    """The settings of the runs, by environment and algorithm, in environments that exist."""
    for name in ("callback", "trunk", "engine", "config"):
        if name in overrides:
            raise ValueError(f"{name}: a sweep takes none; use rbi.train for each run")
    changes = {algo: used_settings(algo, overrides) if len(algos) > 1 else overrides for algo in algos}
    configs = [TrainConfig.preset(env, algo, preset, **changes[algo]) for env, algo in itertools.product(envs, algos)]
    for config in configs:
        environments.check(config.env)
    return configs


def resume_sweep(path: Path, settings: dict[str, Any], seed: int, *, progress: bool) -> runs.Writer:
    """The folder of an earlier sweep with the same settings, opened to continue it."""
    saved = runs.read(path).config.get("settings")
    new = set(ENV_SETTINGS).difference(saved if isinstance(saved, dict) else ())
    check_resumable(path, settings, seed, tuple(new), progress=progress)  # earlier sweeps did not store them
    writer = runs.Writer.reopen(path)
    runs.save_changed_settings(path, settings)
    return writer


def used_settings(algo: Algorithm, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a sweep over several algorithms that this one has a use for; parts may be mappings."""
    unused = unused_settings(algo)
    return {
        name: {key: of_part for key, of_part in value.items() if key not in unused}
        if isinstance(value, Mapping)
        else value
        for name, value in settings.items()
        if name not in unused
    }


def row_of(run: runs.Run) -> dict[str, Any]:
    """The final scores of a finished run."""
    found = run.finished()
    evaluation = found.get("evaluation") or {}
    names = ("mean", "interval", "median", "quartiles", "episodes", "human_normalised", "protocol_description")
    return {
        "env": found["env"],
        "algo": found["algo"],
        "seed": run.config["seed"],
        "updates": found["last"]["updates"],
        **{name: evaluation.get(name) for name in names},
        "score_while_training": found["last"]["score"],
    }


def run_job(
    job: SweepJob, options: RunOptions, device: Device, *, progress: bool = True, argv: Sequence[str] = ()
) -> None:
    """Run or resume one job of a sweep. One that diverges has no result, and ends no other."""
    resume = (job.path / "config.json").is_file()
    try:
        train(
            config=job.config,
            seed=job.seed,
            out=job.path,
            device=device,
            resume=resume,
            options=options,
            progress=progress,
            argv=argv,
        )
    except DivergenceError as error:
        echo(f"rbi: {job}: {error}; the sweep goes on without it", stderr=True)


def run_remotely(
    jobs: Sequence[SweepJob], folder: Path, map_jobs: MapJobs, options: RunOptions, *, progress: bool
) -> None:
    """Run jobs through `map_jobs`. Where workers share the sweep's folder, a job whose worker dies resumes from its
    checkpoint; elsewhere it begins again, and its run folder comes back as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = fileio.temporary_name(folder / "shared")
    marker.touch()
    try:
        count = len(jobs)
        results = map_jobs(run_remote_job, jobs, [options] * count, [marker] * count)
        for number, (job, packed) in enumerate(zip(jobs, results, strict=True), 1):
            if packed is not None:
                unpack_run(packed, job.path)
            if progress:
                echo(f"== {number} of {count}: {job}: done")
    finally:
        marker.unlink(missing_ok=True)


def run_remote_job(job: SweepJob, options: RunOptions, marker: Path) -> bytes | None:
    """Run a job in the sweep's folder if this machine sees it, else in a temporary one that is returned as a tar."""
    if marker.exists():
        run_job(job, options, "auto", progress=False)
        return None
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / job.path.name
        run_job(dataclasses.replace(job, path=path), options, "auto", progress=False)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in sorted(path.iterdir()):
                archive.add(file, file.name)
        return packed.getvalue()


def unpack_run(packed: bytes, path: Path) -> None:
    """Write a run folder that came back from another machine, whole or not at all."""
    with fileio.atomic_folder(path) as growing, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(growing, filter="data")


def is_finished(path: Path, updates: int = 0) -> bool:
    """Whether a run is complete, after at least this many updates."""
    found = runs.read(path) if path.exists() else None
    return found is not None and found.result is not None and found.finished()["last"]["updates"] >= updates


def as_file_name(env: str) -> str:
    """An environment's id as part of a file name."""
    return env.replace("/", "-").replace(":", "-")
