"""Rules as values: comparable, hashable, written as text and read back."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rbi
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
        (rbi.Behavior(), "behavior"),
    ],
)
def test_rules_are_written_shortly_and_read_back(rule, text):
    assert str(rule) == text
    assert rbi.parse_rule(text) == rule


@given(st.builds(rbi.Reroute, floats(0, 1), floats(1, 1e6)) | st.builds(rbi.ForwardKL, floats(1e-6, 1e6)))
def test_every_number_survives_the_round_trip(rule):
    assert rbi.parse_rule(str(rule)) == rule


def test_reading_is_kind_about_spaces_names_and_brackets():
    assert rbi.parse_rule(" reroute( c_min=0.5 , c_max = 1.5 ) ") == rbi.Reroute(0.5, 1.5)
    assert rbi.parse_rule("greedy()") == rbi.Greedy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rerout(0.5,1.5)", r"^rule 'rerout\(0.5,1.5\)' is not known: give one of reroute\(c_min,c_max\), tv\(delta\)"),
        ("reroute(0.5)", r"^rule 'reroute\(0.5\)' has other parameters: it is written reroute\(c_min,c_max\)$"),
        ("reroute(0.5,x)", r"^rule 'reroute\(0.5,x\)': could not convert string to float: 'x'$"),
        ("reroute(0.5,0.9)", r"^rule 'reroute\(0.5,0.9\)': c_max = 0.9: must be >= 1$"),
        ("forward_kl", r"^rule 'forward_kl': give exactly one of temperature or radius"),
        ("greedy(1)", r"^rule 'greedy\(1\)' has other parameters: it is written greedy$"),
        ("", r"^rule '' is not known"),
    ],
)
def test_unreadable_rules_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        rbi.parse_rule(text)


def test_rules_refuse_nonsense_when_made():
    with pytest.raises(ValueError, match=r"^c_min = 2: must be in \[0, 1\]$"):
        rbi.Reroute(2, 3)
    with pytest.raises(ValueError, match="must be a number"):
        rbi.TotalVariation(np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="must be a number"):
        rbi.BackwardKL("0.1")


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
        (rbi.Behavior(), beta),
    ]
    for rule, pi in pairs:
        assert (rule(beta, advantage) == pi).all(), rule
