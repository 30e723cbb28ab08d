"""Offsets put into the text are found again on the screen."""

import numpy as np
import pytest
from PIL import Image

from rbi.data.formats.agc_repair import (
    COUNTERS,
    MAX_OFFSET,
    estimate_action_offset,
    estimate_reward_offset,
    figure_positions,
    movement_onsets,
)
from tests.data.consoles import console
from tests.fixtures.agc_palette import repainted
from tests.fixtures.agc_players import Hopper
from tests.fixtures.agc_writer import delayed

pytestmark = pytest.mark.slow  # plays and reads whole games

FRAMES, KEY_FRAME = 1500, 300
MOVES = {"spaceinvaders": (11, 12), "mspacman": (2, 3, 4, 5), "revenge": (3, 4)}
SEEDS = {"spaceinvaders": 0, "mspacman": 0, "revenge": 3, "qbert": 3}


def hesitant(machine, rng, game):
    """Someone who rests between moves, as people do; in Qbert, where he would soon be dead, he looks where he hops."""
    hopper = Hopper()
    while game == "qbert":
        yield hopper(machine, rng)
    while True:
        yield from [0] * int(rng.integers(5, 40))
        yield from [int(rng.choice(MOVES[game]))] * int(rng.integers(6, 20))


@pytest.fixture(scope="module", params=list(SEEDS))
def played(request):
    """A game: its name, places of the figure, scores on the screen, and actions and rewards that led to each."""
    game = request.param
    machine = console(game, SEEDS[game])
    hand = hesitant(machine, np.random.default_rng(SEEDS[game]), game)
    places, shown, actions, rewards = [], [], [0], [0]
    while len(actions) <= FRAMES and not machine.over:
        picture = repainted(machine.colours()) if SEEDS[game] % 2 else machine.screen()
        places.append(figure_positions(game, picture.transpose(2, 0, 1)[None])[0])
        shown.append(COUNTERS[game].read(np.asarray(Image.fromarray(picture).convert("L"))[None])[0])
        if game == "revenge" and len(actions) == KEY_FRAME:  # points are hard to get there: fly to the key
            machine.emulator.setRAM(42, 13)
            machine.emulator.setRAM(43, 195)
        actions.append(next(hand))
        rewards.append(machine.act(actions[-1]))
    return game, np.array(places), np.array(shown), np.array(actions[:-1]), np.array(rewards[:-1])


def test_the_offset_of_rewards_is_found(played):
    game, _, shown, _, rewards = played
    for offset in range(MAX_OFFSET + 1):
        assert estimate_reward_offset(game, shown, np.cumsum(delayed(rewards, offset))) == offset


def test_the_offset_of_actions_is_found_where_the_figure_moves_after_a_rest(played):
    game, places, _, actions, _ = played
    moments = movement_onsets(game, places)
    assert len(moments.frames) >= 8
    for offset in range(MAX_OFFSET + 1):
        assert estimate_action_offset(game, moments, delayed(actions, offset)) == offset


def test_where_nothing_moves_no_offset_is_claimed(played):
    game, places, shown, actions, _ = played
    still = movement_onsets(game, np.full_like(places, 50.0))
    assert len(still.frames) == 0
    assert estimate_action_offset(game, still, actions) is None
    assert estimate_reward_offset(game, shown, np.zeros(len(shown), int)) is None


def test_a_figure_that_is_not_there_is_nowhere(played):
    game, *_ = played
    assert np.isnan(figure_positions(game, np.zeros((2, 3, 210, 160), np.uint8))).all()
