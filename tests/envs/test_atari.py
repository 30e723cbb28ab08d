"""Atari environments against ale-py itself, with the same seeds and actions."""

import signal
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch

from rbi.envs import make
from rbi.envs.atari import AtariScreen, AtariVector, settings_of
from rbi.envs.atari_workers import num_workers
from rbi.envs.types import EnvConfig, TimeStep
from rbi.observations import shrink
from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

NUM_ENVS, SEED, STEPS, MAX_FRAMES = 2, 1, 500, 600
BREAKOUT = EnvConfig("ALE/Breakout-v5", max_frames=MAX_FRAMES)


class EmulatorStep(NamedTuple):
    """One step of ale-py's vector environment."""

    frame: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    lives: np.ndarray


class Emulator:
    """ale-py's vector environment itself."""

    def __init__(self, game, num_envs, max_frames):
        from ale_py.vector_env import AtariVectorEnv

        self.envs = AtariVectorEnv(
            game, num_envs, max_num_frames_per_episode=max_frames, repeat_action_probability=0.0, noop_max=30,
            stack_num=1, reward_clipping=False, episodic_life=False, num_threads=1,
        )  # fmt: skip

    def reset(self, seed):
        frame, info = self.envs.reset(seed=seed)
        none = np.zeros(len(frame))
        return EmulatorStep(frame[:, 0].copy(), none, none > 0, none > 0, info["lives"].copy())

    def step(self, actions):
        frame, reward, terminated, truncated, info = self.envs.step(actions)
        parts = (frame[:, 0], reward, terminated, truncated, info["lives"])
        return EmulatorStep(*(np.array(part) for part in parts))


@pytest.fixture(scope="module")
def breakout():
    """Steps of two environments, the same steps of the emulator, and the first ones again."""
    ours, emulator = AtariVector(BREAKOUT, NUM_ENVS, threads=1), Emulator("breakout", NUM_ENVS, MAX_FRAMES)
    actions = np.random.default_rng(0).integers(ours.num_actions, size=(STEPS, NUM_ENVS))
    steps, expected = [ours.reset(SEED)], [emulator.reset(SEED)]
    for row in actions:
        ours.send(row)
        steps.append(TimeStep(*(array.copy() for array in ours.recv())))
        expected.append(emulator.step(row))
    again = [ours.reset(SEED)]
    for row in actions[:20]:
        ours.send(row)
        again.append(TimeStep(*(array.copy() for array in ours.recv())))
    ours.close()
    emulator.envs.close()
    return steps, expected, again


def test_frames_are_grey_84_by_84_images(breakout):
    steps, _, _ = breakout
    for step in steps:
        assert step.obs.shape == (NUM_ENVS, 84, 84)
        assert [array.dtype for array in step] == [np.uint8, bool, np.float32, np.uint8, bool]
    ends = {int(end) for step in steps for end in step.end}
    assert ends >= {CONTINUES, LIFE_LOST}
    assert ends & {TERMINATED, TRUNCATED}


def test_steps_are_those_of_the_emulator(breakout):
    steps, expected, _ = breakout
    for step, truth in zip(steps, expected, strict=True):
        assert np.array_equal(step.obs, truth.frame)
        assert np.array_equal(step.reward, truth.reward)
        assert np.array_equal(step.end == TERMINATED, truth.terminated)
        assert np.array_equal(step.end == TRUNCATED, truth.truncated & ~truth.terminated)


def test_a_life_is_lost_where_lives_decrease_and_the_episode_continues(breakout):
    steps, expected, _ = breakout
    for i in range(NUM_ENVS):
        for t in range(1, len(expected)):
            fell = expected[t].lives[i] < expected[t - 1].lives[i]
            over = expected[t].terminated[i] or expected[t].truncated[i]
            assert (steps[t].end[i] == LIFE_LOST) == (fell and not over)


def test_the_observation_after_a_final_one_is_the_first_of_an_episode(breakout):
    steps, _, _ = breakout
    assert steps[0].is_first.all()
    for before, after in pairwise(steps):
        over = (before.end == TERMINATED) | (before.end == TRUNCATED)
        assert np.array_equal(after.is_first, over)
        assert (after.reward[over] == 0).all()
        assert (after.end[over] == CONTINUES).all()


def test_an_episode_is_truncated_after_its_frames_four_per_step(breakout):
    steps, _, _ = breakout
    for i in range(NUM_ENVS):
        length = 0
        for step in steps[1:]:
            length = 0 if step.is_first[i] else length + 1
            if step.end[i] == TRUNCATED:
                assert length == MAX_FRAMES // 4
            elif not step.is_first[i]:
                assert length < MAX_FRAMES // 4


def test_a_seed_repeats_the_game(breakout):
    steps, _, again = breakout
    for first, second in zip(steps, again, strict=False):
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_rewards_are_not_clipped():
    env, emulator = make(EnvConfig("ALE/SpaceInvaders-v5"), 1, threads=1), Emulator("space_invaders", 1, 108_000)
    env.reset(SEED)
    emulator.reset(SEED)
    points = []
    for action in np.random.default_rng(0).integers(env.num_actions, size=(400, 1)):
        env.send(action)
        points.append(float(env.recv().reward[0]))
        assert points[-1] == emulator.step(action).reward[0]
    env.close()
    emulator.envs.close()
    assert max(points) >= 5  # the least that an invader gives
    assert isinstance(env, AtariVector)
    assert (env.obs_shape, env.frame_stack, env.num_envs) == ((84, 84), 4, 1)


def shares(pixels):
    """`[84, pixels]`: how much of each pixel falls into each of 84 equal strips."""
    edges = np.linspace(0, pixels, 85)
    within = [[max(0, min(edges[i + 1], j + 1) - max(edges[i], j)) for j in range(pixels)] for i in range(84)]
    return np.array(within) * 84 / pixels


def test_the_coloured_screen_shows_the_same_step_as_the_grey_one():
    """Averaged over areas, the colours' luminance is the grey frame, to the rounding of a byte."""
    screen = AtariScreen(EnvConfig("ALE/Breakout-v5", max_frames=120))
    step, rows, columns = screen.reset(SEED), shares(210), shares(160)
    for action in np.random.default_rng(0).integers(screen.num_actions, size=(40, 1)):
        image = screen.screen()
        assert (image.shape, image.dtype) == ((210, 160, 3), np.uint8)
        grey = rows @ (image @ [0.299, 0.587, 0.114]) @ columns.T
        assert abs(grey - step.obs[0]).max() < 1
        screen.send(action)
        step = screen.recv()
    screen.close()


def test_an_atari_environment_cannot_be_restored():
    env = AtariVector(BREAKOUT, 1, threads=1)
    assert env.state() is None
    assert not env.restore({})
    env.close()


def test_the_settings_of_a_game_reach_the_emulator():
    found = settings_of(EnvConfig("ALE/Pong-v5", max_frames=900, repeat_action_probability=0.25, noop_max=7))
    names = ("max_num_frames_per_episode", "repeat_action_probability", "noop_max")
    assert [found[name] for name in names] == [900, 0.25, 7]


def test_an_unknown_game_is_refused_with_similar_names():
    with pytest.raises(ValueError, match=r"^--env ALE/Brekout-v5: no such Atari game; did you mean breakout"):
        AtariVector(EnvConfig("ALE/Brekout-v5"), 1)


@pytest.mark.parametrize("separate", [False, True])
def test_worker_processes_play_the_same_games_and_one_that_ends_is_an_error(separate):
    short, num_envs = EnvConfig("ALE/Breakout-v5", max_frames=80), 3
    expected = AtariVector(short, num_envs, threads=1, workers=0)
    ours = AtariVector(short, num_envs, threads=1, workers=2, separate=separate)
    actions = np.random.default_rng(0).integers(ours.num_actions, size=(50, num_envs))
    last = None
    for t, row in enumerate([None, *actions[:30], None, *actions[30:]]):
        if row is None:
            steps = [env.reset(None if t else SEED) for env in (ours, expected)]
        else:
            ours.send(row)
            expected.send(row)
            steps = [env.recv() for env in (ours, expected)]
        assert all(np.array_equal(a, b) for a, b in zip(*steps, strict=True))
        if last is not None:  # the frames of the step before are still there
            assert np.array_equal(last[0], last[1])
        last = steps[0].obs, steps[0].obs.copy()
    expected.close()

    ours.envs.processes[1].kill()
    ours.envs.processes[1].wait()
    with pytest.raises(ChildProcessError, match="ended unexpectedly"):
        ours.reset(None)
    ours.close()


def test_worker_processes_leave_the_signals_of_a_terminal_or_scheduler_to_the_caller():
    games = AtariVector(EnvConfig("ALE/Breakout-v5"), 2, threads=1, workers=2)
    games.reset(SEED)
    for process in games.envs.processes:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
    games.reset(None)
    games.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_games_keep_their_frames_until_the_next_reset_and_the_others_go_on(workers):
    num_envs, short = 3, EnvConfig("ALE/Breakout-v5", max_frames=80)
    expected, ours = (
        AtariVector(short, num_envs, threads=1, workers=count, separate=separate)
        for count, separate in ((0, False), (workers, True))
    )
    actions = np.random.default_rng(0).integers(ours.num_actions, size=(40, num_envs))
    for start in range(2):
        last = [env.reset(SEED if start == 0 else None) for env in (expected, ours)]
        running = np.ones(num_envs, dtype=bool)
        for t, row in enumerate(actions):
            if t in (5, 30):
                stopped = {5: 1, 30: 0}[t]
                ours.stop(stopped)
                running[stopped] = False
            before = last[1].obs.copy()
            for env in (expected, ours):
                env.send(row)
            last = [env.recv() for env in (expected, ours)]
            if start == 0:  # stopped games draw fewer random numbers, so later episodes start otherwise
                assert all(np.array_equal(a[running], b[running]) for a, b in zip(*last, strict=True))
            assert np.array_equal(last[1].obs[~running], before[~running])
            assert not last[1].reward[~running].any()
            assert (last[1].end[~running] == CONTINUES).all()
        assert last[1].obs[2].any()
    for env in (expected, ours):
        env.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_screens_for_a_gpu_shrink_to_the_emulators_frames(workers):
    """Its own arithmetic differs by one grey level in 1 to 5 of 100,000 pixels."""
    config = EnvConfig("ALE/MsPacman-v5")
    plain = AtariVector(config, NUM_ENVS, threads=1, workers=0)
    screens = AtariVector(config, NUM_ENVS, threads=1, workers=workers, for_gpu=True)
    assert screens.obs_shape == plain.frame_shape == (84, 84)
    expected, found = [plain.reset(SEED).obs], [screens.reset(SEED).obs.copy()]
    for row in np.random.default_rng(0).integers(plain.num_actions, size=(60, NUM_ENVS)):
        for env, frames in ((plain, expected), (screens, found)):
            env.send(row)
            frames.append(env.recv().obs.copy())
    assert found[0].shape == (NUM_ENVS, *screens.frame_shape) == (NUM_ENVS, 210, 160)
    shrunk = shrink(torch.from_numpy(np.concatenate(found)), (84, 84)).numpy()
    difference = np.abs(shrunk.astype(int) - np.concatenate(expected))
    assert difference.max() <= 1
    assert difference.mean() < 1e-4
    plain.close()
    screens.close()


def test_games_with_another_screen_give_the_usual_frames_for_a_gpu_too():
    game = AtariVector(EnvConfig("ALE/Carnival-v5"), 1, threads=1, for_gpu=True)  # its screen has 214 rows
    assert game.reset(SEED).obs.shape[1:] == game.frame_shape == game.obs_shape
    game.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reset_drops_the_result_of_a_pending_step(workers):
    env = AtariVector(BREAKOUT, 4, threads=1, workers=workers)
    steps = []
    for pending in (False, True):
        if pending:
            env.send(np.ones(4, int))
        steps.append([array.copy() for array in env.reset(SEED)])
        env.send(np.ones(4, int))
        steps[-1] += [array.copy() for array in env.recv()]
    assert all(np.array_equal(a, b) for a, b in zip(*steps, strict=True))
    env.close()


def test_worker_processes_are_for_many_games_and_cores():
    assert num_workers(256, 8) == 8
    assert num_workers(32, 16) == 16
    assert num_workers(32, 24) == 16
    assert num_workers(256, 2) == 2
    assert num_workers(8, 8) == num_workers(256, 1) == 0
