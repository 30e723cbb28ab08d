"""Players on a device do what their policies would do with stacks made by hand."""

import numpy as np
import pytest
import torch

import rbi
from rbi.envs.types import TimeStep
from rbi.evaluation.rollouts import BatchedPolicies, group_policies
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec, roll_stacks, zero_stacks
from rbi.policy import Policy

SIGHT = ObservationSpec((36, 36), 4, 5)
RULES = ("behavior", "reroute(0.5,1.5)", "tv(0.25)", "ppo(0.5)", "forward_kl(radius=0.125)", "greedy", "bcq(0.3)")


def policies(device):
    nets = [make_networks(SIGHT, offline_network(16, 0.0, 0.0), seed).to(device) for seed in range(2)]
    return [Policy(net, rbi.parse_rule(rule), temperature=0.8) for net in nets for rule in RULES]


def steps(players, rng, count=6):
    """What is seen, with new episodes now and then, and draws."""
    none = np.zeros(players, np.float32)
    for number in range(count):
        first = np.ones(players, bool) if number == 0 else rng.random(players) < 0.2
        frame = rng.integers(0, 256, (players, *SIGHT.shape), dtype=np.uint8)
        yield TimeStep(frame, first, none, none.astype(np.uint8)), rng.random((players, 1))


def same_as_by_hand(device):
    asked = policies(device)
    players = 3 * len(asked)
    policy_of = np.arange(players) // 3
    deciding = BatchedPolicies(group_policies(asked, policy_of, np.ones(players, bool)), players, torch.device(device))
    states, differ = zero_stacks(SIGHT, players), 0
    for seen, draw in steps(players, np.random.default_rng(0)):
        chosen = deciding.act(seen, draw)
        states = roll_stacks(states, seen.obs, seen.is_first)
        for number, policy in enumerate(asked):
            probs = policy.predict_proba(states[policy_of == number])
            by_hand = np.minimum((draw[policy_of == number] >= probs.cumsum(1)).sum(1), SIGHT.num_actions - 1)
            differ += int((chosen[policy_of == number] != by_hand).sum())
    return differ


def test_actions_are_those_of_each_policy_in_stacks_made_by_hand():
    assert same_as_by_hand("cpu") <= 1  # a draw on the edge between two actions may be rounded to either side


def test_players_who_are_done_are_not_asked_for():
    asked = policies("cpu")[:2]
    policy_of = np.array([0, 0, 1, 1])
    deciding = BatchedPolicies(group_policies(asked, policy_of, np.ones(4, bool)), 4, torch.device("cpu"))
    (seen, draw), (again, later) = steps(4, np.random.default_rng(1), 2)
    before = deciding.act(seen, draw).copy()
    deciding.restrict(group_policies(asked, policy_of, np.array([True, True, False, False])))
    after = deciding.act(again, later)
    assert (after[2:] == before[2:]).all()
    assert [group.env_indices.tolist() for group, _ in deciding.groups] == [[0, 1]]


@pytest.mark.gpu
def test_the_same_as_one_graph_on_a_gpu():
    assert same_as_by_hand("cuda") <= 2
