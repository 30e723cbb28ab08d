"""`rbi offline` from data to table, on CartPole: whole, stopped and gone on with, and with data that cannot be used."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest

import rbi
from rbi import cli, envs, runs
from rbi.cli import study
from rbi.cli.offline import checked
from rbi.cli.study import crowd
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.store import StoreWriter
from rbi.evaluation.recording import PerturbedPolicy, Recorder
from rbi.evaluation.rollouts import VectorEvaluator
from rbi.offline_rl.experiment import OneSeed

ENV = "CartPole-v1"
NETS = {f"--{part}.nets.hidden-size": 16 for part in ("fit", "dqfd", "bcq", "cql")}
SETTINGS = {"--updates": 40, "--batch": 16, "--points": 2, "--curve-episodes": 4, "--episodes": 10, "--players": 240}
SMALL = [str(word) for pair in (SETTINGS | NETS | {"--ppo.updates": 10}).items() for word in pair]


class Balances:
    """Pushes to where the pole falls."""

    def predict_proba(self, states):
        lean = np.asarray(states)[:, -1, 2] + 0.3 * np.asarray(states)[:, -1, 3]
        return np.eye(2)[(lean > 0).astype(int)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Forty short games of players who press at random more or less often."""
    path = tmp_path_factory.mktemp("crowd") / "store"
    world = envs.make(envs.EnvConfig(ENV), 8)
    players = [PerturbedPolicy(f"player {i}", Balances(), epsilon=0.3 + 0.08 * i) for i in range(8)]
    spec = DatasetSpec(world.obs_shape, world.num_actions, world.frame_stack, ENV)
    with StoreWriter.create(path, spec) as writer:
        for episode in Recorder(world, players, spec, "test", np.random.default_rng(0)).episodes(40, None):
            writer.append(episode)
    world.close()
    return path


def offline(*words):
    return cli.main(["offline", *map(str, words)])


def scores_of(path):
    return {row["name"]: row["scores"] for row in runs.read(path).finished()["rows"]}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run from its beginning to its end."""
    path = tmp_path_factory.mktemp("offline") / "run"
    assert offline(data, *SMALL, "--seeds", 2, "--out", path) == 0
    return path


def test_every_row_of_the_papers_table_is_there_with_its_scores_and_what_they_say(whole):
    found = runs.read(whole).finished()
    names = [row["name"] for row in found["rows"]]
    assert names == [
        "behavior", "reroute(0.5,1.5)", "reroute(0.25,1.75)", "reroute(0,2)", "tv(0.25)", "forward_kl(radius=0.125)",
        "ppo(0.5)", "greedy", "ppo(0.5) by ascent", "DQfD", "BCQ(0.3)", "CQL(1)",
    ]  # fmt: skip
    for row in found["rows"]:
        assert [len(seed) for seed in row["scores"]] == [10, 10]
        assert row["mean"] == pytest.approx(np.mean(row["scores"]))
        assert (row["verdict"] is None) == (row["name"] == "behavior")
    assert found["crowd"]["all_episodes"] == 40
    assert found["crowd"]["players"] == 8
    assert len(found["held_out"]) == 2
    assert 0 <= found["steps"][0]["reroute(0.5,1.5)"]["at_c_max"] <= 1
    assert found["steps"][0]["greedy"]["expected_step"] >= found["steps"][0]["reroute(0.5,1.5)"]["expected_step"] >= 0
    figures = {path.name for path in runs.read(whole).figures}
    assert figures == {"curves.png", "overfitting.png", "reliability.png"}


def test_the_policy_that_is_kept_is_the_safe_step_and_plays(whole):
    policy = rbi.load_policy(whole)
    assert str(policy.rule) == "reroute(0.5,1.5)"
    assert policy.env == ENV
    assert policy.predict_proba(np.zeros((3, 4), np.float32)).sum(1) == pytest.approx(1)
    assert (whole / "policies" / "seed1" / "policy.json").is_file()


def test_the_curve_has_as_many_points_as_were_asked_for_and_looks_at_what_is_held_out(whole):
    lines = runs.read(whole).metrics
    played = [line for line in lines if line["kind"] == "played"]
    assert [line["updates"] for line in played] == [20, 40]
    assert len(played[0]["scores"]["greedy"][1]) == 4
    looked = [line["updates"] for line in lines if line["kind"] == "looked" and line["seed"] == 0]
    assert looked == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]


def test_a_run_that_was_stopped_in_mid_play_goes_on_to_the_same_scores(data, whole, tmp_path, monkeypatch, capsys):
    path, play, count = tmp_path / "run", VectorEvaluator.evaluate, itertools.count()

    def stops(self, policies, episodes, rng):
        for number, outcome in enumerate(play(self, policies, episodes, rng)):
            if number == 30 and next(count):  # in the second evaluation
                raise KeyboardInterrupt
            yield outcome

    monkeypatch.setattr(VectorEvaluator, "evaluate", stops)
    monkeypatch.setattr(study, "LONG", -1)  # a checkpoint before every evaluation
    assert offline(data, *SMALL, "--seeds", 2, "--out", path) == 130
    monkeypatch.undo()
    assert runs.read(path).result is None
    assert offline(data, *SMALL, "--seeds", 2, "--out", path, "--resume") == 0
    assert scores_of(path) == scores_of(whole)
    told = [
        [(line["kind"], line["updates"], line.get("learned")) for line in runs.read(p).metrics] for p in (path, whole)
    ]
    assert told[0] == told[1]
    capsys.readouterr()
    assert offline(data, *SMALL, "--seeds", 2, "--out", path, "--resume") == 0
    assert "nothing left to do" in capsys.readouterr().out


def test_a_run_that_was_stopped_after_its_last_games_writes_its_result(data, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "result.json").unlink()
    shutil.rmtree(path / "figures")
    shutil.rmtree(path / "policies")
    assert offline(data, *SMALL, "--seeds", 2, "--out", path, "--resume") == 0
    assert scores_of(path) == scores_of(whole)
    assert runs.read(path).finished()["steps"] == runs.read(whole).finished()["steps"]
    assert len(runs.read(path).figures) == 3
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        rbi.load_policy(path).predict_proba(states), rbi.load_policy(whole).predict_proba(states)
    )


def test_a_run_that_was_stopped_between_two_looks_repeats_and_loses_none(data, whole, tmp_path, monkeypatch):
    path, diagnose, count = tmp_path / "run", OneSeed.diagnose, itertools.count()

    def stops(self):
        if next(count) == 8:  # in the middle of the fifth look of two seeds
            raise KeyboardInterrupt
        return diagnose(self)

    monkeypatch.setattr(OneSeed, "diagnose", stops)
    words = [*SMALL, "--seeds", 2, "--out", path, "--checkpoint-minutes", "0.000001"]
    assert offline(data, *words) == 130
    monkeypatch.undo()
    assert offline(data, *words, "--resume") == 0
    assert scores_of(path) == scores_of(whole)
    told = [[line.get("learned") for line in runs.read(p).metrics if line["kind"] == "looked"] for p in (path, whole)]
    assert told[0] == told[1]


def store(path, *, actions=2, frame=(4,), taken=(0, 1), reward=1.0, env=ENV, episodes=3, masks=False):
    """A small store that may not be what it should."""
    rng = np.random.default_rng(0)
    with StoreWriter.create(path, DatasetSpec(frame, actions, 1, env, has_action_masks=masks)) as writer:
        for _ in range(episodes):
            last = np.arange(6) == 5
            seen = rng.normal(size=(6, *frame)).astype(np.float32)
            legal = np.ones((6, actions), bool) if masks else None
            writer.append(Episode(seen, rng.choice(taken, 6), np.full(6, reward), last, last & False, legal=legal))
    return path


@pytest.mark.parametrize(
    ("changes", "words", "told"),
    [
        (dict(episodes=0), [], "holds no episodes"),
        (dict(taken=(1,)), [], "action 1 is the only one"),
        (dict(reward=0.0), [], "all rewards are 0"),
        (dict(reward=1e30), [], r"as large as 1e\+30"),
        (dict(frame=(6,), env="Acrobot-v1", masks=True), [], "masks are of 2"),
        (dict(env=""), [], "does not say where it was recorded"),
        (dict(), ["--env", "Acrobot-v1"], "the data is of CartPole-v1"),
        (dict(frame=(5,)), [], r"shows frames \(4,\)"),
        (dict(actions=3, taken=(0, 2)), [], "has 2 actions, and the data 3"),
        (dict(env="NoSuch-v0"), [], "NoSuch"),
        (dict(episodes=1), [], "1 episodes"),
        (dict(), ["--rules", "nonsense"], "nonsense"),
        (dict(), ["--updates", "0"], "updates = 0"),
        (dict(), ["--batch", "1"], "batch = 1"),
        (dict(), ["--held-out", "0.9"], "held_out = 0.9"),
        (dict(), ["--fit.nets.input-dropout", "0.999"], "input_dropout = 0.999"),
        (dict(), ["--seed", str(2**70)], "--seed"),
        (dict(), ["--margin", "2"], "margin"),
        (dict(), ["--points", "9000"], "points"),
    ],
)
def test_what_cannot_be_learned_from_is_told_in_one_line_before_any_work(changes, words, told, tmp_path, capfd):
    path = store(tmp_path / "store", **changes)
    assert offline(path, *words, "--out", tmp_path / "run") == 2
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("rbi: ")
    assert re.search(told, last), last
    assert not (tmp_path / "run").exists()


def test_data_with_fewer_actions_than_the_environment_gets_them_all(tmp_path):
    found = rbi.load_episodes(store(tmp_path / "store", frame=(6,), env="Acrobot-v1"))
    assert checked(found, "", tmp_path) == "Acrobot-v1"
    assert found.spec.num_actions == 3


def test_the_crowd_is_cut_off_where_the_policies_are(tmp_path):
    found = rbi.load_episodes(store(tmp_path / "store"))
    assert crowd(found)["mean"] == 6
    assert crowd(found, 4)["mean"] == 4
    assert crowd(found, 4)["cut_at"] == 4
    assert crowd(found, 9)["mean"] == 6


def test_no_such_data_and_a_run_of_something_else_are_named(tmp_path, capfd):
    assert offline(tmp_path / "nothing") == 2
    assert "nothing" in capfd.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"command": "spi"}))
    assert offline(store(tmp_path / "store"), "--resume", "--out", tmp_path / "other") == 2
    assert "'spi'" in capfd.readouterr().err
