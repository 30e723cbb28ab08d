"""Games of ale-py, frame by frame, with what only the console knows: its memory."""

import numpy as np

from rbi.data.formats.agc import ENVS
from tests.fixtures.agc_console import FrameByFrame

SCORES = {"qbert": (91, 90, 89), "mspacman": (120, 121, 122), "revenge": (21, 20, 19), "spaceinvaders": (104, 102)}
"""Where each game's memory has its score: two decimal digits a byte, the lowest first."""
GAMES = tuple(SCORES)


def console(game, seed=0):
    return FrameByFrame(ENVS[game], seed)


def score_of(game, memory):
    return sum(100**i * (10 * (int(memory[at]) >> 4) + (int(memory[at]) & 15)) for i, at in enumerate(SCORES[game]))


def lives_of(game, machine):
    """Lives left. Q*bert's are in its memory: ale-py's own count leaves one out."""
    return int(machine.memory()[8].astype(np.int8)) + 2 if game == "qbert" else machine.lives


def hands(seed, held=(4, 24)):
    """Someone who presses anything, for a while each."""
    rng = np.random.default_rng(seed)
    while True:
        yield from [int(rng.integers(18))] * int(rng.integers(*held))


def play(game, seed, frames, actions=None):
    """`screens` `[F, 210, 160, 3]`, and of each the action that led to it, its reward, lives and score.

    Screen 0 is there before anyone acts. Ends with the game.
    """
    machine, actions = console(game, seed), actions or hands(seed)
    told = [(machine.screen(), 0, 0, lives_of(game, machine), score_of(game, machine.memory()))]
    while len(told) < frames and not machine.over:
        action = next(actions)
        reward = machine.act(action)
        told.append((machine.screen(), action, reward, lives_of(game, machine), score_of(game, machine.memory())))
    return [np.array(column) for column in zip(*told, strict=True)]
