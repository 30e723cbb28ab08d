"""The Ray engine on a real cluster of several nodes on this machine, and what it does when processes are killed."""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

from ray.cluster_utils import Cluster

from rbi import checkpoint, cli, runs
from rbi.online import sweep
from rbi.online.config import ClusterConfig
from rbi.online.ray.driver import MAX_QUEUED_CALLS, RayEngine
from rbi.online.ray.supervisor import retry
from rbi.online.run_logger import RunOptions
from rbi.online.train import make_observation_spec
from tests.online.small_runs import make_engine, run_to_end, small_config

ROOT = Path(__file__).parent.parent.parent
CARTPOLE = make_observation_spec(small_config())
OBJECT_STORE_BYTES = 80_000_000
TINY = [
    "train", "--engine", "ray", "--env", "CartPole-v1", "--schedule.num-envs", "8", "--schedule.learning-starts", "64",
    "--schedule.hidden-size", "16", "--schedule.publish-interval", "2", "--schedule.states-per-update", "4",
    "--learner.batch-size", "16", "--learner.updates-per-sample", "2", "--learner.target-update-interval", "8",
    "--replay.capacity", "2000", "--report-interval", "10", "--eval-episodes", "2",
    "--cluster.block-steps", "4", "--cluster.workers", "1", "--cluster.evaluation-episodes", "0",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    """A head node with room for the learner and with the GPUs, if any, and a node with room for one worker."""
    gpus = torch.cuda.device_count()
    head = {"num_cpus": 1, "num_gpus": gpus, "object_store_memory": OBJECT_STORE_BYTES}
    unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # no logs, no autoscaling
    started = Cluster(initialize_head=True, head_node_args=head | unused)
    try:
        started.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@pytest.fixture(params=[0.0, pytest.param(0.2, marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def gpus(request):
    """The share of a GPU that a learner or an inference worker gets: none, or some of it where there is one."""
    return request.param


@pytest.fixture
def engines(cluster):  # noqa: ARG001 (they run on the cluster that this process is connected to)
    """Makes engines that are closed after the test."""
    made = []

    def make(config, seed=0, **layout):
        layout = {"workers": 1, "block_steps": 4, "evaluation_episodes": 0, "learner_gpus": 0.0} | layout
        made.append(RayEngine(config, seed, ClusterConfig(**layout), CARTPOLE))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


class Running:
    """A run that continues until a condition holds; its counts must never decrease."""

    PAUSE = 0.05  # seconds between polls while processes start, which need the cores

    def __init__(self, engine):
        self.engine, self.steps = engine, engine.run()
        self.counts = (0, 0, 0, 0)

    def until(self, condition, pause=PAUSE):
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "the run hangs"
            time.sleep(pause)
            next(self.steps)
            before, self.counts = self.counts, self.now()
            assert all(b <= n for b, n in zip(before, self.counts, strict=True))

    def more(self, updates):
        goal = self.engine.updates + updates
        self.until(lambda: self.engine.updates >= goal, pause=0)

    def now(self):
        engine = self.engine
        return engine.updates, engine.states, engine.supervisor.version, engine.recent_scores.episodes


def endless(**changes):
    return small_config(schedule={"updates": 10**6} | changes.pop("schedule", {}), **changes)


HELD_BACK = {"store_at_episode_end": True, "release_interval": 10}


@pytest.mark.parametrize("replay", ["learner", "shards"])
def test_lockstep_reproduces_the_local_engines_weights_to_the_last_bit(replay, engines):
    config = small_config("apex", schedule={"random_policy_updates": 20}, replay={"priority_exponent": 0.6} | HELD_BACK)
    local = run_to_end(make_engine(config, seed=3))
    other = engines(config, 3, lockstep=True, replay=replay)
    assert_equal_runs(run_to_end(other), local)


def assert_equal_runs(other, local):
    """A finished run in lockstep and a finished local one have the same weights, counts, metrics and priorities."""
    assert torch.equal(torch.from_numpy(other.supervisor.ask_learner("policy")[1].copy()), local.learner.vector)
    assert (other.updates, other.states) == (local.updates, local.states)
    ours, theirs = other.metrics(), local.metrics()
    del theirs["priority_mean"]  # the driver knows it as of the last block
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=0.01)
    assert torch.equal(other.supervisor.replay_state()["replay0.priority"], local.replay.state()["priority"])


def test_lockstep_waits_for_a_slow_learner_and_reproduces_the_local_engine_all_the_same(engines):
    config = small_config("rbi", replay={"priority_exponent": 0.6})
    local = run_to_end(make_engine(config, seed=3))
    other = engines(config, 3, lockstep=True)
    supervisor = other.supervisor
    while not (supervisor.learner.alive and supervisor.learner.pid):
        supervisor.poll()
    os.kill(supervisor.learner.pid, signal.SIGSTOP)
    supervisor.restore_learners()
    run = Running(other)
    run.until(lambda: supervisor.workers[0].alive)
    for _ in range(2):
        next(run.steps)
    assert (other.states, other.accounting.in_flight, supervisor.learner.alive) == (0, 0, False)
    os.kill(supervisor.learner.pid, signal.SIGCONT)
    for _ in run.steps:
        pass
    assert_equal_runs(other, local)


def test_a_joining_node_adds_a_worker_and_a_killed_node_leaves_the_others_running(cluster, engines):
    engine = engines(endless(), workers=2, replay="shards", shards=2, prefetch=1)
    run = Running(engine)
    run.more(20)
    assert [worker.alive for worker in engine.supervisor.workers] == [True, False]
    node = cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
    run.until(lambda: all(worker.alive and worker.step > 0 for worker in engine.supervisor.workers))
    run.more(20)
    assert all(shard.mass > 0 for shard in engine.supervisor.replays)
    lost = next(worker for worker in engine.supervisor.workers if worker.node == node.node_id)
    for actor in engine.supervisor.actors:
        if actor.node == node.node_id:
            os.kill(actor.pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
    run.until(lambda: engine.accounting.faults.workers == 1)
    run.more(20)
    assert not lost.alive
    assert engine.summary()["faults"]["workers"] == 1
    assert engine.summary()["faults"]["learners"] == 0
    assert engine.summary()["cluster"]["max_workers"] == 2


def test_killed_workers_shards_and_learners_are_replaced_and_what_they_lost_is_counted(gpus, engines):
    engine = engines(endless(), replay="shards", learner_gpus=gpus)
    run = Running(engine)
    run.more(20)

    (worker,) = engine.supervisor.workers
    os.kill(worker.pid, signal.SIGKILL)
    died_at = worker.step
    run.until(lambda: engine.accounting.faults.workers == 1 and worker.alive)
    run.more(20)
    faults = engine.summary()["faults"]
    assert (faults["workers"], faults["shards"], faults["learners"], faults["updates"]) == (1, 0, 0, 0)
    assert 0 < faults["steps_in_flight"] <= MAX_QUEUED_CALLS * 8 * 4
    assert worker.step > died_at
    assert engine.states == 4 * worker.step - faults["steps_in_flight"] - engine.accounting.in_flight

    (shard,) = engine.supervisor.replays
    os.kill(shard.pid, signal.SIGKILL)
    run.until(lambda: engine.accounting.faults.shards == 1)
    run.until(lambda: engine.learning_started)
    run.more(20)
    faults = engine.summary()["faults"]
    assert faults["replay_states"] >= 64
    assert (faults["workers"], faults["learners"], faults["updates"]) == (1, 0, 0)
    assert 64 <= shard.states <= engine.states - faults["replay_states"]

    vector = engine.checkpoint(with_replay=False).tensors["tensors"]["learner.vector"]
    saved = engine.updates
    run.more(10)
    learner = engine.supervisor.learner
    os.kill(learner.pid, signal.SIGKILL)
    run.until(lambda: engine.accounting.faults.learners == 1 and learner.alive)
    assert torch.equal(torch.from_numpy(ray.get(engine.supervisor.published).copy()), vector)
    repeated = engine.updates - saved
    assert engine.summary()["faults"]["updates"] == repeated >= 10
    assert engine.accounting.total_updates == 10**6 + repeated
    run.more(20)
    kept = engine.checkpoint(with_replay=True).tensors  # nothing is outstanding now
    assert kept["tensors"]["learner.adam_count"] == engine.updates - repeated

    restarts = shard.restarts
    os.kill(shard.pid, signal.SIGKILL)  # while nobody calls it
    assert ray.get(retry(shard, "identity").remote())[0] != shard.pid
    run.until(lambda: shard.restarts == restarts + 1 and shard.alive)
    run.more(20)
    before, again = (
        tensors["replay"]["replay0.frames"] for tensors in (kept, engine.checkpoint(with_replay=True).tensors)
    )
    assert torch.equal(again[: len(before)], before)
    assert engine.summary()["faults"]["shards"] == 2


def test_a_killed_learner_continues_from_the_checkpoint_with_its_replay_or_fills_it_again(gpus, engines):
    engine = engines(endless(), learner_gpus=gpus)
    run = Running(engine)
    run.more(20)
    learner = engine.supervisor.learner
    for deaths, with_replay in enumerate((False, True), start=1):
        saved = engine.checkpoint(with_replay=with_replay)
        at, earlier = engine.updates, engine.summary()["faults"]
        run.more(10)
        os.kill(learner.pid, signal.SIGKILL)
        run.until(lambda deaths=deaths: engine.accounting.faults.learners == deaths and learner.alive)
        assert engine.learning_started == with_replay  # otherwise the replay is filled again first
        vector = saved.tensors["tensors"]["learner.vector"]
        assert torch.equal(torch.from_numpy(ray.get(engine.supervisor.published).copy()), vector)
        faults = engine.summary()["faults"]
        assert (faults["workers"], faults["shards"]) == (0, 0)
        assert faults["updates"] - earlier["updates"] == engine.updates - at
        assert faults["replay_states"] - earlier["replay_states"] >= (1 if with_replay else 64)
        if with_replay:
            again = engine.checkpoint(with_replay=True).tensors["replay"]
            before = saved.tensors["replay"]["replay0.frames"]
            assert torch.equal(again["replay0.frames"][: len(before)], before)
        run.until(lambda: engine.learning_started)
        run.more(20)
        assert engine.accounting.total_updates == 10**6 + faults["updates"]


def test_a_killed_learner_of_two_takes_the_other_along_and_both_continue(engines):
    engine = engines(endless(), learners=2, workers=2, worker_cpus=0.2, learner_cpus=0.2)
    run = Running(engine)
    run.more(20)
    saved = engine.checkpoint(with_replay=True)
    assert {name.split(".")[0] for name in saved.tensors["replay"]} == {"replay0", "replay1"}
    at = engine.updates
    run.more(10)
    learners = engine.supervisor.learners
    os.kill(learners[1].pid, signal.SIGKILL)
    # where cores are short, Ray cancels calls to an actor that restarts, which is one more death
    run.until(lambda: engine.accounting.faults.learners and all(learner.alive for learner in learners))
    assert engine.summary()["faults"]["updates"] == engine.updates - at
    run.more(20)
    first, second = ray.get([learner.handle.policy.remote() for learner in learners])
    assert first[0] == second[0]
    assert np.array_equal(first[1], second[1])


@pytest.mark.parametrize("replay", ["learner", "shards"])
def test_a_learner_the_replay_and_all_workers_killed_at_once_are_replaced(replay, gpus, engines):
    few = {"worker_cpus": 0.2, "learner_cpus": 0.2, "learner_gpus": gpus}
    engine = engines(endless(), workers=2, replay=replay, shards=2 if replay == "shards" else 1, **few)
    run = Running(engine)
    run.more(20)
    run.until(lambda: all(worker.alive for worker in engine.supervisor.workers))
    engine.checkpoint(with_replay=True)
    at = engine.updates
    run.more(10)
    supervisor = engine.supervisor
    killed = supervisor.actors
    for actor in killed:
        os.kill(actor.pid, signal.SIGKILL)
    run.until(lambda: engine.accounting.faults.learners and engine.accounting.faults.workers == 2)
    run.until(lambda: all(actor.alive for actor in killed) and engine.learning_started)
    run.more(20)
    shards = 2 if replay == "shards" else 0
    run.until(lambda: engine.accounting.faults.shards >= shards)  # the death of a shard shows when it is called
    faults = engine.summary()["faults"]
    if replay == "learner":
        assert faults["learners"] == 1
    assert faults["shards"] == shards
    assert faults["updates"] >= engine.accounting.repeated_updates >= 10
    assert faults["steps_in_flight"] > 0
    assert engine.updates > at


def test_reports_and_policies_do_not_wait_for_queued_updates(engines):
    engine = engines(endless())
    run = Running(engine)
    run.more(20)
    engine.metrics()
    run.until(lambda: engine.learner_calls)
    pid = engine.supervisor.learner.pid
    os.kill(pid, signal.SIGSTOP)
    resumed = threading.Timer(120, os.kill, (pid, signal.SIGCONT))  # or they would wait for ever
    resumed.start()
    metrics, policy = engine.metrics(), engine.policy()
    assert resumed.is_alive()
    resumed.cancel()
    os.kill(pid, signal.SIGCONT)
    assert metrics["q_loss"] > 0
    assert policy.metadata["updates"] == engine.supervisor.version
    run.more(20)


def test_a_killed_inference_worker_is_replaced_and_nothing_is_lost(gpus, engines):
    few = {"worker_cpus": 0.2, "inference_cpus": 0.2, "learner_cpus": 0.2, "learner_gpus": gpus, "inference_gpus": gpus}
    engine = engines(endless(), workers=2, inference_workers=1, **few)
    run = Running(engine)
    run.more(20)
    (inference,) = engine.supervisor.inference
    os.kill(inference.pid, signal.SIGKILL)
    states = engine.states
    run.until(lambda: engine.states > states + 200)
    run.more(20)
    assert set(engine.summary()["faults"].values()) == {0}
    engine.supervisor.check_inference()  # the run does so every ten seconds
    run.until(lambda: inference.restarts == 1)
    status = next(one for one in engine.processes() if one.name == inference.name)
    assert (status.alive, status.restarts) == (True, 1)


def test_a_run_whose_driver_was_killed_resumes_from_the_checkpoint(cluster, tmp_path):
    out = tmp_path / "run"
    there = [*TINY, "--address", cluster.address, "--checkpoint-minutes", "0.005", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    driver = subprocess.Popen([sys.executable, "-m", "rbi", *there, "--schedule.updates", "100000"], env=environment)
    try:
        while checkpoint.newest(out) is None or len(runs.read(out).metrics) < 8:
            assert driver.poll() is None
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()
    saved = int(checkpoint.newest(out).name)
    known = runs.read(out).metrics[-1]["updates"]
    more = -(-(known + 40) // 2) * 2
    assert cli.main([*there, "--schedule.updates", str(more), "--resume"]) == 0
    run = runs.read(out)
    assert run.result["last"]["updates"] == more
    assert run.result["resumed"] == {"times": 1, "repeated_updates": max(0, known - saved)}
    for name in ("updates", "states", "episodes"):
        counts = [line[name] for line in run.metrics]
        assert counts == sorted(counts)
    assert run.result["evaluation"]["episodes"] == 2


def test_a_study_on_the_cluster_equals_one_on_local_processes(cluster, tmp_path):
    study = ["spi", "--worlds", "random(0.9)", "--sizes", "10", "--repetitions", "4", "--algorithms", "baseline"]
    there = ["--engine", "ray", "--address", cluster.address]
    assert cli.main([*study, "--workers", "1", "--out", str(tmp_path / "here")]) == 0
    assert cli.main([*study, *there, "--out", str(tmp_path / "there")]) == 0
    here, there = (runs.read(tmp_path / name) for name in ("here", "there"))
    assert here.result == there.result


def test_a_client_with_a_wrong_token_is_refused(cluster, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_NUM_REDIS_GET_RETRIES": "2",
    }
    asked = [sys.executable, "-m", "rbi", *TINY, "--address", cluster.address, "--out", str(tmp_path / "run")]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == cli.USAGE_ERROR
    assert "rbi: --address" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_sweep_starts_a_cluster_that_listens_on_loopback_only(tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    options = [
        "--schedule.updates",
        "20",
        "--seeds",
        "2",
        "--cluster.learner-cpus",
        "0.5",
        "--out",
        str(tmp_path / "s"),
    ]
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen([sys.executable, "-m", "rbi", *TINY, *options], env=environment, stdout=log, stderr=log)
    try:
        addresses, started = set(), set()
        while run.poll() is None:
            running = family(run.pid)
            addresses |= listening(running)
            started |= running
            time.sleep(0.2)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, (tmp_path / "log").read_text()
    assert addresses
    assert all(address == "127.0.0.1" for address in addresses)
    assert [row["seed"] for row in runs.read(tmp_path / "s").result["rows"]] == [0, 1]
    deadline = time.monotonic() + 60
    while any(alive(process) for process in started):
        assert time.monotonic() < deadline, "processes were left behind"
        time.sleep(0.1)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def family(pid):
    """A process and all of its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, more = set(), {pid} & parents.keys()
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in found} - found
    return found


def listening(processes):
    """The addresses on which processes listen."""
    sockets = {}
    for name, size in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                raw = bytes.fromhex(words[1].split(":")[0])
                assert len(raw) * 2 == size
                parts = [raw[at : at + 4][::-1] for at in range(0, len(raw), 4)]
                address = ipaddress.ip_address(b"".join(parts))
                sockets[words[9]] = str(getattr(address, "ipv4_mapped", None) or address)
    found = set()
    for one in processes:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{one}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held = re.fullmatch(r"socket:\[(\d+)\]", str(file.readlink()))
                    found |= {sockets[held[1]]} if held and held[1] in sockets else set()
    return found


def test_a_missing_ray_names_the_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main([*TINY, "--out", str(tmp_path / "run")]) == cli.USAGE_ERROR
    assert "pip install 'rbi[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_unreachable_address_is_refused_at_once(capsys, tmp_path):
    with socket.socket() as taken:  # bound, so that no other process has the port, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main([*TINY, "--address", address, "--out", str(tmp_path / "run")]) == cli.USAGE_ERROR
    assert f"--address {address}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_sweep_job_on_a_node_without_the_shared_folder_returns_its_run_folder(tmp_path):
    config = small_config(schedule={"updates": 20})
    job = sweep.SweepJob(config, 0, tmp_path / "runs" / "one")
    packed = sweep.run_remote_job(job, RunOptions(eval_episodes=1), tmp_path / "no marker")
    assert not job.path.exists()
    sweep.unpack_run(packed, job.path)
    run = runs.read(job.path)
    assert run.result is not None
    assert run.metrics
