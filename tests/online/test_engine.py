"""The local engine: counted schedules, runs that repeat to the last bit, and checkpoints to continue from."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rbi import checkpoint
from rbi.envs.types import TimeStep
from rbi.online.backend import CapturedActor
from rbi.online.config import GROUPS
from rbi.online.engine import init_networks
from tests.checkpoints import use_gpu_random_states
from tests.online.small_runs import make_engine, run_steps, run_to_end, small_config
from tests.online.test_actors import make_actor
from tests.streams import RandomEnvs


def save(path, engine, *, with_replay=True, **info):
    return checkpoint.save(path, engine.updates, replace(engine.checkpoint(with_replay=with_replay), info=info))


def resume(path, config):
    engine = make_engine(config)
    engine.restore(checkpoint.load(checkpoint.newest(path)))
    return engine


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_run_repeats_to_the_last_bit_and_depends_on_its_seed(algo):
    first, again, other = (run_to_end(make_engine(small_config(algo), seed)) for seed in (1, 1, 2))
    assert torch.equal(first.learner.vector, again.learner.vector)
    assert first.metrics() == again.metrics()
    assert not torch.equal(first.learner.vector, other.learner.vector)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
@pytest.mark.parametrize("steps", [3, 40, 77])
def test_a_run_resumed_from_a_checkpoint_ends_as_the_uninterrupted_one(algo, steps, tmp_path):
    config = small_config(algo)
    uninterrupted = run_to_end(make_engine(config))
    save(tmp_path, run_steps(make_engine(config), steps), lines=3)
    assert checkpoint.load(checkpoint.newest(tmp_path)).info == {"lines": 3}
    resumed = run_to_end(resume(tmp_path, config))
    assert torch.equal(resumed.learner.vector, uninterrupted.learner.vector)
    assert torch.equal(resumed.replay.priority, uninterrupted.replay.priority)
    assert resumed.metrics() == uninterrupted.metrics()


def test_a_run_continues_from_the_checkpoint_of_another_device(tmp_path):
    stopped = run_steps(make_engine(small_config()), 40)
    use_gpu_random_states(save(tmp_path, stopped), "random")
    resumed = resume(tmp_path, small_config())
    assert torch.equal(resumed.learner.vector, stopped.learner.vector)
    assert run_to_end(resumed).updates == small_config().schedule.updates


def test_a_run_resumed_without_its_replay_fills_it_again_before_it_learns(tmp_path):
    config = small_config()
    stopped = make_engine(config)
    for _ in stopped.run():
        if stopped.updates == 20:
            break
    save(tmp_path, stopped, with_replay=False)
    resumed = resume(tmp_path, config)
    before, steps = resumed.states, resumed.run()
    while resumed.updates == 20:
        next(steps)
    assert resumed.states - before >= config.schedule.learning_starts


@pytest.mark.parametrize("ratio", [1.5, 4.0, 10.0])
def test_updates_follow_new_states_at_the_set_ratio(ratio):
    config = small_config(states_per_update=ratio)
    engine, start = make_engine(config), None
    for _ in engine.run():
        if engine.learning_started and start is None:
            start = engine.states
        if start is not None:
            due = (engine.states - start) / ratio
            assert engine.updates <= due + 1e-9
            assert engine.updates + config.learner.updates_per_sample > due - 1e-9 or engine.updates == 60


def test_actors_load_published_weights_at_their_refresh_interval_only():
    config = small_config(refresh_interval=5, publish_interval=4)
    engine, published, actors = make_engine(config), {}, {}
    for _ in engine.run():
        published[engine.steps - 1] = engine.published.clone()
        actors[engine.steps - 1] = [actor.vector.clone() for actor in engine.actors]
    for step in list(actors)[1:]:
        group = step % GROUPS
        refreshed = step // GROUPS % 5 == 0
        assert torch.equal(actors[step][group], published[step - 1] if refreshed else actors[step - 1][group])
        assert torch.equal(actors[step][1 - group], actors[step - 1][1 - group])
    assert len({p.sum().item() for p in published.values()}) == 1 + config.schedule.updates // 4


def test_actors_follow_the_uniform_policy_for_the_set_number_of_updates():
    engine = make_engine(small_config(random_policy_updates=20))
    for _ in engine.run():
        assert all(bool(actor.uniform) == (engine.updates < 20) for actor in engine.actors)


def test_with_episodes_stored_at_their_end_learning_waits_for_the_first():
    engine = make_engine(small_config(store_at_episode_end=True, release_interval=10, learning_starts=16))
    for _ in engine.run():
        drawable = (engine.replay.priority > 0).any(0)
        assert not (drawable & (engine.replay.last_final == 0)).any()
        if engine.updates:
            assert engine.recent_scores.episodes > 0


def test_an_atari_run_resumes_at_the_start_of_new_episodes(tmp_path):
    pytest.importorskip("ale_py")
    config = small_config(
        env="ALE/Pong-v5", num_envs=2, learning_starts=16, updates=6, states_per_update=2.0, batch_size=4,
        target_update_interval=2, capacity=200,
    )  # fmt: skip
    save(tmp_path, run_steps(make_engine(config), 24))
    resumed = resume(tmp_path, config)
    last = int(resumed.replay.written[0]) - 1
    assert resumed.replay.final[last].all()
    steps = resumed.run()
    next(steps), next(steps)
    assert (resumed.replay.age[last + 1] == 0).all()
    for _ in steps:
        pass
    assert resumed.updates == 6


def test_the_policy_of_a_run_is_what_its_actors_follow():
    engine = run_to_end(make_engine(small_config()))
    actor = engine.actors[0]
    actor.load(engine.learner.vector)
    obs = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    pi = actor.choose(torch.from_numpy(obs), torch.ones(4, dtype=torch.bool)).pi
    assert engine.policy().predict_proba(obs) == pytest.approx(pi.numpy(), abs=1e-6)


@pytest.mark.parametrize("advantage_baseline", ["pi", "mean"])
def test_actors_use_the_learners_advantage_baseline(advantage_baseline):
    engine = make_engine(small_config(advantage_baseline=advantage_baseline))
    assert {actor.advantage_baseline for actor in engine.actors} == {advantage_baseline}


def two_layers(obs_spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(obs_spec.stack * obs_spec.shape[0], 7), nn.Tanh())


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_custom_trunk_is_trained(algo):
    engine = make_engine(small_config(algo), trunk=two_layers)
    before = engine.learner.vector.clone()
    run_to_end(engine)
    assert not torch.equal(engine.learner.vector, before)
    probs = engine.policy().predict_proba(np.zeros((2, 4), np.float32))
    assert probs.sum(1) == pytest.approx(1)


def test_a_trunk_with_buffers_is_refused():
    def with_batch_norm(obs_spec):
        return nn.Sequential(two_layers(obs_spec), nn.BatchNorm1d(7))

    with pytest.raises(ValueError, match="buffer"):
        init_networks(small_config(), make_engine(small_config()).obs_spec, 0, with_batch_norm)


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_captured_actor_returns_what_a_plain_one_does(algo):
    """All but the actions, whose draws may differ: the observations do not depend on them here."""
    options = {"num_envs": 6, "algo": algo, "priority_baseline": "v", "device": "cuda"}
    plain, random_envs = make_actor(**options), RandomEnvs(6, (2,), np.random.default_rng(0))
    captured = CapturedActor(make_actor(**options), torch.cuda.Stream(priority=-1))
    for _ in range(40):
        shown = random_envs.step()
        expected = plain.act(*(given.cuda() for given in shown))
        with torch.cuda.stream(captured.stream):
            torch.cuda._sleep(1_000_000)  # the device is busy: code that does not wait for the actions reads old ones
        actions = captured.act(TimeStep(*(given.numpy() for given in shown))).copy()
        torch.cuda.synchronize()
        assert actions.tolist() == captured.transition.action.tolist()
        for name in ("obs", "is_first", "reward", "end", "pi", "td_error"):
            ours, theirs = (getattr(transition, name) for transition in (captured.transition, expected))
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_on_a_gpu_the_counts_are_the_same_and_warm_up_runs_leave_no_trace(algo):
    config = small_config(algo)
    engine = make_engine(config, device=torch.device("cuda"))
    before = engine.learner.vector.clone()
    engine.start_backend()
    assert torch.equal(engine.learner.vector, before)
    assert engine.learner.weights.optimizer.adam.count == 0
    run_to_end(engine)
    on_cpu = run_to_end(make_engine(config))
    assert (engine.updates, engine.states) == (on_cpu.updates, on_cpu.states)
    assert engine.learner.weights.optimizer.adam.count == config.schedule.updates
    assert not torch.equal(engine.learner.vector, before)
    assert torch.isfinite(engine.learner.vector).all()


def test_a_checkpoint_is_possible_only_when_all_environments_are_in_a_step():
    """Restored environments are in the middle of a step: one that has not taken its first would skip an observation."""
    engine = make_engine(small_config())
    next(iter(engine.run()))
    assert all(env.pending for env in engine.envs)
