"""What is held out was not learned from, and the diagnosis is what it says."""

from collections import deque

import numpy as np
import pytest
import torch
from pytest import approx

from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.behavior_q import Fit, FitConfig, learn
from rbi.offline_rl.validation import Answers, answers, diagnosis, log_probs, split

from .crowds import recorded, world_and_crowd


@pytest.mark.parametrize(("episodes", "share", "held"), [(10, 0.2, 2), (2, 0.01, 1), (3, 0.99, 2), (100, 0.1, 10)])
def test_every_episode_is_on_one_side_and_both_have_some(episodes, share, held):
    mine, out = split(episodes, share, np.random.default_rng(0))
    assert sorted([*mine, *out]) == [*range(episodes)]
    assert len(out) == held


@pytest.mark.parametrize(("episodes", "share"), [(1, 0.5), (5, 0.0), (5, 1.0)])
def test_what_cannot_be_split_is_refused(episodes, share):
    with pytest.raises(ValueError, match=r"episodes|share"):
        split(episodes, share, np.random.default_rng(0))


def test_networks_that_have_learned_are_better_than_frequencies_on_episodes_that_they_never_saw():
    world, players = world_and_crowd(0)
    data = recorded(world, players, 200, np.random.default_rng(0))
    mine, out = split(len(data), 0.25, np.random.default_rng(1))
    config = SamplerConfig(batch_size=128, gamma=world.discount)
    samplers = [Sampler(data, config, torch.Generator().manual_seed(0), episodes=which) for which in (mine, out)]
    obs_spec, nets = ObservationSpec(data.spec.obs_shape, 1, data.spec.num_actions), offline_network(32, 0.0, 0.0)
    fit = Fit(
        FitConfig(learning_rate=0.003, nets=nets),
        make_networks(obs_spec, nets, 0),
        samplers[0],
        torch.Generator().manual_seed(0),
    )
    deque(learn(fit, 400), maxlen=0)
    held = answers(fit.networks, samplers[1])
    assert len(held.actions) == len(samplers[1].usable)
    found = diagnosis(held)
    assert found["likelihood_calibrated"] > found["likelihood_of_frequencies"] + 0.1
    assert found["likelihood_calibrated"] >= found["likelihood"] - 1e-9
    assert found["accuracy"] > found["accuracy_of_the_commonest"] + 0.1
    assert abs(found["q_bias"]) < 0.1  # returns are mostly luck in these worlds, so little of them can be explained


def test_the_diagnosis_of_perfect_answers_is_perfect():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5000, 3))
    actions = np.array([rng.choice(3, p=np.exp(row)) for row in log_probs(logits)])
    returns = rng.normal(size=5000)
    q = np.tile(returns[:, None], (1, 3))
    found = diagnosis(Answers(logits, q, actions, returns))
    assert found["temperature"] == approx(1, rel=0.1)
    assert found["q_error"] == approx(0, abs=1e-12)
    assert found["q_explained"] == approx(1)
    np.testing.assert_allclose(found["reliability"]["predicted"], found["reliability"]["seen"])
    assert diagnosis(Answers(logits, q + 2, actions, returns))["q_bias"] == approx(2)
