"""Training on one machine: two groups of environments take turns, and the learner works while they step.

    recv(A)  act(A)  send(A)  store, learn | recv(B)  act(B)  send(B)  store, learn | recv(A) ...
             group B steps                            group A steps

`LocalEngine.run` is the loop. It calls actors, learner and replay through a backend: `CPUBackend` makes plain calls in
order, so that a run repeats to the last bit; `CUDABackend` replays the same calls as CUDA graphs on two streams.
`Engine` is the interface of every engine; `rbi.online.ray` has another with the same parts.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rbi.checkpoint import Checkpoint, restore_generator
from rbi.envs.types import TimeStep, VectorEnv
from rbi.evaluation.rollouts import EpisodeStatistics, RecentScores
from rbi.gpu import capture, capture_graph
from rbi.networks import CustomTrunk, NetworkConfig, Networks, TrunkFactory, make_networks
from rbi.observations import ObservationSpec, shrink
from rbi.online.apex import ApexActor, ApexLearner, GreedyChoice
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.rbi import Choice, Predictor, RBIActor, RBILearner
from rbi.optim import Peers, bind_parameters, compute_dtype
from rbi.policy import Policy
from rbi.progress import ProcessStatus
from rbi.replay import Replay, Transition
from rbi.returns import exploration_ladder
from rbi.rules.types import Behavior, Greedy, parse_rule

Actor = RBIActor | ApexActor
Learner = RBILearner | ApexLearner

MAX_ENV_SEED = 2**31 - 2**20  # emulators take 31 bits, and each environment has its own seed
LOW_EPSILON = 0.05
LARGE = 2**18  # bytes of an array that take longer to copy than to be asked for their memory


class Engine(Protocol):
    """A training run, whatever runs it. `run` trains; `checkpoint` and `restore` continue it in another process."""

    @property
    def config(self) -> TrainConfig: ...
    @property
    def obs_spec(self) -> ObservationSpec: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def updates(self) -> int:
        """Updates of the networks so far."""

    @property
    def states(self) -> int:
        """Environment steps so far."""

    @property
    def learning_started(self) -> bool:
        """Whether the replay is full enough to learn from."""

    @property
    def recent_scores(self) -> RecentScores: ...

    def run(self) -> Iterator[None]:
        """Train to the end; yields often, so that the caller can log, save and stop."""

    def metrics(self) -> dict[str, Any]:
        """Metrics since the last call."""

    def policy(self) -> Policy:
        """The current policy, as an independent copy on the CPU: with the rule, without exploration."""

    def summary(self) -> dict[str, Any]:
        """What result.json reports about the engine itself."""

    def processes(self) -> list[ProcessStatus]:
        """The processes of a distributed run, with their rates; empty where there are none."""

    def checkpoint(self, *, with_replay: bool) -> Checkpoint:
        """Everything that training changes."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; called before `run`."""


class LocalEngine:
    """A training run on this machine."""

    def __init__(
        self,
        config: TrainConfig,
        seed: int,
        device: torch.device,
        envs: Sequence[VectorEnv],
        trunk: TrunkFactory | None = None,
    ) -> None:
        """`envs`: one vector of environments for each of the two groups; `trunk` makes the networks' trunk."""
        self.config, self.device, self.envs, self.trunk = config, device, envs, trunk
        self.obs_spec = observation_spec(config, envs[0])
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, where float32 is computed in at all
        seeds = run_seeds(seed)
        generators = [torch.Generator(device).manual_seed(s) for s in (*seeds.actors, seeds.learner)]
        self.env_seed = seeds.env
        schedule = config.schedule
        epsilons, low_epsilon = exploration_of(config)
        self.epsilons = split_epsilons(epsilons, GROUPS)
        self.actors = [
            make_actor(config, self.init_networks(seeds.weights), epsilon, generator)
            for epsilon, generator in zip(self.epsilons, generators, strict=False)
        ]
        self.learner = make_learner(config, self.init_networks(seeds.weights), generators[-1])
        self.published = self.learner.vector.clone()
        self.replay = Replay(config.replay, self.obs_spec, schedule.num_envs, GROUPS, config.returns, device)
        self.episodes = [EpisodeStatistics(schedule.num_envs // GROUPS) for _ in range(GROUPS)]
        self.low_epsilon = split_epsilons(low_epsilon, GROUPS)
        self.recent_scores = RecentScores(int(low_epsilon.sum()))
        self.steps, self.states, self.updates_due, self.learning_started = 0, 0, 0.0, False
        self.states_before_learning = schedule.learning_starts
        self.backend: Backend | None = None

    def init_networks(self, seed: int) -> Networks:
        return init_networks(self.config, self.obs_spec, seed, self.trunk)

    @property
    def updates(self) -> int:
        return self.learner.updates

    def run(self) -> Iterator[None]:
        """Train to the end: one step of one group at a time, and the updates that are due after it."""
        schedule = self.config.schedule
        backend, first_steps = self.start()
        while self.updates < schedule.updates:
            group = self.steps % GROUPS
            step = first_steps.pop(group, None) or self.envs[group].recv()
            if self.steps // GROUPS % schedule.refresh_interval == 0:
                backend.refresh(group)
            self.envs[group].send(backend.act(group, step))
            self.record_episodes(group, step)  # from here on, environments of other threads or processes step
            backend.store(group)
            self.steps += 1
            self.states += len(step.is_first)
            self.learn(backend)
            if not first_steps:  # a checkpoint is taken here, and `restore` expects all environments in a step
                yield

    def learn(self, backend: "Backend") -> None:
        """The updates that are due for the new states, with everything that is scheduled by their number."""
        schedule, replay = self.config.schedule, self.config.replay
        per_sample = self.config.learner.updates_per_sample
        if not self.learning_started:
            self.learning_started = self.states >= self.states_before_learning and self.release(backend)
            return
        self.updates_due += schedule.num_envs / GROUPS / schedule.states_per_update
        while self.updates_due >= per_sample and self.updates < schedule.updates and self.learning_started:
            self.updates_due -= per_sample
            backend.learn()
            if self.updates % schedule.publish_interval == 0:
                backend.publish()
            if self.updates == schedule.random_policy_updates:
                backend.set_uniform_policy(False)
            if replay.release_interval and self.updates % replay.release_interval == 0:
                self.learning_started = self.release(backend)
        if replay.store_at_episode_end and not replay.release_interval:
            self.learning_started = self.release(backend)

    def release(self, backend: "Backend") -> bool:
        """Release held-back transitions to the learner; whether there is anything to sample now."""
        backend.release()
        backend.synchronize()
        return bool(self.replay.mass.sum() > 0)

    def start(self) -> "tuple[Backend, dict[int, TimeStep]]":
        """The backend, and the first step of every group; none where restored environments are in the middle of a step.

        Atari games are made and reset in the background, while the backend captures its graphs.
        """
        if self.steps and all(env.pending for env in self.envs):
            return self.start_backend(), {}
        per_group, start = self.config.schedule.num_envs // GROUPS, (self.env_seed + self.steps) % MAX_ENV_SEED
        seeds = [start + group * per_group for group in range(GROUPS)]
        if not self.config.env.is_atari:  # an environment in Python may depend on the thread that it runs in
            return self.start_backend(), {group: env.reset(seeds[group]) for group, env in enumerate(self.envs)}
        with ThreadPoolExecutor(GROUPS) as threads:
            resets = [threads.submit(env.reset, seed) for env, seed in zip(self.envs, seeds, strict=True)]
            backend = self.start_backend()
            return backend, {group: reset.result() for group, reset in enumerate(resets)}

    def start_backend(self) -> "Backend":
        """The backend of this device; on a GPU the first call captures the CUDA graphs."""
        if self.backend is None:
            parts = self.actors, self.learner, self.replay, self.published
            on_gpu = self.device.type == "cuda"
            self.backend = CUDABackend(*parts, self.envs[0].frame_shape) if on_gpu else CPUBackend(*parts)
        self.backend.set_uniform_policy(self.updates < self.config.schedule.random_policy_updates)
        return self.backend

    def record_episodes(self, group: int, step: TimeStep) -> None:
        """Add the scores of finished episodes."""
        for episode in self.episodes[group].update(step):
            self.recent_scores.add(episode, low_epsilon=bool(self.low_epsilon[group][episode.env_index]))

    def synchronize(self) -> None:
        """Wait until the device has finished everything."""
        if self.backend is not None:
            self.backend.synchronize()

    def metrics(self) -> dict[str, Any]:
        """Metrics since the last call. Waits for the device."""
        self.synchronize()
        of_learner = self.learner.metrics()
        of_actors = [metrics for metrics in (actor.metrics() for actor in self.actors) if metrics]
        mass = float(self.replay.mass.sum())
        self.synchronize()  # the sums are zero before anything is added again
        names = of_actors[0] if of_actors else {}
        return {
            "updates": self.updates,
            "states": self.states,
            **self.recent_scores.metrics(),
            **{name: sum(metrics[name] for metrics in of_actors) / len(of_actors) for name in names},
            **of_learner,
            "priority_mean": mass / max(1, min(self.states, self.config.replay.capacity)),
        }

    def policy(self) -> Policy:
        """The current policy, as an independent copy on the CPU: with the rule, without exploration."""
        self.synchronize()
        vector = self.learner.vector.cpu().clone()
        return trained_policy(self.config, self.obs_spec, vector, self.updates, self.states, self.trunk)

    def summary(self) -> dict[str, Any]:
        """Nothing: the local engine has nothing to report about itself."""
        return {}

    def processes(self) -> list[ProcessStatus]:
        """Nothing: everything is in this process."""
        return []

    def generators(self) -> list[torch.Generator]:
        return [*(actor.generator for actor in self.actors), self.learner.generator]

    def checkpoint(self, *, with_replay: bool) -> Checkpoint:
        """Everything that training changes, without a copy of tensors; between two steps of `run`."""
        self.synchronize()
        parts = {"learner": self.learner.state()} | {f"actor{i}": a.state() for i, a in enumerate(self.actors)}
        tensors = {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
        tensors |= {f"random{i}": generator.get_state() for i, generator in enumerate(self.generators())}
        tensors["published"] = self.published
        return Checkpoint(
            kind={"env": self.config.env.id, "algo": self.config.algo, "custom_trunk": self.trunk is not None},
            counters={
                "updates": self.updates,
                "steps": self.steps,
                "states": self.states,
                "updates_due": self.updates_due,
                "learning_started": self.learning_started,
                "states_before_learning": self.states_before_learning,
                "recent_scores": self.recent_scores.state(),
                "episodes": [{"score": e.score.tolist(), "steps": e.steps.tolist()} for e in self.episodes],
                "envs": [env.state() for env in self.envs],
            },
            tensors={"tensors": tensors} | ({"replay": self.replay.state()} if with_replay else {}),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Where environments cannot be restored, new episodes start; where it lacks the
        replay, that is filled again first."""
        counters, tensors, replay = checkpoint.counters, checkpoint.tensors["tensors"], checkpoint.tensors.get("replay")
        if "steps" not in counters:
            raise ValueError("the checkpoint is of --engine ray, not of --engine local")
        self.learner.updates, self.steps, self.states = (counters[k] for k in ("updates", "steps", "states"))
        self.updates_due, self.learning_started = counters["updates_due"], counters["learning_started"]
        self.states_before_learning = counters.get("states_before_learning", self.states_before_learning)
        self.recent_scores.restore(counters["recent_scores"])
        for episodes, saved in zip(self.episodes, counters["episodes"], strict=True):
            episodes.score, episodes.steps = np.array(saved["score"]), np.array(saved["steps"])
        self.learner.restore(without_prefix(tensors, "learner."))
        for i, actor in enumerate(self.actors):
            actor.restore(without_prefix(tensors, f"actor{i}."))
        for i, generator in enumerate(self.generators()):
            restore_generator(generator, tensors[f"random{i}"])
        self.published.copy_(tensors["published"])
        if replay is not None:
            self.replay.restore(dict(replay))
        else:
            self.learning_started = False
            self.states_before_learning = self.states + self.config.schedule.learning_starts
        states = counters.get("envs") or [None]
        if all(states) and all(env.restore(state) for env, state in zip(self.envs, states, strict=True)):
            return
        for group, actor in enumerate(self.actors):
            actor.memory.reset()
            if replay is not None:
                self.replay.truncate(group)


# Backends: how actors, learner and replay are called


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

    def __init__(
        self,
        actors: list[Actor],
        learner: Learner,
        replay: Replay,
        published: Tensor,
        frame_shape: tuple[int, ...],
    ) -> None:
        """`frame_shape`: of the frames that the environments give (`VectorEnv.frame_shape`)."""
        self.actors, self.learner, self.replay, self.published = actors, learner, replay, published
        self.device = learner.device
        self.actor_stream = torch.cuda.Stream(self.device, priority=-1)
        self.learner_stream = torch.cuda.Stream(self.device)
        self.publishing = torch.cuda.Event()
        self.captured = [CapturedActor(actor, self.actor_stream, frame_shape) for actor in actors]
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

    def __init__(
        self,
        actor: Actor,
        stream: torch.cuda.Stream,
        frame_shape: tuple[int, ...] | None = None,
        *,
        blocking: bool = False,
    ) -> None:
        """`frame_shape`: of the given frames, if they are to be shrunk to the actor's observations.

        `blocking`: waiting for the actions leaves the core to others; it takes a little longer to wake up.
        """
        self.actor, self.stream = actor, stream  # the graphs write to the actor's memory, so it must stay alive
        num_envs, shape = len(actor.epsilon), actor.obs_spec.shape
        buffers = (
            torch.zeros((num_envs, *(frame_shape or shape)), dtype=actor.obs_spec.dtype),
            torch.zeros(num_envs, dtype=torch.bool),
            torch.zeros(num_envs, dtype=torch.float32),
            torch.zeros(num_envs, dtype=torch.uint8),
            torch.ones((num_envs, actor.obs_spec.mask_size), dtype=torch.bool),
        )
        self.host = [buffer.pin_memory() for buffer in buffers]
        self.inputs = [buffer.to(actor.device) for buffer in buffers]
        self.obs = self.inputs[0]
        self.actions = torch.zeros(num_envs, dtype=torch.int64).pin_memory()
        self.chosen, self.recorded, self.stored = (torch.cuda.Event(blocking=blocking) for _ in range(3))
        self.choice: Choice | GreedyChoice
        self.transition: Transition

        def choose() -> None:
            frames, is_first, *_, legal = self.inputs
            self.obs = frames if frames.shape[1:] == shape else shrink(frames, shape)
            self.choice = actor.choose(self.obs, is_first, legal)

        def record() -> None:
            self.transition = actor.record(self.choice, self.obs, *self.inputs[1:])  # type: ignore[arg-type] # of the same actor

        keep = list(actor.state().values())
        self.choosing = capture_graph(choose, stream, [actor.generator], keep)
        for part in self.choice:
            part.zero_()  # nothing has been computed into it yet, and warm-up runs read it
        self.recording = capture_graph(record, stream, [], keep)

    def act(self, step: TimeStep) -> np.ndarray[Any, Any]:
        given = [in_locked_pages(array, buffer) for array, buffer in zip(step, self.host, strict=True)]
        self.stream.wait_event(self.stored)
        with torch.cuda.stream(self.stream):
            for array, buffer in zip(given, self.inputs, strict=True):
                buffer.copy_(array, non_blocking=True)
            self.choosing.replay()
            self.actions.copy_(self.choice.action, non_blocking=True)
            self.chosen.record()
            self.recording.replay()
            self.recorded.record()
        self.chosen.synchronize()
        return self.actions.numpy()


def in_locked_pages(array: np.ndarray[Any, Any], buffer: Tensor) -> Tensor:
    """An array in page-locked memory: as it is if it lies there, else copied to a buffer."""
    if array.nbytes >= LARGE and (locked := torch.from_numpy(array)).is_pinned():
        return locked
    np.copyto(buffer.numpy(), array)
    return buffer


Backend = CPUBackend | CUDABackend


# What engines share


class RunSeeds(NamedTuple):
    """The seeds of a run's random streams."""

    actors: list[int]
    learner: int
    env: int
    weights: int


def run_seeds(seed: int, *part: int) -> RunSeeds:
    """The seeds of a run, or of a part of it with its own random streams."""
    *actors, learner, env, weights = (
        np.random.SeedSequence(seed, spawn_key=part).generate_state(GROUPS + 3, np.uint32).tolist()
    )
    return RunSeeds(actors, learner, env >> 1, weights)


def observation_spec(config: TrainConfig, env: VectorEnv) -> ObservationSpec:
    """The observations of an environment as the networks of a run read them, and its actions."""
    scale = env.obs_scale if config.schedule.scale_observations else ()
    return ObservationSpec(env.obs_shape, env.frame_stack, env.num_actions, scale, env.has_action_masks)


def exploration_of(config: TrainConfig) -> tuple[Tensor, Tensor]:
    """The exploration of every environment, and whether it is so low that scores show what the policy can do: no more
    than LOW_EPSILON, or as little as any."""
    actor = config.actor
    epsilons = exploration_ladder(config.schedule.num_envs, actor.epsilon_base, actor.epsilon_exponent)
    return epsilons, epsilons <= max(LOW_EPSILON, float(epsilons.min()))


def split_epsilons(epsilons: Tensor, groups: int) -> list[Tensor]:
    """The exploration (or whether it is low) of each group's environments: every group gets the whole range."""
    return [epsilons[group::groups] for group in range(groups)]


def make_actor(
    config: TrainConfig,
    networks: Networks,
    epsilon: Tensor,
    generator: torch.Generator,
    predictor: Predictor | None = None,
) -> Actor:
    """An actor of the run's algorithm, on the generator's device; `predictor` computes the networks elsewhere."""
    dtype = compute_dtype(generator.device, config.schedule.precision)
    priorities = config.replay.priority_exponent > 0
    steps = round(config.actor.exploration_fraction * config.states / config.schedule.num_envs)
    parts = config.actor, config.returns, networks, epsilon, generator, dtype
    options: dict[str, Any] = {"priorities": priorities, "exploration_steps": steps, "predictor": predictor}
    if config.algo == "apex":
        return ApexActor(*parts, **options)
    return RBIActor(*parts, config.learner.advantage_baseline, **options)


def make_learner(
    config: TrainConfig, networks: Networks, generator: torch.Generator, peers: Peers | None = None
) -> Learner:
    """The learner of the run's algorithm, on the generator's device; one of several with `peers`."""
    dtype, updates = compute_dtype(generator.device, config.schedule.precision), config.schedule.updates
    if config.algo == "apex":
        return ApexLearner(config.learner, networks, generator, dtype, updates, peers)
    return RBILearner(config.learner, config.actor, networks, generator, dtype, updates, peers)


def init_networks(
    config: TrainConfig, obs_spec: ObservationSpec, seed: int, trunk: TrunkFactory | None = None
) -> Networks:
    """The networks of a run, initialised from a seed."""
    network = NetworkConfig(config.schedule.hidden_size, config.schedule.norm)
    networks = make_networks(obs_spec, network, seed, with_policy=config.algo == "rbi", trunk=trunk)
    if buffers := [name for name, _ in networks.named_buffers()]:
        raise ValueError(f"trunk: has a buffer, {buffers[0]}; online training publishes parameters only")
    if isinstance(networks.q.trunk, CustomTrunk) and networks.q.trunk.is_random():
        raise ValueError(
            "trunk: the same states have other features in each call, as with dropout, which would disturb actors and "
            "targets, too, and which no seed repeats"
        )
    return networks


def trained_policy(
    config: TrainConfig,
    obs_spec: ObservationSpec,
    vector: Tensor,
    updates: int,
    states: int,
    trunk: TrunkFactory | None = None,
) -> Policy:
    """A policy with trained weights: with the rule, without exploration."""
    # initial weights of images' networks take as long as a hundred updates, and are replaced
    with torch.device("meta") if trunk is None else contextlib.nullcontext():
        networks = init_networks(config, obs_spec, 0, trunk)
    if trunk is None:
        networks = networks.to_empty(device="cpu")
    bind_parameters(networks, vector)
    if config.actor.reward_unit != 1:
        networks.q.scale_outputs(config.actor.reward_unit)
    about = {"algo": config.algo, "updates": updates, "states": states}
    rule, c_greedy = parse_rule(config.actor.rule), config.actor.c_greedy
    if config.algo == "apex" or config.actor.improve_in == "learner":
        rule, c_greedy = Greedy() if config.algo == "apex" else Behavior(), 0.0
    baseline = config.learner.advantage_baseline
    return Policy(networks, rule, c_greedy, env=config.env.id, metadata=about, advantage_baseline=baseline)


def without_prefix(tensors: Any, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names have the prefix, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
