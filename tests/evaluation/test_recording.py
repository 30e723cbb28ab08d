"""Recording of episodes: frames, actions and rewards as they happened, perturbed policies, scripted policies."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from pytest import approx

import rbi
from rbi import envs
from rbi.cli import main
from rbi.data.episode import DatasetSpec
from rbi.data.store import Store
from rbi.envs.gym import GymVector
from rbi.envs.types import EnvConfig, TimeStep
from rbi.evaluation.batched_policies import random_actions
from rbi.evaluation.recording import (
    DatasetRecording,
    Perturbation,
    PerturbedPolicy,
    Recorder,
    load_policies,
    split_evenly,
)
from rbi.evaluation.scripted import CrossRoadPolicy, FollowBallPolicy, RandomPolicy, RoutePolicy
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.rules.types import Behavior, Greedy
from tests.games import Doors


class Counting:
    """Observations are (index of the environment, step); every episode of environment i has i + 2 steps."""

    obs_shape, frame_stack, num_actions, has_action_masks, pending = (2,), 1, 3, False, False

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.time = np.zeros(num_envs, dtype=int)
        self.sent, self.stopped = [], []

    def seen(self, first, reward, end):
        frame = np.stack([np.arange(self.num_envs), self.time], axis=1).astype(np.float32)
        return envs.TimeStep(frame, first, reward.astype(np.float32), end.astype(np.uint8))

    def reset(self, _seed):
        self.time[:] = 0
        self.over = np.zeros(self.num_envs, dtype=bool)
        none = np.zeros(self.num_envs)
        return self.seen(np.ones(self.num_envs, dtype=bool), none, none)

    def send(self, actions):
        self.sent.append(actions.copy())

    def stop(self, env_index):
        self.stopped.append(env_index)

    def recv(self):
        first = self.over.copy()
        self.time = np.where(first, 0, self.time + 1)
        self.over = ~first & (self.time == np.arange(self.num_envs) + 2)
        return self.seen(first, np.where(first, 0, self.time), np.where(self.over, 2, 0))


SPEC = DatasetSpec((2,), 3, has_action_probs=True)


def record(policies, episodes=None, steps=None, seed=0):
    recorder = Recorder(Counting(len(policies)), policies, SPEC, "test", np.random.default_rng(seed))
    return list(recorder.episodes(episodes, steps)), recorder


def test_every_environment_records_its_share_of_complete_episodes():
    policies = [PerturbedPolicy(f"p{i}", RandomPolicy(3)) for i in range(3)]
    found, recorder = record(policies, episodes=7)
    assert recorder.vector_env.stopped == [1, 0, 2]  # each after its last episode
    assert sorted(e.player for e in found) == ["p0"] * 3 + ["p1"] * 2 + ["p2"] * 2
    assert sorted(e.line for e in found) == [*range(1, 8)]
    for one in found:
        i = int(one.player[1])
        assert len(one) == i + 2
        assert one.terminated[-1]
        assert one.has_final
        np.testing.assert_array_equal(one.observations, [[i, t] for t in range(i + 3)])
        np.testing.assert_array_equal(one.rewards, np.arange(1, i + 3))


def test_an_environment_without_an_episode_to_record_does_not_run():
    policies = [PerturbedPolicy(f"p{i}", RandomPolicy(3)) for i in range(3)]
    found, recorder = record(policies, episodes=2)
    assert sorted(e.player for e in found) == ["p0", "p1"]
    assert recorder.vector_env.stopped == [2, 0, 1]


def test_recording_a_number_of_steps_truncates_the_last_episodes():
    policies = [PerturbedPolicy("p", RandomPolicy(3))] * 4
    found, recorder = record(policies, steps=50)
    assert recorder.steps == sum(len(e) for e in found)
    assert 50 <= recorder.steps < 54
    assert any(e.truncated[-1] and not e.abandoned for e in found)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_policies_and_scripted_models_play_side_by_side(device):
    """Two policies share networks, a third has its own, and none computes for the environment of another."""
    shared, other = (make_networks(ObservationSpec((2,), 1, 3), NetworkConfig(16), seed) for seed in (0, 1))
    trained = [Policy(shared, Behavior()), Policy(shared, Greedy()), Policy(other, Behavior())]
    models = [RandomPolicy(3), *(policy.to(device) for policy in trained)]
    found, _ = record([PerturbedPolicy(str(i), models[i % 4]) for i in range(8)], episodes=40)
    for one in found:
        expected = models[int(one.player) % 4].predict_proba(one.observations[:-1])
        chosen = expected[np.arange(len(one)), one.actions]
        np.testing.assert_allclose(one.action_probs, chosen, rtol=1e-5)


def test_the_logged_probability_is_that_of_the_action():
    class Sure:
        def predict_proba(self, states):
            return np.tile([0.2, 0.8, 0.0], (len(states), 1))

    found, _ = record([PerturbedPolicy("p", Sure(), epsilon=0.3)] * 2, episodes=200)
    actions = np.concatenate([e.actions for e in found])
    probs = np.concatenate([e.action_probs for e in found])
    expected = 0.7 * np.array([0.2, 0.8, 0.0]) + 0.1
    np.testing.assert_allclose(probs, expected[actions], rtol=1e-6)
    shares = np.bincount(actions, minlength=3) / len(actions)
    assert np.abs(shares - expected).max() < 0.08


def test_actions_are_executed_after_the_delay():
    class ByTime:
        def predict_proba(self, states):
            return np.eye(3)[states[:, 0, 1].astype(int) % 3]

    [one, *_], _ = record([PerturbedPolicy("p", ByTime())] * 4, episodes=4)
    assert [int(a) for a in one.actions] == [t % 3 for t in range(len(one))]
    found, _ = record([PerturbedPolicy("p", ByTime(), action_delay=2)] * 4, episodes=4)
    longest = max(found, key=len)
    assert [int(a) for a in longest.actions] == [0, 0, *(t % 3 for t in range(len(longest) - 2))]


def test_abandoned_episodes_are_recorded_up_to_their_end():
    found, _ = record([PerturbedPolicy("p", RandomPolicy(3), abandon_rate=0.3)] * 4, episodes=60)
    quits = [e for e in found if e.abandoned]
    assert 5 < len(quits) < 60
    assert all(e.truncated[-1] and not e.terminated[-1] for e in quits)
    assert all(len(e) < 6 for e in quits)
    assert all(int(e.observations[0, 1]) == 0 for e in found)  # every episode starts at its first step


def test_a_population_has_every_policy_with_different_perturbations_and_is_reproducible():
    policies = [("a", RandomPolicy(3)), ("b", RandomPolicy(3))]
    populations = [
        Perturbation(epsilon=0.5, action_delay=3, abandon_rate=0.1).population(40, policies, np.random.default_rng(1))
        for _ in range(2)
    ]
    assert [p.name for p in populations[0]] == [p.name for p in populations[1]]
    assert sum(p.policy is policies[0][1] for p in populations[0]) == 20
    assert {p.action_delay for p in populations[0]} == {0, 1, 2, 3}
    assert 0 < np.mean([p.abandon_rate > 0 for p in populations[0]]) < 1
    assert max(p.epsilon for p in populations[0]) <= 0.5
    assert len({p.name for p in populations[0]}) == 40


@pytest.mark.parametrize("changes", [dict(epsilon=1.5), dict(action_delay=-1), dict(abandon_rate=2)])
def test_invalid_perturbations_are_rejected(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        Perturbation(**changes)
    with pytest.raises(ValueError, match=next(iter(changes))):
        PerturbedPolicy("p", RandomPolicy(3), **changes)


def test_episodes_are_split_evenly():
    assert split_evenly(10, 4) == [3, 3, 2, 2]
    assert sum(split_evenly(3, 8)) == 3


def test_the_freeway_policy_crosses_the_road():
    env = "ALE/Freeway-v5"
    vector_env = envs.make(EnvConfig(env), 4)
    spec = DatasetSpec(vector_env.obs_shape, vector_env.num_actions, vector_env.frame_stack, env)
    policies = [PerturbedPolicy("p", CrossRoadPolicy(env, vector_env.num_actions))] * 4
    found = list(Recorder(vector_env, policies, spec, "", np.random.default_rng(0)).episodes(None, 1200))
    vector_env.close()
    assert all(episode.score >= 2 for episode in found)
    with pytest.raises(ValueError, match="Freeway"):
        CrossRoadPolicy("ALE/Pong-v5", 6)


@pytest.mark.slow
def test_the_montezuma_policy_follows_its_routes_from_most_starts_and_returns_to_them_after_random_actions():
    env = "ALE/MontezumaRevenge-v5"
    vector_env = envs.make(EnvConfig(env), 12)
    spec = DatasetSpec(vector_env.obs_shape, vector_env.num_actions, vector_env.frame_stack, env)
    policy = RoutePolicy(env, vector_env.num_actions)
    assert policy.scores == [3500, 6600, 6700, 3600]
    policies = [PerturbedPolicy("exact", policy)] * 8 + [PerturbedPolicy("perturbed", policy, epsilon=0.01)] * 4
    found = list(Recorder(vector_env, policies, spec, "", np.random.default_rng(0)).episodes(None, 12 * 900))
    vector_env.close()
    exact, perturbed = (
        [episode.score for episode in found if episode.player == name] for name in ("exact", "perturbed")
    )
    assert sum(score >= 400 for score in exact) >= 5  # through the first door; routes differ in what follows by then
    assert max(exact) >= 2500
    assert max(perturbed) >= 100
    assert np.mean(perturbed) < np.mean(exact)
    longest = max(found, key=len)  # of 900 steps at least
    still = np.repeat(longest.observations[None, [300]], 4, 1)  # a place from which nothing moves
    chosen = [policy.predict_proba(still)[0] for _ in range(400)]
    assert chosen[0].max() == 1
    assert chosen[-1].max() == approx(1 / vector_env.num_actions)  # it is stuck
    start = np.concatenate([np.zeros_like(still[:, :3]), still[:, 3:]], 1)
    assert policy.predict_proba(start)[0].max() == 1  # another episode


def test_the_montezuma_policy_plays_no_other_game():
    with pytest.raises(ValueError, match="Montezuma"):
        RoutePolicy("ALE/Pong-v5", 6)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["ALE/Breakout-v5", "ALE/Pong-v5"])
def test_the_ball_following_policy_beats_the_random_policy(env):
    vector_env = envs.make(EnvConfig(env), 4)
    spec = DatasetSpec(vector_env.obs_shape, vector_env.num_actions, vector_env.frame_stack, env)
    scores = []
    for policy in (RandomPolicy(vector_env.num_actions), FollowBallPolicy(env, vector_env.num_actions)):
        policies = [PerturbedPolicy("p", policy, epsilon=0.05)] * 4
        found = Recorder(vector_env, policies, spec, "", np.random.default_rng(0)).episodes(None, 2400)
        scores.append(sum(e.score for e in found))
    vector_env.close()
    assert scores[1] > scores[0] + 20


@pytest.mark.usefixtures("undrawn")
def test_the_command_records_a_population_of_a_training_run_and_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = "--schedule.updates 40 --schedule.learning-starts 200 --schedule.hidden-size 16 --eval-episodes 0"
    assert main(["train", "--env", "CartPole-v1", *short.split(), "--save-snapshots", "2", "--out", "run"]) == 0
    kept = sorted(p.name for p in (tmp_path / "run" / "policies").iterdir() if p.name.startswith("updates"))
    assert kept == ["updates-00000020", "updates-00000040"]
    crowd = ["data", "record", "run", "random", "--population", "6", "--episodes", "12", "--out", "crowd"]
    assert main(crowd) == 0
    store = Store(tmp_path / "crowd")
    assert len(store) == 12
    assert len(set(store.players)) == 6
    assert all(any(name in player for player in store.players) for name in (*kept, "random"))
    before = (tmp_path / "crowd" / "actions.bin").read_bytes()
    records = (tmp_path / "crowd" / "episodes.bin").read_bytes()
    (tmp_path / "crowd" / "episodes.bin").write_bytes(records[: -5 * len(records) // 12])  # as if killed while writing
    (tmp_path / "crowd" / "result.json").unlink()
    assert main([*crowd, "--resume"]) == 0
    again = Store(tmp_path / "crowd")
    assert len(again) == 12
    assert again.arrays["actions"].tobytes()[:40] == before[:40]
    assert list(again.verify()) == []


@pytest.mark.usefixtures("undrawn")
def test_the_library_and_the_command_line_record_the_same_episodes_and_continue_each_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = rbi.record("random", "CartPole-v1", episodes=3, epsilon=0.5, seed=4, out="library", progress=False)
    assert isinstance(data, rbi.Dataset)
    more = ["data", "record", "random", "--env", "CartPole-v1", "--epsilon", "0.5", "--seed", "4", "--episodes"]
    assert main([*more, "3", "--out", "command"]) == 0
    assert [e.observations.tolist() for e in rbi.load_episodes("command")] == [e.observations.tolist() for e in data]
    assert main([*more, "5", "--out", "library", "--resume"]) == 0
    options = dict(epsilon=0.5, seed=4, progress=False)
    again = rbi.record("random", "CartPole-v1", episodes=5, out="command", resume=True, **options)
    assert [e.actions.tolist() for e in again] == [e.actions.tolist() for e in rbi.load_episodes("library")]
    assert len(again) == 5
    with pytest.raises(ValueError, match=r"was started with epsilon = 0\.5, not 0\.0"):
        rbi.record("random", "CartPole-v1", episodes=6, seed=4, out="command", resume=True)
    saved = json.loads(Path("command/config.json").read_text())
    del saved["settings"]["perturbation"], saved["settings"]["max_frames"]  # as of a version without them
    Path("command/config.json").write_text(json.dumps(saved))
    assert len(rbi.record("random", "CartPole-v1", episodes=6, out="command", resume=True, **options)) == 6
    assert json.loads(Path("command/config.json").read_text())["settings"]["max_frames"] == 108_000
    in_memory = rbi.record("random", "CartPole-v1", episodes=3, **options)
    assert [e.actions.tolist() for e in in_memory] == [e.actions.tolist() for e in data]


class Right:
    """A policy of a user's own: right with probability 0.9."""

    def predict_proba(self, states):
        assert states.shape[1:] == (1, 4)
        return np.tile([0.1, 0.9], (len(states), 1))


def cart(render_mode=None):
    return gymnasium.make("CartPole-v1", render_mode=render_mode)


def test_policies_of_ones_own_are_recorded_with_their_probabilities_in_an_environment_of_ones_own():
    data = rbi.record([Right(), "random"], cart, steps=60, num_envs=2, progress=False)
    assert data.spec.env == "cart"
    assert set(data.players) == {"policy 1", "random"}
    for episode in data:
        wanted = np.array([0.1, 0.9] if episode.player == "policy 1" else [0.5, 0.5])
        np.testing.assert_allclose(episode.action_probs, wanted[episode.actions])


class Answers:
    """A policy of a user's own that gives the same in every state."""

    def __init__(self, answer):
        self.answer = answer

    def predict_proba(self, states):
        return self.answer if isinstance(self.answer, list) else self.answer.expand(len(states), -1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([[0.7, 0.7]], r"gave \[0\.7, 0\.7\]: must be probabilities that add up to 1"),
        ([[1.5, -0.5]], ".*: must be probabilities"),
        ([[float("nan"), 0.5]], ".*: must be probabilities"),
        ([[0.2, 0.3, 0.5]], r"gave an array of shape \(1, 3\): must be \(1, 2\)"),
        ([0.5, 0.5], r"gave an array of shape \(2,\)"),
    ],
)
def test_what_is_no_probability_is_not_recorded(answer, why):
    """Recorded probabilities are the weights of certificates."""
    with pytest.raises(ValueError, match=rf"^policies: predict_proba of Answers {why}"):
        rbi.record(Answers(answer), "CartPole-v1", episodes=1, progress=False)


def test_a_policy_may_answer_with_a_tensor_that_has_a_gradient():
    answer = torch.tensor([0.25, 0.75], requires_grad=True)
    data = rbi.record(Answers(answer), "CartPole-v1", episodes=2, progress=False)
    assert set(np.concatenate([episode.action_probs for episode in data]).tolist()) == {0.25, 0.75}


@pytest.mark.parametrize(
    ("policies", "changes", "message"),
    [
        ([], {}, "policies: name a run of training"),
        (3, {}, "policies: 3 is no policy"),
        ("random", dict(env=None), "name the environment to record in"),
        ("random", dict(episodes=0), "either episodes or steps"),
        ("random", dict(num_envs=-1), "num_envs = -1: must be at least 0"),
        ("random", dict(resume=True), "resume: name the recording with out"),
    ],
)
def test_what_cannot_be_recorded_is_refused(policies, changes, message):
    with pytest.raises(ValueError, match=message):
        rbi.record(policies, **{"env": "CartPole-v1", "episodes": 2, **changes})


def test_two_policies_get_two_environments_and_long_games_are_truncated(tmp_path):
    games = ["--env", "ALE/Freeway-v5", "--max-frames", "80"]
    command = ["data", "record", "random", "cross", *games, "--episodes", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    store = Store(tmp_path / "out")
    assert [(len(episode), bool(episode.truncated[-1])) for episode in store] == [(20, True)]


def recorded(out, **size):
    return DatasetRecording([("random", "random")], "CartPole-v1", seed=3, **size).record(out, progress=False)


def test_a_continued_recording_draws_other_episodes_and_numbers_them_on(tmp_path):
    recorded(tmp_path / "store", episodes=2)
    store = recorded(tmp_path / "store", episodes=4)
    first = [store[number].observations[0].tolist() for number in range(4)]
    assert len({tuple(each) for each in first}) == len(store) == 4
    assert store.records["line"].tolist() == [1, 2, 3, 4]


def test_a_continued_recording_ends_after_its_number_of_steps(tmp_path):
    before = recorded(tmp_path / "store", steps=40).steps
    assert recorded(tmp_path / "store", steps=before).steps == before
    more = recorded(tmp_path / "store", steps=before + 20).steps
    assert before + 20 <= more < before + 40


class Overwriting(Counting):
    """Shows its observations in the same memory again and again, as emulators in other processes do."""

    def seen(self, *parts):
        step = super().seen(*parts)
        self.shown = getattr(self, "shown", step.obs)
        self.shown[:] = step.obs
        return step._replace(obs=self.shown)


def test_frames_are_copied_before_the_environment_overwrites_them():
    policy = PerturbedPolicy("p", RandomPolicy(3))
    recorder = Recorder(Overwriting(1), [policy], SPEC, "test", np.random.default_rng(0))
    (one,) = recorder.episodes(1, None)
    np.testing.assert_array_equal(one.observations, [[0, 0], [0, 1], [0, 2]])


def test_the_policies_of_a_run_are_its_snapshots_if_it_has_any(tmp_path):
    networks = make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(4), 0)
    found = []
    for names in (("best", "last"), ("updates-00000010", "updates-00000020")):
        for name in names:
            Policy(networks, Greedy()).save(tmp_path / "run" / "policies" / name)
        loaded = load_policies([str(tmp_path / "run")], torch.device("cpu"), snapshots=True)
        found.append([name for name, _ in loaded])
    assert found == [["run/best", "run/last"], ["run/updates-00000010", "run/updates-00000020"]]


def test_a_store_of_another_environment_is_not_continued(tmp_path):
    first = DatasetRecording([("random", "random")], "CartPole-v1", episodes=2)
    first.record(tmp_path / "s", progress=False)
    other = DatasetRecording([("random", "random")], "CartPole-v1(max_episode_steps=9)", episodes=4)
    with pytest.raises(ValueError, match=r"holds .*CartPole-v1"):
        other.record(tmp_path / "s", progress=False)


def test_with_masks_the_recorded_probability_is_that_among_the_legal_actions():
    """Of a policy that knows no masks, mixed with random actions. After an abandoned episode they are legal, too."""
    spec = DatasetSpec((3,), 5, 1, "Doors", has_action_probs=True, has_action_masks=True)
    member = PerturbedPolicy("second", Fixed([0, 0, 0.75, 0.25, 0]), epsilon=0.2, abandon_rate=0.2)
    vector = GymVector(EnvConfig.of(Doors), 3)
    recorder = Recorder(vector, [member] * 3, spec, "test", np.random.default_rng(0))
    for episode in recorder.episodes(30, None):
        for action, prob, legal in zip(episode.actions, episode.action_probs, episode.action_masks, strict=True):
            own = np.array([0, 0, 0.75, 0.25, 0]) * legal
            own = own / own.sum() if own.any() else legal / legal.sum()
            assert prob == approx(0.8 * own[action] + 0.2 / legal.sum())


class Fixed:
    """The same probabilities in every state."""

    def __init__(self, probs):
        self.probs = probs

    def predict_proba(self, states):
        return np.tile(self.probs, (len(states), 1))


def test_random_actions_are_uniform_among_the_legal_ones():
    legal = np.tile([True, False, True, True], (9999, 1))
    step = TimeStep(np.zeros((9999, 1)), *np.zeros((3, 9999)), legal)
    share = np.bincount(random_actions(step, 4, np.random.default_rng(0)), minlength=4) / 9999
    assert share == approx([1 / 3, 0, 1 / 3, 1 / 3], abs=0.02)
