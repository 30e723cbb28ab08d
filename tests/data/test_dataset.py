"""Datasets in memory: from arrays, from data frames, slices, and what they say of themselves."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from rbi.data import Dataset, Sampler, SamplerConfig
from rbi.data.dataset import invalid_episodes
from rbi.data.episode import DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats import FormatSettings, TableConfig, load_episodes
from rbi.data.store import Store, StoreWriter
from rbi.data.summary import DatasetSummary

from .episodes import assert_same, episode

BANDIT = {
    "age": [20.0, 31.5, 40.0, 52.0],
    "segment": ["old", "new", "old", "new"],
    "offer": [0, 2, 1, 0],
    "paid": [0.0, 1.5, 0.0, 3.0],
    "propensity": [0.5, 0.2, 0.3, 0.5],
}
BANDIT_COLUMNS = {"action": "offer", "reward": "paid", "observations": ["age", "segment"], "action_prob": "propensity"}


def arrays_of(episodes):
    names = ("actions", "rewards", "terminated", "truncated", "life_lost", "action_probs", "action_masks")
    found = [np.concatenate([getattr(e, name) for e in episodes]) for name in names]
    return np.concatenate([e.observations[: len(e)] for e in episodes]), *found


@pytest.mark.parametrize("frame", [(3,), (6, 5)])
def test_a_dataset_from_arrays_has_the_episodes_that_the_arrays_were_made_of(frame):
    rng, ends = np.random.default_rng(0), ("terminated", "truncated", "terminated")
    made = [episode(rng, 5 + i, frame=frame, end=end, final=False, lives=True, probs=True, legal=True)
            for i, end in enumerate(ends)]  # fmt: skip
    observations, actions, rewards, terminated, truncated, lives, probs, masks = arrays_of(made)
    found = Dataset.from_arrays(
        observations, actions, rewards, terminated, truncated, life_losses=lives, action_probs=probs, action_masks=masks
    )
    assert [len(e) for e in found] == [5, 6, 7]
    for got, wanted in zip(found, made, strict=True):
        for name in ("observations", "actions", "rewards", "ends", "action_probs", "action_masks"):
            np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
    np.testing.assert_array_equal(found.scores, [e.score for e in made])
    assert [e.line for e in found] == [1, 6, 12]


def test_scores_of_arrays_are_to_the_bit_those_of_episodes():
    """Rewards of very different sizes, so that the order of a sum shows; a store's scores are verified to the bit."""
    rng, lengths = np.random.default_rng(0), (3, 7, 8, 9, 100, 1000)
    rewards = (rng.normal(size=sum(lengths)) * 10.0 ** rng.uniform(-12, 12, sum(lengths))).astype(np.float32)
    ends = np.zeros(len(rewards), bool)
    ends[np.cumsum(lengths) - 1] = True
    found = Dataset.from_arrays(np.zeros((len(rewards), 1)), np.zeros(len(rewards), int), rewards, ends)
    assert found.scores.tolist() == [one.score for one in found]


@pytest.mark.parametrize(
    ("terminated", "truncated", "invalid"), [(False, True, False), (True, False, True), (True, True, True)]
)
def test_an_abandoned_episode_is_truncated_and_not_terminated(terminated, truncated, invalid):
    steps = {
        "observations": np.zeros((2, 1), np.float32),
        "actions": np.zeros(2, int),
        "rewards": np.zeros(2, np.float32),
        "terminated": np.array([False, terminated]),
        "truncated": np.array([False, truncated]),
        "life_lost": np.zeros(2, bool),
    }
    found = invalid_episodes(DatasetSpec((1,), 2), steps, np.array([0]), np.array([2]), np.array([True]))
    assert found.tolist() == [invalid]


def test_an_invalid_episode_of_arrays_raises_or_is_rejected_with_its_step():
    arrays = np.zeros((4, 2)), [0, 1, 0, 1], [0.0, 1.0, np.nan, 0.0], [False, True, False, True]
    with pytest.raises(ValueError, match=r"arrays, line 3: step 0: reward nan is not possible"):
        Dataset.from_arrays(*arrays)
    found = Dataset.from_arrays(*arrays, strict=False)
    assert len(found) == 1
    assert found.rejected == [RejectedEpisode("arrays", 3, "step 0: reward nan is not possible")]
    with pytest.raises(ValueError, match="without end"):
        Dataset.from_arrays(np.zeros((2, 1)), [0, 0], [0, 0], [True, False])
    with pytest.raises(ValueError, match=r"rewards of shape \(3,\) for 2 steps"):
        Dataset.from_arrays(np.zeros((2, 1)), [0, 0], [0, 0, 0], [True, False])


@pytest.mark.parametrize("kind", ["pyarrow", "pandas", "polars"])
def test_a_frame_is_read_like_the_same_table_in_a_file(kind, tmp_path):
    table = pa.table(BANDIT)
    if kind == "pandas":
        table = pytest.importorskip("pandas").DataFrame(BANDIT)
    elif kind == "polars":
        table = pytest.importorskip("polars").DataFrame(BANDIT)
    found = Dataset.from_frame(table, **BANDIT_COLUMNS)
    lines = [",".join(BANDIT), *(",".join(map(str, row)) for row in zip(*BANDIT.values(), strict=True))]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    config = TableConfig(
        action="offer", reward="paid", observations=("age", "segment"), action_prob="propensity", one_step=True
    )
    file = load_episodes(tmp_path / "log.csv", settings=FormatSettings(table=config))
    assert found.spec == file.spec
    assert found.feature_names == ["age", "segment = new", "segment = old"]
    for name, column in file.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], column)
    assert [e.line for e in found] == [1, 2, 3, 4]


def test_a_bad_row_of_a_frame_is_rejected_with_its_number_and_column():
    found = Dataset.from_frame(pa.table(BANDIT | {"paid": [0.0, None, 0.0, 3.0]}), **BANDIT_COLUMNS)
    assert (len(found), found.rejected) == (3, [RejectedEpisode("DataFrame", 2, "paid is missing")])
    with pytest.raises(ValueError, match="paid is missing"):
        Dataset.from_frame(pa.table(BANDIT | {"paid": [0.0, None, 0.0, 3.0]}), **BANDIT_COLUMNS, strict=True)
    with pytest.raises(ValueError, match=r"no column 'price' \(reward=\)"):
        Dataset.from_frame(pa.table(BANDIT), **(BANDIT_COLUMNS | {"reward": "price"}))
    with pytest.raises(ValueError, match="must be a pandas or polars"):
        Dataset.from_frame(BANDIT)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_series_is_no_frame(kind):
    with pytest.raises(ValueError, match="Series: must be a pandas or polars"):
        Dataset.from_frame(pytest.importorskip(kind).Series([1, 2]))


def test_a_named_index_of_pandas_is_a_column():
    """Without it, every step of these episodes would be an episode."""
    frame = pytest.importorskip("pandas").DataFrame(
        {"episode_id": [7, 7, 8], "t": [0, 1, 0], "obs_0": [1.0, 2, 3], "action": [0, 1, 1], "reward": [0.0, 1, 1]}
    )
    ended = frame.assign(terminated=[False, True, True])
    assert len(Dataset.from_frame(ended.set_index(["episode_id", "t"]))) == 2
    with pytest.raises(ValueError, match="nothing says where episodes end"):
        Dataset.from_frame(frame.set_index("episode_id"))
    with pytest.raises(ValueError, match="DataFrame: cannot be converted"):
        Dataset.from_frame(frame.set_axis([*frame.columns[:-1], "action"], axis=1))


def test_numbers_of_pandas_that_no_column_can_hold_are_refused():
    frame = pytest.importorskip("pandas").DataFrame(BANDIT | {"age": [1, 2, 3, 10**30]})
    with pytest.raises(ValueError, match=r"DataFrame: cannot be converted .*too large"):
        Dataset.from_frame(frame, **BANDIT_COLUMNS)


def test_a_frame_with_an_episode_column_has_episodes_of_several_steps():
    steps = {"who": ["a", "a", "b"], "obs_0": [1.0, 2.0, 3.0], "action": [0, 1, 1], "reward": [0.0, 1.0, 2.0],
             "terminated": [False, True, True]}  # fmt: skip
    found = Dataset.from_frame(pa.table(steps), episode="who")
    assert [(len(e), e.score) for e in found] == [(2, 1.0), (1, 2.0)]


def test_a_frame_with_the_usual_columns_of_episodes_is_not_read_as_a_bandit_log():
    steps = {"episode_id": [7, 7, 8], "obs_0": [1.0, 2.0, 3.0], "action": [0, 1, 1], "reward": [0.0, 1.0, 2.0],
             "terminated": [False, True, True]}  # fmt: skip
    found = Dataset.from_frame(pa.table(steps))
    assert [(len(e), e.score) for e in found] == [(2, 1.0), (1, 2.0)]
    ends, ids = steps.pop("terminated"), steps.pop("episode_id")
    for without_ids, named in ((steps | {"terminated": ends}, {}), (steps | {"over": ends}, {"terminated": "over"})):
        found = Dataset.from_frame(pa.table(without_ids), **named)
        assert [(len(e), e.score) for e in found] == [(2, 1.0), (1, 2.0)]
    told = r"with truncated=, or both, or drop its columns of episodes and ends if every"
    with pytest.raises(ValueError, match=told):
        Dataset.from_frame(pa.table(steps | {"episode_id": ids}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(action_prob="prop"), r"no column 'prop' \(action_prob=\)"),
        (dict(observations="age"), "observations = 'age': must be a list or tuple of column names"),
        (dict(observations=[7]), r"observations = \(7,\): must be a list or tuple of column names"),
    ],
)
def test_a_frames_errors_name_the_argument(wrong, message):
    with pytest.raises(ValueError, match=message):
        Dataset.from_frame(pa.table(BANDIT), **(BANDIT_COLUMNS | wrong))


def test_a_slice_is_a_dataset_that_samplers_accept():
    rng = np.random.default_rng(0)
    made = [episode(rng, 3 + i, final=i % 2 == 0) for i in range(5)]
    data = Dataset.from_episodes(made)
    for which in (slice(1, 4), slice(None, None, 2), slice(4, None, -1), slice(2, 2)):
        part = data[which]
        assert isinstance(part, Dataset)
        for got, wanted in zip(part, made[which], strict=True):
            assert_same(got, wanted)
    data.rejected, data.num_lost = [RejectedEpisode("log.csv", 9, "no reward")], 2
    assert (data[1:4].rejected, data.select([0]).num_lost) == (data.rejected, 2)  # nothing is decided without them
    sampler = Sampler(data[1:4], SamplerConfig(batch_size=4), torch.Generator().manual_seed(0))
    assert sampler.draw().states.shape == (4, 1, 3)


def test_episodes_are_selected_by_index_or_by_booleans():
    rng = np.random.default_rng(0)
    data = Dataset.from_episodes([episode(rng, 3 + i) for i in range(5)])
    for chosen, which in (([3, 0, 0], [3, 0, 0]), (data.scores > np.median(data.scores), None), ([], [])):
        wanted = np.flatnonzero(chosen) if which is None else which
        for got, number in zip(data.select(chosen), wanted, strict=True):
            assert_same(got, data[int(number)])
    with pytest.raises(ValueError, match=r"^booleans of shape \(2,\) for 5 episodes$"):
        data.select([True, False])
    for several in ([0, 2], data.scores > 0):
        with pytest.raises(TypeError, match=r"of type (list|ndarray): must be an integer or a slice; select takes"):
            data[several]


def test_a_saved_dataset_is_a_store_with_the_same_episodes(tmp_path):
    frame = pa.table({**BANDIT, "paid": [0.0, 1.5, None, 3.0]})
    data = Dataset.from_frame(frame, **BANDIT_COLUMNS)
    data.save(tmp_path / "logs")
    found = load_episodes(tmp_path / "logs")
    assert isinstance(found, Store)
    assert (found.spec, len(found)) == (data.spec, 3)
    for got, wanted in zip(found, data, strict=True):
        assert_same(got, wanted)
    assert found.rejected == data.rejected
    assert len(data.rejected) == 1
    assert found.table_roles == data.table_roles
    assert found.table_roles["action"] == "offer"
    found[1:].save(tmp_path / "later")
    assert_same(load_episodes(tmp_path / "later")[0], data[1])
    with pytest.raises(ValueError, match="logs: is not empty"):
        data.save(tmp_path / "logs")


def test_a_dataset_is_not_made_of_arrays_directly():
    with pytest.raises(TypeError, match=r"^spec is of type ndarray; rbi\.Dataset\.from_arrays makes a dataset"):
        Dataset(np.zeros((3, 2)), [0, 1, 1], [0, 0, 1], [False, False, True])


def test_a_dataset_shows_and_summarises_itself():
    found = Dataset.from_arrays(np.zeros((3, 2)), [0, 1, 1], [0, 0, 1], [False, True, True])
    assert repr(found) == "Dataset(2 episodes, 3 steps; observations (2,), 2 actions; mean score 0.5)"
    told = found.summary().to_dict()
    assert (told["episodes"], told["steps"], told["actions"]) == (2, 3, {0: 1, 1: 2})
    assert (told["scores"]["mean"], told["ends"]["terminated"]) == (0.5, 2)
    assert "2 episodes, 3 steps" in repr(found.summary())


def test_logged_probabilities_of_all_actions_reach_episodes_and_stores(tmp_path):
    beta = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], np.float32)
    data = Dataset.from_arrays(np.zeros((2, 1)), [0, 2], [0, 1], [True, True], behavior_probs=beta)
    assert data.spec.num_actions == 3
    assert (data[1].behavior_probs == beta[1:]).all()
    with StoreWriter.create(tmp_path / "store", data.spec) as writer:
        writer.extend(data)
    assert (Store(tmp_path / "store").arrays["behavior_probs"] == beta).all()
    again = Dataset.from_episodes(data)
    assert again.spec == data.spec
    for bad, told in (
        (beta * 2, "arrays, line 1: step 0: behavior_probs"),
        (beta[:, ::-1], "line 1: step 0: action 0"),
    ):
        with pytest.raises(ValueError, match=told):
            Dataset.from_arrays(np.zeros((2, 1)), [0, 2], [0, 1], [True, True], behavior_probs=bad)


def test_the_probability_of_the_taken_action_agrees_with_those_of_all_actions():
    steps, beta = (np.zeros((2, 1)), [0, 1], [0, 1], [False, True]), np.array([[0.5, 0.5], [0.2, 0.8]])
    Dataset.from_arrays(*steps, action_probs=[0.5, 0.8], behavior_probs=beta)
    with pytest.raises(ValueError, match=r"arrays, line 1: step 1: logging probability 0\.2.* beside behavior_probs"):
        Dataset.from_arrays(*steps, action_probs=[0.5, 0.2], behavior_probs=beta)


def test_a_summary_counts_ends_actions_rewards_and_players():
    def played(actions, rewards, end, player):
        last = np.arange(len(actions)) == len(actions) - 1
        terminated = last & (end == "terminated")
        return Episode(
            np.zeros((len(actions), 1), np.float32), np.array(actions), np.array(rewards), terminated,
            last & ~terminated, abandoned=end == "abandoned", player=player,
        )  # fmt: skip

    episodes = [
        played([0, 1], [0.0, 2.0], "terminated", "ann"),
        played([0, 1, 0, 1], [1.0, 0.0, 0.0, 0.0], "time limit", "ann"),
        played([1, 0], [0.0, 0.0], "abandoned", "bob"),
    ]
    dataset = Dataset.from_episodes(episodes, DatasetSpec((1,), 3))
    one_by_one = DatasetSummary(3)
    for each in episodes:
        one_by_one.add(each)
    for summary in (DatasetSummary.of_dataset(dataset), one_by_one):
        found = summary.to_dict()
        assert found["ends"] == {"terminated": 1, "time limit": 1, "abandoned": 1}
        assert found["effective_actions"] == pytest.approx(2)
        assert found["rewards"] == {"min": 0.0, "max": 2.0, "nonzero_share": 2 / 8}
        assert [(row["name"], row["mean"]) for row in found["players"]] == [("ann", 1.5), ("bob", 0.0)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"terminations": ["False", "True"]}, "terminations: must be true or false, or 1 or 0"),
        ({"terminations": [np.nan, 1]}, "terminations: must be true or false, or 1 or 0"),
        ({"truncations": [2, 0]}, "truncations: must be true or false, or 1 or 0"),
        ({"action_masks": [[0.5, 1], [1, 1]]}, "action_masks: must be true or false, or 1 or 0"),
        ({"action_probs": 0.5}, r"action_probs of shape \(\) for 2 steps"),
        ({"actions": [[0], [1]]}, r"actions of shape \(2, 1\) for 2 steps: must be \[2\]"),
        ({"observations": np.zeros((0, 1))}, "no steps"),
        ({"observations": [{"place": 0}, {"place": 1}]}, r"^observations cannot .* by gymnasium\.spaces\.flatten"),
        ({"observations": [[0.0], [1.0, 2.0]]}, "^observations cannot be read as numbers"),
        ({"observations": ["new", "vip"]}, "^observations cannot .*'new'.* rbi.Dataset.from_frame reads columns"),
        ({"observations": [[1j], [1]]}, r"observations of type complex128: must be real numbers"),
        ({"rewards": [1j, 1]}, "^rewards of type complex128: must be real numbers"),
        ({"rewards": np.array([1, 2], "m8[h]")}, r"^rewards of type timedelta64\[h\]: must be real numbers"),
        ({"rewards": np.ma.masked_equal([1.0, -999.0], -999.0)}, "a masked array, .*: leave these steps out"),
        ({"observations": np.array([["NaT"], ["2024"]], "M8[s]")}, r"of type datetime64\[s\]: must be real numbers"),
    ],
)
def test_arrays_that_are_no_steps_are_refused_with_their_name(changes, reason):
    steps = {"observations": np.zeros((2, 1)), "actions": [0, 1], "rewards": [0, 1], "terminations": [False, True]}
    with pytest.raises(ValueError, match=reason):
        Dataset.from_arrays(**(steps | changes))


def test_a_dataset_has_memory_of_its_own_which_pytorch_can_wrap():
    obs, actions = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1], np.int32)
    rewards, ends, probs = np.arange(4, dtype=np.float32), np.ones(4, bool), np.full((4, 2), 0.5, np.float32)
    columns = [column[::-1] for column in (obs, actions, rewards, ends)]
    data = Dataset.from_arrays(*columns, action_masks=ends[:, None][::-1] | probs.astype(bool), behavior_probs=probs)
    for column in (obs, actions, rewards, ends, probs):
        column[:] = 0  # as a buffer that is filled again
    assert data.arrays["observations"][:, 0].tolist() == [6, 4, 2, 0]
    assert data.arrays["actions"].tolist() == [1, 0, 1, 0]
    assert data.arrays["rewards"].tolist() == data.scores.tolist() == [3, 2, 1, 0]
    assert data.arrays["terminated"].all()
    assert (data.arrays["behavior_probs"] == 0.5).all()
    assert len(Sampler(data, SamplerConfig(batch_size=2), torch.Generator()).batch(torch.arange(4)).actions) == 4


def test_flags_may_be_numbers_or_objects():
    steps = np.zeros((4, 1)), [0, 1, 0, 1], [0, 1, 0, 1]
    for ends in ([0, 1, 0, 1], [0.0, 1.0, 0.0, 1.0], np.array([False, True, False, True], dtype=object)):
        assert [len(e) for e in Dataset.from_arrays(*steps, ends)] == [2, 2]
