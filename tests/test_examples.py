"""The programs in examples/ run, each as a user would run it: as a script, in an empty folder."""

import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot
import pytest

import rbi

EXAMPLES = Path(__file__).parent.parent / "examples"


def execute(folder, *words):
    """What Python prints, with the examples among its modules."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(name, folder, *arguments):
    """What an example prints."""
    return execute(folder, EXAMPLES / name, *arguments)


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


def test_the_demo_runs_from_recording_to_report(tmp_path):
    """The commands of `make demo`, with few episodes and updates."""
    lines = (EXAMPLES.parent / "Makefile").read_text().replace("\\\n", " ").partition("\ndemo:")[2].partition("\n\n")[0]
    commands = [shlex.split(line.partition("$(BIN)/")[2]) for line in lines.splitlines() if "$(BIN)/" in line]
    assert [command[:2] for command in commands] == [
        ["python", "examples/breakout.py"],
        ["rbi", "offline"],
        ["rbi", "report"],
    ]
    smaller = {"--episodes": "1", "--num-envs": "2"}
    for program, *words in commands:
        words = [smaller.get(before, word) for before, word in itertools.pairwise(["", *words])]
        if program == "python":
            run(Path(words[0]).name, tmp_path, *words[1:], "4")
            data = rbi.load_episodes(tmp_path / words[1])
            assert len(data.players) == 4
            assert data.spec.obs_shape == (6,)
            assert data.scores.max() > 0
        else:
            more = ["--updates", "20", "--rules", "greedy"] if words[0] == "offline" else []
            execute(tmp_path, "-m", "rbi", *words, *more)
    assert "FIRE" in (tmp_path / commands[-1][-1]).read_text()
