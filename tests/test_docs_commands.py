"""The commands of README and docs run, page by page, each page in a folder of its own.

Sizes are reduced in one way: `SMALLER` lists options with small values, which replace those of the page or are added to
them, and `REPLACED` lists words, such as Atari games, that stand for smaller things here. `NOT_RUN` lists what does not
run, with the reason. docs/deploy.md runs in test_deploy.py.
"""

import re
import shlex

import numpy as np
import pytest

from rbi import cli
from tests.test_docs import PAGES, ROOT, console_commands, run_command, shop_logs

SMALLER = {
    "bandit learn": {"repetitions": "20", "steps": "50"},
    "bandit regret": {"points": "11"},
    "spi": {"sizes": "10 20", "repetitions": "4", "workers": "1"},
    "improve": {"updates": "20"},
    "offline": {
        "updates": "10",
        "episodes": "2",
        "evaluations": "1",
        "ppo.updates": "10",
        "rules": '"reroute(0.5,1.5)" greedy',
    },
    "train": {
        "schedule.updates": "8",
        "schedule.learning-starts": "64",
        "schedule.num-envs": "4",
        "eval-episodes": "2",
        "save-snapshots": "2",
    },
    "data record": {"episodes": "12"},
}
"""Options of each command, without their dashes."""
OPTIONAL = {"monte-carlo": "50", "population": "4", "seeds": "1"}
"""Options that are replaced where a page gives them."""
REPLACED = {r"ALE/\S+?-v5": "CartPole-v1", "--rows 20000": "--rows 200", "^.venv/bin/": ""}
NOT_RUN = {
    r"make ": "CI runs it",
    r"pip install ": "installs from a network",
    r"ray |export RAY_|.*--engine ray": "needs a Ray cluster: tests/online/test_ray_*.py start one",
    r"tensorboard ": "serves until it is stopped",
    r"rbi report .* --live": "serves until it is stopped: tests/report/test_live.py",
    r"rbi train --envs paper12": "24 runs with the paper's numbers",
    r"rbi offline .* --preset paper": "every number of the paper, 1,562,500 updates",
    r"rbi evaluate runs/breakout": "a policy trained on an Atari game, which CartPole replaces here",
}
STATUSES = {"certify": (0, 3), "monitor": (0, 3)}  # 3: keep, or alarm


def prepare_improve(folder):
    """The table with the reader's own names of columns."""
    rng = np.random.default_rng(0)
    rows = [
        f"{i // 3},{rng.integers(80)},{rng.normal():.2f},{rng.integers(3)},{i % 2},{int(i % 3 == 2)}"
        for i in range(300)
    ]
    (folder / "visits.csv").write_text("\n".join(["visit,age,income,offer,paid,left", *rows]) + "\n")


def prepare_logged_decisions(folder):
    shop_logs(folder)
    run("rbi improve decisions.csv --table.one-step --table.observations segment visits --out better")


PREPARE = {
    "docs/howto/improve.md": prepare_improve,
    "docs/howto/train.md": lambda _: run("rbi train --env CartPole-v1 --out runs/cart"),
    "docs/tutorials/environment.md": lambda _: run("rbi train --env CartPole-v1 --out runs/cart"),
    "docs/tutorials/logged-decisions.md": prepare_logged_decisions,
}
"""What a page starts from: results of its Python code, and files of the reader."""


def smaller(command):
    """The words of a command with small sizes."""
    for old, new in REPLACED.items():
        command = re.sub(old, new, command)
    words = shlex.split(command, comments=True)
    name = next((name for name in cli.COMMANDS if words[0] == "rbi" and " ".join(words[1:]).startswith(name)), "")
    wanted = {f"--{option}": shlex.split(value) for option, value in SMALLER.get(name, {}).items()}
    wanted |= {f"--{option}": [value] for option, value in OPTIONAL.items() if f"--{option}" in words}
    for option, values in wanted.items():
        if option in words:
            at = words.index(option)
            end = next((n for n in range(at + 1, len(words)) if words[n].startswith("--")), len(words))
            words[at:end] = []
        words += [option, *values]
    return words, name


def run(command):
    """Run a command of a page with small sizes."""
    words, name = smaller(command)
    assert run_command(words) in STATUSES.get(name, (0,)), command


def reason_not_to_run(command):
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, page in PAGES.items()
        if name != "docs/deploy.md" and not all(reason_not_to_run(each) for each in console_commands(page))
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_the_commands_of_a_page_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    PREPARE.get(name, lambda _: None)(tmp_path)
    for command in console_commands(PAGES[name]):
        if not reason_not_to_run(command):
            run(command)


def test_every_reason_not_to_run_a_command_has_a_command():
    every = [command for page in PAGES.values() for command in console_commands(page)]
    assert all(any(re.match(pattern, command) for command in every) for pattern in NOT_RUN)
    assert sum(reason_not_to_run(command) is None for command in every) > 40
