"""The paper's claim of section 4 in environments with known values: from recorded data, by networks, exact scores."""

from collections import deque

import numpy as np
import pytest
import torch

import rbi
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.lab.mdp import performance
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.behavior_q import BehaviorQ, BehaviorQConfig
from rbi.offline_rl.learner import train
from rbi.policy import Policy

from .populations import recorded, world_and_population

pytestmark = pytest.mark.slow

RULES = ("reroute(0.5,1.5)", "reroute(0,2)", "tv(0.25)", "ppo(0.5)", "greedy")
SEEDS = range(5)


def gains(seed):
    """The gain of each rule over the cloned behaviour, from 30 episodes of three policies."""
    world, players = world_and_population(seed, qualities=(0.8, 0.9, 0.95))
    data = recorded(world, players, 30, np.random.default_rng(seed))
    sampler = Sampler(data, SamplerConfig(batch_size=128, gamma=world.discount), torch.Generator().manual_seed(seed))
    obs_spec, nets = ObservationSpec(data.spec.obs_shape, 1, data.spec.num_actions), offline_network(64, 0.0, 0.0)
    config = BehaviorQConfig(learning_rate=0.003, network=nets)
    fit = BehaviorQ(config, make_networks(obs_spec, nets, seed), sampler, torch.Generator().manual_seed(seed))
    deque(train(fit, 400), maxlen=0)
    every = np.eye(*data.spec.obs_shape, dtype=np.float32)
    scores = [
        float(performance(world, Policy(fit.networks, rbi.parse_rule(rule)).predict_proba(every).astype(np.float64)))
        for rule in ("behavior", *RULES)
    ]
    return np.array(scores[1:]) - scores[0]


@pytest.fixture(scope="module")
def found():
    """Gains of each rule, five worlds each."""
    return dict(zip(RULES, np.array([gains(seed) for seed in SEEDS]).T, strict=True))


def test_reroute_falls_below_behaviour_in_no_world(found):
    assert found["reroute(0.5,1.5)"].min() > -0.003
    assert found["reroute(0,2)"].min() > -0.003
    assert found["reroute(0.5,1.5)"].mean() > 0.003


def test_rules_without_a_ratio_bound_fall_below_behaviour(found):
    assert found["greedy"].mean() < -0.04
    assert (found["greedy"] < 0).all()
    assert found["tv(0.25)"].min() < -0.01
    assert found["ppo(0.5)"].min() < -0.01


def test_the_order_of_safety_is_the_papers(found):
    worst = [found[rule].min() for rule in ("reroute(0.5,1.5)", "tv(0.25)", "greedy")]
    assert worst == sorted(worst, reverse=True)
    spread = [found[rule].std() for rule in ("reroute(0.5,1.5)", "tv(0.25)", "greedy")]
    assert spread == sorted(spread)
