"""Layer norm, bias and relu as one step, beside a loop over rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from rbi.gpu.layers import LAYER_NORM_EPSILON, normalise_relu

SHAPES = [((3, 5, 4, 32), 1), ((7, 48), 2), ((300, 7), 1), ((2, 1024), 2), ((9, 90), 3)]


def slow(rows, bias, groups):
    """Row by row, group by group."""
    found, width = [], len(bias) // groups
    for row in rows:
        for at in range(0, len(bias), width):
            part = row[at : at + width]
            mean = sum(part) / width
            spread = math.sqrt(sum((value - mean) ** 2 for value in part) / width + LAYER_NORM_EPSILON)
            found += [max(0.0, (v - mean) / spread + b) for v, b in zip(part, bias[at : at + width], strict=True)]
    return found


def given_for(shape, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(len(shape))
    x = 3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 2
    bias = torch.randn(shape[-1], generator=generator, dtype=torch.float64) / 2
    return [tensor.to(device, dtype).requires_grad_() for tensor in (x, bias)]


@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_each_group_of_a_row_is_normalised_by_itself_then_shifted_and_cut_at_zero(shape, groups):
    x, bias = given_for(shape)
    expected = slow(x.flatten(0, -2).tolist(), bias.tolist(), groups)
    assert normalise_relu(x, bias, groups).flatten().tolist() == approx(expected)


def test_gradients_are_those_of_small_changes():
    x, bias = given_for((4, 6))
    assert torch.autograd.gradcheck(lambda *given: normalise_relu(*given, 2), (x, bias))


@settings(max_examples=30)
@given(st.floats(0.5, 100), st.floats(-100, 100))
def test_neither_the_size_nor_the_level_of_what_comes_in_matters(factor, shift):
    x, bias = given_for((5, 32))
    same = normalise_relu(x, bias)
    assert normalise_relu(factor * x + shift, bias).detach().numpy() == approx(same.detach().numpy(), abs=1e-4)


def test_a_row_of_equal_numbers_gives_the_bias():
    bias = torch.tensor([0.5, -1.0, 0.0, 2.0])
    assert normalise_relu(torch.full((1, 4), 7.0), bias).tolist() == [[0.5, 0.0, 0.0, 2.0]]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize(("shape", "groups"), [*SHAPES, ((128, 20, 20, 32), 1)])
def test_the_kernels_give_what_a_processor_gives(shape, groups, dtype, within):
    on_gpu = given_for(shape, dtype, "cuda")
    on_processor = [tensor.detach().double().cpu().requires_grad_() for tensor in on_gpu]
    slope = torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    ours, theirs = (normalise_relu(*given, groups) for given in (on_gpu, on_processor))
    got = [ours, *torch.autograd.grad(ours, on_gpu, slope.to("cuda"))]
    expected = [theirs, *torch.autograd.grad(theirs, on_processor, slope.double())]
    for here, there in zip(got, expected, strict=True):
        away = (here.detach().double().cpu() - there.detach()).abs()
        assert away.max() <= within * there.abs().max()
