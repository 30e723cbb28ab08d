"""Evaluation: as many episodes as asked for, each counted in full, under the protocol that is stated."""

import numpy as np
import pytest
import torch

from rbi.envs.types import TimeStep
from rbi.evaluation import video as films
from rbi.evaluation.comparison import human_normalised
from rbi.evaluation.rollouts import EpisodeStatistics, Protocol, run_episodes
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.returns import CONTINUES, TERMINATED, TRUNCATED
from rbi.rules.types import Behavior
from rbi.statistics import describe


class Countdown:
    """Player i's episodes last i + 1 steps and give 1 a step; every second one runs out of time."""

    num_actions, obs_shape, frame_stack, pending = 2, (1,), 1, False

    def __init__(self, world, players):
        self.world, self.num_envs = world, players

    def seen(self, first, reward, end):
        frame = np.arange(self.num_envs, dtype=np.float32)[:, None]
        return TimeStep(frame, first, reward.astype(np.float32), end.astype(np.uint8))

    def reset(self, _seed):
        self.step, self.over = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        none = np.zeros(self.num_envs)
        return self.seen(np.ones(self.num_envs, bool), none, none)

    def send(self, actions):
        assert actions.shape == (self.num_envs,)

    def recv(self):
        first = self.over
        self.step = np.where(first, 0, self.step + 1)
        over = self.step > np.arange(self.num_envs)
        end = np.where(over, np.where(np.arange(self.num_envs) % 2, TRUNCATED, TERMINATED), CONTINUES)
        self.over = over
        return self.seen(first, np.where(first, 0.0, 1.0), end)

    def close(self):
        self.closed = True


def any_policy(obs_spec=ObservationSpec((1,), 1, 2)):  # noqa: B008 (frozen)
    return Policy(make_networks(obs_spec, NetworkConfig(4), 0), Behavior(), env="CartPole-v1")


@pytest.mark.parametrize("episodes", [1, 7, 64, 150])
def test_exactly_the_asked_episodes_come(episodes):
    played = list(run_episodes(any_policy(), Protocol("paper"), "Countdown-v0", episodes, 0, make=Countdown))
    assert len(played) == episodes
    assert {e.env_index for e in played} == set(range(min(episodes, 64)))
    assert all(e.score == e.steps == e.env_index + 1 for e in played)
    assert all(e.truncated == bool(e.env_index % 2) for e in played)


def test_an_episodes_score_is_the_sum_of_its_own_rewards():
    scores, world = EpisodeStatistics(3), Countdown(None, 3)
    found = scores.update(world.reset(0))
    for _ in range(40):
        found += scores.update(world.recv())
    assert {(e.env_index, e.score) for e in found} == {(0, 1.0), (1, 2.0), (2, 3.0)}


def test_protocols_say_what_they_do():
    paper, modern = Protocol("paper"), Protocol("modern", epsilon=0.01)
    assert (paper.env_config("ALE/Pong-v5").repeat_action_probability, paper.env_config("ALE/Pong-v5").noop_max) == (
        0.0,
        30,
    )
    assert (modern.env_config("ALE/Pong-v5").repeat_action_probability, modern.env_config("ALE/Pong-v5").noop_max) == (
        0.25,
        0,
    )
    assert paper.env_config("ALE/Pong-v5").max_frames == modern.env_config("ALE/Pong-v5").max_frames == 108_000
    assert "up to 30 no-ops at the start, sticky actions 0, 108,000 frames" in paper.describe("ALE/Pong-v5")
    assert "random with probability 0.01; no no-ops, sticky actions 0.25" in modern.describe("ALE/Pong-v5")
    with pytest.raises(ValueError, match="epsilon = 2"):
        Protocol("paper", epsilon=2)


def test_a_policy_of_another_world_is_refused():
    with pytest.raises(ValueError, match=r"--env Countdown-v0: has observations \(1,\) and 2 actions, but the policy"):
        next(
            run_episodes(
                any_policy(ObservationSpec((4,), 1, 2)), Protocol("paper"), "Countdown-v0", 3, 0, make=Countdown
            )
        )


def test_a_summary_says_what_numpy_says_and_its_interval_covers_the_mean():
    scores = np.random.default_rng(1).normal(10, 3, 200)
    found = describe(scores.tolist())
    assert found["mean"] == pytest.approx(scores.mean())
    assert found["median"] == pytest.approx(np.median(scores))
    assert found["quartiles"] == pytest.approx(np.percentile(scores, [25, 75]).tolist())
    low, high = found["interval"]
    error = scores.std() / np.sqrt(200)
    assert (low, high) == pytest.approx((scores.mean() - 1.96 * error, scores.mean() + 1.96 * error), abs=0.15)
    assert describe([3.0])["interval"] == [3.0, 3.0]


def test_human_normalised_scores_are_0_for_random_play_and_1_for_the_tester():
    assert human_normalised("ALE/Qbert-v5", 163.9) == 0
    assert human_normalised("ALE/Qbert-v5", 13455) == 1
    assert human_normalised("CartPole-v1", 500) is None


def test_a_film_shows_an_episode_of_the_game_in_colour(tmp_path):
    policy = Policy(make_networks(ObservationSpec((84, 84), 4, 6), NetworkConfig(8), 0), Behavior(), env="ALE/Pong-v5")
    screens = films.render_episode(policy, Protocol("paper"), "ALE/Pong-v5", 0)
    few = [next(screens) for _ in range(30)]
    assert all(screen.shape == (210, 160, 3) for screen in few)
    assert len(np.unique(few[-1].reshape(-1, 3), axis=0)) >= 4  # background, walls, two paddles
    assert any((few[0] != screen).any() for screen in few)
    assert films.write_video(tmp_path / "film.gif", iter(few)) == 30
    assert (tmp_path / "film.gif").read_bytes()[:6] == b"GIF89a"
    with pytest.raises(ValueError, match=r"videos are written as .gif or .mp4"):
        films.check_format(tmp_path / "film.avi")


def test_the_grey_and_the_coloured_game_of_a_film_are_the_same_moments():
    from rbi.envs.atari import AtariScreen
    from rbi.envs.types import EnvConfig

    game = AtariScreen(EnvConfig("ALE/Pong-v5", repeat_action_probability=0.25))
    seen, rng = game.reset(5), np.random.default_rng(0)
    for _ in range(40):
        grey = game.screen().astype(np.float64) @ [0.299, 0.587, 0.114]
        small = torch.nn.functional.interpolate(torch.from_numpy(grey)[None, None], (84, 84), mode="area")[0, 0].numpy()
        assert np.abs(small - seen.obs[0]).mean() < 4
        game.send(rng.integers(6, size=1))
        seen = game.recv()
