"""Returns and exploration rates against loops written as the paper writes them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytest import approx

from rbi.returns import ReturnConfig, exploration_ladder, monte_carlo_returns, n_step_returns
from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED
from tests.generators import floats
from tests.reference import iterative

GAMMAS = floats(0, 1)


@st.composite
def windows(draw, least=1):
    """Rewards and ends `[B, n]`: each step may end in every way."""
    shape = draw(st.integers(1, 5)), draw(st.integers(least, 6))
    rewards = draw(arrays(np.float64, shape, elements=floats(-10, 10).map(lambda x: round(x, 3))))
    ends = draw(
        arrays(np.uint8, shape, elements=st.sampled_from([CONTINUES, CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED]))
    )
    return torch.from_numpy(rewards), torch.from_numpy(ends)


def first_end(ends):
    """Steps up to and with the first end, `[B, 1]`."""
    ended = [[*np.flatnonzero(row), len(row) - 1][0] + 1 for row in ends.numpy()]
    return torch.tensor(ended)[:, None]


@given(windows(), GAMMAS)
def test_n_step_returns_are_the_loops(window, gamma):
    rewards, ends = window
    found = n_step_returns(rewards, ends, gamma)
    for i, (row, how) in enumerate(zip(rewards.tolist(), ends.tolist(), strict=True)):
        reward, discount, steps = iterative.n_step_return(row, how, gamma)
        assert found.reward[i].item() == approx(reward)
        assert found.discount[i].item() == approx(discount)
        assert found.steps[i] == steps


@given(windows(least=2), floats(-10, 10), GAMMAS)
def test_a_return_is_its_first_reward_and_the_discounted_return_of_the_next_step(window, value, gamma):
    rewards, ends = window
    ends[:, 0] = CONTINUES
    whole, rest = n_step_returns(rewards, ends, gamma), n_step_returns(rewards[:, 1:], ends[:, 1:], gamma)
    then = rest.reward + rest.discount * value
    assert (whole.reward + whole.discount * value).numpy() == approx((rewards[:, 0] + gamma * then).numpy())
    assert whole.steps.tolist() == (rest.steps + 1).tolist()


@given(windows(), floats(-10, 10), st.sampled_from([CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED]), GAMMAS)
def test_nothing_after_an_end_counts(window, reward, end, gamma):
    rewards, ends = window
    after = torch.arange(rewards.shape[1]) >= first_end(ends)
    changed = n_step_returns(torch.where(after, reward, rewards), torch.where(after, end, ends), gamma)
    for kept, column in zip(n_step_returns(rewards, ends, gamma), changed, strict=True):
        assert torch.equal(kept, column)


@given(windows(), GAMMAS)
def test_lost_lives_and_terminal_states_end_the_return_and_truncation_bootstraps(window, gamma):
    rewards, ends = window

    def ended(by):
        return n_step_returns(rewards, torch.where(ends == CONTINUES, CONTINUES, by), gamma)

    by_life, by_game, by_time = ended(LIFE_LOST), ended(TERMINATED), ended(TRUNCATED)
    assert all(torch.equal(a, b) for a, b in zip(by_life, by_game, strict=True))
    assert torch.equal(by_life.reward, by_time.reward)
    assert by_time.discount.numpy() == approx(gamma ** by_time.steps.double().numpy())
    some = (ends != CONTINUES).any(1)
    assert (by_game.discount[some] == 0).all()


@pytest.mark.parametrize("bad", [dict(n_step=0), dict(n_step=-1), dict(gamma=-0.1), dict(gamma=1.1)])
def test_invalid_return_settings_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        ReturnConfig(**bad)


@given(st.integers(1, 300), floats(0.01, 1), floats(0, 10))
def test_exploration_ladder_is_that_of_ape_x(num_envs, base, exponent):
    ladder = exploration_ladder(num_envs, base, exponent)
    assert ladder.tolist() == approx(iterative.exploration(num_envs, base, exponent), rel=1e-4)
    assert ladder[0].item() == approx(base)


def test_the_papers_exploration_rates_run_from_four_tenths_to_its_eighth_power():
    ladder = exploration_ladder(256)
    assert ladder[[0, -1]].tolist() == approx([0.4, 0.4**8], rel=1e-5)
    assert (ladder.diff() < 0).all()


@given(st.lists(st.tuples(st.floats(-3, 3), st.sampled_from([0, 0, 0, 1, 2, 3])), min_size=1, max_size=40))
def test_monte_carlo_returns_sum_rewards_until_the_next_end(steps):
    rewards = torch.tensor([reward for reward, _ in steps], dtype=torch.float64)
    ends = torch.tensor([end for _, end in steps[:-1]] + [2])
    found = monte_carlo_returns(rewards, ends, 0.9)
    total, left = 0.0, 0
    for t in range(len(steps) - 1, -1, -1):
        ended = ends[t] != 0
        total = float(rewards[t]) + (0.0 if ended else 0.9 * total)
        left = 1 if ended else left + 1
        assert float(found.returns[t]) == approx(total, abs=1e-9)
        assert int(found.left[t]) == left


def test_long_sums_of_float32_rewards_are_rounded_once():
    rewards = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    ends = torch.zeros(4000, dtype=torch.uint8)
    ends[-1] = TERMINATED
    expected, following = np.zeros(4000), 0.0
    for t in reversed(range(4000)):
        expected[t] = following = float(rewards[t]) + 0.999 * following
    found = monte_carlo_returns(torch.from_numpy(rewards), ends, 0.999).returns
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-9)


def test_monte_carlo_returns_refuse_episodes_without_an_end():
    with pytest.raises(ValueError, match="must be an end"):
        monte_carlo_returns(torch.ones(3), torch.tensor([0, 2, 0]), 0.9)
