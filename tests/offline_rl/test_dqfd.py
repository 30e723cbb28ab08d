"""DQfD: gradients of its four losses, prioritised sampling, and the effect of the margin."""

import copy
import math
from collections import deque

import numpy as np
import pytest
import torch

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.dqfd import DQfD, DQfDConfig
from rbi.offline_rl.learner import frozen_copy, train
from tests.data.episodes import episode

from .device_syncs import NoDeviceSync

PLAIN = offline_network(16, 0.0, 0.0)
ENDS = ("terminated", "truncated", "abandoned")


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def episodes_of(frame=(3,), *, legal=False):
    rng = np.random.default_rng(1)
    return [episode(rng, 6, frame=frame, end=ENDS[i % 3], final=i % 3 != 2, lives=True, legal=legal) for i in range(12)]


def samplers_of(data, steps, **changes):
    stack = 1 if data[0].observations.ndim == 2 else 4
    spec = DatasetSpec(data[0].observations.shape[1:], 4, stack, has_action_masks=data[0].action_masks is not None)
    dataset = Dataset.from_episodes(data, spec)
    settings = dict(batch_size=8) | changes
    one = Sampler(dataset, SamplerConfig(n_step=1, **settings), seeded(2))
    return one, Sampler(dataset, SamplerConfig(n_step=steps, **settings), seeded(4), share_frames_with=one)


def learner_of(data, *, seed=0, steps=3, rate=0.01, **changes):
    one, far = samplers_of(data, steps)
    config = DQfDConfig(learning_rate=rate, n_step=steps, network=PLAIN, **changes)
    return DQfD(
        config, make_networks(ObservationSpec(one.frame, one.stack, 4), PLAIN, seed, with_policy=False), one, far
    )


def advance(learner, updates):
    deque(train(learner, learner.updates + updates), maxlen=0)


def coming_steps(learner):
    """Positions and importance weights that the next update will draw, from priorities as a list."""
    generator = seeded()
    generator.set_state(learner.one_step.generator.get_state())
    positions, _ = learner.priorities.draw(learner.one_step.config.batch_size, generator)
    likely = learner.priorities.priority.flatten().tolist()
    raw = [(sum(likely) / (len(learner.steps) * likely[i])) ** 0.6 for i in positions.tolist()]
    return positions, [weight / max(raw) for weight in raw]


def huber(error):
    size = error.abs()
    return size**2 / 2 if float(size.detach()) <= 1 else size - 0.5


def legal_at(data, number, ahead):
    """Legal actions `ahead` steps after a step of the data: all after the last step."""
    for one in data:
        if number < len(one.actions):
            then = number + ahead
            known = one.action_masks is not None and then < len(one.actions)
            return [a for a in range(4) if not known or one.action_masks[then, a]]
        number -= len(one.actions)
    raise AssertionError("there is no such step")


def slow_loss(learner, data, positions, weights):
    """J in loops over examples and actions, and the 1-step errors."""
    config, preprocess = learner.config, learner.obs_spec.preprocess
    online, evaluated, target = (
        copy.deepcopy(learner.networks).train(),
        frozen_copy(learner.networks),
        learner.target.networks,
    )
    steps = learner.steps[positions]
    q, _ = online.q(preprocess(learner.one_step.batch(steps).states, torch.float32))
    total, errors = 0.0, []
    for i, step in enumerate(steps.tolist()):
        found = []
        for sampler in (learner.one_step, learner.n_step):
            batch = sampler.batch(torch.tensor([step]))
            obs = preprocess(batch.next_states, torch.float32)
            with torch.no_grad():
                allowed = legal_at(data, step, int(sampler.bootstrap_steps[step]))
                preferred = max(allowed, key=evaluated.q(obs)[0][0].tolist().__getitem__)
                goal = batch.returns[0] + batch.discount[0] * target.q(obs)[0][0, preferred]
            taken = int(batch.actions[0])
            found.append(goal - q[i, taken])
        best = max(q[i, a] + config.margin * (a != taken) for a in legal_at(data, step, 0))
        near, far = found
        each = huber(near) + config.n_step_weight * huber(far) + config.margin_weight * (best - q[i, taken])
        total = total + weights[i] * each / len(steps)
        errors.append(float(near.detach()))
    squares = sum((weight * weight).sum() for weight in online.parameters())
    return total + config.l2_weight * squares, errors, online


@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize("weights", [{}, dict(n_step_weight=0.3, margin_weight=2.0, l2_weight=0.01, margin=0.2)])
def test_an_update_follows_the_gradient_of_the_four_losses_and_updates_the_sampled_priorities(weights, legal):
    data = episodes_of(legal=legal)
    learner = learner_of(data, target_update_interval=4, **weights)
    advance(learner, 6)  # the target network lags by two, and priorities differ
    positions, importance = coming_steps(learner)
    assert min(importance) < 0.95
    loss, errors, online = slow_loss(learner, data, positions, importance)
    expected = torch.autograd.grad(loss, list(online.parameters()))
    priorities = learner.priorities.priority.flatten().tolist()
    learner.metrics()
    learner.update()
    start = 0
    for gradient in expected:
        part = learner.trained.adam.gradient[start : start + gradient.numel()].view(gradient.shape)
        torch.testing.assert_close(part, gradient, rtol=1e-4, atol=1e-6)
        start += -(-gradient.numel() // 64) * 64
    for i, error in zip(positions.tolist(), errors, strict=True):
        priorities[i] = (abs(error) + 0.001) ** 0.4
    np.testing.assert_allclose(learner.priorities.priority.flatten(), priorities, rtol=1e-3)
    metrics = learner.metrics()
    assert metrics["dqfd_loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert metrics["dqfd_importance"] == pytest.approx(np.mean(importance), rel=1e-4)
    assert all(name.startswith("dqfd_") for name in metrics)
    assert set(learner.metrics().values()) == {0.0}


def test_an_update_follows_the_gradient_for_images():
    data = episodes_of((10, 10, 2))
    learner = learner_of(data)
    loss, _, _ = slow_loss(learner, data, *coming_steps(learner))
    advance(learner, 1)
    assert learner.metrics()["dqfd_loss"] == pytest.approx(float(loss.detach()), rel=1e-4)


def test_only_steps_with_both_returns_are_sampled():
    """An abandoned episode without a final observation has no next state for its last n steps."""
    data = [episode(np.random.default_rng(i), 6, end="abandoned", final=False) for i in range(4)]
    learner = learner_of(data)
    assert [len(sampler.usable) for sampler in (learner.one_step, learner.n_step)] == [20, 12]
    assert learner.steps.tolist() == [6 * i + time for i in range(4) for time in range(3)]
    assert float(learner.priorities.mass.sum()) == 12


def test_batch_norm_changes_once_per_update_and_the_target_is_updated_at_its_interval_in_place():
    learner = learner_of(episodes_of(), target_update_interval=3)
    places = {name: tensor.data_ptr() for name, tensor in learner.target.networks.state_dict().items()}
    for updates in range(1, 8):
        before = {name: tensor.clone() for name, tensor in learner.target.networks.state_dict().items()}
        advance(learner, 1)
        online = learner.networks.state_dict()
        for name, tensor in learner.target.networks.state_dict().items():
            assert torch.equal(tensor, (online if updates % 3 == 0 else before)[name]), (updates, name)
            assert tensor.data_ptr() == places[name]
        tracked = [int(buffer) for name, buffer in online.items() if "tracked" in name]
        assert set(tracked) == {updates}
        assert learner.networks.training


def test_the_margin_loss_prefers_demonstrated_actions_where_rewards_are_equal():
    states, rng = 12, np.random.default_rng(0)
    shown = rng.integers(4, size=states)
    data = []
    for _ in range(40):
        path, last = rng.integers(states, size=6), np.arange(6) == 5
        obs = np.eye(states, dtype=np.float32)[path]
        data.append(Episode(obs, shown[path], np.zeros(6), last, np.zeros(6, dtype=bool)))
    agreement, lead = [], []
    for weight in (1.0, 0.0):
        learner = learner_of(data, margin_weight=weight, target_update_interval=20)
        advance(learner, 100)
        with torch.no_grad():
            q = frozen_copy(learner.networks).q(torch.eye(states))[0].numpy()
        taken = q[np.arange(states), shown]
        others = np.where(np.arange(4) == shown[:, None], -np.inf, q).max(1)
        agreement.append(float((q.argmax(1) == shown).mean()))
        lead.append(float((taken - others).min()))
    assert agreement[0] == 1
    assert agreement[1] < 0.7
    assert lead[0] > 0.6
    assert lead[1] < 0


def test_a_restored_learner_continues_bit_for_bit():
    first, second = (learner_of(episodes_of(), seed=seed, target_update_interval=4) for seed in (0, 9))
    advance(first, 6)
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


@pytest.mark.parametrize("legal", [False, True])
def test_an_update_never_synchronizes_with_the_device(legal, monkeypatch):
    learner, watch = learner_of(episodes_of(legal=legal)), NoDeviceSync()
    monkeypatch.setattr(learner.joint, "batch", watch.excused(learner.joint.batch))
    with watch:
        learner.update()
        learner.after_update()
        with pytest.raises(AssertionError, match="waits"):  # the watch is awake
            learner.sums.sums[0].item()


@pytest.mark.parametrize(
    "changes",
    [
        dict(target_update_interval=0),
        dict(n_step=0),
        dict(learning_rate=1.0),
        dict(adam_epsilon=0.0),
        dict(margin=-0.1),
        dict(n_step_weight=math.nan),
        dict(margin_weight=-1.0),
        dict(l2_weight=math.inf),
        dict(priority_exponent=1.1),
        dict(importance_exponent=-0.1),
        dict(priority_epsilon=0.0),
        dict(network=offline_network()),
    ],
)
def test_values_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        DQfDConfig(**changes)


def test_samplers_that_do_not_match_are_refused():
    data, obs_spec = episodes_of(), ObservationSpec((3,), 1, 4)
    one, far = samplers_of(data, 10)
    other, _ = samplers_of(data, 10)
    near = Sampler(one.data, SamplerConfig(batch_size=8, n_step=3), seeded())
    impatient = Sampler(one.data, SamplerConfig(batch_size=8, n_step=10, gamma=0.5), seeded())
    here, there = (
        Sampler(one.data, SamplerConfig(batch_size=8, n_step=s), seeded(), episodes=[i]) for s, i in ((1, 0), (10, 1))
    )
    networks = make_networks(obs_spec, PLAIN, 0, with_policy=False)
    for first, second, why in (
        (far, far, "one_step.n_step = 10"),
        (one, near, "n_step.n_step = 3"),
        (other, far, "same episodes"),
        (one, impatient, "settings"),
        (here, there, "both a 1-step"),
    ):
        with pytest.raises(ValueError, match=why):
            DQfD(DQfDConfig(network=PLAIN), networks, first, second)
    with pytest.raises(ValueError, match="Q alone"):
        DQfD(DQfDConfig(network=PLAIN), make_networks(obs_spec, PLAIN, 0), one, far)
    unfinished = samplers_of(data, 10, keep_incomplete=True)
    with pytest.raises(ValueError, match="next state"):
        DQfD(DQfDConfig(network=PLAIN), networks, *unfinished)
