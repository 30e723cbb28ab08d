"""Policies at play: any number of them side by side, in worlds that are made once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from rbi import envs
from rbi.envs import VectorEnv, World
from rbi.evaluation.outcomes import EpisodeScores, Outcome
from rbi.evaluation.rollout import Protocol, black, fits, stacked
from rbi.policy import Policy

Array = np.ndarray[Any, Any]
MOST_PLAYERS = 64


def play(
    policy: Policy,
    protocol: Protocol,
    env: str,
    episodes: int,
    seed: int,
    make: Callable[[World, int], VectorEnv] = envs.make,
) -> Iterator[Outcome]:
    """Finished episodes of one policy, exactly as many as asked for, each counted in full."""
    at_least_one("episodes", episodes)
    with Arena(protocol, env, min(episodes, MOST_PLAYERS), make) as arena:
        for _, outcome in arena.play([policy], episodes, np.random.default_rng(seed)):
            yield outcome


class Arena:
    """Players of one world, who are made once, since games are slow to make, and start afresh for each evaluation."""

    def __init__(
        self, protocol: Protocol, env: str, players: int, make: Callable[[World, int], VectorEnv] = envs.make
    ) -> None:
        self.protocol, self.env, self.players = protocol, env, at_least_one("players", players)
        self.world = make(protocol.world(env), players)
        self.seeded = False

    def play(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, Outcome]]:
        """So many episodes of every policy: its number, and an episode of it that has finished.

        Every policy has equally many players, and every player a share of the episodes that is fixed before the first
        step, so long episodes count in full. More policies than players take turns. What an earlier call left
        unfinished is dropped: exhaust one before the next.
        """
        at_least_one("episodes", episodes)
        if not policies:
            raise ValueError("policies: none to play; give at least one")
        for policy in policies:
            fits(policy, self.world, self.env)
        for start in range(0, len(policies), self.players):
            for number, outcome in self.turn(policies[start : start + self.players], episodes, rng):
                yield start + number, outcome

    def turn(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, Outcome]]:
        """`play` of no more policies than there are players, from new games on."""
        each = self.players // len(policies)
        policy_of, place = np.divmod(np.arange(self.players), each)  # players to spare have a number beyond the last
        share = (episodes // each + (place < episodes % each)) * (policy_of < len(policies))
        asked = groups(policies, policy_of, share > 0)
        scores, states = EpisodeScores(self.players), black(policies[0].sight, self.players)
        seed = int(rng.integers(2**30))
        seen = self.world.reset(None if self.seeded else seed)
        self.seeded = World(self.env).atari  # a game is as slow to seed as to make: it goes on with its random numbers
        while asked:
            self.world.send(self.actions(asked, stacked(states, seen), rng))
            seen = self.world.recv()
            for outcome in scores.see(seen):
                if share[outcome.player]:
                    share[outcome.player] -= 1
                    yield int(policy_of[outcome.player]), outcome
                    if not share[outcome.player]:
                        asked = groups(policies, policy_of, share > 0)

    def actions(self, asked: "list[Group]", states: Array, rng: np.random.Generator) -> Array:
        """Actions `[N]`: draws of the policies; at random for those that explore, and for players who are done."""
        on_device = [group.probs(states) for group in asked]  # all are under way before one is waited for
        probs = np.concatenate([of_group.cpu().numpy() for of_group in on_device])
        players = np.concatenate([group.players for group in asked])
        draw = rng.random((self.players, 1))[players]
        drawn = np.minimum((draw >= probs.cumsum(1)).sum(1), probs.shape[1] - 1)
        follows = (rng.random(self.players) >= self.protocol.epsilon)[players]
        actions = rng.integers(self.world.actions, size=self.players)
        actions[players[follows]] = drawn[follows]
        return actions

    def close(self) -> None:
        """Give the games back."""
        self.world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Group(NamedTuple):
    """Policies that share what their networks say, and the players who wait for them."""

    players: Array
    """Their numbers, one policy's after another's."""
    parts: list[tuple[Policy, slice]]
    """The policies, and which of `players` are whose."""

    def probs(self, states: Array) -> torch.Tensor:
        """Probabilities `[players, A]`, on the networks' device; the networks look once at all states."""
        one = self.parts[0][0]
        beta, q = one.believed(one.tensor(states[self.players]))
        return torch.cat([policy.step(beta[part], q[part]) for policy, part in self.parts])


def groups(policies: Sequence[Policy], policy_of: Array, active: Array) -> list[Group]:
    """The active players, by who shares networks and temperature; `policy_of` says whose player each is, `[N]`."""
    alike: dict[tuple[int, float], list[int]] = {}
    for number in np.unique(policy_of[active]).tolist():
        policy = policies[number]
        alike.setdefault((id(policy.networks), policy.temperature), []).append(number)
    found = []
    for numbers in alike.values():
        players = [np.flatnonzero(active & (policy_of == number)) for number in numbers]
        ends = np.cumsum([len(own) for own in players]).tolist()
        parts = [
            (policies[number], slice(end - len(own), end))
            for number, own, end in zip(numbers, players, ends, strict=True)
        ]
        found.append(Group(np.concatenate(players), parts))
    return found


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} = {value}: must be at least 1")
    return value
