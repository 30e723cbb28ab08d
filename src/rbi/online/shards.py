"""A replay in shards, each in a process of its own, and all of them as the one replay that a learner samples from.

For replays that do not fit the learner's machine; elsewhere one in the learner's process (`BlockReplay`) is faster.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rbi.observations import ObservationSpec
from rbi.online.config import TrainConfig
from rbi.online.engine import run_seeds
from rbi.online.stream import Array, BlockReplay, EmptyReplayError, ReplayHost, ReplayStatus, as_tensor
from rbi.replay import ReplayBatch


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
