"""The processes of a run on a Ray cluster, each a Ray actor: rollout worker, learner worker, replay shard.

    RolloutWorker --- experience blocks, frames once ---> LearnerWorker, with its replay
         ^                                                     |
         '---- versioned weights, through the object store <---'

With `replay: shards` the replay is in processes of its own, and the learner worker samples from them:

    RolloutWorker --- experience blocks ---> ReplayShard --- batches, prefetched ---> LearnerWorker
                                                  ^------- new priorities -----------------'

What they do is in `rbi.online.rollout` and `rbi.online.stream`; this module only carries the calls. Ray restarts a
process that dies by calling its constructor again; what it knew is restored by the supervisor.
"""

import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from torch import Tensor

from rbi.online.rbi import Prediction
from rbi.online.rollout import BatchedNetworks, BlockSummary, Rollout, RolloutSpec
from rbi.online.stream import Array, ExperienceBlock, LearnerHost, Shard, ShardBatch, as_tensor
from rbi.parallel import exit_with_parent

SHARD_TIMEOUT = 60.0  # seconds after which a shard that does not answer counts as dead
INFERENCE_TIMEOUT = 300.0  # seconds for which rollout workers wait for an inference worker: it may wait for a node
RETRY_SECONDS = 0.2  # between calls of an inference worker that is restarting


class RemoteActor:
    """A process of a run; its name starts every line that it logs, and Ray shows it in place of the class."""

    def __init__(self, name: str, *parts: Any) -> None:
        self.name = name
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name}: %(message)s", force=True)
        logging.info("started as process %d", os.getpid())
        exit_with_parent(os.getppid())  # the raylet: processes of a node that died would run on for minutes
        super().__init__(*parts)

    def __repr__(self) -> str:
        return self.name

    def identity(self) -> tuple[int, str, str]:
        """Process id, node id and address of the node."""
        return os.getpid(), ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


class RolloutWorker(RemoteActor):
    """Environments and actors of one worker."""

    def __init__(self, name: str, spec: RolloutSpec, inference: str = "") -> None:
        """`inference`: the name of the inference worker that computes the networks; by default this process does."""
        super().__init__(name)
        self.remote = RemoteNetworks(ray.get_actor(inference), inference) if inference else None
        self.rollouts = Rollout(spec, self.remote)

    def rollout(
        self, start: int, steps: int, reset: bool, weights: list[Any], version: int, uniform: bool
    ) -> tuple[ExperienceBlock | None, BlockSummary | None]:
        """The next block (`Rollout.block`). `weights`: a reference to the weights of `version`, if they are to be
        loaded; only the reference goes on to an inference worker."""
        if reset:
            logging.info("new episodes from step %d", start)
        newest = None
        if weights and self.remote is not None:
            newest = self.remote.publish(version, weights[0])
        elif weights:
            newest = as_tensor(ray.get(weights[0]))
        return self.rollouts.block(start, steps, reset, newest, version, uniform) or (None, None)


class RemoteNetworks:
    """Networks in an inference worker, as actors use them (`rbi.online.rbi.Predictor`)."""

    def __init__(self, inference: Any, name: str) -> None:
        self.inference, self.name, self.vector = inference, name, torch.empty(0)
        self.published: tuple[int, Any] = (-1, None)

    def publish(self, version: int, weights: Any) -> Tensor:
        """Pass new weights on; the inference worker loads those that are newer than its own."""
        if version > self.published[0]:
            self.published = (version, [weights])
            self.inference.load_from.remote(*self.published)
        return self.vector

    def load(self, vector: Tensor) -> None:
        """Nothing: the inference worker has loaded them."""

    def predict(self, stack: Tensor) -> Prediction:
        """The outputs. An inference worker that is restarted gets its weights; raises TimeoutError if none answers."""
        frames, deadline = stack.numpy(), time.monotonic() + INFERENCE_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            try:
                if (outputs := ray.get(self.inference.predict.remote(frames), timeout=left)) is not None:
                    value, advantage, logits = outputs
                    policy = None if logits is None else as_tensor(logits)
                    return Prediction(as_tensor(value), as_tensor(advantage), policy)
            except GetTimeoutError:
                break
            except RayActorError:
                time.sleep(RETRY_SECONDS)
            self.inference.load_from.remote(*self.published)
        raise TimeoutError(
            f"{self.name}: has not answered for {INFERENCE_TIMEOUT:.0f} s; --resume continues from the last checkpoint "
            "when the cluster has room for it (--cluster.inference-cpus, --cluster.inference-gpus)"
        )


class InferenceWorker(RemoteActor, BatchedNetworks):
    """Networks that serve several rollout workers; calls run in threads."""

    def load_from(self, version: int, weights: list[Any] | None) -> None:
        """Load the weights of a version from a reference, if they are newer than the present ones."""
        if weights is not None and version > self.version:
            self.load(version, as_tensor(ray.get(weights[0])))


class ReplayShard(RemoteActor, Shard):
    """A replay shard."""


class RemoteShard:
    """A replay shard as the learner reaches it (`rbi.online.stream.ShardClient`)."""

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

    def wait(self, sent: Any) -> None:
        ray.get(sent)


class LearnerWorker(RemoteActor, LearnerHost):
    """A learner, with its replay if that is not in shards."""

    def address(self) -> str:
        """Where the learners of a run can meet, if this is the first of them."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def continue_from(
        self, updates: int, tensors: dict[str, Array] | None, shards: Sequence[Any], *addresses: str
    ) -> Array | None:
        """`LearnerHost.restore` with the handles of the shards."""
        logging.info("continues at %d updates", updates)
        return self.restore(updates, tensors, [RemoteShard(handle) for handle in shards], *addresses)
