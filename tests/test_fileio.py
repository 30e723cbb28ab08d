"""Files and folders appear whole or not at all."""

import contextlib
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from rbi import fileio


@pytest.fixture
def disk_events(monkeypatch):
    """Flushes and renames in their order, with the inode of the file or folder."""
    events, fsync, replace = [], os.fsync, Path.replace

    def watched_fsync(file):
        fsync(file)
        events.append(("fsync", os.fstat(file).st_ino))

    def watched_replace(self, target):
        events.append(("replace", self.stat().st_ino))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    return events


def test_files_of_an_atomic_folder_have_the_permissions_that_the_umask_asks_for(tmp_path):
    """A policy that one user saves is loaded by another."""
    before = os.umask(0o027)
    try:
        with fileio.atomic_folder(tmp_path / "policy") as folder:
            save_file({"weights": torch.zeros(1)}, folder / "weights.safetensors")
            (folder / "policy.json").write_text("{}")
    finally:
        os.umask(before)
    modes = {p.name: oct(p.stat().st_mode & 0o777) for p in (tmp_path / "policy").iterdir()}
    assert modes == {"weights.safetensors": "0o640", "policy.json": "0o640"}


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, disk_events):
    fileio.write_json(tmp_path / "a.json", {"x": 1})
    written = (tmp_path / "a.json").stat().st_ino
    assert disk_events[:2] == [("fsync", written), ("replace", written)]


def test_all_files_of_a_folder_are_on_disk_before_it_gets_its_name(tmp_path, disk_events):
    with fileio.atomic_folder(tmp_path / "policy") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "weights").write_bytes(b"1")
        (folder / "policy.json").write_text("{}")
    named = disk_events.index(("replace", (tmp_path / "policy").stat().st_ino))
    for name in ("deep/weights", "policy.json"):
        assert ("fsync", (tmp_path / "policy" / name).stat().st_ino) in disk_events[:named]


def test_a_file_whose_writing_fails_keeps_its_earlier_content(tmp_path):
    def fail(path):
        path.write_text("half of i")
        raise OSError(28, "No space left on device")

    (tmp_path / "a").write_text("earlier")
    with pytest.raises(OSError, match="No space"):
        fileio.atomic_write(tmp_path / "a", fail)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "earlier"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_cannot_be_written_is_named(tmp_path):
    def write(path):
        path.symlink_to("/dev/full")
        path.write_text("more than there is space for")

    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"):
        fileio.atomic_write(tmp_path / "a", write)
    with pytest.raises(OSError, match=f"{tmp_path}/b: no space"), fileio.atomic_folder(tmp_path / "b"):
        raise SafetensorError("no space")


def test_an_interrupted_folder_is_restored(tmp_path):
    for name in (".best.12.old.tmp", ".best.12.tmp", ".last.12.tmp", ".last.12.old.tmp", "last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "whose").write_text(name)
    fileio.restore_interrupted(tmp_path, locked=True)
    assert {p.name: (p / "whose").read_text() for p in tmp_path.iterdir()} == {
        "best": ".best.12.old.tmp",
        "last": "last",
    }


def test_an_atomic_folder_appears_only_when_it_is_complete(tmp_path):
    with fileio.atomic_folder(tmp_path / "it") as growing:
        (growing / "a").write_text("first")
    with contextlib.suppress(KeyError), fileio.atomic_folder(tmp_path / "it") as growing:
        (growing / "a").write_text("second")
        raise KeyError
    assert (tmp_path / "it" / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["it"]
