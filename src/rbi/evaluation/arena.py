"""Policies at play: any number of them side by side, in worlds that are made once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np

from rbi import envs
from rbi.envs import Seen, VectorEnv, World
from rbi.evaluation.deciding import Array, OnDevice, groups
from rbi.evaluation.outcomes import EpisodeScores, Outcome
from rbi.evaluation.rollout import Protocol, fits
from rbi.policy import Policy

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

        Every policy has equally many players. No more episodes of it are begun than are asked for, and all that are
        begun are counted, so long ones are not left out for being late. More policies than players take turns. What an
        earlier call left unfinished is dropped: exhaust one before the next.
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
        active = (place < episodes) & (policy_of < len(policies))
        to_begin = np.full(len(policies), episodes - min(each, episodes))
        deciding = OnDevice(groups(policies, policy_of, active), self.players, policies[0].device)
        scores, seed = EpisodeScores(self.players), int(rng.integers(2**30))
        seen = self.world.reset(None if self.seeded else seed)
        self.seeded = World(self.env).atari  # a game is as slow to seed as to make: it goes on with its random numbers
        while active.any():
            self.world.send(self.actions(deciding, seen, active, rng))
            seen = self.world.recv()
            for outcome in [outcome for outcome in scores.see(seen) if active[outcome.player]]:
                number = int(policy_of[outcome.player])
                yield number, outcome
                active[outcome.player] = to_begin[number] > 0
                to_begin[number] -= active[outcome.player]
                if not active[outcome.player] and active.any():
                    deciding.only(groups(policies, policy_of, active))

    def actions(self, deciding: OnDevice, seen: Seen, active: Array, rng: np.random.Generator) -> Array:
        """Actions `[N]`: draws of the policies; at random for those that explore, and for players who are done."""
        chosen = deciding.actions(seen, rng.random((self.players, 1)))
        follows = active & (rng.random(self.players) >= self.protocol.epsilon)
        return np.where(follows, chosen, rng.integers(self.world.actions, size=self.players))

    def close(self) -> None:
        """Give the games back."""
        self.world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} = {value}: must be at least 1")
    return value
