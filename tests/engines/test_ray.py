"""The Ray engine on a real cluster of several nodes on this machine, and what it does when parts of it are killed."""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch

# a cluster that stays on this machine, asks for a token and notices soon that a node is gone; read by Ray's import
os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid.uuid4().hex,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402

from rbi import (
    checkpoint,  # noqa: E402
    cli,  # noqa: E402
    runs,  # noqa: E402
)
from rbi.cli import (
    spread,  # noqa: E402
    train,  # noqa: E402
)
from rbi.observations import ObservationSpec  # noqa: E402
from rbi.online.ray.config import RayConfig  # noqa: E402
from rbi.online.ray.driver import (
    MAX_QUEUED_CALLS,  # noqa: E402
    RayEngine,  # noqa: E402
)
from rbi.online.ray.workers import (
    ExperienceBlock,  # noqa: E402
    ShardedReplay,  # noqa: E402
)
from tests.engines.test_local import engine_of, run_out, small_plan  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
CARTPOLE = ObservationSpec((4,), 1, 2)
STORE = 80_000_000
TINY = [
    "train", "--engine", "ray", "--env", "CartPole-v1", "--schedule.num-envs", "8", "--schedule.learning-starts", "64",
    "--schedule.hidden-size", "16", "--learner.batch-size", "16", "--learner.updates-per-sample", "2", "--learner.target-update-interval", "8",
    "--replay.capacity", "2000", "--schedule.publish-interval", "2", "--schedule.states-per-update", "4", "--report-updates",
    "10", "--episodes", "2", "--cluster.block-steps", "4", "--cluster.workers", "1", "--cluster.evaluate-episodes", "0",
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    """A head with room for the learner, and one node with room for one worker."""
    result_when_ready = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE},
    )
    try:
        result_when_ready.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(address=result_when_ready.address, logging_level="ERROR", log_to_driver=False)
        yield result_when_ready
    finally:
        ray.shutdown()
        result_when_ready.shutdown()


@pytest.fixture
def engines(cluster):  # noqa: ARG001 (they run on the cluster that this process has connected)
    """Makes engines that are closed when the test is over."""
    result_when_ready = []

    def make(whole, seed=0, **config):
        settings = {"workers": 1, "block_steps": 4, "evaluate_episodes": 0} | config
        result_when_ready.append(RayEngine(whole, seed, RayConfig(**settings), CARTPOLE))
        return result_when_ready[-1]

    yield make
    for engine in result_when_ready:
        engine.close()


class Running:
    """A run that goes on until something is so; its counts must never run backwards."""

    def __init__(self, engine):
        self.engine, self.ticks = engine, engine.ticks()
        self.counts = (0, 0, 0, 0)

    def until(self, condition):
        hung = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < hung, "the run hangs"
            next(self.ticks)
            before, self.counts = self.counts, self.now()
            assert all(b <= n for b, n in zip(before, self.counts, strict=True))

    def more(self, updates):
        goal = self.engine.learner.updates + updates
        self.until(lambda: self.engine.learner.updates >= goal)

    def now(self):
        accounting = self.engine.accounting
        return accounting.updates, accounting.states, self.engine.supervisor.version, self.engine.recent.episodes


def endless(**changes):
    return small_plan(schedule={"updates": 10**6} | changes.pop("schedule", {}), **changes)


@pytest.mark.parametrize(
    ("algo", "held_back", "random"),
    [("rbi", {}, 0), ("apex", {"store_at_episode_end": True, "release_interval": 10}, 20)],
)
def test_in_lockstep_the_weights_are_the_local_engines_to_the_last_bit(algo, held_back, random, engines):
    whole = small_plan(algo, schedule={"random_policy_updates": random}, replay={"priority_exponent": 0.6} | held_back)
    local = run_out(engine_of(whole, seed=3))
    other = engines(whole, 3, lockstep=True)
    for _ in other.ticks():
        pass
    assert torch.equal(torch.from_numpy(other.supervisor.ask_learner("policy")[1].copy()), local.learner.vector)
    assert (other.learner.updates, other.states) == (local.learner.updates, local.states)
    ours, theirs = other.metrics(), local.metrics()
    del theirs["priority_mean"]  # ours is as of the last block
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=0.01)
    assert torch.equal(other.replay.state()["shard0.priority"], local.replay.state()["priority"])


def test_in_lockstep_a_learner_that_is_late_changes_nothing(engines):
    whole = small_plan("rbi", replay={"priority_exponent": 0.6})
    local = run_out(engine_of(whole, seed=3))
    other = engines(whole, 3, lockstep=True)
    supervisor = other.opening()
    while not supervisor.learner.process:
        supervisor.poll()
    os.kill(supervisor.learner.process, signal.SIGSTOP)
    supervisor.restore_learner()
    run = Running(other)
    run.until(lambda: supervisor.slots[0].live and supervisor.stores[0].live)
    for _ in range(2):
        next(run.ticks)
    assert (other.states, other.accounting.in_flight, supervisor.learner.live) == (0, 0, False)
    os.kill(supervisor.learner.process, signal.SIGCONT)
    for _ in run.ticks:
        pass
    assert torch.equal(torch.from_numpy(supervisor.ask_learner("policy")[1].copy()), local.learner.vector)


def test_a_killed_worker_comes_back_and_costs_the_steps_in_flight(engines):
    engine = engines(endless())
    run = Running(engine)
    run.more(20)
    (slot,) = engine.supervisor.slots
    os.kill(slot.process, signal.SIGKILL)
    died_at = slot.tick
    run.until(lambda: engine.accounting.lost.workers == 1 and slot.live)
    run.more(20)
    lost = engine.summary()["lost"]
    assert (lost["workers"], lost["shards"], lost["learners"], lost["updates"]) == (1, 0, 0, 0)
    assert 0 < lost["steps_in_flight"] <= MAX_QUEUED_CALLS * 8 * 4
    assert slot.tick > died_at
    assert engine.states == 4 * slot.tick - lost["steps_in_flight"] - engine.accounting.in_flight


def test_a_node_that_joins_adds_a_worker_and_a_killed_one_takes_no_other_with_it(cluster, engines):
    engine = engines(endless(), workers=2, shards=2, prefetch=1)
    run = Running(engine)
    run.more(20)
    assert [slot.live for slot in engine.supervisor.slots] == [True, False]
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    run.until(lambda: all(slot.live and slot.tick > 0 for slot in engine.supervisor.slots))
    run.more(20)
    assert all(store.mass > 0 for store in engine.supervisor.stores)
    away = next(slot for slot in engine.supervisor.slots if slot.node == node.node_id)
    gone = [post for post in engine.supervisor.posts if post.node == node.node_id]
    for post in gone:
        os.kill(post.process, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
    run.until(lambda: engine.accounting.lost.workers == 1)
    run.more(20)
    assert not away.live
    assert engine.summary()["lost"]["workers"] == 1
    assert engine.summary()["lost"]["learners"] == 0
    assert engine.summary()["cluster"]["most_at_once"] == 2


def test_a_killed_shard_loses_its_share_and_fills_again(engines):
    engine = engines(endless())
    run = Running(engine)
    run.more(20)
    (store,) = engine.supervisor.stores
    os.kill(store.process, signal.SIGKILL)
    run.until(lambda: engine.accounting.lost.shards == 1)
    run.until(lambda: engine.started)
    run.more(20)
    lost = engine.summary()["lost"]
    assert lost["replay_states"] >= 64
    assert (lost["workers"], lost["learners"], lost["updates"]) == (0, 0, 0)
    assert 64 <= store.states <= engine.states - lost["replay_states"]


def test_a_killed_learner_goes_on_from_the_checkpoint_and_does_again_what_is_gone(engines, tmp_path):
    engine = engines(endless())
    run = Running(engine)
    run.more(20)
    at = checkpoint.save(tmp_path, engine, with_replay=False, about={})
    saved, vector = engine.learner.updates, engine.tensors()["learner.vector"]
    assert at.name == f"{saved:010d}"
    run.more(10)
    post = engine.supervisor.learner
    os.kill(post.process, signal.SIGKILL)
    run.until(lambda: engine.accounting.lost.learners == 1 and post.live)
    assert torch.equal(torch.from_numpy(ray.get(engine.supervisor.published).copy()), vector)
    gone = engine.learner.updates - saved
    assert engine.summary()["lost"]["updates"] == gone >= 10
    assert engine.accounting.goal == 10**6 + gone
    run.more(20)
    assert engine.tensors()["learner.adam_count"] == engine.learner.updates - gone


def test_after_its_drivers_death_the_same_command_goes_on_from_the_checkpoint(cluster, tmp_path):
    out = tmp_path / "run"
    there = [*TINY, "--address", cluster.address, "--checkpoint-minutes", "0.005", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
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
    assert run.result["resumed"] == {"times": 1, "updates_done_again": max(0, known - saved)}
    for name in ("updates", "states", "episodes"):
        counts = [line[name] for line in run.metrics]
        assert counts == sorted(counts)
    assert run.result["evaluation"]["episodes"] == 2


def test_states_of_all_shards_are_drawn_by_priority_and_weighed_alike(engines):
    whole = small_plan(
        schedule={"players": 4}, replay={"priority_exponent": 1.0, "importance_exponent": 0.4, "capacity": 400}
    )
    engine = engines(whole, workers=2, shards=2)
    handles = [store.handle for store in engine.opening().stores]
    errors = [np.array([[1.0], [3.0]]), np.array([[8.0], [2.0]])]
    for slot, error in enumerate(errors):
        block = marked_block(46, error, first_mark=slot * 100)
        ray.get(handles[slot].add.remote(slot, 0, True, block))
    stocks = ray.get([handle.stock.remote() for handle in handles])
    shards = ShardedReplay(handles, 0, 0.4, torch.device("cpu"))
    shards.mass = [stock.mass for stock in stocks]
    batch = shards.sample(60_000, torch.Generator().manual_seed(0))
    marks = batch.frames[:, 0, 0].long()
    priority = torch.tensor([errors[m // 100][m % 2, 0] for m in marks.tolist()])
    found = {p: float((priority == p).float().mean()) for p in (1.0, 3.0, 8.0, 2.0)}
    assert found == pytest.approx({1.0: 1 / 14, 3.0: 3 / 14, 8.0: 8 / 14, 2.0: 2 / 14}, abs=0.01)
    relative = batch.weight * priority**0.4
    assert torch.allclose(relative, relative[0].expand_as(relative), rtol=0.02)
    first, second = (marks[part] < 100 for part in (slice(30_000), slice(30_000, None)))
    assert abs(float(first.float().mean() - second.float().mean())) < 0.02  # any part is fair
    of_one = marks == int(marks[0])
    shards.update_priorities(batch.row, batch.lane, torch.where(of_one, 0.5, priority))
    after = ray.get([handle.state.remote() for handle in handles])
    changed = [int((abs(state["priority"] - 0.5) < 1e-3).sum()) for state in after]
    assert changed[int(marks[0]) // 100] == 2  # both groups saw it
    assert sum(changed) == 2


def marked_block(ticks, errors, first_mark):
    """A block of one player in each group whose frames carry a number; odd and even moments have their own errors."""
    cells = (ticks, 1)
    mark = first_mark + np.arange(ticks) // 2  # a group sees every other tick
    frame = np.zeros((*cells, 4), np.float32)
    frame[:, 0, 0] = mark
    horizon = 3
    error = errors[(mark - horizon) % 2]  # of the moment three steps before
    first = np.zeros(cells, bool)
    first[:2] = True
    return ExperienceBlock(
        frame, first, np.zeros(cells, np.float32), np.zeros(cells, np.uint8), np.zeros(cells, np.int16),
        np.full((*cells, 2), 0.5, np.float32), error.astype(np.float32),
    )  # fmt: skip


def test_a_study_over_the_cluster_is_the_one_over_processes(cluster, tmp_path):
    study = ["spi", "--worlds", "random(0.9)", "--sizes", "10", "--repetitions", "4", "--algorithms", "baseline"]
    there = ["--engine", "ray", "--address", cluster.address]
    assert cli.main([*study, "--workers", "1", "--out", str(tmp_path / "here")]) == 0
    assert cli.main([*study, *there, "--out", str(tmp_path / "there")]) == 0
    here, there = (runs.read(tmp_path / name) for name in ("here", "there"))
    assert here.result == there.result


def test_a_stranger_without_the_token_is_turned_away(cluster, tmp_path):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_NUM_REDIS_GET_RETRIES": "2",
    }
    asked = [sys.executable, "-m", "rbi", *TINY, "--address", cluster.address, "--out", str(tmp_path / "run")]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == cli.USAGE_ERROR
    assert "rbi: --address" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_sweep_runs_on_a_cluster_of_its_own_that_listens_on_this_machine_only(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    sweep = [
        *TINY,
        "--schedule.updates",
        "20",
        "--seeds",
        "2",
        "--cluster.learner-cpus",
        "0.5",
        "--out",
        str(tmp_path / "s"),
    ]
    with (tmp_path / "told").open("w") as told:
        run = subprocess.Popen([sys.executable, "-m", "rbi", *sweep], env=environment, stdout=told, stderr=told)
    try:
        heard, started = set(), set()
        while run.poll() is None:
            heard |= listening(run.pid)
            started |= family(run.pid)
            time.sleep(0.2)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, (tmp_path / "told").read_text()
    assert heard
    assert all(address == "127.0.0.1" for address in heard)
    assert [row["seed"] for row in runs.read(tmp_path / "s").result["rows"]] == [0, 1]
    hung = time.monotonic() + 60
    while any(alive(process) for process in started):
        assert time.monotonic() < hung, "processes stay behind"
        time.sleep(0.1)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def family(pid):
    """A process and all that it started, by the files of the system."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, more = set(), {pid} & parents.keys()
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in found} - found
    return found


def listening(pid):
    """The addresses on which a process and its children listen."""
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
    for one in family(pid):
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{one}/fd").iterdir():
                with contextlib.suppress(OSError):
                    held = re.fullmatch(r"socket:\[(\d+)\]", str(file.readlink()))
                    found |= {sockets[held[1]]} if held and held[1] in sockets else set()
    return found


def test_without_ray_one_line_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main([*TINY, "--out", str(tmp_path / "run")]) == cli.USAGE_ERROR
    assert "pip install 'rbi[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_address_where_nobody_listens_is_refused_at_once(capsys, tmp_path):
    with socket.socket() as taken:  # bound, so that nobody else has the port, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main([*TINY, "--address", address, "--out", str(tmp_path / "run")]) == cli.USAGE_ERROR
    assert f"--address {address}: nobody answers there" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_on_a_node_that_does_not_see_the_sweeps_folder_comes_back_whole(tmp_path):
    command = cli.parse([*TINY, "--schedule.updates", "20", "--episodes", "1"])
    at = tmp_path / "runs" / "one"
    packed = spread.one_run(train.train, train.as_local(command), [], at, tmp_path / "no mark")
    assert not at.exists()
    spread.unpack(packed, at)
    run = runs.read(at)
    assert run.result["last"]["updates"] == 20
    assert run.config["settings"]["engine"] == "local"
    assert checkpoint.read(checkpoint.newest(at))["counters"]["updates"] == 20
