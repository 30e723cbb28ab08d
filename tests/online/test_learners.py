"""RBI's and Ape-X's learners against autograd of the paper's losses, written out state by state."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from pytest import approx

from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec, random_shifts, shift_images
from rbi.online.apex import ApexLearner
from rbi.online.config import ActorConfig, LearnerConfig, TrainConfig
from rbi.online.rbi import RBILearner
from rbi.optim import Peers, bind_parameters, flat_size, flatten_parameters, parameter_slots, write_gradients
from rbi.replay import Replay, ReplayBatch, ReplayConfig, Transition
from rbi.returns import ReturnConfig
from tests.reference import iterative
from tests.streams import RandomEnvs

VECTORS, IMAGES = ObservationSpec((2,), 3, 4), ObservationSpec((5, 6), 2, 3)
MASKED = ObservationSpec((2,), 3, 4, has_action_masks=True)
CPU, STATES = torch.device("cpu"), 6


def make_learner(obs_spec=VECTORS, *, algo="rbi", improve_in="actor", seed=0, draws=0, dtype=torch.float32, **config):
    """A learner with large weights: policies far from uniform, errors on both sides of huber's corner."""
    networks = make_networks(obs_spec, NetworkConfig(16), seed, with_policy=algo == "rbi")
    bind_parameters(networks, 2 * flatten_parameters(networks))
    settings = LearnerConfig(**(dict(batch_size=STATES, learning_rate=0.003) | config))
    generator = torch.Generator().manual_seed(draws)
    if algo == "apex":
        return ApexLearner(settings, networks, generator, dtype, total_updates=100)
    return RBILearner(settings, ActorConfig(improve_in=improve_in), networks, generator, dtype, total_updates=100)


def batch_of(obs_spec=VECTORS, seed=0):
    """States and what followed, some of it at the end of an episode."""
    rng = np.random.default_rng(seed)
    shape = (STATES, obs_spec.stack, *obs_spec.shape)

    def frames():
        sampled = rng.integers(256, size=shape, dtype=np.uint8) if obs_spec.is_image else rng.normal(size=shape)
        return torch.from_numpy(sampled) if obs_spec.is_image else torch.from_numpy(sampled).float()

    def policies():
        return torch.from_numpy(rng.dirichlet(np.ones(obs_spec.num_actions), STATES)).float()

    batch = ReplayBatch(
        obs=frames(),
        action=torch.from_numpy(rng.integers(obs_spec.num_actions, size=STATES)),
        pi=policies(),
        reward=torch.from_numpy(rng.normal(scale=1.5, size=STATES)).float(),
        discount=torch.tensor([0.97, 0.0, 0.98, 0.97, 0.0, 0.99]),
        next_obs=frames(),
        next_pi=policies(),
        weight=torch.from_numpy(rng.uniform(0.2, 1, STATES)).float(),
        row=torch.zeros(STATES, dtype=torch.long),
        env=torch.zeros(STATES, dtype=torch.long),
        legal=torch.ones((STATES, obs_spec.mask_size), dtype=torch.bool),
        next_legal=torch.ones((STATES, obs_spec.mask_size), dtype=torch.bool),
    )
    if not obs_spec.has_action_masks:
        return batch
    legal, next_legal = (torch.from_numpy(rng.random((STATES, obs_spec.num_actions)) < 0.6) for _ in range(2))
    legal.scatter_(1, batch.action[:, None], True)
    next_legal[:, 2] = True
    pi, next_pi = (
        probs * mask / (probs * mask).sum(1, keepdim=True)
        for probs, mask in ((batch.pi, legal), (batch.next_pi, next_legal))
    )
    return batch._replace(pi=pi, next_pi=next_pi, legal=legal, next_legal=next_legal)


def value_ahead(networks, target, batch, config):
    """V of the target network n steps ahead, state by state."""
    values = []
    for i in range(len(batch.action)):
        inputs = networks.obs_spec.preprocess(batch.next_obs[i : i + 1], torch.float32)
        stored, legal = batch.next_pi[i : i + 1], batch.next_legal[i].numpy()
        if networks.pi is None:  # double Q-learning
            best = int(iterative.among_legal(legal, iterative.softmax, networks.q(inputs)[0][0].numpy()).argmax())
            values.append(float(target(inputs)[0][0, best]))
            continue
        pi = stored[0].double().numpy()
        if config.bootstrap_policy != "stored":
            pi = iterative.among_legal(legal, iterative.softmax, networks.pi(inputs)[0].double().numpy())
        q = target(inputs, stored if config.advantage_baseline == "pi" else None)[0][0].double().numpy()
        if config.bootstrap_policy == "rule":
            pi = iterative.among_legal(legal, lambda p, x: iterative.actor_policy(p, x, 0.1, 2, 0.1), pi, q)
        values.append(sum(p * x for p, x in zip(pi, q, strict=True)))
    return values


def losses(networks, target, batch, learner):
    """The paper's losses on networks as they stand, and the errors R - Q."""
    config, inputs = learner.config, networks.obs_spec.preprocess(batch.obs, torch.float32)
    loss = iterative.huber if config.q_loss == "huber" else iterative.square
    with torch.no_grad():
        ahead = value_ahead(networks, target, batch, config)
    if networks.pi is None:
        return iterative.rbi_losses(batch, networks.q(inputs)[0], None, ahead, None, loss, None)
    logits, (q, _) = networks.pi(inputs), networks.q(inputs, batch.pi if config.advantage_baseline == "pi" else None)
    if networks.obs_spec.has_action_masks:
        logits = logits.masked_fill(~batch.legal, -1e9)
    pi_net, q_now = torch.softmax(logits, 1).detach().double().numpy(), q.detach().double().numpy()
    targets, m, masks = batch.pi, networks.obs_spec.num_actions, batch.legal.numpy()
    if learner.actor.improve_in != "actor":
        targets = np.stack([
            iterative.among_legal(legal, lambda p, x: iterative.actor_policy(p, x, 0.1, 2, 0.1), *pair)
            for legal, *pair in zip(masks, pi_net, q_now, strict=True)
        ])  # fmt: skip
    allowed = [legal if len(legal) else slice(None) for legal in masks]
    weights = iterative.policy_weights(
        [p[a] for p, a in zip(pi_net, allowed, strict=True)], [x[a] for x, a in zip(q_now, allowed, strict=True)],
        config.policy_weight_exponent, m / (43.7 + m),
    )  # fmt: skip
    weights = weights if config.policy_weighting else [1.0] * len(weights)
    return iterative.rbi_losses(batch, q, logits, ahead, targets, loss, weights)


CASES = [
    dict(), dict(obs_spec=IMAGES), dict(q_loss="squared"), dict(advantage_baseline="mean"),
    dict(bootstrap_policy="net"), dict(advantage_baseline="mean", bootstrap_policy="net"),
    dict(policy_weighting=False), dict(policy_weight_exponent=1.0), dict(improve_in="learner"),
    dict(improve_in="learner", advantage_baseline="mean", bootstrap_policy="net", q_loss="squared"),
    dict(bootstrap_policy="rule"), dict(improve_in="both", advantage_baseline="mean", bootstrap_policy="rule"),
    dict(algo="apex"), dict(algo="apex", q_loss="squared"), dict(algo="apex", obs_spec=IMAGES),
    dict(obs_spec=MASKED), dict(obs_spec=MASKED, bootstrap_policy="net"), dict(obs_spec=MASKED, algo="apex"),
    dict(obs_spec=MASKED, improve_in="both", advantage_baseline="mean", bootstrap_policy="rule"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_update_follows_the_gradient_of_the_papers_losses(case):
    obs_spec = case.get("obs_spec", VECTORS)
    learner = make_learner(**case)
    stale = make_learner(**case, seed=1)  # a target that is far behind, and prefers other actions
    learner.restore(learner.state() | {"target": stale.state()["target"]})
    networks, target = copy.deepcopy(learner.networks), copy.deepcopy(learner.target)
    batch = batch_of(obs_spec, seed=10)
    if obs_spec.has_action_masks:  # in some states an illegal action has the largest Q
        best = networks.q(obs_spec.preprocess(batch.obs, torch.float32))[0].argmax(1)
        assert not batch.legal.gather(1, best[:, None]).all()
    errors = learner.update(batch, learner.states(batch))

    loss_q, loss_pi, expected = losses(networks, target, batch, learner)
    assert errors.tolist() == approx(expected, abs=1e-4)
    assert min(map(abs, expected)) < 1 < max(map(abs, expected))  # both sides of huber
    gradient = torch.zeros(flat_size(networks))
    write_gradients(
        torch.autograd.grad(loss_q + loss_pi, list(networks.parameters())), parameter_slots(networks, gradient)
    )
    assert learner.weights.optimizer.adam.gradient.numpy() == approx(gradient.numpy(), rel=1e-3, abs=1e-5)
    assert gradient.abs().max() > 0.1


def test_apex_evaluates_the_online_networks_best_action_with_the_target_network():
    learner, batch = make_learner(algo="apex"), batch_of()
    stale = make_learner(algo="apex", seed=1)
    learner.restore(learner.state() | {"target": stale.state()["target"]})
    inputs = VECTORS.preprocess(batch.next_obs, torch.float32)
    with torch.no_grad():
        mine, theirs = learner.networks.q(inputs)[0], stale.networks.q(inputs)[0]
    assert (mine.argmax(1) != theirs.argmax(1)).any()
    expected = [theirs[i, int(mine[i].argmax())].item() for i in range(STATES)]
    errors = learner.update(batch, learner.states(batch))
    q = make_learner(algo="apex").networks.q(VECTORS.preprocess(batch.obs, torch.float32))[0]
    targets = errors + q.gather(1, batch.action[:, None]).squeeze(1)
    assert targets.tolist() == approx((batch.reward + batch.discount * torch.tensor(expected)).tolist(), abs=1e-5)


def test_without_double_q_learning_the_target_network_chooses_the_action_too():
    learner, batch = make_learner(algo="apex", double_q=False), batch_of()
    learner.restore(learner.state() | {"target": make_learner(algo="apex", seed=1).state()["target"]})
    best = learner.target(VECTORS.preprocess(batch.next_obs, torch.float32))[0].max(1).values
    q = learner.networks.q(VECTORS.preprocess(batch.obs, torch.float32))[0].gather(1, batch.action[:, None]).squeeze(1)
    errors = (batch.reward + batch.discount * best - q).tolist()
    assert learner.update(batch, learner.states(batch)).tolist() == approx(errors, abs=1e-5)


def test_the_policy_loss_does_not_reach_the_q_network():
    """Nothing of the policy loss reaches the Q-net: without it, the Q-net's gradient is the same."""
    batch = batch_of()
    first, second = make_learner(), make_learner(policy_weighting=False, improve_in="learner")
    for learner in (first, second):
        learner.update(batch, learner.states(batch))
    q = flat_size(first.networks.q)
    assert torch.equal(first.weights.optimizer.adam.gradient[:q], second.weights.optimizer.adam.gradient[:q])
    assert not torch.equal(first.weights.optimizer.adam.gradient[q:], second.weights.optimizer.adam.gradient[q:])


def test_repeated_updates_fit_q_to_the_returns_and_the_pi_net_to_the_policies():
    learner, batch = make_learner(learning_rate=0.01), batch_of()
    batch = batch._replace(discount=torch.zeros(STATES))
    for _ in range(500):
        errors = learner.update(batch, learner.states(batch))
    inputs = VECTORS.preprocess(batch.obs, torch.float32)
    assert errors.abs().max() < 0.01
    assert torch.softmax(learner.networks.pi(inputs), 1).detach().numpy() == approx(batch.pi.numpy(), abs=0.01)


def test_metrics_are_means_since_the_last_call():
    learner, expected = make_learner(), []
    for seed in range(3):
        batch = batch_of(seed=seed)
        networks, target = copy.deepcopy(learner.networks), copy.deepcopy(learner.target)
        inputs = VECTORS.preprocess(batch.obs, torch.float32)
        pi_net = torch.softmax(networks.pi(inputs), 1).detach().double().numpy()
        q = networks.q(inputs, batch.pi)[0].detach().double().numpy()
        _, _, errors = losses(networks, target, batch, learner)
        pi = batch.pi.double().numpy()
        expected.append({
            "q_loss": np.mean([iterative.huber(error) for error in errors]),
            "q": q.mean(),
            "td_error": np.mean(np.abs(errors)),
            "importance": batch.weight.mean().item(),
            "pi_loss": np.mean((pi * np.log(pi / pi_net)).sum(1)),
            "pi_net_entropy": -np.mean((pi_net * np.log(pi_net)).sum(1)),
            "weight_pi_max": max(iterative.policy_weights(pi_net, q, 0.5, 4 / 47.7)),
        })  # fmt: skip
        learner.update(batch, learner.states(batch))
    assert learner.metrics() == approx(
        {name: np.mean([t[name] for t in expected]) for name in expected[0]}, rel=1e-3, abs=1e-5
    )


def test_apex_has_no_policy_metrics():
    learner, batch = make_learner(algo="apex"), batch_of()
    learner.update(batch, learner.states(batch))
    assert set(learner.metrics()) == {"q_loss", "q", "td_error", "importance"}


def replay_of(obs_spec=VECTORS, steps=40, **config):
    """A replay with episodes of three environments."""
    rng = np.random.default_rng(0)
    replay = Replay(ReplayConfig(capacity=150, **config), obs_spec, 3, 1, ReturnConfig(2, 0.9), CPU)
    random_envs = RandomEnvs(3, obs_spec.shape, rng)
    for _ in range(steps):
        action = torch.from_numpy(rng.integers(obs_spec.num_actions, size=3))
        pi = torch.from_numpy(rng.dirichlet(np.ones(obs_spec.num_actions), 3)).float()
        replay.add(0, Transition(*random_envs.step()[:4], action, pi, torch.from_numpy(rng.uniform(0.1, 2, 3)).float()))
    return replay


def next_sample(learner, replay):
    """The batch that the learner will sample next."""
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    return replay.sample(learner.config.batch_size * learner.config.updates_per_sample, generator)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_sampled_states_get_the_priority_of_their_new_error(algo):
    learner, replay = make_learner(algo=algo, batch_size=20), replay_of(priority_exponent=1.0)
    sampled = next_sample(learner, replay)
    networks, target = copy.deepcopy(learner.networks), copy.deepcopy(learner.target)
    before = replay.priority.clone()
    learner.learn(replay)
    _, _, errors = losses(networks, target, sampled.parts(20)[0], learner)
    assert replay.priority[sampled.row, sampled.env].tolist() == approx(np.abs(errors).tolist(), abs=1e-4)
    untouched = torch.ones_like(before, dtype=torch.bool)
    untouched[sampled.row, sampled.env] = False
    assert torch.equal(replay.priority[untouched], before[untouched])


def test_several_updates_per_sample_use_the_parts_of_one_sample_in_turn():
    together, replay = (
        make_learner(batch_size=8, updates_per_sample=3, target_update_interval=3),
        replay_of(priority_exponent=1.0),
    )
    apart, sampled = make_learner(batch_size=8), next_sample(together, replay)
    together.learn(replay)
    errors = []
    for part in sampled.parts(8):
        errors += apart.update(part, apart.states(part)).abs().tolist()
    assert torch.equal(together.vector, apart.vector)
    expected = {}
    for row, lane, error in zip(sampled.row.tolist(), sampled.env.tolist(), errors, strict=True):
        expected.setdefault((row, lane), []).append(error)
    for cell, of_cell in expected.items():  # a state sampled twice has two errors, and one of them stays
        assert min(abs(replay.priority[cell].item() - error) for error in of_cell) < 1e-4
    assert replay.mass.numpy() == approx(replay.priority.double().sum(1).numpy())


class EqualPeers(Peers):
    """Learners that all have the same part of the batch."""

    def reduce_(self, tensor, _):
        return tensor

    def average_(self, tensor):
        return tensor


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_each_of_several_learners_samples_its_part_of_the_batch(algo):
    learner, sizes = make_learner(algo=algo, batch_size=8, updates_per_sample=2, target_update_interval=2), []
    learner.peers, replay = EqualPeers(2), replay_of()
    sample = replay.sample
    replay.sample = lambda size, generator: sizes.append(size) or sample(size, generator)
    learner.learn(replay)
    assert sizes == [8]  # two updates, each with half a batch
    assert learner.weights.optimizer.adam.count == 2


def test_augmentation_shifts_images_of_both_states():
    obs_spec = ObservationSpec((10, 12), 2, 3)
    learner, plain, replay = (
        make_learner(obs_spec, batch_size=8, augmentation=2),
        make_learner(obs_spec, batch_size=8),
        replay_of(obs_spec),
    )
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    sampled = replay.sample(8, generator)
    frames, after = (shift_images(inputs, random_shifts(8, 2, generator)) for inputs in (sampled.obs, sampled.next_obs))
    assert not torch.equal(frames, sampled.obs)
    part = sampled._replace(obs=frames, next_obs=after).parts(8)[0]
    plain.update(part, plain.states(part))
    learner.learn(replay)
    assert torch.equal(learner.vector, plain.vector)


TARGET = dict(improve_in="both", bootstrap_policy="rule", improve_from="target")


def improved_target(learner, frames, masks):
    """The policy of the target networks after the rule, and their Q-values, state by state."""
    spec, pairs = learner.obs_spec, []
    inputs = spec.preprocess(frames, torch.float32)
    for i, legal in enumerate(masks.numpy()):
        state = inputs[i : i + 1]
        beta = iterative.among_legal(legal, iterative.softmax, learner.target_pi(state)[0].double().numpy())
        baseline = torch.from_numpy(beta[None]).float() if learner.config.advantage_baseline == "pi" else None
        q = learner.target(state, baseline)[0][0].double().numpy()
        step = lambda p, x: iterative.actor_policy(p, x, 0.1, 2, 0.1)  # noqa: E731
        pairs.append((iterative.among_legal(legal, step, beta, q), q))
    return [np.stack(arrays) for arrays in zip(*pairs, strict=True)]


@pytest.mark.parametrize("case", [{}, {"advantage_baseline": "mean"}, {"obs_spec": MASKED}], ids=str)
def test_improved_from_the_target_networks_policies_and_values_are_theirs(case):
    learner, stale = make_learner(**TARGET, **case), make_learner(**TARGET, **case, seed=1)
    learner.restore(learner.state() | {"target": stale.state()["target"]})
    batch = batch_of(case.get("obs_spec", VECTORS), seed=10)
    states = learner.states(batch)
    with torch.no_grad():
        pi, _ = improved_target(learner, batch.obs, batch.legal)
        next_pi, next_q = improved_target(learner, batch.next_obs, batch.next_legal)
    assert states.pi.numpy() == approx(pi, abs=1e-5)
    assert states.predicted.numpy() == approx((next_pi * next_q).sum(1), abs=1e-4)
    for _ in range(3):  # learning changes neither
        learner.update(batch, states)
        again = learner.states(batch)
        assert torch.equal(again.pi, states.pi)
        assert torch.equal(again.predicted, states.predicted)


def test_improved_from_the_target_networks_a_policy_stays_in_the_reroute_set_of_the_one_before():
    """Between two target updates the policy network learns one improvement of the target's policy, however long."""
    learner = make_learner(**TARGET, learning_rate=0.02, policy_weighting=False)
    learner.actor = dataclasses.replace(learner.actor, c_greedy=0.0)
    batch = batch_of()._replace(discount=torch.zeros(STATES), weight=torch.ones(STATES))
    inputs = VECTORS.preprocess(batch.obs, torch.float32)
    for _ in range(3):
        with torch.no_grad():
            before = torch.softmax(learner.target_pi(inputs), 1)
        for _ in range(300):
            states = learner.states(batch)
            learner.update(batch, states)
        ratio = states.pi / before
        assert 0.1 - 1e-4 < ratio.min() < ratio.max() < 2 + 1e-4
        with torch.no_grad():
            assert torch.softmax(learner.pi_net(inputs), 1).numpy() == approx(states.pi.numpy(), abs=0.05)
        learner.weights.update_target()


def test_settings_that_contradict_improvement_from_the_target_networks_are_refused():
    with pytest.raises(ValueError, match="improve_from = target: needs bootstrap_policy = rule, not net"):
        TrainConfig.preset("CartPole-v1", improve_from="target", bootstrap_policy="net")
    with pytest.raises(ValueError, match="improve_from = target: needs improve_in = both or learner"):
        TrainConfig.preset("CartPole-v1", improve_from="target", improve_in="actor")
    assert TrainConfig.preset("CartPole-v1", improve_from="target").learner.improve_from == "target"


def test_vectors_are_never_augmented():
    learner, plain = make_learner(batch_size=8, augmentation=2), make_learner(batch_size=8)
    learner.learn(replay_of())
    plain.learn(replay_of())
    assert torch.equal(learner.vector, plain.vector)


@pytest.mark.parametrize(("updates_per_sample", "target_update_interval"), [(1, 1), (1, 3), (2, 4), (5, 5)])
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_the_target_network_is_updated_at_its_interval_and_constant_in_between(
    algo, updates_per_sample, target_update_interval
):
    learner = make_learner(
        algo=algo, updates_per_sample=updates_per_sample, target_update_interval=target_update_interval
    )
    replay, expected = replay_of(), flatten_parameters(learner.networks.q)
    for count in range(1, 13):
        learner.learn(replay)
        assert torch.equal(flatten_parameters(learner.target), expected)
        learner.advance()
        assert learner.updates == count * updates_per_sample
        if learner.updates % target_update_interval == 0:
            expected = flatten_parameters(learner.networks.q)
        assert torch.equal(flatten_parameters(learner.target), expected)


def test_the_learning_rate_decays_linearly_and_continues_after_a_restore():
    learner, restored = (make_learner(learning_rate=0.002, final_lr_fraction=0.25) for _ in range(2))
    rates, batch = [], batch_of()
    for _ in range(101):
        rates.append(float(learner.weights.optimizer.adam.current_learning_rate()))
        learner.update(batch, learner.states(batch))
    assert rates == approx([0.002 * (1 - 0.75 * step / 100) for step in range(101)])
    restored.restore(learner.state())
    assert float(restored.weights.optimizer.adam.current_learning_rate()) == approx(0.0005)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_restored_learner_continues_to_the_last_bit(algo, dtype):
    options = dict(algo=algo, dtype=dtype, target_update_interval=3)
    learner, replay = make_learner(**options), replay_of()
    for _ in range(4):
        learner.learn(replay)
        learner.advance()
    restored, again = make_learner(seed=1, draws=1, **options), replay_of(steps=0)
    restored.restore({name: tensor.clone() for name, tensor in learner.state().items()})
    restored.generator.set_state(learner.generator.get_state())
    restored.updates = learner.updates
    again.restore({name: tensor.clone() for name, tensor in replay.state().items()})
    for _ in range(4):
        for one, table in ((learner, replay), (restored, again)):
            one.learn(table)
            one.advance()
    for name, tensor in learner.state().items():
        assert torch.equal(tensor, restored.state()[name]), name
    assert torch.equal(replay.priority, again.priority)


def test_networks_compute_with_a_rounded_copy_of_the_optimised_weights():
    """float64 stands for the second precision here: not every CPU multiplies matrices of bfloat16."""
    learner, replay = make_learner(dtype=torch.float64), replay_of()
    for _ in range(3):
        learner.learn(replay)
        assert torch.equal(learner.weights.compute_vector, learner.vector.double())
        assert torch.equal(flatten_parameters(learner.networks), learner.vector)
    assert {parameter.dtype for parameter in learner.networks.parameters()} == {torch.float64}
    assert learner.vector.dtype == torch.float32


BAD = [
    dict(batch_size=0), dict(target_update_interval=0), dict(learning_rate=0.0), dict(learning_rate=1.0),
    dict(policy_weight_exponent=-1.0), dict(augmentation=17),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_invalid_learner_settings_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        LearnerConfig(**bad)


def test_a_target_update_between_two_updates_of_one_sample_is_refused():
    with pytest.raises(ValueError, match="target_update_interval = 5"):
        LearnerConfig(target_update_interval=5, updates_per_sample=2)
