"""What we write in the format of the Atari Grand Challenge, read back by eye, by Pillow and by our own reader."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rbi.data.formats import open_reader, recognise
from rbi.data.formats.agc import parse
from tests.fixtures.agc_writer import Rows, as_text, write_episode

pytestmark = pytest.mark.slow  # plays and reads whole games

FRAMES = 9


def rows(frames=FRAMES, terminal=True, identity=7):
    rng = np.random.default_rng(frames)
    rewards = rng.integers(0, 2, frames) * 25
    return Rows(identity, rewards, np.cumsum(rewards), rng.integers(18, size=frames), terminal)


def pictures(frames=FRAMES):
    return np.random.default_rng(1).integers(256, size=(frames, 210, 160, 3), dtype=np.uint8)


SMALL = Rows(41, np.array([0, 25]), np.array([0, 25]), np.array([3, 17]), terminal=True)


def test_version_two_is_five_numbers_a_row_below_two_lines_of_header():
    assert as_text(SMALL) == "db traj id : 41\nframe,reward,score,terminal,action\n0,0,0,0,3\n1,25,25,1,17\n"


def test_version_one_has_spaces_around_fields_and_words_for_the_terminal():
    lines = as_text(SMALL, version=1).splitlines()
    assert lines[1:] == [
        "frame , reward , score , terminal , action",
        "0 , 0 , 0 , False , 3",
        "1 , 25 , 25 , True , 17",
    ]


@given(
    led=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 17)), min_size=1, max_size=30),
    reward_offset=st.integers(0, 5),
    action_offset=st.integers(0, 5),
)
def test_what_led_to_screen_n_stands_in_row_n_plus_its_offset(led, reward_offset, action_offset):
    rewards, actions = (list(column) for column in zip(*led, strict=True))
    late = Rows.late(
        1, rewards, actions, terminal=False, reward_offset=reward_offset, action_offset=action_offset
    )  # fmt: skip
    for row in range(len(led)):
        shown, held = row - reward_offset, row - action_offset
        assert late.scores[row] == sum(rewards[: shown + 1] if shown >= 0 else [])
        assert late.rewards[row] == (rewards[shown] if shown >= 0 else 0)
        assert late.actions[row] == (actions[held] if held >= 0 else 0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("terminal", [True, False])
def test_the_readers_parser_gives_the_rows_back(version, terminal):
    written = rows(terminal=terminal)
    found = parse(as_text(written, version).encode())
    assert (found.identity, found.terminal) == (7, terminal)
    for name in ("rewards", "scores", "actions"):
        assert np.array_equal(getattr(found, name), getattr(written, name))


def test_screens_are_kept_to_the_bit_one_a_row(tmp_path):
    shown = pictures()
    write_episode(tmp_path, "qbert", 12, rows(), shown)
    folder = tmp_path / "screens" / "qbert" / "12"
    assert {file.name for file in folder.iterdir()} == {f"{n}.png" for n in range(FRAMES)}
    for n in range(FRAMES):
        image = Image.open(folder / f"{n}.png")
        assert (image.mode, image.size) == ("RGB", (160, 210))
        assert np.array_equal(np.asarray(image), shown[n])


def test_the_folder_is_recognised_and_its_episodes_listed_by_number(tmp_path):
    for number in (3, 0, 10):
        write_episode(tmp_path, "qbert", number, rows(identity=number), pictures())
    assert recognise(tmp_path) == "agc"
    assert list(open_reader(tmp_path).parts()) == [0, 3, 10]


def test_an_episode_whose_recording_breaks_off_has_no_text(tmp_path):
    def breaking():
        yield pictures()[0]
        raise KeyError("a cable")

    with pytest.raises(KeyError):
        write_episode(tmp_path, "qbert", 1, rows(), breaking())
    assert not list(tmp_path.glob("trajectories/qbert/*"))


@pytest.mark.parametrize(("screens", "game", "reason"), [
    (pictures(FRAMES - 1), "qbert", "8 screens for 9 rows: must be as many"),
    (pictures()[:, :, :, 0], "qbert", r"screen 0 of shape \(210, 160\): must be bytes"),
    (pictures(), "pong", "game = 'pong': AGC has spaceinvaders, qbert"),
])  # fmt: skip
def test_what_the_format_cannot_hold_is_refused(tmp_path, screens, game, reason):
    with pytest.raises(ValueError, match=reason):
        write_episode(tmp_path, game, 1, rows(), screens)
    assert not list(tmp_path.glob("trajectories/*/*"))


def test_no_episode_is_written_over(tmp_path):
    write_episode(tmp_path, "qbert", 1, rows(), pictures())
    with pytest.raises(ValueError, match=r"qbert/1\.txt: is there already"):
        write_episode(tmp_path, "qbert", 1, rows(), pictures())


@pytest.mark.parametrize("action", [-1, 18])
def test_rows_have_only_the_consoles_actions(action):
    with pytest.raises(ValueError, match=f"frame 1: action {action}: must lie in 0 to 17"):
        Rows(1, np.zeros(2, int), np.zeros(2, int), np.array([0, action]), terminal=False)
