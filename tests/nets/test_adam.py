"""Adam on one vector beside PyTorch's own."""

import pytest
import torch
from pytest import approx

from rbi.optim import Adam

RATE, EPSILON = 0.00025 / 4, 1.5e-4  # Rainbow's, as in the paper


def gradients(size, steps=20):
    """Gradients of all magnitudes; some numbers get none for a while, one never."""
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        gradient = torch.randn(size, generator=generator) * 10 ** (torch.rand(size, generator=generator) * 8 - 6)
        gradient[: size // 4] *= step > 5
        gradient[-1] = 0
        yield gradient


def torchs(start, rate, epsilon, steps=20, share=lambda _step: 1.0, dtype=torch.float32):
    """The weights after each step of torch.optim.Adam, in float64; `share` of the rate is taken at a step, and
    gradients come in `dtype`."""
    weight = torch.nn.Parameter(start.double())
    optimiser = torch.optim.Adam([weight], lr=rate, eps=epsilon)
    for step, gradient in enumerate(gradients(len(start), steps)):
        weight.grad = gradient.to(dtype).double()
        optimiser.param_groups[0]["lr"] = rate * share(step)
        optimiser.step()
        yield weight.detach().clone()


@pytest.mark.parametrize(("rate", "epsilon"), [(RATE, EPSILON), (0.01, 1e-8)])
def test_twenty_steps_are_those_of_torchs_adam(rate, epsilon):
    start = torch.randn(100, generator=torch.Generator().manual_seed(1))
    vector = start.clone()
    adam = Adam(vector, vector, rate, epsilon)
    for gradient, expected in zip(gradients(100), torchs(start, rate, epsilon), strict=True):
        adam.gradient.copy_(gradient)
        adam.step()
        moved, should_move = (vector - start).double(), expected - start
        assert moved.numpy() == approx(should_move.numpy(), rel=1e-3, abs=1e-6)
    assert vector[-1] == start[-1]


def test_the_copy_that_networks_compute_with_is_the_rounded_vector_after_every_step():
    vector = torch.randn(100, generator=torch.Generator().manual_seed(1))
    compute_vector = vector.to(torch.bfloat16)
    adam = Adam(vector, compute_vector, 0.01, EPSILON)
    before = compute_vector.clone()
    for gradient in gradients(100):
        adam.gradient.copy_(gradient)
        adam.step()
        assert torch.equal(compute_vector, vector.to(torch.bfloat16))
    assert not torch.equal(compute_vector, before)


def test_steps_too_small_for_the_copys_precision_add_up_in_the_vector():
    vector = torch.ones(1)
    adam = Adam(vector, vector.to(torch.bfloat16), 1e-4, EPSILON)
    adam.gradient.fill_(1.0)
    for _ in range(100):
        adam.step()
    assert adam.compute_vector.item() == approx(0.99, abs=2**-8)
    assert adam.compute_vector.item() < 1


def test_steps_go_on_from_a_saved_state_as_if_nothing_had_happened():
    whole, halves = torch.ones(10), torch.ones(10)
    first, second = Adam(whole, whole, RATE, EPSILON), Adam(halves, halves, RATE, EPSILON)
    for step, gradient in enumerate(gradients(10)):
        for adam in (first, second):
            adam.gradient.copy_(gradient)
            adam.step()
        if step == 9:
            saved = {name: tensor.clone() for name, tensor in second.state().items()}
            second = Adam(halves, halves, RATE, EPSILON)
            for name, tensor in second.state().items():
                tensor.copy_(saved[name])
    assert torch.equal(whole, halves)


def falling(step):
    """To a quarter over ten steps, and no further."""
    return 1 - 0.75 * min(1, step / 10)


def steps_as_torchs_with_a_falling_rate(device):
    start = torch.randn(100, generator=torch.Generator().manual_seed(1))
    vector = start.to(device)
    adam = Adam(vector, vector, 0.01, 1e-8, decay=0.75, decay_steps=10)
    for gradient, expected in zip(gradients(100), torchs(start, 0.01, 1e-8, share=falling), strict=True):
        adam.gradient.copy_(gradient)
        adam.step()
        moved, should_move = vector.double().cpu() - start, expected - start
        assert moved.numpy() == approx(should_move.numpy(), rel=1e-3, abs=1e-6)


def test_a_rate_that_falls_to_a_quarter_over_ten_steps_stays_there():
    steps_as_torchs_with_a_falling_rate("cpu")


@pytest.mark.gpu
def test_the_fused_kernels_rate_falls_too():
    steps_as_torchs_with_a_falling_rate("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [100, 5000])
def test_the_fused_kernel_takes_the_steps_of_torchs_adam(size, dtype):
    start = torch.randn(size, generator=torch.Generator().manual_seed(1))
    vector = start.to("cuda")
    compute_vector = vector if dtype == torch.float32 else vector.to(dtype)
    adam = Adam(vector, compute_vector, RATE, EPSILON)
    assert adam.gradient.dtype == dtype
    for gradient, expected in zip(gradients(size), torchs(start, RATE, EPSILON, dtype=dtype), strict=True):
        adam.gradient.copy_(gradient)
        adam.step()
        moved, should_move = vector.double().cpu() - start, expected - start
        assert moved.numpy() == approx(should_move.numpy(), rel=1e-3, abs=1e-6)
        assert torch.equal(compute_vector, vector.to(dtype))
