"""An import takes what can be used, sets aside the rest with its reason, and goes on where it was stopped."""

import csv
import json
import os

import numpy as np
import pytest

import rbi
from rbi.cli import main
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats import FormatSettings, SpecOverrides, load_episodes, open_reader
from rbi.data.importing import Progress, append_all, export_dataset
from rbi.data.store import Store, StoreWriter
from rbi.runs import read

from .episodes import assert_same, episode


class Listed:
    """A reader of what it is given."""

    parallel = False

    def __init__(self, items, spec):
        self.items, self.spec = items, spec

    def parts(self):
        return range(len(self.items))

    def read(self, part):
        if isinstance(self.items[part], Exception):
            raise self.items[part]
        yield self.items[part]


def numbered(count, seed=0):
    rng = np.random.default_rng(seed)
    made = [episode(rng, 4) for _ in range(count)]
    return [
        Episode(e.observations, e.actions, e.rewards, e.terminated, e.truncated, source="list", line=i)
        for i, e in enumerate(made, 1)
    ]


def test_what_does_not_fit_is_rejected_and_the_rest_is_taken(tmp_path):
    good = numbered(3)
    other = episode(np.random.default_rng(1), 4, frame=(7,))
    items = [good[0], RejectedEpisode("list", 9, "torn"), good[1], other, good[2]]
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        *_, tally = append_all(Listed(items, writer.spec), writer, map, Progress())
    assert (tally.episodes, tally.steps, tally.rejected) == (3, 12, 2)
    store = Store(tmp_path / "s")
    assert [e.line for e in store] == [1, 2, 3]
    assert [p.reason.split()[0] for p in store.rejected] == ["torn", "observations"]


def test_strict_stops_at_the_first_problem_and_keeps_what_came_before(tmp_path):
    good, spec = numbered(2), DatasetSpec((3,), 4)
    listed = Listed([good[0], RejectedEpisode("list", 9, "torn"), good[1]], spec)
    with (
        pytest.raises(ValueError, match="list, line 9: torn"),
        StoreWriter.create(tmp_path / "s", spec) as writer,
    ):
        list(append_all(listed, writer, map, Progress(strict=True)))
    assert len(Store(tmp_path / "s")) == 1


def test_an_import_that_was_stopped_goes_on_without_doing_anything_twice(tmp_path):
    good = numbered(6)
    broken = [*good[:3], RejectedEpisode("list", 99, "torn"), OSError("the disk is gone")]
    with pytest.raises(OSError, match="disk"), StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        list(append_all(Listed(broken, writer.spec), writer, map, Progress()))
    with StoreWriter.append_to(tmp_path / "s") as writer:
        *_, tally = append_all(Listed([*broken[:4], *good[3:]], writer.spec), writer, map, Progress())
    assert (tally.skipped, tally.episodes, tally.rejected) == (4, 3, 0)
    for one, other in zip(Store(tmp_path / "s"), good, strict=True):
        assert_same(one, other)


def test_episodes_that_cannot_be_told_apart_are_counted_when_an_import_goes_on(tmp_path):
    rng = np.random.default_rng(2)
    alike = [episode(rng, 4) for _ in range(5)]
    alike = [Episode(e.observations, e.actions, e.rewards, e.terminated, e.truncated) for e in alike]
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        list(append_all(Listed(alike[:2], writer.spec), writer, map, Progress()))
    with StoreWriter.append_to(tmp_path / "s") as writer:
        list(append_all(Listed(alike, writer.spec), writer, map, Progress()))
    for one, other in zip(Store(tmp_path / "s"), alike, strict=True):
        assert_same(one, other)


def table(path, episodes, *, breaks=()):
    """A CSV of so many episodes of three steps; some with a row of four fields."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["episode_id", "t", "action", "reward", "terminated", "truncated", "obs_0", "obs_1"])
        for e in range(episodes):
            for t in range(3):
                row = [e, t, (e + t) % 3, 0.5, int(t == 2), 0, e / 10, t / 10]
                rows.writerow(row[:4] if (e, t) in breaks else row)


def test_the_command_imports_and_counts_both_kinds(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 10, breaks={(4, 1)})
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 0
    told = capsys.readouterr().out
    assert "9 episodes, 27 steps" in told
    assert "clicks.csv, line 15" in told
    result = read(tmp_path / "s").finished()
    assert (result["episodes"], result["rejected"]) == (9, 1)
    loaded = rbi.load_episodes(tmp_path / "s")
    assert len(loaded) == 9
    assert loaded.rejected[0].line == 15
    direct = rbi.load_episodes(tmp_path / "clicks.csv")
    for one, other in zip(loaded, direct, strict=True):
        assert_same(one, other)


def test_strict_says_which_line_and_exits_with_two(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 10, breaks={(4, 1)})
    arguments = ["data", "import", str(tmp_path / "clicks.csv"), "--strict", "--out", str(tmp_path / "s")]
    assert main(arguments) == 2
    assert "clicks.csv, line 15" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["import"], "name the data"),
        (["import", "nowhere"], "nowhere: no such file or folder"),
        (["info", "empty"], "no known format"),
        (["import", "clicks.csv", "--format", "parquet"], "clicks.csv"),
        (["import", "clicks.csv", "--num-actions", "0"], "--num-actions"),
        (["import", "clicks.csv", "--resume"], "--resume"),
        (["export", "clicks.csv", "--out", "clicks.csv"], "overlaps with the data"),
        (["import", "clicks.csv", "--out", "clicks.csv/x"], "overlaps with the data"),
        (["export", "cut.csv", "--out", "clicks.csv/x"], "part of the path is a file"),
        (["info", "clicks.csv", "--verify"], "is not a store"),
        (["record", "random"], "--episodes or --steps"),
        (["record", "random", "--episodes", "3"], "--env"),
        (["record", "random", "--episodes", "3", "--env", "NoSuchWorld-v0"], "NoSuchWorld"),
        (["record", "--episodes", "3", "--env", "CartPole-v1"], "name a run of rbi train"),
        (["record", "no/policy", "--episodes", "3"], "no/policy: no such folder"),
        (["record", "randm", "--episodes", "3", "--env", "CartPole-v1"], "climb; did you mean random?"),
        (["record", "follow", "--episodes", "3", "--env", "CartPole-v1"], "not CartPole-v1"),
    ],
)
def test_bad_input_gives_one_line_and_leaves_no_folder(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "clicks.csv", 2)
    table(tmp_path / "cut.csv", 2)
    (tmp_path / "empty").mkdir()
    where = [] if "--out" in arguments else ["--out", "made"] if "--resume" not in arguments else []
    assert main(["data", *arguments, *where]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clicks.csv", "cut.csv", "empty"]


def test_nothing_that_can_be_used_is_an_error_that_points_to_the_reasons(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 1, breaks={(0, 1)})
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 2
    assert "no usable episodes" in capsys.readouterr().err
    assert json.loads((tmp_path / "s" / "rejected.jsonl").read_text())["line"] == 3


@pytest.mark.parametrize("to", ["minari", "parquet", "store", "csv"])
def test_an_import_of_any_kind_that_was_killed_goes_on_with_resume_and_ends_the_same(tmp_path, to):
    source = tmp_path / "clicks.csv"
    table(source, 9)
    if to != "csv":
        assert main(["data", "export", str(source), "--to", to, "--out", str(tmp_path / "data")]) == 0
        source = tmp_path / "data"
    arguments = ["data", "import", str(source), "--out"]
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    assert main([*arguments, str(tmp_path / "s")]) == 0
    index = tmp_path / "s" / "episodes.bin"
    index.write_bytes(index.read_bytes()[: 4 * len(index.read_bytes()) // 9])  # as a kill after four of nine leaves it
    assert main([*arguments, str(tmp_path / "s"), "--resume"]) == 0
    for file in (tmp_path / "whole").glob("*.bin"):
        assert file.read_bytes() == (tmp_path / "s" / file.name).read_bytes(), file.name
    for one, other in zip(Store(tmp_path / "s"), rbi.load_episodes(tmp_path / "clicks.csv"), strict=True):
        assert_same(one, other)


def test_info_says_what_is_there_in_any_format(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 10, breaks={(4, 1)})
    assert main(["data", "info", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "info")]) == 0
    found = read(tmp_path / "info").finished()
    assert (found["episodes"], found["steps"], found["rejected"]) == (9, 27, 1)
    assert found["actions"] == {"0": 9, "1": 9, "2": 9}
    assert found["scores"]["mean"] == pytest.approx(1.5)
    assert found["ends"] == {"terminated": 9, "time limit": 0, "abandoned": 0}
    assert (tmp_path / "info" / "figures" / "data.png").exists()
    assert "3 of 3 actions" in capsys.readouterr().out


def test_damage_in_a_store_is_found_when_asked_for(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 3)
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 0
    rewards = tmp_path / "s" / "rewards.bin"
    rewards.write_bytes(rewards.read_bytes()[:-4] + b"\0\0\0\0")
    assert main(["data", "info", str(tmp_path / "s"), "--out", str(tmp_path / "one")]) == 0
    assert main(["data", "info", str(tmp_path / "s"), "--verify", "--out", str(tmp_path / "two")]) == 2
    assert "differ from those that were written" in capsys.readouterr().err


def test_a_store_tells_what_its_import_rejected_and_what_is_lost(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 4, breaks={(1, 1)})
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 0
    os.truncate(tmp_path / "s" / "rewards.bin", 7 * 4)
    assert main(["data", "info", str(tmp_path / "s"), "--out", str(tmp_path / "info")]) == 0
    found = read(tmp_path / "info").finished()
    assert (found["episodes"], found["rejected"], found["lost"]) == (2, 1, 1)
    assert "1 of 3 episodes are lost" in capsys.readouterr().err
    for command in (["data", "import"], ["data", "export"], ["improve"], ["offline"]):
        assert main([*command, str(tmp_path / "s"), "--out", str(tmp_path / "out")]) == 2
        assert "1 of 3 episodes are lost" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert main(["data", "export", str(tmp_path / "s"), "--max-lost", "0.5", "--out", str(tmp_path / "out")]) == 0
    assert "1 of 3 episodes are lost" in capsys.readouterr().err


def test_an_import_is_not_continued_over_names_that_its_data_does_not_have(tmp_path, capsys):
    """A damaged name would make its episodes look new, and import them twice."""
    table(tmp_path / "clicks.csv", 3)
    command = ["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]
    assert main(command) == 0
    texts = tmp_path / "s" / "texts.jsonl"
    texts.write_text(texts.read_text().replace("clicks.csv", "clichs.csv"))
    assert main([*command, "--resume"]) == 2
    assert "holds an episode of clichs.csv, line 2, which" in capsys.readouterr().err


def test_an_action_that_a_bad_disk_made_is_told_not_a_crash(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 3)
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 0
    actions = np.fromfile(tmp_path / "s" / "actions.bin", "<i4")
    actions[4] = -5
    actions.tofile(tmp_path / "s" / "actions.bin")
    assert main(["data", "info", str(tmp_path / "s"), "--out", str(tmp_path / "info")]) == 0
    assert read(tmp_path / "info").finished()["rejected"] == 1
    assert "action -5 is not possible" in capsys.readouterr().out


def test_a_million_possible_actions_are_shown_by_the_most_frequent(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 3)
    text = (tmp_path / "clicks.csv").read_text().replace("0,1,1,", "0,1,999998,")
    (tmp_path / "clicks.csv").write_text(text)
    asked = ["--num-actions", "999999", "--out", str(tmp_path / "info")]
    assert main(["data", "info", str(tmp_path / "clicks.csv"), *asked]) == 0
    assert "of 999,999" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["info"], ["import"], ["export", "--to", "store"]])
def test_data_that_is_read_is_never_replaced(tmp_path, capsys, command):
    table(tmp_path / "clicks.csv", 3)
    assert main(["data", "export", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "pq")]) == 0
    file = tmp_path / "pq" / "episodes.parquet"
    assert main(["data", *command, str(file), "--out", str(tmp_path / "pq"), "--overwrite"]) == 2
    assert "overlaps with the data" in capsys.readouterr().err
    assert file.exists()


def test_a_store_that_someone_writes_to_is_not_replaced(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 3)
    arguments = ["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]
    assert main(arguments) == 0
    with StoreWriter.append_to(tmp_path / "s"):
        assert main([*arguments, "--overwrite"]) == 2
    assert "another process is writing" in capsys.readouterr().err
    assert len(Store(tmp_path / "s")) == 3


def test_an_import_does_not_go_on_with_data_that_has_changed(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 3)
    arguments = ["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]
    assert main(arguments) == 0
    table(tmp_path / "clicks.csv", 4)
    assert main([*arguments, "--resume"]) == 2
    assert "has changed since its import" in capsys.readouterr().err


def test_what_is_said_about_a_store_is_heard(tmp_path, capsys):
    table(tmp_path / "clicks.csv", 3)
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 0
    said = ["--num-actions", "7", "--env", "Foo-v0", "--frame-stack", "3"]
    assert main(["data", "export", str(tmp_path / "s"), "--to", "store", *said, "--out", str(tmp_path / "t")]) == 0
    spec = Store(tmp_path / "t").spec
    assert (spec.num_actions, spec.env, spec.frame_stack) == (7, "Foo-v0", 3)
    for wrong, told in ((["--num-actions", "2"], "--num-actions"), (["--table.action", "x"], "--table")):
        assert main(["data", "info", str(tmp_path / "s"), *wrong, "--out", str(tmp_path / "u")]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("to", ["parquet", "minari", "store"])
def test_what_is_exported_comes_back_the_same(tmp_path, to):
    table(tmp_path / "clicks.csv", 5)
    assert main(["data", "export", str(tmp_path / "clicks.csv"), "--to", to, "--out", str(tmp_path / to)]) == 0
    back, before = rbi.load_episodes(tmp_path / to), rbi.load_episodes(tmp_path / "clicks.csv")
    for one, other in zip(back, before, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("wide", ["behavior_probs", "action_masks"])
def test_the_number_of_actions_of_a_store_with_columns_of_actions_is_fixed(tmp_path, wide):
    values = {"behavior_probs": np.full((4, 3), 1 / 3), "action_masks": np.ones((4, 3), bool)}[wide]
    data = Dataset.from_arrays(np.zeros((4, 1)), [0, 1, 2, 0], np.arange(4), np.ones(4, bool), **{wide: values})
    with StoreWriter.create(tmp_path / "s", data.spec) as writer:
        writer.extend(data)
    with pytest.raises(ValueError, match=r"--num-actions 5: .* has 3"):
        open_reader(tmp_path / "s", settings=FormatSettings(SpecOverrides(num_actions=5)))
    same = FormatSettings(SpecOverrides(num_actions=3))
    assert export_dataset(tmp_path / "s", tmp_path / "new" / "out", settings=same)[1].episodes == 4


def test_a_store_with_other_settings_stays_what_it_is(tmp_path):
    table(tmp_path / "clicks.csv", 3)
    (tmp_path / "clicks.csv").write_text((tmp_path / "clicks.csv").read_text() + "9,0,-1,1,1,0,3,4\n")
    assert main(["data", "import", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "s")]) == 0
    plain = load_episodes(tmp_path / "s")
    found = load_episodes(tmp_path / "s", settings=FormatSettings(SpecOverrides(env="Clicks-v0", num_actions=7)))
    assert isinstance(found, Store)
    assert (found.spec.env, found.spec.num_actions, found.rejected) == ("Clicks-v0", 7, plain.rejected)
    assert (plain.spec.env, len(plain.rejected)) == ("", 1)
    assert [e.actions.tolist() for e in found] == [e.actions.tolist() for e in plain]
