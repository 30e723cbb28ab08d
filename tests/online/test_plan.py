"""Plans: the presets, the paper's numbers, and what is refused."""

from dataclasses import replace
from typing import get_args

import pytest
from pytest import approx

import rbi
from rbi.envs.types import EnvConfig
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, PAPER_GAMES, Algorithm, Preset, Schedule, TrainConfig
from rbi.online.rbi import ActorConfig, LearnerConfig
from rbi.replay import ReplayConfig, bytes_needed

GAME = "ALE/Breakout-v5"


@pytest.mark.parametrize("algo", get_args(Algorithm))
@pytest.mark.parametrize("preset", get_args(Preset))
def test_every_preset_makes_a_plan_for_both_algorithms(preset, algo):
    whole = TrainConfig.preset("CartPole-v1", algo, preset)
    assert whole.env.id == "CartPole-v1"
    assert whole.learns_policy == (algo == "rbi")
    assert whole.schedule.num_envs % GROUPS == 0


def test_the_paper_preset_has_the_numbers_of_the_papers_tables():
    whole = TrainConfig.preset(GAME, "rbi", "paper")
    assert rbi.parse_rule(whole.actor.rule) == rbi.Reroute(0.1, 2)
    assert whole.actor.c_greedy == 0.1
    assert whole.actor.improve_in == "actor"
    assert whole.learner.policy_weight_exponent == 0.5
    assert whole.learner.policy_weighting
    assert whole.learner.batch_size == 128
    assert whole.schedule.num_envs == 256
    assert whole.schedule.updates == 3_125_000
    assert whole.schedule.updates * whole.learner.batch_size == 12_500_000 * 32  # as many states as Rainbow's


def test_the_paper_preset_has_the_pace_of_the_papers_appendix():
    whole = TrainConfig.preset(GAME, "rbi", "paper")
    assert whole.learner.learning_rate == approx(0.00025 / 4)
    assert whole.learner.target_update_interval == 2500
    assert whole.learner.updates_per_sample == 1
    assert whole.schedule.publish_interval == 100
    assert whole.schedule.refresh_interval == 1000
    assert 240 <= whole.schedule.states_per_update <= 280
    assert whole.replay.store_at_episode_end
    assert whole.replay.release_interval == 5000
    assert whole.env.max_frames == 50_000
    assert whole.env.noop_max == 30
    assert whole.env.repeat_action_probability == 0


def test_the_paper_preset_fills_what_the_paper_leaves_open_as_our_notes_say():
    whole = TrainConfig.preset(GAME, "rbi", "paper")
    assert (whole.returns.n_step, whole.returns.gamma) == (3, 0.99)
    assert whole.replay.capacity == 2_000_000
    assert (whole.replay.priority_exponent, whole.replay.importance_exponent) == (0.6, 0.4)
    assert (whole.actor.epsilon_base, whole.actor.epsilon_exponent) == (0.4, 7)
    assert whole.actor.clip_rewards
    assert whole.actor.priority_baseline == "q"
    assert whole.learner.q_loss == "huber"
    assert whole.learner.adam_epsilon == 1.5e-4
    assert (whole.learner.advantage_baseline, whole.learner.bootstrap_policy) == ("pi", "stored")
    assert whole.schedule.random_policy_updates == 2500
    assert whole.schedule.hidden_size == 512


def test_rbi_and_ape_x_differ_in_the_algorithm_alone():
    assert replace(TrainConfig.preset(GAME, "rbi", "paper"), algo="apex") == TrainConfig.preset(GAME, "apex", "paper")


def test_the_papers_games_are_those_of_its_final_table():
    assert set(PAPER_GAMES) == {
        "Asterix", "Berzerk", "Breakout", "Enduro", "Freeway", "Frostbite", "IceHockey", "Kangaroo", "MsPacman",
        "Qbert", "Seaquest", "SpaceInvaders",
    }  # fmt: skip
    assert len(PAPER_GAMES) == 12


def test_the_papers_replay_fits_into_one_gpu_whatever_the_game():
    assert bytes_needed(TrainConfig.preset(GAME, "rbi", "paper").replay, ObservationSpec((84, 84), 4, 18)) < 20e9


def test_changes_replace_whole_parts_and_leave_the_others():
    changed = TrainConfig.preset("CartPole-v1", "rbi", "small", learner=LearnerConfig(batch_size=7))
    assert changed.learner.batch_size == 7
    assert replace(changed, learner=TrainConfig.preset("CartPole-v1", "rbi", "small").learner) == TrainConfig.preset(
        "CartPole-v1", "rbi", "small"
    )


INTERVALS = [
    ("updates", dict(schedule=Schedule(updates=1001, publish_interval=10, random_policy_updates=0))),
    ("publish_interval", dict(schedule=Schedule(updates=1000, publish_interval=15, random_policy_updates=0))),
    ("random_policy_updates", dict(schedule=Schedule(updates=1000, publish_interval=10, random_policy_updates=25))),
    (
        "release_interval",
        dict(schedule=Schedule(updates=1000, random_policy_updates=0), replay=ReplayConfig(release_interval=55)),
    ),
]


@pytest.mark.parametrize(("name", "parts"), INTERVALS, ids=[name for name, _ in INTERVALS])
def test_an_interval_that_would_fall_inside_a_round_is_refused_by_name(name, parts):
    learner = LearnerConfig(updates_per_sample=10, target_update_interval=100)
    with pytest.raises(ValueError, match=rf"^{name} = \d+: not a multiple of updates_per_sample = 10$"):
        TrainConfig(EnvConfig(GAME), learner=learner, **parts)


def test_a_start_that_a_small_replay_could_hardly_reach_is_refused():
    with pytest.raises(ValueError, match=r"^learning_starts = 600: .* 1000 states"):
        TrainConfig(EnvConfig(GAME), replay=ReplayConfig(capacity=1000), schedule=Schedule(learning_starts=600))
    assert (
        TrainConfig(
            EnvConfig(GAME), replay=ReplayConfig(capacity=1000), schedule=Schedule(learning_starts=500)
        ).schedule.learning_starts
        == 500
    )


BAD = [
    dict(updates=0), dict(num_envs=0), dict(num_envs=7), dict(publish_interval=0), dict(refresh_interval=0),
    dict(learning_starts=0), dict(hidden_size=0), dict(states_per_update=0.0), dict(states_per_update=float("inf")),
    dict(states_per_update=float("nan")), dict(random_policy_updates=-1), dict(env_threads=-1),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_pace_that_makes_no_sense_is_refused_by_name(bad):
    ((name, _),) = bad.items()
    with pytest.raises(ValueError, match=name):
        Schedule(**bad)


def test_a_rule_that_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="nonsense"):
        TrainConfig.preset("CartPole-v1", "rbi", "small", actor=ActorConfig(rule="nonsense"))
