"""An episode is whole and consistent, or it is not made."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from rbi.data.episode import DatasetSpec, Episode
from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

from .episodes import episode


def fields(**changes):
    """Three good steps, with something changed."""
    good = dict(
        observations=np.zeros((4, 2), np.float32),
        actions=np.array([0, 1, 2]),
        rewards=np.array([0.0, 1.0, 0.0]),
        terminated=np.array([False, False, True]),
        truncated=np.zeros(3, dtype=bool),
    )
    return good | changes


def test_three_ends_become_one_code_and_the_games_end_counts_first():
    lost, over, cut = np.array([1, 0, 0], bool), np.array([0, 0, 1], bool), np.zeros(3, bool)
    assert list(Episode(**fields(life_lost=lost)).ends) == [LIFE_LOST, CONTINUES, TERMINATED]
    assert list(Episode(**fields(terminated=cut, truncated=over)).ends) == [CONTINUES, CONTINUES, TRUNCATED]
    assert list(Episode(**fields(terminated=over, truncated=over)).ends) == [CONTINUES, CONTINUES, TERMINATED]


def test_an_episode_cannot_be_changed_not_even_through_the_arrays_it_was_made_of():
    seen = np.zeros((4, 2), np.float32)
    made = Episode(**fields(observations=seen))
    seen[:] = 7
    assert made.observations.max() == 0
    with pytest.raises(ValueError, match="read-only"):
        made.rewards[0] = 5
    with pytest.raises(FrozenInstanceError):
        made.player = "other"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(rewards=np.array([0, np.nan, 0])), "step 1: reward nan"),
        (dict(actions=np.array([0, -1, 2])), "step 1: action -1"),
        (dict(actions=np.array([0, 1.5, 2])), r"step 1: action 1\.5"),
        (dict(actions=np.array([0, 2**40, 2])), "step 1: action 1099511627776"),
        (dict(actions=np.array([0, -(2**63), 2])), "step 1: action -9223372036854775808"),
        (dict(observations=np.zeros((3, 2))), "type float64"),
        (dict(observations=np.zeros((5, 2), np.float32)), "5 observations for 3 steps"),
        (dict(observations=np.full((4, 2), np.inf, np.float32)), "step 0: observation"),
        (dict(terminated=np.zeros(3, bool)), "without end"),
        (dict(terminated=np.array([True, False, False])), "without end"),
        (dict(terminated=np.array([True, False, True])), "step 0 of 3 is marked as the end"),
        (dict(abandoned=True), "abandoned"),
        (dict(life_lost=np.array([0, 0, 1])), "cannot also be a lost life"),
        (dict(action_probs=np.array([0.5, 0.0, 1.0])), "step 1: logging probability 0.0"),
        (dict(behavior_probs=np.full((3, 3), 0.5)), r"step 0: behavior_probs \[0.5 0.5 0.5\] is not possible"),
        (dict(behavior_probs=np.eye(3)[[0, 0, 2]]), "step 1: action 1 is not possible: its logged probability is 0"),
        (
            dict(behavior_probs=np.full((3, 4), 0.25), action_probs=np.array([0.25, 0.25, 0.5])),
            "step 2: logging probability 0.5 is not possible beside behavior_probs",
        ),
        (dict(action_masks=np.ones((3, 2), bool)), "step 2: action 2 is not possible among 2"),
        (dict(action_masks=np.eye(3, dtype=bool)[[0, 0, 2]]), "step 1: illegal action 1"),
        (dict(rewards=np.zeros(2)), "rewards of shape"),
        (dict(actions=np.zeros(0, int)), "without steps"),
    ],
)
def test_nonsense_is_refused_with_the_step_and_the_value(changes, told):
    with pytest.raises(ValueError, match=told):
        Episode(**fields(**changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(obs_shape=(5,)), r"shape \(3,\), where others have \(5,\)"),
        (dict(num_actions=1), "not possible among 1"),
        (dict(has_action_probs=True), "no logging probabilities"),
        (dict(has_action_masks=True), "no action masks of 4"),
        (dict(has_behavior_probs=True), "no behavior_probs of 4"),
    ],
)
def test_an_episode_of_another_kind_does_not_fit(changes, told):
    made = episode(np.random.default_rng(0), 30)
    made.check_fits(spec := DatasetSpec((3,), 4))
    with pytest.raises(ValueError, match=told):
        made.check_fits(replace(spec, **changes))


@pytest.mark.parametrize(
    "changes", [dict(obs_shape=(2, 2, 2, 2)), dict(obs_shape=(0,)), dict(num_actions=0), dict(frame_stack=0)]
)
def test_a_spec_of_nonsense_is_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(DatasetSpec((3,), 4), **changes)
