"""Invalid arguments raise one ValueError that names the argument, the index of the first bad value, and the value."""

import numpy as np
import pytest
import torch

import rbi
from tests.rules.cases import LIBRARIES, RULES, array

BETA = [[0.5, 0.5], [0.25, 0.75]]
ADVANTAGE = [[0.0, 1.0], [1.0, 0.0]]


def reroute(beta=BETA, advantage=ADVANTAGE, c_min=0.5, c_max=1.5, legal=None, library="numpy"):
    def make(x):
        return array(library, x) if isinstance(x, list) else x

    mask = None if legal is None else (torch.tensor(legal) if library == "torch" else array(library, legal, "bool"))
    return rbi.max_reroute(make(beta), make(advantage), make(c_min), make(c_max), legal=mask)


CASES = {
    "negative beta": (dict(beta=[[0.5, 0.5], [1.2, -0.2]]), r"^beta\[1, 1\] = -0.2"),
    "NaN beta": (dict(beta=[[0.5, 0.5], [np.nan, 1.0]]), r"^beta\[1, 0\] = nan"),
    "beta sums away from 1": (dict(beta=[[0.5, 0.5], [0.5, 0.4]]), r"^the sum of beta\[1\] = 0.9"),
    "NaN advantage": (dict(advantage=[[0.0, 1.0], [np.nan, 0.0]]), r"^advantage\[1, 0\] = nan"),
    "infinite advantage": (dict(advantage=[[0.0, np.inf], [0.0, 0.0]]), r"^advantage\[0, 1\] = inf"),
    "numbers of actions differ": (dict(advantage=[0.0, 1.0, 2.0]), r"^advantage has 3 actions .* beta has 2"),
    "batches do not broadcast": (dict(advantage=[[0.0, 1.0]] * 3), r"^shapes do not broadcast: beta \(2, 2\), adv"),
    "c_min below 0": (dict(c_min=-0.1), r"^c_min = -0.1"),
    "c_min above 1": (dict(c_min=1.1), r"^c_min = 1.1"),
    "c_min NaN": (dict(c_min=np.nan), r"^c_min = nan"),
    "c_max below 1": (dict(c_max=0.9), r"^c_max = 0.9"),
    "c_min above c_max": (dict(c_min=[[0.5], [0.9]], c_max=[[2.0], [0.8]]), r"^c_max\[1, 0\] = 0.8"),
    "negative c_min per action": (dict(c_min=[-0.5, 0.5]), r"^c_min\[0, 0\] = -0.5"),
    "lower bounds too high": (dict(c_min=[1.2, 1.2], c_max=3.0), r"^the sum of c_min \* beta\[0\] = 1.2"),
    "upper bounds too low": (dict(c_min=0.0, c_max=[0.9, 0.9]), r"^the sum of c_max \* beta\[0\] = 0.9"),
    "lower bounds a little too high": (dict(c_min=[1.00009], c_max=[2.0]), r"^the sum of c_min \* beta\[0\] = 1.00009"),
    "bounds of a wrong shape": (dict(c_max=[1.5, 1.5, 1.5]), r"^c_max has shape \(3,\): its last axis must be 1 or 2"),
    "no legal action": (dict(legal=[[True, True], [False, False]]), r"^the number of legal actions\[1\] = 0"),
    "beta has no legal mass": (
        dict(beta=[[1.0, 0.0], [0.5, 0.5]], legal=[[False, True]] * 2),
        r"^the sum of beta over legal actions\[0\] = 0",
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", CASES)
def test_errors_name_the_argument_the_index_and_the_value(library, case):
    arguments, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        reroute(**arguments, library=library)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_checks_that_beta_is_a_distribution(rule):
    with pytest.raises(ValueError, match=r"^the sum of beta = 1.1"):
        rule(np.array([0.6, 0.5]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"^advantage\[0\] = nan"):
        rule(np.array([0.5, 0.5]), np.array([np.nan, 1.0]))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_checks_that_its_arguments_are_arrays_of_one_library(rule):
    with pytest.raises(ValueError, match=r"^arrays of one library are needed: beta is NumPy, advantage is PyTorch$"):
        rule(np.array([0.5, 0.5]), torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"^beta is a list"):
        rule([0.5, 0.5], np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, a: rbi.max_tv(b, a, 1.5), r"^delta = 1.5"),
        (lambda b, a: rbi.max_tv(b, a, np.array([[0.1], [-1.0]])), r"^delta\[1, 0\] = -1"),
        (lambda b, a: rbi.max_tv(b, a, np.array([0.1, 0.2])), r"^delta has shape \(2,\): its last axis must be 1"),
        (
            lambda b, a: rbi.max_tv(b, a, np.ones((3, 1))),
            r"^shapes do not broadcast: beta \(2, 2\), .*, delta \(3, 1\)$",
        ),
        (lambda b, a: rbi.max_ppo(b, a, -0.5), r"^epsilon = -0.5"),
        (lambda b, a: rbi.forward_kl(b, a, 0.0), r"^temperature = 0"),
        (lambda b, a: rbi.forward_kl(b, a, radius=-1), r"^radius = -1"),
        (lambda b, a: rbi.forward_kl(b, a), r"^give exactly one of temperature or radius: got temperature=None"),
        (lambda b, a: rbi.forward_kl(b, a, 1.0, radius=1.0), r"^give exactly one of temperature or radius"),
        (lambda b, a: rbi.backward_kl(b, a, np.nan), r"^radius = nan"),
        (lambda b, a: rbi.bcq(b, a, np.array([0.1, 0.2])), r"^threshold has shape \(2,\): its last axis must be 1"),
        (lambda b, a: rbi.bcq(b, a, [0.1]), r"^threshold is a list"),
        (lambda b, a: rbi.mix(b, a, 0.1), r"^the sum of other\[0\] = 3"),
        (lambda b, _: rbi.mix(b, b, 1.1), r"^weight = 1.1"),
        (lambda b, _: rbi.floor(b, 0.6), r"^f \* legal actions\[0\] = 1.2"),
        (lambda b, a: rbi.greedy(b, a, legal=np.array([1, 1])), r"^legal has dtype int64"),
        (lambda b, a: rbi.greedy(b, a[:, :0]), r"^advantage has shape \(2, 0\): the last axis holds the actions"),
        (lambda b, _: rbi.greedy(b, np.array(1.0)), r"^advantage has shape \(\): the last axis holds the actions"),
    ],
)
def test_parameters_of_the_other_rules_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.array(BETA), np.array([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize(
    ("beta", "message"),
    [
        (np.array([0.5, 0.5], dtype=np.longdouble), r"^beta has dtype (float128|longdouble)"),
        (np.array([0.5, 0.5], dtype=complex), r"^beta has dtype complex128"),
        (np.array(["a", "b"]), r"^beta has dtype <U1"),
        (np.array([0.5, 0.5]).view(np.matrix), r"^beta is a matrix"),
        (np.ma.masked_array([0.5, 0.5], [True, False]), r"^beta is a MaskedArray"),
    ],
    ids=["longdouble", "complex", "text", "matrix", "masked"],
)
def test_dtypes_that_rules_cannot_compute_with_are_errors(beta, message):
    with pytest.raises(ValueError, match=message):
        rbi.max_tv(beta, np.array([0.0, 1.0]), 0.1)


def test_a_missing_parameter_is_an_error():
    with pytest.raises(ValueError, match=r"^delta is a NoneType"):
        rbi.max_tv(np.array([0.5, 0.5]), np.array([0.0, 1.0]), None)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_unchecked_rules_read_no_values(rule):
    """Values that a check would reject pass: nothing waits for the device."""
    pi = rule(torch.tensor([0.6, 0.5]), torch.tensor([0.0, 1.0]), check=False)
    assert pi.shape == (2,)


def test_rounded_distributions_are_accepted_to_their_dtypes_rounding():
    beta = torch.full((10_000,), 1e-4, dtype=torch.bfloat16)  # sums to 1.0014 after rounding
    assert rbi.max_reroute(beta, torch.zeros_like(beta), 0.5, 1.5).dtype == torch.bfloat16
