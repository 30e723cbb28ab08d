"""Visits of states: pseudo-counts are counts where features tell states apart, and the precision of a regression."""

import numpy as np
import pytest
import torch

from rbi.data.dataset import Dataset
from rbi.data.visits import (
    MAX_DIRECTIONS,
    PseudoCounts,
    VisitCounts,
    count_visits,
    merge_parts,
    state_keys,
    step_clusters,
    visits_from,
)

ACTIONS = 3


def features_and_actions(rng, rows=400, size=6):
    return torch.from_numpy(rng.normal(size=(rows, size))).float(), torch.from_numpy(rng.integers(0, ACTIONS, rows))


def one_step(phi, actions):
    """Every state is an episode."""
    return phi, actions, torch.arange(len(phi))


def test_with_one_feature_for_every_state_pseudo_counts_are_visits():
    rng = np.random.default_rng(0)
    states, actions = rng.integers(0, 8, 500), rng.integers(0, ACTIONS, 500)
    actions[states == 3] = 1
    phi = torch.eye(8)[states]
    found = PseudoCounts.fit([one_step(phi, torch.from_numpy(actions))], ACTIONS).of(torch.eye(8)).numpy()
    visits = np.zeros((8, ACTIONS))
    np.add.at(visits, (states, actions), 1)
    assert found == pytest.approx(visits, rel=1e-4)


def test_parts_and_blocks_of_any_size_have_the_same_pseudo_counts(monkeypatch):
    phi, actions, episodes = one_step(*features_and_actions(np.random.default_rng(4)))
    whole = PseudoCounts.fit([(phi, actions, episodes)], ACTIONS).of(phi)
    monkeypatch.setattr("rbi.data.visits.ROWS_PER_ACTION", 30)
    monkeypatch.setattr("rbi.data.visits.PRODUCTS", 100)
    parts = list(zip(phi.split(37), actions.split(37), episodes.split(37), strict=True))
    assert [len(part[0]) for part in merge_parts(parts, 90)] == [111, 111, 111, 67]
    torch.testing.assert_close(PseudoCounts.fit(parts, ACTIONS).of(phi), whole, rtol=1e-4, atol=1e-3)


def test_pseudo_counts_do_not_depend_on_the_scale_of_features():
    phi, actions = features_and_actions(np.random.default_rng(1))
    ours = PseudoCounts.fit([one_step(phi, actions)], ACTIONS).of(phi)
    scaled = PseudoCounts.fit([one_step(100 * phi, actions)], ACTIONS).of(100 * phi)
    torch.testing.assert_close(ours, scaled, rtol=1e-3, atol=1e-3)


def test_a_regression_on_the_features_has_the_variance_of_that_many_returns():
    rng = np.random.default_rng(2)
    phi, _ = features_and_actions(rng)
    actions = torch.zeros(len(phi), dtype=torch.int64)
    counts = PseudoCounts.fit([one_step(phi, actions)], 1).of(phi[:20])[:, 0].numpy()
    noise = rng.normal(size=(len(phi), 4000))
    weights = np.linalg.lstsq(phi.double().numpy(), noise, rcond=None)[0]
    variance = (phi[:20].double().numpy() @ weights).var(1)
    assert counts * variance == pytest.approx(1, rel=0.12)


def test_steps_with_a_common_error_count_once():
    rng = np.random.default_rng(6)
    phi = torch.from_numpy(rng.normal(size=(40, 5))).float().repeat_interleave(10, 0)  # ten equal steps an episode
    actions, episodes = torch.zeros(400, dtype=torch.int64), torch.arange(400) // 10
    counts = PseudoCounts.fit([(phi, actions, episodes)], 1).of(phi[::10])[:, 0].numpy()
    noise = rng.normal(size=(40, 4000)).repeat(10, axis=0)
    weights = np.linalg.lstsq(phi.double().numpy(), noise, rcond=None)[0]
    found = counts * (phi[::10].double().numpy() @ weights).var(1)  # the ridge takes off a little
    assert found == pytest.approx(np.full(40, 0.9), rel=0.15)


def test_visits_are_of_episodes_or_spans_of_the_discount_horizon():
    ends = np.zeros(60, bool)
    ends[[29, 59]] = True
    data = Dataset.from_arrays(np.zeros((60, 1)), np.zeros(60, int), np.ones(60), ends, num_actions=2)
    assert count_visits(data, np.arange(2), 1.0).counts.tolist() == [[2, 0]]
    assert count_visits(data, np.arange(2), 0.9).counts.tolist() == [[6, 0]]
    assert count_visits(data, np.arange(1), 0.0).counts.tolist() == [[30, 0]]


@pytest.mark.parametrize(("gamma", "span"), [(0.9, 10), (0.8, 5), (0.75, 4), (0.7, 4)])
def test_a_span_of_steps_is_the_discount_horizon_rounded_up(gamma, span):
    """1 / (1 - 0.9) is 10.000000000000002."""
    data = Dataset.from_arrays(np.zeros((40, 1), np.float32), np.zeros(40, int), np.zeros(40), np.arange(40) == 39)
    clusters = step_clusters(data, np.arange(40), gamma)
    assert np.flatnonzero(np.diff(clusters))[0] + 1 == span


def test_parts_and_a_share_of_the_states_give_the_counts_of_all():
    phi, actions = features_and_actions(np.random.default_rng(3))
    whole = PseudoCounts.fit([one_step(phi, actions)], ACTIONS).of(phi[:9])
    split = zip(*(tensor.split(70) for tensor in one_step(phi, actions)), strict=True)
    parts = PseudoCounts.fit(split, ACTIONS).of(phi[:9])
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-3)
    shared = PseudoCounts.fit([one_step(phi, actions)], ACTIONS, share=0.25).of(phi[:9])
    torch.testing.assert_close(shared, 4 * whole, rtol=0.05, atol=0.5)


def test_features_of_no_training_state_count_as_never_tried():
    rng = np.random.default_rng(4)
    size = MAX_DIRECTIONS + 20
    phi = torch.zeros(500, size)
    phi[:, :5] = torch.from_numpy(rng.normal(size=(500, 5))).float()
    counts = PseudoCounts.fit([one_step(phi, torch.zeros(500, dtype=torch.int64))], 2)
    unseen = torch.zeros(3, size)
    unseen[0, 10], unseen[1, -1] = 2.0, 5.0
    assert counts.of(unseen).tolist() == [[0, 0]] * 3
    assert (counts.of(phi)[:, 0] > 20).all()
    assert counts.of(phi)[:, 1].tolist() == [0] * 500  # this action was never taken


def test_saved_pseudo_counts_are_restored():
    phi, actions = features_and_actions(np.random.default_rng(5))
    counts = PseudoCounts.fit([one_step(phi, actions)], ACTIONS)._replace(sigma=0.5)
    assert torch.equal(visits_from(counts.arrays()).of(phi), counts.of(phi))
    assert visits_from(counts.arrays()).sigma == 0.5
    assert visits_from({}) is None


def test_saved_visits_are_restored():
    counts = VisitCounts(state_keys(np.ones((1, 1))), np.array([[4, 1]], np.int32), 2.0)
    found = visits_from(counts.arrays())
    assert (found.of(np.ones((1, 1))).tolist(), found.sigma) == ([[4, 1]], 2.0)


@pytest.mark.parametrize(
    "states",
    [np.eye(1500), np.stack(np.meshgrid(*[np.arange(6.0)] * 5), -1).reshape(-1, 5), 2.0 ** np.arange(-60, 60)[:, None]],
    ids=["one-hot", "grid", "powers of 2"],
)
def test_states_whose_bits_are_nearly_all_zero_have_keys_of_their_own(states):
    assert len(np.unique(state_keys(states))) == len(states)


def test_no_states_are_refused():
    with pytest.raises(ValueError, match="no states"):
        PseudoCounts.fit([], ACTIONS)
