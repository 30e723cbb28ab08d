"""Policies: probabilities, values, actions, and saving and loading them."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

import rbi
from rbi.certification.evidence import predict
from rbi.data.episode import Feature, FeatureRange
from rbi.data.formats.tables import schema_of
from rbi.data.visits import VisitCounts
from rbi.evaluation.batched_policies import sample
from rbi.networks import NetworkConfig, Networks, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.policy import Policy, draw_actions, load_policy
from rbi.report.episodes import predict_episode
from rbi.rules import types

MASKED = ObservationSpec((3,), 1, 4, has_action_masks=True)
VECTOR, SCALED = ObservationSpec((3,), 1, 4), ObservationSpec((3,), 1, 4, (1.0, 20.0, 0.5))
MASKED, IMAGE = ObservationSpec((3,), 1, 4, has_action_masks=True), ObservationSpec((40, 44), 4, 3)


def policy_of(obs_spec, rule="reroute(0.5,1.5)", c_greedy=0.1, *, with_policy=True, norm="none"):
    networks = make_networks(obs_spec, NetworkConfig(16, norm), 1, with_policy=with_policy)
    return Policy(networks, rbi.parse_rule(rule), c_greedy, env="CartPole-v1", metadata={"updates": 7})


def observations(obs_spec, count=6):
    rng = np.random.default_rng(0)
    if obs_spec.is_image:
        return rng.integers(0, 256, (count, obs_spec.stack, *obs_spec.shape), dtype=np.uint8)
    return rng.normal(size=(count, *obs_spec.shape)).astype(np.float32)


@pytest.mark.parametrize("obs_spec", [VECTOR, SCALED, MASKED, IMAGE], ids=["vector", "scaled", "masks", "image"])
@pytest.mark.parametrize(("with_policy", "norm"), [(True, "none"), (False, "none"), (True, "layer"), (True, "hidden")])
def test_a_saved_policy_comes_back_the_same(obs_spec, with_policy, norm, tmp_path):
    policy, obs = policy_of(obs_spec, with_policy=with_policy, norm=norm), observations(obs_spec)
    policy.save(tmp_path / "policy")
    again = rbi.load_policy(tmp_path / "policy")
    legal = np.eye(4, dtype=bool)[np.arange(len(obs)) % 4] if obs_spec.has_action_masks else None
    assert np.array_equal(again.predict_proba(obs, legal), policy.predict_proba(obs, legal))
    assert again.obs_spec == policy.obs_spec
    assert (again.rule, again.c_greedy, again.env, again.metadata) == (policy.rule, 0.1, "CartPole-v1", {"updates": 7})
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == ["policy.json", "weights.safetensors"]


@pytest.mark.parametrize("obs_spec", [VECTOR, SCALED, IMAGE], ids=["vector", "scaled", "image"])
@pytest.mark.parametrize("norm", ["none", "layer", "hidden", "batch"])
def test_no_states_have_no_actions(obs_spec, norm):
    policy, obs = policy_of(obs_spec, norm=norm), observations(obs_spec, 0)
    assert policy.predict_proba(obs).shape == (0, obs_spec.num_actions)
    assert policy.predict_value(obs).shape == policy.act(obs, 0).shape == policy.mode(obs).shape == (0,)


def test_probabilities_are_the_rule_on_the_networks_estimates_mixed_with_greedy():
    policy, obs = policy_of(VECTOR), observations(VECTOR)
    with torch.no_grad():
        x = torch.from_numpy(obs)
        beta = torch.softmax(policy.networks.pi(x), 1)
        q, _ = policy.networks.q(x, beta)
    wanted = 0.9 * rbi.max_reroute(beta, q, 0.5, 1.5) + 0.1 * rbi.greedy(beta, q)
    assert policy.predict_proba(obs) == pytest.approx(wanted.numpy(), abs=1e-6)
    assert policy.predict_proba(obs).sum(1) == pytest.approx(np.ones(6), abs=1e-6)


def test_another_rule_on_the_same_networks_has_no_greedy_mix():
    policy, obs = policy_of(VECTOR, c_greedy=0.5), observations(VECTOR)
    beta = policy.with_rule(rbi.Behavior()).predict_proba(obs)
    assert beta == pytest.approx(torch.softmax(policy.networks.pi(torch.from_numpy(obs)), 1).numpy(), abs=1e-6)


def test_without_the_mix_the_policy_stays_in_the_reroute_set():
    policy, obs = policy_of(VECTOR, c_greedy=0.0), observations(VECTOR, 50)
    with torch.no_grad():
        beta = torch.softmax(policy.networks.pi(torch.from_numpy(obs)), 1).numpy()
    ratio = policy.predict_proba(obs) / beta
    assert ratio.min() >= 0.5 - 1e-5
    assert ratio.max() <= 1.5 + 1e-5


def test_actions_are_drawn_with_the_policys_probabilities_and_mode_takes_the_most_probable():
    policy = policy_of(VECTOR)
    obs = np.repeat(observations(VECTOR, 1), 20_000, axis=0)
    drawn_actions = policy.act(obs, np.random.default_rng(3))
    wanted = policy.predict_proba(obs[:1])[0]
    assert np.bincount(drawn_actions, minlength=4) / 20_000 == pytest.approx(wanted, abs=0.02)
    assert policy.mode(obs[:1]) == [wanted.argmax()]


@pytest.mark.parametrize("obs", [{"place": 0, "speed": np.zeros(3)}, (0, np.zeros(3))])
def test_dict_and_tuple_observations_are_refused_with_what_flattens_them(obs):
    with pytest.raises(ValueError, match=rf"obs is a {type(obs).__name__}: .* gymnasium\.spaces\.flatten"):
        policy_of(VECTOR).predict_proba(obs)


def test_observations_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \[2, 5\]"):
        policy_of(VECTOR).predict_proba(np.zeros((2, 5)))
    with pytest.raises(
        ValueError, match=r"shape \[3\]: .* of shape \[B, 3\]; for a single observation give obs\[None\]"
    ):
        policy_of(VECTOR).predict_proba(np.zeros(3))
    with pytest.raises(ValueError, match=r"^obs has shape \[\]: this policy takes batches of shape \[B, 3\]$"):
        policy_of(VECTOR).act(3, 0)  # the number of a state


def test_what_is_neither_a_policy_nor_data_is_named_with_what_to_give():
    policy, table = policy_of(VECTOR), pa.table({"action": [0, 1], "reward": [0, 1], "obs_0": [0.0, 1.0]})
    result = rbi.ImproveResult(policy, policy, {}, [])
    for call in (rbi.load_policy, rbi.evaluate, lambda given: rbi.certify(given, table)):
        with pytest.raises(TypeError, match="the policy is of type Table: must be a Policy or the path of its folder"):
            call(table)
        with pytest.raises(TypeError, match=r"is of type ImproveResult: must be a Policy .*; give its \.policy"):
            call(result)
        with pytest.raises(TypeError, match=r"is of type module: must be a Policy or the path of its folder$"):
            call(rbi)
    for call in (rbi.improve, rbi.offline, lambda given: rbi.certify(policy, given)):
        with pytest.raises(TypeError, match=r"the data is of type Table: must be a Dataset or a path; rbi\.Dataset"):
            call(table)


def flip_last_bit(path):
    """Change the lowest bit of the last weight: a number that is hardly different."""
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda at: (at / "policy.json").unlink(), "holds no policy"),
        (lambda at: (at / "policy.json").write_text("{"), "is not JSON"),
        (lambda at: (at / "policy.json").write_text('{"format": 99}'), "is of format 99"),
        (lambda at: (at / "policy.json").write_text('{"format": 3}'), "lacks 'obs_spec'"),
        (lambda at: (at / "weights.safetensors").write_bytes(b"torn"), "weights.safetensors: cannot be read"),
        (lambda at: (at / "weights.safetensors").unlink(), "weights.safetensors: cannot be read"),
        (lambda at: flip_last_bit(at / "weights.safetensors"), "weights.safetensors: is damaged"),
    ],
)
def test_a_damaged_folder_is_an_error_that_names_the_file(damage, message, tmp_path):
    policy_of(VECTOR).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        rbi.load_policy(tmp_path)


def test_weights_that_do_not_fit_the_architecture_are_an_error(tmp_path):
    policy_of(VECTOR).save(tmp_path)
    config = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "policy.json").write_text(json.dumps(config | {"networks": config["networks"] | {"hidden_size": 17}}))
    with pytest.raises(ValueError, match=r"has shape \(16, 3\), but policy.json asks for \(17, 3\)"):
        rbi.load_policy(tmp_path)


def test_saving_over_a_policy_replaces_it(tmp_path):
    policy_of(VECTOR).save(tmp_path / "p")
    policy_of(VECTOR, rule="greedy", with_policy=False).save(tmp_path / "p")
    assert rbi.load_policy(tmp_path / "p").networks.pi is None
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_saving_through_a_link_follows_it(tmp_path):
    policy_of(VECTOR).save(tmp_path / "p")
    (tmp_path / "newest").symlink_to("p")
    policy_of(VECTOR, rule="greedy", with_policy=False).save(tmp_path / "newest")
    assert (tmp_path / "newest").is_symlink()
    assert rbi.load_policy(tmp_path / "p").networks.pi is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newest", "p"]


@pytest.mark.parametrize("obs_spec", [ObservationSpec((3,), 1, 4), ObservationSpec((36, 36), 4, 4)])
def test_a_policy_with_batch_norm_and_a_temperature_comes_back_the_same(obs_spec, tmp_path):
    networks = Networks(obs_spec, offline_network(hidden_size=8))
    networks.train()
    for _ in range(3):  # gives batch norm other than its initial statistics
        obs = torch.as_tensor(observations(obs_spec, 16)).view(16, obs_spec.stack, *obs_spec.shape)
        networks.pi(obs_spec.preprocess(obs, torch.float32))
    policy = Policy(networks, rbi.parse_rule("reroute(0.5,1.5)"), temperature=2.5, env="X-v0")
    policy.save(tmp_path / "p")
    back, obs = rbi.load_policy(tmp_path / "p"), observations(obs_spec)
    assert back.temperature == 2.5
    np.testing.assert_array_equal(back.predict_proba(obs), policy.predict_proba(obs))


def test_a_higher_temperature_makes_beta_more_uniform():
    obs_spec = ObservationSpec((3,), 1, 4)
    networks = Networks(obs_spec, offline_network(hidden_size=8))
    policies = [Policy(networks, rbi.parse_rule("behavior"), temperature=t) for t in (0.2, 5)]
    cold, hot = (policy.predict_proba(observations(obs_spec)) for policy in policies)
    assert (cold.max(1) > hot.max(1)).all()


def test_legal_actions_get_all_probability_within_the_bounds_around_renormalised_beta():
    obs_spec = ObservationSpec((3,), 1, 4)
    policy, obs = policy_of(obs_spec, "reroute(0.5,1.5)", 0.0), observations(obs_spec)
    legal = np.array([[1, 1, 0, 1]] * len(obs), dtype=bool)
    pi = policy.predict_proba(obs, legal)
    beta = policy_of(obs_spec, "behavior", 0.0)
    beta.networks.load_state_dict(policy.networks.state_dict())
    base = beta.predict_proba(obs) * legal
    base /= base.sum(1, keepdims=True)
    assert (pi[:, 2] == 0).all()
    np.testing.assert_allclose(pi.sum(1), 1, atol=1e-6)
    ratio = pi[:, [0, 1, 3]] / base[:, [0, 1, 3]]
    assert ((ratio > 0.5 - 1e-4) & (ratio < 1.5 + 1e-4)).all()
    assert (policy.act(obs, np.random.default_rng(0), legal) != 2).all()


@pytest.mark.parametrize(
    ("legal", "message"),
    [
        (np.ones((6, 3), bool), "must be booleans"),
        (np.full((6, 4), 2), r"must be booleans, or zeros and ones, \(6, 4\)"),
        (np.full((6, 4), np.nan), "must be booleans"),
        (pa.table({name: [1] * 6 for name in "abcd"}), "legal is a table: pass an array"),
        ([["none"], ["bundle"]] * 3, r"^legal is no array of booleans: pass an array \[B, A\], with actions in the"),
        (np.zeros((6, 4), bool), r"legal\[0\]: no action is legal"),
    ],
)
def test_invalid_legal_masks_are_errors(legal, message):
    obs_spec = ObservationSpec((3,), 1, 4)
    with pytest.raises(ValueError, match=message):
        policy_of(obs_spec).predict_proba(observations(obs_spec), legal)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float32])
def test_masks_of_zeros_and_ones_as_environments_give_them_are_those_of_booleans(kind):
    policy, obs = policy_of(VECTOR), observations(VECTOR)
    legal = np.tile([True, False, True, False], (6, 1))
    np.testing.assert_array_equal(policy.predict_proba(obs, legal.astype(kind)), policy.predict_proba(obs, legal))


def test_the_value_of_a_policy_is_the_mean_of_q_under_its_probabilities():
    policy, obs = policy_of(VECTOR), observations(VECTOR)
    _, q = policy.beta_and_q(policy.obs_tensor(obs))
    values = policy.predict_value(obs)
    assert values.shape == (6,)
    assert values == pytest.approx((policy.predict_proba(obs) * q.numpy()).sum(1), abs=1e-6)
    only = np.eye(4, dtype=bool)[np.full(6, 2)]
    assert policy.predict_value(obs, only) == pytest.approx(q.numpy()[:, 2], abs=1e-6)


def masked_data(count=30):
    """Steps with random masks, and the value stream of the Q-network of a policy that learned with masks."""
    policy, rng = policy_of(MASKED, "behavior", 0.0), np.random.default_rng(1)
    obs, legal = observations(MASKED, count), rng.random((count, 4)) < 0.5
    legal[np.arange(count), np.arange(count) % 4] = True
    with torch.no_grad():
        value = policy.networks.q.predict_value(torch.from_numpy(obs))
    return policy, obs, legal, value.numpy()


def test_the_value_of_beta_among_legal_actions_is_the_value_stream_if_the_policy_learned_with_masks(tmp_path):
    policy, obs, legal, value = masked_data()
    policy.save(tmp_path / "p")
    for found in (policy, load_policy(tmp_path / "p")):
        assert found.predict_value(obs, legal) == pytest.approx(value, abs=1e-5)


def test_a_policy_that_learned_with_masks_insists_on_them():
    policy, obs, legal, _ = masked_data()
    for method in (policy.predict_proba, policy.predict_value, policy.mode, lambda obs: policy.act(obs, 0)):
        with pytest.raises(ValueError, match="legal is missing: this policy learned with action masks"):
            method(obs)
    ends = np.ones(len(obs), bool)
    with pytest.raises(ValueError, match="have no action masks, and the policy learned with masks"):
        rbi.certify(policy, rbi.Dataset.from_arrays(obs, legal.argmax(1), ends.astype(float), ends))


def test_certificates_and_reports_restrict_beta_to_the_logged_masks_before_q_is_centred():
    policy, obs, legal, value = masked_data()
    ends = np.arange(len(obs)) % 3 == 2
    data = rbi.Dataset.from_arrays(obs, legal.argmax(1), ends.astype(float), ends, action_masks=legal)
    beta, q, _, masks = predict(policy, data)
    assert np.array_equal(masks, legal)
    assert (beta * q).sum(1) == pytest.approx(value, abs=1e-5)
    of_report = predict_episode(policy, data[0])
    assert (of_report.beta * of_report.q).sum(1) == pytest.approx(value[:3], abs=1e-5)


def test_the_value_of_beta_is_the_value_stream_of_the_q_network():
    policy, obs = policy_of(VECTOR, "behavior", 0.0), observations(VECTOR)
    with torch.no_grad():
        value = policy.networks.q.predict_value(torch.from_numpy(obs))
    assert policy.predict_value(obs) == pytest.approx(value.numpy(), abs=1e-5)


@pytest.mark.parametrize("obs_spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_tensors_and_arrays_give_the_same_results(obs_spec):
    policy, obs = policy_of(obs_spec), observations(obs_spec)
    legal = np.ones((6, obs_spec.num_actions), bool)
    tensors = torch.from_numpy(obs), torch.from_numpy(legal)
    assert np.array_equal(policy.predict_proba(*tensors), policy.predict_proba(obs, legal))
    assert np.array_equal(policy.act(tensors[0], 0), policy.act(obs, 0))


@pytest.mark.parametrize("obs_spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_arrays_of_any_strides_give_the_same_results(obs_spec):
    policy, obs = policy_of(obs_spec), observations(obs_spec)
    legal = np.random.default_rng(0).random((6, obs_spec.num_actions)) < 0.7
    legal[:, 0] = True
    backwards = policy.predict_proba(obs[::-1], legal[::-1])
    assert np.array_equal(backwards[::-1], policy.predict_proba(obs, legal))


def test_tensors_of_a_network_in_training_are_taken_as_they_are():
    policy, obs = policy_of(VECTOR), torch.from_numpy(observations(VECTOR))
    policy.features = FeatureRange((-9.0,) * 3, (9.0,) * 3)
    assert np.array_equal(policy.predict_proba(obs.clone().requires_grad_()), policy.predict_proba(obs))
    policy.behavior = "logged"
    beta = torch.softmax(torch.zeros(len(obs), 4, requires_grad=True), 1).bfloat16()
    assert np.array_equal(policy.predict_proba(obs, beta=beta), policy.predict_proba(obs, beta=np.full((6, 4), 0.25)))


@pytest.mark.parametrize("obs_spec", [MASKED, IMAGE], ids=["masks", "image"])
def test_many_states_are_computed_in_blocks_with_the_same_results(obs_spec, monkeypatch):
    policy, obs = policy_of(obs_spec), observations(obs_spec, 10)
    legal = np.random.default_rng(1).random((10, obs_spec.num_actions)) < 0.5
    legal[:, 0] = True
    at_once = policy.predict_proba(obs, legal), policy.predict_value(obs, legal)
    sizes = []
    policy.networks.q.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    for name in ("VECTORS_AT_ONCE", "IMAGES_AT_ONCE"):
        monkeypatch.setattr(f"rbi.policy.{name}", 4)
    np.testing.assert_allclose(policy.predict_proba(obs, legal), at_once[0], atol=1e-6)
    np.testing.assert_allclose(policy.predict_value(obs, legal), at_once[1], atol=1e-6)
    assert sizes == 2 * [4, 4, 2]


def test_a_seed_draws_what_a_generator_of_that_seed_draws():
    policy, obs = policy_of(VECTOR), observations(VECTOR, 100)
    assert np.array_equal(policy.act(obs, 5), policy.act(obs, np.random.default_rng(5)))
    assert not np.array_equal(policy.act(obs, 5), policy.act(obs, 6))


def test_without_a_generator_draws_differ_from_call_to_call():
    policy = policy_of(VECTOR)
    obs = np.repeat(observations(VECTOR, 1), 20_000, axis=0)
    drawn, again = policy.act(obs), policy.act(obs)
    assert np.bincount(drawn, minlength=4) / 20_000 == pytest.approx(policy.predict_proba(obs[:1])[0], abs=0.02)
    assert not np.array_equal(drawn, again)


def test_what_is_no_generator_is_named():
    with pytest.raises(TypeError, match=r"^rng is of type module: must be a NumPy generator or a seed$"):
        policy_of(VECTOR).act(observations(VECTOR), np.random)


def test_a_policy_shows_its_rule_shapes_and_environment():
    assert repr(policy_of(IMAGE)) == (
        "Policy(reroute(0.5,1.5), obs_shape=(4, 40, 44), num_actions=3, c_greedy=0.1, env='CartPole-v1', device='cpu')"
    )


@dataclasses.dataclass(frozen=True)
class Uniform(rbi.Rule):
    """A rule of a user's own."""

    def __call__(self, beta, advantage, *, legal=None, check=True):  # noqa: ARG002
        return torch.full_like(beta, 1 / beta.shape[-1])


@pytest.mark.parametrize("rule", [Uniform(), lambda beta, *_, **__: beta], ids=["not registered", "a function"])
def test_a_rule_that_could_not_be_loaded_again_is_not_saved(rule, tmp_path):
    policy = Policy(policy_of(VECTOR).networks, rule)
    assert policy.predict_proba(observations(VECTOR)).shape == (6, 4)
    with pytest.raises(ValueError, match="register_rule"):
        policy.save(tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


def test_a_registered_rule_is_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(types, "_registered", dict(types._registered))
    monkeypatch.setattr(Uniform, "name", "", raising=False)
    rbi.register_rule("uniform", Uniform)
    Policy(policy_of(VECTOR).networks, Uniform()).save(tmp_path)
    assert rbi.load_policy(tmp_path).rule == Uniform()


@pytest.mark.parametrize("settings", [{"c_greedy": 1.5}, {"temperature": 0.0}, {"temperature": float("nan")}], ids=str)
def test_settings_outside_their_range_are_errors(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Policy(policy_of(VECTOR).networks, rbi.Greedy(), **settings)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(value, tmp_path):
    policy = policy_of(VECTOR)
    policy.save(tmp_path / "policy")
    next(policy.networks.parameters()).fill_(value)
    with pytest.raises(ValueError, match="not finite"):
        policy.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    save_file(policy.networks.state_dict(), tmp_path / "policy" / "weights.safetensors")
    with pytest.raises(ValueError, match=r"weights.safetensors: .* not finite"):
        rbi.load_policy(tmp_path / "policy")
    with pytest.raises(ValueError, match=r"obs\[0\].*not finite"):
        policy.act(observations(VECTOR), 0)


def test_sizes_are_compared_with_the_weights_before_networks_are_made(tmp_path):
    policy_of(VECTOR).save(tmp_path)
    config = json.loads((tmp_path / "policy.json").read_text())
    huge = {"obs_spec": {"shape": [10**9], "stack": 1, "num_actions": 10**9}}
    huge["networks"] = config["networks"] | {"hidden_size": 65_536}
    (tmp_path / "policy.json").write_text(json.dumps(config | huge))  # 10^14 weights
    with pytest.raises(ValueError, match="asks for"):
        rbi.load_policy(tmp_path)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])
def test_vectors_that_float32_cannot_hold_are_refused(value):
    obs = observations(VECTOR).astype(np.float64)
    obs[4, 1] = value
    with pytest.raises(ValueError, match=r"obs\[4\] holds a value that is not finite"):
        policy_of(VECTOR).predict_proba(obs)


@pytest.mark.parametrize("value", [np.nan, 256.0, -1.0, 0.5])
def test_images_that_are_no_bytes_are_refused(value):
    obs = observations(IMAGE).astype(np.float32)
    assert np.array_equal(policy_of(IMAGE).predict_proba(obs), policy_of(IMAGE).predict_proba(observations(IMAGE)))
    obs[2, 3, 20, 20] = value
    with pytest.raises(ValueError, match=r"obs\[2\] holds a value that is not a byte"):
        policy_of(IMAGE).predict_proba(obs)


def test_states_far_outside_the_training_range_are_counted_and_cause_one_warning(tmp_path):
    features = FeatureRange((0.0, 0.0, 0.0), (10.0, 1.0, 1.0), ("age", "colour = blue", "colour = red"))
    networks = make_networks(VECTOR, NetworkConfig(16), 1)
    columns = (Feature("age"), Feature("colour", ("blue", "red")))
    Policy(networks, rbi.Greedy(), features=features, columns=columns).save(tmp_path / "policy")
    policy = rbi.load_policy(tmp_path / "policy")
    policy.predict_proba([[15.0, 1.0, 0.0], [-5.0, 0.0, 1.0]])
    assert (policy.states, policy.outside_range) == (2, 0)
    with pytest.warns(UserWarning, match=r"obs\[1\] has 'age' = 30, where the training data has 0 to 10"):
        policy.predict_proba([[5.0, 1.0, 0.0], [30.0, 0.0, 1.0]])
    policy.predict_proba([[5.0, 0.0, 0.0]])  # a second warning would be an error
    assert (policy.states, policy.outside_range) == (5, 2)
    with pytest.warns(UserWarning, match=r"obs\[0\] has none of the texts that 'colour' has"):
        rbi.load_policy(tmp_path / "policy").act([[5.0, 0.0, 0.0]], 0)


def test_a_policy_replaces_a_policy_and_nothing_else(tmp_path):
    policy = policy_of(VECTOR)
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        policy.save(tmp_path / "empty")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.csv").write_text("a")
    for path in (tmp_path / "data", tmp_path / "data" / "log.csv"):
        with pytest.raises(ValueError, match="is not empty and not a policy"):
            policy.save(path)
    assert (tmp_path / "data" / "log.csv").read_text() == "a"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "empty"]


def test_a_number_whose_name_looks_like_that_of_a_text_is_a_number():
    columns = [Feature("size = small"), Feature("size", ("large", "other"))]
    names = tuple(name for column in columns for name in column.number_names)
    features = FeatureRange((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), names)
    obs = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert features.outside(obs, columns).tolist() == [[False] * 3, [False, True, True]]
    assert features.describe(1, 0.0, columns) == "has none of the texts that 'size' has in the training data"
    assert features.describe(0, 5.0, columns).startswith("has 'size = small' = 5")


def test_ranges_that_do_not_fit_are_refused(tmp_path):
    networks = make_networks(VECTOR, NetworkConfig(16), 1)
    with pytest.raises(ValueError, match=r"features: 2 of them for observations of shape \(3,\)"):
        Policy(networks, rbi.Greedy(), features=FeatureRange((0.0, 0.0), (1.0, 1.0)))
    with pytest.raises(ValueError, match="low at most high"):
        FeatureRange((1.0,), (0.0,))
    Policy(networks, rbi.Greedy(), features=FeatureRange((0.0,) * 3, (1.0,) * 3)).save(tmp_path)
    config = json.loads((tmp_path / "policy.json").read_text())
    for odd in (7, [], {"low": 1}, {"low": ["a"], "high": [1]}, {"low": [0], "high": [1], "more": []}):
        (tmp_path / "policy.json").write_text(json.dumps(config | {"features": odd}))
        with pytest.raises(ValueError, match=r"policy\.json"):
            rbi.load_policy(tmp_path)


def test_visits_count_only_where_an_action_is_better_beyond_the_error_of_q():
    rule = types.parse_rule("count_aware(0.2)", counts=True)
    visits = VisitCounts(np.zeros(1, np.uint64), np.zeros((1, 4), np.int32))
    beta, q = torch.full((1, 4), 0.25), torch.tensor([[0.0, 0.1, 0.2, 1.0]])
    counts = torch.full((1, 4), 10_000.0)
    networks = make_networks(VECTOR, NetworkConfig(16), 1)
    exact, noisy = (
        Policy(networks, rule, visits=visits._replace(sigma=sigma)).improve(beta, q, counts=counts)
        for sigma in (0.0, 1e6)
    )
    assert torch.allclose(noisy, rule(beta, q, counts=counts.clamp(max=3)))
    assert (exact - beta).abs().sum() > (noisy - beta).abs().sum() + 0.01


def test_the_policy_of_a_run_is_its_best_one_or_else_its_last_one(tmp_path):
    for name in ("last", "best"):
        policy = policy_of(VECTOR)
        policy.metadata = {"name": name}
        policy.save(tmp_path / "policies" / name)
        assert rbi.load_policy(tmp_path).metadata == {"name": name}


def test_logged_probabilities_that_were_rounded_are_normalised():
    policy, obs = policy_of(VECTOR, "behavior", c_greedy=0.0), observations(VECTOR)
    policy.behavior = "logged"
    beta = np.random.default_rng(0).dirichlet(np.ones(4), len(obs))
    rounded = policy.predict_proba(obs, beta=1.0008 * beta)
    assert rounded.sum(1) == pytest.approx(1, abs=1e-6)
    assert rounded == pytest.approx(policy.predict_proba(obs, beta=beta), abs=1e-5)
    with pytest.raises(ValueError, match=r"beta\[3\] = .* must be probabilities"):
        policy.predict_proba(obs, beta=np.where(np.arange(len(obs))[:, None] == 3, [1.5, -0.5, 0.0, 0.0], beta))


def test_a_policy_of_logged_probabilities_changes_those_that_are_passed(tmp_path):
    policy, obs = policy_of(VECTOR, c_greedy=0.0), observations(VECTOR, 20)
    policy.behavior, policy.training_digests = "logged", np.array([[3, 7]], np.uint64)
    policy.save(tmp_path / "policy")
    again = rbi.load_policy(tmp_path / "policy")
    assert again.training_digests.tolist() == [[3, 7]]
    beta = np.random.default_rng(1).dirichlet(np.ones(4), 20)
    pi = again.predict_proba(obs, beta=beta)
    assert rbi.measures.is_reroute(pi.astype(float), beta, 0.5, 1.5, tolerance=1e-6).all()
    assert (np.abs(pi - beta).sum(1) > 0.01).all()
    with pytest.raises(ValueError, match="beta is missing"):
        again.act(obs, 0)
    with pytest.raises(ValueError, match=r"beta\[2\]"):
        again.predict_proba(obs, beta=np.where(np.arange(20)[:, None] == 2, 0.3, beta))
    with pytest.raises(ValueError, match=r"^beta is no array of numbers: must be probabilities \(20, 4\)$"):
        again.predict_proba(obs, beta=[{"none": 0.5, "bundle": 0.5}] * 20)
    with pytest.raises(ValueError, match="has cloned it"):
        policy_of(VECTOR).predict_proba(obs, beta=beta)


def test_damaged_digests_of_training_episodes_are_refused(tmp_path):
    policy = policy_of(VECTOR)
    policy.training_digests = np.array([3, 7], np.uint64)
    policy.save(tmp_path / "policy")
    (tmp_path / "policy" / "training.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"training\.safetensors: is missing or damaged"):
        rbi.load_policy(tmp_path / "policy")


def test_digests_that_confuse_episodes_are_refused(tmp_path, monkeypatch):
    policy = policy_of(VECTOR)
    policy.training_digests = np.array([3, 7], np.uint64)
    with monkeypatch.context() as before:
        before.setattr(
            "rbi.policy.save_arrays", lambda arrays, path: save_arrays({"episodes": arrays["digests"]}, path)
        )
        policy.save(tmp_path / "policy")
    with pytest.raises(ValueError, match=r"training\.safetensors: an earlier version wrote it, .*; train again"):
        rbi.load_policy(tmp_path / "policy")


def test_a_policy_keeps_the_columns_of_its_training_data_and_encodes_later_rows_with_them(tmp_path):
    columns = (Feature("age", fill=35.0), Feature("segment", ("new", "old")))
    networks = make_networks(ObservationSpec((3,), 1, 2), NetworkConfig(4), 0)
    policy = Policy(networks, rbi.Reroute(0.5, 1.5), columns=columns, action_names=("mail", "call"))
    policy.save(tmp_path / "p")
    loaded = rbi.load_policy(tmp_path / "p")
    assert (loaded.columns, loaded.action_names) == (columns, ("mail", "call"))
    assert schema_of(tmp_path / "p")[:3] == (columns, ("mail", "call"), False)
    rows = pa.table({"segment": ["old", "new"], "age": [30, 40]})
    np.testing.assert_array_equal(
        loaded.predict_proba(rows), policy.predict_proba(np.array([[30, 0, 1], [40, 1, 0.0]]))
    )
    for call in (loaded.predict_proba, loaded.predict_value, lambda rows: loaded.act(rows, 0)):
        with pytest.warns(UserWarning, match="'segment': 1 rows have unknown texts") as warned:
            call(pa.table({"segment": ["other"], "age": [30]}))
        assert warned[0].filename == __file__  # not a line of the package
    with pytest.warns(UserWarning, match="'age': is missing in 1 rows, and never in the training data"):
        blank = loaded.predict_proba(pa.table({"segment": ["new"], "age": pa.array([None], pa.int64())}))
    np.testing.assert_array_equal(blank, policy.predict_proba(np.array([[35, 1, 0.0]])))
    for rows in ([[30, "old"]], [{"age": 30, "segment": "old"}]):
        with pytest.raises(ValueError, match=r"a DataFrame or pyarrow Table with the columns age, segment; of dicts, "):
            loaded.predict_proba(rows)


def test_actions_come_back_by_name():
    networks = make_networks(ObservationSpec((3,), 1, 2), NetworkConfig(4), 0)
    policy = Policy(networks, rbi.Reroute(0.5, 1.5), action_names=("mail", "call"))
    obs = observations(ObservationSpec((3,), 1, 2))
    drawn = policy.draw(policy.predict_proba(obs), 0)
    assert policy.act(obs, 0).tolist() == [("mail", "call")[action] for action in drawn]
    assert policy.mode(obs).tolist() == [("mail", "call")[a] for a in policy.predict_proba(obs).argmax(1)]


def test_a_policy_of_scaled_observations_is_the_unscaled_one_on_stretched_vectors():
    obs = observations(VECTOR)
    scaled, plain = policy_of(SCALED), policy_of(VECTOR)
    assert np.array_equal(scaled.predict_proba(obs), plain.predict_proba(obs * np.float32(SCALED.scale)))


@pytest.mark.parametrize("scale", [(1.0,), (1.0, 0.0, 1.0), (1.0, float("nan"), 1.0), ("1", 1.0, 1.0)])
def test_a_scale_that_does_not_fit_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        ObservationSpec((3,), 1, 4, scale)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_an_action_of_probability_0_is_never_drawn(uniform):
    rng = np.random.default_rng(0)
    probs = np.zeros((2000, 9), np.float32)
    probs[:, 1:8] = rng.dirichlet(np.ones(7), 2000)
    assert (probs.cumsum(1)[:, -1] < 1).any()  # as float32 adds them up
    chosen = draw_actions(probs, np.full((2000, 1), uniform))
    assert (probs[np.arange(2000), chosen] > 0).all()
    of_tensors = sample(torch.from_numpy(probs).double(), torch.full((2000, 1), uniform, dtype=torch.float64))
    assert of_tensors.tolist() == chosen.tolist()
