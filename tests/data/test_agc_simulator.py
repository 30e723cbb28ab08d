"""The simulator of Atari Grand Challenge data: its ground truth is the emulator's own state.

Nothing here depends on how a seed plays out: builds of the emulator differ in that.
"""

import numpy as np
import pytest
from PIL import Image

from rbi.data.formats.agc import ENVS, parse
from tests.fixtures.agc_console import FrameByFrame
from tests.fixtures.agc_defects import DRIFT_FRAMES, Defects
from tests.fixtures.agc_palette import TABLE
from tests.fixtures.agc_simulator import Recording, play, read_truth, record

pytestmark = pytest.mark.slow
GAMES = ("spaceinvaders", "qbert", "mspacman", "revenge")
SCORES = {"spaceinvaders": (104, 102), "qbert": (91, 90, 89), "mspacman": (120, 121, 122), "revenge": (21, 20, 19)}
"""Where each game's memory has its score, two decimal digits a byte, the lowest first."""
LIVES = {
    "spaceinvaders": lambda memory: memory[73],
    "qbert": lambda memory: memory[8].astype(np.int8) + 2,
    "mspacman": lambda memory: (memory[123] & 7) + 1,
    "revenge": lambda memory: (memory[58] & 7) + 1,
}
PAIRS = {(210, 210, 64): (208, 208, 80), (187, 187, 53): (184, 184, 64),
         (210, 182, 86): (208, 180, 108), (200, 72, 72): (192, 88, 88)}  # fmt: skip
"""Colours of ale-py beside those of the collectors' data."""


def digits(memory, places):
    return sum(100**i * (10 * (int(memory[at]) >> 4) + (int(memory[at]) & 15)) for i, at in enumerate(places))


def one(root, game="qbert", index=0, most_frames=200, quits=0.0, **settings):
    return record(root, Recording(game, most_frames=most_frames, quits=quits, **settings), index)[0]


def screen(root, truth, frame):
    return np.asarray(Image.open(root / "screens" / truth.game / str(truth.number) / f"{frame}.png"))


def text(root, truth):
    return (root / "trajectories" / truth.game / f"{truth.number}.txt").read_bytes()


def played_again(truth, seed=1):
    """The emulator at each frame of a truth."""
    game = FrameByFrame(ENVS[truth.game], seed)
    for frame, action in enumerate(truth.actions):
        if frame:
            game.act(action)
        yield frame, game


@pytest.mark.parametrize("game", GAMES)
def test_a_recording_is_the_game_as_it_was_played(tmp_path, game):
    truth = one(tmp_path, game, most_frames=900, skilled=float(game == "revenge"), seed=3)
    assert read_truth(tmp_path, game, truth.number) == truth
    points, before, fell, left = 0, None, [], []
    for frame, moment in played_again(truth):
        points += truth.rewards[frame]
        assert digits(moment.memory(), SCORES[game]) == points
        now = int(LIVES[game](moment.memory()))
        if before is not None and now < before and not moment.over:
            fell.append(frame)
            left.append(now)
        before = now
        if frame % 40 == 0 or frame in truth.life_losses:
            assert np.array_equal(screen(tmp_path, truth, frame), moment.screen())
    assert points == truth.score
    assert (truth.life_losses, truth.lives_left) == (tuple(fell), tuple(left))
    found = parse(text(tmp_path, truth))
    assert found.terminal == (not truth.abandoned)
    assert found.actions[2:].tolist() == list(truth.actions[:-2])
    assert found.scores[2:].tolist() == np.cumsum(truth.rewards[:-2]).tolist()
    assert not found.actions[:3].any()
    assert not found.scores[:3].any()


class RestartingQbert:
    """Q*bert whose last life ends while fire is pressed: it starts anew, and ale-py reports no game over."""

    id, over = ENVS["qbert"], False

    def __init__(self):
        self.lives = [2, 1, 1, 4, 4]
        self.rewards = [0, 25, 0, -25, 0]
        self.frame = 0

    def memory(self):
        memory = np.zeros(128, np.uint8)
        memory[8] = np.uint8(np.int8(self.lives[self.frame] - 2))
        return memory

    def act(self, _action):
        self.frame += 1
        return self.rewards[self.frame]


def test_qbert_ends_when_it_starts_anew_while_its_last_life_ends():
    found = play(RestartingQbert(), lambda _game, _rng: 1, 5, np.random.default_rng(0))
    assert found.over
    assert found.rewards.tolist() == [0, 25, 0]  # without the frame that takes the points back


@pytest.mark.parametrize("game", GAMES)
def test_a_colour_of_ours_is_one_of_theirs(game):
    """Each of the console's colours has one value in ale-py's screens, near the one of the collectors' emulator."""
    moment = FrameByFrame(ENVS[game], 0)
    for action in range(400):
        moment.act(action % 18)
    colours, pixels = moment.colours(), moment.screen().astype(int)
    for number in np.unique(colours):
        ours = np.unique(pixels[colours == number], axis=0)
        assert len(ours) == 1
        assert abs(ours[0] - TABLE[number]).max() < 40
        if tuple(ours[0]) in PAIRS:
            assert tuple(TABLE[number]) == PAIRS[tuple(ours[0])]


def test_other_offsets_are_in_the_text_and_in_the_truth(tmp_path):
    seen = set()
    for index in range(4):
        truth = one(tmp_path, index=index, most_frames=120, defects=Defects(reward_offset=1.0, action_offset=1.0))
        found, offset = parse(text(tmp_path, truth)), truth.injected.action_offset
        assert found.actions[offset:].tolist() == list(truth.actions[: truth.frames - offset])
        assert 2 not in (offset, truth.injected.reward_offset)
        seen |= {offset, truth.injected.reward_offset}
    assert len(seen) > 2


def test_a_wrong_score_is_in_the_text_only(tmp_path):
    truth = one(tmp_path, defects=Defects(wrong_score=1.0))
    found = parse(text(tmp_path, truth))
    assert truth.score == truth.screen_score == sum(truth.rewards)
    assert found.scores[-1] == truth.text_score == truth.score + truth.injected.points
    assert np.array_equal(np.cumsum(found.rewards), found.scores)
    assert (truth.usable, truth.shows) == (False, True)


def test_a_run_that_drifts_shows_the_players_game_up_to_a_frame_and_another_one_after(tmp_path):
    truth = one(tmp_path, most_frames=400, defects=Defects(drift=1.0))
    at = truth.injected.frame
    same = [np.array_equal(screen(tmp_path, truth, n), game.screen()) for n, game in played_again(truth)]
    assert all(same[:at])
    assert not all(same[at : at + 3 * DRIFT_FRAMES])
    assert (truth.usable, truth.shows) == (False, truth.screen_score != truth.text_score)
