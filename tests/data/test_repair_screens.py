"""Imported frames are those that ale-py's vector environment would have shown."""

import numpy as np
import pytest
from PIL import Image

from rbi.data.formats.agc_repair import area_weights, resize
from tests.data.consoles import GAMES, console


def vector_frames(game, actions):
    """What ale-py's vector environment shows after each action, held for four frames."""
    from ale_py.vector_env import AtariVectorEnv

    name = console(game).id.removeprefix("ALE/").removesuffix("-v5")
    known = {"MsPacman": "ms_pacman", "SpaceInvaders": "space_invaders", "MontezumaRevenge": "montezuma_revenge"}
    envs = AtariVectorEnv(
        known.get(name, name.lower()), 1, repeat_action_probability=0.0, noop_max=1, stack_num=1,
        use_fire_reset=False, full_action_space=True, reward_clipping=False, num_threads=1,
    )  # fmt: skip
    envs.reset(seed=3)
    shown = [envs.step(np.array([action]))[0][0, 0].copy() for action in actions]
    envs.close()
    return np.array(shown)


@pytest.mark.parametrize("game", GAMES)
def test_frames_are_those_of_the_vector_environment_to_a_grey_level(game):
    actions = np.random.default_rng(0).integers(18, size=60)
    machine, greys = console(game, seed=3), []
    for action in actions:
        pair = []
        for _ in range(4):
            machine.act(int(action))
            pair = [*pair[-1:], np.asarray(Image.fromarray(machine.screen()).convert("L"))]
        greys.append(np.maximum(*pair))
    ours, theirs = resize(np.array(greys)), vector_frames(game, actions)
    assert len(np.unique(theirs)) > 5
    assert np.abs(ours.astype(int) - theirs).max() <= 1  # halves are rounded differently


def test_shrinking_is_the_mean_over_equal_areas():
    grey = np.random.default_rng(0).integers(256, size=(3, 210, 160), dtype=np.uint8)
    means = area_weights(210, 84).T.astype(float) @ grey @ area_weights(160, 84).astype(float)
    assert np.abs(resize(grey) - means).max() < 0.501


def test_shares_of_each_strip_sum_to_one_and_each_pixel_is_used_up():
    weights = area_weights(160, 84)
    assert weights.sum(0) == pytest.approx(np.ones(84), abs=1e-5)
    assert weights.sum(1) == pytest.approx(np.full(160, 84 / 160), abs=1e-5)
