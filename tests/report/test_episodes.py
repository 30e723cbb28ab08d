"""The episode viewer: its beta, pi and Q are the policy's, frames come back unchanged, sizes stay within the budget."""

import base64
import io
import os

import numpy as np
import pytest
from PIL import Image

import rbi
from rbi import envs, fileio, runs
from rbi.cli import main
from rbi.data.episode import Feature
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.report.episodes import Frames, StatePredictions, encode_frames, feature_value, make_viewer, predict, trace_of
from tests.data.episodes import episode
from tests.report.pages import decisions_log, image_log, page_data, write_run

ROOM = 5_000_000


def test_decisions_are_the_policys_on_rows_that_it_was_not_trained_on(decided):
    viewer, policy = make_viewer(runs.read(decided), budget=ROOM), rbi.load_policy(decided)
    assert viewer.features == ["age", "device"]
    assert viewer.actions == ["discount", "none"]
    assert not viewer.episodes
    held = runs.read(decided).finished()["test"]["episodes"]
    assert f"decisions that change most, of {held:,}." in viewer.note
    assert sum(each.count for each in viewer.decisions) == held
    rows = [(*each.features, each.taken) for each in viewer.decisions]
    assert len(set(rows)) == len(rows) < held
    for each in viewer.decisions[:5]:
        obs = np.array([[each.features[0], each.features[1] == "desktop", each.features[1] == "phone"]], np.float32)
        np.testing.assert_allclose(each.pi, policy.predict_proba(obs)[0], atol=1e-4)
        ratio = np.array(each.pi) / np.array(each.beta)
        assert np.all((ratio > 0.49) & (ratio < 1.51))
    changes = [each.change for each in viewer.decisions]
    assert changes == sorted(changes, reverse=True)


def test_episodes_show_every_step_with_the_policys_numbers(improved):
    run, policy = runs.read(improved), rbi.load_policy(improved)
    viewer = make_viewer(run, budget=ROOM, episodes=2)
    data = rbi.load_episodes(run.config["settings"]["data"])
    assert len(viewer.episodes) == 2
    for trace in viewer.episodes:
        episode = data[int(trace.name.split()[1].rstrip(","))]
        assert trace.score == pytest.approx(episode.score)
        assert len(trace.value) == trace.steps == len(episode)
        np.testing.assert_allclose(trace.pi, policy.predict_proba(episode.observations[: len(episode)]), atol=1e-4)
        np.testing.assert_allclose(np.array(trace.features).T, episode.observations[: len(episode)], atol=1e-5)
        np.testing.assert_allclose(trace.value, (np.array(trace.beta) * trace.q).sum(1), atol=2e-2)
        assert trace.taken == episode.actions.tolist()
        assert trace.reward == pytest.approx(episode.rewards.tolist())


def test_ratios_of_small_probabilities_are_those_of_the_policy():
    small = 10.0 ** -np.arange(1.0, 10.0)
    beta = np.stack([small, 1 - small], 1)
    pi = np.stack([small / 2, 1 - small / 2], 1)
    of = StatePredictions(beta, pi, np.ones_like(beta))
    steps = episode(np.random.default_rng(0), len(small), frame=(2,))
    found = trace_of("Episode 0", steps, of, np.arange(2), [0, 1], ROOM)
    np.testing.assert_allclose(np.array(found.pi)[:, 0] / np.array(found.beta)[:, 0], 0.5, rtol=2e-3)


def test_beta_of_illegal_actions_is_0_and_ratios_to_the_others_keep_their_bounds():
    rng = np.random.default_rng(0)
    policy = Policy(make_networks(ObservationSpec((3,), 1, 4), NetworkConfig(8), 0), rbi.Reroute(0.5, 1.5))
    frames = rng.normal(size=(20, 3)).astype(np.float32)
    masks = rng.random((20, 4)) < 0.6
    masks[:, 1] = True
    found = predict(policy, frames, np.zeros(20, np.int64), action_masks=masks)
    np.testing.assert_allclose(found.pi, policy.predict_proba(frames, legal=masks), atol=1e-6)
    assert not found.beta[~masks].any()
    np.testing.assert_allclose(found.beta.sum(1), 1, atol=1e-6)
    ratio = found.pi[masks] / found.beta[masks]
    assert ratio.min() > 0.5 - 1e-5
    assert ratio.max() < 1.5 + 1e-5


def test_lost_lives_and_stacked_frames_of_images(tmp_path):
    data, policy = image_log(tmp_path / "store"), tmp_path / "policy"
    run = runs.read(write_run(tmp_path / "run", "improve", settings={"data": str(data)}, result={}))
    viewer = make_viewer(run, budget=ROOM, policy=policy, episodes=1)
    (trace,), episode = viewer.episodes, rbi.load_episodes(data)[0]
    assert trace.lives_lost == [3]
    stacks = np.zeros((len(episode), 2, 12, 12), np.uint8)
    stacks[:, 1] = episode.observations[: len(episode)]
    stacks[1:, 0] = episode.observations[: len(episode) - 1]
    np.testing.assert_allclose(trace.pi, rbi.load_policy(policy).predict_proba(stacks), atol=1e-4)
    assert np.array_equal(decoded(trace.frames), episode.observations[: len(episode)])


def decoded(frames: Frames):
    """The frames of strips."""
    found = []
    for strip in frames.strips:
        image = Image.open(io.BytesIO(base64.b64decode(strip.split(",")[1])))
        found.append(np.asarray(image.convert("L")).reshape(-1, frames.height, frames.width))
    return np.concatenate(found)


def test_frames_come_back_unchanged_and_stay_within_the_budget():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (450, 84, 84), np.uint8)
    found, count = encode_frames(frames[:50], ROOM)
    assert count == 50
    assert np.array_equal(decoded(found), frames[:50])
    found, count = encode_frames(frames, 1_000_000)
    assert 50 < count < 450
    assert sum(len(strip) for strip in found.strips) < 1_050_000
    assert np.array_equal(decoded(found), frames[:count])


def test_an_episode_that_does_not_fit_is_cut_and_says_so(improved):
    viewer = make_viewer(runs.read(improved), budget=3000, episodes=2)
    trace = viewer.episodes[-1]
    assert len(trace.value) < trace.steps
    assert f"Long episodes are cut: {len(trace.value):,} of {trace.steps:,} steps" in viewer.note
    assert len(fileio.to_json(viewer)) < 6000


def test_a_page_with_a_viewer_holds_it_and_says_why_there_is_none(improved, tmp_path, capsys):
    page = page_data(rbi.write_report(improved, tmp_path / "page.html"))
    assert len(page["runs"][0]["viewer"]["episodes"]) == 3
    log = decisions_log(tmp_path / "other.csv")
    assert main(["report", str(improved), "--data", str(log), "--out", str(tmp_path / "other.html")]) == 0
    said = capsys.readouterr().err
    assert f"no episode viewer: {log}: " in said
    assert "is damaged" not in said
    assert page_data(tmp_path / "other.html")["runs"][0]["viewer"] is None
    assert page_data(rbi.write_report(improved, tmp_path / "none.html", episodes=0))["runs"][0]["viewer"] is None


def test_other_data_than_the_runs_table_may_be_a_store(decided, tmp_path):
    asked = ["--table.features-of", str(decided), "--table.action", "offer", "--table.reward", "paid"]
    log, store = decisions_log(tmp_path / "later.csv"), tmp_path / "store"
    assert main(["data", "import", str(log), "--out", str(store), "--table.one-step", *asked]) == 0
    assert make_viewer(runs.read(decided), budget=ROOM, data=store) is not None


def test_a_trained_policy_runs_fresh_episodes_when_asked(tmp_path):
    run = runs.read(write_run(tmp_path / "run", "train"))
    networks = make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(4), 0)
    Policy(networks, rbi.Reroute(0.5, 1.5), env="CartPole-v1").save(tmp_path / "run" / "policies" / "best")
    assert make_viewer(run, budget=ROOM) is None
    viewer = make_viewer(run, budget=ROOM, episodes=2)
    assert [trace.score for trace in viewer.episodes] == [trace.steps for trace in viewer.episodes]
    assert "2 fresh episodes" in viewer.note


def test_features_are_shown_as_the_table_has_them():
    obs = np.array([20_000.0, 0.0, 1.0, 0.0, 1.0], np.float32)
    date, number, text = (
        Feature("day", is_date=True),
        Feature("age", fill=3.0, has_missing=True),
        Feature("x", ("a", "")),
    )
    assert feature_value(obs, date, 0) == "2024-10-04"
    days = np.float32([2932896, -2544.25, 1e9, -1e9])  # the last day of the calendar, a date before 1970, neither
    shown = [feature_value(days, date, place) for place in range(4)]
    assert shown == ["9999-12-31", "1963-01-13", "9999-12-31", "0001-01-01"]
    assert feature_value(obs, number, 1) == "(missing)"
    assert feature_value(obs, number, 2) == 1
    assert feature_value(obs, text, 3) == "(missing)"
    assert feature_value(obs, text, 2) == "a"


def test_a_recorded_store_shows_its_statistics_and_what_the_recorded_policy_would_do(tmp_path):
    out = tmp_path / "recorded"
    Policy(make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(8), 0), rbi.Reroute(0.5, 1.5)).save(tmp_path / "p")
    arguments = ["data", "record", str(tmp_path / "p"), "--env", "CartPole-v1", "--episodes", "2", "--out", str(out)]
    assert main(arguments) == 0
    (section,) = page_data(rbi.write_report(out, tmp_path / "page.html", progress=False))["runs"]
    assert [each["title"] for each in section["panels"][:2]] == ["Scores of the episodes", "Lengths of the episodes"]
    assert len(section["viewer"]["episodes"]) == 2
    assert section["warnings"] == []


@pytest.mark.usefixtures("undrawn")
def test_runs_without_a_policy_have_no_warning_about_the_viewer(tmp_path):
    assert main(["rules", "--out", str(tmp_path / "run")]) == 0
    (section,) = page_data(rbi.write_report(tmp_path / "run", tmp_path / "page.html", progress=False))["runs"]
    assert section["warnings"] == []
    asked = rbi.write_report(tmp_path / "run", tmp_path / "asked.html", episodes=1, progress=False)
    assert "holds no policy" in page_data(asked)["runs"][0]["warnings"][0]


def test_actions_of_atari_games_have_names():
    assert envs.action_names("ALE/Breakout-v5", 4) == ("NOOP", "FIRE", "RIGHT", "LEFT")
    assert envs.action_names("ALE/Breakout-v5", 18) == ()
    assert envs.action_names("ALE/NoSuchGame-v5", 4) == ()
    assert envs.action_names("CartPole-v1", 2) == ()


@pytest.mark.usefixtures("undrawn")
def test_a_store_that_has_lost_episodes_is_read_as_its_run_read_it(tmp_path, improved):
    log, store, out = improved.parent / "log.csv", tmp_path / "store", tmp_path / "run"
    assert main(["data", "import", str(log), "--out", str(store)]) == 0
    os.truncate(store / "rewards.bin", (store / "rewards.bin").stat().st_size // 2)
    arguments = ["--updates", "5", "--holdout-fraction", "0.5", "--max-lost", "0.6"]
    assert main(["improve", str(store), *arguments, "--out", str(out)]) == 0
    assert make_viewer(runs.read(out), budget=ROOM) is not None


def test_a_certificate_of_data_in_memory_has_no_viewer_and_does_not_take_the_current_folder_for_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    steps, rng = 200, np.random.default_rng(0)
    data = rbi.Dataset.from_arrays(
        rng.normal(size=(steps, 2)), rng.integers(2, size=steps), rng.integers(2, size=steps), np.ones(steps, bool),
        action_probs=np.full(steps, 0.5),
    )  # fmt: skip
    policy = Policy(make_networks(ObservationSpec((2,), 1, 2), NetworkConfig(8), 0), rbi.Reroute(0.5, 1.5))
    rbi.certify(policy, data, return_range=(0, 1), progress=False, out="certified")
    assert rbi.write_report("certified", out="page.html").exists()
    assert "viewer" not in capsys.readouterr().err
