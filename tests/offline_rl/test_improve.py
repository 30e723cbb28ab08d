"""`rbi.improve` from Python, and `rbi improve` from the command line."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import nn

import rbi
from rbi import cli, runs
from rbi.data.dataset import Dataset
from rbi.data.digests import episode_digests
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.formats import FormatSettings
from rbi.data.formats.reader import SpecOverrides
from rbi.data.formats.tables import TableConfig
from rbi.data.store import StoreWriter
from rbi.data.visits import PseudoCounts
from rbi.offline_rl.improve import ImproveConfig, Improver
from rbi.offline_rl.learner import train
from rbi.offline_rl.run_log import RunLog, fingerprint
from rbi.offline_rl.validation import BestCheckpoint, diagnostics, predict_steps
from rbi.report.collect import collect
from rbi.report.improve import closing
from rbi.report.panels import Lines
from tests.data.episodes import episode

QUICK = dict(updates=160, batch_size=128, hidden_size=16, learning_rate=0.005, gamma=1.0)
WORDS = [str(word) for name, value in QUICK.items() for word in (f"--{name.replace('_', '-')}", value)]
BETA = np.array([[0.7, 0.3], [0.4, 0.6]])
REWARDS = np.array([[0.0, 50.0], [100.0, 0.0]])
Q = REWARDS + np.array([[BETA[1] @ REWARDS[1]], [0.0]])
OBS = np.array([[1000.0, 0.0], [3000.0, 0.0]], np.float32)
"""Two states of large, unscaled numbers: the first leads to the second, and that to the end."""


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def two_states(episodes=400, seed=0):
    """A log of the two states, one row per step."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(episodes):
        for state in range(2):
            action = int(rng.random() > BETA[state, 0])
            obs = {"obs_0": OBS[state, 0], "obs_1": OBS[state, 1]}
            end = {"terminated": state, "truncated": 0}
            rows.append({"episode_id": number, "t": state, **obs, "action": action} | end)
            rows[-1]["reward"] = REWARDS[state, action]
    return rows


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return write(tmp_path_factory.mktemp("logs") / "logs.csv", two_states())


@pytest.fixture(scope="module")
def improved(logs):
    """A run of the command line."""
    assert cli.main(["improve", str(logs), *WORDS, "--out", str(logs.parent / "run")]) == 0
    return logs.parent / "run"


def test_the_policy_is_the_best_reroute_of_the_behaviour(logs):
    result = rbi.improve(logs, progress=False, **QUICK)
    assert result.policy.rule == rbi.Reroute(0.5, 1.5)
    pi, beta = (policy.predict_proba(OBS) for policy in (result.policy, result.behavior))
    np.testing.assert_allclose(beta, BETA, atol=0.05)
    np.testing.assert_allclose(pi, rbi.max_reroute(BETA, Q, 0.5, 1.5), atol=0.05)
    assert rbi.measures.is_reroute(pi, beta, 0.5, 1.5).all()
    assert result.out is None
    assert "improved by reroute(0.5,1.5)" in repr(result)


def test_the_library_and_the_command_line_give_the_same_result(logs, improved):
    lines = []
    result = rbi.improve(logs, progress=False, callback=lines.append, **QUICK)
    run = runs.read(improved)
    assert (result.numbers, result.metrics) == (run.result, run.metrics)
    assert lines == run.metrics
    saved = rbi.load_policy(improved)
    assert torch.equal(saved.networks.q.heads.weight, result.policy.networks.q.heads.weight)


def test_a_dataset_in_memory_gives_the_same_policy_as_its_file(logs):
    data = rbi.load_episodes(logs)
    in_memory, from_file = (rbi.improve(source, updates=20, progress=False) for source in (data, logs))
    np.testing.assert_array_equal(in_memory.policy.predict_proba(OBS), from_file.policy.predict_proba(OBS))


def test_the_result_has_diagnostics_and_changes_of_the_test_set(improved):
    run = runs.read(improved)
    assert [line["updates"] for line in run.metrics] == [*range(8, 161, 8)]
    found = run.result
    assert found["test"] == found["validation"] == {"episodes": 20, "steps": 40}
    assert found["separate_test_set"]
    assert found["diagnostics"]["q_explained_variance"] > 0
    overall, exact = found["changes"]["overall"], rbi.max_reroute(BETA, Q, 0.5, 1.5)
    assert overall["expected_gain"]["mean"] == pytest.approx(((exact - BETA) * Q).sum(1).mean(), rel=0.2)
    assert overall["at_c_max"] == pytest.approx(np.mean([0.3, 0.4]), abs=0.05)
    (increased, decreased) = found["changes"]["actions"]
    assert increased["change"] == pytest.approx(-decreased["change"])
    (feature,) = found["changes"]["features"]  # obs_1 is constant
    assert (feature["feature"], feature["name"]) == (0, "obs_0")
    for row in found["changes"]["largest"]:
        assert (row["source"], row["line"]) == ("logs.csv", 2 + 2 * row["episode"])
        state = (row["line"] + row["step"]) % 2  # a header, then two lines an episode
        assert state == row["step"]
    for name in ("actions", "reliability", "overfitting"):
        assert matplotlib.image.imread(improved / "figures" / f"{name}.png").std() > 0.01


def test_the_best_checkpoint_of_each_network_is_kept(improved):
    run = runs.read(improved)
    best = run.result["best"]
    assert best["q"]["loss"] == min(line["q_rmse"] for line in run.metrics)
    assert best["beta"]["loss"] == min(-line["log_likelihood"] for line in run.metrics)  # too few steps to calibrate
    assert not run.result["calibrated"]
    assert run.result["temperature"] == 1
    for name, key in (("q", "q_rmse"), ("beta", "log_likelihood")):
        (line,) = (line for line in run.metrics if line["updates"] == best[name]["updates"])
        assert abs(line[key]) == best[name]["loss"]


def improver_of(data, **changes):
    data = data if isinstance(data, Dataset) else rbi.load_episodes(data)
    config = ImproveConfig(**(dict(updates=5, batch_size=32, hidden_size=8) | changes))
    log = RunLog(None, None, progress=False)
    return Improver(data, config, rbi.Reroute(0.5, 1.5), 0, torch.device("cpu"), None, "logs", log)


def test_the_learning_rate_decays_to_a_twentieth(logs):
    learner = improver_of(logs, updates=10, learning_rate=0.01).learner
    adam = learner.behavior_q.trained.adam
    rates = [float(adam.current_learning_rate()) for _ in train(learner, 10)]
    assert rates[4] == pytest.approx(0.01 * (1 - 0.95 * 0.5))
    assert rates[9] == pytest.approx(0.01 / 20)


def test_networks_that_got_worse_are_not_kept(logs):
    learner = improver_of(logs, updates=40, learning_rate=0.01, holdout_fraction=0.5).learner
    lines = [learner.validate() for _ in train(learner, 40)]
    best = {name: dict(learner.best[name]) for name in ("q", "beta")}
    assert best["q"]["loss"] == min(line["q_rmse"] for line in lines)
    assert best["beta"]["loss"] == min(-line["log_likelihood_calibrated"] for line in lines)
    learner.behavior_q.trained.vector.mul_(-3)
    worse = learner.validate()
    assert worse["q_rmse"] > best["q"]["loss"]
    assert worse["log_likelihood_calibrated"] < -best["beta"]["loss"]
    found = diagnostics(predict_steps(learner.networks(), learner.validation, learner.steps), learner.frequencies)
    assert (found["q_rmse"], -found["log_likelihood_calibrated"]) == (best["q"]["loss"], best["beta"]["loss"])
    assert learner.best == best
    assert learner.temperature(learner.networks()) == found["temperature"]


@pytest.mark.parametrize("kind", ["store", "parquet"])
def test_training_is_the_same_from_every_format(kind, logs, tmp_path):
    path = tmp_path / kind
    assert cli.main(["data", "export", str(logs), "--to", kind, "--out", str(path)]) == 0
    sources = (path / "episodes.parquet" if kind == "parquet" else path, logs)
    learners = [improver_of(source).learner for source in sources]
    for learner in learners:
        assert [*train(learner, 5)][-1] == 5
    assert torch.equal(*(learner.behavior_q.trained.vector for learner in learners))
    assert learners[0].validate() == learners[1].validate()


def test_action_masks_limit_beta_and_pi(tmp_path):
    """Three actions, of which 0 and 1 are legal in the first state, 1 and 2 in the second."""
    rng = np.random.default_rng(0)
    legal, beta = np.array([[1, 1, 0], [0, 1, 1]], bool), np.array([[0.6, 0.4, 0.0], [0.0, 0.5, 0.5]])
    rows = []
    for _ in range(900):
        state = int(rng.integers(2))
        action = int(rng.choice(3, p=beta[state]))
        masks = {f"action_mask_{a}": int(legal[state, a]) for a in range(3)}
        rows.append({"obs_0": state, "action": action, "reward": [0.0, 1.0, 3.0][action], **masks})
    settings = FormatSettings(table=TableConfig(one_step=True))
    data = rbi.load_episodes(write(tmp_path / "logs.csv", rows), settings=settings)
    result = rbi.improve(data, holdout_fraction=0.4, progress=False, **QUICK)
    pi = result.policy.predict_proba(np.array([[0.0], [1.0]], np.float32), legal)
    assert (pi[~legal] == 0).all()
    with pytest.raises(ValueError, match="legal is missing"):  # without masks it is not the policy of the decision
        result.policy.predict_proba(np.array([[0.0], [1.0]], np.float32))
    np.testing.assert_allclose(pi, rbi.max_reroute(beta, np.array([[0.0, 1.0, 3.0]] * 2), 0.5, 1.5), atol=0.06)
    assert result.numbers["calibrated"]
    assert result.diagnostics["log_likelihood_calibrated"] == pytest.approx(np.mean([-0.673, -0.693]), abs=0.05)
    for row in result.changes["actions"]:
        assert row["beta"] == pytest.approx(row["taken"], abs=0.1)
    for row in result.changes["largest"]:
        one = data[row["episode"]]
        acted = result.policy.predict_proba(one.observations[:1], one.action_masks[:1])[0]
        for change in row["actions"]:
            assert change["pi"] == pytest.approx(acted[change["action"]], abs=1e-5)
    bold = rbi.improve(data, "greedy", holdout_fraction=0.4, progress=False, **QUICK | {"updates": 20})
    taken = [
        data[row["episode"]].action_masks[0, a["action"]] for row in bold.changes["largest"] for a in row["actions"]
    ]
    assert all(taken)  # no probability goes to or comes from an illegal action


@pytest.mark.usefixtures("undrawn")
def test_a_bandit_log_is_improved_and_text_features_have_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    chances = {"old": [0.1, 0.7], "young": [0.6, 0.2]}
    rows = []
    for _ in range(1500):
        who, item = str(rng.choice(["old", "young"])), int(rng.integers(2))
        click = int(rng.random() < chances[who][item])
        rows.append({"item_id": item, "click": click, "propensity_score": 0.5, "user_feature_0": who, "position": 1})
    path, out = write(tmp_path / "clicks.csv", rows), tmp_path / "run"
    assert cli.main(["improve", str(path), *WORDS, "--rule", "tv(0.2)", "--out", str(out)]) == 0
    found = runs.read(out).result
    assert {row["name"] for row in found["changes"]["features"]} == {"user_feature_0 = old", "user_feature_0 = young"}
    low, high = found["changes"]["overall"]["observed_gain"]["interval"]
    assert low < 0.2 * 0.5 < high  # of each state a fifth goes from the worse action to the better
    pi = rbi.load_policy(out).predict_proba(np.array([[1, 0, 1], [0, 1, 1]], np.float32))
    np.testing.assert_allclose(pi, [[0.3, 0.7], [0.7, 0.3]], atol=0.06)
    printed = capsys.readouterr().out
    assert "an estimate, not a certificate" in printed
    assert "tv(0.2) limits the damage of a step to 20.0%" in printed


@pytest.mark.parametrize("seed", range(5))
def test_short_episodes_that_are_equal_by_chance_do_not_prevent_a_decision(seed):
    rng = np.random.default_rng(seed)
    states, actions, rewards = (rng.integers(0, values, 750) for values in (3, 2, 2))
    ends = np.tile([False, False, True], 250)
    data = Dataset.from_arrays(np.eye(3)[states], actions, rewards, ends, action_probs=np.full(750, 0.5))
    assert len(np.unique(episode_digests(data)[:, 0])) < 250
    found = rbi.improve(data, updates=2, batch_size=8, progress=False, seed=seed)
    assert found.decision is not None


def test_actions_that_were_never_taken_are_said(capsys):
    rng = np.random.default_rng(0)
    steps, actions, ends = rng.normal(size=(60, 2)), rng.integers(0, 2, 60), np.ones(60)
    for first in (0, 1):
        data = Dataset.from_arrays(steps, first + actions, rng.random(60), ends)
        rbi.improve(data, updates=2, batch_size=8)
        said = "data: 1 of 3 actions were never taken, the first is 0; the policy may choose them."
        assert (said in capsys.readouterr().err) == bool(first)


def test_actions_are_shown_by_the_names_of_the_log_and_of_many_those_that_change_most(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [{"obs_0": number % 2, "action": f"offer{rng.integers(24)}", "reward": 0} for number in range(400)]
    path = write(tmp_path / "logs.csv", [row | {"reward": int(row["action"] == "offer7")} for row in rows])
    assert cli.main(["improve", str(path), "--table.one-step", *WORDS, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "offer7" in shown
    assert "that change most of 24" in shown


def test_a_custom_trunk_replaces_the_network_body(logs, tmp_path):
    def trunk(obs_spec):
        return nn.Sequential(nn.Linear(obs_spec.shape[0], 12), nn.Tanh())

    result = rbi.improve(logs, updates=20, trunk=trunk, out=tmp_path / "run", progress=False)
    assert result.policy.networks.custom_trunk
    loaded = rbi.load_policy(tmp_path / "run", trunk=trunk)
    np.testing.assert_array_equal(loaded.predict_proba(OBS), result.policy.predict_proba(OBS))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A store of images, for which batches and dropout are random, and a run of it."""
    path, rng = tmp_path_factory.mktemp("images") / "store", np.random.default_rng(0)
    with StoreWriter.create(path, DatasetSpec((10, 10), 4, 4)) as writer:
        for _ in range(12):
            writer.append(episode(rng, 10, frame=(10, 10)))
    settings = dict(updates=60, batch_size=8, hidden_size=8, holdout_fraction=0.3, progress=False)
    whole = path.parent / "whole"
    rbi.improve(path, out=whole, **settings)
    return path, settings, whole


def assert_same_run(one, other):
    """Two runs have the same metrics, numbers and weights, to the last bit."""
    for name in ("metrics.jsonl", "result.json", "policies/best/weights.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("how", ["kill", "signal"])
def test_a_stopped_run_resumes_to_the_same_end(how, images, tmp_path, monkeypatch):
    path, settings, whole = images
    out, update = tmp_path / "run", BestCheckpoint.update

    def update_until_stopped(self):
        update(self)
        if self.updates == 31:  # between two validations
            if how == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(BestCheckpoint, "update", update_until_stopped)
        with pytest.raises(KeyboardInterrupt) as stop:
            rbi.improve(path, out=out, **settings)
    assert how == "kill" or "stopped; continue with the same options and --resume --out" in str(stop.value)
    assert runs.read(out).result is None
    (saved,) = (out / "checkpoints").iterdir()
    assert json.loads((saved / "state.json").read_text())["counters"]["updates"] == {
        "improve": 30 if how == "kill" else 32
    }
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 33}\n{"upd')  # after the checkpoint, and a torn line
    resumed = rbi.improve(path, out=out, resume=True, **settings)
    assert_same_run(out, whole)
    assert resumed.metrics == runs.read(whole).metrics


def test_resuming_a_complete_run_returns_its_result(images):
    path, settings, whole = images
    before = (whole / "result.json").read_bytes()
    result = rbi.improve(path, out=whole, resume=True, **settings)
    assert result.numbers == json.loads(before)
    assert (whole / "result.json").read_bytes() == before
    states = np.zeros((2, 4, 10, 10), np.uint8)
    np.testing.assert_allclose(result.policy.predict_proba(states), rbi.load_policy(whole).predict_proba(states))


@pytest.mark.usefixtures("undrawn")
def test_a_run_resumes_only_with_its_data_test_set_and_settings(logs, improved, tmp_path, capsys, monkeypatch):
    out = Path(shutil.copytree(improved, tmp_path / "run"))
    (out / "result.json").unlink()
    arguments = ["improve", str(logs), *WORDS, "--out", str(out), "--resume"]
    assert cli.main([*arguments, "--seed", "1"]) == 2
    assert "was started with seed = 0, not 1" in capsys.readouterr().err
    written = logs.stat().st_mtime_ns
    os.utime(logs, ns=(written, written + 1))
    assert cli.main(arguments) == 2
    assert "has changed since the run" in capsys.readouterr().err
    os.utime(logs, ns=(written, written))
    with monkeypatch.context() as patch:
        patch.setattr(Improver, "rng", lambda *_: np.random.default_rng(1))
        assert cli.main(arguments) == 2
    assert "other episodes are held out than when the run" in capsys.readouterr().err
    assert cli.main(arguments) == 0
    assert_same_run(out, improved)


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_a_version_without_a_setting_resumes_with_its_default(logs, improved, tmp_path, capsys):
    out = Path(shutil.copytree(improved, tmp_path / "run"))
    (out / "result.json").unlink()
    config = json.loads((out / "config.json").read_text())
    del config["settings"]["max_missing_return"]
    (out / "config.json").write_text(json.dumps(config))
    arguments = ["improve", str(logs), *WORDS, "--out", str(out), "--resume"]
    assert cli.main([*arguments, "--max-missing-return", "0.1"]) == 2
    assert "without max_missing_return, that is, with 0.05, not 0.1;" in capsys.readouterr().err
    assert cli.main(arguments) == 0
    assert "continues with max_missing_return = 0.05\n" in capsys.readouterr().err
    assert runs.read(out).config["settings"]["max_missing_return"] == 0.05


def test_a_report_about_the_data_does_not_change_it(tmp_path):
    store = tmp_path / "store"
    with StoreWriter.create(store, DatasetSpec((3,), 4)) as writer:
        writer.append(episode(np.random.default_rng(0), 5))
    before = fingerprint(store)
    for name in ("report.html", "figures/data.pdf", "figures/data.png", ".lock"):
        (store / name).parent.mkdir(exist_ok=True)
        (store / name).write_text("")
    assert fingerprint(store) == before
    with StoreWriter.append_to(store) as writer:
        writer.append(episode(np.random.default_rng(1), 5))
    assert fingerprint(store) != before


@pytest.mark.usefixtures("undrawn")
def test_a_table_is_resumed_with_the_columns_of_its_start(tmp_path, capsys):
    """Without --table options other columns would be read: those with the usual names."""
    rows = [{**row, "other": 1 - row["action"]} for row in two_states(40)]
    path, out = write(tmp_path / "logs.csv", rows), tmp_path / "run"
    arguments = ["improve", str(path), "--updates", "20", "--out", str(out)]
    assert cli.main([*arguments, "--table.action", "other"]) == 0
    (out / "result.json").unlink()
    assert cli.main([*arguments, "--resume"]) == 2
    assert "was started with format_settings.table.action = other, not None" in capsys.readouterr().err
    assert cli.main([*arguments, "--table.action", "other", "--max-lost", "0.5", "--resume"]) == 0


ROWS = two_states(20)
ONE = [ROWS[0] | {"action": 0}, ROWS[1] | {"action": 1}]
HALF = [row | {"action": 0.5} for row in ROWS]
TRUNCATED = [row | {"terminated": 0, "truncated": row["t"]} for row in ROWS]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (None, {}, "no such file or folder"),
        ([], {"settings": FormatSettings(SpecOverrides(num_actions=2))}, "no episode is there"),
        (ONE, {}, "1 episode has known returns"),
        ([row | {"action": 1} for row in ROWS], {}, "only action 1 was ever taken"),
        ([row | {"reward": 0} for row in ROWS], {}, "all returns are 0"),
        ([row | {"reward": 3e38} for row in ROWS], {}, "rewards so large"),
        (HALF, {"settings": FormatSettings(SpecOverrides(num_actions=2))}, r"could be used; the first: .*line 2"),
        (TRUNCATED, {}, "truncated too early .* --gamma, .* --max-missing-return 1"),
        (ROWS, {"rule": "better"}, "rule 'better'"),
        (ROWS, {"holdout_fraction": 1.0}, "holdout_fraction = 1.0"),
        (ROWS, {"return_range": (0, 0.5)}, "logs.csv, line .*: return .* is outside the stated range 0 to 0.5"),
        (ROWS, {"return_range": (1, 0)}, r"return_range = \(1, 0\): must be finite, and the first number smaller"),
        (ROWS, {"resume": True}, "--resume: name the stopped run"),
    ],
)
def test_unusable_input_is_refused_in_one_line_before_any_work(rows, settings, message, tmp_path):
    path = tmp_path / "logs.csv"
    if rows is not None:
        write(path, rows or ROWS[:1])
    if rows == []:
        path.write_text(path.read_text().splitlines()[0] + "\n")
    out = {} if settings.get("resume") else {"out": tmp_path / "run"}
    with pytest.raises(ValueError, match=message) as error:
        rbi.improve(path, progress=False, **out, **settings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_command_line_refuses_in_one_line(tmp_path, capsys):
    path = write(tmp_path / "logs.csv", [row | {"reward": 0} for row in ROWS])
    for arguments, message in (((), "all returns are 0"), (("--rule", "better"), "rule 'better' is not known")):
        assert cli.main(["improve", str(path), *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_beta_uses_steps_with_incomplete_returns_and_q_does_not(tmp_path):
    """Half of the episodes are truncated at once, all of them after action 1."""
    rows = two_states(200)
    for row in rows[: len(rows) // 2]:
        row |= {"action": 1, "terminated": 0, "truncated": row["t"]}
    improver = improver_of(write(tmp_path / "logs.csv", rows))
    assert not set(improver.holdout.validation) & set(improver.holdout.test)
    sampler = improver.learner.behavior_q.sampler
    truncated = (improver.train_episodes < 100).sum()
    assert 60 < truncated < 100
    assert sampler.excluded_fraction == pytest.approx(2 * truncated / len(sampler.usable))
    result = rbi.improve(tmp_path / "logs.csv", progress=False, **QUICK | {"updates": 5})
    assert result.numbers["excluded"] == sampler.excluded_fraction
    assert f"excluded from Q   {sampler.excluded_fraction:.1%} of the training steps" in result.summary()


def test_the_share_of_test_states_that_are_outside_the_training_data_in_any_feature_is_said(tmp_path):
    rows = two_states(40)
    outside = improver_of(write(tmp_path / "logs.csv", rows)).holdout.test[:1]
    changed = [row | {"obs_0": 1e6} if row["episode_id"] in outside and row["t"] else row for row in rows]
    result = rbi.improve(write(tmp_path / "logs.csv", changed), progress=False, **QUICK | {"updates": 5})
    assert result.diagnostics["outside_range"] == 1 / result.numbers["test"]["steps"]


def test_a_log_that_was_written_twice_decides_nothing():
    """Half of the copies of test episodes are for training."""
    data = logged_bandit("taken")
    result = rbi.improve(data.select(np.arange(len(data)).repeat(2)), progress=False, **QUICK | {"updates": 5})
    assert result.decision is None
    assert "3,000 episodes (of 3,000) that are there several times" in result.numbers["decision"]["refused"]


def survivals(episodes, seed=0, limit=4):
    """Action 0 survives until the time limit in 90% of episodes, else it fails at once; action 1 fails at step 3."""
    rng = np.random.default_rng(seed)
    risky, lucky = rng.random(episodes) < 0.5, rng.random(episodes) < 0.9
    steps = np.where(risky, 3, np.where(lucky, limit, 1))
    first = steps.cumsum() - steps
    actions, ends = rng.integers(0, 2, steps.sum()), np.zeros(steps.sum(), bool)
    actions[first], ends[first + steps - 1] = risky, True
    truncated = ends & np.repeat(steps == limit, steps)
    t = np.arange(len(ends)) - np.repeat(first, steps)
    probs = np.full(len(ends), 0.5)
    return Dataset.from_arrays(
        t[:, None], actions, np.ones(len(ends)), ends & ~truncated, truncated, action_probs=probs
    )


def test_episodes_that_reach_a_time_limit_are_part_of_the_test_set():
    """Q does not know their returns and prefers action 1: without them the decision would be to deploy it."""
    data = survivals(1500)
    improver = improver_of(data)
    assert improver.holdout.representative
    reached = data.records["steps"] == 4
    for part in (improver.train_episodes, improver.holdout.validation, improver.holdout.test):
        assert reached[part].mean() == pytest.approx(0.45, abs=0.07)
    result = rbi.improve(data, return_range=(0, 4), progress=False, **QUICK | {"gamma": 0.99})
    assert result.policy.predict_proba([[0.0]])[0, 1] > 0.6  # a loss: 3 steps in place of 3.7
    assert not result.decision.deploy
    assert result.decision.baseline == pytest.approx(0.5 * 3 + 0.5 * 3.7, abs=0.15)
    test = improver.holdout.test
    assert result.decision.episodes == len(test)
    assert result.numbers["test"]["episodes"] == (~reached[test]).sum()  # those on which Q is tested


def test_a_test_set_without_the_episodes_whose_returns_are_not_known_decides_nothing():
    data = survivals(400)
    few = data.select(np.concatenate([np.flatnonzero(data.records["steps"] == 4), [0, 1, 2, 3, 4, 5]]))
    known = np.flatnonzero(few.records["steps"] < 4)
    improver = improver_of(few)
    assert not improver.holdout.representative
    assert set(improver.holdout.validation) | set(improver.holdout.test) <= set(known)
    result = rbi.improve(few, progress=False, **QUICK | {"updates": 5, "gamma": 0.99})
    assert result.decision is None
    assert "too few episodes have known returns" in result.numbers["decision"]["refused"]


def test_a_log_with_rejected_rows_decides_nothing(tmp_path):
    """Purchases whose outcome is missing are no random part of the log."""
    rows = [row | {"reward": "" if n < 5 else row["reward"]} for n, row in enumerate(two_states(100))]
    result = rbi.improve(write(tmp_path / "logs.csv", rows), progress=False, **QUICK | {"updates": 5})
    assert result.numbers["rejected"] > 0
    assert result.decision is None
    assert "3 rejected episodes may differ from the others" in result.numbers["decision"]["refused"]


@pytest.mark.usefixtures("undrawn")
def test_no_player_is_in_two_parts_and_the_decision_is_about_players_if_they_are_the_unit(tmp_path):
    """The test set has none of the players that trained or selected the policy."""
    rng = np.random.default_rng(0)
    rows = [
        {"obs_0": rng.random(), "action": (a := int(rng.integers(2))), "action_prob": 0.5, "player": f"p{row % 60}"}
        | {"reward": int(rng.random() < 0.3 + 0.4 * a)}
        for row in range(900)
    ]
    path = write(tmp_path / "log.csv", rows)
    words = ["--table.one-step", "--table.observations", "obs_0", "--return-range", "0", "1", "--unit", "player"]
    assert cli.main(["improve", str(path), *WORDS, *words, "--out", str(tmp_path / "run")]) == 0
    settings = FormatSettings(table=TableConfig(one_step=True, observations=("obs_0",)))
    found, data = runs.read(tmp_path / "run").result, rbi.load_episodes(path, settings=settings)
    assert found["decision"]["unit"] == "player"
    assert found["decision"]["evidence"]["players"] == 12  # a fifth; the other fifth is the validation set
    seen = np.isin(episode_digests(data)[:, 1], rbi.load_policy(tmp_path / "run").training_digests[:, 1])
    players = np.array(data.players)
    assert not set(players[seen]) & set(players[~seen])
    assert len(set(players[seen])) == 48


def test_the_only_held_out_episode_decides_nothing(tmp_path):
    path = write(tmp_path / "logs.csv", two_states(4))
    result = rbi.improve(path, progress=False, **QUICK | {"updates": 5})
    assert not result.numbers["separate_test_set"]
    assert result.decision is None
    assert result.numbers["decision"] == {"refused": "the only held-out episode served for validation"}


def test_a_folder_in_use_is_not_overwritten(logs, improved, capsys):
    before = (improved / "result.json").read_bytes()
    assert cli.main(["improve", str(logs), *WORDS, "--out", str(improved)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert cli.main(["improve", str(logs), *WORDS, "--out", str(logs.parent)]) == 2
    assert "overlaps with the data" in capsys.readouterr().err
    assert (improved / "result.json").read_bytes() == before


def test_episodes_made_in_python_can_be_improved():
    rng = np.random.default_rng(0)
    end = np.array([True])
    episodes = []
    for _ in range(300):
        action = int(rng.random() < 0.3)
        obs = rng.normal(size=(1, 2)).astype(np.float32)
        episodes.append(Episode(obs, np.array([action]), np.array([float(action)]), end, ~end))
    data = Dataset.from_episodes(episodes, DatasetSpec((2,), 2))
    result = rbi.improve(data, "greedy", progress=False, updates=100, batch_size=32, hidden_size=8)
    assert result.policy.mode(np.zeros((1, 2), np.float32)) == 1
    assert result.estimates["observed"]["mean"] > 0


def logged_bandit(kind, rows=1500, seed=0):
    """A bandit of two states with binary rewards; `kind` of logged probabilities: "taken", "all" or None."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, rows)
    actions = (rng.random(rows) > BETA[x, 0]).astype(int)
    rewards = rng.random(rows) < np.array([[0.2, 0.6], [0.7, 0.3]])[x, actions]
    probs = {"taken": {"action_probs": BETA[x, actions]}, "all": {"behavior_probs": BETA[x]}, None: {}}[kind]
    obs = np.stack([x, rng.random(rows)], 1)
    return Dataset.from_arrays(obs, actions, rewards, np.ones(rows, bool), **probs)


def test_logged_probabilities_of_all_actions_are_beta_itself(tmp_path):
    data = logged_bandit("all")
    result = rbi.improve(data, return_range=(0, 1), out=tmp_path / "run", progress=False, **QUICK)
    assert result.decision.deploy
    assert result.decision.status == "proved"
    assert result.decision.chosen.weights["max_ratio"] <= 1.5 + 1e-5
    policy = rbi.load_policy(tmp_path / "run")
    assert policy.networks.pi is None  # nothing is cloned
    assert "clone" not in result.diagnostics
    assert "logged, not cloned" in result.summary()
    obs, beta = data.arrays["observations"][:50], data.arrays["behavior_probs"][:50]
    assert rbi.measures.is_reroute(policy.predict_proba(obs, beta=beta), beta, 0.5, 1.5).all()
    assert result.numbers["test"]["episodes"] == 450
    (shown,) = collect([tmp_path / "run"]).runs
    assert shown.warnings == []
    assert [panel.title for panel in shown.panels if isinstance(panel, Lines)] == ["Fit of Q", "Reliability of Q"]
    with pytest.raises(ValueError, match=r"is one of 1,050 episodes \(of 1,500\) that trained or selected the policy"):
        rbi.certify(policy, data)
    assert rbi.certify(policy, logged_bandit("all", 3000, seed=1), return_range=(0, 1)).deploy


def test_logged_probabilities_of_taken_actions_are_the_weights_and_check_the_clone():
    result = rbi.improve(logged_bandit("taken"), progress=False, **QUICK)
    assert result.decision.evidence["known"] == "taken"
    assert result.diagnostics["clone"]["mean_absolute_error"] < 0.1
    assert result.decision.deploy
    assert result.decision.status == "asymptotic"  # no stated range
    for decision in (result.numbers["decision"], {"refused": "too few"}):
        run = runs.Run(Path(), {}, [], result.numbers | {"decision": decision})
        assert sum("is off by" in line for line in closing(run)) == 1


def test_without_logged_probabilities_the_decision_is_at_most_a_live_test():
    result = rbi.improve(logged_bandit(None), holdout_fraction=0.4, progress=False, **QUICK)
    assert result.decision.verdict == "test live"
    assert "decision" in result.summary()


def test_a_deterministic_log_holds_no_evidence():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 2))
    log = Dataset.from_arrays(x, x[:, 0] > 0, rng.random(1500) + (x[:, 0] > 0), np.ones(1500, bool))
    result = rbi.improve(log, progress=False, **QUICK | {"updates": 300})
    assert result.decision.verdict == "keep"
    assert "no exploration" in result.decision.reasons[0]


def discrete_bandit(rows=1500):
    """The bandit without its second feature: two different states."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, rows)
    actions = (rng.random(rows) > BETA[x, 0]).astype(int)
    rewards = rng.random(rows) < np.array([[0.2, 0.6], [0.7, 0.3]])[x, actions]
    return Dataset.from_arrays(x[:, None], actions, rewards, np.ones(rows, bool), action_probs=BETA[x, actions])


def test_visits_of_few_different_states_are_counted_for_the_count_aware_rule(tmp_path):
    data = discrete_bandit()
    result = rbi.improve(data, "count_aware(0.1)", out=tmp_path / "run", progress=False, **QUICK)
    policy = rbi.load_policy(tmp_path / "run")
    visits = policy.visits.of(np.array([[0.0], [1.0], [2.0]], np.float32))
    assert visits[:2].sum() == 900  # the training episodes
    assert visits[2].tolist() == [0, 0]
    assert policy.visits.sigma == pytest.approx(0.45, abs=0.05)  # of rewards that are 1 with probability 0.2 to 0.7
    assert policy.predict_proba([[0.0], [1.0]]).argmax(1).tolist() == [1, 0]
    assert policy.predict_proba([[2.0]]) == pytest.approx(result.behavior.predict_proba([[2.0]]), abs=1e-6)
    assert "count_aware(0.1)" in [candidate.rule for candidate in result.decision.candidates]


def test_where_states_are_all_different_the_count_aware_rule_takes_pseudo_counts(tmp_path):
    data = logged_bandit("taken")
    result = rbi.improve(data, "count_aware(0.1)", out=tmp_path / "run", progress=False, **QUICK)
    policy = rbi.load_policy(tmp_path / "run")
    assert isinstance(policy.visits, PseudoCounts)
    obs = data.arrays["observations"][:50]
    counts = policy.visit_counts(policy.obs_tensor(obs)).numpy()
    assert counts == pytest.approx(result.policy.visit_counts(policy.obs_tensor(obs)).numpy(), rel=1e-4)
    rare = BETA[obs[:, 0].astype(int)].argmin(1)
    fewer = counts[np.arange(50), rare] < counts[np.arange(50), 1 - rare]
    assert fewer.mean() > 0.9
    assert (policy.predict_proba(obs) - result.behavior.predict_proba(obs)).max() > 0.1
    assert "count_aware(0.1)" in [candidate.rule for candidate in result.decision.candidates]


def test_with_too_many_actions_for_pseudo_counts_there_are_none(monkeypatch):
    monkeypatch.setattr("rbi.offline_rl.improve.MAX_MOMENTS", 100)
    data = logged_bandit("taken")
    with pytest.raises(ValueError, match=r"rule count_aware\(0.1\): 2 actions are too many"):
        rbi.improve(data, "count_aware(0.1)", progress=False, **QUICK)
    result = rbi.improve(data, progress=False, **QUICK)
    assert result.policy.visits is None
    assert "count_aware(0.1)" not in [candidate.rule for candidate in result.decision.candidates]


def test_players_that_the_log_does_not_name_are_refused_in_one_line(tmp_path, capsys):
    path = write(tmp_path / "log.csv", [{"obs_0": row / 9, "action": row % 2, "reward": row} for row in range(9)])
    words = ["--table.one-step", "--table.observations", "obs_0", "--unit", "player", "--out", str(tmp_path / "run")]
    assert cli.main(["improve", str(path), *WORDS, *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("rbi: log.csv, line 2: names no player")
    assert not (tmp_path / "run").exists()
