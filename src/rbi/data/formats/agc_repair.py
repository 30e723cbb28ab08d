"""Repairs of Atari Grand Challenge episodes from their screens: preprocessing, scores, lost lives, time offsets.

The text of an episode has no lost lives, may disagree with the screens about the score, and lags behind the screens by
some frames. All three are recovered from the pixels. Shapes (digits, life icons) are matched pixel by pixel after
thresholding, independent of colour, because the emulators of AGC and ale-py have different palettes; a test lets
ale-py draw each digit and compares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rbi.data.episode import Array

HEIGHT, WIDTH = 210, 160
SIZE = 84


def area_weights(pixels: int, strips: int) -> Array:
    """`[pixels, strips]`: the weight of each pixel in the mean of each of `strips` equal strips."""
    edges = np.linspace(0, pixels, strips + 1)
    starts = np.arange(pixels)[:, None]
    overlap = np.minimum(edges[1:], starts + 1) - np.maximum(edges[:-1], starts)
    return (overlap.clip(0) * strips / pixels).astype(np.float32)


COLUMNS = area_weights(40, 21) / 5
"""40 columns become 21, four times in a row. Divided by 5 because rows come in as sums of fifths."""


def resize(grey: Array) -> Array:
    """Area-resize grey screens `[B, 210, 160]` uint8 to `[B, 84, 84]` uint8, as ale-py's vector environment does.

    A frame is the pixelwise maximum of a step's last two screens, each converted to grey first, then resized; any other
    order differs by dozens of grey levels.
    """
    # Five rows make two: rows 0, 1 and half of 2, then the other half of 2, and 3, 4. Sums of fifths are whole numbers.
    rows = np.asarray(grey).reshape(-1, SIZE // 2, 5, WIDTH)
    middle, fifths = rows[:, :, 2], np.empty((len(rows), SIZE // 2, 2, WIDTH), np.uint16)
    fifths[:, :, 0] = 2 * np.add(rows[:, :, 0], rows[:, :, 1], dtype=np.uint16) + middle
    fifths[:, :, 1] = 2 * np.add(rows[:, :, 3], rows[:, :, 4], dtype=np.uint16) + middle
    # Products this small stay on one thread: readers run in parallel processes, and their threads would compete.
    means = fifths.reshape(-1, 2 * SIZE, len(COLUMNS)).astype(np.float32) @ COLUMNS
    return np.rint(means).astype(np.uint8).reshape(-1, SIZE, SIZE)


LIT = 40
"""Grey levels above this are foreground."""
UNREADABLE = -1
SHIFTS = sorted(((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)), key=lambda s: abs(s[0]) + abs(s[1]))
"""Emulators differ by one pixel in where they draw; the unshifted position is tried first."""


def parse_shapes(text: str, width: int) -> Array:
    """`[K, height, width]` booleans from shapes drawn side by side in text, `width` wide, one column apart."""
    lines = np.array([list(line) for line in text.strip("\n").splitlines()]) == "#"
    return np.stack([lines[:, x : x + width] for x in range(0, lines.shape[1], width + 1)])


@dataclass(frozen=True, eq=False)
class ShapeSlots:
    """Screen positions at which one of several shapes is drawn."""

    top: int
    lefts: Sequence[int]
    shapes: Array
    """`[K, height, width]` booleans"""

    @cached_property
    def pixels(self) -> Array:
        """`[shifts, slots, height * width]`: the screen pixels of each slot."""
        height, width = self.shapes.shape[1:]
        y, x = np.mgrid[:height, :width]
        corners = [[((self.top + dy) * WIDTH + left + dx) for left in self.lefts] for dy, dx in SHIFTS]
        return np.array(corners)[..., None] + (y * WIDTH + x).reshape(-1)

    @cached_property
    def signs(self) -> Array:
        """`[height * width, K]`: 1 for foreground, -1 for background."""
        return np.where(self.shapes.reshape(len(self.shapes), -1).T, 1, -1).astype(np.float32)

    def read(self, grey: Array) -> Array:
        """`[B, slots]`: the shape in each slot of screens `[B, 210, 160]`; all -1 if any slot matches no shape."""
        seen = np.where(grey.reshape(-1, HEIGHT * WIDTH)[:, self.pixels] > LIT, np.float32(1), np.float32(-1))
        same = seen @ self.signs == len(self.signs)  # [B, shifts, places, K]
        good = same.any(3).all(2)  # [B, shifts]
        shift = good.argmax(1)
        which = same[np.arange(len(same)), shift].argmax(2)
        return np.where(good.any(1)[:, None], which, UNREADABLE)


DIGITS_QBERT = """
.###....#....###...###.....#..#####...###.#####..###...###.
#...#..##...#...#.#...#...##..#......#........#.#...#.#...#
#...#...#.......#.....#..#.#..####..#........#..#...#.#...#
#...#...#....###....##..#..#......#.####....#....###...####
#...#...#...#.........#.#####.....#.#...#..#....#...#.....#
#...#...#...#.....#...#....#..#...#.#...#..#....#...#....#.
.###...###..#####..###.....#...###...###...#.....###..###..
"""
DIGITS_MSPACMAN = """
..###......##....#####..######..##..##..######...#####..#######..#####...#####.
.##.##....###...##...##......##.##..##..##......##...........##.##...##.##...##
##...##....##........##......##.##..##..##......##..........##..##...##.##...##
##...##....##.....####...#####..#######.######..######.....##....#####...######
##...##....##...###..........##.....##.......##.##...##....##...##...##......##
.##.##.....##...##...........##.....##.......##.##...##...##....##...##......##
..###....######.#######.######......##..######...#####....##.....#####...#####.
"""
DIGITS_REVENGE = """
.###....##...###...###....##..#####..###..#####..###...###.
##.##..###..##.##.##.##...##..##....##.##....##.##.##.##.##
##.##...##.....##....##..###..##....##.......##.##.##.##.##
##.##...##....##....##...#.#..####..####....##...###...####
##.##...##...##......##.##.#.....##.##.##...##..##.##....##
##.##...##..##.##.##.##.#####.##.##.##.##..##...##.##.##.##
#####..####.#####.#####.#####.#####.#####..##...#####.#####
.###...####.#####..###....##...###...###...##....###...###.
"""
DIGITS_INVADERS = """
###..#..###.###.#.#.###.#...###.###.###
#.#.##....#...#.#.#.#...#.....#.#.#.#.#
#.#..#..###.###.###.###.###...#.###.###
#.#..#..#.....#...#...#.#.#...#.#.#...#
###.###.###.###...#.###.###...#.###...#
"""
BLANK = 10
LAST_READINGS, SLACK = 10, 2
"""Number of last readable screens compared with the text, and the tolerance in frames."""


@dataclass(frozen=True)
class ScoreDisplay:
    """Where and how a game shows its score: digits from left to right, possibly in several rows."""

    places: tuple[ShapeSlots, ...]
    columns: tuple[int, ...]
    """The position in the number of each digit of `places`."""
    modulus: int
    """The screen shows the score modulo this."""
    delay: int
    """Frames from a reward to the screen that shows it (measured with ale-py)."""
    unit: int = 1
    """Resolution of the score: digits below it are ignored."""

    def read(self, grey: Array) -> Array:
        """`[B]`: the score on screens `[B, 210, 160]`, or -1 if unreadable."""
        digits = np.concatenate([place.read(grey) for place in self.places], axis=1)[:, np.argsort(self.columns)]
        shown = (digits != BLANK).astype(np.int64)
        readable = (digits != UNREADABLE).all(1) & shown.any(1) & (np.diff(shown, axis=1) >= 0).all(1)
        values = np.where(shown, digits, 0) @ 10 ** np.arange(len(self.columns))[::-1]
        return np.where(readable, values // self.unit * self.unit, UNREADABLE)

    def shows(self, score: Array) -> Array:
        """The number on the screen for a score."""
        return score % self.modulus // self.unit * self.unit

    def contradiction(self, shown: Array, scores: Array, offset: int) -> tuple[int, int] | None:
        """The last scores of text and screens if they disagree, else None.

        `shown` `[F]` are the scores read off the screens, `scores` `[F]` those of the text, `offset` frames late. At
        least half of the last readable screens must show the text's score at that time, within `SLACK` frames.
        """
        frames = np.flatnonzero(shown != UNREADABLE)[-LAST_READINGS:]
        rows = frames - self.delay + offset + np.arange(-SLACK, SLACK + 1)[:, None]
        agree = (self.shows(scores[rows.clip(0, len(scores) - 1)]) == shown[frames]).any(0)
        return None if 2 * agree.sum() >= len(frames) else (int(scores[-1]), int(shown[frames[-1]]))


def or_blank(shapes: Array) -> Array:
    return np.concatenate([shapes, np.zeros_like(shapes[:1])])


def invaders_digits() -> tuple[ShapeSlots, ShapeSlots]:
    """The outer two digits use every other pixel row, the inner two the rows between."""
    shapes = np.kron(parse_shapes(DIGITS_INVADERS, 3), np.array([[[1] * 4], [[0] * 4]]).reshape(1, 2, 4)).astype(bool)
    return ShapeSlots(10, (4, 52), shapes), ShapeSlots(11, (20, 36), shapes)


COUNTERS = {
    "qbert": ScoreDisplay(
        (ShapeSlots(6, range(34, 67, 8), parse_shapes(DIGITS_QBERT, 5)),), tuple(range(5)), 10**5, delay=2
    ),
    "mspacman": ScoreDisplay(
        (ShapeSlots(187, range(55, 96, 8), or_blank(parse_shapes(DIGITS_MSPACMAN, 7))),),
        tuple(range(6)),
        10**6,
        delay=0,
        unit=10,
    ),
    "revenge": ScoreDisplay(
        (ShapeSlots(6, range(57, 98, 8), or_blank(parse_shapes(DIGITS_REVENGE, 5))),), tuple(range(6)), 10**6, delay=1
    ),
    "spaceinvaders": ScoreDisplay(invaders_digits(), (0, 3, 1, 2), 10**4, delay=1),
}


ICON_QBERT = """
....##..
...####.
..#.#.#.
..#.#.##
..#.#.##
..#.#.##
..######
.#######
########
#.######
##.####.
"""
ICON_MSPACMAN = """
.#.###.
#.#####
.##.###
.####..
.##....
.##....
.####..
.######
..#####
...###.
"""
ICON_REVENGE = """
..###..
..###..
..###..
#######
#######
"""
FLASH = 24
"""Icons may disappear for up to this many frames without a lost life: they flash."""
LASTING = 120
"""After this many frames an implausible count is accepted."""
DELAYS = {"revenge": 1, "qbert": 1}
"""Frames from the emulator's life counter to the icons (measured with ale-py); 0 in the other games, and sometimes in
Qbert."""


def strips(text: str, most: int, pitch: int) -> Array:
    """`[most + 1, height, width]`: shapes with 0, 1, ..., `most` icons side by side."""
    icon = parse_shapes(text, len(text.split()[0]))[0]
    found = np.zeros((most + 1, icon.shape[0], (most - 1) * pitch + icon.shape[1]), bool)
    for count in range(1, most + 1):
        found[count:, :, (count - 1) * pitch : (count - 1) * pitch + icon.shape[1]] |= icon
    return found


ICONS = {
    "qbert": ShapeSlots(16, (33,), strips(ICON_QBERT, 3, 8)),
    "mspacman": ShapeSlots(173, (12,), strips(ICON_MSPACMAN, 3, 16)),
    "revenge": ShapeSlots(15, (56,), strips(ICON_REVENGE, 6, 8)),
    "spaceinvaders": ShapeSlots(185, (84,), np.kron(parse_shapes(DIGITS_INVADERS, 3), np.ones((1, 2, 4))).astype(bool)),
}
MAZE = (slice(2, 171), 0.1)
"""Rows of Ms. Pac-Man's maze, and the minimum fraction of lit pixels unless the screen is black."""


def count_lives(game: str, grey: Array, scores: Array) -> Array:
    """`[B]`: remaining lives after the current one on screens `[B, 210, 160]`, or -1 if unreadable.

    Missing icons count as zero lives only next to a readable score; otherwise the status line is hidden.
    """
    found = ICONS[game].read(grey)[:, 0]
    if game == "spaceinvaders":
        return found
    found = np.where(scores == UNREADABLE, UNREADABLE, found)
    if game == "mspacman":
        rows, share = MAZE
        found = np.where((grey[:, rows] > LIT).mean((1, 2)) < share, UNREADABLE, found)
    return found


SHOWN = 64
"""Frames for which Space Invaders shows its digit after a lost life (measured with ale-py)."""
CAUGHT = (120, 130)
"""Frames for which Qbert stands still after an enemy caught it: 127 (measured with ale-py)."""
TOP = (slice(28, 76), slice(40, 120))
"""The top of Qbert's pyramid. While Qbert is there, the line with score and icons is hidden."""
AIRBORNE = {36: 20, 44: 12}
"""Frames for which the line is hidden when Qbert jumps off the top to the right or left -> frames between the lost life
and the line's return (measured with ale-py)."""


@dataclass(frozen=True)
class LifeReadings:
    """Life counts read off F screens."""

    counts: Array
    """`[F]`: remaining lives after the current one, or -1"""
    still: Array
    """`[F]` booleans: the top of the screen equals that of the previous frame"""


def find_life_losses(game: str, lives: LifeReadings) -> Array:
    """The frames at which a life is lost, within two frames of the emulator's own counter.

    Three games show an icon for each remaining life, Space Invaders a digit for a second or two after a change. A life
    is lost where the count is smaller than the last readable one; unreadable screens (black ones, hidden lines) are
    skipped. Counts may rise again.
    """
    falls = find_drops(remove_flashes(lives.counts), lives.counts != UNREADABLE)
    if game == "qbert":
        return np.array([qbert_loss_frame(before, back, lives.still) for before, back in falls], np.int64)
    if game == "spaceinvaders":
        return np.array([digit_start(back, lives.counts != UNREADABLE) for _, back in falls], np.int64)
    return np.array([back - DELAYS.get(game, 0) for _, back in falls], np.int64)


def find_drops(counts: Array, known: Array) -> list[tuple[int, int]]:
    """Drops of the life count: the last frame before and the first frame after each drop.

    Lives are lost one at a time: a larger drop that does not last is a flash.
    """
    frames = np.flatnonzero(known)
    runs = np.split(frames, np.flatnonzero(np.diff(counts[frames])) + 1)
    found, trusted, last = [], -1, -1
    for run in runs if len(frames) else []:
        number = int(counts[run[0]])
        if number < trusted - 1 and len(run) < LASTING:
            continue
        if number < trusted:
            found.append((last, int(run[0])))
        trusted, last = number, int(run[-1])
    return found


def remove_flashes(counts: Array) -> Array:
    """The maximum over the next `FLASH` frames: a drop that is soon undone is a flash."""
    ahead = np.append(counts, np.full(FLASH - 1, UNREADABLE))
    return np.lib.stride_tricks.sliding_window_view(ahead, FLASH).max(1)


def digit_start(back: int, known: Array) -> int:
    """The first frame of Space Invaders' digit, first readable at `back`: a flash may hide its start."""
    later = np.flatnonzero(known[back:]) + back
    pauses = np.flatnonzero(np.diff(later) > FLASH)
    gone = int(later[pauses[0] if len(pauses) else -1]) + 1
    put = gone - SHOWN
    return put if back - FLASH <= put < back and gone < len(known) else back


def qbert_loss_frame(before: int, back: int, still: Array) -> int:
    """The frame at which Qbert lost a life, if its count was last readable at `before` and is one less at `back`."""
    gap = back - before - 1
    if gap == 0:
        return back - DELAYS["qbert"]
    moves = np.flatnonzero(~still[before : back + 1]) + before
    rests = np.diff(moves) - 1
    caught = np.flatnonzero((rests >= CAUGHT[0]) & (rests <= CAUGHT[1]))
    if len(caught):
        return int(moves[caught[-1]])
    return back - AIRBORNE.get(gap, min(AIRBORNE.values()))


TOLERANCE = 10
FASTEST = 8
"""Maximum speed in pixels per frame; larger jumps are resets of the position."""
NEAR, MOVED, FAR = 4, 0.3, 1.4
"""A movement starts with a step of at least `MOVED` pixels, after `NEAR` frames without one, and covers `FAR` pixels in
the next `NEAR` frames. Anything less is animation."""
REST, HOP_FRAMES, HOP_PIXELS = 2, 26, 8
"""Qbert rests on a cube for at least `REST` frames before a hop, and moves `HOP_PIXELS` sideways in `HOP_FRAMES`."""


@dataclass(frozen=True)
class Figure:
    """The player's figure: screen rows, and colours in the palettes of AGC and ALE."""

    rows: slice
    colours: tuple[tuple[int, int, int], tuple[int, int, int]]
    vertical: bool = False
    """Whether it also moves vertically."""
    hidden: tuple[int, int] = (0, 0)
    """Rows that are ignored because something else has the same colours."""


FIGURES = {
    "spaceinvaders": Figure(slice(185, 195), ((64, 124, 64), (50, 132, 50))),
    "qbert": Figure(slice(10, 200), ((172, 80, 48), (181, 83, 40)), hidden=(136, 142)),
    "mspacman": Figure(slice(2, 171), ((204, 160, 92), (210, 164, 74)), vertical=True),
    "revenge": Figure(slice(48, 180), ((192, 88, 88), (200, 72, 72))),
}


def figure_positions(game: str, colour: Array) -> Array:
    """`[B, 2]`: column and row of the figure's centre on screens `[B, 3, 210, 160]`; NaN if it is not visible."""
    figure = FIGURES[game]
    seen = np.zeros((len(colour), HEIGHT, WIDTH), bool)
    for rgb in figure.colours:
        red, green, blue = (
            plane - np.uint8(value - TOLERANCE) <= 2 * TOLERANCE  # what lies below wraps around to large bytes
            for plane, value in zip(colour[:, :, figure.rows].swapaxes(0, 1), rgb, strict=True)
        )
        seen[:, figure.rows] |= red & green & blue
    seen[:, slice(*figure.hidden)] = False
    frame, pixel = np.divmod(np.flatnonzero(seen), HEIGHT * WIDTH)
    row, column = np.divmod(pixel, WIDTH)
    mass, columns, rows = (np.bincount(frame, weights, len(colour)) for weights in (None, column, row))
    with np.errstate(invalid="ignore"):
        return np.stack([columns / mass, rows / mass], 1)


class Onsets(NamedTuple):
    """Frames at which the figure starts to move."""

    frames: Array
    axes: Array
    """0: horizontal, 1: vertical"""
    signs: Array
    """1: right or down, -1: left or up"""


def movement_onsets(game: str, places: Array) -> Onsets:
    """When the figure starts to move in a direction, from its positions `[F, 2]`."""
    steps = np.diff(places, axis=0, prepend=places[:1])
    lost: Array = np.logical_not((np.abs(steps) <= FASTEST).all(1))  # also where it was not there
    steps[lost] = 0
    if game == "qbert":
        return hop_onsets(places, steps, lost)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(steps, ((NEAR, NEAR - 1), (0, 0))), NEAR, axis=0)
    before, after = windows[: len(steps)], windows[NEAR:].sum(2)
    signs = np.sign(after)
    begins = (np.abs(steps) > MOVED) & (np.sign(steps) == signs) & (np.abs(after) > FAR)
    begins &= ~(before * signs[..., None] > MOVED).any(2)
    frames, axes = np.nonzero(begins if FIGURES[game].vertical else begins[:, :1])
    return Onsets(frames, axes, signs[frames, axes].astype(int))


def hop_onsets(places: Array, steps: Array, lost: Array) -> Onsets:
    """When Qbert leaves a cube on which it rested, and in which direction."""
    moves = (np.abs(steps) > 0.05).any(1) | lost
    count = np.cumsum(np.append(0, moves))
    frames = np.flatnonzero(moves & ~lost)
    frames = frames[(frames >= REST) & (frames + HOP_FRAMES < len(places))]
    frames = frames[count[frames] == count[frames - REST]]
    way = places[frames + HOP_FRAMES, 0] - places[frames - 1, 0]
    clear = np.abs(way) >= HOP_PIXELS  # not where it is NaN
    return Onsets(frames[clear], np.zeros(clear.sum(), int), np.sign(way[clear]).astype(int))


DEFAULT_OFFSET, MAX_OFFSET = 2, 10
ACROSS = np.array([0, 0, 0, 1, -1, 0, 1, -1, 1, -1, 0, 1, -1, 0, 1, -1, 1, -1])
DOWN = np.array([0, 0, -1, 0, 0, 1, -1, -1, 1, 1, -1, 0, 0, 1, -1, -1, 1, 1])
QBERT_DIRECTIONS = np.array([0, 0, 1, 1, -1, -1, 1, 0, 0, -1, 1, 1, -1, -1, 1, 0, 0, -1])
"""The direction of each of the 18 actions. Qbert's joystick is rotated: up and right lead to the right, down and left
to the left."""
REACTIONS = {
    "spaceinvaders": (0.0, 0.45, 0.55),
    "qbert": (0.12, 0.15, 0.15, 0.26, 0.2, 0.1),
    "mspacman": (0.0, 0.37, 0.26, 0.12, 0.1, 0.02, 0.02, 0.02, 0.02, 0.02),
    "revenge": (0.0, 0.28, 0.6, 0.1),
}
"""Fraction of movements that start 0, 1, 2, ... frames after their action, measured with ale-py and scripted players;
people may differ, most of all in Qbert."""
COINCIDENCE = 0.004
"""Fraction of movements at any other distance."""
WINDOW = 12
"""Frames before and after a movement in which its action is searched."""
CERTAIN = 3.0
"""Minimum log-likelihood difference between the best and the second-best offset."""


def estimate_reward_offset(game: str, shown: Array, scores: Array) -> int | None:
    """Delay in frames of the text's scores `[F]` relative to the screens' `[F]`; None if undetermined.

    The score on the screens is the text's score some frames later, minus the frames the game takes to draw it.
    """
    counter = COUNTERS[game]
    frames = np.flatnonzero(shown != UNREADABLE)
    frames = frames[(frames >= counter.delay) & (frames - counter.delay + MAX_OFFSET < len(scores))]
    rows = frames - counter.delay + np.arange(MAX_OFFSET + 1)[:, None]
    wrong = (counter.shows(scores[rows]) != shown[frames]).sum(1)
    best = np.flatnonzero(wrong == wrong.min())
    return int(best[0]) if len(best) == 1 else None


def estimate_action_offset(game: str, onsets: Onsets, actions: Array) -> int | None:
    """Delay in frames of the text's actions `[F]` relative to the screens; None if there is too little movement.

    A figure at rest starts to move a few frames after the action; the distribution of this reaction time is known for
    each game, and the offset is the one with the largest likelihood.
    """
    directions = np.stack([QBERT_DIRECTIONS[actions] if game == "qbert" else ACROSS[actions], DOWN[actions]], 1)
    presses = np.diff(directions, axis=0, prepend=0) != 0
    lags = np.arange(-WINDOW, WINDOW + MAX_OFFSET + 1)
    rows = onsets.frames[:, None] + lags
    inside = (rows >= 0) & (rows < len(actions))
    rows, axes = rows.clip(0, len(actions) - 1), onsets.axes[:, None]
    counts = (inside & presses[rows, axes] & (directions[rows, axes] == onsets.signs[:, None])).sum(0)
    reactions = np.arange(MAX_OFFSET + 1)[:, None] - lags  # [offsets, lags]
    shares = np.full(WINDOW + 2 * MAX_OFFSET + WINDOW, COINCIDENCE)
    shares[: len(REACTIONS[game])] += REACTIONS[game]
    likelihoods = np.log(np.where(reactions >= 0, shares[reactions.clip(0)], COINCIDENCE)) @ counts
    best, second = np.argsort(-likelihoods, kind="stable")[:2]
    return int(best) if likelihoods[best] - likelihoods[second] >= CERTAIN else None


class ScreenReadings:
    """Scores, lives and positions read off an episode's screens, block by block."""

    def __init__(self, game: str) -> None:
        self.game = game
        self.seen: list[tuple[Array, Array, Array]] = []
        self.places: list[Array] = []

    def add(self, grey: Array, colour: Array | None) -> None:
        """Add grey screens `[1 + B, 210, 160]`, the first from the previous block, and colour `[B, 3, 210, 160]`."""
        scores = COUNTERS[self.game].read(grey[1:])
        top = grey[:, *TOP]
        self.seen.append((scores, count_lives(self.game, grey[1:], scores), (top[1:] == top[:-1]).all((1, 2))))
        if colour is not None:
            self.places.append(figure_positions(self.game, colour))

    @property
    def scores(self) -> Array:
        """`[F]`: the score on each screen, or -1."""
        return np.concatenate([seen[0] for seen in self.seen])

    @property
    def lives(self) -> LifeReadings:
        return LifeReadings(*(np.concatenate([seen[i] for seen in self.seen]) for i in (1, 2)))
