"""A learner and its replay in processes of their own, fed by a stream of experience blocks from rollout workers.

    rollout workers --- ExperienceBlock ---> BlockReplay --- samples ---> LearnerProcess --- weights --->

The replay is in the learner's process, which is faster, or in shards, each in a process of its own, where it does not
fit the learner's machine. The driver of a run calls `LearnerHost` and `Shard`; engines (`rbi.online.ray`) carry the
calls.

On a GPU this is the local engine's fast path: the replay lives in GPU memory, `learn` is a CUDA graph, and all access
to the replay is on the learner's stream. Blocks are uploaded from pinned memory on a second stream, and weights are
read one call after they were computed, so that the GPU never waits for the host. Waiting for the GPU leaves the core to
the other processes of the machine (`blocking`): by default CUDA spins.
"""

import contextlib
import datetime
import os
import time
import uuid
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from rbi.checkpoint import restore_generator
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, ClusterConfig, TrainConfig
from rbi.online.engine import capture_learner, init_networks, make_learner, run_seeds, without_prefix
from rbi.online.rbi import SampledReplay
from rbi.optim import PeerLostError, Peers
from rbi.replay import Replay, ReplayBatch, Transition
from rbi.steps import NO_MASKS

Array = np.ndarray[Any, Any]

PEER_TIMEOUT = 120.0  # seconds after which a learner that does not answer the others counts as dead


class EmptyReplayError(Exception):
    """There is no state to sample."""


class ExperienceBlock(NamedTuple):
    """Transitions of a worker's alternating groups, `[T, N, ...]` each: `replay.Transition` over time, frames once."""

    obs: Array
    is_first: Array
    reward: Array
    end: Array
    action: Array
    pi: Array
    td_error: Array
    legal: Array = NO_MASKS

    @classmethod
    def empty(cls, obs_spec: ObservationSpec, steps: int, num_envs: int) -> "ExperienceBlock":
        """A block to be filled."""
        cells, dtype = (steps, num_envs), np.uint8 if obs_spec.is_image else np.float32
        return cls(
            obs=np.empty((*cells, *obs_spec.shape), dtype),
            is_first=np.empty(cells, bool),
            reward=np.empty(cells, np.float32),
            end=np.empty(cells, np.uint8),
            action=np.empty(cells, np.int32),
            pi=np.empty((*cells, obs_spec.num_actions), np.float32),
            td_error=np.empty(cells, np.float32),
            legal=np.empty((*cells, obs_spec.mask_size), bool),
        )


class ReplayStatus(NamedTuple):
    """The contents of a replay."""

    incarnation: str
    """Changes when its process is restarted."""
    mass: float
    """The sum of its priorities."""
    states: int


class BlockReplay:
    """The replay of every `parts`-th rollout worker, from worker `number` on, fed with their blocks."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        number: int,
        workers: int,
        parts: int,
        device: torch.device | None = None,
    ) -> None:
        self.config, self.parts, self.device = config.replay, parts, device or torch.device("cpu")
        own_workers = len(range(number, workers, parts))
        num_envs = config.schedule.num_envs // workers * own_workers
        share = replace(config.replay, capacity=config.replay.capacity * num_envs // config.schedule.num_envs)
        self.replay = Replay(share, obs_spec, num_envs, own_workers * GROUPS, config.returns, self.device)
        on_gpu = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if on_gpu else None  # of the learner, too
        self.upload_stream = torch.cuda.Stream(self.device) if on_gpu else None
        self.mass = torch.zeros((), dtype=torch.float64, pin_memory=on_gpu)
        self.next_step, self.gap_end = [0] * own_workers, [-GROUPS] * own_workers
        self.rows = [0] * own_workers * GROUPS  # that each group has written, ever: the device knows it, too
        self.incarnation = uuid.uuid4().hex

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        """All access to the replay is on one stream."""
        return torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext()

    def add(self, worker: int, start: int, reset: bool, block: ExperienceBlock) -> ReplayStatus:
        """Store a worker's block. Where it does not continue the previous block, episodes are truncated, and frame
        stacks begin again."""
        own, columns = worker // self.parts, self.upload(block)
        with self.on_stream():
            if reset or start != self.next_step[own]:
                self.gap_end[own] = start
                for group in range(own * GROUPS, (own + 1) * GROUPS):
                    if self.rows[group]:
                        self.replay.truncate(group)
            for first in range(min(GROUPS, len(block.obs))):  # the groups take turns
                group = own * GROUPS + (start + first) % GROUPS
                rows = Transition(*(column[first::GROUPS] for column in columns))
                if start + first < self.gap_end[own] + GROUPS:  # the group's first row after the gap
                    rows = rows._replace(is_first=rows.is_first.clone())
                    rows.is_first[0] = True
                self.replay.add_rows(group, rows)
                self.rows[group] += len(rows.obs)
            if self.config.store_at_episode_end and not self.config.release_interval:
                self.replay.release()
        self.next_step[own] = start + len(block.obs)
        return self.status(wait=False)

    def upload(self, block: ExperienceBlock) -> list[Tensor]:
        """A block on the replay's device; on a GPU the copy overlaps with the updates in progress."""
        columns = [as_tensor(column) for column in block]
        if self.stream is None or self.upload_stream is None:
            return columns
        with torch.cuda.stream(self.upload_stream):
            uploaded = [column.pin_memory().to(self.device, non_blocking=True) for column in columns]
        for column in uploaded:
            column.record_stream(self.stream)
        self.stream.wait_stream(self.upload_stream)
        return uploaded

    def status(self, *, wait: bool = True) -> ReplayStatus:
        """The contents; without waiting for a GPU the priorities are as of an earlier call."""
        with self.on_stream():
            self.mass.copy_(self.replay.mass.sum(), non_blocking=True)
        if wait:
            self.synchronize()
        rows = sum(min(rows, self.replay.rows) for rows in self.rows)
        return ReplayStatus(self.incarnation, float(self.mass), rows * (self.replay.num_envs // self.replay.groups))

    def release(self) -> ReplayStatus:
        """Release held-back transitions to the learner."""
        with self.on_stream():
            self.replay.release()
        return self.status()

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()

    def state(self) -> dict[str, Array]:
        """Everything that was stored, for a checkpoint."""
        self.synchronize()
        columns = {name: column.cpu().numpy() for name, column in self.replay.state().items()}
        return columns | {"next": np.array(self.next_step)}

    def load(self, state: dict[str, Array]) -> ReplayStatus:
        """Continue from a saved `state`."""
        tensors = {name: as_tensor(column) for name, column in state.items()}
        self.next_step = tensors.pop("next").tolist()
        self.gap_end = [-GROUPS] * len(self.next_step)
        self.rows = tensors["written"].tolist()
        with self.on_stream():
            self.replay.restore(tensors)
        return self.status()


class ReplayHost:
    """A process with a replay, as the driver of a run calls it. Restarted, it is empty."""

    blocks: BlockReplay

    def add(self, worker: int, start: int, reset: bool, block: ExperienceBlock) -> ReplayStatus | None:
        """Store a worker's block; None if the process is not ready for it."""
        return self.blocks.add(worker, start, reset, block)

    def status(self) -> ReplayStatus:
        return self.blocks.status()

    def release(self) -> ReplayStatus:
        """Release held-back transitions to the learner."""
        return self.blocks.release()

    def replay_state(self) -> dict[str, Array]:
        """Everything that was stored, for a checkpoint."""
        return self.blocks.state()

    def load_replay(self, state: dict[str, Array]) -> ReplayStatus:
        """Continue from a `replay_state`."""
        return self.blocks.load(dict(state))


# The replay in shards


class ShardBatch(NamedTuple):
    """States sampled from one shard: `ReplayBatch` as arrays, with what makes weights of several shards comparable."""

    batch: tuple[Array, ...]
    incarnation: str
    mass: float
    """The sum of the shard's priorities, which the importance weights are relative to."""


class Shard(ReplayHost):
    """One shard: the replay of every `parts`-th rollout worker, which samples by itself."""

    def __init__(
        self, config: TrainConfig, obs_spec: ObservationSpec, seed: int, number: int, workers: int, parts: int
    ) -> None:
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
        return self.blocks.state() | {"random": self.generator.get_state().numpy()}

    def load_replay(self, state: dict[str, Array]) -> ReplayStatus:
        self.generator.set_state(as_tensor(state["random"]))
        return self.blocks.load({name: column for name, column in state.items() if name != "random"})


class ShardClient(Protocol):
    """A shard as the learner's process reaches it."""

    def request(self, size: int) -> Any:
        """Ask for a sample, without waiting."""

    def receive(self, request: Any) -> ShardBatch | None:
        """The sample; None from a shard that is empty or does not answer."""

    def update_priorities(self, incarnation: str, row: Array, env: Array, td_error: Array) -> Any:
        """Send new priorities, without waiting."""

    def wait(self, sent: Any) -> None:
        """Wait until sent priorities have arrived."""


class ShardedReplay:
    """All shards as one replay: states are sampled in proportion to the shards' priority mass, some batches ahead."""

    def __init__(
        self, shards: Sequence[ShardClient], prefetch: int, importance_exponent: float, device: torch.device
    ) -> None:
        """`prefetch`: samples that are requested ahead."""
        self.shards, self.prefetch, self.device = shards, prefetch, device
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
        if len(self.shards) > 1:
            edges = np.cumsum(self.mass) / sum(self.mass) * size
            start = float(torch.rand((), generator=generator, device=self.device, dtype=torch.float64))
            counts = np.diff(np.floor(np.array([0.0, *edges[:-1], size]) + start)).astype(int).tolist()
        shares = [(number, count) for number, count in enumerate(counts) if count]
        return [(number, count, self.shards[number].request(count)) for number, count in shares]

    def receive(self, number: int, request: Any) -> ShardBatch | None:
        started = time.monotonic()
        part = self.shards[number].receive(request)
        self.waited_seconds += time.monotonic() - started
        self.mass[number] = part.mass if part is not None else 0.0
        if part is not None:
            self.bytes += sum(column.nbytes for column in part.batch)
        return part

    def merge(self, parts: list[tuple[int, ShardBatch]], generator: torch.Generator) -> ReplayBatch:
        """One batch. Importance weights are relative to a common probability, that of the states' shard included."""
        batches = [ReplayBatch(*(as_tensor(column).to(self.device) for column in part.batch)) for _, part in parts]
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
            self.shards[number].update_priorities(incarnation, *(c[span].cpu().numpy() for c in columns))
            for number, incarnation, span in self.origin
        ]

    def synchronize(self) -> None:
        """Wait until the new priorities of the last batch have arrived."""
        for (number, *_), sent in zip(self.origin, self.sent, strict=True):
            self.shards[number].wait(sent)


# The learner


class Weights(NamedTuple):
    """The learner's weights on their way to the host."""

    updates: int
    vector: Tensor
    copied: torch.cuda.Event | None


class LearnerProcess:
    """A learner with its own replay, or one that samples from another replay through `SampledReplay`."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        device: torch.device,
        replay: BlockReplay | SampledReplay,
        rank: int = 0,
        learners: int = 1,
    ) -> None:
        """`rank` of `learners`: which of several learners this is (`Peers`); they start with the same weights."""
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        self.config, self.device, self.seed, self.rank, self.peers = config, device, seed, rank, Peers(learners)
        generator = torch.Generator(device).manual_seed(run_seeds(seed, *[rank] * (rank > 0)).learner)
        networks = init_networks(config, obs_spec, run_seeds(seed).weights)
        self.learner = make_learner(config, networks, generator, self.peers)
        self.blocks = replay if isinstance(replay, BlockReplay) else None
        self.replay: SampledReplay = replay.replay if isinstance(replay, BlockReplay) else replay
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.blocks is not None and self.blocks.stream is not None:
            self.graph = capture_learner(self.learner, self.blocks.replay, self.blocks.stream)
        vector = self.learner.vector
        self.hosts = deque(torch.empty_like(vector, device="cpu", pin_memory=vector.is_cuda) for _ in range(3))
        self.published: deque[Weights] = deque()
        self.previous: torch.cuda.Event | None = None

    @property
    def updates(self) -> int:
        return self.learner.updates

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return self.blocks.on_stream() if self.blocks is not None else contextlib.nullcontext()

    def learn(self, samples: int) -> None:
        """The updates of some samples of the replay; fewer if there is nothing to sample.

        On a GPU it returns when those of the previous call are done, so that the GPU always has work and never much.
        """
        if not self.can_sample():
            return
        with self.on_stream():
            for _ in range(samples):
                if self.graph is not None:
                    self.graph.replay()
                else:
                    try:
                        self.learner.learn(self.replay)
                    except EmptyReplayError:
                        return
                self.learner.advance()
            if self.device.type == "cuda":
                previous, self.previous = self.previous, torch.cuda.Event(blocking=True)
                self.previous.record()
                if previous is not None:
                    previous.synchronize()

    def can_sample(self) -> bool:
        """Whether there is anything to sample, for all learners alike."""
        if self.blocks is None:
            return True
        if self.peers.size == 1:
            return bool(self.blocks.mass > 0)
        if not self.blocks.replay.delays_release:  # then a replay that had states keeps some, and the driver asked
            return True
        found = (self.blocks.mass > 0).to(self.device, torch.float32)
        return bool(self.peers.reduce_(found, torch.distributed.ReduceOp.MIN) > 0)

    def publish(self) -> None:
        """Start copying the weights to the host; `newest_weights` returns them."""
        host = self.hosts[0]
        self.hosts.rotate(-1)
        copied = torch.cuda.Event(blocking=True) if self.device.type == "cuda" else None
        with self.on_stream():
            host.copy_(self.learner.vector, non_blocking=True)
            if copied is not None:
                copied.record()
        self.published.append(Weights(self.updates, host, copied))

    def newest_weights(self, *, wait: bool) -> Weights | None:
        """The weights of the last `publish`, once. Without `wait`, those of updates that a GPU has not done yet come
        with the next call: they are copied to the host while the updates after them are computed."""
        in_progress = self.device.type == "cuda" and not wait
        newest = None
        while self.published and not (in_progress and self.published[0].updates == self.updates):
            newest = self.published.popleft()
        if newest is not None and newest.copied is not None:
            newest.copied.synchronize()
        return newest

    def weights(self) -> Array:
        """A copy of the weights as they are now."""
        with self.on_stream():
            return self.learner.vector.cpu().numpy().copy()

    def metrics(self) -> dict[str, float]:
        with self.on_stream():
            return self.learner.metrics()

    def state(self) -> dict[str, Array]:
        """Everything that learning changes, for a checkpoint."""
        with self.on_stream():
            tensors = {f"learner.{name}": tensor.cpu().numpy().copy() for name, tensor in self.learner.state().items()}
        return tensors | {"random": self.learner.generator.get_state().numpy()}

    def restore(self, updates: int, tensors: dict[str, Array] | None) -> None:
        """Continue from a saved `state` at a number of updates."""
        if tensors is not None:
            saved = {name: as_tensor(tensor) for name, tensor in tensors.items()}
            with self.on_stream():
                self.learner.restore(without_prefix(saved, "learner."))
            if self.rank == 0:  # it is the one that was saved
                restore_generator(self.learner.generator, saved["random"])
            else:
                self.learner.generator.manual_seed(run_seeds(self.seed, self.rank, updates).learner)
        self.learner.updates = updates
        self.published.clear()


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


def as_tensor(array: Array) -> Tensor:
    """A tensor on the memory of an array, which may be read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
