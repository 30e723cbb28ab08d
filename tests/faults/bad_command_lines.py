"""Bad command lines: every number of every command with values that make no sense, and odd names and places."""

import dataclasses
import importlib
import os
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path

from rbi import cli
from tests.faults.bad_inputs import ACCEPT, EITHER, REFUSE, Case

BASE = {
    "rules": "",
    "bandit regret": "--points 3 --samples 10",
    "bandit learn": "--repetitions 2 --steps 3 --workers 1",
    "spi": "--worlds random(0.9) --sizes 10 --repetitions 2 --resamples 2 --workers 1 --algorithms basic_rl",
    "data info": "log.csv",
    "data import": "log.csv --workers 1",
    "data export": "log.csv",
    "data record": "random --env CartPole-v1 --episodes 2",
    "evaluate": "policy --episodes 1",
    "export": "policy",
    "certify": "log.csv --policy policy",  # refused: the policy takes other observations
    "monitor": "log.csv --old-value 0 --return-range -1e9 1e9",
    "improve": "log.csv --updates 2 --batch-size 4 --hidden-size 4",
    "offline": "store --preset small",
    "train": "--env CartPole-v1 --schedule.updates 4 --schedule.learning-starts 16 --schedule.num-envs 2 "
    "--replay.capacity 100 --learner.batch-size 4 --schedule.hidden-size 4 --eval-episodes 0",
}
SLOW = {"export", "offline"}
"""Commands of which only the command line is tried."""


def numeric_options(kind: object, prefix: str = "--") -> Iterator[tuple[str, type]]:
    """The options of a command that take numbers."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        choices = [part for part in (hint, *typing.get_args(hint)) if part in (int, float)]
        inner = field.name not in ("overrides", "config", "evaluation")
        name = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            yield from numeric_options(hint, f"{name}." if inner else prefix)
        elif choices and bool not in typing.get_args(hint):
            yield name, choices[0]


def command_line_cases() -> Iterator[Case]:
    """Every number of every command with values that make no sense."""
    for command, base in BASE.items():
        module, attribute, _ = cli.COMMANDS[command]
        for option, kind in numeric_options(getattr(importlib.import_module(module), attribute)):
            if option.startswith(("--cluster", "--agc")):
                continue
            start = (*command.split(), *base.split(), "--out", "out")
            yield Case(f"{command} {option} nan", (*start, option, "nan"))
            yield Case(f"{command} {option} text", (*start, option, "\x1b[31m"))
            if command not in SLOW:
                huge = "1000000000000000000" if kind is int else "1e308"
                yield Case(f"{command} {option} {huge}", (*start, option, huge), EITHER)
                yield Case(f"{command} {option} -1", (*start, option, "-1"), EITHER)
    for command in BASE:
        words = tuple(command.split())
        yield Case(f"{command}: unknown option", (*words, "--nonsense"))
        yield Case(f"{command}: a second positional", (*words, "a", "b", "c", "--nonsense"))
        yield Case(f"{command}: --out is a file", (*words, *BASE[command].split(), "--out", "log.csv"))
        yield Case(f"{command}: --out below a file", (*words, *BASE[command].split(), "--out", "log.csv/x"))
        yield Case(f"{command}: --out too long", (*words, *BASE[command].split(), "--out", "x" * 300))
        loop = lambda: Path("loop").symlink_to("loop")  # noqa: E731
        yield Case(f"{command}: --out is a loop", (*words, *BASE[command].split(), "--out", "loop/x"), REFUSE, loop)
    yield from other_command_lines()


def other_command_lines() -> Iterator[Case]:
    for text in (
        "",
        "rules2",
        "data",
        "data nothing",
        "\x1b[31m",
        "-x",
        "--out",
        "bandit",
        "bandit what",
        "--",
        "\udcff",
    ):
        yield Case(f"command {text!r}", tuple(text.split(" ")))
    for name, option in {
        "advantage of -inf": "--advantage -inf -inf --beta 0.5 0.5",
        "advantage inf": "--advantage inf 0 --beta .5 .5",
        "advantage nan": "--advantage nan 0 --beta .5 .5",
        "beta of 2": "--beta 2 -1 --advantage 0 0",
        "beta nan": "--beta nan 1 --advantage 0 0",
        "two lengths": "--beta 1 --advantage 0 0",
        "no rule": "--rules",
        "unknown rule": "--rules what(1)",
        "open rule": "--rules reroute(",
        "rule nan": "--rules tv(nan)",
        "nested rule": "--rules " + "(" * 5000,
        "rule of code": "--rules __import__('os').system('true')",
        "huge radius": "--rules tv(1e400)",
        "negative": "--rules reroute(-1,2)",
        "many": "--rules " + "greedy " * 50,
        "no beta": "--beta --advantage",
        "one action": "--beta 1 --advantage 1",
        "huge advantage": "--advantage 1e308 -1e308 --beta .5 .5",
    }.items():
        either = name in ("advantage of -inf", "one action", "huge advantage", "many", "huge radius")
        yield Case(f"rules: {name}", ("rules", *option.split(), "--out", "out"), EITHER if either else REFUSE)
    for name, options in {
        "no policy": "data record --env CartPole-v1 --episodes 1",
        "unknown policy": "data record nothing --episodes 1",
        "unknown environment": "data record random --env Nothing-v0 --episodes 1",
        "module that is not there": "data record random --env nothing_here:X-v0 --episodes 1",
        "environment with continuous actions": "data record random --env Pendulum-v1 --episodes 1",
        "no Atari game": "data record random --env ALE/Nothing-v5 --episodes 1",
        "episodes and steps": "data record random --env CartPole-v1 --episodes 1 --steps 1",
        "another environment": "evaluate policy --env Acrobot-v1",
        "evaluate nothing": "evaluate nothing",
        "evaluate a file": "evaluate log.csv",
        "evaluate data": "evaluate store",
        "video txt": "evaluate policy --video a.txt",
        "train without environment": "train --env",
        "train nowhere": "train --env Nothing-v0",
        "resume nothing": "train --resume --out nothing",
        "resume without out": "train --resume",
        "resume data": "train --resume --out store",
        "resume another": "train --resume --out improved",
        "import policy": "data import policy",
        "info nothing": "data info nothing",
        "info without path": "data info",
        "wrong format": "data info log.csv --format minari",
        "wrong format 2": "data info minari-v0 --format parquet",
        "wrong format 3": "data info log.csv --format d3rlpy",
        "wrong format 4": "data info policy --format store",
        "wrong format 5": "data info log.csv --format dqn_replay",
        "wrong format 6": "data info log.csv --format agc",
        "wrong format 7": "data info store --format csv",
        "verify a CSV": "data info log.csv --verify",
        "column that is not there": "data info log.csv --table.action nothing",
        "empty column": "data info log.csv --table.action=",
        "columns of a store": "data info store --table.action a",
        "device": "evaluate policy --device tpu",
        "improve a policy": "improve policy",
        "improve nothing": "improve nothing",
        "improve with an unknown rule": "improve log.csv --rule what",
        "out inside data": "data import store --out store/x",
        "out is the data": "data import store --out store",
        "resume import of nothing": "data import log.csv --resume --out no",
        "spi worlds": "spi --worlds nothing(1)",
        "spi algorithms": "spi --algorithms nothing",
        "spi sizes": "spi --sizes 0",
        "spi huge size": "spi --worlds random(0.9) --sizes 1000000000000000 --repetitions 2",
        "spi nan": "spi --worlds random(nan)",
        "stds": "bandit regret --stds 1",
        "stds text": "bandit regret --stds a,b",
        "stds negative": "bandit regret --stds -1,2",
        "stds nan": "bandit learn --stds nan,1 --steps 2",
        "means": "bandit regret --means 1",
        "learning rate": "bandit learn --learning-rates 2",
        "samples": "bandit regret --samples 0",
        "many arms": "bandit learn --means " + "0 " * 3 + "--stds 1",
        "a pipe": "data info pipe",
        "a device": "data info /dev/zero",
        "a device as CSV": "data info /dev/zero --format csv",
        "a loop": "data info loop",
        "a long name": "data info " + "x" * 5000,
        "root": "data info /proc/self/mem",
        "the current folder": "evaluate .",
        "an empty folder": "data info empty",
    }.items():
        yield Case(name, tuple(options.split()), REFUSE, make_odd_places)
    for name in ("\x1b[31m", "[red]x", ":smile:", "a\nb", "\udcff\udcfe", "ü" * 50, "\u202e"):
        yield Case(f"data info {name!r}", ("data", "info", name))
        rename = lambda name=name: shutil.copy("log.csv", f"{name}.csv")  # noqa: E731
        yield Case(f"data info {name!r}.csv", ("data", "info", f"{name}.csv", "--out", "out"), ACCEPT, rename)


def make_odd_places() -> None:
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("empty").mkdir()


GROUPS = (command_line_cases,)
