"""Settings of training: the presets, the paper's numbers, changes, and what is refused."""

from dataclasses import replace
from typing import get_args

import gymnasium
import pytest
from pytest import approx

import rbi
from rbi.envs.types import EnvConfig
from rbi.observations import ObservationSpec
from rbi.online.config import (
    GROUPS,
    PAPER_GAMES,
    PAPER_MAX_FRAMES,
    ActorConfig,
    Algorithm,
    LearnerConfig,
    Preset,
    Schedule,
    TrainConfig,
    default_preset,
)
from rbi.replay import ReplayConfig, bytes_needed

GAME = "ALE/Breakout-v5"
PAPER = TrainConfig.preset(GAME, "rbi", "paper")


@pytest.mark.parametrize("algo", get_args(Algorithm))
@pytest.mark.parametrize("preset", get_args(Preset))
def test_every_preset_suits_both_algorithms(preset, algo):
    config = TrainConfig.preset("CartPole-v1", algo, preset)
    assert (config.env.id, config.algo) == ("CartPole-v1", algo)
    assert config.schedule.num_envs % GROUPS == 0


def test_without_a_preset_the_environment_chooses_and_never_the_papers_millions():
    assert default_preset(EnvConfig(GAME)) == "fast"
    assert default_preset(EnvConfig("CartPole-v1")) == "small"
    assert TrainConfig.preset("CartPole-v1") == TrainConfig.preset("CartPole-v1", "rbi", "small")
    assert TrainConfig.preset(GAME).schedule.updates < PAPER.schedule.updates
    made = TrainConfig.preset(lambda: gymnasium.make("CartPole-v1"))
    assert made.schedule == TrainConfig.preset("CartPole-v1").schedule


def test_the_paper_preset_has_the_numbers_of_the_papers_tables():
    assert rbi.parse_rule(PAPER.actor.rule) == rbi.Reroute(0.1, 2)
    assert PAPER.actor.c_greedy == 0.1
    assert PAPER.actor.improve_in == "actor"
    assert PAPER.learner.policy_weight_exponent == 0.5
    assert PAPER.learner.policy_weighting
    assert PAPER.learner.batch_size == 128
    assert PAPER.schedule.num_envs == 256
    assert PAPER.schedule.updates == 3_125_000
    assert PAPER.schedule.updates * PAPER.learner.batch_size == 12_500_000 * 32  # as many states as Rainbow's


def test_the_paper_preset_has_the_schedule_of_the_papers_appendix():
    assert PAPER.learner.learning_rate == approx(0.00025 / 4)
    assert PAPER.learner.target_update_interval == 2500
    assert PAPER.learner.updates_per_sample == 1
    assert PAPER.schedule.publish_interval == 100
    assert PAPER.schedule.refresh_interval == 1000
    assert 240 <= PAPER.schedule.states_per_update <= 280
    assert PAPER.replay.store_at_episode_end
    assert PAPER.replay.release_interval == 5000
    assert PAPER.env.max_frames == 50_000
    assert PAPER.env.noop_max == 30
    assert PAPER.env.repeat_action_probability == 0


def test_the_paper_preset_fills_what_the_paper_leaves_open_as_the_decision_says():
    assert (PAPER.returns.n_step, PAPER.returns.gamma) == (3, 0.99)
    assert PAPER.replay.capacity == 2_000_000
    assert (PAPER.replay.priority_exponent, PAPER.replay.importance_exponent) == (0.6, 0.4)
    assert (PAPER.actor.epsilon_base, PAPER.actor.epsilon_exponent) == (0.4, 7)
    assert PAPER.actor.clip_rewards
    assert PAPER.actor.priority_baseline == "q"
    assert PAPER.learner.q_loss == "huber"
    assert PAPER.learner.adam_epsilon == 1.5e-4
    assert (PAPER.learner.advantage_baseline, PAPER.learner.bootstrap_policy) == ("pi", "stored")
    assert PAPER.schedule.random_policy_updates == 2500
    assert PAPER.schedule.hidden_size == 512


def test_rbi_and_apex_differ_in_the_algorithm_alone():
    assert replace(PAPER, algo="apex") == TrainConfig.preset(GAME, "apex", "paper")


def test_the_papers_games_are_those_of_its_final_table():
    assert set(PAPER_GAMES) == {
        "Asterix", "Berzerk", "Breakout", "Enduro", "Freeway", "Frostbite", "IceHockey", "Kangaroo", "MsPacman",
        "Qbert", "Seaquest", "SpaceInvaders",
    }  # fmt: skip
    assert len(PAPER_GAMES) == 12


def test_the_papers_replay_fits_into_one_gpu_whatever_the_game():
    assert bytes_needed(PAPER.replay, ObservationSpec((84, 84), 4, 18)) < 20e9


@pytest.mark.parametrize("change", [{"batch_size": 7}, {"learner": {"batch_size": 7}}], ids=str)
def test_single_settings_and_parts_can_be_changed(change):
    base = TrainConfig.preset("CartPole-v1")
    changed = base.changed(**change)
    assert changed.learner.batch_size == 7
    assert changed.changed(batch_size=base.learner.batch_size) == base
    assert base.changed(learner=LearnerConfig(batch_size=9)).learner == LearnerConfig(batch_size=9)


@pytest.mark.parametrize(
    "env", ["Acrobot-v1", EnvConfig("Acrobot-v1", 900), lambda: None], ids=["id", "config", "function"]
)
def test_the_environment_can_be_changed(env):
    changed = TrainConfig.preset("CartPole-v1").changed(env=env).env
    assert changed == (env if isinstance(env, EnvConfig) else EnvConfig.of(env, max_frames=PAPER_MAX_FRAMES))


@pytest.mark.parametrize("change", [{"batchsize": 7}, {"learner": {"batchsize": 7}}], ids=str)
def test_an_unknown_setting_is_refused_by_name(change):
    with pytest.raises(ValueError, match="batchsize: is not a setting"):
        PAPER.changed(**change)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"preset = 'smal': must be one of paper, fast, small; did you mean small\?"):
        TrainConfig.preset("CartPole-v1", preset="smal")


def test_atari_games_have_processes_of_their_own():
    with pytest.raises(ValueError, match="env_processes = 2: Atari games have their own"):
        PAPER.changed(env_processes=2)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("total_timesteps", "updates, which counts batches, not environment steps"),
        ("num_iterations", "updates"),
        ("batchsize", "batch_size"),
        ("buffer_size", "capacity"),
        ("gradient_steps", "states_per_update"),
    ],
)
def test_an_unknown_setting_gets_a_suggestion(name, meant):
    with pytest.raises(ValueError, match=rf"did you mean {meant}\?$"):
        PAPER.changed(**{name: 7})


@pytest.mark.parametrize(
    ("algo", "change"),
    [("apex", {"rule": "greedy"}), ("apex", {"learner": {"policy_weighting": False}}), ("rbi", {"double_q": False})],
    ids=str,
)
def test_a_setting_that_the_algorithm_does_not_use_is_refused(algo, change):
    with pytest.raises(ValueError, match=f": has no effect on the algorithm {algo}"):
        TrainConfig.preset("CartPole-v1", algo, **change)
    other = "apex" if algo == "rbi" else "rbi"
    assert TrainConfig.preset("CartPole-v1", other, **change) != TrainConfig.preset("CartPole-v1", other)


@pytest.mark.parametrize(
    ("name", "value"),
    [("updates", 1001), ("publish_interval", 15), ("random_policy_updates", 25), ("release_interval", 55)],
)
def test_an_interval_between_two_updates_of_one_sample_is_refused_by_name(name, value):
    valid = {"updates_per_sample": 10, "target_update_interval": 100, "updates": 1000, "random_policy_updates": 0}
    config = TrainConfig.preset(GAME, "rbi", "paper", **valid)
    with pytest.raises(ValueError, match=rf"^{name} = {value}: not a multiple of learner.updates_per_sample = 10$"):
        config.changed(**{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 1000, "learning_starts": 600}, "learning_starts = 600"),
        ({"capacity": 1000, "learning_starts": 10, "batch_size": 2000}, "batch_size = 2000"),
        ({"capacity": 2000, "learning_starts": 10, "release_interval": 800}, "release_interval = 800"),
        ({"capacity": 2000, "learning_starts": 10, "release_interval": 128}, "2,048 new states would come"),
    ],
)
def test_settings_that_do_not_fit_the_replay_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig.preset("CartPole-v1", **changes)


@pytest.mark.parametrize(
    "bad",
    [
        dict(updates=0), dict(num_envs=0), dict(num_envs=7), dict(states_per_update=0.0), dict(norm="batch"),
        dict(states_per_update=float("inf")), dict(states_per_update=float("nan")), dict(random_policy_updates=-1),
        dict(hidden_size=9_999_999_999),
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_schedule_is_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Schedule(**bad)


def test_a_rule_may_be_given_as_an_object_or_as_text():
    config = TrainConfig.preset("CartPole-v1", rule=rbi.Reroute(0.5, 1.5))
    assert config == TrainConfig.preset("CartPole-v1", rule="reroute(0.5,1.5)")
    assert config.changed(actor=ActorConfig(rule=rbi.Greedy(), improve_in="both")).actor.rule == "greedy"


def test_an_unknown_rule_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="nonsense"):
        TrainConfig.preset("CartPole-v1", actor=ActorConfig(rule="nonsense"))


def test_parts_are_compared_by_value():
    assert TrainConfig(EnvConfig(GAME), replay=ReplayConfig()) == TrainConfig(EnvConfig(GAME))


def test_numbered_states_have_settings_of_their_own_in_the_small_preset_only():
    lake, cart = TrainConfig.preset("FrozenLake-v1"), TrainConfig.preset("CartPole-v1")
    assert (lake.returns.n_step, cart.returns.n_step) == (1, 3)
    assert (lake.actor.max_repeat, cart.actor.max_repeat) == (1, 100)
    assert TrainConfig.preset(lambda: gymnasium.make("FrozenLake-v1")).learner == lake.learner
    assert TrainConfig.preset("FrozenLake-v1", preset="fast").learner == TrainConfig.preset(GAME).learner
    assert TrainConfig.preset("FrozenLake-v1", preset="fast").schedule == TrainConfig.preset(GAME).schedule
    assert TrainConfig.preset("FrozenLake-v1", adam_epsilon=0.5).learner.adam_epsilon == 0.5
