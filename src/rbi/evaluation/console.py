"""Players of vector environments at the console itself, which runs 60 frames a second and knows 18 actions."""

from collections import deque

import numpy as np

from rbi.data.repair.screens import shrink
from rbi.envs.atari import STACK, FrameByFrame
from rbi.evaluation.recording import PerturbedPolicy

SKIP = 4


class AtConsole:
    """Decides in every fourth frame, from pictures as the vector environment makes them, and holds what it chose."""

    def __init__(self, player: PerturbedPolicy) -> None:
        self.player = player
        self.frame = self.held = 0
        self.before = np.zeros((210, 160), np.uint8)
        self.state = np.zeros((1, STACK, 84, 84), np.uint8)
        self.pending: deque[int] = deque([0] * player.action_delay)

    def __call__(self, game: FrameByFrame, rng: np.random.Generator) -> int | None:
        """The action of this frame; None: the player leaves."""
        now = game.grey()
        if self.frame % SKIP == 0:
            if self.frame and rng.random() < self.player.abandon_rate:
                return None
            self.state = np.roll(self.state, -1, axis=1)
            self.state[0, -1] = shrink(np.maximum(self.before, now)[None])[0]
            self.pending.append(self.decide(game.needed(), rng))
            self.held = self.pending.popleft()
        self.before, self.frame = now, self.frame + 1
        return self.held

    def decide(self, needed: list[int], rng: np.random.Generator) -> int:
        if rng.random() < self.player.epsilon:
            return needed[int(rng.integers(len(needed)))]
        probs = np.asarray(self.player.policy.predict_proba(self.state)[0], dtype=np.float64)
        return needed[int(rng.choice(len(needed), p=probs / probs.sum()))]
