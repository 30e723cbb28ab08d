"""Run folders: writing, reading and resuming them. `rbi.runs.read(path)` reads one.

    config.json     what ran: command, command line, settings, seed, versions, machine, start time
    metrics.jsonl   one JSON object per line, in order of time
    result.json     the numbers for tables and figures; present once the run is complete
    figures/        NAME.png and NAME.pdf

Files and folders appear whole or not at all (`rbi.fileio`). Metric lines are appended whole; a line torn by a power
failure is skipped by the reader, which lists it in `Run.damaged`. One process at a time writes to a run folder: it
holds a `RunLock`.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import functools
import importlib.metadata
import io
import json
import os
import platform
import re
import secrets
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rbi import __version__, fileio
from rbi.config import check_value
from rbi.suggestions import nearest

DPI = 200  # of figures
VERSIONED_PACKAGES = ("numpy", "torch", "scipy", "array-api-compat", "matplotlib")
RUN_FILES = re.compile(
    r"config\.json|metrics\.jsonl|result\.json|report\.html|figures|checkpoints|policies|tensorboard|runs|"
    r"store\.json|(observations|actions|rewards|terminated|truncated|life_lost|action_probs|action_masks|behavior_probs|episodes)\.bin|"
    r"(texts|rejected)\.jsonl|source\.json|episodes\.parquet|policy\.onnx|data|\.lock|"
    r"\..+\.\d+(-[0-9a-f]{6})?(\.old)?\.tmp"
)
CHANGED_ON_RESUME = ("schedule.updates", "schedule.env_threads", "schedule.env_processes")
"""Settings of training whose newest values config.json holds."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run folder. `result` is None until the run is complete."""

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    damaged: tuple[str, ...] = ()
    """The lines of metrics.jsonl that were skipped, each with file, line and reason."""

    @property
    def figures(self) -> list[Path]:
        """The PNG files in figures/."""
        return sorted((self.path / "figures").glob("*.png"))

    def finished(self) -> dict[str, Any]:
        """The result; raises ValueError if the run is not complete."""
        if self.result is None:
            raise ValueError(f"{self.path}: the run is not complete (it has no result.json)")
        return self.result


def lock_run(path: Path) -> fileio.RunLock:
    """Lock an existing run folder, and clean up what a killed process left in it."""
    path = fileio.resolve(path)
    fileio.restore_interrupted(path.parent, path.name)
    check_run_folder(path)
    lock = fileio.RunLock(path)
    for name in ("", "checkpoints", "figures", "policies", "runs"):
        fileio.restore_interrupted(path / name, locked=True)
    return lock


class Writer:
    """An open run folder, made by `Writer.create` (new) or `Writer.reopen` (to continue)."""

    def __init__(self, path: Path, lock: fileio.RunLock) -> None:
        self.path, self._lock = path, lock
        self._metrics = os.open(path / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        command: str,
        settings: Mapping[str, Any],
        seed: int = 0,
        argv: Sequence[str] = (),
        overwrite: bool = False,
    ) -> Self:
        """Create a run folder with its config.json, atomically.

        With `overwrite` it replaces an earlier run, which is removed once the new folder is in its place.
        """
        path = fileio.resolve(path)
        occupied = check_available(path, overwrite=overwrite)
        config = {
            "command": command,
            "argv": list(argv),
            "settings": settings,
            "seed": seed,
            "versions": versions(),
            "machine": {"system": platform.platform(), "cpu": platform.machine(), "cores": os.cpu_count()},
            "started": fileio.utc_now(),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{path}: cannot be created, because part of the path is a file") from None
        temporary = fileio.temporary_name(path)
        with fileio.RunLock(path) if occupied else contextlib.nullcontext() as replaced:
            try:
                with fileio.writing(path):
                    temporary.mkdir()
                    lock = fileio.RunLock(temporary)
                    fileio.write_json(temporary / "config.json", config)
                    old = fileio.replace_folder(temporary, path, aside=occupied)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            lock.folder = path
            if old is not None and replaced is not None:
                replaced.folder = old
                shutil.rmtree(old, ignore_errors=True)
        return cls(path, lock)

    @classmethod
    def reopen(cls, path: Path, lines: int | None = None, lock: fileio.RunLock | None = None) -> Self:
        """Open an existing folder to append to it. Removes a torn last metric line, or all lines after `lines`."""
        lock = lock or lock_run(path)
        try:
            read(path)
            metrics = path / "metrics.jsonl"
            if metrics.exists():
                written = metrics.read_bytes()
                whole = written[: written.rfind(b"\n") + 1].splitlines(keepends=True)
                os.truncate(metrics, sum(len(line) for line in whole[:lines]))
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with fileio.writing(self.path / "metrics.jsonl"):
            fileio.append_whole(self._metrics, (fileio.to_json(values) + "\n").encode())

    def result(self, values: Mapping[str, Any]) -> None:
        """Write result.json: the run is complete."""
        fileio.write_json(self.path / "result.json", values)

    def figure(self, name: str, figure: Any) -> None:
        """Write a matplotlib figure as figures/NAME.png and figures/NAME.pdf."""
        (self.path / "figures").mkdir(exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # names in data may have any letters
            figure.set_dpi(DPI)
            if layout := figure.get_layout_engine():  # places everything once; `savefig` would, twice for each file
                layout.execute(figure)
                figure.set_layout_engine(None)
            for kind in ("pdf", "png"):  # `check_only_run_files` knows figures of runs by their PDF
                drawn = io.BytesIO()  # matplotlib hides an error of writing, such as a full disk, behind one of its own
                figure.savefig(drawn, format=kind, dpi=DPI)
                write = functools.partial(Path.write_bytes, data=drawn.getvalue())
                fileio.atomic_write(self.path / "figures" / f"{name}.{kind}", write)

    def close(self) -> None:
        os.close(self._metrics)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_run_folder(path: Path) -> None:
    """Raise ValueError unless there is a run folder."""
    fileio.check_exists(path)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: is not a run folder (it has no config.json)")


def read(path: Path | str, lines: int | None = None) -> Run:
    """Read a run folder, complete or not, with all metrics or those of the first `lines`.

    Raises ValueError with file, line and reason if config.json or result.json cannot be parsed. Lines of metrics.jsonl
    that cannot be are skipped and listed in `Run.damaged`.
    """
    path = fileio.as_path(path)
    check_run_folder(path)
    result = path / "result.json"
    metrics, damaged = fileio.read_lines(path / "metrics.jsonl", lines)
    return Run(
        path=path,
        config=fileio.parse(path / "config.json", fileio.read_text(path / "config.json"), 1),
        metrics=metrics,
        result=fileio.parse(result, fileio.read_text(result), 1) if result.is_file() else None,
        damaged=tuple(damaged),
    )


def default_folder(command: str) -> Path:
    """A new run folder under runs/, named by time and command, and different for commands that start together."""
    return Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{command}-{secrets.token_hex(3)}"


def check_resumable(
    path: Path,
    *,
    command: str,
    settings: Mapping[str, Any],
    seed: int,
    defaults: Mapping[str, Any],
    may_change: Sequence[str] = (),
) -> str:
    """Raise ValueError unless the folder holds a run of this command with the same settings and seed.

    `may_change` names settings, such as `learner.batch_size`, that may differ because they do not affect the results.
    A setting that the version which started the run did not have is in `defaults`. Returns a line that names these
    settings, or an empty one; `save_changed_settings` records them.
    """
    found = read(path).config
    if found.get("command") != command:
        raise ValueError(f"{path}: is a run of {found.get('command')!r}, not of {command!r}")
    wanted, default = (
        flat_settings(json.loads(fileio.to_json(dict(each)))) for each in (dict(settings) | {"seed": seed}, defaults)
    )
    with fileio.naming(path / "config.json"):
        before = flat_settings(found["settings"] | {"seed": found["seed"]})
    for key, value in wanted.items():
        started = before.get(key, default.get(key))
        if key not in may_change and started != value:
            was = f"with {key} =" if key in before else f"without {key}, that is, with"
            raise ValueError(f"{path}: was started {was} {started}, not {value}; resume with the options of the start")
    if removed := sorted(before.keys() - wanted.keys()):
        raise ValueError(
            f"{path / 'config.json'}: {removed[0]} = {before[removed[0]]} is not a setting of rbi {__version__}; "
            f"rename or remove it there to resume, or use the version of the start{nearest(removed[0], wanted)}"
        )
    new = [f"{key} = {value}" for key, value in wanted.items() if key not in before and key not in may_change]
    return f"{path}: was started by a version without some settings; continues with {', '.join(new)}" if new else ""


def save_changed_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write into config.json of a resumed run the settings that it may change, `CHANGED_ON_RESUME`, and those that it
    was started without."""
    file = path / "config.json"
    found = fileio.parse(file, fileio.read_text(file), 1)
    with fileio.naming(file):
        updated = _updated(found["settings"], json.loads(fileio.to_json(settings)))
    if updated != found["settings"]:
        fileio.write_json(file, found | {"settings": updated})


def _updated(saved: dict[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings of config.json with those of now that they lack or may change."""
    updated = dict(saved)
    for key, value in now.items():
        if isinstance(value, dict) and isinstance(saved.get(key), dict):
            updated[key] = _updated(saved[key], value, f"{prefix}{key}.")
        elif key not in saved or prefix + key in CHANGED_ON_RESUME:
            updated[key] = value
    return updated


def is_same_run(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two contents of config.json are of one run, which may have been resumed in between with other settings,
    or by a version with more settings.

    >>> is_same_run({"settings": {"schedule": {"updates": 40}}}, {"settings": {"schedule": {"updates": 60}}})
    True
    """
    one, other = flat_settings(a), flat_settings(b)
    may_differ = {f"settings.{name}" for name in CHANGED_ON_RESUME}
    may_differ |= {key for key in one.keys() ^ other.keys() if key.startswith("settings.")}
    return all(one.get(key) == other.get(key) for key in (one.keys() | other.keys()) - may_differ)


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one table, named as on the command line.

    >>> flat_settings({"learner": {"batch_size": 32}})
    {'learner.batch_size': 32}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def overlaps(one: Path | str, other: Path | str) -> bool:
    """Whether one path is the other or lies inside it."""
    one, other = fileio.resolve(one), fileio.resolve(other)
    return one == other or one in other.parents or other in one.parents


def check_apart(out: Path | str | None, policy: Any) -> None:
    """Raise ValueError if a run folder would replace the folder of the policy that it is about."""
    if out is not None and isinstance(policy, Path | str) and overlaps(out, policy):
        raise ValueError(f"--out {out}: belongs to the policy, {policy}; choose another folder")


def check_available(path: Path, *, overwrite: bool) -> bool:
    """Whether the folder holds a run that would be replaced. Raises ValueError if a new run may not use the folder."""
    check_value("overwrite", overwrite, bool)
    fileio.restore_interrupted(path.parent, path.name)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file, not a folder for a run")
    nearest_folder = next((parent for parent in path.absolute().parents if parent.exists()), path)
    if nearest_folder.is_dir() and not os.access(nearest_folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest_folder))
    occupied = path.exists() and any(path.iterdir())
    if occupied and not overwrite:
        raise ValueError(f"{path}: is not empty; choose another folder or pass --overwrite (Python: overwrite=True)")
    if occupied:
        check_only_run_files(path)
        fileio.RunLock(path).release()
        check_not_locked(path)
    return occupied


def check_not_locked(path: Path) -> None:
    """Raise ValueError while another process writes episodes into the folder: it holds a lock on store.json."""
    if not (path / "store.json").exists():
        return
    with (path / "store.json").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{path}: another process is writing to this store") from None


def check_only_run_files(path: Path) -> None:
    """Raise ValueError unless the folder is a run and holds nothing but files that runs write."""
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: is not a run folder (it has no config.json); --overwrite replaces runs only")
    unknown = [p for p in path.iterdir() if not RUN_FILES.fullmatch(p.name)]
    unknown += [p for p in path.glob("figures/*") if p.suffix not in (".png", ".pdf", ".tmp")]
    unknown += [p for p in path.glob("figures/*.png") if not p.with_suffix(".pdf").exists()]  # runs write both
    if unknown:
        name = min(p.relative_to(path).as_posix() for p in unknown)
        raise ValueError(f"{path}: holds {name!r}, which is not a file of a run; --overwrite replaces runs only")


def versions() -> dict[str, str]:
    """Versions of the packages that results may depend on."""
    found = {"rbi": __version__, "python": sys.version.split()[0]}
    return found | {name: installed_version(name) for name in VERSIONED_PACKAGES}


@functools.cache  # parsing the metadata of these packages takes 30 ms, and a sweep has many runs
def installed_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
