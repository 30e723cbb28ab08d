"""Losses beside loops, and what they must do to a learner."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rbi.losses import chosen, conservative, double_q, error_slope, familiar, imitation_slope, large_margin, td_error


@st.composite
def batches(draw):
    """Q-values, another network's, and actions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, actions = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    q, other = (torch.as_tensor(rng.normal(size=(size, actions))) for _ in range(2))
    return q, other, torch.as_tensor(rng.integers(actions, size=size))


@given(batches(), st.floats(0.0, 2.0))
def test_large_margin_is_the_loop_and_zero_only_behind_the_margin(batch, margin):
    q, _, actions = batch
    for i, found in enumerate(large_margin(q, actions, margin)):
        taken = float(q[i, actions[i]])
        best = max(float(q[i, a]) + (margin if a != actions[i] else 0.0) for a in range(q.shape[1]))
        assert float(found) == pytest.approx(best - taken)
        leads = all(taken >= float(q[i, a]) + margin - 1e-12 for a in range(q.shape[1]) if a != actions[i])
        assert (float(found) < 1e-9) == leads


@given(batches())
def test_conservative_is_the_loop_never_negative_and_pushes_only_the_taken_action_up(batch):
    q, _, actions = batch
    q = q.clone().requires_grad_()
    loss = conservative(q, actions)
    expected = [np.log(np.exp(row).sum()) - row[a] for row, a in zip(q.detach().numpy(), actions, strict=True)]
    np.testing.assert_allclose(loss.detach(), expected)
    assert (loss >= 0).all()
    (slope,) = torch.autograd.grad(loss.sum(), q)
    pushed_up = slope < 0
    assert (pushed_up.sum(1) == 1).all()
    assert torch.equal(pushed_up.int().argmax(1), actions)


@given(batches(), st.floats(0.0, 1.0))
def test_bcq_never_chooses_an_action_that_beta_hardly_takes(batch, threshold):
    logits, q, _ = batch
    allowed = familiar(logits, threshold)
    probs = torch.softmax(logits, 1)
    ratio = probs / probs.amax(1, keepdim=True)
    assert allowed[ratio > threshold + 1e-9].all()
    assert not allowed[ratio < threshold - 1e-9].any()
    assert allowed.any(1).all()
    best = q.masked_fill(~allowed, -torch.inf).argmax(1)
    assert allowed.gather(1, best[:, None]).all()
    ahead = double_q(q, logits, allowed)
    assert torch.equal(ahead, logits.gather(1, best[:, None]).squeeze(1))


@given(batches())
def test_double_q_asks_the_target_about_the_learners_choice(batch):
    q, target, actions = batch
    expected = [float(target[i, int(q[i].argmax())]) for i in range(len(q))]
    np.testing.assert_allclose(double_q(q, target), expected)
    ahead = torch.tensor(expected, dtype=torch.float64)
    error = td_error(q, actions, torch.ones(len(q)), torch.full((len(q),), 0.5), ahead)
    np.testing.assert_allclose(error, 1 + 0.5 * np.array(expected) - chosen(q, actions).numpy())


@given(batches())
def test_slopes_are_autograds(batch):
    logits, q, actions = batch
    logits, q = logits.requires_grad_(), q.requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, actions)
    (expected,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(imitation_slope(torch.softmax(logits, 1).detach(), actions), expected)
    error = chosen(q, actions) - 1.5
    (expected,) = torch.autograd.grad(error.square().mean(), q)
    torch.testing.assert_close(error_slope(error.detach(), actions, q.shape[1]), expected)
