"""`rbi export`: a saved policy as one file for another runtime."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from rbi import fileio, runs
from rbi.cli.command import Command
from rbi.export import onnx_model
from rbi.policy import load_policy
from rbi.progress import echo, track


@dataclass(frozen=True)
class Export(Command):
    """Export a saved policy: preprocessing, both networks and the rule in one file, policy.onnx in the folder --out.

    onnxruntime computes the file before it is kept, and its probabilities are compared with PyTorch's.
    """

    EXAMPLE: ClassVar[str] = "rbi export runs/improved --out runs/onnx"

    path: Annotated[Path | None, tyro.conf.Positional] = None
    """A run of rbi improve, rbi certify or rbi train (its best policy), or a folder that policy.save wrote."""
    to: Literal["onnx"] = "onnx"
    """The format: ONNX, which onnxruntime and others run without Python or PyTorch."""
    columns: bool = True
    """For a policy of a table: one input per column, texts as strings. Otherwise one input of encoded numbers, obs."""
    legal: bool = False
    """Add an input for legal actions, booleans [B, A]."""

    def run(self, argv: Sequence[str]) -> None:
        if self.path is None:
            raise ValueError("name the policy: a run, or a folder that policy.save wrote")
        if self.out is not None and runs.overlaps(self.out, self.path):
            raise ValueError(f"--out {self.out}: belongs to the policy that is exported; choose another folder")
        if self.out is not None:
            runs.check_available(fileio.resolve(self.out), overwrite=self.overwrite)
        policy = load_policy(self.path)
        for _ in track(range(1), "tracing the policy and comparing"):
            model = onnx_model(policy, columns=self.columns, legal=self.legal)
        with self.create_run("export", argv) as writer:
            file, size = writer.path / f"policy.{self.to}", len(model.content)
            model.write(file)
            found = {"policy": str(self.path), "rule": str(policy.rule), "bytes": size, "difference": model.difference}
            writer.result(found)
        probabilities = f"probabilities within {model.difference:.1g} of PyTorch's"
        echo(f"{policy.rule}: {size:,} bytes, {probabilities}: {fileio.shown(file)}")
