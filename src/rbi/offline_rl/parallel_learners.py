"""Several learners in parallel: in turns on a CPU, on a GPU each as a CUDA graph on its own stream.

Networks with batches of 32 leave most of a GPU idle, so several learners share it. No learner may read what another
one changes.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from rbi.gpu.streams import SideStream, capture_graph
from rbi.offline_rl.learner import OfflineLearner, Prefetcher

MAX_QUEUED = 20  # graphs in a stream before the host waits for it
BURST = 8  # updates in one graph, for learners with a prefetcher


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
        self.done = [torch.cuda.Event() for _ in range(MAX_QUEUED)]
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
