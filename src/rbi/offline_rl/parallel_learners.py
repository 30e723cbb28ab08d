"""Learners that take their updates side by side: in turns on a processor, on a GPU each as a graph on its own stream.

Networks for batches of 32 leave most of a GPU idle; several learners at once share it. None may read what another one
of them is changing.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from rbi.gpu.streams import SideStream, capture_graph
from rbi.offline_rl.behavior_q import LearnsFromLogs, Looks

AHEAD = 20  # graphs that may wait in a stream before the host waits for it
BURST = 8  # updates in one graph, where nothing is to be done between them


class Lane:
    """A learner that is driven as it is."""

    def __init__(self, learner: LearnsFromLogs) -> None:
        self.learner = learner

    def step(self, _most: int) -> None:
        """One update, or up to so many."""
        self.learner.update()
        self.learner.passed()

    def settle(self) -> None:
        """Wait until all steps are done."""


class GraphedLane(Lane):
    """A learner whose update is a graph on a stream; a steady one prefetches the next batch on a second stream."""

    def __init__(self, learner: LearnsFromLogs, device: torch.device) -> None:
        super().__init__(learner)
        self.stream = torch.cuda.Stream(device)
        self.done = [torch.cuda.Event() for _ in range(AHEAD)]
        self.replays = 0
        keep = list(learner.state().values())
        self.graph = capture_graph(learner.update, self.stream, learner.generators(), keep)
        if learner.steady is not None:
            burst = burst_of(learner, learner.steady, device)
            self.burst = capture_graph(burst, self.stream, learner.generators(), keep)

    def step(self, most: int) -> None:
        done = self.done[self.replays % AHEAD]
        done.synchronize()  # of twenty graphs ago: the host does not run far ahead
        several = self.learner.steady is not None and most >= BURST
        with torch.cuda.stream(self.stream):
            (self.burst if several else self.graph).replay()
            for _ in range(BURST if several else 1):
                self.learner.passed()
            done.record()
        self.replays += 1

    def settle(self) -> None:
        self.stream.synchronize()


def lane(learner: LearnsFromLogs, device: torch.device, *, graphed: bool) -> Lane:
    """How a learner is driven; `graphed` where all that an update needs lies on a GPU."""
    return GraphedLane(learner, device) if graphed else Lane(learner)


def burst_of(learner: LearnsFromLogs, looks: Looks, device: torch.device) -> Callable[[], None]:
    """Several updates: while one is taken, the batch of the next is drawn and looked at on a second stream."""
    beside = SideStream(device)

    def burst() -> None:
        looks.ahead()
        for left in reversed(range(BURST)):
            if left:
                with beside.overlapping():
                    looks.ahead()
            learner.update()
            beside.join()

    return burst


def advance(lanes: Sequence[Lane], goals: Sequence[int]) -> Iterator[int]:
    """Take updates in turns until every learner has done its goal; how many they have done between them."""
    if lanes and isinstance(lanes[0], GraphedLane):
        torch.cuda.synchronize()  # what the streams are about to read is there
    while behind := [(one, goal) for one, goal in zip(lanes, goals, strict=True) if one.learner.updates < goal]:
        for one, goal in behind:
            one.step(goal - one.learner.updates)
        yield sum(one.learner.updates for one in lanes)
    for one in lanes:
        one.settle()
