"""Recorded populations in finite environments, whose policies can be evaluated exactly; states are one-hot vectors."""

import numpy as np

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.lab.mdp import MDP
from rbi.lab.spi.worlds import baselines, random_mdp

MOST_STEPS = 200
GOAL = 1.0


def world_and_population(seed, qualities=(0.7, 0.8, 0.9, 0.95)):
    """A random environment, and policies of the given qualities between random (0) and optimal (1)."""
    world = random_mdp(np.random.default_rng(seed))
    one = MDP(world.transitions[None], world.rewards[None], world.start, world.discount)
    policies = [baselines(one, q, [np.random.default_rng([seed, i])])[0] for i, q in enumerate(qualities)]
    return world, policies


def recorded(world, policies, episodes, rng):
    """Episodes of the policies in turn. Entering the goal, which gets all missing probability, earns 1 and ends."""
    states, actions = policies[0].shape
    found = []
    for number in range(episodes):
        pi, state = policies[number % len(policies)], int(rng.choice(states, p=world.start))
        visited, done, over = [state], [], False
        while not over and len(done) < MOST_STEPS:
            action = int(rng.choice(actions, p=pi[state]))
            ahead = np.append(world.transitions[state, action], 0.0)
            ahead[-1] = max(0.0, 1 - ahead.sum())
            state = int(rng.choice(states + 1, p=ahead / ahead.sum()))
            done.append(action)
            over = state == states
            if not over:
                visited.append(state)
        last = np.arange(len(done)) == len(done) - 1
        found.append(
            Episode(
                np.eye(states, dtype=np.float32)[visited],
                np.array(done),
                GOAL * (last & over),
                last & over,
                last & (not over),
                player=str(number % len(policies)),
            )
        )
    return Dataset.from_episodes(found, DatasetSpec((states,), actions))
