"""Players of Atari games at 60 frames a second: from one who presses anything to ones who know what they are doing.

A player is anything that, shown the game, gives an action; it may look at the screen or into the console's memory. One
is made for each episode, so it can remember.
"""

from collections.abc import Callable

import numpy as np

from rbi.data.episode import Array
from rbi.envs.atari import FrameByFrame

Player = Callable[[FrameByFrame, np.random.Generator], int | None]
"""Gives the action of a frame; None: the player leaves."""
NOOP, FIRE, UP, RIGHT, LEFT, DOWN = range(6)
RIGHT_FIRE, LEFT_FIRE = 11, 12
REACTION_FRAMES = (4, 30)  # people hold a direction for about that long

WAYS = tuple(
    tuple((int(action), int(frames)) for action, frames in (held.split("*") for held in way.split()))
    for way in (
        "0*7 1*19 4*10 5*17 2*16 3*19 5*13 0*4 2*14 4*21 2*20 2*6 3*8 11*18 4*11 1*15 2*20 4*7 1*23 11*4 4*13 0*6 "
        "0*7 11*7 3*21 2*8 3*12 4*5 4*7 3*4 1*13 5*9 5*20 4*19 5*13 11*21 4*10 12*11 2*21 11*4 2*16 12*8 4*21 "
        "0*14 4*18 12*6 4*20 12*18 2*5 0*9 4*12 4*6 2*17 1*9 2*17 2*4 2*20 4*21 11*9",  # 100 points in 753 frames
        "11*12 5*15 3*8 11*11 5*8 2*13 11*18 1*13 5*18 12*21 3*11 1*15 5*14 11*18 11*10 12*17 11*20 0*5 12*9 5*22 "
        "5*15 1*9 1*21 2*5 5*9 12*21 4*22 5*6 12*6 0*5 3*17 12*22 5*22 12*8 12*6 11*19 5*13 3*4 12*17 12*7 0*9 "
        "0*19 0*20 5*14 2*20 4*5 2*14 0*20 3*4 12*14 0*7 1*7 3*8 5*19 0*14 5*12 12*4 0*16 3*9 5*8 5*19 11*8 4*18 "
        "11*6 11*22 3*8 11*20 3*6 11*13 5*20 2*10 3*21 1*21 5*11 2*18 1*5 11*19 4*11 5*6 2*19 11*14 2*9 0*16 "
        "12*21 11*10 2*8 3*5 1*5 5*20 0*5 12*4 0*15 12*14 3*20 2*18 2*10 0*23 1*17 1*7 12*7 0*9 2*10 0*13 1*17 "
        "4*10 11*17 0*18 2*8 5*6 0*15 11*4 12*19 0*18 3*8 1*16 11*8 3*22",  # 400 points in 1522 frames
    )
)
"""Ways to the first points of Montezuma's Revenge, `action*frames` each: found by searching the emulator's states."""


class Restless:
    """Presses anything, for a random while each."""

    def __init__(self) -> None:
        self.action, self.frames_left = NOOP, 0

    def __call__(self, game: FrameByFrame, rng: np.random.Generator) -> int:
        if self.frames_left == 0:
            self.action, self.frames_left = int(rng.integers(game.actions)), int(rng.integers(*REACTION_FRAMES))
        self.frames_left -= 1
        return self.action


class Gunner:
    """Space Invaders: steps out of the way of bombs, else sweeps below the invaders and fires."""

    BOMB_HEIGHTS, BOMB_COLUMNS, CANNON, INVADERS = slice(81, 83), slice(83, 85), 28, 26
    LOW, NEAR, MIDDLE = 80, 8, 5
    BLOCK = 80  # pixels from the first column of invaders to the last

    def __init__(self) -> None:
        self.side, self.tick = RIGHT, 0

    def __call__(self, game: FrameByFrame, rng: np.random.Generator) -> int:
        memory = game.memory().astype(int)
        self.tick += 1
        cannon = memory[self.CANNON]
        low = (memory[self.BOMB_HEIGHTS] > self.LOW) & (memory[self.BOMB_HEIGHTS] < 200)
        bombs = memory[self.BOMB_COLUMNS][low] - (cannon + self.MIDDLE)
        near = bombs[np.abs(bombs) < self.NEAR]
        if len(near):
            self.side = LEFT if near[0] >= 0 and cannon > 40 else RIGHT
            return self.side
        first = memory[self.INVADERS]
        if cannon >= first + self.BLOCK or rng.random() < 0.005:
            self.side = LEFT
        elif cannon <= first:
            self.side = RIGHT
        fires = RIGHT_FIRE if self.side == RIGHT else LEFT_FIRE
        return fires if self.tick % 4 < 2 else self.side  # the trigger must be let go between shots


class Hopper:
    """Q*bert: hops over the pyramid without leaving it, and would rather go where it has not been."""

    COLUMN, HEIGHT = 43, 67
    TOP, STEP, MIDDLE, HALF, LOWEST = 25, 28, 77, 12, 5
    HOPS = ((DOWN, -1, 1), (RIGHT, 1, 1), (UP, 1, -1), (LEFT, -1, -1))

    REST_FRAMES, HOLD_FRAMES = 30, (8, 22)  # a hop takes longer than that, so the next one is chosen after landing

    def __init__(self, care: float = 0.97) -> None:
        self.care = care
        self.planned: list[int] = []
        self.been: dict[tuple[int, int], int] = {}

    def __call__(self, game: FrameByFrame, rng: np.random.Generator) -> int:
        if self.planned:
            return self.planned.pop()
        memory = game.memory()
        x, y = int(memory[self.COLUMN]), int(memory[self.HEIGHT])
        row, rest = divmod(y - self.TOP, self.STEP)
        if rest or not 0 <= row <= self.LOWEST:
            return NOOP  # in the air
        hesitates = rng.random() < 0.5
        held = [self.hop(x, row, rng)] * int(rng.integers(*self.HOLD_FRAMES))
        self.planned = held + [NOOP] * int(hesitates * rng.integers(self.REST_FRAMES))
        return NOOP

    def hop(self, x: int, row: int, rng: np.random.Generator) -> int:
        place = row, round((x - self.MIDDLE) / self.HALF)
        self.been[place] = self.been.get(place, 0) + 1
        left, right = x <= self.MIDDLE - self.HALF * row + 4, x >= self.MIDDLE + self.HALF * row - 4
        safe = {DOWN: row < self.LOWEST, RIGHT: row < self.LOWEST, UP: row and not right, LEFT: row and not left}
        hops = [hop for hop in self.HOPS if safe[hop[0]] or rng.random() > self.care]
        visits = [self.been.get((row + down, place[1] + side), 0) + rng.random() for _, side, down in hops]
        return hops[int(np.argmin(visits))][0] if hops else NOOP


class Runner:
    """Ms. Pac-Man: turns away from a ghost that is near, and else towards where it has not been."""

    GHOSTS_X, GHOSTS_Y, OWN_X, OWN_Y = slice(6, 10), slice(12, 16), 10, 16
    NEAR, CELL, AHEAD = 20, 8, 12
    WAYS = ((UP, 0, -1), (RIGHT, 1, 0), (LEFT, -1, 0), (DOWN, 0, 1))

    def __init__(self) -> None:
        self.action, self.frames_left, self.last = LEFT, 0, (0, 0)
        self.been: dict[tuple[int, int], int] = {}

    def __call__(self, game: FrameByFrame, rng: np.random.Generator) -> int:
        memory = game.memory().astype(int)
        x, y = int(memory[self.OWN_X]), int(memory[self.OWN_Y])
        cell = x // self.CELL, y // self.CELL
        self.been[cell] = self.been.get(cell, 0) + 1
        stuck, self.last = (x, y) == self.last, (x, y)
        self.frames_left = max(0, self.frames_left - (3 if stuck else 1))
        if self.frames_left == 0:
            self.action, self.frames_left = self.turn(memory, x, y, rng), int(rng.integers(6, 14))
        return self.action

    def turn(self, memory: Array, x: int, y: int, rng: np.random.Generator) -> int:
        ghosts = np.stack([memory[self.GHOSTS_X], memory[self.GHOSTS_Y]], 1)
        costs = []
        for _, right, down in self.WAYS:
            ahead = x + self.AHEAD * right, y + self.AHEAD * down
            danger = np.abs(ghosts - ahead).sum(1).min() < self.NEAR
            costs.append(self.been.get((ahead[0] // self.CELL, ahead[1] // self.CELL), 0) + 10_000 * danger)
        return self.WAYS[int(np.argmin(costs + 20 * rng.random(len(costs))))][0]


class Climber:
    """Montezuma's Revenge: takes one of the ways to the first points that are known, and then presses anything."""

    def __init__(self) -> None:
        self.actions: list[int] | None = None
        self.frame, self.after = 0, Restless()

    def __call__(self, game: FrameByFrame, rng: np.random.Generator) -> int:
        if self.actions is None:
            self.actions = [action for action, frames in WAYS[rng.integers(len(WAYS))] for _ in range(frames)]
        self.frame += 1
        return self.actions[self.frame - 1] if self.frame <= len(self.actions) else self.after(game, rng)


SKILLED: dict[str, Callable[[], Player]] = {
    "ALE/SpaceInvaders-v5": Gunner,
    "ALE/Qbert-v5": Hopper,
    "ALE/MsPacman-v5": Runner,
    "ALE/MontezumaRevenge-v5": Climber,
}
"""Who plays each game better than one who presses anything."""
