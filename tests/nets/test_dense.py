"""Dense layers and the sums that their biases learn from, beside PyTorch's own."""

import pytest
import torch
from pytest import approx
from torch.nn import functional

from rbi.gpu.layers import SUM_MAX_ROWS, column_sums, dense

SHAPES = [(1, 1), (128, 4), (32, 19), (528, 64), (33, 1024), (SUM_MAX_ROWS, 3), (SUM_MAX_ROWS + 1, 3), (0, 5)]


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_taken_over_rows_and_given_in_the_precision_asked_for(shape):
    rows = numbers(*shape)
    total = column_sums(rows, torch.bfloat16)
    assert total.dtype == torch.bfloat16
    expected = [sum(rows[:, column].tolist()) for column in range(shape[1])]
    assert total.tolist() == approx(expected, rel=2**-8, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_sums_as_a_processor_does(shape, given):
    rows = numbers(*shape, dtype=given)
    torch.testing.assert_close(column_sums(rows.cuda(), torch.float32).cpu(), rows.float().sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str)
def test_on_a_gpu_a_layer_and_its_gradients_are_pytorchs(dtype, within):
    torch.set_float32_matmul_precision("highest")
    both = numbers(128, 1024, dtype=dtype).cuda()
    weight, bias, slope = (numbers(*shape, dtype=dtype, seed=1).cuda() for shape in [(4, 512), (4,), (128, 4)])
    found = []
    for layer in (dense, functional.linear):
        given = [tensor.clone().requires_grad_() for tensor in (both, weight, bias)]
        answer = layer(given[0].chunk(2, 1)[1], *given[1:])  # half of a wider matrix, as the duelling network has it
        found.append([answer, *torch.autograd.grad(answer, given, slope)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= within * theirs.abs().max()
