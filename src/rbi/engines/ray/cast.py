"""Who works where: the processes of a run, as Ray places and restarts them."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rbi.engines.local import policy_of
from rbi.engines.ray.learning import LearnerRole
from rbi.engines.ray.player import Array, Player
from rbi.engines.ray.settings import ClusterConfig
from rbi.engines.ray.shard import Shard
from rbi.evaluation import Protocol, play
from rbi.online.plan import Plan
from rbi.sight import Sight

ALWAYS = -1  # as often as it takes


@dataclass
class Post:
    """A process of the run as the driver knows it. Each restart is another life; answers of an earlier one are void."""

    handle: Any
    live: bool = False
    life: int = 0
    process: int = 0
    node: str = ""

    def again(self, method: str) -> Any:
        """A call that any life may answer: Ray repeats it until one does."""
        return getattr(self.handle, method).options(max_task_retries=ALWAYS)


@dataclass
class Store(Post):
    """A shard."""

    born: str = ""
    mass: float = 0.0
    states: int = 0


@dataclass
class Slot(Post):
    """A worker and its place among them."""

    number: int = 0
    store: Store = field(default_factory=lambda: Store(None))
    tick: int = 0
    begin: bool = True
    """Whether its next block starts new episodes."""
    asked: int = 0
    """Blocks on their way."""


@dataclass(frozen=True)
class Cast:
    """All processes of a run. The evaluator is a task, not a process: nobody minds when it is lost."""

    learner: Post
    stores: list[Store]
    slots: list[Slot]
    evaluate: Callable[..., Any]

    def posts(self) -> list[Post]:
        return [self.learner, *self.stores, *self.slots]


def cast(plan: Plan, sight: Sight, seed: int, config: ClusterConfig, workers: int) -> Cast:
    """Ask Ray for every process. The learner goes to a GPU, or else stays with the driver; one shard stays with it."""
    gpus = config.learner_gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0
    here = ray.get_runtime_context().get_node_id()
    beside = {} if gpus else {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
    learner = remote(LearnerRole, config.learner_cpus, gpus, **beside).remote(
        plan, sight, seed, config.prefetch, config.lockstep, bool(gpus)
    )
    near: Any = "SPREAD"
    if config.shards == 1:
        _, node = ray.get(learner.hello.options(max_task_retries=ALWAYS).remote()) if gpus else (0, here)
        near = NodeAffinitySchedulingStrategy(node, soft=True)
    stores = [
        Store(
            remote(Shard, config.shard_cpus, scheduling_strategy=near).remote(
                plan, sight, seed, number, workers, config.shards
            )
        )
        for number in range(config.shards)
    ]
    threads = max(1, int(config.actor_cpus))
    player = remote(Player, config.actor_cpus, config.actor_gpus)
    slots = [
        Slot(
            player.remote(plan, sight, seed, number, workers, threads, config.actor_gpus > 0),
            number=number,
            store=stores[number % config.shards],
        )
        for number in range(workers)
    ]
    task: Any = ray.remote(evaluation)
    evaluate = task.options(num_cpus=config.evaluator_cpus, max_retries=0).remote
    return Cast(Post(learner), stores, slots, evaluate)


def remote(role: type, cpus: float, gpus: float = 0.0, **options: Any) -> Any:
    """A role as Ray runs it: restarted wherever there is room, each call done once or not at all."""
    maker: Any = ray.remote(role)
    return maker.options(num_cpus=cpus, num_gpus=gpus, max_restarts=ALWAYS, max_task_retries=0, **options)


def evaluation(plan: Plan, sight: Sight, weights: Array, updates: int, episodes: int, seed: int) -> float:
    """The mean score of a policy without exploration."""
    os.setpriority(os.PRIO_PROCESS, 0, 10)  # everything else comes first
    policy = policy_of(plan, sight, torch.from_numpy(weights.copy()), updates, 0)
    scores = [episode.score for episode in play(policy, Protocol("paper"), plan.world.id, episodes, seed)]
    return sum(scores) / len(scores)
