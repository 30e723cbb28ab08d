"""Mirrors of run folders: a copy counts when it is whole, and a run continues from it when its machine is lost."""

import shutil
import sys
import uuid

import pytest
import torch

from rbi import checkpoint, cli, fileio, runs
from rbi.checkpoint import Checkpoint
from rbi.mirror import KEPT_COPIES, MANIFEST, Mirror
from rbi.online.train import run_settings, train
from tests.online.small_runs import small_config

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    return f"file://{tmp_path}/storage/run" if request.param == "file" else f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def run(tmp_path):
    """A run folder without a checkpoint."""
    path = tmp_path / "here" / "run"
    runs.Writer.create(path, command="train", settings={}, seed=0, argv=[]).close()
    return path


def save(run, number):
    checkpoint.save(run, number, Checkpoint({}, {"updates": number}, {"tensors": {"w": torch.full((2,), number)}}))


def saved(run):
    newest = checkpoint.newest(run)
    return newest and checkpoint.load(newest).counters["updates"]


def damage(mirror, number, name, data=b"torn"):
    mirror.files.pipe_file(mirror.path(number, name), data)


def test_a_lost_folder_is_restored_from_the_newest_copy(url, run):
    (run / ".config.json.1-abcdef.tmp").write_text("unfinished")
    for number in (10, 20):
        save(run, number)
        Mirror(url).upload(run)
    files = sorted(file.relative_to(run) for file in run.rglob("*") if not file.name.startswith("."))
    shutil.rmtree(run)
    assert "restored from" in Mirror(url).restore(run)
    assert saved(run) == 20
    assert sorted(file.relative_to(run) for file in run.rglob("*")) == files


def test_a_url_that_cannot_be_written_to_is_refused_before_training(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise ValueError("access denied")

    monkeypatch.setattr(Mirror, "upload", denied)
    reports = []
    options = {"progress": False, "device": "cpu", "callback": reports.append}
    with pytest.raises(ValueError, match="access denied"):
        train(config=small_config(), out=tmp_path / "run", mirror=f"file://{tmp_path}/storage", **options)
    assert not reports


def test_a_folder_with_the_checkpoint_of_the_copy_is_left_as_it_is(url, run):
    save(run, 10)
    Mirror(url).upload(run)
    (run / "notes.txt").write_text("written since")
    assert Mirror(url).restore(run) == ""
    assert (run / "notes.txt").is_file()


def test_the_settings_to_resume_with_are_those_that_a_restored_folder_has(tmp_path):
    run, url = tmp_path / "run", f"file://{tmp_path}/storage"
    settings = run_settings(small_config(), None) | {"engine": "local"}
    runs.Writer.create(run, command="train", settings=settings, seed=3, argv=[]).close()
    save(run, 10)
    shutil.copytree(run, tmp_path / "behind")
    runs.save_changed_settings(run, {"schedule": {"updates": 400, "env_threads": 0}})
    save(run, 20)
    Mirror(url).upload(run)
    save(run, 30)
    runs.save_changed_settings(run, {"schedule": {"updates": 500, "env_threads": 0}})
    for name, updates in (("behind", 400), ("lost", 400), ("run", 500)):
        found = cli.parse(["train", "--resume", "--mirror", url, "--out", str(tmp_path / name)])
        assert (found.schedule.updates, found.seed) == (updates, 3)
    assert not (tmp_path / "lost").exists()  # parsing restores nothing


def test_the_lock_of_a_run_is_not_copied(url, run):
    save(run, 10)
    with runs.lock_run(run):
        assert (run / fileio.LOCK).exists()
        Mirror(url).upload(run)
    shutil.rmtree(run)
    Mirror(url).restore(run)
    assert not (run / fileio.LOCK).exists()


def test_a_bounded_number_of_copies_is_kept(url, run):
    mirror = Mirror(url)
    for number in range(5):
        save(run, number)
        mirror.upload(run)
    assert mirror.numbers() == [4, 5]
    assert len(mirror.numbers()) == KEPT_COPIES
    mirror.upload(run, keep=1)
    assert mirror.numbers() == [6]


def test_a_torn_upload_is_not_a_copy(url, run, monkeypatch):
    mirror = Mirror(url)
    save(run, 10)
    mirror.upload(run)
    save(run, 20)

    def fail(*_):
        raise OSError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(mirror.files, "pipe_file", fail)
        with pytest.raises(ValueError, match=r"--mirror .*: OSError: the machine is gone"):
            mirror.upload(run)
    assert mirror.numbers() == [1, 2]
    shutil.rmtree(run)
    mirror.restore(run)
    assert saved(run) == 10
    save(run, 30)
    mirror.upload(run)
    assert mirror.numbers() == [1, 3]  # what was left of the torn one is gone, too


@pytest.mark.parametrize("name", [MANIFEST, "config.json"])
def test_a_damaged_copy_is_passed_over_and_named(name, url, run):
    mirror = Mirror(url)
    for number in (10, 20):
        save(run, number)
        mirror.upload(run)
    shutil.rmtree(run)
    damage(mirror, 2, name)
    assert f"copy-00000002/{name}: is damaged" in mirror.restore(run)
    assert saved(run) == 10
    shutil.rmtree(run)
    damage(mirror, 1, name)
    with pytest.raises(ValueError, match=f"{name}: is damaged.*no other copy"):
        mirror.restore(run)
    assert not run.exists()


def test_a_missing_file_is_named(url, run):
    mirror = Mirror(url)
    mirror.upload(run)
    mirror.files.rm(mirror.path(1, "config.json"))
    shutil.rmtree(run)
    with pytest.raises(ValueError, match=r"copy-00000001/config\.json: is missing"):
        mirror.restore(run)


def test_a_copy_cannot_write_outside_the_run_folder(url, run):
    mirror = Mirror(url)
    manifest = checkpoint.with_checksum({"checkpoint": "", "files": {"../evil": [4, 0]}})
    damage(mirror, 1, MANIFEST, fileio.to_json(manifest).encode())
    shutil.rmtree(run)
    with pytest.raises(ValueError, match="is not the name of a file in a run folder"):
        mirror.restore(run)


def test_the_folder_or_the_copy_with_the_newer_checkpoint_counts(url, run):
    mirror = Mirror(url)
    save(run, 10)
    mirror.upload(run)
    save(run, 20)
    assert mirror.restore(run) == ""
    assert saved(run) == 20
    mirror.upload(run)
    shutil.rmtree(run / "checkpoints")
    mirror.restore(run)
    assert saved(run) == 20


def test_another_run_is_never_replaced(url, run, tmp_path):
    mirror = Mirror(url)
    save(run, 10)
    mirror.upload(run)
    other = tmp_path / "other"
    runs.Writer.create(other, command="train", settings={}, seed=1, argv=[]).close()
    with pytest.raises(ValueError, match="is of another run than"):
        mirror.restore(other)
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty"):
        mirror.restore(documents)
    assert (documents / "thesis.txt").read_text() == "mine"


def test_a_run_whose_updates_were_changed_is_still_the_run_of_its_copies(url, tmp_path):
    run, mirror = tmp_path / "run", Mirror(url)
    settings = {"schedule": {"updates": 40, "env_threads": 0, "num_envs": 8}}
    runs.Writer.create(run, command="train", settings=settings, seed=0, argv=[]).close()
    save(run, 40)
    mirror.upload(run)
    shutil.copytree(run, tmp_path / "behind")
    runs.save_changed_settings(run, {"schedule": {"updates": 400, "env_threads": 0}})
    assert mirror.restore(run) == ""
    save(run, 80)
    mirror.upload(run)
    assert "restored from" in mirror.restore(tmp_path / "behind")
    assert runs.read(tmp_path / "behind").config["settings"]["schedule"] == settings["schedule"] | {"updates": 400}


def test_nothing_to_restore_is_an_error(url, tmp_path):
    with pytest.raises(ValueError, match="has no complete copy of a run"):
        Mirror(url).restore(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("bucket/run", "--mirror bucket/run: is not a URL"),
        ("nonsense://bucket/run", "--mirror nonsense://bucket/run: cannot be used; Protocol not known"),
    ],
)
def test_a_bad_url_is_named(url, message):
    with pytest.raises(ValueError, match=message):
        Mirror(url)


def test_a_missing_fsspec_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ValueError, match=r"pip install 'rbi\[mirror\]'"):
        Mirror("memory://run")


def test_a_missing_package_of_a_protocol_is_named(monkeypatch):
    def url_to_fs(_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", url_to_fs)
    with pytest.raises(ValueError, match="--mirror s3://bucket/run: Install s3fs"):
        Mirror("s3://bucket/run")


def test_a_training_run_continues_from_its_mirror_on_another_machine(url, tmp_path):
    config = small_config()
    stop = {"callback": lambda metrics: metrics["updates"] < 30, "report_interval": 10, "eval_episodes": 0}
    first = train(config=config, out=tmp_path / "here", mirror=url, progress=False, **stop)
    assert first.stopped
    shutil.rmtree(tmp_path / "here")
    elsewhere = tmp_path / "elsewhere"
    second = train(config=config, out=elsewhere, mirror=url, resume=True, progress=False, eval_episodes=0)
    assert second.updates == 60
    assert runs.read(elsewhere).result["resumed"]["times"] == 1
    shutil.rmtree(elsewhere)
    Mirror(url).restore(elsewhere)
    assert runs.read(elsewhere).result["last"]["updates"] == 60
    with pytest.raises(ValueError, match="has a copy of a run; --resume continues it"):
        train(config=config, out=tmp_path / "new", mirror=url, progress=False, eval_episodes=0)
    assert not (tmp_path / "new").exists()


def test_a_run_whose_mirror_fails_continues(tmp_path, monkeypatch, capsys):
    def upload(*_, keep=KEPT_COPIES):
        if keep > 1:  # the first one, before training, has succeeded
            raise ValueError("--mirror memory://x: the network is down")

    monkeypatch.setattr(Mirror, "upload", upload)
    done = train(config=small_config(), out=tmp_path / "run", mirror=f"memory://{uuid.uuid4().hex}", progress=False)
    assert done.updates == 60
    assert "the network is down" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_restores_settings_and_folder_from_the_mirror(tmp_path, capsys):
    url = f"file://{tmp_path}/storage"
    small = ["--schedule.num-envs", "8", "--schedule.learning-starts", "64", "--schedule.hidden-size", "16"]
    ask = ["train", "CartPole-v1", "--mirror", url, "--eval-episodes", "0", "--out"]
    assert cli.main([*ask, str(tmp_path / "a"), *small, "--schedule.updates", "20"]) == 0
    assert cli.main([*ask, str(tmp_path / "b"), "--resume", "--schedule.updates", "40"]) == 0
    assert "restored from" in capsys.readouterr().err
    assert runs.read(tmp_path / "b").result["last"]["updates"] == 40
    assert cli.main([*ask, str(tmp_path / "c"), "--seeds", "2"]) == cli.USAGE_ERROR
    assert cli.main(["train", "CartPole-v1", "--out", url]) == cli.USAGE_ERROR
    assert "the URL with --mirror" in capsys.readouterr().err
