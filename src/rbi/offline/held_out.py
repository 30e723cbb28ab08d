"""What the networks say about episodes that they did not learn from, and what that tells."""

from typing import Any, NamedTuple

import numpy as np
import torch

from rbi.data import Sampler
from rbi.nets.from_logs import LogNetworks
from rbi.offline.calibration import Array, best_temperature, likelihood, reliability


class Answers(NamedTuple):
    """For N steps: beta's logits and Q `[N, A]`, and what was done and came of it, `[N]`."""

    logits: Array
    q: Array
    actions: Array
    returns: Array


def split(episodes: int, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Numbers of the episodes to learn from, and of those to hold out: at least one of each.

    Whole episodes, since neighbouring steps are nearly the same.
    """
    if episodes < 2:
        raise ValueError(f"{episodes} episodes: to hold one out takes at least 2")
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: must lie between 0 and 1")
    count = min(episodes - 1, max(1, round(share * episodes)))
    order = rng.permutation(episodes)
    return np.sort(order[count:]), np.sort(order[:count])


def answers(networks: LogNetworks, sampler: Sampler) -> Answers:
    """Ask about every usable step of a sampler, each once."""
    assert networks.pi is not None
    networks.eval()
    parts = []
    with torch.no_grad():
        for batch in sampler.epoch():
            seen = networks.sight.look(batch.states, torch.float32)
            told = (networks.pi(seen), networks.q(seen)[0], batch.actions, batch.returns)
            parts.append([tensor.cpu().numpy() for tensor in told])
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def diagnosis(held: Answers) -> dict[str, Any]:
    """How well beta and Q do on these steps; the temperature is the one under which they are most likely."""
    chosen = held.q[np.arange(len(held.actions)), held.actions].astype(np.float64)
    warm = best_temperature(held.logits, held.actions)
    error, spread = chosen - held.returns, float(np.var(held.returns))
    counts = np.bincount(held.actions, minlength=held.logits.shape[1])
    shares = counts[counts > 0] / counts.sum()
    binned = reliability(chosen, held.returns)
    return {
        "steps": len(held.actions),
        "temperature": warm,
        "likelihood": likelihood(held.logits, held.actions),
        "likelihood_calibrated": likelihood(held.logits, held.actions, warm),
        "likelihood_of_frequencies": float((shares * np.log(shares)).sum()),
        "accuracy": float((held.logits.argmax(1) == held.actions).mean()),
        "accuracy_of_the_commonest": float(counts.max() / counts.sum()),
        "q_error": float(np.sqrt(np.square(error).mean())),
        "q_bias": float(error.mean()),
        "q_explained": 1 - float(np.square(error).mean()) / spread if spread else None,
        "reliability": binned._asdict(),
    }
