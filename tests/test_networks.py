"""The duelling Q-network, the policy network, their initialisation and custom trunks."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from torch import nn
from torch.nn import functional

from rbi.gpu.layers import convolve
from rbi.networks import (
    CustomTrunk,
    Layer,
    NetworkConfig,
    Networks,
    PolicyNetwork,
    QNetwork,
    _MeanCentred,
    cpu_threads,
    dropout,
    make_networks,
    offline_network,
)
from rbi.observations import ObservationSpec
from tests.generators import simplexes

OBS_SPECS = [
    ObservationSpec((4,), 1, 3),
    ObservationSpec((3,), 2, 1),
    ObservationSpec((5, 6), 2, 4),
    ObservationSpec((8, 8, 3), 1, 2),
    ObservationSpec((36, 40), 4, 18),
]


def network_input(obs_spec, batch=5):
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


@pytest.mark.parametrize("norm", ["none", "layer", "hidden"])
@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_v_is_the_value_of_the_policy_that_centres_the_advantages(obs_spec, norm):
    x, pi = network_input(obs_spec), policies(obs_spec)
    q, value = networks_of(obs_spec, norm=norm).q(x, pi)
    assert (pi * q).sum(1).tolist() == approx(value.tolist(), abs=1e-6)


@settings(max_examples=20)
@given(simplexes(least=3, most=3, batch=(5,)))
def test_v_is_the_value_of_every_policy(pi):
    q, value = networks_of(OBS_SPECS[0]).q(network_input(OBS_SPECS[0]), torch.from_numpy(pi))
    assert (torch.from_numpy(pi) * q).sum(1).tolist() == approx(value.tolist(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_without_a_policy_the_mean_centres_the_advantages(obs_spec):
    q, value = networks_of(obs_spec).q(network_input(obs_spec))
    assert q.mean(1).tolist() == approx(value.tolist(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_the_centring_policy_shifts_q_by_one_number_per_state(obs_spec):
    """Differences between actions are those of the advantage stream, whatever centres them."""
    network, x = networks_of(obs_spec).q, network_input(obs_spec)
    shift = (network(x, policies(obs_spec))[0] - network(x)[0]).detach()
    assert shift.numpy() == approx(shift[:, :1].expand_as(shift).numpy(), abs=1e-6)


@pytest.mark.parametrize("norm", ["none", "layer", "hidden"])
@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_predict_value_is_the_value_returned_with_q(obs_spec, norm):
    network, x = networks_of(obs_spec, norm=norm).q, network_input(obs_spec)
    assert network.predict_value(x).tolist() == approx(network(x, policies(obs_spec))[1].tolist(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_outputs_are_float32_in_every_compute_dtype(obs_spec):
    networks, x = networks_of(obs_spec), network_input(obs_spec)
    q, value = networks.q(x)
    logits = networks.pi(x)
    assert q.shape == logits.shape == (5, obs_spec.num_actions)
    assert value.shape == networks.q.predict_value(x).shape == (5,)
    assert {x.dtype for x in (q, value, logits, networks.q.predict_value(x))} == {torch.float32}


@pytest.mark.parametrize("norm", ["none", "layer", "hidden"])
@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_every_parameter_gets_a_gradient(obs_spec, norm):
    networks, x = networks_of(obs_spec, norm=norm), network_input(obs_spec)
    q, _ = networks.q(x)
    loss = (q * torch.arange(1, obs_spec.num_actions + 1)).sum() + networks.pi(x)[:, 0].sum()
    loss.backward()
    stuck = [name for name, parameter in networks.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert stuck == (
        [] if obs_spec.num_actions > 1 else ["q.advantage.weight", "q.advantage.bias"]
    )  # one action: A = 0


@pytest.mark.parametrize("norm", ["none", "hidden"])
def test_vectors_pass_one_dense_layer_before_the_streams(norm):
    network, x = networks_of(OBS_SPECS[0], norm=norm).q, network_input(OBS_SPECS[0])
    hidden = functional.relu(x @ network.trunk.layers[0].weight.T + network.trunk.biases[0])
    product = hidden @ network.hidden.weight.T
    if norm == "hidden":  # layer norm of each stream
        product = functional.layer_norm(product.view(-1, 2, 8), (8,)).view_as(product)
    streams = functional.relu(product + network.hidden.bias)
    value = streams[:, :8] @ network.value.weight.T + network.value.bias
    advantage = streams[:, 8:] @ network.advantage.weight.T + network.advantage.bias
    expected = value + advantage - advantage.mean(1, keepdim=True)
    assert network(x)[0].detach().numpy() == approx(expected.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("obs_spec", [obs_spec for obs_spec in OBS_SPECS if obs_spec.is_image], ids=str)
def test_layer_norm_is_per_position_and_per_stream(obs_spec):
    network, x = networks_of(obs_spec, norm="layer").q, network_input(obs_spec)
    features = x
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
    assert network(x)[0].detach().numpy() == approx(expected.detach().numpy(), abs=1e-5)


def test_the_papers_networks_have_the_size_of_duelling_dqn():
    atari = ObservationSpec((84, 84), 4, 18)
    convolutions = 32 * (4 * 8 * 8 + 1) + 64 * (32 * 4 * 4 + 1) + 64 * (64 * 3 * 3 + 1)
    stream = 512 * (3136 + 1)
    q = convolutions + 2 * stream + (512 + 1) + 18 * (512 + 1)
    pi = convolutions + stream + 18 * (512 + 1)
    assert sum(p.numel() for p in QNetwork(atari, NetworkConfig(512)).parameters()) == q
    assert sum(p.numel() for p in PolicyNetwork(atari, NetworkConfig(512)).parameters()) == pi


def test_the_papers_offline_networks_are_dqn_with_batch_norm_1024_units_and_a_value():
    atari, config = ObservationSpec((84, 84), 4, 18), offline_network()
    assert (config.input_dropout, config.hidden_dropout) == (0.25, 0.5)
    convolutions = 32 * (4 * 8 * 8 + 2) + 64 * (32 * 4 * 4 + 2) + 64 * (64 * 3 * 3 + 2)  # batch norm: gain and bias
    size = convolutions + 1024 * (3136 + 2) + (18 + 1) * (1024 + 1)
    for network in (QNetwork(atari, config), PolicyNetwork(atari, config)):
        assert sum(p.numel() for p in network.parameters()) == size
        assert sum(isinstance(part, torch.nn.BatchNorm1d) for part in network.modules()) == 4


def test_networks_without_a_policy_have_no_policy_network():
    assert Networks(OBS_SPECS[0], NetworkConfig(8), with_policy=False).pi is None


@given(st.integers(0, 2**31), st.integers(0, 2**31))
@settings(max_examples=10)
def test_a_seed_determines_the_weights_and_leaves_torchs_generator_alone(seed, outside):
    torch.manual_seed(outside)
    before = torch.get_rng_state()
    first = networks_of(OBS_SPECS[0], seed)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, other = networks_of(OBS_SPECS[0], seed), networks_of(OBS_SPECS[0], seed + 1)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert not torch.equal(weight, other.state_dict()[name])


@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_weights_are_uniform_within_one_over_the_root_of_their_inputs(obs_spec):
    for trunk in (networks_of(obs_spec).q.trunk, networks_of(obs_spec).pi.trunk):
        for weight, bias in zip((layer.weight for layer in trunk.layers), trunk.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            assert max(weight.abs().max(), bias.abs().max()) <= bound
            assert weight.abs().max() > 0.7 * bound


# Networks of offline learning: batch norm, shared streams, dropout


@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_shared_streams_centre_advantages_by_their_mean(obs_spec):
    network, x = make_networks(obs_spec, offline_network(8), 0).double().q.eval(), network_input(obs_spec)
    q, value = network(x, policies(obs_spec))
    centred, advantage = network.value_and_advantage(x)
    assert q.mean(1).tolist() == approx(value.tolist(), abs=1e-6)
    assert centred.squeeze(1).tolist() == network.predict_value(x).tolist() == value.tolist()
    expected = advantage - advantage.mean(1, keepdim=True) + centred
    assert q.detach().numpy() == approx(expected.detach().numpy(), abs=1e-6)


def test_the_gradient_of_mean_centring_is_that_of_finite_differences():
    out = torch.randn((3, 5), dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(_MeanCentred.apply, (out,))


@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_batch_norm_normalises_every_layer_over_batch_and_pixels_before_its_relu(obs_spec):
    network = make_networks(obs_spec, offline_network(8), 0).double().q.train()
    x = network_input(obs_spec, 50)
    for layer in (*network.trunk.layers, network.hidden):
        weight, norm = layer.weight, layer.norm
        x = x if layer.kernel else x.flatten(1)
        product = convolve(x, weight, layer.kernel, layer.stride) if layer.kernel else x @ weight.T
        over = tuple(range(product.dim() - 1))
        expected = ((product - product.mean(over)) / (product.var(over, unbiased=False) + norm.eps).sqrt()).relu()
        x = layer(x)
        assert x.detach().numpy() == approx(expected.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("p", [0.25, 0.5])
def test_dropout_keeps_the_expectation_and_needs_a_generator(p):
    x = torch.ones(100_000)
    dropped = dropout(x, p, torch.Generator().manual_seed(0))
    assert dropout(x, p, None) is x
    assert sorted(set(dropped.tolist())) == approx([0.0, 1 / (1 - p)])
    assert dropped.mean().item() == approx(1, abs=0.02)
    assert torch.equal(dropped, dropout(x, p, torch.Generator().manual_seed(0)))
    assert not torch.equal(dropped, dropout(x, p, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("streams", ["shared", "separate"])
def test_hidden_dropout_changes_the_outputs_of_both_networks_and_keeps_their_expectation(streams):
    networks = make_networks(ObservationSpec((4,), 1, 3), NetworkConfig(16, streams=streams, hidden_dropout=0.5), 0)
    x, generator = torch.randn(1, 4, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    many = x.expand(20_000, 4)
    with torch.no_grad():
        plain, dropped = networks.q(x)[0], networks.q(many, generator=generator)[0]
        logits, dropped_logits = networks.pi(x), networks.pi(many, generator)
    for expected, found in ((plain, dropped), (logits, dropped_logits)):
        assert (found.std(0) > 0.01).all()
        torch.testing.assert_close(found.mean(0), expected[0], atol=0.01, rtol=0)


@pytest.mark.parametrize(
    "bad", [dict(hidden_size=0), dict(input_dropout=1.0), dict(hidden_dropout=-0.1), dict(norm="x")]
)
def test_invalid_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} = "):
        NetworkConfig(**bad)


# Custom trunks


def conv_trunk(obs_spec):
    channels = obs_spec.stack * (obs_spec.shape[2] if len(obs_spec.shape) == 3 else 1)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def dense_trunk(obs_spec):
    return nn.Sequential(nn.Linear(obs_spec.stack * obs_spec.shape[0], 6), nn.Tanh())


@pytest.mark.parametrize("config", [NetworkConfig(8), NetworkConfig(8, "layer"), offline_network(8)], ids=str)
@pytest.mark.parametrize("obs_spec", OBS_SPECS, ids=str)
def test_a_custom_trunk_reads_images_channels_first_and_learns(obs_spec, config):
    networks = make_networks(obs_spec, config, 0, trunk=conv_trunk if obs_spec.is_image else dense_trunk).double()
    x = network_input(obs_spec)
    q, value = networks.q(x, policies(obs_spec))
    logits = networks.pi(x)
    assert q.shape == logits.shape == (5, obs_spec.num_actions)
    assert value.shape == (5,)
    trunk = networks.q.trunk.module
    expected = trunk(obs_spec.as_images(x) if obs_spec.is_image else x)
    assert torch.equal(networks.q.trunk(x), expected)
    gradients = torch.autograd.grad(q.square().sum() + value.sum(), list(trunk.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    assert networks.pi.trunk.module is not trunk


def test_networks_with_a_custom_trunk_are_restored_only_with_its_function():
    obs_spec = OBS_SPECS[0]
    networks = make_networks(obs_spec, NetworkConfig(8), 0, trunk=dense_trunk)
    description = networks.describe()
    again = Networks.from_description(obs_spec, description, dense_trunk)
    again.load_state_dict(networks.state_dict())
    assert torch.equal(again.pi(network_input(obs_spec).float()), networks.pi(network_input(obs_spec).float()))
    with pytest.raises(ValueError, match="custom trunk"):
        Networks.from_description(obs_spec, description)
    plain = make_networks(obs_spec, NetworkConfig(8), 0).describe()
    with pytest.raises(ValueError, match="no custom trunk"):
        Networks.from_description(obs_spec, plain, dense_trunk)


class Unused(nn.Linear):
    """A layer that does not use its bias."""

    def forward(self, x):
        return x @ self.weight.T


OUTSIDE = nn.Linear(3, 5)


@pytest.mark.parametrize(
    ("trunk", "why"),
    [
        (lambda _: OUTSIDE, "returned the same parameters twice; make new ones each time"),
        (lambda _: nn.Sequential(OUTSIDE, nn.Linear(5, 2)), "returned the same parameters twice"),
        (OUTSIDE, "is a module; must be a function"),
        (lambda _: torch.relu, "returned builtin_function_or_method; must be a function"),
        (lambda _: nn.Linear(3, 5).requires_grad_(False), "its parameter weight is frozen, and training changes all"),
        (lambda _: Unused(3, 5), "the features have no gradient for its parameter bias"),
        (lambda _: nn.Linear(4, 5), r"failed on an input of shape \(2, 3\): .*mat1 and mat2 shapes cannot be mult"),
        (lambda _: nn.Linear(3, 5).double(), r"failed on an input of shape \(2, 3\): .*mat1 and mat2 must have"),
    ],
    ids=["one module", "one part", "module", "no module", "frozen", "unused", "shape", "type"],
)
def test_a_trunk_that_cannot_be_trained_as_it_is_is_refused(trunk, why):
    with pytest.raises(ValueError, match=f"^trunk: .*{why}"):
        make_networks(ObservationSpec((3,), 1, 2), NetworkConfig(8), 0, trunk=trunk)


def test_a_trunk_that_returns_no_feature_vectors_is_refused():
    with pytest.raises(ValueError, match=r"^trunk: must return features \[B, F\]"):
        make_networks(OBS_SPECS[0], NetworkConfig(8), 0, trunk=lambda _: nn.Unflatten(1, (2, 2)))


@pytest.fixture
def four_threads(monkeypatch):
    """PyTorch with four threads on a machine of four cores, as if nobody had chosen a number."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "shape", "hidden_size", "threads"),
    [
        (CPU, (4,), 128, 1),
        (CPU, (500,), 256, 1),
        (CPU, (4,), 512, 4),
        (CPU, (10_000,), 128, 4),
        (CPU, (84, 84), 16, 4),
        (torch.device("cuda"), (4,), 128, 4),
    ],
)
@pytest.mark.usefixtures("four_threads")
def test_small_networks_of_vectors_use_one_thread_and_the_number_is_restored(device, shape, hidden_size, threads):
    with contextlib.suppress(KeyError), cpu_threads(device, shape, hidden_size):
        assert torch.get_num_threads() == threads
        raise KeyError
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_a_number_of_threads_that_the_user_chose_is_kept(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)  # four of them are the user's choice then
    with cpu_threads(CPU, (4,), 128):
        assert torch.get_num_threads() == 4
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with cpu_threads(CPU, (4,), 128):
        assert torch.get_num_threads() == 4


@pytest.mark.parametrize("variance", [1e-5, 1.0])
def test_a_layer_with_folded_batch_norm_is_the_same_function(variance):
    layer = Layer(3, 5, "batch").eval()
    layer.norm.running_var.fill_(variance)
    layer.norm.running_mean.copy_(torch.linspace(-1, 1, 5))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = layer(x)
        layer.fold_batch_norm()
        torch.testing.assert_close(layer(x), before)


@pytest.mark.parametrize("training", [True, False])
def test_a_custom_trunk_stays_in_the_mode_that_it_was_made_in(training):
    trunk = CustomTrunk(ObservationSpec((4,), 1, 3), lambda _: nn.Linear(4, 2).train(training))
    assert trunk.module.training == training
