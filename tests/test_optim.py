"""Flat parameter vectors, and Adam on them against PyTorch's own."""

import copy

import pytest
import torch
from pytest import approx

from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.optim import (
    Adam,
    ModuleOptimizer,
    bind_parameters,
    flat_size,
    flatten_parameters,
    parameter_slots,
    write_gradients,
)

OBS_SPECS = [ObservationSpec((4,), 1, 3), ObservationSpec((5, 6), 2, 4)]


@pytest.fixture(params=OBS_SPECS, ids=str)
def networks(request):
    return make_networks(request.param, NetworkConfig(8), 0)


def test_binding_a_network_to_its_own_vector_changes_no_weight(networks):
    before = copy.deepcopy(networks.state_dict())
    bind_parameters(networks, flatten_parameters(networks))
    assert all(torch.equal(before[name], weight) for name, weight in networks.state_dict().items())


def test_a_flat_vector_carries_weights_from_one_network_to_another(networks):
    other = make_networks(networks.obs_spec, NetworkConfig(8), 1)
    bind_parameters(other, flatten_parameters(networks))
    assert all(torch.equal(networks.state_dict()[name], weight) for name, weight in other.state_dict().items())
    assert torch.equal(flatten_parameters(other), flatten_parameters(networks))


def test_bound_parameters_are_views_of_the_vector(networks):
    vector = flatten_parameters(networks)
    bind_parameters(networks, vector)
    vector.fill_(0.25)
    assert all((parameter == 0.25).all() for parameter in networks.parameters())


def test_parameters_are_aligned_to_16_bytes_in_bfloat16_and_do_not_overlap(networks):
    vector = flatten_parameters(networks)
    bind_parameters(networks, vector)
    taken = torch.zeros(len(vector), dtype=torch.int64)
    for parameter in networks.parameters():
        start = (parameter.data_ptr() - vector.data_ptr()) // vector.element_size()
        assert start * torch.bfloat16.itemsize % 16 == 0
        taken[start : start + parameter.numel()] += 1
    assert taken.max() == 1
    assert (vector[taken == 0] == 0).all()
    assert len(vector) == flat_size(networks)


def test_q_network_parameters_come_first_so_that_updating_the_target_is_one_copy(networks):
    assert torch.equal(flatten_parameters(networks)[: flat_size(networks.q)], flatten_parameters(networks.q))


def test_gradients_are_written_where_their_parameters_lie(networks):
    vector = torch.zeros(flat_size(networks))
    slots = parameter_slots(networks, vector)
    write_gradients([parameter.detach().clone() for parameter in networks.parameters()], slots)
    assert torch.equal(vector, flatten_parameters(networks))


def test_bfloat16_gradients_become_float32(networks):
    vector = torch.zeros(flat_size(networks))
    gradients = [torch.ones_like(parameter, dtype=torch.bfloat16) for parameter in networks.parameters()]
    write_gradients(gradients, parameter_slots(networks, vector))
    assert vector.sum() == sum(parameter.numel() for parameter in networks.parameters())


def test_a_module_step_is_torchs_adam_step_of_loss_and_l2_penalty(networks):
    q = networks.q
    twin = copy.deepcopy(q)
    optimizer, theirs = ModuleOptimizer(q, torch.device("cpu"), 0.01), torch.optim.Adam(twin.parameters(), lr=0.01)
    obs = networks.obs_spec.preprocess(
        torch.ones((3, networks.obs_spec.stack, *networks.obs_spec.shape), dtype=networks.obs_spec.dtype), torch.float32
    )
    for _ in range(3):
        optimizer.step([q(obs)[0]], [torch.ones(3, networks.obs_spec.num_actions)], l2_weight=0.1)
        theirs.zero_grad()
        l2 = sum(parameter.square().sum() for parameter in twin.parameters())
        (twin(obs)[0].sum() + 0.1 * l2).backward()
        theirs.step()
    for ours, expected in zip(q.parameters(), twin.parameters(), strict=True):
        assert ours.detach().numpy() == approx(expected.detach().numpy(), abs=1e-5)


# Adam

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
def test_steps_are_those_of_torchs_adam(rate, epsilon):
    start = torch.randn(100, generator=torch.Generator().manual_seed(1))
    vector = start.clone()
    adam = Adam(vector, vector, rate, epsilon)
    for gradient, expected in zip(gradients(100), torchs(start, rate, epsilon), strict=True):
        adam.gradient.copy_(gradient)
        adam.step()
        moved, should_move = (vector - start).double(), expected - start
        assert moved.numpy() == approx(should_move.numpy(), rel=1e-3, abs=1e-6)
    assert vector[-1] == start[-1]


def test_the_compute_vector_is_the_rounded_vector_after_every_step():
    vector = torch.randn(100, generator=torch.Generator().manual_seed(1))
    compute_vector = vector.to(torch.bfloat16)
    adam = Adam(vector, compute_vector, 0.01, EPSILON)
    before = compute_vector.clone()
    for gradient in gradients(100):
        adam.gradient.copy_(gradient)
        adam.step()
        assert torch.equal(compute_vector, vector.to(torch.bfloat16))
    assert not torch.equal(compute_vector, before)


def test_steps_below_bfloat16_resolution_accumulate():
    vector = torch.ones(1)
    adam = Adam(vector, vector.to(torch.bfloat16), 1e-4, EPSILON)
    adam.gradient.fill_(1.0)
    for _ in range(100):
        adam.step()
    assert adam.compute_vector.item() == approx(0.99, abs=2**-8)
    assert adam.compute_vector.item() < 1


def test_a_restored_adam_continues_exactly():
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


def decaying(step):
    """To a quarter over ten steps, and no further."""
    return 1 - 0.75 * min(1, step / 10)


def check_decaying_learning_rate(device):
    start = torch.randn(100, generator=torch.Generator().manual_seed(1))
    vector = start.to(device)
    adam = Adam(vector, vector, 0.01, 1e-8, decay=0.75, decay_steps=10)
    for gradient, expected in zip(gradients(100), torchs(start, 0.01, 1e-8, share=decaying), strict=True):
        adam.gradient.copy_(gradient)
        adam.step()
        moved, should_move = vector.double().cpu() - start, expected - start
        assert moved.numpy() == approx(should_move.numpy(), rel=1e-3, abs=1e-6)


def test_learning_rate_decays_linearly_and_then_stays():
    check_decaying_learning_rate("cpu")


@pytest.mark.gpu
def test_learning_rate_decays_in_the_triton_kernel():
    check_decaying_learning_rate("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [100, 5000])
def test_the_triton_kernel_takes_the_steps_of_torchs_adam(size, dtype):
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
