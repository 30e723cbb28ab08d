"""The driver of a run on a Ray cluster: requests blocks and updates at the configured ratio and publishes weights.

Same interface as `LocalEngine`. The driver holds references and counts only; experience never passes through it.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
import torch
from ray.util.metrics import Gauge

from rbi.checkpoint import Checkpoint
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, ClusterConfig, TrainConfig
from rbi.online.distributed import DistributedRun, ReplayHandle, WorkerHandle
from rbi.online.engine import trained_policy
from rbi.online.ray.cluster import cluster_size
from rbi.online.ray.supervisor import Supervisor, launch, result_or_none
from rbi.policy import Policy
from rbi.progress import ProcessStatus

MAX_QUEUED_CALLS = 2  # of a worker or the learner, so that it does not wait for the driver


class Gauges:
    """Metrics of a run in Ray's dashboard, and for Prometheus: `rbi_NAME` with labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels, self.gauges = labels, dict[str, Gauge]()

    def set(self, values: Mapping[str, Any], **labels: str) -> None:
        """Set the values that are numbers."""
        labels = self.labels | labels
        for name, value in values.items():
            if value is not None:
                if name not in self.gauges:
                    self.gauges[name] = Gauge(f"rbi_{name}", name.replace("_", " "), tuple(labels))
                self.gauges[name].set(float(value), labels)


class RayEngine(DistributedRun):
    """A training run on the cluster that this process is connected to."""

    def __init__(self, config: TrainConfig, seed: int, layout: ClusterConfig, obs_spec: ObservationSpec) -> None:
        super().__init__(config, seed, layout, obs_spec, *cluster_size())
        self.gauges = Gauges({"env": config.env.id, "algo": config.algo, "seed": str(seed)})
        self.learner_calls = 0
        self.learner_metrics: dict[str, Any] = {}
        self.launch_evaluation: Callable[..., Any]
        self.evaluating = False
        self.evaluated: tuple[int, float | None] = (0, None)
        self.saved: tuple[int, Any] = (0, None)  # updates, and the learner's state to continue from
        self.launched: Supervisor | None = None

    def run(self) -> Iterator[None]:
        """Train to the end; yields after every poll."""
        while self.updates < self.accounting.total_updates:
            if not self.blocked():
                self.request_updates()
            if not self.blocked():
                self.request_blocks()
            self.start_evaluation()
            self.supervisor.poll()
            self.publish_rates()
            yield

    @property
    def supervisor(self) -> Supervisor:
        """The supervisor of the run's processes; its first use launches them."""
        if self.launched is None:
            actors = launch(self.config, self.obs_spec, self.seed, self.layout, self.num_workers)
            self.launch_evaluation = actors.evaluate
            self.launched = Supervisor(actors, self.accounting, self.saved)
            self.launched.start(self.saved_steps, self.saved_replays)
            self.saved_replays = []
        return self.launched

    def blocked(self) -> bool:
        """In lockstep there is one request at a time, and no rollout while the learner is down."""
        return self.layout.lockstep and (self.supervisor.open_calls > 0 or not self.supervisor.learner.alive)

    def request_blocks(self) -> None:
        """Request blocks from the workers that are furthest behind, as far as rollouts may run ahead."""
        if self.supervisor.published is None:  # one of several learners may be ready before the first has weights
            return
        most = self.layout.steps_per_block(self.config.schedule) * GROUPS
        queued = 1 if self.layout.lockstep else MAX_QUEUED_CALLS
        able = [worker for worker in self.supervisor.workers if worker.alive and worker.replay.alive]
        ahead = MAX_QUEUED_CALLS * most * self.envs_per_group * len(able)
        for worker in sorted(able, key=lambda worker: worker.step):
            while worker.requests < queued and self.accounting.may_request(most * self.envs_per_group, ahead):
                due = self.accounting.steps_until_due(self.envs_per_group, most) if self.layout.lockstep else most
                self.request_block(worker, due)

    def request_block(self, worker: WorkerHandle, steps: int) -> None:
        """Request a block; weights are passed only if the worker will load them."""
        refresh = self.config.schedule.refresh_interval * GROUPS
        refreshes = worker.reset or -worker.step % refresh < steps or worker.step % refresh < GROUPS
        uniform = self.updates < self.config.schedule.random_policy_updates
        block, summary = worker.handle.rollout.options(num_returns=2).remote(
            worker.step, steps, worker.reset, [self.supervisor.published] * refreshes, self.supervisor.version, uniform
        )
        self.supervisor.version_used |= refreshes
        self.accounting.request_states(steps * self.envs_per_group)
        worker.requests += 1
        request = (worker, worker.restarts, worker.step, worker.reset, steps)
        self.supervisor.on_answer(summary, functools.partial(self.block_ready, request, block))
        worker.step, worker.reset = worker.step + steps, False

    def block_ready(self, request: tuple[WorkerHandle, int, int, bool, int], block: Any, ref: Any) -> None:
        """A worker has finished a block, which now goes to its replay."""
        worker, restarts, start, reset, steps = request
        worker.requests -= 1 if restarts == worker.restarts else 0
        summary = result_or_none(ref)
        if summary is None:
            self.accounting.lose_states(steps * self.envs_per_group)
            self.supervisor.worker_died(worker, restarts)
            return
        self.statistics.add(worker.index, summary, self.updates)
        replay = worker.replay
        stored = replay.handle.add.remote(worker.index, start, reset, block)
        self.supervisor.on_answer(stored, functools.partial(self.block_stored, replay, replay.restarts, steps))

    def block_stored(self, replay: ReplayHandle, restarts: int, steps: int, ref: Any) -> None:
        """A replay has stored a block, or its process died, or the block was lost with its node. A process that died
        between two calls was restarted empty, and is restored now."""
        status = result_or_none(ref)
        if status is None or (replay.alive and replay.restarted(status)):
            self.accounting.lose_states(steps * self.envs_per_group)
            self.supervisor.replay_died(replay, restarts)
            return
        self.accounting.receive_states(steps, self.envs_per_group)
        self.supervisor.update_replay(replay, status)
        if self.accounting.can_start:
            if self.config.replay.release_interval:
                self.supervisor.ask_replays("release")
            self.accounting.learning_started = self.supervisor.has_states()

    def request_updates(self) -> None:
        """Request the updates that are due."""
        queued = 1 if self.layout.lockstep else MAX_QUEUED_CALLS
        able = all(learner.alive for learner in self.supervisor.learners) and self.supervisor.has_states()
        while able and self.learner_calls < queued and (samples := self.accounting.samples_due()):
            expected = self.accounting.request_updates(samples)
            end = expected + samples * self.accounting.updates_per_sample
            publish = end % self.accounting.publish_interval == 0 and (
                self.supervisor.version_used or self.layout.lockstep
            )
            mass, restarts = [replay.mass for replay in self.supervisor.replays], self.supervisor.learner.restarts
            (report, weights), *others = (
                learner.handle.learn.options(num_returns=2).remote(expected, samples, publish, mass)
                for learner in self.supervisor.learners
            )
            self.learner_calls += 1
            self.supervisor.on_answer(report, functools.partial(self.updates_done, restarts, samples, weights))
            for other, _ in others:  # all do the same; the first one reports
                self.supervisor.on_answer(other, functools.partial(self.other_done, restarts))

    def updates_done(self, restarts: int, samples: int, weights: Any, ref: Any) -> None:
        """The learner has finished a request, or it died, or found the replay empty."""
        self.learner_calls -= 1
        report = result_or_none(ref)
        if report is None:
            self.accounting.fail_updates(samples)
            self.supervisor.learner_died(restarts)
            return
        before = self.updates
        self.accounting.complete_updates(samples, report.updates)
        self.batch_bytes += report.bytes
        self.waited_seconds += report.waited_seconds
        if report.version is not None:
            self.supervisor.publish(result_or_none(weights), report.version)
        release_interval = self.config.replay.release_interval
        if self.updates == before:  # the replay was empty
            self.supervisor.ask_replays("status")
        elif release_interval and self.updates % release_interval == 0:
            self.supervisor.ask_replays("release")
        else:
            return
        self.supervisor.check_replays()

    def other_done(self, restarts: int, ref: Any) -> None:
        """One of several learners has finished a request, or died."""
        if result_or_none(ref) is None:
            self.supervisor.learner_died(restarts)

    def start_evaluation(self) -> None:
        """Evaluate the newest policy in the background, at intervals."""
        interval = self.layout.evaluation_interval or max(1, self.config.schedule.updates // 20)
        episodes, version = self.layout.evaluation_episodes, self.supervisor.version
        if not episodes or self.evaluating or version - self.evaluated[0] < interval:
            return
        self.evaluating = True
        ref = self.launch_evaluation(
            self.config, self.obs_spec, self.supervisor.published, version, episodes, self.seed
        )
        self.supervisor.pending[ref] = functools.partial(self.evaluation_done, version)

    def evaluation_done(self, version: int, ref: Any) -> None:
        """Keep the score. An evaluation that fails costs its score, not the run."""
        self.evaluating, self.evaluated = False, (version, None)
        try:
            self.evaluated = version, result_or_none(ref)
        except Exception as error:
            warnings.warn(f"the evaluation after {version:,} updates failed: {error}", stacklevel=2)

    def metrics(self) -> dict[str, Any]:
        """Metrics since the last call. While the learner has queued updates, its own are as of the call before: the
        driver does not wait for it."""
        if self.supervisor.learner.alive:
            asked = self.supervisor.learner.handle.metrics.remote()
            if self.learner_calls and self.learner_metrics:
                self.supervisor.pending[asked] = self.metrics_ready
            else:
                self.metrics_ready(asked)
        updates, score = self.evaluated
        metrics = self.counted_metrics() | self.learner_metrics
        metrics |= {
            "priority_mean": self.supervisor.mass() / max(1, min(self.states, self.config.replay.capacity)),
            "evaluated_score": score,
            "evaluated_updates": updates,
            "workers": sum(worker.alive for worker in self.supervisor.workers),
            "weight_bytes": self.supervisor.weight_bytes,
        }
        self.gauges.set(metrics)
        return metrics

    def metrics_ready(self, ref: Any) -> None:
        """The learner has answered, or it died."""
        self.learner_metrics = result_or_none(ref) or self.learner_metrics

    def processes(self) -> list[ProcessStatus]:
        """All processes of the run, with their rates over the last ten seconds."""
        rates = self.statistics.rates
        units = {self.supervisor.learner.name: (rates[-1], "updates/s")}
        units |= {worker.name: (rates[worker.index], "steps/s") for worker in self.supervisor.workers}
        return [actor.status(*units.get(actor.name, ())) for actor in self.supervisor.actors]

    def publish_rates(self) -> None:
        """Every ten seconds, set the gauges of all processes in Ray's dashboard."""
        if self.statistics.measure(self.updates):
            self.supervisor.check_inference()
            self.gauges.set({"updates": self.updates, "states": self.states})
            for one in self.processes():
                tags = {"process": one.name, "host": one.host}
                self.gauges.set({"alive": one.alive, "restarts": one.restarts}, **tags)
                if one.rate is not None:
                    self.gauges.set({one.unit.replace("/s", "_per_second"): one.rate}, **tags)

    def policy(self) -> Policy:
        """The current policy, as an independent copy; while updates are outstanding, the newest that was published."""
        if self.learner_calls and self.supervisor.published is not None:
            updates, weights = self.supervisor.version, ray.get(self.supervisor.published)
        else:
            updates, weights = self.supervisor.ask_learner("policy")
        return trained_policy(self.config, self.obs_spec, torch.from_numpy(weights.copy()), updates, self.states)

    def summary(self) -> dict[str, Any]:
        """The layout on the cluster, and what failures have cost."""
        nodes = {actor.node for actor in self.supervisor.actors if actor.node}
        return {
            "cluster": self.replay_layout() | {"max_workers": self.supervisor.max_workers, "nodes": len(nodes)},
            **self.losses(),
        }

    def checkpoint(self, *, with_replay: bool) -> Checkpoint:
        """Everything that training changes; outstanding requests are completed first."""
        learner = {name: torch.from_numpy(tensor.copy()) for name, tensor in self.supervisor.save_learner().items()}
        return Checkpoint(
            kind={"env": self.config.env.id, "algo": self.config.algo},
            counters=self.counters([worker.step for worker in self.supervisor.workers]),
            tensors={"tensors": learner} | ({"replay": self.supervisor.replay_state()} if with_replay else {}),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; environments start new episodes. With another layout, or without the replay, it
        is filled again first."""
        self.restore_counters(checkpoint)
        learner = {name: tensor.numpy() for name, tensor in checkpoint.tensors["tensors"].items()}
        self.saved = (self.updates, ray.put(learner))

    def close(self) -> None:
        """End all processes of the run."""
        if self.launched is not None:
            self.launched.shutdown()
            self.launched = None
