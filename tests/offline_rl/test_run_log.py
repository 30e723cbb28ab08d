"""`RunLog`: what a folder holds after a stop, and whether a run may go on from it."""

import dataclasses
import os

import numpy as np
import pytest
import torch

from rbi import runs
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.offline_rl.run_log import RunLog, fingerprint
from tests.data.episodes import episode

SETTINGS = {"updates": 10}


class Learner:
    """A learner of one weight."""

    def __init__(self, updates=0):
        self.updates, self.weight = updates, torch.full((1,), float(updates))

    def state(self):
        return {"weight": self.weight}

    def generators(self):
        return []


def started(path, *, lines_before_checkpoint, lines_after=0, data="same"):
    """A run that was stopped: some lines of metrics, a checkpoint if there are any before it, and more lines."""
    with RunLog(path, None, progress=False) as log:
        assert not log.check_folder("improve", SETTINGS, 0, {})
        log.state = {"lines": 0, "data": data}
        log.open({"learner": Learner()})
        for number in range(lines_before_checkpoint):
            log.metric(number=number)
        if lines_before_checkpoint:
            log.save({"learner": Learner(5)})
        for number in range(lines_after):
            log.metric(number=-number)
    return path


def resumed(path, state, learner):
    with RunLog(path, None, progress=False, resume=True) as log:
        assert not log.check_folder("improve", SETTINGS, 0, {})
        log.state = state
        log.open({"learner": learner})
    return log


@pytest.mark.parametrize("before", [0, 2])
def test_metrics_after_the_last_checkpoint_are_forgotten(tmp_path, before):
    path, learner = started(tmp_path / "run", lines_before_checkpoint=before, lines_after=3), Learner()
    log = resumed(path, {"lines": 0, "data": "same"}, learner)
    assert log.metrics == runs.read(path).metrics == [{"number": number} for number in range(before)]
    assert learner.updates == learner.weight.item() == (5 if before else 0)


def test_a_checkpoint_of_other_data_or_of_another_version_is_refused(tmp_path):
    path = started(tmp_path / "run", lines_before_checkpoint=1)
    with pytest.raises(ValueError, match="the data has changed since the run"):
        resumed(path, {"lines": 0, "data": "other"}, Learner())
    with pytest.raises(ValueError, match="its checkpoint lacks 'best'"):
        resumed(path, {"lines": 0, "data": "same", "best": {}}, Learner())


@pytest.mark.parametrize(("out", "overwrite"), [(None, False), ("run", True)])
def test_a_resume_names_its_run_and_does_not_overwrite_it(tmp_path, out, overwrite):
    log = RunLog(out and tmp_path / out, None, resume=True, overwrite=overwrite)
    with pytest.raises(ValueError, match="name the stopped run with --out, without --overwrite"):
        log.check_folder("improve", SETTINGS, 0, {})


@pytest.mark.parametrize("name", ["actions", "rewards"])
def test_other_actions_or_rewards_in_memory_are_other_data(name):
    one = episode(np.random.default_rng(0), 5)
    other = dataclasses.replace(one, **{name: (getattr(one, name) + 1) % 4})
    before, same, changed = (
        fingerprint(Dataset.from_episodes([each], DatasetSpec((3,), 4))) for each in (one, one, other)
    )
    assert before == same != changed


def test_a_file_of_another_size_or_time_is_other_data(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("a")
    before, time = fingerprint(file), file.stat().st_mtime_ns
    file.write_text("ab")
    os.utime(file, ns=(time, time))
    assert fingerprint(file) != before
    file.write_text("a")
    os.utime(file, ns=(time, time + 1))
    assert fingerprint(file) != before
    os.utime(file, ns=(time, time))
    assert fingerprint(file) == before
