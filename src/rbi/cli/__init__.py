"""The command line `rbi`. Only the module of the command that is asked for is imported."""

import contextlib
import dataclasses
import importlib
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rbi import __version__
from rbi.progress import LossyStream, echo, one_line, stop_signals
from rbi.suggestions import nearest

if TYPE_CHECKING:
    from rbi.cli.command import Command

COMMANDS = {
    "rules": ("rbi.cli.rules", "Rules", "Compare improvement rules on one state."),
    "bandit regret": ("rbi.cli.bandit", "Regret", "The regret of one improvement step (Figure 1 of the paper)."),
    "bandit learn": ("rbi.cli.bandit", "Learn", "Learning curves of iterated improvement steps (Figure 2)."),
    "spi": ("rbi.cli.spi", "Spi", "The safe-policy-improvement study, with SPIBB and other baselines."),
    "data import": ("rbi.cli.data", "Import", "Import episodes of any supported format into a store."),
    "data info": ("rbi.cli.data", "Info", "Summarise a dataset of any supported format."),
    "data export": ("rbi.cli.data", "Export", "Convert a dataset to another format."),
    "data record": ("rbi.cli.record", "Record", "Record episodes of policies in an environment."),
    "train": ("rbi.cli.train", "Train", "Train a policy in an environment: RBI or Ape-X, on one machine or on Ray."),
    "offline": ("rbi.cli.offline", "Offline", "Learn from a fixed dataset with every rule and baseline, and compare."),
    "improve": ("rbi.cli.improve", "Improve", "Improve a policy from logs, with diagnostics on held-out episodes."),
    "certify": (
        "rbi.cli.certify",
        "Certify",
        "Decide from logs: deploy a saved policy, keep the old one, or test live.",
    ),
    "monitor": (
        "rbi.cli.monitor",
        "Monitor",
        "Watch a deployed policy: an alarm if it is worse, a stop if it is better.",
    ),
    "export": ("rbi.cli.export", "Export", "Export a saved policy to one ONNX file, for onnxruntime."),
    "evaluate": ("rbi.cli.evaluate", "Evaluate", "Evaluate a saved policy in an environment."),
    "report": ("rbi.cli.report", "Report", "Show run folders as one HTML page, with an episode viewer."),
}
GROUPS = {
    "bandit": "The paper's two-armed bandit: regret of one step, learning curves.",
    "data": "Datasets: import, info, export, record.",
}

USAGE_ERROR, INTERRUPTED = 2, 130


def parse(argv: Sequence[str]) -> "Command":
    """The command that the arguments ask for. A mistake raises ValueError with the first sentence of tyro's message."""
    words = 2 if argv and argv[0] in GROUPS else 1
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        show_commands(argv)
    from rbi.cli import command

    module, attribute, _ = COMMANDS[name]
    asked: type[Command] = getattr(importlib.import_module(module), attribute)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return command.parse(asked, argv[words:], prog=f"rbi {name}")
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(f"{first_sentence(errors.getvalue())} (see rbi {name} --help)") from None


def show_commands(argv: Sequence[str]) -> None:
    """Show the help of `rbi` or of a group of commands, or explain what is wrong with the arguments; then exit."""
    from rbi.cli import help as pages

    first, *rest = argv or ["--help"]
    if first in (*pages.HELP, pages.HELP_ALL, "help"):
        pages.show_page(pages.start_page(COMMANDS, GROUPS))
    elif first in GROUPS and rest and rest[0] in (*pages.HELP, pages.HELP_ALL):
        pages.show_page(pages.group_page(first, COMMANDS, GROUPS))
    elif first == "completion":
        from rbi.cli import completion

        if len(rest) != 1 or rest[0] not in completion.INSTALL:
            pages.show_page(completion.USAGE)
            raise SystemExit(0 if rest and rest[0] in pages.HELP else USAGE_ERROR)
        write_output(completion.script(rest[0], COMMANDS, GROUPS))
    else:
        names = [name.split() for name in COMMANDS]
        known = [last for group, last in (n for n in names if len(n) == 2) if group == first]
        if not known:
            known, rest, first = [*dict.fromkeys(n[0] for n in names), "completion"], [first], ""
        line = f"rbi {first}".rstrip()
        if not rest:
            raise ValueError(f"{line}: name one of {', '.join(known)} (see {line} --help)")
        raise ValueError(f"{line} {rest[0]}: no such command{nearest(rest[0], known)} (see {line} --help)")
    raise SystemExit(0)


NUMBERS = {"INT": "a whole number", "FLOAT": "a number", "FLOAT FLOAT": "two numbers"}


def first_sentence(box: str) -> str:
    """The first part below the title of tyro's box, on one line, without the frame."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    lines = ["" if set(line) <= set("─-") else line for line in lines]
    lines = lines[1:] if lines and not lines[0] else lines  # plain boxes have a rule under the title
    end = lines.index("") if "" in lines else len(lines)
    text = re.sub(r"(?<=\d,)\n(?=\d{3}\b)", "", "\n".join(lines[:end])).replace("\n", " ")  # a number may be broken
    text = re.sub(r"^Error parsing (?!-)\S+: ", "", text)
    text = re.sub(
        r"^Error parsing (-\S+): invalid literal for int\(\) .*?'(.*)'", r"\1 \2: must be a whole number", text
    )
    optional = re.match(r"Error parsing (-\S+): .*\{None\}\|\{?([A-Z ]+?)\}? could be instantiated from \[(.*)\]", text)
    if optional and optional[2] in NUMBERS:
        given = "".join(f" {word}" for word in re.findall("'(.*?)'", optional[3]))
        return f"{optional[1]}{given}: must be {NUMBERS[optional[2]]}"
    text = re.sub(r"^Unrecognized options: (?!-)", "unexpected argument: ", text)
    return re.sub(r"^Error parsing (-\S+): could not convert string to float: '(.*)'", r"\1 \2: must be a number", text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 on success, the command's own status (3: keep), 2 after a bad argument or file (one line
    on stderr), 130 if interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every encoding has the dots of a cell that is cut
    status: int | None = None
    command: Command | None = None
    if threading.current_thread() is threading.main_thread():
        for number in set(stop_signals()) - {signal.SIGINT}:  # they stop a run as Ctrl-C does
            signal.signal(number, signal.default_int_handler)
    as_json = "--json" in argv
    try:
        if list(argv) in (["--version"], ["-V"]):
            echo(f"rbi {__version__}")
            return 0
        command = parse(argv)
        status = print_json(command, argv) if command.json else command.run(argv)
        write_output()
    except Exception as error:
        if not is_expected(error) or os.environ.get("RBI_TRACEBACK"):
            raise
        reason = "out of memory: " if is_out_of_memory(error) else ""
        message = one_line(f"{reason}{str(error) or type(error).__name__}{nearest_path(str(error), argv)}")
        return fail(USAGE_ERROR, message, as_json=as_json)
    except KeyboardInterrupt as stop:
        message = one_line(str(stop)) or f"interrupted{how_to_resume(command)}"
        return fail(INTERRUPTED, message, as_json=as_json)
    finally:
        discard_unwritten()
    return status or 0


def fail(status: int, message: str, *, as_json: bool) -> int:
    """Say on standard error, and with --json on standard output, why a command failed; returns its status."""
    echo(f"rbi: {message}", stderr=True)
    if as_json:
        with contextlib.suppress(OSError):  # it may be standard output that has failed
            write_output(json.dumps({"status": status, "error": message}) + "\n")
    return status


def open_closed_streams() -> None:
    """Open standard streams that are closed (`rbi ... >&-`) as /dev/null: the next file to be opened would get their
    number, and then what libraries print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(opened, True)  # worker processes need them, too
            setattr(sys, name, os.fdopen(opened, "w" if number else "r"))


def write_output(text: str = "") -> None:
    """Write a text, and what is left of earlier ones. That nobody reads it is no error: the run is complete."""
    output = LossyStream(sys.stdout)
    output.write(text)
    output.flush()


def discard_unwritten() -> None:
    """Discard what cannot be written, which Python would try again at its end, with an exit status of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def how_to_resume(command: "Command | None") -> str:
    """What to do after an interruption, where the run can be resumed."""
    if command is None or not hasattr(command, "resume") or command.out is None:
        return ""
    if not (command.out / "config.json").exists():
        return ""
    return "; continue with the same command and --resume" + " in place of --overwrite" * command.overwrite


def print_json(command: "Command", argv: Sequence[str]) -> int:
    """Run a command; standard output gets one JSON object, and messages and tables go to standard error."""
    from rbi import fileio, runs

    if command.out is None and command.writes_folder and not getattr(command, "resume", False):
        command = dataclasses.replace(command, out=runs.default_folder(argv[0]))
    with contextlib.redirect_stdout(LossyStream(sys.stderr, always=True)):
        status = command.run(argv) or 0
    write_output(fileio.to_json({"status": status, **command.outcome()}) + "\n")  # json.dumps writes Infinity
    return status


def nearest_path(message: str, argv: Sequence[str]) -> str:
    """A suggestion if the message misses a path of the arguments that is a letter or two away from an existing one."""
    names = {word for command in COMMANDS for word in command.split()}
    for word in argv:
        if word in names or "did you mean" in message or "no such" not in message.lower():
            continue
        path = Path(word)
        with contextlib.suppress(OSError, ValueError):  # a name that is too long, a folder that may not be read
            if word in message and path.parent.is_dir() and not path.exists():
                return nearest(path.name, [each.name for each in path.parent.iterdir()])
    return ""


def is_expected(error: Exception) -> bool:
    """Whether an error is about an argument, a file or the machine, so that its message is enough."""
    safetensors = sys.modules.get("safetensors")
    unreadable = safetensors is not None and isinstance(error, safetensors.SafetensorError)
    loop = isinstance(error, RuntimeError) and str(error).startswith("Symlink loop")  # from pathlib before Python 3.13
    return unreadable or loop or is_out_of_memory(error) or isinstance(error, ValueError | OSError | OverflowError)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on the machine or on a GPU: PyTorch raises a RuntimeError for the former."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in ("allocate memory", "out of memory"))
    )
