"""Dense layers, and weights whose gradients are computed beside the way back."""

import copy

import pytest
import torch
from pytest import approx
from torch.nn import functional

from rbi.nets.dense import dense
from rbi.nets.from_logs import LogNetConfig, networks_for
from rbi.nets.graphs import warmed
from rbi.sight import Sight

SIGHT = Sight((84, 84), 4, 6)


def drawn(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("with_bias", [True, False])
def test_a_dense_layer_and_its_gradients_are_torchs(with_bias):
    given = [tensor.requires_grad_() for tensor in drawn((5, 3), (4, 3), (4,))[: 2 + with_bias]]
    ours, theirs = dense(*given), functional.linear(*given)
    assert torch.equal(ours, theirs)
    (slope,) = drawn((5, 4), seed=1)
    for got, expected in zip(*(torch.autograd.grad(answer, given, slope) for answer in (ours, theirs)), strict=True):
        assert got.numpy() == approx(expected.numpy(), abs=1e-12)


def test_the_lowest_layer_computes_no_gradient_of_what_it_sees():
    x, weight = drawn((5, 3), (4, 3))
    (got,) = torch.autograd.grad(dense(x, weight.requires_grad_()).sum(), weight)
    assert got.numpy() == approx(torch.ones(4, 5, dtype=x.dtype).mm(x).numpy())


def slopes_of(networks, seen):
    """The gradients of all weights of a Q-net, in training."""
    q, _ = networks.train()(seen)
    return torch.autograd.grad(q.square().mean(), list(networks.parameters()))


def pictures(number, seed):
    return torch.rand((number, 21, 21, 64), generator=torch.Generator().manual_seed(seed))


@pytest.mark.gpu
def test_all_weights_of_a_network_get_the_processors_gradients_whatever_is_written_after():
    """Gradients that autograd gives must be whole, though later work takes over the memory that they were made from."""
    here = networks_for(SIGHT, LogNetConfig(), 0).q
    there = copy.deepcopy(here).to("cuda")
    torch.set_float32_matmul_precision("highest")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for seed in range(20):
            seen = pictures(32, seed)
            got = slopes_of(there, seen.to("cuda"))
            litter = [torch.full((32, 21, 21, 64), 7.0, device="cuda") for _ in range(20)]
            if seed % 5 == 0:
                for mine, expected in zip(got, slopes_of(here, seen), strict=True):
                    error = (mine.cpu() - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
                    assert error < 1e-3
            del litter


@pytest.mark.gpu
def test_a_captured_way_back_gives_the_same_gradients_again_and_again():
    networks = networks_for(SIGHT, LogNetConfig(), 0).q.to("cuda")
    seen = pictures(32, 0).to("cuda")
    found = [torch.zeros_like(weight) for weight in networks.parameters()]

    def work():
        torch._foreach_copy_(found, list(slopes_of(networks, seen)))

    graph = warmed(work, torch.cuda.Stream(), [], [*networks.buffers()])
    for seed in range(3):
        seen.copy_(pictures(32, seed).to("cuda"))
        graph.replay()
        torch.cuda.synchronize()
        got = [gradient.clone() for gradient in found]
        for mine, expected in zip(got, slopes_of(networks, seen), strict=True):
            assert (mine - expected).abs().max() <= 1e-2 * expected.abs().max().clamp(min=1e-6)
