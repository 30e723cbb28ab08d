"""A Ray cluster: the layout of a training run on it, connecting to it or starting one here, and a `map` over it.

Ray reads some of its switches when it is imported, so nothing here imports it at the top.
"""

import collections
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rbi.config import Ge, Interval, check_fields
from rbi.online.config import GROUPS, Schedule

LOOPBACK = "127.0.0.1"
MAX_RETRIES = 3  # of a task whose machine dies
REAPER = """
import os, signal, sys
from pathlib import Path
sys.stdin.read()
for process in Path("/proc").glob("[0-9]*"):
    try:
        if sys.argv[1].encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)
    except OSError:
        pass
"""


@dataclass(frozen=True)
class ClusterConfig:
    """The layout of a run on a Ray cluster (--engine ray)."""

    workers: Annotated[int, Interval(ge=0, le=65_536)] = 0
    """Rollout workers, which share the environments. Workers that do not fit wait for a node to join. 0: as many as fit
    when the run starts."""
    replay: Literal["learner", "shards"] = "learner"
    """Where the replay is: in the learner's process, in GPU memory if it has a GPU, which is fastest; or in shards,
    processes of their own that may be on other machines, for a replay that does not fit there."""
    shards: Annotated[int, Interval(ge=1, le=4096)] = 1
    """Replay shards. A single shard is placed on the learner's node; several are spread over the nodes."""
    block_steps: Annotated[int, Interval(ge=1, le=1_000_000)] = 16
    """Steps of every environment in one block of experience."""
    prefetch: Annotated[int, Interval(ge=0, le=10_000)] = 2
    """Samples from the replay that are requested ahead of the learner."""
    lockstep: bool = False
    """Alternate rollouts and updates as the local engine does, so that a run repeats to the last bit; one worker."""
    evaluation_interval: Annotated[int, Ge(0)] = 0
    """Updates between two evaluations during training; 0: a twentieth of the run."""
    evaluation_episodes: Annotated[int, Interval(ge=0, le=1_000_000)] = 10
    """Episodes of each evaluation during training; 0 disables it."""
    worker_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs that Ray reserves for a rollout worker."""
    worker_gpus: Annotated[float, Ge(0)] = 0.0
    """GPUs of a rollout worker, fractions allowed; with 0 it computes on the CPU."""
    learner_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs of the learner worker."""
    learner_gpus: Annotated[float, Ge(0)] | None = None
    """GPUs of the learner worker; by default one if the cluster has any."""
    shard_cpus: Annotated[float, Ge(0)] = 0.0
    """CPUs of a replay shard; its work is short and comes in bursts."""
    evaluator_cpus: Annotated[float, Ge(0)] = 0.0
    """CPUs of an evaluation, which runs at low priority."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.lockstep and (self.workers > 1 or self.shards > 1):
            raise ValueError("lockstep: needs one worker and one shard")
        if self.workers and self.shards > self.workers:
            raise ValueError(f"shards = {self.shards}: more than workers = {self.workers}")
        if self.shards > 1 and self.replay != "shards":
            raise ValueError(f"shards = {self.shards}: needs replay = shards; the replay is in the learner")

    @property
    def replays(self) -> int:
        """Processes that hold a part of the replay."""
        return self.shards if self.replay == "shards" else 1

    def fitting_workers(self, cpus: float) -> int:
        """How many workers fit next to the other processes."""
        shards = self.shards * self.shard_cpus if self.replay == "shards" else 0
        left = cpus - self.learner_cpus - shards - self.evaluator_cpus
        return max(0, int(left / self.worker_cpus + 1e-9)) if self.worker_cpus else max(1, int(cpus))

    def num_workers(self, schedule: Schedule, cpus: float) -> int:
        """The number of rollout workers of a run; the environments must divide evenly among them."""
        if self.workers or self.lockstep:
            workers = self.workers or 1
            if schedule.num_envs % (GROUPS * workers):
                raise ValueError(
                    f"workers = {workers}: num_envs = {schedule.num_envs} does not divide among them, in {GROUPS} "
                    "groups each"
                )
            return workers
        most = max(1, self.shards, min(self.fitting_workers(cpus), schedule.num_envs // GROUPS))
        divisors = [workers for workers in range(self.shards, most + 1) if schedule.num_envs % (GROUPS * workers) == 0]
        if not divisors:
            raise ValueError(f"num_envs = {schedule.num_envs}: does not divide among {self.shards} workers or more")
        return divisors[-1]

    def publish_interval(self, schedule: Schedule, workers: int) -> int:
        """Updates between publications of weights. Workers load them at the start of a block, so it is at least the
        updates of one block; in lockstep it is the schedule's."""
        block = self.block_steps * schedule.num_envs / workers / schedule.states_per_update
        times = 1 if self.lockstep else max(1, math.ceil(block / schedule.publish_interval))
        return times * schedule.publish_interval


@contextlib.contextmanager
def connect(address: str) -> Iterator[None]:
    """A connection to the cluster at `address` ("auto": the one running on this machine), or to a new local one.

    A local cluster has no dashboard, listens on this machine only and requires Ray's token. If Ray was imported before,
    it has read its switches, and the cluster is one as Ray itself starts it.
    """
    if not address and "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's switch for binding to loopback
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray: Ray is not installed; pip install 'rbi[ray]'") from None
    check_reachable(address)
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    cleanup = contextlib.ExitStack()
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            cpus = max(2, os.cpu_count() or 1)  # learner and worker share a single core
            ray.init("local", num_cpus=cpus, include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
            cleanup.enter_context(reaper(ray.get_runtime_context().get_node_id()))
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if not address:
            raise ValueError(f"--engine ray: no cluster can be started on this machine; {reason}") from None
        raise ValueError(f"--address {address}: no cluster answers, or it requires another token; {reason}") from None
    if in_main:
        signal.signal(signal.SIGTERM, before)  # Ray installs its own handler
    with cleanup:
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def reaper(node: str) -> Iterator[None]:
    """Kill what is left of a local cluster when this process is gone: Ray's agents would stay for a minute.

    A process of its own waits for that, and finds them by the node's id in their environment (Linux).
    """
    if not node or not Path("/proc/self/environ").exists():  # an empty id would be in every environment
        yield
        return
    command = [sys.executable, "-c", REAPER, node]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield
        process.communicate()  # closes its input


def check_reachable(address: str) -> None:
    """Raise ValueError for a host and port where nothing listens: Ray itself would retry for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--address {address}: nothing answers there; {error}") from None


def cluster_cpus() -> float:
    """The CPUs of the connected cluster."""
    import ray

    return float(ray.cluster_resources().get("CPU", 0))


@contextlib.contextmanager
def cluster_map(address: str, cpus: float = 1.0, gpus: float = 0.0) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over a cluster that returns results in order; tasks whose machine dies run again elsewhere."""
    with connect(address):
        import ray
        from ray.exceptions import RayTaskError

        def map_tasks(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
            remote: Any = ray.remote(function)
            task = remote.options(num_cpus=cpus, num_gpus=gpus, max_retries=MAX_RETRIES)
            waiting: collections.deque[Any] = collections.deque()
            for arguments in zip(*items, strict=True):
                waiting.append(task.remote(*arguments))
                if len(waiting) > 4 * max(1, cluster_cpus()):
                    yield result(waiting.popleft())
            while waiting:
                yield result(waiting.popleft())

        def result(ref: Any) -> Any:
            try:
                return ray.get(ref)
            except RayTaskError as error:
                raise error.cause from None

        yield map_tasks
