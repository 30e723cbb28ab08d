"""Run folders: writing, reading and resuming them. `rbi.runs.read(path)` reads one.

    config.json     what ran: command, command line, settings, seed, versions, machine, start time
    metrics.jsonl   one JSON object per line, in order of time
    result.json     the numbers for tables and figures; present once the run is complete
    figures/        NAME.png and NAME.pdf

Writing is atomic: each file is written under a temporary name, flushed to disk, and renamed. Metric lines are appended
whole; a line torn by a power failure is skipped by the reader, which lists it in `Run.damaged`. JSON has no infinity
and no NaN: infinity is written as 1e999, which parsers read as a float infinity, and NaN as null.

One process at a time writes to a run folder: it holds a `RunLock`. Temporary names are `.NAME.PID-RANDOM.tmp`; what a
killed process left under them is removed by the next one that writes there.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import re
import secrets
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rbi import __version__

VERSIONED_PACKAGES = ("numpy", "torch", "scipy", "array-api-compat", "matplotlib")
RUN_FILES = re.compile(
    r"config\.json|metrics\.jsonl|result\.json|report\.html|figures|checkpoints|policies|tensorboard|runs|"
    r"store\.json|(observations|actions|rewards|terminated|truncated|life_lost|action_probs|action_masks|behavior_probs|episodes)\.bin|"
    r"(texts|rejected)\.jsonl|source\.json|episodes\.parquet|policy\.onnx|data|\.lock|"
    r"\..+\.\d+(-[0-9a-f]{6})?(\.old)?\.tmp"
)
TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+(-[0-9a-f]{6})?(?P<old>\.old)?\.tmp")
LEFTOVER_SECONDS = 60  # a temporary file or folder without a lock that nobody has touched for this long is abandoned
LOCK = ".lock"
CHANGED_ON_RESUME = ("schedule.updates", "schedule.env_threads", "schedule.env_processes")
"""Settings of training whose newest values config.json holds."""
INFINITY = "\0infinity"  # placeholder in a document until it is text; no other string contains \0


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


class RunLock:
    """The right to write to a run folder, which one process has at a time.

    It is a lock of the operating system on the file `.lock`, so it ends with its process, also on another machine or in
    another container; the file's text only says who holds it. Child processes do not inherit it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._process = folder, os.getpid()
        self._file = open_locked(folder)
        os.ftruncate(self._file, 0)
        holder = {"process": self._process, "host": platform.node(), "since": utc_now()}
        write_whole(self._file, to_json(holder).encode())
        HELD_LOCKS.add(self)

    def release(self) -> None:
        """Give the right back; has no effect the second time, nor in a child process."""
        if self._file < 0 or self._process != os.getpid():
            return
        (self.folder / LOCK).unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1

    def forget(self) -> None:
        """Close the copy of the file that a forked child has, so that it cannot outlive the process with the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.release()


HELD_LOCKS: weakref.WeakSet[RunLock] = weakref.WeakSet()


def forget_locks() -> None:
    for lock in list(HELD_LOCKS):
        lock.forget()


os.register_at_fork(after_in_child=forget_locks)


def open_locked(folder: Path) -> int:
    """Open and lock the lock file of a folder; raises ValueError if another process has it."""
    while True:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except OSError as error:  # a file system without locks: then the process must be gone
            locked = error.errno not in (errno.EAGAIN, errno.EACCES) and not is_alive(read_holder(file))
        if locked and is_same_file(file, folder / LOCK):  # else its holder has removed it meanwhile
            return file
        holder = read_holder(file)
        os.close(file)
        if not locked:
            who = f" (process {holder['process']} on {holder['host']}, since {holder['since']})" if holder else ""
            raise ValueError(f"{folder}: another process is writing to this run{who}")


def read_holder(file: int) -> dict[str, Any] | None:
    """Who holds a lock, as far as the file says."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
        return found if {"process", "host", "since"} <= set(found) else None
    except (ValueError, TypeError):
        return None


def is_alive(holder: Mapping[str, Any] | None) -> bool:
    """Whether another process on this machine holds the lock; one on another machine counts as alive."""
    if holder is None or holder["process"] == os.getpid():
        return False
    return holder["host"] != platform.node() or Path(f"/proc/{holder['process']}").exists()


def is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def lock_run(path: Path) -> RunLock:
    """Lock an existing run folder, and clean up what a killed process left in it."""
    path = resolve(path)
    restore_interrupted(path.parent, path.name)
    check_run_folder(path)
    lock = RunLock(path)
    for name in ("", "checkpoints", "figures", "policies", "runs"):
        restore_interrupted(path / name, locked=True)
    return lock


class Writer:
    """An open run folder, made by `Writer.create` (new) or `Writer.reopen` (to continue)."""

    def __init__(self, path: Path, lock: RunLock) -> None:
        self.path, self._lock = path, lock
        self._metrics = os.open(path / "metrics.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

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
        path = resolve(path)
        occupied = check_available(path, overwrite=overwrite)
        config = {
            "command": command,
            "argv": list(argv),
            "settings": settings,
            "seed": seed,
            "versions": versions(),
            "machine": {"system": platform.platform(), "cpu": platform.machine(), "cores": os.cpu_count()},
            "started": utc_now(),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ValueError(f"{path}: cannot be created, because part of the path is a file") from None
        temporary = temporary_name(path)
        with RunLock(path) if occupied else contextlib.nullcontext() as replaced:
            try:
                temporary.mkdir()
                lock = RunLock(temporary)
                write_json(temporary / "config.json", config)
                old = replace_folder(temporary, path, aside=occupied)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            lock.folder = path
            if old is not None and replaced is not None:
                replaced.folder = old
                shutil.rmtree(old, ignore_errors=True)
        return cls(path, lock)

    @classmethod
    def reopen(cls, path: Path, lines: int | None = None, lock: RunLock | None = None) -> Self:
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
        append_whole(self._metrics, (to_json(values) + "\n").encode())

    def result(self, values: Mapping[str, Any]) -> None:
        """Write result.json: the run is complete."""
        write_json(self.path / "result.json", values)

    def figure(self, name: str, figure: Any) -> None:
        """Write a matplotlib figure as figures/NAME.png and figures/NAME.pdf."""
        (self.path / "figures").mkdir(exist_ok=True)
        for kind in ("pdf", "png"):  # `check_only_run_files` knows figures of runs by their PDF
            save = functools.partial(figure.savefig, format=kind, dpi=200)
            atomic_write(self.path / "figures" / f"{name}.{kind}", save)

    def close(self) -> None:
        os.close(self._metrics)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_run_folder(path: Path) -> None:
    """Raise ValueError unless there is a run folder."""
    if not path.exists():
        raise ValueError(f"{path}: no such folder")
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: is not a run folder (it has no config.json)")


def read(path: Path | str, lines: int | None = None) -> Run:
    """Read a run folder, complete or not, with all metrics or those of the first `lines`.

    Raises ValueError with file, line and reason if config.json or result.json cannot be parsed. Lines of metrics.jsonl
    that cannot be are skipped and listed in `Run.damaged`.
    """
    path = Path(path)
    check_run_folder(path)
    result = path / "result.json"
    metrics, damaged = read_lines(path / "metrics.jsonl", lines)
    return Run(
        path=path,
        config=parse(path / "config.json", read_text(path / "config.json"), 1),
        metrics=metrics,
        result=parse(result, read_text(result), 1) if result.is_file() else None,
        damaged=tuple(damaged),
    )


def read_text(path: Path) -> str:
    """The UTF-8 text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: is not UTF-8 text") from None


def read_lines(path: Path, lines: int | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The objects of a .jsonl file, and what is wrong with the lines that hold none.

    A last line without a newline was torn; it is skipped without a word. `lines` says how many lines are read.
    """
    found: list[dict[str, Any]] = []
    damaged: list[str] = []
    if not path.is_file():
        return found, damaged
    *whole, _torn = path.read_bytes().split(b"\n")
    for number, line in enumerate(whole[:lines], 1):
        try:
            found.append(parse(path, line, number))
        except ValueError as error:
            damaged.append(str(error))
    if lines is not None and len(whole) < lines:
        damaged.append(f"{path}: holds only {len(whole):,} of the first {lines:,} lines")
    return found, damaged


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


def write_whole(file: int, data: bytes | memoryview) -> None:
    """Write all of the data: one call of `os.write` may write only a part."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(file, left) :]


def append_whole(file: int, data: bytes | memoryview) -> None:
    """Append all of the data to a file or, if that fails, nothing."""
    size = os.fstat(file).st_size
    try:
        write_whole(file, data)
    except BaseException:
        os.ftruncate(file, size)
        raise


def temporary_name(path: Path, *, old: bool = False) -> Path:
    """A new name next to the path: `.NAME.PID-RANDOM.tmp`, or `.old.tmp` for what is moved aside."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}{'.old' * old}.tmp")


def atomic_write(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file atomically: `write` fills a temporary file, which is flushed to disk and renamed."""
    temporary = temporary_name(path)
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
    restore_interrupted(path.parent, path.name)
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
        old = replace_folder(temporary, path, aside=path.exists())
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def replace_folder(new: Path, path: Path, *, aside: bool) -> Path | None:
    """Give a folder its name. With `aside`, the folder that has it now is moved first; returns where it is."""
    old = temporary_name(path, old=True) if aside else None
    try:
        if old is not None:
            path.replace(old)
        new.replace(path)
    except BaseException as error:
        if old is not None and old.exists() and not path.exists():
            old.replace(path)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ValueError(f"{path}: was created by another process meanwhile") from None
        raise
    return old


def restore_interrupted(folder: Path, name: str | None = None, *, locked: bool = False) -> None:
    """Clean up after killed processes: restore folders that were moved aside, remove what was not completed.

    `locked`: this process has the lock of the run, so that temporary files are abandoned unless another process has
    locked them. Elsewhere they must also belong to `name` or have a lock, and be a minute old where that is not enough.
    """
    for leftover in sorted(folder.glob(".*.tmp")):
        if (found := TEMPORARY.fullmatch(leftover.name)) is None:
            continue
        ours, replaced = locked or found["name"] == name, found["old"] and (folder / found["name"]).exists()
        if not is_abandoned(leftover, ours=ours, locked=locked or bool(ours and replaced)):
            continue
        with contextlib.suppress(OSError):  # another process may clean up at the same time
            if found["old"] and not replaced:
                leftover.replace(folder / found["name"])
            elif leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


def is_abandoned(leftover: Path, *, ours: bool, locked: bool) -> bool:
    """Whether the process that made a temporary file or folder is gone. Young ones may not have their lock yet."""
    try:
        is_old = time.time() - leftover.stat().st_ctime > LEFTOVER_SECONDS
        if not (leftover / LOCK).is_file():
            return locked or (ours and is_old)
        if ours or is_old:
            RunLock(leftover).release()
        return ours or is_old
    except (OSError, ValueError):
        return False


def default_folder(command: str) -> Path:
    """A new run folder under runs/, named by time and command, and different for commands that start together."""
    return Path("runs") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{command}-{secrets.token_hex(3)}"


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def shown(path: Path) -> Path:
    """A path for messages: relative to the current folder where it lies in it."""
    path, here = path.absolute(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def resolve(path: Path) -> Path:
    """The absolute path without links. Raises ValueError for a loop of links."""
    try:
        return path.resolve()
    except RuntimeError:  # before Python 3.13
        raise ValueError(f"{path}: is a loop of symbolic links") from None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors from the unexpected content of a file become one ValueError that names it."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        if isinstance(error, ValueError) and str(path.parent) in str(error):
            raise
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}: is damaged, or of another version ({what})") from error


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
    with naming(path / "config.json"):
        before = flat_settings(found["settings"] | {"seed": found["seed"]})
    for key, value in wanted.items():
        if key not in may_change and before.get(key) != value:
            raise ValueError(
                f"{path}: was started with {key} = {before.get(key)}, not {value}; resume with the options of the start"
            )


def save_changed_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings that a resumed run may change, `CHANGED_ON_RESUME`, into its config.json."""
    file = path / "config.json"
    found, wanted = parse(file, read_text(file), 1), json.loads(to_json(settings))
    before = to_json(found)
    with naming(file):
        for part, name in (key.split(".") for key in CHANGED_ON_RESUME):
            if name in wanted[part]:
                found["settings"][part][name] = wanted[part][name]
    if to_json(found) != before:
        write_json(file, found)


def is_same_run(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two contents of config.json are of one run, which may have been resumed with other settings in between.

    >>> is_same_run({"settings": {"schedule": {"updates": 40}}}, {"settings": {"schedule": {"updates": 60}}})
    True
    """
    changed = {f"settings.{name}" for name in CHANGED_ON_RESUME}
    kept = ({key: value for key, value in flat_settings(c).items() if key not in changed} for c in (a, b))
    return next(kept) == next(kept)


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one table, named as on the command line.

    >>> flat_settings({"learner": {"batch_size": 32}})
    {'learner.batch_size': 32}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def overlaps(one: Path, other: Path) -> bool:
    """Whether one path is the other or lies inside it."""
    one, other = resolve(one), resolve(other)
    return one == other or one in other.parents or other in one.parents


def check_apart(out: Path | str | None, policy: Any) -> None:
    """Raise ValueError if a run folder would replace the folder of the policy that it is about."""
    if out is not None and isinstance(policy, Path | str) and overlaps(Path(out), Path(policy)):
        raise ValueError(f"--out {out}: belongs to the policy, {policy}; choose another folder")


def check_available(path: Path, *, overwrite: bool) -> bool:
    """Whether the folder holds a run that would be replaced. Raises ValueError if a new run may not use the folder."""
    restore_interrupted(path.parent, path.name)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file, not a folder for a run")
    occupied = path.exists() and any(path.iterdir())
    if occupied and not overwrite:
        raise ValueError(f"{path}: is not empty; choose another folder or pass --overwrite (Python: overwrite=True)")
    if occupied:
        check_only_run_files(path)
        RunLock(path).release()
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
