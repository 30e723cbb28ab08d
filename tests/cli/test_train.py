"""`rbi train` as a user meets it: options, presets, signals, one-line errors and sweeps."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rbi
from rbi import cli, runs
from rbi.cli.train import changed_settings
from rbi.envs.types import EnvConfig
from rbi.online.config import PRESETS, TrainConfig, preset_parts

ROOT = Path(__file__).parent.parent.parent
TINY = [
    "train", "--env", "CartPole-v1", "--device", "cpu", "--schedule.num-envs", "8", "--schedule.learning-starts", "64",
    "--schedule.hidden-size", "16", "--schedule.publish-interval", "2", "--schedule.states-per-update", "4",
    "--learner.batch-size", "16", "--learner.updates-per-sample", "2", "--learner.target-update-interval", "8",
    "--replay.capacity", "2000", "--report-interval", "10", "--eval-episodes", "3",
]  # fmt: skip


def metrics_of(run):
    """Metrics without what depends on the clock."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in runs.read(run).metrics]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    assert cli.main([*TINY, "--schedule.updates", "60", "--out", str(out)]) == 0
    return out


def test_train_shows_a_table_and_draws_the_learning_curve(trained, capsys):
    assert cli.main([*TINY, "--schedule.updates", "60", "--out", str(trained), "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "RBI on CartPole-v1" in shown
    assert "nothing left to do" in shown
    assert (trained / "figures" / "learning.png").stat().st_size > 1000
    assert (trained / "figures" / "learning.pdf").exists()


def start(arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen([sys.executable, "-m", "rbi", *arguments], stderr=subprocess.PIPE, env=environment)


LONGER = [*TINY, "--schedule.updates", "600", "--checkpoint-minutes", "0.005"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert cli.main([*LONGER, "--out", str(out)]) == 0
    return out


def stopped(out, how):
    """A run that a signal has stopped in the middle: its exit status and what it wrote to the error stream."""
    process = start([*LONGER, "--out", str(out)])
    while not (out / "metrics.jsonl").exists() or len(runs.read(out).metrics) < 12:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(how)
    _, err = process.communicate(timeout=120)
    assert runs.read(out).result is None
    return process.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.usefixtures("undrawn")
def test_a_run_stopped_by_a_signal_resumes_to_the_same_metrics(how, uninterrupted, tmp_path):
    status, err = stopped(tmp_path / "run", how)
    if how == signal.SIGKILL:
        with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
            file.write('{"updates": 99')  # torn by the kill
    else:
        assert status == cli.INTERRUPTED
        assert b"continue with --resume --out" in err
        assert err.count(b"rbi: ") == 1
        (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
        assert int(saved.name) >= 10 * 12
    assert cli.main([*LONGER, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert metrics_of(tmp_path / "run") == metrics_of(uninterrupted)
    scores, expected = (runs.read(run).result["evaluation"]["scores"] for run in (tmp_path / "run", uninterrupted))
    assert scores == expected
    assert not list((tmp_path / "run" / "policies").glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--env", "NoSuchGame-v0"), "--env NoSuchGame-v0: "),
        (("--env", "Pendulum-v1"), "only Discrete"),
        (("--envs", "CartPole-v1,Pendulum-v1"), "only Discrete"),
        (("--env", "CartPole-v1", "--actor.rule", "reroute(2,1)"), "rule 'reroute(2,1)'"),
        (("--env", "CartPole-v1", "--algo", "apex", "--actor.c-greedy", "0"), "--actor.c-greedy: has no effect"),
        (("--env", "CartPole-v1", "--preset", "slow"), "preset"),
        (("--env", "CartPole-v1", "--learner.batch-size", "0"), "batch_size = 0: must be at least 1"),
        (("--env", "CartPole-v1", "--resume"), "--resume: name the run with --out"),
        (
            ("--env", "CartPole-v1", "--resume", "--overwrite", "--out", "a"),
            "--resume: name the run with --out, without",
        ),
        (("--env", "CartPole-v1", "--resume", "--out", "nowhere"), "no such folder"),
        (("--env", "CartPole-v1", "--address", "auto"), "--address auto: is for --engine ray"),
        (("--env", ""), "--env: name an environment"),
    ],
)
def test_a_mistake_gives_one_line_before_any_work(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *arguments]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("making ")]
    assert len(err) == 1
    assert message in err[0]
    assert not list(tmp_path.iterdir())


def test_an_atari_game_that_does_not_exist_gets_a_suggestion(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ale_py")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--env", "ALE/Brekout-v5"]) == 2
    assert "no such Atari game; did you mean breakout" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_run_resumes_with_its_own_settings_whatever_the_preset_is_by_now(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "run")
    small = PRESETS["small"]
    changed = small | {"schedule": dataclasses.replace(small["schedule"], num_envs=10, states_per_update=3.0)}
    monkeypatch.setitem(PRESETS, "small", changed)
    command = ["train", "--resume", "--out", str(tmp_path / "run"), "--schedule.updates", "80", "--device", "cpu"]
    assert cli.main([*command, "--eval-episodes", "0"]) == 0
    assert runs.read(tmp_path / "run").finished()["last"]["updates"] == 80


@pytest.fixture
def edit_settings(trained, tmp_path):
    """Change the settings in config.json of a copy of the trained run."""
    shutil.copytree(trained, tmp_path / "run")

    def edit(change):
        config = json.loads((tmp_path / "run" / "config.json").read_text())
        change(config["settings"])
        (tmp_path / "run" / "config.json").write_text(json.dumps(config))
        return ["train", "--resume", "--out", str(tmp_path / "run"), "--device", "cpu", "--eval-episodes", "0"]

    return edit


def remove_new_settings(settings):
    del settings["actor"]["reward_scale"], settings["schedule"]["env_processes"], settings["noop_max"]


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_a_version_without_some_settings_resumes_as_it_was(edit_settings, tmp_path, capsys):
    """Preset `small`, which it was started with, measures the size of rewards by now."""
    command = edit_settings(remove_new_settings)
    assert cli.main([*command, "--schedule.updates", "80", "--actor.reward-scale", "10"]) == 2
    assert "without actor.reward_scale, that is, with 1.0, not 10.0; resume" in capsys.readouterr().err
    assert cli.main([*command, "--schedule.updates", "80"]) == 0
    err = capsys.readouterr().err
    assert err.count("continues with noop_max = 30, actor.reward_scale = 1.0") == 1
    assert "env_processes" not in err  # a run may change it
    settings = runs.read(tmp_path / "run").config["settings"]
    assert (settings["noop_max"], settings["actor"]["reward_scale"]) == (30, 1.0)
    assert settings["schedule"]["env_processes"] == 0
    assert cli.main([*command, "--schedule.updates", "100"]) == 0
    assert "it has" not in capsys.readouterr().err


def test_python_resumes_a_run_from_before_there_were_some_settings(edit_settings, tmp_path):
    edit_settings(remove_new_settings)
    run = rbi.train(out=tmp_path / "run", resume=True, updates=80, eval_episodes=0, progress=False, device="cpu")
    assert run.updates == 80
    assert runs.read(tmp_path / "run").config["settings"]["actor"]["reward_scale"] == 1


def test_a_run_with_a_setting_that_there_is_no_more_names_it(edit_settings, tmp_path, capsys):
    command = edit_settings(lambda settings: settings["actor"].update(epsilon_bass=0.3))
    message = "config.json: actor.epsilon_bass = 0.3 is not a setting of rbi"
    assert cli.main(command) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match=re.escape(message)):
        rbi.train(out=tmp_path / "run", resume=True, progress=False, device="cpu")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json"),
        ('{"command": "train", "seed": 0, "settings": {"schedule": {"num_envs": "many"}}}', "num_envs"),
        ('{"command": "bandit", "seed": 0, "settings": {}}', "is a run of 'bandit', not of 'train'"),
    ],
)
def test_a_folder_that_cannot_be_resumed_gives_one_line(trained, tmp_path, capsys, config, message):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(config)
    assert cli.main(["train", "--resume", "--out", str(tmp_path / "run")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("making ")]
    assert message in line


def test_a_damaged_checkpoint_is_named(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    more = [*TINY, "--schedule.updates", "80", "--out", str(tmp_path / "run"), "--resume"]
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({k: v for k, v in state.items() if k != "kind"}))
    assert cli.main(more) == 2
    assert "state.json: lacks 'kind'" in capsys.readouterr().err
    shutil.rmtree(path)
    assert cli.main(more) == 2
    assert "has no checkpoint to continue from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("game", "message"),
    [("Broken-v0", "failed with KeyError: 'a cable' (games.py:"), ("Nan-v0", "reward = nan: must be finite")],
)
@pytest.mark.filterwarnings("ignore:.*NaN value")  # Gymnasium's own, before ours
def test_an_environment_that_fails_is_named_in_one_line(game, message, tmp_path, capsys):
    env = f"tests.games:{game}"
    assert cli.main([*TINY, "--env", env, "--schedule.updates", "60", "--out", str(tmp_path / "run")]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"rbi: --env {env}: ")
    assert message in last


def test_presets_set_the_defaults_that_help_shows(capsys):
    small = str(PRESETS["small"]["schedule"].updates)
    for arguments, shown in ((("--preset", "paper"), "3125000"), (("--env", "CartPole-v1"), small)):
        with pytest.raises(SystemExit):
            cli.main(["train", *arguments, "--help"])
        assert shown in capsys.readouterr().out
    assert cli.parse(["train", "--preset", "paper"]).schedule.updates == 3_125_000
    assert cli.parse(["train", "--env=CartPole-v1"]).schedule.updates == PRESETS["small"]["schedule"].updates
    assert cli.parse(["train"]).schedule.states_per_update == PRESETS["fast"]["schedule"].states_per_update
    assert cli.parse(["train", "--envs", "paper12"]).schedule == PRESETS["fast"]["schedule"]
    assert len(cli.parse(["train", "--envs", "paper12"]).environments()) == 12


def test_defaults_depend_on_the_kind_of_environment_and_a_sweep_passes_on_only_what_was_changed():
    lake = cli.parse(["train", "--env", "FrozenLake-v1", "--learner.batch-size", "32"])
    assert lake.learner == TrainConfig.preset("FrozenLake-v1", batch_size=32).learner
    parts = preset_parts(EnvConfig("FrozenLake-v1"))
    assert changed_settings(parts["learner"], lake.learner, set()) == {"batch_size": 32}
    assert changed_settings(parts["actor"], lake.actor, set()) == {}
    assert changed_settings(parts["actor"], lake.actor, {"c_greedy"}) == {"c_greedy": lake.actor.c_greedy}


@pytest.mark.usefixtures("undrawn")
def test_a_resumed_sweep_keeps_the_settings_of_its_environments(tmp_path):
    out = tmp_path / "sweep"
    envs = ["CartPole-v1", "FrozenLake-v1(is_slippery=False, max_episode_steps=20)"]
    n_step = TrainConfig.preset("CartPole-v1").returns.n_step
    assert n_step != TrainConfig.preset("FrozenLake-v1").returns.n_step
    asked = ["--envs", ",".join(envs), "--max-frames", "1234", "--returns.n-step", str(n_step)]
    asked += ["--schedule.updates", "10", "--eval-episodes", "0"]
    assert cli.main([*TINY, *asked, "--out", str(out)]) == 0
    (run,) = out.glob("runs/*FrozenLake*")
    assert runs.read(run).config["settings"]["returns"]["n_step"] == n_step
    shutil.rmtree(run)
    assert cli.main(["train", "--resume", "--device", "cpu", "--eval-episodes", "0", "--out", str(out)]) == 0
    settings = runs.read(run).config["settings"]
    assert (settings["env"], settings["max_frames"], settings["returns"]["n_step"]) == (envs[1], 1234, n_step)


def test_settings_of_an_environment_may_have_commas():
    lake = cli.parse(["train", "--env", "FrozenLake-v1(is_slippery=False, max_episode_steps=50)"])
    assert lake.environments() == ["FrozenLake-v1(is_slippery=False, max_episode_steps=50)"]
    assert lake.schedule == TrainConfig.preset("FrozenLake-v1").schedule


@pytest.mark.slow
def test_a_sweep_makes_a_table_and_figures_and_resumes_with_its_own_settings(tmp_path, capsys):
    out = tmp_path / "sweep"
    options = ["--schedule.updates", "10", "--algo", "both", "--seeds", "2", "--eval-episodes", "2", "--out", str(out)]
    assert cli.main([*TINY, *options]) == 0
    assert len(runs.read(out).result["rows"]) == 4
    assert (out / "figures" / "learning-CartPole-v1.png").exists()
    assert (out / "runs" / "apex-CartPole-v1-seed1" / "figures" / "learning.png").exists()
    assert "CartPole" in capsys.readouterr().out
    shutil.rmtree(out / "runs" / "apex-CartPole-v1-seed1")
    assert cli.main(["train", "--resume", "--device", "cpu", "--eval-episodes", "2", "--out", str(out)]) == 0
    assert len(runs.read(out).result["rows"]) == 4


def test_the_table_of_a_sweep_names_environments_in_full_and_has_published_scores_of_games_only():
    from rbi.report import train as report

    row = {"algo": "rbi", "mean": 1.0, "updates": 10, "protocol_description": ""}
    lakes = [f"FrozenLake-v1(is_slippery={slippery})" for slippery in (True, False)]
    table = report.score_table({"rows": [row | {"env": env} for env in lakes]}, paper=False)
    assert [column.header for column in table.columns] == ["environment", "Ape-X, here", "RBI, here"]
    assert list(table.columns[0].cells) == lakes
    table = report.score_table({"rows": [row | {"env": env} for env in ("ALE/Pong-v5", *lakes)]}, paper=False)
    assert list(table.columns[0].cells) == ["Pong", *lakes]
    assert list(table.columns[2].cells) == ["14.6", "-", "-"]


def test_the_papers_table_has_its_scores_and_marks_games_that_were_not_run():
    from rbi.report import train as report

    table = report.score_table({"rows": []}, paper=True)
    assert table.row_count == 12
    assert list(table.columns[-1].cells) == ["not run"] * 12
    by_game = {row[0]: row[1:] for row in zip(*(column.cells for column in table.columns), strict=True)}
    assert [column.header for column in table.columns][3:6] == ["Rainbow", "Ape-X, paper", "RBI, paper"]
    assert by_game["Breakout"] == ("1.7", "30.5", "417.5", "515.2", "780.4", "not run", "not run")


def test_a_setting_may_need_another_one_that_the_preset_has(capsys):
    """Not of the paper's defaults, which options are read with first."""
    words = ["train", "CartPole-v1", "--learner.improve-from", "target"]
    assert cli.parse(words).learner.bootstrap_policy == "rule"
    assert cli.main([*words, "--preset", "paper", "--actor.improve-in", "both"]) == 2
    assert "improve_from = target: needs bootstrap_policy = rule, not stored" in capsys.readouterr().err
