"""Commands in forked children, in which one chosen file operation kills the process or fails."""

import builtins
import contextlib
import dataclasses
import errno
import functools
import importlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import rbi
from rbi.cli import COMMANDS

WRITES = os.O_WRONLY | os.O_RDWR
SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong, and at which operation, counted from 1."""

    kind: Literal["none", "kill", "full disk", "interrupt"] = "none"
    """kill: SIGKILL, a write after half of its bytes. full disk: this and every later operation that needs space fails.
    interrupt: KeyboardInterrupt after the operation, as Ctrl-C may raise it anywhere."""
    at: int = 0


class FileOperations:
    """Counts the operations on files below a folder, and lets one of them go wrong."""

    def __init__(self, root: Path, fault: Fault) -> None:
        self.root, self.fault = str(root.resolve()), fault
        self.log: list[str] = []

    def install(self) -> None:
        """Replace the functions of `os` and `io` that change files; for a process that ends soon."""
        for name in ("mkdir", "unlink", "remove", "rmdir", "replace", "rename", "truncate", "ftruncate", "fsync"):
            setattr(os, name, self.counted(name, getattr(os, name), needs_space=name == "mkdir"))
        os.write = self.counted("write", os.write, needs_space=True)  # type: ignore[assignment]
        os.open = self.counted("open", os.open, needs_space=True)  # type: ignore[assignment]
        io.open = builtins.open = self.counted("io.open", io.open, needs_space=True)  # type: ignore[assignment]

    def counted(self, name: str, call: Callable[..., Any], *, needs_space: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def counting(file: Any, *arguments: Any, **options: Any) -> Any:
            if name == "io.open" and not set("wax+") & set(mode_of(arguments, options)):
                return call(file, *arguments, **options)
            if name == "open" and not arguments[0] & WRITES:
                return call(file, *arguments, **options)
            if not self.concerns(file, options.get("dir_fd")):
                return call(file, *arguments, **options)
            self.log.append(f"{name} {self.path_of(file, options.get('dir_fd'))}")
            due = len(self.log) == self.fault.at
            if self.fault.kind == "kill" and due:
                if name == "write":
                    call(file, arguments[0][: len(arguments[0]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault.kind == "full disk" and len(self.log) >= self.fault.at and needs_space:
                if name == "write" and due:
                    call(file, arguments[0][: len(arguments[0]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
            found = call(file, *arguments, **options)
            if self.fault.kind == "interrupt" and due:
                raise KeyboardInterrupt
            return found

        return counting

    def concerns(self, file: Any, folder: int | None) -> bool:
        """Whether a file is below the root; TensorBoard writes from a thread, at times of its own."""
        path = self.path_of(file, folder)
        return path.startswith(self.root + "/") and "/tensorboard" not in path

    def path_of(self, file: Any, folder: int | None) -> str:
        with contextlib.suppress(OSError):
            if isinstance(file, int):
                return str(Path(f"/proc/self/fd/{file}").readlink())
            within = Path(f"/proc/self/fd/{folder}").readlink() if folder is not None else Path.cwd()
            return os.path.join(within, os.fsdecode(file))  # noqa: PTH118 - os.path never follows links
        return ""


def mode_of(arguments: Sequence[Any], options: dict[str, Any]) -> str:
    return str(options.get("mode", arguments[0] if arguments else "r"))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    """Exit status; minus the signal's number if a signal ended it."""
    text: str
    operations: Sequence[str] = ()
    """The operations below the root, if it ended by itself."""
    modules: Sequence[str] = ()
    """What it had imported then."""

    @property
    def crashed(self) -> bool:
        """Whether it ended with a traceback, or in a way that no command should."""
        return "Traceback" in self.text or self.code not in (0, 2, 130, -signal.SIGKILL)


def preload(modules: Sequence[str]) -> None:
    """Import what a command has imported, so that the next forked children need not."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def preload_package() -> None:
    """Import what any command needs, before the first of them is run in a child."""
    for name in rbi.__all__:
        getattr(rbi, name)
    preload([module for module, *_ in COMMANDS.values()])


def run(argv: Sequence[str], root: Path, fault: Fault | None = None) -> Outcome:
    """Run an `rbi` command in a forked child, whose operations below `root` are counted."""
    said, counted = root.with_suffix(".said"), root.with_suffix(".operations")
    child = os.fork()
    if child == 0:
        run_child(argv, FileOperations(root, fault or Fault()), said, counted)
    status = wait(child)
    ended = json.loads(counted.read_text()) if counted.exists() else {}
    found = Outcome(status, said.read_text(errors="replace"), **ended)
    for file in (said, counted):
        file.unlink(missing_ok=True)
    return found


def run_child(argv: Sequence[str], operations: FileOperations, said: Path, counted: Path) -> None:
    """Run a command and end the process."""
    from matplotlib.figure import Figure

    from rbi import fileio
    from rbi.cli import main
    from rbi.data import store

    code = 1
    try:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        store.BUFFERED_BYTES = 1  # every episode is one flush
        fileio.LEFTOVER_SECONDS = 0  # no other process is about to lock what it has just made
        Figure.savefig = lambda _, file, **__: file.write(b"figure")  # drawing takes most of the time
        Figure.get_layout_engine = lambda _: None
        operations.install()
        code = main(list(argv))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
            counted.write_text(json.dumps({"operations": operations.log, "modules": list(sys.modules)}))
        os._exit(code)


def wait(child: int) -> int:
    """The exit code of a child; one that takes too long is killed."""
    started = time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - started > SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
