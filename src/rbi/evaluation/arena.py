"""Policies at play: any number of them side by side, in worlds that are made once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from rbi import envs
from rbi.envs import VectorEnv, World
from rbi.evaluation.deciding import Group, OnDevice, groups
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
    """Players of one world, who are made once, since games are slow to make, and start afresh for each evaluation.

    They sit at `tables`: while the games of one move, decisions are made at the next. That pays where they are made on
    a GPU. Players who are left over when tables are filled evenly are not made.
    """

    def __init__(
        self,
        protocol: Protocol,
        env: str,
        players: int,
        make: Callable[[World, int], VectorEnv] = envs.make,
        *,
        tables: int = 1,
    ) -> None:
        self.protocol, self.env = protocol, env
        self.at_a_table = at_least_one("players", players) // at_least_one("tables", tables)
        self.worlds = [make(protocol.world(env), at_least_one("players", self.at_a_table)) for _ in range(tables)]
        self.seeded = False

    def play(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, Outcome]]:
        """So many episodes of every policy: its number, and an episode of it that has finished.

        Every policy has equally many players. No more episodes of it are begun than are asked for, and all that are
        begun are counted, so long ones are not left out for being late. More policies than players at a table take
        turns. What an earlier call left unfinished is dropped: exhaust one before the next.
        """
        at_least_one("episodes", episodes)
        if not policies:
            raise ValueError("policies: none to play; give at least one")
        for policy in policies:
            fits(policy, self.worlds[0], self.env)
        for start in range(0, len(policies), self.at_a_table):
            for number, outcome in self.turn(policies[start : start + self.at_a_table], episodes, rng):
                yield start + number, outcome

    def turn(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, Outcome]]:
        """`play` of no more policies than there are players at a table, from new games on."""
        each = self.at_a_table // len(policies)
        to_begin = np.full(len(policies), max(0, episodes - each * len(self.worlds)))
        tables = [
            Table(world, policies, episodes - each * number, self.protocol.epsilon, rng)
            for number, world in enumerate(self.worlds)
        ]
        for table, seed in zip(tables, rng.integers(2**30, size=len(tables)).tolist(), strict=True):
            table.begin(None if self.seeded else seed)
        self.seeded = World(self.env).atari  # a game is as slow to seed as to make: it goes on with its random numbers
        while going := [(number, table) for number, table in enumerate(tables) if table.active.any()]:
            for number, table in going:
                for policy, outcome in table.finished():
                    yield policy, replace(outcome, player=outcome.player + number * self.at_a_table)
                    if to_begin[policy]:
                        to_begin[policy] -= 1
                    else:
                        table.leave(outcome.player)
                table.move()

    def close(self) -> None:
        """Give the games back."""
        for world in self.worlds:
            world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Table:
    """Games that move together, and whose players they are: policy 0's first, then policy 1's, ..."""

    def __init__(
        self, world: VectorEnv, policies: Sequence[Policy], episodes: int, epsilon: float, rng: np.random.Generator
    ) -> None:
        """The first of each policy's players, as many as there are `episodes` to begin, are active."""
        self.world, self.policies, self.epsilon, self.rng = world, policies, epsilon, rng
        self.policy_of, place = np.divmod(np.arange(world.players), world.players // len(policies))
        self.active = (place < episodes) & (self.policy_of < len(policies))  # players to spare have a number beyond
        if self.active.any():
            self.deciding = OnDevice(self.groups(), world.players, policies[0].device)

    def groups(self) -> list[Group]:
        return groups(self.policies, self.policy_of, self.active)

    def begin(self, seed: int | None) -> None:
        """New games, and their first move; a move that was left unanswered is waited for."""
        if self.world.moving:
            self.world.recv()
        self.scores, self.seen = EpisodeScores(self.world.players), self.world.reset(seed)
        self.move()

    def move(self) -> None:
        """Send actions: draws of the policies; at random for those that explore, and for players who have left. Where
        all have, nobody moves."""
        if not self.active.any():
            return
        players = self.world.players
        chosen = self.deciding.actions(self.seen, self.rng.random((players, 1)))
        follows = self.active & (self.rng.random(players) >= self.epsilon)
        self.world.send(np.where(follows, chosen, self.rng.integers(self.world.actions, size=players)))

    def finished(self) -> Iterator[tuple[int, Outcome]]:
        """Wait for what the actions brought: the episodes that have ended, and whose they are."""
        self.seen = self.world.recv()
        for outcome in self.scores.see(self.seen):
            if self.active[outcome.player]:
                yield int(self.policy_of[outcome.player]), outcome

    def leave(self, player: int) -> None:
        """A player has no more episodes to play."""
        self.active[player] = False
        if self.active.any():
            self.deciding.only(self.groups())


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} = {value}: must be at least 1")
    return value
