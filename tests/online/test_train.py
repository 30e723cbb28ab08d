"""`rbi.train` and `sweep` from Python: results, run folders, resuming, callbacks, factories and custom trunks."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import rbi
from rbi import checkpoint, runs
from rbi.online.config import TrainConfig
from rbi.online.run_logger import RunOptions
from rbi.online.sweep import run_remotely, sweep
from rbi.online.train import Local, find_checkpoint, load_config, train
from tests.online.small_runs import TINY

QUIET = {"progress": False, "device": "cpu"}
SHORT = TINY | {"updates": 40, "eval_episodes": 3, "report_interval": 10}


def without_seconds(metrics):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in metrics]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    return train("CartPole-v1", out=out, seed=3, **SHORT, **QUIET)


def test_a_run_returns_its_policy_metrics_and_scores(trained):
    assert [line["updates"] for line in trained.metrics] == [10, 20, 30, 40]
    assert len(trained.scores) == 3
    assert trained.policy.predict_proba(np.zeros((2, 4))).sum(1) == pytest.approx(1)
    assert (trained.updates, trained.env, trained.algo, trained.seed) == (40, "CartPole-v1", "rbi", 3)
    assert not trained.stopped
    assert repr(trained).startswith("TrainResult(rbi on CartPole-v1, 40 updates, ")
    assert "mean" in trained.summary()


def test_a_run_folder_holds_everything(trained):
    run = runs.read(trained.path)
    assert run.metrics == trained.metrics
    assert run.result["evaluation"]["scores"] == trained.scores
    assert list((trained.path / "tensorboard").glob("events*"))
    assert rbi.load_policy(trained.path / "policies" / "last").metadata["updates"] == 40
    assert load_config(trained.path).schedule.updates == 40


def test_tensorboard_has_the_metrics(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(trained.path / "tensorboard"))
    board.Reload()
    written = {event.step: event.value for event in board.Scalars("q")}
    assert written == pytest.approx({line["updates"]: line["q"] for line in trained.metrics})


def test_without_a_folder_nothing_is_left_on_disk_and_the_result_is_the_same(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    again = train("CartPole-v1", seed=3, **SHORT, **QUIET)
    assert not list(tmp_path.iterdir())
    assert again.path is None
    assert again.scores == trained.scores
    assert without_seconds(again.metrics) == without_seconds(trained.metrics)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "tests.games:Catch-v0"])
def test_100_frames_end_to_end(algo, env):
    """Vectors, discrete states, tuples of them and images, from the first step to the evaluation."""
    tiny = {"num_envs": 4, "learning_starts": 40, "updates": 4, "batch_size": 8, "updates_per_sample": 2}
    tiny |= {"target_update_interval": 2, "publish_interval": 2, "states_per_update": 15.0, "capacity": 400}
    result = train(env, algo, **tiny, hidden_size=8, eval_episodes=1, **QUIET)
    assert result.states >= 100
    assert result.updates == 4
    assert len(result.scores) == 1


def test_an_interrupted_run_resumes_to_the_last_bit(trained, tmp_path):
    stopped = train("CartPole-v1", out=tmp_path / "run", seed=3, callback=lambda _: False, **SHORT, **QUIET)
    assert stopped.stopped
    assert stopped.updates == 10
    resumed = train(out=tmp_path / "run", seed=3, resume=True, eval_episodes=3, report_interval=10, **QUIET)
    assert without_seconds(resumed.metrics) == without_seconds(trained.metrics)
    assert resumed.scores == trained.scores
    weights, expected = (r.policy.networks.state_dict() for r in (resumed, trained))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_complete_run_is_returned_as_it_is_and_more_updates_continue_it(tmp_path):
    first = train("CartPole-v1", out=tmp_path / "run", **SHORT, **QUIET)
    again = train(out=tmp_path / "run", resume=True, **QUIET)
    assert again.scores == first.scores
    assert again.metrics == first.metrics
    more = train(out=tmp_path / "run", resume=True, updates=60, eval_episodes=0, report_interval=10, **QUIET)
    assert more.updates == 60
    assert more.metrics[:4] == first.metrics


def test_a_run_resumes_with_its_own_settings_only(trained):
    for change in ({"batch_size": 32}, {"env": "Acrobot-v1"}, {"seed": 4}):
        with pytest.raises(ValueError, match=f"was started with .*{next(iter(change))} = "):
            train(out=trained.path, resume=True, **({"seed": 3} | change), **QUIET)
    with pytest.raises(ValueError, match="is not empty"):
        train("CartPole-v1", out=trained.path, **QUIET)


def test_fewer_updates_than_the_checkpoint_has_are_refused(tmp_path):
    train("CartPole-v1", out=tmp_path / "run", **(SHORT | {"eval_episodes": 0}), **QUIET)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(ValueError, match="updates = 20"):
        train(out=tmp_path / "run", resume=True, updates=20, **QUIET)


def test_the_callback_sees_every_report_and_stops_the_run_by_returning_false():
    seen = []

    def callback(metrics):
        seen.append(metrics["updates"])
        return metrics["updates"] < 20

    result = train("CartPole-v1", callback=callback, **SHORT, **QUIET)
    assert seen == [10, 20]
    assert result.stopped
    assert result.updates == 20
    assert len(result.scores) == 3


def cart_pole(**settings):
    return gymnasium.make("CartPole-v1", **settings)


def test_a_function_that_makes_an_environment_takes_the_place_of_an_id(trained, tmp_path):
    result = train(cart_pole, out=tmp_path / "run", seed=3, **SHORT, **QUIET)
    assert result.env == "cart_pole"
    assert without_seconds(result.metrics) == without_seconds(trained.metrics)
    assert result.scores == trained.scores
    more = train(cart_pole, out=tmp_path / "run", seed=3, resume=True, updates=60, eval_episodes=0, **QUIET)
    assert more.updates == 60


def test_a_function_that_makes_something_else_is_refused():
    with pytest.raises(ValueError, match=r"not a gymnasium\.Env"):
        train(lambda: 3, **QUIET)
    with pytest.raises(ValueError, match="env: name a Gymnasium environment"):
        train(**QUIET)


def test_a_custom_trunk_is_trained():
    def trunk(obs_spec):
        return nn.Sequential(nn.Flatten(), nn.Linear(obs_spec.shape[0], 9), nn.Tanh())

    result = train("CartPole-v1", trunk=trunk, **SHORT, **QUIET)
    assert len(result.scores) == 3
    assert result.policy.predict_proba(np.zeros((1, 4))).shape == (1, 2)


def test_snapshots_are_saved_at_even_intervals(tmp_path):
    train("CartPole-v1", out=tmp_path / "run", save_snapshots=2, **(SHORT | {"eval_episodes": 0}), **QUIET)
    names = sorted(path.name for path in (tmp_path / "run" / "policies").iterdir())
    assert [name for name in names if name.startswith("updates")] == ["updates-00000020", "updates-00000040"]


def test_a_replay_that_cannot_fit_is_refused_before_it_takes_memory():
    with pytest.raises(ValueError, match="GB free; up to"):
        train("CartPole-v1", capacity=2_000_000_000_000, **QUIET)


def test_invalid_options_are_refused_by_name():
    for bad in ({"eval_episodes": -1}, {"checkpoint_minutes": 0.0}, {"save_snapshots": -2}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            RunOptions(**bad)
    with pytest.raises(ValueError, match="batchsize: is not a setting"):
        train("CartPole-v1", batchsize=3)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU"):
            train("CartPole-v1", engine=Local("cuda"), progress=False)


SWEEP = TINY | {"updates": 10}


def test_a_sweep_trains_every_algorithm_and_seed_and_resumes_what_is_missing(tmp_path):
    options = RunOptions(eval_episodes=2, report_interval=10)
    result = sweep(["CartPole-v1"], ["rbi", "apex"], range(2), out=tmp_path / "s", options=options, **SWEEP, **QUIET)
    assert [(row["algo"], row["seed"]) for row in result.rows] == [("rbi", 0), ("rbi", 1), ("apex", 0), ("apex", 1)]
    assert runs.read(tmp_path / "s").result["rows"] == result.rows
    assert len(result.summary().splitlines()) == 4
    times = {path: (path / "result.json").stat().st_mtime for path in result.runs[:3]}
    (result.runs[3] / "result.json").unlink()
    again = sweep(
        ["CartPole-v1"], ["rbi", "apex"], range(2), out=tmp_path / "s", resume=True, options=options, **SWEEP, **QUIET
    )
    assert len(again.rows) == 4
    assert times == {path: (path / "result.json").stat().st_mtime for path in result.runs[:3]}


def test_jobs_of_a_machine_without_the_sweeps_folder_come_back_whole(tmp_path):
    """The marker is hidden from the job, as on a machine that does not share the folder."""

    def map_without_folder(function, jobs, options, markers):
        return [function(job, o, tmp_path / "elsewhere") for job, o, _ in zip(jobs, options, markers, strict=True)]

    options = RunOptions(eval_episodes=0, report_interval=10)
    result = sweep(["CartPole-v1"], out=tmp_path / "s", options=options, map_jobs=map_without_folder, **SWEEP, **QUIET)
    (path,) = result.runs
    assert runs.read(path).result["last"]["updates"] == 10
    assert rbi.load_policy(path).env == "CartPole-v1"
    assert run_remotely([], tmp_path / "none", map_without_folder, options, progress=False) is None


def test_updates_that_were_repeated_do_not_count_as_done_when_a_run_is_resumed(tmp_path):
    """A learner that dies on a cluster repeats updates, which stay counted."""
    counters = {"updates": 70, "repeated_updates": 10}
    saved = checkpoint.save(tmp_path, 70, checkpoint.Checkpoint({}, counters, {}))
    config = TrainConfig.preset("CartPole-v1", **TINY)
    assert find_checkpoint(tmp_path, config) == saved
    with pytest.raises(ValueError, match="has done 60 already"):
        find_checkpoint(tmp_path, config.changed(updates=58))
