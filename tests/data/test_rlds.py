"""RLDS datasets, written and read through tensorflow_datasets where it is installed."""

import importlib.util
import types

import numpy as np
import pytest

from rbi.data.formats import FormatSettings, SpecOverrides, load_episodes, open_reader, recognise, rlds

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


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Makes a folder whose examples a stand-in of tensorflow_datasets reads; an exception is raised in its place."""

    def make(*examples):
        def stored(**_):
            for example in examples:
                if isinstance(example, Exception):
                    raise example
                yield example

        info = types.SimpleNamespace(splits={"train": types.SimpleNamespace(num_examples=len(examples))})
        builder = types.SimpleNamespace(info=info, as_dataset=stored)
        package = types.SimpleNamespace(builder_from_directory=lambda _: builder, as_numpy=iter)
        loaded = types.SimpleNamespace(import_module=lambda _: package, util=types.SimpleNamespace(find_spec=bool))
        monkeypatch.setattr(rlds, "importlib", loaded)
        for name in ("dataset_info.json", "features.json"):
            (tmp_path / name).write_text("{}")
        return tmp_path

    return make


class DataLossError(Exception):
    """As TensorFlow's: derived from none of the usual classes."""


def test_data_that_is_not_rlds_or_damaged_is_refused_in_one_line(dataset):
    first, *_ = made(np.random.default_rng(0))
    without = [{name: value for name, value in step.items() if name != "action"} for step in first]
    cases = {
        "not episodes with steps; they have image, label": [{"image": 1, "label": 2}],
        "a step lacks 'action'": [{"steps": without}],
        "corrupted record": [{"steps": first}, DataLossError("corrupted\nrecord")],
        "holds no episodes": [{"steps": []}],
    }
    for words, examples in cases.items():
        with pytest.raises(ValueError, match=rf"cannot be read as RLDS: .*{words}$"):
            open_reader(dataset(*examples), "rlds")


def test_a_damaged_or_empty_episode_is_rejected_and_the_others_are_read(dataset):
    first, second, third = made(np.random.default_rng(0))
    endless = [{name: value for name, value in step.items() if name != "is_terminal"} for step in second]
    stored = [{"steps": steps} for steps in ([], first, endless, *[third] * 6)]
    path = dataset(*stored, DataLossError("corrupted"))
    settings = FormatSettings(SpecOverrides(num_actions=4))
    found = load_episodes(path, "rlds", settings=settings)
    assert found.records["line"].tolist() == [2, 4, 5, 6, 7, 8, 9]
    assert [item.line for item in found.rejected] == [1, 3, 10]
    assert [item.reason for item in found.rejected] == [
        "an episode without steps", "a step lacks 'is_terminal'", "the split is damaged from here on (corrupted)",
    ]  # fmt: skip
