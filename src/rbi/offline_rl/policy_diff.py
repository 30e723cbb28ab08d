"""What an improved policy changes compared with beta on held-out steps: which actions, where, and by how much."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rbi import measures
from rbi.certification.estimates import row_blocks
from rbi.data.episode import Array
from rbi.statistics import bootstrap_ratio, percentile_interval, student_lower_bound

MIN_CHANGE = 1e-4  # smaller changes of a probability are rounding
CHANGED_STATE = 0.01  # least total variation of a changed state
RESAMPLES = 1000
MIN_CLUSTERS, FEW_CLUSTERS = 5, 50  # of an interval
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


class HeldOutSteps(NamedTuple):
    """N held-out steps whose beta and pi are computed for some of them at a time: `[N, A]` may be too large.

    `q` is `[N, A]`; the logged action, its return, the episode and the step in it are `[N]`.
    """

    q: Array
    actions: Array
    returns: Array
    episode: Array
    step: Array
    rows: Callable[[slice | Array], PolicyPair]
    """Some of the steps, in float64."""


class StepSums(NamedTuple):
    """Statistics of N steps, `[N]` each: the distance of pi from beta, V(s), both gains, and what each bound holds."""

    distance: Array
    values: Array
    expected_gains: Array
    observed_gains: Array
    at_c_min: Array
    at_c_max: Array


class ActionSums(NamedTuple):
    """Sums over N steps, `[A]` each: probabilities, their change, and the steps in which they increase or decrease."""

    beta: Array
    pi: Array
    change: Array
    increased: Array
    decreased: Array


def policy_diff(
    steps: HeldOutSteps,
    rng: np.random.Generator,
    bounds: tuple[float, float] | None = None,
    features: Array | None = None,
    clusters: Array | None = None,
) -> dict[str, Any]:
    """All statistics, ready for JSON. `bounds`: c_min and c_max of reroute; `features`: observations `[N, D]`;
    `clusters` `[N]`: what is independent, by default episodes."""
    by_step, by_action = summed(steps, bounds)
    return {
        "overall": overall(
            steps.episode, steps.episode if clusters is None else clusters, by_step, rng, bounded=bounds is not None
        ),
        "actions": action_rows(steps.actions, by_action),
        "values": by_value(by_step),
        "features": [] if features is None else by_feature(by_step.distance, features),
        "largest": largest_gains(steps, by_step.expected_gains),
    }


def summed(steps: HeldOutSteps, bounds: tuple[float, float] | None) -> tuple[StepSums, ActionSums]:
    """Statistics by step and by action, in blocks of steps."""
    by_step = StepSums(*np.zeros((len(StepSums._fields), len(steps.actions))))
    by_action = ActionSums(*np.zeros((len(ActionSums._fields), steps.q.shape[1])))
    for rows in row_blocks(*steps.q.shape):
        pair = steps.rows(rows)
        change = pair.pi - pair.beta
        by_step.distance[rows] = measures.total_variation(pair.pi, pair.beta)
        by_step.values[rows] = pair.values
        by_step.expected_gains[rows] = pair.expected_gains
        by_step.observed_gains[rows] = pair.observed_gains
        if bounds is not None:
            for name, share in measures.bound_shares(pair.pi, pair.beta, *bounds)._asdict().items():
                getattr(by_step, name)[rows] = share
        parts = (pair.beta, pair.pi, change, change > MIN_CHANGE, change < -MIN_CHANGE)
        for total, part in zip(by_action, parts, strict=True):
            total += part.sum(0)
    return by_step, by_action


def overall(
    episode: Array, clusters: Array, found: StepSums, rng: np.random.Generator, *, bounded: bool
) -> dict[str, Any]:
    """The distance of pi from beta, and the gain per step: by Q, and by importance-weighted returns."""
    numbers = {
        "steps": len(found.distance),
        "episodes": int(np.count_nonzero(np.bincount(episode))),
        "total_variation": float(found.distance.mean()),
        "total_variation_quartiles": np.percentile(found.distance, [25, 50, 75]).tolist(),
        "changed_states": float((found.distance > CHANGED_STATE).mean()),
        "value": float(found.values.mean()),
        "expected_gain": mean_over_clusters(found.expected_gains, clusters, rng),
        "observed_gain": mean_over_clusters(found.observed_gains, clusters, rng),
    }
    bounds = {name: float(getattr(found, name).mean()) for name in ("at_c_min", "at_c_max")}
    return numbers | (bounds if bounded else {})


def mean_over_clusters(values: Array, clusters: Array, rng: np.random.Generator) -> dict[str, Any]:
    """Mean over steps with its 95% interval over episodes or players, because their steps are correlated.

    A bootstrap of few clusters is too narrow: up to `FEW_CLUSTERS` it is Student's interval of the ratio of sums, and
    below `MIN_CLUSTERS` there is none.
    """
    _, which = np.unique(clusters, return_inverse=True)
    sums, counts = np.bincount(which, values), np.bincount(which)
    interval = None
    if MIN_CLUSTERS <= len(sums) <= FEW_CLUSTERS:
        residuals = (sums - counts * values.mean()) / counts.mean()
        reach = -float(student_lower_bound(residuals - residuals.mean(), 0.025))
        interval = [float(values.mean()) - reach, float(values.mean()) + reach]
    elif len(sums) > FEW_CLUSTERS:
        interval = percentile_interval(bootstrap_ratio(sums, counts, rng, RESAMPLES)).tolist()
    return {"mean": float(values.mean()), "interval": interval}


def action_rows(actions: Array, sums: ActionSums) -> list[dict[str, Any]]:
    """For each action, the largest increase first: mean probabilities and the share of states in which it changes."""
    means = ActionSums(*(total / len(actions) for total in sums))
    listed = np.sort(np.argsort(-np.abs(means.change), kind="stable")[:MAX_ACTIONS])
    taken = np.bincount(actions, minlength=len(means.change)) / len(actions)
    rows = [
        {"action": int(a), "taken": float(taken[a])}
        | {name: float(values[a]) for name, values in means._asdict().items()}
        for a in listed
    ]
    return sorted(rows, key=lambda row: -row["change"])


def by_value(found: StepSums) -> list[dict[str, float]]:
    """Quarters of the states, from the lowest V(s) to the highest."""
    parts = [part for part in np.array_split(np.argsort(found.values, kind="stable"), 4) if len(part)]
    return [
        {
            "steps": len(part),
            "value": float(found.values[part].mean()),
            "total_variation": float(found.distance[part].mean()),
            "expected_gain": float(found.expected_gains[part].mean()),
        }
        for part in parts
    ]


def by_feature(distance: Array, features: Array) -> list[dict[str, Any]]:
    """The features whose low and high values differ most in how much the policy changes, `distance` `[N]`."""
    some = np.linspace(0, len(features) - 1, min(len(features), MAX_FEATURE_VALUES)).round().astype(int)
    distance = distance[some]
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


def largest_gains(steps: HeldOutSteps, gains: Array) -> list[dict[str, Any]]:
    """The steps with the largest expected gain, one for each state; `count` steps are in that state, by pi and Q."""
    order = np.argsort(-gains, kind="stable")
    found: list[dict[str, Any]] = []
    while len(order) and len(found) < TOP_STEPS:
        n = int(order[0])
        beta, pi, q = (each[0] for each in steps.rows(np.array([n]))[:3])
        alike = np.concatenate([in_state(steps, order[part], q, pi) for part in row_blocks(len(order), len(q))])
        alike[0] = True
        order = order[~alike]
        change = np.abs(pi - beta)
        top = [a for a in np.argsort(-change, kind="stable")[:TOP_ACTIONS] if change[a] > MIN_CHANGE]
        actions = [{"action": int(a), "beta": float(beta[a]), "pi": float(pi[a]), "q": float(q[a])} for a in top]
        row = {"episode": int(steps.episode[n]), "step": int(steps.step[n]), "taken": int(steps.actions[n])}
        row["count"] = int(alike.sum())
        found.append(row | {"return": float(steps.returns[n]), "gain": float(gains[n]), "actions": actions})
    return found


def in_state(steps: HeldOutSteps, some: Array, q: Array, pi: Array) -> Array:
    """Which of some steps are in a state, by its Q and pi `[A]`; pi is computed only where Q is alike."""
    alike = close_rows(steps.q[some].astype(np.float64), q)
    alike[alike] = close_rows(steps.rows(some[alike]).pi, pi) if alike.any() else False
    return alike


def close_rows(rows: Array, row: Array) -> Array:
    """`[N]` booleans: the rows `[N, A]` that equal a row `[A]` up to rounding, as `np.isclose` of finite numbers."""
    found: Array = (np.abs(rows - row) <= 1e-8 + 1e-5 * np.abs(row)).all(1)
    return found
