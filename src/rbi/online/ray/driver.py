"""The driver: asks for blocks and updates at the set ratio, publishes weights, and puts right what has died."""

import collections
import contextlib
import functools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
import torch

from rbi.checkpoint import Checkpoint
from rbi.evaluation.rollouts import EpisodeResult, RecentScores
from rbi.observations import ObservationSpec
from rbi.online.apex import ApexActor
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import LOW_EPSILON, trained_policy, without_prefix
from rbi.online.ray.config import ClusterConfig
from rbi.online.ray.supervisor import Company, Ledger, Slot, Store, answer, cast
from rbi.online.rbi import RBIActor
from rbi.policy import Policy
from rbi.returns import exploration_ladder

AT_ONCE = 2  # calls that a worker or the learner is given ahead, so that it does not wait for the driver


class RayEngine:
    """A training run on the cluster that this process has joined, with the face of `LocalEngine`."""

    def __init__(self, config: TrainConfig, seed: int, cluster: ClusterConfig, obs_spec: ObservationSpec) -> None:
        self.config, self.seed, self.cluster, self.obs_spec = config, seed, cluster, obs_spec
        self.device = torch.device("cpu")  # of this process; workers and learner have their own
        self.workers = cluster.workers_for(config.schedule, processors())
        self.learner = self.ledger = Ledger(config)
        acting = config.actor
        ladder = exploration_ladder(config.schedule.num_envs, acting.epsilon_base, acting.epsilon_exponent)
        self.recent_scores = RecentScores(int((ladder <= LOW_EPSILON).sum()))
        self.actor_metrics = (RBIActor if config.algo == "rbi" else ApexActor).METRICS
        self.sums = np.zeros(len(self.actor_metrics) + 1)
        self.acting: dict[str, float] = {}
        self.block_bytes = self.batch_bytes = 0
        self.learning, self.waited, self.behind = 0, 0.0, 0
        self.evaluate_one: Callable[..., Any]
        self.evaluating = False
        self.evaluated: tuple[int, float | None] = (0, None)
        self.saved: tuple[int, Any] = (0, None)  # updates, and the learner to go on with
        self.given: dict[str, torch.Tensor] = {}  # shards to go on with
        self.ticks_before: list[int] = []
        self.company: Company | None = None

    @property
    def states(self) -> int:
        return self.ledger.states

    @property
    def updates(self) -> int:
        return self.ledger.updates

    @property
    def learning_started(self) -> bool:
        return self.ledger.started

    @property
    def each(self) -> int:
        """Players of a group."""
        return self.config.schedule.num_envs // self.workers // GROUPS

    def run(self) -> Iterator[None]:
        """Train to the end; each time something has happened."""
        company = self.opening()
        while self.ledger.updates < self.ledger.goal:
            if not self.waits(company):
                self.pay(company)
            if not self.waits(company):
                self.feed(company)
            self.evaluate(company)
            company.pump()
            yield

    def waits(self, company: Company) -> bool:
        """In lockstep one thing happens at a time, and nobody plays on while the learner is not there to learn."""
        return self.cluster.lockstep and (company.calls > 0 or not company.learner.live)

    def opening(self) -> Company:
        """The processes of the run, started where that has not been done."""
        if self.company is None:
            people = cast(self.config, self.obs_spec, self.seed, self.cluster, self.workers)
            self.evaluate_one = people.evaluate
            self.company = Company(people, self.ledger, self.saved)
            shards = [without_prefix(self.given, f"shard{number}.") for number in range(self.cluster.shards)]
            held = [{name: column.numpy() for name, column in state.items()} for state in shards]
            self.company.assemble(self.ticks_before or [0] * self.workers, held)
            self.given = {}
        return self.company

    def feed(self, company: Company) -> None:
        """Ask workers for blocks, those that have played least first, as far as they may run ahead."""
        most = self.cluster.block_steps * GROUPS
        at_once = 1 if self.cluster.lockstep else AT_ONCE
        able = [slot for slot in company.slots if slot.live and slot.store.live]
        ahead = AT_ONCE * most * self.each * len(able)
        for slot in sorted(able, key=lambda slot: slot.tick):
            while slot.asked < at_once and self.ledger.may_play(most * self.each, ahead):
                self.ask(company, slot, self.ledger.ticks_until_due(self.each, most) if self.cluster.lockstep else most)

    def ask(self, company: Company, slot: Slot, ticks: int) -> None:
        """Ask a worker for a block; weights go with it only where it will take them."""
        refresh = self.config.schedule.refresh_interval * GROUPS
        refreshes = slot.begin or -slot.tick % refresh < ticks or slot.tick % refresh < GROUPS
        uniform = self.ledger.updates < self.config.schedule.random_policy_updates
        block, told = slot.handle.play.options(num_returns=2).remote(
            slot.tick, ticks, slot.begin, company.published if refreshes else None, company.version, uniform
        )
        self.ledger.take_off(ticks * self.each)
        slot.asked += 1
        asked = (slot, slot.life, slot.tick, slot.begin, ticks)
        company.call(told, functools.partial(self.played, company, asked, block))
        slot.tick, slot.begin = slot.tick + ticks, False

    def played(self, company: Company, asked: tuple[Slot, int, int, bool, int], block: Any, ref: Any) -> None:
        """A worker has played a block, which now goes to its shard."""
        slot, life, start, begin, ticks = asked
        slot.asked -= 1 if life == slot.life else 0
        told = answer(ref)
        if told is None:
            self.ledger.crash(ticks * self.each)
            company.worker_died(slot, life)
            return
        self.block_bytes += told.bytes
        self.behind = self.ledger.updates - told.version
        self.sums += np.sum(told.sums, 0)
        for player, score, careful in told.episodes:
            self.recent_scores.add(EpisodeResult(player, score, 0, False), low_epsilon=careful)
        store = slot.store
        taken = store.handle.add.remote(slot.number, start, begin, block)
        company.call(taken, functools.partial(self.stored, company, store, store.life, ticks))

    def stored(self, company: Company, store: Store, life: int, ticks: int, ref: Any) -> None:
        """A shard has taken a block, or died, or found that the block is gone with its node."""
        stock = answer(ref)
        if stock is None:
            self.ledger.crash(ticks * self.each)
            company.shard_died(store, life)
            return
        self.ledger.land(ticks, self.each)
        company.take_stock(store, stock)
        if self.ledger.ready:
            if self.config.replay.release_interval:
                company.reveal()
            self.ledger.started = company.mass() > 0

    def pay(self, company: Company) -> None:
        """Ask for the updates that new states pay for."""
        at_once = 1 if self.cluster.lockstep else AT_ONCE
        able = company.learner.live and company.mass() > 0
        while able and self.learning < at_once and (rounds := self.ledger.rounds_due()):
            expected = self.ledger.ask(rounds)
            told, weights = company.learner.handle.learn.options(num_returns=2).remote(
                expected, rounds, [store.mass for store in company.stores]
            )
            self.learning += 1
            company.call(told, functools.partial(self.learned, company, company.learner.life, rounds, weights))

    def learned(self, company: Company, life: int, rounds: int, weights: Any, ref: Any) -> None:
        """The learner has done some rounds, or died, or found nothing to draw."""
        self.learning -= 1
        told = answer(ref)
        if told is None:
            self.ledger.unlearned(rounds)
            company.learner_died(life)
            return
        before = self.ledger.updates
        self.ledger.learned(rounds, told.updates)
        self.batch_bytes += told.bytes
        self.waited += told.waited
        if told.publishes:
            company.publish(answer(weights))
        if self.ledger.updates == before:
            for store in company.stores:  # it was starved: see what there is
                company.look_into(store)
        reveals = self.config.replay.release_interval
        if reveals and self.ledger.updates > before and self.ledger.updates % reveals == 0:
            company.reveal()
            if not company.mass() > 0:
                self.ledger.starve()

    def evaluate(self, company: Company) -> None:
        """Let the newest policy play while the run goes on, now and then."""
        every = self.cluster.evaluate_updates or max(1, self.config.schedule.updates // 20)
        if not self.cluster.evaluate_episodes or self.evaluating or company.version - self.evaluated[0] < every:
            return
        self.evaluating = True
        version, episodes = company.version, self.cluster.evaluate_episodes
        ref = self.evaluate_one(self.config, self.obs_spec, company.published, version, episodes, self.seed)
        company.pending[ref] = functools.partial(self.has_evaluated, version)

    def has_evaluated(self, version: int, ref: Any) -> None:
        self.evaluating, self.evaluated = False, (version, answer(ref))

    def metrics(self) -> dict[str, Any]:
        """What there is to say since the last call."""
        company = self.opening()
        *sums, count = self.sums.tolist()
        if count:  # otherwise no block has come, and what the last ones said still holds
            self.sums[:] = 0
            self.acting = dict(zip(self.actor_metrics, (total / count for total in sums), strict=True))
        learning = answer(company.learner.handle.metrics.remote()) if company.learner.live else None
        updates, score = self.evaluated
        return {
            "updates": self.ledger.updates,
            "states": self.states,
            **self.recent_scores.metrics(),
            **self.acting,
            **(learning or {}),
            "priority_mean": company.mass() / max(1, min(self.states, self.config.replay.capacity)),
            "evaluated_score": score,
            "evaluated_updates": updates,
            "weights_behind": self.behind,
            "workers": sum(slot.live for slot in company.slots),
            "lost_steps": self.ledger.lost.steps_in_flight,
            "lost_updates": self.ledger.lost.updates,
            "bytes_of_blocks": self.block_bytes,
            "bytes_of_batches": self.batch_bytes,
            "bytes_of_weights": company.weight_bytes,
        }

    def policy(self) -> Policy:
        """What has been learned, as a policy of its own."""
        updates, weights = self.opening().of_learner("policy")
        return trained_policy(self.config, self.obs_spec, torch.from_numpy(weights.copy()), updates, self.states)

    def summary(self) -> dict[str, Any]:
        """What the result says of the cluster, and of what was lost on it."""
        company = self.opening()
        nodes = {post.node for post in company.posts if post.node}
        layout = {"workers": self.workers, "most_at_once": company.most_workers, "shards": self.cluster.shards}
        told = {"cluster": layout | {"nodes": len(nodes)}, "lost": asdict(self.ledger.lost)}
        return told | {"updates_gone": self.ledger.gone}

    def checkpoint(self, *, with_replay: bool) -> Checkpoint:
        """The learner, the counters and the shards; all that is on its way is waited for."""
        company = self.opening()
        learner = {name: torch.from_numpy(tensor.copy()) for name, tensor in company.save_learner().items()}
        layout = {"workers": self.workers, "shards": self.cluster.shards}
        counters = self.ledger.state() | {"recent_scores": self.recent_scores.state(), "layout": layout}
        return Checkpoint(
            kind={"env": self.config.env.id, "algo": self.config.algo},
            counters=counters | {"ticks": [slot.tick for slot in company.slots]},
            tensors={"tensors": learner} | ({"replay": company.state()} if with_replay else {}),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint, with new episodes. On another layout, and without the replay, shards fill up
        again first."""
        counters, replay = checkpoint.counters, checkpoint.tensors.get("replay")
        if "layout" not in counters:
            raise ValueError("the checkpoint is of --engine local, not of --engine ray")
        self.ledger.restore(counters)
        self.recent_scores.restore(counters["recent_scores"])
        if not self.cluster.workers:
            self.workers = counters["layout"]["workers"]
        same = counters["layout"] == {"workers": self.workers, "shards": self.cluster.shards}
        self.ticks_before = counters["ticks"] if same else [max(counters["ticks"])] * self.workers
        if replay and same:
            self.given = dict(replay)
        else:
            self.ledger.starve()
        state = {name: tensor.numpy() for name, tensor in checkpoint.tensors["tensors"].items()}
        self.saved = (self.ledger.updates, ray.put(state))

    def close(self) -> None:
        """End all processes of the run."""
        if self.company is not None:
            self.company.dismiss()
            self.company = None


# ---- from rbi.engines.ray.cluster: The cluster itself: joined, or started with what this machine has; and a `map` over it. Ray is imported here.

INSTALL = "--engine ray: Ray is not installed here; pip install 'rbi[ray]'"
LOOPBACK = "127.0.0.1"
RETRIES = 3  # of a piece of work whose machine dies


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """A session with the cluster at `address` ("auto": the one that runs on this machine), or one of our own.

    A cluster of our own has no dashboard, listens on this machine only and asks for Ray's token.
    """
    if not address:
        # Ray's own switch for keeping a cluster on one machine; read when it is imported
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError(INSTALL) from None
    refuse_silent(address)
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            cores = max(2, os.cpu_count() or 1)  # learner and worker share a single one
            ray.init("local", num_cpus=cores, include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
    except (ConnectionError, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"--address {address}: no cluster answers there, or it wants another token; {told}") from None
    if in_main:
        signal.signal(signal.SIGTERM, before)  # Ray takes it for itself
    try:
        yield
    finally:
        ray.shutdown()


def refuse_silent(address: str) -> None:
    """Refuse a host and port where nobody listens: Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--address {address}: nobody answers there; {error}") from None


def processors() -> float:
    """The processors of the cluster that this process has joined."""
    import ray

    return float(ray.cluster_resources().get("CPU", 0))


@contextlib.contextmanager
def cluster_map(address: str, cpus: float = 1.0, gpus: float = 0.0) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over the cluster, in order; work whose machine dies is done again elsewhere."""
    with joined(address):
        import ray
        from ray.exceptions import RayTaskError

        def each(function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
            wrapped: Any = ray.remote(function)
            task = wrapped.options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)
            waiting: collections.deque[Any] = collections.deque()
            for one in zip(*items, strict=True):
                waiting.append(task.remote(*one))
                if len(waiting) > 4 * max(1, processors()):
                    yield got(waiting.popleft())
            while waiting:
                yield got(waiting.popleft())

        def got(ref: Any) -> Any:
            try:
                return ray.get(ref)
            except RayTaskError as error:
                raise error.cause from None

        yield each
