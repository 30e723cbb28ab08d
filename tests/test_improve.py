"""`rbi improve` as a user meets it: logs in, one policy out."""

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

import rbi
from rbi import cli, runs
from rbi.cli.improve import Improve
from rbi.data.episode import DatasetSpec
from rbi.data.formats import FormatSettings
from rbi.data.formats.seam import SpecOverrides
from rbi.data.formats.table_settings import TableConfig
from rbi.data.store import StoreWriter
from rbi.offline_rl.behavior_q import learn
from rbi.offline_rl.validation import BestMoments, answers_about, diagnosis
from tests.data.episodes import episode

QUICK = ["--updates", "160", "--batch", "128", "--latent", "16", "--learning-rate", "0.005", "--gamma", "1"]
BETA = np.array([[0.7, 0.3], [0.4, 0.6]])
REWARDS = np.array([[0.0, 50.0], [100.0, 0.0]])
Q = REWARDS + np.array([[BETA[1] @ REWARDS[1]], [0.0]])
LOOKS = np.array([[1000.0, 0.0], [3000.0, 0.0]], np.float32)
"""Two states of numbers that no network likes: the first leads to the second, and that to the end."""


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def two_states(episodes=400, seed=0):
    """A log of the two states, a row a step."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(episodes):
        for state in range(2):
            action = int(rng.random() > BETA[state, 0])
            seen = {"obs_0": LOOKS[state, 0], "obs_1": LOOKS[state, 1]}
            end = {"terminated": state, "truncated": 0}
            rows.append({"episode_id": number, "t": state, **seen, "action": action} | end)
            rows[-1]["reward"] = REWARDS[state, action]
    return rows


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return write(tmp_path_factory.mktemp("logs") / "logs.csv", two_states())


@pytest.fixture(scope="module")
def improved(logs):
    assert cli.main(["improve", str(logs), *QUICK, "--out", str(logs.parent / "run")]) == 0
    return logs.parent / "run"


def test_the_policy_is_the_best_reroute_of_who_acted(improved):
    policy = rbi.load_policy(improved)
    assert str(policy.rule) == "reroute(0.5,1.5)"
    pi = policy.predict_proba(LOOKS)
    np.testing.assert_allclose(pi, rbi.max_reroute(BETA, Q, 0.5, 1.5), atol=0.05)
    beta, q = (part.numpy() for part in policy.beta_and_q(policy.obs_tensor(LOOKS)))
    np.testing.assert_allclose(beta, BETA, atol=0.05)
    np.testing.assert_allclose(q, Q, atol=10)
    assert rbi.measures.is_reroute(pi, beta, 0.5, 1.5).all()


def test_the_run_tells_how_well_it_learned_and_what_changed(improved):
    run = runs.read(improved)
    assert [line["updates"] for line in run.metrics] == [*range(8, 161, 8)]
    found = run.result
    assert found["held_out"] == found["chosen_by"] == {"episodes": 20, "steps": 40}
    assert found["apart"]
    assert found["diagnosis"]["q_explained"] > 0
    overall, exact = found["changes"]["overall"], rbi.max_reroute(BETA, Q, 0.5, 1.5)
    assert overall["step"]["mean"] == pytest.approx(((exact - BETA) * Q).sum(1).mean(), rel=0.2)
    assert overall["at_c_max"] == pytest.approx(np.mean([0.3, 0.4]), abs=0.05)
    (gained, lost) = found["changes"]["actions"]
    assert gained["change"] == pytest.approx(-lost["change"])
    assert found["changes"]["features"][0]["name"] == "obs_0"
    assert [row["feature"] for row in found["changes"]["features"]] == [0]  # obs_1 never changes
    for row in found["changes"]["largest"]:
        assert row["source"] == "logs.csv"
        state = (row["line"] + row["step"]) % 2  # a header, then two lines an episode
        assert state == row["step"]
    for name in ("actions", "reliability", "overfitting"):
        assert matplotlib.image.imread(improved / "figures" / f"{name}.png").std() > 0.01


def test_the_kept_networks_are_those_of_the_best_moments(improved):
    run = runs.read(improved)
    best = run.result["best"]
    assert best["q"]["loss"] == min(line["q_error"] for line in run.metrics)
    assert best["beta"]["loss"] == min(-line["likelihood"] for line in run.metrics)  # too few steps to calibrate
    assert not run.result["calibrated"]
    assert run.result["temperature"] == 1
    for name, key in (("q", "q_error"), ("beta", "likelihood")):
        (line,) = (line for line in run.metrics if line["updates"] == best[name]["updates"])
        assert abs(line[key]) == best[name]["loss"]


def test_networks_that_got_worse_are_not_kept(logs):
    command = Improve(path=logs, updates=40, batch=32, latent=8, learning_rate=0.01, held_out=0.5)
    data = command.episodes()
    learner = command.learner(data, command.hold_out(data))
    lines = [learner.look() for _ in learn(learner, 40)]
    best = {name: dict(learner.best[name]) for name in ("q", "beta")}
    assert best["q"]["loss"] == min(line["q_error"] for line in lines)
    assert best["beta"]["loss"] == min(-line["likelihood_calibrated"] for line in lines)
    learner.fit.trained.vector.mul_(-3)
    worse = learner.look()
    assert worse["q_error"] > best["q"]["loss"]
    assert worse["likelihood_calibrated"] < -best["beta"]["loss"]
    told = diagnosis(answers_about(learner.networks(), learner.held, learner.overrides))
    assert (told["q_error"], -told["likelihood_calibrated"]) == (best["q"]["loss"], best["beta"]["loss"])
    assert learner.best == best
    assert learner.temperature(learner.networks()) == told["temperature"]


def learned(path, updates=5):
    """The weights after some updates, and what is said of the episodes that choose."""
    command = Improve(path=path, updates=updates, batch=32, latent=8)
    data = command.episodes()
    learner = command.learner(data, command.hold_out(data))
    assert [*learn(learner, updates)][-1] == updates
    return learner.fit.trained.vector, learner.look()


@pytest.mark.parametrize("kind", ["store", "parquet"])
def test_the_same_is_learned_from_every_format(kind, logs, tmp_path):
    made = tmp_path / kind
    assert cli.main(["data", "export", str(logs), "--to", kind, "--out", str(made)]) == 0
    weights, told = learned(made / "episodes.parquet" if kind == "parquet" else made)
    expected, told_of_csv = learned(logs)
    assert torch.equal(weights, expected)
    assert told == told_of_csv


def test_legal_actions_bind_what_is_learned_and_what_is_told(tmp_path):
    """Three actions, of which 0 and 1 are legal in the first state, 1 and 2 in the second."""
    rng = np.random.default_rng(0)
    legal, beta = np.array([[1, 1, 0], [0, 1, 1]], bool), np.array([[0.6, 0.4, 0.0], [0.0, 0.5, 0.5]])
    rows = []
    for _ in range(900):
        state = int(rng.integers(2))
        action = int(rng.choice(3, p=beta[state]))
        masks = {f"action_mask_{a}": int(legal[state, a]) for a in range(3)}
        rows.append({"obs_0": state, "action": action, "reward": [0.0, 1.0, 3.0][action], **masks})
    path, out = write(tmp_path / "logs.csv", rows), tmp_path / "run"
    arguments = ["--table.one-step", "--held-out", "0.4", "--out", str(out)]
    assert cli.main(["improve", str(path), *QUICK, *arguments]) == 0
    states = np.array([[0.0], [1.0]], np.float32)
    policy = rbi.load_policy(out)
    pi = policy.predict_proba(states, legal)
    assert (pi[~legal] == 0).all()
    np.testing.assert_allclose(pi, rbi.max_reroute(beta, np.array([[0.0, 1.0, 3.0]] * 2), 0.5, 1.5), atol=0.06)
    found = runs.read(out).result
    assert found["calibrated"]
    assert found["diagnosis"]["likelihood_calibrated"] == pytest.approx(np.mean([-0.673, -0.693]), abs=0.05)
    for row in found["changes"]["actions"]:
        assert row["beta"] == pytest.approx(row["taken"], abs=0.1)
    data = rbi.load_episodes(path, settings=FormatSettings(table=TableConfig(one_step=True)))
    for row in found["changes"]["largest"]:
        one = data[row["episode"]]
        acted = policy.predict_proba(one.observations[:1], one.action_masks[:1])[0]
        for told in row["actions"]:
            assert told["pi"] == pytest.approx(acted[told["action"]], abs=1e-5)


def test_the_log_of_a_bandit_is_improved_and_its_texts_have_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    chances = {"old": [0.1, 0.7], "young": [0.6, 0.2]}
    rows = []
    for _ in range(1500):
        who, item = str(rng.choice(["old", "young"])), int(rng.integers(2))
        click = int(rng.random() < chances[who][item])
        rows.append({"item_id": item, "click": click, "propensity_score": 0.5, "user_feature_0": who, "position": 1})
    path, out = write(tmp_path / "clicks.csv", rows), tmp_path / "run"
    assert cli.main(["improve", str(path), *QUICK, "--rule", "tv(0.2)", "--out", str(out)]) == 0
    found = runs.read(out).result
    assert {row["name"] for row in found["changes"]["features"]} == {"user_feature_0 = old", "user_feature_0 = young"}
    seen = found["changes"]["overall"]["step_seen"]
    assert (
        seen["interval"][0] < 0.2 * 0.5 < seen["interval"][1]
    )  # of each state a fifth goes from the worse to the better
    pi = rbi.load_policy(out).predict_proba(np.array([[1, 0, 1], [0, 1, 1]], np.float32))
    np.testing.assert_allclose(pi, [[0.3, 0.7], [0.7, 0.3]], atol=0.06)
    told = capsys.readouterr().out
    assert "an estimate, not a certificate" in told
    assert "tv(0.2) limits the damage of a step to 20.0%" in told


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures, so that batches and dropout draw at random."""
    path, rng = tmp_path_factory.mktemp("pictures") / "store", np.random.default_rng(0)
    with StoreWriter.create(path, DatasetSpec((10, 10), 4, 4)) as writer:
        for _ in range(12):
            writer.append(episode(rng, 10, frame=(10, 10)))
    small = ["--updates", "60", "--batch", "8", "--latent", "8", "--held-out", "0.3"]
    arguments = ["improve", str(path), *small]
    whole = path.parent / "whole"
    assert cli.main([*arguments, "--out", str(whole)]) == 0
    return arguments, whole


def same(one, other):
    """Whether two runs have the same lines, numbers and weights, to the last bit."""
    for name in ("metrics.jsonl", "result.json", "policies/best/weights.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("how", ["kill", "signal"])
def test_a_stopped_run_goes_on_to_the_same_end(how, pictures, tmp_path, monkeypatch, capsys):
    arguments, whole = pictures
    arguments = [*arguments, "--out", str(tmp_path / "run")]
    update = BestMoments.update

    def update_until_stopped(self):
        update(self)
        if self.updates == 31:  # between two moments
            if how == "kill":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(BestMoments, "update", update_until_stopped)
        assert cli.main(arguments) == cli.INTERRUPTED
    assert runs.read(tmp_path / "run").result is None
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert json.loads((saved / "state.json").read_text())["updates"] == {"improve": 30 if how == "kill" else 32}
    if how == "signal":
        assert "stopped after 32 updates; go on with --resume --out" in capsys.readouterr().err
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 33}\n{"upd')  # of after the checkpoint, and torn
    assert cli.main([*arguments, "--resume"]) == 0
    same(tmp_path / "run", whole)


def test_a_complete_run_is_shown_again(pictures, capsys):
    arguments, whole = pictures
    before = (whole / "result.json").read_bytes()
    assert cli.main([*arguments, "--out", str(whole), "--resume"]) == 0
    told = capsys.readouterr().out
    assert "what was learned, on held-out episodes" in told
    assert "nothing left to do" in told
    assert (whole / "result.json").read_bytes() == before


def test_a_run_goes_on_only_with_its_data_and_settings(logs, improved, tmp_path, capsys):
    out = Path(shutil.copytree(improved, tmp_path / "run"))
    (out / "result.json").unlink()
    arguments = ["improve", str(logs), *QUICK, "--out", str(out), "--resume"]
    assert cli.main([*arguments, "--seed", "1"]) == 2
    assert "was started with seed = 0, not 1" in capsys.readouterr().err
    written = logs.stat().st_mtime_ns
    os.utime(logs, ns=(written, written + 1))
    assert cli.main(arguments) == 2
    assert "has changed since the run" in capsys.readouterr().err
    os.utime(logs, ns=(written, written))
    assert cli.main(arguments) == 0
    same(out, improved)


ROWS = two_states(20)
ONE = [ROWS[0] | {"action": 0}, ROWS[1] | {"action": 1}]
HALF = [row | {"action": 0.5} for row in ROWS]
CUT = [row | {"terminated": 0, "truncated": row["t"]} for row in ROWS]


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        (None, {}, "no such file or folder"),
        ([], {}, "no row has a whole number as its action"),
        ([], {"about": SpecOverrides(num_actions=2)}, "no episode is there"),
        (ONE, {}, "1 episode whose returns are known: to hold one out takes at least 2"),
        ([row | {"action": 1} for row in ROWS], {}, "only action 1 was ever taken: nothing to improve"),
        ([row | {"reward": 0} for row in ROWS], {}, "no return differs: all are 0"),
        ([row | {"reward": 3e38} for row in ROWS], {}, "rewards so large"),
        (HALF, {}, "no row has a whole number as its action"),
        (HALF, {"about": SpecOverrides(num_actions=2)}, "no episode could be used; the first: .*logs.csv, line 2: "),
        (CUT, {}, "every episode was cut off too early .* --gamma .* --unfinished 1"),
        (ROWS, {"table": TableConfig(action="did")}, "no column 'did'"),
        (ROWS, {"rule": "better"}, "rule 'better' is not known"),
        (ROWS, {"rule": "reroute(2,3)"}, "c_min"),
        (ROWS, {"held_out": 1.0}, "--held-out = 1.0: must be positive, and at most 0.8"),
        (ROWS, {"batch": 1}, "--batch = 1: must be at least 2"),
        (ROWS, {"updates": 0}, "--updates = 0: must be at least 1"),
        (ROWS, {"learning_rate": 2.0}, "learning_rate = 2.0"),
        (ROWS, {"gamma": 1.5}, "gamma = 1.5"),
        (ROWS, {"resume": True}, "--resume: name the stopped run with --out"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_any_work(rows, settings, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "logs.csv"
    if rows is not None:
        write(path, rows or ROWS[:1])
    if rows == []:
        path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=told) as error:
        Improve(path=path, **settings).run([])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_on_the_command_line_too(tmp_path, capsys):
    path = write(tmp_path / "logs.csv", [row | {"reward": 0} for row in ROWS])
    for arguments, told in (((), "no return differs"), (("--rule", "better"), "rule 'better' is not known")):
        assert cli.main(["improve", str(path), *arguments]) == 2
        err = capsys.readouterr().err
        assert told in err
        assert err.count("\n") == 1


def test_what_was_cut_off_teaches_beta_where_it_does_not_teach_q(tmp_path):
    """Half of the episodes are cut off at once, all of them after action 1."""
    rows = two_states(200)
    for row in rows[: len(rows) // 2]:
        row |= {"action": 1, "terminated": 0, "truncated": row["t"]}
    command = Improve(path=write(tmp_path / "logs.csv", rows), updates=2)
    data = command.episodes()
    out = command.hold_out(data)
    assert min(out.choosing.min(), out.telling.min()) >= 100
    assert not set(out.choosing) & set(out.telling)
    sampler = command.learner(data, out).fit.sampler
    assert sampler.excluded_fraction == pytest.approx(200 / len(sampler.usable))


def test_a_folder_in_use_is_left_alone(logs, improved, capsys):
    before = (improved / "result.json").read_bytes()
    assert cli.main(["improve", str(logs), *QUICK, "--out", str(improved)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert cli.main(["improve", str(logs), *QUICK, "--out", str(logs.parent)]) == 2
    assert "is the data that is read, holds it" in capsys.readouterr().err
    assert (improved / "result.json").read_bytes() == before
    assert json.loads(before)["rule"] == "reroute(0.5,1.5)"
