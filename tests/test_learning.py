"""That it learns: both algorithms, from vectors and from pictures, from fixed seeds, in seconds on a processor."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rbi import envs
from rbi.evaluation.rollouts import Protocol, run_episodes
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LocalEngine

CATCH = "tests.games:Catch-v0"


def learning(env, algo, updates, look_every, **schedule):
    """Mean scores of 20 episodes, again and again while it learns."""
    whole = TrainConfig.preset(env, algo, "small")
    whole = replace(whole, schedule=replace(whole.schedule, updates=updates, **schedule))
    worlds = [envs.make(whole.env, whole.schedule.num_envs // GROUPS) for _ in range(GROUPS)]
    engine = LocalEngine(whole, 0, torch.device("cpu"), worlds)
    yield mean_score(engine.policy(), env)
    looked = 0
    for _ in engine.run():
        if engine.updates - looked >= look_every:
            looked = engine.updates
            yield mean_score(engine.policy(), env)


def mean_score(policy, env):
    return np.mean([episode.score for episode in run_episodes(policy, Protocol("paper"), env, 20, 1)])


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_cart_pole_is_solved(algo):
    scores = []
    for score in learning("CartPole-v1", algo, updates=6000, look_every=500):
        scores.append(score)
        if score >= 450:
            return
    pytest.fail(f"the best of {scores} is below 450")


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_game_of_pixels_is_learned(algo):
    """Five balls a game, 1 for each that is caught and -1 for each that is missed."""
    untrained, *later = learning(CATCH, algo, updates=400, look_every=200)
    assert untrained < 0
    assert later[-1] > 2.5
