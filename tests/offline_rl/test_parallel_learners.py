"""Learners side by side do what each does alone, on a processor and as graphs on a GPU."""

import numpy as np
import pytest
import torch

from rbi import checkpoint
from rbi.checkpoint import newest
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.networks import offline_network
from rbi.offline_rl.behavior_q import FitConfig
from rbi.offline_rl.experiment import OfflineConfig, OneSeed, with_latent
from rbi.offline_rl.parallel_learners import BURST, advance, burst_of, lane
from tests.data.episodes import episode
from tests.engines.elsewhere import with_random_states_of_a_gpu

CPU = torch.device("cpu")
PEERS = ("dqfd", "bcq", "cql")
SMALL = OfflineConfig(updates=10, batch=8, held_out=0.3, **with_latent(16, 4, 0.001, 5))


def data_of(frame, episodes=6, steps=30):
    rng = np.random.default_rng(0)
    return Dataset.from_episodes([episode(rng, steps, frame=frame) for _ in range(episodes)], DatasetSpec(frame, 4, 1))


def run(lanes, goal):
    for _ in advance(lanes, [goal] * len(lanes)):
        pass


def test_learners_in_turns_end_where_each_ends_alone():
    data = data_of((3,))
    together, alone = (OneSeed(SMALL, PEERS, data, 0, CPU) for _ in range(2))
    run([lane(learner, CPU, graphed=False) for learner in together.learners().values()], 7)
    for learner in alone.learners().values():
        run([lane(learner, CPU, graphed=False)], 7)
    for name, learner in together.learners().items():
        assert learner.updates == 7
        assert torch.equal(learner.trained.vector, alone.learners()[name].trained.vector), name


def test_each_learner_stops_at_its_own_goal_and_says_how_far_they_all_are():
    seed = OneSeed(SMALL, ("cql",), data_of((3,)), 0, CPU)
    lanes = [lane(learner, CPU, graphed=False) for learner in seed.learners().values()]
    assert list(advance(lanes, [2, 4])) == [2, 4, 5, 6]
    assert [one.learner.updates for one in lanes] == [2, 4]
    assert list(advance(lanes, [2, 4])) == []


def test_learners_go_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path):
    data = data_of((3,))
    whole, before, after = (OneSeed(SMALL, PEERS, data, 0, CPU) for _ in range(3))
    run([lane(learner, CPU, graphed=False) for learner in whole.learners().values()], 10)
    run([lane(learner, CPU, graphed=False) for learner in before.learners().values()], 6)
    checkpoint.save_learners(tmp_path, before.learners(), {"lines": 3})
    assert checkpoint.restore_learners(tmp_path, after.learners()) == {"lines": 3}
    run([lane(learner, CPU, graphed=False) for learner in after.learners().values()], 10)
    for name, learner in whole.learners().items():
        for key, tensor in learner.state().items():
            assert torch.equal(tensor, after.learners()[name].state()[key]), (name, key)


def test_learners_go_on_from_another_device_whose_random_numbers_mean_nothing_here(tmp_path):
    data = data_of((3,))
    before, after = (OneSeed(SMALL, PEERS, data, 0, CPU) for _ in range(2))
    run([lane(learner, CPU, graphed=False) for learner in before.learners().values()], 6)
    checkpoint.save_learners(tmp_path, before.learners(), {})
    with_random_states_of_a_gpu(newest(tmp_path), ".generator.")
    assert checkpoint.restore_learners(tmp_path, after.learners()) == {}
    for name, learner in before.learners().items():
        assert after.learners()[name].updates == 6
        for key, tensor in learner.state().items():
            assert torch.equal(tensor, after.learners()[name].state()[key]), (name, key)
    run([lane(learner, CPU, graphed=False) for learner in after.learners().values()], 7)


def test_a_torn_checkpoint_and_one_of_other_networks_are_named(tmp_path):
    data = data_of((3,))
    seed = OneSeed(SMALL, (), data, 0, CPU)
    assert checkpoint.restore_learners(tmp_path, seed.learners()) is None
    checkpoint.save_learners(tmp_path, seed.learners(), {})
    other = OfflineConfig(fit=FitConfig(nets=offline_network(8, 0.0, 0.0)), held_out=0.3)
    with pytest.raises(ValueError, match=r"vector.*another run"):
        checkpoint.restore_learners(tmp_path, OneSeed(other, (), data, 0, CPU).learners())
    (tensors,) = tmp_path.glob("checkpoints/*/tensors.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(ValueError, match="torn"):
        checkpoint.restore_learners(tmp_path, seed.learners())


def test_a_burst_with_batches_looked_at_ahead_is_the_same_updates_one_after_the_other():
    data = data_of((36, 36))
    ahead, plain = (OneSeed(SMALL, (), data, 0, CPU).fit for _ in range(2))
    burst_of(ahead, ahead.steady, CPU)()
    for _ in range(BURST):
        plain.update()
    assert torch.equal(ahead.trained.vector, plain.trained.vector)
    for drawn_from, other in zip(ahead.generators(), plain.generators(), strict=True):
        assert torch.equal(drawn_from.get_state(), other.get_state())
    assert not ahead.looks.waiting


@pytest.mark.gpu
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("frame", [(3,), (36, 36)])
def test_updates_as_graphs_are_the_updates_themselves(frame, alone):
    cuda, data = torch.device("cuda"), data_of(frame)
    graphed, plain = (OneSeed(SMALL, PEERS, data, 0, cuda, resident=True) for _ in range(2))
    run([lane(learner, cuda, graphed=True, alone=alone) for learner in graphed.learners().values()], BURST + 3)
    run([lane(learner, cuda, graphed=False) for learner in plain.learners().values()], BURST + 3)
    for name, learner in graphed.learners().items():
        torch.testing.assert_close(
            learner.trained.vector, plain.learners()[name].trained.vector, rtol=2e-2, atol=2e-3, msg=name
        )


@pytest.mark.gpu
def test_dropout_differs_between_replays_of_a_graph():
    cuda, data = torch.device("cuda"), data_of((3,))
    config = OfflineConfig(batch=8, held_out=0.3, fit=FitConfig(nets=offline_network(64, 0.0, 0.5)))
    fit = OneSeed(config, (), data, 0, cuda, resident=True).fit
    one = lane(fit, cuda, graphed=True)
    seen = []
    for goal in (1, 2, 3):
        fit.trained.vector.zero_()
        fit.trained.vector.add_(0.01)
        run([one], goal)
        seen.append(fit.trained.adam.gradient.clone())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
