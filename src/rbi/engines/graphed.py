"""Actors, learner and replay as CUDA graphs on two streams: the local engine on a GPU.

    actor's stream     upload frames, choose, download actions, note     high priority: it never queues behind updates
    learner's stream   store, learn, learn, ..., publish                 all access to the replay, so nothing races

The host waits for nothing but the actions. An actor's buffers are written again only when the learner's stream has
stored what they held, which also keeps the actors from running ahead of the learner by more than one step each.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rbi.envs import Seen
from rbi.nets.graphs import capture, warmed
from rbi.online import Actor, Learner
from rbi.online.actor import Choice
from rbi.replay import Moment, Replay


class GraphedCalls:
    """The same calls as `PlainCalls`, captured once and replayed."""

    def __init__(self, actors: list[Actor], learner: Learner, replay: Replay, published: Tensor) -> None:
        self.actors, self.learner, self.replay, self.published = actors, learner, replay, published
        self.device = learner.device
        self.acting = torch.cuda.Stream(self.device, priority=-1)
        self.learning = torch.cuda.Stream(self.device)
        self.publishing = torch.cuda.Event()
        self.groups = [GraphedActor(actor, self.acting) for actor in actors]
        self.stores = [
            capture(lambda g=g, group=group: replay.add(g, group.moment), self.learning, [])  # type: ignore[misc]
            for g, group in enumerate(self.groups)
        ]
        keep = [*learner.state().values(), learner.computing, replay.priority, replay.mass]
        self.round = warmed(lambda: learner.round(replay), self.learning, [learner.generator], keep)
        torch.cuda.synchronize(self.device)

    def act(self, group: int, seen: Seen) -> np.ndarray[Any, Any]:
        return self.groups[group].act(seen)

    def store(self, group: int) -> None:
        actor = self.groups[group]
        self.learning.wait_event(actor.acted)
        with torch.cuda.stream(self.learning):
            self.stores[group].replay()
            actor.stored.record()

    def learn(self) -> None:
        with torch.cuda.stream(self.learning):
            self.round.replay()

    def passed(self) -> None:
        with torch.cuda.stream(self.learning):
            self.learner.passed()

    def publish(self) -> None:
        with torch.cuda.stream(self.learning):
            self.learning.wait_stream(self.acting)  # a refresh may still be reading
            self.published.copy_(self.learner.vector)
            self.publishing.record()

    def refresh(self, group: int) -> None:
        self.acting.wait_event(self.publishing)
        with torch.cuda.stream(self.acting):
            self.actors[group].load(self.published)

    def act_uniformly(self, uniform: bool) -> None:
        with torch.cuda.stream(self.acting):
            for actor in self.actors:
                actor.uniform.fill_(uniform)

    def reveal(self) -> None:
        with torch.cuda.stream(self.learning):
            self.replay.reveal()

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)


class GraphedActor:
    """An actor's step as two graphs, between pinned buffers: what players wait for, and what can be noted after."""

    def __init__(self, actor: Actor, stream: torch.cuda.Stream) -> None:
        self.actor, self.stream = actor, stream  # graphs write to an actor's memory, so it must not go
        players = len(actor.epsilon)
        seen = (
            torch.zeros((players, *actor.sight.frame), dtype=actor.stack.dtype),
            torch.zeros(players, dtype=torch.bool),
            torch.zeros(players, dtype=torch.float32),
            torch.zeros(players, dtype=torch.uint8),
        )
        self.host = [buffer.pin_memory() for buffer in seen]
        self.given = [buffer.to(actor.device) for buffer in seen]
        self.actions = torch.zeros(players, dtype=torch.int64).pin_memory()
        self.chosen, self.acted, self.stored = (torch.cuda.Event() for _ in range(3))
        self.choice: Choice
        self.moment: Moment

        def choose() -> None:
            self.choice = actor.choose(*self.given[:2])

        def note() -> None:
            self.moment = actor.note(self.choice, *self.given)

        keep = list(actor.state().values())
        self.choosing = warmed(choose, stream, [actor.generator], keep)
        for part in self.choice:
            part.zero_()  # nothing has been computed into it yet, and trial runs read it
        self.noting = warmed(note, stream, [], keep)

    def act(self, seen: Seen) -> np.ndarray[Any, Any]:
        for buffer, array in zip(self.host, seen, strict=True):
            np.copyto(buffer.numpy(), array)
        self.stream.wait_event(self.stored)
        with torch.cuda.stream(self.stream):
            for buffer, given in zip(self.host, self.given, strict=True):
                given.copy_(buffer, non_blocking=True)
            self.choosing.replay()
            self.actions.copy_(self.choice.action, non_blocking=True)
            self.chosen.record()
            self.noting.replay()
            self.acted.record()
        self.chosen.synchronize()
        return self.actions.numpy()
