"""Statistics of policy changes, compared with plain loops; both gain estimates agree."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy import stats

import rbi
from rbi import fileio
from rbi.certification import estimates
from rbi.offline_rl.policy_diff import PolicyPair, by_feature, low_and_high, mean_over_clusters, policy_diff


class AllSteps(PolicyPair):
    """Held-out steps of which all are computed at once."""

    def rows(self, rows):
        return PolicyPair(*(None if column is None else column[rows] for column in self))


def some_pair(rng, count, actions, episodes=5, rule=None):
    """Random states with actions drawn from beta, improved by a rule."""
    beta = rng.dirichlet(np.ones(actions), count)
    q = rng.normal(size=(count, actions))
    taken = np.array([rng.choice(actions, p=row) for row in beta])
    returns = q[np.arange(count), taken] + rng.normal(size=count)
    pi = (rule or rbi.Reroute(0.5, 1.5))(beta, q)
    return AllSteps(beta, pi, q, taken, returns, np.sort(rng.integers(episodes, size=count)), np.arange(count))


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(2, 5))
def test_all_statistics_equal_those_of_plain_loops(seed, count, actions):
    rng = np.random.default_rng(seed)
    steps = some_pair(rng, count, actions)
    found = policy_diff(steps, rng, (0.5, 1.5))
    moved = [sum(abs(steps.pi[n, a] - steps.beta[n, a]) for a in range(actions)) / 2 for n in range(count)]
    overall = found["overall"]
    assert overall["total_variation"] == approx(np.mean(moved))
    assert overall["changed_states"] == approx(np.mean([m > 0.01 for m in moved]))
    assert overall["episodes"] == len(set(steps.episode.tolist()))
    at_max = at_min = gain = seen = 0.0
    for n in range(count):
        value = sum(steps.beta[n, a] * steps.q[n, a] for a in range(actions))
        for a in range(actions):
            ratio = steps.pi[n, a] / steps.beta[n, a]
            at_max += steps.beta[n, a] * (ratio > 1.499) / count
            at_min += steps.beta[n, a] * (ratio < 0.501) / count
            gain += (steps.pi[n, a] - steps.beta[n, a]) * steps.q[n, a] / count
            if a == steps.actions[n]:
                seen += (ratio - 1) * (steps.returns[n] - value) / count
    assert (overall["at_c_min"], overall["at_c_max"]) == approx((at_min, at_max))
    assert overall["expected_gain"]["mean"] == approx(gain)
    assert overall["observed_gain"]["mean"] == approx(seen)
    assert [row["action"] for row in sorted(found["actions"], key=lambda row: row["action"])] == [*range(actions)]
    for row in found["actions"]:
        change = [steps.pi[n, row["action"]] - steps.beta[n, row["action"]] for n in range(count)]
        assert row["change"] == approx(np.mean(change), abs=1e-12)
        assert row["pi"] - row["beta"] == approx(row["change"], abs=1e-12)
        assert row["taken"] == approx(np.mean([taken == row["action"] for taken in steps.actions]))
        assert row["increased"] == approx(np.mean([c > 1e-4 for c in change]))
        assert row["decreased"] == approx(np.mean([c < -1e-4 for c in change]))
    assert sum(row["change"] for row in found["actions"]) == approx(0, abs=1e-9)
    assert sum(row["steps"] * row["expected_gain"] for row in found["values"]) == approx(gain * count)
    values = [row["value"] for row in found["values"]]
    assert values == sorted(values)


def test_of_very_many_actions_those_that_change_most_are_listed_up_or_down(monkeypatch):
    monkeypatch.setattr("rbi.offline_rl.policy_diff.MAX_ACTIONS", 2)
    steps = some_pair(np.random.default_rng(0), 40, 5)
    change = (steps.pi - steps.beta).mean(0)
    found = policy_diff(steps, np.random.default_rng(0))["actions"]
    assert {row["action"] for row in found} == set(np.argsort(-np.abs(change))[:2].tolist())
    assert found[0]["change"] > found[1]["change"]


def test_the_behaviour_rule_changes_nothing():
    steps = some_pair(np.random.default_rng(0), 40, 3, rule=rbi.Behavior())
    found = policy_diff(steps, np.random.default_rng(0))
    assert found["overall"]["total_variation"] == approx(0, abs=1e-12)
    assert found["overall"]["changed_states"] == 0
    assert found["overall"]["expected_gain"]["mean"] == approx(0, abs=1e-12)
    assert found["overall"]["observed_gain"]["mean"] == approx(0, abs=1e-12)
    assert all(row["increased"] == row["decreased"] == 0 for row in found["actions"])
    assert all(row["actions"] == [] for row in found["largest"])
    assert "at_c_min" not in found["overall"]


def test_the_observed_gain_estimates_the_true_gain_even_if_q_is_wrong():
    rng = np.random.default_rng(0)
    steps = some_pair(rng, 40_000, 3, episodes=4000)
    truth = policy_diff(steps, rng)["overall"]["expected_gain"]["mean"]
    wrong = steps._replace(q=-steps.q)
    found = policy_diff(wrong, rng)["overall"]
    assert found["expected_gain"]["mean"] == approx(-truth)  # it believes what it is told
    low, high = found["observed_gain"]["interval"]
    assert low < truth < high
    assert high - low < truth


def test_logged_probabilities_are_the_weights_of_the_observed_gain():
    steps = some_pair(np.random.default_rng(0), 30, 3)
    logged = np.random.default_rng(1).uniform(0.2, 1.0, 30)
    gains = [
        (steps.pi[n, a] / logged[n] - 1) * (steps.returns[n] - steps.beta[n] @ steps.q[n])
        for n, a in enumerate(steps.actions)
    ]
    found = policy_diff(steps._replace(action_probs=logged), np.random.default_rng(0))["overall"]
    assert found["observed_gain"]["mean"] == approx(np.mean(gains))


def test_intervals_are_over_clusters_if_these_are_given():
    steps, clusters = some_pair(np.random.default_rng(0), 600, 3), np.repeat(np.arange(10), 60)
    found = policy_diff(steps, np.random.default_rng(0), clusters=clusters)["overall"]
    assert found["expected_gain"] == mean_over_clusters(steps.expected_gains, clusters, np.random.default_rng(0))
    by_episode = policy_diff(steps, np.random.default_rng(0))["overall"]
    assert found["episodes"] == by_episode["episodes"]
    assert found["expected_gain"]["interval"] != by_episode["expected_gain"]["interval"]


def test_the_interval_is_wider_if_steps_of_an_episode_are_correlated():
    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(50), 20)
    alike = rng.normal(size=50)[episode]
    told = mean_over_clusters(alike, episode, rng)["interval"]
    as_if_apart = mean_over_clusters(alike, np.arange(1000), rng)["interval"]
    assert told[1] - told[0] > 3 * (as_if_apart[1] - as_if_apart[0])
    assert told[1] - told[0] == approx(2 * 1.96 * alike.std() / np.sqrt(50), rel=0.15)
    assert mean_over_clusters(np.ones(3), np.zeros(3), rng) == {"mean": 1.0, "interval": None}


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (range(1, 9), [1, 2, 3], [6, 7, 8]),
        ([0, 0, 0, 0, 0, 0, 0, 1], [0] * 7, [1]),
        ([0, 1, 1, 1, 1, 1, 1, 1], [0], [1] * 7),
        ([2, 2, 2, 2], [], [2, 2, 2, 2]),
    ],
)
def test_low_and_high_are_quarters_or_the_most_frequent_value_and_the_rest(values, low, high):
    values = np.array(values, dtype=float)
    found = low_and_high(values)
    assert [values[part].tolist() for part in found] == [low, high]


def test_features_are_ordered_by_effect_and_constant_ones_left_out():
    rng = np.random.default_rng(0)
    steps = some_pair(rng, 400, 3)
    features = np.stack([np.ones(400), rng.normal(size=400), rng.integers(2, size=400)], 1)
    steps = steps._replace(pi=np.where(features[:, 2:] > 0, steps.pi, steps.beta))
    first, second = by_feature(rbi.measures.total_variation(steps.pi, steps.beta), features)
    assert (first["feature"], second["feature"]) == (2, 1)
    assert first["total_variation_low"] == 0
    assert first["total_variation_high"] > 0.1


def test_a_feature_whose_low_values_change_more_counts_as_much():
    distance = np.array([0.5, 0.5, 0.0, 0.0, 0.4, 0.4, 0.2, 0.2])
    more_if_low, more_if_high = np.array([0, 0, 1, 1] * 2), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    found = by_feature(distance, np.stack([more_if_high, more_if_low], 1).astype(float))
    assert [row["feature"] for row in found] == [1, 0]
    assert found[0]["total_variation_low"] == approx(0.45)
    assert found[0]["total_variation_high"] == approx(0.1)


def test_states_of_equal_q_in_which_the_policy_differs_are_listed_apart():
    steps = some_pair(np.random.default_rng(0), 2, 3)
    steps = steps._replace(q=steps.q[[0, 0]])
    assert [row["count"] for row in policy_diff(steps, np.random.default_rng(0))["largest"]] == [1, 1]


def test_the_largest_gains_come_first_and_everything_is_json(tmp_path):
    rng = np.random.default_rng(0)
    steps = some_pair(rng, 50, 4)
    found = policy_diff(steps, rng, (0.5, 1.5), rng.normal(size=(50, 2)))
    gains = ((steps.pi - steps.beta) * steps.q).sum(1)
    order = np.argsort(-gains)[:10]
    assert [row["step"] for row in found["largest"]] == order.tolist()
    for n, row in zip(order, found["largest"], strict=True):
        assert (row["taken"], row["return"], row["gain"]) == (steps.actions[n], steps.returns[n], approx(gains[n]))
        change = np.abs(steps.pi[n] - steps.beta[n])
        assert [told["action"] for told in row["actions"]] == [a for a in np.argsort(-change)[:3] if change[a] > 1e-4]
        for told in row["actions"]:
            assert (told["beta"], told["pi"]) == approx((steps.beta[n, told["action"]], steps.pi[n, told["action"]]))
    assert json.loads(json.dumps(found)) == found
    fileio.write_json(tmp_path / "changes.json", found)


def test_of_several_steps_in_the_same_state_one_is_listed_with_their_number():
    rng = np.random.default_rng(0)
    steps = some_pair(rng, 4, 3)
    times = [1, 5, 3, 2]
    repeated = steps._replace(**{name: np.repeat(getattr(steps, name), times, axis=0) for name in ("beta", "pi", "q")})
    repeated = repeated._replace(
        actions=rng.integers(3, size=11), returns=np.zeros(11), episode=np.arange(11), step=np.zeros(11, int)
    )
    gains = ((steps.pi - steps.beta) * steps.q).sum(1)
    found = policy_diff(repeated, rng)["largest"]
    assert [row["count"] for row in found] == [times[n] for n in np.argsort(-gains)]
    assert {row["episode"] for row in found} == {0, 1, 6, 9}


@pytest.mark.parametrize(("episodes", "kind"), [(3, None), (5, "student"), (50, "student"), (51, "bootstrap")])
def test_few_episodes_have_students_interval_or_none(episodes, kind):
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=episodes), 10)
    found = mean_over_clusters(values, np.repeat(np.arange(episodes), 10), rng)["interval"]
    if kind is None:
        assert found is None
        return
    each = values[::10]
    expected = stats.t.interval(0.95, episodes - 1, each.mean(), each.std(ddof=1) / np.sqrt(episodes))
    assert found == pytest.approx(
        expected, rel=1e-6 if kind == "student" else 0.3, abs=0 if kind == "student" else 0.05
    )


def test_the_interval_of_few_episodes_is_of_the_mean_over_steps_whatever_their_lengths():
    episode = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 6])
    found = mean_over_clusters(np.full(21, 2.0), episode, np.random.default_rng(0))
    assert found["interval"] == approx([2.0, 2.0])


def test_the_statistics_do_not_depend_on_the_blocks_in_which_they_are_computed(monkeypatch):
    pair, features = some_pair(np.random.default_rng(0), 300, 4), np.random.default_rng(1).normal(size=(300, 2))
    repeated = pair._replace(**{name: np.tile(getattr(pair, name)[:100], (3, 1)) for name in ("beta", "pi", "q")})
    for steps in (pair, repeated):
        whole = policy_diff(steps, np.random.default_rng(0), (0.5, 1.5), features)
        monkeypatch.setattr(estimates, "BLOCK_NUMBERS", 28)
        parts = policy_diff(steps, np.random.default_rng(0), (0.5, 1.5), features)
        monkeypatch.undo()
        for one, other in zip(whole["actions"], parts["actions"], strict=True):
            assert one == approx(other, abs=1e-14)  # of sums in another order
        assert whole | {"actions": []} == parts | {"actions": []}
