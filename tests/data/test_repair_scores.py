"""Scores read off the screen are the console's, and an episode whose text says otherwise is found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rbi.data.formats.agc_repair import COUNTERS, LAST_READINGS, UNREADABLE
from tests.data.consoles import GAMES, SCORES, console, play
from tests.fixtures.agc_palette import repainted

pytestmark = pytest.mark.slow  # plays and reads whole games

SETTLED = {"qbert": 200, "mspacman": 300, "revenge": 50, "spaceinvaders": 200}
"""Frames after which a game shows its score, with the joystick down in Qbert and free elsewhere."""
DIGITS = (12345, 67890, 4444, 9876, 7, 0)


def grey(screens):
    return np.array([np.asarray(Image.fromarray(screen).convert("L")) for screen in screens])


def showing(game, score):
    """A console that shows a score."""
    machine = console(game)
    for _ in range(SETTLED[game]):
        machine.act(5 if game == "qbert" else 0)
    for i, place in enumerate(SCORES[game]):
        machine.emulator.setRAM(place, int(str(score // 100**i % 100), 16))
    for _ in range(3):
        machine.act(0)
    return machine


@pytest.mark.parametrize("game", GAMES)
def test_every_digit_in_every_place_is_read_in_both_palettes(game):
    for score in DIGITS:
        machine = showing(game, score)
        screens = [machine.screen(), repainted(machine.colours())]
        assert COUNTERS[game].read(grey(screens)).tolist() == [COUNTERS[game].shows(score)] * 2


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("shift", [(1, 0), (-1, 1), (0, -1)])
def test_a_score_a_pixel_away_is_read(game, shift):
    screen = np.roll(grey([showing(game, 4321).screen()]), shift, axis=(1, 2))
    assert COUNTERS[game].read(screen) == COUNTERS[game].shows(4321)


@pytest.mark.parametrize("game", GAMES)
def test_a_score_with_a_spot_on_a_digit_is_not_read(game):
    screen = grey([showing(game, 1111).screen()])
    place = COUNTERS[game].places[0]
    screen[0, place.top + 2, place.lefts[1] : place.lefts[1] + place.shapes.shape[2]] ^= 255
    assert COUNTERS[game].read(screen) == UNREADABLE


@pytest.mark.parametrize(("game", "seed"), [("qbert", 1), ("mspacman", 0), ("spaceinvaders", 0)])
def test_what_is_read_in_a_game_is_the_consoles_score_of_some_frames_before(game, seed):
    screens, _, _, _, scores = play(game, seed, 700)
    counter = COUNTERS[game]
    shown = counter.read(grey(screens))
    readable = np.flatnonzero(shown != UNREADABLE)
    readable = readable[(readable > 10) & (readable < len(shown) - 1)]
    before = counter.shows(scores[readable - counter.delay])
    assert len(readable) > 200
    assert len(np.unique(shown[readable])) > 2
    assert np.mean(shown[readable] != before) < 0.005  # Qbert sometimes takes a moment longer
    for other in (counter.delay - 1, counter.delay + 1):
        assert (shown[readable] != counter.shows(scores[readable - other])).sum() > (shown[readable] != before).sum()


def test_montezumas_key_is_on_the_screen_a_frame_after_its_reward():
    machine = console("revenge")
    for _ in range(40):
        machine.act(0)
    machine.emulator.setRAM(42, 13)  # where the key hangs
    machine.emulator.setRAM(43, 195)
    told = [(machine.act(0), machine.screen()) for _ in range(5)]
    shown = COUNTERS["revenge"].read(grey([screen for _, screen in told]))
    assert [reward for reward, _ in told] == [100, 0, 0, 0, 0]
    assert shown.tolist() == [0, 100, 100, 100, 100]
    assert COUNTERS["revenge"].delay == 1


def rising(rng, frames, points):
    """A score that rises now and then."""
    return np.cumsum(rng.choice([0, points], p=[0.97, 0.03], size=frames))


def seen_with(counter, scores, offset, rng, hidden=0.3):
    """What screens show of scores whose text is `offset` frames late, with stretches where nothing can be read."""
    rows = (np.arange(len(scores)) - counter.delay + offset).clip(0, len(scores) - 1)
    shown = counter.shows(scores[rows])
    return np.where(np.repeat(rng.random(len(scores) // 20 + 1) < hidden, 20)[: len(scores)], UNREADABLE, shown)


@given(seed=st.integers(0, 2**32 - 1), game=st.sampled_from(GAMES), offset=st.integers(0, 4))
def test_a_text_that_the_screens_bear_out_is_never_contradicted(seed, game, offset):
    rng = np.random.default_rng(seed)
    scores = rising(rng, int(rng.integers(1, 400)), 10)
    shown = seen_with(COUNTERS[game], scores, offset, rng)
    for assumed in (offset, 2):
        assert COUNTERS[game].contradiction(shown, scores, assumed) is None


@given(seed=st.integers(0, 2**32 - 1), game=st.sampled_from(GAMES), points=st.integers(50, 900))
def test_points_that_no_screen_shows_are_a_contradiction_with_both_scores(seed, game, points):
    rng = np.random.default_rng(seed)
    scores = rising(rng, 300, 10)
    shown = seen_with(COUNTERS[game], scores, 2, rng, hidden=0.2)
    shown[250:270] = COUNTERS[game].shows(scores[250:270])
    told = scores + points * (np.arange(300) >= 150)
    last = shown[shown != UNREADABLE][-LAST_READINGS:]
    assert COUNTERS[game].contradiction(shown, told, 2) == (told[-1], last[-1])


def test_without_a_readable_score_nothing_is_contradicted():
    assert COUNTERS["qbert"].contradiction(np.full(9, UNREADABLE), np.arange(9), 2) is None


def test_ms_pacmans_last_digit_and_the_invaders_ten_thousands_do_not_count():
    assert COUNTERS["mspacman"].shows(np.array([12_341, 12_340])).tolist() == [12_340, 12_340]
    assert COUNTERS["spaceinvaders"].shows(np.array([10_005])).tolist() == [5]
