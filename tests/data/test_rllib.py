"""Recordings of RLlib, written by the real package (benchmarks/peers/rllib_files.py)."""

import json
import pickle
import subprocess
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.peers import rllib_files
from rbi.data.episode import DatasetSpec, RejectedEpisode
from rbi.data.formats import load_episodes, open_reader, recognise
from tests.data.test_d3rlpy import FILES, ROOT, peers_python

READ = ("episodes", "rows", "numbered")


def assert_read(folder):
    """Number by number what RLlib's own episodes held; those that recording cut off are rejected."""
    found = load_episodes(folder)
    truth = json.loads((folder / "truth.json").read_text())["episodes"]
    whole = [one for one in truth if "terminated" in one]
    assert len(found) == len(whole) > 0
    assert len(found.rejected) == len(truth) - len(whole)
    for ours, made in zip(found, whole, strict=True):
        np.testing.assert_array_equal(ours.observations, np.float32(made["obs"]))
        np.testing.assert_array_equal(ours.actions, made["actions"])
        np.testing.assert_array_equal(ours.rewards, np.float32(made["rewards"]))
        np.testing.assert_allclose(ours.action_probs, np.exp(made["logp"]), rtol=1e-6)
        assert (ours.terminated[-1], ours.truncated[-1]) == (made["terminated"], made["truncated"])
    return found


@pytest.mark.parametrize(("kind", "shape", "actions"), [("episodes", (4,), 2), ("numbered", (16,), 4)])
def test_episodes_that_rllib_recorded_are_read_with_equal_numbers(kind, shape, actions):
    folder = FILES / f"rllib-{kind}"
    assert recognise(folder) == "rllib"
    found = assert_read(folder)
    assert found.spec == DatasetSpec(shape, actions, has_action_probs=True)
    assert all("it has no end" in item.reason for item in found.rejected)
    assert len({(episode.source, episode.line) for episode in found}) == len(found)


@pytest.mark.slow
def test_fresh_recordings_of_the_real_package_are_read_with_equal_numbers(tmp_path):
    if (python := peers_python("ray.rllib", "msgpack_numpy", "torch")) is None:
        pytest.skip("no Python with RLlib: set RBI_PEERS_PYTHON, or install ray[rllib] into .venv-peers")
    script = ROOT / "benchmarks" / "peers" / "rllib_files.py"
    subprocess.run([python, script, tmp_path], check=True, capture_output=True)
    for kind in READ:
        assert_read(tmp_path / f"rllib-{kind}")
    with pytest.raises(ValueError, match="output_compress_columns"):
        load_episodes(tmp_path / "rllib-compressed")
    assert rllib_files.KINDS.keys() == {*READ, "compressed"}


def test_pickled_columns_are_refused_with_the_settings_that_help():
    with pytest.raises(ValueError, match=r"pickle.*output_write_episodes=True.*output_compress_columns=\[\]"):
        load_episodes(FILES / "rllib-compressed")


def rows(folder, ids, ends, **more):
    """One row a step in a folder of its own, as `output_write_episodes=False` writes them."""
    folder.mkdir(parents=True)
    count = len(ids)
    seen = np.arange(2.0 * count).reshape(count, 2)
    columns = {
        "eps_id": ids, "obs": list(seen), "new_obs": list(seen + 1), "actions": [k % 2 for k in range(count)],
        "rewards": [1.0] * count, "terminateds": ends, "truncateds": [False] * count,
    }  # fmt: skip
    pq.write_table(pa.table(columns | more), folder / "0_0.parquet")


def test_rows_in_nested_folders_are_read_once_though_each_run_repeats_the_one_before(tmp_path):
    rows(tmp_path / "env" / "run-000001-00001", ["a", "a"], [False, True])
    rows(tmp_path / "env" / "run-000001-00002", ["a", "a", "b"], [False, True, True])
    rows(tmp_path / "env" / "run-000002-00001", ["c"], [True], rewards=[5.0])
    found = load_episodes(tmp_path)
    assert [len(episode) for episode in found] == [2, 1, 1]
    assert not found.rejected
    assert [episode.source for episode in found] == [
        "env/run-000001-00002/0_0.parquet", "env/run-000001-00002/0_0.parquet", "env/run-000002-00001/0_0.parquet",
    ]  # fmt: skip


def packed(**changes):
    """An episode as RLlib encodes it, two steps."""

    def buffered(data):
        return {"data": data, "lookback": 0, "finalized": False, "space": None}

    def encoded(array):
        return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}

    state = {
        "id_": "x", "t_started": 0, "t": 2, "is_terminated": True, "is_truncated": False,
        "observations": buffered([encoded(np.float32([k, k])) for k in range(3)]),
        "actions": buffered([1, 0]), "rewards": buffered([1.0, 2.0]), "extra_model_outputs": None,
    }  # fmt: skip
    return msgpack.packb(state | changes)


class Marker:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_recording_is_unpickled_and_a_bad_row_costs_itself_only(tmp_path):
    marker = pickle.dumps(Marker(tmp_path / "ran"))
    evil = {b"nd": True, b"type": "O", b"kind": b"O", b"shape": (1,), b"data": marker}
    items = [packed(), b"\xc1", packed(id_="y", t=9), packed(id_="z", custom_data=evil), packed(id_="w", actions=evil)]
    pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), tmp_path / "a.parquet")
    found = load_episodes(tmp_path / "a.parquet")
    assert not (tmp_path / "ran").exists()
    assert [len(episode) for episode in found] == [2, 2]
    assert [item.line for item in found.rejected] == [2, 3, 5]


def test_fragments_of_an_episode_are_joined_in_order_and_gaps_are_told(tmp_path):
    head = packed(is_terminated=False)
    tail = packed(t_started=2, t=4)
    other = packed(id_="y", t_started=2, t=4)
    pq.write_table(pa.table({"item": pa.array([tail, other, head], pa.binary())}), tmp_path / "a.parquet")
    reader = open_reader(tmp_path / "a.parquet")
    first, second = reader.read(reader.parts()[0])
    assert first.actions.tolist() == [1, 0, 1, 0]
    assert isinstance(second, RejectedEpisode)
    assert "steps 0 to 1 are missing" in second.reason


def test_sample_batches_in_json_are_split_into_episodes(tmp_path):
    batch = {
        "type": "SampleBatch", "obs": [[0, 1], [2, 3], [4, 5]], "new_obs": [[2, 3], [9, 9], [6, 7]],
        "actions": [0, 1, 2], "rewards": [1, 2, 3], "eps_id": [7, 7, 8], "t": [0, 1, 0],
        "terminateds": [False, True, False], "truncateds": [False, False, False],
    }  # fmt: skip
    more = batch | {"eps_id": [8, 8, 8], "t": [1, 2, 3], "terminateds": [False] * 3, "truncateds": [False, False, True]}
    written = [
        batch,
        more,
        {"type": "MultiAgentBatch", "policy_batches": {"default_policy": batch | {"eps_id": [3] * 3}}},
    ]
    (tmp_path / "output.json").write_text("\n".join(map(json.dumps, written)))
    found = load_episodes(tmp_path)
    assert recognise(tmp_path) == "rllib"
    assert [len(episode) for episode in found] == [2, 4, 2]
    np.testing.assert_array_equal(found[0].observations, [[0, 1], [2, 3], [9, 9]])
    np.testing.assert_array_equal(found[1].observations, [[4, 5], [0, 1], [2, 3], [4, 5], [6, 7]])
    (tmp_path / "output.json").write_text(json.dumps(batch | {"obs": "BCJNGGRA"}))
    with pytest.raises(ValueError, match=r"pickle.*output_write_episodes=True"):
        load_episodes(tmp_path)


def test_without_next_observations_an_episode_has_no_final_one(tmp_path):
    batch = {
        "type": "SampleBatch", "obs": [[0, 1], [2, 3]], "actions": [0, 1], "rewards": [1, 2], "eps_id": [7, 7],
        "terminateds": [False, False], "t": [0, 1],
    }  # fmt: skip
    more = batch | {"t": [2, 3], "truncateds": [False, True]}
    (tmp_path / "output.json").write_text("\n".join(map(json.dumps, [batch, more])))
    [episode] = load_episodes(tmp_path)
    np.testing.assert_array_equal(episode.observations, [[0, 1], [2, 3], [0, 1], [2, 3]])


def test_steps_of_two_agents_with_one_id_are_not_joined(tmp_path):
    batch = {
        "type": "SampleBatch", "obs": [[0], [1], [2], [3]], "new_obs": [[1], [2], [3], [4]], "actions": [0, 1, 0, 1],
        "rewards": [1, 2, 3, 4], "eps_id": [7] * 4, "t": [0, 1, 0, 1], "terminateds": [False, False, False, True],
    }  # fmt: skip
    (tmp_path / "output.json").write_text(json.dumps(batch))
    found = load_episodes(tmp_path)
    assert [len(found), [item.reason for item in found.rejected]] == [0, ["episode '7': step 0 comes twice"]]


def test_columns_of_a_sample_batch_that_differ_in_length_are_named(tmp_path):
    batch = {
        "type": "SampleBatch", "obs": [[0], [1]], "actions": [0, 1], "rewards": [1, 2], "eps_id": [7, 7],
        "terminateds": [False, True], "action_prob": [0.5, 0.5],
    }  # fmt: skip
    short, without = batch | {"obs": [[0]]}, {name: batch[name] for name in batch if name != "action_prob"}
    (tmp_path / "output.json").write_text("\n".join(map(json.dumps, [batch, short, without])))
    found = load_episodes(tmp_path)
    assert [len(found), [item.line for item in found.rejected]] == [1, [2, 3]]
    assert "column 'obs' has 1 rows for 2 actions" in found.rejected[0].reason
    assert "no logging probabilities" in found.rejected[1].reason


def test_parts_to_choose_from_are_named_however_many_an_observation_has(tmp_path):
    many = {f"sensor_{k}": {"space": "discrete", "n": 2} for k in range(12)}
    space = {"space": "dict", "spaces": many | {"report": {"space": "text", "max_length": 80}}}
    pq.write_table(
        pa.table({"item": pa.array([packed(_observation_space=space)], pa.binary())}), tmp_path / "a.parquet"
    )
    with pytest.raises(ValueError, match=r"choose a part with --obs-key: .*sensor_11"):
        load_episodes(tmp_path / "a.parquet")
