"""Run folders: writes are atomic, and everything written is read back."""

import contextlib
import dataclasses
import json
import math
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from rbi import __version__, fileio, runs


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
    with pytest.raises(
        ValueError, match=r"run: is not empty; choose another folder or pass --overwrite \(Python: overwrite=True\)$"
    ):
        create(tmp_path / "run")
    with pytest.raises(ValueError, match="overwrite = 'no': must be True or False"):
        create(tmp_path / "run", overwrite="no")
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


def test_lines_before_and_after_a_damaged_one_are_read_and_it_is_named(tmp_path):
    create(tmp_path / "run").close()
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_bytes(b'{"step": 1}\n{"step": {"step": 2}\n[3]\n\xff\n{"step": 5}\n{"step": 6}\n')
    run = runs.read(tmp_path / "run")
    assert run.metrics == [{"step": 1}, {"step": 5}, {"step": 6}]
    assert [line.split(": ")[0] for line in run.damaged] == [f"{metrics}, line {number}" for number in (2, 3, 4)]
    runs.Writer.reopen(tmp_path / "run", lines=5).close()  # a checkpoint counts the lines that were written
    assert runs.read(tmp_path / "run").metrics == [{"step": 1}, {"step": 5}]


@pytest.mark.parametrize("error", [None, OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_metric_line_is_written_whole_or_not_at_all(tmp_path, monkeypatch, error):
    real, calls = os.write, []

    def short_write(file, data):
        calls.append(data)
        if error is not None and len(calls) == 3:
            raise error
        return real(file, data[:4])

    with create(tmp_path / "run") as run:
        run.log(step=1)
        monkeypatch.setattr(os, "write", short_write)
        with contextlib.suppress(OSError, KeyboardInterrupt):
            run.log(step=2)
        monkeypatch.undo()
        run.log(step=3)
    steps = [{"step": 1}, {"step": 2}, {"step": 3}] if error is None else [{"step": 1}, {"step": 3}]
    assert runs.read(tmp_path / "run") == dataclasses.replace(runs.read(tmp_path / "run"), metrics=steps, damaged=())


HOLDS = """
import os, sys, time
from pathlib import Path
from rbi import fileio, runs
run = runs.Writer.create(Path(sys.argv[1]), command="rules", settings={}, seed=0, argv=[])
run.log(step=1)
if os.fork() == 0:
    print("ready", flush=True)
time.sleep(60)
"""


def test_a_live_run_keeps_others_out_until_its_process_is_gone(tmp_path):
    path = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", HOLDS, path], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"ready\n"
    for attempt in (lambda: runs.Writer.reopen(path), lambda: create(path, overwrite=True)):
        with pytest.raises(ValueError, match=rf"another process is writing to this run \(process {process.pid} on "):
            attempt()
    assert runs.read(path).metrics == [{"step": 1}]
    process.kill()  # its child lives on, which does not matter
    process.wait()
    with runs.Writer.reopen(path) as run:
        run.log(step=2)
    assert runs.read(path).metrics == [{"step": 1}, {"step": 2}]
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()


def test_a_lock_whose_text_names_a_living_process_does_not_block(tmp_path):
    """Containers reuse process ids: only the lock itself counts."""
    create(tmp_path / "run").close()
    holder = {"process": os.getppid(), "host": platform.node(), "since": "2026-01-01"}
    (tmp_path / "run" / fileio.LOCK).write_text(json.dumps(holder))
    runs.Writer.reopen(tmp_path / "run").close()
    create(tmp_path / "run", overwrite=True).close()
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"config.json", "metrics.jsonl"}


def test_an_overwritten_run_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    with create(tmp_path / "run") as run:
        run.result({"x": 1})
    real = Path.replace

    def fail(self, target):
        if target == tmp_path / "run" and ".old." not in self.name:
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        create(tmp_path / "run", overwrite=True)
    assert runs.read(tmp_path / "run").result == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_run_that_was_moved_aside_when_its_successor_was_killed_comes_back(tmp_path):
    with create(tmp_path / "run") as run:
        run.result({"x": 1})
    aside = fileio.temporary_name(tmp_path / "run", old=True)
    (tmp_path / "run").replace(aside)
    (aside / fileio.LOCK).write_text("")  # as the killed process held it
    with pytest.raises(ValueError, match="is not empty"):
        create(tmp_path / "run")
    assert runs.read(tmp_path / "run").result == {"x": 1}


def test_what_killed_processes_left_is_removed_and_never_blocks(tmp_path, monkeypatch):
    leftover = tmp_path / f".run.{os.getpid()}.tmp"
    leftover.mkdir()
    (leftover / "config.json").write_text("{}")
    live = fileio.temporary_name(tmp_path / "other")
    live.mkdir()
    lock = fileio.RunLock(live)
    create(tmp_path / "run").close()
    assert leftover.exists()  # it may belong to a process that has just started
    monkeypatch.setattr(fileio, "LEFTOVER_SECONDS", -1)
    create(tmp_path / "run", overwrite=True).close()
    assert {p.name for p in tmp_path.iterdir()} == {"run", live.name}
    lock.release()
    for name in (".result.json.12.tmp", "figures/.a.png.12-0a0b0c.tmp", "policies/.best.12-0a0b0c.tmp"):
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("torn")
    runs.Writer.reopen(tmp_path / "run").close()
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_commands_that_start_together_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len({runs.default_folder("train") for _ in range(100)}) == 100


def test_a_loop_of_links_is_named(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match="loop"):
        create(tmp_path / "loop" / "run")


def test_a_damaged_file_is_named_with_its_line(tmp_path):
    create(tmp_path / "run").close()
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
from rbi import fileio, runs
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


def test_an_error_of_writing_names_what_is_written_and_not_its_temporary_name(tmp_path, monkeypatch):
    def fill(path, *_):
        raise OSError(28, "No space left on device", str(path))

    named = f"No space left on device: {str(tmp_path / 'run')!r}$"
    with pytest.raises(OSError, match=named):
        fileio.atomic_write(tmp_path / "run", fill)
    with pytest.raises(OSError, match=named), fileio.atomic_folder(tmp_path / "run") as growing:
        fill(growing / "weights")
    monkeypatch.setattr(fileio, "write_json", fill)
    with pytest.raises(OSError, match=named):
        create(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def check_resumable(run, settings, **options):
    defaults = {"learner": {"clip": 5.0, "batch_size": 9}}
    return runs.check_resumable(run, command="rules", settings=settings, seed=7, defaults=defaults, **options)


def test_a_run_of_a_version_without_a_setting_resumes_with_its_default(tmp_path):
    before, now = {"learner": {"batch_size": 32}}, {"learner": {"batch_size": 32, "clip": 5.0}, "notes": None}
    run = tmp_path / "run"
    create(run, settings=before).close()
    assert check_resumable(run, before) == ""
    assert check_resumable(run, now).endswith("; continues with learner.clip = 5.0, notes = None")
    other = {"learner": {"batch_size": 32, "clip": 6.0}}
    with pytest.raises(ValueError, match=r"was started without learner\.clip, that is, with 5\.0, not 6\.0"):
        check_resumable(run, other)
    assert check_resumable(run, other, may_change=["learner.clip"]) == ""
    runs.save_changed_settings(run, now)
    assert runs.read(run).config["settings"] == now
    assert check_resumable(run, now) == ""


def test_a_setting_that_there_is_no_more_is_named_with_what_to_do(tmp_path):
    create(tmp_path / "run", settings={"learner": {"batch_sise": 32}}).close()
    with pytest.raises(
        ValueError,
        match=r"config\.json: learner\.batch_sise = 32 is not a setting of rbi .*; rename or remove it there to "
        r"resume, or use the version of the start; did you mean learner\.batch_size\?$",
    ):
        check_resumable(tmp_path / "run", {"learner": {"batch_size": 9}})


def test_a_run_is_the_same_after_a_version_with_more_settings_has_resumed_it():
    old, new = ({"started": 1, "settings": {"learner": learner}} for learner in ({"clip": 5}, {"clip": 5, "size": 9}))
    assert runs.is_same_run(old, new)
    assert not runs.is_same_run(old | {"started": 2}, new)
    assert not runs.is_same_run({"settings": old["settings"]}, new)
    assert not runs.is_same_run(old | {"settings": {"learner": {"clip": 6}}}, new)


def test_a_figure_that_cannot_be_written_is_an_os_error_and_leaves_no_file(tmp_path):
    """Matplotlib's writer of PDFs raises an AttributeError in its place."""
    figure = Figure()
    figure.subplots().set_title("".join(map(chr, range(ord("A"), ord("z")))))  # its font is larger than a buffer
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with create(tmp_path / "run") as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                writer.figure("lines", figure)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "run" / "figures").iterdir()) == []


def test_files_of_a_run_have_the_permissions_that_the_umask_asks_for(tmp_path):
    """In a folder of a group, its other members resume the run."""
    before = os.umask(0o002)
    try:
        with create(tmp_path / "run") as run:
            run.log(step=1)
            run.result({})
            modes = {p.name: oct(p.stat().st_mode & 0o777) for p in run.path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys([".lock", "config.json", "metrics.jsonl", "result.json"], "0o664")
