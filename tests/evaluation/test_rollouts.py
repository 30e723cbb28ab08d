"""Vectorised evaluation: protocol, episode statistics, batched policies, many policies in one set of environments."""

import os
from collections import Counter
from dataclasses import replace
from itertools import islice

import gymnasium
import numpy as np
import pytest
import torch

import rbi
from rbi import cli, envs, runs
from rbi.data.episode import FeatureRange
from rbi.data.visits import PseudoCounts, VisitCounts, state_keys
from rbi.envs.types import EnvConfig, TimeStep
from rbi.evaluation import rollouts
from rbi.evaluation.batched_policies import BatchedPolicies, group_policies
from rbi.evaluation.rollouts import (
    EpisodeResult,
    EpisodeStatistics,
    Protocol,
    RecentScores,
    VectorEvaluator,
    run_episodes,
)
from rbi.networks import NetworkConfig, make_networks, offline_network
from rbi.observations import ObservationSpec, roll_stacks, zero_stacks
from rbi.policy import Policy
from rbi.rules.types import BCQ, Behavior, Greedy, Reroute, parse_rule
from rbi.steps import CONTINUES, TERMINATED, TRUNCATED
from tests.games import Catch, Doors

ACTIONS = 5
SPEC = ObservationSpec((3,), 1, ACTIONS)


class Corridors:
    """Episodes of environment i have i + 1 steps with reward 1; observations are random numbers."""

    num_actions, obs_shape, frame_stack, has_action_masks = ACTIONS, (3,), 1, False

    def __init__(self, _config, num_envs):
        self.num_envs, self.lengths = num_envs, np.arange(num_envs) + 1
        self.resets, self.shown, self.taken, self.closed, self.pending = 0, [], [], False, False
        self.stopped = np.zeros(num_envs, bool)
        self.stepped = 0

    def seen(self, first, end):
        self.shown.append(self.rng.normal(size=(self.num_envs, 3)).astype(np.float32))
        return TimeStep(self.shown[-1], first, (~first).astype(np.float32), end.astype(np.uint8))

    def reset(self, seed):
        assert not self.pending
        self.resets, self.rng = self.resets + 1, np.random.default_rng(seed)
        self.shown, self.taken, self.stopped[:] = [], [], False
        self.steps, self.over = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return self.seen(np.ones(self.num_envs, bool), np.zeros(self.num_envs))

    def send(self, actions):
        assert actions.shape == (self.num_envs,)
        assert not self.pending
        self.taken.append(actions.copy())
        self.pending = True

    def recv(self):
        assert self.pending
        first, self.pending = self.over, False
        self.stepped += int((~self.stopped).sum())
        self.steps = np.where(first, 0, self.steps + 1)
        self.over = self.steps == self.lengths
        return self.seen(first, np.where(self.over, TERMINATED, CONTINUES))

    def stop(self, env_index):
        self.stopped[env_index] = True

    def close(self):
        self.closed = True


def nets(seed, with_policy=True, obs_spec=SPEC):
    return make_networks(obs_spec, NetworkConfig(16), seed, with_policy=with_policy)


def evaluator(num_envs, epsilon=0.0, num_groups=1):
    return VectorEvaluator(Protocol("paper", epsilon), "Corridors-v0", num_envs, Corridors, num_groups=num_groups)


def generator(seed=0):
    return np.random.default_rng(seed)


def sharing():
    """Five deterministic policies: three share networks, two have their own; two have the same rule."""
    shared = nets(0)
    others = [Policy(nets(1), Greedy()), Policy(nets(2, with_policy=False), Greedy())]
    return [Policy(shared, Greedy()), others[0], Policy(shared, BCQ(1.0)), others[1], Policy(shared, Greedy())]


def batch_sizes(networks):
    """Batch sizes of all later calls of a Q-network."""
    sizes = []
    networks.q.register_forward_hook(lambda _module, given, _result: sizes.append(len(given[0])))
    return sizes


def recorded(vectorised, env_index, episodes, group=0):
    """Observations and actions of one environment during its episodes.

    An action is chosen at every step, and at every final observation but the last.
    """
    decisions = episodes * (env_index + 1) + episodes - 1
    env = vectorised.vector_envs[group]
    assert decisions <= len(env.taken)
    return tuple(np.stack(rows)[:decisions, env_index] for rows in (env.shown, env.taken))


def started_by(env_indices, episodes, group_size=1000):
    """Episodes that each environment of a policy starts, if every free one starts the next: a slow simulation."""
    started = dict.fromkeys(env_indices, 0)
    free_at = dict.fromkeys(env_indices, 0)
    for time in range(1000):
        for i in env_indices:
            if free_at[i] == time and sum(started.values()) < episodes:
                started[i] += 1
                length = i % group_size + 1
                free_at[i] = time + length + (started[i] > 1)  # a final observation takes one more step
    return {i: count for i, count in started.items() if count}


def episodes_of(played):
    """Number of episodes per environment."""
    return Counter(outcome.env_index for _, outcome in played)


@pytest.mark.parametrize("num_envs", [1, 2, 5, 8, 12, 23])
@pytest.mark.parametrize("episodes", [1, 4, 7])
def test_every_policy_runs_exactly_the_requested_episodes_in_its_free_environments(num_envs, episodes):
    played = list(evaluator(num_envs).evaluate(sharing(), episodes, generator()))
    assert Counter(number for number, _ in played) == dict.fromkeys(range(5), episodes)
    assert all(outcome.score == outcome.steps == outcome.env_index + 1 for _, outcome in played)
    for number in range(5):
        shares = Counter(outcome.env_index for n, outcome in played if n == number)
        place = number % num_envs  # later batches start at the first environment again
        each = num_envs // min(num_envs, 5 - (number - place))
        first = place * each
        assert dict(shares) == started_by(range(first, first + each), episodes)


@pytest.mark.parametrize("num_groups", [2, 3])
@pytest.mark.parametrize("episodes", [1, 3, 4, 9, 30])
def test_groups_of_environments_share_the_requested_episodes(num_groups, episodes):
    vectorised = evaluator(10 * num_groups, num_groups=num_groups)
    played = list(vectorised.evaluate(sharing(), episodes, generator()))
    assert Counter(number for number, _ in played) == dict.fromkeys(range(5), episodes)
    for number in range(5):
        own = [10 * group + 2 * number + i for group in range(num_groups) for i in range(2)]
        shares = Counter(outcome.env_index for n, outcome in played if n == number)
        assert dict(shares) == started_by(own, episodes, group_size=10)


def test_a_group_without_active_environments_does_not_step():
    vectorised = evaluator(20, num_groups=2)
    list(vectorised.evaluate(sharing(), 2, generator()))  # all start in the first group
    assert [len(env.taken) for env in vectorised.vector_envs] == [10, 0]
    list(vectorised.evaluate(sharing(), 3, generator()))  # one more per policy in the second group
    assert [len(env.taken) for env in vectorised.vector_envs] == [10, 9]


def test_only_environments_with_episodes_left_are_stepped():
    ours = evaluator(6)
    list(ours.evaluate([Policy(nets(0), Greedy())], 4, generator()))
    (env,) = ours.vector_envs
    assert env.stepped == 1 + 2 + 3 + 4  # the lengths of the episodes
    assert env.stopped.all()


@pytest.mark.parametrize(("episodes", "used"), [(1, 2), (8, 2), (9, 3), (16, 4), (40, 5)])
def test_few_episodes_use_few_groups(episodes, used):
    """Two environments per policy and group, and two episodes per environment at least, as long as two groups run."""
    vectorised = evaluator(50, num_groups=5)
    played = list(vectorised.evaluate(sharing(), episodes, generator()))
    assert Counter(number for number, _ in played) == dict.fromkeys(range(5), episodes)
    assert [env.resets for env in vectorised.vector_envs] == [1] * used + [0] * (5 - used)


def check_actions_of_two_groups(device):
    policies, vectorised = sharing(), evaluator(20, num_groups=2)
    for policy in policies:
        policy.to(device)
    count = episodes_of(vectorised.evaluate(policies, 5, generator()))
    assert len(count) > 10
    for env_index, episodes in count.items():
        group, place = divmod(env_index, 10)
        states, taken = recorded(vectorised, place, episodes, group)
        assert np.array_equal(taken, policies[place // 2].mode(states))


def test_policies_in_two_groups_act_as_they_would_alone():
    check_actions_of_two_groups("cpu")


def test_deterministic_evaluation_takes_the_most_probable_actions():
    policies = [Policy(nets(0), Reroute(0.5, 1.5)), Policy(nets(1), Behavior())]
    protocol = Protocol("paper", deterministic=True)
    vectorised = VectorEvaluator(protocol, "Corridors-v0", 10, Corridors)
    count = episodes_of(vectorised.evaluate(policies, 5, generator()))
    for env_index, episodes in count.items():
        states, taken = recorded(vectorised, env_index, episodes)
        assert np.array_equal(taken, policies[env_index // 5].mode(states))
    assert "the policy's most probable actions; " in protocol.describe("CartPole-v1")


@pytest.mark.gpu
def test_policies_in_two_groups_on_a_gpu_act_as_they_would_alone():
    check_actions_of_two_groups("cuda")


def test_every_started_episode_is_counted_however_long_it_is():
    played = list(evaluator(20).evaluate([Policy(nets(0), Greedy())], 21, generator()))
    assert sorted(outcome.env_index for _, outcome in played) == [0, *range(20)]


def test_an_episode_that_may_never_end_is_reported_once(capsys, monkeypatch):
    for limit, expected in ((5, 1), (8, 0)):  # the longest of these corridors ends with step 8
        monkeypatch.setattr(rollouts, "LONG_EPISODE", limit)
        list(evaluator(8).evaluate([Policy(nets(0), Greedy())], 8, generator()))
        told = capsys.readouterr().err
        assert told.count("an episode of Corridors-v0 has taken 5 steps so far; if it may never end") == expected
        assert bool(told) == bool(expected)


class Stuck(Corridors):
    """As corridors, with a reward in the first three steps of an episode only."""

    def seen(self, first, end):
        step = super().seen(first, end)
        return step._replace(reward=np.where(self.steps <= 3, step.reward, 0.0).astype(np.float32))


def test_an_idle_episode_counts_as_truncated_once_no_other_waits_for_its_environment():
    protocol = Protocol("paper", max_idle_frames=20)  # five steps
    with VectorEvaluator(protocol, "ALE/Corridors-v0", 12, Stuck) as vectorised:
        found = [episode for _, episode in vectorised.evaluate([Policy(nets(0), Greedy())], 12, generator())]
    assert sorted((e.env_index, e.score, e.steps, e.truncated) for e in found) == [
        (i, min(3, i + 1), min(8, i + 1), i >= 8) for i in range(12)
    ]


class AlwaysStuck(Stuck):
    """All episodes have nine steps."""

    def __init__(self, config, num_envs):
        super().__init__(config, num_envs)
        self.lengths[:] = 9


def test_an_episode_that_ended_idle_counts_once_and_the_next_one_is_played():
    protocol = Protocol("paper", max_idle_frames=18)  # five steps
    with VectorEvaluator(protocol, "ALE/Corridors-v0", 1, AlwaysStuck) as vectorised:
        found = [episode for _, episode in vectorised.evaluate([Policy(nets(0), Greedy())], 3, generator())]
    assert [(e.steps, e.truncated) for e in found] == [(9, False), (9, False), (8, True)]


def test_more_policies_than_environments_are_evaluated_in_batches():
    vectorised = evaluator(2)
    played = list(vectorised.evaluate(sharing(), 3, generator()))
    assert vectorised.vector_envs[0].resets == 3
    batches = [number // 2 for number, _ in played]
    assert batches == sorted(batches)


def test_each_policy_acts_in_its_environments_as_it_would_alone():
    policies, vectorised = sharing(), evaluator(11)
    count = episodes_of(vectorised.evaluate(policies, 5, generator()))
    for i in range(10):
        states, taken = recorded(vectorised, i, count[i])
        assert np.array_equal(taken, policies[i // 2].mode(states))


def test_shared_networks_run_once_per_step_for_the_active_environments():
    policies = sharing()
    shared, alone = batch_sizes(policies[0].networks), batch_sizes(policies[1].networks)
    vectorised = evaluator(10)
    list(vectorised.evaluate(policies, 2, generator()))
    envs_of = {0: [0, 1, 4, 5, 8, 9], 1: [2, 3]}  # one episode each, of i + 1 steps
    for sizes, indices in ((shared, envs_of[0]), (alone, envs_of[1])):
        assert sizes == [sum(i + 1 > t for i in indices) for t in range(max(indices) + 1)]
    assert len(vectorised.vector_envs[0].taken) == 10


def test_policies_with_shared_networks_and_different_temperatures_have_different_betas():
    shared, vectorised = nets(3), evaluator(20)
    cold, hot = Policy(shared, Behavior(), temperature=1e-4), Policy(shared, Behavior(), temperature=100.0)
    count = episodes_of(vectorised.evaluate([cold, hot], 400, generator()))
    for policy, i, low, high in ((cold, 9, 0.95, 1.0), (hot, 19, 0.0, 0.4)):
        states, taken = recorded(vectorised, i, count[i])
        assert low <= np.mean(taken == policy.mode(states)) <= high


def test_actions_are_sampled_with_the_policys_probabilities():
    policies, vectorised = [Policy(nets(4), Behavior()), Policy(nets(4), Reroute(0.5, 1.5), 0.1)], evaluator(40)
    count = episodes_of(vectorised.evaluate(policies, 800, generator()))
    for policy, i in ((policies[0], 19), (policies[1], 39)):
        states, taken = recorded(vectorised, i, count[i])
        probs = policy.predict_proba(states)
        excess = np.eye(ACTIONS)[taken] - probs  # 0 on average, also weighted by probabilities
        assert (np.abs(excess.sum(0)) < 4 * np.sqrt((probs * (1 - probs)).sum(0))).all()
        assert (np.abs((excess * probs).sum(0)) < 4 * np.sqrt((probs**3 * (1 - probs)).sum(0))).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_a_share_epsilon_of_the_actions_is_random(epsilon):
    policy, vectorised = Policy(nets(5), Greedy()), evaluator(20, epsilon)
    count = episodes_of(vectorised.evaluate([policy], 2000, generator()))
    states, taken = recorded(vectorised, 19, count[19])
    share = 1 - epsilon + epsilon / ACTIONS
    error = np.sqrt(share * (1 - share) / len(taken))
    assert np.mean(taken == policy.mode(states)) == pytest.approx(share, abs=4 * error + 1e-9)


def test_inactive_environments_get_random_actions():
    vectorised = evaluator(20)
    list(
        vectorised.evaluate([Policy(nets(5), Greedy())], 21, generator())
    )  # the first environment has two, all others one
    idle = np.concatenate([np.stack(vectorised.vector_envs[0].taken)[i + 1 :, i] for i in range(1, 20)])
    counts = np.bincount(idle, minlength=ACTIONS)
    assert np.abs(counts - len(idle) / ACTIONS).max() < 4 * np.sqrt(len(idle) / ACTIONS)


def test_evaluations_are_reproducible():
    def played(seed):
        with VectorEvaluator(Protocol("paper"), "CartPole-v1", 6) as vectorised:
            obs_spec = ObservationSpec((4,), 1, 2)
            policies = [Policy(nets(s, obs_spec=obs_spec), Behavior()) for s in range(3)]
            return list(vectorised.evaluate(policies, 4, generator(seed)))

    assert played(1) == played(1)
    assert played(1) != played(2)


def short(config, num_envs):
    """Episodes of 160 frames, 40 steps."""
    return envs.make(replace(config, max_frames=160), num_envs)


@pytest.mark.parametrize(
    ("env", "obs_spec", "num_groups"),
    [
        ("CartPole-v1", ObservationSpec((4,), 1, 2), 1),
        ("CartPole-v1", ObservationSpec((4,), 1, 2), 2),
        ("ALE/Breakout-v5", ObservationSpec((84, 84), 4, 4), 2),
    ],
)
def test_an_evaluator_that_was_interrupted_evaluates_as_a_new_one(env, obs_spec, num_groups):
    shared = nets(0, obs_spec=obs_spec)
    policies = [Policy(shared, Greedy(), 0.5), Policy(shared, Behavior())]

    def make():
        return VectorEvaluator(Protocol("paper"), env, 2 * num_groups, short, num_groups=num_groups)

    with make() as used, make() as new:
        assert len(list(islice(used.evaluate(policies, 3, generator(1)), 1))) == 1
        again = list(used.evaluate(policies, 3, generator(2)))
        assert again == list(new.evaluate(policies, 3, generator(2)))
    assert Counter(number for number, _ in again) == {0: 3, 1: 3}
    assert all(0 < outcome.steps <= (500 if env == "CartPole-v1" else 40) for _, outcome in again)


@pytest.mark.parametrize(
    ("config", "stop"),
    [
        (EnvConfig("CartPole-v1"), 33),
        (EnvConfig("ALE/Breakout-v5", 200), 33),
        (EnvConfig("ALE/Breakout-v5", 200, repeat_action_probability=0.25), 50),
    ],
)
def test_a_reset_restarts_every_environment(config, stop):
    """After 33 steps Atari episodes are running; after 50 they are truncated and about to restart by themselves."""
    vectorised = envs.make(config, 2)
    actions = generator().integers(vectorised.num_actions, size=(stop, 2))
    histories = []
    for _ in range(2):
        seen = [vectorised.reset(7)]
        for row in actions:
            vectorised.send(row)
            seen.append(TimeStep(*(array.copy() for array in vectorised.recv())))
        histories.append(seen)
    vectorised.close()
    if config.is_atari:
        assert (histories[0][-1].end == TRUNCATED).all() == (stop == 50)
    for before, after in zip(*histories, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_evaluator_closes_its_environments_and_rejects_invalid_requests():
    with evaluator(2) as vectorised:
        with pytest.raises(ValueError, match="episodes = 0: must be at least 1"):
            next(vectorised.evaluate(sharing(), 0, generator()))
        with pytest.raises(ValueError, match="policies: give at least one"):
            next(vectorised.evaluate([], 1, generator()))
        stranger = Policy(nets(0, obs_spec=ObservationSpec((4,), 1, 2)), Greedy(), env="CartPole-v1")
        with pytest.raises(
            ValueError, match=r"--env Corridors-v0: has observations \(3,\) and 5 actions, but the policy \(Car"
        ):
            next(vectorised.evaluate([*sharing(), stranger], 1, generator()))
        assert vectorised.vector_envs[0].resets == 0
    assert vectorised.vector_envs[0].closed
    with pytest.raises(ValueError, match="num_envs = 0: must be at least 1"):
        evaluator(0)


# Protocol, episode statistics, evaluation of one policy


class Countdown:
    """Episodes of environment i have i + 1 steps with reward 1; those of odd i are truncated."""

    num_actions, obs_shape, frame_stack, has_action_masks, pending = 2, (1,), 1, False, False

    def __init__(self, config, num_envs):
        self.config, self.num_envs = config, num_envs

    def seen(self, first, reward, end):
        frame = np.arange(self.num_envs, dtype=np.float32)[:, None]
        return TimeStep(frame, first, reward.astype(np.float32), end.astype(np.uint8))

    def reset(self, _seed):
        self.step, self.over = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        none = np.zeros(self.num_envs)
        return self.seen(np.ones(self.num_envs, bool), none, none)

    def send(self, actions):
        assert actions.shape == (self.num_envs,)

    def stop(self, env_index):
        pass

    def recv(self):
        first = self.over
        self.step = np.where(first, 0, self.step + 1)
        over = self.step > np.arange(self.num_envs)
        end = np.where(over, np.where(np.arange(self.num_envs) % 2, TRUNCATED, TERMINATED), CONTINUES)
        self.over = over
        return self.seen(first, np.where(first, 0.0, 1.0), end)

    def close(self):
        self.closed = True


def any_policy(obs_spec=ObservationSpec((1,), 1, 2)):  # noqa: B008 (frozen)
    return Policy(make_networks(obs_spec, NetworkConfig(4), 0), Behavior(), env="CartPole-v1")


@pytest.mark.parametrize("episodes", [1, 7, 64, 150])
def test_run_episodes_returns_exactly_the_requested_episodes(episodes):
    played = list(run_episodes(any_policy(), Protocol("paper"), "Countdown-v0", episodes, 0, make=Countdown))
    assert len(played) == episodes
    assert {e.env_index for e in played} == set(range(min(episodes, 64)))
    assert all(e.score == e.steps == e.env_index + 1 for e in played)
    assert all(e.truncated == bool(e.env_index % 2) for e in played)


def test_the_score_of_an_episode_is_the_sum_of_its_rewards():
    statistics, env = EpisodeStatistics(3), Countdown(None, 3)
    found = statistics.update(env.reset(0))
    for _ in range(40):
        found += statistics.update(env.recv())
    assert {(e.env_index, e.score) for e in found} == {(0, 1.0), (1, 2.0), (2, 3.0)}


def test_a_reward_of_either_sign_ends_idleness():
    statistics, first, end = EpisodeStatistics(2), np.zeros(2, bool), np.full(2, CONTINUES, np.uint8)
    for reward in ([0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]):
        statistics.update(TimeStep(np.zeros((2, 3)), first, np.array(reward), end))
    assert statistics.idle.tolist() == [1, 3]


def test_recent_scores_of_low_epsilon_environments_are_separate():
    recent = RecentScores(2)
    for score, low in ((10.0, True), (0.0, False), (20.0, True)):
        recent.add(EpisodeResult(0, score, 1, truncated=False), low_epsilon=low)
    found = recent.metrics()
    assert (found["score"], found["score_all"], found["episodes"]) == (15, 10, 3)


def test_protocols_describe_their_settings():
    paper, modern = Protocol("paper"), Protocol("modern", epsilon=0.01)
    assert (paper.env_config("ALE/Pong-v5").repeat_action_probability, paper.env_config("ALE/Pong-v5").noop_max) == (
        0.0,
        30,
    )
    assert (modern.env_config("ALE/Pong-v5").repeat_action_probability, modern.env_config("ALE/Pong-v5").noop_max) == (
        0.25,
        0,
    )
    assert paper.env_config("ALE/Pong-v5").max_frames == modern.env_config("ALE/Pong-v5").max_frames == 108_000
    assert "up to 30 no-ops at the start, sticky actions 0, 108,000 frames" in paper.describe("ALE/Pong-v5")
    assert "random with probability 0.01; no no-ops, sticky actions 0.25" in modern.describe("ALE/Pong-v5")
    with pytest.raises(ValueError, match="epsilon = 2"):
        Protocol("paper", epsilon=2)


def test_a_policy_of_single_images_is_rejected_with_how_to_read_its_data():
    single = any_policy(ObservationSpec((Catch.SIZE, Catch.SIZE), 1, 3))
    with pytest.raises(ValueError, match=r"stacks of 4 images, and those of the policy of 1: .* frame_stack=4 \("):
        rbi.evaluate(single, Catch, episodes=1)


def test_an_incompatible_policy_is_rejected():
    with pytest.raises(ValueError, match=r"--env Countdown-v0: has observations \(1,\) and 2 actions, but the policy"):
        next(
            run_episodes(
                any_policy(ObservationSpec((4,), 1, 2)), Protocol("paper"), "Countdown-v0", 3, 0, make=Countdown
            )
        )


def test_the_folder_of_an_evaluation_is_where_it_was_asked_for_though_a_callback_changes_the_current_one(
    tmp_path, monkeypatch
):
    policy = Policy(nets(0, obs_spec=ObservationSpec((4,), 1, 2)), Behavior(), env="CartPole-v1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    rbi.evaluate(policy, episodes=1, out="run", progress=False, callback=lambda _: os.chdir("elsewhere"))
    assert runs.read(tmp_path / "run").result


def test_evaluate_returns_scores_with_their_interval(tmp_path):
    policy = Policy(nets(0, obs_spec=ObservationSpec((4,), 1, 2)), Behavior(), env="CartPole-v1")
    episodes = []
    result = rbi.evaluate(policy, episodes=5, seed=3, out=tmp_path / "run", progress=False, callback=episodes.append)
    assert [episode["score"] for episode in episodes] == result.scores
    assert result.mean == pytest.approx(np.mean(result.scores))
    assert result.interval[0] <= result.mean <= result.interval[1]
    assert rbi.evaluate(policy, episodes=5, seed=4, progress=False).scores != result.scores
    assert "CartPole-v1, 5 episodes: mean" in repr(result)
    assert "CartPole-v1, 5 episodes (actions sampled" in result.summary()  # both protocols are one but for Atari
    assert "5 episodes (paper protocol: actions" in replace(result, env="ALE/Pong-v5").summary()
    assert runs.read(tmp_path / "run").finished()["scores"] == result.scores
    with pytest.raises(ValueError, match="run: "):
        rbi.evaluate(policy, episodes=1, out=tmp_path / "run", progress=False)
    rbi.evaluate(policy, episodes=1, out=tmp_path / "run", overwrite=True, progress=False)
    assert len(runs.read(tmp_path / "run").finished()["scores"]) == 1
    policy.save(tmp_path / "policy")
    assert (
        rbi.evaluate(tmp_path / "policy", lambda: gymnasium.make("CartPole-v1"), episodes=5, seed=3).scores
        == result.scores
    )


def test_evaluate_reports_the_share_of_states_outside_the_training_range():
    networks = make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(8), 0)
    features = {share: FeatureRange((-size,) * 4, (size,) * 4) for share, size in ((0.0, 1e6), (1.0, 1e-9))}
    policies = {share: Policy(networks, Greedy(), env="CartPole-v1", features=f) for share, f in features.items()}
    assert rbi.evaluate(policies[0.0], episodes=2, progress=False).outside_range == 0
    with pytest.warns(UserWarning, match="where the training data has"):
        assert rbi.evaluate(policies[1.0], episodes=2, progress=False).outside_range == 1


def test_a_policy_with_nan_outputs_is_not_scored():
    networks = make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(8), 0)
    next(networks.parameters()).data.fill_(np.nan)
    with pytest.raises(ValueError, match="not finite"):
        rbi.evaluate(Policy(networks, Greedy(), env="CartPole-v1"), episodes=1, progress=False)


def test_evaluate_needs_an_environment_and_episodes():
    policy = Policy(nets(0, obs_spec=ObservationSpec((4,), 1, 2)), Behavior())
    with pytest.raises(ValueError, match="env: the policy does not say"):
        rbi.evaluate(policy)
    with pytest.raises(ValueError, match="episodes = 0"):
        rbi.evaluate(policy, "CartPole-v1", episodes=0)


@pytest.mark.parametrize("changes", [dict(deterministic=True), dict(epsilon=0.1)])
def test_a_protocol_object_has_its_own_epsilon_and_deterministic(changes):
    policy = Policy(nets(0, obs_spec=ObservationSpec((4,), 1, 2)), Behavior())
    with pytest.raises(ValueError, match="set them there"):
        rbi.evaluate(policy, "CartPole-v1", protocol=Protocol("paper"), **changes)


# Batched policies


IMAGES = ObservationSpec((36, 36), 4, 5)
RULES = ("behavior", "reroute(0.5,1.5)", "tv(0.25)", "ppo(0.5)", "forward_kl(radius=0.125)", "greedy", "bcq(0.3)")


def image_policies(device):
    nets = [make_networks(IMAGES, offline_network(16, 0.0, 0.0), seed).to(device) for seed in range(2)]
    return [Policy(net, rbi.parse_rule(rule), temperature=0.8) for net in nets for rule in RULES]


def time_steps(num_envs, rng, count=6, mask_size=0):
    """Random time steps, some of which start episodes, and uniform numbers; with masks the first action is legal."""
    none = np.zeros(num_envs, np.float32)
    for number in range(count):
        first = np.ones(num_envs, bool) if number == 0 else rng.random(num_envs) < 0.2
        frame = rng.integers(0, 256, (num_envs, *IMAGES.shape), dtype=np.uint8)
        legal = rng.random((num_envs, mask_size)) < 0.5
        legal[:, :1] = True
        yield TimeStep(frame, first, none, none.astype(np.uint8), legal), rng.random((num_envs, 1))


def count_differences(device, *, masks):
    policies = image_policies(device)
    num_envs = 3 * len(policies)
    policy_of = np.arange(num_envs) // 3
    groups = group_policies(policies, policy_of, np.ones(num_envs, bool))
    batched = BatchedPolicies(groups, num_envs, torch.device(device), has_action_masks=masks)
    states, differ = zero_stacks(IMAGES, num_envs), 0
    mask_size = IMAGES.num_actions if masks else 0
    for step, uniform in time_steps(num_envs, np.random.default_rng(0), mask_size=mask_size):
        chosen = batched.act(step, uniform)
        states = roll_stacks(states, step.obs, step.is_first)
        np.testing.assert_array_equal(batched.states.cpu().numpy(), states)
        for number, policy in enumerate(policies):
            own = policy_of == number
            probs = policy.predict_proba(states[own], step.legal[own] if masks else None)
            expected = np.minimum((uniform[own] >= probs.cumsum(1)).sum(1), IMAGES.num_actions - 1)
            differ += int((chosen[own] != expected).sum())
        assert not masks or step.legal[np.arange(num_envs), chosen].all()
    return differ


@pytest.mark.parametrize("masks", [False, True])
def test_batched_policies_act_as_each_policy_with_its_own_frame_stack(masks):
    assert count_differences("cpu", masks=masks) <= 1  # a sample between two actions may be rounded either way


def test_the_logit_and_q_of_an_illegal_action_do_not_matter_however_large():
    """Networks that learned with masks never learn them; without the mask beta would be 0 on all legal actions."""
    networks = make_networks(replace(SPEC, has_action_masks=True), NetworkConfig(16), 0)
    with torch.no_grad():
        networks.pi.logits.bias[ACTIONS - 1] = 1e4
        networks.q.advantage.bias[ACTIONS - 1] = 1e4
    policy = Policy(networks, Reroute(0.5, 1.5), 0.1)
    assert rbi.evaluate(policy, Doors, episodes=8, progress=False, device="cpu").steps == [8] * 8
    obs, legal = np.ones((1, 3)), np.array([[True, True, False, False, False]])
    value, (_, q) = policy.predict_value(obs, legal), policy.beta_and_q(torch.ones(1, 1, 3), legal=torch.tensor(legal))
    assert value == pytest.approx((policy.predict_proba(obs, legal) * q.numpy()).sum(1))
    assert q[0, :2].min() < value[0] < q[0, :2].max()


def test_policies_that_share_a_rule_but_not_their_greedy_part_are_improved_separately():
    shared, rule = nets(0), Reroute(0.5, 1.5)
    policies = [Policy(shared, rule, c_greedy) for c_greedy in (0.0, 0.3, 0.0)]
    groups = group_policies(policies, np.arange(3), np.ones(3, bool))
    assert len(groups.forward) == 1
    assert [(policy.c_greedy, envs.tolist()) for policy, envs in groups.improve] == [(0.0, [0, 2]), (0.3, [1])]


def exact_counts(states, _networks, visits):
    """The given number of visits to each state by each action."""
    return VisitCounts(np.sort(state_keys(states)), np.full((len(states), ACTIONS), visits, np.int32))


def pseudo_counts(states, networks, visits):
    """Pseudo-counts of that many visits to each state, in clusters of one step."""
    features = networks.q.features(networks.obs_spec.preprocess(torch.as_tensor(states)[:, None], torch.float32))
    taken = torch.arange(ACTIONS).repeat_interleave(len(states))
    part = features.detach().repeat(ACTIONS, 1), taken, torch.arange(len(taken))
    return PseudoCounts.fit([part], ACTIONS, share=1 / visits if visits else 1e9)


@pytest.mark.parametrize("make_visits", [exact_counts, pseudo_counts])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_policies_that_count_visits_use_their_own_counts_in_a_batch(make_visits, device):
    """One rule and one pair of networks, but only the first policy has visits: the second one stays at beta."""
    rng, shared, rule = np.random.default_rng(0), nets(0), parse_rule("count_aware(0.5)", counts=True)
    states = rng.normal(size=(20, 3)).astype(np.float32)
    visits = [make_visits(states, shared, n) for n in (10_000, 0)]
    policies = [Policy(shared, rule, visits=each).to(device) for each in visits]
    policy_of = np.repeat([0, 1], 20)
    groups = group_policies(policies, policy_of, np.ones(40, bool))
    assert (len(groups.forward), len(groups.improve)) == (1, 2)
    batched = BatchedPolicies(groups, 40, torch.device(device), deterministic=True)
    none = np.zeros(40, np.float32)
    seen = np.concatenate([states, states])
    chosen = batched.act(TimeStep(seen, np.ones(40, bool), none, none.astype(np.uint8)), np.zeros((40, 1)))
    for number, policy in enumerate(policies):
        assert np.array_equal(chosen[policy_of == number], policy.mode(states))
    assert (chosen[:20] != chosen[20:]).any()


def test_restricted_policies_ignore_other_environments():
    policies = image_policies("cpu")[:2]
    policy_of = np.array([0, 0, 1, 1])
    batched = BatchedPolicies(group_policies(policies, policy_of, np.ones(4, bool)), 4, torch.device("cpu"))
    (step, uniform), (again, later) = time_steps(4, np.random.default_rng(1), 2)
    before = batched.act(step, uniform).copy()
    batched.restrict(group_policies(policies, policy_of, np.array([True, True, False, False])))
    after = batched.act(again, later)
    assert (after[2:] == before[2:]).all()
    assert [indices.tolist() for _, indices in (*batched.forward, *batched.improve)] == [[0, 1], [0, 1]]


def test_a_deterministic_evaluation_from_python_and_the_command_line(tmp_path, capsys):
    policy = Policy(make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(16), 0), Behavior(), env="CartPole-v1")
    policy.save(tmp_path / "policy")
    found = rbi.evaluate(policy, episodes=3, deterministic=True, progress=False)
    assert found.protocol_description == "the policy's most probable actions; the environment's own limits"
    words = ["evaluate", str(tmp_path / "policy"), "--episodes", "3", "--deterministic", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    assert runs.read(tmp_path / "run").finished()["scores"] == found.scores
    assert "most probable actions" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("masks", [False, True])
def test_batched_policies_are_one_cuda_graph_on_a_gpu(masks):
    assert count_differences("cuda", masks=masks) <= 2
