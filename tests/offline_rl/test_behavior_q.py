"""beta and Q: gradients of their losses, and what they converge to."""

from collections import deque

import numpy as np
import pytest
import torch
from torch.nn import functional

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import _MeanCentred, dropout, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.behavior_q import BehaviorQ, BehaviorQConfig
from rbi.offline_rl.learner import train
from tests.data.episodes import episode

PLAIN = offline_network(hidden_size=16, input_dropout=0.0, hidden_dropout=0.0)


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def fit_of(frame, *, network=PLAIN, seed=0, dropout_seed=3, ends=("terminated",), legal=False, **changes):
    rng = np.random.default_rng(1)
    data = [episode(rng, 12, frame=frame, end=ends[i % len(ends)], legal=legal) for i in range(6)]
    stack = 1 if len(frame) == 1 else 4
    spec, config = DatasetSpec(frame, 4, stack, has_action_masks=legal), SamplerConfig(8, keep_incomplete=True)
    sampler = Sampler(Dataset.from_episodes(data, spec), config, seeded(2))
    networks = make_networks(ObservationSpec(frame, stack, 4), network, seed)
    return BehaviorQ(BehaviorQConfig(network=network, **changes), networks, sampler, seeded(dropout_seed))


@pytest.mark.parametrize(
    ("frame", "ends", "legal"),
    [
        ((3,), ["terminated"], False),
        ((36, 36), ["terminated"], False),
        ((10, 10, 2), ["terminated"], False),
        ((3,), ["terminated", "abandoned"], True),
    ],
)
def test_an_update_follows_the_gradient_of_both_losses(frame, ends, legal):
    """Q learns from complete returns only, beta from all steps; illegal actions have no probability under beta."""
    fit = fit_of(frame, ends=ends, legal=legal)
    batch = Sampler(fit.sampler.data, fit.sampler.config, seeded(2)).draw()  # the one that comes next
    assert (0 < batch.complete.sum() < 8) == ("abandoned" in ends)
    obs = fit.obs_spec.preprocess(batch.states, torch.float32)
    fit.networks.train()
    logits, (q, _) = fit.networks.pi(obs), fit.networks.q(obs)
    if legal:
        assert not batch.action_masks.all()
        logits = logits.masked_fill(~batch.action_masks, -torch.inf)
    chosen = q.gather(1, batch.actions[:, None]).squeeze(1)
    errors = torch.where(batch.complete, batch.returns - chosen, 0.0)
    loss = functional.cross_entropy(logits, batch.actions) + errors.square().mean()
    expected = torch.autograd.grad(loss, list(fit.networks.parameters()))
    fit.update()
    start = 0
    for gradient in expected:
        part = fit.trained.adam.gradient[start : start + gradient.numel()].view(gradient.shape)
        torch.testing.assert_close(part, gradient, rtol=1e-4, atol=1e-6)
        start += -(-gradient.numel() // 64) * 64


def test_the_mean_centred_duel_has_the_value_and_gradient_of_its_formula():
    out = torch.randn(5, 4, generator=seeded(), dtype=torch.float64).requires_grad_()
    advantage, value = out[:, :-1], out[:, -1:]
    torch.testing.assert_close(_MeanCentred.apply(out), value + advantage - advantage.mean(1, keepdim=True))
    assert torch.autograd.gradcheck(_MeanCentred.apply, out)


def test_beta_and_q_converge_to_action_frequencies_and_mean_returns():
    """Two states: action 0 has probability 3/4 in the first, action 1 is always taken in the second."""

    rng = np.random.default_rng(0)
    data = []
    for _ in range(400):
        state = int(rng.integers(2))
        action = 1 if state else int(rng.random() < 0.25)
        reward = [[1.0, -1.0], [0.0, 0.5]][state][action]
        end = np.array([True])
        data.append(Episode(np.eye(2, dtype=np.float32)[[state]], np.array([action]), np.array([reward]), end, ~end))
    sampler = Sampler(Dataset.from_episodes(data, DatasetSpec((2,), 2)), SamplerConfig(batch_size=64), seeded())
    config = BehaviorQConfig(learning_rate=0.01, network=PLAIN)
    fit = BehaviorQ(config, make_networks(ObservationSpec((2,), 1, 2), PLAIN, 0), sampler, seeded())
    deque(train(fit, 400), maxlen=0)
    fit.networks.eval()
    obs = fit.obs_spec.preprocess(torch.eye(2)[:, None], torch.float32)
    with torch.no_grad():
        beta, (q, _) = torch.softmax(fit.networks.pi(obs), 1), fit.networks.q(obs)
    taken = np.mean([e.actions[0] == 0 for e in data if e.observations[0, 0] == 1])
    assert float(beta[0, 0]) == pytest.approx(taken, abs=0.05)
    assert float(beta[1, 1]) > 0.97
    assert q[0].tolist() == pytest.approx([1.0, -1.0], abs=0.1)
    assert float(q[1, 1]) == pytest.approx(0.5, abs=0.1)


def test_dropout_zeroes_its_share_keeps_the_mean_and_needs_a_generator():
    x = torch.ones(200, 500)
    assert dropout(x, 0.25, None) is x
    blanked = dropout(x, 0.25, seeded())
    assert float((blanked == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(blanked.mean()) == pytest.approx(1.0, abs=0.02)
    again = dropout(x, 0.25, seeded())
    assert torch.equal(blanked, again)


@pytest.mark.parametrize("only", ["input_dropout", "hidden_dropout"])
def test_equal_seeds_give_equal_networks_and_dropout_changes_them_with_its_seed(only):
    network = offline_network(**({"hidden_size": 16, "input_dropout": 0.0, "hidden_dropout": 0.0} | {only: 0.5}))
    fits = [fit_of((3,)), *(fit_of((3,), network=network, dropout_seed=seed) for seed in (3, 3, 4))]
    for fit in fits:
        for _ in range(5):
            fit.update()
    plain, one, again, other = (fit.trained.vector for fit in fits)
    assert torch.equal(one, again)
    assert not torch.equal(one, plain)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("changes", [dict(learning_rate=0.0), dict(adam_epsilon=1.0)])
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        BehaviorQConfig(**changes)


@pytest.mark.parametrize("changes", [dict(hidden_size=0), dict(input_dropout=1.0), dict(hidden_dropout=-0.1)])
def test_network_values_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        offline_network(**changes)
