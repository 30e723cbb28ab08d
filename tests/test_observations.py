"""Preprocessing, frame stacking and random shifts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from torch.nn import functional

from rbi.gpu.layers import convolve_relu
from rbi.networks import NATURE_CNN, SMALL_CNN, NetworkConfig, Trunk, conv_layers
from rbi.observations import (
    ObservationSpec,
    random_shifts,
    roll_stacks,
    shift_images,
    shrink,
    stack_index,
    stack_offsets,
    zero_stacks,
)

IMAGES = [(84, 84), (84, 84, 3), (36, 36), (39, 50), (45, 37, 2), (10, 10), (5, 7), (6, 5, 3)]


def frames_of(obs_spec, batch=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (batch, obs_spec.stack, *obs_spec.shape), dtype=torch.uint8, generator=generator)


def channels_first(obs_spec, frames):
    """`[B, stack * channels, H, W]` in [0, 1): frames as ordinary convolutions read them."""
    channels = frames.double().view(len(frames), obs_spec.stack, *obs_spec.shape[:2], -1)
    return channels.permute(0, 1, 4, 2, 3).flatten(1, 2) / 256


def ordinary_weights(obs_spec, weight):
    """The first layer's weights `[out, stack * channels, kernel, kernel]` from those over blocks of pixels.

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


@pytest.mark.parametrize("sizes", [((210, 160), (84, 84)), ((7, 9), (3, 4)), ((6, 6), (2, 3)), ((5, 8), (5, 8))])
def test_shrunk_images_are_means_of_areas(sizes):
    (height, width), (high, wide) = sizes
    images = np.random.default_rng(0).integers(256, size=(2, height, width), dtype=np.uint8)
    fine = images.repeat(high, 1).repeat(wide, 2).reshape(2, high, height, wide, width)  # each area in whole pixels
    expected = np.rint(fine.mean((2, 4)))  # rint: halves become even
    assert np.array_equal(shrink(torch.from_numpy(images), (high, wide)), expected)


def test_halves_become_even():
    halves = torch.tensor([[[0, 1], [1, 2], [2, 3], [254, 255]]], dtype=torch.uint8)
    assert shrink(halves, (4, 1)).flatten().tolist() == [0, 2, 2, 254]


@pytest.mark.gpu
def test_screens_are_shrunk_exactly_in_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    screens = torch.randint(256, (64, 210, 160), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    screens[0], screens[1] = 255, 0
    assert torch.equal(shrink(screens.cuda(), (84, 84)).cpu(), shrink(screens, (84, 84)))


@pytest.mark.parametrize("frame", IMAGES, ids=str)
def test_as_images_undoes_the_blocks(frame):
    obs_spec = ObservationSpec(frame, 4, 6)
    frames = frames_of(obs_spec)
    images = obs_spec.as_images(obs_spec.preprocess(frames, torch.float64))
    expected = channels_first(obs_spec, frames)[:, :, : images.shape[2], : images.shape[3]]
    assert torch.equal(images, expected)


@pytest.mark.parametrize("frame", IMAGES, ids=str)
def test_the_first_layer_over_blocks_is_the_ordinary_convolution_over_pixels(frame):
    obs_spec = ObservationSpec(frame, 4, 6)
    trunk, frames = Trunk(obs_spec, NetworkConfig(16)).double(), frames_of(obs_spec)
    layer = trunk.layers[0]
    seen = convolve_relu(obs_spec.preprocess(frames, torch.float64), layer.weight, trunk.biases[0], layer.kernel, 1)
    usual = ordinary_weights(obs_spec, layer.weight.detach())
    expected = torch.conv2d(
        channels_first(obs_spec, frames), usual, trunk.biases[0], conv_layers(obs_spec)[0].stride
    ).relu()
    assert seen.detach().numpy() == approx(expected.permute(0, 2, 3, 1).detach().numpy(), abs=1e-12)


@pytest.mark.parametrize("frame", IMAGES, ids=str)
def test_the_trunk_is_the_ordinary_convolutional_network(frame):
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


def test_large_images_get_dqns_convolutions_and_small_ones_fewer():
    assert conv_layers(ObservationSpec((84, 84), 4, 18)) == NATURE_CNN == ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    assert Trunk(ObservationSpec((84, 84), 4, 18), NetworkConfig(8)).out_features == 3136  # as in DQN
    assert conv_layers(ObservationSpec((10, 10), 1, 2)) == SMALL_CNN


def test_bytes_are_exact_in_every_precision():
    obs_spec = ObservationSpec((16, 16), 1, 2)
    frames = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        seen = obs_spec.preprocess(frames, dtype)
        assert seen.dtype == dtype
        assert sorted((seen.double() * 256).flatten().tolist()) == list(range(256))


def test_vectors_are_flattened_oldest_first():
    obs_spec = ObservationSpec((3,), 2, 2)
    assert obs_spec.preprocess(torch.arange(6.0).view(1, 2, 3), torch.float64).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert conv_layers(obs_spec) == ()


@pytest.mark.parametrize("bad", [((), 1, 2), ((0,), 1, 2), ((4,), 0, 2), ((4,), 1, 0), ((8, 8, 3, 1), 1, 2)], ids=str)
def test_invalid_specs_are_refused(bad):
    with pytest.raises(ValueError, match=r"^shape = "):
        ObservationSpec(*bad)


def test_images_too_small_for_a_convolution_are_refused():
    with pytest.raises(ValueError, match=r"^images of 4 x 9 pixels are too small"):
        ObservationSpec((4, 9), 1, 2)


# Frame stacking


def naive_stack(frames, firsts, t, stack):
    """The last frames up to t, zeros before the episode's first one."""
    found = [frames[t]]
    while len(found) < stack:
        begins = firsts[t] if np.any(found[0]) else True
        t -= 1
        found.insert(0, np.zeros_like(frames[0]) if begins else frames[t])
    return np.stack(found)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 4), st.sampled_from([(3,), (5, 6)]))
def test_rolled_stacks_and_gathered_stacks_are_those_of_a_loop(firsts, stack, shape):
    firsts = [True, *firsts[1:]]
    spec = ObservationSpec(shape, stack, 2)
    dtype = np.uint8 if spec.is_image else np.float32
    frames = [np.full(shape, t + 1, dtype) for t in range(len(firsts))]
    ages = [t - max(k for k in range(t + 1) if firsts[k]) for t in range(len(firsts))]
    arrays, tensors = zero_stacks(spec, 1), torch.from_numpy(zero_stacks(spec, 1))
    for t, first in enumerate(firsts):
        expected = naive_stack(frames, firsts, t, stack)
        obs, is_first = frames[t][None], np.array([first])
        assert np.array_equal(roll_stacks(arrays, obs, is_first)[0], expected)
        assert np.array_equal(roll_stacks(tensors, torch.from_numpy(obs), torch.from_numpy(is_first))[0], expected)
        at, before = stack_index(torch.tensor([t]), torch.tensor([ages[t]]), stack_offsets(stack))
        gathered = torch.from_numpy(np.stack(frames))[at[0].clamp(min=0)]
        gathered[before[0]] = 0
        assert np.array_equal(gathered, expected)


# Random shifts


@pytest.mark.parametrize("frame", [(6, 7), (5, 8, 3)], ids=str)
def test_a_shifted_state_is_a_crop_of_the_padded_state_the_same_for_all_frames(frame):
    frames, most = frames_of(ObservationSpec(frame, 3, 2), batch=40), 2
    shifted = shift_images(frames, random_shifts(40, most, torch.Generator().manual_seed(1)))
    height, width = frame[:2]
    offsets = set()
    for state, after in zip(frames, shifted, strict=True):
        rows, columns = ([min(max(k, 0), size - 1) for k in range(-most, size + most)] for size in (height, width))
        larger = state[:, rows][:, :, columns]
        places = {
            (down, right)
            for down in range(2 * most + 1)
            for right in range(2 * most + 1)
            if torch.equal(larger[:, down : down + height, right : right + width], after)
        }
        assert len(places) == 1
        offsets |= places
    assert {down for down, _ in offsets} == {right for _, right in offsets} == set(range(2 * most + 1))


def test_random_shifts_depend_on_the_generator_alone():
    first, again, other = (random_shifts(8, 3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_preprocess_shifts_images():
    obs_spec, generator = ObservationSpec((39, 50), 3, 2), torch.Generator().manual_seed(0)
    frames, shifts = frames_of(obs_spec, batch=9), random_shifts(9, 4, generator)
    assert torch.equal(
        obs_spec.preprocess(frames, torch.float32, shifts),
        obs_spec.preprocess(shift_images(frames, shifts), torch.float32),
    )
    still = torch.zeros(2, 9, dtype=torch.int64)
    assert torch.equal(obs_spec.preprocess(frames, torch.float32, still), obs_spec.preprocess(frames, torch.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("frame", IMAGES, ids=str)
def test_the_preprocess_kernel_is_preprocess_on_a_cpu(frame, shifted, dtype):
    obs_spec = ObservationSpec(frame, 4, 2)
    frames = frames_of(obs_spec, batch=300)
    shifts = random_shifts(300, 4, torch.Generator().manual_seed(3)) if shifted else None
    on_gpu = obs_spec.preprocess(frames.cuda(), dtype, shifts if shifts is None else shifts.cuda())
    assert torch.equal(on_gpu.cpu(), obs_spec.preprocess(frames, dtype, shifts))
