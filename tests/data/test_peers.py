"""Files of the real packages (benchmarks/peers/table_files.py), read back number by number where they are installed."""

import json
import subprocess

import numpy as np
import pytest

from benchmarks.peers import table_files
from rbi.data.formats import load_episodes
from tests.data.test_d3rlpy import ROOT, peers_python

WRITTEN = {
    "pandas": ["pandas.csv", "pandas.csv.gz", "pandas.tsv", "pandas.jsonl", "pandas.parquet", "pandas.feather"],
    "fastparquet": ["fastparquet.parquet"],
    "polars": ["polars.csv", "polars.parquet", "polars.arrow", "polars.ndjson"],
    "duckdb": ["duckdb.parquet", "duckdb.csv", "duckdb-hive"],
    "datasets": [
        "datasets-disk", "datasets.parquet", "datasets.jsonl", "datasets-episodes", "datasets-episodes.parquet",
    ],
    "ray": ["ray-parquet"],
    "obp": ["obp.csv"],
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of files, and the versions of the packages that wrote them."""
    if (python := peers_python("pandas")) is None:
        pytest.skip("no Python with pandas, polars, DuckDB, ...: set RBI_PEERS_PYTHON, or install into .venv-peers")
    folder = tmp_path_factory.mktemp("peers")
    script = ROOT / "benchmarks" / "peers" / "table_files.py"
    done = subprocess.run([python, script, folder], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{script.name}: {done.stderr.strip().splitlines()[-1]}")
    return folder, json.loads((folder / "versions.json").read_text())


def assert_rows(found):
    """The episodes that `table_files.columns` describes."""
    made, start = table_files.columns(), 0
    assert not found.rejected
    assert found.spec.num_actions == table_files.ACTIONS
    assert [len(episode) for episode in found] == list(table_files.LENGTHS)
    for episode in found:
        part = slice(start, start + len(episode))
        seen = np.array([made[f"obs_{k}"][part] for k in range(table_files.SIZE)], np.float32).T
        np.testing.assert_array_equal(episode.observations[: len(episode)], seen)
        np.testing.assert_array_equal(episode.actions, made["action"][part])
        np.testing.assert_array_equal(episode.rewards, np.float32(made["reward"][part]))
        np.testing.assert_array_equal(episode.terminated, made["terminated"][part])
        np.testing.assert_array_equal(episode.truncated, made["truncated"][part])
        start += len(episode)


@pytest.mark.slow
@pytest.mark.parametrize("package", [name for name in WRITTEN if name != "obp"])
def test_tables_of_the_real_packages_are_read_with_equal_numbers(written, package):
    folder, versions = written
    if package not in versions:
        pytest.skip(f"{package} is not installed in the peers' environment")
    for name in WRITTEN[package]:
        assert_rows(load_episodes(folder / name))


@pytest.mark.slow
def test_the_open_bandit_sample_is_read_as_obp_reads_it(written):
    folder, versions = written
    if "obp" not in versions:
        pytest.skip("obp is not installed in the peers' environment")
    found, truth = load_episodes(folder / "obp.csv"), np.load(folder / "obp-truth.npz")
    assert len(found) == len(truth["action"])
    for ours, theirs in (("actions", "action"), ("rewards", "reward"), ("action_probs", "pscore")):
        np.testing.assert_array_equal(found.arrays[ours][truth["row"]], truth[theirs].astype(found.arrays[ours].dtype))


def test_rows_of_whole_episodes_are_read_as_the_rows_of_their_steps(tmp_path):
    lines = "".join(json.dumps(row) + "\n" for row in table_files.episodes())
    (tmp_path / "a.jsonl").write_text(lines)
    found = load_episodes(tmp_path / "a.jsonl")
    assert_rows(found)
    assert all(episode.has_final for episode in found)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"acts": [0, 1]}, "rewards of shape"),
        ({"obs": [[0.0] * 3, [0.0] * 2]}, "different lengths"),
        ({"acts": None}, "is empty"),
        ({"rews": [float("nan")]}, "reward nan|observations"),
    ],
)
def test_a_bad_row_costs_its_episode_only(tmp_path, change, told):
    rows = table_files.episodes()
    rows[1] |= change
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_episodes(tmp_path / "a.jsonl")
    assert [episode.line for episode in found] == [1, 3]
    [item] = found.rejected
    assert item.line == 2
    assert any(part in item.reason for part in told.split("|"))
