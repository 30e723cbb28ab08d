"""The Ray engine: the actors, learner and replay of the local engine as processes on a cluster.

    rollout workers --- experience blocks, frames once ---> learner workers, with their replay
       ^                                                        |
       '------- versioned weights, through the object store <---'

The driver, the process that called `rbi.train`, passes references and counts; experience never passes through it. It
requests blocks and updates so that their ratio is the configured one: a slow learner pauses the workers, and slow
workers pause the learner. Ray schedules, transports and restarts.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from rbi.networks import TrunkFactory
from rbi.online.config import ClusterConfig, TrainConfig
from rbi.online.engine import Engine
from rbi.online.ray.cluster import cluster_cpus, connect
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
        with connect(self.address):
            from rbi.online.ray.driver import RayEngine  # imports Ray, which reads its switches then

            engine = RayEngine(config, seed, self.config, obs_spec)
            if progress:
                num_envs = config.schedule.num_envs
                echo(
                    f"{engine.num_workers} rollout workers with {num_envs} environments of {config.env.id}", stderr=True
                )
                if (fitting := self.config.fitting_workers(cluster_cpus())) < engine.num_workers:
                    echo(f"{fitting} of them fit on the cluster; the others wait for nodes to join", stderr=True)
            try:
                yield engine
            finally:
                engine.close()
