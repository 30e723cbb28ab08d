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

import datetime
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
import torch.distributed
from ray.exceptions import RayActorError, RayError
from torch import Tensor

from rbi.observations import ObservationSpec
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.engine import run_seeds
from rbi.online.rbi import Prediction
from rbi.online.rollout import BatchedNetworks, BlockSummary, Rollout
from rbi.online.stream import (
    Array,
    BlockReplay,
    EmptyReplayError,
    ExperienceBlock,
    LearnerProcess,
    ReplayStatus,
    as_tensor,
)
from rbi.optim import PeerLostError
from rbi.parallel import exit_with_parent
from rbi.replay import ReplayBatch

SHARD_TIMEOUT = 60.0  # seconds after which a shard that does not answer counts as dead
PEER_TIMEOUT = 120.0  # seconds after which a learner that does not answer the others counts as dead
RETRY_SECONDS = 0.2  # between calls of an inference worker that is restarting


class RemoteActor:
    """Base of all processes."""

    def __init__(self) -> None:
        exit_with_parent(os.getppid())  # the raylet: processes of a node that died would run on for minutes

    def identity(self) -> tuple[int, str]:
        """Process id and node id."""
        return os.getpid(), ray.get_runtime_context().get_node_id()


class RolloutWorker(RemoteActor):
    """Environments and actors of one worker."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        index: int,
        workers: int,
        threads: int,
        use_gpu: bool,
        inference: str = "",
    ) -> None:
        """`inference`: the name of the inference worker that computes the networks; by default this process does."""
        super().__init__()
        self.remote = RemoteNetworks(ray.get_actor(inference)) if inference else None
        device = torch.device("cuda" if use_gpu else "cpu")
        self.rollouts = Rollout(config, obs_spec, seed, index, workers, threads, device, self.remote)

    def rollout(
        self, start: int, steps: int, reset: bool, weights: list[Any], version: int, uniform: bool
    ) -> tuple[ExperienceBlock | None, BlockSummary | None]:
        """The next block (`Rollout.block`). `weights`: a reference to the weights of `version`, if they are to be
        loaded; only the reference goes on to an inference worker."""
        newest = None
        if weights and self.remote is not None:
            newest = self.remote.publish(version, weights[0])
        elif weights:
            newest = as_tensor(ray.get(weights[0]))
        return self.rollouts.block(start, steps, reset, newest, version, uniform) or (None, None)


class RemoteNetworks:
    """Networks in an inference worker, as actors use them (`rbi.online.rbi.Predictor`)."""

    def __init__(self, inference: Any) -> None:
        self.inference, self.vector = inference, torch.empty(0)
        self.published: tuple[int, Any] = (-1, None)

    def publish(self, version: int, weights: Any) -> Tensor:
        """Pass new weights on; the inference worker loads those that are newer than its own."""
        if version > self.published[0]:
            self.published = (version, [weights])
            self.inference.load.remote(*self.published)
        return self.vector

    def load(self, vector: Tensor) -> None:
        """Nothing: the inference worker has loaded them."""

    def predict(self, stack: Tensor) -> Prediction:
        """The outputs; waits for an inference worker that is restarted, and gives it its weights."""
        frames = stack.numpy()
        while True:
            try:
                if (outputs := ray.get(self.inference.predict.remote(frames))) is not None:
                    value, advantage, logits = outputs
                    return Prediction(
                        as_tensor(value), as_tensor(advantage), None if logits is None else as_tensor(logits)
                    )
            except RayActorError:
                time.sleep(RETRY_SECONDS)
            self.inference.load.remote(*self.published)


class InferenceWorker(RemoteActor):
    """Networks that serve several rollout workers; calls run in threads."""

    def __init__(self, config: TrainConfig, obs_spec: ObservationSpec, use_gpu: bool) -> None:
        super().__init__()
        self.networks = BatchedNetworks(config, obs_spec, torch.device("cuda" if use_gpu else "cpu"))

    def load(self, version: int, weights: list[Any] | None) -> None:
        if weights is not None and version > self.networks.version:
            self.networks.load(version, as_tensor(ray.get(weights[0])))

    def predict(self, frames: Array) -> list[Array | None] | None:
        return self.networks.predict(frames)


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
    """A learner in its own process. After a restart it does nothing until `restore` is called."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        rank: int,
        workers: int,
        layout: ClusterConfig,
        use_gpu: bool,
    ) -> None:
        super().__init__()
        self.config, self.obs_spec, self.seed, self.rank, self.layout = config, obs_spec, seed, rank, layout
        self.device = torch.device("cuda" if use_gpu else "cpu")
        self.sampled: ShardedReplay | None = None
        if layout.replay == "shards":
            ahead = 0 if layout.lockstep else layout.prefetch
            self.sampled = ShardedReplay([], ahead, config.replay.importance_exponent, self.device)
        else:
            self.blocks = BlockReplay(config, obs_spec, rank, workers, layout.learners, self.device)
        self.process: LearnerProcess | None = None

    def address(self) -> str:
        """Where the learners of a run can meet, if this is the first of them."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def restore(
        self, updates: int, tensors: dict[str, Array] | None, shards: Sequence[Any], *addresses: str
    ) -> Array | None:
        """Continue from saved tensors and the driver's number of updates; returns the weights, or None if the other
        learners do not come. `shards`: the processes to sample from; `addresses`: all learners', in order."""
        if self.sampled is not None:
            self.sampled.handles = shards
        if self.process is None:
            try:
                self.join(addresses)
            except RuntimeError:  # torch.distributed's timeout
                return None
            replay, learners = self.sampled or self.blocks, self.layout.learners
            parts = self.config, self.obs_spec, self.seed, self.device, replay, self.rank, learners
            self.process = LearnerProcess(*parts)
        self.process.restore(updates, tensors)
        return self.process.weights()

    def join(self, addresses: Sequence[str]) -> None:
        """Join the other learners, if there are any."""
        if len(addresses) > 1:
            if addresses[0].startswith("127."):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            torch.distributed.init_process_group(
                "nccl" if self.device.type == "cuda" else "gloo",
                init_method=f"tcp://{addresses[0]}",
                rank=self.rank,
                world_size=len(addresses),
                timeout=datetime.timedelta(seconds=PEER_TIMEOUT),
            )

    def add(self, worker: int, start: int, reset: bool, block: ExperienceBlock) -> ReplayStatus | None:
        if self.process is None:
            return None
        status = super().add(worker, start, reset, block)
        return self.status() if self.layout.lockstep else status

    def learn(
        self, expected: int, samples: int, publish: bool, mass: Sequence[float]
    ) -> tuple[LearnerReport | None, Array | None]:
        """Learn from some samples of the replay, starting at `expected` updates; returns the weights if they are to be
        published, and (None, None) from a process that was restarted and not yet restored, or has lost its peers."""
        process, sampled = self.process, self.sampled
        if process is None:
            return None, None
        if sampled is not None:
            sampled.mass, sampled.bytes, sampled.waited_seconds = list(mass), 0, 0.0
        try:
            process.learn(samples if process.updates == expected else 0)  # an earlier call may have found nothing
        except PeerLostError:
            return None, None
        if publish and process.updates == expected + samples * self.config.learner.updates_per_sample:
            process.publish()
        if sampled is not None and self.layout.lockstep:
            ray.get(sampled.sent)
        newest = process.newest_weights(wait=self.layout.lockstep)
        moved = (sampled.bytes, sampled.waited_seconds) if sampled is not None else (0, 0.0)
        report = LearnerReport(process.updates, newest.updates if newest else None, *moved)
        return report, newest.vector.numpy() if newest else None

    def policy(self) -> tuple[int, Array] | None:
        """The number of updates and the weights."""
        return None if self.process is None else (self.process.updates, self.process.weights())

    def metrics(self) -> dict[str, float] | None:
        return None if self.process is None else self.process.metrics()

    def state(self) -> dict[str, Array] | None:
        """Everything that learning changes, for a checkpoint."""
        return None if self.process is None else self.process.state()


def to_replay_batch(part: ShardBatch, device: torch.device) -> ReplayBatch:
    return ReplayBatch(*(as_tensor(column).to(device) for column in part.batch))
