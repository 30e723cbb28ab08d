"""Rollouts of distributed runs: environments and actors that make blocks of experience, and batched inference.

`Rollout` is what a rollout worker does, in whatever process it runs. Its actors compute the networks themselves, on a
GPU as the local engine's CUDA graphs, or ask a `BatchedNetworks` in another process, which serves several workers with
one computation.
"""

import contextlib
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi import envs
from rbi.envs.types import TimeStep
from rbi.evaluation.rollouts import EpisodeStatistics, Protocol, run_episodes
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import (
    MAX_ENV_SEED,
    Actor,
    CapturedActor,
    exploration_of,
    init_networks,
    make_actor,
    run_seeds,
    split_epsilons,
    trained_policy,
)
from rbi.online.rbi import ActorNetworks, Predictor
from rbi.online.stream import Array, ExperienceBlock, as_tensor
from rbi.optim import compute_dtype
from rbi.replay import Transition

CPU = torch.device("cpu")
LOW_PRIORITY = 10  # of evaluations: everything else comes first


class BlockSummary(NamedTuple):
    """What the driver needs to know about a block; the block itself goes to a replay."""

    states: int
    bytes: int
    version: int
    """Number of updates of the weights that were used last."""
    episodes: list[tuple[int, float, bool]]
    """Environment index, score and whether its epsilon is low, of every finished episode."""
    sums: list[list[float]]
    """Sums of each group's actor metrics (`Actor.sums`)."""


@dataclass(frozen=True)
class RolloutSpec:
    """The arguments of a rollout worker: the run, and its share of the environments."""

    config: TrainConfig
    obs_spec: ObservationSpec
    seed: int
    index: int = 0
    """Which of the workers it is; they share the environments."""
    workers: int = 1
    threads: int = 1
    """Threads that step its environments, where the schedule does not say; groups that step at once share them."""
    device: torch.device = CPU
    """Where its actors compute."""


class Rollout:
    """Environments and actors of one worker, in two alternating groups."""

    def __init__(self, spec: RolloutSpec, predictor: Predictor | None = None) -> None:
        """`predictor` computes the networks; by default the actors do."""
        self.config, self.obs_spec, self.seed, self.index = spec.config, spec.obs_spec, spec.seed, spec.index
        self.device, self.predictor = spec.device, predictor
        config, workers, device = spec.config, spec.workers, spec.device
        schedule = config.schedule
        self.envs_per_group = schedule.num_envs // workers // GROUPS
        # environments step while the actions of the other group are computed elsewhere
        waits = device.type == "cuda" or predictor is not None
        threads = schedule.env_threads or (-(-spec.threads // GROUPS) if waits else spec.threads)  # of each group
        processes = schedule.env_processes
        self.envs = [
            envs.make(config.env, self.envs_per_group, threads, processes=processes, synchronous=not waits)
            for _ in range(GROUPS)
        ]
        own = slice(GROUPS * spec.index, GROUPS * (spec.index + 1))
        self.epsilons, self.low_epsilon = (
            split_epsilons(of_all, GROUPS * workers)[own] for of_all in exploration_of(config)
        )
        self.step, self.version = -1, 0
        self.loaded = [-1] * GROUPS  # the version of each group's weights
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.actors: list[Actor] = []
        self.captured: list[CapturedActor] = []
        self.episodes: list[EpisodeStatistics] = []
        self.first_steps: dict[int, TimeStep] = {}

    def block(
        self, start: int, steps: int, reset: bool, newest: Tensor | None, version: int, uniform: bool
    ) -> tuple[ExperienceBlock, BlockSummary] | None:
        """The next block, from step `start` on; `reset` starts new episodes. `newest`: weights of `version`, if they
        are to be loaded. Returns None if this is a new process that cannot continue from `start`."""
        if not reset and start != self.step:
            return None
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            if newest is not None:
                newest = newest.to(self.device)  # once for both groups; a copy would convert them on this CPU
            if reset:
                self.reset(start)
            for group, actor in enumerate(self.actors):
                actor.uniform.fill_(uniform)
                if reset and newest is not None:
                    self.load(group, newest, version)
            block, finished = self.rollout(steps, newest, version)
            sums = [actor.sums.tolist() for actor in self.actors]
            for actor in self.actors:
                actor.sums.zero_()
        size = sum(column.nbytes for column in block)
        return block, BlockSummary(steps * self.envs_per_group, size, self.version, finished, sums)

    def rollout(
        self, steps: int, newest: Tensor | None, version: int
    ) -> tuple[ExperienceBlock, list[tuple[int, float, bool]]]:
        """The transitions of some steps, and the episodes that ended."""
        block, finished = ExperienceBlock.empty(self.obs_spec, steps, self.envs_per_group), []
        computed = [as_tensor(column) for column in block[1:]]  # all but the frames
        if self.stream is not None:  # copied from the GPU without waiting for it
            computed = [torch.empty_like(column, pin_memory=True) for column in computed]
        for at in range(steps):
            group = self.step % GROUPS
            now = self.first_steps.pop(group, None) or self.envs[group].recv()
            finished += self.finished_episodes(group, now)
            refreshes = self.step // GROUPS % self.config.schedule.refresh_interval == 0
            if newest is not None and refreshes and self.loaded[group] != version:
                self.load(group, newest, version)
            actions, transition = self.act(group, now)
            self.envs[group].send(actions)
            block.obs[at] = now.obs
            for column, values in zip(computed, transition[1:], strict=True):
                column[at].copy_(values, non_blocking=True)
            self.step += 1
        if self.stream is not None:
            copied = torch.cuda.Event(blocking=True)
            copied.record()
            copied.synchronize()
            for array, column in zip(block[1:], computed, strict=True):
                np.copyto(array, column.numpy())
        return block, finished

    def reset(self, start: int) -> None:
        """Start new episodes with new actors. The first worker of a run draws the local engine's random numbers."""
        seeds = run_seeds(self.seed)
        first = self.index == 0 and start == 0
        own = seeds if first else run_seeds(self.seed, self.index, start)
        terminated = [int(actor.memory.terminated) for actor in self.actors] or [0] * GROUPS  # in a new process
        self.actors = [
            make_actor(
                self.config,
                init_networks(self.config, self.obs_spec, seeds.weights),
                epsilon,
                torch.Generator(self.device).manual_seed(actor_seed),
                self.predictor,
            )
            for epsilon, actor_seed in zip(self.epsilons, own.actors, strict=True)
        ]
        for actor, count in zip(self.actors, terminated, strict=True):
            actor.memory.steps.fill_(start // GROUPS)
            actor.memory.terminated.fill_(count)  # or actions would be repeated again, see `repeat_episodes`
        if self.stream is not None:
            self.captured = [CapturedActor(actor, self.stream, blocking=True) for actor in self.actors]
        self.episodes = [EpisodeStatistics(self.envs_per_group) for _ in range(GROUPS)]
        num_envs = self.config.schedule.num_envs
        env_seed = (seeds.env + start * num_envs + self.index * GROUPS * self.envs_per_group) % MAX_ENV_SEED
        self.first_steps = {g: env.reset(env_seed + g * self.envs_per_group) for g, env in enumerate(self.envs)}
        self.step, self.version, self.loaded = start, 0, [-1] * GROUPS

    def load(self, group: int, newest: Tensor, version: int) -> None:
        """Give a group's actor weights that it does not have yet."""
        self.actors[group].load(newest)
        self.loaded[group] = self.version = version

    def act(self, group: int, now: TimeStep) -> tuple[Array, Transition]:
        """The actions for a group's newest observations, and the transitions, which a GPU may still be computing."""
        if self.captured:
            return self.captured[group].act(now), self.captured[group].transition
        transition = self.actors[group].act(*(torch.from_numpy(np.ascontiguousarray(array)) for array in now))
        return transition.action.numpy(), transition

    def finished_episodes(self, group: int, now: TimeStep) -> list[tuple[int, float, bool]]:
        finished = self.episodes[group].update(now)
        return [(e.env_index, e.score, bool(self.low_epsilon[group][e.env_index])) for e in finished]


class BatchedNetworks:
    """Networks that several threads ask at once: requests that arrive during a computation share the next one."""

    def __init__(self, config: TrainConfig, obs_spec: ObservationSpec, device: torch.device) -> None:
        dtype = compute_dtype(device, config.schedule.precision)
        self.networks, self.device = ActorNetworks(init_networks(config, obs_spec, 0), device, dtype), device
        self.version = -1
        self.waiting: list[tuple[Array, Future[list[Array | None]]]] = []
        self.computing, self.arriving = threading.Lock(), threading.Lock()

    def load(self, version: int, vector: Tensor) -> None:
        """Take weights that are newer than the present ones."""
        with self.computing:
            if version > self.version:
                self.networks.load(vector)
                self.version = version

    def predict(self, frames: Array) -> list[Array | None] | None:
        """The outputs for frame stacks (`Prediction`); None as long as there are no weights."""
        if self.version < 0:
            return None
        answer: Future[list[Array | None]] = Future()
        with self.arriving:
            self.waiting.append((frames, answer))
        with self.computing:
            with self.arriving:
                batch, self.waiting = self.waiting, []
            if batch:  # otherwise another thread has computed it
                self.compute(batch)
        return answer.result()

    def compute(self, batch: list[tuple[Array, Future[list[Array | None]]]]) -> None:
        """One computation for all requests of a batch; an error is everyone's."""
        try:
            stack = torch.cat([as_tensor(frames) for frames, _ in batch]).to(self.device)
            outputs = [None if output is None else output.float().cpu() for output in self.networks.predict(stack)]
        except Exception as error:
            for _, answer in batch:
                answer.set_exception(error)
            return
        sizes = [len(frames) for frames, _ in batch]
        parts: list[Any] = [[None] * len(batch) if output is None else output.split(sizes) for output in outputs]
        for (_, answer), found in zip(batch, zip(*parts, strict=True), strict=True):
            answer.set_result([None if part is None else part.numpy() for part in found])


def evaluation_score(
    config: TrainConfig, obs_spec: ObservationSpec, weights: Array, updates: int, episodes: int, seed: int
) -> float:
    """The mean score of a policy without exploration, in a process of its own: it lowers its priority."""
    lowest = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, 0))  # only root may raise a priority again
    os.setpriority(os.PRIO_PROCESS, 0, lowest)
    policy = trained_policy(config, obs_spec, torch.from_numpy(weights.copy()), updates, 0)
    scores = [episode.score for episode in run_episodes(policy, Protocol("paper"), config.env, episodes, seed)]
    return sum(scores) / len(scores)
