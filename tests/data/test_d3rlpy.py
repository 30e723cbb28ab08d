"""d3rlpy's files, those of version 2 written by the real package (benchmarks/peers/d3rlpy_files.py)."""

import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from benchmarks.peers import d3rlpy_files
from rbi.data.episode import DatasetSpec, RejectedEpisode
from rbi.data.formats import FormatSettings, load_episodes, open_reader, recognise
from rbi.data.formats.reader import SpecOverrides
from tests.data.episodes import assert_same

FILES = Path(__file__).parent / "files"
ROOT = Path(__file__).parents[2]
FRAMES = {"vectors": (3,), "images": (5, 4), "colours": (5, 4, 3), "parts": (5,)}
OURS = {  # how observations of each kind come out
    "vectors": lambda x: x,
    "images": lambda x: x[:, 0],
    "colours": lambda x: x.transpose(0, 2, 3, 1),
    "parts": lambda *x: np.concatenate(x, axis=1),
}


def peers_python(*packages):
    """A Python that has these packages, if there is one: some pin versions older than ours."""
    python = os.environ.get("RBI_PEERS_PYTHON") or str(ROOT / ".venv-peers" / "bin" / "python")
    question = f"import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, {packages!r})))"
    there = Path(python).exists() and subprocess.run([python, "-c", question], check=False).returncode == 0
    return python if there else None


def assert_read(path, kind):
    found = load_episodes(path)
    assert not found.rejected
    assert found.spec == DatasetSpec(FRAMES[kind], d3rlpy_files.ACTIONS, frame_stack=4 if len(FRAMES[kind]) > 1 else 1)
    for line, (ours, made) in enumerate(zip(found, d3rlpy_files.episodes(kind), strict=True), 1):
        np.testing.assert_array_equal(ours.observations, OURS[kind](*made.observations))
        np.testing.assert_array_equal(ours.actions, made.actions[:, 0])
        np.testing.assert_array_equal(ours.rewards, made.rewards[:, 0])
        assert (ours.terminated[-1], ours.truncated[-1]) == (made.terminated, not made.terminated)
        assert not ours.abandoned
        assert not ours.has_final
        assert (ours.source, ours.line) == (path.name, line)


@pytest.mark.parametrize("kind", d3rlpy_files.KINDS)
def test_files_of_the_real_package_are_read_with_equal_numbers(kind):
    assert recognise(FILES / f"d3rlpy-{kind}.h5") == "d3rlpy"
    assert_read(FILES / f"d3rlpy-{kind}.h5", kind)


def test_fresh_files_of_the_real_package_are_read_with_equal_numbers(tmp_path):
    if (python := peers_python("d3rlpy")) is None:
        pytest.skip("no Python with d3rlpy: set RBI_PEERS_PYTHON, or install d3rlpy into .venv-peers")
    subprocess.run(
        [python, ROOT / "benchmarks" / "peers" / "d3rlpy_files.py", tmp_path], check=True, capture_output=True
    )
    for kind in d3rlpy_files.KINDS:
        assert_read(tmp_path / f"d3rlpy-{kind}.h5", kind)


def version_1(path, observations, ends, **more):
    """A file as d3rlpy 1 wrote it; `ends` is one letter a step: - goes on, t terminal, c cut off."""
    rng = np.random.default_rng(0)
    columns = {
        "observations": observations,
        "actions": rng.integers(0, 3, len(ends)).astype(np.int32),
        "rewards": rng.normal(size=len(ends)).astype(np.float32),
        "terminals": np.array([end == "t" for end in ends], np.float32),
    }
    if "c" in ends:
        columns["episode_terminals"] = np.array([end != "-" for end in ends], np.float32)
    columns |= more
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
        file["discrete_action"], file["version"] = True, "1.0"
    return columns


def test_rows_of_version_1_are_cut_behind_their_ends(tmp_path):
    seen = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    columns = version_1(tmp_path / "a.h5", seen, "--tc---t-")
    assert recognise(tmp_path / "a.h5") == "d3rlpy"
    found = load_episodes(tmp_path / "a.h5")
    assert [(e.line, len(e), bool(e.terminated[-1])) for e in found] == [(1, 3, True), (4, 1, False), (5, 4, True)]
    for name in ("observations", "actions", "rewards"):
        np.testing.assert_array_equal(found.arrays[name], columns[name][:8])
    assert [(p.source, p.line) for p in found.rejected] == [("a.h5", 9)]
    assert "without end" in found.rejected[0].reason


def test_rewards_of_files_from_before_1_1_belong_to_the_step_before_their_row(tmp_path):
    seen = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)
    columns = version_1(tmp_path / "a.h5", seen, "--tc---t")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["version"]
    found = load_episodes(tmp_path / "a.h5")
    assert [(e.line, len(e), bool(e.terminated[-1])) for e in found] == [(1, 2, True), (5, 3, True)]
    for episode, start, stop in zip(found, (0, 4), (3, 8), strict=True):
        np.testing.assert_array_equal(episode.observations, columns["observations"][start:stop])
        np.testing.assert_array_equal(episode.actions, columns["actions"][start : stop - 1])
        np.testing.assert_array_equal(episode.rewards, columns["rewards"][start + 1 : stop])
    assert [(item.line, item.reason) for item in found.rejected] == [(4, "an episode without steps")]


def test_timeouts_cut_rows_too(tmp_path):
    version_1(tmp_path / "a.h5", np.zeros((4, 2), np.float32), "---t", timeouts=np.array([0, 1, 0, 0], bool))
    assert [(len(e), bool(e.truncated[-1])) for e in load_episodes(tmp_path / "a.h5")] == [(2, True), (2, False)]


def test_of_stacked_images_the_newest_frame_is_kept(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (8, 6, 5), dtype=np.uint8)
    stacked = np.stack([frames[t : t + 4] for t in range(5)])
    version_1(tmp_path / "a.h5", stacked, "--t-t")
    found = load_episodes(tmp_path / "a.h5")
    assert found.spec == DatasetSpec((6, 5), 3, frame_stack=4)
    np.testing.assert_array_equal(found.arrays["observations"], frames[3:])


def test_planes_that_are_no_stack_are_kept_as_channels(tmp_path):
    planes = np.random.default_rng(0).integers(0, 2, (5, 2, 6, 7), dtype=np.uint8)
    version_1(tmp_path / "a.h5", planes, "--t-t")
    found = load_episodes(tmp_path / "a.h5")
    assert found.spec == DatasetSpec((6, 7, 2), 3, frame_stack=1)
    np.testing.assert_array_equal(found.arrays["observations"], planes.transpose(0, 2, 3, 1))


def test_a_damaged_episode_of_images_costs_itself_only(tmp_path):
    shutil.copy(FILES / "d3rlpy-images.h5", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["actions_1"]
    found = load_episodes(tmp_path / "a.h5")
    assert [len(found), [item.line for item in found.rejected]] == [2, [2]]


def test_summaries_are_those_of_the_episodes(tmp_path):
    version_1(tmp_path / "a.h5", np.zeros((5, 2), np.float32), "--tc-")
    for path in (FILES / "d3rlpy-colours.h5", tmp_path / "a.h5"):
        reader = open_reader(path)
        for part in reader.parts():
            [episode], [outline] = reader.read(part), reader.summaries(part)
            if isinstance(episode, RejectedEpisode):
                assert outline == episode
            else:
                assert_same(outline, episode, but="observations")


def test_bad_episodes_are_rejected_with_their_number_and_the_rest_is_read(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes((FILES / "d3rlpy-vectors.h5").read_bytes())
    with h5py.File(path, "a") as file:
        del file["rewards_0"]
        file["observations_1"][0, 0] = np.nan
    found = load_episodes(path)
    assert [e.line for e in found] == [3]
    assert [(p.source, p.line) for p in found.rejected] == [("a.h5", 1), ("a.h5", 2)]
    assert "rewards_0" in found.rejected[0].reason
    assert "observation" in found.rejected[1].reason


def test_what_the_user_says_counts():
    overrides = FormatSettings(SpecOverrides(env="Taxi-v3", num_actions=9, frame_stack=3))
    found = open_reader(FILES / "d3rlpy-images.h5", settings=overrides).spec
    assert found == DatasetSpec((5, 4), 9, frame_stack=3, env="Taxi-v3")


@pytest.mark.parametrize("actions", [np.zeros((3, 2), np.float32), np.array([0.5, 1, 2], np.float32)])
def test_actions_that_are_not_numbered_are_refused(tmp_path, actions):
    version_1(tmp_path / "a.h5", np.zeros((3, 2), np.float32), "--t", actions=actions)
    with pytest.raises(ValueError, match=r"a\.h5: its actions .*only discrete actions"):
        open_reader(tmp_path / "a.h5")


def test_a_file_that_is_cut_off_is_refused_in_one_line(tmp_path):
    whole = (FILES / "d3rlpy-vectors.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.h5: cannot be read as an HDF5 file") as refused:
        load_episodes(tmp_path / "a.h5")
    assert "\n" not in str(refused.value)


def test_other_hdf5_files_are_not_taken_for_d3rlpys(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"] = [1]
    with pytest.raises(ValueError, match="no known format"):
        recognise(tmp_path / "a.h5")
