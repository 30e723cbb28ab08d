"""What an improved policy does otherwise than beta, on steps that were held out: which actions, where, how much."""

from typing import Any, NamedTuple

import numpy as np

from rbi import measures
from rbi.offline_rl.validation import Array
from rbi.statistics import bootstrap_ratio, percentile_interval

MOVED = 1e-4  # a probability that changes by less is rounding
CHANGED = 0.01  # total variation from which a state counts as changed
RESAMPLES = 1000
MOST_ACTIONS = 1000  # told one by one
LARGEST_STEPS, ACTIONS_A_STEP, FEATURES = 10, 3, 5
MOST_VALUES = 20_000  # of a feature that are looked at, evenly spread


class Steps(NamedTuple):
    """N held-out steps: `beta`, `pi` and `q` are `[N, A]`; the action that was taken, the return that came of it, and
    which step of which episode it was are `[N]`."""

    beta: Array
    pi: Array
    q: Array
    actions: Array
    returns: Array
    episode: Array
    step: Array

    @property
    def values(self) -> Array:
        """V(s) = sum_a beta(a) Q(a), `[N]`."""
        found: Array = (self.beta * self.q).sum(1)
        return found

    @property
    def gains(self) -> Array:
        """The improvement step as Q sees it, sum_a (pi(a) - beta(a)) Q(a), `[N]`."""
        found: Array = ((self.pi - self.beta) * self.q).sum(1)
        return found

    @property
    def seen_gains(self) -> Array:
        """The same from what came of the actions that were taken: (pi(a) / beta(a) - 1) (R - V(s)), `[N]`.

        Its mean is that of the improvement step with beta's true Q, whatever the Q at hand, where beta is right.
        """
        at = np.arange(len(self.actions)), self.actions
        beta = np.maximum(self.beta[at], np.finfo(np.float32).tiny)
        found: Array = (self.pi[at] / beta - 1) * (self.returns - self.values)
        return found


def changes(
    steps: Steps,
    rng: np.random.Generator,
    bounds: tuple[float, float] | None = None,
    features: Array | None = None,
) -> dict[str, Any]:
    """Everything, ready for JSON. `bounds`: c_min and c_max of a reroute rule; `features`: what was seen, `[N, D]`."""
    steps = steps._replace(**{name: getattr(steps, name).astype(np.float64) for name in ("beta", "pi", "q", "returns")})
    return {
        "overall": overall(steps, rng, bounds),
        "actions": by_action(steps),
        "values": by_value(steps),
        "features": [] if features is None else by_feature(steps, features),
        "largest": largest(steps),
    }


def overall(steps: Steps, rng: np.random.Generator, bounds: tuple[float, float] | None) -> dict[str, Any]:
    """How far pi is from beta, and what that should gain: by Q, and by the returns that were seen."""
    moved = measures.total_variation(steps.pi, steps.beta)
    found = {
        "steps": len(moved),
        "episodes": len(np.unique(steps.episode)),
        "moved": float(moved.mean()),
        "moved_quartiles": np.percentile(moved, [25, 50, 75]).tolist(),
        "changed": float((moved > CHANGED).mean()),
        "value": float(steps.values.mean()),
        "step": mean_over_episodes(steps.gains, steps.episode, rng),
        "step_seen": mean_over_episodes(steps.seen_gains, steps.episode, rng),
    }
    if bounds is not None:
        for name, at in measures.bound_hits(steps.pi, steps.beta, *bounds)._asdict().items():
            found[name] = float((steps.beta * at).sum(1).mean())
    return found


def mean_over_episodes(values: Array, episode: Array, rng: np.random.Generator) -> dict[str, Any]:
    """The mean over steps, and its 95% bootstrap interval: episodes are drawn, since their steps belong together."""
    _, which = np.unique(episode, return_inverse=True)
    sums, counts = np.bincount(which, values), np.bincount(which)
    interval = None
    if len(sums) > 1:
        interval = percentile_interval(bootstrap_ratio(sums, counts, rng, RESAMPLES)).tolist()
    return {"mean": float(values.mean()), "interval": interval}


def by_action(steps: Steps) -> list[dict[str, Any]]:
    """For every action, the one that gained most first: its probability before and after, and how often it changed."""
    change = steps.pi - steps.beta
    mean = change.mean(0)
    told = np.sort(np.argsort(-np.abs(mean), kind="stable")[:MOST_ACTIONS])
    taken = np.bincount(steps.actions, minlength=len(mean))
    rows = [
        {
            "action": int(a),
            "taken": float(taken[a] / len(steps.actions)),
            "beta": float(steps.beta[:, a].mean()),
            "pi": float(steps.pi[:, a].mean()),
            "change": float(mean[a]),
            "gained": float((change[:, a] > MOVED).mean()),
            "lost": float((change[:, a] < -MOVED).mean()),
        }
        for a in told
    ]
    return sorted(rows, key=lambda row: -row["change"])


def by_value(steps: Steps) -> list[dict[str, float]]:
    """Quarters of the states, from the lowest V(s) to the highest."""
    moved, values, gains = measures.total_variation(steps.pi, steps.beta), steps.values, steps.gains
    parts = [part for part in np.array_split(np.argsort(values, kind="stable"), 4) if len(part)]
    return [
        {
            "steps": len(part),
            "value": float(values[part].mean()),
            "moved": float(moved[part].mean()),
            "step": float(gains[part].mean()),
        }
        for part in parts
    ]


def by_feature(steps: Steps, features: Array) -> list[dict[str, Any]]:
    """The features between whose low and high values the change differs most."""
    some = np.linspace(0, len(features) - 1, min(len(features), MOST_VALUES)).round().astype(int)
    moved = measures.total_variation(steps.pi[some], steps.beta[some])
    rows = []
    for number, values in enumerate(features[some].T):
        low, high = low_and_high(values)
        if low.any() and high.any():
            row = {
                "feature": number,
                "low": float(values[low].max()),
                "high": float(values[high].min()),
                "moved_low": float(moved[low].mean()),
                "moved_high": float(moved[high].mean()),
            }
            rows.append(row)
    return sorted(rows, key=lambda row: -abs(row["moved_high"] - row["moved_low"]))[:FEATURES]


def low_and_high(values: Array) -> tuple[Array, Array]:
    """Where a feature lies in its lowest and its highest quarter; if most values are one, that one against the rest."""
    low, high = np.percentile(values, [25, 75], method="nearest")
    if low < high:
        return values <= low, values >= high
    return (values <= low, values > low) if (values > low).any() else (values < low, values >= low)


def largest(steps: Steps) -> list[dict[str, Any]]:
    """The steps in which Q expects most of the change."""
    gains = steps.gains
    found = []
    for n in np.argsort(-gains, kind="stable")[:LARGEST_STEPS]:
        change = np.abs(steps.pi[n] - steps.beta[n])
        most = [a for a in np.argsort(-change, kind="stable")[:ACTIONS_A_STEP] if change[a] > MOVED]
        told = [
            {"action": int(a), "beta": float(steps.beta[n, a]), "pi": float(steps.pi[n, a]), "q": float(steps.q[n, a])}
            for a in most
        ]
        row = {"episode": int(steps.episode[n]), "step": int(steps.step[n]), "taken": int(steps.actions[n])}
        found.append(row | {"return": float(steps.returns[n]), "gain": float(gains[n]), "actions": told})
    return found
