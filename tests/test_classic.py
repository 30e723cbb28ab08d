"""The benchmark of small environments: which Python its peer runs with, and which cells count."""

import json
import sys

import pytest

from benchmarks import classic

PEER = """#!{python}
import json, sys
from pathlib import Path
env, steps, seed, episodes = sys.argv[2], *map(int, sys.argv[3:6])
folder, seconds = Path(sys.argv[6]), float(sys.argv[7])
scores = [float(seed)] * episodes
if seconds < 60 and not folder.exists():
    folder.mkdir(parents=True)
    sys.exit()
print(json.dumps(dict(states=steps, updates=1, seconds=dict(training=1, evaluation=1), scores=scores, settings=dict())))
"""


@pytest.fixture
def peer(tmp_path):
    """A Python that prints a DQN's result instead of running the script."""
    path = tmp_path / "python"
    path.write_text(PEER.format(python=sys.executable))
    path.chmod(0o755)
    return path


def test_the_dqn_runs_with_the_given_python_at_equal_steps(tmp_path, peer, monkeypatch):
    out = tmp_path / "cells"
    args = ["--envs", "FrozenLake-v1", "CartPole-v1", "--algos", "sb3", "--seeds", "2", "--peer", str(peer)]
    monkeypatch.setattr(sys, "argv", ["classic", *args, "--out", str(out), "--commit", "0"])
    classic.main()
    done = classic.current_cells(out)
    assert {name: len(cell["scores"]) for name, cell in done.items()} == {
        "CartPole-v1-sb3-seed2": 100,
        "FrozenLake-v1-sb3-seed2": 1000,
    }
    for cell in done.values():
        assert cell["states"] == cell["steps"] == classic.steps_of(cell["env"])
        assert cell["evaluation"]["mean"] == 2


def test_a_dqn_that_does_not_end_in_time_goes_on_in_the_next_call(tmp_path, peer, monkeypatch, capsys):
    out = tmp_path / "cells"
    args = ["--envs", "CartPole-v1", "--algos", "sb3", "--seeds", "2", "--peer", str(peer), "--minutes", "0.5"]
    monkeypatch.setattr(sys, "argv", ["classic", *args, "--out", str(out), "--commit", "0"])
    classic.main()
    assert "CartPole-v1-sb3-seed2: stopped, and will go on" in capsys.readouterr().out
    assert not classic.current_cells(out)
    classic.main()
    assert list(classic.current_cells(out)) == ["CartPole-v1-sb3-seed2"]


@pytest.mark.parametrize("change", [{"steps": 1}, {"scores": [1.0]}])
def test_cells_of_other_steps_or_episodes_are_run_again(tmp_path, change):
    cell = {
        "env": "CartPole-v1",
        "algo": "sb3",
        "seed": 0,
        "steps": classic.steps_of("CartPole-v1"),
        "scores": [1] * 100,
    }
    for name, found in (("kept", cell), ("old", cell | change)):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    assert list(classic.current_cells(tmp_path)) == ["kept"]
