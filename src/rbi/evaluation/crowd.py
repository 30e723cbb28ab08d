"""A crowd of players of mixed skill: the stand-in for people, where there are none.

Every player has one mind (a policy of some age, or a script) and a manner of its own: how often it presses something
at random, how late its actions come, how readily it leaves. docs/guide.md says how this differs from people.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rbi.evaluation.recording import MOST_DELAY, Player
from rbi.evaluation.scripted import Mind


@dataclass(frozen=True)
class Manners:
    """How different the players of a crowd are."""

    epsilon: float = 0.3
    """Random actions: each player's probability is drawn between 0 and this, small ones more often."""
    delay: int = 2
    """Actions come late by 0 to so many steps."""
    quits: float = 0.0005
    """Half of the players may leave, with a probability in each step of up to this."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "quits"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"--manners.{name} {getattr(self, name)}: must lie in [0, 1]")
        if not 0 <= self.delay <= MOST_DELAY:
            raise ValueError(f"--manners.delay {self.delay}: must lie in [0, {MOST_DELAY}]")

    def crowd(self, players: int, minds: Sequence[tuple[str, Mind]], rng: np.random.Generator) -> list[Player]:
        """So many players; minds take turns, so that each has as many players as the others."""
        found = []
        for number in range(players):
            name, mind = minds[number % len(minds)]
            epsilon = round(self.epsilon * float(rng.random()) ** 2, 4)
            delay = int(rng.integers(self.delay + 1))
            quits = round(self.quits * float(rng.random()), 6) if rng.random() < 0.5 else 0.0
            told = f"{number:03} {name}, random {epsilon:g}, late {delay}, leaves {quits:g}"
            found.append(Player(told, mind, epsilon, delay, quits))
        return found
