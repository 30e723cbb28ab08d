"""One state of a decision problem (or a batch of them), ready for arithmetic.

Every rule starts with `State.of(beta, advantage, legal)` and ends with `state.answer(pi)`. In between it sees plain
arrays `[..., A]` of one library, wide enough to compute in, with beta normalised over the legal actions.
"""

from dataclasses import dataclass
from typing import Any

from rbi.arrays import NUMBERS, at_most, computing_dtype, is_floating, namespace, quiet, widest_dtype
from rbi.rules import ranking

LARGEST = {4: 3.4e38, 8: 1.7e308}  # by the bytes of a number


@dataclass(frozen=True)
class State:
    """`beta`, `advantage`: `[..., A]` arrays of namespace `xp`. `legal`: boolean, the same shape, or None for all.

    `dtype` is the answer's: beta's own, or the computing one where beta is of integers (a one-hot beta).
    """

    xp: Any
    beta: Any
    advantage: Any
    legal: Any
    dtype: Any

    @classmethod
    def of(cls, beta: Any, advantage: Any, legal: Any = None, *, widest: bool = False) -> "State":
        """`widest` computes in float64 whatever comes in, for rules that solve equations."""
        xp = namespace(beta, advantage)
        wide = widest_dtype(xp, beta) if widest else computing_dtype(xp, beta, advantage)
        dtype = beta.dtype if is_floating(beta.dtype) else computing_dtype(xp, beta, advantage)
        beta, advantage = xp.astype(beta, wide, copy=False), xp.astype(advantage, wide, copy=False)
        if legal is not None:
            beta, advantage, legal = xp.broadcast_arrays(beta, advantage, legal)
            beta = xp.where(legal, beta, 0.0)
        elif beta.shape != advantage.shape:
            beta, advantage = xp.broadcast_arrays(beta, advantage)
        return cls(xp, beta / beta.sum(axis=-1, keepdims=True), advantage, legal, dtype)

    def answer(self, pi: Any) -> Any:
        return self.xp.astype(pi, self.dtype, copy=False)

    def parameter(self, value: Any) -> Any:
        """A rule's parameter in the computing precision; infinity becomes the largest number, so that 0 * it is 0."""
        largest = LARGEST[self.beta.dtype.itemsize]
        if isinstance(value, NUMBERS):
            return largest if value > largest else float(value)
        return at_most(self.xp, self.xp.astype(value, self.beta.dtype, copy=False), largest)

    @property
    def support(self) -> Any:
        """True where beta ever acts."""
        return self.beta > 0

    @property
    def untried(self) -> Any:
        """True where beta never acts, though it may."""
        return ~self.support if self.legal is None else self.legal & ~self.support

    def sum(self, values: Any) -> Any:
        """Over actions, `[..., 1]`."""
        return values.sum(axis=-1, keepdims=True)

    def fill(self, budget: Any, room: Any) -> Any:
        """Hand out the budget in the order of advantages, at most `room` to each action."""
        return ranking.fill(self.xp, budget, room, self.advantage)

    def best(self, among: Any) -> Any:
        """True at the first action of the total order among those marked (None: all)."""
        return ranking.first(self.xp, self.advantage, among)

    def gap(self) -> Any:
        """How far each action stands behind the best of the support (below 0: ahead of it). Ties are exact zeros."""
        xp = self.xp
        best = xp.max(xp.where(self.support, self.advantage, -xp.inf), axis=-1, keepdims=True)
        with quiet(xp):
            return xp.where(self.advantage == best, 0.0, best - self.advantage)
