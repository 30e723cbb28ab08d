"""How far probabilities and values that were learned can be trusted, on episodes that were held out."""

from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

Array = np.ndarray[Any, Any]
COLDEST, HOTTEST = 0.05, 20.0


def log_probs(logits: Array, temperature: float = 1.0) -> Array:
    """log softmax(logits / temperature) `[N, A]`."""
    cooled = logits.astype(np.float64) / temperature
    return cooled - np.logaddexp.reduce(cooled, axis=1, keepdims=True)


def likelihood(logits: Array, actions: Array, temperature: float = 1.0) -> float:
    """The mean log-probability of actions `[N]`."""
    return float(log_probs(logits, temperature)[np.arange(len(actions)), actions].mean())


def best_temperature(logits: Array, actions: Array) -> float:
    """The temperature under which the actions are most likely.

    The likelihood is concave in 1 / temperature, so there is one best; it is looked for between 0.05 and 20.
    """
    found = optimize.minimize_scalar(
        lambda cold: -likelihood(logits, actions, 1 / cold), bounds=(1 / HOTTEST, 1 / COLDEST), method="bounded"
    )
    return float(1 / found.x)


class Reliability(NamedTuple):
    """Values against returns, in bins of as many steps each: `[bins]` means of both, and how many steps."""

    predicted: Array
    seen: Array
    steps: Array


def reliability(values: Array, returns: Array, bins: int = 10) -> Reliability:
    """What was predicted and what came, from the lowest prediction to the highest."""
    parts = [part for part in np.array_split(np.argsort(values, kind="stable"), bins) if len(part)]
    means = np.array([(values[part].mean(), returns[part].mean(), len(part)) for part in parts])
    return Reliability(means[:, 0], means[:, 1], means[:, 2].astype(int))
