"""The processes of a run on a Ray cluster, each a Ray actor: rollout worker, replay shard, learner worker.

    RolloutWorker --- experience blocks, frames once ---> ReplayShard --- batches, prefetched ---> LearnerWorker
         ^                                                     ^------- new priorities -----------------'  |
         '--------------------- versioned weights, through the object store <------------------------------'

They use the actors, learner and replay of the local engine. Ray restarts a process that dies by calling its
constructor again; what it knew is restored by the supervisor.
"""

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
from rbi.envs.types import TimeStep
from rbi.evaluation.rollouts import EpisodeStatistics
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import (
    LOW_EPSILON,
    MAX_ENV_SEED,
    Actor,
    init_networks,
    make_actor,
    make_learner,
    run_seeds,
    split_epsilons,
    without_prefix,
)
from rbi.parallel import exit_with_parent
from rbi.replay import Replay, ReplayBatch, Transition
from rbi.returns import exploration_ladder

Array = np.ndarray[Any, Any]

SHARD_TIMEOUT = 60.0  # seconds after which a shard that does not answer counts as dead


class RemoteActor:
    """Base of all processes."""

    def __init__(self) -> None:
        exit_with_parent(os.getppid())  # the raylet: processes of a node that died would run on for minutes

    def identity(self) -> tuple[int, str]:
        """Process id and node id."""
        return os.getpid(), ray.get_runtime_context().get_node_id()


class ExperienceBlock(NamedTuple):
    """Transitions of a worker's alternating groups, `[T, N, ...]` each: `replay.Transition` over time, frames once."""

    obs: Array
    is_first: Array
    reward: Array
    end: Array
    action: Array
    pi: Array
    td_error: Array


class BlockSummary(NamedTuple):
    """What the driver needs to know about a block; the block itself goes to a shard."""

    states: int
    bytes: int
    version: int
    """Number of updates of the weights that were used last."""
    episodes: list[tuple[int, float, bool]]
    """Environment index, score and whether its epsilon is low, of every finished episode."""
    sums: list[list[float]]
    """Sums of each group's actor metrics (`Actor.sums`)."""


class RolloutWorker(RemoteActor):
    """Environments and actors of one worker, in two alternating groups."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        index: int,
        workers: int,
        threads: int,
        use_gpu: bool,
    ) -> None:
        super().__init__()
        self.config, self.obs_spec, self.seed, self.index = config, obs_spec, seed, index
        self.device = torch.device("cuda" if use_gpu else "cpu")
        schedule, actor = config.schedule, config.actor
        self.envs_per_group = schedule.num_envs // workers // GROUPS
        threads = schedule.env_threads or threads
        self.envs = [
            envs.make(config.env, self.envs_per_group, threads, synchronous=not use_gpu) for _ in range(GROUPS)
        ]
        epsilons = exploration_ladder(schedule.num_envs, actor.epsilon_base, actor.epsilon_exponent)
        self.epsilons = split_epsilons(epsilons, GROUPS * workers)[GROUPS * index : GROUPS * (index + 1)]
        self.step, self.version = -1, 0
        self.actors: list[Actor] = []
        self.episodes: list[EpisodeStatistics] = []
        self.first_steps: dict[int, TimeStep] = {}

    def rollout(
        self, start: int, steps: int, reset: bool, weights: Array | None, version: int, uniform: bool
    ) -> tuple[ExperienceBlock | None, BlockSummary | None]:
        """The next block, from step `start` on; `reset` starts new episodes. Returns (None, None) if this process was
        restarted and cannot continue from `start`."""
        if reset:
            self.reset(start)
        elif start != self.step:
            return None, None
        for actor in self.actors:
            actor.uniform.fill_(uniform)
        newest = None if weights is None else as_tensor(weights)
        if reset and newest is not None:
            for actor in self.actors:
                actor.load(newest)
            self.version = version
        block, finished = self.allocate(steps), []
        for at in range(steps):
            group = self.step % GROUPS
            now = self.first_steps.pop(group, None) or self.envs[group].recv()
            finished += self.finished_episodes(group, now)
            if newest is not None and self.step // GROUPS % self.config.schedule.refresh_interval == 0:
                self.actors[group].load(newest)
                self.version = version
            transition = self.act(group, now)
            for column, values in zip(block, transition, strict=True):
                column[at] = values.cpu().numpy()
            self.envs[group].send(transition.action.cpu().numpy())
            self.step += 1
        sums = [actor.sums.tolist() for actor in self.actors]
        for actor in self.actors:
            actor.sums.zero_()
        size = sum(column.nbytes for column in block)
        return block, BlockSummary(steps * self.envs_per_group, size, self.version, finished, sums)

    def reset(self, start: int) -> None:
        """Start new episodes with new actors. The first worker of a run draws the local engine's random numbers."""
        seeds = run_seeds(self.seed)
        first = self.index == 0 and start == 0
        own = seeds if first else run_seeds(self.seed, self.index, start)
        self.actors = [
            make_actor(
                self.config,
                init_networks(self.config, self.obs_spec, seeds.weights),
                epsilon,
                torch.Generator(self.device).manual_seed(actor_seed),
            )
            for epsilon, actor_seed in zip(self.epsilons, own.actors, strict=True)
        ]
        for actor in self.actors:
            actor.memory.steps.fill_(start // GROUPS)
        self.episodes = [EpisodeStatistics(self.envs_per_group) for _ in range(GROUPS)]
        num_envs = self.config.schedule.num_envs
        env_seed = (seeds.env + start * num_envs + self.index * GROUPS * self.envs_per_group) % MAX_ENV_SEED
        self.first_steps = {g: env.reset(env_seed + g * self.envs_per_group) for g, env in enumerate(self.envs)}
        self.step, self.version = start, 0

    def act(self, group: int, now: TimeStep) -> Transition:
        inputs = (torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in now)
        return self.actors[group].act(*inputs)

    def finished_episodes(self, group: int, now: TimeStep) -> list[tuple[int, float, bool]]:
        finished = self.episodes[group].update(now)
        return [(e.env_index, e.score, bool(self.epsilons[group][e.env_index] <= LOW_EPSILON)) for e in finished]

    def allocate(self, steps: int) -> ExperienceBlock:
        """An empty block."""
        cells, dtype = (steps, self.envs_per_group), np.uint8 if self.obs_spec.is_image else np.float32
        return ExperienceBlock(
            obs=np.empty((*cells, *self.obs_spec.shape), dtype),
            is_first=np.empty(cells, bool),
            reward=np.empty(cells, np.float32),
            end=np.empty(cells, np.uint8),
            action=np.empty(cells, np.int16),
            pi=np.empty((*cells, self.obs_spec.num_actions), np.float32),
            td_error=np.empty(cells, np.float32),
        )


class ShardStatus(NamedTuple):
    """The contents of a shard."""

    incarnation: str
    """Changes when the shard is restarted, empty."""
    mass: float
    """The sum of its priorities."""
    states: int


class ShardBatch(NamedTuple):
    """States sampled from one shard: `ReplayBatch` as arrays, with what makes weights of several shards comparable."""

    batch: tuple[Array, ...]
    incarnation: str
    mass: float
    mean_priority: float
    """The importance weights are relative to it."""


class ReplayShard(RemoteActor):
    """The replay of every `shards`-th rollout worker. After a restart it is empty and has a new incarnation."""

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, number: int, workers: int, shards: int
    ) -> None:
        super().__init__()
        own_workers = len(range(number, workers, shards))
        num_envs = config.schedule.num_envs // workers * own_workers
        share = replace(config.replay, capacity=config.replay.capacity * num_envs // config.schedule.num_envs)
        self.config, self.shards = config, shards
        self.replay = Replay(share, obs_spec, num_envs, own_workers * GROUPS, config.returns, torch.device("cpu"))
        sampling_seed = run_seeds(seed).learner if number == 0 else run_seeds(seed, number).learner
        self.generator = torch.Generator().manual_seed(sampling_seed)
        self.next_step = [0] * own_workers
        self.incarnation = uuid.uuid4().hex

    def add(self, worker: int, start: int, reset: bool, block: ExperienceBlock) -> ShardStatus:
        """Store a worker's block. Episodes are truncated where it does not continue the previous block."""
        own = worker // self.shards
        if reset or start != self.next_step[own]:
            for group in range(own * GROUPS, (own + 1) * GROUPS):
                if self.replay.written[group] > 0:
                    self.replay.truncate(group)
        for step, transition in enumerate(zip(*(as_tensor(column) for column in block), strict=True), start):
            self.replay.add(own * GROUPS + step % GROUPS, Transition(*transition))
        self.next_step[own] = start + len(block.obs)
        if self.config.replay.store_at_episode_end and not self.config.replay.release_interval:
            self.replay.release()
        return self.status()

    def status(self) -> ShardStatus:
        rows = self.replay.written.clamp(max=self.replay.rows).sum()
        states = int(rows) * (self.replay.num_envs // self.replay.groups)
        return ShardStatus(self.incarnation, float(self.replay.mass.sum()), states)

    def release(self) -> ShardStatus:
        """Release held-back transitions to the learner."""
        self.replay.release()
        return self.status()

    def sample(self, size: int) -> ShardBatch | None:
        """Sample states by priority; None if there are none."""
        mass = float(self.replay.mass.sum())
        if not mass > 0:
            return None
        batch = self.replay.sample(size, self.generator)
        mean = float(self.replay.priority[batch.row, batch.env].clamp(min=1e-30).mean())
        return ShardBatch(tuple(column.numpy() for column in batch), self.incarnation, mass, mean)

    def update_priorities(self, incarnation: str, row: Array, env: Array, td_error: Array) -> None:
        """New priorities of sampled states; ignored if they were sampled before a restart."""
        if incarnation == self.incarnation:
            self.replay.update_priorities(*(as_tensor(column) for column in (row, env, td_error)))

    def state(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        columns = {name: column.numpy() for name, column in self.replay.state().items()}
        return columns | {"random": self.generator.get_state().numpy(), "next": np.array(self.next_step)}

    def load(self, state: dict[str, Array]) -> ShardStatus:
        tensors = {name: as_tensor(column) for name, column in state.items()}
        self.generator.set_state(tensors.pop("random"))
        self.next_step = tensors.pop("next").tolist()
        self.replay.restore(tensors)
        return self.status()


class EmptyReplayError(Exception):
    """No shard has a state to sample."""


class ShardedReplay:
    """All shards as one replay: states are sampled in proportion to the shards' priority mass, some batches ahead."""

    def __init__(self, handles: Sequence[Any], prefetch: int, importance_exponent: float, device: torch.device) -> None:
        self.handles, self.prefetch, self.device = handles, prefetch, device
        self.importance_exponent = importance_exponent
        self.mass = [0.0] * len(handles)
        self.requests: deque[list[tuple[int, int, Any]]] = deque()
        self.origin: list[tuple[int, str, Tensor]] = []
        self.sent: list[Any] = []
        self.bytes, self.waited_seconds = 0, 0.0

    def sample(self, size: int, generator: torch.Generator) -> ReplayBatch:
        """States of all shards in random order. The share of a dead or empty shard goes to the others."""
        while True:
            while len(self.requests) <= self.prefetch:
                self.requests.append(self.request(size, generator))
            parts = [(number, self.receive(number, ref)) for number, _, ref in self.requests.popleft()]
            received = [(number, part) for number, part in parts if part is not None]
            if len(received) == len(parts):
                return self.merge(received, generator)
            self.requests.clear()

    def request(self, size: int, generator: torch.Generator) -> list[tuple[int, int, Any]]:
        """Request each shard's share, as a stratified draw over the total mass would allocate it."""
        if not sum(self.mass) > 0:
            raise EmptyReplayError
        counts = [size]
        if len(self.handles) > 1:
            edges = np.cumsum(self.mass) / sum(self.mass) * size
            start = float(torch.rand((), generator=generator, device=self.device, dtype=torch.float64))
            counts = np.diff(np.floor(np.array([0.0, *edges[:-1], size]) + start)).astype(int).tolist()
        shares = [(number, count) for number, count in enumerate(counts) if count]
        return [(number, count, self.handles[number].sample.remote(count)) for number, count in shares]

    def receive(self, number: int, ref: Any) -> ShardBatch | None:
        started = time.monotonic()
        try:
            part: ShardBatch | None = ray.get(ref, timeout=SHARD_TIMEOUT)
        except RayError:
            part = None
        self.waited_seconds += time.monotonic() - started
        self.mass[number] = part.mass if part is not None else 0.0
        if part is not None:
            self.bytes += sum(column.nbytes for column in part.batch)
        return part

    def merge(self, parts: list[tuple[int, ShardBatch]], generator: torch.Generator) -> ReplayBatch:
        """One batch. Importance weights are relative to each shard's mean priority before, to a common one after."""
        batches = [to_replay_batch(part, self.device) for _, part in parts]
        if len(parts) == 1:
            (number, part), (whole,) = parts[0], batches
            self.origin = [(number, part.incarnation, torch.arange(len(whole.row), device=self.device))]
            return whole
        for at, (_, part) in enumerate(parts):
            # sampling probability of a state of mean priority, up to a common factor
            probability = len(part.batch[0]) * part.mean_priority / part.mass
            batches[at] = batches[at]._replace(weight=batches[at].weight * probability**-self.importance_exponent)
        size = sum(len(batch.row) for batch in batches)
        order = torch.rand(size, generator=generator, device=self.device).argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(size, device=self.device)
        spans = place.split([len(batch.row) for batch in batches])
        self.origin = [(number, part.incarnation, span) for (number, part), span in zip(parts, spans, strict=True)]
        return ReplayBatch(*(torch.cat(columns)[order] for columns in zip(*batches, strict=True)))

    def update_priorities(self, row: Tensor, env: Tensor, td_error: Tensor) -> None:
        """Send new priorities to the shards that the states came from, without waiting."""
        columns = (row, env, td_error.float())
        self.sent = [
            self.handles[number].update_priorities.remote(incarnation, *(c[span].cpu().numpy() for c in columns))
            for number, incarnation, span in self.origin
        ]


class LearnerReport(NamedTuple):
    """What the driver needs to know about a call of `LearnerWorker.learn`."""

    updates: int
    publishes: bool
    """Whether weights are returned with it."""
    bytes: int
    """Bytes of batches received from the shards."""
    waited_seconds: float
    """Time that the learner waited for them."""


class LearnerWorker(RemoteActor):
    """The learner in its own process. After a restart it learns nothing until `restore` is called."""

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, prefetch: int, lockstep: bool, use_gpu: bool
    ) -> None:
        super().__init__()
        self.config, self.lockstep = config, lockstep
        self.device = torch.device("cuda" if use_gpu else "cpu")
        seeds = run_seeds(seed)
        generator = torch.Generator(self.device).manual_seed(seeds.learner)
        self.learner = make_learner(config, init_networks(config, obs_spec, seeds.weights), generator)
        self.prefetch = 0 if lockstep else prefetch
        self.replay: ShardedReplay | None = None

    def restore(self, handles: Sequence[Any], updates: int, tensors: dict[str, Array] | None) -> Array:
        """Continue from saved tensors and the driver's number of updates; returns the weights."""
        self.replay = ShardedReplay(handles, self.prefetch, self.config.replay.importance_exponent, self.device)
        if tensors is not None:
            saved = {name: as_tensor(tensor) for name, tensor in tensors.items()}
            self.learner.restore(without_prefix(saved, "learner."))
        self.learner.updates = updates
        return self.weights()

    def learn(self, expected: int, samples: int, mass: Sequence[float]) -> tuple[LearnerReport | None, Array | None]:
        """Learn from some samples of the replay, starting at `expected` updates; returns the weights if they are to be
        published, and (None, None) from a process that was restarted and not yet restored."""
        if self.replay is None:
            return None, None
        samples = samples if self.learner.updates == expected else 0  # an earlier call found the replay empty
        replay = self.replay
        replay.mass = list(mass)
        replay.bytes, replay.waited_seconds = 0, 0.0
        for _ in range(samples):
            try:
                self.learner.learn(replay)
            except EmptyReplayError:
                break
            self.learner.advance()
        if self.lockstep:
            ray.get(replay.sent)
        updates = self.learner.updates
        publishes = updates != expected and updates % self.config.schedule.publish_interval == 0
        report = LearnerReport(updates, publishes, replay.bytes, replay.waited_seconds)
        return report, self.weights() if publishes else None

    def weights(self) -> Array:
        return self.learner.vector.cpu().numpy().copy()

    def policy(self) -> tuple[int, Array] | None:
        """The number of updates and the weights."""
        return None if self.replay is None else (self.learner.updates, self.weights())

    def metrics(self) -> dict[str, float] | None:
        return None if self.replay is None else self.learner.metrics()

    def state(self) -> dict[str, Array] | None:
        """Everything that learning changes, for a checkpoint."""
        if self.replay is None:
            return None
        return {f"learner.{name}": tensor.cpu().numpy().copy() for name, tensor in self.learner.state().items()}


def as_tensor(array: Array) -> Tensor:
    """A tensor on the read-only memory of an array from the object store."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def to_replay_batch(part: ShardBatch, device: torch.device) -> ReplayBatch:
    return ReplayBatch(*(as_tensor(column).to(device) for column in part.batch))
