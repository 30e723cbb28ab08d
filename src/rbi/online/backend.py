"""How engines call actors, learner and replay: plain calls on a CPU, CUDA graphs on a GPU.

`CPUBackend` makes plain calls in order, so that a run repeats to the last bit; `CUDABackend` replays the same calls as
CUDA graphs on two streams. Learner processes of other engines (`rbi.online.stream`) use its learner half.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rbi.envs.types import TimeStep
from rbi.gpu import capture, capture_graph
from rbi.online.apex import ApexActor, ApexLearner, GreedyChoice
from rbi.online.rbi import Choice, RBIActor, RBILearner
from rbi.replay import Replay, Transition

Actor = RBIActor | ApexActor
Learner = RBILearner | ApexLearner


class CPUBackend:
    """Plain calls of actors, learner and replay, in order: a run repeats to the last bit."""

    def __init__(self, actors: list[Actor], learner: Learner, replay: Replay, published: Tensor) -> None:
        self.actors, self.learner, self.replay, self.published = actors, learner, replay, published
        self.transitions: list[Transition | None] = [None] * len(actors)

    def act(self, group: int, step: TimeStep) -> np.ndarray[Any, Any]:
        """Actions for a group's newest observations."""
        transition = self.actors[group].act(*(torch.from_numpy(np.ascontiguousarray(array)) for array in step))
        self.transitions[group] = transition
        return transition.action.numpy()

    def store(self, group: int) -> None:
        """Add the transitions of the group's last `act` to the replay."""
        transition = self.transitions[group]
        assert transition is not None
        self.replay.add(group, transition)

    def learn(self) -> None:
        """Sample once and do the updates."""
        self.learner.learn(self.replay)
        self.learner.advance()

    def publish(self) -> None:
        """Publish the learner's weights."""
        self.published.copy_(self.learner.vector)

    def refresh(self, group: int) -> None:
        """Load the published weights into a group's actor."""
        self.actors[group].load(self.published)

    def set_uniform_policy(self, uniform: bool) -> None:
        """Let all actors follow the uniform policy, or their own."""
        for actor in self.actors:
            actor.uniform.fill_(uniform)

    def release(self) -> None:
        """Release held-back transitions to the learner."""
        self.replay.release()

    def synchronize(self) -> None:
        """Nothing to wait for."""


class CUDABackend:
    """The same calls as CUDA graphs, captured once and replayed, on two streams:

        actor's stream     upload frames, choose, download actions, record    high priority: never queues behind updates
        learner's stream   store, learn, learn, ..., publish                  all access to the replay: nothing races

    The host waits for nothing but the actions. An actor's buffers are overwritten only after the learner's stream has
    stored their contents, which also keeps actors from running ahead of the learner by more than one step each.
    """

    def __init__(self, actors: list[Actor], learner: Learner, replay: Replay, published: Tensor) -> None:
        self.actors, self.learner, self.replay, self.published = actors, learner, replay, published
        self.device = learner.device
        self.actor_stream = torch.cuda.Stream(self.device, priority=-1)
        self.learner_stream = torch.cuda.Stream(self.device)
        self.publishing = torch.cuda.Event()
        self.captured = [CapturedActor(actor, self.actor_stream) for actor in actors]
        self.stores = [
            capture(lambda g=g, actor=actor: replay.add(g, actor.transition), self.learner_stream, [])  # type: ignore[misc]
            for g, actor in enumerate(self.captured)
        ]
        self.update = capture_learner(learner, replay, self.learner_stream)

    def act(self, group: int, step: TimeStep) -> np.ndarray[Any, Any]:
        return self.captured[group].act(step)

    def store(self, group: int) -> None:
        actor = self.captured[group]
        self.learner_stream.wait_event(actor.recorded)
        with torch.cuda.stream(self.learner_stream):
            self.stores[group].replay()
            actor.stored.record()

    def learn(self) -> None:
        with torch.cuda.stream(self.learner_stream):
            self.update.replay()
            self.learner.advance()

    def publish(self) -> None:
        with torch.cuda.stream(self.learner_stream):
            self.learner_stream.wait_stream(self.actor_stream)  # a refresh may still be reading
            self.published.copy_(self.learner.vector)
            self.publishing.record()

    def refresh(self, group: int) -> None:
        self.actor_stream.wait_event(self.publishing)
        with torch.cuda.stream(self.actor_stream):
            self.actors[group].load(self.published)

    def set_uniform_policy(self, uniform: bool) -> None:
        with torch.cuda.stream(self.actor_stream):
            for actor in self.actors:
                actor.uniform.fill_(uniform)

    def release(self) -> None:
        with torch.cuda.stream(self.learner_stream):
            self.replay.release()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


def capture_learner(learner: Learner, replay: Replay, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """`learner.learn(replay)` as a CUDA graph, for a learner and a replay on the same GPU."""
    keep = [*learner.state().values(), learner.weights.compute_vector, replay.priority, replay.mass]
    return capture_graph(lambda: learner.learn(replay), stream, [learner.generator], keep)


class CapturedActor:
    """An actor's step as two CUDA graphs between pinned buffers: the actions, which environments wait for, and the
    transition for the replay."""

    def __init__(self, actor: Actor, stream: torch.cuda.Stream, *, blocking: bool = False) -> None:
        """`blocking`: waiting for the actions leaves the core to others; it takes a little longer to wake up."""
        self.actor, self.stream = actor, stream  # the graphs write to the actor's memory, so it must stay alive
        num_envs = len(actor.epsilon)
        buffers = (
            torch.zeros((num_envs, *actor.obs_spec.shape), dtype=actor.obs_spec.dtype),
            torch.zeros(num_envs, dtype=torch.bool),
            torch.zeros(num_envs, dtype=torch.float32),
            torch.zeros(num_envs, dtype=torch.uint8),
            torch.ones((num_envs, actor.obs_spec.mask_size), dtype=torch.bool),
        )
        self.host = [buffer.pin_memory() for buffer in buffers]
        self.inputs = [buffer.to(actor.device) for buffer in buffers]
        self.actions = torch.zeros(num_envs, dtype=torch.int64).pin_memory()
        self.chosen, self.recorded, self.stored = (torch.cuda.Event(blocking=blocking) for _ in range(3))
        self.choice: Choice | GreedyChoice
        self.transition: Transition

        def choose() -> None:
            obs, is_first, *_, legal = self.inputs
            self.choice = actor.choose(obs, is_first, legal)

        def record() -> None:
            self.transition = actor.record(self.choice, *self.inputs)  # type: ignore[arg-type] # of the same actor

        keep = list(actor.state().values())
        self.choosing = capture_graph(choose, stream, [actor.generator], keep)
        for part in self.choice:
            part.zero_()  # nothing has been computed into it yet, and warm-up runs read it
        self.recording = capture_graph(record, stream, [], keep)

    def act(self, step: TimeStep) -> np.ndarray[Any, Any]:
        for buffer, array in zip(self.host, step, strict=True):
            np.copyto(buffer.numpy(), array)
        self.stream.wait_event(self.stored)
        with torch.cuda.stream(self.stream):
            for buffer, given in zip(self.host, self.inputs, strict=True):
                given.copy_(buffer, non_blocking=True)
            self.choosing.replay()
            self.actions.copy_(self.choice.action, non_blocking=True)
            self.chosen.record()
            self.recording.replay()
            self.recorded.record()
        self.chosen.synchronize()
        return self.actions.numpy()
