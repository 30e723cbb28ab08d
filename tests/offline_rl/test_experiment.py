"""`rbi.offline` and `rbi offline` on CartPole: complete, stopped and resumed, and with unusable data."""

import itertools
import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import rbi
from rbi import cli, envs, runs
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.formats.table_files import ParquetFiles
from rbi.data.store import StoreWriter
from rbi.envs import EnvConfig
from rbi.evaluation.recording import DatasetRecording, Perturbation, PerturbedPolicy, Recorder
from rbi.evaluation.rollouts import Protocol, VectorEvaluator
from rbi.networks import NetworkConfig
from rbi.offline_rl import experiment
from rbi.offline_rl.config import PRESETS, RULES, EvaluationConfig, OfflineConfig, policy_rows, small_learners
from rbi.offline_rl.experiment import (
    Experiment,
    checkpoint_due,
    describe_population,
    env_of,
    num_groups,
    with_actions_of,
)
from rbi.offline_rl.run_log import RunLog
from rbi.offline_rl.seed_learners import SeedLearners
from rbi.offline_rl.validation import Overfitting
from rbi.report import offline as report
from tests.games import Doors

ENV = "CartPole-v1"
CONFIG = OfflineConfig(updates=40, batch_size=16, **small_learners(16, 200, 0.001, 10))
SETTINGS = dict(seeds=2, episodes=10, evaluations=2, curve_episodes=4, num_envs=96, config=CONFIG, progress=False)


class Balances:
    """Pushes to where the pole falls."""

    def predict_proba(self, states):
        lean = np.asarray(states)[:, -1, 2] + 0.3 * np.asarray(states)[:, -1, 3]
        return np.eye(2)[(lean > 0).astype(int)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Forty short episodes of policies that take random actions more or less often."""
    path = tmp_path_factory.mktemp("population") / "store"
    env = envs.make(envs.EnvConfig(ENV), 8)
    policies = [PerturbedPolicy(f"player {i}", Balances(), epsilon=0.3 + 0.08 * i) for i in range(8)]
    spec = DatasetSpec(env.obs_shape, env.num_actions, env.frame_stack, ENV)
    with StoreWriter.create(path, spec, {"action": "push"}) as writer:
        for episode in Recorder(env, policies, spec, "test", np.random.default_rng(0)).episodes(40, None):
            writer.append(episode)
    env.close()
    return path


def test_the_paper_preset_has_the_numbers_of_the_papers_tables():
    paper = PRESETS["paper"]
    assert (paper.updates, paper.batch_size) == (1_562_500, 32)
    assert paper.behavior_q.learning_rate == paper.ppo.learning_rate == 0.00025
    assert paper.behavior_q.network == NetworkConfig(1024, "batch", "shared", 0.25, 0.5)
    dqfd = paper.dqfd
    assert (dqfd.learning_rate, dqfd.n_step, dqfd.target_update_interval, dqfd.margin) == (0.0000625, 10, 16_384, 0.8)
    assert (dqfd.priority_exponent, dqfd.importance_exponent, dqfd.priority_epsilon) == (0.4, 0.6, 0.001)
    assert (dqfd.n_step_weight, dqfd.margin_weight, dqfd.l2_weight) == (1.0, 1.0, 1e-5)  # of Hester et al.
    assert dqfd.network == NetworkConfig(1024, "batch", "shared", 0.0, 0.0)
    assert paper.ppo.epsilon == 0.5
    assert {"reroute(0.5,1.5)", "reroute(0.25,1.75)", "reroute(0,2)", "tv(0.25)", "greedy"} <= set(RULES)


def scores_of(path):
    return {row["name"]: row["scores"] for row in runs.read(path).finished()["rows"]}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A complete run."""
    path = tmp_path_factory.mktemp("offline") / "run"
    rbi.offline(data, out=path, **SETTINGS)
    return path


def test_the_table_has_all_rows_of_the_paper_with_scores_and_comparisons(whole):
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
    assert found["population"]["all_episodes"] == 40
    assert found["population"]["policies"] == 8
    assert len(found["validation"]) == 2
    changes = found["rule_statistics"][0]
    assert 0 <= changes["reroute(0.5,1.5)"]["at_c_max"] <= 1
    assert changes["greedy"]["expected_gain"] >= changes["reroute(0.5,1.5)"]["expected_gain"] >= 0


def test_overfitting_is_part_of_the_result_its_summary_and_the_closing_lines(data, tmp_path, monkeypatch):
    judged = []

    def overfitting(validated):
        judged.extend((line["seed"], line["updates"]) for line in validated)
        return [Overfitting("beta", 20, -0.5, 40, -0.7, -0.6, -0.8, 2)]

    monkeypatch.setattr(experiment, "overfitting", overfitting)
    settings = SETTINGS | dict(episodes=1, evaluations=1, num_envs=2)
    result = rbi.offline(data, rules=["greedy"], baselines=[], out=tmp_path / "run", **settings)
    assert judged == [(seed, updates) for updates in (8, 16, 24, 32, 40) for seed in (0, 1)]
    [of_beta] = result.numbers["overfitting"]
    assert (of_beta["network"], of_beta["best_updates"], of_beta["updates"]) == ("beta", 20, 40)
    assert of_beta["advice"].startswith("beta overfits")
    assert of_beta["advice"] in result.summary()
    assert of_beta["advice"] in report.closing(runs.read(tmp_path / "run"))


def test_the_saved_policy_is_reroute_and_acts(whole):
    policy = rbi.load_policy(whole)
    assert str(policy.rule) == "reroute(0.5,1.5)"
    assert policy.env == ENV
    assert policy.predict_proba(np.zeros((3, 4), np.float32)).sum(1) == pytest.approx(1)
    assert (whole / "policies" / "seed1" / "policy.json").is_file()


def test_the_saved_policies_are_not_certified_on_the_episodes_that_trained_or_validated_them(whole, data):
    for name in ("best", "seed1"):
        with pytest.raises(ValueError, match=r"is one of 40 episodes \(of 40\) that trained or selected the policy"):
            rbi.certify(whole / "policies" / name, data)


def test_the_saved_policies_keep_the_range_and_the_columns_of_their_training_data(whole, data):
    observations = rbi.load_episodes(data).step_observations()
    for name in ("best", "seed1"):
        policy = rbi.load_policy(whole / "policies" / name)
        policy.predict_proba(observations)
        assert policy.outside_range == 0
        assert policy.metadata["table"] == {"action": "push"}
        assert (np.array(policy.features.low) >= observations.min(0)).all()
        assert (np.array(policy.features.high) <= observations.max(0)).all()
        with pytest.warns(UserWarning, match="has 'observation 0' = 1000, where the training data has"):
            assert policy.predict_proba(np.full((1, 4), 1000.0)).sum() == pytest.approx(1)


def test_metrics_have_evenly_spaced_evaluations_and_validations(whole):
    lines = runs.read(whole).metrics
    evaluated = [line for line in lines if line["kind"] == "evaluated"]
    assert [line["updates"] for line in evaluated] == [20, 40]
    assert len(evaluated[0]["scores"]["greedy"][1]) == 4
    validated = [line["updates"] for line in lines if line["kind"] == "validated" and line["seed"] == 0]
    assert validated == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]


def test_without_a_folder_the_result_is_in_memory_and_the_callback_gets_all_metrics(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    settings = SETTINGS | dict(seeds=1, evaluations=1, episodes=3, num_envs=6)
    table = rbi.offline(data, rules=["greedy"], baselines=["cql"], callback=lines.append, **settings)
    assert [row["name"] for row in table.rows] == ["behavior", "greedy", "CQL(1)"]
    assert table.metrics == lines
    assert str(table.policy.rule) == "greedy"
    assert "CQL(1)" in repr(table)
    assert [*tmp_path.iterdir()] == []


def test_the_command_line_calls_the_library_and_shows_the_table(data, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--preset", "small", "--rules", "greedy", "--baselines", "--episodes", 2, "--evaluations", 1]
    words += ["--updates", 20, "--num-envs", 4, "--behavior-q.network.hidden-size", 16, "--out", out]
    assert cli.main(["offline", str(data), *map(str, words)]) == 0
    printed = capsys.readouterr().out
    assert "behaviour policy (cloned)" in printed
    assert "beta and Q, validation set" in printed
    assert {path.name for path in runs.read(out).figures} == {"curves.png", "overfitting.png", "reliability.png"}
    assert runs.read(out).config["settings"]["behavior_q"]["network"]["hidden_size"] == 16
    config = json.loads((out / "config.json").read_text())
    del config["settings"]["data_fraction"]  # as of a version without this setting
    (out / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert cli.main(["offline", str(data), *map(str, words), "--resume"]) == 0  # shown again
    assert "behaviour policy (cloned)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_stopped_during_an_evaluation_resumes_to_the_same_scores(data, whole, tmp_path, monkeypatch):
    path, evaluate, count = tmp_path / "run", VectorEvaluator.evaluate, itertools.count()

    def stops(self, policies, episodes, rng):
        for number, result in enumerate(evaluate(self, policies, episodes, rng)):
            if number == 30 and next(count):  # in the second evaluation
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(VectorEvaluator, "evaluate", stops)
    monkeypatch.setattr(experiment, "MIN_CHECKPOINT_SECONDS", -1)  # a checkpoint before every evaluation
    monkeypatch.setattr(experiment, "MAX_CHECKPOINT_SHARE", np.inf)
    with pytest.raises(KeyboardInterrupt):
        rbi.offline(data, out=path, **SETTINGS)
    monkeypatch.undo()
    assert runs.read(path).result is None
    rbi.offline(data, out=path, resume=True, **SETTINGS)
    assert scores_of(path) == scores_of(whole)
    trained = [[(m["kind"], m["updates"], m.get("train")) for m in runs.read(p).metrics] for p in (path, whole)]
    assert trained[0] == trained[1]
    again = rbi.offline(data, out=path, resume=True, **SETTINGS)
    assert {row["name"]: row["scores"] for row in again.rows} == scores_of(whole)


def test_the_protocol_of_the_evaluation_has_its_limits(data, monkeypatch):
    protocols = []

    class Watched(VectorEvaluator):
        def __init__(self, protocol, *arguments, **options):
            protocols.append(protocol)
            super().__init__(protocol, *arguments, **options)

    monkeypatch.setattr(experiment, "VectorEvaluator", Watched)
    small = dict(SETTINGS, seeds=1, episodes=1, evaluations=1, num_envs=4, rules=["greedy"], baselines=[])
    rbi.offline(data, max_frames=4000, max_idle_frames=400, **small)
    assert [(protocol.max_frames, protocol.max_idle_frames) for protocol in protocols] == [(4000, 400)]


@pytest.mark.parametrize(
    ("num_envs", "policies", "groups"),
    [(270, 45, 6), (300, 3, 6), (4096, 45, 6), (90, 3, 2), (10, 1, 2), (45, 45, 1), (3, 5, 1)],
)
def test_groups_of_environments_are_few_and_have_all_policies(num_envs, policies, groups):
    assert num_groups(num_envs, policies) == groups


@pytest.mark.parametrize(
    ("since_last", "last_took", "due"), [(19, 0.1, False), (21, 0.1, True), (59, 3, False), (61, 3, True)]
)
def test_checkpoints_around_evaluations_take_a_small_share_of_the_time(since_last, last_took, due):
    assert checkpoint_due(since_last, last_took) is due


@pytest.mark.slow
def test_a_run_stopped_after_its_last_evaluation_resumes_to_its_result(data, whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "result.json").unlink()
    shutil.rmtree(path / "policies")
    rbi.offline(data, out=path, resume=True, **SETTINGS)
    assert scores_of(path) == scores_of(whole)
    assert runs.read(path).finished()["rule_statistics"] == runs.read(whole).finished()["rule_statistics"]
    states = rbi.load_episodes(data).step_observations()[:5]
    np.testing.assert_array_equal(
        rbi.load_policy(path).predict_proba(states), rbi.load_policy(whole).predict_proba(states)
    )


@pytest.mark.slow
def test_a_run_stopped_between_two_validations_repeats_and_loses_none(data, whole, tmp_path, monkeypatch):
    path, validate, count = tmp_path / "run", SeedLearners.validate, itertools.count()

    def stops(self):
        if next(count) == 8:  # in the fifth validation of two seeds
            raise KeyboardInterrupt
        return validate(self)

    monkeypatch.setattr(SeedLearners, "validate", stops)
    with pytest.raises(KeyboardInterrupt):
        rbi.offline(data, out=path, checkpoint_minutes=1e-6, **SETTINGS)
    monkeypatch.undo()
    rbi.offline(data, out=path, resume=True, checkpoint_minutes=1e-6, **SETTINGS)
    assert scores_of(path) == scores_of(whole)
    trained = [[m.get("train") for m in runs.read(p).metrics if m["kind"] == "validated"] for p in (path, whole)]
    assert trained[0] == trained[1]


def store(path, *, actions=2, frame=(4,), taken=(0, 1), reward=1.0, env=ENV, episodes=3, masks=False):
    """A small store that may be unusable."""
    rng = np.random.default_rng(0)
    with StoreWriter.create(path, DatasetSpec(frame, actions, 1, env, has_action_masks=masks)) as writer:
        for _ in range(episodes):
            last = np.arange(6) == 5
            obs = rng.normal(size=(6, *frame)).astype(np.float32)
            obs = obs if len(frame) == 1 else (obs > 0).astype(np.uint8)
            legal = np.ones((6, actions), bool) if masks else None
            writer.append(
                Episode(obs, rng.choice(taken, 6), np.full(6, reward), last, last & False, action_masks=legal)
            )
    return path


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        (dict(episodes=0), {}, "holds no episodes"),
        (dict(taken=(1,)), {}, "action 1 is the only one"),
        (dict(reward=0.0), {}, "all rewards are 0"),
        (dict(reward=1e30), {}, r"as large as 1e\+30"),
        (dict(frame=(6,), env="Acrobot-v1", masks=True), {}, "masks have 2"),
        (dict(masks=True), {}, "CartPole-v1: its info has no 'action_mask', and the data has action masks"),
        (dict(env=""), {}, r"does not say in which environment it was recorded; name it with --env \(Python: env=\)"),
        (dict(), dict(rules="greedy"), "rules = 'greedy': must be a list of rules"),
        (dict(), dict(baselines="cql"), "baselines = 'cql': must be a list of baselines"),
        (dict(), dict(baselines=["cql", "bqc"]), r"baselines: 'bqc' is not one of ppo, .*; did you mean bcq\?"),
        (dict(), dict(env="Acrobot-v1"), "the data is of CartPole-v1"),
        (dict(frame=(5,)), {}, r"has observations \(4,\)"),
        (dict(actions=3, taken=(0, 2)), {}, "has 2 actions, and the data 3"),
        (dict(env="NoSuch-v0"), {}, "NoSuch"),
        (dict(episodes=1), {}, "1 episodes"),
        (dict(), dict(rules=["nonsense"]), "nonsense"),
        (dict(), dict(margin=2.0), "margin"),
        (dict(), dict(evaluations=9000), "evaluations"),
        (dict(), dict(seeds=0), "seeds"),
    ],
)
def test_unusable_data_and_settings_are_refused_before_any_work(changes, settings, message, tmp_path):
    path = store(tmp_path / "store", **changes)
    with pytest.raises(ValueError, match=message) as error:
        rbi.offline(path, out=tmp_path / "run", progress=False, **settings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_command_line_refuses_in_one_line(tmp_path, capfd):
    path = store(tmp_path / "store")
    for words, message in (
        (["--updates", "0"], "updates = 0"),
        (["--behavior-q.network.input-dropout", "0.999"], "input_dropout = 0.999"),
        (["--resume", "--out", str(tmp_path / "other")], "'spi'"),
    ):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / "config.json").write_text(json.dumps({"command": "spi"}))
        assert cli.main(["offline", str(path), *words]) == 2
        last = capfd.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("rbi: ")
        assert re.search(message, last), last
    assert cli.main(["offline", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capfd.readouterr().err


def test_returns_that_a_time_limit_cuts_are_used_if_the_user_says_that_episodes_end_there(tmp_path, capfd):
    rng, steps = np.random.default_rng(0), 60
    data = Dataset.from_arrays(
        rng.normal(size=(steps, 4)),
        rng.integers(2, size=steps),
        rng.random(steps),
        np.zeros(steps, bool),
        np.arange(steps) % 6 == 5,
        env=ENV,
    )
    data.save(tmp_path / "logs")
    given = dict(rules=["greedy"], baselines=["ppo"], episodes=2, evaluations=1, num_envs=4, progress=False)
    with pytest.raises(
        ValueError, match=r"too early .*; lower gamma, or use returns as they are with max_missing_return"
    ):
        rbi.offline(data, config=CONFIG, **given)
    found = rbi.offline(data, config=CONFIG, max_missing_return=1, **given)
    assert found.numbers["population"]["excluded"] == 0
    with pytest.raises(ValueError, match=r"^max_missing_return = 2: must be at least 0 and at most 1$"):
        rbi.offline(data, config=CONFIG, max_missing_return=2, **given)
    words = ["offline", str(tmp_path / "logs"), "--out", str(tmp_path / "run"), "--updates", "4", "--evaluations", "1"]
    words += ["--rules", "greedy", "--baselines", "--episodes", "2", "--num-envs", "4"]
    assert cli.main(words) == 2
    assert "max_missing_return = 1" in capfd.readouterr().err
    assert cli.main([*words, "--max-missing-return", "1"]) == 0
    assert runs.read(tmp_path / "run").config["settings"]["max_missing_return"] == 1


def test_images_in_any_format_have_the_preset_of_images(tmp_path):
    for name, frame, preset in (("images", (12, 12), "fast"), ("vectors", (4,), "small")):
        path = tmp_path / f"{name}.parquet"
        made = store(tmp_path / name, frame=frame)
        assert cli.main(["data", "export", str(made), "--out", str(path)]) == 0
        for data in (made, path):
            assert cli.parse(["offline", str(data)]).config == PRESETS[preset]


def test_the_preset_of_a_parquet_table_is_found_without_reading_its_rows(tmp_path, monkeypatch):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    columns = {"episode_id": [0, 0], "action": ["up", "down"], "reward": [0.0, 1.0], "terminated": [False, True]}
    images = arrow.array([[[0, 1], [2, 3]]] * 2, arrow.list_(arrow.list_(arrow.uint8())))
    observed = {"images": (images, "fast"), "vectors": (arrow.array([[0.5, 1.0]] * 2), "small")}
    for name, (obs, _) in observed.items():
        parquet.write_table(arrow.table(columns | {"obs": obs}), tmp_path / f"{name}.parquet")
        assert rbi.load_episodes(tmp_path / f"{name}.parquet").spec.is_image == (name == "images")

    def refuse(*_):
        raise AssertionError("rows are read")

    monkeypatch.setattr(ParquetFiles, "blocks", refuse)
    for name, (_, preset) in observed.items():
        assert cli.parse(["offline", str(tmp_path / f"{name}.parquet")]).config == PRESETS[preset]


def test_policies_of_data_with_masks_insist_on_them_and_take_legal_actions_only(monkeypatch, tmp_path):
    """An illegal action is an error of the environment."""
    monkeypatch.setitem(gymnasium.registry, "Doors-v0", gymnasium.envs.registration.EnvSpec("Doors-v0", Doors))
    recording = DatasetRecording([("random", "random")], "Doors-v0", episodes=6, perturbation=Perturbation(0, 0, 0))
    data = recording.record(tmp_path / "data", progress=False)
    settings = SETTINGS | dict(seeds=1, evaluations=1, episodes=3, num_envs=6, out=tmp_path / "run")
    rbi.offline(data, rules=["reroute(0.5,1.5)"], baselines=["bcq"], **settings)
    policy, states = rbi.load_policy(tmp_path / "run"), np.zeros((5, 3), np.float32)
    with pytest.raises(ValueError, match="legal is missing: this policy learned with action masks"):
        policy.predict_proba(states)
    assert policy.predict_proba(states, np.eye(5, dtype=bool)) == pytest.approx(np.eye(5))


@pytest.mark.usefixtures("undrawn")
def test_masks_of_the_data_may_be_ignored_where_the_environment_needs_none(tmp_path, capfd):
    data, settings = store(tmp_path / "store", masks=True, episodes=40), ["--preset", "small", "--updates", "5"]
    words = ["offline", str(data), "--rules", "greedy", "--baselines", "dqfd", "--evaluations", "1", "--episodes", "2"]
    words += [*settings, "--behavior-q.network.hidden-size", "8", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 2
    assert "learns without the data's masks" in capfd.readouterr().err
    assert cli.main([*words, "--ignore-action-masks"]) == 0
    assert "its action masks are ignored" in "".join(capfd.readouterr())
    policy = rbi.load_policy(tmp_path / "run")
    assert not policy.obs_spec.has_action_masks
    states, legal = rbi.load_episodes(data).step_observations()[:3], np.eye(2, dtype=bool)[[0, 1, 1]]
    assert policy.predict_proba(states).sum(1) == pytest.approx(1)
    assert policy.predict_proba(states, legal) == pytest.approx(legal.astype(float))
    with pytest.raises(ValueError, match="that trained or selected the policy"):
        rbi.certify(policy, data)


def test_data_with_fewer_actions_than_the_environment_gets_them_all(tmp_path):
    found = rbi.load_episodes(store(tmp_path / "store", frame=(6,), env="Acrobot-v1"))
    env = env_of(found, None, "data", RunLog(None, None, progress=False))
    assert env == EnvConfig("Acrobot-v1")
    assert with_actions_of(env, found).spec.num_actions == 3
    assert found.spec.num_actions == 2  # the caller's dataset is not changed


@pytest.mark.parametrize(
    ("recorded", "given", "differs"),
    [
        ("Mine-v0(max_episode_steps=200)", "games:Mine-v0", True),
        ("Mine-v0(max_episode_steps=200)", "games:Mine-v0(max_episode_steps=200)", True),
        (ENV, f"{ENV}(max_episode_steps=9)", True),
        (ENV, ENV, False),
        ("", "games:Mine-v0", False),
    ],
)
def test_the_environment_may_be_named_with_a_module_and_other_arguments_than_the_data_names(
    capsys, recorded, given, differs
):
    """A dataset of Minari names no module, and without it Gymnasium does not find an environment of the user's."""
    data = SimpleNamespace(spec=DatasetSpec((4,), 2, env=recorded))
    assert env_of(data, given, "data", RunLog(None, None)).id == given
    assert (f"recorded in {recorded}; policies are evaluated in {given}" in capsys.readouterr().err) == differs


def test_policies_are_evaluated_in_the_environment_that_a_function_makes(data):
    made = []

    def cart(**settings):
        made.append(gymnasium.make(ENV, max_episode_steps=7, **settings))
        return made[-1]

    settings = SETTINGS | dict(seeds=1, evaluations=1, episodes=3, num_envs=3)
    table = rbi.offline(data, cart, rules=["greedy"], baselines=[], **settings)
    assert len(made) > 3
    assert table.numbers["env"] == table.policy.env == "cart"
    assert max(max(seed) for row in table.rows for seed in row["scores"]) <= 7


def test_actions_with_names_are_not_taken_for_those_of_an_environment(data):
    """Texts are numbered in their order, which need not be the environment's."""
    found = rbi.load_episodes(data)
    found.spec = replace(found.spec, action_names=("hold", "push"), env="")
    with pytest.raises(ValueError, match=r"CartPole-v1: its actions are numbered, .* called hold, push"):
        rbi.offline(found, ENV, baselines=[], **SETTINGS)
    policy = rbi.improve(found, updates=2, batch_size=8, hidden_size=8, progress=False).policy
    with pytest.raises(ValueError, match=r"CartPole-v1: its actions are numbered, .* called hold, push"):
        rbi.evaluate(policy, ENV, episodes=1)


def test_names_of_the_actions_of_an_environment_are_kept_where_data_was_recorded_in_it(data):
    found = rbi.load_episodes(data)
    found.spec = replace(found.spec, action_names=("left", "right"))
    policy = rbi.improve(found, updates=2, batch_size=8, hidden_size=8, progress=False).policy
    assert policy.action_names == with_actions_of(EnvConfig(ENV), found).spec.action_names == ("left", "right")
    assert rbi.evaluate(policy, ENV, episodes=1, progress=False).scores


def test_scores_of_the_data_count_up_to_the_same_step_as_those_of_the_policies(tmp_path):
    found = rbi.load_episodes(store(tmp_path / "store"))
    assert describe_population(found)["mean"] == 6
    assert describe_population(found, 4)["mean"] == 4
    assert describe_population(found, 4)["max_steps"] == 4
    assert describe_population(found, 9)["mean"] == 6


def test_every_seed_and_every_evaluation_draws_episodes_of_its_own():
    draws = {}

    def evaluate(_policies, _episodes, rng):
        draws[seed, number] = rng.random()
        return []

    for seed, number in ((0, 1), (0, 2), (1, 1), (1, 2)):
        experiment = SimpleNamespace(
            evaluation=EvaluationConfig(), seeds=[SimpleNamespace(seed=seed)], rows=[],
            evaluator=SimpleNamespace(evaluate=evaluate), log=SimpleNamespace(progress=False),
        )  # fmt: skip
        Experiment.evaluate(experiment, [], number)
    assert len(set(draws.values())) == 4


def test_scores_belong_to_the_row_and_the_seed_of_their_policy():
    rows, seeds = ("behavior", "greedy", "DQfD"), (0, 1)
    policies = [f"{row} of seed {seed}" for seed in seeds for row in rows]  # as each seed makes them

    def evaluate(policies, episodes, _rng):
        return [(number, SimpleNamespace(score=policies[number])) for _ in range(episodes) for number in range(6)]

    experiment = SimpleNamespace(
        evaluation=EvaluationConfig(episodes=2), seeds=[SimpleNamespace(seed=seed) for seed in seeds],
        rows=[SimpleNamespace(name=row) for row in rows], evaluator=SimpleNamespace(evaluate=evaluate),
        log=SimpleNamespace(progress=False),
    )  # fmt: skip
    scores = Experiment.evaluate(experiment, policies, EvaluationConfig().evaluations)
    assert scores == {row: [[f"{row} of seed {seed}"] * 2 for seed in seeds] for row in rows}


def test_abandoned_episodes_are_no_scores_of_the_data_where_there_are_others():
    def episode(score, abandoned):
        last = np.array([False, True])
        obs = np.zeros((2, 1), np.float32)
        rewards = np.array([0.0, score])
        return Episode(obs, np.array([0, 1]), rewards, last & (not abandoned), last & abandoned, abandoned=abandoned)

    episodes = [episode(4.0, False), episode(6.0, False), episode(80.0, True)]
    spec = DatasetSpec((1,), 2)
    assert describe_population(Dataset.from_episodes(episodes, spec))["mean"] == 5
    assert describe_population(Dataset.from_episodes(episodes[2:], spec))["mean"] == 80


@pytest.mark.parametrize(
    ("env", "max_frames", "steps"), [("ALE/Pong-v5", 4000, 1000), ("ALE/Pong-v5", 108_000, None), (ENV, 4000, None)]
)
def test_scores_of_the_data_are_cut_after_the_steps_of_a_shorter_atari_episode(env, max_frames, steps):
    protocol = Protocol("paper", max_frames=max_frames)
    assert Experiment.max_steps(SimpleNamespace(env=EnvConfig(env), protocol=protocol)) == steps


def test_the_behaviour_policy_has_one_row_even_if_it_is_asked_for():
    assert [row.name for row in policy_rows(["behavior", "greedy"], [], CONFIG)] == ["behavior", "greedy"]
