"""What networks see: blocks of pixels that stand for an ordinary first convolution."""

import pytest
import torch
from pytest import approx
from torch.nn import functional

from rbi.gpu.layers import convolve_relu
from rbi.networks import NATURE_CNN, SMALL_CNN, NetworkConfig, Trunk, conv_layers
from rbi.observations import ObservationSpec

PICTURES = [(84, 84), (84, 84, 3), (36, 36), (39, 50), (45, 37, 2), (10, 10), (5, 7), (6, 5, 3)]


def frames_of(obs_spec, batch=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (batch, obs_spec.stack, *obs_spec.shape), dtype=torch.uint8, generator=generator)


def channels_first(obs_spec, frames):
    """`[B, stack * colours, H, W]` in [0, 1): frames as ordinary convolutions read them."""
    coloured = frames.double().view(len(frames), obs_spec.stack, *obs_spec.shape[:2], -1)
    return coloured.permute(0, 1, 4, 2, 3).flatten(1, 2) / 256


def ordinary_weights(obs_spec, weight):
    """The first layer's weights `[out, stack * colours, kernel, kernel]` from those over blocks of pixels.

    Pixel (i, j) of the kernel is pixel (i % s, j % s) of its block (i // s, j // s).
    """
    layer, s = conv_layers(obs_spec)[0], obs_spec.block_size
    in_blocks = layer.kernel // s
    blocks = weight.view(layer.filters, in_blocks, in_blocks, s, s, -1)
    filters = torch.empty(layer.filters, blocks.shape[-1], layer.kernel, layer.kernel, dtype=weight.dtype)
    for i in range(layer.kernel):
        for j in range(layer.kernel):
            filters[:, :, i, j] = blocks[:, i // s, j // s, i % s, j % s]
    return filters


@pytest.mark.parametrize("frame", PICTURES, ids=str)
def test_the_first_layer_over_blocks_is_the_ordinary_convolution_over_stacked_frames(frame):
    obs_spec = ObservationSpec(frame, 4, 6)
    trunk, frames = Trunk(obs_spec, NetworkConfig(16)).double(), frames_of(obs_spec)
    layer = trunk.layers[0]
    seen = convolve_relu(obs_spec.preprocess(frames, torch.float64), layer.weight, trunk.biases[0], layer.kernel, 1)
    usual = ordinary_weights(obs_spec, layer.weight.detach())
    expected = torch.conv2d(
        channels_first(obs_spec, frames), usual, trunk.biases[0], conv_layers(obs_spec)[0].stride
    ).relu()
    assert seen.detach().numpy() == approx(expected.permute(0, 2, 3, 1).detach().numpy(), abs=1e-12)


@pytest.mark.parametrize("frame", PICTURES, ids=str)
def test_all_layers_together_are_the_ordinary_network(frame):
    obs_spec = ObservationSpec(frame, 2, 6)
    trunk, frames = Trunk(obs_spec, NetworkConfig(16)).double(), frames_of(obs_spec)
    x = channels_first(obs_spec, frames)
    for k, layer in enumerate(conv_layers(obs_spec)):
        weight = trunk.layers[k].weight.detach()
        usual = weight.view(layer.filters, layer.kernel, layer.kernel, -1).permute(0, 3, 1, 2) if k else None
        x = functional.relu(torch.conv2d(x, ordinary_weights(obs_spec, weight) if k == 0 else usual,
                                         trunk.biases[k], layer.stride))  # fmt: skip
    features = trunk(obs_spec.preprocess(frames, torch.float64))
    assert features.detach().numpy() == approx(x.permute(0, 2, 3, 1).flatten(1).detach().numpy(), abs=1e-12)
    assert features.shape[1] == trunk.out_features


def test_large_pictures_are_seen_by_dqns_layers_and_small_ones_by_few():
    assert conv_layers(ObservationSpec((84, 84), 4, 18)) == NATURE_CNN == ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    assert Trunk(ObservationSpec((84, 84), 4, 18), NetworkConfig(8)).out_features == 3136  # as in DQN
    assert conv_layers(ObservationSpec((10, 10), 1, 2)) == SMALL_CNN


def test_bytes_are_seen_exactly_in_every_precision():
    obs_spec = ObservationSpec((16, 16), 1, 2)
    frames = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        seen = obs_spec.preprocess(frames, dtype)
        assert seen.dtype == dtype
        assert sorted((seen.double() * 256).flatten().tolist()) == list(range(256))


def test_vectors_are_seen_as_they_are_oldest_first():
    obs_spec = ObservationSpec((3,), 2, 2)
    assert obs_spec.preprocess(torch.arange(6.0).view(1, 2, 3), torch.float64).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert conv_layers(obs_spec) == ()


@pytest.mark.parametrize("bad", [((), 1, 2), ((0,), 1, 2), ((4,), 0, 2), ((4,), 1, 0), ((8, 8, 3, 1), 1, 2)], ids=str)
def test_what_no_network_can_see_is_refused(bad):
    with pytest.raises(ValueError, match=r"^shape = "):
        ObservationSpec(*bad)


def test_pictures_too_small_for_a_convolution_are_refused():
    with pytest.raises(ValueError, match=r"^images of 4 x 9 pixels are too small"):
        ObservationSpec((4, 9), 1, 2)
