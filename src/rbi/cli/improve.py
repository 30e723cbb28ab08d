"""`rbi improve`: the command line of `rbi.improve`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import tyro

from rbi import runs
from rbi.cli.command import show_run
from rbi.cli.data import TABLE_OPTIONS, FromData
from rbi.config import Device
from rbi.offline_rl.improve import NAME, ImproveConfig, improve
from rbi.progress import echo
from rbi.rules.types import parse_rule


@dataclass(frozen=True)
class Improve(FromData):
    """Improve the behaviour policy of logs by one step of a rule.

    Clones the behaviour policy (beta), fits its Q-values, applies the rule, and reports on held-out episodes how well
    beta and Q predict and what changes. Up to half of the held-out episodes are the validation set (early
    stopping, temperature); the rest is an untouched test set.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (
        "rule",
        *TABLE_OPTIONS,
        "updates",
        "gamma",
        "return-range",
        "unit",
        "device",
        "resume",
    )
    EXAMPLE: ClassVar[str] = (
        "rbi improve logs.csv --table.action offer --table.reward paid --table.one-step --out runs/improved"
    )

    rule: str = "reroute(0.5,1.5)"
    """The improvement step: reroute(c_min,c_max), tv(delta), ppo(epsilon), forward_kl(temperature),
    backward_kl(radius), greedy, bcq(threshold), count_aware(tau) or behavior. `rbi rules` compares them."""
    config: Annotated[ImproveConfig, tyro.conf.arg(name="")] = field(default_factory=ImproveConfig)
    device: Device = "auto"
    """Training device; auto uses the GPU if there is one."""
    resume: bool = False
    """Continue the stopped run in --out from its last checkpoint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_rule(self.rule, counts=True)

    def run(self, argv: Sequence[str]) -> None:  # noqa: ARG002
        from rbi.report import improve as report

        out = runs.default_folder(NAME) if self.out is None and not self.resume else self.out
        improve(
            self.place,
            self.rule,
            out=out,
            seed=self.seed,
            device=self.device,
            format=self.format,
            settings=self.format_settings,
            resume=self.resume,
            overwrite=self.overwrite,
            **vars(self.config),
        )
        assert out is not None
        show_run(out, report)
        echo(f"policy, numbers and figures: {out}; in Python: rbi.load_policy({str(out)!r})")
