"""Rollouts of distributed runs: environments and actors that make blocks of experience, and batched inference.

`Rollout` is what a rollout worker does, in whatever process it runs. Its actors compute the networks themselves, on a
GPU as the local engine's CUDA graphs, or ask a `BatchedNetworks` in another process, which serves several workers with
one computation.
"""

import contextlib
import threading
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi import envs
from rbi.envs.types import TimeStep
from rbi.evaluation.rollouts import EpisodeStatistics
from rbi.observations import ObservationSpec
from rbi.online.backend import Actor, CapturedActor
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LOW_EPSILON, MAX_ENV_SEED, init_networks, make_actor, run_seeds, split_epsilons
from rbi.online.rbi import ActorNetworks, Predictor
from rbi.online.stream import Array, ExperienceBlock, as_tensor
from rbi.optim import compute_dtype
from rbi.replay import Transition
from rbi.returns import exploration_ladder


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


class Rollout:
    """Environments and actors of one worker, in two alternating groups."""

    def __init__(
        self,
        config: TrainConfig,
        obs_spec: ObservationSpec,
        seed: int,
        index: int,
        workers: int,
        threads: int,
        device: torch.device,
        predictor: Predictor | None = None,
    ) -> None:
        """`index` of `workers`: its share of the environments; `threads` step them; `predictor` computes the networks,
        by default on `device`."""
        self.config, self.obs_spec, self.seed, self.index = config, obs_spec, seed, index
        self.device, self.predictor = device, predictor
        schedule, actor = config.schedule, config.actor
        self.envs_per_group = schedule.num_envs // workers // GROUPS
        threads = schedule.env_threads or threads
        # environments step while the actions of the other group are computed elsewhere
        waits = device.type == "cuda" or predictor is not None
        self.envs = [envs.make(config.env, self.envs_per_group, threads, synchronous=not waits) for _ in range(GROUPS)]
        epsilons = exploration_ladder(schedule.num_envs, actor.epsilon_base, actor.epsilon_exponent)
        self.epsilons = split_epsilons(epsilons, GROUPS * workers)[GROUPS * index : GROUPS * (index + 1)]
        self.step, self.version = -1, 0
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
            if reset:
                self.reset(start)
            for actor in self.actors:
                actor.uniform.fill_(uniform)
                if reset and newest is not None:
                    self.version = version
                    actor.load(newest)
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
            if newest is not None and self.step // GROUPS % self.config.schedule.refresh_interval == 0:
                self.actors[group].load(newest)
                self.version = version
            actions, transition = self.act(group, now)
            self.envs[group].send(actions)
            block.obs[at] = now.obs
            for column, values in zip(computed, transition[1:], strict=True):
                column[at].copy_(values, non_blocking=True)
            self.step += 1
        if self.stream is not None:
            self.stream.synchronize()
            for array, column in zip(block[1:], computed, strict=True):
                np.copyto(array, column.numpy())
        return block, finished

    def reset(self, start: int) -> None:
        """Start new episodes with new actors. The first worker of a run draws the local engine's random numbers."""
        seeds = run_seeds(self.seed)
        first = self.index == 0 and start == 0
        own = seeds if first else run_seeds(self.seed, self.index, start)
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
        for actor in self.actors:
            actor.memory.steps.fill_(start // GROUPS)
        if self.stream is not None:
            self.captured = [CapturedActor(actor, self.stream) for actor in self.actors]
        self.episodes = [EpisodeStatistics(self.envs_per_group) for _ in range(GROUPS)]
        num_envs = self.config.schedule.num_envs
        env_seed = (seeds.env + start * num_envs + self.index * GROUPS * self.envs_per_group) % MAX_ENV_SEED
        self.first_steps = {g: env.reset(env_seed + g * self.envs_per_group) for g, env in enumerate(self.envs)}
        self.step, self.version = start, 0

    def act(self, group: int, now: TimeStep) -> tuple[Array, Transition]:
        """The actions for a group's newest observations, and the transitions, which a GPU may still be computing."""
        if self.captured:
            return self.captured[group].act(now), self.captured[group].transition
        transition = self.actors[group].act(*(torch.from_numpy(np.ascontiguousarray(array)) for array in now))
        return transition.action.numpy(), transition

    def finished_episodes(self, group: int, now: TimeStep) -> list[tuple[int, float, bool]]:
        finished = self.episodes[group].update(now)
        return [(e.env_index, e.score, bool(self.epsilons[group][e.env_index] <= LOW_EPSILON)) for e in finished]


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
