"""Crowds in worlds whose policies can be scored exactly: finite, with states shown as vectors of zeros and a one."""

import numpy as np

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.lab.mdp import MDP
from rbi.lab.spi.worlds import baselines, random_mdp

MOST_STEPS = 200
GOAL = 1.0


def world_and_population(seed, qualities=(0.7, 0.8, 0.9, 0.95)):
    """A random world, and players who stand so far on the way from random to optimal."""
    world = random_mdp(np.random.default_rng(seed))
    one = MDP(world.transitions[None], world.rewards[None], world.start, world.discount)
    players = [baselines(one, q, [np.random.default_rng([seed, i])])[0] for i, q in enumerate(qualities)]
    return world, players


def recorded(world, players, episodes, rng):
    """Dataset of players in turn. Entering the goal, where all other probability goes, earns 1 and ends."""
    states, actions = players[0].shape
    found = []
    for number in range(episodes):
        pi, state = players[number % len(players)], int(rng.choice(states, p=world.start))
        seen, done, over = [state], [], False
        while not over and len(done) < MOST_STEPS:
            action = int(rng.choice(actions, p=pi[state]))
            ahead = np.append(world.transitions[state, action], 0.0)
            ahead[-1] = max(0.0, 1 - ahead.sum())
            state = int(rng.choice(states + 1, p=ahead / ahead.sum()))
            done.append(action)
            over = state == states
            if not over:
                seen.append(state)
        last = np.arange(len(done)) == len(done) - 1
        found.append(
            Episode(
                np.eye(states, dtype=np.float32)[seen],
                np.array(done),
                GOAL * (last & over),
                last & over,
                last & (not over),
                player=str(number % len(players)),
            )
        )
    return Dataset.from_episodes(found, DatasetSpec((states,), actions))
