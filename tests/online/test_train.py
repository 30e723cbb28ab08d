"""`rbi.train` and `sweep` from Python: results, run folders, resuming, callbacks, factories and custom trunks."""

import contextlib
import json
import os
import shutil
import threading
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import rbi
from rbi import checkpoint, runs
from rbi.envs.types import EnvConfig
from rbi.evaluation.recording import DatasetRecording, Perturbation
from rbi.evaluation.rollouts import EpisodeResult, RecentScores
from rbi.observations import ObservationSpec
from rbi.online.config import TrainConfig
from rbi.online.engine import init_networks, trained_policy
from rbi.online.rollout import evaluation_score
from rbi.online.run_logger import RunLogger, RunOptions
from rbi.online.sweep import as_file_name, run_remotely, sweep, used_settings
from rbi.online.train import (
    Local,
    check_memory,
    find_checkpoint,
    load_config,
    measure_reward_scale,
    run_settings,
    train,
)
from rbi.optim import flatten_parameters
from rbi.replay import bytes_needed
from tests.games import Doors
from tests.online.small_runs import TINY, small_config

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


def test_a_run_depends_on_its_seed(trained):
    other = train("CartPole-v1", seed=4, **SHORT, **QUIET)
    assert without_seconds(other.metrics) != without_seconds(trained.metrics)
    assert other.seed == 4


def test_the_evaluation_has_the_seed_of_the_run_and_rates_are_of_states_and_updates(trained):
    again = rbi.evaluate(trained.policy, "CartPole-v1", episodes=3, seed=3, device="cpu", progress=False)
    assert again.scores == trained.scores
    found = runs.read(trained.out).result
    rates = found["steps_per_second"], found["updates_per_second"]
    assert rates == pytest.approx((trained.states / found["seconds"], trained.updates / found["seconds"]))


def test_a_run_folder_holds_everything(trained):
    run = runs.read(trained.out)
    assert run.metrics == trained.metrics
    assert run.result["evaluation"]["scores"] == trained.scores
    assert list((trained.out / "tensorboard").glob("events*"))
    assert rbi.load_policy(trained.out / "policies" / "last").metadata["updates"] == 40
    assert load_config(trained.out).schedule.updates == 40


def test_tensorboard_has_the_metrics(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(trained.out / "tensorboard"))
    board.Reload()
    written = {event.step: event.value for event in board.Scalars("q")}
    assert written == pytest.approx({line["updates"]: line["q"] for line in trained.metrics})


def test_without_a_folder_nothing_is_left_on_disk_and_the_result_is_the_same(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    again = train("CartPole-v1", seed=3, **SHORT, **QUIET)
    assert not list(tmp_path.iterdir())
    assert again.out is None
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


def paying(unit):
    """CartPole that pays `unit` for each step, in place of 1."""
    return lambda: gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward * unit)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_rewards_of_any_size_are_learned_alike_and_values_are_in_their_unit(algo, tmp_path):
    """Powers of 2, which change no rounding: the same run but for its scores and values."""
    large, small = (
        train(
            paying(unit),
            algo,
            reward_scale=unit,
            **({"rule": f"forward_kl({unit / 2})"} if algo == "rbi" else {}),
            **SHORT,
            **QUIET,
        )
        for unit in (1024, 1)
    )
    assert large.scores == [1024 * score for score in small.scores]
    names = [name for name in small.metrics[-1] if not name.startswith("score") and name != "seconds"]
    assert all(line[n] == other[n] for line, other in zip(large.metrics, small.metrics, strict=True) for n in names)
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    large.policy.save(tmp_path / "policy")
    for policy in (large.policy, rbi.load_policy(tmp_path / "policy")):
        assert np.array_equal(policy.predict_value(obs), 1024 * small.policy.predict_value(obs))
        assert np.allclose(policy.predict_proba(obs), small.policy.predict_proba(obs), atol=1e-6)


class Costs(Doors):
    """Doors that cost thousands, in an environment that the run resumes with other prices."""

    price = -2000.0

    def step(self, action):
        obs, _, *rest = super().step(action)
        return (obs, Costs.price, *rest)


def test_the_size_of_rewards_is_measured_once_and_kept_in_the_run(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    run = {"out": out, "device": "cpu"}
    assert train(Costs, callback=lambda _: False, **(SHORT | run)).stopped
    assert load_config(out).actor.reward_scale == 1000
    assert "rewards are about 1000: " in capsys.readouterr().err
    monkeypatch.setattr(Costs, "price", -1.0)
    same = small_config(env=Costs, updates=40)
    for given in ({"env": Costs}, {"config": same}):
        options = {"resume": True, "eval_episodes": 3, "report_interval": 10}
        assert train(**given, callback=lambda _: False, **options, **run).stopped
        assert load_config(out).actor.reward_scale == 1000


def test_a_folder_that_is_taken_is_refused_before_an_environment_is_stepped(trained, monkeypatch):
    monkeypatch.setattr(Doors, "step", lambda *_: pytest.fail("an environment was stepped"))
    with pytest.raises(ValueError, match="overwrite"):
        train(Doors, out=trained.out, **QUIET)


@pytest.mark.parametrize(
    ("env", "expected"),
    [("CartPole-v1", 1), (paying(0.002), 0.001), (paying(0.0), 1), (paying(-5e6), 1e7), (Doors, 1)],
)
def test_the_size_of_rewards_is_a_power_of_ten(env, expected):
    assert measure_reward_scale(EnvConfig.of(env)) == expected


def test_an_interrupted_run_resumes_to_the_last_bit(trained, tmp_path):
    stopped = train("CartPole-v1", out=tmp_path / "run", seed=3, callback=lambda _: False, **SHORT, **QUIET)
    assert stopped.stopped
    assert stopped.updates == 10
    resumed = train(out=tmp_path / "run", seed=3, resume=True, eval_episodes=3, report_interval=10, **QUIET)
    assert without_seconds(resumed.metrics) == without_seconds(trained.metrics)
    assert resumed.scores == trained.scores
    weights, expected = (r.policy.networks.state_dict() for r in (resumed, trained))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_run_in_worker_processes_is_the_same_run_also_where_it_stops_and_resumes_here(trained, tmp_path):
    processes = {"env_processes": 2}
    train("CartPole-v1", out=tmp_path / "run", seed=3, callback=lambda _: False, **SHORT, **processes, **QUIET)
    options = {"out": tmp_path / "run", "resume": True, "eval_episodes": 3, "report_interval": 10}
    assert train(callback=lambda line: line["updates"] < 30, env_processes=0, **options, **QUIET).updates == 30
    resumed = train(**options, **processes, **QUIET)
    assert without_seconds(resumed.metrics) == without_seconds(trained.metrics)
    assert resumed.scores == trained.scores


def test_a_run_that_crashed_repeats_what_came_after_its_checkpoint_and_counts_it(trained, tmp_path):
    out, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    train("CartPole-v1", out=out, seed=3, callback=lambda _: False, **SHORT, **QUIET)
    for callback in (lambda _: False, None):
        last = json.loads(metrics.read_text().splitlines()[-1])
        with metrics.open("a") as file:  # ten updates after the checkpoint, and then the machine was lost
            file.write(json.dumps(last | {"updates": last["updates"] + 10, "q": 1e6}) + "\n")
        options = {"eval_episodes": 3, "report_interval": 10, "callback": callback}
        result = train(out=out, seed=3, resume=True, **options, **QUIET)
    assert without_seconds(result.metrics) == without_seconds(runs.read(out).metrics)
    assert without_seconds(result.metrics) == without_seconds(trained.metrics)
    assert runs.read(out).result["resumed"] == {"times": 2, "repeated_updates": 20}


@pytest.mark.parametrize(("answer", "stops"), [(False, True), (np.False_, True), (None, False), (0, False)])
def test_a_callback_stops_training_by_false_of_python_or_numpy(answer, stops):
    assert train("CartPole-v1", callback=lambda _: answer, **SHORT, **QUIET).stopped == stops


class Fragile(Doors):
    """Doors that all break at once; counts the environments that are open."""

    opened, broken = 0, False

    def __init__(self, **settings):
        super().__init__(**settings)
        Fragile.opened += 1

    def step(self, action):
        if Fragile.broken:
            raise OSError("broken")
        return super().step(action)

    def close(self):
        Fragile.opened -= 1


@pytest.mark.parametrize(("raises", "error"), [(False, "failed with OSError: broken"), (True, "mine")])
def test_an_error_of_environments_or_the_callback_is_raised_once_all_environments_are_closed(
    raises, error, monkeypatch
):
    def callback(_):
        monkeypatch.setattr(Fragile, "broken", True)
        if raises:
            raise ValueError("mine")

    with pytest.raises(ValueError, match=error):
        train(Fragile, callback=callback, **SHORT, **QUIET)
    assert Fragile.opened == 0


@pytest.mark.parametrize(
    ("made", "space", "error"),
    [(100, gymnasium.spaces.MultiDiscrete([2, 2]), "only Discrete is supported"),
     (5, Fragile.action_space, "no port is left")],
)  # fmt: skip
def test_environments_that_are_refused_are_closed(made, space, error, monkeypatch):
    def make():
        if Fragile.opened == made:
            raise OSError("no port is left")
        return Fragile()

    monkeypatch.setattr(Fragile, "action_space", space)
    with pytest.raises(ValueError, match=error):
        train(make, **SHORT, **QUIET)
    assert Fragile.opened == 0


class Unspaced(Fragile):
    """No environment has observations before it was reset."""

    @property
    def observation_space(self):
        raise OSError("no simulator")


@pytest.mark.parametrize("preset", ["small", "paper"])
def test_observations_that_are_not_known_are_refused_alike_with_every_preset(preset):
    with pytest.raises(ValueError, match=r"^--env Unspaced: failed with OSError: no simulator \(test_train.py:\d+\)$"):
        train(Unspaced, preset=preset, **QUIET)
    assert Fragile.opened == 0


def test_an_environment_that_a_function_made_has_to_be_passed_again(tmp_path):
    run = train(Doors, out=tmp_path / "run", **(SHORT | {"eval_episodes": 0}), **QUIET)
    for again in (
        lambda **env: train(out=tmp_path / "run", resume=True, updates=60, eval_episodes=0, **env, **QUIET),
        lambda **env: rbi.evaluate(run.policy, episodes=2, **env, **QUIET),
    ):
        with pytest.raises(ValueError, match=r"--env Doors: .* If a function of this name makes it, pass the function"):
            again()
        again(env=Doors)


def test_a_run_that_fails_leaves_no_thread_of_tensorboard_behind(tmp_path):
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        train("CartPole-v1", out=tmp_path / "run", callback=lambda _: 1 / 0, **SHORT, **QUIET)
    assert set(threading.enumerate()) <= before


def test_ctrl_c_stops_at_a_checkpoint(tmp_path, monkeypatch):
    interrupted = threading.Event()
    monkeypatch.setattr("rbi.online.train.graceful_stop", lambda: contextlib.nullcontext(interrupted))
    with pytest.raises(KeyboardInterrupt, match=r"^stopped after 10 updates; continue with --resume --out .*/run \("):
        train("CartPole-v1", out=tmp_path / "run", callback=lambda _: interrupted.set(), **SHORT, **QUIET)
    assert checkpoint.newest(tmp_path / "run").name == "0000000010"
    assert runs.read(tmp_path / "run").result is None


def test_a_run_that_is_stopped_after_it_was_given_more_updates_resumes_with_them(tmp_path):
    quiet = {"out": tmp_path / "run", "eval_episodes": 0, "report_interval": 10, **QUIET}
    train("CartPole-v1", **(TINY | {"updates": 10}), **quiet)
    train(resume=True, updates=40, callback=lambda metrics: metrics["updates"] < 20, **quiet)
    assert train(resume=True, **quiet).updates == 40


def test_a_run_that_is_continued_is_not_complete_until_its_end(tmp_path):
    train("CartPole-v1", out=tmp_path / "run", **(SHORT | {"eval_episodes": 0}), **QUIET)
    found = []
    train(
        out=tmp_path / "run", resume=True, updates=60, eval_episodes=0, report_interval=10,
        callback=lambda _: found.append((tmp_path / "run" / "result.json").exists()), **QUIET,
    )  # fmt: skip
    assert found == [False, False]
    assert runs.read(tmp_path / "run").result["last"]["updates"] == 60


def test_a_run_without_a_checkpoint_begins_again_with_new_logs(tmp_path):
    out = tmp_path / "run"
    for resume in (False, True):
        train("CartPole-v1", out=out, resume=resume, **(SHORT | {"eval_episodes": 0}), **QUIET)
        shutil.rmtree(out / "checkpoints")
        (out / "result.json").unlink()
    assert [line["updates"] for line in runs.read(out).metrics] == [10, 20, 30, 40]
    assert len(list((out / "tensorboard").glob("events*"))) == 1


def test_a_complete_run_is_returned_as_it_is_and_more_updates_continue_it(tmp_path):
    first = train("CartPole-v1", out=tmp_path / "run", **SHORT, **QUIET)
    again = train(out=tmp_path / "run", resume=True, **QUIET)
    assert again.scores == first.scores
    assert again.metrics == first.metrics
    more = train(out=tmp_path / "run", resume=True, updates=60, eval_episodes=0, report_interval=10, **QUIET)
    assert more.updates == 60
    assert more.metrics[:4] == first.metrics


def test_a_run_resumes_with_the_preset_of_its_start_only(tmp_path):
    first = train("CartPole-v1", out=tmp_path / "run", **SHORT, **QUIET)
    assert train(out=tmp_path / "run", resume=True, preset="small", **QUIET).scores == first.scores
    with pytest.raises(ValueError, match="was started with preset = small, not paper; leave it out"):
        train(out=tmp_path / "run", resume=True, preset="paper", **QUIET)


def test_the_last_update_is_reported():
    result = train("CartPole-v1", **(SHORT | {"report_interval": 16, "eval_episodes": 0}), **QUIET)
    assert [line["updates"] for line in result.metrics] == [16, 32, 40]


def test_a_complete_run_has_its_last_and_its_best_policy(trained, tmp_path, monkeypatch):
    shutil.copytree(trained.out, tmp_path / "run")
    best = rbi.load_policy(trained.out / "policies" / "last")
    best.metadata["updates"] = 20
    best.save(tmp_path / "run" / "policies" / "best")
    again = train(out=tmp_path / "run", resume=True, seed=3, **QUIET)
    assert (again.policy.metadata["updates"], again.best_policy.metadata["updates"]) == (40, 20)
    monkeypatch.setattr("rbi.online.run_logger.MIN_BEST_EPISODES", 10**6)  # nothing better is found
    more = train(out=tmp_path / "run", resume=True, seed=3, updates=44, eval_episodes=0, **QUIET)
    assert (more.policy.metadata["updates"], more.best_policy.metadata["updates"]) == (44, 20)


def test_a_run_resumes_with_its_own_settings_only(trained):
    for change in ({"batch_size": 32}, {"env": "Acrobot-v1"}, {"algo": "apex"}, {"seed": 4}):
        with pytest.raises(ValueError, match=f"was started with .*{next(iter(change))} = "):
            train(out=trained.out, resume=True, **change, **QUIET)
    assert train(out=trained.out, resume=True, **QUIET).seed == 3
    with pytest.raises(ValueError, match="is not empty"):
        train("CartPole-v1", out=trained.out, **QUIET)


@pytest.mark.parametrize("complete", [True, False])
def test_fewer_updates_than_a_run_has_done_are_refused(complete, trained, tmp_path):
    run = shutil.copytree(trained.out, tmp_path / "run")
    if not complete:
        (run / "result.json").unlink()
    with pytest.raises(ValueError, match=r"^--schedule.updates = 20: .*/run has done 40 already$"):
        train(out=run, resume=True, updates=20, **QUIET)


def test_a_resumed_run_is_not_overwritten(trained):
    with pytest.raises(ValueError, match=r"^resume: name the run with out, without overwrite$"):
        train(out=trained.out, resume=True, overwrite=True, **QUIET)


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


def huge():
    """Observations that no network can take."""
    space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
    return gymnasium.wrappers.TransformObservation(gymnasium.make("CartPole-v1"), lambda obs: obs * 1e30, space)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_run_that_diverges_stops_at_its_next_report(algo):
    reports = []
    with pytest.raises(ValueError, match=r"^training diverged within 20 updates: .*; lower learning_rate, or divide"):
        train(huge, algo, **(TINY | {"updates": 2000}), report_interval=20, progress=False, callback=reports.append)
    assert not reports


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


def test_a_run_with_a_custom_trunk_is_resumed_before_and_after_its_end(tmp_path):
    def trunk(obs_spec):
        return nn.Sequential(nn.Flatten(), nn.Linear(obs_spec.shape[0], 9), nn.Tanh())

    options = {"out": tmp_path / "run", "trunk": trunk, "eval_episodes": 0, **QUIET}
    first = train("CartPole-v1", **(SHORT | options))
    with pytest.raises(ValueError, match=r"run: was started with a custom trunk; pass it as trunk$"):
        train(resume=True, updates=60, **(options | {"trunk": None}))
    first.policy.save(tmp_path / "run" / "policies" / "best")  # as if no later policy were better
    assert train(resume=True, **options).best_policy.metadata["updates"] == 40
    more = train(resume=True, updates=60, **options)
    assert (more.updates, more.best_policy.metadata["updates"]) == (60, 40)


def test_snapshots_are_saved_at_even_intervals(tmp_path):
    train("CartPole-v1", out=tmp_path / "run", save_snapshots=2, **(SHORT | {"eval_episodes": 0}), **QUIET)
    names = sorted(path.name for path in (tmp_path / "run" / "policies").iterdir())
    assert [name for name in names if name.startswith("updates")] == ["updates-00000020", "updates-00000040"]


def test_a_replay_that_cannot_fit_is_refused_before_it_takes_memory():
    with pytest.raises(ValueError, match="GB free; up to"):
        train("CartPole-v1", capacity=2_000_000_000_000, **QUIET)


def test_a_replay_fits_if_its_bytes_are_free(monkeypatch):
    config, obs_spec = TrainConfig.preset("CartPole-v1", capacity=4000), ObservationSpec((4,), 1, 2)
    need = bytes_needed(config.replay, obs_spec)
    monkeypatch.setattr("rbi.online.train.available_memory", lambda: need)
    check_memory(config, obs_spec, torch.device("cpu"))
    monkeypatch.setattr("rbi.online.train.available_memory", lambda: need // 2)
    with pytest.raises(ValueError, match=r"up to 1,(799|800) would fit"):
        check_memory(config, obs_spec, torch.device("cpu"))


def test_a_run_folder_has_all_settings_of_its_environment(tmp_path):
    config = TrainConfig.preset(EnvConfig("ALE/Pong-v5", max_frames=900, repeat_action_probability=0.25, noop_max=7))
    settings = run_settings(config, None)
    runs.Writer.create(tmp_path / "run", command="train", settings=settings, seed=0, argv=[]).close()
    assert load_config(tmp_path / "run") == config


def test_invalid_options_are_refused_by_name():
    for bad in ({"eval_episodes": -1}, {"eval_episodes": 2.0}, {"checkpoint_minutes": 0.0}, {"save_snapshots": -2}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            RunOptions(**bad)
    with pytest.raises(ValueError, match="batchsize: is not a setting"):
        train("CartPole-v1", batchsize=3)
    for other in ({"env": "Acrobot-v1"}, {"algo": "rbi"}):
        with pytest.raises(ValueError, match="config: has its own env and algo"):
            train(**other, config=TrainConfig.preset("CartPole-v1", "apex"))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU"):
            train("CartPole-v1", engine=Local("cuda"), progress=False)


SWEEP = TINY | {"updates": 10}


def test_a_sweep_trains_every_algorithm_and_seed_and_resumes_what_is_missing(tmp_path):
    options = RunOptions(eval_episodes=2, report_interval=10)
    result = sweep(["CartPole-v1"], ["rbi", "apex"], range(2), out=tmp_path / "s", options=options, **SWEEP, **QUIET)
    assert [(row["algo"], row["seed"]) for row in result.rows] == [("rbi", 0), ("rbi", 1), ("apex", 0), ("apex", 1)]
    assert {row["episodes"] for row in result.rows} == {2}
    assert runs.read(tmp_path / "s").result["rows"] == result.rows
    assert len(result.summary().splitlines()) == 4
    times = {path: (path / "result.json").stat().st_mtime for path in result.runs[:3]}
    (result.runs[3] / "result.json").unlink()
    again = sweep(
        ["CartPole-v1"], ["rbi", "apex"], range(2), out=tmp_path / "s", resume=True, options=options, **SWEEP, **QUIET
    )
    assert len(again.rows) == 4
    assert times == {path: (path / "result.json").stat().st_mtime for path in result.runs[:3]}


def test_a_run_that_diverges_ends_no_other_of_its_sweep(tmp_path, capsys):
    options = RunOptions(eval_episodes=1, report_interval=20)
    more = SWEEP | {"updates": 200} | QUIET
    result = sweep([huge, "CartPole-v1"], out=tmp_path / "s", options=options, **more)
    assert [row["env"] for row in result.rows] == ["CartPole-v1"]
    assert repr(result).startswith("SweepResult(1 of 2 runs finished")
    said = capsys.readouterr().err
    assert said.startswith("rbi: rbi on huge, seed 0: training diverged within")
    assert said.endswith("; the sweep goes on without it\n")
    with pytest.raises(ValueError, match="s2: no run of the sweep has a result"):
        sweep([huge], out=tmp_path / "s2", options=options, **more)


def test_evaluations_on_a_cluster_take_environments_that_a_function_makes(monkeypatch):
    monkeypatch.setattr(os, "setpriority", lambda *_: None)  # this process keeps its own
    spec = ObservationSpec((4,), 1, 2)
    for env in ("CartPole-v1", lambda **settings: gymnasium.make("CartPole-v1", **settings)):
        config = small_config(env=env)
        weights = flatten_parameters(init_networks(config, spec, 0)).numpy()
        assert evaluation_score(config, spec, weights, updates=0, episodes=2, seed=0) >= 8


def test_a_resumed_sweep_with_more_updates_continues_all_runs(tmp_path):
    options, more = RunOptions(eval_episodes=1, report_interval=10), {"seeds": range(2), "out": tmp_path / "s"}
    sweep(["CartPole-v1"], options=options, **more, **SWEEP, **QUIET)
    longer = SWEEP | {"updates": 20, "eval_episodes": 3}  # options of a run among its settings, as in `train`
    result = sweep(["CartPole-v1"], options=options, resume=True, **more, **longer, **QUIET)
    assert [(row["updates"], row["episodes"]) for row in result.rows] == [(20, 3), (20, 3)]
    assert runs.read(tmp_path / "s").config["settings"]["schedule"]["updates"] == 20


def test_a_sweep_has_a_folder_for_every_environment_algorithm_and_seed(tmp_path):
    names, jobs = ["CartPole-v1", "Acrobot-v1"], []

    def run_nothing(_, given, *__):
        jobs.extend(given)
        return [None] * len(given)

    with pytest.raises(ValueError, match="no run of the sweep has a result"):
        sweep(names, ["rbi", "apex"], [5, 6], out=tmp_path / "s", map_jobs=run_nothing, **SWEEP, **QUIET)
    assert runs.read(tmp_path / "s").config["settings"]["envs"] == names
    expected = [f"{algo}-{env}-seed{seed}" for env in names for algo in ("rbi", "apex") for seed in (5, 6)]
    assert [job.path.name for job in jobs] == expected
    assert as_file_name("ALE/Pong-v5") == "ALE-Pong-v5"


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


class FakeEngine:
    """An engine whose counts and scores are set by the test."""

    def __init__(self, updates=0, **changes):
        self.config, self.obs_spec, self.device = small_config(**changes), ObservationSpec((4,), 1, 2), "cpu"
        self.updates, self.states, self.score = updates, 4 * updates, None
        self.recent_scores, self.saved = RecentScores(1), []

    def metrics(self):
        return {"updates": self.updates, "states": self.states, "score": self.score}

    def policy(self):
        vector = flatten_parameters(init_networks(self.config, self.obs_spec, 0))
        return trained_policy(self.config, self.obs_spec, vector, self.updates, self.states)

    def checkpoint(self, *, with_replay):
        self.saved.append((self.updates, with_replay))
        return checkpoint.Checkpoint({}, {"updates": self.updates}, {})


def make_logger(engine, writer=None, **options):
    return RunLogger(engine, writer, RunOptions(**options), 0, {"seconds": 0.0, "best": None, "lines": 0})


def test_the_best_policy_is_that_of_the_best_score_once_twenty_episodes_have_finished():
    engine = FakeEngine()
    logger = make_logger(engine, report_interval=10)
    for score, episodes, best in ((50.0, 19, None), (5.0, 1, 20), (9.0, 0, 30), (7.0, 0, 30)):
        for _ in range(episodes):
            engine.recent_scores.add(EpisodeResult(0, 1.0, 1, False), low_epsilon=True)
        engine.updates, engine.score = engine.updates + 10, score
        logger.after_step()
        assert best == (logger.best_policy and logger.best_policy.metadata["updates"])
    assert logger.info["best"] == 9.0


def test_reports_are_at_whole_intervals_and_a_resumed_run_waits_for_its_next_one():
    engine = FakeEngine(updates=36)
    logger = make_logger(engine, report_interval=9, save_snapshots=3)
    assert logger.interval == 10  # updates come in pairs
    snapshots = []
    logger.save_policy = snapshots.append
    for engine.updates in range(38, 54, 2):
        logger.after_step()
    assert [line["updates"] for line in logger.metrics] == [40, 50]
    assert snapshots == ["updates-00000040"]


@pytest.mark.parametrize("count", [0, 1, 7, 25])
def test_as_many_snapshots_are_saved_as_were_asked_for_the_last_one_at_the_end(count):
    engine = FakeEngine()
    logger, saved = make_logger(engine, save_snapshots=count), []
    logger.save_policy = saved.append
    total = engine.config.schedule.updates
    for engine.updates in range(2, total + 1, 2):
        logger.after_step()
    names = [name for name in saved if name.startswith("updates-")]
    assert len(names) == count
    assert names[-1:] == ([f"updates-{total:08}"] if count else [])


def test_the_seconds_of_a_resumed_run_continue_those_of_its_checkpoint(monkeypatch):
    monkeypatch.setattr("rbi.online.run_logger.time", SimpleNamespace(monotonic=lambda: 1000.0))
    logger = RunLogger(FakeEngine(), None, RunOptions(), 0, {"seconds": 70.0, "best": None, "lines": 0})
    assert logger.seconds == 70


def test_checkpoints_are_some_minutes_apart(tmp_path, monkeypatch):
    now, engine = [1000.0], FakeEngine()
    monkeypatch.setattr("rbi.online.run_logger.time", SimpleNamespace(monotonic=lambda: now[0]))
    with runs.Writer.create(tmp_path / "run", command="train", settings={}, seed=0, argv=[]) as writer:
        logger = make_logger(engine, writer, checkpoint_minutes=5.0)
        for seconds, count in ((299, 0), (2, 1), (200, 1), (101, 2)):
            now[0] += seconds
            engine.updates += 2
            logger.after_step()
            assert len(engine.saved) == count
        monkeypatch.setattr("rbi.online.run_logger.MAX_SAVED_REPLAY", 10)
        logger.save()
        logger.tensorboard.close()
    assert engine.saved == [(4, True), (8, True), (8, False)]
    assert checkpoint.load(checkpoint.newest(tmp_path / "run")).info["seconds"] == 602
    assert rbi.load_policy(tmp_path / "run" / "policies" / "last").metadata["updates"] == 8


def test_a_sweep_over_both_algorithms_gives_each_the_settings_that_it_uses():
    given = {"rule": "greedy", "batch_size": 8, "learner": {"double_q": False, "learning_rate": 0.1}}
    assert used_settings("rbi", given) == given | {"learner": {"learning_rate": 0.1}}
    assert used_settings("apex", given) == {"batch_size": 8, "learner": given["learner"]}


def cart(**settings):
    return gymnasium.make("CartPole-v1", **settings)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"envs": [cart, cart]}, "envs: cart occurs twice; runs need different environments, algorithms and seeds"),
        ({"algos": ["apex", "apex"]}, "algos: apex occurs twice"),
        ({"seeds": [1, 3, 3]}, "seeds: 3 occurs twice"),
        ({"envs": []}, "envs is empty: name at least one"),
        ({"algos": []}, "algos is empty"),
        ({"seeds": range(0)}, "seeds is empty"),
        ({"envs": "CartPole-v1"}, r"envs = 'CartPole-v1': must be a list, also of one, such as \['CartPole-v1'\]"),
        ({"envs": cart}, "envs = <function cart at .*>: must be a list"),
        ({"algos": "rbi"}, "algos = 'rbi': must be a list"),
        ({"seeds": 3}, r"seeds = 3: must be a list, also of one, such as \[3\]"),
        ({"callback": print}, "callback: a sweep takes none; use rbi.train for each run"),
        ({"device": "gpu"}, "device = 'gpu': must be one of auto, cpu, cuda"),
        ({"resume": True, "overwrite": True}, "resume: name the sweep with out, without overwrite"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_sweep_that_cannot_be_is_refused_before_its_folder_is_touched(given, error, trained, tmp_path):
    earlier = shutil.copytree(trained.out, tmp_path / "earlier")
    files = {file: file.stat().st_mtime_ns for file in earlier.rglob("*")}
    for out, overwrite in ((earlier, True), (tmp_path / "new", False)):
        with pytest.raises(ValueError, match=f"^{error}"):
            sweep(**({"envs": ["CartPole-v1"], "out": out, "overwrite": overwrite} | SWEEP | QUIET | given))
    assert files == {file: file.stat().st_mtime_ns for file in earlier.rglob("*")}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("envs", "named"),
    [
        (["CartPole-v1", "Acrobot-v1"], ""),
        (["tests.games:Catch-v0"], "--env tests.games:Catch-v0 "),
        (["CartPole-v1", "tests.games:Catch-v0"], "--envs CartPole-v1,tests.games:Catch-v0 "),
    ],
)
def test_an_interrupted_sweep_says_how_to_continue_it_rather_than_its_run(envs, named, tmp_path, monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt("stopped after 10 updates; continue with --resume --out of the run")

    monkeypatch.setattr("rbi.online.sweep.run_job", interrupt)
    with pytest.raises(KeyboardInterrupt, match=rf"^stopped; the sweep continues with {named}--resume --out .*/s \(P"):
        sweep(envs, out=tmp_path / "s", **SWEEP, **QUIET)


def test_a_sweep_of_an_earlier_version_can_be_resumed(tmp_path):
    options = RunOptions(eval_episodes=0, report_interval=10)
    sweep(["CartPole-v1"], out=tmp_path / "s", options=options, **SWEEP, **QUIET)
    config = json.loads((tmp_path / "s" / "config.json").read_text())
    del config["settings"]["max_frames"], config["settings"]["repeat_action_probability"]
    (tmp_path / "s" / "config.json").write_text(json.dumps(config))
    assert sweep(["CartPole-v1"], out=tmp_path / "s", options=options, resume=True, **SWEEP, **QUIET).rows


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("callbacks", "callback"),
        ("eval_episode", "eval_episodes"),
        ("n_eval_episodes", "eval_episodes"),
        ("overwrites", "overwrite"),
        ("log_dir", "out"),
        ("batchsize", "batch_size"),
        ("max_episode_steps", r"env, as in CartPole-v1\(max_episode_steps=100\)"),
    ],
)
def test_a_mistyped_argument_is_refused_with_the_nearest_of_settings_options_and_arguments(name, meant):
    with pytest.raises(ValueError, match=rf"^{name}: is not a setting of training; did you mean {meant}\?$"):
        rbi.train("CartPole-v1", progress=False, **{name: 7})


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_a_seed_that_is_no_natural_number_is_refused_by_name(seed):
    with pytest.raises(ValueError, match=f"seed = {seed!r}: must be an integer, at least 0"):
        train("CartPole-v1", seed=seed)


@pytest.mark.parametrize("settings", [{}, {"algo": "apex"}, {"max_repeat": 5}, {"improve_in": "both"}], ids=str)
def test_illegal_actions_are_never_taken_in_training_and_evaluation(settings):
    """An illegal action is an error of the environment."""
    run = train(Doors, seed=3, **SHORT, **settings, **QUIET)
    obs, legal = np.random.default_rng(0).random((50, 3)), np.eye(5, dtype=bool)[np.arange(50) % 5]
    assert run.policy.predict_proba(obs, legal) == pytest.approx(legal.astype(float))
    assert all(0 <= score <= 32 for score in run.scores)
    assert rbi.evaluate(run.policy, Doors, episodes=8, epsilon=0.5, progress=False, device="cpu").steps == [8] * 8
    assert rbi.evaluate(run.policy, Doors, episodes=8, deterministic=True, progress=False, device="cpu").mean > 0


class Unmasked(Doors):
    """Doors without masks: closed ones are open, too."""

    def reset(self, **options):
        return super().reset(**options)[0], {}

    def step(self, action):
        self.open[action] = 1
        return *super().step(action)[:4], {}


def test_a_policy_that_learned_with_masks_is_not_evaluated_without_them():
    policy = train(Doors, **SHORT, **QUIET).policy
    with pytest.raises(ValueError, match=r"^--env Unmasked: its info has no 'action_mask', and the policy learned"):
        rbi.evaluate(policy, Unmasked, episodes=2, progress=False, device="cpu")
    without = train(Unmasked, **SHORT, **QUIET).policy
    assert rbi.evaluate(without, Doors, episodes=2, progress=False, device="cpu").steps == [8, 8]


def test_a_run_with_masks_learns_to_choose_the_best_legal_action():
    settings = TINY | {"learning_rate": 0.003, "learning_starts": 64, "eval_episodes": 40, "gamma": 0.0}
    run = train(Doors, seed=1, **settings | {"updates": 400}, **QUIET)
    best = 8 * np.mean([max(np.flatnonzero(doors)) for doors in random_doors(20_000)])
    assert np.mean(run.scores) > 0.8 * best  # random legal actions: 0.63


def test_a_run_with_masks_resumes_to_the_last_bit(tmp_path):
    quiet = QUIET | {"seed": 1, "eval_episodes": 0, "report_interval": 20}
    whole = train(Doors, **TINY | {"updates": 80} | quiet)
    quiet["out"] = tmp_path / "run"
    assert train(Doors, **TINY | {"updates": 80} | quiet, callback=lambda line: line["updates"] < 40).updates == 40
    resumed = train(Doors, resume=True, **quiet)
    assert torch.equal(flatten_parameters(resumed.policy.networks), flatten_parameters(whole.policy.networks))


def random_doors(count):
    env = Doors()
    env.reset(seed=0)
    return [env.observe(over=False)[1]["action_mask"] for _ in range(count)]


def test_recordings_of_environments_with_masks_have_masks_and_legal_actions_only(tmp_path, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Doors-v0", gymnasium.envs.registration.EnvSpec("Doors-v0", Doors))
    run = train("Doors-v0", seed=3, **SHORT, **QUIET)
    members = [("policy", run.policy), ("random", "random")]
    with pytest.raises(ValueError, match="may be illegal when it comes late"):
        DatasetRecording(members, "Doors-v0", episodes=8, population=4)
    calm = Perturbation(epsilon=0.5, action_delay=0, abandon_rate=0.2)
    recording = DatasetRecording(members, "Doors-v0", episodes=60, population=4, perturbation=calm)
    data = recording.record(tmp_path, progress=False)
    assert data.spec.has_action_masks
    assert not all(episode.action_masks.all() for episode in data)
    for episode in data:
        assert episode.action_masks[np.arange(len(episode.actions)), episode.actions].all()
        assert (episode.action_probs > 0).all()
    better = rbi.improve(tmp_path, updates=20, batch_size=16, hidden_size=8, progress=False).policy
    assert rbi.evaluate(better, Doors, episodes=4, progress=False, device="cpu").steps == [8] * 4
