"""What the networks say about episodes that they did not learn from, and what that tells."""

from typing import Any, NamedTuple

import numpy as np
import torch

from rbi import measures
from rbi.data import Batch, Sampler
from rbi.nets.from_logs import LogNetworks
from rbi.offline.calibration import Array, best_temperature, likelihood, log_probs, reliability
from rbi.rules import Reroute, Rule

NEAR = 1e-3  # a ratio this close to a bound of reroute counts as at it
ASKED_AT_ONCE = 1024  # steps


class Answers(NamedTuple):
    """For N steps: beta's logits and Q `[N, A]`, and what was done and came of it, `[N]`.

    Logits of actions that were not legal are -inf. `legal`: `[N, A]` where it was logged.
    """

    logits: Array
    q: Array
    actions: Array
    returns: Array
    legal: Array | None = None


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


def answers(networks: LogNetworks, sampler: Sampler, most: int | None = None) -> Answers:
    """Ask about the usable steps of a sampler, each once; about no more than `most`, drawn at random, where given."""
    networks.eval()
    parts = []
    with torch.no_grad():
        for batch in sampler.epoch():
            parts.append(told(networks, batch))
            if most is not None and sum(len(part[0]) for part in parts) >= most:
                break
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def answers_about(networks: LogNetworks, sampler: Sampler, steps: Array) -> Answers:
    """Ask about these steps of a sampler's data, in this order."""
    networks.eval()
    parts = torch.split(torch.as_tensor(steps, device=sampler.from_.device), ASKED_AT_ONCE)
    with torch.no_grad():
        columns = zip(*(told(networks, sampler.batch(part)) for part in parts), strict=True)
        return Answers(*(np.concatenate(column) for column in columns))


def told(networks: LogNetworks, batch: Batch) -> list[Array]:
    """The answers about a batch."""
    assert networks.pi is not None
    seen = networks.sight.look(batch.states, torch.float32)
    logits = networks.pi(seen)
    found = [logits, networks.q(seen)[0], batch.actions, batch.returns]
    if batch.legal is not None:
        found = [logits.masked_fill(~batch.legal, -torch.inf), *found[1:], batch.legal]
    return [tensor.cpu().numpy() for tensor in found]


def diagnosis(held: Answers) -> dict[str, Any]:
    """How well beta and Q do on these steps; the temperature is the one under which they are most likely."""
    chosen = held.q[np.arange(len(held.actions)), held.actions].astype(np.float64)
    warm = best_temperature(held.logits, held.actions)
    error, spread = chosen - held.returns, float(np.var(held.returns))
    counts = np.bincount(held.actions, minlength=held.logits.shape[1])
    with np.errstate(divide="ignore"):
        shares = np.broadcast_to(np.log(counts / counts.sum()), held.logits.shape)
    shares = shares if held.legal is None else np.where(held.legal, shares, -np.inf)
    binned = reliability(chosen, held.returns)
    return {
        "steps": len(held.actions),
        "temperature": warm,
        "likelihood": likelihood(held.logits, held.actions),
        "likelihood_calibrated": likelihood(held.logits, held.actions, warm),
        "likelihood_of_frequencies": likelihood(shares, held.actions),
        "accuracy": float((held.logits.argmax(1) == held.actions).mean()),
        "accuracy_of_the_commonest": float(counts.max() / counts.sum()),
        "q_error": float(np.sqrt(np.square(error).mean())),
        "q_bias": float(error.mean()),
        "q_explained": 1 - float(np.square(error).mean()) / spread if spread else None,
        "reliability": binned._asdict(),
    }


def step_taken(held: Answers, rule: Rule, temperature: float) -> dict[str, float]:
    """How far a rule goes from beta in these steps, how often reroute's bounds hold it, and what Q expects of it."""
    beta = np.exp(log_probs(held.logits, temperature))
    pi = rule(beta, held.q.astype(np.float64), legal=held.legal)
    ratio = measures.probability_ratio(pi, beta)
    found = {
        "moved": float(measures.total_variation(pi, beta).mean()),
        "expected_step": float(((pi - beta) * held.q).sum(1).mean()),
    }
    if isinstance(rule, Reroute):
        found["at_c_min"] = float((ratio <= rule.c_min + NEAR).mean())
        found["at_c_max"] = float((ratio >= rule.c_max - NEAR).mean())
    return found
