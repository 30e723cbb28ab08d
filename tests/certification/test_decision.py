"""`rbi.certify`: deploys what is better, keeps what is not shown to be, and refuses what cannot be judged."""

import dataclasses
import inspect
import io
import json
import math
import re

import numpy as np
import pytest
from pytest import approx
from scipy import stats

import rbi
from rbi import fileio
from rbi.certification import decision as decisions
from rbi.certification.estimates import Terms
from rbi.certification.evidence import Settings, bounded, check_frequencies, check_ratio_to_clone
from rbi.data.dataset import Dataset
from rbi.data.digests import episode_digests
from rbi.data.episode import Feature, FeatureRange, RejectedEpisode
from rbi.data.store import Store, StoreWriter
from rbi.data.visits import VisitCounts, state_keys
from rbi.rules.types import Behavior

from .logs import BETA, MEANS, TablePolicy, bandit_log, true_gain


def certify(policy=None, log=None, **options):
    return rbi.certify(policy or TablePolicy(BETA, MEANS), log or bandit_log(), **({"return_range": (0, 1)} | options))


def changed(log, **columns):
    arrays = {name: array.copy() for name, array in log.arrays.items()}
    for name, (row, value) in columns.items():
        arrays[name][row] = value
    return Dataset(log.spec, arrays, log.records, log.texts)


def with_players(log):
    """The episodes in turn are of two players."""
    log.texts = [*log.texts, "ann", "bob"]
    log.records["player"] = len(log.texts) - 1 - np.arange(len(log)) % 2
    return log


def test_a_better_policy_is_deployed_with_a_proved_bound():
    found = certify()
    assert found.deploy
    assert found.verdict == "deploy"
    assert found.status == "proved"
    assert 0 < found.lower < true_gain("reroute(0.5,1.5)") < found.lower + 0.03
    assert found.baseline == approx(bandit_log().scores.mean())
    assert found.value == approx(found.baseline + found.estimate)
    assert str(found.policy.rule) == "reroute(0.5,1.5)"
    assert found.headline().startswith("Deploy reroute(0.5,1.5): it gains at least")


def test_a_terminal_shows_progress_unless_it_is_off(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", shown := Terminal())
    assert certify().deploy
    assert "evaluating the gain" in shown.getvalue()
    assert "comparing with other rules" in shown.getvalue()
    monkeypatch.setattr("sys.stderr", quiet := Terminal())
    assert certify(progress=False).deploy
    assert not quiet.getvalue()


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_the_bound_has_the_stated_confidence(confidence):
    """Student's t at the stated level: mean -+ t s / sqrt(n), with the standard deviation of the terms."""
    found = certify(confidence=confidence, bound="student", compare=False)
    n = found.episodes
    width = stats.t.ppf(confidence, n - 1) * found.chosen.spread / math.sqrt(n - 1)
    assert (found.estimate - found.lower, found.chosen.interval.upper - found.estimate) == approx((width, width))


def test_a_worse_policy_is_not_deployed_and_the_behaviour_policy_comes_back():
    found = certify(TablePolicy(BETA, -MEANS))
    assert not found.deploy
    assert found.verdict == "keep"
    assert found.policy.rule == Behavior()
    assert found.estimate < 0
    assert "if it is right, more episodes would not change" in found.reasons[-1]


def test_too_few_episodes_say_what_it_would_take():
    """(z + z_power)^2 variance / gain^2 for a power of 80%; a live test compares the means of two shares of traffic."""
    log = bandit_log(episodes=60)
    found = certify(log=log)
    assert found.verdict == "keep"
    z, power, spread = stats.norm.ppf(0.95), stats.norm.ppf(0.8), found.chosen.spread
    z_now = (found.estimate - found.lower) / (spread / math.sqrt(60))
    assert found.needed["logged_episodes"] == approx((z_now + power) ** 2 * (spread / found.estimate) ** 2, abs=1.1)
    assert found.needed["logged_episodes"] > 60
    assert set(found.needed["live_episodes"]) >= {"0.05", "0.5"}
    for share, episodes in found.needed["live_episodes"].items():
        variance = log.scores.var() * (1 / float(share) + 1 / (1 - float(share)))
        assert episodes == approx((z + power) ** 2 * variance / found.estimate**2, abs=1.1)
    assert "live episodes with 5% of traffic" in found.summary()


@pytest.mark.parametrize(("episodes", "enough"), [(29, False), (60, True)])
@pytest.mark.parametrize(("bound", "rule"), [("student", "reroute(0.5,1.5)"), ("betting", "greedy")])
def test_a_bound_that_is_not_proved_takes_enough_episodes(episodes, enough, bound, rule):
    """Rewards are certain given the action, so that either bound is sure of the gain."""
    means, beta = np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]])
    policy, log = TablePolicy(beta, means, rule), bandit_log(3, episodes, means, beta)
    found = certify(policy, log, bound=bound, return_range=None, compare=False)
    assert found.status == "asymptotic"
    assert found.lower > 0
    assert found.deploy == enough
    assert any("are too few for a bound that is not proved" in reason for reason in found.reasons) != enough


def test_no_more_is_proved_than_can_be_gained():
    """A weight of 1 / 0.02 from two episodes: their terms are far above any gain of a return from 0 to 1."""
    means, beta = np.array([[0.0, 1.0]]), np.array([[0.98, 0.02]])
    rewards, probs = np.array([0.0, 1.0]), np.array([0.98, 0.02])
    ends = np.ones(2, bool)
    log = Dataset.from_arrays(np.ones((2, 1)), np.array([0, 1]), rewards, ends, num_actions=2, action_probs=probs)
    found = certify(TablePolicy(beta, means, "greedy"), log, return_range=(0, 1), compare=False)
    assert found.chosen.bound.lower > 1
    assert found.lower == 1


def test_a_bound_that_is_not_proved_takes_enough_effective_episodes():
    """Some 15 of 300 episodes take the action that greedy takes, and all of the weight: they pay 1, the others 0."""
    means, beta = np.array([[0.0, 1.0]]), np.array([[0.95, 0.05]])
    policy, log = TablePolicy(beta, means, "greedy"), bandit_log(0, 300, means, beta)
    found = certify(policy, log, bound="student", compare=False)
    assert found.chosen.weights["effective_sample_size"] < 30 < found.episodes
    assert found.lower > 0
    assert not found.deploy


def test_known_probabilities_of_all_actions_give_the_tighter_doubly_robust_bound():
    plain = certify(log=bandit_log(logged="taken"))
    robust = certify(TablePolicy(BETA, MEANS, behavior="logged"), bandit_log(logged="all"))
    assert (plain.chosen.estimator, robust.chosen.estimator) == ("importance_sampling", "doubly_robust")
    assert robust.estimate - robust.lower < 0.9 * (plain.estimate - plain.lower)
    assert robust.chosen.weights["max_ratio"] <= 1.5 + 1e-5


def test_a_stated_largest_weight_allows_doubly_robust_terms():
    found = certify(TablePolicy(BETA, MEANS, "greedy"), max_weight=5)
    assert found.chosen.estimator == "doubly_robust"
    with pytest.raises(ValueError, match=r"arrays, line \d+: weight 5 of action 0 is outside the stated limits 0 to 4"):
        certify(TablePolicy(BETA, MEANS, "greedy"), max_weight=4)


@pytest.mark.parametrize("bound", ["betting", "student", "bca"])
def test_the_rounding_of_probabilities_is_no_gain(bound):
    """The policy is beta itself, whose float32 probabilities are 0.00000003 too large or too small."""
    beta = np.array([[0.7, 0.2, 0.1], [0.15, 0.15, 0.7]])
    found = certify(TablePolicy(beta, MEANS, "behavior"), bandit_log(1, 3000, beta=beta), bound=bound, compare=False)
    assert not found.deploy
    assert found.lower <= 0


@pytest.mark.parametrize(("logged", "estimator"), [("taken", "importance_sampling"), ("estimated", "doubly_robust")])
def test_a_constant_in_all_returns_changes_no_gain_or_is_named(logged, estimator):
    """Terms of importance sampling are those of returns above the least one; doubly robust ones contain Q."""
    log, least, rule = bandit_log(1, 4000, logged=logged), 2**18, "reroute(0.5,1.5)"
    more = dict(log.arrays) | {"rewards": log.arrays["rewards"] + np.float32(least)}
    moved = Dataset(log.spec, more, log.records, log.texts)
    before = certify(TablePolicy(BETA, MEANS, rule), log, compare=False)
    after = certify(TablePolicy(BETA, MEANS + least, rule), moved, return_range=(least, least + 1), compare=False)
    assert after.chosen.estimator == estimator
    assert before.lower > 0
    if estimator == "importance_sampling":
        assert after.lower == approx(before.lower)
    else:
        assert after.lower == 0 < after.chosen.bound.lower
        assert any("as small as the rounding of returns of this size" in reason for reason in after.reasons)


def test_a_stated_largest_weight_need_not_hold_for_rules_that_are_only_compared():
    found = certify(TablePolicy(BETA, MEANS, "reroute(0.5,1.5)"), max_weight=1.5)
    assert found.chosen.estimator == "doubly_robust"
    assert {one.estimator for one in found.candidates if one.rule != found.chosen.rule} == {"importance_sampling"}


@pytest.mark.parametrize("untried", [1.0, 0.5])
def test_q_is_not_believed_about_actions_that_the_log_never_shows(untried):
    """Action 2 was never taken, pays nothing, and has a high Q; the new policy takes it in some states."""
    beta, clone = np.array([[0.6, 0.4, 0.0]] * 2), np.array([[0.58, 0.4, 0.02]] * 2)
    q = np.array([[0.5, 0.5, 0.9], [0.5, 0.6, 0.9 if untried == 1 else 0.0]])
    log = bandit_log(means=np.array([[0.5, 0.5, 0.0]] * 2), beta=beta)
    with pytest.raises(ValueError, match=r"mean of .* where 1 is expected.*above the stated limit 4"):
        certify(TablePolicy(clone, q, "greedy"), log=log, max_weight=4, compare=False)
    assert not certify(TablePolicy(clone, q, "greedy"), log=log, compare=False).deploy


def test_accepted_estimates_do_not_deploy_actions_that_the_log_never_shows():
    """Half of the states: the clone gives action 2 a little, the log never has it, Q is wrong, and the rest is real."""
    beta, clone = np.array([[0.6, 0.4, 0.0]] * 2), np.array([[0.58, 0.4, 0.02]] * 2)
    q = np.array([[0.5, 0.6, 0.0], [0.5, 0.5, 0.9]])
    log = bandit_log(means=np.array([[0.5, 0.5, 0.0]] * 2), beta=beta, logged="estimated")
    found = certify(TablePolicy(clone, q, "greedy"), log=log, accept_estimated=True, compare=False)
    assert found.lower > 0
    assert not found.deploy
    assert any("where 1 is expected" in reason for reason in found.reasons)


def test_weights_of_an_estimated_policy_may_have_another_mean_than_1():
    """A clone that takes an action 5% too often divides by 5% too much; what it claims is heuristic anyway."""
    log = bandit_log(episodes=20_000, means=np.array([[0.6, 0.5]]), beta=np.array([[0.7, 0.3]]), logged="estimated")
    policy = TablePolicy(np.array([[0.735, 0.265]]), np.array([[0.6, 0.5]]), "greedy")
    found = certify(policy, log, max_weight=2, compare=False)
    assert found.chosen.weights["mean_weight"] < 0.97
    assert found.status == "heuristic"


def test_a_stated_largest_weight_is_of_one_step():
    found = certify(log=bandit_log(episodes=300, steps=2), return_range=(0, 2), max_weight=1.9, compare=False)
    assert found.chosen.estimator == "per_decision"


def test_weights_of_several_steps_may_exceed_a_stated_largest_weight_of_one():
    """Their mean is 1, but that of weights cut at the limit of one step is far below."""
    log, policy = bandit_log(steps=6, logged="all"), TablePolicy(BETA, MEANS, behavior="logged")
    found = certify(policy, log, return_range=(0, 6), max_weight=1.5, compare=False)
    assert found.chosen.weights["max_weight"] > 1.5**3


def test_a_policy_with_a_greedy_part_does_not_have_the_limits_of_its_rule():
    policy = TablePolicy(BETA, MEANS, behavior="logged", c_greedy=0.2)
    found = certify(policy, bandit_log(logged="all"), compare=False)
    assert found.chosen.estimator == "importance_sampling"
    assert found.chosen.weights["max_ratio"] > 1.5


@pytest.mark.parametrize(
    ("logged", "rewards", "low", "estimator"),
    [
        ("taken", (0, 1), 0, "per_decision"),
        ("taken", (0, 1), -1, "importance_sampling"),
        ("taken", (-0.05, 1), 0, "importance_sampling"),
        ("all", (0, 1), 0, "doubly_robust"),
        ("all", (0, 1), -1, "importance_sampling"),
    ],
)
def test_terms_of_several_steps_take_rewards_that_are_neither_seen_nor_stated_to_be_negative(
    logged, rewards, low, estimator
):
    log = changed(bandit_log(1, 300, logged=logged, steps=2), rewards=(slice(2), rewards))
    policy = TablePolicy(BETA, MEANS, behavior="logged" if logged == "all" else "cloned")
    found = certify(policy, log, return_range=(low, 2), compare=False)
    assert found.chosen.estimator == estimator
    assert ("no reward is ever negative" in found.assumptions) == (estimator != "importance_sampling")


def test_rounded_probabilities_put_no_value_outside_its_limits():
    settings = Settings(0.95, "betting", (0.0, 1.0), True, None)
    terms = Terms(np.array([-0.75 - 1e-6, 0.2, 0.75 + 1e-6]), -0.75, 0.75, 0.25)
    for method in ("betting", "empirical_bernstein"):
        assert math.isfinite(bounded(method, terms, settings).lower)


def test_probabilities_that_were_rounded_before_they_were_logged_are_normalised():
    beta = np.full((2, 3), 1 / 3)
    rounded = changed(bandit_log(beta=beta, logged="all"), behavior_probs=(slice(None), 0.333))
    found = certify(TablePolicy(beta, MEANS, "behavior", behavior="logged"), rounded, compare=False)
    assert found.estimate == approx(0, abs=1e-6)
    assert found.chosen.weights["max_ratio"] == approx(1, abs=1e-6)


def test_illegal_actions_have_no_probability_in_the_clone_and_in_the_new_policy():
    """One of three actions is illegal in half of the steps: weights of the old policy are 1 nevertheless."""
    rng, legal = np.random.default_rng(0), np.ones((2000, 3), bool)
    x, legal[::2, 2] = rng.integers(0, 2, 2000), False
    beta = np.where(legal, BETA[x], 0)
    beta /= beta.sum(1, keepdims=True)
    actions = (rng.random((2000, 1)) > beta.cumsum(1)).sum(1)
    rewards = rng.random(2000) < MEANS[x, actions]
    log = Dataset.from_arrays(np.eye(2)[x], actions, rewards, np.ones(2000, bool), action_masks=legal)
    old = certify(TablePolicy(BETA, MEANS, "behavior"), log, compare=False).chosen.weights
    assert (old["max_ratio"], old["mean_weight"]) == approx((1, 1))
    greedy = certify(TablePolicy(BETA, np.tile([0.1, 0.2, 0.9], (2, 1)), "greedy"), log, compare=False)
    assert greedy.chosen.weights["zero_weights"] == approx((np.where(legal[:, 2], 2, 1) != actions).mean())
    assert any("the policy learned without them" in reason for reason in greedy.reasons)


def test_estimated_probabilities_never_prove_and_only_deploy_on_request():
    log = bandit_log(logged="estimated", episodes=3000)
    found = certify(log=log)
    assert (found.verdict, found.status, found.deploy) == ("test live", "heuristic", False)
    assert any("No probabilities were logged" in reason for reason in found.reasons)
    assert certify(log=log, accept_estimated=True).deploy


def test_an_unstated_range_is_not_proved():
    found = certify(return_range=None)
    assert found.deploy
    assert found.status == "asymptotic"
    assert any("state it (--return-range) for a proof" in reason for reason in found.reasons)


@pytest.mark.parametrize(("shift", "observed"), [(0.5, [0.0, 1.5]), (-1.5, [-1.5, 0.0])])
def test_an_unstated_range_is_the_observed_one_with_0(shift, observed):
    log = bandit_log()
    shifted = changed(log, rewards=(slice(None), log.arrays["rewards"] + shift))
    assert certify(log=shifted, return_range=None, compare=False).evidence["return_range"] == observed


@pytest.mark.parametrize("logged", ["all", "estimated"])
def test_exploration_is_the_probability_of_all_but_the_likeliest_action(logged):
    found = certify(log=bandit_log(logged=logged), compare=False)
    assert found.evidence["exploration"] == approx(0.5, abs=1e-6)


@pytest.mark.parametrize("logged", ["all", "taken", "estimated"])
def test_a_log_without_exploration_holds_no_evidence(logged):
    beta = np.array([[0.996, 0.002, 0.002]] * 2)
    found = certify(TablePolicy(beta, MEANS), bandit_log(2, beta=beta, logged=logged), accept_estimated=True)
    assert found.verdict == "keep"
    assert found.reasons[0].startswith("The log has no exploration")
    assert found.needed["logged_episodes"] is None


def test_auto_deploys_the_last_rule_before_the_first_failure():
    """Q is right in the direction of small steps, and wrong about the action that greedy takes."""
    means = np.array([[0.3, 0.6, 0.0]])
    beta, q = np.array([[0.45, 0.5, 0.05]]), np.array([[0.1, 0.8, 0.9]])
    policy = TablePolicy(beta, q, "greedy", behavior="logged")
    found = certify(policy, bandit_log(means=means, beta=beta, episodes=8000, logged="all"), auto=True)
    assert found.deploy
    assert found.tested[-1] != found.chosen.rule
    without_counts = [rule for rule in decisions.SEQUENCE if rule != "count_aware(0.1)"]
    assert list(found.tested) == without_counts[: len(found.tested)]
    assert any("count_aware was left out" in reason for reason in found.reasons)
    assert found.policy.rule == rbi.parse_rule(found.tested[-2])
    assert found.headline().startswith(f"Deploy {found.chosen.rule}: it gains over the logged")  # not how much at least
    assert true_gain(found.chosen.rule, means, beta, q) > 0


def test_auto_tests_the_count_aware_rule_where_visits_were_counted():
    """The action that greedy takes looks best after three tries; count-aware bounds leave it nearly alone."""
    means, beta = np.array([[0.3, 0.6, 0.0]]), np.array([[0.45, 0.5, 0.05]])
    q = np.array([[0.1, 0.8, 0.9]])
    visits = VisitCounts(state_keys(np.ones((1, 1))), np.array([[400, 450, 3]], np.int32))
    policy = TablePolicy(beta, q, behavior="logged", visits=visits)
    found = certify(policy, bandit_log(means=means, beta=beta, episodes=8000, logged="all"), auto=True)
    assert found.tested == decisions.SEQUENCE
    assert found.policy.rule == rbi.CountAware(0.1)
    assert found.policy.predict_proba(np.ones((1, 1)), beta=beta) == approx(np.array([[0.0, 0.9, 0.1]]))
    assert found.policy.predict_proba(np.zeros((1, 1)), beta=beta) == approx(beta)  # a state that was never visited


def test_auto_keeps_the_behaviour_policy_if_the_most_cautious_rule_fails():
    found = certify(TablePolicy(BETA, -MEANS), auto=True)
    assert found.tested == ("reroute(0.9,1.1)",)
    assert found.verdict == "keep"


@pytest.mark.parametrize(
    ("logged", "steps", "judged"), [("estimated", 2, False), ("estimated", 1, True), ("taken", 2, True)]
)
def test_a_crowd_without_probabilities_is_not_judged_over_several_steps(logged, steps, judged):
    log = with_players(bandit_log(0, 3000, logged=logged, steps=steps))
    found = certify(log=log, return_range=(0, 2), compare=False)
    assert found.evidence["players"] == 2
    assert (found.verdict != "keep") == judged
    assert any("2 players without logged probabilities" in reason for reason in found.reasons) != judged
    assert any("is the mixture of 2 players" in reason for reason in found.reasons) == (logged == "estimated")


@pytest.mark.parametrize(("players", "said"), [(1, False), (20, True), (600, False)])
def test_a_bound_of_players_with_several_episodes_is_said_to_be_for_these_players(players, said):
    """Wrong for others: 20 players of 100 episodes with gains of +-0.1 were deployed on in 29% of the cases."""
    log = bandit_log(episodes=600)
    log.texts = [*log.texts, *(f"player {k}" for k in range(players))]
    log.records["player"] = len(log.texts) - players + np.arange(600) % players
    found = certify(log=log, compare=False)
    assert any(f"({players} players): the bound is for these players" in reason for reason in found.reasons) == said
    assert any(f"the same {players} players" in assumption for assumption in found.assumptions) == said


def log_of_players(gains, counts, seed=0):
    """One-step episodes of players, one after the other, with the gain of each by reroute(0.5,1.5) to action 1."""
    rng, of = np.random.default_rng(seed), np.repeat(np.arange(len(counts)), counts)
    actions = rng.integers(0, 2, len(of))
    rewards = rng.random(len(of)) < 0.5 + 4 * np.asarray(gains)[of] * (actions - 0.5)
    log = Dataset.from_arrays(
        np.ones((len(of), 1)), actions, rewards, np.ones(len(of)), action_probs=np.full(len(of), 0.5)
    )
    log.texts = [*log.texts, *(f"player {k}" for k in range(len(counts)))]
    log.records["player"] = len(log.texts) - len(counts) + of
    return log


def certify_players(log, **options):
    policy = TablePolicy(np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]]))
    return certify(policy, log, **({"compare": False, "accept_equal": True, "unit": "player"} | options))


def test_with_players_as_the_unit_each_counts_once_in_estimate_bound_baseline_and_needs():
    counts = np.resize([3, 50], 40)
    log = log_of_players(np.full(40, 0.08), counts)
    found = certify_players(log, bound="student")
    terms, starts = (log.arrays["actions"] - 0.5) * log.scores, counts.cumsum() - counts
    means, baselines = (np.add.reduceat(values, starts) / counts for values in (terms, log.scores))
    assert (found.estimate, found.baseline) == approx((means.mean(), baselines.mean()))
    width = stats.t.ppf(0.95, 39) * means.std(ddof=1) / math.sqrt(40)
    assert found.estimate - found.lower == approx(width)
    assert found.chosen.estimates["episode_weighted"] == approx(terms.mean())
    assert found.chosen.weights["effective_sample_size"] <= 40
    spread, gain = means.std(), means.mean()
    z = width / (spread / math.sqrt(40))
    assert found.needed["logged_players"] == max(30, math.ceil((z + stats.norm.ppf(0.8)) ** 2 * spread**2 / gain**2))
    live = (stats.norm.ppf(0.95) + stats.norm.ppf(0.8)) ** 2 * baselines.var() * 4 / gain**2
    assert found.needed["live_players"]["0.5"] == max(60, math.ceil(live))
    assert "per episode of a random player" in found.headline()
    assert f"Weighted by episodes, the estimate is {terms.mean():+.4g}" in found.reasons[0]
    assert "players are independent and identically distributed" in found.assumptions
    assert found.to_dict()["unit"] == "player"


def test_players_who_gain_and_have_many_episodes_do_not_outvote_those_who_lose():
    log = log_of_players(np.resize([0.1, -0.1], 100), np.resize([90, 10], 100))
    assert certify_players(log, unit="episode").deploy
    found = certify_players(log)
    assert found.verdict == "keep"
    assert found.estimate < 0.02 < found.chosen.estimates["episode_weighted"]


def test_decisions_of_a_player_that_are_equal_are_no_copies_with_players_as_the_unit():
    """Each player has features of their own, decides twice, and is paid for action 1."""
    log, players = log_of_players(np.zeros(500), np.full(500, 2)), np.repeat(np.arange(500), 2)
    actions = log.arrays["actions"]
    alike = Dataset.from_arrays(
        np.eye(500)[players], actions, actions.astype(float), np.ones(1000), action_probs=np.full(1000, 0.5)
    )
    alike.texts, alike.records["player"] = log.texts, log.records["player"]
    policy = TablePolicy(np.full((500, 2), 0.5), np.tile([0.0, 1.0], (500, 1)))
    with pytest.raises(ValueError, match="only of the same player, though: make players the unit"):
        certify(policy, alike, compare=False)
    assert certify(policy, alike, compare=False, unit="player").estimate == approx(0.25, abs=0.03)


def test_a_gain_that_players_share_is_found_with_players_as_the_unit():
    found = certify_players(log_of_players(np.full(100, 0.1), np.full(100, 30)))
    assert found.deploy
    assert found.status == "proved"
    assert 0 < found.lower < 0.1


@pytest.mark.parametrize("bound", ["betting", "student"])
def test_less_than_ten_players_say_nothing_about_others(bound):
    log = log_of_players(np.full(9, 0.12), np.full(9, 300))
    assert certify_players(log, unit="episode", bound=bound).deploy
    found = certify_players(log, bound=bound)
    assert found.verdict == "keep"
    assert found.reasons[0] == (
        "9 players cannot show what others would gain: it takes at least 10, and usually many more."
    )


def test_an_episode_without_a_player_is_refused_if_players_are_the_unit():
    with pytest.raises(ValueError, match=r"line 1: names no player, which --unit player takes; .*--table.player"):
        certify(unit="player")


def test_long_episodes_say_from_which_horizon_weights_decide_nothing():
    steps = 60
    found = certify(log=bandit_log(1, 300, steps=steps), return_range=(0, steps))
    assert found.chosen.estimator == "per_decision"
    assert not found.deploy
    assert found.chosen.weights["max_useful_horizon"] < steps
    assert any("are too noisy beyond about" in reason for reason in found.reasons)
    assert found.verdict == "test live"  # fitted Q evaluation sees the gain
    assert found.chosen.estimates["fitted_q"] == approx(steps * true_gain("reroute(0.5,1.5)"), rel=0.3)


def test_where_weights_decide_nothing_the_live_test_is_for_the_gain_of_fitted_q():
    """Products of 60 ratios of 0 or 2 are nearly all 0, so that their mean says that nothing is earned."""
    policy, log = TablePolicy(BETA, MEANS, "reroute(0,2)"), bandit_log(1, 300, steps=60)
    found = certify(policy, log, return_range=(0, 60), compare=False)
    gain = found.chosen.estimates["fitted_q"]
    assert found.verdict == "test live"
    assert found.estimate < 0 < gain
    assert f"the logs suggest {gain:+.4g} per episode" in found.headline()
    assert found.needed["logged_episodes"] is None
    live = (stats.norm.ppf(0.95) + stats.norm.ppf(0.8)) ** 2 * log.scores.var() * 4 / gain**2
    assert live < 60
    assert found.needed["live_episodes"] == {"0.05": 600, "0.5": 60}  # 30 of either policy at least
    assert "if the estimate of fitted Q evaluation is right" in found.reasons[-1]
    assert "live episodes with 50% of traffic" in found.reasons[-1]
    assert "logged" not in found.reasons[-1]


def test_long_episodes_of_a_worse_policy_are_not_tested_live():
    found = certify(TablePolicy(BETA, -MEANS), bandit_log(1, 300, steps=60), return_range=(0, 60), compare=False)
    assert found.chosen.weights["max_useful_horizon"] < 60
    assert found.chosen.estimates["fitted_q"] < 0
    assert found.verdict == "keep"
    assert found.reasons[-1].startswith("The estimate of fitted Q evaluation is not positive: if it is right, ")


def test_everything_is_json_and_readable():
    found = certify()
    again = json.loads(fileio.to_json(found.to_dict()))
    assert again["verdict"] == "deploy"
    assert len(again["candidates"]) == 5
    assert "decides" in repr(found)
    assert all(part in repr(found) for part in decisions.SEQUENCE if part != "count_aware(0.1)")


@pytest.mark.parametrize("bound", ["betting", "student", "bca", "empirical_bernstein"])
def test_the_named_bound_decides(bound):
    found = certify(TablePolicy(BETA, MEANS, behavior="logged"), bandit_log(logged="all"), bound=bound)
    assert found.chosen.bound.method == bound
    assert found.lower == found.chosen.bound.lower
    assert {other.method for other in found.chosen.bounds} | {bound} == {
        "betting", "student", "bca", "empirical_bernstein",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "logged", "episodes", "needs"),
    [
        ("betting", "estimated", 2000, "logged probabilities"),
        ("empirical_bernstein", "taken", 2000, "two episodes and a limit on weights"),
        ("student", "taken", 1, "two episodes"),
        ("bca", "taken", 1, "two episodes"),
    ],
)
def test_where_there_is_no_bound_the_decision_says_what_it_takes(bound, logged, episodes, needs):
    found = certify(log=bandit_log(episodes=episodes, logged=logged), bound=bound, compare=False)
    assert found.lower == -math.inf
    assert any(f"no bound of these terms by {bound}: it takes {needs}" in reason for reason in found.reasons)


def test_returns_outside_the_stated_range_are_named():
    with pytest.raises(ValueError, match=r"arrays, line 8: return 3 is outside the stated range 0 to 1"):
        certify(log=changed(bandit_log(), rewards=(7, 3)))


def test_probabilities_that_do_not_match_the_actions_are_refused():
    log = bandit_log(logged="all")
    reversed_ = changed(log, behavior_probs=(slice(None), log.arrays["behavior_probs"][:, ::-1]))
    with pytest.raises(ValueError, match="do not match the actions: taken actions have a mean probability of"):
        certify(TablePolicy(BETA, MEANS, behavior="logged"), reversed_)
    halved = changed(bandit_log(), action_probs=(slice(None), bandit_log().arrays["action_probs"] / 2))
    with pytest.raises(ValueError, match=r"do not match the actions: .* they are 0\.5 times as large"):
        certify(log=halved)


def test_probabilities_that_are_a_little_too_small_in_every_step_are_refused():
    """Off by a tenth, which the clone does not show; over twelve steps the weights are 3.5 on average."""
    policy, log = TablePolicy(BETA, MEANS, "reroute(0.9,1.1)"), bandit_log(1, 300, steps=12)
    certify(policy, log, return_range=(0, 12), compare=False)
    smaller = changed(log, action_probs=(slice(None), 0.9 * log.arrays["action_probs"]))
    with pytest.raises(ValueError, match=r"do not match the actions: the mean weight is \d\.\d+ where 1 is expected"):
        certify(policy, smaller, return_range=(0, 12), compare=False)


def test_true_probabilities_of_an_action_that_happens_to_be_missing_are_accepted():
    """None of 60 decisions is the action of probability 0.03 or 0.04, as in one of eight logs: all weights are above 1,
    and nearly equal."""
    beta, state = np.array([[0.97, 0.03], [0.96, 0.04]]), np.arange(60) % 2
    log = Dataset.from_arrays(
        np.eye(2)[state], np.zeros(60, int), np.ones(60), np.ones(60, bool), num_actions=2, action_probs=beta[state, 0]
    )
    assert certify(TablePolicy(beta, beta, "greedy"), log).verdict == "keep"


def test_the_order_of_a_true_log_does_not_matter():
    """First all episodes of weight 0, then those of weight 2."""
    actions = np.repeat([1, 0], 300)
    log = Dataset.from_arrays(
        np.ones((600, 1)), actions, np.ones(600), np.ones(600, bool), action_probs=np.full(600, 0.5)
    )
    certify(TablePolicy(np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]]), "greedy"), log)


def test_an_action_that_is_taken_too_rarely_is_named():
    """The first action is taken half as often as logged; the others, a little too often each, hide nothing."""
    logged, true = (np.array([first] + [(1 - first) / 60] * 60) for first in (0.1, 0.05))
    actions = np.random.default_rng(0).choice(61, 2500, p=true)
    with pytest.raises(ValueError, match="action 0 was taken"):
        check_frequencies(np.tile(logged, (2500, 1)), actions)


def test_training_episodes_are_refused():
    rng = np.random.default_rng(2)
    log = Dataset.from_arrays(rng.normal(size=(50, 2)), rng.integers(0, 3, 50), rng.random(50), np.ones(50, bool))
    policy = TablePolicy(BETA, MEANS, training_digests=episode_digests(log)[:10])
    with pytest.raises(ValueError, match=r"arrays, line 1: is one of 10 episodes \(of 50\) that trained or selected"):
        certify(policy, log)


def test_episodes_that_were_logged_twice_are_refused():
    """Copies would count as evidence of their own."""
    rng = np.random.default_rng(3)
    log = Dataset.from_arrays(rng.normal(size=(50, 2)), rng.integers(0, 3, 50), rng.random(50), np.ones(50, bool))
    assert certify(log=log).episodes == 50
    with pytest.raises(ValueError, match=r"line 1: is one of 100 episodes \(of 100\) that are there several times"):
        certify(log=log.select(np.arange(50).repeat(2)))


def test_equal_episodes_of_a_schedule_are_accepted_as_a_stated_assumption():
    """The same 60 contexts in turn, with one action that is nearly always taken; training had the same schedule."""
    rng = np.random.default_rng(4)
    beta = np.tile([0.98, 0.02], (60, 1))

    def days(count):
        context = np.tile(np.arange(60), count)
        actions = (rng.random(len(context)) < 0.02).astype(int)
        rewards, ends = (context % 3 == 0) + 0.5 * actions, np.ones(len(context), bool)
        return Dataset.from_arrays(
            np.eye(60)[context], actions, rewards, ends, action_probs=beta[context, actions], num_actions=2
        )

    policy = TablePolicy(beta, np.tile([0.0, 1.0], (60, 1)), training_digests=episode_digests(days(20)))
    log = days(20)
    with pytest.raises(ValueError, match=r"where a schedule repeats the same contexts, --accept-equal"):
        certify(policy, log, return_range=(0, 1.5))
    found = certify(policy, log, return_range=(0, 1.5), accept_equal=True, compare=False)
    assert found.estimate == approx(0.01 * 0.5, abs=0.004)
    assert "equal episodes are no copies, and none of them trained or selected the policy" in found.assumptions
    assert not any("copies" in text for text in certify(compare=False).assumptions)


def test_probabilities_that_are_too_large_for_the_actions_are_refused():
    """A mean weight below 1 is possible where actions lack support; the clone shows what is not."""
    log = bandit_log()
    log.arrays["action_probs"] = 1 - log.arrays["action_probs"]
    with pytest.raises(ValueError, match=r"do not match the actions: .* they are 1\.\d+ times as large"):
        certify(log=log)


@pytest.mark.parametrize("seed", range(3))
def test_true_probabilities_of_more_actions_than_the_log_shows_are_accepted(seed):
    """120 rows of 100 equally likely actions lack some 30 of them; a clone that knows only the others is off by 1.4."""
    actions = np.random.default_rng(seed).integers(100, size=120)
    uniform, logged = np.full((120, 100), 0.01, np.float32), np.full(120, 0.01)
    check_ratio_to_clone(uniform, actions, logged)
    noisy = np.random.default_rng(seed).dirichlet(np.full(100, 20.0), size=120)
    check_ratio_to_clone(noisy, actions, logged)
    for wrong in (0.4, 3.0):
        with pytest.raises(ValueError, match="do not match the actions"):
            check_ratio_to_clone(noisy, actions, wrong * logged)


def test_true_probabilities_are_accepted_if_the_clone_is_that_of_an_earlier_policy():
    """The log has two rare actions or none; a clone that takes them half of the time has a mean ratio of 0.5 then."""
    logged, uniform = np.array([[0.98, 0.02], [0.02, 0.98]]), np.full((60, 2), 0.5)
    for seed in range(20):
        log = bandit_log(seed, 60, beta=logged, means=uniform[:2])
        check_ratio_to_clone(uniform, log.arrays["actions"], log.arrays["action_probs"])


def nearly_certain(share, rare, seed, steps=1000):
    """Actions and their probabilities where action 1 is rare in a share of the states, and one of two in the others."""
    rng = np.random.default_rng(seed)
    logged = np.where(rng.random(steps) < share, rare, 0.5)
    actions = (rng.random(steps) < logged).astype(int)
    return actions, np.where(actions == 1, logged, 1 - logged)


@pytest.mark.parametrize("rare", [1e-3, 2e-4, 5e-5])
def test_true_probabilities_are_accepted_if_the_later_policy_is_nearly_certain_in_some_states(rare):
    """Of the other states enough is logged, but what the clone misses in these would be in actions that never occur."""
    uniform = np.full((1000, 2), 0.5)
    for seed in range(6):
        check_ratio_to_clone(uniform, *nearly_certain(0.6, rare, seed))
    actions, probs = nearly_certain(0.4, 1e-9, 0)
    with pytest.raises(ValueError, match="do not match the actions"):
        check_ratio_to_clone(uniform, actions, np.where(probs == 0.5, 0.9, probs))


def test_true_probabilities_of_many_rare_actions_are_accepted():
    """One of 2,000 actions is six standard errors too frequent in 1% of the logs, since counts of 1 are skewed."""
    p = np.random.default_rng(0).dirichlet(np.full(2000, 0.5))
    beta = np.broadcast_to(p, (1000, 2000))
    actions = np.random.default_rng(1).choice(2000, 1000, p=p)
    one = int(np.abs(p * 1000 - 1).argmin())  # expected once
    actions[:9] = one
    check_frequencies(beta, actions)
    actions[:25] = one
    with pytest.raises(ValueError, match=f"action {one} was taken"):
        check_frequencies(beta, actions)


def test_other_observations_actions_columns_and_rejected_rows_are_refused():
    log = bandit_log()
    with pytest.raises(ValueError, match=r"policy has 4, the episodes have 3; .* with num_actions=4$"):
        certify(TablePolicy(np.full((2, 4), 0.25), np.zeros((2, 4))), log)
    with pytest.raises(ValueError, match=r"observations: the policy has \(3,\), the episodes have \(2,\)"):
        certify(TablePolicy(np.full((3, 3), 1 / 3), np.zeros((3, 3))), log)
    stacked = Dataset(dataclasses.replace(log.spec, frame_stack=2), log.arrays, log.records, log.texts)
    with pytest.raises(ValueError, match="frame_stack: the policy has 1, the episodes have 2"):
        certify(log=stacked)
    named = Dataset(dataclasses.replace(log.spec, action_names=("a", "c", "b")), log.arrays, log.records, log.texts)
    with pytest.raises(ValueError, match="the policy has the action 'b' where the episodes have 'c'"):
        certify(TablePolicy(BETA, MEANS, action_names=("a", "b", "c")), named)
    policy = TablePolicy(BETA, MEANS, features=FeatureRange((0.0, 0.0), (1.0, 1.0), ("age", "income")))
    columns = tuple(Feature(name) for name in ("age", "height"))
    log = Dataset(dataclasses.replace(log.spec, features=columns), log.arrays, log.records, log.texts)
    with pytest.raises(ValueError, match="the policy has the column 'income' where the episodes have 'height'"):
        certify(policy, log)
    log.rejected = [RejectedEpisode("logs.csv", 7, "action_prob is 1.2")]
    with pytest.raises(ValueError, match=r"logs.csv, line 7: action_prob is 1.2; .* nothing is decided"):
        certify(log=log)
    with pytest.raises(ValueError, match="probabilities of all actions, which these episodes do not have"):
        certify(TablePolicy(BETA, MEANS, behavior="logged"), bandit_log())


def test_a_store_that_has_lost_episodes_is_refused(tmp_path):
    log = bandit_log(episodes=300)
    with StoreWriter.create(tmp_path / "s", log.spec) as writer:
        for episode in log:
            writer.append(episode)
    assert certify(log=Store(tmp_path / "s")).episodes == 300
    rewards = tmp_path / "s" / "rewards.bin"
    rewards.write_bytes(rewards.read_bytes()[:-8])  # two rewards of 4 bytes
    lost = r"2 of 300 episodes are lost .*: nothing is decided"
    with pytest.raises(ValueError, match=lost):
        certify(log=Store(tmp_path / "s"))
    with pytest.raises(ValueError, match=lost):
        rbi.monitor(tmp_path / "s", return_range=(0, 1), old_value=0.3)
    decided = rbi.improve(tmp_path / "s", updates=2, progress=False)
    assert decided.decision is None
    assert re.search(lost, decided.numbers["decision"]["refused"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence = 1.0: must be at least 0.5 and less than 1"),
        ({"return_range": (1, 0)}, r"return_range = \(1, 0\)"),
        ({"bound": "hoeffding"}, "bound = 'hoeffding': must be one of"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        certify(**options)


def test_a_deploy_of_nothing_to_gain_is_as_rare_as_promised():
    means = np.full((2, 3), 0.3)
    policy = TablePolicy(BETA, np.random.default_rng(3).random((2, 3)), behavior="logged")
    wrong = sum(
        rbi.certify(policy, bandit_log(seed, 300, means, logged="all"), return_range=(0, 1), compare=False).deploy
        for seed in range(100)
    )
    assert wrong <= 11  # of 100 at 5%: more has probability 0.004


def test_the_settings_are_dataclass_fields_of_the_function():
    parameters = inspect.signature(rbi.certify).parameters
    for field in dataclasses.fields(rbi.CertifyConfig):
        assert parameters[field.name].default == field.default, field.name
