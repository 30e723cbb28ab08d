"""The run folder: the one place that writes it and the one place that reads it.

    config.json     what ran: command, command line, settings, seed, versions, machine, start time
    metrics.jsonl   one JSON object a line, in the order they happened
    result.json     the numbers that a table or a figure needs; there once the run is complete
    figures/        NAME.png and NAME.pdf

Files appear whole or not at all: each is written beside its place, flushed to disk, and renamed. Metric lines are
appended with one write each; a line torn by a power cut is dropped by the reader and cut off by `Writer.reopen`.
JSON has no infinity and no NaN: infinity is written as 1e999, which readers of floats take for it, NaN as null.
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

VERSIONED = ("numpy", "torch", "scipy", "array-api-compat", "matplotlib")
OWN = re.compile(
    r"config\.json|metrics\.jsonl|result\.json|figures|checkpoints|policies|tensorboard|runs|"
    r"store\.json|(observations|actions|rewards|terminated|truncated|life_lost|action_probs|legal|episodes)\.bin|"
    r"(texts|set_aside)\.jsonl|source\.json|episodes\.parquet|data|trajectories|screens|truth|"
    r"\.(config|result)\.json\.\d+\.tmp"
)
INFINITY = "\0infinity"  # stands in a document for a moment, where no text of ours can be


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run folder holds. `result` is None while the run is not complete."""

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def figures(self) -> list[Path]:
        return sorted((self.path / "figures").glob("*.png"))

    def finished(self) -> dict[str, Any]:
        """The result, which a figure or table needs; a run without one is named."""
        if self.result is None:
            raise ValueError(f"{self.path}: the run is not complete (it has no result.json)")
        return self.result


class Writer:
    """An open run folder. Made by `Writer.create` (new) or `Writer.reopen` (to go on with)."""

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
        """A new folder with its config.json; it appears with that file inside, or not at all.

        With `overwrite` it takes the place of an earlier run, which stays whole until that moment.
        """
        path = path.resolve()
        occupied = refuse_occupied(path, overwrite=overwrite)
        config = {
            "command": command,
            "argv": list(argv),
            "settings": settings,
            "seed": seed,
            "versions": versions(),
            "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{path}: cannot be made, since a file is where a folder should be") from None
        growing = path.parent / f".{path.name}.{os.getpid()}.tmp"
        growing.mkdir()
        try:
            write_json(growing / "config.json", config)
            if occupied:
                shutil.rmtree(path)
            growing.replace(path)
        except BaseException:
            shutil.rmtree(growing, ignore_errors=True)
            raise
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, lines: int | None = None) -> Self:
        """An existing folder, to append to: a torn last metric line is cut off first, or all but so many lines."""
        read(path)
        metrics = path / "metrics.jsonl"
        if metrics.exists():
            written = metrics.read_bytes()
            whole = written[: written.rfind(b"\n") + 1].splitlines(keepends=True)
            os.truncate(metrics, sum(len(line) for line in whole[:lines]))
        return cls(path)

    def metric(self, **values: Any) -> None:
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
            write_whole(self.path / "figures" / f"{name}.{kind}", save)

    def close(self) -> None:
        os.close(self._metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path | str) -> Run:
    """A run folder, complete or not. A file that cannot be understood is named, with the line and the reason."""
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
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: is not UTF-8 text") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file; a last line without its end of line was torn and does not count."""
    if not path.is_file():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    return [parse(path, line, number) for number, line in enumerate(lines, 1)]


def parse(path: Path, text: str | bytes, line: int) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {line + error.lineno - 1}: is not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}, line {line}: is not UTF-8 text") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}, line {line}: holds {type(found).__name__}, not an object")
    return found


def to_json(value: Any, indent: int | None = None) -> str:
    text = json.dumps(plain(value), indent=indent, allow_nan=False)
    return text.replace(json.dumps(INFINITY), "1e999").replace(json.dumps("-" + INFINITY), "-1e999")


def plain(value: Any) -> Any:
    """The value in JSON's types: arrays become lists, dataclasses objects, anything else its text."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else INFINITY if value > 0 else "-" + INFINITY
    if value is None or isinstance(value, str | bool | int):
        return value
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, lambda at: at.write_text(to_json(value, indent=2) + "\n"))


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file beside `path`, put it on disk, and only then give it its name."""
    growing = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(growing)
        with growing.open("rb") as file:
            os.fsync(file.fileno())
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which then takes its name; one that was there stays until that moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(growing, ignore_errors=True)
    growing.mkdir()
    try:
        yield growing
        for file in growing.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        old = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        if path.exists():
            path.replace(old)
        growing.replace(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(growing, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Clear what `whole_folder` left when it was killed: a folder moved aside comes back, half a one goes."""
    for left in sorted(folder.glob(".*.tmp")):
        found = re.fullmatch(r"\.(.+)\.\d+(\.old)?\.tmp", left.name)
        if found and found[2] and not (folder / found[1]).exists():
            left.replace(folder / found[1])
        elif found:
            shutil.rmtree(left, ignore_errors=True)


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


def refuse_occupied(path: Path, *, overwrite: bool) -> bool:
    """Refuse a place that a new run may not take; whether there is something that it would replace."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file, not a folder for a run")
    occupied = path.exists() and any(path.iterdir())
    if occupied and not overwrite:
        raise ValueError(f"{path}: is not empty; choose another folder or pass --overwrite")
    if occupied:
        refuse_foreign_files(path)
        refuse_busy(path)
    return occupied


def refuse_busy(path: Path) -> None:
    """A folder that another process is writing episodes to stays: writers hold a lock on store.json."""
    if not (path / "store.json").exists():
        return
    with (path / "store.json").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{path}: another process is writing to this store") from None


def refuse_foreign_files(path: Path) -> None:
    """A folder may be replaced only if it is a run and holds nothing that no run writes."""
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: is not a run folder (it has no config.json); --overwrite replaces runs only")
    foreign = [p for p in path.iterdir() if not OWN.fullmatch(p.name)]
    foreign += [p for p in path.glob("figures/*") if p.suffix not in (".png", ".pdf", ".tmp")]
    foreign += [p for p in path.glob("figures/*.png") if not p.with_suffix(".pdf").exists()]  # we write both
    if foreign:
        name = min(p.relative_to(path).as_posix() for p in foreign)
        raise ValueError(f"{path}: holds {name!r}, which no run wrote; --overwrite replaces runs only")


def versions() -> dict[str, str]:
    """What the numbers of a run may depend on."""
    found = {"rbi": __version__, "python": sys.version.split()[0]}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
