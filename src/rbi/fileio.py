"""Files and folders that survive a kill: JSON, atomic writing, and the lock of a run folder.

Writing is atomic: each file is written under a temporary name, flushed to disk, and renamed. Temporary names are
`.NAME.PID-RANDOM.tmp`; what a killed process left under them is removed by the next one that writes there. JSON has no
infinity and no NaN: infinity is written as 1e999, which parsers read as a float infinity, and NaN as null.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import math
import os
import platform
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+(-[0-9a-f]{6})?(?P<old>\.old)?\.tmp")
LEFTOVER_SECONDS = 60  # a temporary file or folder without a lock that nobody has touched for this long is abandoned
LOCK = ".lock"
NOT_DATA = (".png", ".pdf", ".html")
PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
INFINITY = "\0infinity"  # placeholder in a document until it is text; no other string contains \0


class PathNotFoundError(FileNotFoundError, ValueError):
    """A path that does not exist. It is a ValueError, too, as all errors about arguments are."""


def check_exists(path: Path, what: str = "folder") -> None:
    """Raise `PathNotFoundError` unless there is something at a path."""
    if not path.exists():
        raise PathNotFoundError(f"{path}: no such {what}")


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


def data_stats(path: Path) -> dict[str, int]:
    """Number, size and newest modification time of the files at a path, which show whether data has changed.

    Images are left out, and what `rbi report` and other processes write into the folder of a run that is the data.
    """
    inside = [p for p in path.rglob("*") if p.suffix not in NOT_DATA and not p.name.startswith(".")]
    stats = [file.stat() for file in ([path] if path.is_file() else inside) if file.is_file()]
    return {
        "files": len(stats),
        "bytes": sum(s.st_size for s in stats),
        "newest": max((s.st_mtime_ns for s in stats), default=0),
    }


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


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of writing, such as a full disk, name the file or folder. By themselves, those of open files name none,
    and others the temporary one."""
    try:
        yield
    except OSError as error:
        named = Path(str(error.filename or path)).parts
        temporary = error.filename2 is None and any(TEMPORARY.fullmatch(part) for part in named)
        if error.errno is not None and (error.filename is None or temporary):
            error.filename = str(path)
        raise
    except Exception as error:
        from safetensors import SafetensorError

        if isinstance(error, SafetensorError):
            raise OSError(f"{path}: {error}") from error
        raise


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
        with writing(path):
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which is renamed to `path` at the end; an earlier one stays until then.

    Its files get the permissions that the umask gives to new files: safetensors lets nobody else read them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_interrupted(path.parent, path.name)
    temporary = temporary_name(path)
    with writing(path):
        temporary.mkdir()
    try:
        with writing(path):
            yield temporary
        permissions = temporary.stat().st_mode & 0o666
        for file in temporary.rglob("*"):
            if file.is_file():
                with contextlib.suppress(OSError):  # a file system without permissions
                    file.chmod(permissions)
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
        with writing(folder / LOCK):
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
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
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


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def is_url(text: str | Path) -> bool:
    """Whether a text names a URL rather than a folder, also after `Path` has removed one of its slashes.

    >>> is_url("s3://bucket/run"), is_url(Path("s3://bucket/run")), is_url("runs/a")
    (True, True, False)
    """
    return PROTOCOL.match(str(text)) is not None


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user gave, in which ~ is the home directory, as in a shell. Raises TypeError for what is no path,
    and ValueError for an empty text, which pathlib takes for the current folder, and for a URL."""
    if not isinstance(path, str | os.PathLike):
        advice = "; give its .out" if hasattr(path, "out") else ""
        raise TypeError(f"the path is of type {type(path).__name__}: must be a text or a pathlib.Path{advice}")
    if not str(path).strip():
        raise ValueError(f"path = {str(path)!r}: must name a file or a folder")
    if is_url(str(path)):
        raise ValueError(f"{path}: is a URL; name a local file or folder")
    return Path(os.path.expanduser(path))  # noqa: PTH111 - unlike Path.expanduser, it leaves ~ of an unknown user


def resolve(path: str | os.PathLike[str]) -> Path:
    """The absolute path without links; ~ is the home directory. Raises ValueError for a loop of links."""
    try:
        return as_path(path).resolve()
    except RuntimeError:  # before Python 3.13
        raise ValueError(f"{path}: is a loop of symbolic links") from None


def shown(path: Path) -> Path:
    """A path for messages: relative to the current folder where it lies in it."""
    path, here = path.absolute(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
