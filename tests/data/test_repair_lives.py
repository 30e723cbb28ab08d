"""Lost lives found on the screen are those that the console counts."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rbi.data.formats.agc_repair import (
    AIRBORNE,
    CAUGHT,
    FLASH,
    ICONS,
    LASTING,
    UNREADABLE,
    LifeReadings,
    ScreenReadings,
    find_life_losses,
)
from tests.data.consoles import GAMES, console, hands, lives_of
from tests.fixtures.agc_palette import repainted

pytestmark = pytest.mark.slow  # plays and reads whole games

BLOCK = 64


def watched(game, seed, frames, changed=lambda _frame, grey: grey):
    """What a watch sees in a game, and the frames at which the console counts a life less and goes on."""
    machine, actions, watch, lives, waiting, before = (
        console(game, seed),
        hands(seed),
        ScreenReadings(game),
        [],
        [],
        None,
    )
    while not machine.over and len(lives) < frames:
        machine.act(next(actions))
        picture = repainted(machine.colours()) if seed % 2 else machine.screen()
        waiting.append(changed(len(lives), np.array(Image.fromarray(picture).convert("L"))))
        lives.append(lives_of(game, machine))
        if len(waiting) == BLOCK or machine.over or len(lives) == frames:
            watch.add(np.array([waiting[0] if before is None else before, *waiting]), None)
            before, waiting = waiting[-1], []
    counted = np.flatnonzero(np.diff(lives) < 0) + 1
    return watch, counted[(counted > 3) & (counted < len(lives) - machine.over)]  # Qbert's memory starts empty


@pytest.mark.parametrize(
    ("game", "seed"),
    [("qbert", 1), ("qbert", 2), ("mspacman", 1), ("revenge", 1), ("revenge", 2), ("spaceinvaders", 2)],
)
def test_lives_are_lost_within_two_frames_of_the_consoles_count_and_nowhere_else(game, seed):
    watch, counted = watched(game, seed, 3500)
    found = find_life_losses(game, watch.lives)
    found = found[found < len(watch.scores) - 1]  # the last one ends the game
    assert len(counted) >= 2
    assert len(found) == len(counted)
    assert np.abs(found - counted).max() <= 2


@pytest.mark.parametrize("game", ["mspacman", "revenge"])
def test_icons_that_flash_lose_no_life(game):
    def flashing(frame, grey):
        if frame % 100 < FLASH - 4:
            grey[ICONS[game].top : ICONS[game].top + 12, 8:110] = 0
        return grey

    watch, counted = watched(game, 1, 800, flashing)
    found = find_life_losses(game, watch.lives)
    assert len(found) == len(counted) >= 1
    assert np.all((found - counted >= -2) & (found - counted <= FLASH))  # within a flash nobody sees


def test_a_black_screen_says_nothing_about_lives():
    watch = ScreenReadings("mspacman")
    watch.add(np.zeros((5, 210, 160), np.uint8), None)
    assert (watch.lives.counts == UNREADABLE).all()


def lives(*counts):
    """Frames with so many lives each, as `(lives, frames)`."""
    told = np.concatenate([np.full(frames, count) for count, frames in counts])
    return LifeReadings(told, np.zeros(len(told), bool))


def test_a_life_that_is_won_loses_none_and_the_next_fall_counts():
    assert find_life_losses("mspacman", lives((2, 50), (3, 50), (2, 50))).tolist() == [100]


def test_a_number_that_was_hidden_is_compared_with_the_one_before():
    assert find_life_losses(
        "spaceinvaders", lives((3, 9), (UNREADABLE, 200), (2, 64), (UNREADABLE, 90), (2, 30))
    ).tolist() == [209]


def test_montezumas_icons_are_a_frame_late():
    assert find_life_losses("revenge", lives((5, 40), (4, 40))).tolist() == [39]


def test_a_fall_by_more_than_one_is_a_flash_unless_it_lasts():
    assert find_life_losses("mspacman", lives((2, 50), (0, FLASH - 1))).tolist() == []
    assert find_life_losses("mspacman", lives((2, 50), (1, FLASH - 1))).tolist() == [50]
    assert find_life_losses("mspacman", lives((2, 50), (0, FLASH), (UNREADABLE, 90), (1, 60))).tolist() == [140 + FLASH]
    assert find_life_losses("mspacman", lives((2, 50), (0, LASTING))).tolist() == [50]


def test_qbert_who_jumps_off_the_top_has_lost_before_the_line_is_back():
    for hidden, before in AIRBORNE.items():
        seen = lives((3, 60), (UNREADABLE, hidden), (2, 60))
        assert find_life_losses("qbert", seen).tolist() == [60 + hidden - before]


def test_qbert_who_is_caught_behind_the_hidden_line_has_lost_when_all_stood_still():
    seen = lives((3, 60), (UNREADABLE, 300), (2, 60))
    seen.still[100 : 100 + CAUGHT[0]] = True
    assert find_life_losses("qbert", seen).tolist() == [99]


@given(counts=st.lists(st.tuples(st.integers(-1, 5), st.integers(1, 60)), min_size=1, max_size=12))
def test_no_more_lives_are_lost_than_numbers_fall(counts):
    seen = lives(*counts)
    known = [count for count, _ in counts if count != UNREADABLE]
    falls = sum(after < before for before, after in pairwise(known))
    for game in GAMES:
        found = find_life_losses(game, seen)
        assert len(found) <= falls
        assert np.all(np.diff(found) >= 0)


def test_a_digit_whose_beginning_was_hidden_was_put_there_its_usual_time_before_it_goes():
    def seen(*shown, frames=400):
        counts = np.full(frames, UNREADABLE)
        counts[:129] = 3
        for first, last in shown:
            counts[first:last] = 2
        return find_life_losses("spaceinvaders", LifeReadings(counts, np.zeros(frames, bool))).tolist()

    assert seen((200, 264)) == [200]
    assert seen((212, 264)) == [200]  # a flash over the moment
    assert seen((212, 220), (225, 264)) == [200]  # and another one later
    assert seen((212, 235)) == [212]  # shown for less time than the emulator shows it: another simulator
    assert seen((212, 230), frames=230) == [212]  # the episode ends before the digit goes
