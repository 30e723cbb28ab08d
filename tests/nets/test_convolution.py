"""Our fused convolution beside PyTorch's own."""

import pytest
import torch
from pytest import approx
from torch.nn import functional

from rbi.gpu.layers import conv_output_size, convolve, convolve_relu

# height, width, channels, filters, kernel, stride; in some the last rows or columns are seen by no kernel
SIZES = [
    (20, 20, 3, 4, 2, 1), (9, 9, 4, 5, 4, 2), (7, 7, 5, 3, 3, 1), (10, 9, 2, 3, 4, 2), (9, 11, 2, 3, 4, 2),
    (14, 15, 1, 2, 8, 4), (11, 8, 3, 2, 3, 3), (5, 6, 2, 3, 1, 1), (7, 7, 2, 3, 2, 2), (4, 4, 2, 3, 4, 2),
]  # fmt: skip


def drawn(height, width, channels, filters, kernel, batch=3, dtype=torch.float64):
    """A picture, weights and biases, from a seed of their own."""
    generator = torch.Generator().manual_seed(height * width + kernel)
    shapes = (batch, height, width, channels), (filters, kernel * kernel * channels), (filters,)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def ordinary(x, weight, bias, kernel, stride):
    """relu(torch.conv2d), channels last as ours."""
    filters = weight.view(len(weight), kernel, kernel, x.shape[3]).permute(0, 3, 1, 2)
    return functional.relu(torch.conv2d(x.permute(0, 3, 1, 2), filters, bias, stride)).permute(0, 2, 3, 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolution_and_its_gradients_are_torchs(size):
    *shape, kernel, stride = size
    given = [tensor.requires_grad_() for tensor in drawn(*shape, kernel)]
    ours, theirs = convolve_relu(*given, kernel, stride), ordinary(*given, kernel, stride)
    assert ours.shape[1:3] == tuple(conv_output_size(length, kernel, stride) for length in size[:2])
    assert ours.detach().numpy() == approx(theirs.detach().numpy(), abs=1e-12)
    slope = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    for mine, expected in zip(
        torch.autograd.grad(ours, given, slope), torch.autograd.grad(theirs, given, slope), strict=True
    ):
        assert mine.numpy() == approx(expected.numpy(), abs=1e-11)


@pytest.mark.parametrize("size", [(5, 6, 2, 2, 2, 1), (7, 6, 1, 2, 4, 2), (5, 5, 1, 2, 3, 1)], ids=str)
def test_gradients_are_those_of_finite_differences(size):
    *shape, kernel, stride = size
    given = [tensor.requires_grad_() for tensor in drawn(*shape, kernel, batch=2)]
    assert torch.autograd.gradcheck(lambda *three: convolve_relu(*three, kernel, stride), given)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_convolution_alone_and_its_gradients_are_torchs(size):
    *shape, kernel, stride = size
    x, weight, _ = (tensor.requires_grad_() for tensor in drawn(*shape, kernel))
    filters = weight.view(len(weight), kernel, kernel, x.shape[3]).permute(0, 3, 1, 2)
    ours = convolve(x, weight, kernel, stride)
    theirs = torch.conv2d(x.permute(0, 3, 1, 2), filters, None, stride).permute(0, 2, 3, 1)
    assert ours.detach().numpy() == approx(theirs.detach().numpy(), abs=1e-12)
    slope = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    grads = (torch.autograd.grad(answer, (x, weight), slope) for answer in (ours, theirs))
    for mine, expected in zip(*grads, strict=True):
        assert mine.numpy() == approx(expected.numpy(), abs=1e-11)


def test_pixels_that_no_kernel_sees_get_no_gradient():
    x, weight, bias = drawn(10, 11, 2, 3, 4)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(convolve_relu(x, weight.abs(), bias.abs() + 100, 4, 2).sum(), x)
    assert (slope[:, :, 10:] == 0).all()
    assert (slope[:, :, :10] != 0).all()


def test_the_first_layer_computes_no_gradient_of_what_is_seen():
    x, weight, bias = drawn(6, 6, 2, 3, 2)
    weight.requires_grad_()
    answer = convolve_relu(x, weight, bias, 2, 1)
    (slope,) = torch.autograd.grad(answer.sum(), weight)
    (expected,) = torch.autograd.grad(ordinary(x, weight, bias, 2, 1).sum(), weight)
    assert slope.numpy() == approx(expected.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(21, 21, 64, 32, 2, 1), (20, 20, 32, 64, 4, 2), (9, 9, 64, 64, 3, 1)], ids=str)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 5e-3), (torch.bfloat16, 4e-2)], ids=str)
def test_cuda_gives_the_processors_convolution_and_gradients(size, dtype, rounding):
    """Within the rounding of TF32 and bfloat16, relative to the largest number; both start from rounded numbers."""
    *shape, kernel, stride = size
    given = [tensor.requires_grad_() for tensor in drawn(*shape, kernel, batch=16, dtype=dtype)]
    there = [tensor.detach().to("cuda").requires_grad_() for tensor in given]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    here, answer = convolve_relu(*exact, kernel, stride), convolve_relu(*there, kernel, stride)
    assert answer.is_cuda
    assert answer.dtype == dtype
    slope = torch.randn(here.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    slope = slope * (here.detach() > 0.5)  # clear of the kink, where rounding decides on the side of relu
    ours = torch.autograd.grad(answer, there, slope.to("cuda"))
    theirs = torch.autograd.grad(here, exact, slope.double())
    for got, expected in zip((answer.detach(), *ours), (here.detach(), *theirs), strict=True):
        error = (got.double().cpu() - expected).abs().max() / expected.abs().max()
        assert error < rounding
