"""Tables: what is written comes back, what is wrong is rejected with its line, and the rest goes on."""

import contextlib
import csv
import datetime
import gzip
import itertools
import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbi.data.dataset import Dataset, infer_spec
from rbi.data.episode import DatasetSpec, Episode, Feature, RejectedEpisode
from rbi.data.formats import (
    FormatSettings,
    load_episodes,
    open_reader,
    parquet_writer,
    table_features,
    table_files,
    tables,
)
from rbi.data.formats.reader import SpecOverrides, summaries_of
from rbi.data.formats.table_features import encode_rows
from rbi.data.formats.tables import TableConfig
from rbi.data.importing import import_dataset
from rbi.data.store import Store, StoreWriter
from tests.generators import examples

from .episodes import assert_same, episode, some_episodes

ACTIONS = 4
TWO_EPISODES = {
    "episode_id": ["a", "a", "b", "b", "b"],
    "t": [0, 1, 0, 1, 2],
    "obs_0": [0.5, 1.5, 2.5, 3.5, 4.5],
    "obs_1": [1, 2, 3, 4, 5],
    "action": [0, 1, 2, 1, 0],
    "reward": [0.0, 1.0, 0.0, 0.5, -1.0],
    "terminated": [False, True, False, False, False],
    "truncated": [False, False, False, False, True],
}
ONE_ROW = {name: column[1:2] for name, column in TWO_EPISODES.items()}


def asking(actions=None, env="", stack=None, **table):
    return FormatSettings(
        overrides=SpecOverrides(env=env, num_actions=actions, frame_stack=stack), table=TableConfig(**table)
    )


def read(path, **overrides):
    """The items of the streaming reader, which must be those that are loaded at once."""
    reader = open_reader(path, settings=asking(**overrides))
    found = [item for part in reader.parts() for item in reader.read(part)]
    loaded = load_episodes(path, settings=asking(**overrides))
    assert loaded.rejected == [item for item in found if isinstance(item, RejectedEpisode)]
    for one, other in zip(loaded, [item for item in found if isinstance(item, Episode)], strict=True):
        assert_same(one, other)
    return found


def shared(episodes, **more):
    """What made-up episodes have in common."""
    first = episodes[0]
    has = dict(has_action_probs=first.action_probs is not None, has_action_masks=first.action_masks is not None)
    return DatasetSpec(first.observations.shape[1:], ACTIONS, **has, **more)


def write_parquet(episodes, spec, path):
    parquet_writer.write_parquet([Dataset.from_episodes(episodes, spec)], spec, path)


def as_csv(path, columns, **changes):
    """A table as text, some columns changed or, if None, left out."""
    columns = {name: column for name, column in (columns | changes).items() if column is not None}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def as_parquet(path, columns, **changes):
    columns = {name: column for name, column in (columns | changes).items() if column is not None}
    pq.write_table(pa.table(columns), path)
    return path


def table(path, columns, **changes):
    return (as_csv if path.suffix == ".csv" else as_parquet)(path, columns, **changes)


def changed(name, row, value):
    """A column of the two episodes with another value in one row."""
    column = list(TWO_EPISODES[name])
    column[row] = value
    return {name: column}


def flat_columns(episodes, rng):
    """Vector episodes as one row a step, the rows of each in any order."""
    rows = []
    for number, e in enumerate(episodes):
        for t in rng.permutation(len(e)):
            row = {"episode_id": f"e{number}", "t": int(t), "action": int(e.actions[t]), "reward": float(e.rewards[t])}
            row |= {name: bool(getattr(e, name)[t]) for name in ("terminated", "truncated", "life_lost")}
            row |= {f"obs_{i}": float(x) for i, x in enumerate(e.observations[t])} | {"player": e.player}
            row |= {} if e.action_probs is None else {"action_prob": float(e.action_probs[t])}
            row |= (
                {} if e.action_masks is None else {f"action_mask_{a}": bool(x) for a, x in enumerate(e.action_masks[t])}
            )
            rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.fixture(params=[".csv", ".parquet"])
def file(request, tmp_path):
    return tmp_path / f"log{request.param}"


@pytest.mark.slow
@given(some_episodes(frames=((3,), (1,), (5, 4), (2, 3, 2))), st.integers(1, 1000))
@settings(max_examples=60)
def test_what_the_parquet_writer_wrote_is_read_back_in_every_field(episodes, group_bytes):
    spec = shared(episodes, frame_stack=3, env="CartPole-v1")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_writer, "GROUP_BYTES", group_bytes)
        patch.setattr(table_files, "PARQUET_BLOCK_ROWS", 4)
        path = Path(folder) / "episodes.parquet"
        write_parquet(iter(episodes), spec, path)
        reader = open_reader(path)
        assert reader.spec == spec
        for found, wanted in zip(reader.read(reader.parts()[0]), episodes, strict=True):
            assert_same(found, wanted)


@given(some_episodes(frames=((3,), (12,))), st.integers(0, 2**32), st.sampled_from([".csv", ".parquet"]), st.data())
@examples(0.5)
def test_rows_in_any_order_of_t_over_any_blocks_and_files_are_the_episodes(episodes, seed, suffix, data):
    columns = flat_columns(episodes, np.random.default_rng(seed))
    rows = len(columns["t"])
    cuts = sorted(data.draw(st.sets(st.integers(1, rows - 1), max_size=3))) if rows > 1 else []
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "PARQUET_BLOCK_ROWS", data.draw(st.integers(1, 7)))
        patch.setattr(table_files, "TEXT_BLOCK_BYTES", data.draw(st.integers(1, 400)))
        for number, (start, stop) in enumerate(itertools.pairwise([0, *cuts, rows])):
            table(Path(folder) / f"part-{number}{suffix}", {name: c[start:stop] for name, c in columns.items()})
        found = read(Path(folder), actions=ACTIONS)
    assert len(found) == len(episodes)
    begins = np.cumsum([0, *(len(e) for e in episodes)])
    for got, wanted, begin in zip(found, episodes, begins, strict=False):
        part = int(np.searchsorted(cuts, begin, side="right"))
        line = begin - [0, *cuts][part] + (2 if suffix == ".csv" else 1)
        seen = wanted.observations[: len(wanted)]
        assert_same(got, replace(wanted, observations=seen, abandoned=False, source=f"part-{part}{suffix}", line=line))


def test_a_file_that_cannot_be_finished_does_not_appear(tmp_path):
    good = Dataset.from_episodes([episode(np.random.default_rng(0), 3)])

    def broken():
        yield good
        raise ValueError("the disk is full")

    with pytest.raises(ValueError, match="the disk is full"):
        parquet_writer.write_parquet(broken(), good.spec, tmp_path / "episodes.parquet")
    assert list(tmp_path.iterdir()) == []


def test_other_tools_read_what_the_writer_wrote(tmp_path):
    made = episode(np.random.default_rng(0), 2, frame=(2, 3))
    write_parquet([made], shared([made]), tmp_path / "episodes.parquet")
    rows = pq.read_table(tmp_path / "episodes.parquet").to_pylist()
    assert [row["obs"] for row in rows] == made.observations[:2].tolist()
    assert [row["final_obs"] for row in rows] == [None, made.observations[2].tolist()]
    assert [row["action"] for row in rows] == made.actions.tolist()


def test_numbers_in_names_count_as_numbers(file):
    many = {f"obs_{i}": [float(i)] for i in (10, 2, 1, 0)}
    (found,) = read(table(file, ONE_ROW | {"t": [0]} | many))
    assert found.observations.tolist() == [[0, 1, 2, 10]]


def test_one_more_than_the_largest_action_is_their_number_unless_masks_or_the_user_say_more(file):
    table(file, TWO_EPISODES)
    assert open_reader(file).spec.num_actions == 3
    assert open_reader(file, settings=asking(actions=7, env="CartPole-v1", stack=2)).spec == DatasetSpec(
        (2,), 7, 2, "CartPole-v1", features=(Feature("obs_0"), Feature("obs_1"))
    )
    table(file, TWO_EPISODES, **{f"action_mask_{a}": [True] * 5 for a in range(5)})
    assert open_reader(file).spec.num_actions == 5


BROKEN = [
    (changed("reward", 1, None), 1, "reward is missing"),
    (changed("reward", 1, float("inf")), 1, "reward inf is not possible"),
    (changed("reward", 1, 1e300), 1, r"reward 1e\+300 is not possible"),
    (changed("action", 1, None), 1, "action is missing"),
    (changed("action", 1, 1.5), 1, "action 1.5 is not a whole number: actions are names, or numbers from 0"),
    (changed("action", 1, -2), 1, "action -2 is negative: actions are names, or numbers from 0"),
    (changed("action", 1, 3), 1, "action 3 is too large: there are 3"),
    (changed("obs_1", 1, float("nan")), 1, "obs_1 is missing"),
    (changed("t", 1, 0), 1, "step 0 comes twice"),
    (changed("t", 1, 2), 1, "step 1 is missing"),
    (changed("t", 0, 2), 1, "step 0 is missing"),
    (changed("t", 1, 0.5), 1, "t 0.5 is not a whole number"),
    (changed("terminated", 1, False), 0, "without end"),
    (changed("terminated", 0, True), 0, "step 0 of 2 is marked as the end"),
    (changed("terminated", 1, None), 1, "terminated is missing"),
    (changed("episode_id", 1, None), 1, "episode_id is missing"),
    ({"action_prob": [0.5, 0.0, 1, 1, 1]}, 1, "action_prob 0 is not the probability"),
    ({"action_prob": [0.5, 1.5, 1, 1, 1]}, 1, "action_prob 1.5 is not the probability"),
    ({"action_prob": [0.5, None, 1, 1, 1]}, 1, "action_prob is missing"),
    ({"action_logp": [-0.5, 0.5, 0, 0, 0]}, 1, "action_logp 0.5 is not the probability"),
    ({"player": ["x", "y", "z", "z", "z"]}, 0, "more than one player"),
    ({"action_mask_0": [True] * 5, "action_mask_1": [True, False, True, True, True], "action_mask_2": [True] * 5},
      1, r"action 1 is not one of the possible ones \(action_mask_1\)"),
    ({"action": [*"abcab"], "action_mask_a": [True] * 5, "action_mask_b": [True, False, True, True, True],
      "action_mask_c": [True] * 5}, 1, r"action 'b' is not one of the possible ones \(action_mask_b\)"),
]  # fmt: skip


@pytest.mark.parametrize("block", [1, 1 << 18])
@pytest.mark.parametrize(("changes", "row", "told"), BROKEN, ids=[told for *_, told in BROKEN])
def test_a_bad_row_sets_its_episode_aside_and_names_its_line_and_the_rest_goes_on(
    file, changes, row, told, block, monkeypatch
):
    monkeypatch.setattr(table_files, "PARQUET_BLOCK_ROWS", block)
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", block)
    problem, good = read(table(file, TWO_EPISODES, **changes), actions=3)
    assert isinstance(problem, RejectedEpisode)
    assert (problem.source, problem.line) == (file.name, row + (2 if file.suffix == ".csv" else 1))
    assert pytest.approx(good.rewards) == [0, 0.5, -1]
    assert re.search(told, problem.reason)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a,1,0.5,1,x,0,True,False", "action 'x' is not a number"),
        ("a,1,0.5,1,0,0,maybe,False", "terminated 'maybe' is neither true nor false"),
        ("a,1,0.5,1,0,0,True", "the line has 7 fields, where the header has 8"),
        ("a,1,0.5,1,0,0,True,False,9", "the line has 9 fields, where the header has 8"),
        ('"a,1,0.5,1,0,0,True,False', "the line cannot be read"),
        ('a,1,0.5,1,0,0,"True,False', "the line cannot be read"),
        ("a,1,\udcff,1,0,0,True,False", "the line is not UTF-8 text"),
        ("a", "the line has 1 fields"),
    ],
)
@pytest.mark.parametrize("block", [1, 1 << 18])
def test_a_line_that_cannot_be_read_spoils_its_episode_only(tmp_path, line, told, block, monkeypatch):
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", block)
    path = as_csv(tmp_path / "log.csv", TWO_EPISODES)
    lines = path.read_text().splitlines()
    lines[2:3] = ["", line]
    path.write_text("\r\n".join(lines), encoding="utf-8", errors="surrogateescape")
    problem, good = read(path)
    assert problem[:2] == ("log.csv", 4)
    assert told in problem.reason
    assert (good.line, good.rewards.tolist()) == (5, [0, 0.5, -1])


def test_text_tables_may_have_marks_quotes_blank_lines_and_words_for_numbers(tmp_path):
    (tmp_path / "log.csv").write_bytes(
        b'\xef\xbb\xbfepisode_id, action,reward,obs_0,terminated,"note"\r\n'
        b'"x, 1",0, 1e1,1,0,"said ""hi"""\r\n\r\n'
        b'"x, 1",1.0,-2,2,TRUE,\xc3\xa9'
    )
    (found,) = read(tmp_path / "log.csv")
    assert (found.rewards.tolist(), found.actions.tolist(), found.terminated.tolist()) == (
        [10, -2],
        [0, 1],
        [False, True],
    )
    assert found.line == 2


def test_an_id_that_comes_back_is_a_problem_of_its_second_run_only(file):
    ids = {"episode_id": ["a", "a", "b", "a", "c"], "t": [0, 1, 0, 0, 0], "terminated": [False, True, True, True, True]}
    first, second, problem, last = read(table(file, TWO_EPISODES, **ids, truncated=None))
    assert [len(first), len(second), len(last)] == [2, 1, 1]
    assert problem.line == (5 if file.suffix == ".csv" else 4)
    assert "episode_id 'a' comes back" in problem.reason


@pytest.mark.parametrize("t", [TWO_EPISODES["t"], None])
def test_two_files_may_use_the_same_ids(file, t):
    for number in range(20):
        table(file.with_stem(str(number)), TWO_EPISODES, t=t)
    assert [len(e) for e in read(file.parent)] == [2, 3] * 20
    for number in range(20):
        table(file.with_stem(str(number)), ONE_ROW, t=t and [0])
    assert [len(e) for e in read(file.parent, actions=2)] == [1] * 20


def test_a_fault_in_the_second_file_of_an_episode_is_told_there(file):
    head = {name: column[:4] for name, column in TWO_EPISODES.items()}
    tail = {name: column[4:] for name, column in TWO_EPISODES.items()}
    table(file.with_stem("9"), head)
    for changes, told in (({"reward": [float("nan")]}, "reward"), ({"t": [3]}, "step 2")):
        table(file.with_stem("10"), tail, **changes)
        good, problem = read(file.parent)
        assert good.source == f"9{file.suffix}"
        assert problem[:2] == (f"10{file.suffix}", 2 if file.suffix == ".csv" else 1)
        assert told in problem.reason


def test_steps_count_from_one_where_the_table_has_no_zero(file):
    assert [len(e) for e in read(table(file, TWO_EPISODES, t=[1, 2, 1, 2, 3]))] == [2, 3]


def test_without_t_rows_count_as_they_come(file):
    assert [e.actions.tolist() for e in read(table(file, TWO_EPISODES, t=None))] == [[0, 1], [2, 1, 0]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reward": None}, "no column of rewards .*--table.reward.*its columns are 'episode_id', 't'"),
        ({"action": None}, "no column of actions .*--table.action.*its columns are 'episode_id', 't'"),
        (dict.fromkeys(("episode_id", "terminated", "truncated")), "no column of episodes .*--table.one-step"),
        ({"obs_0": None, "obs_1": None}, "no columns of observations"),
        ({"action": None, "obs_0": None, "obs_1": None}, "no column of actions .*no columns of observations"),
        ({"terminated": None, "truncated": None}, "--table.terminated, .* with --table.truncated"),
        ({"action": [float("nan")] * 5}, "no row has a whole number as its action"),
    ],
)
def test_a_table_that_lacks_a_column_is_refused_in_one_line_that_names_those_it_has(file, changes, told):
    table(file, TWO_EPISODES, **changes)
    with pytest.raises(ValueError, match=told) as error:
        load_episodes(file)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


def test_all_files_of_a_folder_must_have_the_columns_of_the_first(file):
    table(file.with_stem("a"), TWO_EPISODES)
    table(file.with_stem("b"), TWO_EPISODES, reward=None)
    with pytest.raises(ValueError, match=f"b{file.suffix}: no column 'reward', which a{file.suffix} has"):
        load_episodes(file.parent)


def test_a_prefix_of_observed_columns_takes_none_that_means_something_else(tmp_path):
    columns = {"x_id": [1, 2], "x_age": [30, 40], "x_act": [0, 1], "x_paid": [1.0, 2.0], "x_prob": [0.5, 0.5]}
    roles = {"action": "x_act", "reward": "x_paid", "action_prob": "x_prob", "player": "x_id", "one_step": True}
    path = as_csv(tmp_path / "log.csv", columns)
    assert open_reader(path, settings=asking(observations=("x_",), **roles)).layout.observations == ("x_age",)
    named = open_reader(path, settings=asking(observations=("x_age", "x_id"), **roles))
    assert named.layout.observations == ("x_age", "x_id")


@pytest.mark.parametrize(("column", "role"), [("action", "action"), ("reward", "reward"), ("terminated", "end")])
def test_what_is_unknown_when_the_action_is_chosen_cannot_be_observed(column, role):
    reason = rf"column '{column}' is the {role}, which is unknown .*: leave it out of observations="
    with pytest.raises(ValueError, match=reason):
        Dataset.from_frame(pa.table(TWO_EPISODES), observations=["obs_0", column])


def test_the_user_can_say_which_column_is_what(file):
    names = dict(episode="who", step="when", action="what", reward="pay", terminated="dead", truncated="cut")
    usual = ("episode_id", "t", "action", "reward", "terminated", "truncated")
    columns = dict(zip(names.values(), (TWO_EPISODES[name] for name in usual), strict=True))
    columns |= {"seen_b": [1, 2, 3, 4, 5], "seen_a": [0] * 5, "colour": ["red", "blue", "red", "green", "red"]}
    columns |= {"p": [0.5] * 5, "can_0": [1] * 5, "can_1": [1] * 5, "can_2": [1] * 5, "user": [7] * 5}
    more = dict(observations=("colour", "seen_"), action_prob="p", action_mask="can_", player="user")
    first, second = read(table(file, columns), **names, **more)
    assert first.observations.tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 0, 2]]
    assert (first.player, second.player) == ("7", "7")
    assert second.action_probs.tolist() == [0.5] * 3
    assert second.action_masks.tolist() == [[True] * 3] * 3
    with pytest.raises(ValueError, match=r"no column 'when\?' \(--table.step\); its columns are 'who'"):
        read(file, **names | {"step": "when?"}, **more)
    with pytest.raises(ValueError, match=r"no column is or begins with 'look' \(--table.observations\)"):
        read(file, **names, **more | {"observations": ("look",)})


def test_every_row_is_an_episode_where_the_user_says_so(file):
    columns = dict(action=[0, 2], reward=[1.0, 0.0], obs_0=[0.25, 0.5])
    first, second = read(table(file, columns), one_step=True)
    assert (first.terminated.tolist(), second.actions.tolist(), second.observations.tolist()) == ([True], [2], [[0.5]])
    with pytest.raises(ValueError, match="one-step"):
        TableConfig(one_step=True, episode="episode_id")


BANDIT = {
    "timestamp": ["2019-11-24 00:00:00+00:00"] * 4,
    "item_id": [3, 0, 3, 1],
    "position": [1, 3, 2, 1],
    "click": [0, 1, 0, 0],
    "propensity_score": [0.25, 0.5, 0.0, 1.0],
    "user_feature_1": ["ff", "0a", "0a", "1e5"],
    "user_feature_0": [0.5, 1.5, 2.5, None],
    "item_feature_0": [1, 1, 1, 1],
}


def test_a_bandits_log_has_an_episode_a_row_and_its_texts_become_vectors(file):
    table(file, BANDIT)
    features = (
        Feature("user_feature_0", fill=1.5, has_missing=True),
        Feature("user_feature_1", ("0a", "1e5", "ff")),
        Feature("position", fill=1.5),
    )
    assert open_reader(file).spec == DatasetSpec((6,), 4, has_action_probs=True, features=features)
    first, second, third, last = read(file)
    assert first.observations.tolist() == [[0.5, 0, 0, 0, 1, 1]]
    assert second.observations.tolist() == [[1.5, 0, 1, 0, 0, 3]]
    for found, action, click, probability in ((first, 3, 0, 0.25), (second, 0, 1, 0.5)):
        assert found.actions.tolist() == [action]
        assert found.rewards.tolist() == [click]
        assert found.action_probs.tolist() == [probability]
        assert found.terminated.tolist() == [True]
    line = 4 if file.suffix == ".csv" else 3
    assert third == RejectedEpisode(
        file.name, line, "propensity_score 0 is not the probability of an action that was taken"
    )
    assert last.observations.tolist() == [[1.5, 1, 0, 1, 0, 1]]  # a missing number


def test_a_stray_text_among_numbers_is_a_fault_not_a_category(tmp_path):
    path = as_csv(tmp_path / "log.csv", BANDIT, user_feature_0=[1, 2, 3, "?"], propensity_score=[0.5] * 4)
    assert [type(item) for item in read(path)] == [Episode] * 3 + [RejectedEpisode]
    assert read(path)[-1].reason == "user_feature_0 '?' is not a number"


RLLIB = {
    "eps_id": [8, 8, 3],
    "t": [1, 0, 0],
    "obs": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
    "new_obs": [[7.0, 8.0], [1.0, 2.0], [9.0, 9.0]],
    "actions": [1, 0, 1],
    "rewards": [1.0, 2.0, 3.0],
    "terminateds": [True, False, False],
    "truncateds": [False, False, True],
    "action_logp": [np.log(0.5), 0.0, np.log(0.25)],
}


def test_rllibs_names_are_known_and_the_last_new_obs_is_the_final_observation(tmp_path):
    first, second = read(as_parquet(tmp_path / "log.parquet", RLLIB))
    assert first.observations.tolist() == [[3, 4], [1, 2], [7, 8]]
    assert (first.actions.tolist(), first.rewards.tolist()) == ([0, 1], [2, 1])
    assert first.action_probs.tolist() == [1, 0.5]
    assert second.observations.tolist() == [[5, 6], [9, 9]]
    assert second.truncated.tolist() == [True]


def test_one_number_may_be_all_that_is_observed(file):
    obs = dict(obs=[1.0, 2.0, 3.0, 4.0, 5.0], new_obs=[2.0, 7.0, 4.0, 5.0, None], obs_0=None, obs_1=None)
    first, second = read(table(file, TWO_EPISODES, **obs))
    assert first.observations.tolist() == [[1], [2], [7]]
    assert second.observations.tolist() == [[3], [4], [5]]  # nobody kept the last one
    problem, _ = read(table(file, TWO_EPISODES, **obs | {"new_obs": [2.0, float("inf"), 4.0, 5.0, 6.0]}))
    assert problem.reason == "new_obs inf is not possible"


@pytest.mark.parametrize(
    ("kind", "frame", "stack"),
    [
        (pa.list_(pa.list_(pa.uint8())), (2, 3), 4),
        (pa.large_list(pa.list_(pa.uint8(), 3)), (2, 3), 4),
        (pa.list_(pa.list_(pa.int64())), (6,), 1),
        (pa.list_(pa.list_(pa.float64(), 3), 2), (6,), 1),
    ],
)
def test_nested_lists_of_bytes_are_images_and_all_others_vectors(tmp_path, kind, frame, stack):
    pictures = np.arange(18).reshape(3, 2, 3)
    path = as_parquet(tmp_path / "log.parquet", RLLIB, obs=pa.array(pictures.tolist(), kind), new_obs=None)
    reader = open_reader(path)
    assert (reader.spec.obs_shape, reader.spec.frame_stack) == (frame, stack)
    first, second = read(path)
    assert first.observations.tolist() == pictures[[1, 0]].reshape(2, *frame).tolist()
    assert second.observations.tolist() == pictures[[2]].reshape(1, *frame).tolist()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([[1, 2, 3]], r"obs is not of shape \(2, 3\)"),
        ([[1, 2, 3], [4, 5]], r"obs is not of shape \(2, 3\)"),
        ([[1, 2, 3], None], r"obs is not of shape \(2, 3\)"),
        ([[1, 2, 3], [4, 5, None]], "obs holds a number that is missing"),
        ([], r"obs is not of shape \(2, 3\)"),
        (None, "obs is missing"),
    ],
)
@pytest.mark.parametrize("kind", [pa.uint8(), pa.float32()])
def test_lists_that_do_not_fit_spoil_their_episode_only(tmp_path, value, told, kind):
    whole = [[1, 2, 3], [4, 5, 6]]
    pictures = pa.array([whole, whole, value], pa.list_(pa.list_(kind)))
    good, problem = read(as_parquet(tmp_path / "log.parquet", RLLIB, obs=pictures, new_obs=None))
    assert good.observations.reshape(2, 2, 3).tolist() == [whole, whole]
    assert problem[:2] == ("log.parquet", 3)
    assert re.search(told, problem.reason)


def test_numbers_in_lists_must_be_finite_in_the_final_observation_too(tmp_path):
    for name in ("obs", "new_obs"):
        for bad in (float("nan"), float("inf"), 1e300):
            lists = [*RLLIB[name][:2], [1.0, bad]]
            good, problem = read(as_parquet(tmp_path / "log.parquet", RLLIB, **{name: lists}))
            assert len(good) == 2
            assert problem == RejectedEpisode("log.parquet", 3, f"{name} holds a number that is not finite")


def test_a_named_column_of_lists_is_the_observation(tmp_path):
    named = as_parquet(tmp_path / "log.parquet", RLLIB, state=RLLIB["obs"], obs=None, new_obs=None)
    first, second = read(named, observations=("state",))
    assert first.observations.tolist() == [[3, 4], [1, 2]]
    assert second.observations.tolist() == [[5, 6]]
    with pytest.raises(ValueError, match="column 'state' holds lists, which must be the only observed column"):
        load_episodes(named, settings=asking(observations=("state", "t")))


def test_errors_about_options_have_a_note_for_python(tmp_path):
    path = as_csv(tmp_path / "log.csv", TWO_EPISODES, action=None)
    with pytest.raises(ValueError, match="--table") as error:
        load_episodes(path)
    assert "TableConfig(action=NAME)" in error.value.__notes__[0]
    with pytest.raises(ValueError, match=r"format = FormatSettings.*must be one of store, agc"):
        load_episodes(path, asking(action="reward"))


def test_masks_may_be_lists(tmp_path):
    masks = [[True, True, False], [True, False, False], [True, False, True]]
    good, problem = read(as_parquet(tmp_path / "log.parquet", RLLIB, action_mask=masks))
    assert good.action_masks.tolist() == [masks[1], masks[0]]
    assert problem.reason == "actions 1 is not one of the possible ones (action_mask)"


def test_columns_of_other_types_mean_the_same(tmp_path):
    plain = read(as_parquet(tmp_path / "plain.parquet", TWO_EPISODES))
    other = read(
        as_parquet(
            tmp_path / "other.parquet",
            TWO_EPISODES,
            episode_id=pa.array(TWO_EPISODES["episode_id"]).dictionary_encode(),
            action=[str(action) for action in TWO_EPISODES["action"]],
            terminated=[int(flag) for flag in TWO_EPISODES["terminated"]],
            truncated=[str(flag) for flag in TWO_EPISODES["truncated"]],
            reward=pa.array(TWO_EPISODES["reward"]).cast(pa.decimal128(5, 2)),
        )
    )
    for found, wanted in zip(other, plain, strict=True):
        assert_same(found, replace(wanted, source="other.parquet"))


def test_lists_where_numbers_must_be_are_refused_in_one_line(tmp_path):
    path = as_parquet(tmp_path / "log.parquet", RLLIB, actions=[[1], [0], [1]])
    with pytest.raises(ValueError, match=r"log.parquet, column 'actions': cannot be read"):
        load_episodes(path)


def test_a_file_that_is_not_parquet_or_is_cut_off_is_refused_in_one_line(tmp_path):
    path = as_parquet(tmp_path / "log.parquet", RLLIB)
    whole = path.read_bytes()
    for content in (b"", b"episode_id,t\n", whole[:-20], whole[20:-30]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"log.parquet: cannot be read") as error:
            load_episodes(path)
        assert "\n" not in str(error.value)


def test_damage_inside_a_file_is_told_and_the_next_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_writer, "GROUP_BYTES", 1)
    monkeypatch.setattr(table_files, "PARQUET_BLOCK_ROWS", 50)
    rng = np.random.default_rng(0)
    episodes = [episode(rng, 50, final=False) for _ in range(4)]
    for name in ("1.parquet", "2.parquet"):
        write_parquet(episodes, shared(episodes), tmp_path / name)
    content = bytearray((tmp_path / "1.parquet").read_bytes())
    rewards = pq.read_metadata(tmp_path / "1.parquet").row_group(2).column(4)
    begin = rewards.dictionary_page_offset or rewards.data_page_offset
    content[begin : begin + rewards.total_compressed_size] = b"x" * rewards.total_compressed_size
    (tmp_path / "1.parquet").write_bytes(content)
    first, damage, second, *others = read(tmp_path)
    assert damage[:2] == ("1.parquet", 101)
    assert "damaged from here on" in damage.reason
    assert second == RejectedEpisode("1.parquet", 51, "its file is damaged further on")  # it may have had more rows
    for one, wanted in zip([first, *others], [episodes[0], *episodes], strict=True):  # both files count from 0
        assert_same(one, wanted)


def test_rows_that_lack_their_damaged_rest_are_no_episode_even_if_the_next_file_goes_on(tmp_path, monkeypatch):
    columns = {name: column * 100 for name, column in ONE_ROW.items()} | {"t": None, "terminated": [False] * 100}
    as_parquet(tmp_path / "2.parquet", columns, terminated=[False] * 99 + [True])
    columns = pa.table({name: column for name, column in columns.items() if column is not None})
    pq.write_table(columns, tmp_path / "1.parquet", row_group_size=50)
    content = bytearray((tmp_path / "1.parquet").read_bytes())
    rewards = pq.read_metadata(tmp_path / "1.parquet").row_group(1).column(4)
    content[rewards.dictionary_page_offset : rewards.data_page_offset] = b"x" * (
        rewards.data_page_offset - rewards.dictionary_page_offset
    )
    (tmp_path / "1.parquet").write_bytes(content)
    monkeypatch.setattr(table_files, "PARQUET_BLOCK_ROWS", 50)
    damage, begun, rest = read(tmp_path, actions=2)
    assert (damage.source, damage.line) == ("1.parquet", 51)
    assert begun == RejectedEpisode("1.parquet", 1, "its file is damaged further on")
    assert (rest.source, "comes back" in rest.reason) == ("2.parquet", True)


def test_files_are_recognised_by_their_names_and_hidden_ones_are_left_alone(tmp_path):
    for name in ("._x.csv", "_SUCCESS.parquet", "x.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "y.csv").mkdir()
    assert tables.table_formats(tmp_path) == tables.table_formats(tmp_path / "nowhere.csv") == []
    as_csv(tmp_path / "x.CSV", TWO_EPISODES)
    assert tables.table_formats(tmp_path) == ["csv"]
    assert [len(e) for e in read(tmp_path)] == [2, 3]


def test_summaries_tell_the_same_as_episodes_and_a_reader_can_be_sent(file):
    reader = pickle.loads(pickle.dumps(open_reader(table(file, TWO_EPISODES, **changed("reward", 0, None)))))
    problem, outline = summaries_of(reader, reader.parts()[0])
    assert problem == read(file)[0]
    assert (outline.actions.tolist(), outline.terminated[-1], outline.line) == ([2, 1, 0], False, read(file)[1].line)


def test_a_table_without_rows_or_names_is_refused(file):
    table(file, {name: [] for name in TWO_EPISODES})
    with pytest.raises(ValueError, match="holds no rows"):
        load_episodes(file)
    assert read(file, actions=3) == []
    as_csv(file.with_suffix(".csv"), {"": []})
    with pytest.raises(ValueError, match="no column of actions"):
        load_episodes(file.with_suffix(".csv"))
    file.with_suffix(".csv").write_text("")
    with pytest.raises(ValueError, match="must name the columns, and is empty"):
        load_episodes(file.with_suffix(".csv"))
    file.with_suffix(".csv").write_text("action,action\n")
    with pytest.raises(ValueError, match="more than one column 'action'"):
        load_episodes(file.with_suffix(".csv"))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_the_header_tells_what_separates_the_columns(tmp_path, separator):
    rows = [
        ["episode_id", "action", "reward", "terminated", "truncated", "obs_0"],
        *[[e, 1, 0.5, 1, 0, e] for e in range(3)],
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(separator.join(map(str, row)) for row in rows) + "\n")
    found = load_episodes(path)
    assert [float(e.observations[0, 0]) for e in found] == [0, 1, 2]


def test_a_number_with_an_underscore_is_none(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("episode_id,action,reward,terminated,truncated,obs_0\n0,1,1_0,1,0,3\n1,1,2,1,0,3\n")
    found = load_episodes(path)
    assert [e.score for e in found] == [2.0]
    assert "'1_0' is not a number" in found.rejected[0].reason


def test_a_folder_of_two_kinds_of_tables_must_be_named(tmp_path):
    (tmp_path / "a.csv").write_text("episode_id,action,reward,terminated,truncated,obs_0\n0,1,1,1,0,3\n")
    write_parquet([one_step()], infer_spec([one_step()]), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="several formats"):
        load_episodes(tmp_path)
    assert len(load_episodes(tmp_path, "csv")) == 1


def one_step():
    return Episode(np.zeros((1, 2), np.float32), np.array([1]), np.array([1.0]), np.array([True]), np.array([False]))


def test_a_missing_id_of_a_column_of_floats_is_missing(tmp_path):
    table = pa.table(
        {
            "episode_id": [0.0, float("nan")],
            "action": [1, 1],
            "reward": [1.0, 1.0],
            "terminated": [True, True],
            "truncated": [False, False],
            "obs_0": [0.0, 0.0],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    [problem] = load_episodes(tmp_path / "t.parquet").rejected
    assert problem.reason == "episode_id is missing"


OFFERS = {
    "age": [20, 30, 40, 50],
    "segment": ["old", "new", "old", "vip"],
    "offer": [1, 0, 1, 2],
    "paid": [0.0, 1, 1, 0],
}
ASKED = dict(action="offer", reward="paid", observations=("age", "segment"), one_step=True)


def test_columns_and_categories_are_stored_with_the_data_and_later_files_are_encoded_with_them(file, tmp_path):
    first = load_episodes(table(file, OFFERS), settings=asking(**ASKED))
    features = (Feature("age", fill=35.0), Feature("segment", ("new", "old", "vip")))
    assert first.spec.features == features
    with StoreWriter.create(tmp_path / "store", first.spec) as writer:
        writer.extend(first)
    assert Store(tmp_path / "store").spec == first.spec
    assert Store(tmp_path / "store").feature_names == ["age", "segment = new", "segment = old", "segment = vip"]
    write_parquet(list(first), first.spec, tmp_path / "ours.parquet")
    assert load_episodes(tmp_path / "ours.parquet").spec.features == features
    later = {"age": [25, 26], "segment": ["vip", "unheard"], "offer": [1, 2], "paid": [0.5, 0.5]}
    second = file.with_stem("second")
    table(second, later)
    asked = ASKED | {"observations": (), "features_of": str(tmp_path / "store")}
    found = load_episodes(second, settings=asking(**asked))
    assert found.spec.features == features
    np.testing.assert_array_equal(found[0].observations, [[25, 0, 0, 1]])
    [item] = found.rejected
    assert "segment 'unheard' is not one of the 3 texts of its column" in item.reason
    accepted = load_episodes(second, settings=asking(**asked, accept_unknown=True))
    assert not accepted.rejected
    np.testing.assert_array_equal(accepted[1].observations, [[26, 0, 0, 0]])


def test_columns_that_no_option_names_are_those_of_the_earlier_data_where_the_table_has_them(file, tmp_path, capsys):
    named = ASKED | {"player": "customer"}
    first = load_episodes(table(file, OFFERS | {"customer": ["a", "b", "c", "d"]}), settings=asking(**named))
    assert first.table_roles == asking(**named).table.roles()
    store = import_dataset(file, tmp_path / "store", settings=asking(**named), progress=False)[0]
    assert store[:2].table_roles == store.table_roles == first.table_roles
    like = {"features_of": str(tmp_path / "store")}
    capsys.readouterr()
    assert len(read(file, **like)) == 4
    assert (
        "--table.action offer --table.reward paid --table.player customer --table.one-step" in capsys.readouterr().err
    )
    found = load_episodes(file, settings=asking(**like))
    assert found.players == first.players
    assert found.table_roles == {name: role for name, role in first.table_roles.items() if name != "observations"}
    rows = pa.table(OFFERS | {"gain": [1.0, 2, 3, 4], "visit": ["u", "u", "v", "v"], "truncated": [0, 1, 0, 1]})
    later = Dataset.from_frame(rows.drop(["paid"]), reward="gain", episode="visit", like=first)
    assert later.scores.tolist() == [3.0, 7.0]  # a given role wins, and the rows of an episode are no episodes
    assert later.arrays["actions"].tolist() == OFFERS["offer"]


def test_columns_of_earlier_data_whose_observations_are_lists_are_known_as_well(tmp_path):
    steps = pa.table({"state": [[1.0, 2], [3, 4]], "move": [0, 1], "gain": [0.5, 1]})
    pq.write_table(steps, tmp_path / "log.parquet")
    asked = asking(observations=("state",), action="move", reward="gain", one_step=True)
    first, _ = import_dataset(tmp_path / "log.parquet", tmp_path / "store", settings=asked, progress=False)
    later = load_episodes(tmp_path / "log.parquet", settings=asking(features_of=str(tmp_path / "store")))
    assert later.step_observations().tolist() == first.step_observations().tolist() == [[1, 2], [3, 4]]


def test_errors_about_columns_that_no_option_names_say_which_earlier_data_has_them(file, tmp_path, capsys):
    first = load_episodes(table(file, OFFERS | {"customer": list("abcd")}), settings=asking(**ASKED, player="customer"))
    StoreWriter.create(tmp_path / "store", first.spec, first.table_roles).close()
    store, other = tmp_path / "store", file.with_stem("other")
    for change, more, message in (
        (("paid", "gain"), {}, f"no column of rewards (usually reward or rewards; 'paid' in {store})"),
        (("age", "years"), {}, f"no column is or begins with 'age' (observed in {store})"),
        (("", ""), {"action": "age"}, f"column 'age' is the action (--table.action), and {store} observes it"),
        (("", ""), {"observations": ("offer",)}, f"'offer' is the action as in {store}, which is unknown"),
        (("", ""), {"reward": "gain"}, "no column 'gain' (--table.reward); its columns"),
    ):
        table(other, {name.replace(*change) if change[0] else name: column for name, column in OFFERS.items()})
        with pytest.raises(ValueError, match=re.escape(message)):
            load_episodes(other, settings=asking(features_of=str(store), **more))
    capsys.readouterr()
    load_episodes(table(other, OFFERS), settings=asking(features_of=str(store)))
    assert f"and lacks 'customer' (--table.player), which {store} has" in capsys.readouterr().err


def test_later_rows_without_the_masks_of_the_earlier_data_are_read_with_a_message(tmp_path, capsys):
    first, masks = tmp_path / "first.csv", {f"may_{action}": [1, 1, 1, 1] for action in range(3)}
    table(first, OFFERS | masks)
    data = load_episodes(first, settings=asking(**ASKED, action_mask="may_"))
    with StoreWriter.create(tmp_path / "store", data.spec) as writer:
        writer.extend(data)
    asked = ASKED | {"observations": (), "features_of": str(tmp_path / "store")}
    said = "no column of action masks (--table.action-mask), which the earlier data has"
    capsys.readouterr()
    for more, count in ({"action_mask": "may_"}, 0), ({}, 1):
        found = load_episodes(first, settings=asking(**asked, **more))
        assert (found.spec.has_action_masks, capsys.readouterr().err.count(said)) == (not count, count)
    rows = pa.table({name: OFFERS[name] for name in ("age", "segment", "offer", "paid")})
    Dataset.from_frame(rows, action="offer", reward="paid", like=data.spec)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("ends", [("0", "1"), ("call", "mail")])
def test_probabilities_of_all_actions_may_go_with_actions_that_have_names(file, ends):
    probs = {f"behavior_prob_{ends[0]}": [0.25] * 4, f"behavior_prob_{ends[1]}": [0.75] * 4}
    table(file, OFFERS | probs, offer=["mail", "call", "mail", "mail"])
    found = load_episodes(file, settings=asking(**ASKED))
    assert found.spec.action_names == ("call", "mail")
    assert found.arrays["actions"].tolist() == [1, 0, 1, 1]
    assert found.arrays["behavior_probs"][0].tolist() == [0.25, 0.75]
    assert len(read(file, **ASKED)) == 4


def test_actions_that_are_texts_are_not_those_of_an_environment(file):
    """They are numbered in their order, and a store that names the environment would pass as recorded there."""
    table(file, OFFERS, offer=["mail", "call", "mail", "mail"])
    with pytest.raises(ValueError, match=r"actions are called call, mail, and those of --env CartPole-v1 are numbers"):
        load_episodes(file, settings=asking(env="CartPole-v1", **ASKED))


def test_missing_values_and_dates_have_a_rule_and_drop_no_episode(file, capsys):
    columns = OFFERS | {"age": [20, None, 40, 60], "segment": ["old", None, "new", "old"]}
    columns |= {"since": ["1970-01-03", "1970-01-02T12:00", None, "1970-01-11"]}
    asked = ASKED | {"observations": ("age", "segment", "since")}
    table(file, columns)
    found = load_episodes(file, settings=asking(**asked))
    assert found.spec.features == (
        Feature("age", fill=40.0, has_missing=True),
        Feature("segment", ("", "new", "old")),
        Feature("since", fill=2.0, has_missing=True, is_date=True),
    )
    assert found.feature_names == [
        "age", "age is missing", "segment = (missing)", "segment = new", "segment = old", "since", "since is missing",
    ]  # fmt: skip
    assert found.arrays["observations"].tolist() == [
        [20, 0, 0, 0, 1, 2, 0],
        [40, 1, 1, 0, 0, 1.5, 0],
        [40, 0, 0, 1, 0, 2, 1],
        [60, 0, 0, 0, 1, 10, 0],
    ]
    said = capsys.readouterr().err
    assert "'age' is missing in 1 rows: the median 40 takes their place, and 'age is missing' is a further" in said
    assert "'segment' is missing in 1 rows, which have a category of their own" in said
    assert "dates in 'since' become days since 1970-01-01" in said
    assert len(read(file, **asked)) == 4


def test_a_missing_action_or_reward_rejects_its_row(file):
    table(file, OFFERS, offer=["mail", None, "call", "mail"], paid=[0.0, 1.0, None, 0.0])
    found = load_episodes(file, settings=asking(**ASKED))
    assert [item.reason for item in found.rejected] == ["offer is missing", "paid is missing"]
    first = 3 if file.suffix == ".csv" else 2
    assert [item.line for item in found.rejected] == [first, first + 1]


def test_columns_of_dates_and_times_are_days_and_other_texts_among_them_faults(tmp_path):
    days = [datetime.date(1970, 1, 2), None, datetime.date(1970, 1, 4), datetime.date(1970, 1, 4)]
    frame = pa.table(
        OFFERS | {"since": pa.array(days), "at": pa.array([0, 86_400, 43_200, 0], pa.timestamp("s", "CET"))}
    )
    settings = dict(action="offer", reward="paid", observations=["since", "at"])
    found = Dataset.from_frame(frame, **settings)
    assert found.arrays["observations"].tolist() == [[1, 0, 0], [3, 1, 1], [3, 0, 0.5], [3, 0, 0]]
    path = as_csv(tmp_path / "log.csv", OFFERS, segment=["2026-05-31", "2026-06-01", "2026-06-01", "31/5/2026"])
    [item] = load_episodes(path, settings=asking(**ASKED)).rejected
    assert (item.line, item.reason) == (5, "segment '31/5/2026' is not a date such as 2026-05-31")


def test_blanks_of_later_rows_get_the_training_median_even_if_the_training_data_has_none():
    first = Dataset.from_frame(pa.table(OFFERS), action="offer", reward="paid", observations=["age", "segment"])
    later = pa.table(OFFERS | {"age": [None, 30, 40, 50], "segment": [None, "new", "old", "vip"]})
    found = Dataset.from_frame(later, action="offer", reward="paid", observations=["age", "segment"], like=first.spec)
    assert not found.rejected
    assert found.arrays["observations"][0].tolist() == [35, 0, 0, 0]
    rows = encode_rows(later, first.spec.features)
    assert (rows.blanks, rows.unknown) == ({"age": 1}, {"segment": {"": 1}})
    np.testing.assert_array_equal(rows.observations, found.arrays["observations"])


def test_few_actions_with_large_numbers_or_names_are_numbered_and_the_spec_has_their_names(file, capsys):
    names = {"offer": [999999, 52, 999999, 1001]}
    found = load_episodes(table(file, OFFERS, **names), settings=asking(**ASKED))
    assert found.spec.num_actions == 3
    assert found.spec.action_names == ("52", "1001", "999999")
    assert found.arrays["actions"].tolist() == [2, 0, 2, 1]
    assert capsys.readouterr().err.count("its actions (52, 1001, 999999) are numbered from 0 to 2") == 1
    found = load_episodes(table(file, OFFERS, offer=["mail", "call", "mail", "none"]), settings=asking(**ASKED))
    assert found.spec.action_names == ("call", "mail", "none")
    assert found.arrays["actions"].tolist() == [1, 0, 1, 2]
    few = load_episodes(table(file, OFFERS, offer=[0, 1, 79, 3]), settings=asking(**ASKED))
    assert (few.spec.num_actions, few.spec.action_names) == (80, ())


def test_later_rows_are_encoded_with_the_columns_and_categories_and_unknown_texts_are_reported():
    features = (Feature("age"), Feature("segment", ("new", "old")))
    rows = pa.table({"segment": ["old", "x", None], "other": [1, 2, 3], "age": [1, 2, 3]})
    found = encode_rows(rows, features)
    np.testing.assert_array_equal(found.observations, [[1, 0, 1], [2, 0, 0], [3, 0, 0]])
    assert found.unknown == {"segment": {"x": 1, "": 1}}
    with pytest.raises(ValueError, match="no column 'age'"):
        encode_rows(rows.drop_columns("age"), features)
    with pytest.raises(ValueError, match="row 1: age is missing"):
        encode_rows(rows.set_column(2, "age", pa.array([1.0, None, 2.0])), features)


@pytest.mark.parametrize("block", [3, 10_000])
def test_shuffled_rows_are_sorted_and_that_is_said_once(file, block, monkeypatch, capsys):
    monkeypatch.setattr(table_files, "PARQUET_BLOCK_ROWS", block)
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", 20 * block)
    rng = np.random.default_rng(0)
    made = [episode(rng, steps, final=False) for steps in (4, 1, 6, 3)]
    columns = flat_columns(made, rng)
    order = rng.permutation(len(columns["t"])).tolist()
    table(file, {name: [column[k] for k in order] for name, column in columns.items()})
    found = load_episodes(file, settings=asking(actions=4))
    assert capsys.readouterr().err.count("they are sorted by episode_id and t") == 1
    assert not found.rejected
    by_score = {round(e.score, 4): e for e in made}
    for one in found:
        np.testing.assert_allclose(one.observations, by_score[round(one.score, 4)].observations, rtol=1e-6)
    reader = open_reader(file, settings=asking(actions=4))
    assert [len(item) for item in reader.read(reader.parts()[0])] == [len(e) for e in found]


def test_shuffled_rows_without_a_step_column_are_refused_once(file):
    ids = [str(k) for _ in range(3) for k in range(30)]
    columns = {"episode_id": ids, "obs_0": [0.0] * 90, "action": [0] * 90, "reward": [0] * 90}
    table(file, columns | {"terminated": [k >= 60 for k in range(90)]})
    with pytest.raises(ValueError, match=r"do not stand together .60 times.*sort it by episode_id"):
        load_episodes(file)


def test_folders_of_hive_are_columns(tmp_path):
    for name in ("segment=new", "segment=old%20one"):
        (tmp_path / name).mkdir()
        columns = {"age": [1, 2], "offer": [0, 1], "paid": [0.0, 1.0]}
        as_parquet(tmp_path / name / "part-0.parquet", columns)
    found = load_episodes(tmp_path, settings=asking(**ASKED))
    assert found.spec.features == (Feature("age", fill=1.5), Feature("segment", ("new", "old one")))
    assert [e.observations.tolist()[0] for e in found] == [[1, 1, 0], [2, 1, 0], [1, 0, 1], [2, 0, 1]]
    assert found[2].source == "segment=old%20one/part-0.parquet"


def test_tables_in_other_containers_are_the_same(tmp_path):
    expected = load_episodes(as_csv(tmp_path / "a.csv", TWO_EPISODES))
    data = pa.table(TWO_EPISODES)
    text = (tmp_path / "a.csv").read_text()
    (tmp_path / "a.tsv").write_text(text.replace(",", "\t"))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    lines = "".join(json.dumps(row) + "\n" for row in data.to_pylist())
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    feather.write_feather(data, tmp_path / "a.feather")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data)
    for name in ("a.tsv", "a.csv.gz", "a.jsonl", "a.ndjson.gz", "a.feather", "a.arrow"):
        found = load_episodes(tmp_path / name)
        assert found.spec == expected.spec, name
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.observations, other.observations)
            np.testing.assert_array_equal(one.rewards, other.rewards)
            np.testing.assert_array_equal(one.actions, other.actions)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{broken", "not a JSON object"),
        ("[1]", "it is list"),
        ('{"episode_id": "a"}', "missing"),
        ("9" * 5000, "it is int|JSON"),
    ],
)
def test_a_bad_json_line_spoils_its_episode_only(tmp_path, line, told):
    lines = [json.dumps(row) for row in pa.table(TWO_EPISODES).to_pylist()]
    lines[1] = line
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = load_episodes(tmp_path / "a.jsonl")
    assert [len(e) for e in found] == [3]
    assert re.search(told, found.rejected[0].reason)
    assert found.rejected[0].line == 2


def test_a_truncated_gzip_file_gives_what_it_still_holds_or_is_refused(tmp_path):
    text = (as_csv(tmp_path / "a.csv", TWO_EPISODES)).read_bytes()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text)[:-12])
    with contextlib.suppress(ValueError):
        assert load_episodes(tmp_path / "a.csv.gz").rejected


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 5, 2)])
def test_tensors_of_arrow_and_of_ray_data_are_nested_lists(tmp_path, shape):
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    seen = rng.integers(0, 256, (5, size)).astype(np.uint8)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(seen.reshape(-1)), size)
    fixed = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), shape), flat)
    columns = {name: column for name, column in TWO_EPISODES.items() if not name.startswith("obs_")}
    ray = {
        b"ARROW:extension:name": b"ray.data.arrow_tensor_v2",
        b"ARROW:extension:metadata": json.dumps(shape).encode(),
    }
    lists = flat.cast(pa.large_list(pa.uint8()))
    tables_ = {
        "arrow": pa.table(columns | {"obs": fixed}),
        "ray": pa.table([*pa.table(columns).columns, lists], schema=pa.schema(
            [*pa.table(columns).schema, pa.field("obs", lists.type, metadata=ray)])),
    }  # fmt: skip
    for name, written in tables_.items():
        pq.write_table(written, tmp_path / f"{name}.parquet")
        feather.write_feather(written, tmp_path / f"{name}.feather")
        for suffix in ("parquet", "feather"):
            found = load_episodes(tmp_path / f"{name}.{suffix}")
            assert found.spec.obs_shape == shape
            np.testing.assert_array_equal(found.arrays["observations"], seen.reshape(5, *shape))


ONE_STEP_LOG = {"x": [0.1, 0.2, 0.3], "action": [0, 1, 1], "reward": [1, 0, 1]}
ALL_PROBS = np.array([[0.5, 0.5], [0.25, 0.75], [0.1, 0.9]], np.float32)


@pytest.mark.parametrize("kind", ["prefix", "lists", "named"])
def test_logged_probabilities_of_all_actions_are_read(kind, tmp_path):
    columns = {f"behavior_prob_{a}": ALL_PROBS[:, a] for a in range(2)}
    columns = {"prefix": columns, "named": {f"p_{a}": ALL_PROBS[:, a] for a in range(2)}}.get(
        kind, {"behavior_probs": [row.tolist() for row in ALL_PROBS]}
    )
    pq.write_table(pa.table(ONE_STEP_LOG | columns), tmp_path / "log.parquet")
    named = {"behavior_probs": "p_"} if kind == "named" else {}
    settings = FormatSettings(table=TableConfig(observations=("x",), one_step=True, **named))
    data = load_episodes(tmp_path / "log.parquet", settings=settings)
    assert data.spec.has_behavior_probs
    np.testing.assert_array_equal(data.arrays["behavior_probs"], ALL_PROBS)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0.5, 0.6), "is the sum of the probabilities of all actions, which must be 1"),
        ((1.0, 0.0), "behavior_prob_0 0 is the probability of the action that was taken"),
    ],
)
def test_impossible_probabilities_of_all_actions_are_rejected_with_their_line(row, message, tmp_path):
    probs = ALL_PROBS.copy()
    probs[1] = row
    lines = [f"{x},{a},{r},{p[0]},{p[1]}" for x, a, r, p in zip(*ONE_STEP_LOG.values(), probs, strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["x,action,reward,behavior_prob_0,behavior_prob_1", *lines]) + "\n")
    data = load_episodes(
        tmp_path / "log.csv", settings=FormatSettings(table=TableConfig(observations=("x",), one_step=True))
    )
    [rejected] = data.rejected
    assert rejected.line == 3
    assert message in rejected.reason


def test_actions_that_are_too_large_are_refused_with_the_limit(file):
    table(file, TWO_EPISODES | {"action": [2**60] * 5})
    with pytest.raises(ValueError, match=r"actions are names, or numbers from 0 that are below 2\^53"):
        load_episodes(file)


def test_a_list_of_probabilities_with_a_missing_one_is_rejected_for_that(tmp_path):
    probs = [[0.5, 0.5], [0.5, float("nan")], [0.1, 0.9]]
    pq.write_table(pa.table(ONE_STEP_LOG | {"behavior_probs": probs}), tmp_path / "log.parquet")
    data = load_episodes(tmp_path / "log.parquet", settings=asking(observations=("x",), one_step=True))
    assert data.rejected == [RejectedEpisode("log.parquet", 2, "behavior_probs holds a number that is missing")]


@pytest.mark.parametrize("name", ["propensity", "pscore", "propensity_score", "action_probability"])
def test_usual_names_of_propensities_are_recognised(name, tmp_path):
    (tmp_path / "log.csv").write_text(f"x,action,reward,{name}\n1,0,1,0.5\n2,1,0,0.25\n")
    data = load_episodes(
        tmp_path / "log.csv", settings=FormatSettings(table=TableConfig(observations=("x",), one_step=True))
    )
    assert data.arrays["action_probs"].tolist() == [0.5, 0.25]


def test_probabilities_of_all_actions_survive_export_and_import(tmp_path):
    data = Dataset.from_arrays(np.zeros((3, 1)), [0, 1, 1], [1, 0, 1], [0, 1, 1], behavior_probs=ALL_PROBS)
    write_parquet(data, data.spec, tmp_path / "episodes.parquet")
    again = load_episodes(tmp_path / "episodes.parquet")
    assert again.spec == data.spec
    np.testing.assert_array_equal(again.arrays["behavior_probs"], ALL_PROBS)


@pytest.mark.parametrize("name", ["{:08d}", "12345678901234{:05d}"])
def test_a_table_in_memory_keeps_names_that_look_like_numbers(tmp_path, name):
    rows = [f"{name.format(e)},{t},0,1,{int(t == 1)},{e},{name.format(e // 2)}" for e in range(300) for t in range(2)]
    (tmp_path / "log.csv").write_text("\n".join(["episode_id,t,action,reward,terminated,obs_0,player", *rows]) + "\n")
    found = load_episodes(tmp_path / "log.csv")
    assert (len(found), found.rejected) == (300, [])
    assert found.players == [name.format(e // 2) for e in range(300)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("missing", [False, True])
def test_episode_ids_may_be_integers_of_64_bits(tmp_path, kind, missing, monkeypatch):
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", 1000)
    names = [2**64 - 1 - e if e % 3 else e for e in range(200)]  # some blocks have small ones only
    rows = [{"episode_id": name, "t": t, "action": t, "reward": 1.5, "obs_0": 0.5, "terminated": t == 1}
            for name in names for t in range(2)]  # fmt: skip
    if missing:
        rows[0]["episode_id"] = None
    path = tmp_path / f"log.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        pq.write_table(pa.table(columns | {"episode_id": pa.array(columns["episode_id"], pa.uint64())}), path)
    found = load_episodes(path)
    assert len(found) == 200 - missing
    reasons = ["episode_id is missing", "step 0 is missing before this, as t counts steps"] if missing else []
    assert [item.reason for item in found.rejected] == reasons


def test_numbers_among_the_texts_of_json_lines_leave_the_others_as_they_are(tmp_path):
    places = ["new", "5", 7, "old", None, True]
    rows = [{"action": 0, "reward": "1.5" if e else 2, "place": place} for e, place in enumerate(places)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_episodes(tmp_path / "log.jsonl", settings=asking(observations=("place",), one_step=True))
    assert found.rejected == []
    assert found.spec.features[0].categories == ("", "5", "7", "new", "old", "true")
    assert found.arrays["rewards"].tolist() == [2, 1.5, 1.5, 1.5, 1.5, 1.5]


def test_a_block_of_json_lines_may_have_no_final_observation(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", 2000)
    rows = [{"episode_id": e, "action": e % 2, "reward": 1, "terminated": True, "obs": [e, 1.0]} for e in range(200)]
    rows = [row | {"final_obs": [7.0, 8.0] if e > 150 else None} for e, row in enumerate(rows)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_episodes(tmp_path / "log.jsonl")
    assert [e.has_final for e in found] == [e > 150 for e in range(200)]


def test_more_different_dates_than_a_column_has_categories_cost_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", 2000)
    monkeypatch.setattr(table_features, "MAX_CATEGORIES", 100)
    day = datetime.datetime(2026, 3, 1)
    lines = [f"{(day + datetime.timedelta(minutes=37 * e)).isoformat()},{e % 2},1" for e in range(500)]
    (tmp_path / "log.csv").write_text("\n".join(["when,action,reward", *lines]))
    found = load_episodes(tmp_path / "log.csv", settings=asking(observations=("when",), one_step=True))
    assert found.rejected == []
    days = found.arrays["observations"][:, 0]
    assert np.diff(days) == pytest.approx(37 / 24 / 60, abs=0.002)  # float32


def test_true_and_false_are_numbers_in_text_files_as_in_data_frames(tmp_path):
    frame = pa.table({
        "member": [True, None, False, True], "offered": [True, False, False, True], "paid": [False, True, True, False],
        "answer": ["true", "false", "unsure", "false"],
    })  # fmt: skip
    roles = {"observations": ["member", "answer"], "action": "offered", "reward": "paid"}
    expected = Dataset.from_frame(frame, **roles)
    rows = frame.to_pylist()
    for spell in (str, str.lower, str.upper):
        cells = [["" if cell is None else spell(str(cell)) for cell in row.values()][:3] for row in rows]
        lines = [",".join([*three, row["answer"]]) for three, row in zip(cells, rows, strict=True)]
        (tmp_path / "log.csv").write_text("\n".join(["member,offered,paid,answer", *lines]))
        found = load_episodes(tmp_path / "log.csv", settings=asking(one_step=True, **roles))
        assert found.spec == expected.spec
        assert found.arrays["observations"].tolist() == expected.arrays["observations"].tolist()
        assert found.arrays["actions"].tolist() == [1, 0, 0, 1]
        assert found.arrays["rewards"].tolist() == [0, 1, 1, 0]
    answers = [f"answer = {answer}" for answer in ("false", "true", "unsure")]
    assert found.feature_names == ["member", "member is missing", *answers]


TIMES = [datetime.datetime(2026, 3, 1, hour) for hour in (8, 9, 6, 7, 10)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (1, 0, 4, 2, 3), (4, 1, 2, 0, 3)])
@pytest.mark.parametrize("kind", ["times", "texts", "seconds", "fractions"])
def test_times_are_the_order_of_the_steps_of_an_episode(file, order, kind, capsys):
    """Whether the rows of an episode stand together or not; rows at the same time keep their order."""
    kinds = {"texts": lambda time: time.isoformat(), "seconds": lambda time: int(time.timestamp())}
    kinds |= {"times": lambda time: time, "fractions": lambda time: time.timestamp() + 0.25}
    wanted = load_episodes(table(file, TWO_EPISODES))
    columns = TWO_EPISODES | {"t": [kinds[kind](time) for time in TIMES]}
    items = read(table(file, {name: [column[row] for row in order] for name, column in columns.items()}))
    for one in wanted:
        assert any(np.array_equal(one.observations, other.observations) for other in items)
    said = capsys.readouterr().err
    assert "'t' holds times, which are the order of" in said or "are sorted by episode_id and t" in said
    same = read(table(file, TWO_EPISODES, t=[TIMES[0]] * 5))
    assert [len(episode) for episode in same] == [2, 3]
    [item] = read(table(file, {name: column[:1] * 2 for name, column in columns.items()}, terminated=[False, True]))
    assert "a row comes twice: with the time, action, reward and observation of another one" in item.reason
    [item] = [
        item for item in read(table(file, columns, t=[*columns["t"][:4], None])) if isinstance(item, RejectedEpisode)
    ]
    assert item.reason == "t is missing"


@pytest.mark.parametrize(
    "texts",
    [
        ("0,5", "1,5", "2,5", "-3,25"),
        ("$20", "$1,200.50", "5 €", "15%"),
        ("05/31/2026", "6/1/2026", "1.6.26", "2026/06/01 10:00"),
    ],
)
def test_numbers_and_dates_in_other_notations_are_said_to_be_texts(tmp_path, capsys, texts):
    rows = [f"{text};{e % 2};1\n" for e, text in enumerate(texts)]
    (tmp_path / "log.csv").write_text("".join(["price;action;reward\n", *rows]))
    found = load_episodes(tmp_path / "log.csv", settings=asking(observations=("price",), one_step=True))
    assert found.feature_names == [f"price = {text}" for text in sorted(texts)]
    said = f"'price' has 4 texts such as {min(texts)!r}, a category each: if they are numbers or dates, write them like"
    assert said in capsys.readouterr().err


def test_texts_that_identify_rows_are_said_and_classes_of_ages_are_not(file, capsys):
    columns = {"who": [f"c{n}" for n in range(40)], "age": ["18-25", "60+"] * 20}
    table(file, columns | {"action": [0, 1] * 20, "reward": [1] * 40})
    load_episodes(file, settings=asking(observations=("who", "age"), one_step=True))
    said = capsys.readouterr().err
    assert "'who' has 40 different texts, most of them once, a category each" in said
    assert "'age'" not in said


@pytest.mark.parametrize("block", [1 << 20, 40])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_breaks_in_quotes_belong_to_their_field(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", block)
    path, notes = tmp_path / "log.csv", ["a\nb", 'he said "no",\n\nthen yes', "c", "\n", "d"]
    fields = ['"' + note.replace('"', '""').replace("\n", end) + '"' for note in notes]
    rows = [f"{e},{note},{e % 2},1" for e, note in enumerate(fields)]
    path.write_bytes(end.join(["age,note,action,reward", *rows, ""]).encode())
    found = load_episodes(path, settings=asking(observations=("age", "note"), one_step=True))
    assert (found.step_observations()[:, 0].tolist(), found.rejected) == ([0, 1, 2, 3, 4], [])
    assert found.spec.features[1].categories == tuple(sorted(note.replace("\n", end) for note in notes))
    assert found.records["line"].tolist() == [2, 4, 7, 8, 10]
    path.write_text('age,note,action,reward\n1,"open,0,1\n2,x,1,1\n3,"y",0,1\n')
    found = load_episodes(path, settings=asking(observations=("age",), one_step=True))
    assert (len(found), found.rejected[0].line) == (2, 2)  # a quote that is never closed takes its line only


def test_a_number_that_is_mostly_missing_is_no_category(file, capsys):
    """NA, as R writes it, is no word, and 40 numbers are no 40 categories."""
    incomes = ["NA", "null", "None"] * 20 + [str(1000 + n) for n in range(40)]
    table(file, {"income": incomes, "contact": ["none", "mail"] * 50, "action": [0, 1] * 50, "reward": [1] * 100})
    found = load_episodes(file, settings=asking(observations=("income", "contact"), one_step=True))
    assert found.feature_names == ["income", "income is missing", "contact = mail", "contact = none"]
    assert found.arrays["observations"][60].tolist() == [1000, 0, 0, 1]
    assert "'income' is missing in 60 rows: the median" in capsys.readouterr().err
    table(file, {"income": ["NA"] * 4, "action": [0, 1] * 2, "reward": [1] * 4})
    load_episodes(file, settings=asking(observations=("income",), one_step=True))
    assert "'income' is missing in all rows: leave it out" in capsys.readouterr().err


def test_numbers_that_are_equal_in_32_bits_are_said(file, capsys):
    times = [1_700_000_000 + n for n in range(60)]
    table(file, {"at": times, "of_day": list(range(60)), "action": [0, 1] * 30, "reward": [1] * 60})
    load_episodes(file, settings=asking(observations=("at", "of_day"), one_step=True))
    said = capsys.readouterr().err
    assert (
        "'at' has numbers that are equal in 32 bits, such as 1700000000 and 1700000001: subtract the smallest" in said
    )
    assert "of_day" not in said


def test_names_of_actions_that_differ_in_case_or_spaces_only_are_said(file, capsys):
    table(file, OFFERS, offer=["mail", "call", "Mail ", "mail"])
    assert load_episodes(file, settings=asking(**ASKED)).spec.num_actions == 3
    assert "the actions 'Mail ' and 'mail' differ only in upper case or spaces" in capsys.readouterr().err


def test_rows_without_values_at_the_end_of_a_spreadsheet_are_no_rows(tmp_path):
    path, settings = tmp_path / "log.csv", asking(**ASKED | {"observations": ("age",)})
    path.write_bytes(b"age,offer,paid\r\n20,0,1\r\n,1,0\r\n40,1,0\r\n,,\r\n , ,\r\n")
    found = load_episodes(path, settings=settings)
    assert (len(found), found.rejected) == (3, [])
    path.write_text("age,offer,paid\n")
    with pytest.raises(ValueError, match=r"log.csv: holds no rows$"):
        load_episodes(path, settings=settings)
    path.write_bytes(gzip.compress(b"age,offer,paid\n20,0,1\n"))
    with pytest.raises(ValueError, match=r"log.csv: is compressed by gzip, so that its name must end with \.gz"):
        load_episodes(path, settings=settings)


# Tables without a column of episodes


def without_ids(columns, **changes):
    return columns | {"episode_id": None, "t": None} | changes


@given(some_episodes(frames=((3,),)), st.sampled_from([".csv", ".parquet"]), st.integers(1, 7), st.integers(50, 400))
@settings(max_examples=8)
def test_rows_in_order_are_cut_after_each_end(episodes, suffix, block_rows, block_bytes):
    columns = flat_columns(episodes, np.random.default_rng(0))
    order = np.lexsort((columns["t"], [int(name[1:]) for name in columns["episode_id"]])).tolist()
    columns = {name: [column[row] for row in order] for name, column in columns.items() if name != "player"}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "PARQUET_BLOCK_ROWS", block_rows)
        patch.setattr(table_files, "TEXT_BLOCK_BYTES", block_bytes)
        path = Path(folder) / f"log{suffix}"
        wanted = read(table(path, columns), actions=ACTIONS)
        for steps in (None, columns["t"], list(range(len(order)))):  # none, of the episode, of the table
            found = read(table(path, without_ids(columns, t=steps)), actions=ACTIONS)
            for one, other in zip(found, wanted, strict=True):
                assert_same(one, other)


@pytest.mark.parametrize(
    ("terminated", "truncated"), [("done", "timeout"), ("terminal", None), ("terminals", "timeouts"), ("dones", "cut")]
)
def test_flags_of_other_libraries_are_known_by_their_names_and_said(file, terminated, truncated, capsys):
    over = [a or b for a, b in zip(TWO_EPISODES["terminated"], TWO_EPISODES["truncated"], strict=True)]
    columns = without_ids(TWO_EPISODES, terminated=None, truncated=None)
    columns |= {terminated: over, truncated: TWO_EPISODES["truncated"]} if truncated else {terminated: over}
    table(file, columns)
    named = {"truncated": "cut"} if truncated == "cut" else {}
    first, second = read(file, **named)
    assert (first.terminated.tolist(), first.truncated.tolist()) == ([False, True], [False, False])
    is_done = terminated in ("done", "dones")  # which is true at time limits, too
    assert (second.terminated[-1], second.truncated[-1]) == (not is_done, truncated is not None)
    ends = f"{terminated!r} or {truncated!r}" if truncated else f"{terminated!r}"
    assert f"no column identifies episodes: its rows are cut after each end ({ends})\n" in capsys.readouterr().err
    frame = pa.table({name: column for name, column in columns.items() if column is not None})
    assert [len(e) for e in Dataset.from_frame(frame, **named)] == [2, 3]


def test_rows_after_the_last_end_are_an_episode_without_end(file):
    table(file, without_ids(TWO_EPISODES, truncated=None))
    good, problem = read(file)
    assert (len(good), problem.line) == (2, 4 if file.suffix == ".csv" else 3)
    assert "an episode without end" in problem.reason


def test_an_episode_without_end_ends_where_steps_count_anew_or_time_goes_back(file):
    ends = {"terminated": [False, False, False, False, True], "truncated": None, "episode_id": None}
    noon = datetime.datetime(2026, 5, 31, 12)
    for t in ([0, 1, 0, 1, 2], [7, 8, 0, 1, 2], [noon + datetime.timedelta(hours=h) for h in (3, 4, 0, 1, 2)]):
        table(file, TWO_EPISODES | ends | {"t": t, "obs_0": [*range(5)]} | {"reward": [0.0, 0, 1, 2, 3]})
        if t[0] == 0:
            problem, good = read(file)
            assert "without end" in problem.reason
            assert good.rewards.tolist() == [1, 2, 3]
        else:  # too often for the number of ends
            with pytest.raises(ValueError, match=r"not in the order of 't' \(1 rows do not follow the one"):
                read(file)


@pytest.mark.parametrize("block", [1, 1 << 18])
@pytest.mark.parametrize("count", ["none", "of episodes", "of players", "times"])
def test_rows_of_several_players_may_be_interleaved(file, block, count, monkeypatch, capsys):
    """Each player's rows are cut after their ends, as if they were tables of their own."""
    monkeypatch.setattr(table_files, "PARQUET_BLOCK_ROWS", block)
    monkeypatch.setattr(table_files, "TEXT_BLOCK_BYTES", block)
    rng = np.random.default_rng(0)
    lengths = {"u7": [3, 1, 2], "u8": [2, 2], "u9": [4, 1, 1, 3]}
    left = {name: [(e, t, t == steps - 1) for e, steps in enumerate(of) for t in range(steps)]
            for name, of in lengths.items()}  # fmt: skip
    rows, on = [], {name: iter(range(100)) for name in left}
    while any(left.values()):
        name = str(rng.choice([name for name in left if left[name]]))
        rows.append((name, *left[name].pop(0), next(on[name])))
    t = {"none": None, "of episodes": [row[2] for row in rows], "of players": [row[4] for row in rows]}
    t["times"] = [datetime.datetime(2026, 1, 1, 0, minute) for minute in range(len(rows))]
    columns = {"t": t[count], "player": [row[0] for row in rows], "done": [row[3] for row in rows]}
    columns |= {"obs_0": [row[1] for row in rows], "reward": [1] * len(rows), "action": [0] * len(rows)}
    found = read(table(file, columns))
    assert {name: [len(e) for e in found if e.player == name] for name in lengths} == lengths
    assert all(len(np.unique(e.observations)) == 1 for e in found)
    said = capsys.readouterr().err
    assert "the rows of each 'player' are cut after each end ('done')" in said
    assert "they are sorted by player" in said


def test_a_column_of_ids_that_changes_before_an_end_is_said(file, capsys):
    columns = without_ids(TWO_EPISODES, action=[0, 1, 1, 1, 0], row_id=[*range(5)])
    for sessions, said in (([1, 1, 2, 2, 2], False), ([1, 2, 2, 1, 2], True)):
        read(table(file, columns, session_id=sessions))
        warning = "'session_id' changes 3 times before an end: if it says which rows belong together, name it with --table.episode or --table.player"  # noqa: E501
        assert (warning in capsys.readouterr().err) == said
    read(file, episode="session_id")
    assert "session_id" not in capsys.readouterr().err


@pytest.mark.parametrize("t", ["none", "times", "counts", "player"])
def test_an_episode_goes_on_in_the_next_file_only_if_something_says_so(file, t):
    columns = without_ids(TWO_EPISODES | ({"player": ["a"] * 5} if t == "player" else {}), terminated=[False] * 5)
    columns["t"] = {"times": [10**9 + n for n in range(5)], "counts": [*range(5)]}.get(t)
    columns["truncated"] = [False, False, False, True, True]
    for number, (start, stop) in enumerate([(0, 2), (2, 5)]):
        table(file.with_stem(str(number)), {name: c and c[start:stop] for name, c in columns.items()})
    if t in ("counts", "player"):
        columns["t"] = None if t == "player" else [0, 1, 2, 3, 0]
        table(file.with_stem("1"), {name: c and c[2:5] for name, c in columns.items()})
        assert [len(e) for e in read(file.parent, actions=3)] == [4, 1]
        return
    first, rest, good = read(file.parent, actions=3)
    assert (first.source, "without end" in first.reason) == (f"0{file.suffix}", True)
    assert rest.reason == "may be the rest of the last episode of the file before, which has no end there"
    assert (good.source, len(good)) == (f"1{file.suffix}", 1)


def test_rows_in_no_order_of_time_are_refused_without_a_column_of_episodes(file):
    rng = np.random.default_rng(0)
    for t in ([n % 3 for n in range(60)], [n % 3 + 1 for n in range(60)], [*range(60)], [10**9 + n for n in range(60)]):
        order = rng.permutation(60)
        columns = {"t": [t[n] for n in order], "done": [n % 3 == 2 for n in order.tolist()]}
        columns |= {name: [0] * 60 for name in ("obs_0", "action", "reward")}
        with pytest.raises(
            ValueError, match=r"its rows are not in the order of 't' .*: sort it by t, or name a column"
        ):
            read(table(file, columns))


FLAG_TEXTS = ["yes/no", "Y/n", "t/f", "TRUE/false", "1/0", "1.0/0.0", "1.00/0", " True/False "]


@pytest.mark.parametrize("texts", FLAG_TEXTS)
def test_flags_may_be_spelled_in_the_usual_ways(tmp_path, texts):
    true, false = texts.split("/")
    flags = {name: [true if flag else false for flag in TWO_EPISODES[name]] for name in ("terminated", "truncated")}
    masks = {f"action_mask_{a}": [true, true, true, true, true] for a in range(3)}
    for path in (tmp_path / "log.csv", tmp_path / "log.parquet"):
        first, second = read(table(path, TWO_EPISODES | masks, **flags))
        assert (first.terminated[-1], second.truncated[-1], second.terminated[-1]) == (True, True, False)
        flags["terminated"][1] = "ja"
        problem, _ = read(table(path, TWO_EPISODES, **flags))
        assert str(problem).endswith(
            f"line {3 if path.suffix == '.csv' else 2}: terminated 'ja' is neither true nor false"
        )
        flags["terminated"][1] = true


def test_a_log_in_which_no_row_is_an_end_says_how_it_becomes_one_of_single_steps(file, capsys):
    columns = {"terminal": ["T1", "T2"], "obs_0": [1, 2], "action": [0, 1], "reward": [0, 1]}
    [problem] = read(table(file, columns))
    assert problem.reason == "terminal 'T1' is neither true nor false"
    said = capsys.readouterr().err
    assert "each end ('terminal'), which no row is: drop these columns if every row is an episode" in said
    assert len(read(file, one_step=True)) == 2


def test_steps_that_are_no_whole_numbers_are_times(file, capsys):
    """Such as hours since the beginning of a stay; whole numbers are counts, of which a lost one is noticed."""
    columns = TWO_EPISODES | {"t": [4.5, 0, 0, 0.25, 8]}
    first, second = read(table(file, columns, terminated=[True, False, False, False, False]))
    assert (first.observations[:, 0].tolist(), len(second)) == ([1.5, 0.5], 3)
    assert "column 't' holds times" in capsys.readouterr().err
    mixed = {name: [column[row] for row in (1, 2, 0, 3, 4)] for name, column in columns.items()}
    assert len(read(table(file, mixed, terminated=[False, False, True, False, False]))) == 2
    problem, _ = read(table(file, TWO_EPISODES, t=[0, 15, 0, 1, 2]))
    assert problem.reason == "step 1 is missing before this, as t counts steps"


def test_missing_numbers_of_pandas_excel_and_sql_are_missing(tmp_path):
    texts = ["#N/A", "<NA>", "NaT", r"\N", "NULL", "1.5"]
    path = as_csv(tmp_path / "log.csv", {"age": texts, "action": [0, 1] * 3, "reward": [1] * 6})
    found = load_episodes(path, settings=asking(observations=("age",), one_step=True))
    assert found.arrays["observations"].tolist() == [[1.5, 1]] * 5 + [[1.5, 0]]


def test_numbers_in_other_notations_are_rejected_with_the_right_one(tmp_path):
    path = as_csv(tmp_path / "log.csv", OFFERS, paid=["1,5", "$2", "50%", "1.5"])
    rejected = load_episodes(path, settings=asking(**ASKED)).rejected
    assert [item.reason for item in rejected] == [
        f"paid {text!r} is not a number such as 1200.5" for text in ("1,5", "$2", "50%")
    ]
    path = as_csv(tmp_path / "log.csv", TWO_EPISODES, t=[0, 1, "6/1/2026", "10:30", 2])
    [item] = load_episodes(path).rejected
    assert item.reason == "t '6/1/2026' is neither a number nor a date such as 2026-05-31"


def test_actions_that_no_row_has_are_said(file, capsys):
    for offers, said in (([1, 2, 3, 1], True), ([10, 0, 20, 30], True), ([0, 1, 0, 2], False), ([0, 2, 0, 3], False)):
        table(file, OFFERS, offer=offers)
        load_episodes(file, settings=asking(**ASKED))
        text = f"rows have 3 of the {max(offers) + 1} actions 0 to {max(offers)}, and the others get some probability"
        assert (text.replace("3 of", f"{len(set(offers))} of") in capsys.readouterr().err) == said
    load_episodes(table(file, OFFERS, offer=[1, 2, 3, 1]), settings=asking(actions=4, **ASKED))
    assert "rows have" not in capsys.readouterr().err


def test_a_missing_value_among_the_names_of_actions_is_said(tmp_path, capsys):
    path = as_csv(tmp_path / "log.csv", OFFERS, offer=["mail", "NA", "none", ""])
    found = load_episodes(path, settings=asking(**ASKED))
    assert found.spec.action_names == ("NA", "mail", "none")
    said = capsys.readouterr().err
    assert "'NA' is an action like the others: leave the cell empty where no action was taken" in said
    assert "'none' is" not in said


def test_categories_that_differ_in_case_or_spaces_only_are_said(file, capsys):
    load_episodes(table(file, OFFERS, segment=["new", "old", "new ", "vip"]), settings=asking(**ASKED))
    assert "'segment' has 'new' and 'new ', which are two categories" in capsys.readouterr().err


def test_durations_are_refused_with_what_to_write():
    frame = pa.table(TWO_EPISODES | {"t": pa.array(range(5), pa.duration("s"))})
    with pytest.raises(ValueError, match=r"column 't': cannot be read \(it holds duration\[s\]\): make it numbers"):
        Dataset.from_frame(frame)


def test_a_line_that_was_cut_off_adds_no_action_and_no_category(tmp_path):
    rows = "".join(f"{seg},{offer},1,0.5\n" for seg, offer in itertools.product(("new", "old"), ("gift", "none")))
    head = "seg,offer,paid,p\n"
    asked = asking(observations=("seg",), action="offer", reward="paid", action_prob="p", one_step=True)
    for cut, names in (("vi,gif", ("gift", "none")), ("vi,900", ("gift", "none"))):
        (tmp_path / "log.csv").write_text(head + rows + cut)
        data = load_episodes(tmp_path / "log.csv", settings=asked)
        assert data.spec.action_names == names
        assert (len(data), len(data.rejected), data.spec.num_actions) == (4, 1, 2)
        assert [feature.categories for feature in data.spec.features] == [("new", "old")]
    (tmp_path / "log.csv").write_text(head + rows.replace("gift", "0").replace("none", "1") + "new,900")
    assert load_episodes(tmp_path / "log.csv", settings=asked).spec.num_actions == 2


def test_the_probability_of_the_action_is_not_observed(tmp_path):
    (tmp_path / "log.csv").write_text("seg,offer,paid,p\nnew,0,1,0.5\nold,1,0,0.5\n")
    asked = asking(observations=("seg", "p"), action="offer", reward="paid", action_prob="p", one_step=True)
    with pytest.raises(ValueError, match="column 'p' is the probability of the action, which is unknown when"):
        load_episodes(tmp_path / "log.csv", settings=asked)
