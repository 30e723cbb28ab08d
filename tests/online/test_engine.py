"""The local engine: counted schedules, runs that repeat to the last bit, and checkpoints to continue from."""

import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rbi import checkpoint
from rbi.envs.types import TimeStep
from rbi.gpu import lock_pages
from rbi.observations import ObservationSpec, shrink
from rbi.online.config import GROUPS
from rbi.online.engine import CapturedActor, init_networks
from rbi.policy import load_policy
from rbi.steps import TERMINATED
from tests.checkpoints import use_gpu_random_states
from tests.games import Doors
from tests.online.small_runs import make_engine, run_steps, run_to_end, small_config
from tests.online.test_actors import MASKED, VECTORS, make_actor
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


FROM_LATEST = {"improve_from": "latest"}


@pytest.mark.parametrize("settings", [{}, FROM_LATEST, {"algo": "apex"}], ids=["rbi", "from latest", "apex"])
@pytest.mark.parametrize("steps", [3, 41, 77])
def test_a_run_resumed_from_a_checkpoint_ends_as_the_uninterrupted_one(settings, steps, tmp_path):
    config = small_config(**settings)
    uninterrupted = run_to_end(make_engine(config))
    save(tmp_path, run_steps(make_engine(config), steps), lines=3)
    assert checkpoint.load(checkpoint.newest(tmp_path)).info == {"lines": 3}
    resumed = run_to_end(resume(tmp_path, config))
    assert torch.equal(resumed.learner.vector, uninterrupted.learner.vector)
    assert torch.equal(resumed.replay.priority, uninterrupted.replay.priority)
    assert resumed.metrics() == uninterrupted.metrics()


def test_a_resumed_run_goes_on_counting_its_running_episodes(tmp_path):
    stopped = run_steps(make_engine(small_config()), 40)
    save(tmp_path, stopped)
    for before, after in zip(stopped.episodes, resume(tmp_path, small_config()).episodes, strict=True):
        assert before.steps.any()
        assert (before.score.tolist(), before.steps.tolist()) == (after.score.tolist(), after.steps.tolist())


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


def test_a_run_ends_at_its_last_update_even_if_more_are_due():
    engine = run_to_end(make_engine(small_config(states_per_update=0.5)))  # eight updates after every step
    assert engine.updates == 60


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


def test_a_run_resumed_after_its_random_updates_follows_its_policy(tmp_path):
    config = small_config(random_policy_updates=20)
    stopped = make_engine(config)
    for _ in stopped.run():
        if stopped.updates == 24:
            break
    save(tmp_path, stopped)
    resumed = resume(tmp_path, config)
    next(resumed.run())
    assert not any(bool(actor.uniform) for actor in resumed.actors)


def test_with_episodes_stored_at_their_end_learning_waits_for_the_first():
    engine = make_engine(small_config(store_at_episode_end=True, release_interval=10, learning_starts=16))
    for _ in engine.run():
        drawable = (engine.replay.priority > 0).any(0)
        assert not (drawable & (engine.replay.last_final == 0)).any()
        if engine.updates:
            assert engine.recent_scores.episodes > 0


@pytest.mark.parametrize("exponent", [0.0, 0.4])
def test_learning_from_a_replay_that_new_steps_have_emptied_changes_nothing(exponent):
    config = small_config(
        env="MountainCar-v0", num_envs=2, capacity=100, store_at_episode_end=True, release_interval=24, batch_size=8,
        learning_starts=16, updates=120, states_per_update=4.0, max_repeat=1, importance_exponent=exponent,
    )  # fmt: skip
    engine, empty = make_engine(config), 0
    backend = engine.start_backend()
    learn = backend.learn

    def counted():
        nonlocal empty
        nothing = float(engine.replay.mass.sum()) == 0
        empty += nothing
        learn()
        assert not nothing or float(engine.replay.mass.sum()) == 0

    backend.learn = counted
    run_to_end(engine)
    assert empty > 10
    assert torch.isfinite(engine.learner.vector).all()


def test_a_replay_that_is_being_filled_again_is_filled_to_the_same_number_after_a_stop(tmp_path):
    config = small_config(learning_starts=200)
    save(tmp_path / "first", run_steps(make_engine(config), 80), with_replay=False)
    again = resume(tmp_path / "first", config)
    states = again.states
    save(tmp_path / "second", run_steps(again, again.steps + 10))
    third = resume(tmp_path / "second", config)
    updates = third.updates
    for _ in third.run():
        if third.updates > updates:
            break
    assert third.states >= states + 200


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


def test_where_environments_cannot_be_restored_actors_forget_their_episodes(tmp_path):
    save(tmp_path, run_steps(make_engine(small_config(priority_exponent=0.6)), 40))
    resumed = make_engine(small_config(priority_exponent=0.6))
    for env in resumed.envs:
        env.restore = lambda _: False
    resumed.restore(checkpoint.load(checkpoint.newest(tmp_path)))
    for actor in resumed.actors:
        assert not any(getattr(actor.memory, name).any() for name in ("stack", "rewards", "values", "baselines"))
        assert int(actor.memory.steps) == 20


def test_epsilon_falls_during_the_set_part_of_the_run():
    engine = run_to_end(make_engine(small_config(exploration_fraction=0.5)))
    for actor in engine.actors:
        assert actor.memory.exploration_steps == pytest.approx(int(actor.memory.steps) / 2, abs=1)


def test_new_episodes_of_a_resumed_run_have_new_seeds():
    engine, seeds = make_engine(small_config()), []
    for env in engine.envs:
        env.reset = lambda seed, count=env.num_envs: seeds.extend(range(seed, seed + count))
    engine.start()
    engine.steps = 40
    engine.start()
    assert len(set(seeds)) == len(seeds) == 2 * engine.config.schedule.num_envs


def test_metrics_are_means_over_both_groups_and_over_the_states_of_the_replay():
    engine = run_steps(make_engine(small_config(capacity=200)), 60)
    sums = [actor.sums.clone() for actor in engine.actors]
    mass, metrics = float(engine.replay.mass.sum()), engine.metrics()
    for number, name in enumerate(engine.actors[0].METRICS):
        each = [float(of_actor[number] / of_actor[-1]) for of_actor in sums]
        assert each[0] != each[1]
        assert metrics[name] == pytest.approx(sum(each) / 2)
    assert engine.states == 240
    assert metrics["priority_mean"] == pytest.approx(mass / 200)


def test_scores_are_of_low_epsilon_by_the_environments_own_epsilon():
    engine = make_engine(small_config())
    end = np.array([0, TERMINATED, 0, 0], np.uint8)
    step = TimeStep(np.zeros((4, 4), np.float32), np.zeros(4, bool), np.ones(4, np.float32), end)
    for group, epsilon, count in ((0, 0.064, 0), (1, 0.0256, 1)):
        assert float(engine.epsilons[group][1]) == pytest.approx(epsilon)
        engine.record_episodes(group, step)
        assert len(engine.recent_scores.low_epsilon) == count


@pytest.mark.parametrize("num_envs", [2, 8])
def test_where_no_epsilon_is_low_the_scores_are_of_the_lowest(num_envs):
    engine = run_to_end(make_engine(small_config(num_envs=num_envs, epsilon_base=0.1, epsilon_exponent=0.0)))
    assert engine.recent_scores.low_epsilon == engine.recent_scores.all_envs
    assert engine.metrics()["score"] is not None


@pytest.mark.parametrize(("num_envs", "episodes"), [(2, 20), (64, 86), (256, 100)])
def test_recent_scores_are_of_two_episodes_per_low_epsilon_environment(num_envs, episodes):
    assert make_engine(small_config(num_envs=num_envs)).recent_scores.low_epsilon.maxlen == episodes


@pytest.mark.parametrize(
    "settings",
    [{}, FROM_LATEST | {"improve_in": "actor"}, {"improve_in": "learner"}, {"algo": "apex"}],
    ids=["both", "actor", "learner", "apex"],
)
def test_the_policy_of_a_run_is_what_its_actors_follow(settings):
    engine = run_to_end(make_engine(small_config(**settings)))
    actor = engine.actors[0]
    actor.load(engine.learner.vector)
    obs = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    pi = actor.choose(torch.from_numpy(obs), torch.ones(4, dtype=torch.bool)).pi
    assert engine.policy().predict_proba(obs) == pytest.approx(pi.numpy(), abs=1e-6)


def test_a_policy_taken_during_a_run_does_not_change_afterwards():
    engine, obs = make_engine(small_config()), np.ones((1, 4), np.float32)
    steps = engine.run()
    next(steps)
    policy = engine.policy()
    before = policy.predict_proba(obs)
    for _ in steps:
        pass
    assert np.array_equal(policy.predict_proba(obs), before)
    assert not np.array_equal(engine.policy().predict_proba(obs), before)


@pytest.mark.parametrize("advantage_baseline", ["pi", "mean"])
def test_actors_use_the_learners_advantage_baseline(advantage_baseline):
    engine = make_engine(small_config(advantage_baseline=advantage_baseline))
    assert {actor.advantage_baseline for actor in engine.actors} == {advantage_baseline}


@pytest.mark.parametrize("advantage_baseline", ["pi", "mean"])
def test_a_policy_has_the_q_values_of_the_actors(advantage_baseline, tmp_path):
    engine, obs = make_engine(small_config(advantage_baseline=advantage_baseline)), np.ones((4, 4), np.float32)
    engine.policy().save(tmp_path / "policy")
    policy, choice = load_policy(tmp_path / "policy"), engine.actors[0].choose(torch.from_numpy(obs), torch.ones(4) > 0)
    assert policy.beta_and_q(policy.obs_tensor(obs))[1].numpy() == pytest.approx(choice.q.numpy(), abs=1e-6)
    assert policy.predict_value(obs) == pytest.approx((choice.pi * choice.q).sum(1).numpy(), abs=1e-6)


@pytest.mark.parametrize("scale", [True, False])
def test_observations_are_scaled_by_their_bounds_only_if_asked_for(scale):
    engine = make_engine(small_config(env="MountainCar-v0", scale_observations=scale))
    assert bool(engine.obs_spec.scale) == bool(engine.policy().obs_spec.scale) == scale


@pytest.mark.parametrize("norm", ["none", "layer", "hidden"])
def test_the_networks_are_those_of_the_schedule(norm):
    engine = make_engine(small_config(norm=norm, hidden_size=24))
    for networks in (engine.learner.networks, engine.policy().networks):
        assert (networks.config.norm, networks.config.hidden_size) == (norm, 24)


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


class Attention(nn.Module):
    """One layer of a transformer over the numbers of an observation."""

    def __init__(self, p):
        super().__init__()
        self.embed, self.layer = nn.Linear(1, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=p, batch_first=True)

    def forward(self, x):
        return self.layer(self.embed(x[:, :, None])).mean(1)


class Recurrent(nn.Module):
    """Two layers of a recurrent network, with dropout in between."""

    def __init__(self, p):
        super().__init__()
        self.gru = nn.GRU(4, 4, 2, batch_first=True, dropout=p)

    def forward(self, x):
        return self.gru(x)[0][:, -1]


RANDOM_TRUNKS = {  # by the probability of dropout
    "a layer": lambda p: lambda obs_spec: nn.Sequential(two_layers(obs_spec), nn.Dropout(p)),
    "between layers": lambda p: lambda _: nn.Sequential(nn.Unflatten(1, (1, 4)), Recurrent(p)),
    "attention": lambda p: lambda _: Attention(p),
}


@pytest.mark.parametrize("name", RANDOM_TRUNKS)
def test_a_trunk_is_refused_if_and_only_if_it_gives_random_features(name):
    obs_spec, make = make_engine(small_config()).obs_spec, RANDOM_TRUNKS[name]
    state = torch.get_rng_state()
    init_networks(small_config(), obs_spec, 0, make(0.0))
    init_networks(small_config(), obs_spec, 0, lambda spec: make(0.1)(spec).eval())  # and so without dropout
    with pytest.raises(ValueError, match="trunk: the same states have other features in each call, as with dropout"):
        init_networks(small_config(), obs_spec, 0, make(0.1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.gpu
@pytest.mark.parametrize("obs_spec", [VECTORS, MASKED], ids=["all legal", "masks"])
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_a_captured_actor_returns_what_a_plain_one_does(algo, obs_spec):
    """All but the actions, whose draws may differ: the observations do not depend on them here."""
    options = {"obs_spec": obs_spec, "num_envs": 6, "algo": algo, "priority_baseline": "v", "device": "cuda"}
    plain = make_actor(**options)
    random_envs = RandomEnvs(6, (2,), np.random.default_rng(0), mask_size=obs_spec.mask_size)
    captured = CapturedActor(make_actor(**options), torch.cuda.Stream(priority=-1))
    for _ in range(40):
        shown = random_envs.step()
        expected = plain.act(*(given.cuda() for given in shown))
        with torch.cuda.stream(captured.stream):
            torch.cuda._sleep(1_000_000)  # the device is busy: code that does not wait for the actions reads old ones
        actions = captured.act(TimeStep(*(given.numpy() for given in shown))).copy()
        torch.cuda.synchronize()
        assert actions.tolist() == captured.transition.action.tolist()
        for name in ("obs", "is_first", "reward", "end", "pi", "td_error", "legal"):
            ours, theirs = (getattr(transition, name) for transition in (captured.transition, expected))
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_captured_actor_shrinks_screens_which_it_reads_where_they_lie():
    options = {"obs_spec": ObservationSpec((84, 84), 4, 3), "num_envs": 8, "priority_baseline": "v", "device": "cuda"}
    memory = mmap.mmap(-1, 8 * 210 * 160)
    screens = np.frombuffer(memory, np.uint8).reshape(8, 210, 160)
    plain, captured = make_actor(**options), CapturedActor(make_actor(**options), torch.cuda.Stream(), (210, 160))
    unlock = lock_pages(captured, memory)
    random_envs = RandomEnvs(8, (2,), np.random.default_rng(0))
    for turn in range(20):
        if turn == 10:
            unlock()  # from here on by way of the buffer
        assert torch.from_numpy(screens).is_pinned() == (turn < 10)
        screens[:] = np.random.default_rng(turn).integers(256, size=screens.shape)
        _, *others = random_envs.step()
        obs = shrink(torch.from_numpy(screens), (84, 84))
        expected = plain.act(obs.cuda(), *(given.cuda() for given in others))
        captured.act(TimeStep(screens, *(given.numpy() for given in others)))
        screens[:] = 0  # by the next step
        torch.cuda.synchronize()
        assert torch.equal(captured.transition.obs, expected.obs)


@pytest.mark.gpu
@pytest.mark.parametrize("env", ["CartPole-v1", Doors], ids=["all legal", "masks"])
@pytest.mark.parametrize("settings", [{}, FROM_LATEST, {"algo": "apex"}], ids=["rbi", "from latest", "apex"])
def test_on_a_gpu_the_counts_are_the_same_and_warm_up_runs_leave_no_trace(settings, env):
    config = small_config(env=env, **settings)
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
