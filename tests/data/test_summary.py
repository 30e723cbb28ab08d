"""Summaries of data from its columns are those of single episodes."""

import dataclasses

import numpy as np
import pytest

from rbi.data.dataset import RECORD, Dataset, columns, infer_spec
from rbi.data.formats import FormatSettings, StoreReader, open_reader
from rbi.data.formats.reader import summaries_of
from rbi.data.importing import summarize_data
from rbi.data.store import StoreWriter
from rbi.data.summary import DatasetSummary
from rbi.fileio import to_json

from .episodes import episode


def reader_of(path):
    return open_reader(path, settings=FormatSettings(max_lost=1.0))


def by_episode(path):
    """The summary from single episodes."""
    reader = reader_of(path)
    found = DatasetSummary(reader.spec.num_actions)
    if isinstance(reader, StoreReader):
        found.add_lost(reader.store)
    for part in reader.parts():
        for item in summaries_of(reader, part):
            found.add(item)
    return found


def assert_same_summary(one, other):
    for name in one.to_dict().keys() - {"rejected_examples"}:  # the columns of a store name the store
        value = one.to_dict()[name]
        assert to_json(other.to_dict()[name]) == to_json(value), name


@pytest.mark.parametrize("fault", ["none", "a lost episode", "an impossible action"])
@pytest.mark.parametrize("probs", [False, True])
def test_columns_have_the_summary_of_their_episodes(tmp_path, fault, probs):
    rng = np.random.default_rng(7)
    ends = 5 * ["terminated", "truncated", "abandoned"]
    episodes = [episode(rng, int(rng.integers(1, 9)), end=end, lives=True, probs=probs) for end in ends]
    episodes = [dataclasses.replace(one, rewards=one.rewards.round()) for one in episodes]  # their sums are exact
    with StoreWriter.create(tmp_path / "s", infer_spec(episodes)) as writer:
        for one in episodes:
            writer.append(one)
    if fault == "a lost episode":
        index = np.fromfile(tmp_path / "s" / "episodes.bin", RECORD)
        index["steps"][-1] += 8
        index.tofile(tmp_path / "s" / "episodes.bin")
    if fault == "an impossible action":
        file = tmp_path / "s" / "actions.bin"
        actions = np.fromfile(file, columns(infer_spec(episodes))["actions"][0])
        actions[0] = 99
        actions.tofile(file)
    found = summarize_data(reader_of(tmp_path / "s"))
    assert_same_summary(found, by_episode(tmp_path / "s"))
    assert found.ends == {
        "terminated": 5 - (fault == "an impossible action"),
        "time limit": 5,
        "abandoned": 5 - (fault == "a lost episode"),
    }
    assert len(found.players) == 3
    assert found.num_lost == (fault == "a lost episode")
    assert found.rejections.rejected == (fault == "an impossible action")


def test_a_table_has_the_summary_of_its_episodes(tmp_path):
    rows = [f"{k // 3},{k % 4},{k % 5},{int(k % 3 == 2)},user {k // 30},{k}" for k in range(300)]
    rows[33] = rows[33].replace(",", ",-", 1)
    head = "episode_id,action,reward,terminated,player,obs_0"
    (tmp_path / "log.csv").write_text("\n".join([head, *rows]) + "\n")
    found = summarize_data(open_reader(tmp_path / "log.csv"))
    assert_same_summary(found, by_episode(tmp_path / "log.csv"))
    assert (len(found.scores), found.rejections.rejected, len(found.players)) == (99, 1, 10)


def test_scores_that_differ_by_rounding_only_are_one_bin():
    tiny = [[1, 1e-16, 1e-16], [1e-16, 1e-16, 1]]
    data = Dataset.from_arrays(np.zeros((6, 1)), np.arange(6) % 2, np.ravel(tiny), np.arange(6) % 3 == 2)
    assert data.summary().to_dict()["scores"]["counts"].tolist() == [2]


def test_lives_that_only_screens_show_are_unknown_in_a_summary_not_none_lost(tmp_path):
    folder = tmp_path / "trajectories" / "qbert"
    folder.mkdir(parents=True)
    rows = "".join(f"{frame},{5 * (frame == 8)},0,{int(frame == 39)},{frame % 6}\n" for frame in range(40))
    (folder / "1.txt").write_text(f"db traj id : 7\nframe,reward,score,terminal,action\n{rows}")
    found = summarize_data(open_reader(tmp_path)).to_dict()
    assert (found["episodes"], found["scores"]["mean"], found["ends"]["terminated"]) == (1, 5, 1)
    assert found["lives_lost"] is None
