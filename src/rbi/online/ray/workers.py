"""An actor worker: the players of one slot, in two groups that take turns, who play a block when they are asked."""

import os
import time
import uuid
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from rbi import envs
from rbi.evaluation.rollouts import EpisodeStatistics
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import (
    LOW_EPSILON,
    MAX_ENV_SEED,
    Actor,
    check_finite,
    init_networks,
    make_actor,
    make_learner,
    run_seeds,
    split_epsilons,
    without_prefix,
)
from rbi.replay import Replay, ReplayBatch, Transition
from rbi.returns import exploration_ladder

Array = np.ndarray[Any, Any]


class Block(NamedTuple):
    """Moments of a worker's groups in turn, `[T, N, ...]` each: `replay.Transition` over time, and every frame once."""

    obs: Array
    is_first: Array
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

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, slot: int, slots: int, threads: int, gpu: bool
    ) -> None:
        self.config, self.obs_spec, self.seed, self.slot = config, obs_spec, seed, slot
        self.device = torch.device("cuda" if gpu else "cpu")
        schedule, acting = config.schedule, config.actor
        self.each = schedule.num_envs // slots // GROUPS
        self.worlds = [
            envs.make(config.env, self.each, schedule.env_threads or threads, synchronous=not gpu)
            for _ in range(GROUPS)
        ]
        ladder = exploration_ladder(schedule.num_envs, acting.epsilon_base, acting.epsilon_exponent)
        self.epsilon = split_epsilons(ladder, GROUPS * slots)[GROUPS * slot : GROUPS * (slot + 1)]
        self.tick, self.version = -1, 0
        self.actors: list[Actor] = []
        self.scores: list[EpisodeStatistics] = []
        self.seen: dict[int, envs.TimeStep] = {}

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
            if newest is not None and self.tick // GROUPS % self.config.schedule.refresh_interval == 0:
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
        seeds = run_seeds(self.seed)
        first = self.slot == 0 and start == 0
        here = seeds if first else run_seeds(self.seed, self.slot, start)
        schedule = self.config.schedule
        self.actors = [
            make_actor(
                self.config,
                init_networks(self.config, self.obs_spec, seeds.weights),
                epsilon,
                torch.Generator(self.device).manual_seed(of_actor),
            )
            for epsilon, of_actor in zip(self.epsilon, here.actors, strict=True)
        ]
        self.scores = [EpisodeStatistics(self.each) for _ in range(GROUPS)]
        env_seed = (seeds.env + start * schedule.num_envs + self.slot * GROUPS * self.each) % MAX_ENV_SEED
        self.seen = {group: world.reset(env_seed + group * self.each) for group, world in enumerate(self.worlds)}
        self.tick, self.version = start, 0

    def act(self, group: int, now: envs.TimeStep) -> Transition:
        given = (torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in now)
        return self.actors[group].act(*given)

    def watch(self, group: int, seen: envs.TimeStep) -> list[tuple[int, float, bool]]:
        """The episodes that ended; a number that is none is refused."""
        check_finite(self.config.env.id, self.obs_spec, seen)
        ended = self.scores[group].update(seen)
        return [(e.env_index, e.score, bool(self.epsilon[group][e.env_index] <= LOW_EPSILON)) for e in ended]

    def empty(self, ticks: int) -> Block:
        """A block to fill."""
        cells, kind = (ticks, self.each), np.uint8 if self.obs_spec.is_image else np.float32
        return Block(
            obs=np.empty((*cells, *self.obs_spec.shape), kind),
            is_first=np.empty(cells, bool),
            reward=np.empty(cells, np.float32),
            end=np.empty(cells, np.uint8),
            action=np.empty(cells, np.int16),
            pi=np.empty((*cells, self.obs_spec.num_actions), np.float32),
            td_error=np.empty(cells, np.float32),
        )


# ---- from rbi.engines.ray.shard: A shard: the replay of some workers, which takes blocks and gives batches.


class Stock(NamedTuple):
    """What a shard holds after it took a block."""

    born: str
    """Changes when the shard was started anew, and empty."""
    mass: float
    """The sum of its priorities."""
    states: int


class Drawn(NamedTuple):
    """States of one shard: `ReplayBatch` as arrays, and what makes their weights comparable with other shards'."""

    batch: tuple[Array, ...]
    born: str
    mass: float
    mean: float
    """The mean priority that the importance weights are relative to."""


class Shard(Role):
    """The replay of every `shards`-th worker. Restarted after a fault it is empty, and says so by its `born`."""

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, number: int, workers: int, shards: int
    ) -> None:
        slots = len(range(number, workers, shards))
        lanes = config.schedule.num_envs // workers * slots
        share = replace(config.replay, capacity=config.replay.capacity * lanes // config.schedule.num_envs)
        self.config, self.shards = config, shards
        self.replay = Replay(share, obs_spec, lanes, slots * GROUPS, config.returns, torch.device("cpu"))
        drawing = run_seeds(seed).learner if number == 0 else run_seeds(seed, number).learner
        self.generator = torch.Generator().manual_seed(drawing)
        self.next = [0] * slots
        self.born = uuid.uuid4().hex

    def add(self, slot: int, start: int, begin: bool, block: Block) -> Stock:
        """Take a block of a worker. Where it does not follow on the one before, episodes are cut between the two."""
        here = slot // self.shards
        if begin or start != self.next[here]:
            for group in range(here * GROUPS, (here + 1) * GROUPS):
                if self.replay.written[group] > 0:
                    self.replay.cut(group)
        for tick, moment in enumerate(zip(*(shared(column) for column in block), strict=True), start):
            self.replay.add(here * GROUPS + tick % GROUPS, Transition(*moment))
        self.next[here] = start + len(block.obs)
        if self.config.replay.store_at_episode_end and not self.config.replay.release_interval:
            self.replay.release()
        return self.stock()

    def stock(self) -> Stock:
        rows = self.replay.written.clamp(max=self.replay.rows).sum()
        return Stock(self.born, float(self.replay.mass.sum()), int(rows) * (self.replay.lanes // self.replay.groups))

    def reveal(self) -> Stock:
        """Let the learner see what was held back."""
        self.replay.release()
        return self.stock()

    def sample(self, size: int) -> Drawn | None:
        """Draw states; nothing where there is nothing to draw."""
        mass = float(self.replay.mass.sum())
        if not mass > 0:
            return None
        batch = self.replay.sample(size, self.generator)
        mean = float(self.replay.priority[batch.row, batch.lane].clamp(min=1e-30).mean())
        return Drawn(tuple(column.numpy() for column in batch), self.born, mass, mean)

    def update_priorities(self, born: str, row: Array, lane: Array, td_error: Array) -> None:
        """New priorities of drawn states; those of a table that is gone are of no use."""
        if born == self.born:
            self.replay.update_priorities(*(shared(column) for column in (row, lane, td_error)))

    def state(self) -> dict[str, Any]:
        """Everything, to be saved."""
        columns = {name: column.numpy() for name, column in self.replay.state().items()}
        return columns | {"random": self.generator.get_state().numpy(), "next": np.array(self.next)}

    def load(self, state: dict[str, Array]) -> Stock:
        held = {name: shared(column) for name, column in state.items()}
        self.generator.set_state(held.pop("random"))
        self.next = held.pop("next").tolist()
        self.replay.load(held)
        return self.stock()


def as_batch(drawn: Drawn, device: torch.device) -> ReplayBatch:
    """The states as the learner takes them."""
    return ReplayBatch(*(shared(column).to(device) for column in drawn.batch))


# ---- from rbi.engines.ray.learning: The learner's process, and the shards as the one replay that it learns from.

PATIENCE = 60.0  # seconds after which a shard that says nothing counts as gone


class Learned(NamedTuple):
    """What the driver needs to know of some rounds."""

    updates: int
    publishes: bool
    """Whether weights come with it."""
    bytes: int
    """Bytes of batches that came from the shards."""
    waited: float
    """Seconds in which the learner waited for them."""


class StarvedError(Exception):
    """No shard has anything to draw."""


class Shards:
    """All shards as one replay: batches are drawn in proportion to the shards' mass, a few rounds ahead."""

    def __init__(self, handles: Sequence[Any], prefetch: int, importance_exponent: float, device: torch.device) -> None:
        self.handles, self.prefetch, self.device = handles, prefetch, device
        self.importance_exponent = importance_exponent
        self.mass = [0.0] * len(handles)
        self.coming: deque[list[tuple[int, int, Any]]] = deque()
        self.origin: list[tuple[int, str, Tensor]] = []
        self.sent: list[Any] = []
        self.bytes, self.waited = 0, 0.0

    def sample(self, size: int, generator: torch.Generator) -> ReplayBatch:
        """States of all shards in random order. A shard that is gone or empty gives its share to the others."""
        while True:
            while len(self.coming) <= self.prefetch:
                self.coming.append(self.ask(size, generator))
            parts = [(number, self.receive(number, ref)) for number, _, ref in self.coming.popleft()]
            found = [(number, part) for number, part in parts if part is not None]
            if len(found) == len(parts):
                return self.joined(found, generator)
            self.coming.clear()

    def ask(self, size: int, generator: torch.Generator) -> list[tuple[int, int, Any]]:
        """Ask each shard for its share, as a draw spread evenly over the mass would fall."""
        if not sum(self.mass) > 0:
            raise StarvedError
        counts = [size]
        if len(self.handles) > 1:
            edges = np.cumsum(self.mass) / sum(self.mass) * size
            start = float(torch.rand((), generator=generator, device=self.device, dtype=torch.float64))
            counts = np.diff(np.floor(np.array([0.0, *edges[:-1], size]) + start)).astype(int).tolist()
        asked = [(number, count) for number, count in enumerate(counts) if count]
        return [(number, count, self.handles[number].sample.remote(count)) for number, count in asked]

    def receive(self, number: int, ref: Any) -> Drawn | None:
        began = time.monotonic()
        try:
            found: Drawn | None = ray.get(ref, timeout=PATIENCE)
        except RayError:
            found = None
        self.waited += time.monotonic() - began
        self.mass[number] = found.mass if found is not None else 0.0
        if found is not None:
            self.bytes += sum(column.nbytes for column in found.batch)
        return found

    def joined(self, parts: list[tuple[int, Drawn]], generator: torch.Generator) -> ReplayBatch:
        """One batch. Weights were relative to each shard's own mean priority, and are now relative to one for all."""
        batches = [as_batch(part, self.device) for _, part in parts]
        if len(parts) == 1:
            (number, part), (whole,) = parts[0], batches
            self.origin = [(number, part.born, torch.arange(len(whole.row), device=self.device))]
            return whole
        for at, (_, part) in enumerate(parts):
            likely = len(part.batch[0]) * part.mean / part.mass  # of a state of mean priority, up to a common factor
            batches[at] = batches[at]._replace(weight=batches[at].weight * likely**-self.importance_exponent)
        size = sum(len(batch.row) for batch in batches)
        order = torch.rand(size, generator=generator, device=self.device).argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(size, device=self.device)
        spans = place.split([len(batch.row) for batch in batches])
        self.origin = [(number, part.born, span) for (number, part), span in zip(parts, spans, strict=True)]
        return ReplayBatch(*(torch.cat(columns)[order] for columns in zip(*batches, strict=True)))

    def update_priorities(self, row: Tensor, lane: Tensor, td_error: Tensor) -> None:
        """Send the new priorities to where the states came from; nobody waits for their arrival."""
        columns = (row, lane, td_error.float())
        self.sent = [
            self.handles[number].update_priorities.remote(born, *(column[span].cpu().numpy() for column in columns))
            for number, born, span in self.origin
        ]


class LearnerRole(Role):
    """The learner in a process of its own. A restarted one has to be told where to go on before it learns."""

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, prefetch: int, lockstep: bool, gpu: bool
    ) -> None:
        self.config, self.lockstep = config, lockstep
        self.device = torch.device("cuda" if gpu else "cpu")
        seeds = run_seeds(seed)
        networks = init_networks(config, obs_spec, seeds.weights)
        generator = torch.Generator(self.device).manual_seed(seeds.learner)
        self.learner = make_learner(config, networks, generator)
        self.prefetch = 0 if lockstep else prefetch
        self.shards: Shards | None = None

    def restore(self, handles: Sequence[Any], updates: int, tensors: dict[str, Array] | None) -> Array:
        """Go on from saved tensors with the count of updates that the driver knows; the weights."""
        exponent = self.config.replay.importance_exponent
        self.shards = Shards(handles, self.prefetch, exponent, self.device)
        if tensors is not None:
            held = {name: shared(tensor) for name, tensor in tensors.items()}
            self.learner.restore(without_prefix(held, "learner."))
        self.learner.updates = updates
        return self.weights()

    def learn(self, expected: int, rounds: int, mass: Sequence[float]) -> tuple[Learned | None, Array | None]:
        """Some rounds of updates, and the weights if they are to be published. `expected` is the count of updates so
        far. A learner that was started anew, and not told where to go on, answers nothing."""
        if self.shards is None:
            return None, None
        rounds = rounds if self.learner.updates == expected else 0  # those asked for before found nothing to draw
        shards = self.shards
        shards.mass = list(mass)
        shards.bytes, shards.waited = 0, 0.0
        for _ in range(rounds):
            try:
                self.learner.learn(shards)
            except StarvedError:
                break
            self.learner.advance()
        if self.lockstep:
            ray.get(shards.sent)
        updates = self.learner.updates
        publishes = updates != expected and updates % self.config.schedule.publish_interval == 0
        return Learned(updates, publishes, shards.bytes, shards.waited), self.weights() if publishes else None

    def weights(self) -> Array:
        return self.learner.vector.cpu().numpy().copy()

    def policy(self) -> tuple[int, Array] | None:
        """The count of updates, and the weights."""
        return None if self.shards is None else (self.learner.updates, self.weights())

    def metrics(self) -> dict[str, float] | None:
        return None if self.shards is None else self.learner.metrics()

    def state(self) -> dict[str, Array] | None:
        """Everything that the learner is, to be saved."""
        if self.shards is None:
            return None
        return {f"learner.{name}": tensor.cpu().numpy().copy() for name, tensor in self.learner.state().items()}
