"""The learner's process of a distributed run, as its driver calls it: it joins the other learners, learns what is
requested, and reports what it did. Engines (`rbi.online.ray`) carry the calls."""

import datetime
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed

from rbi.observations import ObservationSpec
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.shards import ShardClient, ShardedReplay
from rbi.online.stream import Array, BlockReplay, ExperienceBlock, LearnerProcess, ReplayHost, ReplayStatus
from rbi.optim import PeerLostError

PEER_TIMEOUT = 120.0  # seconds after which a learner that does not answer the others counts as dead


class LearnerReport(NamedTuple):
    """What the driver needs to know about a call of `LearnerHost.learn`."""

    updates: int
    version: int | None
    """Number of updates of the weights that are returned with it, if any."""
    bytes: int
    """Bytes of batches received from the shards."""
    waited_seconds: float
    """Time that the learner waited for them."""


class LearnerHost(ReplayHost):
    """A learner in its own process. After a restart it does nothing until `restore` is called."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        rank: int,
        workers: int,
        layout: ClusterConfig,
        device: torch.device,
    ) -> None:
        self.config, self.obs_spec, self.seed, self.rank, self.layout = config, obs_spec, seed, rank, layout
        self.device = device
        self.sampled: ShardedReplay | None = None
        if layout.replay == "shards":
            ahead = 0 if layout.lockstep else layout.prefetch
            self.sampled = ShardedReplay([], ahead, config.replay.importance_exponent, device)
        else:
            self.blocks = BlockReplay(config, obs_spec, rank, workers, layout.learners, device)
        self.process: LearnerProcess | None = None
        self.measured = -1  # updates at the last call of `metrics`

    def restore(
        self, updates: int, tensors: dict[str, Array] | None, shards: Sequence[ShardClient], *addresses: str
    ) -> Array | None:
        """Continue from saved tensors and the driver's number of updates; returns the weights, or None if the other
        learners do not come. `shards`: the shards to sample from; `addresses`: all learners', in order."""
        if self.sampled is not None:
            self.sampled.shards = shards
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
            sampled.synchronize()
        newest = process.newest_weights(wait=self.layout.lockstep)
        moved = (sampled.bytes, sampled.waited_seconds) if sampled is not None else (0, 0.0)
        report = LearnerReport(process.updates, newest.updates if newest else None, *moved)
        return report, newest.vector.numpy() if newest else None

    def policy(self) -> tuple[int, Array] | None:
        """The number of updates and the weights."""
        return None if self.process is None else (self.process.updates, self.process.weights())

    def metrics(self) -> dict[str, float] | None:
        """Means since the last call; None if there was no update since."""
        if self.process is None or self.process.updates == self.measured:
            return None
        self.measured = self.process.updates
        return self.process.metrics()

    def state(self) -> dict[str, Array] | None:
        """Everything that learning changes, for a checkpoint."""
        return None if self.process is None else self.process.state()
