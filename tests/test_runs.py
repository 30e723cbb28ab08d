"""Run folders: writes are atomic, and everything written is read back."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rbi import __version__, runs


def create(path, **changes):
    arguments = dict(command="rules", settings={"visits": 3}, seed=7, argv=["rules", "--visits", "3"])
    return runs.Writer.create(path, **(arguments | changes))


def test_what_is_written_is_read_back(tmp_path):
    with create(tmp_path / "a" / "run") as run:
        run.log(step=1, score=np.float32(0.5))
        run.log(step=2, score=math.nan)
        run.result({"pi": np.array([[0.25, 0.75]]), "ratio": math.inf, "q": torch.tensor([1.0, -math.inf])})
    read = runs.read(tmp_path / "a" / "run")
    assert (read.config["command"], read.config["seed"], read.config["settings"]) == ("rules", 7, {"visits": 3})
    assert read.config["argv"] == ["rules", "--visits", "3"]
    assert read.config["versions"]["rbi"] == __version__
    assert read.config["versions"]["torch"] == torch.__version__
    assert read.metrics[0] == {"step": 1, "score": 0.5}
    assert read.metrics[1] == {"step": 2, "score": None}
    assert read.result == {"pi": [[0.25, 0.75]], "ratio": math.inf, "q": [1.0, -math.inf]}


def test_strings_stay_strings(tmp_path):
    with create(tmp_path / "run", argv=["rules", "--advantage", "-inf"]) as run:
        run.log(label="nan")
    assert runs.read(tmp_path / "run").config["argv"] == ["rules", "--advantage", "-inf"]
    assert runs.read(tmp_path / "run").metrics == [{"label": "nan"}]


def test_files_are_standard_json(tmp_path):
    with create(tmp_path / "run") as run:
        run.result({"ratio": math.inf, "mean": math.nan})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refuse)


def test_an_unfinished_run_has_no_result(tmp_path):
    create(tmp_path / "run").close()
    assert runs.read(tmp_path / "run").result is None


def test_an_earlier_run_is_not_overwritten_unless_asked(tmp_path):
    with create(tmp_path / "run") as run:
        run.result({"x": 1})
    with pytest.raises(ValueError, match=r"run: is not empty; choose another folder or pass --overwrite$"):
        create(tmp_path / "run")
    create(tmp_path / "run", overwrite=True).close()
    assert runs.read(tmp_path / "run").result is None


@pytest.mark.parametrize("name", ["thesis.tex", "figures/thesis.png", "figures/notes/a.txt"])
@pytest.mark.parametrize("is_run", [True, False])
def test_overwriting_never_removes_what_no_run_wrote(tmp_path, name, is_run):
    if is_run:
        create(tmp_path / "run").close()
    precious = tmp_path / "run" / name
    precious.parent.mkdir(parents=True, exist_ok=True)
    precious.write_text("years of work")
    with pytest.raises(ValueError, match=r"is not a file of a run|is not a run folder"):
        create(tmp_path / "run", overwrite=True)
    assert precious.read_text() == "years of work"


def test_overwriting_works_through_links_from_inside_and_after_a_kill(tmp_path, monkeypatch):
    create(tmp_path / "real").close()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / ".result.json.123.tmp").write_text('{"torn')
    with create(tmp_path / "link", overwrite=True, seed=8) as run:
        run.result({})
    assert runs.read(tmp_path / "real").config["seed"] == 8
    monkeypatch.chdir(tmp_path / "real")
    create(Path(), overwrite=True, seed=9).close()
    assert runs.read(tmp_path / "real").config["seed"] == 9
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_an_earlier_run_survives_a_new_one_that_cannot_start(tmp_path):
    with create(tmp_path / "run") as run:
        run.result({"x": 1})
    loop = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        create(tmp_path / "run", settings={"loop": loop}, overwrite=True)
    assert runs.read(tmp_path / "run").result == {"x": 1}


def test_an_empty_folder_may_be_used_and_a_file_may_not(tmp_path):
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file: is a file, not a folder for a run$"):
        create(tmp_path / "file")


def test_a_folder_that_cannot_be_created_leaves_nothing_behind(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        create(tmp_path / "run", settings={"loop": loop})
    assert list(tmp_path.iterdir()) == []


def test_a_torn_last_metric_line_is_dropped_and_removed_on_reopening(tmp_path):
    with create(tmp_path / "run") as run:
        run.log(step=1)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "sco')
    assert runs.read(tmp_path / "run").metrics == [{"step": 1}]
    with runs.Writer.reopen(tmp_path / "run") as run:
        run.log(step=2)
    assert runs.read(tmp_path / "run").metrics == [{"step": 1}, {"step": 2}]


def test_a_damaged_file_is_named_with_its_line(tmp_path):
    create(tmp_path / "run").close()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n{"step": }\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2: is not JSON"):
        runs.read(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: holds list, not an object"):
        runs.read(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    (tmp_path / "run" / "result.json").write_bytes(b'{"x": "\xff"}')
    with pytest.raises(ValueError, match=r"result.json, byte 7: is not UTF-8 text"):
        runs.read(tmp_path / "run")
    with pytest.raises(ValueError, match=r"is not a run folder \(it has no config.json\)"):
        runs.read(tmp_path)


def test_a_killed_run_leaves_only_complete_files(tmp_path):
    """A process that writes without pause is killed with SIGKILL at several moments; what is there must be readable."""
    script = """
import sys, itertools
from pathlib import Path
from rbi import runs
run = runs.Writer.create(Path(sys.argv[1]), command="test", settings={}, seed=0, argv=[])
print("ready", flush=True)
for step in itertools.count():
    run.log(step=step, text="x" * 5000)
    run.result({"step": step, "text": "y" * 200_000})
"""
    for attempt in range(4):
        path = tmp_path / str(attempt)
        process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        while not (path / "result.json").exists():
            time.sleep(0.001)
        time.sleep(0.03 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        read = runs.read(path)
        assert [m["step"] for m in read.metrics] == list(range(len(read.metrics)))
        assert read.result["text"] == "y" * 200_000
        assert abs(read.result["step"] - read.metrics[-1]["step"]) <= 1


def test_an_interrupted_folder_is_restored(tmp_path):
    for name in (".best.12.old.tmp", ".best.12.tmp", ".last.12.tmp", ".last.12.old.tmp", "last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "whose").write_text(name)
    runs.restore_interrupted(tmp_path)
    assert {p.name: (p / "whose").read_text() for p in tmp_path.iterdir()} == {
        "best": ".best.12.old.tmp",
        "last": "last",
    }


def test_an_atomic_folder_appears_only_when_it_is_complete(tmp_path):
    with runs.atomic_folder(tmp_path / "it") as growing:
        (growing / "a").write_text("first")
    with contextlib.suppress(KeyError), runs.atomic_folder(tmp_path / "it") as growing:
        (growing / "a").write_text("second")
        raise KeyError
    assert (tmp_path / "it" / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["it"]
