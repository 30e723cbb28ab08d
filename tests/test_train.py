"""`rbi train` and `rbi evaluate` as a user meets them."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import rbi
from rbi import cli, runs
from rbi.cli import train
from rbi.online.config import PRESETS

ROOT = Path(__file__).parent.parent
TINY = [
    "train", "--env", "CartPole-v1", "--schedule.num-envs", "8", "--schedule.learning-starts", "64", "--schedule.hidden-size", "16",
    "--learner.batch-size", "16", "--learner.updates-per-sample", "2", "--learner.target-update-interval", "8", "--replay.capacity", "2000",
    "--schedule.publish-interval", "2", "--schedule.states-per-update", "4", "--report-interval", "10", "--episodes", "3",
]  # fmt: skip


def lines_of(run):
    """Metrics without what depends on the clock."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in runs.read(run).metrics]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    assert cli.main([*TINY, "--schedule.updates", "200", "--out", str(out)]) == 0
    return out


def test_train_leaves_metrics_policies_a_checkpoint_a_figure_and_boards(trained):
    run = runs.read(trained)
    assert [line["updates"] for line in run.metrics] == list(range(10, 201, 10))
    for name in (
        "score",
        "q",
        "td_error",
        "pi_loss",
        "pi_entropy",
        "moved_mass",
        "at_c_min",
        "at_c_max",
        "priority_mean",
    ):
        assert isinstance(run.metrics[-1][name], float), name
    assert run.result["last"]["updates"] == 200
    assert run.result["evaluation"]["episodes"] == 3
    assert matplotlib.image.imread(trained / "figures" / "learning.png").std() > 0.01
    assert list((trained / "tensorboard").glob("events*"))
    assert rbi.load_policy(trained / "policies" / "last").metadata["updates"] == 200
    best = rbi.load_policy(trained)
    assert best.env == "CartPole-v1"
    assert str(best.rule) == "reroute(0.1,2)"


def test_boards_hold_what_the_metrics_hold(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(trained / "tensorboard"))
    board.Reload()
    written = {event.step: event.value for event in board.Scalars("q")}
    assert written == pytest.approx({line["updates"]: line["q"] for line in runs.read(trained).metrics})


def start(arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "rbi", *arguments], stderr=subprocess.PIPE, env=environment)


LONGER = [*TINY, "--schedule.updates", "600", "--checkpoint-minutes", "0.005"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "run"
    assert cli.main([*LONGER, "--out", str(out)]) == 0
    return out


def stopped(out, how):
    """A run that a signal has stopped in the middle; what it said."""
    process = start([*LONGER, "--out", str(out)])
    while not (out / "metrics.jsonl").exists() or len(runs.read(out).metrics) < 12:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(how)
    _, told = process.communicate(timeout=60)
    assert runs.read(out).result is None
    return process.returncode, told


def same_end(one, other):
    assert lines_of(one) == lines_of(other)
    assert runs.read(one).result["evaluation"]["scores"] == runs.read(other).result["evaluation"]["scores"]


def test_killed_outright_a_run_goes_on_to_the_same_metrics(unbroken, tmp_path):
    stopped(tmp_path / "run", signal.SIGKILL)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 99')  # torn by the kill
    assert cli.main([*LONGER, "--out", str(tmp_path / "run"), "--resume"]) == 0
    same_end(tmp_path / "run", unbroken)
    assert not list((tmp_path / "run" / "policies").glob(".*"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stopped_by_a_signal_a_run_saves_itself_where_it_is_and_goes_on_from_there(how, unbroken, tmp_path):
    status, told = stopped(tmp_path / "run", how)
    assert status == cli.INTERRUPTED
    assert b"go on with --resume --out" in told
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert int(saved.name) >= 10 * 12
    assert cli.main([*LONGER, "--out", str(tmp_path / "run"), "--resume"]) == 0
    same_end(tmp_path / "run", unbroken)


def test_a_finished_run_that_goes_on_changes_nothing(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    assert cli.main([*TINY, "--schedule.updates", "200", "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert lines_of(tmp_path / "run") == lines_of(trained)


def test_a_finished_run_goes_on_when_more_updates_are_asked_for(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    assert cli.main([*TINY, "--schedule.updates", "240", "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert lines_of(tmp_path / "run")[:20] == lines_of(trained)
    assert runs.read(tmp_path / "run").result["last"]["updates"] == 240


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--env", "NoSuchGame-v0"), "--env NoSuchGame-v0: "),
        (("--env", "ALE/Brekout-v5"), "no such Atari game; did you mean breakout"),
        (("--env", "Pendulum-v1"), "only discrete ones can be learned"),
        (("--env", "CartPole-v1", "--replay.capacity", "2000000000000"), "GB free; up to"),
        (("--env", "CartPole-v1", "--schedule.num-envs", "7"), "players = 7: must be even"),
        (("--env", "CartPole-v1", "--actor.rule", "reroute(2,1)"), "rule 'reroute(2,1)'"),
        (("--env", "CartPole-v1", "--learner.updates-per-sample", "3"), "target_update_interval"),
        (("--env", "CartPole-v1", "--preset", "slow"), "preset"),
        (("--env", "CartPole-v1", "--learner.batch-size", "0"), "batch_size = 0: must be at least 1"),
        (("--env", "CartPole-v1", "--resume"), "--resume: name the run with --out"),
        (("--env", "CartPole-v1", "--resume", "--out", "nowhere"), "is not a run folder"),
        (("--env", "CartPole-v1", "--device", "cuda"), "PyTorch finds no GPU here"),
        (("--envs", "CartPole-v1,Pendulum-v1"), "only discrete ones can be learned"),
        (("--env", ""), "--env: name an environment"),
        (("--env", "CartPole-v1", "--actor.epsilon-exponent", "nan"), "epsilon_exponent = nan"),
        (("--env", "CartPole-v1", "--schedule.hidden-size", "9999999999"), "hidden_size = 9999999999: must be at most"),
        (("--env", "CartPole-v1", "--learner.batch-size", "40000"), "batch_size = 40000: 160,000 states a round"),
        (("--env", "CartPole-v1", "--returns.n-step", "100000000"), "n_step = 100000000"),
    ],
)
def test_a_mistake_gives_one_line_before_any_work(arguments, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *arguments]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("making ")]
    assert len(err) == 1
    assert told in err[0]
    assert not list(tmp_path.iterdir())


def test_a_run_of_before_there_was_a_setting_goes_on_as_it_then_was(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    told = json.loads(config.read_text())
    del told["settings"]["schedule"]["norm"], told["settings"]["learner"]["augmentation"]
    config.write_text(json.dumps(told))
    again = [*TINY, "--schedule.updates", "240", "--out", str(tmp_path / "run"), "--resume"]
    assert cli.main([*again, "--schedule.norm", "layer"]) == 2
    assert "was started with schedule.norm = none, not layer" in capsys.readouterr().err
    assert cli.main(again) == 0


def test_a_run_goes_on_with_its_own_settings_whatever_the_preset_is_by_now(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "run")
    small = PRESETS["small"]
    changed = small | {"schedule": dataclasses.replace(small["schedule"], num_envs=10, states_per_update=3.0)}
    monkeypatch.setitem(PRESETS, "small", changed)
    assert cli.main(["train", "--resume", "--out", str(tmp_path / "run"), "--schedule.updates", "240"]) == 0
    assert runs.read(tmp_path / "run").finished()["last"]["updates"] == 240


@pytest.mark.parametrize(
    ("torn", "told"),
    [
        ("{", "config.json"),
        ('{"command": "train", "seed": 0, "settings": {"schedule": {"players": "many"}}}', "cannot be used"),
        ('{"command": "train", "seed": 0, "settings": {"schedule": 3, "env": 5}}', "was started with"),
    ],
)
def test_settings_that_cannot_be_read_give_one_line(trained, tmp_path, capsys, torn, told):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(torn)
    assert cli.main(["train", "--resume", "--out", str(tmp_path / "run")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("making ")]
    assert told in line


def test_a_run_goes_on_only_as_it_was_started(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    again = [*TINY, "--schedule.updates", "200", "--out", str(tmp_path / "run"), "--resume"]
    for change, told in (
        (("--learner.batch-size", "32"), "was started with learner.batch_size = 16, not 32"),
        (("--env", "Acrobot-v1"), "was started with env = CartPole-v1, not Acrobot-v1"),
        (("--algo", "apex"), "was started with algo = rbi, not apex"),
    ):
        assert cli.main([*again, *change]) == 2
        assert told in capsys.readouterr().err
    (at,) = (tmp_path / "run" / "checkpoints").iterdir()
    more = [*again, "--schedule.updates", "240"]
    (tmp_path / "run" / "result.json").rename(tmp_path / "result.json")
    assert cli.main([*again, "--schedule.updates", "100"]) == 2
    assert "--schedule.updates = 100" in capsys.readouterr().err
    (at / "state.json").rename(tmp_path / "state.json")
    (at / "state.json").write_text("{}")
    assert cli.main(more) == 2
    assert "state.json: lacks 'world'" in capsys.readouterr().err
    (tmp_path / "state.json").rename(at / "state.json")
    (at / "replay.safetensors").write_bytes(b"torn")
    assert cli.main([*again, "--schedule.updates", "240"]) == 2
    assert "replay.safetensors: is torn or was changed" in capsys.readouterr().err
    shutil.rmtree(at)
    (tmp_path / "result.json").rename(tmp_path / "run" / "result.json")
    assert cli.main(more) == 2
    assert "has no checkpoint to go on from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("game", "told"),
    [("Broken-v0", "failed with KeyError: 'a cable'"), ("Nan-v0", "gave a reward or an observation that is not")],
)
@pytest.mark.filterwarnings("ignore:.*NaN value")  # Gymnasium's own, before ours
def test_an_environment_that_fails_is_named_in_one_line(game, told, tmp_path, capsys):
    env = f"tests.games:{game}"
    assert cli.main([*TINY, "--env", env, "--schedule.updates", "200", "--out", str(tmp_path / "run")]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"rbi: --env {env}: ")
    assert told in last


def test_an_evaluation_never_takes_the_place_of_what_it_evaluates(trained, capsys):
    for out in (trained, trained / "policies", trained.parent):
        assert cli.main(["evaluate", str(trained), "--out", str(out), "--overwrite"]) == 2
        assert "belongs to the run that is evaluated" in capsys.readouterr().err
    assert rbi.load_policy(trained)


def test_presets_set_the_defaults_that_help_shows(capsys):
    for arguments, told in (
        (("--preset", "paper"), "3125000"),
        (("--preset", "fast"), "1000000"),
        (("--env", "CartPole-v1"), "(default: small)"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["train", *arguments, "--help"])
        shown = capsys.readouterr().out
        assert told in shown or arguments[0] == "--env"
    assert cli.parse(["train", "--preset", "paper"]).schedule.updates == 3_125_000
    assert cli.parse(["train", "--env=CartPole-v1"]).schedule.updates == train.PRESETS["small"]["schedule"].updates
    assert cli.parse(["train"]).schedule.states_per_update == train.PRESETS["fast"]["schedule"].states_per_update


def test_a_sweep_runs_every_algorithm_world_and_seed_and_marks_what_is_missing(tmp_path, capsys):
    out = tmp_path / "sweep"
    arguments = [
        *TINY,
        "--schedule.updates",
        "20",
        "--algo",
        "both",
        "--seeds",
        "2",
        "--episodes",
        "2",
        "--out",
        str(out),
    ]
    assert cli.main(arguments) == 0
    rows = runs.read(out).result["rows"]
    assert {(r["algo"], r["seed"]) for r in rows} == {("rbi", 0), ("rbi", 1), ("apex", 0), ("apex", 1)}
    assert (out / "figures" / "learning-CartPole-v1.png").exists()
    assert "CartPole" in capsys.readouterr().out
    shutil.rmtree(out / "runs" / "apex-CartPole-v1-seed1")
    times = {p: p.stat().st_mtime for p in out.glob("runs/rbi*/result.json")}
    assert cli.main([*arguments, "--resume"]) == 0
    assert len(runs.read(out).result["rows"]) == 4
    assert times == {p: p.stat().st_mtime for p in out.glob("runs/rbi*/result.json")}
    from rbi.report import train as pages

    table = pages.score_table({"rows": []}, paper=True)
    assert table.row_count == 12
    assert list(table.columns[-1].cells) == ["not run"] * 12


def test_evaluate_plays_a_run_and_states_its_protocol(trained, tmp_path, capsys):
    command = ["evaluate", str(trained), "--episodes", "5", "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "CartPole-v1, 5 episodes" in shown
    assert "actions drawn from the policy" in shown
    result = runs.read(tmp_path / "run").result
    assert result["mean"] == pytest.approx(np.mean(result["scores"]))
    assert result["human_normalised"] is None
    assert matplotlib.image.imread(tmp_path / "run" / "figures" / "scores.png").std() > 0.01


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere",), "nowhere: holds no policy"),
        (("RUN", "--env", "Acrobot-v1"), "but the policy (CartPole-v1) sees"),
        (("RUN", "--episodes", "0"), "--episodes = 0: must be at least 1"),
        (("RUN", "--video", "film.avi"), "films are written as"),
        (("RUN", "--epsilon", "3"), "epsilon = 3"),
    ],
)
def test_evaluate_refuses_in_one_line(arguments, told, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["evaluate", *(str(trained) if a == "RUN" else a for a in arguments)]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_paper_games_are_the_papers_twelve():
    jobs = cli.parse(["train", "--envs", "paper12"]).jobs()
    assert len(jobs) == 12
    assert json.dumps([job.env for job in jobs]).count("ALE/") == 12
