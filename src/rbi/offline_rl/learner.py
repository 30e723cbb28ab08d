"""What all offline learners share: interface, prefetched batches, metric means, target networks, and running them."""

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rbi.checkpoint import Checkpointable
from rbi.data.sampler import Batch, Sampler
from rbi.gpu import SideStream, capture_graph
from rbi.losses import double_q_value
from rbi.networks import NetworkConfig, Networks, dropout, offline_network
from rbi.observations import ObservationSpec
from rbi.optim import bind_parameters

MAX_QUEUED = 20  # graphs in a stream before the host waits for it
BURST = 8  # updates in one graph, for learners with a prefetcher


class OfflineLearner(Checkpointable, Protocol):
    """A learner that trains on a fixed dataset.

    `update` is a fixed sequence of device work that never waits for the device, so that it can be captured as a CUDA
    graph. Whatever does not happen in every update (counting, target updates) belongs to `after_update`.
    """

    @property
    def prefetcher(self) -> "Prefetcher | None":
        """The source of all batches, if `after_update` does nothing but count: several updates can then be captured as
        one graph, with batches prefetched on a second stream. None for other learners."""

    def update(self) -> None: ...

    def after_update(self) -> None: ...

    def metrics(self) -> dict[str, float]: ...


def train(learner: OfflineLearner, updates: int) -> Iterator[int]:
    """Run updates until the learner has done `updates` of them; yields the number done so far."""
    while learner.updates < updates:
        learner.update()
        learner.after_update()
        yield learner.updates


def frozen_copy(networks: Networks) -> Networks:
    """A copy in evaluation mode without gradients, for policies and targets that do not change during training."""
    return copy.deepcopy(networks).eval().requires_grad_(False)


class Prefetcher:
    """Batches with their preprocessed observations (float32, with input dropout), drawn on demand or in advance."""

    def __init__(
        self,
        sampler: Sampler,
        obs_spec: ObservationSpec,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.sampler, self.obs_spec, self.dropout, self.generator = sampler, obs_spec, dropout, generator
        self.queue: deque[tuple[Batch, Tensor]] = deque()

    def next(self) -> tuple[Batch, Tensor]:
        """The oldest prefetched batch, or a new one if there is none."""
        return self.queue.popleft() if self.queue else self.draw()

    def prefetch(self) -> None:
        """Draw a batch now, for a later `next`."""
        self.queue.append(self.draw())

    def draw(self) -> tuple[Batch, Tensor]:
        batch = self.sampler.draw()
        return batch, dropout(self.obs_spec.preprocess(batch.states, torch.float32), self.dropout, self.generator)


class MetricMeans:
    """Averages metrics on the device; nothing waits for the device until `means` is called.

    Metrics that are computed in `overlapping()` run on a second CUDA stream while the gradients are computed; `join`
    before the update ends. They must not read what the optimiser changes.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = names
        self.sums = torch.zeros(len(names) + 1, dtype=torch.float64, device=device)  # the last one counts
        self.one = torch.ones((), device=device)
        self.side_stream = SideStream(device)
        self.overlapping, self.join = self.side_stream.overlapping, self.side_stream.join

    def add(self, *values: Tensor) -> None:
        """Add one number for each name: the mean of its values `[B]`, or the number itself."""
        rows = torch.broadcast_tensors(*values, self.one)
        self.sums += torch.stack(rows).reshape(len(rows), -1).mean(1)

    def means(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        *totals, count = self.sums.tolist()
        self.sums.zero_()
        return {name: total / max(1.0, count) for name, total in zip(self.names, totals, strict=True)}


class TargetNetwork:
    """A periodically updated copy of a Q-network, and the double-Q value of next states.

    `vector` holds the weights of the online network, whose parameters are views of it.
    """

    def __init__(self, online: Networks, vector: Tensor) -> None:
        self.online, self.online_vector = online, vector
        self.networks, self.vector = frozen_copy(online), vector.clone()
        bind_parameters(self.networks, self.vector)
        self.side_stream = SideStream(vector.device)

    def next_value(self, next_obs: Tensor, allowed: Tensor | None) -> Tensor:
        """V(s') `[B]`: the target's Q of the online network's best action among those allowed.

        Both networks use the running statistics of batch norm, as they would when acting.
        """
        with eval_mode(self.online):
            with self.side_stream.overlapping():
                target_next, _ = self.networks.q(next_obs)
            q_next, _ = self.online.q(next_obs)
            self.side_stream.join()
            return double_q_value(q_next, target_next, allowed)

    def synchronize(self) -> None:
        """Copy the online network in place: weights and batch-norm statistics."""
        self.vector.copy_(self.online_vector)
        for target, online in zip(self.networks.buffers(), self.online.buffers(), strict=True):
            target.copy_(online)

    def state(self) -> dict[str, Tensor]:
        buffers = {f"target.buffer.{name}": buffer for name, buffer in self.networks.named_buffers()}
        return {"target.vector": self.vector, **buffers}


@contextlib.contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Evaluate a module without gradients and without updating batch norm; restores its mode afterwards."""
    training = module.training
    module.eval()
    with torch.no_grad():
        yield
    module.train(training)


def next_action_masks(sampler: Sampler) -> Tensor | None:
    """Legal actions in the state that each step bootstraps from, `[S, A]`; None if masks were not logged.

    All actions are legal in states where no action was logged (the last observation of a truncated episode).
    """
    if sampler.action_masks is None:
        return None
    records, device = sampler.data.records, sampler.action_masks.device
    ends = torch.from_numpy(np.repeat(records["first_step"] + records["steps"], records["steps"])).to(device)
    then = torch.arange(len(ends), device=device) + sampler.bootstrap_steps
    acted = then < ends
    found = sampler.action_masks.index_select(0, torch.where(acted, then, 0)) | ~acted[:, None]
    return found.to(sampler.device)


def without_dropout() -> NetworkConfig:
    """The network of Q-learning: that of beta and Q without dropout.      (paper: table of hyperparameters, DQfD)"""
    return offline_network(input_dropout=0.0, hidden_dropout=0.0)


def refuse_dropout(network: NetworkConfig) -> None:
    """Refuse dropout in Q-learning, where it would add noise to the targets."""
    for name in ("input_dropout", "hidden_dropout"):
        if getattr(network, name):
            raise ValueError(f"network.{name} = {getattr(network, name)}: must be 0, Q-learning uses no dropout")


def check_td_inputs(networks: Networks, sampler: Sampler) -> None:
    """Refuse networks and samplers that Q-learning cannot use."""
    if networks.pi is not None:
        raise ValueError("the networks have a policy network: Q-learning trains Q alone")
    if sampler.config.n_step is None:
        raise ValueError("Monte-Carlo returns have no next state; Q-learning needs n-step returns")
    if sampler.config.keep_incomplete:
        raise ValueError("keep_incomplete = True: Q-learning cannot use steps without a next state")


# Running several learners: in turns on a CPU, on a GPU each as CUDA graphs on its own stream. Networks with batches of
# 32 leave most of a GPU idle, so learners share it. No learner may read what another one changes.


class Runner:
    """Runs a learner update by update."""

    def __init__(self, learner: OfflineLearner) -> None:
        self.learner = learner

    def step(self, _max_updates: int) -> None:
        """Run one update, or several up to the given number."""
        self.learner.update()
        self.learner.after_update()

    def synchronize(self) -> None:
        """Wait until all updates are done."""


class GraphRunner(Runner):
    """Runs a learner as CUDA graphs on its own stream.

    A learner with a prefetcher draws its next batch on a second stream.
    """

    def __init__(self, learner: OfflineLearner, device: torch.device) -> None:
        super().__init__(learner)
        self.stream = torch.cuda.Stream(device)
        # blocking: a host that waits actively would take a core from the environments of other runs
        self.done = [torch.cuda.Event(blocking=True) for _ in range(MAX_QUEUED)]
        self.replays = 0
        keep = list(learner.state().values())
        self.graph = capture_graph(learner.update, self.stream, learner.generators(), keep)
        if learner.prefetcher is not None:
            burst = burst_of_updates(learner, learner.prefetcher, device)
            self.burst = capture_graph(burst, self.stream, learner.generators(), keep)

    def step(self, max_updates: int) -> None:
        done = self.done[self.replays % MAX_QUEUED]
        done.synchronize()  # of MAX_QUEUED graphs ago, so that the host does not run far ahead
        burst = self.learner.prefetcher is not None and max_updates >= BURST
        with torch.cuda.stream(self.stream):
            (self.burst if burst else self.graph).replay()
            for _ in range(BURST if burst else 1):
                self.learner.after_update()
            done.record()
        self.replays += 1

    def synchronize(self) -> None:
        self.stream.synchronize()


def make_runner(learner: OfflineLearner, device: torch.device, *, cuda_graph: bool) -> Runner:
    """The runner of a learner; `cuda_graph` requires that all data of an update is in GPU memory."""
    return GraphRunner(learner, device) if cuda_graph else Runner(learner)


def burst_of_updates(learner: OfflineLearner, prefetcher: Prefetcher, device: torch.device) -> Callable[[], None]:
    """A function that runs BURST updates and prefetches each one's batch on a second stream during the one before."""
    side_stream = SideStream(device)

    def burst() -> None:
        prefetcher.prefetch()
        for left in reversed(range(BURST)):
            if left:
                with side_stream.overlapping():
                    prefetcher.prefetch()
            learner.update()
            side_stream.join()

    return burst


def advance(runners: Sequence[Runner], targets: Sequence[int]) -> Iterator[int]:
    """Run updates in turns until every learner has reached its target; yields the number of updates of all together."""
    if runners and isinstance(runners[0], GraphRunner):
        torch.cuda.synchronize()  # inputs of the streams are complete
    while behind := [(one, goal) for one, goal in zip(runners, targets, strict=True) if one.learner.updates < goal]:
        for one, goal in behind:
            one.step(goal - one.learner.updates)
        yield sum(one.learner.updates for one in runners)
    for one in runners:
        one.synchronize()
