"""NumPy archives with D4RL's names, and contextual-bandit logs of Vowpal Wabbit."""

import gzip
import json
import pickle
import zipfile

import numpy as np
import pytest

from rbi.data.episode import Feature
from rbi.data.formats import FormatSettings, dsjson, load_episodes, recognise
from rbi.data.formats.reader import SpecOverrides
from rbi.data.importing import import_dataset


def d4rl(path, observations, ends, **more):
    """An archive; `ends` is one letter per step: - goes on, t terminal, c cut off."""
    rng = np.random.default_rng(0)
    columns = {
        "observations": observations, "actions": rng.integers(0, 3, len(ends)), "rewards": rng.normal(size=len(ends)),
        "terminals": np.array([end == "t" for end in ends]), "timeouts": np.array([end == "c" for end in ends]),
    }  # fmt: skip
    np.savez(path, **(columns | more))
    return columns | more


def test_an_archive_with_d4rls_names_has_the_episodes_that_its_ends_make(tmp_path):
    seen = np.random.default_rng(1).normal(size=(7, 3))
    made = d4rl(tmp_path / "a.npz", seen, "--t-c--", actions=np.array([[0], [2], [1], [0], [1], [0], [0]]))
    assert recognise(tmp_path / "a.npz") == "npz"
    found = load_episodes(tmp_path / "a.npz", settings=FormatSettings(SpecOverrides(env="Hopper-v5")))
    assert [(len(e), bool(e.terminated[-1]), e.source, e.line) for e in found] == [
        (3, True, "a.npz", 1), (2, False, "a.npz", 4),
    ]  # fmt: skip
    np.testing.assert_array_equal(found.arrays["observations"], np.float32(seen[:5]))
    np.testing.assert_array_equal(found.arrays["rewards"], np.float32(made["rewards"][:5]))
    assert found.arrays["actions"].tolist() == [0, 2, 1, 0, 1]
    assert (found.spec.num_actions, found.spec.env) == (3, "Hopper-v5")
    [item] = found.rejected
    assert (item.source, item.line) == ("a.npz", 6)
    assert "without end" in item.reason
    store, state = import_dataset(tmp_path / "a.npz", tmp_path / "store", progress=False)
    assert (len(store), state.rejected) == (2, 1)


def test_continuous_actions_of_an_archive_are_named(tmp_path):
    d4rl(tmp_path / "a.npz", np.zeros((3, 2)), "-tt", actions=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"actions of shape \(3, 2\): must be one number a step; continuous actions"):
        load_episodes(tmp_path / "a.npz")


def test_what_an_archive_has_of_the_behaviour_policy_is_read(tmp_path):
    probs, masks = np.tile([0.25, 0.0, 0.75], (3, 1)), np.tile([True, False, True], (3, 1))
    more = {"actions": [0, 2, 0], "action_probs": [0.25, 0.75, 0.25], "action_masks": masks, "behavior_probs": probs}
    d4rl(tmp_path / "a.npz", np.zeros((3, 2)), "-tt", **more)
    found = load_episodes(tmp_path / "a.npz")
    for name, values in more.items():
        np.testing.assert_array_equal(found.arrays[name], values)


def test_stacked_images_of_an_archive_keep_the_newest_frame_and_planes_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (steps + 3, 6, 7), np.uint8) for steps in (3, 2)]
    stacked = np.concatenate([np.stack([f[t : t + 4] for t in range(len(f) - 3)]) for f in frames])
    d4rl(tmp_path / "a.npz", stacked, "--t-t")
    found = load_episodes(tmp_path / "a.npz")
    np.testing.assert_array_equal(found.arrays["observations"], np.concatenate([f[3:] for f in frames]))
    planes = rng.integers(0, 2, (5, 2, 6, 7), np.uint8)
    d4rl(tmp_path / "b.npz", planes, "--t-t")
    found = load_episodes(tmp_path / "b.npz")
    assert (found.spec.obs_shape, found.spec.frame_stack) == ((6, 7, 2), 1)
    np.testing.assert_array_equal(found.arrays["observations"], planes.transpose(0, 2, 3, 1))


class Marker:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


def test_bad_archives_are_refused_in_one_line_and_nothing_is_unpickled(tmp_path):
    seen = np.zeros((2, 3))
    d4rl(tmp_path / "continuous.npz", seen, "-t", actions=np.array([0.5, 1.0]))
    d4rl(tmp_path / "objects.npz", seen, "-t", rewards=np.array([Marker(tmp_path / "ran"), 1], dtype=object))
    np.savez(tmp_path / "endless.npz", observations=seen, actions=[0, 1], rewards=[0, 1])
    (tmp_path / "cut.npz").write_bytes((tmp_path / "endless.npz").read_bytes()[:-40])
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("observations", "actions", "rewards", "terminals"):
            archive.writestr(f"{name}.npy", b"0" * 50_000_000)
    for name, told in {
        "continuous": "action 0.5", "objects": "pickle", "endless": "where episodes end", "cut": "cut", "bomb": "bomb",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=told) as caught:
            load_episodes(tmp_path / f"{name}.npz")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
    assert pickle.dumps(Marker(tmp_path))  # it could run


def event(index, cost, age, segment, actions=("mail", "call"), probability=0.5):
    context = {
        "User": {"age": age} | ({"segment": segment} if segment else {}),
        "_multi": [{"a": {"id": a}} for a in actions],
    }
    return {
        "_label_cost": cost, "_label_probability": probability, "_label_Action": index + 1, "_labelIndex": index,
        "Timestamp": "2026-01-01T00:00:00Z", "Version": "1", "EventId": "x", "a": [1, 2], "c": context, "p": [0.5, 0.5],
    }  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_decisions_of_dsjson_are_episodes_of_one_step(tmp_path, packed):
    lines = [
        event(0, -1.0, 31, "new"), event(1, 0.0, 22.5, "old", probability=0.25), event(0, -0.5, 40, "", ("call",)),
        {"RewardValue": 1.0, "EventId": "x"}, event(7, 0, 1, "new"), "broken",
    ]  # fmt: skip
    text = "\n".join(line if line == "broken" else json.dumps(line) for line in lines).encode()
    path = tmp_path / ("log.json.gz" if packed else "log.dsjson")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert recognise(path) == "dsjson"
    found = load_episodes(path)
    assert found.spec.features == (Feature("User.age", fill=31.0), Feature("User.segment", ("", "new", "old")))
    assert [json.loads(name)["a"]["id"] for name in found.spec.action_names] == ["call", "mail"]
    assert found.arrays["actions"].tolist() == [1, 0, 0]
    np.testing.assert_array_equal(found.arrays["rewards"], [1.0, 0.0, 0.5])
    np.testing.assert_array_equal(found.arrays["action_probs"], [0.5, 0.25, 0.5])
    assert found.arrays["action_masks"].tolist() == [[True, True], [True, True], [True, False]]
    np.testing.assert_array_equal(found.arrays["observations"][0], [31, 0, 1, 0])
    assert [item.line for item in found.rejected] == [4, 5, 6]


@pytest.mark.parametrize("place", [{"_labelIndex": 1}, {"_label_Action": 2}], ids=["from 0", "from 1"])
def test_the_action_of_a_decision_is_counted_from_0_or_from_1(place):
    entries = [{"a": {"id": "mail"}}, {"a": {"id": "call"}}]
    event = {"_label_cost": -1, "_label_probability": 0.8, "c": {"_multi": entries}} | place
    assert json.loads(dsjson.decision(event)["action"]) == entries[1]


def written(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_a_log_is_recognised_behind_outcomes_and_empty_lines_are_no_decisions(tmp_path):
    path = written(tmp_path / "log.json", {"RewardValue": 1.0, "EventId": "x"}, "", event(0, -1, 31, "new"), "")
    assert recognise(path) == "dsjson"
    found = load_episodes(path)
    assert found.records["line"].tolist() == [3]
    assert [item.line for item in found.rejected] == [1]


def test_a_damaged_archive_is_not_recognised(tmp_path):
    packed = gzip.compress(json.dumps(event(0, -1, 31, "new")).encode())
    (tmp_path / "log.json.gz").write_bytes(packed[:12] + b"\xff" * 20 + packed[32:])
    assert not dsjson.recognises(tmp_path / "log.json.gz")


def test_decisions_without_an_outcome_or_with_equal_actions_are_rejected(tmp_path):
    skipped, same = event(0, 0, 31, "new") | {"_skipLearn": True}, event(1, -1, 31, "new", ("mail", "mail"))
    learned = event(1, -1, 31, "new") | {"_skipLearn": False, "pdrop": 0.0}
    found = load_episodes(written(tmp_path / "log.dsjson", skipped, same, learned))
    assert found.records["line"].tolist() == [3]
    assert ["_skipLearn" in found.rejected[0].reason, "equal" in found.rejected[1].reason] == [True, True]


def test_a_sample_of_the_decisions_is_refused(tmp_path):
    path = written(tmp_path / "log.dsjson", event(0, -1, 31, "new"), event(0, 0, 31, "new") | {"pdrop": 0.9})
    with pytest.raises(ValueError, match=r"log\.dsjson, line 2: pdrop 0\.9: the log is a sample"):
        load_episodes(path)


def test_properties_with_an_underscore_are_no_features():
    entries = [{"a": {"id": "mail"}}, {"a": {"id": "call"}}]
    user = {"age": 31, "_id": "x", "parts": [{"_age": 1, "size": 2}]}
    context = {"User": user, "_synthetic": False, "_multi": entries}
    event = {"_label_cost": -1, "_label_probability": 0.8, "_labelIndex": 0, "c": context}
    assert dsjson.decision(event)["context"] == {"User.age": 31, "User.parts.0.size": 2}
