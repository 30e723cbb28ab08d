"""What a training run looks like from outside, whatever engine runs it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rbi import envs
from rbi.checkpoint import draw_on
from rbi.envs.types import TimeStep, VectorEnv
from rbi.evaluation.rollouts import EpisodeStatistics, RecentScores
from rbi.gpu.streams import capture, warmed
from rbi.networks import NetworkConfig, Networks, make_networks
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.rbi import Actor, Choice, Learner, ladders
from rbi.optim import attach, computing_dtype
from rbi.policy import Policy
from rbi.replay import Replay, Transition
from rbi.returns import exploration_ladder
from rbi.rules.types import Behavior, Greedy, parse_rule


class Counted(Protocol):
    """A learner, to those who only count."""

    updates: int


class Kept(Protocol):
    """A replay, to those who only save it."""

    def state(self) -> Mapping[str, torch.Tensor]: ...


class Engine(Protocol):
    """A training run: `ticks` runs it; to be saved are `tensors`, `counters`, replay and worlds."""

    @property
    def plan(self) -> TrainConfig: ...
    @property
    def obs_spec(self) -> ObservationSpec: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def learner(self) -> Counted: ...
    @property
    def replay(self) -> Kept: ...
    @property
    def worlds(self) -> Sequence[VectorEnv]: ...
    @property
    def recent(self) -> RecentScores: ...
    @property
    def states(self) -> int: ...
    @property
    def started(self) -> bool: ...

    def ticks(self) -> Iterator[None]:
        """Train to the end, a little each time."""

    def metrics(self) -> dict[str, Any]:
        """What there is to say since the last call."""

    def policy(self) -> Policy:
        """What has been learned, as a policy of its own on the CPU."""

    def summary(self) -> dict[str, Any]:
        """What the result says of the engine itself."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the run but the replay's."""

    def counters(self) -> dict[str, Any]:
        """All numbers of the run."""

    def restore(
        self,
        counters: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        replay: dict[str, torch.Tensor] | None,
        worlds: list[bytes] | None,
    ) -> None:
        """Go on from a saved run, before the first tick."""


# ---- from rbi.engines.plain: Actors, learner and replay called one after the other: the local engine on a processor.


class PlainCalls:
    """Plain calls in order, so that a run is the same to the last bit each time."""

    def __init__(self, actors: list[Actor], learner: Learner, replay: Replay, published: torch.Tensor) -> None:
        self.actors, self.learner, self.replay, self.published = actors, learner, replay, published
        self.moments: list[Transition | None] = [None] * len(actors)

    def act(self, group: int, seen: TimeStep) -> np.ndarray[Any, Any]:
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
        self.replay.release()

    def settle(self) -> None:
        """Wait until everything that was asked for is done."""


# ---- from rbi.engines.graphed: Actors, learner and replay as CUDA graphs on two streams: the local engine on a GPU.
#
#     actor's stream     upload frames, choose, download actions, note     high priority: it never queues behind updates
#     learner's stream   store, learn, learn, ..., publish                 all access to the replay, so nothing races
#
# The host waits for nothing but the actions. An actor's buffers are written again only when the learner's stream has
# stored what they held, which also keeps the actors from running ahead of the learner by more than one step each.


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

    def act(self, group: int, seen: TimeStep) -> np.ndarray[Any, Any]:
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
            self.replay.release()

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)


class GraphedActor:
    """An actor's step as two graphs, between pinned buffers: what players wait for, and what can be noted after."""

    def __init__(self, actor: Actor, stream: torch.cuda.Stream) -> None:
        self.actor, self.stream = actor, stream  # graphs write to an actor's memory, so it must not go
        players = len(actor.epsilon)
        seen = (
            torch.zeros((players, *actor.obs_spec.shape), dtype=actor.stack.dtype),
            torch.zeros(players, dtype=torch.bool),
            torch.zeros(players, dtype=torch.float32),
            torch.zeros(players, dtype=torch.uint8),
        )
        self.host = [buffer.pin_memory() for buffer in seen]
        self.given = [buffer.to(actor.device) for buffer in seen]
        self.actions = torch.zeros(players, dtype=torch.int64).pin_memory()
        self.chosen, self.acted, self.stored = (torch.cuda.Event() for _ in range(3))
        self.choice: Choice
        self.moment: Transition

        def choose() -> None:
            self.choice = actor.choose(*self.given[:2])

        def note() -> None:
            self.moment = actor.note(self.choice, *self.given)

        keep = list(actor.state().values())
        self.choosing = warmed(choose, stream, [actor.generator], keep)
        for part in self.choice:
            part.zero_()  # nothing has been computed into it yet, and trial runs read it
        self.noting = warmed(note, stream, [], keep)

    def act(self, seen: TimeStep) -> np.ndarray[Any, Any]:
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


# ---- from rbi.engines.local: One machine: two groups of environments take turns, and the learner works while they move.
#
#     recv(A)  act(A)  send(A)  store, learn | recv(B)  act(B)  send(B)  store, learn | recv(A) ...
#              environments of B move              environments of A move
#
# Actors, learner and replay are the same objects that other engines use. On a GPU they are replayed as CUDA graphs;
# on a processor they are plain calls, and a run is the same to the last bit each time.

MOST_SEED = 2**31 - 2**20  # the emulator takes 31 bits, one seed a player
CAREFUL = 0.05  # a player that explores no more than this shows what the policy can do


class LocalEngine:
    """A training run on this machine. `ticks` runs it; to be saved are `tensors`, `counters`, replay and worlds."""

    def __init__(self, plan: TrainConfig, seed: int, device: torch.device, worlds: list[envs.VectorEnv]) -> None:
        self.plan, self.device, self.worlds = plan, device, worlds
        first = worlds[0]
        self.obs_spec = ObservationSpec(first.obs_shape, first.frame_stack, first.num_actions)
        dtype = computing_dtype(device, plan.schedule.precision)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, where float32 is computed in at all
        schedule, acting = plan.schedule, plan.actor
        seeds = seeds_of(seed)
        generators = [torch.Generator(device).manual_seed(s) for s in (*seeds.actors, seeds.learner)]
        self.env_seed = seeds.env

        def networks() -> Networks:
            return drawn_for(plan, self.obs_spec, seeds.weights)

        ladder = exploration_ladder(schedule.num_envs, acting.epsilon_base, acting.epsilon_exponent)
        self.epsilon = ladders(ladder, GROUPS)
        self.actors = [
            Actor(acting, networks(), epsilon, plan.returns, generator, dtype, plan.learner.advantage_baseline)
            for epsilon, generator in zip(self.epsilon, generators, strict=False)
        ]
        self.learner = Learner(plan.learner, acting, networks(), generators[-1], dtype, schedule.updates)
        self.published = self.learner.vector.clone()
        self.replay = Replay(plan.replay, self.obs_spec, schedule.num_envs, GROUPS, plan.returns, device)
        self.scores = [EpisodeStatistics(schedule.num_envs // GROUPS) for _ in range(GROUPS)]
        self.recent = RecentScores(int((ladder <= CAREFUL).sum()))
        self.tick, self.states, self.owed, self.started = 0, 0, 0.0, False
        self.refill = schedule.learning_starts
        self.calls: PlainCalls | GraphedCalls | None = None

    def ticks(self) -> Iterator[None]:
        """Train to the end: one step of one group each time, and the updates that it pays for."""
        calls = self.ready()
        seen = self.opening()
        while self.learner.updates < self.plan.schedule.updates:
            group = self.tick % GROUPS
            now = seen.pop(group, None) or self.worlds[group].recv()
            if self.tick // GROUPS % self.plan.schedule.refresh_interval == 0:
                calls.refresh(group)
            self.worlds[group].send(calls.act(group, now))
            self.watch(group, now)  # all that players need not wait for comes after
            calls.store(group)
            self.tick += 1
            self.states += len(now.is_first)
            self.learn(calls)
            yield

    def ready(self) -> PlainCalls | GraphedCalls:
        """How actors and learner are called on this device."""
        if self.calls is None:
            kind = GraphedCalls if self.device.type == "cuda" else PlainCalls
            self.calls = kind(self.actors, self.learner, self.replay, self.published)
        uniform = self.learner.updates < self.plan.schedule.random_policy_updates
        self.calls.act_uniformly(uniform)
        return self.calls

    def opening(self) -> dict[int, envs.TimeStep]:
        """First frames of new episodes, where no restored environment is in the middle of a step."""
        if self.tick and all(world.pending for world in self.worlds):
            return {}
        each, start = self.plan.schedule.num_envs // GROUPS, (self.env_seed + self.tick) % MOST_SEED
        return {group: world.reset(start + group * each) for group, world in enumerate(self.worlds)}

    def watch(self, group: int, seen: envs.TimeStep) -> None:
        if not np.isfinite(seen.reward).all() or not (self.obs_spec.is_image or np.isfinite(seen.obs).all()):
            raise ValueError(f"--env {self.plan.env.id}: gave a reward or an observation that is not a finite number")
        for episode in self.scores[group].update(seen):
            self.recent.add(episode, low_epsilon=bool(self.epsilon[group][episode.env_index] <= CAREFUL))

    def learn(self, calls: PlainCalls | GraphedCalls) -> None:
        """The updates that the new states pay for."""
        schedule, round_, reveals = (
            self.plan.schedule,
            self.plan.learner.updates_per_sample,
            self.plan.replay.release_interval,
        )
        if not self.started:
            self.started = self.states >= self.refill and self.reveal(calls)
            return
        self.owed += self.plan.schedule.num_envs / GROUPS / schedule.states_per_update
        while self.owed >= round_ and self.learner.updates < schedule.updates and self.started:
            self.owed -= round_
            calls.learn()
            calls.passed()
            updates = self.learner.updates
            if updates % schedule.publish_interval == 0:
                calls.publish()
            if updates == schedule.random_policy_updates:
                calls.act_uniformly(False)
            if reveals and updates % reveals == 0:
                self.started = self.reveal(calls)
        if self.plan.replay.store_at_episode_end and not reveals:
            self.started = self.reveal(calls)

    def reveal(self, calls: PlainCalls | GraphedCalls) -> bool:
        """Let the learner see what was held back; whether there is anything to draw now."""
        calls.reveal()
        calls.settle()
        return bool(self.replay.mass.sum() > 0)

    def metrics(self) -> dict[str, Any]:
        """What there is to say since the last call. Waits for the device."""
        self.settle()
        learning = self.learner.metrics()
        acting = [told for told in (actor.metrics() for actor in self.actors) if told]
        mass = float(self.replay.mass.sum())
        self.settle()  # sums are zero before anything is added again
        return {
            "updates": self.learner.updates,
            "states": self.states,
            **self.recent.metrics(),
            **{name: sum(told[name] for told in acting) / len(acting) for name in (acting[0] if acting else {})},
            **learning,
            "priority_mean": mass / max(1, min(self.states, self.plan.replay.capacity)),
        }

    def policy(self) -> Policy:
        """What has been learned, as a policy of its own on the CPU: with the rule, without exploration."""
        self.settle()
        return policy_of(self.plan, self.obs_spec, self.learner.vector.cpu().clone(), self.learner.updates, self.states)

    def summary(self) -> dict[str, Any]:
        """What the result says of the engine itself: nothing here."""
        return {}

    def settle(self) -> None:
        if self.calls is not None:
            self.calls.settle()

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of the run but the replay's, without a copy; random states among them."""
        self.settle()
        parts = {"learner": self.learner.state()} | {f"actor{i}": a.state() for i, a in enumerate(self.actors)}
        named = {f"{part}.{name}": t for part, state in parts.items() for name, t in state.items()}
        generators = [*(actor.generator for actor in self.actors), self.learner.generator]
        random = {f"random{i}": generator.get_state() for i, generator in enumerate(generators)}
        return named | random | {"published": self.published}

    def counters(self) -> dict[str, Any]:
        """All numbers of the run."""
        return {
            "updates": self.learner.updates,
            "tick": self.tick,
            "states": self.states,
            "owed": self.owed,
            "started": self.started,
            "recent": self.recent.state(),
            "scores": [{"score": s.score.tolist(), "steps": s.steps.tolist()} for s in self.scores],
        }

    def restore(
        self,
        counters: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        replay: dict[str, torch.Tensor] | None,
        worlds: list[bytes] | None,
    ) -> None:
        """Go on from a saved run, before the first tick. Without environments' states, players start new episodes."""
        self.learner.updates, self.tick, self.states = (counters[k] for k in ("updates", "tick", "states"))
        self.owed, self.started = counters["owed"], counters["started"]
        self.recent.restore(counters["recent"])
        for scores, saved in zip(self.scores, counters["scores"], strict=True):
            scores.score, scores.steps = np.array(saved["score"]), np.array(saved["steps"])
        self.learner.restore(part_of(tensors, "learner."))
        for i, actor in enumerate(self.actors):
            actor.restore(part_of(tensors, f"actor{i}."))
        for i, generator in enumerate([*(actor.generator for actor in self.actors), self.learner.generator]):
            draw_on(generator, tensors[f"random{i}"])
        self.published.copy_(tensors["published"])
        if replay is not None:
            self.replay.load(replay)
        else:
            self.started = False  # the replay must fill up again first
            self.refill = self.states + self.plan.schedule.learning_starts
        if worlds is not None:
            for world, state in zip(self.worlds, worlds, strict=True):
                world.restore(state)
            return
        for group, actor in enumerate(self.actors):
            actor.forget()
            if replay is not None:
                self.replay.cut(group)


class Seeds(NamedTuple):
    """Where the random numbers of a run come from."""

    actors: list[int]
    learner: int
    env: int
    weights: int


def seeds_of(seed: int, *part: int) -> Seeds:
    """The seeds of a run, or of a part of it that draws by itself."""
    *actors, learner, env, weights = (
        np.random.SeedSequence(seed, spawn_key=part).generate_state(GROUPS + 3, np.uint32).tolist()
    )
    return Seeds(actors, learner, env >> 1, weights)


def drawn_for(plan: TrainConfig, obs_spec: ObservationSpec, seed: int) -> Networks:
    """The networks that a run learns, drawn from a seed."""
    schedule = plan.schedule
    config = NetworkConfig(schedule.hidden_size, schedule.norm)
    return make_networks(obs_spec, config, seed, with_policy=plan.learns_policy)


def policy_of(plan: TrainConfig, obs_spec: ObservationSpec, vector: torch.Tensor, updates: int, states: int) -> Policy:
    """Weights as a policy of its own: with the rule, without exploration."""
    networks = drawn_for(plan, obs_spec, 0)
    attach(networks, vector)
    about = {"algo": plan.algo, "updates": updates, "states": states}
    env = plan.env.id
    if not plan.learns_policy:
        return Policy(networks, Greedy(), env=env, about=about)
    if plan.actor.improve_in == "learner":
        return Policy(networks, Behavior(), env=env, about=about)
    return Policy(networks, parse_rule(plan.actor.rule), plan.actor.c_greedy, env=env, about=about)


def part_of(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names start so, without that start."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
