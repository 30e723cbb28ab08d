"""Side streams and captured graphs."""

import os

import pytest
import torch

from rbi.gpu import SideStream, capture_graph, prepare_for_many_streams
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.optim import ModuleOptimizer


def test_on_a_cpu_a_side_stream_runs_in_program_order():
    stream, found = SideStream(torch.device("cpu")), []
    with stream.overlapping():
        found.append(1)
    found.append(2)
    stream.join()
    assert found == [1, 2]


@pytest.mark.parametrize(("chosen", "expected"), [(None, "32"), ("4", "4")])
def test_a_number_of_connections_in_the_environment_stands(monkeypatch, chosen, expected):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if chosen:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", chosen)
    prepare_for_many_streams()
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == expected


@pytest.mark.gpu
def test_work_on_a_side_stream_is_done_after_the_join():
    stream = SideStream(torch.device("cuda"))
    x = torch.randn((2000, 2000), device="cuda")
    for _ in range(20):
        with stream.overlapping():
            y = x @ x
        z = x @ x
        stream.join()
        assert torch.equal(y, z)


@pytest.mark.gpu
def test_a_captured_update_is_the_update_and_warm_up_leaves_no_trace():
    device, spec = torch.device("cuda"), ObservationSpec((84, 84), 4, 6)
    obs = torch.rand((32, 21, 21, 64), device=device)
    learners = []
    for _ in range(2):
        network = make_networks(spec, offline_network(), 0).q.train()
        learners.append(ModuleOptimizer(network, device, 1e-3))
    captured, plain = learners

    def update(learner):
        learner.step([learner.module(obs)[0].square().mean()])

    before = captured.vector.clone()
    state = list(captured.state().values())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True, benchmark=False):
        graph = capture_graph(lambda: update(captured), torch.cuda.Stream(), [], state)
        assert torch.equal(captured.vector, before)
        assert captured.adam.count.item() == 0
        for seed in range(5):
            obs.copy_(torch.rand(obs.shape, generator=torch.Generator().manual_seed(seed)))
            graph.replay()
            torch.cuda.synchronize()
            update(plain)
    assert captured.adam.count.item() == 5
    assert (captured.vector - plain.vector).abs().max() < 5e-3  # kernels may differ; a step moves a weight by 1e-3


@pytest.mark.gpu
def test_a_captured_generator_draws_anew_at_every_replay():
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = torch.zeros(4, device="cuda")

    def draw():
        drawn.copy_(torch.rand(4, device="cuda", generator=generator))

    graph = capture_graph(draw, torch.cuda.Stream(), [generator], [drawn])
    found = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        found.append(tuple(drawn.tolist()))
    assert len(set(found)) == 3
