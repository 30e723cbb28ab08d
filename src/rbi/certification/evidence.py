"""What held-out episodes say about a policy: checks, predictions of its networks, and one candidate per rule."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from rbi.certification import estimates
from rbi.certification.bounds import METHODS, Bound, Method, betting_rejects, lower_bound
from rbi.certification.estimates import MAX_FITTED_SIZE, Estimator, LoggedSteps, Ratios, Terms
from rbi.data.dataset import Dataset
from rbi.data.digests import copied_episodes, shared_episodes
from rbi.data.episode import Array, feature_slices
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.data.store import Store
from rbi.policy import Policy
from rbi.rules.types import Behavior, Reroute
from rbi.statistics import student_lower_bound

Known = Literal["all", "taken", "estimated"]
Unit = Literal["episode", "player"]

PREDICT_BATCH, IMAGE_BATCH = 8192, 256
MAX_GROWTH = 4.0  # c_max^T up to which doubly robust terms have useful limits
MIN_EXPLORATION = {"all": 0.01, "taken": 0.01, "estimated": 0.05}  # mean probability of not taking the likeliest action
MISMATCH = 6.0  # standard errors
MANY = 100.0  # expected actions, of which the count is nearly normal
BY_CHANCE = 1e-9  # probability with which true logged probabilities are refused because of their weights
NEARLY_CERTAIN = 0.99  # probability of an action beside which hardly any other is in a log
MAX_RATIO_ERROR = 0.2  # of the mean of clone / logged probability; some actions may be impossible in a state
UNLESS_SCHEDULED = " (or, where a schedule repeats the same contexts, --accept-equal of certify and monitor)"
RANGE_SLACK = 1e-6  # of a range of returns: rewards are stored as float32
ROUNDING = 1e-6  # of the mean size of terms: a gain that the rounding of float32 probabilities alone can make
MAX_FITTED_ROWS = 200_000  # of fitted Q evaluation


@dataclass(frozen=True)
class Evidence:
    """Held-out episodes with what a policy's networks predict for them."""

    data: Dataset
    policy: Policy
    logged: LoggedSteps
    known: Known
    """Whether the probabilities of all actions or of the taken ones were logged; else they are the clone's."""
    beta: Array
    """`[S, A]`: what rules are applied to, the clone's probabilities or the logged ones."""
    masks: Array | None
    counts: Array | None
    """`[S, A]`: visits of the states in the training data, or pseudo-counts, if the policy has them."""
    returns: Array
    """`[E]`: the logged returns."""
    players: int
    exploration: float
    """Mean probability with which the behaviour policy does not take its likeliest action."""
    clone: dict[str, float] | None
    """How far the clone's probabilities of the taken actions are from the logged ones."""

    @property
    def unit(self) -> Unit:
        """What counts once, and is independent of the others."""
        return "episode" if self.logged.units is None else "player"

    @property
    def explores(self) -> bool:
        return self.exploration >= MIN_EXPLORATION[self.known]


def place(data: Dataset, episode: int) -> str:
    """Where an episode comes from."""
    record = data.records[episode]
    source, line = data.texts[record["source"]], int(record["line"])
    return f"{source or 'data'}, {f'line {line}' if line else f'episode {episode + 1}'}"


def player_numbers(data: Dataset) -> Array:
    """`[E]`: each episode's player, numbered from 0 in the order of their first episodes. Raises ValueError for an
    episode without a player."""
    nobody = np.array([not text for text in data.texts])[data.records["player"]]
    if nobody.any():
        first = int(nobody.argmax())
        raise ValueError(
            f"{place(data, first)}: names no player, which --unit player takes; name their column (--table.player)"
        )
    _, firsts, numbers = np.unique(data.records["player"], return_index=True, return_inverse=True)
    found: Array = firsts.argsort().argsort()[numbers]
    return found


def as_range(return_range: Any) -> Any:
    """A range of returns as a tuple, also of an array or a list; anything else as it is, which the config refuses."""
    values = return_range.tolist() if hasattr(return_range, "tolist") else return_range
    return tuple(values) if isinstance(values, list) else values


def check_range(return_range: tuple[float, float]) -> None:
    """Raise ValueError unless these can be the smallest and the largest return."""
    low, high = return_range
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"return_range = ({low:g}, {high:g}): must be finite, and the first number smaller")


def check_complete(data: Dataset) -> None:
    """Raise ValueError if episodes are missing."""
    if data.rejected:
        raise ValueError(
            f"{data.rejected[0]}; {len(data.rejected):,} rejected episodes may differ from the others: nothing is "
            "decided until their rows are repaired, or removed if they are no decisions"
        )
    if data.num_lost:
        lost = f"{data.path}: {data.lost_text()}" if isinstance(data, Store) else f"{data.num_lost:,} episodes are lost"
        raise ValueError(f"{lost}; those may differ from the others: nothing is decided")
    if not len(data):
        raise ValueError("no episodes")


def check_returns(data: Dataset, returns: Array, low: float, high: float) -> None:
    """Raise ValueError for a return outside the stated range, by more than the rounding of float32 rewards."""
    slack = RANGE_SLACK * max(abs(low), abs(high))
    outside = (returns < low - slack) | (returns > high + slack)
    if outside.any():
        first = int(outside.argmax())
        raise ValueError(
            f"{place(data, first)}: return {returns[first]:g} is outside the stated range {low:g} to {high:g}"
        )


def gather_evidence(policy: Policy, data: Dataset, gamma: float, unit: Unit = "episode") -> Evidence:
    """Check that the episodes can test the policy, and predict beta and Q for all of their steps."""
    check_fits(policy, data)
    units = player_numbers(data) if unit == "player" else None
    spec = data.spec
    known: Known = "all" if spec.has_behavior_probs else "taken" if spec.has_action_probs else "estimated"
    if policy.behavior == "logged" and known != "all":
        raise ValueError("the policy changes logged probabilities of all actions, which these episodes do not have")
    clone, q, counts, masks = predict(policy, data)
    steps, actions = data.records["steps"].astype(np.int64), data.arrays["actions"].astype(np.int64)
    at = np.arange(len(actions)), actions
    all_probs: Array | None = None
    if known == "all":
        all_probs = data.arrays["behavior_probs"].astype(np.float64)
        all_probs /= all_probs.sum(1, keepdims=True)
        check_frequencies(all_probs, actions)
        action_probs = all_probs[at]
    elif known == "taken":
        action_probs = data.arrays["action_probs"].astype(np.float64)
        check_ratio_to_clone(clone, actions, action_probs)
    else:
        all_probs, action_probs = clone, np.maximum(clone[at].astype(np.float64), 1e-12)
    rewards = data.arrays["rewards"].astype(np.float64)
    logged = LoggedSteps(steps, actions, rewards, action_probs, q, all_probs, gamma, units)
    likeliest = action_probs if all_probs is None else all_probs.max(1).astype(np.float64)
    return Evidence(
        data=data,
        policy=policy,
        logged=logged,
        known=known,
        beta=all_probs if policy.behavior == "logged" and all_probs is not None else clone,
        masks=masks,
        counts=counts,
        returns=logged.returns(),
        players=len(np.unique(data.records["player"])),
        exploration=float((1 - likeliest).mean()),
        clone=None if known == "estimated" or policy.behavior == "logged" else clone_error(clone[at], action_probs),
    )


def unknown_texts(policy: Policy, data: Dataset) -> dict[str, int]:
    """By column the number of steps whose text is none of its categories: all of its features are 0."""
    texts = [(column.name, part) for column, part in feature_slices(policy.columns) if column.categories]
    if not texts:
        return {}
    observations = data.step_observations()
    found = {name: int((~observations[:, part].any(1)).sum()) for name, part in texts}
    return {name: rows for name, rows in found.items() if rows}


def check_fits(policy: Policy, data: Dataset) -> None:
    """Raise ValueError if the episodes are not of the kind that the policy takes."""
    check_complete(data)
    spec, own = data.spec, policy.obs_spec
    for name, theirs, ours in (
        ("observations", spec.obs_shape, own.shape),
        ("frame_stack", spec.frame_stack, own.stack),
        ("actions", spec.num_actions, own.num_actions),
    ):
        if theirs != ours:
            remedy = ""
            if name == "actions" and spec.num_actions < own.num_actions:
                remedy = f"; if nobody took the last ones in this log, read it with num_actions={ours}"
            raise ValueError(f"{name}: the policy has {ours}, the episodes have {theirs}{remedy}")
    if own.has_action_masks and not spec.has_action_masks:
        raise ValueError("the episodes have no action masks, and the policy learned with masks")
    for action, logged in zip(policy.action_names, spec.action_names, strict=False):
        if action != logged:
            raise ValueError(f"the policy has the action {action!r} where the episodes have {logged!r}")
    names = policy.features.names if policy.features is not None else ()
    if names and data.feature_names and tuple(data.feature_names) != tuple(names):
        pairs = zip(data.feature_names, names, strict=False)
        column, other = next(((b, a) for a, b in pairs if a != b), (names[-1], data.feature_names[-1]))
        raise ValueError(f"the policy has the column {column!r} where the episodes have {other!r}")
    steps = int(data.records["steps"].sum())
    for name, rows in unknown_texts(policy, data).items():
        if 2 * rows > steps:
            raise ValueError(f"{rows:,} of {steps:,} steps have no text in {name!r} that the training data has")


def check_unseen(policy: Policy, data: Dataset) -> None:
    """Raise ValueError if the policy was trained or selected on any of the episodes."""
    if policy.training_digests is None:
        return
    shared = shared_episodes(data, policy.training_digests)
    if shared.any():
        first = int(shared.argmax())
        raise ValueError(
            f"{place(data, first)}: is one of {int(shared.sum()):,} episodes (of {len(data):,}) that trained or "
            f"selected the policy; test it on others{UNLESS_SCHEDULED}"
        )


def check_copies(data: Dataset, unit: Unit = "episode") -> None:
    """Raise ValueError if episodes were logged several times: copies are no evidence. With players as the unit, those
    of one player are none either way, and are not looked at."""
    players = data.records["player"]
    copied = copied_episodes(data, players if unit == "player" else None)
    if not copied.any():
        return
    first = int(copied.argmax())
    advice = "remove the copies, by an identifier: not all equal rows are copies"
    if unit == "episode" and not copied_episodes(data, players).any() and len(np.unique(players)) > 1:
        advice = "only of the same player, though: make players the unit (--unit player), or else remove the copies"
    raise ValueError(
        f"{place(data, first)}: is one of {int(copied.sum()):,} episodes (of {len(data):,}) that are there several "
        f"times, more often than chance explains; {advice}{UNLESS_SCHEDULED}"
    )


def check_frequencies(beta: Array, actions: Array) -> None:
    """Raise ValueError if actions were taken far more or less often than the logged probabilities say.

    Compared are the counts of each action, and the mean probability of the taken actions: E[beta(a)] = sum_a beta(a)^2.
    """
    from scipy.special import pdtr, pdtrc

    counts, expected = np.bincount(actions, minlength=beta.shape[1]), beta.sum(0)
    error = (counts - expected) / np.sqrt(np.maximum((beta * (1 - beta)).sum(0), 1.0))
    rare = np.where(error > 0, pdtrc(counts - 1, expected), pdtr(counts, expected)) < BY_CHANCE / len(expected)
    wrong = (np.abs(error) > MISMATCH) & (rare | (expected >= MANY))
    if wrong.any():
        action = int(np.where(wrong, np.abs(error), 0).argmax())
        raise ValueError(
            f"logged probabilities do not match the actions: action {action} was taken {counts[action]:,} times where "
            f"{expected[action]:,.0f} are expected ({error[action]:+.0f} standard errors)"
        )
    taken, mean = beta[np.arange(len(actions)), actions], np.square(beta).sum(1)
    variance = float(((beta**3).sum(1) - np.square(mean)).sum())
    off = float((taken - mean).sum()) / math.sqrt(max(variance, 1.0))
    if abs(off) > MISMATCH:
        raise ValueError(
            f"logged probabilities do not match the actions: taken actions have a mean probability of "
            f"{taken.mean():.3g} where {mean.mean():.3g} is expected ({off:+.0f} standard errors)"
        )


def check_ratio_to_clone(clone: Array, actions: Array, logged: Array) -> None:
    """Raise ValueError if the mean of clone(a) / p(a) is far from 1, its expectation for any clone, good or bad, that
    only takes actions which the logging policy may take.

    Which those are is not known. A clone that takes others, too, has a mean below 1, and one that is limited to actions
    of the log a mean above 1, since rare ones may be missing there: the former has to be far above, or the latter far
    below. Below, what is missing may be in rare actions of large ratios, if so few are expected that there may be none;
    and where the logged action was nearly certain, all that the clone gives to others counts as there.
    """
    occurs = np.bincount(actions, minlength=clone.shape[1]) > 0
    usual = np.maximum(clone[:, occurs].sum(1, dtype=np.float64), 1e-12)
    ratio = clone[np.arange(len(actions)), actions].astype(np.float64) / logged
    certain = logged > NEARLY_CERTAIN
    rare_actions = float((1 - logged)[~certain].sum())
    at_most = ratio / usual + np.where(certain, 1 - clone[np.arange(len(actions)), actions] / usual, 0)
    sides = [(1, ratio)] + [(-1, at_most)] * (math.exp(-rare_actions) < BY_CHANCE)
    for side, values in sides:
        above = float(values.mean()) - 1
        off = above * math.sqrt(len(values)) / max(float(values.std()), abs(above), 1e-12)  # few equal ones say little
        if side * off > MISMATCH and side * above > MAX_RATIO_ERROR:
            raise ValueError(
                f"logged probabilities do not match the actions: compared with how often actions are taken, they are "
                f"{1 / values.mean():.3g} times as large on average ({off:+.3g} standard errors)"
            )


def clone_error(clone: Array, logged: Array) -> dict[str, float]:
    """How far the clone is from logged probabilities of the taken actions."""
    ratio = np.maximum(clone.astype(np.float64), 1e-12) / logged
    return {
        "mean_absolute_error": float(np.abs(clone - logged).mean()),
        "mean_log_ratio": float(np.log(ratio).mean()),
        "largest_ratio": float(np.maximum(ratio, 1 / ratio).max()),
    }


def predict(policy: Policy, data: Dataset) -> tuple[Array, Array, Array | None, Array | None]:
    """beta, Q and visits, if the policy knows them, for every step, `[S, A]` each, and the logged legal actions.

    beta is the clone's; a policy of logged probabilities has no use for a clone, so those are its beta.
    """
    sampler = Sampler(data, SamplerConfig(max_missing_return=1.0), torch.Generator(), device=policy.device)
    parts = []
    for steps in torch.split(torch.arange(data.steps), IMAGE_BATCH if data.spec.is_image else PREDICT_BATCH):
        batch = sampler.batch(steps)
        given = data.arrays["behavior_probs"][steps[0] : steps[-1] + 1] if policy.behavior == "logged" else None
        behavior = None if given is None else torch.tensor(given).to(policy.device)
        found = policy.beta_and_q(batch.states, behavior, batch.action_masks)
        counts = policy.visit_counts(batch.states)
        parts.append([tensor.cpu().numpy() for tensor in (*found, *([] if counts is None else [counts]))])
    beta, q, *visits = (np.concatenate(column) for column in zip(*parts, strict=True))
    masks = np.asarray(data.arrays["action_masks"]) if data.spec.has_action_masks else None
    if masks is not None:
        beta = np.where(masks, beta, 0)
        beta /= beta.sum(1, keepdims=True)
    if not (np.isfinite(beta).all() and np.isfinite(q).all()):
        raise ValueError("the networks' outputs are not finite for some of the observations")
    return beta, q, visits[0] if visits else None, masks


# Candidates: one rule on the policy's networks


@dataclass(frozen=True)
class Settings:
    """What is fixed before any outcome is looked at."""

    confidence: float
    method: Method
    return_range: tuple[float, float]
    stated_range: bool
    max_weight: float | None

    @property
    def alpha(self) -> float:
        return 1 - self.confidence


class Interval(NamedTuple):
    """An estimate of D with its lower bound (the one that decides) and an approximate upper one, at the same level."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Candidate:
    """A rule on the policy's networks, and what the episodes say about its gain."""

    rule: str
    policy: Policy
    estimator: Estimator
    bound: Bound
    """The bound that decides about it."""
    interval: Interval
    spread: float
    """Standard deviation of the terms of the estimate."""
    weights: dict[str, float]
    estimates: dict[str, float] = field(default_factory=dict)
    """Other estimates of D, by name."""
    bounds: tuple[Bound, ...] = ()
    """Other bounds of the same estimate."""

    @property
    def passes(self) -> bool:
        return self.interval.lower > 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "estimator": self.estimator,
            **self.interval._asdict(),
            "passes": self.passes,
            "bound": vars(self.bound),
            "bounds": [vars(bound) for bound in self.bounds],
            "estimates": self.estimates,
            "weights": self.weights,
            "standard_deviation": self.spread,
        }


def improved(policy: Policy, evidence: Evidence) -> Iterator[tuple[slice, Array]]:
    """pi `[rows, A]` in float64 in blocks of rows: all of it is too large for many actions."""
    for rows in estimates.row_blocks(*evidence.beta.shape):
        legal, counts = (
            None if part is None else torch.tensor(part[rows]) for part in (evidence.masks, evidence.counts)
        )
        beta, q = (torch.tensor(part[rows], dtype=torch.float64) for part in (evidence.beta, evidence.logged.q))
        yield rows, policy.improve(beta, q, legal, counts).numpy()


def ratio_limits(evidence: Evidence, policy: Policy, settings: Settings) -> Ratios:
    """Limits of pi / p that are known before any action is seen."""
    rule = policy.rule
    if policy.behavior == "logged" and not policy.c_greedy:
        if isinstance(rule, Behavior):
            return Ratios(1.0, 1.0)
        if isinstance(rule, Reroute) and math.isfinite(rule.c_max):
            return Ratios(rule.c_min, rule.c_max)
    if settings.max_weight is not None and evidence.logged.horizon == 1:
        return Ratios(0.0, settings.max_weight)
    return Ratios()


def choose_estimator(evidence: Evidence, limits: Ratios, settings: Settings) -> Estimator:
    """The estimator, from what was logged and stated, never from how well the policy does.

    Estimators of single rewards are for rewards that cannot be negative, which the decision states as an assumption.
    """
    horizon = evidence.logged.horizon
    gains_only = settings.return_range[0] >= 0 and not (evidence.logged.rewards < 0).any()
    if evidence.known == "estimated":
        return "doubly_robust"
    if math.isfinite(limits.high) and (horizon == 1 or (gains_only and limits.high**horizon <= MAX_GROWTH)):
        return "doubly_robust"
    return "per_decision" if horizon > 1 and gains_only else "importance_sampling"


def evaluate_candidate(evidence: Evidence, policy: Policy, settings: Settings, *, details: bool = False) -> Candidate:
    """The gain of a policy on the evidence's networks. `details` adds other estimates and bounds."""
    logged, (low, high) = evidence.logged, settings.return_range
    pi_taken, v_pi = np.empty((2, len(logged.actions)))
    for rows, pi in improved(policy, evidence):
        pi_taken[rows] = pi[np.arange(len(pi)), logged.actions[rows]]
        v_pi[rows] = estimates.expected_q(pi, logged.q[rows], low, high)
    limits = ratio_limits(evidence, policy, settings)
    rho = estimates.ratios(logged, pi_taken)
    check_ratios(evidence, rho, limits)
    weights = estimates.cumulative_weights(logged, rho)
    estimator = choose_estimator(evidence, limits, settings)
    if estimator == "per_decision":
        terms = estimates.per_decision(logged, weights, high)
    elif estimator == "importance_sampling":
        terms = estimates.importance_sampling(logged, weights, low, high)
    else:
        terms = estimates.doubly_robust(logged, v_pi, rho, low, high, limits)
    episode = estimates.episode_weights(logged, weights)
    if evidence.known == "taken":
        check_mean_weight(episode)
    stated = logged.horizon == 1 and limits.high == settings.max_weight
    if evidence.known != "estimated" and stated and weights_are_too_small(episode, limits):
        raise ValueError(
            f"weights of {policy.rule} have a mean of {episode.mean():.3g} where 1 is expected, so that some are above "
            f"the stated limit {limits.high:g}: those of actions which the log does not show, or shows less often than "
            "it says"
        )
    by_episode = float(terms.values.mean())
    terms = terms._replace(values=logged.per_unit(terms.values))
    bound = bounded(settings.method, terms, settings, evidence.unit)
    upper = -float(student_lower_bound(-terms.values, settings.alpha)) if len(terms.values) > 1 else math.inf
    lower = min(bound.lower, high - low)  # no gain exceeds the range
    origin = low if estimator == "importance_sampling" else 0.0  # a constant in all returns cancels in such terms
    if 0 < lower <= ROUNDING * float(np.abs(evidence.returns - origin).mean()):
        lower = 0.0
    candidate = Candidate(
        rule=str(policy.rule) + (f" + {policy.c_greedy:g} greedy" if policy.c_greedy else ""),
        policy=policy,
        estimator=estimator,
        bound=bound,
        interval=Interval(float(terms.values.mean()), lower, upper),
        spread=float(terms.values.std()),
        weights=estimates.weight_diagnostics(logged, rho, weights),
    )
    if not details:
        return candidate
    others = [bounded(method, terms, settings, evidence.unit) for method in METHODS if method != settings.method]
    found = all_estimates(evidence, policy, rho, weights)
    found |= {} if evidence.unit == "episode" else {"episode_weighted": by_episode}
    return replace(candidate, estimates=found, bounds=tuple(others))


def check_mean_weight(weights: Array) -> None:
    """Raise ValueError if the weights `[E]` of whole episodes have a mean above 1, their expectation if probabilities
    match the actions. Their spread is no yardstick: it is nearly 0 until the first rare action, which has the weight 0.
    """
    shuffled = np.random.default_rng(0).permutation(weights)
    if betting_rejects(shuffled, 1.0, 0.0, BY_CHANCE, spread=1.0):
        raise ValueError(
            f"logged probabilities do not match the actions: the mean weight is {weights.mean():.3g} where 1 is "
            f"expected (true ones are that far above with a probability of {BY_CHANCE:g} at most)"
        )


def weights_are_too_small(episode: Array, limits: Ratios) -> bool:
    """Whether weights `[E]` below a limit have a mean below 1, as where the new policy takes actions that the logging
    one never took: their weight is infinite, and in no log. Doubly robust terms would believe Q about them."""
    shuffled = np.random.default_rng(0).permutation(np.minimum(episode, limits.high))
    return bool(betting_rejects(limits.high - shuffled, limits.high - 1, 0.0, BY_CHANCE, spread=1.0))


def check_ratios(evidence: Evidence, rho: Array, limits: Ratios) -> None:
    """Raise ValueError for a weight outside its stated limits."""
    outside = (rho > limits.high * (1 + 1e-4) + 1e-6) | (rho < limits.low * (1 - 1e-4) - 1e-6)
    if outside.any():
        step = int(outside.argmax())
        episode = int(np.searchsorted(evidence.logged.first, step, side="right")) - 1
        raise ValueError(
            f"{place(evidence.data, episode)}: weight {rho[step]:.4g} of action {evidence.logged.actions[step]} is "
            f"outside the stated limits {limits.low:g} to {limits.high:g}"
        )


def bounded(method: Method, terms: Terms, settings: Settings, unit: Unit = "episode") -> Bound:
    """A bound of the mean of terms; limits are widened by the rounding of probabilities."""
    slack = 1e-5 * max(abs(terms.floor) if math.isfinite(terms.floor) else 0.0, terms.spread)
    return lower_bound(
        method,
        terms.values,
        settings.alpha,
        floor=terms.floor - slack,
        ceiling=terms.ceiling + slack,
        spread=terms.spread,
        unit=unit,
    )


def all_estimates(evidence: Evidence, policy: Policy, rho: Array, weights: Array) -> dict[str, float]:
    """Every estimate of D, by name."""
    logged, spec = evidence.logged, evidence.data.spec
    low, high = min(float(evidence.returns.min()), 0.0), max(float(evidence.returns.max()), 0.0)
    beta = logged.beta if logged.beta is not None else evidence.beta
    size = (spec.obs_shape[0] + 2) * spec.num_actions
    fitted = not spec.is_image and spec.frame_stack == 1 and size <= MAX_FITTED_SIZE and len(rho) <= MAX_FITTED_ROWS
    v_pi, gain = np.empty((2, len(rho)))
    every: list[Array] = []
    for rows, pi in improved(policy, evidence):
        v_pi[rows] = estimates.expected_q(pi, logged.q[rows], low, high)
        gain[rows] = ((pi - beta[rows]) * logged.q[rows]).sum(1)
        every += [pi] if fitted else []
    terms = {
        "importance_sampling": (estimates.episode_weights(logged, weights) - 1) * evidence.returns,
        "per_decision": logged.per_episode(logged.discounts() * (weights - 1) * logged.rewards),
        "doubly_robust": estimates.doubly_robust(logged, v_pi, rho, low, high, Ratios()).values,
        "direct": logged.per_episode(logged.discounts() * gain),
    }
    found = {name: float(logged.per_unit(values).mean()) for name, values in terms.items()}
    found["weighted"] = estimates.weighted_importance_sampling(logged, weights)[0]
    if fitted:
        observations = evidence.data.step_observations()
        found["fitted_q"] = estimates.fitted_q_evaluation(logged, np.concatenate(every), observations)
    return found
