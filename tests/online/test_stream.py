"""Learner processes fed by blocks of experience: they learn what the local engine learns, and continue from a state."""

import multiprocessing

import numpy as np
import pytest
import torch

from rbi.online.config import GROUPS
from rbi.online.engine import init_networks, make_learner
from rbi.online.stream import BlockReplay, ExperienceBlock, LearnerProcess
from rbi.online.train import make_observation_spec
from rbi.optim import Peers
from rbi.replay import Transition
from tests.online.small_runs import make_engine, small_config
from tests.online.test_learners import STATES, VECTORS, batch_of

CPU = torch.device("cpu")
CARTPOLE = make_observation_spec(small_config())


def make_process(config, seed=3, workers=1):
    blocks = BlockReplay(config, CARTPOLE, 0, workers, 1, CPU)
    return LearnerProcess(config, CARTPOLE, seed, CPU, blocks)


def recorded_run(config, seed=3):
    """A finished run of the local engine, and the transition and number of updates of each of its steps."""
    engine, steps = make_engine(config, seed), []
    backend = engine.start_backend()
    for _ in engine.run():
        while len(steps) < engine.steps:
            group = len(steps) % GROUPS
            columns = Transition(*(column.clone() for column in backend.transitions[group]))
            steps.append((columns, engine.updates))
    return engine, steps


def as_block(transitions):
    return ExperienceBlock(*(torch.stack(column).numpy() for column in zip(*transitions, strict=True)))


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_learner_fed_with_blocks_learns_what_the_local_engine_learns_to_the_last_bit(algo):
    config = small_config(algo, replay={"priority_exponent": 0.6})
    engine, steps = recorded_run(config)
    process, start = make_process(config), 0
    for end, (_, updates) in enumerate(steps, 1):
        if updates > process.updates or end == len(steps):  # a block ends where updates are due
            process.blocks.add(0, start, start == 0, as_block([step for step, _ in steps[start:end]]))
            process.learn((updates - process.updates) // config.learner.updates_per_sample)
            start = end
    assert process.updates == engine.updates
    assert torch.equal(process.learner.vector, engine.learner.vector)
    assert torch.equal(process.blocks.replay.priority, engine.replay.priority)
    process.publish()
    assert np.array_equal(process.newest_weights(wait=False).vector, process.weights())
    assert process.newest_weights(wait=False) is None


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


def test_a_learner_process_learns_nothing_from_an_empty_replay():
    process = make_process(small_config())
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


def learn_in_parallel(rank, size, path, batch, config, vectors):
    """One learner's update on its part of the batch."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    vectors[rank] = updated(
        config, batch.part(rank * STATES // size, STATES // size, Peers(size).max), Peers(size)
    ).numpy()
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
    config = small_config(algo, policy_weighting=True, schedule={"precision": "float32"})
    batch = batch_of()
    fork = multiprocessing.get_context("fork")
    with fork.Manager() as manager:
        vectors = manager.dict()
        learners = [
            fork.Process(target=learn_in_parallel, args=(rank, 2, tmp_path / "group", batch, config, vectors))
            for rank in range(2)
        ]
        for learner in learners:
            learner.start()
        for learner in learners:
            learner.join(60)
        first, second = (torch.from_numpy(vectors[rank]) for rank in range(2))
    together = updated(config, batch.part(0, STATES), Peers())
    before = make_learner(config, init_networks(config, VECTORS, 0), torch.Generator()).vector
    assert torch.equal(first, second)
    assert not torch.equal(together, before)
    torch.testing.assert_close(first - before, together - before, rtol=1e-3, atol=1e-7)
