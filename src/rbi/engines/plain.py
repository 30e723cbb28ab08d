"""Actors, learner and replay called one after the other: the local engine on a processor."""

from typing import Any

import numpy as np
import torch

from rbi.envs import Seen
from rbi.online import Actor, Learner
from rbi.replay import Moment, Replay


class PlainCalls:
    """Plain calls in order, so that a run is the same to the last bit each time."""

    def __init__(self, actors: list[Actor], learner: Learner, replay: Replay, published: torch.Tensor) -> None:
        self.actors, self.learner, self.replay, self.published = actors, learner, replay, published
        self.moments: list[Moment | None] = [None] * len(actors)

    def act(self, group: int, seen: Seen) -> np.ndarray[Any, Any]:
        """Actions for what a group sees."""
        given = (torch.from_numpy(np.ascontiguousarray(array)) for array in seen)
        moment = self.actors[group].act(*given)
        self.moments[group] = moment
        return moment.action.numpy()

    def store(self, group: int) -> None:
        """Put what the group saw and did last into the replay."""
        moment = self.moments[group]
        assert moment is not None
        self.replay.add(group, moment)

    def learn(self) -> None:
        """One round of updates."""
        self.learner.round(self.replay)

    def passed(self) -> None:
        self.learner.passed()

    def publish(self) -> None:
        self.published.copy_(self.learner.vector)

    def refresh(self, group: int) -> None:
        self.actors[group].load(self.published)

    def act_uniformly(self, uniform: bool) -> None:
        for actor in self.actors:
            actor.uniform.fill_(uniform)

    def reveal(self) -> None:
        self.replay.reveal()

    def settle(self) -> None:
        """Wait until everything that was asked for is done."""
