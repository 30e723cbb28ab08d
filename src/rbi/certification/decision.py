"""`rbi.certify`: deploy a policy, keep the behaviour policy, or test live, from held-out logged episodes."""

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rbi import fileio, runs
from rbi.certification.bounds import STATUS, Method, Status
from rbi.certification.evidence import (
    MAX_RATIO_ERROR,
    Candidate,
    Evidence,
    Settings,
    Unit,
    as_range,
    check_copies,
    check_range,
    check_returns,
    check_unseen,
    evaluate_candidate,
    gather_evidence,
    unknown_texts,
)
from rbi.config import Checked, Interval
from rbi.data.dataset import Dataset
from rbi.data.formats import Format, FormatSettings, TableConfig, dataset_or_path, open_dataset, recognise
from rbi.data.formats.tables import is_own_export
from rbi.policy import Policy, load_policy
from rbi.progress import text_table, track
from rbi.rules.types import Behavior, parse_rule
from rbi.suggestions import Suggesting, with_suggestions
from rbi.torch_settings import with_own_thread

Verdict = Literal["deploy", "keep", "test live"]
SEQUENCE = ("reroute(0.9,1.1)", "reroute(0.75,1.25)", "reroute(0.5,1.5)", "reroute(0,2)", "count_aware(0.1)", "greedy")
"""From cautious to bold: the order in which `auto` tests rules."""
TABLES = ("csv", "parquet", "feather", "jsonl")
MIN_UNITS = 30  # episodes, or players, of bounds that are not proved
MIN_EFFECTIVE = 30.0  # effective sample size, of bounds that are not proved
MIN_PLAYERS = 10  # from which others are judged
POWER = 0.8
NEEDS: dict[Method, str] = {
    "betting": "logged probabilities",
    "empirical_bernstein": "two episodes and a limit on weights (--max-weight, for episodes of one step)",
    "student": "two episodes (or players)",
    "bca": "two episodes (or players)",
}
"""What it takes for a bound to be finite."""
PER: dict[Unit, str] = {"episode": "per episode", "player": "per episode of a random player"}
PLAYERS_ASSUMPTIONS = (
    "future players are like the logged ones",
    "how many episodes a player has does not depend on what happened in them",
    "the policy learned from none of these players",
)
EQUAL_ARE_INDEPENDENT = "equal episodes are no copies, and none of them trained or selected the policy"
LIVE_SHARES = (0.05, 0.5)


@dataclass(frozen=True)
class CertifyConfig(Checked):
    """Settings of `rbi.certify`. All of them are fixed before the outcomes are used."""

    confidence: Annotated[float, Interval(ge=0.5, lt=1)] = 0.95
    """Probability with which the lower bound holds. Raise it where a mistake is expensive; it takes more episodes."""
    return_range: tuple[float, float] | None = None
    """Smallest and largest possible return of an episode. By default the observed range is used, and no bound
    is proved."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Discount factor of the returns that are compared. `return_range` is that of discounted returns then."""
    bound: Method | None = None
    """The bound that decides (default: betting where probabilities were logged, else Student's t)."""
    max_weight: Annotated[float, Interval(ge=1)] | None = None
    """Largest possible ratio of new to logged probability, for episodes of one step. It allows doubly robust
    terms (default: no limit is known)."""
    auto: bool = False
    """Test reroute(0.9,1.1), reroute(0.75,1.25), reroute(0.5,1.5), reroute(0,2), count_aware(0.1) and greedy on the
    policy's networks in this order, stop at the first that fails, and deploy the last that passed, in place of the
    policy's own rule. count_aware is left out for a policy without visit counts, which `rbi.improve` adds."""
    accept_estimated: bool = False
    """Allow "deploy" without logged probabilities. The clone may be wrong where a hidden cause drove the actions."""
    accept_equal: bool = False
    """Accept more equal episodes, among each other or with those of training, than chance explains, as where a schedule
    repeats the same contexts. Copies would count as evidence."""
    unit: Unit = "episode"
    """Unit of analysis: episodes, or players (customers, patients) if some have several episodes and the policy is for
    others, too. Each player counts once, by their mean over episodes, and the log has to name them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "return_range", as_range(self.return_range))
        super().__post_init__()
        if self.return_range is not None:
            check_range(self.return_range)


@dataclass(frozen=True, repr=False)
class Decision(Suggesting):
    """Whether to deploy a policy, and why. Gains are differences of return per episode to the behaviour policy; where
    players are the unit, means over players of their mean differences, whatever the number of their episodes."""

    verdict: Verdict
    """deploy, keep (the behaviour policy) or test live."""
    policy: Policy
    """The policy to deploy; if the verdict is another one, the behaviour policy."""
    lower: float
    """Lower confidence bound of the gain. After `auto` it is that of the chosen rule alone: the stated confidence is
    in a gain above 0, since the rule was chosen by its own bound."""
    estimate: float
    """Estimated gain."""
    baseline: float
    """Mean return of the logged episodes: the value of the behaviour policy. Mean over players if they are the unit."""
    status: Status
    """How far the bound can be trusted: proved, asymptotic or heuristic."""
    reasons: tuple[str, ...]
    """Why, in plain words."""
    assumptions: tuple[str, ...]
    """What has to hold for the status."""
    chosen: Candidate
    """The rule that the numbers above belong to."""
    candidates: tuple[Candidate, ...]
    """All rules on the same networks; only those in `tested` affect the decision."""
    tested: tuple[str, ...]
    needed: dict[str, Any]
    """What it would take to decide: more logged episodes (or players), or live ones at some shares of traffic."""
    confidence: float
    episodes: int
    evidence: dict[str, Any]
    """What is known about the logged probabilities, exploration and the clone."""
    unit: Unit = "episode"

    @property
    def deploy(self) -> bool:
        return self.verdict == "deploy"

    @property
    def value(self) -> float:
        """Estimated value of the policy: baseline plus estimated gain."""
        return self.baseline + self.estimate

    def headline(self) -> str:
        """The decision in one sentence."""
        rule, percent, per = self.chosen.rule, f"{100 * self.confidence:g}%", PER[self.unit]
        if self.deploy and len(self.tested) > 1:  # the search is right about this with the stated confidence, no more
            return (
                f"Deploy {rule}: it gains over the logged {self.baseline:.4g} {per} ({percent} confidence, "
                f"{self.status}; estimate {self.estimate:+.4g})."
            )
        if self.deploy:
            return (
                f"Deploy {rule}: it gains at least {self.lower:.4g} {per} over the logged {self.baseline:.4g} "
                f"({percent} confidence, {self.status}; estimate {self.estimate:+.4g})."
            )
        if self.verdict == "test live":
            gain = self.estimate if self.lower > 0 else self.chosen.estimates["fitted_q"]  # see `give_verdict`
            return f"Test {rule} live: the logs suggest {gain:+.4g} {per} and cannot confirm it."
        return f"Keep the current policy: the logs do not show that {rule} is better (estimate {self.estimate:+.4g})."

    def summary(self) -> str:
        """Headline, reasons and a table of all rules."""
        rows = [("rule", "gain", "lower bound", "value", "effective size", "")]
        for candidate in self.candidates:
            gain, lower, _ = candidate.interval
            mark = "tested" if candidate.rule in self.tested else ""
            mark = "decides" if candidate.rule == self.chosen.rule else mark
            size = candidate.weights["effective_sample_size"]
            numbers = (f"{gain:+.4g}", f"{lower:+.4g}", f"{self.baseline + gain:.4g}", f"{size:,.0f}", mark)
            rows.append((candidate.rule, *numbers))
        reasons = (f"- {reason}" for reason in self.reasons)
        return "\n".join([self.headline(), *reasons, text_table("", rows)])

    def __repr__(self) -> str:
        return self.summary()

    def write(self, writer: runs.Writer, *, policy: str, data: str) -> None:
        """Write the policy to use and the decision into a run folder, with what was tested on which data."""
        self.policy.save(writer.path / "policies" / "best")
        writer.result(self.to_dict() | {"policy": policy, "data": data})

    def to_dict(self) -> dict[str, Any]:
        """Everything but the policy, ready for JSON."""
        return {
            "verdict": self.verdict,
            "deploy": self.deploy,
            "headline": self.headline(),
            "rule": self.chosen.rule,
            "lower": self.lower,
            "estimate": self.estimate,
            "baseline": self.baseline,
            "value": self.value,
            "status": self.status,
            "confidence": self.confidence,
            "episodes": self.episodes,
            "unit": self.unit,
            "reasons": list(self.reasons),
            "assumptions": list(self.assumptions),
            "needed": self.needed,
            "evidence": self.evidence,
            "tested": list(self.tested),
            "chosen": self.chosen.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }


@with_suggestions
@with_own_thread
def certify(
    policy: Policy | Path | str,
    episodes: Dataset | Path | str,
    confidence: float = 0.95,
    *,
    return_range: tuple[float, float] | None = None,
    gamma: float = 1.0,
    bound: Method | None = None,
    max_weight: float | None = None,
    auto: bool = False,
    accept_estimated: bool = False,
    accept_equal: bool = False,
    unit: Unit = "episode",
    compare: bool = True,
    format: Format | None = None,  # noqa: A002 - the word that users look for
    settings: FormatSettings | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Decision:
    """Decide from held-out episodes whether a policy is better than the one that logged them.

    The gain D = V(pi) - V(beta) is bounded from below. With logged probabilities and a stated `return_range` the bound
    is proved for every number of episodes; deploy means that it is above 0. Episodes that trained or selected the
    policy are refused. Bad input raises a ValueError that names the row and the value; nothing is decided then.

    compare: also show the rules that were not asked about; they do not affect the decision.
    out: a run folder for the decision and the policy to use, which `rbi.load_policy` and `rbi report` read.
    The other settings are those of `CertifyConfig`; `format` and `settings` say how to read a path. A table is read as
    the one that trained the policy, unless `settings` names columns.

    >>> decision = certify("runs/improve", "logs-of-may.csv", return_range=(0, 1))      # doctest: +SKIP
    >>> decision.deploy, decision.lower, decision.reasons                               # doctest: +SKIP
    """
    config = CertifyConfig(
        confidence, return_range, gamma, bound, max_weight, auto, accept_estimated, accept_equal, unit
    )
    if out is not None:
        runs.check_apart(out, policy)
        runs.check_available(fileio.resolve(out), overwrite=overwrite)
    given = policy if isinstance(policy, Policy) else load_policy(policy)
    source = dataset_or_path(episodes)
    data = read_as_trained(given, policy, source, format, settings)
    evidence = gather_evidence(given, data, config.gamma, config.unit)
    if not config.accept_equal:
        check_unseen(given, data)
        check_copies(data, config.unit)
    decision = decide(evidence, config, compare=compare, progress=progress)
    if out is not None:
        about = {
            "policy": "" if isinstance(policy, Policy) else str(policy),
            "data": "" if isinstance(episodes, Dataset) else str(episodes),
        }
        found = vars(config) | about
        with runs.Writer.create(fileio.as_path(out), command="certify", settings=found, overwrite=overwrite) as writer:
            decision.write(writer, **about)
    return decision


def read_as_trained(
    policy: Policy,
    place: Policy | Path | str,
    source: Dataset | Path,
    format_: Format | None,
    settings: FormatSettings | None,
) -> Dataset:
    """The episodes of a dataset or a path; a table is read like the one that trained the policy, which may be in memory
    or in a folder."""
    if isinstance(source, Dataset):
        return open_dataset(source, format_, settings)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder, "policy") if isinstance(place, Policy) else fileio.as_path(place)
        if isinstance(place, Policy) and policy.columns:
            policy.save(saved)
        return open_dataset(source, format_, encoded_as(policy, saved, source, format_, settings))


def encoded_as(
    policy: Policy, place: Path, data: Path, format_: Format | None, settings: FormatSettings | None
) -> FormatSettings | None:
    """Settings that read a table as that of a saved policy: columns, categories, actions.

    If no option names a column, the roles of the policy's table are used: they are in its metadata. Our own Parquet
    files have their own columns.
    """
    name = format_ or recognise(data)
    if name not in TABLES:
        return settings
    found = settings or FormatSettings()
    if not found.table.roles() and not (name == "parquet" and is_own_export(data)):
        found = replace(found, table=replace(trained_table(policy), features_of=found.table.features_of))
    actions = found.overrides.num_actions or policy.obs_spec.num_actions
    features = found.table.features_of or (str(place) if policy.columns else None)
    return replace(
        found,
        overrides=replace(found.overrides, num_actions=None if policy.action_names else actions),
        table=replace(found.table, features_of=features, accept_unknown=features is not None),
    )


def trained_table(policy: Policy) -> TableConfig:
    """How the table of the training data was read, without its observations if the policy has them as `columns`."""
    found = TableConfig.from_roles(policy.metadata.get("table", {}))
    return replace(found, observations=()) if policy.columns else found


def decide(evidence: Evidence, config: CertifyConfig, *, compare: bool = True, progress: bool = False) -> Decision:
    """The decision from checked evidence."""
    fixed = fix_settings(evidence, config)
    own = evidence.policy
    steps = applicable_rules(own)
    sequence = list(steps.values()) if config.auto else [own]
    blocked = blocking_reasons(evidence)
    tested: list[Candidate] = []
    passed: list[Candidate] = []
    for policy in track(sequence, "evaluating the gain") if progress else sequence:
        candidate = evaluate_candidate(evidence, policy, fixed, details=True)
        tested.append(candidate)
        if blocked or not (candidate.passes and trusted(evidence, candidate, fixed)):
            break
        passed.append(candidate)
    chosen = (passed or tested)[-1]
    names = {candidate.rule for candidate in tested}
    others = [policy for text, policy in steps.items() if text not in names] if compare else []
    unlimited = replace(fixed, max_weight=None)  # what is stated about the tested rules need not hold for the others
    more = track(others, "comparing with other rules") if progress else others
    compared = [evaluate_candidate(evidence, policy, unlimited) for policy in more]
    candidates = [*tested, *compared]
    candidates.sort(key=lambda found: SEQUENCE.index(found.rule) if found.rule in SEQUENCE else 2.5)
    verdict = give_verdict(evidence, config, chosen, passed=bool(passed), blocked=bool(blocked))
    return Decision(
        verdict=verdict,
        policy=chosen.policy if verdict == "deploy" else own.with_rule(Behavior()),
        lower=chosen.interval.lower,
        estimate=chosen.interval.estimate,
        baseline=float(evidence.logged.per_unit(evidence.returns).mean()),
        status=status_of(evidence, chosen, fixed),
        reasons=(*blocked, *explain(evidence, config, fixed, chosen, tested, verdict)),
        assumptions=assumptions_of(evidence, chosen, fixed) + (EQUAL_ARE_INDEPENDENT,) * config.accept_equal,
        chosen=chosen,
        candidates=tuple(candidates),
        tested=tuple(candidate.rule for candidate in tested),
        needed=what_it_takes(evidence, chosen, fixed),
        confidence=config.confidence,
        episodes=len(evidence.returns),
        evidence={
            "known": evidence.known,
            "exploration": evidence.exploration,
            "players": evidence.players,
            "horizon": evidence.logged.horizon,
            "clone": evidence.clone,
            "return_range": list(fixed.return_range),
            "stated_range": fixed.stated_range,
        },
        unit=evidence.unit,
    )


def applicable_rules(policy: Policy) -> dict[str, Policy]:
    """The policy with each rule of `SEQUENCE` that it has the numbers for."""
    rules = {text: parse_rule(text, counts=True) for text in SEQUENCE}
    counted = policy.visits is not None
    return {text: policy.with_rule(rule) for text, rule in rules.items() if counted or not rule.uses_counts}


def fix_settings(evidence: Evidence, config: CertifyConfig) -> Settings:
    """Method and range of returns. Raises ValueError for a return outside the stated range."""
    returns = evidence.returns
    method: Method = config.bound or ("student" if evidence.known == "estimated" else "betting")
    if config.return_range is None:
        low, high = min(0.0, float(returns.min())), max(float(returns.max()), 0.0)
        return Settings(config.confidence, method, (low, high if high > low else low + 1.0), False, config.max_weight)
    low, high = config.return_range
    check_returns(evidence.data, returns, low, high)
    return Settings(config.confidence, method, (low, high), True, config.max_weight)


def status_of(evidence: Evidence, candidate: Candidate, settings: Settings) -> Status:
    """With estimated probabilities nothing is more than heuristic; without a stated range nothing is proved."""
    if evidence.known == "estimated":
        return "heuristic"
    status = STATUS[candidate.bound.method]
    return "asymptotic" if status == "proved" and not settings.stated_range else status


def trusted(evidence: Evidence, candidate: Candidate, settings: Settings) -> bool:
    """Whether a bound that is not proved has enough episodes to be taken seriously. Betting allows for few effective
    ones itself; without a stated range it still needs some returns to know theirs."""
    if status_of(evidence, candidate, settings) == "proved":
        return True
    if lacks_support(evidence, candidate):
        return False
    effective = candidate.weights["effective_sample_size"] >= MIN_EFFECTIVE
    return evidence.logged.num_units >= MIN_UNITS and (effective or candidate.bound.method == "betting")


def lacks_support(evidence: Evidence, candidate: Candidate) -> bool:
    """Whether estimated weights of single steps are far below 1 on average: the rule takes actions that the log hardly
    shows, and its doubly robust terms believe Q about them."""
    single = evidence.known == "estimated" and evidence.logged.horizon == 1
    return single and candidate.weights["mean_weight"] < 1 - MAX_RATIO_ERROR


def blocking_reasons(evidence: Evidence) -> list[str]:
    """Why the episodes hold no evidence about any other policy."""
    found = []
    if not evidence.explores:
        found.append(
            f"The log has no exploration: the likeliest action is taken with probability "
            f"{1 - evidence.exploration:.1%} on average. It holds no evidence about other actions; log a small share "
            "of random actions, with their probabilities."
        )
    if evidence.unit == "player" and evidence.players < MIN_PLAYERS:
        found.append(
            f"{evidence.players} player{'s' * (evidence.players != 1)} cannot show what others would gain: it takes at "
            f"least {MIN_PLAYERS}, and usually many more."
        )
    if evidence.known == "estimated" and evidence.players > 1 and evidence.logged.horizon > 1:
        found.append(
            f"{evidence.players} players without logged probabilities: the clone is their mixture, and products of its "
            "ratios over an episode are not valid weights. Log the probability of each action."
        )
    return found


def give_verdict(
    evidence: Evidence, config: CertifyConfig, chosen: Candidate, *, passed: bool, blocked: bool
) -> Verdict:
    if blocked:
        return "keep"
    if passed:
        return "deploy" if evidence.known != "estimated" or config.accept_estimated else "test live"
    promising = too_long(evidence, chosen) and chosen.estimates.get("fitted_q", -1.0) > 0
    return "test live" if promising and evidence.logged.num_units >= MIN_UNITS else "keep"


def too_long(evidence: Evidence, candidate: Candidate) -> bool:
    """Whether episodes have more steps than products of ratios can say anything about."""
    return evidence.logged.horizon > max(1.0, candidate.weights["max_useful_horizon"])


def explain(
    evidence: Evidence,
    config: CertifyConfig,
    settings: Settings,
    chosen: Candidate,
    tested: list[Candidate],
    verdict: Verdict,
) -> list[str]:
    """The reasons beside what blocks a decision: what was found, what limits it, and what would help."""
    units, size = evidence.logged.num_units, chosen.weights["effective_sample_size"]
    lines = [result_text(evidence, settings, chosen)]
    if math.isinf(chosen.interval.lower):
        method = chosen.bound.method
        lines.append(f"There is no bound of these terms by {method}: it takes {NEEDS[method]}.")
    if chosen.interval.lower == 0 < chosen.bound.lower:
        lines.append(
            f"The bound of {chosen.bound.lower:+.4g} is as small as the rounding of returns of this size, and counts "
            "as 0: subtract a constant from all rewards and from their range."
        )
    if config.auto and len(tested) > 1:
        lines.append(
            f"Tested from cautious to bold: {', '.join(found.rule for found in tested)}; the first failure ends it. "
            "The confidence is that of a gain above 0; the bound is that of one rule, as if it had not been chosen."
        )
    if config.auto and evidence.policy.visits is None:
        lines.append("count_aware was left out: the policy has no visit counts. A policy of rbi improve has them.")
    lines += limits_of_data(evidence, settings)
    if not trusted(evidence, chosen, settings):
        lines.append(distrust_text(evidence, chosen))
    if evidence.clone is not None and verdict == "deploy":
        error = evidence.clone["mean_absolute_error"]
        lines.append(f"The clone of the behaviour policy is off by {error:.3f} on average; weights use the log.")
    if too_long(evidence, chosen):
        lines.append(horizon_text(evidence, chosen))
    elif verdict != "deploy" and size < 0.1 * units:
        lines.append(
            f"The weights leave {size:,.0f} effective {evidence.unit}s of {units:,}: a smaller step would leave more."
        )
    if verdict != "deploy":
        _, source = assumed_gain(evidence, chosen)
        lines.append(needed_text(what_it_takes(evidence, chosen, settings), source, evidence))
    return lines


def result_text(evidence: Evidence, settings: Settings, chosen: Candidate) -> str:
    """Estimate and lower bound of the gain, and what they rest on."""
    gain, lower, _ = chosen.interval
    terms = chosen.estimator.replace("_", "-")
    text = (
        f"{len(evidence.returns):,} episodes; the estimated gain of {chosen.rule} is {gain:+.4g}, its "
        f"{100 * settings.confidence:g}% lower bound {lower:+.4g} ({chosen.bound.method} on {terms} terms, "
        f"{status_of(evidence, chosen, settings)})."
    )
    if evidence.unit == "player":
        text += (
            f" They are of {evidence.players:,} players, each of whom counts once, by their mean over episodes: it is "
            "the mean gain per episode of a random new player. Weighted by episodes, the estimate is "
            f"{chosen.estimates['episode_weighted']:+.4g}."
        )
    return text


def repeated_players(evidence: Evidence) -> bool:
    """Whether the log names players, some of them with several episodes, and episodes are the unit: if gains differ by
    player, such episodes are independent only given the players."""
    return evidence.unit == "episode" and 1 < evidence.players < len(evidence.returns)


def limits_of_data(evidence: Evidence, settings: Settings) -> list[str]:
    """What the log and its description lack, for every rule on these networks."""
    lines = []
    if evidence.known == "estimated":
        lines.append(
            "No probabilities were logged, so weights come from a clone of the behaviour policy. A cause of actions "
            "and rewards that the log does not show makes them wrong, unnoticed: test live, or log probabilities."
        )
        if evidence.players > 1:
            lines.append(
                f"The clone is the mixture of {evidence.players:,} players: if better players choose other actions, "
                "their skill is such a cause, and the gain of these actions is too large here."
            )
    if evidence.data.spec.has_action_masks and not evidence.policy.obs_spec.has_action_masks:
        lines.append(
            "The log has action masks, and the policy learned without them: the decision is about its legal actions "
            "alone, so pass them (legal=) when it is used."
        )
    lines += [
        f"{rows:,} of {len(evidence.logged.actions):,} steps have no text in {name!r} that the training data has: the "
        "policy sees none of its categories."
        for name, rows in unknown_texts(evidence.policy, evidence.data).items()
    ]
    if repeated_players(evidence):
        lines.append(
            f"Several episodes are of the same player ({evidence.players:,} players): the bound is for these players. "
            "If the policy is for others, too, make players the unit (--unit player)."
        )
    if not settings.stated_range:
        low, high = settings.return_range
        lines.append(
            f"The range of returns, {low:g} to {high:g}, is the observed one; state it (--return-range) for a proof."
        )
    return lines


def distrust_text(evidence: Evidence, candidate: Candidate) -> str:
    """Why a bound that is not proved is not trusted."""
    mean, size = candidate.weights["mean_weight"], candidate.weights["effective_sample_size"]
    if lacks_support(evidence, candidate):
        return f"Weights have a mean of {mean:.2g} where 1 is expected: the log hardly shows the rule's actions."
    units = f"{evidence.logged.num_units:,} {evidence.unit}s"
    return f"{units} of effective size {size:,.0f} are too few for a bound that is not proved."


def horizon_text(evidence: Evidence, candidate: Candidate) -> str:
    """What to do about episodes that are `too_long`."""
    useful, fitted = candidate.weights["max_useful_horizon"], candidate.estimates.get("fitted_q")
    limit = f"about {useful:.0f} steps" if useful >= 1.5 else "one step"
    more = "" if fitted is None else f" Fitted Q evaluation, without weights and proofs, estimates {fitted:+.4g}."
    return (
        f"Episodes have up to {evidence.logged.horizon} steps, and the importance weights of {candidate.rule} are too "
        f"noisy beyond {limit}: use a smaller step (bounds closer to 1), shorter episodes, or a live test.{more}"
    )


def assumptions_of(evidence: Evidence, candidate: Candidate, settings: Settings) -> tuple[str, ...]:
    source = {
        "all": "actions were drawn from the logged probabilities",
        "taken": "each logged probability is the one with which the action was drawn",
        "estimated": "the clone equals the behaviour policy, and nothing hidden drove both actions and rewards",
    }[evidence.known]
    low, high = settings.return_range
    kind = "stated" if settings.stated_range else "observed"
    ranges = [f"returns lie in the {kind} range {low:g} to {high:g}"]
    single_rewards = evidence.known != "estimated" and candidate.estimator != "importance_sampling"
    if single_rewards and evidence.logged.horizon > 1:
        ranges.append("no reward is ever negative")
        if candidate.estimator == "doubly_robust":
            ranges.append(f"no episode has more than {evidence.logged.horizon} steps")
    if evidence.unit == "player":
        return (source, *ranges, *candidate.bound.assumptions, *PLAYERS_ASSUMPTIONS)
    future = "future episodes are like the logged ones"
    if repeated_players(evidence):
        future += f", of the same {evidence.players:,} players or of others with the same mean gain"
    return (source, *ranges, *candidate.bound.assumptions, future)


def assumed_gain(evidence: Evidence, candidate: Candidate) -> tuple[float, str]:
    """The gain that further episodes would have to show, and which estimate it is."""
    if too_long(evidence, candidate) and not candidate.passes and "fitted_q" in candidate.estimates:
        return candidate.estimates["fitted_q"], "estimate of fitted Q evaluation"
    return candidate.interval.estimate, "estimate"


def what_it_takes(evidence: Evidence, candidate: Candidate, settings: Settings) -> dict[str, Any]:
    """Logged and live episodes, or players, with which a gain of the estimated size would be found in 80% of the cases.

    A bound lies z s / sqrt(n) below the estimate, with the z that it has now; a live test compares two means. More
    episodes of a log that holds no evidence, or only products of too many ratios, decide nothing: their number is None.
    """
    from scipy.special import ndtri

    (gain, _), n, unit = assumed_gain(evidence, candidate), evidence.logged.num_units, evidence.unit
    if not gain > 0:
        return {f"logged_{unit}s": None, f"live_{unit}s": {}}
    power, error = float(ndtri(POWER)), candidate.spread / math.sqrt(n)
    z = (gain - candidate.bound.lower) / error if error > 0 and math.isfinite(candidate.bound.lower) else math.inf
    logged = (min(z, 1e6) + power) ** 2 * candidate.spread**2 / gain**2
    variance = float(evidence.logged.per_unit(evidence.returns).var())
    live = {
        share: (float(ndtri(settings.confidence)) + power) ** 2 * variance * (1 / share + 1 / (1 - share)) / gain**2
        for share in LIVE_SHARES
    }
    evident = evidence.known != "estimated" and evidence.explores and not too_long(evidence, candidate)
    least = {share: MIN_UNITS / min(share, 1 - share) for share in live}  # of either policy
    return {
        f"logged_{unit}s": math.ceil(max(logged, MIN_UNITS)) if math.isfinite(z) and evident else None,
        f"live_{unit}s": {f"{share:g}": math.ceil(max(count, least[share])) for share, count in live.items()},
    }


def needed_text(needed: dict[str, Any], source: str, evidence: Evidence) -> str:
    units = f"{evidence.unit}s"
    if not needed[f"live_{units}"]:
        return f"The {source} is not positive: if it is right, more {units} would not change the decision."
    live = " or ".join(
        f"{count:,} live {units} with {float(s):.0%} of traffic" for s, count in needed[f"live_{units}"].items()
    )
    logged = needed[f"logged_{units}"]
    more = f"about {logged:,} logged {units}, or " if logged is not None else ""
    more = "logged probabilities, or " if evidence.known == "estimated" else more
    each = "" if evidence.unit == "episode" else ", each with as many episodes as now"
    return f"What it would take if the {source} is right: {more}{live}{each}."
