"""The local engine: paces that are counted, runs that repeat to the last bit, and checkpoints to go on from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rbi import checkpoint, envs
from rbi.envs.types import TimeStep
from rbi.online.config import GROUPS, TrainConfig
from rbi.online.engine import GraphedActor, LocalEngine
from tests.engines.elsewhere import with_random_states_of_a_gpu
from tests.online.test_actor import actor_of
from tests.streams import RandomEnvs

CPU = torch.device("cpu")


def small_plan(algo="rbi", env="CartPole-v1", **changes):
    whole = TrainConfig.preset(env, algo, "small")
    schedule = {
        "updates": 60,
        "num_envs": 8,
        "states_per_update": 4.0,
        "learning_starts": 64,
        "hidden_size": 16,
        "publish_interval": 2,
    }
    learner = {"batch_size": 16, "target_update_interval": 8, "updates_per_sample": 2}
    defaults = {"schedule": schedule, "learner": learner, "replay": {"capacity": 2000}, "actor": {}}
    parts = {name: replace(getattr(whole, name), **(d | changes.get(name, {}))) for name, d in defaults.items()}
    return replace(whole, **parts)


def engine_of(whole, seed=0, device=CPU):
    worlds = [envs.make(whole.env, whole.schedule.num_envs // GROUPS, 1) for _ in range(GROUPS)]
    return LocalEngine(whole, seed, device, worlds)


def run_out(engine):
    for _ in engine.run():
        pass
    return engine


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_run_repeats_to_the_last_bit_and_depends_on_its_seed(algo):
    first, again, other = (run_out(engine_of(small_plan(algo), seed)) for seed in (1, 1, 2))
    assert torch.equal(first.learner.vector, again.learner.vector)
    assert first.metrics() == again.metrics()
    assert not torch.equal(first.learner.vector, other.learner.vector)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
@pytest.mark.parametrize("stop", [3, 40, 77])
def test_a_run_from_a_checkpoint_ends_as_the_uninterrupted_one(algo, stop, tmp_path):
    whole = small_plan(algo)
    unbroken = run_out(engine_of(whole))
    stopped = engine_of(whole)
    for _, _ in zip(range(stop), stopped.run(), strict=False):
        pass
    checkpoint.save(tmp_path, stopped, with_replay=True, about={"lines": 3})
    resumed = engine_of(whole)
    assert checkpoint.restore(checkpoint.newest(tmp_path), resumed) == {"lines": 3}
    run_out(resumed)
    assert torch.equal(resumed.learner.vector, unbroken.learner.vector)
    assert torch.equal(resumed.replay.priority, unbroken.replay.priority)
    assert resumed.metrics() == unbroken.metrics()


def test_a_run_goes_on_from_the_checkpoint_of_another_device(tmp_path):
    stopped = engine_of(small_plan())
    for _, _ in zip(range(40), stopped.run(), strict=False):
        pass
    at = checkpoint.save(tmp_path, stopped, with_replay=True, about={})
    with_random_states_of_a_gpu(at, "random")
    resumed = engine_of(small_plan())
    checkpoint.restore(at, resumed)
    assert torch.equal(resumed.learner.vector, stopped.learner.vector)
    run_out(resumed)
    assert resumed.updates == small_plan().schedule.updates


def test_without_its_replay_a_run_fills_it_again_before_it_learns(tmp_path):
    whole = small_plan()
    stopped = engine_of(whole)
    while stopped.updates < 20:
        next(ticks := stopped.run() if stopped.tick == 0 else ticks)  # noqa: F821 (bound in the first round)
    checkpoint.save(tmp_path, stopped, with_replay=False, about={})
    resumed = engine_of(whole)
    checkpoint.restore(checkpoint.newest(tmp_path), resumed)
    before, ticks = resumed.states, resumed.run()
    while resumed.updates == 20:
        next(ticks)
    assert resumed.states - before >= whole.schedule.learning_starts


def test_new_states_pay_for_updates_at_the_set_ratio():
    for ratio in (1.5, 4.0, 10.0):
        whole = small_plan(schedule={"states_per_update": ratio})
        engine = engine_of(whole)
        started = None
        for _ in engine.run():
            if engine.learning_started and started is None:
                started = engine.states
            if started is not None:
                paid = (engine.states - started) / ratio
                assert paid - whole.learner.updates_per_sample < engine.updates + 1e-9 <= paid + 1e-9 or (
                    engine.updates == whole.schedule.updates
                )


def test_actors_take_published_weights_at_their_refresh_only():
    whole = small_plan(schedule={"refresh_interval": 5, "publish_interval": 4})
    engine = engine_of(whole)
    published, actors = [], []
    for _ in engine.run():
        published.append(engine.published.clone())
        actors.append([actor.vector.clone() for actor in engine.actors])
    for tick in range(1, len(actors)):
        group = tick % GROUPS
        refreshed = tick // GROUPS % 5 == 0
        assert torch.equal(actors[tick][group], published[tick - 1] if refreshed else actors[tick - 1][group])
        assert torch.equal(actors[tick][1 - group], actors[tick - 1][1 - group])
    assert len({p.sum().item() for p in published}) == 1 + whole.schedule.updates // 4


def test_players_act_at_random_until_the_set_number_of_updates():
    whole = small_plan(schedule={"random_policy_updates": 20})
    engine = engine_of(whole)
    for _ in engine.run():
        random = engine.updates < 20
        assert all(bool(actor.uniform) == random for actor in engine.actors)


def test_with_episodes_stored_at_their_end_learning_waits_for_the_first():
    whole = small_plan(replay={"store_at_episode_end": True, "release_interval": 10}, schedule={"learning_starts": 16})
    engine = engine_of(whole)
    for _ in engine.run():
        drawn = (engine.replay.priority > 0).any(0)
        assert not (drawn & (engine.replay.last_final == 0)).any()
        if engine.updates:
            assert engine.recent_scores.episodes > 0


def test_an_atari_run_goes_on_at_the_start_of_new_episodes(tmp_path):
    whole = small_plan(
        env="ALE/Pong-v5",
        schedule={"num_envs": 2, "learning_starts": 16, "updates": 6, "hidden_size": 16, "states_per_update": 2.0},
        learner={"batch_size": 4, "target_update_interval": 2},
        replay={"capacity": 200},
    )
    stopped = engine_of(whole)
    for _, _ in zip(range(24), stopped.run(), strict=False):
        pass
    checkpoint.save(tmp_path, stopped, with_replay=True, about={})
    resumed = engine_of(whole)
    checkpoint.restore(checkpoint.newest(tmp_path), resumed)
    last = int(resumed.replay.written[0]) - 1
    assert resumed.replay.final[last].all()
    ticks = resumed.run()
    next(ticks), next(ticks)
    assert (resumed.replay.age[last + 1] == 0).all()
    for _ in ticks:
        pass
    assert resumed.updates == 6


@pytest.mark.parametrize("name", ["tensors.safetensors", "replay.safetensors", "worlds.bin"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_torn_checkpoint_is_named(name, damage, tmp_path):
    engine = engine_of(small_plan())
    for _, _ in zip(range(20), engine.run(), strict=False):
        pass
    file = checkpoint.save(tmp_path, engine, with_replay=True, about={}) / name
    if damage == "gone":
        file.unlink()
    else:
        written = bytearray(file.read_bytes())
        written[-1] ^= 1
        file.write_bytes(written[: len(written) // 2] if damage == "cut" else written)
    with pytest.raises(ValueError, match=name):
        checkpoint.restore(checkpoint.newest(tmp_path), engine_of(small_plan()))


def test_a_checkpoint_of_another_world_or_algorithm_is_refused(tmp_path):
    engine = engine_of(small_plan())
    next(engine.run())
    at = checkpoint.save(tmp_path, engine, with_replay=True, about={})
    with pytest.raises(ValueError, match="checkpoint of CartPole-v1, not of Acrobot-v1"):
        checkpoint.restore(at, engine_of(small_plan(env="Acrobot-v1")))
    with pytest.raises(ValueError, match="checkpoint of rbi, not of apex"):
        checkpoint.restore(at, engine_of(small_plan("apex")))


def test_a_new_checkpoint_takes_the_place_of_the_one_before(tmp_path):
    engine = engine_of(small_plan())
    for number, _ in enumerate(engine.run()):
        if number % 20 == 0:
            checkpoint.save(tmp_path, engine, with_replay=False, about={})
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left == checkpoint.newest(tmp_path)
    assert checkpoint.newest(tmp_path / "nothing") is None


def test_the_policy_of_a_run_is_what_its_actors_follow():
    engine = run_out(engine_of(small_plan()))
    actor = engine.actors[0]
    actor.load(engine.learner.vector)
    states = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    pi, *_ = actor.policy(actor.obs_spec.preprocess(torch.from_numpy(states)[:, None], torch.float32))
    assert engine.policy().predict_proba(states) == pytest.approx(pi.numpy(), abs=1e-6)


@pytest.mark.parametrize("advantage_baseline", ["pi", "mean"])
def test_actors_centre_advantages_as_the_learner_does(advantage_baseline):
    engine = engine_of(small_plan(learner={"advantage_baseline": advantage_baseline}))
    assert {actor.advantage_baseline for actor in engine.actors} == {advantage_baseline}


@pytest.mark.gpu
@pytest.mark.parametrize("with_policy", [True, False])
def test_a_captured_actor_tells_what_a_plain_one_does(with_policy):
    """All but the actions, whose draws may differ: the frames to come do not depend on them here."""
    options = {"num_envs": 6, "with_policy": with_policy, "priority_baseline": "v", "device": "cuda"}
    plain, players = actor_of(**options), RandomEnvs(6, (2,), np.random.default_rng(0))
    captured = GraphedActor(actor_of(**options), torch.cuda.Stream(priority=-1))
    for _ in range(40):
        shown = players.step()
        expected = plain.act(*(given.cuda() for given in shown))
        with torch.cuda.stream(captured.stream):
            torch.cuda._sleep(1_000_000)  # the device is busy: who does not wait for the actions reads old ones
        actions = captured.act(TimeStep(*(given.numpy() for given in shown))).copy()
        torch.cuda.synchronize()
        assert actions.tolist() == captured.moment.action.tolist()
        for name in ("frame", "first", "reward", "end", "pi", "td_error"):
            ours, theirs = (getattr(moment, name) for moment in (captured.moment, expected))
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_on_a_gpu_the_same_counts_come_out_and_trial_runs_leave_no_trace(algo):
    cuda = torch.device("cuda")
    whole = small_plan(algo)
    engine = engine_of(whole, device=cuda)
    before = engine.learner.vector.clone()
    engine.ready()
    assert torch.equal(engine.learner.vector, before)
    assert engine.learner.adam.count == 0
    run_out(engine)
    twin = run_out(engine_of(whole))
    assert (engine.updates, engine.states) == (twin.updates, twin.states)
    assert engine.learner.adam.count == whole.schedule.updates
    assert not torch.equal(engine.learner.vector, before)
    assert torch.isfinite(engine.learner.vector).all()
