"""Weights whose gradients are computed beside the way back."""

import copy

import pytest
import torch
from pytest import approx
from torch.nn import functional

from rbi.gpu import layers as convolution
from rbi.gpu import layers as dense
from rbi.gpu import streams as beside
from rbi.gpu.streams import warmed
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec

SIGHT = ObservationSpec((84, 84), 4, 6)


def drawn(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.fixture
def everywhere(monkeypatch):
    """Let layers learn beside the way back on a processor too, where that happens in turn."""

    def may(x, weight):
        return x.requires_grad and weight.requires_grad and torch.is_grad_enabled()

    for module in (convolution, dense):
        monkeypatch.setattr(module, "may_learn_beside", may)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_dense_layer_and_its_gradients_are_torchs(with_bias):
    given = [tensor.requires_grad_() for tensor in drawn((5, 3), (4, 3), (4,))[: 2 + with_bias]]
    ours, theirs = dense.dense(*given), functional.linear(*given)
    assert torch.equal(ours, theirs)
    (slope,) = drawn((5, 4), seed=1)
    for got, expected in zip(*(torch.autograd.grad(answer, given, slope) for answer in (ours, theirs)), strict=True):
        assert got.numpy() == approx(expected.numpy(), abs=1e-12)


@pytest.mark.usefixtures("everywhere")
def test_gradients_of_a_weight_that_is_used_twice_add_up():
    """Twice by layers, and once more by itself, as in a penalty on weights."""
    x, weight = (tensor.requires_grad_() for tensor in drawn((5, 3), (3, 3)))

    def loss(layer):
        return layer(layer(x, weight), weight).square().sum() + weight.square().sum()

    ours, theirs = (torch.autograd.grad(loss(layer), (x, weight)) for layer in (dense.dense, functional.linear))
    for got, expected in zip(ours, theirs, strict=True):
        assert got.numpy() == approx(expected.numpy())


@pytest.mark.usefixtures("everywhere")
def test_what_is_not_to_learn_gets_no_step_of_its_own():
    x, weight = drawn((5, 3), (4, 3))
    assert dense.dense(x, weight).grad_fn is None
    assert "Joined" not in dense.dense(x, weight.requires_grad_()).grad_fn.name()
    with torch.no_grad():
        assert dense.dense(x.requires_grad_(), weight).grad_fn is None
    assert "Joined" in dense.dense(x, weight).grad_fn.name()


def slopes_of(networks, seen):
    """The gradients of all weights of a Q-net, in training, of an error and of a penalty on the weights."""
    q, _ = networks.train()(seen)
    weights = list(networks.parameters())
    loss = q.square().mean() + 1e-3 * torch.stack([weight.square().sum() for weight in weights]).sum()
    return torch.autograd.grad(loss, weights)


def pictures(number, seed):
    return torch.rand((number, 21, 21, 64), generator=torch.Generator().manual_seed(seed)).to("cuda")


def near(ours, theirs, within=1e-3):
    """Within what the order of sums changes: kernels add up as they come. A unit that lies at relu's kink takes a whole
    gradient with it, so that of all sums rounded by a millionth part a thousandth of the gradients may come."""
    for got, expected in zip(ours, theirs, strict=True):
        assert (got - expected).abs().max() <= within * expected.abs().max()


@pytest.fixture
def exact():
    torch.set_float32_matmul_precision("highest")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True, benchmark=False):
        yield


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_gradients_on_a_gpu_are_those_in_turn_whatever_is_written_after():
    """They must be whole when autograd gives them, though later work takes over the memory that they were made from."""
    networks = make_networks(SIGHT, offline_network(), 0).q.to("cuda")
    in_turn = copy.deepcopy(networks)
    for seed in range(30):
        with beside.weights_beside():
            got = slopes_of(networks, pictures(32, seed))
        litter = [torch.full((32, 21, 21, 64), 7.0, device="cuda") for _ in range(20)]
        near(got, slopes_of(in_turn, pictures(32, seed)))
        del litter


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_a_captured_way_back_gives_the_same_gradients_again_and_again():
    networks = make_networks(SIGHT, offline_network(), 0).q.to("cuda")
    seen = pictures(32, 0)
    found = [torch.zeros_like(weight) for weight in networks.parameters()]

    def work():
        with beside.weights_beside():
            torch._foreach_copy_(found, list(slopes_of(networks, seen)))

    graph = warmed(work, torch.cuda.Stream(), [], [*networks.buffers()])
    for seed in range(10):
        seen.copy_(pictures(32, seed))
        graph.replay()
        torch.cuda.synchronize()
        near([gradient.clone() for gradient in found], slopes_of(networks, seen), within=1e-2)  # with other kernels


@pytest.mark.gpu
def test_every_stream_has_one_beside_it():
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    assert beside.second_of(one) == beside.second_of(one) != one
    assert beside.second_of(one) != beside.second_of(other)
