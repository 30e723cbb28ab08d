"""Learners that take their updates side by side: in turns on a processor, on a GPU each as a graph on its own stream.

Networks for batches of 32 leave most of a GPU idle; several learners at once share it. None may read what another one
of them is changing.
"""

from collections.abc import Iterator, Sequence

import torch

from rbi.nets.graphs import warmed
from rbi.offline.learning import LearnsFromLogs

AHEAD = 20  # updates that may wait in a stream before the host waits for it


class Lane:
    """A learner that is driven as it is."""

    def __init__(self, learner: LearnsFromLogs) -> None:
        self.learner = learner

    def step(self) -> None:
        self.learner.update()
        self.learner.passed()

    def settle(self) -> None:
        """Wait until all steps are done."""


class GraphedLane(Lane):
    """A learner whose update is a graph on a stream."""

    def __init__(self, learner: LearnsFromLogs, device: torch.device) -> None:
        super().__init__(learner)
        self.stream = torch.cuda.Stream(device)
        self.done = [torch.cuda.Event() for _ in range(AHEAD)]
        self.graph = warmed(learner.update, self.stream, learner.generators(), list(learner.state().values()))

    def step(self) -> None:
        done = self.done[self.learner.updates % AHEAD]
        done.synchronize()  # of twenty updates ago: the host does not run far ahead
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            self.learner.passed()
            done.record()

    def settle(self) -> None:
        self.stream.synchronize()


def lane(learner: LearnsFromLogs, device: torch.device, *, graphed: bool) -> Lane:
    """How a learner is driven; `graphed` where all that an update needs lies on a GPU."""
    return GraphedLane(learner, device) if graphed else Lane(learner)


def advance(lanes: Sequence[Lane], goals: Sequence[int]) -> Iterator[int]:
    """Take updates in turns until every learner has done its goal; how many they have done between them."""
    if lanes and isinstance(lanes[0], GraphedLane):
        torch.cuda.synchronize()  # what the streams are about to read is there
    while behind := [one for one, goal in zip(lanes, goals, strict=True) if one.learner.updates < goal]:
        for one in behind:
            one.step()
        yield sum(one.learner.updates for one in lanes)
    for one in lanes:
        one.settle()
