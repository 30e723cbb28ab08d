"""Disturbed at file operations, commands resume to the same result; `python -m tests.faults.kills` tries more."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def disturb(*options):
    command = [sys.executable, "-m", "tests.faults.kills", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_store_that_is_disturbed_while_it_is_made_resumes_to_the_same_result():
    disturb("--fast")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["overwrite", "improve", "train"])
def test_a_run_that_is_disturbed_resumes_to_the_same_result(scenario):
    disturb("--only", scenario, "--points", "3")
