"""Checkpoints: whole or not at all, checked when they are read, one at a time."""

import pytest
import torch

from rbi import checkpoint, fileio
from rbi.checkpoint import Checkpoint


def make_checkpoint(value=1.0, **changes):
    parts = {
        "kind": {"env": "CartPole-v1", "algo": "rbi"},
        "counters": {"updates": 3},
        "tensors": {"tensors": {"vector": torch.full((4,), value)}, "replay": {"mass": torch.arange(5)}},
        "info": {"lines": 7},
    }
    return Checkpoint(**(parts | changes))


def test_what_was_saved_is_loaded(tmp_path):
    saved = make_checkpoint()
    loaded = checkpoint.load(checkpoint.save(tmp_path, 3, saved), {"algo": "rbi"})
    assert (loaded.kind, loaded.counters, loaded.info) == (saved.kind, saved.counters, saved.info)
    for group, tensors in saved.tensors.items():
        assert tensors.keys() == loaded.tensors[group].keys()
        assert all(torch.equal(tensor, loaded.tensors[group][name]) for name, tensor in tensors.items())


def test_a_new_checkpoint_replaces_the_older_one(tmp_path):
    for number in (3, 20):
        checkpoint.save(tmp_path, number, make_checkpoint(number))
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left == checkpoint.newest(tmp_path)
    assert checkpoint.load(left).tensors["tensors"]["vector"][0] == 20
    assert checkpoint.newest(tmp_path / "nothing") is None


@pytest.mark.parametrize("name", ["tensors.safetensors", "replay.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_named(name, damage, tmp_path):
    file = checkpoint.save(tmp_path, 0, make_checkpoint()) / name
    written = bytearray(file.read_bytes())
    file.unlink()
    if damage != "missing":
        written[-1] ^= 1
        file.write_bytes(written[: len(written) // 2] if damage == "truncated" else written)
    with pytest.raises(ValueError, match=name):
        checkpoint.load(checkpoint.newest(tmp_path))


def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    path = checkpoint.save(tmp_path, 0, make_checkpoint())
    with pytest.raises(ValueError, match="checkpoint of CartPole-v1, not of Acrobot-v1"):
        checkpoint.load(path, {"env": "Acrobot-v1"})


def test_a_changed_counter_is_damage(tmp_path):
    path = checkpoint.save(tmp_path, 0, make_checkpoint(counters={"updates": 3, "best": float("inf")}))
    assert checkpoint.load(path).counters["best"] == float("inf")
    state = path / checkpoint.STATE
    state.write_text(state.read_text().replace('"updates": 3', '"updates": 7'))
    with pytest.raises(ValueError, match=r"state\.json: is damaged"):
        checkpoint.load(path)


def test_a_file_outside_the_checkpoint_is_refused(tmp_path):
    path = checkpoint.save(tmp_path, 3, make_checkpoint())
    outside = tmp_path / "checkpoints" / "other.safetensors"
    outside.write_bytes((path / "tensors.safetensors").read_bytes())
    state = checkpoint.read_state(path)
    state["files"]["../other.safetensors"] = checkpoint.fingerprint(outside)
    fileio.write_json(path / checkpoint.STATE, checkpoint.with_checksum(state))
    with pytest.raises(ValueError, match=r"'\.\./other\.safetensors' is not the name of a file in this folder"):
        checkpoint.load(path)


def test_the_checksum_of_a_large_file_is_that_of_all_its_blocks(tmp_path):
    file, found = tmp_path / "large", []
    for first in (b"a", b"b"):
        file.write_bytes(first + bytes(1 << 24))
        found.append(checkpoint.fingerprint(file))
    assert found[0] != found[1]


class OneNumber:
    """A learner whose state is one number."""

    def __init__(self, value):
        self.updates, self.tensor = int(value), torch.tensor([float(value)])

    def state(self):
        return {"number": self.tensor}

    def generators(self):
        return []


def test_a_checkpoint_of_learners_is_never_written_over_the_previous_one(tmp_path):
    names = []
    for value in (4, 8):
        checkpoint.save_learners(tmp_path, {"q": OneNumber(value)}, {"lines": value})
        names.append(checkpoint.newest(tmp_path).name)
    assert names == ["0000000000", "0000000001"]
    learner = OneNumber(0)
    assert checkpoint.restore_learners(tmp_path, {"q": learner}) == {"lines": 8}
    assert (learner.updates, float(learner.tensor)) == (8, 8.0)
