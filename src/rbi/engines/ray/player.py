"""An actor worker: the players of one slot, in two groups that take turns, who play a block when they are asked."""

import os
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch

from rbi import envs
from rbi.engines.local import CAREFUL, MOST_SEED, drawn_for, seeds_of
from rbi.evaluation.outcomes import EpisodeScores
from rbi.nets import computing_dtype
from rbi.online.actor import Actor, ladders
from rbi.online.plan import GROUPS, Plan
from rbi.replay import Moment
from rbi.returns import exploration_ladder
from rbi.sight import Sight

Array = np.ndarray[Any, Any]


class Block(NamedTuple):
    """Moments of a worker's groups in turn, `[T, N, ...]` each: `replay.Moment` over time, and every frame once."""

    frame: Array
    first: Array
    reward: Array
    end: Array
    action: Array
    pi: Array
    td_error: Array


class Told(NamedTuple):
    """What the driver needs to know of a block; the block itself goes to a shard."""

    states: int
    bytes: int
    version: int
    """Updates behind the weights that the players had last."""
    episodes: list[tuple[int, float, bool]]
    """Player, score and whether it explores little, of every episode that ended."""
    sums: list[list[float]]
    """What each group's actor counted (`Actor.sums`)."""


def shared(array: Array) -> torch.Tensor:
    """A tensor on the memory of an array out of the object store, which nobody may write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


class Role:
    """What every process of a run says of itself."""

    def hello(self) -> tuple[int, str]:
        """Process and node."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()


class Player(Role):
    """Worlds and actors of one slot. A restarted worker knows nothing: the driver tells it where to begin."""

    def __init__(self, plan: Plan, sight: Sight, seed: int, slot: int, slots: int, threads: int, gpu: bool) -> None:
        self.plan, self.sight, self.seed, self.slot = plan, sight, seed, slot
        self.device = torch.device("cuda" if gpu else "cpu")
        pace, acting = plan.pace, plan.actor
        self.each = pace.players // slots // GROUPS
        self.worlds = [
            envs.make(plan.world, self.each, pace.threads or threads, at_once=not gpu) for _ in range(GROUPS)
        ]
        ladder = exploration_ladder(pace.players, acting.exploration, acting.exploration_exponent)
        self.epsilon = ladders(ladder, GROUPS * slots)[GROUPS * slot : GROUPS * (slot + 1)]
        self.tick, self.version = -1, 0
        self.actors: list[Actor] = []
        self.scores: list[EpisodeScores] = []
        self.seen: dict[int, envs.Seen] = {}

    def play(
        self, start: int, ticks: int, begin: bool, weights: Array | None, version: int, uniform: bool
    ) -> tuple[Block | None, Told | None]:
        """The next moments, from tick `start` on. `begin` starts new episodes; a worker that should have gone on but
        cannot, because it is not the one that was asked before, answers nothing."""
        if begin:
            self.begin(start)
        elif start != self.tick:
            return None, None
        for actor in self.actors:
            actor.uniform.fill_(uniform)
        newest = None if weights is None else shared(weights)
        if begin and newest is not None:
            for actor in self.actors:
                actor.load(newest)
            self.version = version
        block, episodes = self.empty(ticks), []
        for at in range(ticks):
            group = self.tick % GROUPS
            now = self.seen.pop(group, None) or self.worlds[group].recv()
            episodes += self.watch(group, now)
            if newest is not None and self.tick // GROUPS % self.plan.pace.refresh_steps == 0:
                self.actors[group].load(newest)
                self.version = version
            moment = self.act(group, now)
            for column, values in zip(block, moment, strict=True):
                column[at] = values.cpu().numpy()
            self.worlds[group].send(moment.action.cpu().numpy())
            self.tick += 1
        sums = [actor.sums.tolist() for actor in self.actors]
        for actor in self.actors:
            actor.sums.zero_()
        size = sum(column.nbytes for column in block)
        return block, Told(ticks * self.each, size, self.version, episodes, sums)

    def begin(self, start: int) -> None:
        """New episodes and actors without a memory. The first worker of a run is the local engine's, draw for draw."""
        seeds = seeds_of(self.seed)
        first = self.slot == 0 and start == 0
        here = seeds if first else seeds_of(self.seed, self.slot, start)
        pace, dtype = self.plan.pace, computing_dtype(self.device, self.plan.pace.precision)
        self.actors = [
            Actor(
                self.plan.actor,
                drawn_for(self.plan, self.sight, seeds.weights),
                epsilon,
                self.plan.horizon,
                torch.Generator(self.device).manual_seed(of_actor),
                dtype,
                self.plan.learner.centres,
            )
            for epsilon, of_actor in zip(self.epsilon, here.actors, strict=True)
        ]
        self.scores = [EpisodeScores(self.each) for _ in range(GROUPS)]
        env_seed = (seeds.env + start * pace.players + self.slot * GROUPS * self.each) % MOST_SEED
        self.seen = {group: world.reset(env_seed + group * self.each) for group, world in enumerate(self.worlds)}
        self.tick, self.version = start, 0

    def act(self, group: int, now: envs.Seen) -> Moment:
        given = (torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in now)
        return self.actors[group].act(*given)

    def watch(self, group: int, seen: envs.Seen) -> list[tuple[int, float, bool]]:
        """The episodes that ended; a number that is none is refused."""
        if not np.isfinite(seen.reward).all() or not (self.sight.pictures or np.isfinite(seen.frame).all()):
            raise ValueError(f"--env {self.plan.world.id}: gave a reward or an observation that is not a finite number")
        ended = self.scores[group].see(seen)
        return [(e.player, e.score, bool(self.epsilon[group][e.player] <= CAREFUL)) for e in ended]

    def empty(self, ticks: int) -> Block:
        """A block to fill."""
        cells, kind = (ticks, self.each), np.uint8 if self.sight.pictures else np.float32
        return Block(
            frame=np.empty((*cells, *self.sight.frame), kind),
            first=np.empty(cells, bool),
            reward=np.empty(cells, np.float32),
            end=np.empty(cells, np.uint8),
            action=np.empty(cells, np.int16),
            pi=np.empty((*cells, self.sight.actions), np.float32),
            td_error=np.empty(cells, np.float32),
        )
