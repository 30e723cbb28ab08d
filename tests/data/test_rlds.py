"""RLDS datasets, written and read through tensorflow_datasets where it is installed."""

import importlib.util

import numpy as np
import pytest

from rbi.data.formats import load_episodes, open_reader, recognise, rlds

LENGTHS = (3, 1, 4)


def made(rng):
    """Steps of some episodes; the last step of each shows its final observation only."""
    return [
        [
            {
                "observation": rng.normal(size=3).astype(np.float32), "action": np.int64(rng.integers(4)),
                "reward": np.float32(rng.normal()), "discount": np.float32(1), "is_first": t == 0,
                "is_last": t == length, "is_terminal": t == length and number != 1,
            }
            for t in range(length + 1)
        ]
        for number, length in enumerate(LENGTHS)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rlds_episodes_are_read_with_equal_numbers(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow_datasets is not installed")
    scalar = {
        "reward": np.float32,
        "discount": np.float32,
        "is_first": np.bool_,
        "is_last": np.bool_,
        "is_terminal": np.bool_,
    }
    step = {"observation": tfds.features.Tensor(shape=(3,), dtype=np.float32), "action": np.int64, **scalar}
    features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)})
    episodes = made(np.random.default_rng(0))
    examples = [(number, {"steps": steps}) for number, steps in enumerate(episodes)]
    tfds.dataset_builders.store_as_tfds_dataset(
        "made", version="1.0.0", features=features, split_datasets={"train": examples}, data_dir=str(tmp_path)
    )
    assert recognise(tmp_path / "made") == "rlds"
    found = load_episodes(tmp_path / "made")
    assert not found.rejected
    by_score = {round(float(sum(s["reward"] for s in steps[:-1])), 4): steps for steps in episodes}  # tfds shuffles
    assert len(found) == len(by_score)
    for ours in found:
        theirs = by_score[round(ours.score, 4)]
        np.testing.assert_array_equal(ours.observations, [step["observation"] for step in theirs])
        np.testing.assert_array_equal(ours.actions, [step["action"] for step in theirs[:-1]])
        np.testing.assert_array_equal(ours.rewards, np.float32([step["reward"] for step in theirs[:-1]]))
        assert ours.terminated[-1] == theirs[-1]["is_terminal"] != ours.truncated[-1]


def test_the_newest_version_of_a_dataset_is_the_one_with_the_highest_numbers(tmp_path):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        (tmp_path / version).mkdir()
        for name in ("dataset_info.json", "features.json"):
            (tmp_path / version / name).touch()
    assert rlds.folder(tmp_path).name == "1.10.0"
    assert rlds.folder(tmp_path / "nothing") is None


def test_without_the_package_rlds_says_what_to_install(tmp_path, monkeypatch):
    for name in ("dataset_info.json", "features.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="pip install tensorflow tensorflow_datasets"):
        open_reader(tmp_path, "rlds")
