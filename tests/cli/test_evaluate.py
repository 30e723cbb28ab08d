"""`rbi evaluate` as a user meets it."""

import matplotlib.image
import numpy as np
import pytest

import rbi
from rbi import cli, runs
from rbi.online.train import train
from tests.online.small_runs import TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    return train("CartPole-v1", out=out, eval_episodes=0, progress=False, device="cpu", **(TINY | {"updates": 10})).out


def test_an_evaluation_never_overwrites_what_it_evaluates(trained, capsys):
    for out in (trained, trained / "policies", trained.parent):
        assert cli.main(["evaluate", str(trained), "--out", str(out), "--overwrite"]) == 2
        assert "belongs to the policy" in capsys.readouterr().err
    assert rbi.load_policy(trained)


def test_evaluate_shows_scores_and_protocol(trained, tmp_path, capsys):
    command = ["evaluate", str(trained), "--episodes", "5", "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "CartPole-v1, 5 episodes" in shown
    assert "actions sampled from the policy" in shown
    result = runs.read(tmp_path / "run").result
    assert result["mean"] == pytest.approx(np.mean(result["scores"]))
    assert result["human_normalised"] is None
    assert matplotlib.image.imread(tmp_path / "run" / "figures" / "scores.png").std() > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("RUN", "--env", "Acrobot-v1"), "but the policy (CartPole-v1) takes"),
        (("RUN", "--episodes", "0"), "episodes = 0: must be at least 1"),
        (("RUN", "--video", "film.avi"), "video"),
        (("RUN", "--epsilon", "3"), "epsilon = 3"),
    ],
)
def test_evaluate_refuses_in_one_line(arguments, message, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["evaluate", *(str(trained) if a == "RUN" else a for a in arguments)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
