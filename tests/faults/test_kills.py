"""Disturbed at file operations, commands resume to the same result; `python -m tests.faults.kills` tries more."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_store_that_is_disturbed_while_it_is_made_resumes_to_the_same_result():
    run("tests.faults.kills", "--fast")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["overwrite", "train"])
def test_a_run_that_is_disturbed_resumes_to_the_same_result(scenario):
    run("tests.faults.kills", "--only", scenario, "--points", "1")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["improve"])
def test_odd_and_damaged_files_are_named_in_one_line(scenario):
    run("tests.faults.odd_folders", "--only", scenario, "--changes", "4")
