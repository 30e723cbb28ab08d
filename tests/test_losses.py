"""Losses against loops, and their hand-derived gradients against autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from rbi.losses import (
    action_values,
    bcq_filter,
    behavior_loss,
    behavior_loss_grad,
    c_mix,
    cql_penalty,
    double_q_value,
    dqfd_loss,
    dqfd_loss_grad,
    huber,
    l2_loss,
    large_margin_loss,
    mask_illegal,
    max_with_margin,
    monte_carlo_q_loss,
    monte_carlo_q_loss_grad,
    policy_loss,
    policy_loss_grad,
    policy_weight,
    ppo_loss,
    q_loss,
    q_loss_grad,
    td_error,
)
from tests.generators import floats, states
from tests.reference import iterative


@st.composite
def batches(draw):
    """Q-values `[B, A]`, those of another network, and actions `[B]`."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, actions = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    q, other = (torch.as_tensor(rng.normal(scale=2, size=(size, actions))) for _ in range(2))
    return q, other, torch.as_tensor(rng.integers(actions, size=size))


def weights_of(q):
    return torch.linspace(0.5, 1.5, len(q), dtype=q.dtype)


@given(floats(-100, 100))
def test_huber_is_zero_at_zero_and_its_slope_is_the_error_clipped_to_one(error):
    x = torch.tensor(error, dtype=torch.float64, requires_grad=True)
    loss = huber(x)
    loss.backward()
    assert x.grad.item() == approx(np.clip(error, -1, 1))
    assert loss.item() == approx(iterative.huber(error))
    assert huber(torch.zeros(1)).item() == 0


@given(batches(), st.sampled_from(["huber", "squared"]))
def test_q_loss_grad_is_autograds(batch, kind):
    q, other, actions = batch
    q.requires_grad_()
    error, weight = other[:, 0] - action_values(q, actions), weights_of(q)
    (expected,) = torch.autograd.grad((weight * q_loss(error, kind)).mean(), q)
    torch.testing.assert_close(q_loss_grad(error.detach(), actions, q.detach(), weight, kind), expected)


@given(batches())
def test_policy_loss_grad_is_autograds(batch):
    logits, other, _ = batch
    pi, weight = torch.softmax(other, 1), weights_of(logits)
    logits.requires_grad_()
    pi_net = torch.softmax(logits, 1)
    (expected,) = torch.autograd.grad((weight * policy_loss(pi_net, pi)).mean(), logits)
    torch.testing.assert_close(policy_loss_grad(pi_net.detach(), pi, weight), expected)


@given(batches())
def test_policy_loss_is_never_negative_and_zero_only_at_the_target(batch):
    logits, other, _ = batch
    pi = torch.softmax(other, 1)
    assert (policy_loss(torch.softmax(logits, 1), pi) > -1e-12).all()
    assert policy_loss(pi, pi).tolist() == approx([0.0] * len(pi), abs=1e-12)


@given(batches())
def test_behavior_loss_is_cross_entropy_and_its_grad_autograds(batch):
    logits, _, actions = batch
    logits.requires_grad_()
    loss = behavior_loss(logits, actions)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, actions, reduction="none"))
    (expected,) = torch.autograd.grad(loss.mean(), logits)
    torch.testing.assert_close(behavior_loss_grad(torch.softmax(logits, 1).detach(), actions), expected)


@given(batches())
def test_behavior_loss_over_legal_actions_ignores_illegal_logits(batch):
    logits, other, actions = batch
    legal = (other > 0).scatter(1, actions[:, None], True)
    changed = torch.where(legal, logits, logits + 7)
    torch.testing.assert_close(behavior_loss(logits, actions, legal), behavior_loss(changed, actions, legal))
    probs = torch.softmax(mask_illegal(logits, legal), 1)
    assert (probs[~legal] == 0).all()
    torch.testing.assert_close(behavior_loss(logits, actions, legal), -action_values(probs, actions).log())


@given(batches())
def test_monte_carlo_q_loss_grad_is_autograds(batch):
    q, other, actions = batch
    q.requires_grad_()
    returns = other[:, 0]
    (expected,) = torch.autograd.grad(monte_carlo_q_loss(q, actions, returns).mean(), q)
    error = (action_values(q, actions) - returns).detach()
    torch.testing.assert_close(monte_carlo_q_loss_grad(error, actions, q.shape[1]), expected)


@given(st.integers(1, 1000))
def test_c_mix_is_the_papers_ratio(m):
    assert c_mix(m) / (1 - c_mix(m)) == approx(m / 43.7)


@given(states(batch=(4,)), floats(0, 2), floats(0, 1))
def test_policy_weights_are_the_papers_loop(state, alpha, noise):
    pi, q = state
    weight = policy_weight(torch.from_numpy(pi), torch.from_numpy(q), alpha, noise)
    assert weight.tolist() == approx(iterative.policy_weights(pi, q, alpha, noise))
    assert weight.mean().item() == approx(1)


@given(states(batch=(4,)), floats(0, 1))
def test_policy_weights_are_one_without_an_exponent(state, noise):
    pi, q = state
    assert policy_weight(torch.from_numpy(pi), torch.from_numpy(q), 0.0, noise).tolist() == approx([1.0] * 4)


def test_states_where_actions_matter_have_larger_policy_weights():
    pi, q = torch.full((2, 2), 0.5), torch.tensor([[0.0, 0.0], [-1.0, 1.0]])
    indifferent, decisive = policy_weight(pi, q, 0.5, c_mix(2)).tolist()
    assert decisive / indifferent == approx(np.sqrt(11))  # (1 + 0.1) / (0 + 0.1), to the half


@given(batches())
def test_double_q_value_is_the_targets_value_of_the_learners_choice(batch):
    q, target, actions = batch
    expected = [float(target[i, int(q[i].argmax())]) for i in range(len(q))]
    np.testing.assert_allclose(double_q_value(q, target), expected)
    next_value = torch.tensor(expected, dtype=torch.float64)
    error = td_error(q, actions, torch.ones(len(q)), torch.full((len(q),), 0.5), next_value)
    np.testing.assert_allclose(error, 1 + 0.5 * np.array(expected) - action_values(q, actions).numpy())


@given(batches(), st.floats(0.0, 2.0))
def test_large_margin_loss_is_the_loop_and_zero_only_beyond_the_margin(batch, margin):
    q, _, actions = batch
    for i, found in enumerate(large_margin_loss(q, actions, margin)):
        taken = float(q[i, actions[i]])
        best = max(float(q[i, a]) + (margin if a != actions[i] else 0.0) for a in range(q.shape[1]))
        assert float(found) == approx(best - taken)
        leads = all(taken >= float(q[i, a]) + margin - 1e-12 for a in range(q.shape[1]) if a != actions[i])
        assert (float(found) < 1e-9) == leads


@given(batches(), floats(0, 2), floats(0, 2))
def test_dqfd_loss_is_the_weighted_sum_of_its_terms(batch, n_step_weight, margin_weight):
    q, other, actions = batch
    near, far, margin = q[:, 0], other[:, 0], large_margin_loss(q, actions, 0.8)
    found = dqfd_loss(torch.stack([near, far], 1), margin, n_step_weight, margin_weight)
    for i, loss in enumerate(found.tolist()):
        n_step = n_step_weight * iterative.huber(float(far[i]))
        assert loss == approx(iterative.huber(float(near[i])) + n_step + margin_weight * float(margin[i]))


@given(batches(), floats(0, 2), floats(0, 2), st.booleans())
def test_dqfd_loss_grad_is_autograds(batch, n_step_weight, margin_weight, masked):
    q, other, actions = batch
    q, weight = q.clone().requires_grad_(), other[:, -1].abs()
    legal = (other > 0).scatter(1, actions[:, None], True) if masked else None
    errors = other[:, :2] * 2 - action_values(q, actions)[:, None]
    margin = large_margin_loss(q, actions, 0.8, legal)
    loss = (weight * dqfd_loss(errors, margin, n_step_weight, margin_weight)).mean()
    (expected,) = torch.autograd.grad(loss, q)
    q = q.detach()
    _, best = max_with_margin(q, actions, 0.8, legal)
    found = dqfd_loss_grad(errors.detach(), actions, best, q, weight, n_step_weight, margin_weight)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_l2_loss_has_twice_the_parameters_as_gradient():
    vector = torch.tensor([1.0, -2.0, 0.0], requires_grad=True)
    loss = l2_loss(vector)
    (grad,) = torch.autograd.grad(loss, vector)
    assert (loss.item(), grad.tolist()) == (5.0, [2.0, -4.0, 0.0])


@given(batches())
def test_cql_penalty_is_the_loop_and_raises_only_the_action_taken(batch):
    q, _, actions = batch
    q = q.clone().requires_grad_()
    loss = cql_penalty(q, actions)
    expected = [np.log(np.exp(row).sum()) - row[a] for row, a in zip(q.detach().numpy(), actions, strict=True)]
    np.testing.assert_allclose(loss.detach(), expected, atol=1e-12)
    assert (loss >= 0).all()
    (grad,) = torch.autograd.grad(loss.sum(), q)
    raised = grad < 0
    assert (raised.sum(1) == 1).all()
    assert torch.equal(raised.int().argmax(1), actions)


@given(batches(), st.floats(0.0, 1.0))
def test_bcq_never_bootstraps_from_an_action_that_beta_hardly_takes(batch, threshold):
    logits, q, _ = batch
    allowed = bcq_filter(logits, threshold)
    probs = torch.softmax(logits, 1)
    ratio = probs / probs.amax(1, keepdim=True)
    assert allowed[ratio > threshold + 1e-9].all()
    assert not allowed[ratio < threshold - 1e-9].any()
    assert allowed.any(1).all()
    best = q.masked_fill(~allowed, -torch.inf).argmax(1)
    assert allowed.gather(1, best[:, None]).all()
    assert torch.equal(double_q_value(q, logits, allowed), logits.gather(1, best[:, None]).squeeze(1))


@pytest.mark.parametrize(("advantage", "ratio", "objective"), [(1.0, 3.0, 1.5), (1.0, 0.1, 0.1), (-1.0, 0.1, -0.5)])
def test_ppo_loss_clips_only_what_would_improve_the_objective(advantage, ratio, objective):
    beta = torch.tensor([[0.2, 0.8]], dtype=torch.float64)
    pi = torch.tensor([[0.2 * ratio, 1 - 0.2 * ratio]], dtype=torch.float64)
    loss = ppo_loss(pi, beta, torch.tensor([[advantage, 0.0]], dtype=torch.float64), 0.5)
    assert loss.tolist() == approx([-0.2 * objective])
