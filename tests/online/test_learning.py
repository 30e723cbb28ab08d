"""Both algorithms learn, from vectors and from images, from fixed seeds, in seconds on a CPU."""

import numpy as np
import pytest

from rbi.evaluation.rollouts import Protocol, run_episodes
from rbi.online.config import TrainConfig
from tests.online.small_runs import make_engine

CATCH = "tests.games:Catch-v0"


def mean_scores(env, algo, updates, interval):
    """Mean scores of 20 episodes, before and while training."""
    engine = make_engine(TrainConfig.preset(env, algo, "small", updates=updates))
    yield mean_score(engine.policy(), env)
    evaluated = 0
    for _ in engine.run():
        if engine.updates - evaluated >= interval:
            evaluated = engine.updates
            yield mean_score(engine.policy(), env)


def mean_score(policy, env):
    return np.mean([episode.score for episode in run_episodes(policy, Protocol("paper"), env, 20, 1)])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_cart_pole_is_learned(algo):
    scores = []
    for score in mean_scores("CartPole-v1", algo, updates=3000, interval=500):
        scores.append(score)
        if score >= 400:
            return
    pytest.fail(f"the best of {scores} is below 400")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_catch_is_learned_from_images(algo):
    """Five balls a game, 1 for each that is caught and -1 for each that is missed."""
    untrained, *later = mean_scores(CATCH, algo, updates=600, interval=300)
    assert untrained < 0
    assert later[-1] > 2.5
