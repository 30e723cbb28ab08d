"""Edge cases of the rules' contract."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from pytest import approx

import rbi
from rbi import measures
from rbi.rules.arrays import fill_by_columns, fill_by_pairs, fill_by_sorting, namespace
from tests.generators import states
from tests.rules.cases import DTYPES, LIBRARIES, LIBRARIES_AND_RULES, RULES, array, numbers, random_states, rounding

EXTREMES = [
    [1e30, -1e30, 0.0, 1.0],
    [1e30, 1e30, 1e30, 1e30],
    [0.0, 0.0, 0.0, 0.0],
    [-np.inf, 0.0, 1.0, -np.inf],
    [-np.inf, -np.inf, -np.inf, -np.inf],
    [1e-30, 0.0, -1e-30, 1e30],
    [3e38, -3e38, 0.0, 0.0],
]


@pytest.mark.parametrize(("library", "rule"), LIBRARIES_AND_RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_as_it_went_in_and_sums_to_one(library, dtype, rule):
    beta, advantage = random_states((3, 2), 18)
    pi = rule(array(library, beta, dtype), array(library, advantage, dtype))
    assert type(pi) is type(array(library, beta, dtype))
    assert dtype in str(pi.dtype)
    assert pi.shape == (3, 2, 18)
    assert numbers(pi).min() >= 0
    assert numbers(pi).sum(-1) == approx(np.ones((3, 2)), abs=2 * rounding(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_narrow_dtypes_give_the_wide_answer_rounded(dtype, rule):
    """The inputs are first rounded to the dtype; from there on only its rounding may separate the two answers."""
    beta, advantage = (array("torch", x, dtype) for x in random_states((50,), 6, seed=1))
    wide = rule(beta.double() / beta.double().sum(-1, keepdim=True), advantage.double())
    assert numbers(rule(beta, advantage)) == approx(numbers(wide), abs=max(rounding(dtype), 2e-5))


def test_numpy_computes_in_float64_whatever_comes_in():
    """A running sum of float32 numbers drifts over many actions."""
    beta, advantage = (x.astype(np.float32) for x in random_states((), 20_000))
    found = rbi.max_reroute(beta, advantage, 0.5, 1.5)
    wide = rbi.max_reroute(beta.astype(np.float64), advantage.astype(np.float64), 0.5, 1.5)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wide.astype(np.float32))


@pytest.mark.parametrize(("library", "rule"), LIBRARIES_AND_RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_advantages_still_give_probabilities(library, dtype, rule):
    weights = [[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0, 0.5, 0.5, 0], [0.001, 0.001, 0.001, 0.997]]
    beta = np.repeat(np.array(weights)[None], len(EXTREMES), axis=0)
    advantage = np.repeat(np.array(EXTREMES)[:, None], len(weights), axis=1)
    pi = numbers(rule(array(library, beta, dtype), array(library, advantage, dtype)))
    assert np.isfinite(pi).all()
    assert pi.min() >= 0
    assert pi.sum(-1) == approx(np.ones((len(EXTREMES), 4)), abs=8 * rounding(dtype))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("actions", [1, 2, 3, 33, 257, 10_000])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_any_number_of_actions(rule, actions, library):
    beta, advantage = random_states((2,), actions)
    pi = numbers(rule(array(library, beta, "float32"), array(library, advantage, "float32")))
    assert pi.sum(-1) == approx(np.ones(2), abs=3e-6)
    assert pi == approx(numbers(rule(beta, advantage)), abs=2e-6)


@pytest.mark.parametrize(("library", "rule"), LIBRARIES_AND_RULES)
def test_an_empty_batch_comes_back_empty(library, rule):
    pi = rule(array(library, np.ones((0, 4))), array(library, np.ones((0, 4))))
    assert pi.shape == (0, 4)


@pytest.mark.parametrize(("library", "rule"), LIBRARIES_AND_RULES)
def test_beta_and_advantage_broadcast_against_each_other(library, rule):
    beta, advantage = random_states((5,), 4)
    shared_beta = rule(array(library, beta[0]), array(library, advantage))
    shared_advantage = rule(array(library, beta), array(library, advantage[0]))
    assert shared_beta.shape == shared_advantage.shape == (5, 4)
    assert numbers(shared_beta)[3] == approx(rule(beta[0], advantage[3]), abs=1e-12)
    assert numbers(shared_advantage)[3] == approx(rule(beta[3], advantage[0]), abs=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_inputs_stay_as_they_were(rule):
    beta, advantage = random_states((5,), 4)
    kept = beta.copy(), advantage.copy()
    rule(beta, advantage)
    assert (beta == kept[0]).all()
    assert (advantage == kept[1]).all()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rule", [rbi.Reroute(0.5, 1.5), rbi.TotalVariation(0.25), rbi.PPO(0.5), rbi.Greedy()], ids=str)
@pytest.mark.parametrize("actions", [5, 70])
def test_of_equal_advantages_the_lower_index_ranks_first(library, rule, actions):
    beta, advantage = random_states((20,), actions, seed=3)
    advantage = np.round(advantage)
    broken = advantage - 1e-9 * np.arange(actions)  # the same order, without ties
    pi = numbers(rule(array(library, beta), array(library, advantage)))
    assert pi == approx(rule(beta, broken), abs=1e-9)


@given(states(batch=(3,), extremes=True))
def test_pairs_columns_and_sorting_fill_alike(state):
    beta, advantage = state
    for x in (np.asarray, torch.tensor):
        b, a = x(beta), x(advantage)
        xp = namespace(b)
        by_sorting = approx(numbers(fill_by_sorting(xp, 0.6, b, a)), abs=1e-12)
        assert numbers(fill_by_pairs(xp, 0.6, b, a)) == by_sorting
        assert numbers(fill_by_columns(xp, 0.6, b, a)) == by_sorting


@given(states(extremes=True))
def test_actions_that_beta_never_takes_stay_at_zero_under_reroute_ppo_and_forward_kl(state):
    beta, advantage = state
    for rule in (rbi.Reroute(0, 3), rbi.Reroute(0, np.inf), rbi.PPO(1), rbi.ForwardKL(1), rbi.ForwardKL(radius=1)):
        assert (rule(beta, advantage)[beta == 0] == 0).all(), rule


def test_actions_that_beta_never_takes_may_gain_under_tv_greedy_and_backward_kl():
    beta, advantage = np.array([0.6, 0.4, 0.0]), np.array([0.0, 1.0, 5.0])
    for rule in (rbi.TotalVariation(0.25), rbi.Greedy(), rbi.BackwardKL(0.1)):
        assert rule(beta, advantage)[2] > 0.05, rule


def test_backward_kl_leaves_an_unsupported_action_alone_when_it_ranks_below_the_multiplier():
    beta, advantage = np.array([0.5, 0.5, 0.0]), np.array([0.0, 1.0, 1.0001])
    supported = rbi.backward_kl(beta[:2], advantage[:2], 0.1)
    assert rbi.backward_kl(beta, advantage, 0.1) == approx([*supported, 0])


def test_backward_kl_gives_the_rest_to_the_best_unsupported_action_of_lowest_index():
    beta, advantage = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 1.0, 9.0, 9.0])
    pi = rbi.backward_kl(beta, advantage, 0.1)
    assert measures.kl(beta, pi) == approx(0.1)
    assert pi[2] > 0.08
    assert pi[3] == 0


def test_ppo_without_a_positive_advantage_returns_beta():
    beta = np.array([0.3, 0.3, 0.4, 0.0])
    assert (rbi.max_ppo(beta, np.array([0.1, 0.1, 0.1, 0.1]), 0.5) == beta).all()
    assert (rbi.max_ppo(beta, np.array([0.1, 0.1, 0.1, 9.0]), 0.5) == beta).all()  # the positive one is never taken
    assert (rbi.max_ppo(beta, np.full(4, -np.inf), 0.5) == beta).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_0_up_to_the_rounding_of_beta_is_no_positive_advantage(library, dtype):
    """One action has exactly the value of beta, whose probabilities are then rounded."""
    for beta, advantage in (
        ([0, 1, 3, 1], [-2, -2, -3, 1]),
        ([4, 2, 1, 3], [-1, 1, -2, -2]),
        ([1, 1, 2, 3], [0, 1, 2, 3]),
    ):
        beta = np.array(beta) / sum(beta)
        wide = rbi.max_ppo(beta, np.array(advantage, float), 0.5)
        pi = rbi.max_ppo(array(library, beta, dtype), array(library, advantage, dtype), 0.5)
        assert numbers(pi) == approx(wide, abs=4 * rounding(dtype))


def test_ppo_gives_what_is_left_over_to_the_best_action_that_beta_takes():
    beta, advantage = np.array([0.8, 0.2, 0.0]), np.array([0.0, 1.0, 2.0])
    assert rbi.max_ppo(beta, advantage, 0.5) == approx([0, 1, 0])


def test_minus_infinity_ranks_last_but_does_not_override_c_min():
    beta, advantage = np.array([0.5, 0.3, 0.2]), np.array([-np.inf, 0.0, 1.0])
    assert rbi.max_reroute(beta, advantage, 0.5, 3) == approx([0.25, 0.15, 0.6])
    assert rbi.max_tv(beta, advantage, 0.25) == approx([0.25, 0.3, 0.45])
    assert rbi.forward_kl(beta, advantage, 1.0)[0] == 0
    # A radius is first spent on leaving the action at -inf, then on the finite ones.
    wide = rbi.forward_kl(beta, advantage, radius=1.0)
    assert wide[0] == approx(0, abs=1e-9)
    assert wide[1:] == approx(rbi.forward_kl(beta[1:] / 0.5, advantage[1:], radius=1.0 + np.log(0.5)), abs=1e-5)


@pytest.mark.parametrize(("library", "rule"), LIBRARIES_AND_RULES)
def test_legal_restricts_a_rule_to_beta_renormalised_over_legal_actions(library, rule):
    beta, advantage = random_states((30,), 5, seed=4)
    legal = np.random.default_rng(5).random((30, 5)) < 0.6
    legal[:, 2] = beta[:, 2] > 0
    keep = np.flatnonzero((beta * legal).sum(-1) > 0)
    beta, advantage, legal = beta[keep], advantage[keep], legal[keep]
    mask = torch.tensor(legal) if library == "torch" else legal if library == "numpy" else array("jax", legal, "bool")
    pi = numbers(rule(array(library, beta), array(library, advantage), legal=mask))
    assert (pi[~legal] == 0).all()
    for row, b, a, may in zip(pi, beta, advantage, legal, strict=True):
        assert row[may] == approx(rule(b[may] / b[may].sum(), a[may]), abs=1e-7)


@pytest.mark.parametrize(
    ("rule", "beta", "advantage", "illegal", "expected"),
    [
        (rbi.Greedy(), [0.5, 0.5, 0.0], [-np.inf, -np.inf, -np.inf], 0, [0, 1, 0]),
        (rbi.Greedy(), [0.2, 0.2, 0.2, 0.2, 0.2], [1.0, 1.0, 0.0, 0.0, 0.0], 0, [0, 1, 0, 0, 0]),
        (rbi.BCQ(0.0), [0.6, 0.4, 0.0], [0.0, 1.0, 2.0], 2, [0, 1, 0]),
        (rbi.BackwardKL(0.1), [1.0, 0.0, 0.0], [0.0, 1.0, 2.0], 2, [np.exp(-0.1), 1 - np.exp(-0.1), 0]),
    ],
    ids=["tie at -inf", "tie", "bcq", "backward_kl"],
)
def test_an_illegal_action_that_ranks_first_or_ties_gets_nothing(rule, beta, advantage, illegal, expected):
    legal = np.arange(len(beta)) != illegal
    assert rule(np.array(beta), np.array(advantage), legal=legal) == approx(expected, abs=1e-12)


def test_bcq_allows_an_action_at_its_threshold_up_to_rounding():
    """The second action has 0.3 times the probability of the first one, but for the rounding of the normalisation."""
    first = np.linspace(0.5, 0.7, 300)[:, None]
    beta = np.concatenate([first, 0.3 * first, 1 - 1.3 * first], 1)
    assert (rbi.bcq(beta, np.array([0.0, 1.0, -1.0]), 0.3)[:, 1] == 1).all()


def test_bounds_may_be_numbers_or_per_state_or_per_action():
    beta, advantage = random_states((3,), 4)
    one = rbi.max_reroute(beta, advantage, 0.5, 1.5)
    per_state = rbi.max_reroute(beta, advantage, np.full((3, 1), 0.5), np.full((3, 1), 1.5))
    per_action = rbi.max_reroute(beta, advantage, np.full(4, 0.5), np.full((3, 4), 1.5))
    assert one == approx(per_state, abs=1e-15)
    assert one == approx(per_action, abs=1e-15)


def test_infinite_bounds_may_be_arrays():
    beta, advantage = np.array([0.6, 0.4, 0.0]), np.array([0.0, 1.0, 2.0])
    for c_max in (np.inf, np.full(3, np.inf)):
        assert rbi.max_reroute(beta, advantage, 0.0, c_max).tolist() == [0, 1, 0]


def test_parameters_of_all_rules_may_differ_per_state():
    beta, advantage = random_states((2,), 4)
    column = np.array([[0.1], [0.3]])
    for rule in (rbi.max_tv, rbi.max_ppo, rbi.forward_kl, rbi.backward_kl, rbi.bcq):
        pi = rule(beta, advantage, column)
        assert pi[1] == approx(rule(beta[1], advantage[1], 0.3), abs=1e-12), rule
    pi = rbi.forward_kl(beta, advantage, radius=column)
    assert pi[1] == approx(rbi.forward_kl(beta[1], advantage[1], radius=0.3), abs=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_parameters_may_enlarge_the_batch(library):
    beta, advantage = (array(library, x) for x in ([0.5, 0.3, 0.2], [0.0, 1.0, 2.0]))
    column = array(library, np.linspace(0.1, 0.3, 5)[:, None])
    rules = (rbi.max_tv, rbi.max_ppo, rbi.forward_kl, rbi.backward_kl, rbi.bcq)
    for rule in (rbi.max_tv, rbi.forward_kl) if library == "jax" else rules:  # as in JAX_RULES
        assert rule(beta, advantage, column).shape == (5, 3), rule
    assert rbi.max_reroute(beta, advantage, column, 1 + column).shape == (5, 3)


@pytest.mark.parametrize("rule", [rbi.ForwardKL(radius=0.5), rbi.BackwardKL(0.5)], ids=str)
def test_radii_are_met_in_float32_for_rare_actions_and_masks_by_large_numbers(rule):
    for beta, advantage in (
        ([1, 1e-30], [0, 1]),
        ([1, 1e-30, 1e-3], [0, 1, 0.5]),
        ([0.1, 0.8, 0.1], [torch.finfo(torch.float32).min, 0, 1]),
        ([0.1, 0.8, 0.1], [-1e30, 0, 1]),
    ):
        b, a = torch.tensor(beta) / sum(beta), torch.tensor(advantage, dtype=torch.float32)
        wide = rule(b.double() / b.double().sum(), a.double())
        assert numbers(rule(b, a)) == approx(numbers(wide), abs=1e-6)
        distance = measures.kl(wide, b.double()) if isinstance(rule, rbi.ForwardKL) else measures.kl(b.double(), wide)
        assert float(distance) == approx(0.5, abs=1e-5)


@pytest.mark.parametrize("radius", [0.1, 10.0, np.inf])
def test_backward_kl_may_take_all_of_a_rare_action_without_float64(radius):
    """As JAX computes by default: the multiplier that meets the radius is beyond float32."""
    for beta, advantage in (([0.999, 0.001], [0, -np.inf]), ([0.9, 0.1, 0], [0, -np.inf, -1])):
        wide = rbi.backward_kl(np.array(beta), np.array(advantage), radius)
        with jax.enable_x64(False):
            pi = rbi.backward_kl(jnp.asarray(beta), jnp.asarray(advantage), radius)
        assert numbers(pi) == approx(wide, abs=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_temperatures_near_zero_are_greedy_on_the_support(library):
    for temperature in (1e-46, 1e-40, 1e-30):
        pi = rbi.forward_kl(array(library, [0.5, 0.5], "float32"), array(library, [0, 1], "float32"), temperature)
        assert numbers(pi) == approx([0, 1])


def test_large_integers_keep_their_order():
    assert rbi.greedy(torch.tensor([0.5, 0.5]), torch.tensor([2**24, 2**24 + 1])).tolist() == [0, 1]


def test_bounds_of_any_size_are_numbers():
    beta, advantage = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    assert rbi.max_reroute(beta, advantage, 0, 10**400) == approx([0, 1])
    with pytest.raises(ValueError, match="is too large"):
        rbi.Reroute(0, 10**400)


def test_numbers_of_float32_are_parameters_like_others():
    beta, advantage = random_states((3,), 4)
    for rule in (rbi.max_tv, rbi.max_ppo, rbi.forward_kl, rbi.backward_kl, rbi.bcq):
        np.testing.assert_array_equal(rule(beta, advantage, np.float32(0.25)), rule(beta, advantage, 0.25))


@pytest.mark.parametrize(("library", "rule"), LIBRARIES_AND_RULES)
def test_a_one_hot_beta_of_integers_is_a_distribution_too(library, rule):
    pi = rule(array(library, [0, 1], "int64"), array(library, [1, 0], "int64"))
    assert "float" in str(pi.dtype)
    assert numbers(pi) == approx(rule(np.array([0.0, 1.0]), np.array([1.0, 0.0])), abs=1e-6)


def test_mix_and_floor():
    pi, other = np.array([[0.8, 0.2, 0.0]]), np.array([0.0, 0.5, 0.5])
    assert rbi.mix(pi, other, 0.1) == approx(np.array([[0.72, 0.23, 0.05]]))
    assert rbi.floor(pi, 0.1) == approx(np.array([[0.66, 0.24, 0.1]]))
    legal = np.array([True, True, False])
    assert rbi.floor(pi, 0.1, legal=legal) == approx(np.array([[0.74, 0.26, 0.0]]))
    assert rbi.floor(np.array([0.5, 0.0, 0.5]), 0.4, legal=np.array([True, False, True])) == approx([0.5, 0, 0.5])
    narrow = rbi.floor(torch.tensor([1.0, 0.0], dtype=torch.bfloat16), 0.25)
    assert narrow.dtype == torch.bfloat16
    assert narrow.tolist() == [0.75, 0.25]


def test_rules_are_silent_about_infinities_they_expect():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rule in RULES:
            rule(np.array([0.5, 0.5, 0.0]), np.array([-np.inf, 1e300, -1e300]))
