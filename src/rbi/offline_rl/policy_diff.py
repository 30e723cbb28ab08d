"""What an improved policy changes compared with beta on held-out steps: which actions, where, and by how much."""

from typing import Any, NamedTuple

import numpy as np

from rbi import measures
from rbi.data.episode import Array
from rbi.statistics import bootstrap_ratio, percentile_interval, student_lower_bound

MIN_CHANGE = 1e-4  # smaller changes of a probability are rounding
CHANGED_STATE = 0.01  # least total variation of a changed state
RESAMPLES = 1000
MIN_EPISODES, FEW_EPISODES = 5, 50  # of an interval
MAX_ACTIONS = 1000  # listed one by one
TOP_STEPS, TOP_ACTIONS, TOP_FEATURES = 10, 3, 5
MAX_FEATURE_VALUES = 20_000  # evenly spaced


class PolicyPair(NamedTuple):
    """beta and pi on N held-out steps.

    `beta`, `pi` and `q` are `[N, A]`; the logged action, its return, the episode and the step in it are `[N]`, as is
    the logged probability of the action, if there is one.
    """

    beta: Array
    pi: Array
    q: Array
    actions: Array
    returns: Array
    episode: Array
    step: Array
    action_probs: Array | None = None

    @property
    def values(self) -> Array:
        """V(s) = sum_a beta(a) Q(a), `[N]`."""
        found: Array = (self.beta * self.q).sum(1)
        return found

    @property
    def expected_gains(self) -> Array:
        """The improvement step by Q, sum_a (pi(a) - beta(a)) Q(a), `[N]`."""
        found: Array = ((self.pi - self.beta) * self.q).sum(1)
        return found

    @property
    def observed_gains(self) -> Array:
        """The improvement step by importance-weighted returns, (pi(a) / beta(a) - 1) (R - V(s)), `[N]`.

        beta(a) is the logged probability, if there is one. If it is right, the mean estimates the improvement step
        with the true Q of beta, whatever the given Q.
        """
        at = np.arange(len(self.actions)), self.actions
        beta = self.beta[at] if self.action_probs is None else self.action_probs
        beta = np.maximum(beta, np.finfo(np.float32).tiny)
        found: Array = (self.pi[at] / beta - 1) * (self.returns - self.values)
        return found


def policy_diff(
    pair: PolicyPair,
    rng: np.random.Generator,
    bounds: tuple[float, float] | None = None,
    features: Array | None = None,
) -> dict[str, Any]:
    """All statistics, ready for JSON. `bounds`: c_min and c_max of reroute; `features`: observations `[N, D]`."""
    pair = pair._replace(**{name: getattr(pair, name).astype(np.float64) for name in ("beta", "pi", "q", "returns")})
    return {
        "overall": overall(pair, rng, bounds),
        "actions": by_action(pair),
        "values": by_value(pair),
        "features": [] if features is None else by_feature(pair, features),
        "largest": largest_gains(pair),
    }


def overall(pair: PolicyPair, rng: np.random.Generator, bounds: tuple[float, float] | None) -> dict[str, Any]:
    """The distance of pi from beta, and the gain per step: by Q, and by importance-weighted returns."""
    distance = measures.total_variation(pair.pi, pair.beta)
    found = {
        "steps": len(distance),
        "episodes": int(np.count_nonzero(np.bincount(pair.episode))),
        "total_variation": float(distance.mean()),
        "total_variation_quartiles": np.percentile(distance, [25, 50, 75]).tolist(),
        "changed_states": float((distance > CHANGED_STATE).mean()),
        "value": float(pair.values.mean()),
        "expected_gain": mean_over_episodes(pair.expected_gains, pair.episode, rng),
        "observed_gain": mean_over_episodes(pair.observed_gains, pair.episode, rng),
    }
    if bounds is not None:
        shares = measures.bound_shares(pair.pi, pair.beta, *bounds)
        found |= {name: float(share.mean()) for name, share in shares._asdict().items()}
    return found


def mean_over_episodes(values: Array, episode: Array, rng: np.random.Generator) -> dict[str, Any]:
    """Mean over steps with its 95% interval over episodes, because their steps are correlated.

    A bootstrap of few episodes is too narrow: up to `FEW_EPISODES` it is Student's interval of the ratio of sums, and
    below `MIN_EPISODES` there is none.
    """
    _, which = np.unique(episode, return_inverse=True)
    sums, counts = np.bincount(which, values), np.bincount(which)
    interval = None
    if MIN_EPISODES <= len(sums) <= FEW_EPISODES:
        residuals = (sums - counts * values.mean()) / counts.mean()
        reach = -float(student_lower_bound(residuals - residuals.mean(), 0.025))
        interval = [float(values.mean()) - reach, float(values.mean()) + reach]
    elif len(sums) > FEW_EPISODES:
        interval = percentile_interval(bootstrap_ratio(sums, counts, rng, RESAMPLES)).tolist()
    return {"mean": float(values.mean()), "interval": interval}


def by_action(pair: PolicyPair) -> list[dict[str, Any]]:
    """For each action, the largest increase first: mean probabilities and the share of states in which it changes."""
    change = pair.pi - pair.beta
    mean = change.mean(0)
    listed = np.sort(np.argsort(-np.abs(mean), kind="stable")[:MAX_ACTIONS])
    taken = np.bincount(pair.actions, minlength=len(mean))
    rows = [
        {
            "action": int(a),
            "taken": float(taken[a] / len(pair.actions)),
            "beta": float(pair.beta[:, a].mean()),
            "pi": float(pair.pi[:, a].mean()),
            "change": float(mean[a]),
            "increased": float((change[:, a] > MIN_CHANGE).mean()),
            "decreased": float((change[:, a] < -MIN_CHANGE).mean()),
        }
        for a in listed
    ]
    return sorted(rows, key=lambda row: -row["change"])


def by_value(pair: PolicyPair) -> list[dict[str, float]]:
    """Quarters of the states, from the lowest V(s) to the highest."""
    distance, values = measures.total_variation(pair.pi, pair.beta), pair.values
    gains = pair.expected_gains
    parts = [part for part in np.array_split(np.argsort(values, kind="stable"), 4) if len(part)]
    return [
        {
            "steps": len(part),
            "value": float(values[part].mean()),
            "total_variation": float(distance[part].mean()),
            "expected_gain": float(gains[part].mean()),
        }
        for part in parts
    ]


def by_feature(pair: PolicyPair, features: Array) -> list[dict[str, Any]]:
    """The features whose low and high values differ most in how much the policy changes."""
    some = np.linspace(0, len(features) - 1, min(len(features), MAX_FEATURE_VALUES)).round().astype(int)
    distance = measures.total_variation(pair.pi[some], pair.beta[some])
    rows = []
    for number, values in enumerate(features[some].T):
        low, high = low_and_high(values)
        if low.any() and high.any():
            row = {
                "feature": number,
                "low": float(values[low].max()),
                "high": float(values[high].min()),
                "total_variation_low": float(distance[low].mean()),
                "total_variation_high": float(distance[high].mean()),
            }
            rows.append(row)
    return sorted(rows, key=lambda row: -abs(row["total_variation_high"] - row["total_variation_low"]))[:TOP_FEATURES]


def low_and_high(values: Array) -> tuple[Array, Array]:
    """Masks of a feature's lowest and highest quarter; if most values are equal, that value against the rest."""
    low, high = np.percentile(values, [25, 75], method="nearest")
    if low < high:
        return values <= low, values >= high
    return (values <= low, values > low) if (values > low).any() else (values < low, values >= low)


def largest_gains(pair: PolicyPair) -> list[dict[str, Any]]:
    """The steps with the largest expected gain, one for each state; `count` steps are in that state, by pi and Q."""
    gains = pair.expected_gains
    order = np.argsort(-gains, kind="stable")
    found: list[dict[str, Any]] = []
    while len(order) and len(found) < TOP_STEPS:
        n = order[0]
        alike = close_rows(pair.q[order], pair.q[n]) & close_rows(pair.pi[order], pair.pi[n])
        alike[0] = True
        order = order[~alike]
        change = np.abs(pair.pi[n] - pair.beta[n])
        top = [a for a in np.argsort(-change, kind="stable")[:TOP_ACTIONS] if change[a] > MIN_CHANGE]
        actions = [
            {"action": int(a), "beta": float(pair.beta[n, a]), "pi": float(pair.pi[n, a]), "q": float(pair.q[n, a])}
            for a in top
        ]
        row = {"episode": int(pair.episode[n]), "step": int(pair.step[n]), "taken": int(pair.actions[n])}
        row["count"] = int(alike.sum())
        found.append(row | {"return": float(pair.returns[n]), "gain": float(gains[n]), "actions": actions})
    return found


def close_rows(rows: Array, row: Array) -> Array:
    """`[N]` booleans: the rows `[N, A]` that equal a row `[A]` up to rounding, as `np.isclose` of finite numbers."""
    found: Array = (np.abs(rows - row) <= 1e-8 + 1e-5 * np.abs(row)).all(1)
    return found
