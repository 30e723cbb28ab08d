"""The commands of docs/deploy.md run one after the other, on fewer rows and updates than there."""

import json
import re
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import rbi
from rbi import cli
from tests.test_docs import console_commands

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "deploy.md").read_text()
SHOP = SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "logged_decisions.py")))


def commands():
    """The commands of the page but for the installation."""
    return [command for command in console_commands(PAGE) if not command.startswith("pip ")]


def smaller(command, port):
    """The same command with a tenth of the rows and updates, and another port."""
    command = re.sub(r"--rows (\d+)", lambda rows: f"--rows {int(rows[1]) // 10}", command.replace("8000", str(port)))
    return command.replace("rbi improve ", "rbi improve --updates 100 ")


def example(words):
    """The command line of a program in examples/."""
    return [sys.executable, ROOT / words[1], *words[2:]]


def start_server(words):
    """A process that serves, once it says so."""
    process = subprocess.Popen(example(words), stderr=subprocess.PIPE, text=True)
    if not any("running on" in line for line in process.stderr):
        pytest.fail("the server has not started")
    return process


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_deployment_guide_runs_from_a_log_to_the_next_round(tmp_path, monkeypatch):
    for package in ("onnxruntime", "onnxscript", "uvicorn"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = None
    try:
        for command in commands():
            words = shlex.split(smaller(command, port))
            if words[0] == "rbi":
                assert cli.main(words[1:]) in (0, 3), command  # 3: keep, with so few rows
            elif words[-1] == "&":
                server = start_server(words[:-1])
            elif words[0] == "python":
                subprocess.run(example(words), check=True)
            else:
                assert subprocess.run(words, check=True, capture_output=True).stdout, command
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
    decided = json.loads((tmp_path / "runs/certified/result.json").read_text())
    probs = SHOP.probabilities(rbi.load_policy(tmp_path / "runs/better"))
    gain = SHOP.value(probs) - SHOP.value(SHOP.OLD)
    assert decided["lower"] < gain
    assert len((tmp_path / "live.jsonl").read_text().splitlines()) == 200


def test_the_guides_true_values_are_those_of_the_generator():
    best = (SHOP.BUYS.max(1, keepdims=True) == SHOP.BUYS).astype(float)
    assert f"old {1000 * SHOP.value(SHOP.OLD):.1f}," in PAGE
    assert f"best possible {1000 * SHOP.value(best):.1f};" in PAGE
    assert SHOP.SHARE.sum() == pytest.approx(1)
    assert ((SHOP.BUYS > 0) & (SHOP.BUYS < 1)).all()
