"""The processes of a run on a Ray cluster, each a Ray actor: rollout worker, learner worker, replay shard.

    RolloutWorker --- experience blocks, frames once ---> LearnerWorker, with its replay
         ^                                                     |
         '---- versioned weights, through the object store <---'

With `replay: shards` the replay is in processes of its own, and the learner worker samples from them:

    RolloutWorker --- experience blocks ---> ReplayShard --- batches, prefetched ---> LearnerWorker
                                                  ^------- new priorities -----------------'

They use the actors, learner and replay of the local engine (`rbi.online.stream`). Ray restarts a process that dies by
calling its constructor again; what it knew is restored by the supervisor.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
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
from rbi.online.backend import Actor
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LOW_EPSILON, MAX_ENV_SEED, init_networks, make_actor, run_seeds, split_epsilons
from rbi.online.ray.cluster import ClusterConfig
from rbi.online.stream import (
    Array,
    BlockReplay,
    EmptyReplayError,
    ExperienceBlock,
    LearnerProcess,
    ReplayStatus,
    as_tensor,
)
from rbi.parallel import exit_with_parent
from rbi.replay import ReplayBatch, Transition
from rbi.returns import exploration_ladder

SHARD_TIMEOUT = 60.0  # seconds after which a shard that does not answer counts as dead


class RemoteActor:
    """Base of all processes."""

    def __init__(self) -> None:
        exit_with_parent(os.getppid())  # the raylet: processes of a node that died would run on for minutes

    def identity(self) -> tuple[int, str]:
        """Process id and node id."""
        return os.getpid(), ray.get_runtime_context().get_node_id()


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
        block, finished = ExperienceBlock.empty(self.obs_spec, steps, self.envs_per_group), []
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


class ShardBatch(NamedTuple):
    """States sampled from one shard: `ReplayBatch` as arrays, with what makes weights of several shards comparable."""

    batch: tuple[Array, ...]
    incarnation: str
    mass: float
    """The sum of the shard's priorities, which the importance weights are relative to."""


class ReplayProcess(RemoteActor):
    """A process with a replay: the experience of every `parts`-th rollout worker. Restarted, it is empty."""

    blocks: BlockReplay

    def add(self, worker: int, start: int, reset: bool, block: ExperienceBlock) -> ReplayStatus | None:
        """Store a worker's block."""
        return self.blocks.add(worker, start, reset, block)

    def status(self) -> ReplayStatus:
        return self.blocks.status()

    def release(self) -> ReplayStatus:
        """Release held-back transitions to the learner."""
        return self.blocks.release()

    def replay_state(self) -> dict[str, Array]:
        """The whole replay, for a checkpoint."""
        return self.blocks.state()

    def load_replay(self, state: dict[str, Array]) -> ReplayStatus:
        return self.blocks.load(dict(state))


class ReplayShard(ReplayProcess):
    """A replay in a process of its own."""

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, number: int, workers: int, parts: int
    ) -> None:
        super().__init__()
        self.blocks = BlockReplay(config, obs_spec, number, workers, parts)
        sampling_seed = run_seeds(seed).learner if number == 0 else run_seeds(seed, number).learner
        self.generator = torch.Generator().manual_seed(sampling_seed)

    def sample(self, size: int) -> ShardBatch | None:
        """Sample states by priority; None if there are none."""
        replay = self.blocks.replay
        mass = float(replay.mass.sum())
        if not mass > 0:
            return None
        batch = replay.sample(size, self.generator)
        return ShardBatch(tuple(column.numpy() for column in batch), self.blocks.incarnation, mass)

    def update_priorities(self, incarnation: str, row: Array, env: Array, td_error: Array) -> None:
        """New priorities of sampled states; ignored if they were sampled before a restart."""
        if incarnation == self.blocks.incarnation:
            self.blocks.replay.update_priorities(*(as_tensor(column) for column in (row, env, td_error)))

    def replay_state(self) -> dict[str, Array]:
        return super().replay_state() | {"random": self.generator.get_state().numpy()}

    def load_replay(self, state: dict[str, Array]) -> ReplayStatus:
        self.generator.set_state(as_tensor(state["random"]))
        return super().load_replay({name: column for name, column in state.items() if name != "random"})


class ShardedReplay:
    """All shards as one replay: states are sampled in proportion to the shards' priority mass, some batches ahead."""

    def __init__(self, handles: Sequence[Any], prefetch: int, importance_exponent: float, device: torch.device) -> None:
        self.handles, self.prefetch, self.device = handles, prefetch, device
        self.importance_exponent = importance_exponent
        self.mass: list[float] = []
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
        """One batch. Importance weights are relative to a common probability, that of the states' shard included."""
        batches = [to_replay_batch(part, self.device) for _, part in parts]
        if len(parts) == 1:
            (number, part), (whole,) = parts[0], batches
            self.origin = [(number, part.incarnation, torch.arange(len(whole.row), device=self.device))]
            return whole
        for at, batch in enumerate(batches):  # a state is sampled with probability count * priority / mass
            batches[at] = batch._replace(weight=batch.weight * len(batch.row) ** -self.importance_exponent)
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
    version: int | None
    """Number of updates of the weights that are returned with it, if any."""
    bytes: int
    """Bytes of batches received from the shards."""
    waited_seconds: float
    """Time that the learner waited for them."""


class LearnerWorker(ReplayProcess):
    """The learner in its own process. After a restart it does nothing until `restore` is called."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        workers: int,
        layout: ClusterConfig,
        use_gpu: bool,
    ) -> None:
        super().__init__()
        device = torch.device("cuda" if use_gpu else "cpu")
        self.updates_per_sample, self.lockstep, self.restored = (
            config.learner.updates_per_sample,
            layout.lockstep,
            False,
        )
        self.sampled: ShardedReplay | None = None
        if layout.replay == "shards":
            ahead = 0 if layout.lockstep else layout.prefetch
            self.sampled = ShardedReplay([], ahead, config.replay.importance_exponent, device)
            self.process = LearnerProcess(config, obs_spec, seed, device, self.sampled)
        else:
            self.blocks = BlockReplay(config, obs_spec, 0, workers, 1, device)
            self.process = LearnerProcess(config, obs_spec, seed, device, self.blocks)

    def restore(self, updates: int, tensors: dict[str, Array] | None, shards: Sequence[Any]) -> Array:
        """Continue from saved tensors and the driver's number of updates; returns the weights. `shards`: the processes
        to sample from, if the replay is not here."""
        if self.sampled is not None:
            self.sampled.handles = shards
        self.process.restore(updates, tensors)
        self.restored = True
        return self.process.weights()

    def add(self, worker: int, start: int, reset: bool, block: ExperienceBlock) -> ReplayStatus | None:
        if not self.restored:
            return None
        status = super().add(worker, start, reset, block)
        return self.status() if self.lockstep else status

    def learn(
        self, expected: int, samples: int, publish: bool, mass: Sequence[float]
    ) -> tuple[LearnerReport | None, Array | None]:
        """Learn from some samples of the replay, starting at `expected` updates; returns the weights if they are to be
        published, and (None, None) from a process that was restarted and not yet restored."""
        if not self.restored:
            return None, None
        process, sampled = self.process, self.sampled
        if sampled is not None:
            sampled.mass, sampled.bytes, sampled.waited_seconds = list(mass), 0, 0.0
        process.learn(samples if process.updates == expected else 0)  # an earlier call may have found the replay empty
        if publish and process.updates == expected + samples * self.updates_per_sample:
            process.publish()
        if sampled is not None and self.lockstep:
            ray.get(sampled.sent)
        newest = process.newest_weights(wait=self.lockstep)
        moved = (sampled.bytes, sampled.waited_seconds) if sampled is not None else (0, 0.0)
        report = LearnerReport(process.updates, newest.updates if newest else None, *moved)
        return report, newest.vector.numpy() if newest else None

    def policy(self) -> tuple[int, Array] | None:
        """The number of updates and the weights."""
        return (self.process.updates, self.process.weights()) if self.restored else None

    def metrics(self) -> dict[str, float] | None:
        return self.process.metrics() if self.restored else None

    def state(self) -> dict[str, Array] | None:
        """Everything that learning changes, for a checkpoint."""
        return self.process.state() if self.restored else None


def to_replay_batch(part: ShardBatch, device: torch.device) -> ReplayBatch:
    return ReplayBatch(*(as_tensor(column).to(device) for column in part.batch))
