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
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
import torch
import torch.distributed
from ray.exceptions import RayActorError, RayError
from torch import Tensor

from rbi.observations import ObservationSpec
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.rbi import Prediction
from rbi.online.rollout import BatchedNetworks, BlockSummary, Rollout
from rbi.online.shards import Shard, ShardBatch, ShardedReplay
from rbi.online.stream import (
    Array,
    BlockReplay,
    ExperienceBlock,
    LearnerProcess,
    ReplayStatus,
    as_tensor,
)
from rbi.optim import PeerLostError
from rbi.parallel import exit_with_parent

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
    """A replay shard."""

    def __init__(self, *shard: Any) -> None:
        super().__init__()
        self.shard = Shard(*shard)
        self.blocks = self.shard.blocks

    def sample(self, size: int) -> ShardBatch | None:
        return self.shard.sample(size)

    def update_priorities(self, incarnation: str, row: Array, env: Array, td_error: Array) -> None:
        self.shard.update_priorities(incarnation, row, env, td_error)

    def replay_state(self) -> dict[str, Array]:
        return self.shard.state()

    def load_replay(self, state: dict[str, Array]) -> ReplayStatus:
        return self.shard.load(state)


class RemoteShard:
    """A replay shard as the learner reaches it (`rbi.online.shards.ShardClient`)."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def request(self, size: int) -> Any:
        return self.handle.sample.remote(size)

    def receive(self, request: Any) -> ShardBatch | None:
        try:
            found: ShardBatch | None = ray.get(request, timeout=SHARD_TIMEOUT)
        except RayError:
            return None
        return found

    def update_priorities(self, incarnation: str, row: Array, env: Array, td_error: Array) -> Any:
        return self.handle.update_priorities.remote(incarnation, row, env, td_error)


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
            self.sampled.shards = [RemoteShard(handle) for handle in shards]
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
