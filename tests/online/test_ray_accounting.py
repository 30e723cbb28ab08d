"""Accounting of the Ray engine: the ratio of states to updates holds in any order of events, and counts only grow."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from ray.exceptions import GetTimeoutError, RayActorError

from rbi.checkpoint import Checkpoint
from rbi.evaluation.rollouts import EpisodeResult
from rbi.observations import ObservationSpec
from rbi.online import ray as online_ray
from rbi.online.config import ClusterConfig, Schedule
from rbi.online.distributed import RATE_SECONDS, Accounting, DistributedRun, ReplayHandle, RolloutStatistics
from rbi.online.engine import init_networks
from rbi.online.ray import driver, supervisor, workers
from rbi.online.rollout import BlockSummary, evaluation_score
from rbi.online.stream import ReplayStatus
from rbi.optim import flatten_parameters
from tests.online.small_runs import small_config

CARTPOLE = ObservationSpec((4,), 1, 2)
ENVS, STEPS, WORKERS = 4, 8, 3
BLOCK = ENVS * STEPS
AHEAD = 2 * WORKERS * BLOCK
EVENTS = (
    "request_block",
    "store_block",
    "lose_block",
    "request_updates",
    "finish_updates",
    "empty_replay",
    "kill_learner",
)


class Simulation:
    """Workers and a learner whose answers arrive in any order; they do whatever the accounting allows."""

    def __init__(self, ratio, publish_interval, release_interval):
        schedule = {"states_per_update": ratio, "publish_interval": publish_interval, "updates": 10_000}
        config = small_config(schedule=schedule, replay={"release_interval": release_interval})
        self.accounting, self.ratio = Accounting(config), ratio
        self.intervals = [interval for interval in (publish_interval, release_interval) if interval]
        self.blocks, self.requests, self.started_at = 0, [], None

    def run(self, event):
        getattr(self, event)()

    def request_block(self):
        if self.accounting.may_request(BLOCK, AHEAD):
            self.accounting.request_states(BLOCK)
            self.blocks += 1

    def store_block(self):
        if self.blocks:
            self.blocks -= 1
            self.accounting.receive_states(STEPS, ENVS)
            if self.accounting.can_start:
                self.accounting.learning_started = True
                self.started_at = self.accounting.states

    def lose_block(self):
        if self.blocks:
            self.blocks -= 1
            self.accounting.lose_states(BLOCK)

    def request_updates(self):
        if len(self.requests) < 2 and (samples := self.accounting.samples_due()):
            start = self.accounting.request_updates(samples)
            end = start + samples * self.accounting.updates_per_sample
            assert all(start // interval == (end - 1) // interval for interval in self.intervals)
            self.requests.append(samples)

    def finish_updates(self):
        if self.requests:
            samples = self.requests.pop(0)
            done = self.accounting.updates + samples * self.accounting.updates_per_sample
            self.accounting.complete_updates(samples, done)

    def empty_replay(self):
        for samples in self.requests:  # the second request expects updates that the first did not do
            self.accounting.complete_updates(samples, self.accounting.updates)
        self.requests = []

    def kill_learner(self):
        if self.requests:
            for samples in self.requests:
                self.accounting.fail_updates(samples)
            self.requests = []
            self.accounting.rewind(max(0, self.accounting.updates - 6))


@st.composite
def histories(draw):
    """Settings and a long history of events, some much more frequent than others."""
    settings = [draw(st.sampled_from(choice)) for choice in ([1.5, 4.0, 10.0], [2, 6], [0, 10])]
    weights = np.array([draw(st.sampled_from([0.02, 1.0, 5.0])) for _ in EVENTS])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return *settings, rng.choice(EVENTS, size=600, p=weights / weights.sum()).tolist()


@given(histories())
def test_neither_updates_nor_states_run_ahead_of_the_ratio(history):
    *settings, events = history
    simulation = Simulation(*settings)
    accounting = simulation.accounting
    for event in events:
        simulation.run(event)
        started = accounting.learning_started
        earned = (accounting.states - simulation.started_at) / simulation.ratio if started else 0
        assert accounting.updates + accounting.requested_updates <= earned + 1e-6
        total = accounting.updates_due + accounting.updates + accounting.requested_updates
        assert total == pytest.approx(earned)
        assert accounting.in_flight == simulation.blocks * BLOCK
        not_learned = (earned - accounting.updates) * simulation.ratio + accounting.in_flight
        assert not_learned <= AHEAD + 2 * simulation.ratio + BLOCK + accounting.schedule.learning_starts


@given(histories())
def test_counts_only_grow_and_there_is_always_something_to_request(history):
    *settings, events = history
    simulation = Simulation(*settings)
    accounting = simulation.accounting

    def counts():
        faults = accounting.faults
        totals = (accounting.updates, accounting.states, accounting.total_updates)
        return (*totals, faults.steps_in_flight, faults.updates)

    for event in events:
        before = counts()
        simulation.run(event)
        assert all(b <= a for b, a in zip(before, counts(), strict=True))
        idle = not simulation.blocks and not simulation.requests
        assert not idle or accounting.may_request(BLOCK, AHEAD) or accounting.samples_due()


def test_restored_accounting_equals_the_saved_one_except_for_requests():
    simulation = Simulation(4.0, 2, 0)
    for event in (
        "request_block", "request_block", "lose_block", "request_block", "store_block", "store_block",
        "request_block", "store_block", "request_updates", "finish_updates",
    ):  # fmt: skip
        simulation.run(event)
    copy = Accounting(small_config(schedule={"states_per_update": 4.0}))
    copy.restore(simulation.accounting.state())
    assert copy.state() == simulation.accounting.state()
    assert copy.faults.steps_in_flight == BLOCK


def learning(publish_interval=100, **changes):
    """Accounting of a run of 60 updates that has begun to learn."""
    accounting = Accounting(small_config(**changes), publish_interval)
    accounting.learning_started = True
    return accounting


def test_no_more_updates_are_requested_than_are_left():
    accounting = learning()
    accounting.updates, accounting.updates_due = 56, 20.0
    assert accounting.samples_due() == 2  # of two updates each
    accounting.request_updates(1)
    assert accounting.samples_due() == 1


def test_nothing_is_requested_beyond_a_release_before_it_has_happened():
    accounting = learning(release_interval=10)
    accounting.updates, accounting.updates_due = 6, 20.0
    accounting.request_updates(accounting.samples_due())
    assert accounting.samples_due() == 0
    accounting.complete_updates(2, 10)
    assert accounting.samples_due() == 5


def test_updates_that_were_lost_are_done_again():
    accounting = learning()
    accounting.updates = 40
    accounting.rewind(30)
    assert (accounting.updates, accounting.total_updates, accounting.faults.updates) == (40, 70, 10)


def test_the_count_of_updates_never_falls():
    accounting = learning()
    accounting.updates, accounting.updates_due = 10, 6.0
    accounting.request_updates(2)
    accounting.complete_updates(2, 4)  # of a learner that has begun again
    assert (accounting.updates, accounting.updates_due, accounting.requested_updates) == (10, 6.0, 0)


def test_a_replay_that_was_lost_is_filled_again_also_after_a_restore():
    accounting, restored = learning(), learning()
    accounting.states = 500
    accounting.refill_replay()
    restored.restore(accounting.state())
    for each in (accounting, restored):
        assert not each.learning_started
        assert not each.can_start
        each.states += each.schedule.learning_starts
        assert each.can_start


def test_a_block_is_requested_only_if_all_of_it_may_be_ahead():
    accounting = learning()
    most = 100 + accounting.updates_per_sample * accounting.schedule.states_per_update
    assert accounting.may_request(int(most), 100)
    assert not accounting.may_request(int(most) + 1, 100)


def test_a_single_worker_fills_the_replay_with_the_last_step_included():
    accounting = Accounting(small_config())  # learning starts at 64 states
    assert accounting.steps_until_due(10, 100) == 7
    assert accounting.steps_until_due(8, 100) == 8


@pytest.mark.parametrize(
    ("config", "num_envs", "cpus", "workers"),
    [
        ({}, 16, 4, 2),  # three fit next to the learner, but do not divide sixteen environments
        ({}, 16, 1, 1),
        ({"worker_cpus": 0.5}, 16, 3, 4),
        ({"learner_cpus": 0}, 16, 64, 8),  # one environment per group at least
        ({"workers": 4}, 16, 1, 4),
        ({"lockstep": True}, 16, 64, 1),
        ({"replay": "shards", "shards": 2}, 16, 1, 2),
        ({"learners": 2}, 16, 6, 4),
        ({"learners": 2}, 16, 5, 2),
        ({"inference_workers": 2}, 16, 6, 2),
    ],
)
def test_as_many_workers_as_fit_share_the_environments(config, num_envs, cpus, workers):
    assert ClusterConfig(**config).num_workers(Schedule(num_envs=num_envs), cpus, 0) == workers


@pytest.mark.parametrize(
    ("config", "gpus", "workers"),
    [
        ({"worker_gpus": 0.25, "learner_gpus": 0.5}, 1, 2),
        ({"worker_gpus": 0.25}, 2, 4),  # the learner takes one
        ({"worker_gpus": 0.25}, 1, 0),
        ({"worker_gpus": 0.25, "learners": 2, "inference_workers": 1, "inference_gpus": 0.5}, 3, 2),
        ({"learner_gpus": 1.0}, 0, 0),
        ({"inference_workers": 1, "inference_gpus": 0.3}, 0, 0),
        ({}, 0, 15),
    ],
)
def test_workers_need_room_on_the_gpus_too(config, gpus, workers):
    assert ClusterConfig(**config).fitting_workers(16, gpus) == workers


def test_a_run_that_cannot_start_says_so(monkeypatch):
    for module in (online_ray, driver):
        monkeypatch.setattr(module, "cluster_size", lambda: (2.0, 0.0))

    def start(*, grows, **layout):
        monkeypatch.setattr(online_ray, "connect", lambda _: nullcontext(grows))
        with online_ray.Cluster(ClusterConfig(**layout))(small_config(), 0, None, progress=False) as engine:
            assert engine.num_workers == layout.get("learners", 1)

    start(grows=False)
    start(grows=False, inference_workers=1, inference_cpus=0.5, learner_cpus=0.5)
    with pytest.raises(ValueError, match=r"2 CPUs and 0 GPUs are too few .* lower --cluster\.inference-cpus"):
        start(grows=False, inference_workers=1)
    with pytest.raises(ValueError, match="too few"):
        start(grows=False, learners=2, learner_cpus=0.5)
    with pytest.warns(UserWarning, match="training waits for nodes to join"):
        start(grows=True, inference_workers=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"workers": -1}, "workers = -1"),
        ({"worker_cpus": float("nan")}, "worker_cpus = nan"),
        ({"lockstep": True, "workers": 2}, "one worker, one learner"),
        ({"lockstep": True, "inference_workers": 1}, "no inference worker"),
        ({"workers": 1, "learners": 2}, "learners = 2"),
        ({"workers": 2, "learners": 2, "replay": "shards"}, "needs replay = learner"),
        ({"workers": 1, "shards": 2}, "shards = 2"),
        ({"workers": 2, "shards": 2}, "needs replay = shards"),
    ],
)
def test_impossible_layouts_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        ClusterConfig(**config)


def supervised(learners=1, shards=0):
    """A supervisor of processes that are not there."""
    learners = [supervisor.ReplayHandle(None) for _ in range(learners)]
    replays = [supervisor.ReplayHandle(None) for _ in range(shards)] or learners
    accounting = Accounting(small_config())
    accounting.learning_started = True
    actors = supervisor.RemoteActors(learners, replays, [], [], print)
    return supervisor.Supervisor(actors, accounting, (0, None))


@pytest.mark.parametrize(
    ("processes", "enough"), [({"learners": 2}, [False, False, True]), ({"shards": 2}, [False, True, True])]
)
def test_every_learner_needs_states_of_its_own_and_shards_share_theirs(processes, enough):
    found = supervised(**processes)
    for count, expected in enumerate(enough):
        for replay in found.replays[:count]:
            replay.mass = 1.0
        assert found.has_states() == expected
        found.accounting.learning_started = True
        found.check_replays()
        assert found.accounting.learning_started == expected


@pytest.mark.parametrize("processes", [{"learners": 1}, {"shards": 2}])
def test_a_replay_that_is_being_restored_does_not_die_again_when_all_are_asked(processes):
    found = supervised(**processes)
    found.ask_replays("status")
    assert set(asdict(found.accounting.faults).values()) == {0}
    assert [replay.restarts for replay in found.replays] == [0] * len(found.replays)


@pytest.mark.parametrize(
    ("workers", "steps", "keeps_replay"), [(2, [40, 48], True), (4, [48, 48, 48, 48], False)], ids=["same", "other"]
)
def test_a_run_resumed_with_another_layout_fills_its_replay_again(workers, steps, keeps_replay):
    saved, resumed = (
        DistributedRun(small_config(), 0, ClusterConfig(workers=n), CARTPOLE, 4.0, 0.0) for n in (2, workers)
    )
    saved.accounting.states, saved.accounting.learning_started = 352, True
    saved.recent_scores.add(EpisodeResult(0, 7.0, 30, False), low_epsilon=True)
    replay = {"replay0.written": torch.ones(4)}
    resumed.restore_counters(Checkpoint({}, saved.counters([40, 48]), {"replay": replay}))
    assert (resumed.num_workers, resumed.saved_steps, resumed.states) == (workers, steps, 352)
    assert resumed.recent_scores.metrics() == saved.recent_scores.metrics()
    assert resumed.learning_started == ("written" in resumed.saved_replays[0]) == keeps_replay


def test_a_replay_process_that_answers_for_the_first_time_has_not_been_restarted():
    replay = ReplayHandle(None)
    assert not replay.restarted(ReplayStatus("a", 0.0, 0))
    replay.incarnation = "a"
    assert not replay.restarted(ReplayStatus("a", 0.0, 0))
    assert replay.restarted(ReplayStatus("b", 0.0, 0))


def test_a_batch_that_does_not_divide_among_the_learners_is_refused(monkeypatch):
    monkeypatch.setattr(driver, "cluster_size", lambda: (8.0, 0.0))
    with pytest.raises(ValueError, match="learners = 3: do not divide batch_size = 16"):
        driver.RayEngine(small_config(), 0, ClusterConfig(learners=3), CARTPOLE)


@pytest.mark.parametrize(
    ("layout", "workers", "interval"),
    [
        ({"lockstep": True}, 1, 2),
        ({"block_steps": 1}, 4, 2),  # a block of two states, half an update
        ({"block_steps": 16}, 1, 32),  # 128 states, 32 updates
        ({"block_steps": 17}, 1, 34),
        ({"block_steps": 16}, 2, 16),  # every worker's block
        ({"block_steps": 64}, 8, 32),  # four times while all of them make one, 512 states
    ],
)
def test_weights_are_published_at_most_once_per_block(layout, workers, interval):
    schedule = small_config().schedule  # 8 environments, 4 states per update, published every 2 updates
    assert ClusterConfig(**layout).publish_interval(schedule, workers) == interval


@pytest.mark.parametrize(("given", "num_envs", "steps"), [(0, 8, 16), (0, 256, 8), (0, 4096, 4), (7, 8, 7)])
def test_blocks_are_short_where_environments_are_many(given, num_envs, steps):
    assert ClusterConfig(block_steps=given).steps_per_block(Schedule(num_envs=num_envs)) == steps


def test_environments_that_do_not_divide_among_the_workers_are_refused():
    with pytest.raises(ValueError, match="does not divide"):
        ClusterConfig(workers=3).num_workers(Schedule(num_envs=16), 8, 0)


def test_an_evaluation_never_asks_for_a_higher_priority_than_it_has(monkeypatch):
    """Ray starts workers with a low priority, which only root may raise again."""
    chosen = []
    monkeypatch.setattr(os, "getpriority", lambda *_: 15)
    monkeypatch.setattr(os, "setpriority", lambda *given: chosen.append(given[-1]))
    config = small_config()
    weights = flatten_parameters(init_networks(config, CARTPOLE, 0)).numpy()
    assert evaluation_score(config, CARTPOLE, weights, 0, 1, 0) >= 1
    assert chosen == [15]


def test_an_evaluation_that_fails_costs_its_score_and_not_the_run(monkeypatch):
    def fails(_):
        raise OSError("the emulator is gone")

    monkeypatch.setattr(driver, "cluster_size", lambda: (2.0, 0.0))
    monkeypatch.setattr(driver, "result_or_none", fails)
    engine = driver.RayEngine(small_config(), 0, ClusterConfig(), CARTPOLE)
    with pytest.warns(UserWarning, match=r"after 40 updates failed: the emulator is gone"):
        engine.evaluation_done(40, None)
    assert engine.evaluated == (40, None)
    assert not engine.evaluating


class Lost:
    """The handle of a process whose calls fail as Ray's do, or are never answered."""

    def __init__(self):
        self.loaded = []

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *given: self.loaded.append(given) if method == "load_from" else method)


@pytest.mark.parametrize("error", [RayActorError(), GetTimeoutError(), None], ids=["dead", "hung", "without weights"])
def test_a_rollout_worker_gives_up_an_inference_worker_that_never_answers(error, monkeypatch):
    def get(ref, timeout):
        assert ref == "predict"
        assert 0 < timeout <= 0.2
        if error is not None:
            raise error

    monkeypatch.setattr(workers, "INFERENCE_TIMEOUT", 0.2)
    monkeypatch.setattr(workers, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(workers.ray, "get", get)
    networks = workers.RemoteNetworks(Lost(), "inference worker 0")
    with pytest.raises(TimeoutError, match=r"inference worker 0: has not answered for .* --resume"):
        networks.predict(torch.zeros(1, 4))


def test_rates_of_workers_and_learner_are_measured_over_some_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    statistics = RolloutStatistics(small_config(), 2)
    block = BlockSummary(400, 1000, 3, [(0, 7.0, True)], [[1.0] * len(statistics.sums)] * 2)
    statistics.add(1, block, updates=5)
    now[0] += RATE_SECONDS / 2
    assert not statistics.measure(20)
    assert statistics.rates == [None, None, None]
    now[0] += RATE_SECONDS / 2
    assert statistics.measure(20)
    assert statistics.rates == [0.0, 400 / RATE_SECONDS, 20 / RATE_SECONDS]
    assert (statistics.bytes, statistics.weights_behind, statistics.recent_scores.episodes) == (1000, 2, 1)
    now[0] += 2 * RATE_SECONDS
    assert statistics.measure(50)
    assert statistics.rates == [0.0, 0.0, 30 / (2 * RATE_SECONDS)]


def test_actor_metrics_are_means_of_the_blocks_since_the_last_call():
    statistics = RolloutStatistics(small_config(), 1)
    names = statistics.metric_names
    for total, count in ((6.0, 3.0), (20.0, 4.0)):
        sums = [[total / 2] * len(names) + [count / 2]] * 2  # of both groups
        statistics.add(0, BlockSummary(8, 10, 0, [], sums), updates=0)
        assert statistics.actor_metrics() == dict.fromkeys(names, total / count)
    assert statistics.actor_metrics() == dict.fromkeys(names, 5.0)  # nothing has arrived since


def test_a_death_names_the_process_and_its_machine(caplog):

    worker = supervisor.WorkerHandle(None, "rollout worker 3", pid=77, host="10.0.0.5")
    supervised().report_death(worker)
    assert caplog.messages == ["rbi: rollout worker 3 died (process 77 on 10.0.0.5); Ray restarts it"]


KILLED_DRIVER = """
import os, signal
from rbi.parallel import reaper
with reaper("node-of-this-test"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by their environment in /proc")
def test_processes_of_a_local_cluster_are_killed_when_its_driver_was():
    waiting = [sys.executable, "-c", "input()"]
    agent = subprocess.Popen(waiting, stdin=subprocess.PIPE, env=os.environ | {"RAY_NODE_ID": "node-of-this-test"})
    other = subprocess.Popen(waiting, stdin=subprocess.PIPE, env=os.environ | {"RAY_NODE_ID": "another"})
    try:
        driver = subprocess.run([sys.executable, "-c", KILLED_DRIVER], check=False)
        assert driver.returncode == -signal.SIGKILL
        assert agent.wait(timeout=60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (agent, other):
            process.kill()
            process.communicate()
