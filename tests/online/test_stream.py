"""Learner processes fed by blocks of experience: they learn what the local engine learns, and continue from a state."""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from rbi.envs.types import TimeStep
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, ClusterConfig
from rbi.online.distributed import Accounting
from rbi.online.engine import CapturedActor, init_networks, make_learner
from rbi.online.rbi import ActorNetworks
from rbi.online.rollout import BatchedNetworks, Rollout, RolloutSpec
from rbi.online.stream import (
    BlockReplay,
    EmptyReplayError,
    ExperienceBlock,
    LearnerHost,
    LearnerProcess,
    Shard,
    ShardedReplay,
)
from rbi.online.train import make_observation_spec
from rbi.optim import Peers, flatten_parameters
from rbi.replay import ReplayBatch
from rbi.returns import exploration_ladder
from rbi.steps import TERMINATED
from tests.games import Doors
from tests.online.small_runs import make_engine, run_to_end, small_config
from tests.online.test_learners import STATES, VECTORS, batch_of

CPU = torch.device("cpu")
CARTPOLE = make_observation_spec(small_config())
VECTOR = flatten_parameters(init_networks(small_config(), CARTPOLE, 0))


def make_process(config, seed=3, workers=1, device=CPU):
    obs_spec = make_observation_spec(config)
    blocks = BlockReplay(config, obs_spec, 0, workers, 1, device)
    return LearnerProcess(config, obs_spec, seed, device, blocks)


def run_in_lockstep(config, seed=3, device=CPU):
    """A rollout worker, a learner process and their accounting, one after the other in this process."""
    rollout = Rollout(RolloutSpec(config, make_observation_spec(config), seed, device=device))
    process, accounting = make_process(config, device=device), Accounting(config)
    envs_per_group, step, weights = config.schedule.num_envs // GROUPS, 0, process.learner.vector.clone()
    while accounting.updates < config.schedule.updates:
        if samples := accounting.samples_due():
            accounting.request_updates(samples)
            process.learn(samples)
            accounting.complete_updates(samples, process.updates)
            process.publish()
            weights = process.newest_weights(wait=True).vector.clone()
            assert process.newest_weights(wait=True) is None
            continue
        steps = accounting.steps_until_due(envs_per_group, 6)
        accounting.request_states(steps * envs_per_group)
        block, _ = rollout.block(step, steps, step == 0, weights, accounting.updates, uniform=False)
        process.blocks.add(0, step, step == 0, block)
        status = process.blocks.status()
        accounting.receive_states(steps, envs_per_group)
        accounting.learning_started |= accounting.can_start and status.mass > 0
        step += steps
    return process, accounting


@pytest.mark.parametrize("env", ["CartPole-v1", Doors], ids=["all legal", "masks"])
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_rollout_worker_and_a_learner_process_do_what_the_local_engine_does_to_the_last_bit(algo, env):
    config = small_config(algo, env, replay={"priority_exponent": 0.6})
    process, accounting = run_in_lockstep(config)
    engine = run_to_end(make_engine(config, 3))
    assert (accounting.updates, accounting.states) == (engine.updates, engine.states)
    assert torch.equal(process.learner.vector, engine.learner.vector)
    assert torch.equal(process.blocks.replay.priority, engine.replay.priority)
    assert torch.equal(process.blocks.replay.legal, engine.replay.legal)
    assert (~engine.replay.legal).any() == (env is Doors)


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_on_a_gpu_a_rollout_worker_and_a_learner_process_count_as_on_a_cpu(algo):
    config = small_config(algo, replay={"priority_exponent": 0.6})
    process, accounting = run_in_lockstep(config, device=torch.device("cuda"))
    _, on_cpu = run_in_lockstep(config)
    assert (accounting.updates, accounting.states) == (on_cpu.updates, on_cpu.states)
    before = make_process(config, device=torch.device("cuda")).learner.vector
    assert torch.isfinite(process.learner.vector).all()
    assert not torch.equal(process.learner.vector, before)


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_blocks_of_a_worker_on_a_gpu_hold_what_its_actors_computed(algo, monkeypatch):
    config, computed, act = small_config(algo), [], CapturedActor.act

    def recorded(actor, step):
        actions = act(actor, step).copy()
        torch.cuda.synchronize()
        computed.append([column.cpu().clone() for column in actor.transition])
        with torch.cuda.stream(actor.stream):
            torch.cuda._sleep(1_000_000)  # the device is busy: code that does not wait for it reads old values
        return actions

    monkeypatch.setattr(CapturedActor, "act", recorded)
    rollout = Rollout(RolloutSpec(config, CARTPOLE, 0, device=torch.device("cuda")))
    for start in (0, 6):
        computed.clear()
        block, _ = rollout.block(start, 6, start == 0, None, 0, uniform=False)
        for column, values in zip(block, zip(*computed, strict=True), strict=True):
            assert torch.equal(torch.from_numpy(column), torch.stack(values).to(torch.from_numpy(column).dtype))


def random_block(steps, num_envs, rng):
    block = ExperienceBlock.empty(CARTPOLE, steps, num_envs)
    for column in block:
        column[:] = 0
    block.obs[:] = rng.normal(size=block.obs.shape)
    block.pi[:], block.td_error[:] = 0.5, rng.uniform(0.1, 1, block.td_error.shape)
    return block


def filled(process, steps=40):
    rng = np.random.default_rng(0)
    for worker in range(2):
        for start in range(0, steps, 10):
            process.blocks.add(worker, start, start == 0, random_block(10, 2, rng))
    return process


def test_a_worker_loads_every_version_of_the_weights_once(monkeypatch):
    """Loading copies all weights to the GPU: at every step it took more CPU time than all else that a worker does."""
    loads = []
    load = ActorNetworks.load
    monkeypatch.setattr(ActorNetworks, "load", lambda *given: (loads.append(1), load(*given))[1])
    config = small_config().changed(refresh_interval=2)
    rollout, step = Rollout(RolloutSpec(config, CARTPOLE, 0)), 0
    for version, expected in ((0, 2), (0, 2), (1, 4), (2, 6), (2, 6)):
        _, summary = rollout.block(step, 16, step == 0, torch.zeros_like(VECTOR), version, uniform=False)
        step += 16
        assert (len(loads), summary.version) == (expected, version)


def test_a_worker_loads_weights_at_the_refresh_interval_of_its_groups_only(monkeypatch):
    rollout, loads = make_rollout(refresh_interval=4), []
    rollout.block(0, 2, reset=True, newest=torch.zeros_like(VECTOR), version=0, uniform=False)
    monkeypatch.setattr(rollout, "load", lambda group, *_: loads.append((rollout.step, group)))
    rollout.block(2, 8, reset=False, newest=torch.zeros_like(VECTOR), version=1, uniform=False)
    assert loads == [(8, 0), (9, 1)]


def make_rollout(index=0, workers=1, **changes):
    return Rollout(RolloutSpec(small_config(**changes), CARTPOLE, 0, index=index, workers=workers))


def test_workers_share_the_environments_and_their_epsilons():
    rollouts = [make_rollout(index, 2) for index in range(2)]
    found = [epsilon for rollout in rollouts for epsilon in rollout.epsilons]
    assert [env.num_envs for rollout in rollouts for env in rollout.envs] == [2, 2, 2, 2]
    assert sorted(torch.cat(found).tolist()) == sorted(exploration_ladder(8, 0.4, 7.0).tolist())


def test_every_worker_and_every_restart_draws_other_random_numbers():
    draws, env_seeds = [], []
    for index, start in ((0, 0), (1, 0), (0, 40), (1, 40)):
        rollout = make_rollout(index, 2)
        for env in rollout.envs:
            env.reset = lambda seed: env_seeds.extend((seed, seed + 1))
        rollout.reset(start)
        draws += [actor.generator.initial_seed() for actor in rollout.actors]
    assert len(set(draws)) == len(draws) == 8
    assert len(set(env_seeds)) == len(env_seeds) == 16


def test_a_restarted_worker_explores_as_far_into_the_run_as_it_is():
    rollout = make_rollout(exploration_fraction=0.5)
    rollout.reset(20)
    assert [int(actor.memory.steps) for actor in rollout.actors] == [10, 10]


def test_a_worker_with_new_episodes_knows_how_many_have_terminated():
    rollout = make_rollout()
    rollout.block(0, 100, reset=True, newest=None, version=0, uniform=True)
    before = [int(actor.memory.terminated) for actor in rollout.actors]
    assert min(before) > 0
    rollout.reset(100)
    assert [int(actor.memory.terminated) for actor in rollout.actors] == before


def test_a_block_continues_the_previous_one_or_is_refused():
    rollout = make_rollout()
    options = {"newest": None, "version": 0, "uniform": True}
    assert rollout.block(8, 8, reset=False, **options) is None  # of a new process
    assert rollout.block(0, 8, reset=True, **options) is not None
    assert rollout.block(16, 8, reset=False, **options) is None
    block, summary = rollout.block(8, 8, reset=False, **options)
    assert (block.pi == 0.5).all()
    assert [sums[-1] for sums in summary.sums] == [4, 4]  # steps of each group in this block
    assert summary.states == 8 * 4


def test_episodes_of_a_worker_are_of_low_epsilon_by_their_environments_epsilon():
    rollout = make_rollout()
    rollout.reset(0)
    end = np.array([0, TERMINATED, 0, 0], np.uint8)
    step = TimeStep(np.zeros((4, 4), np.float32), np.zeros(4, bool), np.ones(4, np.float32), end)
    assert [rollout.finished_episodes(group, step) for group in range(2)] == [[(1, 1.0, False)], [(1, 1.0, True)]]


def test_a_learner_reports_nothing_twice():
    """An empty mean would show as a loss of 0 where reports are more frequent than calls for updates."""
    host = LearnerHost(small_config(), CARTPOLE, 0, 0, 1, ClusterConfig(workers=1), CPU)
    assert host.metrics() is None
    host.restore(0, None, [])
    assert host.metrics()["q_loss"] == 0
    assert host.metrics() is None


def test_a_learner_learns_only_where_the_driver_expects_it_to_be():
    """A request that was sent before an earlier one had found nothing would otherwise be done too late."""
    host = LearnerHost(small_config(), CARTPOLE, 0, 0, 1, ClusterConfig(workers=1), CPU)
    host.restore(0, None, [])
    host.add(0, 0, True, random_block(20, 4, np.random.default_rng(0)))
    report, weights = host.learn(4, 1, True, [])
    assert (report.updates, report.version, weights) == (0, None, None)
    report, weights = host.learn(0, 1, True, [])
    assert (report.updates, report.version) == (2, 2)
    assert np.array_equal(weights, host.process.weights())


@pytest.mark.parametrize(("lockstep", "ahead"), [(True, 0), (False, 2)])
def test_in_lockstep_no_sample_is_requested_ahead(lockstep, ahead):
    layout = ClusterConfig(workers=1, replay="shards", lockstep=lockstep)
    assert LearnerHost(small_config(), CARTPOLE, 0, 0, 1, layout, CPU).sampled.prefetch == ahead


def test_a_learner_process_continues_from_its_state_to_the_last_bit():
    config = small_config(replay={"priority_exponent": 0.6})
    process = filled(make_process(config, workers=2))
    process.learn(3)
    saved, replay = process.state(), {name: column.copy() for name, column in process.blocks.state().items()}
    process.learn(2)
    again = make_process(config, seed=4, workers=2)
    again.restore(6, saved)
    status = again.blocks.load(replay)
    assert status[1:] == pytest.approx((float(again.blocks.replay.mass.sum()), 2 * 40 * 2))
    assert again.blocks.next_step == [40, 40]
    again.learn(2)
    assert torch.equal(process.learner.vector, again.learner.vector)


def test_weights_that_were_handed_out_do_not_change_with_the_next_update():
    process = filled(make_process(small_config(), workers=2))
    weights, saved = process.weights(), process.state()
    process.publish()
    published = process.newest_weights(wait=True).vector
    before = [weights.copy(), saved["learner.vector"].copy(), published.clone()]
    process.learn(1)
    process.publish()
    assert not np.array_equal(process.weights(), weights)
    assert np.array_equal(weights, before[0])
    assert np.array_equal(saved["learner.vector"], before[1])
    assert torch.equal(published, before[2])


def test_a_restored_learner_process_does_not_hand_out_earlier_weights():
    process = filled(make_process(small_config(), workers=2))
    saved = process.state()
    process.learn(1)
    process.publish()
    process.restore(0, saved)
    assert process.newest_weights(wait=True) is None


def test_several_learners_have_equal_weights_and_draw_different_samples():
    config = small_config()
    first, second = (
        LearnerProcess(config, CARTPOLE, 3, CPU, BlockReplay(config, CARTPOLE, rank, 2, 2), rank, 2)
        for rank in range(2)
    )
    assert torch.equal(first.learner.vector, second.learner.vector)
    assert first.learner.generator.initial_seed() != second.learner.generator.initial_seed()
    states = []
    for updates in (6, 8):  # of the first learner's state, which all continue from
        second.restore(updates, first.state())
        states.append(second.learner.generator.get_state())
    assert not torch.equal(*states)
    assert not any(torch.equal(state, first.learner.generator.get_state()) for state in states)


def test_parts_of_a_replay_have_their_share_of_the_capacity():
    config = small_config(capacity=400)
    whole = BlockReplay(config, CARTPOLE, 0, 2, 1).replay
    parts = [BlockReplay(config, CARTPOLE, number, 2, 2).replay for number in range(2)]
    assert [part.num_envs for part in parts] == [4, 4]
    assert [part.rows for part in parts] == [whole.rows, whole.rows]


def test_a_replay_counts_no_more_states_than_it_holds():
    process, rng = make_process(small_config(capacity=400)), np.random.default_rng(0)
    for start in range(0, 200, 20):
        status = process.blocks.add(0, start, start == 0, random_block(20, 4, rng))
    assert status.states == process.blocks.status().states == process.blocks.replay.rows * 8


def test_groups_take_turns_across_blocks_of_any_length():
    process, rng = make_process(small_config()), np.random.default_rng(0)
    for start, steps, rows in ((0, 3, [2, 1]), (3, 1, [2, 2]), (4, 1, [3, 2]), (5, 4, [5, 4])):
        process.blocks.add(0, start, start == 0, random_block(steps, 4, rng))
        assert process.blocks.replay.written.tolist() == rows


def test_with_episodes_stored_at_their_end_a_block_releases_those_that_ended():
    config = small_config(store_at_episode_end=True, release_interval=0)
    process, block = make_process(config), random_block(20, 4, np.random.default_rng(0))
    block.is_first[:2] = True
    process.blocks.add(0, 0, True, block)
    assert process.blocks.status().mass == 0
    block = random_block(20, 4, np.random.default_rng(1))
    block.end[:2] = TERMINATED
    process.blocks.add(0, 20, False, block)
    assert process.blocks.status().mass > 0


def test_a_learner_process_learns_nothing_from_an_empty_replay():
    process = make_process(small_config())
    process.learn(2)
    assert process.updates == 0


class NoStates:
    """A replay in other processes that are all empty."""

    def sample(self, *_):
        raise EmptyReplayError


def test_updates_that_found_nothing_to_sample_do_not_count():
    process = LearnerProcess(small_config(), CARTPOLE, 0, CPU, NoStates())
    process.learn(2)
    assert process.updates == 0


def test_a_block_that_does_not_continue_the_previous_one_truncates_episodes():
    process, rng = make_process(small_config()), np.random.default_rng(0)
    add, replay = process.blocks.add, process.blocks.replay
    add(0, 0, True, random_block(8, 4, rng))
    add(0, 8, False, random_block(8, 4, rng))
    assert not replay.final.any()
    add(0, 20, False, random_block(4, 4, rng))
    assert replay.final[:10].nonzero()[:, 0].tolist() == [7] * 8  # the last row before the gap
    assert process.blocks.next_step == [24]


@pytest.mark.parametrize("steps", [1, 20])
def test_frames_from_before_a_gap_are_not_stacked_with_those_after_it(steps):
    obs_spec = ObservationSpec((5, 5), 4, 2)
    blocks = BlockReplay(small_config(num_envs=2), obs_spec, 0, 1, 1)
    for value, start in ((1, 0), *((2, start) for start in range(40, 60, steps))):
        block = ExperienceBlock.empty(obs_spec, steps if start else 20, 1)
        for column in block:
            column[:] = 0
        block.obs[:] = value
        blocks.add(0, start, start == 0, block)
        assert not block.is_first.any()  # the caller's arrays are as they were
    stacks = blocks.replay.stacks(torch.tensor([9, 10, 11, 9, 10, 11]), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert stacks[:, :, 0, 0].tolist() == [[1, 1, 1, 1], [0, 0, 0, 2], [0, 0, 2, 2]] * 2


class Direct:
    """A shard in this process, as a learner reaches it."""

    def __init__(self, shard):
        self.request, self.update_priorities = shard.sample, shard.update_priorities

    def receive(self, batch):
        return batch


def test_states_of_all_shards_are_sampled_by_priority_with_common_importance_weights():
    config = small_config(
        schedule={"num_envs": 4}, replay={"priority_exponent": 1.0, "importance_exponent": 0.4, "capacity": 400}
    )
    shards = [Shard(config, CARTPOLE, 0, number, 2, 2) for number in range(2)]
    errors = [np.array([[1.0], [3.0]]), np.array([[8.0], [2.0]])]
    for worker, error in enumerate(errors):
        block = marked_block(46, error, first_mark=worker * 100)
        shards[worker].blocks.add(worker, 0, True, block)
    replay = ShardedReplay([Direct(shard) for shard in shards], 0, 0.4, CPU)
    replay.mass = [shard.blocks.status().mass for shard in shards]
    batch = replay.sample(60_000, torch.Generator().manual_seed(0))
    marks = batch.obs[:, 0, 0].long()
    priority = torch.tensor([errors[m // 100][m % 2, 0] for m in marks.tolist()])
    found = {p: float((priority == p).float().mean()) for p in (1.0, 3.0, 8.0, 2.0)}
    assert found == pytest.approx({1.0: 1 / 14, 3.0: 3 / 14, 8.0: 8 / 14, 2.0: 2 / 14}, abs=0.01)
    relative = batch.weight * priority**0.4
    assert torch.allclose(relative, relative[0].expand_as(relative), rtol=0.02)
    first, second = (marks[part] < 100 for part in (slice(30_000), slice(30_000, None)))
    assert abs(float(first.float().mean() - second.float().mean())) < 0.02  # any part of the batch is a fair sample
    of_one = marks == int(marks[0])
    replay.update_priorities(batch.row, batch.env, torch.where(of_one, 0.5, priority))
    after = [shard.replay_state() for shard in shards]
    changed = [int((abs(state["priority"] - 0.5) < 1e-3).sum()) for state in after]
    assert changed[int(marks[0]) // 100] == 2  # both groups have it
    assert sum(changed) == 2


def filled_shard(number=0, seed=0):
    shard = Shard(small_config(replay={"priority_exponent": 1.0}), CARTPOLE, seed, number, 2, 2)
    shard.blocks.add(number, 0, True, random_block(20, 2, np.random.default_rng(number)))
    return shard


def test_the_share_of_a_shard_that_does_not_answer_goes_to_the_others():
    alive, dead, asked = Direct(filled_shard()), Direct(filled_shard(1)), []

    def no_answer(size):
        asked.append(size)
        assert len(asked) < 20  # it is not asked for ever

    dead.request = no_answer
    replay = ShardedReplay([alive, dead], 2, 0.4, CPU)
    replay.mass = [1.0, 1.0]
    for _ in range(3):
        assert len(replay.sample(10, torch.Generator().manual_seed(0)).row) == 10
        assert replay.mass[0] > 0
        assert replay.mass[1] == 0


def test_each_shard_gives_its_share_of_the_mass_on_average():
    replay, generator = ShardedReplay([Direct(filled_shard(n)) for n in range(2)], 0, 0.4, CPU), torch.Generator()
    replay.mass = [19.0, 1.0]
    counts = [sum(count for number, count, _ in replay.request(10, generator) if number == 1) for _ in range(400)]
    assert np.mean(counts) == pytest.approx(0.5, abs=0.1)


def test_samples_are_requested_ahead_and_their_bytes_are_counted():
    replay, generator = ShardedReplay([Direct(filled_shard(n)) for n in range(2)], 3, 0.4, CPU), torch.Generator()
    replay.mass = [1.0, 1.0]
    batch = replay.sample(10, generator)
    assert len(replay.requests) == 3
    assert replay.bytes == sum(column.nbytes for column in batch)
    replay.sample(10, generator)
    assert replay.bytes == 2 * sum(column.nbytes for column in batch)


def test_shards_draw_different_random_numbers_and_continue_them():
    first, second, restored = filled_shard(), filled_shard(1), filled_shard(seed=5)
    assert first.generator.initial_seed() != second.generator.initial_seed()
    first.sample(7)
    restored.load_replay(first.replay_state())
    for ours, theirs in zip(first.sample(30).batch, restored.sample(30).batch, strict=True):
        assert np.array_equal(ours, theirs)


def test_priorities_of_states_that_were_sampled_before_a_restart_are_ignored():
    shard, restarted = filled_shard(), filled_shard()
    sample = shard.sample(5)
    batch = ReplayBatch(*sample.batch)
    row, env = batch.row, batch.env
    before = restarted.blocks.replay.priority.clone()
    restarted.update_priorities(sample.incarnation, row, env, np.full(5, 9.0, np.float32))
    assert torch.equal(restarted.blocks.replay.priority, before)
    shard.update_priorities(sample.incarnation, row, env, np.full(5, 9.0, np.float32))
    assert not torch.equal(shard.blocks.replay.priority, before)


def marked_block(steps, errors, first_mark):
    """A block of one environment per group with numbered observations; odd and even steps have their own TD errors."""
    cells = (steps, 1)
    mark = first_mark + np.arange(steps) // 2  # groups alternate
    frame = np.zeros((*cells, 4), np.float32)
    frame[:, 0, 0] = mark
    n_step = 3
    error = errors[(mark - n_step) % 2]  # of the state three steps before
    first = np.zeros(cells, bool)
    first[:2] = True
    return ExperienceBlock(
        frame, first, np.zeros(cells, np.float32), np.zeros(cells, np.uint8), np.zeros(cells, np.int16),
        np.full((*cells, 2), 0.5, np.float32), error.astype(np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_requests_that_arrive_during_a_computation_share_the_next_one_and_get_their_own_outputs(algo):
    config = small_config(algo)
    batched = BatchedNetworks(config, CARTPOLE, CPU)
    own = ActorNetworks(init_networks(config, CARTPOLE, 7), CPU, torch.float32)
    stacks = [torch.randn(size, 1, 4, generator=torch.Generator().manual_seed(size)) for size in (2, 5, 3)]
    assert batched.predict(stacks[0].numpy()) is None  # it has no weights yet
    batched.load(1, own.vector)
    batched.load(0, torch.zeros_like(own.vector))  # older weights are ignored
    sizes, compute = [], batched.networks.predict
    batched.networks.predict = lambda stack: sizes.append(len(stack)) or compute(stack)
    with ThreadPoolExecutor(3) as threads:
        with batched.computing:
            asked = [threads.submit(batched.predict, stack.numpy()) for stack in stacks]
            while len(batched.waiting) < 3 and not any(answer.done() for answer in asked):  # done: it failed
                time.sleep(0.001)
        answers = [answer.result() for answer in asked]
    assert sizes == [10]
    for stack, outputs in zip(stacks, answers, strict=True):
        for output, expected in zip(outputs, own.predict(stack), strict=True):
            assert (output is None and expected is None) or torch.allclose(torch.from_numpy(output), expected)


def learn_in_parallel(rank, size, path, batch, config, vectors):
    """One learner's update on its part of the batch."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    own = ReplayBatch._make(column.split(STATES // size)[rank] for column in batch)
    (part,) = own.parts(STATES // size, Peers(size).max)
    vectors[rank] = updated(config, part, Peers(size)).numpy()
    torch.distributed.destroy_process_group()


def updated(config, batch, peers):
    """The weights after two updates on a batch."""
    learner = make_learner(config, init_networks(config, VECTORS, 0), torch.Generator().manual_seed(0), peers)
    for _ in range(2):
        learner.update(batch, learner.states(batch))
    return learner.vector


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_an_update_of_two_learners_is_one_on_the_batch_of_the_sum(algo, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    weighting = {"policy_weighting": True} if algo == "rbi" else {}
    config = small_config(algo, **weighting, schedule={"precision": "float32"})
    batch = batch_of()
    server = multiprocessing.get_context("forkserver")  # forks of this process may have lost autograd's threads
    server.set_forkserver_preload([__name__])
    with server.Manager() as manager:
        vectors = manager.dict()
        learners = [
            server.Process(target=learn_in_parallel, args=(rank, 2, tmp_path / "group", batch, config, vectors))
            for rank in range(2)
        ]
        for learner in learners:
            learner.start()
        for learner in learners:
            learner.join(60)
        first, second = (torch.from_numpy(vectors[rank]) for rank in range(2))
    together = updated(config, *batch.parts(STATES), Peers())
    before = make_learner(config, init_networks(config, VECTORS, 0), torch.Generator()).vector
    assert torch.equal(first, second)
    assert not torch.equal(together, before)
    torch.testing.assert_close(first - before, together - before, rtol=1e-3, atol=1e-7)
