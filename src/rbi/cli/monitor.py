"""`rbi monitor`: the command line of `rbi.monitor`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from rbi import fileio, runs
from rbi.certification.evidence import Unit
from rbi.certification.monitor import monitor
from rbi.cli.data import FromData
from rbi.config import Interval
from rbi.progress import echo

ALARM = 3  # exit status


@dataclass(frozen=True)
class Monitor(FromData):
    """Watch a deployed policy: is it better or worse than control, or than the old value?

    Look as often as you like: the bounds hold at all times together. Exit status 3: alarm, it is worse; else 0.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (
        "return-range",
        "control",
        "old-value",
        "policy",
        "confidence",
        "unit",
        "table.action",
        "table.reward",
        "table.observations",
        "table.one-step",
    )
    EXAMPLE: ClassVar[str] = "rbi monitor live.csv --control old.csv --policy runs/improved --return-range 0 1"

    return_range: tuple[float, float] | None = None
    """Smallest and largest possible return of an episode (required)."""
    control: Path | None = None
    """Episodes of the control group, in the same format (default: none; compare with --old-value)."""
    old_value: float | None = None
    """Value of the old policy, per episode, if there is no control group. It counts as exact: give an old log as
    --control, not its mean here (default: none)."""
    policy: Path | None = None
    """The deployed policy: tables are read like the one that trained it, unless --table options name columns (default:
    none)."""
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

    def run(self, argv: Sequence[str]) -> int:
        from rbi.report import improve as report

        if self.return_range is None:
            raise ValueError("--return-range: state the smallest and the largest possible return of an episode")
        runs.check_apart(self.out, self.policy)
        found = monitor(
            self.place,
            self.control,
            return_range=self.return_range,
            old_value=self.old_value,
            confidence=self.confidence,
            gamma=self.gamma,
            accept_equal=self.accept_equal,
            unit=self.unit,
            format=self.format,
            settings=self.format_settings if self.policy is None else self.settings_as_trained(self.policy),
        )
        with self.create_run("monitor", argv) as writer:
            writer.result(found.to_dict() | {"data": str(self.path), "control": str(self.control or "")})
            writer.figure("gain", report.monitor_figure(runs.read(writer.path).finished()))
        echo(found.summary())
        echo(f"numbers and figure: {fileio.shown(writer.path)}")
        return ALARM if found.alarm else 0
