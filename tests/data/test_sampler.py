"""A batch holds what the slow twin says of its steps, and steps are drawn as often as they should be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode
from rbi.data.sampler import Sampler, SamplerConfig, gather_rows
from rbi.data.store import Store, StoreWriter
from tests.reference import batches

from .episodes import episode, some_episodes


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def owners(episodes):
    """For every step of the data: its episode and its place there."""
    return [(e, t) for e in episodes for t in range(len(e))]


def together(episodes, stack):
    first = episodes[0]
    spec = DatasetSpec(
        first.observations.shape[1:],
        4,
        stack,
        has_action_probs=first.action_probs is not None,
        has_action_masks=first.action_masks is not None,
    )
    return Dataset.from_episodes(episodes, spec)


@given(some_episodes(), st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
@settings(max_examples=60, deadline=None)
def test_monte_carlo_batches_are_those_of_the_slow_twin(episodes, stack, split, clip, gamma):
    config = SamplerConfig(
        batch_size=16, gamma=gamma, terminal_on_life_loss=split, clip_rewards=clip, max_missing_return=1.0
    )
    sampler, steps = Sampler(together(episodes, stack), config, seeded()), owners(episodes)
    batch = sampler.draw()
    assert batch.next_states is None
    assert batch.discount.eq(0).all()
    for i, step in enumerate(batch.steps.tolist()):
        one, t = steps[step]
        np.testing.assert_array_equal(batch.states[i], batches.state(one, t, stack))
        assert batch.actions[i] == one.actions[t]
        assert float(batch.returns[i]) == pytest.approx(batches.monte_carlo(one, t, gamma, split, clip)[0], abs=1e-5)
        if one.action_masks is not None:
            np.testing.assert_array_equal(batch.action_masks[i], one.action_masks[t])


@given(some_episodes(), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.sampled_from([0.5, 0.99]))
@settings(max_examples=60, deadline=None)
def test_n_step_batches_are_those_of_the_slow_twin(episodes, stack, n, split, gamma):
    config = SamplerConfig(batch_size=16, n_step=n, gamma=gamma, terminal_on_life_loss=split)
    steps = owners(episodes)
    answers = [batches.n_step(e, t, n, gamma, split, len(e.observations.shape) > 2) for e, t in steps]
    usable = [
        i for i, ((e, _), (_, counts, at)) in enumerate(zip(steps, answers, strict=True))
        if counts == 0 or at < len(e.observations)
    ]  # fmt: skip
    if not usable:
        with pytest.raises(ValueError, match="no usable steps"):
            Sampler(together(episodes, stack), config, seeded())
        return
    sampler = Sampler(together(episodes, stack), config, seeded())
    assert sorted(sampler.usable) == usable
    batch = sampler.draw()
    for i, step in enumerate(batch.steps.tolist()):
        (one, _), (total, counts, at) = steps[step], answers[step]
        assert float(batch.returns[i]) == pytest.approx(total, abs=1e-5)
        assert float(batch.discount[i]) == pytest.approx(counts)
        if counts:
            np.testing.assert_array_equal(batch.next_states[i], batches.state(one, at, stack))


def test_steps_before_a_cut_are_left_out_until_little_of_their_return_is_missing():
    rng = np.random.default_rng(0)
    episodes = [episode(rng, 400, end="abandoned"), episode(rng, 100), episode(rng, 300, end="truncated", lives=True)]
    sampler = Sampler(episodes, SamplerConfig(gamma=0.99, max_missing_return=0.05), seeded())
    missing = [batches.monte_carlo(e, t, 0.99, True, False)[1] for e, t in owners(episodes)]
    assert list(sampler.usable) == [i for i, part in enumerate(missing) if part <= 0.05]
    assert 0 < sampler.excluded_fraction < 1
    assert sampler.excluded_fraction == pytest.approx(1 - len(sampler.usable) / 800)


def test_a_store_and_memory_give_the_same_batches_and_a_seed_gives_them_again(tmp_path):
    rng = np.random.default_rng(1)
    episodes = [episode(rng, 30, frame=(8, 8)) for _ in range(4)]
    spec = DatasetSpec((8, 8), 4, frame_stack=3)
    with StoreWriter.create(tmp_path / "s", spec) as writer:
        for one in episodes:
            writer.append(one)
    config = SamplerConfig(batch_size=64, n_step=2, memory_bytes=1)  # gives memory back after every batch
    draws = [
        [Sampler(data, config, seeded(5)).draw() for _ in range(1)]
        for data in (Store(tmp_path / "s"), Dataset.from_episodes(episodes, spec), Store(tmp_path / "s"))
    ]
    for one, other in ((draws[0], draws[1]), (draws[0], draws[2])):
        for a, b in zip(one[0], other[0], strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


def test_steps_are_drawn_equally_often():
    rng = np.random.default_rng(2)
    sampler = Sampler([episode(rng, 5), episode(rng, 5)], SamplerConfig(batch_size=40_000), seeded(3))
    counts = np.bincount(sampler.draw().steps, minlength=10) / 40_000
    assert np.abs(counts - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 40_000)


def test_frames_are_shared_by_samplers_of_one_dataset_only():
    one, other = (together([episode(np.random.default_rng(seed), 6)], 1) for seed in range(2))
    first = Sampler(one, SamplerConfig(), seeded())
    assert Sampler(one, SamplerConfig(), seeded(), share_frames_with=first).frames is first.frames
    second = Sampler(other, SamplerConfig(), seeded(), share_frames_with=first)
    np.testing.assert_array_equal(second.frames.numpy(), other.arrays["observations"])


def test_a_life_lost_in_the_step_of_a_cut_ends_its_return_where_lives_do():
    made = episode(np.random.default_rng(5), 3, end="truncated")
    lost = Episode(
        made.observations, made.actions, made.rewards, made.terminated, made.truncated, life_lost=np.array([0, 0, 1])
    )
    for split, discounts in ((True, [0.99, 0.99, 0]), (False, [0.99, 0.99, 0.99])):
        sampler = Sampler([lost], SamplerConfig(n_step=1, terminal_on_life_loss=split), seeded())
        assert sampler.batch(torch.arange(3)).discount.tolist() == pytest.approx(discounts)
    assert list(Sampler([lost], SamplerConfig(max_missing_return=0.0), seeded()).usable) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"no usable steps: .* gamma = 0\.99; lower gamma"):
        Sampler([lost], SamplerConfig(max_missing_return=0.0, terminal_on_life_loss=False), seeded())


def test_rewards_are_clipped_by_themselves_for_images_only():
    rng = np.random.default_rng(6)
    for frame, most in (((3,), 9.0), ((5, 5), 1.0)):
        made = episode(rng, 2, frame=frame)
        rich = Episode(made.observations, made.actions, np.array([0.0, 9.0]), made.terminated, made.truncated)
        assert float(Sampler([rich], SamplerConfig(gamma=1.0), seeded()).returns.max()) == most


def test_small_batches_are_gathered_without_pytorchs_threads_and_large_ones_give_the_same(monkeypatch):
    frames = torch.arange(60, dtype=torch.uint8).view(12, 5)
    rows, out = torch.tensor([3, 0, 11, 3]), torch.empty((4, 5), dtype=torch.uint8)
    gather_rows(frames, rows, out)
    assert torch.equal(out, frames[rows])
    monkeypatch.setattr(torch, "index_select", None)
    gather_rows(frames, rows, out.zero_())
    assert torch.equal(out, frames[rows])


def test_a_store_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no episodes"):
        Sampler(Dataset.from_episodes([], DatasetSpec((3,), 4)), SamplerConfig(), seeded())


def test_an_epoch_visits_every_step_of_the_chosen_episodes_once_in_the_generators_order():
    rng = np.random.default_rng(3)
    episodes = [episode(rng, size) for size in (3, 7, 4, 9)]
    visited = []
    for seed in (1, 1, 2):
        sampler = Sampler(episodes, SamplerConfig(batch_size=5), seeded(seed), episodes=[3, 1])
        visited.append(torch.cat([batch.steps for batch in sampler.epoch()]).tolist())
    assert sorted(visited[0]) == [*range(3, 10), *range(14, 23)]
    assert visited[0] == visited[1]
    assert visited[0] != visited[2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (dict(episodes=[]), "at least one"),
        (dict(episodes=[1]), "indices are 0 to 0"),
        (dict(episodes=[0.5]), "indices of episodes"),
        (dict(episodes=[[0]]), "indices of episodes"),
    ],
)
def test_a_sampler_of_nothing_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        Sampler([episode(np.random.default_rng(0), 5)], SamplerConfig(), seeded(), **arguments)


@pytest.mark.parametrize(
    "changes",
    [
        dict(batch_size=0),
        dict(batch_size=2.5),
        dict(n_step=1.5),
        dict(n_step=10**9),
        dict(n_step=0),
        dict(gamma=1.1),
        dict(max_missing_return=-1),
        dict(memory_bytes=0),
    ],
)
def test_nonsense_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        SamplerConfig(**changes)


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [True, False])
def test_batches_on_the_gpu_are_those_of_the_processor(resident):
    rng = np.random.default_rng(4)
    episodes = [episode(rng, 40, frame=(8, 8), lives=True) for _ in range(3)]
    config = SamplerConfig(batch_size=32, n_step=3)
    on_gpu = Sampler(
        episodes, config, torch.Generator("cuda" if resident else "cpu"), device="cuda", frames_on_device=resident
    )
    found = on_gpu.draw()
    same = Sampler(episodes, config, seeded()).batch(found.steps.cpu())
    for a, b in zip(found, same, strict=True):
        assert (a is None and b is None) or (a.is_cuda and torch.equal(a.cpu(), b))
