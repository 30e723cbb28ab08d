"""Drawing from many distributions at once."""

import numpy as np


def draw(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One index a row of `probs` `[R, n]`; what rows lack to 1 counts for the last index."""
    left = rng.random(len(probs))
    index = np.zeros(len(probs), dtype=np.intp)
    for column in probs.T[:-1]:
        left = left - column
        index += left > 0
        left = np.where(left > 0, left, -1.0)  # found: stays so
    return index
