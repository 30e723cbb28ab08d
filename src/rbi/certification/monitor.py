"""`rbi.monitor`: is a deployed policy better or worse? Valid at any time, however often one looks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from rbi import fileio, runs
from rbi.certification.bounds import lower_confidence_sequence
from rbi.certification.decision import MIN_PLAYERS, read_as_trained
from rbi.certification.estimates import unit_means
from rbi.certification.evidence import (
    UNLESS_SCHEDULED,
    Unit,
    as_range,
    check_complete,
    check_copies,
    check_range,
    check_returns,
    place,
    player_numbers,
)
from rbi.config import Checked, Interval
from rbi.data.dataset import Dataset, concat_ranges
from rbi.data.digests import episode_digests, shared_episodes
from rbi.data.episode import Array
from rbi.data.formats import Format, FormatSettings, dataset_or_path, open_dataset
from rbi.policy import Policy, load_policy
from rbi.suggestions import with_suggestions

Outcome = Literal["better", "worse", "continue"]
LOOKS = 24  # points of the history


@dataclass(frozen=True)
class MonitorConfig(Checked):
    """Settings of `rbi.monitor`."""

    return_range: tuple[float, float]
    """Smallest and largest possible return of an episode."""
    old_value: float | None = None
    """Value of the old policy, per episode, if there are no control episodes. It counts as exact; a mean of logged
    episodes is not: give these as control instead."""
    confidence: Annotated[float, Interval(ge=0.5, lt=1)] = 0.95
    """Probability with which each statement holds, at all times together."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Discount factor of the returns. `return_range` and `old_value` are of discounted returns then."""
    accept_equal: bool = False
    """Accept more equal episodes than chance explains, as where a schedule repeats the same contexts. Copies would
    count as evidence."""
    unit: Unit = "episode"
    """Unit of analysis: episodes, or players (customers, patients) if each was assigned to one of the policies. Each
    player counts once, by their mean over episodes, and the logs have to name them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "return_range", as_range(self.return_range))
        super().__post_init__()
        check_range(self.return_range)


@dataclass(frozen=True, repr=False)
class MonitorResult:
    """What live episodes say about the gain over control, or over the old value."""

    outcome: Outcome
    """better: proved, the test can stop; worse: alarm; continue: neither yet."""
    estimate: float
    """Difference of the mean returns; where players are the unit, of the means over players of their mean returns."""
    lower: float
    upper: float
    """Bounds of the difference; each holds with the stated confidence at all times together."""
    episodes: int
    control_episodes: int
    confidence: float
    history: list[dict[str, float]]
    """Episodes (or players), lower and upper bound at earlier times."""
    warning: str = ""
    """Why the bounds may be wrong, if the logs show a reason."""
    unit: Unit = "episode"
    players: int | None = None
    """Live players, and those of control, where players are the unit."""
    control_players: int | None = None

    @property
    def alarm(self) -> bool:
        return self.outcome == "worse"

    def summary(self) -> str:
        """The outcome in one sentence, and the warning if there is one."""
        live, per, always = f"{self.episodes:,} live episodes", "", "at any time"
        against = f"{self.control_episodes:,} control episodes" if self.control_episodes else "the old value"
        if self.unit == "player":
            live += f" of {self.players:,} players"
            against += f" of {self.control_players:,} players" if self.control_players else ""
            per, always = " of a random player", "at any time at which the logged players' episodes are complete"
        numbers = f"{self.estimate:+.4g} per episode{per} ({self.lower:+.4g} to {self.upper:+.4g})"
        seen = f"{live} against {against}: {numbers}, {100 * self.confidence:g}% {always}"
        outcome = {
            "better": f"Better: the new policy is proved to gain; the test can stop. {seen}.",
            "worse": f"ALARM: the new policy is worse; go back to the old one. {seen}.",
            "continue": f"Continue: neither better nor worse is proved yet. {seen}.",
        }[self.outcome]
        return f"{outcome} {self.warning}".rstrip()

    def __repr__(self) -> str:
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**vars(self), "alarm": self.alarm, "summary": self.summary()}


@with_suggestions
def monitor(
    episodes: Dataset | Path | str,
    control: Dataset | Path | str | None = None,
    *,
    return_range: tuple[float, float],
    old_value: float | None = None,
    confidence: float = 0.95,
    gamma: float = 1.0,
    accept_equal: bool = False,
    unit: Unit = "episode",
    policy: Policy | Path | str | None = None,
    format: Format | None = None,  # noqa: A002 - the word that users look for
    settings: FormatSettings | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
) -> MonitorResult:
    """Compare live episodes of a new policy with those of a control group, or with the value of the old policy.

    Both are confidence sequences by betting, proved for every number of episodes in the stated range: look as often as
    you like, and stop when you like. Episodes are taken in the order of the log: add later ones at its end. Two groups
    are compared in pairs, the i-th live with the i-th control episode, and as a whole, with half of the error each. An
    old value counts as exact; if it is the mean of a log, give the log as `control`, which allows for its error.
    `accept_equal` is that of `MonitorConfig`.

    With `unit="player"` each player counts once, in the order of first episodes. A look must not use a mean that later
    episodes change: give complete players, such as the first week of everyone who joined a week ago or earlier.

    policy: the new policy or its folder; a table is then read like the one that trained it, unless `settings`
        names columns.
    `format` and `settings` say how to read a path. With `out`, a run folder is written, which `rbi report` reads.

    >>> monitor("new.csv", "control.csv", return_range=(0, 1)).outcome      # doctest: +SKIP
    'continue'
    """
    config = MonitorConfig(return_range, old_value, confidence, gamma, accept_equal, unit)
    if (control is None) == (old_value is None):
        raise ValueError("give either control episodes (--control) or old_value (--old-value), to compare with")
    if out is not None:
        runs.check_apart(out, policy)
        runs.check_available(fileio.resolve(out), overwrite=overwrite)
    low, high = config.return_range
    if old_value is not None and not low <= old_value <= high:
        raise ValueError(f"old_value = {old_value:g}: must be in the range of returns, {low:g} to {high:g}")
    sources = [dataset_or_path(source) for source in ([episodes] if control is None else [episodes, control])]
    if policy is None:
        logs = [open_dataset(source, format, settings) for source in sources]
    else:
        new = policy if isinstance(policy, Policy) else load_policy(policy)
        logs = [read_as_trained(new, policy, source, format, settings) for source in sources]
    if len(logs) > 1 and not config.accept_equal:
        check_disjoint(*logs)
    result = replace(
        compare([live_returns(log, config) for log in logs], config),
        episodes=len(logs[0]),
        control_episodes=sum(map(len, logs[1:])),
        warning=repeated_players(logs) if config.unit == "episode" else few_or_shared_players(logs),
    )
    if out is not None:
        places = ["" if isinstance(source, Dataset) else str(source) for source in (episodes, control or "")]
        about = dict(zip(("data", "control"), places, strict=True))
        found = vars(config) | about
        with runs.Writer.create(fileio.as_path(out), command="monitor", settings=found, overwrite=overwrite) as writer:
            writer.result(result.to_dict() | about)
    return result


def compare(samples: list[Array], config: MonitorConfig) -> MonitorResult:
    """The returns of live episodes against those of control episodes, or against the old value if there are none. With
    players as the unit, samples hold one value for each."""
    limits, alpha, times = config.return_range, 1 - config.confidence, [look_times(len(values)) for values in samples]
    if config.old_value is None:
        base, (lower, upper) = float(samples[1].mean()), difference_over_time(samples, limits, alpha, times)
    else:
        base = config.old_value
        lower, upper = (bound - base for bound in bounds_over_time(samples[0], limits, alpha, times[0]))
    counts: list[int | None] = [len(values) for values in samples] if config.unit == "player" else [None]
    few = config.unit == "player" and min(map(len, samples)) < MIN_PLAYERS
    outcome: Outcome = "better" if lower[-1] > 0 and not few else "worse" if upper[-1] < 0 else "continue"
    return MonitorResult(
        outcome=outcome,
        estimate=float(samples[0].mean()) - base,
        lower=float(lower[-1]),
        upper=float(upper[-1]),
        episodes=len(samples[0]),
        control_episodes=len(samples[1]) if len(samples) > 1 else 0,
        confidence=config.confidence,
        history=[
            {f"{config.unit}s": int(n), "lower": float(a), "upper": float(b)}
            for n, a, b in zip(times[0], lower, upper, strict=True)
        ],
        unit=config.unit,
        players=counts[0],
        control_players=counts[1] if len(counts) > 1 else None,
    )


def look_times(episodes: int) -> Array:
    """Growing numbers of episodes, `[LOOKS]`."""
    first = min(10, episodes) / episodes
    return np.maximum(1, np.geomspace(first, 1, LOOKS) * episodes).round().astype(int)


def bounds_over_time(values: Array, limits: tuple[float, float], alpha: float, times: Array) -> tuple[Array, Array]:
    """Lower and upper confidence sequence of the mean, after these numbers of values."""
    low, high = limits
    spread = (high - low) / 4
    lower = lower_confidence_sequence(values, low, alpha, spread, times.tolist())
    negated = lower_confidence_sequence(-values, -high, alpha, spread, times.tolist())
    return lower, -negated


def difference_over_time(
    samples: list[Array], limits: tuple[float, float], alpha: float, times: list[Array]
) -> tuple[Array, Array]:
    """Lower and upper confidence sequence of the difference of two means, new minus control.

    Half of the error is for the mean difference of pairs, the i-th live and the i-th control episode. Its bounds are
    the narrower ones where groups have similar sizes: the variances of a pair add, where otherwise the widths of two
    bounds do. The other half is for the bounds of each group, which use all episodes. The better bound counts.
    """
    low, high = limits
    new, control = (values[: min(map(len, samples))] for values in samples)
    paired = bounds_over_time(new - control, (low - high, high - low), alpha / 2, np.minimum(*times))
    ours, theirs = (bounds_over_time(x, limits, alpha / 4, at) for x, at in zip(samples, times, strict=True))
    return np.maximum(paired[0], ours[0] - theirs[1]), np.minimum(paired[1], ours[1] - theirs[0])


def check_disjoint(live: Dataset, control: Dataset) -> None:
    """Raise ValueError if both logs have the same episodes: their difference would be too small, and certain."""
    shared = shared_episodes(live, episode_digests(control))
    if shared.any():
        where = place(live, int(shared.argmax()))
        raise ValueError(
            f"{where}: is one of {int(shared.sum()):,} live episodes (of {len(live):,}) that "
            f"are among the control episodes, too; compare two groups without common episodes{UNLESS_SCHEDULED}"
        )


def repeated_players(logs: Sequence[Dataset]) -> str:
    """What is wrong with several episodes of one player, if a log has them; empty otherwise."""
    players = [num_players(log) for log in logs]
    if not any(1 < count < len(log) for count, log in zip(players, logs, strict=True)):
        return ""
    counts = " and ".join(f"{len(log):,} episodes of {count:,}" for count, log in zip(players, logs, strict=True))
    return (
        f"But several episodes are of the same player ({counts} players): they are not independent, and a difference "
        "may be one of the players, not of the policy. Make players the unit (--unit player)."
    )


def num_players(log: Dataset) -> int:
    return len(np.unique(log.records["player"]))


def few_or_shared_players(logs: Sequence[Dataset]) -> str:
    """What is wrong with players as the unit: too few of them, or the same ones in both logs; empty if nothing is."""
    few = min(num_players(log) for log in logs)
    if few < MIN_PLAYERS:
        return f"But {few} players cannot show what others would gain: it takes at least {MIN_PLAYERS}."
    shared = len(set.intersection(*({log.texts[n] for n in np.unique(log.records["player"])} for log in logs)))
    if len(logs) == 1 or not shared:
        return ""
    return f"But {shared:,} players are in both logs, and the bounds are for groups of different players."


def live_returns(data: Dataset, config: MonitorConfig) -> Array:
    """Returns of all episodes in the order of the log, or mean returns of players in the order of their first episodes.
    Raises ValueError for a return outside the stated range."""
    check_complete(data)
    if not config.accept_equal:
        check_copies(data, config.unit)
    discounts = config.gamma ** concat_ranges(0, data.records["steps"])
    found: Array = np.add.reduceat(discounts * data.arrays["rewards"], data.records["first_step"])
    check_returns(data, found, *config.return_range)
    found = found.clip(*config.return_range)
    return found if config.unit == "episode" else unit_means(found, player_numbers(data))
