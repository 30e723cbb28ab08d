"""The programs in examples/ run, each as a user would run it: as a script, in an empty folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot
import pytest

import rbi

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder, *arguments):
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_logs_are_improved(tmp_path):
    assert "reroute(0.5,1.5)" in run("improve_logs.py", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_notebook_runs_and_has_no_outputs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = [
        cell for cell in json.loads((EXAMPLES / "tutorial.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    names = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    matplotlib.pyplot.close("all")
    assert len(names["gains"]) == 6
    assert "reroute(0.5,1.5)" in capsys.readouterr().out
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    assert not list(tmp_path.iterdir())


def test_reroute_has_the_best_worst_case_of_all_rules_that_improve(tmp_path):
    worst = {line.split()[0]: float(line.split()[-1]) for line in run("compare_rules.py", tmp_path).splitlines()}
    assert worst.pop("behavior") == pytest.approx(0)
    assert max(worst, key=worst.get) == "reroute(0.5,1.5)"


@pytest.mark.slow
def test_a_policy_is_trained_evaluated_saved_and_loaded(tmp_path):
    assert "CartPole-v1" in run("train_policy.py", tmp_path)
    assert (tmp_path / "cart_policy").is_dir()


@pytest.mark.slow
def test_the_demo_records_players_of_different_skill(tmp_path):
    run("breakout.py", tmp_path, tmp_path / "population", "4")
    data = rbi.load_episodes(tmp_path / "population")
    assert len(data.players) == 4
    assert data.spec.obs_shape == (6,)
    assert data.scores.max() > 0
