"""The same training on a Ray cluster: actors, learner and replay of the local engine, wired over many machines.

    workers  --- blocks of experience, frames once --->  shards  --- batches, prefetched --->  learner
       ^                                                    ^------- new priorities -----------'  |
       '------------------ weights with a version, through the object store <--------------------'

The driver, which is the `rbi train` that a person started, moves references and counts; experience itself never passes
through it. It asks workers for blocks and the learner for updates so that their ratio stays the set one: a slow learner
pauses the workers, and slow workers the learner. Ray schedules, transports and restarts; this package is the wiring.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from rbi.networks import TrunkFactory
from rbi.online.config import TrainConfig
from rbi.online.engine import Engine
from rbi.online.ray.config import ClusterConfig
from rbi.online.train import observation_spec
from rbi.progress import echo

__all__ = ["Cluster", "ClusterConfig"]


@dataclass(frozen=True)
class Cluster:
    """Train on a Ray cluster: `rbi.train("CartPole-v1", engine=Cluster(address="auto"))`."""

    config: ClusterConfig = field(default_factory=ClusterConfig)
    address: str = ""
    """The cluster to join (auto: the one that this machine is part of); by default one is started here."""

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
        from rbi.online.ray.driver import RayEngine, joined, processors

        if trunk is not None:
            raise ValueError("trunk: custom trunks are not supported on a Ray cluster")
        obs_spec = observation_spec(config.env)
        with joined(self.address):
            engine = RayEngine(config, seed, self.config, obs_spec)
            if progress:
                num_envs = config.schedule.num_envs
                echo(f"{engine.workers} workers with {num_envs} environments of {config.env.id}", stderr=True)
                if (room := self.config.room(processors())) < engine.workers:
                    echo(f"the cluster has room for {room} of them; the others wait until nodes join", stderr=True)
            try:
                yield engine
            finally:
                engine.close()
