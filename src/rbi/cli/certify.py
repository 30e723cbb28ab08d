"""`rbi certify`: the command line of `rbi.certify`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from rbi import fileio, runs
from rbi.certification.decision import CertifyConfig, certify
from rbi.cli.data import TABLE_OPTIONS, FromData
from rbi.progress import echo

KEEP = 3  # exit status


@dataclass(frozen=True)
class Certify(FromData):
    """Decide from held-out logs whether a saved policy may be deployed.

    Exit status 0: deploy; 3: keep the behaviour policy, or test live. The folder holds decision, figure, and the policy
    to use (the certified one, or the behaviour policy). A table is read like the one that trained the policy, unless
    --table options name other columns.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = ("policy", "confidence", "return-range", "unit", *TABLE_OPTIONS)
    EXAMPLE: ClassVar[str] = "rbi certify new_logs.csv --policy runs/improved --return-range 0 1"

    policy: Path | None = None
    """A run of rbi improve, or a folder that policy.save wrote (required)."""
    config: Annotated[CertifyConfig, tyro.conf.arg(name="")] = field(default_factory=CertifyConfig)

    def run(self, argv: Sequence[str]) -> int:
        from rbi.report import improve as report

        if self.policy is None:
            raise ValueError("--policy: name the policy to test")
        runs.check_apart(self.out, self.policy)
        decision = certify(
            self.policy,
            self.place,
            format=self.format,
            settings=self.settings_as_trained(self.policy),
            **vars(self.config),
        )
        with self.create_run("certify", argv) as writer:
            decision.write(writer, policy=str(self.policy), data=str(self.path))
            writer.figure("gains", report.gain_figure(runs.read(writer.path).finished()))
        for line in decision.summary().splitlines():
            echo(line)
        echo(f"decision, figure and the policy to use: {fileio.shown(writer.path)}")
        return 0 if decision.deploy else KEEP
