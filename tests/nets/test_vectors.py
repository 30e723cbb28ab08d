"""Weights as one vector, there and back."""

import copy

import pytest
import torch

from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.optim import bind_parameters, flat_size, flatten_parameters, write_gradients

SIGHTS = [ObservationSpec((4,), 1, 3), ObservationSpec((5, 6), 2, 4)]


@pytest.fixture(params=SIGHTS, ids=str)
def networks(request):
    return make_networks(request.param, NetworkConfig(8), 0)


def test_attaching_a_networks_own_vector_changes_none_of_its_weights(networks):
    before = copy.deepcopy(networks.state_dict())
    bind_parameters(networks, flatten_parameters(networks))
    assert all(torch.equal(before[name], weight) for name, weight in networks.state_dict().items())


def test_a_vector_carries_weights_from_one_network_to_another(networks):
    other = make_networks(networks.obs_spec, NetworkConfig(8), 1)
    bind_parameters(other, flatten_parameters(networks))
    assert all(torch.equal(networks.state_dict()[name], weight) for name, weight in other.state_dict().items())
    assert torch.equal(flatten_parameters(other), flatten_parameters(networks))


def test_attached_weights_follow_the_vector(networks):
    vector = flatten_parameters(networks)
    bind_parameters(networks, vector)
    vector.fill_(0.25)
    assert all((parameter == 0.25).all() for parameter in networks.parameters())


def test_each_parameter_starts_at_sixteen_bytes_even_in_bfloat16_and_overlaps_no_other(networks):
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


def test_the_q_nets_weights_come_first_so_that_the_target_is_one_copy(networks):
    assert torch.equal(flatten_parameters(networks)[: flat_size(networks.q)], flatten_parameters(networks.q))


def test_gradients_are_joined_where_their_parameters_lie(networks):
    vector = torch.zeros(flat_size(networks))
    write_gradients([parameter.detach().clone() for parameter in networks.parameters()], networks, vector)
    assert torch.equal(vector, flatten_parameters(networks))


def test_joined_gradients_of_short_precision_become_float32(networks):
    vector = torch.zeros(flat_size(networks))
    write_gradients([torch.ones_like(parameter, dtype=torch.bfloat16) for parameter in networks.parameters()], networks, vector)
    assert vector.sum() == sum(parameter.numel() for parameter in networks.parameters())
