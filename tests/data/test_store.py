"""The store gives back what was put in, while it grows, after a kill, and for plain NumPy."""

import contextlib
import copy
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbi.data import store as stores
from rbi.data.dataset import RECORD, Dataset, columns, infer_spec
from rbi.data.digests import checksum, checksums
from rbi.data.episode import DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats import FormatSettings, load_episodes
from rbi.data.store import REPEATED, UNKNOWN, Store, StoreWriter

from .episodes import assert_same, episode, some_episodes

SPEC = (
    '{"format": 1, "obs_shape": [3], "num_actions": 4, "frame_stack": 1, "env": "", '
    '"has_action_probs": false, "has_action_masks": false}'
)


def write(path, episodes, spec=None):
    with StoreWriter.create(path, spec or infer_spec(episodes)) as writer:
        for item in episodes:
            writer.append(item)
    return Store(path)


@given(some_episodes())
@settings(max_examples=30, deadline=None)
def test_a_store_gives_back_the_episodes_that_were_put_in(episodes):
    with tempfile.TemporaryDirectory() as folder:
        store = write(Path(folder) / "store", episodes)
        assert len(store) == len(episodes)
        for one, other in zip(store, episodes, strict=True):
            assert_same(one, other)
        assert store.steps == sum(len(e) for e in episodes)
        assert store.scores == pytest.approx([e.score for e in episodes])
        assert list(store.verify()) == []


@given(some_episodes())
@settings(max_examples=30, deadline=None)
def test_episodes_in_memory_are_the_same(episodes):
    together = Dataset.from_episodes(episodes)
    assert [len(e) for e in together] == [len(e) for e in episodes]
    for one, other in zip(together[:], episodes, strict=True):
        assert_same(one, other)


def test_a_pickled_store_maps_the_same_files_from_any_folder_and_keeps_its_spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    store = write(Path("store"), [episode(rng, 3), episode(rng, 2)])
    store.spec = dataclasses.replace(store.spec, num_actions=store.spec.num_actions + 1)
    pickled = pickle.dumps(store)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for found in (pickle.loads(pickled), copy.deepcopy(pickle.loads(pickled))):
        assert found.spec == store.spec
        for one, other in zip(found, store, strict=True):
            assert_same(one, other)


def test_a_loaded_store_has_the_path_that_was_given_and_what_was_there_when_it_was_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = episode(np.random.default_rng(0), 3)
    store = write(Path("store"), [one])
    with StoreWriter.append_to(store.path) as writer:
        writer.append(one)
    copied = copy.copy(store)
    assert len(copied) == len(store) == 1
    assert all(copied.arrays[name] is array for name, array in store.arrays.items())
    assert load_episodes("store").path == Path("store")


def test_plain_numpy_reads_it_by_the_documented_layout(tmp_path):
    rng = np.random.default_rng(1)
    episodes = [episode(rng, 5, frame=(6, 4)), episode(rng, 3, frame=(6, 4), final=False)]
    write(tmp_path / "s", episodes, DatasetSpec((6, 4), 4, frame_stack=2, env="X-v0"))
    about = json.loads((tmp_path / "s" / "store.json").read_text())
    assert (about["format"], about["obs_shape"], about["num_actions"], about["frame_stack"]) == (2, [6, 4], 4, 2)
    index = np.fromfile(tmp_path / "s" / "episodes.bin", RECORD)
    frames = np.memmap(tmp_path / "s" / "observations.bin", np.uint8, "r").reshape(-1, *about["obs_shape"])
    actions = np.fromfile(tmp_path / "s" / "actions.bin", "<i4")
    texts = [json.loads(line) for line in (tmp_path / "s" / "texts.jsonl").read_text().splitlines()]
    second = index[1]
    first, count = second["first_observation"], second["observations"]
    np.testing.assert_array_equal(frames[first : first + count], episodes[1].observations)
    np.testing.assert_array_equal(actions[second["first_step"] :][: second["steps"]], episodes[1].actions)
    assert texts[second["player"]] == episodes[1].player


def test_a_reader_sees_what_is_appended_when_it_looks_again(tmp_path):
    rng = np.random.default_rng(2)
    store = write(tmp_path / "s", [episode(rng, 4)])
    held = store[0].observations
    with StoreWriter.append_to(tmp_path / "s") as writer:
        for _ in range(300):
            writer.append(episode(rng, 50))
        writer.flush()
        assert len(store) == 1
        store.refresh()
        assert len(store) == 301
    assert_same(store[0], Store(tmp_path / "s")[0])
    np.testing.assert_array_equal(held, store[0].observations)  # what was read before stays what it was


def test_only_one_process_writes_at_a_time(tmp_path):
    with (
        StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)),
        pytest.raises(ValueError, match="another process is writing"),
    ):
        StoreWriter.append_to(tmp_path / "s")


@pytest.mark.parametrize("name", [*columns(DatasetSpec((3,), 4)), "episodes", "texts", "rejected"])
@pytest.mark.parametrize("torn", [b"\x01", b"x" * 100])
def test_what_a_killed_writer_left_behind_the_index_is_never_seen_and_is_cut_off(tmp_path, name, torn):
    rng = np.random.default_rng(3)
    before = [episode(rng, 4), episode(rng, 2)]
    write(tmp_path / "s", before, DatasetSpec((3,), 4))
    [file] = (tmp_path / "s").glob(f"{name}.*")
    with file.open("ab") as left:
        left.write(torn[: RECORD.itemsize - 1])
    assert len(Store(tmp_path / "s")) == 2
    after = episode(rng, 3)
    with StoreWriter.append_to(tmp_path / "s") as writer:
        writer.append(after)
    for one, other in zip(Store(tmp_path / "s"), [*before, after], strict=True):
        assert_same(one, other)


def test_an_index_that_is_ahead_of_its_data_shows_the_whole_episodes_only(tmp_path):
    rng = np.random.default_rng(4)
    before = [episode(rng, 4), episode(rng, 2), episode(rng, 6)]
    write(tmp_path / "s", before, DatasetSpec((3,), 4))
    rewards = tmp_path / "s" / "rewards.bin"
    rewards.write_bytes(rewards.read_bytes()[:-5])  # as a power cut may leave it
    store = Store(tmp_path / "s")
    assert len(store) == 2
    assert "rewards.bin: holds 10 of 12 entries, so 1 episodes are lost" in str(store.lost[0])
    assert list(store.verify()) == store.lost
    with pytest.raises(ValueError, match=r"rewards\.bin.*repair=True"):
        StoreWriter.append_to(tmp_path / "s")
    assert len(Store(tmp_path / "s")) == 2  # nothing was cut
    with StoreWriter.append_to(tmp_path / "s", repair=True) as writer:
        writer.append(before[2])
    for one, other in zip(Store(tmp_path / "s"), before, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("name", ["actions.bin", "observations.bin", "life_lost.bin", "episodes.bin", "texts.jsonl"])
def test_a_file_that_is_gone_is_named_and_nothing_is_cut(tmp_path, name):
    rng = np.random.default_rng(6)
    write(tmp_path / "s", [episode(rng, 4), episode(rng, 2)], DatasetSpec((3,), 4))
    (tmp_path / "s" / name).unlink()
    left = {file.name: file.stat().st_size for file in (tmp_path / "s").iterdir()}
    for opened in (Store, lambda path: StoreWriter.append_to(path, repair=True)):
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            opened(tmp_path / "s")
    assert left == {file.name: file.stat().st_size for file in (tmp_path / "s").iterdir()}


FLIPPED = [
    ("player", 1), ("source", 1), ("line", 1 << 40), ("score", 3), ("abandoned", 1), ("checksum", 1), ("steps", 1),
    ("first_observation", 1 << 50), ("first_step", 4), ("observations", 2), ("record_checksum", 1),
]  # fmt: skip


def flip(path, number, field, bits):
    """Flip bits of one field of a record."""
    index = np.fromfile(path / "episodes.bin", RECORD)
    value = np.array([index[field][number]])
    value.view(f"<u{value.itemsize}")[0] ^= bits
    index[field][number] = value[0]
    index.tofile(path / "episodes.bin")


@pytest.mark.parametrize(("field", "bits"), FLIPPED)
@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_in_the_index_is_found_and_costs_the_names_of_its_episode_only(
    tmp_path, capsys, field, bits, number
):
    rng = np.random.default_rng(7)
    episodes = [episode(rng, 4), episode(rng, 2, end="truncated"), episode(rng, 3)]
    write(tmp_path / "s", episodes, DatasetSpec((3,), 4))
    flip(tmp_path / "s", number, field, bits)
    store = Store(tmp_path / "s")
    assert (len(store), store.damaged, store.num_lost) == (3, [number], 0)
    for k, (found, made) in enumerate(zip(store, episodes, strict=True)):
        assert_same(found, made if k != number else dataclasses.replace(made, player=UNKNOWN, source=UNKNOWN, line=0))
    assert "its record is damaged" in next(store.verify()).reason
    load_episodes(tmp_path / "s")
    assert "1 records are damaged" in capsys.readouterr().err
    with pytest.raises(ValueError, match="repair=True"):
        StoreWriter.append_to(tmp_path / "s")
    with StoreWriter.append_to(tmp_path / "s", repair=True) as writer:
        writer.append(episodes[0])
    again = Store(tmp_path / "s")
    assert (len(again), again.damaged) == (4, [])
    assert [e.player for e in again][number] == UNKNOWN


def test_several_damaged_records_are_told_apart_by_the_ends_of_episodes_and_the_last_ones_are_lost(tmp_path):
    rng = np.random.default_rng(7)
    episodes = [episode(rng, steps) for steps in (4, 2, 3, 5, 2)]
    write(tmp_path / "s", episodes, DatasetSpec((3,), 4))
    for number in (1, 2, 4):
        flip(tmp_path / "s", number, "steps", 8)
    store = Store(tmp_path / "s")
    assert (len(store), store.damaged, store.num_lost) == (4, [1, 2], 1)
    assert [e.actions.tolist() for e in store] == [e.actions.tolist() for e in episodes[:4]]


def test_a_store_of_the_first_format_is_read_and_appended_to(tmp_path):
    rng = np.random.default_rng(7)
    episodes = [episode(rng, 4), episode(rng, 2)]
    write(tmp_path / "s", episodes, DatasetSpec((3,), 4))
    index = np.fromfile(tmp_path / "s" / "episodes.bin", RECORD)
    (tmp_path / "s" / "episodes.bin").write_bytes(b"".join(record.tobytes()[:-4] for record in index))
    about = json.loads((tmp_path / "s" / "store.json").read_text())
    (tmp_path / "s" / "store.json").write_text(json.dumps(about | {"format": 1}))
    with StoreWriter.append_to(tmp_path / "s") as writer:
        writer.append(episodes[0])
    for found, made in zip(Store(tmp_path / "s"), [*episodes, episodes[0]], strict=True):
        assert_same(found, made)
    assert not list(Store(tmp_path / "s").verify())


def test_a_line_of_problems_that_is_none_is_named(tmp_path):
    write(tmp_path / "s", [episode(np.random.default_rng(8), 4)], DatasetSpec((3,), 4))
    (tmp_path / "s" / "rejected.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"rejected\.jsonl, line 1"):
        Store(tmp_path / "s")


def test_a_closed_writer_takes_no_episode(tmp_path):
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        pass
    with pytest.raises(ValueError, match="is closed"):
        writer.append(episode(np.random.default_rng(9), 4))


def test_changed_bytes_are_found(tmp_path):
    rng = np.random.default_rng(5)
    store = write(tmp_path / "s", [episode(rng, 4), episode(rng, 4)])
    place = (tmp_path / "s" / "observations.bin").stat().st_size - 2
    with (tmp_path / "s" / "observations.bin").open("r+b") as file:
        file.seek(place)
        file.write(b"\x55")
    store.refresh()
    assert [problem.line for problem in store.verify()] == [2]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_flush_writes_everything_or_nothing_and_no_episode_gets_the_name_of_another(
    tmp_path, monkeypatch, error, after, at
):
    """The write number `at` fails, after half or after all of its bytes; then the store is continued."""
    rng = np.random.default_rng(at)
    episodes = [dataclasses.replace(episode(rng, 3), source=f"file {n}", player=f"player {n}") for n in range(6)]
    real, calls = os.write, []

    def fail(file, data):
        calls.append(file)
        if len(calls) == at:
            real(file, data if after else data[: len(data) // 2])
            raise error
        return real(file, data)

    with contextlib.suppress(OSError, KeyboardInterrupt), StoreWriter.create(tmp_path, DatasetSpec((3,), 4)) as writer:
        for item in episodes[:3]:
            writer.append(item)
        monkeypatch.setattr(os, "write", fail)
        writer.flush()
    monkeypatch.undo()
    store = Store(tmp_path)
    assert len(store) in (0, 3)
    assert store.unindexed_steps == 0
    assert list(store.verify()) == []
    with StoreWriter.append_to(tmp_path) as writer:
        for item in episodes[writer.episodes :]:
            writer.append(item)
    for one, other in zip(Store(tmp_path), episodes, strict=True):
        assert_same(one, other)
    assert list(Store(tmp_path).verify()) == []


def test_a_writer_that_could_not_undo_a_write_writes_no_more(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    writer = StoreWriter.create(tmp_path, DatasetSpec((3,), 4))
    writer.append(episode(rng, 3))
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", lambda *_: 1 / 0)
        broken.setattr(os, "ftruncate", interrupt)
        with pytest.raises(KeyboardInterrupt), writer:
            writer.flush()
    assert len(Store(tmp_path)) == 0
    assert list(Store(tmp_path).verify()) == []


def interrupt(*_):
    raise KeyboardInterrupt


def test_repeated_names_are_found_and_never_appended_to(tmp_path):
    store = write(tmp_path / "s", [episode(np.random.default_rng(2), 3)])
    texts = tmp_path / "s" / "texts.jsonl"
    texts.write_text(texts.read_text() * 2)
    store.refresh()
    assert [str(found) for found in store.verify()] == [f"{texts}, line 3: {REPEATED}"]
    with pytest.raises(ValueError, match=r"texts\.jsonl, line 3: repeats an earlier name"):
        StoreWriter.append_to(tmp_path / "s")


def test_a_cut_index_is_noticed(tmp_path, capsys):
    rng = np.random.default_rng(3)
    write(tmp_path / "s", [episode(rng, 4) for _ in range(10)], DatasetSpec((3,), 4))
    os.truncate(tmp_path / "s" / "episodes.bin", 3 * RECORD.itemsize)
    with pytest.raises(ValueError, match=r"28 of 40 steps belong to no episode: .*episodes\.bin was cut; --max-lost"):
        load_episodes(tmp_path / "s")
    assert len(load_episodes(tmp_path / "s", settings=FormatSettings(max_lost=0.9))) == 3
    assert "28 of 40 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("actions", 9, "step 1: action 9 is not possible"),
        ("rewards", np.nan, "reward nan"),
        ("observations", np.inf, "observation"),
        ("terminated", True, "marked as the end"),
        ("life_lost", 7, "neither 0 nor 1"),
    ],
)
def test_impossible_values_of_a_bad_disk_are_refused_with_their_episode(tmp_path, column, value, reason):
    rng = np.random.default_rng(4)
    write(tmp_path / "s", [episode(rng, 4, final=False, lives=False) for _ in range(3)], DatasetSpec((3,), 4))
    dtype, shape = columns(DatasetSpec((3,), 4))[column]
    values = np.fromfile(tmp_path / "s" / f"{column}.bin", dtype if value != 7 else np.uint8).reshape(-1, *shape)
    values[5] = value
    values.tofile(tmp_path / "s" / f"{column}.bin")
    with pytest.raises(ValueError, match=f"s, episode 2: is damaged .*{reason}"):
        load_episodes(tmp_path / "s")


@pytest.mark.parametrize("odd", [{"line": "x"}, {"line": 2**70}, {"line": None}, {"abandoned": "no"}, {"line": -1}])
def test_an_odd_attribute_costs_its_episode_only(tmp_path, odd):
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(episode(np.random.default_rng(5), 3), **odd)
    with StoreWriter.create(tmp_path, DatasetSpec((3,), 4)) as writer:
        writer.reject(RejectedEpisode("a.csv", odd.get("line"), "odd"))
    assert [found.reason for found in Store(tmp_path).rejected] == ["odd"]


@pytest.mark.parametrize("left", ["store.json", "source.json", "observations.bin"])
def test_a_store_can_be_made_where_a_kill_left_a_beginning(tmp_path, left):
    (tmp_path / f".{left}.{os.getpid()}.tmp").write_text("torn")
    (tmp_path / "config.json").write_text("{}")
    StoreWriter.create(tmp_path, DatasetSpec((3,), 4)).release()
    (tmp_path / "episodes.bin").unlink()  # killed before it was made
    StoreWriter.append_to(tmp_path).close()


KILLED = """
import sys, time
import numpy as np
from rbi.data import DatasetSpec, StoreWriter
from tests.data.episodes import episode
rng = np.random.default_rng(0)
with StoreWriter.create(sys.argv[1], DatasetSpec((84, 84), 4, 4)) as writer:
    while True:
        writer.append(episode(rng, 200, frame=(84, 84)))
        print(writer.episodes, flush=True)
"""


def test_a_kill_leaves_all_finished_episodes_readable(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True)
    told = [child.stdout.readline() for _ in range(5)]
    time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    store = Store(tmp_path / "s")
    assert len(store) >= int(told[-1])
    assert list(store.verify()) == []
    rng = np.random.default_rng(0)
    for one in store:
        assert_same(one, episode(rng, 200, frame=(84, 84)))
    with StoreWriter.append_to(tmp_path / "s") as writer:
        writer.append(episode(rng, 3, frame=(84, 84)))
    assert len(Store(tmp_path / "s")) == len(store) + 1


def test_problems_are_kept_beside_the_episodes(tmp_path):
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        writer.reject(RejectedEpisode("a.csv", 7, "reward nan"))
    assert Store(tmp_path / "s").rejected == [RejectedEpisode("a.csv", 7, "reward nan")]
    assert str(Store(tmp_path / "s").rejected[0]) == "a.csv, line 7: reward nan"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ('{"format": 9}', "another format"),
        ('{"format": 1, "obs_shape": [3]}', "actions"),
        (SPEC.replace("4", '"x"'), "must hold format"),
        (SPEC.replace('"frame_stack": 1', '"frame_stack": null'), "must hold format"),
        (SPEC.replace("[3]", "[0]"), "obs_shape"),
    ],
)
def test_a_damaged_description_is_named(tmp_path, text, told):
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(ValueError, match=rf"store\.json.*{told}"):
        Store(tmp_path)


def test_a_store_is_not_made_in_a_folder_of_other_things(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="is not empty"):
        StoreWriter.create(tmp_path, DatasetSpec((3,), 4))
    with pytest.raises(ValueError, match="is not a store"):
        Store(tmp_path)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=30)
def test_checksums_of_many_episodes_are_those_of_each(lengths):
    """Short episodes of equal length are checksummed together."""
    rng, found = np.random.default_rng(len(lengths)), []
    for steps, final in lengths:
        last = np.arange(steps) == steps - 1
        obs = rng.normal(size=(steps + final, 3)).astype(np.float32)
        found.append(Episode(obs, rng.integers(2, size=steps), rng.normal(size=steps), last, last & False))
    data = Dataset.from_episodes(found, DatasetSpec((3,), 2))
    assert checksums(data).tolist() == [
        checksum(data.part(name, record) for name in data.arrays) for record in data.records
    ]


def test_a_store_extended_by_datasets_is_the_store_of_their_episodes(tmp_path):
    rng, spec = np.random.default_rng(0), DatasetSpec((3,), 2)
    found = []
    for number in range(40):
        steps = int(rng.integers(1, 5))
        last = np.arange(steps) == steps - 1
        obs = rng.normal(size=(steps + number % 2, 3)).astype(np.float32)
        who = {"player": f"p{number % 3}", "source": f"s{number % 2}", "line": number}
        found.append(Episode(obs, rng.integers(2, size=steps), rng.normal(size=steps), last, last & False, **who))
    with StoreWriter.create(tmp_path / "one", spec) as writer:
        for episode in found:
            writer.append(episode)
    with StoreWriter.create(tmp_path / "many", spec) as writer:
        for start, stop in ((0, 7), (7, 7), (7, 40)):
            writer.extend(Dataset.from_episodes(found[start:stop], spec))
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "many" / file.name).read_bytes(), file.name
    assert list(Store(tmp_path / "many").verify()) == []
    with StoreWriter.append_to(tmp_path / "many") as writer, pytest.raises(ValueError, match="holds DatasetSpec"):
        writer.extend(Dataset.from_episodes([], DatasetSpec((3,), 3)))


@pytest.fixture
def disk_events(monkeypatch, tmp_path):
    """What happens to the files of the store `s`, in order: ("write", name) and ("fsync", name)."""
    events, fsync, write_file = [], os.fsync, os.write

    def note(kind, file):
        there = {path.stat().st_ino: path.name for path in (tmp_path / "s").iterdir()}
        events.append((kind, there.get(os.fstat(file).st_ino)))

    monkeypatch.setattr(os, "fsync", lambda file: (note("fsync", file), fsync(file))[1])
    monkeypatch.setattr(os, "write", lambda file, data: (note("write", file), write_file(file, data))[1])
    return events


def test_a_closed_store_is_on_disk(tmp_path, disk_events):
    spec = DatasetSpec((3,), 4)
    writer = StoreWriter.create(tmp_path / "s", spec)
    writer.append(episode(np.random.default_rng(0), 4))
    disk_events.clear()
    writer.close()
    last_write = max(number for number, (kind, _) in enumerate(disk_events) if kind == "write")
    on_disk = {name for kind, name in disk_events[last_write:] if kind == "fsync"}
    assert {f"{name}.bin" for name in columns(spec)} | {"episodes.bin", "texts.jsonl"} <= on_disk


@pytest.mark.parametrize(("synced_bytes", "first"), [(1, "rewards.bin"), (10**9, "texts.jsonl")])
def test_what_the_index_needs_is_on_disk_before_it(synced_bytes, first, tmp_path, disk_events, monkeypatch):
    """Without the names that its index refers to, a store could not be opened after a power failure."""
    monkeypatch.setattr(stores, "SYNCED_BYTES", synced_bytes)
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        writer.append(episode(np.random.default_rng(0), 4))
        disk_events.clear()
        writer.flush()
        assert ("fsync", first) in disk_events[: disk_events.index(("write", "episodes.bin"))]


def test_a_rejected_episode_is_never_on_disk_before_those_that_precede_it(tmp_path):
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        writer.append(episode(np.random.default_rng(0), 4))
        writer.reject(RejectedEpisode("a.csv", 7, "reward nan"))
        found = Store(tmp_path / "s")  # as the next writer sees it after a kill
        assert (len(found), len(found.rejected)) == (1, 1)


def test_steps_that_only_some_columns_have_are_not_lost_steps(tmp_path):
    """A writer that was killed while it wrote its columns: no step was complete."""
    with StoreWriter.create(tmp_path / "s", DatasetSpec((3,), 4)) as writer:
        writer.append(episode(np.random.default_rng(0), 4))
    with (tmp_path / "s" / "actions.bin").open("ab") as file:
        file.write(bytes(4 * 10))
    found = Store(tmp_path / "s")
    assert (len(found), found.unindexed_steps) == (1, 0)
    found.check_lost(0.0)
