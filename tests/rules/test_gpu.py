"""The same answers on a CUDA device, from the fused kernel and from the plain rules, without waiting for the device."""

import numpy as np
import pytest
import torch
from pytest import approx

import rbi
from rbi.rules import linear
from tests.rules.cases import RULES, numbers, random_states, rounding

pytestmark = pytest.mark.gpu


def on_device(arrays, dtype=torch.float32):
    return tuple(torch.tensor(x).to("cuda", dtype) for x in arrays)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("actions", [1, 2, 18, 64, 65, 1000])
def test_cuda_gives_numpys_answer(rule, actions):
    beta, advantage = random_states((33,), actions)
    pi = rule(*on_device((beta, advantage)))
    assert pi.is_cuda
    assert pi.dtype == torch.float32
    assert numbers(pi) == approx(rule(beta, advantage), abs=3e-6)


@pytest.mark.parametrize("actions", [*range(1, 21), 31, 33, 63, 64])
@pytest.mark.parametrize("bounds", [(0.5, 1.5), (0, 2), (0.1, 2), (1, 1), (0, float("inf"))])
def test_fused_reroute_is_the_plain_rule(actions, bounds):
    beta, advantage = random_states((257,), actions, seed=actions)
    advantage[:100] = np.round(advantage[:100])  # ties
    advantage[100:120, 0] = -np.inf
    arrays = on_device((beta, advantage))
    assert linear.kernel_applies(*arrays, *bounds, None)
    assert numbers(rbi.max_reroute(*arrays, *bounds)) == approx(rbi.max_reroute(beta, advantage, *bounds), abs=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fused_reroute_keeps_narrow_dtypes_shapes_and_strides(dtype):
    beta, advantage = on_device(random_states((18, 40), 6), getattr(torch, dtype))
    beta, advantage = beta.transpose(0, 1), advantage.transpose(0, 1)
    pi = rbi.max_reroute(beta, advantage, 0.5, 1.5)
    wide = rbi.max_reroute(beta.double(), advantage.double(), 0.5, 1.5, check=False)
    assert pi.shape == (40, 18, 6)
    assert pi.dtype == beta.dtype
    assert numbers(pi) == approx(numbers(wide), abs=2 * rounding(dtype))


def test_gradients_take_the_plain_rule():
    beta, advantage = on_device(random_states((5,), 6))
    beta.requires_grad_()
    assert not linear.kernel_applies(beta, advantage, 0.5, 1.5, None)
    rbi.max_reroute(beta, advantage, 0.5, 1.5)[:, 0].sum().backward()
    assert torch.isfinite(beta.grad).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's remark on vmap over sorting
def test_transforms_take_the_plain_rule():
    beta, advantage = on_device(random_states((5,), 6))
    expected = numbers(rbi.max_reroute(beta, advantage, 0.5, 1.5))

    def slope(b, a):
        return torch.func.jvp(lambda x: rbi.max_reroute(x, a, 0.5, 1.5), (b,), (torch.ones_like(b),))[1]

    assert numbers(slope(beta, advantage)) == approx(numbers(slope(beta.cpu(), advantage.cpu())), abs=1e-5)
    each = torch.func.vmap(lambda b, a: rbi.max_reroute(b, a, 0.5, 1.5))(beta, advantage)
    assert numbers(each) == approx(expected, abs=2e-6)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_unchecked_rules_never_wait_for_the_device_and_can_be_captured(rule):
    beta, advantage = on_device(random_states((512,), 18))
    expected = rule(beta, advantage)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        rule(beta, advantage, check=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rule(beta, advantage)  # under capture the checks of values step aside by themselves
    graph.replay()
    assert numbers(captured) == approx(numbers(expected), abs=1e-6)


@pytest.mark.parametrize("rule", [rbi.Reroute(0.5, 1.5), rbi.TotalVariation(0.25), rbi.PPO(0.5)], ids=str)
def test_torch_compile_on_cuda(rule):
    torch.compiler.reset()
    beta, advantage = on_device(random_states((100,), 18))
    compiled = torch.compile(lambda b, a: rule(b, a), fullgraph=True)
    assert numbers(compiled(beta, advantage)) == approx(numbers(rule(beta, advantage)), abs=1e-5)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_torch_compile_traces_every_rule_on_cuda(rule):
    torch.compiler.reset()
    beta, advantage = on_device(random_states((100,), 18))
    compiled = torch.compile(lambda b, a: rule(b, a), fullgraph=True, backend="aot_eager")
    assert numbers(compiled(beta, advantage)) == approx(numbers(rule(beta, advantage)), abs=1e-5)


def test_bad_values_are_named_on_cuda_too():
    beta, advantage = on_device(random_states((3,), 4))
    beta[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"^beta\[1, 2\] = nan"):
        rbi.max_reroute(beta, advantage, 0.5, 1.5)
    with pytest.raises(ValueError, match=r"^arrays on one device are needed: beta is on cpu, advantage is on cuda:0$"):
        rbi.max_reroute(beta.cpu(), advantage, 0.5, 1.5)
