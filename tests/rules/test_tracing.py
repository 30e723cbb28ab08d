"""torch.compile, jax.jit and gradients go through every rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from pytest import approx

import rbi
from tests.rules.cases import RULES, numbers, random_states

AS_BY_DEFAULT = {"xla_backend_optimization_level": 3}
"""XLA's optimisations, which tests/conftest.py turns off: rules are traced to be compiled whole."""
SMOOTH = [rbi.ForwardKL(1.0), rbi.ForwardKL(radius=0.1), rbi.BackwardKL(0.1)]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_torch_compile_traces_every_rule_as_one_graph(rule):
    beta, advantage = (torch.tensor(x) for x in random_states((7,), 18))
    compiled = torch.compile(lambda b, a: rule(b, a), fullgraph=True, backend="aot_eager")
    assert numbers(compiled(beta, advantage)) == approx(numbers(rule(beta, advantage)), abs=1e-12)


def test_torch_compile_traces_legal_masks_and_bounds_per_action():
    beta, advantage = (torch.tensor(x) for x in random_states((7,), 4))
    legal, c_max = torch.tensor([True, True, True, False]), torch.linspace(1, 2, 4, dtype=torch.float64)
    legal = legal | (beta[:, 3:] > 0.5)

    def step(b, a):
        return rbi.max_reroute(b, a, 0.1, c_max, legal=legal)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert numbers(compiled(beta, advantage)) == approx(numbers(step(beta, advantage)), abs=1e-12)


@pytest.mark.slow
def test_inductor_compiles_max_reroute_to_the_same_answer():
    beta, advantage = (torch.tensor(x, dtype=torch.float32) for x in random_states((64,), 18))
    compiled = torch.compile(rbi.Reroute(0.5, 1.5), fullgraph=True)
    assert numbers(compiled(beta, advantage)) == approx(numbers(rbi.Reroute(0.5, 1.5)(beta, advantage)), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_jax_jit_and_vmap_go_through_every_rule(rule):
    beta, advantage = (jnp.asarray(x) for x in random_states((7,), 6))
    expected = approx(numbers(rule(beta, advantage)), abs=1e-9)
    assert numbers(jax.jit(rule, compiler_options=AS_BY_DEFAULT)(beta, advantage)) == expected
    assert numbers(jax.vmap(rule)(beta, advantage)) == expected


def test_jax_jit_takes_constants_and_traced_arguments():
    beta, advantage, delta = jnp.array([0.5, 0.5]), jnp.array([0.0, 1.0]), jnp.array([0.1])
    expected = approx([0.4, 0.6])

    def jit(function):
        return jax.jit(function, compiler_options=AS_BY_DEFAULT)

    assert numbers(jit(lambda d: rbi.max_tv(beta, advantage, d))(0.1)) == expected
    assert numbers(jit(lambda a: rbi.max_tv(beta, a, delta))(advantage)) == expected
    assert numbers(jit(lambda x: rbi.max_tv(beta, advantage, 0.1) * x)(1.0)) == expected


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's remark on vmap over scatter
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_torch_vmap_goes_through_every_rule(rule):
    beta, advantage = (torch.tensor(x) for x in random_states((4,), 5))
    assert numbers(torch.func.vmap(rule)(beta, advantage)) == approx(numbers(rule(beta, advantage)), abs=1e-12)


def test_rules_with_numpy_numbers_compile_too():
    beta, advantage = (torch.tensor(x) for x in random_states((4,), 5))
    rule = rbi.Reroute(np.float64(0.5), np.float32(1.5))
    compiled = torch.compile(lambda b, a: rule(b, a), fullgraph=True, backend="aot_eager")
    assert numbers(compiled(beta, advantage)) == approx(numbers(rbi.Reroute(0.5, 1.5)(beta, advantage)))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("values", [[-np.inf, 1.0, 2.0], [3e38, -3e38, 0.0], [0.0, 0.0, 0.0]], ids=str)
def test_gradients_are_finite_at_extremes(rule, values):
    for weights in ([0.5, 0.3, 0.2], [0.0, 0.6, 0.4], [1.0, 1e-30, 0.0]):
        beta = torch.tensor(weights, requires_grad=True)
        advantage = torch.tensor(values, requires_grad=True)
        pi = rule(beta, advantage)
        if pi.requires_grad:
            pi[1].backward()
            assert torch.isfinite(beta.grad).all()
            assert advantage.grad is None or torch.isfinite(advantage.grad).all()


@pytest.mark.parametrize(
    ("c_max", "slopes"),
    [(np.inf, [0.0, 0.0, 0.0]), (torch.tensor([np.inf, 2.0, np.inf]), [0.8, -1.2, 0.8])],
    ids=["number", "per action"],
)
def test_without_an_upper_bound_nothing_depends_on_a_beta_of_0(c_max, slopes):
    """Of the best action; the second takes all, or 2 beta_2 / sum beta, and the third the rest."""
    beta = torch.tensor([0.0, 0.4, 0.6], requires_grad=True)
    pi = rbi.max_reroute(beta, torch.tensor([3.0, 2.0, 1.0]), 0.0, c_max)
    (pi * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert beta.grad.tolist() == pytest.approx(slopes)


def test_a_trace_still_refuses_wrong_shapes():
    compiled = torch.compile(lambda b, a: rbi.max_tv(b, a, 0.1), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"3 actions|Observed exception"):  # PyTorch 2.6 hides the message
        compiled(torch.ones(2) / 2, torch.zeros(3))
    with pytest.raises(ValueError, match="3 actions"):
        jax.jit(lambda b, a: rbi.max_tv(b, a, 0.1))(jnp.ones(2) / 2, jnp.zeros(3))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_gradients_are_finite_through_every_rule(rule):
    beta, advantage = (torch.tensor(x, requires_grad=True) for x in random_states((9,), 5))
    pi = rule(beta, advantage)
    if pi.requires_grad:
        (pi * torch.linspace(-1, 1, 5, dtype=torch.float64)).sum().backward()
        assert torch.isfinite(beta.grad).all()
        assert advantage.grad is None or torch.isfinite(advantage.grad).all()
    gradient = jax.grad(lambda b, a: (rule(b, a) * jnp.linspace(-1, 1, 5)).sum(), argnums=(0, 1))
    for g in gradient(*(jnp.asarray(x.detach().numpy()) for x in (beta, advantage))):
        assert np.isfinite(g).all()


@pytest.mark.parametrize("rule", [*SMOOTH, rbi.Reroute(0.5, 1.5), rbi.TotalVariation(0.25)], ids=str)
def test_gradients_are_the_slopes_that_finite_differences_see(rule):
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(4, 5)), requires_grad=True)
    advantage = torch.tensor(rng.normal(size=(4, 5)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, a: rule(torch.softmax(z, -1), a), (logits, advantage), atol=1e-6)


def test_the_temperature_and_the_radius_have_gradients_too():
    beta, advantage = (torch.tensor(x) for x in random_states((4,), 5))
    beta = 0.9 * beta + 0.02
    parameter = torch.full((4, 1), 0.2, dtype=torch.float64, requires_grad=True)
    for rule in (
        lambda x: rbi.forward_kl(beta, advantage, x),
        lambda x: rbi.forward_kl(beta, advantage, radius=x),
        lambda x: rbi.backward_kl(beta, advantage, x),
    ):
        assert torch.autograd.gradcheck(rule, (parameter,), atol=1e-6)
