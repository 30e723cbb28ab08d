"""Parallel learners do what each does alone, on a CPU and as CUDA graphs."""

import dataclasses

import numpy as np
import pytest
import torch

from rbi import checkpoint
from rbi.checkpoint import newest
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.networks import offline_network
from rbi.offline_rl.behavior_q import BehaviorQConfig
from rbi.offline_rl.config import OfflineConfig, PolicyRow, small_learners
from rbi.offline_rl.learner import BURST, advance, burst_of_updates, make_runner
from rbi.offline_rl.seed_learners import RANDOM_STREAMS, SeedLearners
from rbi.rules.types import Behavior
from tests.checkpoints import use_gpu_random_states
from tests.data.episodes import episode

CPU = torch.device("cpu")
BASELINES = ("dqfd", "bcq", "cql")
SMALL = OfflineConfig(updates=10, batch_size=8, validation_fraction=0.3, **small_learners(16, 4, 0.001, 5))


def data_of(frame, episodes=6, steps=30):
    rng = np.random.default_rng(0)
    return Dataset.from_episodes([episode(rng, steps, frame=frame) for _ in range(episodes)], DatasetSpec(frame, 4, 1))


def run(runners, goal):
    for _ in advance(runners, [goal] * len(runners)):
        pass


def test_parallel_learners_end_where_each_ends_alone():
    data = data_of((3,))
    together, alone = (SeedLearners(SMALL, BASELINES, data, 0, CPU) for _ in range(2))
    run([make_runner(learner, CPU, cuda_graph=False) for learner in together.learners().values()], 7)
    for learner in alone.learners().values():
        run([make_runner(learner, CPU, cuda_graph=False)], 7)
    for name, learner in together.learners().items():
        assert learner.updates == 7
        assert torch.equal(learner.trained.vector, alone.learners()[name].trained.vector), name


def test_advance_stops_each_learner_at_its_target_and_yields_the_total():
    seed = SeedLearners(SMALL, ("cql",), data_of((3,)), 0, CPU)
    runners = [make_runner(learner, CPU, cuda_graph=False) for learner in seed.learners().values()]
    assert list(advance(runners, [2, 4])) == [2, 4, 5, 6]
    assert [one.learner.updates for one in runners] == [2, 4]
    assert list(advance(runners, [2, 4])) == []


def test_every_seed_has_its_own_split_and_its_own_random_streams():
    data = data_of((3,), episodes=30, steps=12)
    one, again, other = (SeedLearners(SMALL, (), data, seed, CPU) for seed in (1, 1, 2))
    assert list(one.validation_episodes) == list(again.validation_episodes)
    assert list(one.validation_episodes) != list(other.validation_episodes)
    draws = [
        [tuple(torch.rand(4, generator=learners.generator(of)).tolist()) for of in RANDOM_STREAMS]
        for learners in (one, again, other)
    ]
    assert draws[0] == draws[1]
    assert len({*draws[0], *draws[2]}) == 2 * len(RANDOM_STREAMS)


def test_no_learner_trains_on_a_validation_episode():
    learners = SeedLearners(SMALL, BASELINES, data_of((3,), episodes=30, steps=12), 0, CPU)
    held = np.concatenate([np.arange(12) + 12 * e for e in learners.validation_episodes])
    dqfd, bcq, cql = (learners.baselines[name] for name in BASELINES)
    samplers = (learners.sampler, learners.make_ppo(0).sampler, bcq.sampler, cql.sampler)
    for steps in (*(sampler.usable for sampler in samplers), dqfd.steps.numpy()):
        assert len(steps)
        assert not np.isin(steps, held).any()
    assert set(learners.validation.usable) <= set(held)


def test_bcq_gets_the_current_beta_at_every_validation():
    learners = SeedLearners(SMALL, ("bcq",), data_of((3,)), 0, CPU)
    run([make_runner(learners.behavior_q, CPU, cuda_graph=False)], 5)
    beta, filters = learners.behavior_q.networks.pi.state_dict(), learners.baselines["bcq"].beta
    assert not all(torch.equal(value, beta[name]) for name, value in filters.state_dict().items())
    learners.validate()
    assert all(torch.equal(value, beta[name]) for name, value in filters.state_dict().items())


def test_beta_is_calibrated_in_the_policies_of_rules_and_of_ppo_alone():
    learners = SeedLearners(SMALL, ("cql",), data_of((3,)), 0, CPU)
    learners.temperature = 0.5
    rows = [PolicyRow(name, name, Behavior()) for name in ("behavior_q", "ppo", "cql")]
    assert [policy.temperature for policy in learners.policies(rows, learners.make_ppo(0), "")] == [0.5, 0.5, 1.0]


def test_a_fraction_of_the_data_is_another_part_of_the_training_episodes_for_each_seed():
    data = data_of((3,), episodes=40)
    whole = [SeedLearners(SMALL, (), data, seed, CPU) for seed in range(3)]
    parts = [SeedLearners(dataclasses.replace(SMALL, data_fraction=0.25), (), data, seed, CPU) for seed in range(3)]
    for one, part in zip(whole, parts, strict=True):
        assert list(part.validation_episodes) == list(one.validation_episodes)
        assert set(part.train_episodes) < set(one.train_episodes)
        assert (len(part.train_episodes), len(one.train_episodes)) == (7, 28)
        assert set(part.sampler.candidates.tolist()) < set(one.sampler.candidates.tolist())
    assert len({tuple(part.train_episodes) for part in parts}) == 3
    tiny = SeedLearners(dataclasses.replace(SMALL, data_fraction=0.001), (), data, 0, CPU)
    assert len(tiny.train_episodes) == 1


def test_learners_restored_from_a_checkpoint_continue_bit_for_bit(tmp_path):
    data = data_of((3,))
    whole, before, after = (SeedLearners(SMALL, BASELINES, data, 0, CPU) for _ in range(3))
    run([make_runner(learner, CPU, cuda_graph=False) for learner in whole.learners().values()], 10)
    run([make_runner(learner, CPU, cuda_graph=False) for learner in before.learners().values()], 6)
    checkpoint.save_learners(tmp_path, before.learners(), {"lines": 3})
    assert checkpoint.restore_learners(tmp_path, after.learners()) == {"lines": 3}
    run([make_runner(learner, CPU, cuda_graph=False) for learner in after.learners().values()], 10)
    for name, learner in whole.learners().items():
        for key, tensor in learner.state().items():
            assert torch.equal(tensor, after.learners()[name].state()[key]), (name, key)


def test_learners_can_be_restored_from_a_checkpoint_of_another_device(tmp_path):
    data = data_of((3,))
    before, after = (SeedLearners(SMALL, BASELINES, data, 0, CPU) for _ in range(2))
    run([make_runner(learner, CPU, cuda_graph=False) for learner in before.learners().values()], 6)
    checkpoint.save_learners(tmp_path, before.learners(), {})
    use_gpu_random_states(newest(tmp_path), ".generator.")
    assert checkpoint.restore_learners(tmp_path, after.learners()) == {}
    for name, learner in before.learners().items():
        assert after.learners()[name].updates == 6
        for key, tensor in learner.state().items():
            assert torch.equal(tensor, after.learners()[name].state()[key]), (name, key)
    run([make_runner(learner, CPU, cuda_graph=False) for learner in after.learners().values()], 7)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    data = data_of((3,))
    seed = SeedLearners(SMALL, (), data, 0, CPU)
    assert checkpoint.restore_learners(tmp_path, seed.learners()) is None
    checkpoint.save_learners(tmp_path, seed.learners(), {})
    other = OfflineConfig(behavior_q=BehaviorQConfig(network=offline_network(8, 0.0, 0.0)), validation_fraction=0.3)
    with pytest.raises(ValueError, match=r"vector.*other settings"):
        checkpoint.restore_learners(tmp_path, SeedLearners(other, (), data, 0, CPU).learners())
    (tensors,) = tmp_path.glob("checkpoints/*/*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.restore_learners(tmp_path, seed.learners())


def test_a_burst_with_prefetched_batches_equals_single_updates():
    data = data_of((36, 36))
    ahead, plain = (SeedLearners(SMALL, (), data, 0, CPU).behavior_q for _ in range(2))
    burst_of_updates(ahead, ahead.prefetcher, CPU)()
    for _ in range(BURST):
        plain.update()
    assert torch.equal(ahead.trained.vector, plain.trained.vector)
    for drawn_from, other in zip(ahead.generators(), plain.generators(), strict=True):
        assert torch.equal(drawn_from.get_state(), other.get_state())
    assert not ahead.prefetcher.queue


@pytest.mark.gpu
@pytest.mark.parametrize("frame", [(3,), (36, 36)])
def test_cuda_graphs_equal_plain_updates(frame):
    cuda, data = torch.device("cuda"), data_of(frame)
    graphed, plain = (SeedLearners(SMALL, BASELINES, data, 0, cuda, resident=True) for _ in range(2))
    run([make_runner(learner, cuda, cuda_graph=True) for learner in graphed.learners().values()], BURST + 3)
    run([make_runner(learner, cuda, cuda_graph=False) for learner in plain.learners().values()], BURST + 3)
    start = SeedLearners(SMALL, BASELINES, data, 0, cuda, resident=True).learners()
    for name, learner in plain.learners().items():  # sums in another order change the sign of a few tiny Adam steps
        learned = learner.trained.vector - start[name].trained.vector
        difference = graphed.learners()[name].trained.vector - learner.trained.vector
        assert difference.norm() < 0.1 * learned.norm(), name


@pytest.mark.gpu
def test_dropout_differs_between_replays_of_a_graph():
    cuda, data = torch.device("cuda"), data_of((3,))
    config = OfflineConfig(
        batch_size=8, validation_fraction=0.3, behavior_q=BehaviorQConfig(network=offline_network(64, 0.0, 0.5))
    )
    fit = SeedLearners(config, (), data, 0, cuda, resident=True).behavior_q
    one = make_runner(fit, cuda, cuda_graph=True)
    seen = []
    for goal in (1, 2, 3):
        fit.trained.vector.zero_()
        fit.trained.vector.add_(0.01)
        run([one], goal)
        seen.append(fit.trained.adam.gradient.clone())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
