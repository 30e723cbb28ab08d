"""Training on one machine: two groups of environments take turns, and the learner works while they step.

    recv(A)  act(A)  send(A)  store, learn | recv(B)  act(B)  send(B)  store, learn | recv(A) ...
             group B steps                            group A steps

`LocalEngine.run` is the loop. Actors, learner and replay are called through a backend: plain calls on a CPU, CUDA
graphs on a GPU. `Engine` is the interface of every engine; `rbi.online.ray` has another with the same parts.
"""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rbi.checkpoint import Checkpoint, restore_generator
from rbi.envs.types import TimeStep, VectorEnv
from rbi.evaluation.rollouts import EpisodeStatistics, RecentScores
from rbi.networks import NetworkConfig, Networks, TrunkFactory, make_networks
from rbi.observations import ObservationSpec
from rbi.online.apex import ApexActor, ApexLearner
from rbi.online.backend import Actor, CPUBackend, CUDABackend, Learner
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.rbi import Predictor, RBIActor, RBILearner
from rbi.optim import Peers, bind_parameters, compute_dtype
from rbi.policy import Policy
from rbi.progress import ProcessStatus
from rbi.replay import Replay
from rbi.returns import exploration_ladder
from rbi.rules.types import Behavior, Greedy, parse_rule

MAX_ENV_SEED = 2**31 - 2**20  # emulators take 31 bits, and each environment has its own seed
LOW_EPSILON = 0.05
DROPOUT = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.AlphaDropout | nn.FeatureAlphaDropout


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
        schedule, actor = config.schedule, config.actor
        epsilons = exploration_ladder(schedule.num_envs, actor.epsilon_base, actor.epsilon_exponent)
        self.epsilons = split_epsilons(epsilons, GROUPS)
        self.actors = [
            make_actor(config, self.init_networks(seeds.weights), epsilon, generator)
            for epsilon, generator in zip(self.epsilons, generators, strict=False)
        ]
        self.learner = make_learner(config, self.init_networks(seeds.weights), generators[-1])
        self.published = self.learner.vector.clone()
        self.replay = Replay(config.replay, self.obs_spec, schedule.num_envs, GROUPS, config.returns, device)
        self.episodes = [EpisodeStatistics(schedule.num_envs // GROUPS) for _ in range(GROUPS)]
        self.low_epsilon = split_epsilons(has_low_epsilon(epsilons), GROUPS)
        self.recent_scores = RecentScores(int(has_low_epsilon(epsilons).sum()))
        self.steps, self.states, self.updates_due, self.learning_started = 0, 0, 0.0, False
        self.states_before_learning = schedule.learning_starts
        self.backend: CPUBackend | CUDABackend | None = None

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

    def learn(self, backend: CPUBackend | CUDABackend) -> None:
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

    def release(self, backend: CPUBackend | CUDABackend) -> bool:
        """Release held-back transitions to the learner; whether there is anything to sample now."""
        backend.release()
        backend.synchronize()
        return bool(self.replay.mass.sum() > 0)

    def start(self) -> tuple[CPUBackend | CUDABackend, dict[int, TimeStep]]:
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

    def start_backend(self) -> CPUBackend | CUDABackend:
        """The backend of this device; on a GPU the first call captures the CUDA graphs."""
        if self.backend is None:
            backend = CUDABackend if self.device.type == "cuda" else CPUBackend
            self.backend = backend(self.actors, self.learner, self.replay, self.published)
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


def split_epsilons(epsilons: Tensor, groups: int) -> list[Tensor]:
    """The exploration (or whether it is low) of each group's environments: every group gets the whole range."""
    return [epsilons[group::groups] for group in range(groups)]


def has_low_epsilon(epsilons: Tensor) -> Tensor:
    """Which of all environments explore so little that their scores show what the policy can do: no more than
    LOW_EPSILON, or as little as any."""
    return epsilons <= max(LOW_EPSILON, float(epsilons.min()))


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
    if any(isinstance(module, DROPOUT) for module in networks.modules()):
        raise ValueError("trunk: has dropout, which would disturb actors and targets, too, and which no seed repeats")
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
    about = {"algo": config.algo, "updates": updates, "states": states}
    rule, c_greedy = parse_rule(config.actor.rule), config.actor.c_greedy
    if config.algo == "apex" or config.actor.improve_in == "learner":
        rule, c_greedy = Greedy() if config.algo == "apex" else Behavior(), 0.0
    baseline = config.learner.advantage_baseline
    return Policy(networks, rule, c_greedy, env=config.env.id, metadata=about, advantage_baseline=baseline)


def without_prefix(tensors: Any, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names have the prefix, under the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
