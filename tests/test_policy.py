"""Policies as artefacts: what they answer, and a folder that gives the same policy back."""

import json

import numpy as np
import pytest
import torch

import rbi
from rbi.networks import NetworkConfig, Networks, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.policy import Policy

VECTOR = ObservationSpec((3,), 1, 4)
PICTURE = ObservationSpec((40, 44), 4, 3)


def policy_of(obs_spec, rule="reroute(0.5,1.5)", c_greedy=0.1, *, with_policy=True, norm="none"):
    networks = make_networks(obs_spec, NetworkConfig(16, norm), 1, with_policy=with_policy)
    return Policy(networks, rbi.parse_rule(rule), c_greedy, env="CartPole-v1", about={"updates": 7})


def states_of(obs_spec, count=6):
    rng = np.random.default_rng(0)
    if obs_spec.is_image:
        return rng.integers(0, 256, (count, obs_spec.stack, *obs_spec.shape), dtype=np.uint8)
    return rng.normal(size=(count, *obs_spec.shape)).astype(np.float32)


@pytest.mark.parametrize("obs_spec", [VECTOR, PICTURE], ids=["vector", "picture"])
@pytest.mark.parametrize(("with_policy", "norm"), [(True, "none"), (False, "none"), (True, "layer")])
def test_a_saved_policy_comes_back_the_same(obs_spec, with_policy, norm, tmp_path):
    policy, states = policy_of(obs_spec, with_policy=with_policy, norm=norm), states_of(obs_spec)
    policy.save(tmp_path / "policy")
    again = rbi.load_policy(tmp_path / "policy")
    assert np.array_equal(again.predict_proba(states), policy.predict_proba(states))
    assert (again.rule, again.c_greedy, again.env, again.about) == (policy.rule, 0.1, "CartPole-v1", {"updates": 7})
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == ["policy.json", "weights.safetensors"]


def test_probabilities_are_the_rule_on_the_networks_answers_with_the_greedy_mix():
    policy, states = policy_of(VECTOR), states_of(VECTOR)
    with torch.no_grad():
        seen = torch.from_numpy(states)
        beta = torch.softmax(policy.networks.pi(seen), 1)
        q, _ = policy.networks.q(seen, beta)
    wanted = 0.9 * rbi.max_reroute(beta, q, 0.5, 1.5) + 0.1 * rbi.greedy(beta, q)
    assert policy.predict_proba(states) == pytest.approx(wanted.numpy(), abs=1e-6)
    assert policy.predict_proba(states).sum(1) == pytest.approx(np.ones(6), abs=1e-6)


def test_without_the_mix_the_policy_stays_in_the_reroute_set():
    policy, states = policy_of(VECTOR, c_greedy=0.0), states_of(VECTOR, 50)
    with torch.no_grad():
        beta = torch.softmax(policy.networks.pi(torch.from_numpy(states)), 1).numpy()
    ratio = policy.predict_proba(states) / beta
    assert ratio.min() >= 0.5 - 1e-5
    assert ratio.max() <= 1.5 + 1e-5


def test_actions_are_drawn_with_the_policys_probabilities_and_mode_takes_the_most_probable():
    policy = policy_of(VECTOR)
    states = np.repeat(states_of(VECTOR, 1), 20_000, axis=0)
    drawn_actions = policy.act(states, np.random.default_rng(3))
    wanted = policy.predict_proba(states[:1])[0]
    assert np.bincount(drawn_actions, minlength=4) / 20_000 == pytest.approx(wanted, abs=0.02)
    assert policy.mode(states[:1]) == [wanted.argmax()]


def test_states_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"states of shape \(2, 5\): this policy sees"):
        policy_of(VECTOR).predict_proba(np.zeros((2, 5)))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda at: (at / "policy.json").unlink(), "holds no policy"),
        (lambda at: (at / "policy.json").write_text("{"), "is not JSON"),
        (lambda at: (at / "policy.json").write_text('{"format": 99}'), "is of format 99"),
        (lambda at: (at / "policy.json").write_text('{"format": 1}'), "lacks 'obs_spec'"),
        (lambda at: (at / "weights.safetensors").write_bytes(b"torn"), "weights.safetensors: cannot be read"),
        (lambda at: (at / "weights.safetensors").unlink(), "weights.safetensors: cannot be read"),
    ],
)
def test_a_spoiled_folder_is_named(spoil, told, tmp_path):
    policy_of(VECTOR).save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=told):
        rbi.load_policy(tmp_path)


def test_a_policy_with_other_weights_than_it_says_is_refused(tmp_path):
    policy_of(VECTOR).save(tmp_path)
    config = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps(config | {"networks": config["networks"] | {"hidden_size": 17}}))
    with pytest.raises(ValueError, match="cannot be read"):
        rbi.load_policy(tmp_path)


def test_saving_over_a_policy_replaces_it_whole(tmp_path):
    policy_of(VECTOR).save(tmp_path / "p")
    policy_of(VECTOR, rule="greedy", with_policy=False).save(tmp_path / "p")
    assert rbi.load_policy(tmp_path / "p").networks.pi is None
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize("obs_spec", [ObservationSpec((3,), 1, 4), ObservationSpec((36, 36), 4, 4)])
def test_a_policy_learned_from_logs_comes_back_the_same_with_its_temperature(obs_spec, tmp_path):
    networks = Networks(obs_spec, offline_network(hidden_size=8))
    networks.train()
    for _ in range(3):  # so that batch norm has statistics of its own
        states = torch.as_tensor(states_of(obs_spec, 16)).view(16, obs_spec.stack, *obs_spec.shape)
        networks.pi(obs_spec.preprocess(states, torch.float32))
    policy = Policy(networks, rbi.parse_rule("reroute(0.5,1.5)"), temperature=2.5, env="X-v0")
    policy.save(tmp_path / "p")
    back, states = rbi.load_policy(tmp_path / "p"), states_of(obs_spec)
    assert back.temperature == 2.5
    np.testing.assert_array_equal(back.predict_proba(states), policy.predict_proba(states))


def test_a_higher_temperature_makes_the_behaviour_more_even():
    obs_spec = ObservationSpec((3,), 1, 4)
    networks = Networks(obs_spec, offline_network(hidden_size=8))
    policies = [Policy(networks, rbi.parse_rule("behavior"), temperature=t) for t in (0.2, 5)]
    cold, hot = (policy.predict_proba(states_of(obs_spec)) for policy in policies)
    assert (cold.max(1) > hot.max(1)).all()


def test_legal_actions_get_all_the_mass_and_the_bounds_hold_for_what_is_left_of_beta():
    obs_spec = ObservationSpec((3,), 1, 4)
    policy, states = policy_of(obs_spec, "reroute(0.5,1.5)", 0.0), states_of(obs_spec)
    legal = np.array([[1, 1, 0, 1]] * len(states), dtype=bool)
    pi = policy.predict_proba(states, legal)
    beta = policy_of(obs_spec, "behavior", 0.0)
    beta.networks.load_state_dict(policy.networks.state_dict())
    base = beta.predict_proba(states) * legal
    base /= base.sum(1, keepdims=True)
    assert (pi[:, 2] == 0).all()
    np.testing.assert_allclose(pi.sum(1), 1, atol=1e-6)
    ratio = pi[:, [0, 1, 3]] / base[:, [0, 1, 3]]
    assert ((ratio > 0.5 - 1e-4) & (ratio < 1.5 + 1e-4)).all()
    assert (policy.act(states, np.random.default_rng(0), legal) != 2).all()


@pytest.mark.parametrize(
    ("legal", "told"),
    [
        (np.ones((6, 3), bool), "must be booleans"),
        (np.ones((6, 4)), "must be booleans"),
        (np.zeros((6, 4), bool), "state 0: no action is legal"),
    ],
)
def test_masks_that_are_none_are_refused(legal, told):
    obs_spec = ObservationSpec((3,), 1, 4)
    with pytest.raises(ValueError, match=told):
        policy_of(obs_spec).predict_proba(states_of(obs_spec), legal)
