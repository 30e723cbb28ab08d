"""By how many frames the text of an episode comes later than its screens.

Rewards: the score that screens show is the text's score some frames later, less the frames that the game itself takes
to draw it. Actions: a figure at rest begins to move some frames after the player's hand; how many differs by game and
by luck, but its distribution is known, and the offset is the one under which what is seen is most likely.
"""

import numpy as np

from rbi.data.episode import Array
from rbi.data.repair.movement import Onsets
from rbi.data.repair.scores import COUNTERS
from rbi.data.repair.shapes import NOTHING

USUAL, LARGEST = 2, 10
ACROSS = np.array([0, 0, 0, 1, -1, 0, 1, -1, 1, -1, 0, 1, -1, 0, 1, -1, 1, -1])
DOWN = np.array([0, 0, -1, 0, 0, 1, -1, -1, 1, 1, -1, 0, 0, 1, -1, -1, 1, 1])
QBERT = np.array([0, 0, 1, 1, -1, -1, 1, 0, 0, -1, 1, 1, -1, -1, 1, 0, 0, -1])
"""Where each of the 18 actions leads. Qbert's stick is turned: up and right lead to the right, down and left to the
left."""
REACTIONS = {
    "spaceinvaders": (0.0, 0.45, 0.55),
    "qbert": (0.12, 0.15, 0.15, 0.26, 0.2, 0.1),
    "mspacman": (0.0, 0.37, 0.26, 0.12, 0.1, 0.02, 0.02, 0.02, 0.02, 0.02),
    "revenge": (0.0, 0.28, 0.6, 0.1),
}
"""The share of movements that begin 0, 1, 2 ... frames after the action that starts them, measured with ale-py and
programs that play: people may differ, in Qbert most."""
COINCIDENCE = 0.004
"""The share at any other distance."""
WINDOW = 12
"""Frames before and behind a movement in which its action is looked for."""
CERTAIN = 3.0
"""By how much the best offset must be more likely than the next, in natural logarithms."""


def reward_offset(game: str, shown: Array, scores: Array) -> int | None:
    """By how many frames the text's scores `[F]` come later than the ones on screens `[F]`; None if they do not say."""
    counter = COUNTERS[game]
    frames = np.flatnonzero(shown != NOTHING)
    frames = frames[(frames >= counter.delay) & (frames - counter.delay + LARGEST < len(scores))]
    rows = frames - counter.delay + np.arange(LARGEST + 1)[:, None]
    wrong = (counter.shows(scores[rows]) != shown[frames]).sum(1)
    best = np.flatnonzero(wrong == wrong.min())
    return int(best[0]) if len(best) == 1 else None


def action_offset(game: str, onsets: Onsets, actions: Array) -> int | None:
    """By how many frames the text's actions `[F]` come later than on the screen; None if too little moves."""
    directions = np.stack([QBERT[actions] if game == "qbert" else ACROSS[actions], DOWN[actions]], 1)
    presses = np.diff(directions, axis=0, prepend=0) != 0
    lags = np.arange(-WINDOW, WINDOW + LARGEST + 1)
    rows = onsets.frames[:, None] + lags
    inside = (rows >= 0) & (rows < len(actions))
    rows, axes = rows.clip(0, len(actions) - 1), onsets.axes[:, None]
    counts = (inside & presses[rows, axes] & (directions[rows, axes] == onsets.signs[:, None])).sum(0)
    reactions = np.arange(LARGEST + 1)[:, None] - lags  # [offsets, lags]
    shares = np.full(WINDOW + 2 * LARGEST + WINDOW, COINCIDENCE)
    shares[: len(REACTIONS[game])] += REACTIONS[game]
    likelihoods = np.log(np.where(reactions >= 0, shares[reactions.clip(0)], COINCIDENCE)) @ counts
    best, second = np.argsort(-likelihoods, kind="stable")[:2]
    return int(best) if likelihoods[best] - likelihoods[second] >= CERTAIN else None
