"""Digests of episodes recognise the same episode, whatever its name and place."""

import numpy as np
import pytest

from rbi.data.dataset import Dataset
from rbi.data.digests import contained, copied_episodes, episode_digests, shared_episodes
from rbi.data.store import Store, StoreWriter


def walks(rng, episodes=40, size=3, image=False):
    """Episodes of 1 to 5 steps."""
    steps = rng.integers(1, 6, episodes)
    ends = np.zeros(steps.sum(), bool)
    ends[steps.cumsum() - 1] = True
    shape = (len(ends), 5, 7) if image else (len(ends), size)
    seen = rng.integers(0, 255, shape).astype(np.uint8) if image else rng.normal(size=shape)
    return Dataset.from_arrays(seen, rng.integers(0, 4, len(ends)), rng.normal(size=len(ends)), ends, num_actions=4)


@pytest.mark.parametrize("image", [False, True])
def test_digests_belong_to_episodes_not_to_their_place(image):
    data = walks(np.random.default_rng(0), image=image)
    order = np.random.default_rng(1).permutation(len(data))
    found = episode_digests(data)
    assert len(set(found[:, 0].tolist())) == len(data)
    assert (episode_digests(data.select(order)) == found[order]).all()


@pytest.mark.parametrize("among", [0, 1, 30])
def test_contained_is_what_numpy_finds(among):
    values, others = (np.random.default_rng(seed).integers(0, 40, n) for seed, n in ((4, 50), (5, among)))
    assert contained(values, others).tolist() == np.isin(values, others).tolist()
    assert contained(values[:0], others).tolist() == []


def test_digests_are_the_same_in_a_store(tmp_path):
    data = walks(np.random.default_rng(2))
    with StoreWriter.create(tmp_path / "store", data.spec) as writer:
        writer.extend(data)
    assert (episode_digests(Store(tmp_path / "store")) == episode_digests(data)).all()


@pytest.mark.parametrize("column", ["observations", "actions", "rewards"])
def test_a_changed_value_changes_its_episodes_digest_only(column):
    data = walks(np.random.default_rng(3))
    arrays = {name: array.copy() for name, array in data.arrays.items()}
    arrays[column][0] = arrays[column][0] + 1
    changed = Dataset(data.spec, arrays, data.records, data.texts)
    assert (episode_digests(changed) != episode_digests(data)).all(1).tolist() == [True] + [False] * (len(data) - 1)


def test_steps_in_another_order_are_another_episode():
    ends = np.array([0, 1, 0, 1], bool)
    data = Dataset.from_arrays(np.array([[1.0], [2.0], [2.0], [1.0]]), [0, 1, 1, 0], [1, 0, 0, 1], ends)
    (one, _), (other, _) = episode_digests(data)
    assert one != other


def test_shared_episodes_are_found_among_distinct_ones():
    data = walks(np.random.default_rng(4), 60)
    digests = episode_digests(data)
    assert shared_episodes(data[40:], digests[:44]).tolist() == [True] * 4 + [False] * 16
    assert not shared_episodes(data[40:], digests[:40]).any()
    mixed = np.random.default_rng(0).permutation(60)
    digests[:, 1] = 0  # without lines
    assert shared_episodes(data.select(mixed), digests[:50])[mixed.argsort()].tolist() == [True] * 50 + [False] * 10


def discrete(seed, rows):
    """One-step episodes of which only 120 differ."""
    rng = np.random.default_rng(seed)
    seen, actions, rewards = rng.integers(0, 30, (rows, 1)), rng.integers(0, 2, rows), rng.integers(0, 2, rows)
    return Dataset.from_arrays(seen, actions, rewards, np.ones(rows, bool))


def test_episodes_that_repeat_by_nature_do_not_count_as_shared():
    data, other = discrete(5, 500), discrete(6, 500)
    digests = episode_digests(data)
    assert np.isin(episode_digests(other)[:, 0], digests[:, 0]).mean() > 0.9
    assert not shared_episodes(other, digests).any()
    assert not shared_episodes(data[400:], digests[:400]).any()


@pytest.mark.parametrize(("training", "later"), [(1000, 1000), (5000, 300), (60, 60)])
def test_logs_that_have_an_episode_in_common_by_chance_are_not_shared(training, later):
    """With as many kinds as pairs of episodes, hardly any episode occurs twice in one of the logs."""
    kinds, met = training * later, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        data, digests = (
            Dataset.from_arrays(rng.integers(0, kinds, (n, 1)), np.arange(n) % 2, np.zeros(n), np.ones(n, bool))
            for n in (later, training)
        )
        seen = episode_digests(digests)
        met += contained(episode_digests(data)[:, 0], seen[:, 0]).any()
        assert not shared_episodes(data, seen).any()
    assert met >= 10


def in_order(seed, rows, order):
    """Independent one-step episodes of 24 hours, in the order of a file that was sorted, or of time."""
    rng = np.random.default_rng(seed)
    hour, actions = np.arange(rows) % 24, (rng.random(rows) < 0.2).astype(int)
    rewards = (rng.random(rows) < 0.1).astype(float)
    if order == "sorted":
        hour = rng.integers(0, 24, rows)
        by = np.lexsort((rewards, actions, hour))
        hour, actions, rewards = hour[by], actions[by], rewards[by]
    return Dataset.from_arrays(hour[:, None], actions, rewards, np.ones(rows, bool))


@pytest.mark.parametrize("order", ["sorted", "time"])
def test_independent_files_in_the_same_order_are_not_shared(order):
    """Most of their lines are equal: copies are if they are equal where others nearby are not."""
    for seed in range(10):
        data, other = in_order(seed, 480, order), in_order(seed + 100, 480, order)
        digests, found = episode_digests(other), episode_digests(data)
        assert (digests[:, 1] == found[:, 1]).mean() > 0.1  # in another order 0.03 or 0
        assert not shared_episodes(data, digests).any()
        assert shared_episodes(other, digests).all()


def test_a_few_later_episodes_are_not_shared_because_some_of_training_repeat():
    """Forty later episodes of three steps, a few of which are in training by chance, but none is there twice."""
    refused = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        seen, actions, rewards = rng.integers(0, 3, (720, 1)), rng.integers(0, 2, 720), rng.integers(0, 2, 720)
        data = Dataset.from_arrays(seen, actions, rewards, np.tile([False, False, True], 240))
        refused += shared_episodes(data[200:], episode_digests(data)[:200]).any()
    assert refused == 0


def test_a_file_that_is_used_again_is_found_by_its_lines():
    data = discrete(7, 500)
    assert shared_episodes(data, episode_digests(data)[:300])[:300].all()
    assert shared_episodes(data[250:], episode_digests(data)[:300]).tolist() == [True] * 50 + [False] * 200


@pytest.mark.parametrize("times", [2, 3])
def test_copies_are_found_in_a_log_that_was_written_several_times(times):
    data = walks(np.random.default_rng(10), 50)
    assert not copied_episodes(data).any()
    assert copied_episodes(data.select(np.random.default_rng(11).permutation(np.arange(50).repeat(times)))).all()
    kinds = discrete(12, 500)  # of which 120 differ
    assert not copied_episodes(kinds).any()
    assert copied_episodes(kinds.select(np.arange(500).repeat(times))).all()


def test_copies_are_found_if_a_tenth_of_a_log_was_written_twice():
    data, again = walks(np.random.default_rng(12), 3000), np.arange(300)
    found = copied_episodes(data.select(np.concatenate([np.arange(3000), again])))
    assert np.flatnonzero(found).tolist() == [*again, *range(3000, 3300)]


@pytest.mark.parametrize("seed", range(20))
def test_episodes_that_repeat_by_nature_are_no_copies(seed):
    """Kinds of all frequencies: most are there once, some twice, a few very often."""
    rng = np.random.default_rng(seed)
    seen = (rng.zipf(1.2 + rng.random(), 2000) % 10**6)[:, None]
    data = Dataset.from_arrays(seen, rng.integers(0, 2, 2000), rng.integers(0, 2, 2000), np.ones(2000, bool))
    assert np.unique(np.unique(seen, return_counts=True)[1]).size > 5
    assert not copied_episodes(data).any()


def test_a_reordered_copy_of_episodes_that_repeat_by_nature_is_found_by_its_counts():
    data = discrete(8, 1000)
    digests = episode_digests(data)
    mixed = np.random.default_rng(0).permutation(1000)
    again = Dataset.from_arrays(  # other lines
        data.arrays["observations"][mixed],
        data.arrays["actions"][mixed],
        data.arrays["rewards"][mixed],
        np.ones(1000, bool),
    )
    assert shared_episodes(again, digests).all()
    assert shared_episodes(again, digests[:700]).mean() > 0.95  # some kinds are only among the others
    assert not shared_episodes(discrete(9, 1000), digests).any()


def test_equal_episodes_of_one_player_count_once():
    """Customers of constant features decide twice: half of the pairs are equal, but only within customers."""
    rng = np.random.default_rng(20)
    players = np.repeat(np.arange(500), 2)
    features = rng.random((500, 2))[players]
    data = Dataset.from_arrays(features, rng.integers(0, 2, 1000), np.zeros(1000), np.ones(1000))
    assert copied_episodes(data).any()
    assert not copied_episodes(data, players).any()
    again = np.concatenate([np.arange(1000), np.arange(300)])
    others = np.concatenate([players, 500 + players[:300]])  # the same rows under other names
    found = copied_episodes(data.select(again), others)
    assert found[:300].all()
    assert found[1000:].all()
    assert found[300:1000].mean() < 0.1
