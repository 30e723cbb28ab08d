"""The command line: the only place that parses arguments."""

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence

from safetensors import SafetensorError
from tyro.extras import SubcommandApp

from rbi.cli import bandit, data, evaluate, improve, offline, record, rules, spi, train
from rbi.cli.command import Command
from rbi.progress import echo
from rbi.version import __version__

HELP = """Better policies from logged experience, without making things worse.

Every command shows what it does, takes --out and --seed, and writes a run folder that holds its configuration,
metrics, results and figures. `rbi --version` prints the version, `rbi COMMAND --help` the options of a command."""

USAGE_ERROR, INTERRUPTED = 2, 130


def parse(argv: Sequence[str]) -> Command:
    """The command that the arguments ask for. tyro explains a mistake in a box; users get its first sentence."""
    app, bandits, experience = SubcommandApp(), SubcommandApp(), SubcommandApp()
    app.command(name="rules")(rules.Rules)
    bandits.command(name="regret")(bandit.Regret)
    bandits.command(name="learn")(bandit.Learn)
    app.command(bandits, name="bandit", help="The paper's Gaussian bandit: regret of one step, learning curves.")
    app.command(name="spi")(spi.Spi)
    experience.command(name="import")(data.Import)
    experience.command(name="info")(data.Info)
    experience.command(name="export")(data.Export)
    experience.command(name="record")(record.Record)
    app.command(experience, name="data", help="Experience on disk: import, look at, export, record.")
    app.command(name="train")(train.with_preset(argv))
    app.command(name="offline")(offline.with_preset(argv))
    app.command(name="improve")(improve.Improve)
    app.command(name="evaluate")(evaluate.Evaluate)
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            made: Command = app.cli(args=argv, prog="rbi", description=HELP)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(f"{first_sentence(told.getvalue())} (see rbi --help)") from None
    return made


def first_sentence(box: str) -> str:
    """The first part below the title of tyro's box, on one line, without what is drawn around it."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    lines = ["" if set(line) <= set("─-") else line for line in lines]
    lines = lines[1:] if lines and not lines[0] else lines  # plain boxes have a rule under the title
    end = lines.index("") if "" in lines else len(lines)
    return re.sub(r"^Error parsing (?!-)\S+: ", "", " ".join(lines[:end]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it worked, 2 with one line for a bad argument or file, 130 if interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if list(argv) in (["--version"], ["-V"]):
        echo(f"rbi {__version__}")
        return 0
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops a run as Ctrl-C does
    try:
        parse(argv).run(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has gone; the run itself is complete
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, OverflowError, MemoryError, SafetensorError) as error:
        if os.environ.get("RBI_TRACEBACK"):
            raise
        echo(f"rbi: {error}", stderr=True)
        return USAGE_ERROR
    except KeyboardInterrupt:
        echo("rbi: interrupted", stderr=True)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
