"""Rules as values: comparable, hashable, written as text and parsed back, registered by name."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rbi
from rbi.rules import types
from tests.generators import floats
from tests.rules.cases import RULES


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (rbi.Reroute(0.5, 1.5), "reroute(0.5,1.5)"),
        (rbi.Reroute(0, float("inf")), "reroute(0,inf)"),
        (rbi.TotalVariation(0.25), "tv(0.25)"),
        (rbi.PPO(0.5), "ppo(0.5)"),
        (rbi.ForwardKL(1), "forward_kl(1)"),
        (rbi.ForwardKL(radius=0.1), "forward_kl(radius=0.1)"),
        (rbi.BackwardKL(1e-3), "backward_kl(0.001)"),
        (rbi.Greedy(), "greedy"),
        (rbi.BCQ(0.3), "bcq(0.3)"),
        (rbi.Behavior(), "behavior"),
    ],
)
def test_rules_are_written_as_text_and_parsed_back(rule, text):
    assert str(rule) == text
    assert rbi.parse_rule(text) == rule


@given(st.builds(rbi.Reroute, floats(0, 1), floats(1, 1e6)) | st.builds(rbi.ForwardKL, floats(1e-6, 1e6)))
def test_every_number_survives_the_round_trip(rule):
    assert rbi.parse_rule(str(rule)) == rule


def test_parsing_allows_spaces_parameter_names_and_empty_brackets():
    assert rbi.parse_rule(" reroute( c_min=0.5 , c_max = 1.5 ) ") == rbi.Reroute(0.5, 1.5)
    assert rbi.parse_rule("greedy()") == rbi.Greedy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rerout(0.5,1.5)", r"is not known: give one of reroute\(c_min,c_max\), tv\(delta\)"),
        ("reroute(0.5)", r"reroute\(c_min,c_max\)"),
        ("reroute(0.5,x)", "'x'"),
        ("reroute(0.5,0.9)", "c_max = 0.9"),
        ("forward_kl", "exactly one of temperature or radius"),
        ("greedy(1)", "wrong parameters"),
        ("", "is not known"),
        (rbi.max_reroute, r"^rule '<function max_reroute at .*>' is not known: give one of reroute\("),
        (rbi.Reroute, r"^rule \"<class '.*'>\" is not known: give one of reroute\("),
    ],
)
def test_text_that_is_not_a_rule_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        rbi.parse_rule(text)


def test_invalid_parameters_are_errors():
    with pytest.raises(ValueError, match=r"^c_min = 2: must be in \[0, 1\]$"):
        rbi.Reroute(2, 3)
    with pytest.raises(ValueError, match="must be a number"):
        rbi.TotalVariation(np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="must be a number"):
        rbi.BackwardKL("0.1")
    with pytest.raises(ValueError, match=r"^c_min = None: must be a number$"):
        rbi.Reroute(None, 1.5)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_are_frozen_hashable_values(rule):
    assert rule == pickle.loads(pickle.dumps(rule))
    assert len({rule, dataclasses.replace(rule)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.c_min = 0.3


def test_a_rule_is_the_function_with_its_parameters():
    beta, advantage = np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 2.0])
    pairs = [
        (rbi.Reroute(0.5, 1.5), rbi.max_reroute(beta, advantage, 0.5, 1.5)),
        (rbi.TotalVariation(0.1), rbi.max_tv(beta, advantage, 0.1)),
        (rbi.PPO(0.2), rbi.max_ppo(beta, advantage, 0.2)),
        (rbi.ForwardKL(2), rbi.forward_kl(beta, advantage, 2)),
        (rbi.ForwardKL(radius=0.2), rbi.forward_kl(beta, advantage, radius=0.2)),
        (rbi.BackwardKL(0.2), rbi.backward_kl(beta, advantage, 0.2)),
        (rbi.Greedy(), rbi.greedy(beta, advantage)),
        (rbi.BCQ(0.5), rbi.bcq(beta, advantage, 0.5)),
        (rbi.Behavior(), beta),
    ]
    for rule, pi in pairs:
        assert (rule(beta, advantage) == pi).all(), rule


@dataclasses.dataclass(frozen=True)
class Softened(rbi.Rule):
    """A rule of a user's own."""

    weight: float

    def __call__(self, beta, advantage, *, legal=None, check=True):
        return rbi.mix(beta, rbi.greedy(beta, advantage, legal=legal, check=check), self.weight, check=check)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(types, "_registered", dict(types._registered))
    monkeypatch.setattr(Softened, "name", "", raising=False)
    return rbi.register_rule("softened", Softened)


def test_a_registered_rule_is_parsed_by_its_name(registered):
    assert str(registered(0.25)) == "softened(0.25)"
    assert rbi.parse_rule("softened(weight=0.25)") == Softened(0.25)
    assert Softened(0.5)(np.array([0.5, 0.5]), np.array([0.0, 1.0])).tolist() == [0.25, 0.75]


@pytest.mark.usefixtures("registered")
def test_a_class_may_be_registered_again_as_notebooks_do():
    again = dataclasses.dataclass(frozen=True)(type("Softened", (Softened,), {"__qualname__": Softened.__qualname__}))
    rbi.register_rule("softened", again)
    assert type(rbi.parse_rule("softened(0.5)")) is again


@pytest.mark.usefixtures("registered")
def test_names_that_are_taken_or_cannot_be_parsed_are_errors():
    other = dataclasses.dataclass(frozen=True)(type("Other", (Softened,), {}))
    for name, rule in (("reroute", Softened), ("softened", other), ("my rule", Softened), ("mine", len)):
        with pytest.raises(ValueError, match=name):
            rbi.register_rule(name, rule)
