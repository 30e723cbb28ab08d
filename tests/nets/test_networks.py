"""The duelling Q-net, the pi-net, and how they are drawn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from torch.nn import functional

from rbi.networks import NetworkConfig, Networks, PolicyNetwork, QNetwork, make_networks
from rbi.observations import ObservationSpec
from tests.generators import simplexes

SIGHTS = [
    ObservationSpec((4,), 1, 3),
    ObservationSpec((3,), 2, 1),
    ObservationSpec((5, 6), 2, 4),
    ObservationSpec((8, 8, 3), 1, 2),
    ObservationSpec((36, 40), 4, 18),
]


def seen_by(obs_spec, batch=5):
    generator = torch.Generator().manual_seed(0)
    shape = (batch, obs_spec.stack, *obs_spec.shape)
    if obs_spec.is_image:
        return obs_spec.preprocess(torch.randint(256, shape, dtype=torch.uint8, generator=generator), torch.float64)
    return obs_spec.preprocess(torch.randn(shape, generator=generator), torch.float64)


def networks_of(obs_spec, seed=0, norm="none"):
    return make_networks(obs_spec, NetworkConfig(8, norm), seed).double()


def policies(obs_spec, batch=5):
    generator = torch.Generator().manual_seed(1)
    return torch.softmax(torch.randn((batch, obs_spec.num_actions), generator=generator, dtype=torch.float64), 1)


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_v_is_the_value_of_the_policy_that_centres_the_advantages(obs_spec, norm):
    seen, pi = seen_by(obs_spec), policies(obs_spec)
    q, value = networks_of(obs_spec, norm=norm).q(seen, pi)
    assert (pi * q).sum(1).tolist() == approx(value.tolist(), abs=1e-6)


@settings(max_examples=20)
@given(simplexes(least=3, most=3, batch=(5,)))
def test_v_is_the_value_of_every_policy(pi):
    q, value = networks_of(SIGHTS[0]).q(seen_by(SIGHTS[0]), torch.from_numpy(pi))
    assert (torch.from_numpy(pi) * q).sum(1).tolist() == approx(value.tolist(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_without_a_policy_the_mean_centres_the_advantages(obs_spec):
    q, value = networks_of(obs_spec).q(seen_by(obs_spec))
    assert q.mean(1).tolist() == approx(value.tolist(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_the_policy_shifts_q_by_one_number_a_state(obs_spec):
    """Differences between actions are those of the advantage stream, whatever centres them."""
    network, seen = networks_of(obs_spec).q, seen_by(obs_spec)
    shift = (network(seen, policies(obs_spec))[0] - network(seen)[0]).detach()
    assert shift.numpy() == approx(shift[:, :1].expand_as(shift).numpy(), abs=1e-6)


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_values_alone_are_the_values_beside_q(obs_spec, norm):
    network, seen = networks_of(obs_spec, norm=norm).q, seen_by(obs_spec)
    assert network.predict_value(seen).tolist() == approx(network(seen, policies(obs_spec))[1].tolist(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_networks_answer_one_number_for_each_action_in_float32_whatever_they_compute_in(obs_spec):
    networks, seen = networks_of(obs_spec), seen_by(obs_spec)
    q, value = networks.q(seen)
    logits = networks.pi(seen)
    assert q.shape == logits.shape == (5, obs_spec.num_actions)
    assert value.shape == networks.q.predict_value(seen).shape == (5,)
    assert {x.dtype for x in (q, value, logits, networks.q.predict_value(seen))} == {torch.float32}


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_every_parameter_learns(obs_spec, norm):
    networks, seen = networks_of(obs_spec, norm=norm), seen_by(obs_spec)
    q, _ = networks.q(seen)
    loss = (q * torch.arange(1, obs_spec.num_actions + 1)).sum() + networks.pi(seen)[:, 0].sum()
    loss.backward()
    stuck = [name for name, parameter in networks.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert stuck == (
        [] if obs_spec.num_actions > 1 else ["q.advantage.weight", "q.advantage.bias"]
    )  # one action: A = 0


def test_vectors_go_through_one_hidden_layer_before_the_streams():
    network, seen = networks_of(SIGHTS[0]).q, seen_by(SIGHTS[0])
    hidden = functional.relu(seen @ network.trunk.layers[0].weight.T + network.trunk.biases[0])
    streams = functional.relu(hidden @ network.hidden.weight.T + network.hidden.bias)
    value = streams[:, :8] @ network.value.weight.T + network.value.bias
    advantage = streams[:, 8:] @ network.advantage.weight.T + network.advantage.bias
    expected = value + advantage - advantage.mean(1, keepdim=True)
    assert network(seen)[0].detach().numpy() == approx(expected.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", [obs_spec for obs_spec in SIGHTS if obs_spec.is_image], ids=str)
def test_with_layer_norm_every_position_and_every_stream_is_normalised_by_itself(obs_spec):
    network, seen = networks_of(obs_spec, norm="layer").q, seen_by(obs_spec)
    features = seen
    for layer, bias in zip(network.trunk.layers, network.trunk.biases, strict=True):
        filters = layer.weight.view(-1, layer.kernel, layer.kernel, features.shape[3]).permute(0, 3, 1, 2)
        product = functional.conv2d(features.permute(0, 3, 1, 2), filters, stride=layer.stride).permute(0, 2, 3, 1)
        features = functional.relu(functional.layer_norm(product, product.shape[3:]) + bias)
    weights, biases = network.hidden.weight.chunk(2), network.hidden.bias.chunk(2)
    of_value, of_advantage = (
        functional.relu(functional.layer_norm(features.flatten(1) @ weight.T, (8,)) + bias)
        for weight, bias in zip(weights, biases, strict=True)
    )
    advantage = network.advantage(of_advantage)
    expected = network.value(of_value) + advantage - advantage.mean(1, keepdim=True)
    assert network(seen)[0].detach().numpy() == approx(expected.detach().numpy(), abs=1e-5)


def test_the_papers_networks_have_as_many_weights_as_duelling_dqn():
    atari = ObservationSpec((84, 84), 4, 18)
    convolutions = 32 * (4 * 8 * 8 + 1) + 64 * (32 * 4 * 4 + 1) + 64 * (64 * 3 * 3 + 1)
    stream = 512 * (3136 + 1)
    q = convolutions + 2 * stream + (512 + 1) + 18 * (512 + 1)
    pi = convolutions + stream + 18 * (512 + 1)
    assert sum(p.numel() for p in QNetwork(atari, NetworkConfig(512)).parameters()) == q
    assert sum(p.numel() for p in PolicyNetwork(atari, NetworkConfig(512)).parameters()) == pi


def test_where_no_policy_is_learned_there_is_no_pi_net():
    assert Networks(SIGHTS[0], NetworkConfig(8), with_policy=False).pi is None


@given(st.integers(0, 2**31), st.integers(0, 2**31))
@settings(max_examples=10)
def test_a_seed_gives_the_same_weights_and_leaves_torchs_generator_alone(seed, outside):
    torch.manual_seed(outside)
    before = torch.get_rng_state()
    first = networks_of(SIGHTS[0], seed)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, other = networks_of(SIGHTS[0], seed), networks_of(SIGHTS[0], seed + 1)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert not torch.equal(weight, other.state_dict()[name])


@pytest.mark.parametrize("obs_spec", SIGHTS, ids=str)
def test_weights_lie_within_one_over_the_root_of_their_inputs_and_fill_that_range(obs_spec):
    for trunk in (networks_of(obs_spec).q.trunk, networks_of(obs_spec).pi.trunk):
        for weight, bias in zip((layer.weight for layer in trunk.layers), trunk.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            assert max(weight.abs().max(), bias.abs().max()) <= bound
            assert weight.abs().max() > 0.7 * bound
