"""BCQ and CQL: gradients of their losses, restricted targets, and scores in an environment with known values."""

import copy
import math
from collections import deque

import numpy as np
import pytest
import torch

import rbi
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.lab.mdp import performance
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.bcq_cql import OfflineDQN, OfflineDQNConfig
from rbi.offline_rl.behavior_q import BehaviorQ, BehaviorQConfig
from rbi.offline_rl.learner import frozen_copy, next_action_masks, train
from rbi.policy import Policy
from tests.data.episodes import episode

from .device_syncs import NoDeviceSync
from .populations import recorded, world_and_population

PLAIN = offline_network(16, 0.0, 0.0)
BOTH = dict(cql_alpha=0.7, bcq_threshold=0.6)
ENDS = ("terminated", "truncated", "abandoned")


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def episodes_of(frame=(3,), *, legal=False):
    rng = np.random.default_rng(1)
    return [episode(rng, 6, frame=frame, end=ENDS[i % 3], final=i % 3 != 2, lives=True, legal=legal) for i in range(12)]


def sharp_beta(obs_spec):
    """A beta under which some actions are unlikely."""
    beta = make_networks(obs_spec, PLAIN, 5).pi
    with torch.no_grad():
        beta.logits.weight.mul_(5)
    return beta


def learner_of(data, *, seed=0, steps=1, rate=0.01, **changes):
    stack = 1 if len(data[0].observations.shape) == 2 else 4
    frame = data[0].observations.shape[1:]
    spec = DatasetSpec(frame, 4, stack, has_action_masks=data[0].action_masks is not None)
    sampler = Sampler(Dataset.from_episodes(data, spec), SamplerConfig(batch_size=8, n_step=steps), seeded(2))
    obs_spec = ObservationSpec(frame, stack, 4)
    beta = sharp_beta(obs_spec) if changes.get("bcq_threshold") else None
    networks = make_networks(obs_spec, PLAIN, seed, with_policy=False)
    return OfflineDQN(OfflineDQNConfig(learning_rate=rate, network=PLAIN, **changes), networks, sampler, beta)


def advance(learner, updates):
    deque(train(learner, learner.updates + updates), maxlen=0)


def step_of(data, number):
    """The episode and the time of a step of the data."""
    for one in data:
        if number < len(one.actions):
            return one, number
        number -= len(one.actions)
    raise AssertionError("there is no such step")


def slow_loss(learner, data, batch):
    """The loss as the papers write it, in loops over examples and actions."""
    online, target = copy.deepcopy(learner.networks), learner.target.networks
    q, _ = online.train().q(learner.obs_spec.preprocess(batch.states, torch.float32))
    evaluated, every = frozen_copy(learner.networks), range(4)
    beta = None if learner.beta is None else copy.deepcopy(learner.beta).eval()
    losses = []
    for i in range(len(q)):
        one, time = step_of(data, int(batch.steps[i]))
        then = time + int(learner.sampler.bootstrap_steps[batch.steps[i]])
        legal = [a for a in every if one.action_masks is None or one.action_masks[time, a]]
        known = [a for a in every if one.action_masks is None or then >= len(one.actions) or one.action_masks[then, a]]
        obs = learner.obs_spec.preprocess(batch.next_states[i : i + 1], torch.float32)
        with torch.no_grad():
            if beta is not None:
                odds = beta(obs)[0].double().exp().tolist()
                most = max(odds[a] for a in known)
                known = [a for a in known if odds[a] >= learner.config.bcq_threshold * most]
            preferred = max(known, key=evaluated.q(obs)[0][0].tolist().__getitem__)
            goal = batch.returns[i] + batch.discount[i] * target.q(obs)[0][0, preferred]
        taken = q[i, batch.actions[i]]
        size = (goal - taken).abs()
        huber = size**2 / 2 if float(size.detach()) <= 1 else size - 0.5
        penalty = sum(q[i, a].exp() for a in legal).log() - taken
        losses.append(huber + learner.config.cql_alpha * penalty)
    return sum(losses) / len(losses), online


def assert_gradient(learner, expected):
    """Compare with the gradient that Adam used last."""
    start = 0
    for gradient in expected:
        part = learner.trained.adam.gradient[start : start + gradient.numel()].view(gradient.shape)
        torch.testing.assert_close(part, gradient, rtol=1e-4, atol=1e-6)
        start += -(-gradient.numel() // 64) * 64


@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize("constraint", [{}, dict(cql_alpha=0.7), dict(bcq_threshold=0.6), BOTH])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_update_follows_the_gradient_of_the_loss_of_the_papers(steps, constraint, legal):
    data = episodes_of(legal=legal)
    learner = learner_of(data, steps=steps, target_update_interval=4, **constraint)
    advance(learner, 6)  # the target network lags by two
    coming = Sampler(learner.sampler.data, learner.sampler.config, seeded())
    coming.generator.set_state(learner.sampler.generator.get_state())
    loss, online = slow_loss(learner, data, coming.draw())
    expected = torch.autograd.grad(loss, list(online.parameters()))
    learner.metrics()
    learner.update()
    assert_gradient(learner, expected)
    assert (learner.metrics()["bcq_allowed"] < 1) == bool(learner.config.bcq_threshold or legal)


@pytest.mark.parametrize("steps", [1, 3])
def test_next_action_masks_are_those_of_the_next_step_and_all_legal_after_the_last(steps):
    data = episodes_of(legal=True)
    sampler = learner_of(data, steps=steps).sampler
    found, unacted = next_action_masks(sampler), 0
    for number in sampler.usable.tolist():
        one, time = step_of(data, number)
        then = time + int(sampler.bootstrap_steps[number])
        acted = then < len(one.actions)
        unacted += not acted
        assert found[number].tolist() == (one.action_masks[then].tolist() if acted else [True] * 4)
    assert unacted > 0
    assert next_action_masks(learner_of(episodes_of(), steps=steps).sampler) is None


@pytest.mark.parametrize("frame", [(36, 36), (10, 10, 2)])
def test_an_update_follows_the_gradient_for_images(frame):
    data = episodes_of(frame)
    learner = learner_of(data, **BOTH)
    coming = Sampler(learner.sampler.data, learner.sampler.config, seeded(2)).draw()
    loss, online = slow_loss(learner, data, coming)
    expected = torch.autograd.grad(loss, list(online.parameters()))
    learner.update()
    assert_gradient(learner, expected)
    assert coming.returns.abs().max() <= 1


def test_batch_norm_statistics_change_once_per_update_from_the_states_only():
    learner = learner_of(episodes_of(), **BOTH)
    others = {**dict(learner.target.networks.named_buffers()), **{f"b{n}": b for n, b in learner.beta.named_buffers()}}
    before = {name: buffer.clone() for name, buffer in others.items()}
    learner.beta.train()
    for updates in range(1, 4):
        online = copy.deepcopy(learner.networks).train()
        coming = Sampler(learner.sampler.data, learner.sampler.config, seeded())
        coming.generator.set_state(learner.sampler.generator.get_state())
        online.q(learner.obs_spec.preprocess(coming.draw().states, torch.float32))
        learner.update()
        for (name, mine), expected in zip(learner.networks.named_buffers(), online.buffers(), strict=True):
            torch.testing.assert_close(mine, expected)
            assert "tracked" not in name or int(mine) == updates
        assert learner.networks.training
        assert learner.beta.training  # as it was
    for name, buffer in others.items():
        assert torch.equal(buffer, before[name]), name


def test_the_target_network_is_updated_at_its_interval_in_place_with_its_buffers():
    learner = learner_of(episodes_of(), target_update_interval=3)
    target, online = learner.target.networks.state_dict(), learner.networks.state_dict()
    places = {name: tensor.data_ptr() for name, tensor in target.items()}
    for updates in range(1, 8):
        before = {name: tensor.clone() for name, tensor in target.items()}
        advance(learner, 1)
        renewed = online if updates % 3 == 0 else before
        for name, tensor in learner.target.networks.state_dict().items():
            assert torch.equal(tensor, renewed[name]), (updates, name)
            assert tensor.data_ptr() == places[name]
        assert not torch.equal(before["q.heads.weight"], online["q.heads.weight"])


def test_bcq_targets_use_no_action_below_the_threshold_and_double_dqn_does():
    """Both networks give the highest Q to the action that is least likely under beta."""
    data = episodes_of()
    for constraint in (dict(bcq_threshold=0.6), {}):
        learner = learner_of(data, **constraint)
        batch = learner.sampler.batch(learner.sampler.candidates)
        obs = learner.obs_spec.preprocess(batch.next_states, torch.float32)
        beta = sharp_beta(learner.obs_spec)
        probs = torch.softmax(beta.eval()(obs), 1)
        rare = int(probs.mean(0).argmin())
        with torch.no_grad():
            for networks in (learner.networks, learner.target.networks):
                networks.q.heads.bias[rare] += 100
        unlikely = probs[:, rare] < 0.6 * probs.amax(1)
        assert int(unlikely.sum()) > 0
        uses_rare_action = learner.target.next_value(obs, learner.allowed_actions(batch, obs))[unlikely] > 50
        assert uses_rare_action.any() != bool(constraint)
        assert uses_rare_action.all() != bool(constraint)


@pytest.fixture(scope="module")
def population():
    """An environment, recorded data, and beta cloned from it."""
    seed = 0
    world, players = world_and_population(seed, qualities=(0.3, 0.5, 0.7))
    data = recorded(world, players, 200, np.random.default_rng(seed))
    obs_spec, nets = ObservationSpec(data.spec.obs_shape, 1, data.spec.num_actions), offline_network(64, 0.0, 0.0)
    sampler = Sampler(data, SamplerConfig(batch_size=128, gamma=world.discount), seeded(seed))
    fit = BehaviorQ(
        BehaviorQConfig(learning_rate=0.003, network=nets), make_networks(obs_spec, nets, seed), sampler, seeded(seed)
    )
    deque(train(fit, 300), maxlen=0)
    return world, players, data, frozen_copy(fit.networks).pi


@pytest.mark.parametrize(
    ("constraint", "rule"), [(dict(cql_alpha=0.1), "greedy"), (dict(bcq_threshold=0.3), "bcq(0.3)")]
)
def test_cql_and_bcq_score_above_uniform_and_above_the_population(population, constraint, rule):
    world, players, data, beta = population
    sampler = Sampler(data, SamplerConfig(batch_size=64, n_step=1, gamma=world.discount), seeded())
    obs_spec, nets = ObservationSpec(data.spec.obs_shape, 1, data.spec.num_actions), offline_network(64, 0.0, 0.0)
    config = OfflineDQNConfig(learning_rate=0.003, target_update_interval=25, network=nets, **constraint)
    beta = beta if config.bcq_threshold else None
    learner = OfflineDQN(config, make_networks(obs_spec, nets, 0, with_policy=False), sampler, beta)
    advance(learner, 300)
    networks = frozen_copy(learner.networks)
    networks.pi = beta
    every = np.eye(*data.spec.obs_shape, dtype=np.float32)
    pi = Policy(networks, rbi.parse_rule(rule)).predict_proba(every).astype(np.float64)
    score = performance(world, pi)
    assert score > 2 * performance(world, np.full_like(pi, 1 / pi.shape[1]))
    assert score > np.mean([performance(world, player) for player in players])
    if beta is not None:
        with torch.no_grad():
            probs = torch.softmax(beta(torch.as_tensor(every)), 1).numpy()
        assert (probs[pi > 0] >= 0.3 * (1 - 1e-5) * probs.max(1)).all()  # one action a state


def test_a_larger_cql_alpha_lowers_q_of_actions_not_taken():
    gaps = []
    for alpha in (0.0, 0.3, 10.0):
        learner = learner_of(episodes_of(), cql_alpha=alpha)
        advance(learner, 70)
        batch = learner.sampler.batch(learner.sampler.candidates)
        with torch.no_grad():
            q, _ = frozen_copy(learner.networks).q(learner.obs_spec.preprocess(batch.states, torch.float32))
        gaps.append(float((q.gather(1, batch.actions[:, None]).squeeze(1) - q.mean(1)).mean()))
    assert gaps == sorted(gaps)
    assert gaps[2] > gaps[0] + 0.3


def test_a_restored_learner_continues_bit_for_bit():
    first, second = (learner_of(episodes_of(), seed=seed, target_update_interval=4, **BOTH) for seed in (0, 9))
    advance(first, 6)
    with torch.no_grad():
        first.beta.logits.bias[0] += 2  # its owner renews it
    for name, tensor in second.state().items():
        tensor.copy_(first.state()[name])
    for mine, its in zip(second.generators(), first.generators(), strict=True):
        mine.set_state(its.get_state())
    second.updates = first.updates
    for learner in (first, second):
        advance(learner, 7)
    for name, tensor in second.state().items():
        assert torch.equal(tensor, first.state()[name]), name
    assert first.metrics() == second.metrics()


def test_metrics_are_means_since_the_last_call():
    data = episodes_of()
    learner = learner_of(data, **BOTH)
    coming = Sampler(learner.sampler.data, learner.sampler.config, seeded(2)).draw()
    loss = slow_loss(learner, data, coming)[0].detach()
    advance(learner, 1)
    metrics = learner.metrics()
    assert set(metrics) == {"td_loss", "td_error", "td_q", "cql_penalty", "bcq_allowed"}
    assert metrics["td_loss"] + 0.7 * metrics["cql_penalty"] == pytest.approx(float(loss), rel=1e-5)
    assert 0.25 <= metrics["bcq_allowed"] < 1
    assert set(learner.metrics().values()) == {0.0}
    plain = learner_of(data)
    advance(plain, 3)
    assert plain.metrics()["bcq_allowed"] == 1


@pytest.mark.parametrize("legal", [False, True])
def test_an_update_never_synchronizes_with_the_device(legal, monkeypatch):
    learner, watch = learner_of(episodes_of(legal=legal), **BOTH), NoDeviceSync()
    monkeypatch.setattr(learner.sampler, "batch", watch.excused(learner.sampler.batch))
    with watch:
        learner.update()
        learner.after_update()
        with pytest.raises(AssertionError, match="waits"):  # the watch is awake
            learner.sums.sums[0].item()


@pytest.mark.parametrize(
    "changes",
    [
        dict(target_update_interval=0),
        dict(learning_rate=0.0),
        dict(adam_epsilon=1.0),
        dict(cql_alpha=-0.1),
        dict(cql_alpha=math.inf),
        dict(bcq_threshold=1.1),
        dict(bcq_threshold=math.nan),
        dict(network=offline_network(16, 0.25, 0.0)),
        dict(network=offline_network(16, 0.0, 0.5)),
    ],
)
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        OfflineDQNConfig(**changes)


def test_inputs_that_do_not_fit_are_refused():
    learner = learner_of(episodes_of())
    data, obs_spec, beta = learner.sampler.data, learner.obs_spec, make_networks(learner.obs_spec, PLAIN, 0).pi
    networks = make_networks(obs_spec, PLAIN, 0, with_policy=False)
    with pytest.raises(ValueError, match="needs beta"):
        OfflineDQN(OfflineDQNConfig(bcq_threshold=0.3), networks, learner.sampler, None)
    with pytest.raises(ValueError, match="bcq_threshold = 0"):
        OfflineDQN(OfflineDQNConfig(), networks, learner.sampler, beta)
    with pytest.raises(ValueError, match="Q alone"):
        OfflineDQN(OfflineDQNConfig(), make_networks(obs_spec, PLAIN, 0), learner.sampler, None)
    for settings in (dict(n_step=None), dict(n_step=1, keep_incomplete=True)):
        with pytest.raises(ValueError, match="next state"):
            OfflineDQN(OfflineDQNConfig(), networks, Sampler(data, SamplerConfig(**settings), seeded()), None)
