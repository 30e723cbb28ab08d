"""Both algorithms learn, from vectors and from images, from fixed seeds, in seconds on a CPU."""

import gymnasium
import numpy as np
import pytest

from rbi.evaluation.rollouts import Protocol, run_episodes
from rbi.online.config import TrainConfig
from tests.online.small_runs import make_engine, run_to_end, small_config

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


def assert_reached(score, scores):
    """One of the scores is high enough; training stops there."""
    seen = []
    for found in scores:
        seen.append(found)
        if found >= score:
            return
    pytest.fail(f"the best of {seen} is below {score}")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_cart_pole_is_learned(algo):
    assert_reached(400, mean_scores("CartPole-v1", algo, updates=3000, interval=500))


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_catch_is_learned_from_images(algo):
    """Five balls a game, 1 for each that is caught and -1 for each that is missed."""
    scores = mean_scores(CATCH, algo, updates=600, interval=200)
    assert next(scores) < 0
    assert_reached(2.6, scores)


class Clock(gymnasium.Env):
    """Pays 1 per step and shows the number of the step, or no time at all if it is broken."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, steps, *, broken=False):
        self.steps, self.broken = steps, broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.time = 0
        return self.observe(), {}

    def step(self, _):
        self.time += 1
        return self.observe(), 1.0, self.time == self.steps, False, {}

    def observe(self):
        return np.array([0 if self.broken else self.time / 10], np.float32)


def endless():
    return gymnasium.wrappers.TimeLimit(Clock(1000, broken=True), 5)


def five_steps():
    return Clock(5)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rbi", "apex"])
@pytest.mark.parametrize(
    ("env", "values"), [(endless, [10]), (five_steps, [4.0951, 3.439, 2.71, 1.9, 1])], ids=["time limit", "terminal"]
)
def test_learned_values_are_the_discounted_rewards_to_come_beyond_time_limits_but_not_beyond_the_end(algo, env, values):
    config = small_config(
        algo, env=env, gamma=0.9, updates=600, num_envs=16, learning_starts=200, hidden_size=64, learning_rate=0.003,
        batch_size=32, target_update_interval=8, publish_interval=4, capacity=5000,
    )  # fmt: skip
    times = np.arange(len(values))[:, None] / 10
    assert run_to_end(make_engine(config)).policy().predict_value(times) == pytest.approx(values, rel=0.05)
