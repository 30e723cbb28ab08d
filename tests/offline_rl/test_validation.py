"""Splits, predictions, diagnostics and calibration on held-out episodes."""

import math
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.behavior_q import BehaviorQ, BehaviorQConfig, fit_standardization
from rbi.offline_rl.learner import train
from rbi.offline_rl.validation import (
    BestCheckpoint,
    Predictions,
    action_frequencies,
    diagnostics,
    fit_temperature,
    log_likelihood,
    log_probs,
    overfitting,
    predict,
    reliability,
    rule_statistics,
    split_episodes,
    split_holdout,
)
from rbi.report.offline import training_rmse
from rbi.rules.types import Greedy, TotalVariation
from tests.data.episodes import episode

from .populations import recorded, world_and_population


@pytest.mark.parametrize(("episodes", "share", "held"), [(10, 0.2, 2), (2, 0.01, 1), (3, 0.99, 2), (100, 0.1, 10)])
def test_a_split_has_every_episode_once_and_no_empty_side(episodes, share, held):
    mine, out = split_episodes(episodes, share, np.random.default_rng(0))
    assert sorted([*mine, *out]) == [*range(episodes)]
    assert len(out) == held


@pytest.mark.parametrize("known", [1.0, 0.05])
def test_all_episodes_of_a_player_are_in_one_part_if_players_are_the_unit(known):
    """Also where so few returns are known that a part would have none."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ends = rng.random(300) < known
        data = Dataset.from_arrays(rng.random((300, 1)), rng.integers(0, 2, 300), rng.random(300), ends, ~ends)
        players = rng.integers(0, 40, 300)
        found = split_holdout(data, SamplerConfig(2, max_missing_return=0.05), 0.4, rng, players)
        assert len(found.validation)
        assert len(found.test)
        part = np.zeros(300, int)
        part[found.validation], part[found.test] = 1, 2
        assert all(len(set(part[players == k])) == 1 for k in np.unique(players))
        if known == 1:
            assert found.representative
            assert len(np.unique(players[part > 0])) == round(0.4 * len(np.unique(players)))


@pytest.mark.parametrize(("episodes", "share"), [(1, 0.5), (5, 0.0), (5, 1.0)])
def test_splits_that_are_impossible_are_refused(episodes, share):
    with pytest.raises(ValueError, match=r"episodes|fraction"):
        split_episodes(episodes, share, np.random.default_rng(0))


def test_trained_networks_beat_action_frequencies_on_held_out_episodes():
    world, players = world_and_population(0)
    data = recorded(world, players, 200, np.random.default_rng(0))
    mine, out = split_episodes(len(data), 0.25, np.random.default_rng(1))
    config = SamplerConfig(batch_size=128, gamma=world.discount)
    samplers = [Sampler(data, config, torch.Generator().manual_seed(0), episodes=which) for which in (mine, out)]
    obs_spec, nets = ObservationSpec(data.spec.obs_shape, 1, data.spec.num_actions), offline_network(32, 0.0, 0.0)
    fit = BehaviorQ(
        BehaviorQConfig(learning_rate=0.003, network=nets),
        make_networks(obs_spec, nets, 0),
        samplers[0],
        torch.Generator().manual_seed(0),
    )
    deque(train(fit, 400), maxlen=0)
    held = predict(fit.networks, samplers[1])
    assert len(held.actions) == len(samplers[1].usable)
    found = diagnostics(held, action_frequencies(samplers[0]))
    assert found["log_likelihood_calibrated"] > found["log_likelihood_of_frequencies"] + 0.1
    assert found["log_likelihood_calibrated"] >= found["log_likelihood"] - 1e-9
    assert found["accuracy"] > found["majority_accuracy"] + 0.1
    assert abs(found["q_bias"]) < 0.1  # returns are mostly luck in these worlds, so little of them can be explained


def test_diagnostics_of_perfect_predictions_are_perfect():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5000, 3))
    actions = np.array([rng.choice(3, p=np.exp(row)) for row in log_probs(logits)])
    returns = rng.normal(size=5000)
    q = np.tile(returns[:, None], (1, 3))
    found = diagnostics(Predictions(logits, q, actions, returns), np.full(3, 1 / 3))
    assert found["temperature"] == approx(1, rel=0.1)
    assert found["q_rmse"] == approx(0, abs=1e-12)
    assert found["q_explained_variance"] == approx(1)
    np.testing.assert_allclose(found["reliability"]["predicted"], found["reliability"]["observed"])
    assert diagnostics(Predictions(logits, q + 2, actions, returns), np.full(3, 1 / 3))["q_bias"] == approx(2)


def masked_predictions():
    """Two steps with a uniform beta; in the second one the action with the largest Q is illegal."""
    legal = np.array([[True, True, True], [True, True, False]])
    q, logits = np.array([[0.0, 1.0, 5.0]] * 2), np.where(legal, 0.0, -np.inf)
    return Predictions(logits, q, np.array([2, 1]), np.array([5.0, 1.0]), legal)


def test_statistics_of_a_rule_are_over_legal_actions():
    held = masked_predictions()
    assert rule_statistics(held, Greedy(), 1.0)["expected_gain"] == approx(((5 - 2) + (1 - 0.5)) / 2)
    assert rule_statistics(held, TotalVariation(0.25), 1.0)["total_variation"] == approx(0.25)


def test_action_frequencies_are_those_of_legal_actions():
    """In the first step action 2 is taken, a half of all; in the second one 2 is illegal, and 1 is three of four."""
    found = diagnostics(masked_predictions(), np.array([0.125, 0.375, 0.5]))
    assert found["log_likelihood_of_frequencies"] == approx((math.log(0.5) + math.log(0.75)) / 2)


def test_action_frequencies_are_those_of_training_not_of_the_few_held_out_steps():
    """A hundred held-out steps of 1,000 equally likely actions: their own frequencies would be far too good to beat."""
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(np.zeros((5100, 1)), rng.integers(0, 1000, 5100), rng.random(5100), np.ones(5100))
    training = Sampler(data, SamplerConfig(), torch.Generator(), episodes=np.arange(5000))
    actions = data.arrays["actions"][5000:]
    held = Predictions(np.zeros((100, 1000)), np.zeros((100, 1000)), actions, data.arrays["rewards"][5000:])
    found = diagnostics(held, action_frequencies(training), 1.0)
    assert found["log_likelihood_of_frequencies"] < found["log_likelihood"] == approx(-math.log(1000))


def test_the_training_error_of_q_is_that_of_complete_returns():
    rng, nets = np.random.default_rng(1), offline_network(16, 0.0, 0.0)
    episodes = [episode(rng, 12, end=end) for end in ("terminated", "abandoned") * 3]
    data, config = Dataset.from_episodes(episodes, DatasetSpec((3,), 4)), SamplerConfig(64, keep_incomplete=True)
    sampler, coming = (Sampler(data, config, torch.Generator().manual_seed(0)) for _ in range(2))
    networks = make_networks(ObservationSpec((3,), 1, 4), nets, 0)
    fit = BehaviorQ(BehaviorQConfig(network=nets), networks, sampler, torch.Generator())
    best = BestCheckpoint(fit, 10, fit_standardization(sampler, observations=False), sampler)
    batch = coming.draw()
    with torch.no_grad():
        q, _ = fit.networks.train().q(fit.obs_spec.preprocess(batch.states, torch.float32))
    errors = (q.gather(1, batch.actions[:, None]).squeeze(1) - batch.returns)[batch.complete]
    best.update()
    mean_square = errors.square().sum() / (64 * 0.5)  # half of the steps are complete
    assert sampler.excluded_fraction == 0.5
    assert best.metrics()["train_q_rmse"] ** 2 == approx(best.standardization.std**2 * float(mean_square), rel=1e-5)
    fit.update()
    found = fit.metrics()
    assert found["q_rmse"] ** 2 == approx(found["q_loss"] / 0.5)
    assert training_rmse({"train": found}) == found["q_rmse"]
    assert training_rmse({"train": {"q_loss": 4.0}}) == 2  # of an earlier version


@given(st.integers(0, 2**32), st.floats(0.3, 4.0))
def test_the_fitted_temperature_maximizes_the_likelihood(seed, scale):
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(200, 4))
    actions = np.array([rng.choice(4, p=np.exp(row)) for row in log_probs(logits / scale)])
    best = fit_temperature(logits, actions)
    for other in np.geomspace(0.06, 18, 40):
        assert log_likelihood(logits, actions, other) <= log_likelihood(logits, actions, best) + 1e-5


def test_overconfident_logits_get_their_scale_as_temperature():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 5))
    actions = np.array([rng.choice(5, p=np.exp(row)) for row in log_probs(logits)])
    for scale in (3, 300):
        assert fit_temperature(scale * logits, actions) == approx(scale, rel=0.05)
    assert fit_temperature(logits / 2, actions) == approx(0.5, rel=0.05)


def test_reliability_bins_are_equal_in_size_ordered_and_consistent_with_the_mean():
    rng = np.random.default_rng(1)
    values, returns = rng.normal(size=103), rng.normal(size=103)
    found = reliability(values, returns, bins=10)
    assert found.steps.sum() == 103
    assert found.steps.max() - found.steps.min() <= 1
    assert (np.diff(found.predicted) > 0).all()
    assert (found.predicted * found.steps).sum() / 103 == approx(values.mean())
    assert (found.observed * found.steps).sum() / 103 == approx(returns.mean())


def test_the_explained_variance_is_that_of_returns_of_any_size():
    returns = (1e25 * np.arange(4)).astype(np.float32)  # their squares are no float32
    held = Predictions(np.zeros((4, 2)), np.zeros((4, 2)), np.zeros(4, int), returns)
    assert diagnostics(held, np.full(2, 0.5))["q_explained_variance"] == approx(1 - 3.5 / 1.25)


def validations(beta, q, frequencies=-1.0, seeds=2, calibrated=0.0):
    """Lines of validations after 10, 20, ... updates; seeds lie evenly around these means. `calibrated`: the difference
    that calibration makes."""
    names = ("log_likelihood_calibrated", "log_likelihood", "q_explained_variance", "log_likelihood_of_frequencies")
    spread = np.linspace(-0.1, 0.1, seeds) if seeds > 1 else [0.0]
    return [
        {
            "seed": seed,
            "updates": 10 * n,
            "validation": dict(zip(names, (b + by, b + by - calibrated, v + by, frequencies), strict=True)),
        }
        for n, (b, v) in enumerate(zip(beta, q, strict=True), 1)
        for seed, by in enumerate(spread)
    ]


def test_networks_overfit_if_they_end_well_below_their_best_on_held_out_episodes():
    (of_beta,) = overfitting(validations([-0.9, -0.8, -0.86], [0.3, 0.5, 0.4]))
    assert (of_beta.network, of_beta.best_updates, of_beta.updates, of_beta.seeds) == ("beta", 20, 30, 2)
    assert (of_beta.best, of_beta.last, of_beta.baseline) == approx((-0.8, -0.86, -1.0))
    (of_q,) = overfitting(validations([-0.9, -0.8, -0.84], [0.5, 0.4, 0.3], seeds=1))
    assert (of_q.network, of_q.best_updates, of_q.best, of_q.last) == ("Q", 10, 0.5, approx(0.3))
    assert [one.network for one in overfitting(validations([-0.9, -1.1], [0.1, -0.2]))] == ["beta", "Q"]
    assert overfitting(validations([-1.01, -1.05], [-0.1, -0.2])) == []  # they have never learned anything
    assert overfitting(validations([-0.999, -1.004], [0.01, -0.005])) == []  # noise where there is nothing to learn
    assert overfitting(validations([-0.9, -0.8], [0.4, 0.5])) == []
    assert overfitting([]) == []


def test_a_beta_that_only_calibration_saves_overfits_even_if_it_did_so_before_the_first_validation():
    (hot,) = overfitting(validations([-0.8, -0.805], [0.5, 0.5], calibrated=2.0))
    assert (hot.network, hot.best_updates, hot.uncalibrated) == ("beta", 10, approx(-2.805))
    assert "is -0.805 after 20 (-2.805 without calibration; action" in hot.advice
    assert overfitting(validations([-0.8, -0.805], [0.5, 0.5], calibrated=0.25)) == []
    assert overfitting(validations([-0.8, -0.79], [0.5, 0.5], calibrated=2.0)) == []  # fewer updates would not help


def test_advice_on_overfitting_names_the_numbers_and_the_option():
    of_beta, of_q = overfitting(validations([-0.9, -1.1], [0.4, 0.1]))
    assert of_beta.advice == (
        "beta overfits: its calibrated log-likelihood on held-out episodes (mean of 2 seeds) was -0.900 after 10 "
        "updates and is -1.100 after 20 (-1.100 without calibration; action frequencies alone: -1.000); use fewer "
        "updates (--updates 10), more data, or rbi improve, which keeps the best networks"
    )
    assert "Q overfits: its explained variance on held-out episodes" in of_q.advice
    assert "was 40.0% after 10 updates and is 10.0% after 20; use fewer" in of_q.advice
    assert "seeds" not in overfitting(validations([-0.9, -1.1], [0.4, 0.4], seeds=1))[0].advice


def test_a_network_that_diverged_or_returns_that_never_vary_give_no_advice_on_overfitting():
    assert overfitting(validations([-0.9, math.nan], [0.4, 0.4])) == []
    lines = validations([-0.9, -0.8], [0.4, 0.4])
    for line in lines:
        line["validation"]["q_explained_variance"] = None
    assert overfitting(lines) == []
    assert overfitting(validations([math.nan, -0.9, -1.1], [0.4, 0.4, 0.4]))[0].best_updates == 20
