"""PPO by gradient ascent: its start, its end, and the resulting policy."""

from collections import deque

import numpy as np
import pytest
import torch

import rbi
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.learner import train
from rbi.offline_rl.ppo import PPOAscent, PPOAscentConfig
from rbi.policy import Policy
from tests.data.episodes import episode

OBS_SPEC = ObservationSpec((3,), 1, 4)


def ascent_of(*, legal=False, **changes):
    rng = np.random.default_rng(0)
    spec = DatasetSpec((3,), 4, has_action_masks=legal)
    data = Dataset.from_episodes([episode(rng, 8, legal=legal) for _ in range(4)], spec)
    sampler = Sampler(data, SamplerConfig(batch_size=32), torch.Generator().manual_seed(0))
    networks = make_networks(OBS_SPEC, offline_network(hidden_size=64), 1)
    with torch.no_grad():  # values that differ: the ascent has something to climb
        networks.q.heads.weight.mul_(5)
    return PPOAscent(PPOAscentConfig(**changes), networks, sampler, temperature=0.7), data


def test_ascent_starts_at_beta_and_reaches_the_objective_of_the_closed_form():
    ascent, data = ascent_of(updates=600, learning_rate=0.005)
    states = torch.as_tensor(np.array(data.arrays["observations"]))[:, None]
    obs = OBS_SPEC.preprocess(states, torch.float32)
    with torch.no_grad():
        beta = torch.softmax(ascent.behavior_q.pi(obs) / 0.7, 1)
        q, _ = ascent.behavior_q.q(obs)
        advantage = q - (beta * q).sum(1, keepdim=True)
        first = -ascent.loss(obs)
        best = rbi.measures.ppo_objective(rbi.max_ppo(beta, q, 0.5), beta, advantage, 0.5)
    assert float(first.abs().max()) < 1e-6  # sum_a beta A = 0
    deque(train(ascent, 600), maxlen=0)
    assert ascent.metrics()["ppo_objective"] > 0
    with torch.no_grad():
        last = -ascent.loss(obs)
    assert (last <= best + 1e-5).all()
    assert float(last.mean()) > 0.9 * float(best.mean())


@pytest.mark.parametrize("epsilon", [0.1, 0.9])
def test_the_loss_clips_ratios_at_the_configured_epsilon(epsilon):
    ascent, data = ascent_of(epsilon=epsilon)
    states = torch.as_tensor(np.array(data.arrays["observations"]))[:, None]
    obs = OBS_SPEC.preprocess(states, torch.float32)
    with torch.no_grad():
        ascent.trained.vector.mul_(1.5)  # away from beta, so that ratios are clipped
        beta, pi = (torch.softmax(net(obs) / 0.7, 1) for net in (ascent.behavior_q.pi, ascent.pi))
        q, _ = ascent.behavior_q.q(obs)
        advantage = q - (beta * q).sum(1, keepdim=True)
        expected = rbi.measures.ppo_objective(pi, beta, advantage, epsilon)
        assert not torch.allclose(expected, rbi.measures.ppo_objective(pi, beta, advantage, 0.5))
        torch.testing.assert_close(-ascent.loss(obs), expected)


def test_where_actions_are_masked_the_objective_is_that_of_the_legal_ones():
    ascent, _ = ascent_of(legal=True)
    batch, obs = ascent.prefetcher.draw()
    assert not batch.action_masks.all()
    with torch.no_grad():
        ascent.trained.vector.mul_(1.5)  # away from beta
        beta, pi = (torch.softmax(net(obs) / 0.7, 1) * batch.action_masks for net in (ascent.behavior_q.pi, ascent.pi))
        beta, pi = (probs / probs.sum(1, keepdim=True) for probs in (beta, pi))
        q, _ = ascent.behavior_q.q(obs)
        advantage = q - (beta * q).sum(1, keepdim=True)
        expected = rbi.measures.ppo_objective(pi, beta, advantage, 0.5)
        torch.testing.assert_close(-ascent.loss(obs, batch.action_masks), expected)
    before = ascent.trained.vector.clone()
    ascent.prefetcher.queue.append((batch, obs))
    ascent.update()
    assert ascent.metrics()["ppo_objective"] == pytest.approx(float(expected.mean()), rel=1e-5)
    assert torch.isfinite(ascent.trained.vector).all()
    assert not torch.equal(ascent.trained.vector, before)


def test_the_resulting_policy_is_the_trained_network_and_beta_is_unchanged():
    ascent, data = ascent_of(updates=50, learning_rate=0.005)
    before = {name: value.clone() for name, value in ascent.behavior_q.state_dict().items()}
    deque(train(ascent, 50), maxlen=0)
    for name, value in ascent.behavior_q.state_dict().items():
        assert torch.equal(value, before[name]), name
    states = np.array(data.arrays["observations"][:5])
    policy = Policy(ascent.policy_networks(), rbi.Behavior(), temperature=0.7)
    obs = OBS_SPEC.preprocess(torch.as_tensor(states)[:, None], torch.float32)
    with torch.no_grad():
        expected = torch.softmax(ascent.pi(obs) / 0.7, 1).numpy()
    np.testing.assert_allclose(policy.predict_proba(states), expected, atol=1e-6)


@pytest.mark.parametrize("changes", [dict(epsilon=0.0), dict(epsilon=1.0), dict(updates=0), dict(learning_rate=2.0)])
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        PPOAscentConfig(**changes)
