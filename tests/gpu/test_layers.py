"""Layers against PyTorch's own and against loops; Triton and cuDNN kernels against the CPU."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from torch.nn import functional

from rbi.gpu import layers
from rbi.gpu.layers import (
    LAYER_NORM_EPSILON,
    SUM_MAX_ROWS,
    column_sums,
    conv_output_size,
    convolve,
    convolve_relu,
    dense,
    identity_affine,
    normalise_relu,
)

# Convolution

# height, width, channels, filters, kernel, stride; in some the last rows or columns are not covered by any kernel
SIZES = [
    (20, 20, 3, 4, 2, 1), (9, 9, 4, 5, 4, 2), (7, 7, 5, 3, 3, 1), (10, 9, 2, 3, 4, 2), (9, 11, 2, 3, 4, 2),
    (14, 15, 1, 2, 8, 4), (11, 8, 3, 2, 3, 3), (5, 6, 2, 3, 1, 1), (7, 7, 2, 3, 2, 2), (4, 4, 2, 3, 4, 2),
]  # fmt: skip


def images_and_weights(height, width, channels, filters, kernel, batch=3, dtype=torch.float64):
    """Images, weights and biases from a fixed seed."""
    generator = torch.Generator().manual_seed(height * width + kernel)
    shapes = (batch, height, width, channels), (filters, kernel * kernel * channels), (filters,)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.fixture(params=[False, True], ids=["conv2d", "patches"])
def cpu_convolution(request, monkeypatch):
    """Both ways to convolve on a CPU, whatever this one is."""
    monkeypatch.setattr(layers, "PATCHES_ON_CPU", request.param)


def ordinary(x, weight, bias, kernel, stride):
    """relu(torch.conv2d), channels last as ours."""
    filters = weight.view(len(weight), kernel, kernel, x.shape[3]).permute(0, 3, 1, 2)
    return functional.relu(torch.conv2d(x.permute(0, 3, 1, 2), filters, bias, stride)).permute(0, 2, 3, 1)


@pytest.mark.usefixtures("cpu_convolution")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolution_with_relu_and_its_gradients_are_torchs(size):
    *shape, kernel, stride = size
    given = [tensor.requires_grad_() for tensor in images_and_weights(*shape, kernel)]
    ours, theirs = convolve_relu(*given, kernel, stride), ordinary(*given, kernel, stride)
    assert ours.shape[1:3] == tuple(conv_output_size(length, kernel, stride) for length in size[:2])
    assert ours.detach().numpy() == approx(theirs.detach().numpy(), abs=1e-12)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    for mine, expected in zip(
        torch.autograd.grad(ours, given, grad), torch.autograd.grad(theirs, given, grad), strict=True
    ):
        assert mine.numpy() == approx(expected.numpy(), abs=1e-11)


@pytest.mark.usefixtures("cpu_convolution")
@pytest.mark.parametrize("size", [(5, 6, 2, 2, 2, 1), (7, 6, 1, 2, 4, 2), (5, 5, 1, 2, 3, 1)], ids=str)
def test_convolution_gradients_are_those_of_finite_differences(size):
    *shape, kernel, stride = size
    given = [tensor.requires_grad_() for tensor in images_and_weights(*shape, kernel, batch=2)]
    assert torch.autograd.gradcheck(lambda *three: convolve_relu(*three, kernel, stride), given)


@pytest.mark.usefixtures("cpu_convolution")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolution_and_its_gradients_are_torchs(size):
    *shape, kernel, stride = size
    x, weight, _ = (tensor.requires_grad_() for tensor in images_and_weights(*shape, kernel))
    filters = weight.view(len(weight), kernel, kernel, x.shape[3]).permute(0, 3, 1, 2)
    ours = convolve(x, weight, kernel, stride)
    theirs = torch.conv2d(x.permute(0, 3, 1, 2), filters, None, stride).permute(0, 2, 3, 1)
    assert ours.detach().numpy() == approx(theirs.detach().numpy(), abs=1e-12)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    grads = (torch.autograd.grad(answer, (x, weight), grad) for answer in (ours, theirs))
    for mine, expected in zip(*grads, strict=True):
        assert mine.numpy() == approx(expected.numpy(), abs=1e-11)


@pytest.mark.usefixtures("cpu_convolution")
def test_uncovered_pixels_get_no_gradient():
    x, weight, bias = images_and_weights(10, 11, 2, 3, 4)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(convolve_relu(x, weight.abs(), bias.abs() + 100, 4, 2).sum(), x)
    assert (grad[:, :, 10:] == 0).all()
    assert (grad[:, :, :10] != 0).all()


@pytest.mark.usefixtures("cpu_convolution")
def test_the_input_gradient_is_optional():
    x, weight, bias = images_and_weights(6, 6, 2, 3, 2)
    weight.requires_grad_()
    answer = convolve_relu(x, weight, bias, 2, 1)
    (grad,) = torch.autograd.grad(answer.sum(), weight)
    (expected,) = torch.autograd.grad(ordinary(x, weight, bias, 2, 1).sum(), weight)
    assert grad.numpy() == approx(expected.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(21, 21, 64, 32, 2, 1), (20, 20, 32, 64, 4, 2), (9, 9, 64, 64, 3, 1)], ids=str)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 5e-3), (torch.bfloat16, 4e-2)], ids=str)
def test_convolution_on_a_gpu_is_that_on_a_cpu(size, dtype, rounding):
    """Within the rounding of TF32 and bfloat16, relative to the largest number; both start from rounded numbers."""
    *shape, kernel, stride = size
    given = [tensor.requires_grad_() for tensor in images_and_weights(*shape, kernel, batch=16, dtype=dtype)]
    there = [tensor.detach().to("cuda").requires_grad_() for tensor in given]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    here, answer = convolve_relu(*exact, kernel, stride), convolve_relu(*there, kernel, stride)
    assert answer.is_cuda
    assert answer.dtype == dtype
    grad = torch.randn(here.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    grad = grad * (here.detach() > 0.5)  # clear of the kink, where rounding decides on the side of relu
    ours = torch.autograd.grad(answer, there, grad.to("cuda"))
    theirs = torch.autograd.grad(here, exact, grad.double())
    for got, expected in zip((answer.detach(), *ours), (here.detach(), *theirs), strict=True):
        error = (got.double().cpu() - expected).abs().max() / expected.abs().max()
        assert error < rounding


# Column sums and dense layer

SUM_SHAPES = [(1, 1), (128, 4), (32, 19), (528, 64), (33, 1024), (SUM_MAX_ROWS, 3), (SUM_MAX_ROWS + 1, 3), (0, 5)]


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("shape", SUM_SHAPES, ids=str)
def test_column_sums_accumulate_in_float32_and_return_the_given_dtype(shape):
    rows = numbers(*shape)
    total = column_sums(rows, torch.bfloat16)
    assert total.dtype == torch.bfloat16
    expected = [sum(rows[:, column].tolist()) for column in range(shape[1])]
    assert total.tolist() == approx(expected, rel=2**-8, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SUM_SHAPES, ids=str)
def test_the_column_sum_kernel_is_the_sum_on_a_cpu(shape, given):
    rows = numbers(*shape, dtype=given)
    torch.testing.assert_close(column_sums(rows.cuda(), torch.float32).cpu(), rows.float().sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str)
def test_dense_on_a_gpu_and_its_gradients_are_torchs(dtype, within):
    torch.set_float32_matmul_precision("highest")
    both = numbers(128, 1024, dtype=dtype).cuda()
    weight, bias, grad = (numbers(*shape, dtype=dtype, seed=1).cuda() for shape in [(4, 512), (4,), (128, 4)])
    found = []
    for layer in (dense, functional.linear):
        given = [tensor.clone().requires_grad_() for tensor in (both, weight, bias)]
        answer = layer(given[0].chunk(2, 1)[1], *given[1:])  # half of a wider matrix, as the duelling network has it
        found.append([answer, *torch.autograd.grad(answer, given, grad)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= within * theirs.abs().max()


# Layer norm

NORM_SHAPES = [((3, 5, 4, 32), 1), ((7, 48), 2), ((300, 7), 1), ((2, 1024), 2), ((9, 90), 3)]


def layer_norm_loop(rows, bias, groups):
    """Row by row, group by group."""
    found, width = [], len(bias) // groups
    for row in rows:
        for at in range(0, len(bias), width):
            part = row[at : at + width]
            mean = sum(part) / width
            spread = math.sqrt(sum((value - mean) ** 2 for value in part) / width + LAYER_NORM_EPSILON)
            found += [max(0.0, (v - mean) / spread + b) for v, b in zip(part, bias[at : at + width], strict=True)]
    return found


def norm_inputs(shape, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(len(shape))
    x = 3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 2
    bias = torch.randn(shape[-1], generator=generator, dtype=torch.float64) / 2
    return [tensor.to(device, dtype).requires_grad_() for tensor in (x, bias)]


@pytest.mark.parametrize(("shape", "groups"), NORM_SHAPES)
def test_layer_norm_relu_is_the_loop_over_rows_and_groups(shape, groups):
    x, bias = norm_inputs(shape)
    expected = layer_norm_loop(x.flatten(0, -2).tolist(), bias.tolist(), groups)
    assert normalise_relu(x, bias, groups).flatten().tolist() == approx(expected)


def test_layer_norm_gradients_are_those_of_finite_differences():
    x, bias = norm_inputs((4, 6))
    assert torch.autograd.gradcheck(lambda *given: normalise_relu(*given, 2), (x, bias))


@settings(max_examples=30)
@given(st.floats(0.5, 100), st.floats(-100, 100))
def test_layer_norm_is_invariant_to_scale_and_shift(factor, shift):
    x, bias = norm_inputs((5, 32))
    same = normalise_relu(x, bias)
    assert normalise_relu(factor * x + shift, bias).detach().numpy() == approx(same.detach().numpy(), abs=1e-4)


def test_layer_norm_of_equal_numbers_is_the_bias():
    bias = torch.tensor([0.5, -1.0, 0.0, 2.0])
    assert normalise_relu(torch.full((1, 4), 7.0), bias).tolist() == [[0.5, 0.0, 0.0, 2.0]]


def test_layer_norm_has_gradients_after_a_first_call_in_inference_mode():
    x, bias = norm_inputs((2, 5))
    identity_affine.cache_clear()
    with torch.inference_mode():
        inferred = normalise_relu(x, bias)
    learned = normalise_relu(x, bias)
    assert learned.tolist() == inferred.tolist()
    assert torch.autograd.grad(learned.sum(), bias)[0].tolist() == (learned > 0).sum(0).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize(("shape", "groups"), [*NORM_SHAPES, ((128, 20, 20, 32), 1)])
def test_the_layer_norm_kernels_are_the_layer_norm_on_a_cpu(shape, groups, dtype, within):
    on_gpu = norm_inputs(shape, dtype, "cuda")
    on_cpu = [tensor.detach().double().cpu().requires_grad_() for tensor in on_gpu]
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    ours, theirs = (normalise_relu(*given, groups) for given in (on_gpu, on_cpu))
    got = [ours, *torch.autograd.grad(ours, on_gpu, grad.to("cuda"))]
    expected = [theirs, *torch.autograd.grad(theirs, on_cpu, grad.double())]
    for here, there in zip(got, expected, strict=True):
        away = (here.detach().double().cpu() - there.detach()).abs()
        assert away.max() <= within * there.abs().max()
