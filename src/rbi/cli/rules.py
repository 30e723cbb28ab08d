"""`rbi rules`: improvement rules compared on one state."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from rbi import fileio, runs
from rbi.cli.command import Command, canonical_rules, show
from rbi.config import Ge, Interval
from rbi.lab.bandit import compare_rules
from rbi.progress import echo


@dataclass(frozen=True)
class Rules(Command):
    """Compare improvement rules on one state: probabilities, ratios, expected improvement, and cost of errors."""

    EXAMPLE: ClassVar[str] = "rbi rules --beta 0.7 0.2 0.1 --advantage 0 1 -1"

    beta: tuple[float, ...] = (0.55, 0.25, 0.12, 0.06, 0.02)
    """Behaviour policy: one probability per action, summing to 1."""
    advantage: tuple[float, ...] = (0.0, 0.4, -0.8, -0.2, 1.0)
    """Estimated advantages (or Q-values), one per action; -inf ranks last."""
    rules: tuple[str, ...] = (
        "reroute(0.5,1.5)",
        "reroute(0,2)",
        "tv(0.25)",
        "ppo(0.5)",
        "forward_kl(1)",
        "backward_kl(0.1)",
        "greedy",
    )
    """The rules to compare, written like reroute(0.5,1.5)."""
    visits: Annotated[int, Ge(1)] = 100
    """Visits of the state; the standard error of the advantages falls with their square root."""
    return_std: Annotated[float, Interval(ge=0, le=1e100)] = 1.0
    """Standard deviation of returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rules", canonical_rules(self.rules))
        if not any(math.isfinite(advantage) for advantage in self.advantage):
            raise ValueError("--advantage: at least one must be finite")

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import bandit as report  # matplotlib

        steps = compare_rules(self.rules, self.beta, self.advantage, visits=self.visits, return_std=self.return_std)
        with self.create_run("rules", argv) as run:
            for step in steps:
                run.log(**asdict(step))
            run.result({"steps": steps})
            done = runs.read(run.path)
            run.figure("rules", report.rules_figure(done))
        show(report.rules_table(done))
        echo(f"wrote {fileio.shown(run.path)} (figures/rules.png)")
