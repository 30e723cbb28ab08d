"""What the screens of an episode show beside the game itself, gathered as they go by."""

import numpy as np

from rbi.data.episode import Array
from rbi.data.repair.lives import TOP, Lives, count
from rbi.data.repair.movement import positions
from rbi.data.repair.scores import COUNTERS


class Watch:
    """Looks at blocks of screens, one after the other, and remembers a few numbers of each."""

    def __init__(self, game: str) -> None:
        self.game = game
        self.seen: list[tuple[Array, Array, Array]] = []
        self.places: list[Array] = []

    def look(self, grey: Array, colour: Array | None) -> None:
        """See screens `[1 + B, 210, 160]`, the first of which was there before, and the same `[B, 3, 210, 160]`."""
        scores = COUNTERS[self.game].read(grey[1:])
        top = grey[:, *TOP]
        self.seen.append((scores, count(self.game, grey[1:], scores), (top[1:] == top[:-1]).all((1, 2))))
        if colour is not None:
            self.places.append(positions(self.game, colour))

    @property
    def scores(self) -> Array:
        """`[F]`: the score on each screen, or -1."""
        return np.concatenate([seen[0] for seen in self.seen])

    @property
    def lives(self) -> Lives:
        return Lives(*(np.concatenate([seen[i] for seen in self.seen]) for i in (1, 2)))
