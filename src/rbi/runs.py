"""Run folders: writing, reading and resuming them. `rbi.runs.read(path)` reads one.

    config.json     what ran: command, command line, settings, seed, versions, machine, start time
    metrics.jsonl   one JSON object per line, in order of time
    result.json     the numbers for tables and figures; present once the run is complete
    figures/        NAME.png and NAME.pdf

Writing is atomic: each file is written under a temporary name, flushed to disk, and renamed. Metric lines are appended
with one write each; a line torn by a power failure is dropped by the reader and removed by `Writer.reopen`. JSON has no
infinity and no NaN: infinity is written as 1e999, which parsers read as a float infinity, and NaN as null.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rbi import __version__

VERSIONED_PACKAGES = ("numpy", "torch", "scipy", "array-api-compat", "matplotlib")
RUN_FILES = re.compile(
    r"config\.json|metrics\.jsonl|result\.json|figures|checkpoints|policies|tensorboard|runs|"
    r"store\.json|(observations|actions|rewards|terminated|truncated|life_lost|action_probs|action_masks|episodes)\.bin|"
    r"(texts|rejected)\.jsonl|source\.json|episodes\.parquet|data|"
    r"\.(config|result)\.json\.\d+\.tmp"
)
INFINITY = "\0infinity"  # placeholder in a document until it is text; no other string contains \0


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run folder. `result` is None until the run is complete."""

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def figures(self) -> list[Path]:
        """The PNG files in figures/."""
        return sorted((self.path / "figures").glob("*.png"))

    def finished(self) -> dict[str, Any]:
        """The result; raises ValueError if the run is not complete."""
        if self.result is None:
            raise ValueError(f"{self.path}: the run is not complete (it has no result.json)")
        return self.result


class Writer:
    """An open run folder, made by `Writer.create` (new) or `Writer.reopen` (to continue)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = os.open(path / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        command: str,
        settings: Mapping[str, Any],
        seed: int,
        argv: Sequence[str],
        overwrite: bool = False,
    ) -> Self:
        """Create a run folder with its config.json, atomically. With `overwrite` it replaces an earlier run."""
        path = path.resolve()
        occupied = check_available(path, overwrite=overwrite)
        config = {
            "command": command,
            "argv": list(argv),
            "settings": settings,
            "seed": seed,
            "versions": versions(),
            "machine": {"system": platform.platform(), "cpu": platform.machine(), "cores": os.cpu_count()},
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{path}: cannot be created, because part of the path is a file") from None
        temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
        temporary.mkdir()
        try:
            write_json(temporary / "config.json", config)
            if occupied:
                shutil.rmtree(path)
            temporary.replace(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, lines: int | None = None) -> Self:
        """Open an existing folder to append to it. Removes a torn metric line, or all lines after the first `lines`."""
        read(path)
        metrics = path / "metrics.jsonl"
        if metrics.exists():
            written = metrics.read_bytes()
            whole = written[: written.rfind(b"\n") + 1].splitlines(keepends=True)
            os.truncate(metrics, sum(len(line) for line in whole[:lines]))
        return cls(path)

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        os.write(self._metrics, (to_json(values) + "\n").encode())

    def result(self, values: Mapping[str, Any]) -> None:
        """Write result.json: the run is complete."""
        write_json(self.path / "result.json", values)

    def figure(self, name: str, figure: Any) -> None:
        """Write a matplotlib figure as figures/NAME.png and figures/NAME.pdf."""
        (self.path / "figures").mkdir(exist_ok=True)
        for kind in ("png", "pdf"):
            save = functools.partial(figure.savefig, format=kind, dpi=200)
            atomic_write(self.path / "figures" / f"{name}.{kind}", save)

    def close(self) -> None:
        os.close(self._metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path | str) -> Run:
    """Read a run folder, complete or not. Raises ValueError with file, line and reason if a file cannot be parsed."""
    path = Path(path)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: is not a run folder (it has no config.json)")
    result = path / "result.json"
    return Run(
        path=path,
        config=parse(path / "config.json", read_text(path / "config.json"), 1),
        metrics=read_lines(path / "metrics.jsonl"),
        result=parse(result, read_text(result), 1) if result.is_file() else None,
    )


def read_text(path: Path) -> str:
    """The UTF-8 text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: is not UTF-8 text") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; a last line without a newline was torn and is dropped."""
    if not path.is_file():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    return [parse(path, line, number) for number, line in enumerate(lines, 1)]


def parse(path: Path, text: str | bytes, line: int) -> dict[str, Any]:
    """One JSON object; errors name the file and the line, counted from `line`."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {line + error.lineno - 1}: is not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}, line {line}: is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise ValueError(f"{path}, line {line}: cannot be read as JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}, line {line}: holds {type(found).__name__}, not an object")
    return found


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON text of anything: see `jsonable`."""
    text = json.dumps(jsonable(value), indent=indent, allow_nan=False)
    return text.replace(json.dumps(INFINITY), "1e999").replace(json.dumps("-" + INFINITY), "-1e999")


def jsonable(value: Any) -> Any:
    """The value in JSON types: arrays become lists, dataclasses objects, anything unknown its text."""
    if dataclasses.is_dataclass(value):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else INFINITY if value > 0 else "-" + INFINITY
    if value is None or isinstance(value, str | bool | int):
        return value
    return jsonable(value.tolist()) if hasattr(value, "tolist") else str(value)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    atomic_write(path, lambda at: at.write_text(to_json(value, indent=2) + "\n"))


def atomic_write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file atomically: `write` fills a temporary file, which is flushed to disk and renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which is renamed to `path` at the end; an earlier one stays until then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        old = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        if path.exists():
            path.replace(old)
        temporary.replace(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def restore_interrupted(folder: Path) -> None:
    """Clean up after `atomic_folder` was killed: restore a folder that was moved aside, remove incomplete ones."""
    for leftover in sorted(folder.glob(".*.tmp")):
        found = re.fullmatch(r"\.(.+)\.\d+(\.old)?\.tmp", leftover.name)
        if found and found[2] and not (folder / found[1]).exists():
            leftover.replace(folder / found[1])
        elif found:
            shutil.rmtree(leftover, ignore_errors=True)


def default_folder(command: str) -> Path:
    """A new run folder under runs/, named by time and command."""
    return Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{command}"


def check_resumable(
    path: Path, *, command: str, settings: Mapping[str, Any], seed: int, may_change: Sequence[str] = ()
) -> None:
    """Raise ValueError unless the folder holds a run of this command with the same settings and seed.

    `may_change` names settings, such as `learner.batch_size`, that may differ because they do not affect the results.
    """
    found = read(path).config
    if found.get("command") != command:
        raise ValueError(f"{path}: is a run of {found.get('command')!r}, not of {command!r}")
    wanted = flat_settings(json.loads(to_json(dict(settings) | {"seed": seed})))
    before = flat_settings(found.get("settings", {}) | {"seed": found.get("seed")})
    for key, value in wanted.items():
        if key not in may_change and before.get(key) != value:
            raise ValueError(f"{path}: was started with {key} = {before.get(key)}, not {value}")


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one table, named as on the command line.

    >>> flat_settings({"learner": {"batch_size": 32}})
    {'learner.batch_size': 32}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def check_available(path: Path, *, overwrite: bool) -> bool:
    """Whether the folder holds a run that would be replaced. Raises ValueError if a new run may not use the folder."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file, not a folder for a run")
    occupied = path.exists() and any(path.iterdir())
    if occupied and not overwrite:
        raise ValueError(f"{path}: is not empty; choose another folder or pass --overwrite")
    if occupied:
        check_only_run_files(path)
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
    for name in VERSIONED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
