"""DQN Replay beside the ring buffer that wrote it."""

import gzip
import tracemalloc
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rbi.data.episode import RejectedEpisode
from rbi.data.formats import FormatSettings, load_episodes, open_reader, recognise
from rbi.data.formats.dqn_replay import LIMIT, GzippedArray
from rbi.data.formats.reader import SpecOverrides
from tests.reference.dopamine import STACK, Ring, save

FRAME, ACTIONS = (3, 2), 3


class Played(NamedTuple):
    """An episode as the agent played it, and the run's rows that it takes, its padding first."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    first: int
    end: int


def play(ring, lengths, seed=0):
    """Fill a ring with episodes. No picture is black, but doing nothing for nothing is common."""
    rng, played = np.random.default_rng(seed), []
    for length in lengths:
        observations = rng.integers(1, 256, (length, *FRAME)).astype(np.uint8)
        actions, rewards = rng.integers(0, ACTIONS, length), rng.choice([0, 0, 1], length)
        first = ring.add_count
        for t in range(length):
            ring.add(observations[t], actions[t], rewards[t], t == length - 1)
        played.append(Played(observations, actions, rewards, first, ring.add_count))
    return played


def logged(ring, played):
    """The episodes that lie in files one after the other, and whose beginning is known.

    Where padding goes over the end of the ring, a whole turn is not logged, and a new stretch begins.
    """
    stretches, end = [], 0
    for count, new in ring.logged:
        joined = count - new - 1 <= end  # the old slot holds the row before the new ones
        stretches.append((stretches.pop()[0] if joined and stretches else count - new, count))
        end = count
    return [p for p in played if any(s - (s == 0) < p.first and p.end <= e for s, e in stretches)]


def read(path, **overrides):
    reader = open_reader(path, settings=FormatSettings(SpecOverrides(**overrides)))
    found = [item for part in reader.parts() for item in reader.read(part)]
    return [e for e in found if not isinstance(e, RejectedEpisode)], [
        e for e in found if isinstance(e, RejectedEpisode)
    ]


def summaries(path):
    reader = open_reader(path)
    return [item for part in reader.parts() for item in reader.summaries(part)]


def assert_same(episodes, played):
    assert len(episodes) == len(played)
    key = [e.observations.tobytes() for e in episodes]
    for p in played:
        episode = episodes[key.index(p.observations.tobytes())]
        np.testing.assert_array_equal(episode.actions, p.actions)
        np.testing.assert_array_equal(episode.rewards, p.rewards)
        assert episode.terminated[-1]
        assert not episode.has_final


@given(
    capacity=st.integers(6, 40),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    final=st.booleans(),
    seed=st.integers(0, 99),
)
@pytest.mark.slow
def test_every_episode_whose_rows_are_logged_is_read_exactly(tmp_path_factory, capacity, lengths, final, seed):
    run = tmp_path_factory.mktemp("Qbert") / "1"
    ring = Ring(run / "replay_logs", capacity, FRAME)
    played = play(ring, lengths, seed)
    assume(ring.add_count - (ring.logged[-1][0] if ring.files else 0) < capacity)  # else: the test after this one
    if final or not ring.files:
        ring.log_final()
    episodes, problems = read(run, num_actions=ACTIONS)
    whole = logged(ring, played)
    assert_same(episodes, whole)
    assert len(whole) == len(played) or problems or not final
    told = summaries(run)
    assert [(o.source, o.line, len(o.actions)) for o in told if not isinstance(o, RejectedEpisode)] == [
        (e.source, e.line, len(e)) for e in episodes
    ]


def test_a_turn_that_was_not_logged_before_the_last_file_joins_nothing(tmp_path):
    ring = Ring(tmp_path, 20, FRAME)
    played = play(ring, [10, 12, 6, 4, 5])
    assert ring.logged == [(19, 19)]
    assert 40 < ring.add_count < 60, "the ring's second turn ended within padding"
    ring.log_final()
    episodes, problems = read(tmp_path)
    assert_same(episodes, [p for p in played if p.end <= 19 or p.first > 40])
    assert [p.reason.split(":")[0] for p in problems] == ["an episode without end", "an episode without beginning"]


def test_without_counts_the_last_slot_is_left_out_and_an_episode_across_lacks_that_step(tmp_path):
    ring = Ring(tmp_path, 20, FRAME, counts=False)
    [_, across, _] = play(ring, [9, 11, 12])
    assert ring.logged == [(19, 19), (39, 19)]
    episodes, problems = read(tmp_path)
    assert [len(e) for e in episodes] == [9, 10]
    lost = 19 - across.first - (STACK - 1)  # the step that went into the last slot
    np.testing.assert_array_equal(episodes[1].observations, np.delete(across.observations, lost, axis=0))
    np.testing.assert_array_equal(episodes[1].actions, np.delete(across.actions, lost))
    assert [(p.source, p.reason) for p in problems] == [
        ("$store$_observation_ckpt.1.gz", "an episode without end: the log stops")
    ]


def test_without_counts_old_rows_of_the_last_file_are_not_read_again(tmp_path):
    ring = Ring(tmp_path, 40, FRAME, counts=False)
    [first, second, _, last] = play(ring, [9, 11, 13, 6])
    ring.log_final()
    assert ring.logged == [(39, 39), (51, 11)]
    episodes, problems = read(tmp_path)
    assert [len(e) for e in episodes] == [9, 11, 12, 6]
    assert_same([episodes[0], episodes[1], episodes[3]], [first, second, last])
    assert not problems


def test_without_counts_an_end_in_the_last_slot_does_not_join_two_episodes(tmp_path):
    ring = Ring(tmp_path, 20, FRAME, counts=False)
    [first, second, _] = play(ring, [17, 10, 20])
    assert first.end == 20
    assert ring.logged == [(19, 19), (39, 19)]
    episodes, problems = read(tmp_path)
    assert_same(episodes, [second])
    assert "its last row was not logged" in problems[0].reason


def test_the_source_and_line_are_the_file_and_row_where_an_episode_begins(tmp_path):
    run = tmp_path / "Breakout" / "3"
    ring = Ring(run / "replay_logs", 50, FRAME)
    play(ring, [10, 20, 30])
    ring.log_final()
    episodes, _ = read(tmp_path / "Breakout")
    assert [(e.source, e.line) for e in episodes] == [
        ("3/replay_logs/$store$_observation_ckpt.0.gz", line) for line in (4, 17, 40)
    ]
    assert {e.player for e in episodes} == {"3"}


def test_a_game_is_all_its_runs_and_gives_the_environment(tmp_path):
    game = tmp_path / "MsPacman"
    for run in (2, 10, 1):
        ring = Ring(game / str(run) / "replay_logs", 200, FRAME)
        play(ring, [5] * run, seed=run)
        ring.log_final()
    assert recognise(game) == recognise(game / "10") == recognise(game / "10" / "replay_logs") == "dqn_replay"
    episodes = load_episodes(game)
    assert episodes.players == ["1"] * 1 + ["2"] * 2 + ["10"] * 10
    assert episodes.spec.env == "ALE/MsPacman-v5"
    assert (episodes.spec.obs_shape, episodes.spec.num_actions, episodes.spec.frame_stack) == (FRAME, ACTIONS, 4)
    assert len(load_episodes(game / "10" / "replay_logs")) == 10
    assert (
        open_reader(
            game, settings=FormatSettings(SpecOverrides(env="Pong-v4", num_actions=9, frame_stack=2))
        ).spec.num_actions
        == 9
    )


def test_only_an_episode_of_the_agents_limit_is_truncated(tmp_path):
    ring = Ring(tmp_path, 4 * LIMIT, FRAME)
    play(ring, [LIMIT - 1, LIMIT, LIMIT + 1])
    ring.log_final()
    episodes, problems = read(tmp_path)
    assert [(len(e), bool(e.truncated[-1]), e.abandoned) for e in episodes] == [
        (LIMIT - 1, False, False),
        (LIMIT, True, False),
    ]
    assert [p.reason for p in problems] == ["more than 27,000 steps, the time limit: an end is missing"]


@pytest.mark.parametrize("column", ["observation", "action", "reward", "terminal"])
def test_a_file_that_is_cut_off_gives_the_episodes_before(tmp_path, column):
    ring = Ring(tmp_path, 60, FRAME)
    played = play(ring, [10] * 9)
    ring.log_final()
    assert len(ring.logged) == 2
    file = tmp_path / f"$store$_{column}_ckpt.0.gz"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 7 // 8])
    with GzippedArray(file) as array:
        rows = len(array.rows(60))
    assert 0 < rows < 60
    episodes, problems = read(tmp_path, num_actions=ACTIONS)
    after = [p for p in played if p.first >= ring.capacity]
    assert_same(episodes, [p for p in played if p.end <= rows] + after)
    assert file.name in {p.source for p in problems}
    [fault] = [p for p in problems if p.source == file.name and "truncated" in p.reason]
    assert fault.line == rows + 1


def test_a_missing_column_and_a_missing_file_are_told_and_the_rest_is_read(tmp_path):
    ring = Ring(tmp_path, 45, FRAME)
    played = play(ring, [15] * 12)
    ring.log_final()
    assert ring.logged == [(44, 44), (89, 44), (134, 44), (179, 44), (216, 36)]
    (tmp_path / "$store$_reward_ckpt.1.gz").unlink()
    for column in ("observation", "action", "reward", "terminal"):
        (tmp_path / f"$store$_{column}_ckpt.3.gz").unlink()
    episodes, problems = read(tmp_path)
    there = [(-1, 44), (90, 134), (180, 216)]  # the first row of a file may belong to an episode of the one before
    assert_same(episodes, [p for p in played if any(start < p.first and p.end <= end for start, end in there)])
    assert "$store$_reward_ckpt.1.gz, line 1: is missing" in map(str, problems)
    assert sum("without beginning" in p.reason for p in problems) == 2
    assert sum("without end" in p.reason for p in problems) == 2


def test_columns_of_different_lengths_are_read_up_to_the_shortest(tmp_path):
    ring = Ring(tmp_path, 50, FRAME)
    played = play(ring, [10] * 3)
    ring.log_final()
    save(tmp_path / "$store$_action_ckpt.0.gz", ring.store["action"][:30])
    episodes, problems = read(tmp_path)
    assert_same(episodes, played[:2])
    assert problems[0] == RejectedEpisode(
        "$store$_action_ckpt.0.gz", 31, "has 30 rows, where others of its number have 50"
    )


def test_summaries_never_open_images(tmp_path):
    ring = Ring(tmp_path, 30, FRAME)
    played = play(ring, [8] * 10)
    ring.log_final()
    reader = open_reader(tmp_path)
    for file in tmp_path.glob("*observation*"):
        file.write_bytes(b"no pictures")
    found = [item for part in reader.parts() for item in reader.summaries(part)]
    found = [item for item in found if not isinstance(item, RejectedEpisode)]
    assert sorted(tuple(o.rewards) for o in found) == sorted(tuple(p.rewards) for p in logged(ring, played))


def test_a_file_larger_than_memory_is_never_held(tmp_path):
    rows, frame = 20_000, (84, 84)
    observation = np.zeros((rows, *frame), np.uint8)
    observation[:, 0, 0] = 1
    terminal = (np.arange(rows) % 100 == 99).astype(np.uint8)
    columns = {"observation": observation, "action": np.zeros(rows, np.int32), "terminal": terminal}
    for name, column in (columns | {"reward": np.zeros(rows, np.float32)}).items():
        save(tmp_path / f"$store$_{name}_ckpt.0.gz", column)
    size = observation.nbytes
    del observation, columns
    reader = open_reader(tmp_path)
    tracemalloc.start()
    steps = sum(len(item) for item in reader.read(reader.parts()[0]) if not isinstance(item, RejectedEpisode))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps == rows - 100
    assert most < size / 10


def test_files_that_are_no_arrays_are_refused_with_their_name(tmp_path):
    for column in ("observation", "action", "reward", "terminal"):
        (tmp_path / f"$store$_{column}_ckpt.0.gz").write_bytes(gzip.compress(b"not an array at all"))
    with pytest.raises(ValueError, match=r"no file of observations can be read: .*observation_ckpt\.0\.gz: is not a"):
        open_reader(tmp_path)


@given(st.integers(0, 7), st.lists(st.integers(0, 5), max_size=6), st.integers(1, 3))
def test_a_gzipped_array_gives_its_rows_in_order(tmp_path_factory, rows, takes, members):
    array = np.arange(rows * 6, dtype=np.int16).reshape(rows, 2, 3)
    file = tmp_path_factory.mktemp("array") / "a.gz"
    save(file, array)
    whole = gzip.decompress(file.read_bytes())
    cuts = [len(whole) * i // members for i in range(members + 1)]
    file.write_bytes(b"".join(gzip.compress(whole[a:b]) for a, b in pairwise(cuts)))
    with GzippedArray(file) as found:
        assert found.shape == array.shape
        taken = np.concatenate([np.zeros((0, 2, 3), np.int16), *(found.rows(take) for take in takes)])
        np.testing.assert_array_equal(taken, array[: sum(takes)])
        assert bool(found.fault) == (sum(takes) > rows)
