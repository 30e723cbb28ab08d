"""Atari games beside the emulator itself, played with the same seeds and actions."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from rbi.envs import make
from rbi.envs.atari import AtariScreen, AtariVector
from rbi.envs.types import EnvConfig, TimeStep
from rbi.returns import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

PLAYERS, SEED, STEPS, MAX_FRAMES = 2, 1, 500, 600
BREAKOUT = EnvConfig("ALE/Breakout-v5", max_frames=MAX_FRAMES)


class Told(NamedTuple):
    """One moment as ale-py's vector environment tells it."""

    frame: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    lives: np.ndarray


class Emulator:
    """ale-py's own vector environment, without anything of ours."""

    def __init__(self, game, players, max_frames):
        from ale_py.vector_env import AtariVectorEnv

        self.envs = AtariVectorEnv(
            game, players, max_num_frames_per_episode=max_frames, repeat_action_probability=0.0, noop_max=30,
            stack_num=1, reward_clipping=False, episodic_life=False, num_threads=1,
        )  # fmt: skip

    def reset(self, seed):
        frame, info = self.envs.reset(seed=seed)
        none = np.zeros(len(frame))
        return Told(frame[:, 0].copy(), none, none > 0, none > 0, info["lives"].copy())

    def step(self, actions):
        frame, reward, terminated, truncated, info = self.envs.step(actions)
        parts = (frame[:, 0], reward, terminated, truncated, info["lives"])
        return Told(*(np.array(part) for part in parts))


@pytest.fixture(scope="module")
def breakout():
    """Moments of two players as our seam shows them, the same as the emulator tells them, and the first ones again."""
    ours, emulator = AtariVector(BREAKOUT, PLAYERS, threads=1), Emulator("breakout", PLAYERS, MAX_FRAMES)
    actions = np.random.default_rng(0).integers(ours.num_actions, size=(STEPS, PLAYERS))
    shown, told = [ours.reset(SEED)], [emulator.reset(SEED)]
    for row in actions:
        ours.send(row)
        shown.append(TimeStep(*(array.copy() for array in ours.recv())))
        told.append(emulator.step(row))
    again = [ours.reset(SEED)]
    for row in actions[:20]:
        ours.send(row)
        again.append(TimeStep(*(array.copy() for array in ours.recv())))
    ours.close()
    emulator.envs.close()
    return shown, told, again


def test_frames_are_grey_squares_of_bytes_and_all_ends_occur(breakout):
    shown, _, _ = breakout
    for moment in shown:
        assert moment.obs.shape == (PLAYERS, 84, 84)
        assert [array.dtype for array in moment] == [np.uint8, bool, np.float32, np.uint8]
    assert {int(end) for moment in shown for end in moment.end} == {CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED}


def test_players_see_what_the_emulator_shows(breakout):
    shown, told, _ = breakout
    for moment, truth in zip(shown, told, strict=True):
        assert np.array_equal(moment.obs, truth.frame)
        assert np.array_equal(moment.reward, truth.reward)
        assert np.array_equal(moment.end == TERMINATED, truth.terminated)
        assert np.array_equal(moment.end == TRUNCATED, truth.truncated & ~truth.terminated)


def test_a_life_is_lost_exactly_when_lives_fall_and_the_episode_goes_on(breakout):
    shown, told, _ = breakout
    for player in range(PLAYERS):
        for t in range(1, len(told)):
            fell = told[t].lives[player] < told[t - 1].lives[player]
            over = told[t].terminated[player] or told[t].truncated[player]
            assert (shown[t].end[player] == LIFE_LOST) == (fell and not over)


def test_the_frame_after_a_final_one_is_the_first_of_a_new_episode(breakout):
    shown, _, _ = breakout
    assert shown[0].is_first.all()
    for before, after in pairwise(shown):
        over = (before.end == TERMINATED) | (before.end == TRUNCATED)
        assert np.array_equal(after.is_first, over)
        assert (after.reward[over] == 0).all()
        assert (after.end[over] == CONTINUES).all()


def test_an_episode_is_cut_off_after_its_frames_four_to_a_step(breakout):
    shown, _, _ = breakout
    for player in range(PLAYERS):
        steps = 0
        for moment in shown[1:]:
            steps = 0 if moment.is_first[player] else steps + 1
            if moment.end[player] == TRUNCATED:
                assert steps == MAX_FRAMES // 4
            elif not moment.is_first[player]:
                assert steps < MAX_FRAMES // 4


def test_a_seed_gives_the_same_game_again(breakout):
    shown, _, again = breakout
    for first, second in zip(shown, again, strict=False):
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_rewards_are_the_games_points_not_clipped():
    world, emulator = make(EnvConfig("ALE/SpaceInvaders-v5"), 1, threads=1), Emulator("space_invaders", 1, 108_000)
    world.reset(SEED)
    emulator.reset(SEED)
    points = []
    for action in np.random.default_rng(0).integers(world.num_actions, size=(150, 1)):
        world.send(action)
        points.append(float(world.recv().reward[0]))
        assert points[-1] == emulator.step(action).reward[0]
    world.close()
    emulator.envs.close()
    assert max(points) >= 5  # the least that an invader gives
    assert isinstance(world, AtariVector)
    assert (world.obs_shape, world.frame_stack, world.num_envs) == ((84, 84), 4, 1)


def shares(pixels):
    """`[84, pixels]`: how much of each pixel falls into each of 84 equal strips."""
    edges = np.linspace(0, pixels, 85)
    within = [[max(0, min(edges[i + 1], j + 1) - max(edges[i], j)) for j in range(pixels)] for i in range(84)]
    return np.array(within) * 84 / pixels


def test_a_game_in_colour_lives_the_same_moments_as_the_grey_one_beside_it():
    """Averaged over areas, the colours' luminance is the grey frame, to the rounding of a byte."""
    screen = AtariScreen(EnvConfig("ALE/Breakout-v5", max_frames=120))
    seen, rows, columns = screen.reset(SEED), shares(210), shares(160)
    for action in np.random.default_rng(0).integers(screen.num_actions, size=(40, 1)):
        picture = screen.screen()
        assert (picture.shape, picture.dtype) == ((210, 160, 3), np.uint8)
        grey = rows @ (picture @ [0.299, 0.587, 0.114]) @ columns.T
        assert abs(grey - seen.obs[0]).max() < 1
        screen.send(action)
        seen = screen.recv()
    screen.close()


def test_an_atari_world_has_no_state_to_go_on_from_and_says_so():
    world = AtariVector(BREAKOUT, 1, threads=1)
    assert world.state() is None
    with pytest.raises(ValueError, match=r"^ALE/Breakout-v5: Atari games cannot be restored"):
        world.restore(b"")
    world.close()


def test_an_unknown_game_is_refused_by_its_id_with_names_that_are_near():
    with pytest.raises(ValueError, match=r"^--env ALE/Brekout-v5: no such Atari game; did you mean breakout"):
        AtariVector(EnvConfig("ALE/Brekout-v5"), 1)
