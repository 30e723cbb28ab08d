"""The Ray engine: the actors, learner and replay of the local engine as processes on a cluster.

    rollout workers --- experience blocks, frames once ---> learner workers, with their replay
       ^                                                        |
       '------- versioned weights, through the object store <---'

The driver, the process that called `rbi.train`, passes references and counts; experience never passes through it. It
requests blocks and updates so that their ratio is the configured one: a slow learner pauses the workers, and slow
workers pause the learner. Ray schedules, transports and restarts.
"""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from rbi.networks import TrunkFactory
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.engine import Engine
from rbi.online.ray.cluster import cluster_size, connect
from rbi.online.train import make_observation_spec
from rbi.progress import echo

__all__ = ["Cluster", "ClusterConfig"]


@dataclass(frozen=True)
class Cluster:
    """Train on a Ray cluster: `rbi.train("CartPole-v1", engine=Cluster(address="auto"))`."""

    config: ClusterConfig = field(default_factory=ClusterConfig)
    address: str = ""
    """Address of the cluster (auto: the one that this machine is part of); by default a temporary local one."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"engine": "ray", "cluster": self.config, "address": self.address}

    @property
    def may_change(self) -> tuple[str, ...]:
        return ("address", *(f"cluster.{option.name}" for option in fields(ClusterConfig)))

    @contextlib.contextmanager
    def __call__(
        self, config: TrainConfig, seed: int, trunk: TrunkFactory | None, *, progress: bool
    ) -> Iterator[Engine]:
        if trunk is not None:
            raise ValueError("trunk: custom trunks are not supported on a Ray cluster")
        obs_spec = make_observation_spec(config)
        with connect(self.address) as grows:
            from rbi.online.ray.driver import RayEngine  # imports Ray, which reads its switches then

            engine = RayEngine(config, seed, self.config, obs_spec)
            fitting = self.check_room(grows=grows)
            if progress:
                num_envs = config.schedule.num_envs
                echo(
                    f"{engine.num_workers} rollout workers with {num_envs} environments of {config.env.id}", stderr=True
                )
                if fitting < engine.num_workers:
                    others = "wait for nodes to join" if grows else "do not start"
                    echo(f"{fitting} of them fit on the cluster; the others {others}", stderr=True)
            try:
                yield engine
            finally:
                engine.close()

    def check_room(self, *, grows: bool) -> int:
        """How many rollout workers fit. If there are fewer than learners, training cannot start: it waits for nodes to
        join, with a warning, or if none can join, ValueError is raised."""
        cpus, gpus = cluster_size()
        fitting = self.config.fitting_workers(cpus, gpus)
        if fitting < self.config.learners:
            too_few = f"{cpus:g} CPUs and {gpus:g} GPUs are too few for a rollout worker next to the other processes"
            if not grows:
                raise ValueError(f"--engine ray: {too_few}; lower --cluster.inference-cpus or other reservations")
            warnings.warn(f"{too_few}: training waits for nodes to join", stacklevel=2)
        return fitting
