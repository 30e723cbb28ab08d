"""`rbi offline`: the command line of `rbi.offline`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from rbi import runs
from rbi.cli.command import Command, show_run
from rbi.config import Device, Gt, Interval
from rbi.data.formats import FormatSettings, open_reader, recognise
from rbi.data.formats.tables import TableReader
from rbi.data.store import MAX_LOST, Store, is_store
from rbi.offline_rl.config import (
    BASELINES,
    PRESETS,
    RULES,
    Baseline,
    EvaluationConfig,
    OfflineConfig,
    Preset,
    preset_for,
)
from rbi.offline_rl.experiment import NAME, offline
from rbi.progress import echo
from rbi.rules.types import parse_rule

TEXT_TABLES = ("csv", "jsonl", "dsjson")


@dataclass(frozen=True)
class Offline(Command):
    """Learn from a fixed dataset: behaviour policy, Q-values, every improvement step, PPO, DQfD, BCQ and CQL.

    All policies are evaluated in the environment, and the table says which ones did not fall below the behaviour
    policy. Hyperparameters have the values of the preset unless given.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (
        "env",
        "preset",
        "rules",
        "baselines",
        "seeds",
        "updates",
        "device",
        "resume",
    )
    EXAMPLE: ClassVar[str] = "rbi offline runs/population --env CartPole-v1 --seeds 3"

    data: Annotated[Path | None, tyro.conf.Positional] = None
    """The dataset: a store, or any format that rbi data import reads."""
    env: str | None = None
    """Environment id for evaluation (default: the one that the data was recorded in)."""
    preset: Preset | None = None
    """paper: all hyperparameters of the paper; fast: minutes on one GPU; quick: images, minutes on a CPU; small:
    vectors, minutes on a CPU (default: fast for images, small for vectors)."""
    rules: tuple[str, ...] = RULES
    """Improvement steps on top of beta and Q: reroute(c_min,c_max), tv(delta), ppo(epsilon), forward_kl(temperature),
    backward_kl(radius), greedy, bcq(threshold) or behavior. `rbi rules` compares them."""
    baselines: tuple[Baseline, ...] = BASELINES
    """Baselines: PPO by gradient ascent, DQfD, discrete BCQ and CQL; none after a bare --baselines."""
    seeds: Annotated[int, Interval(ge=1, le=1000)] = 1
    """Repetitions, trained in parallel, with seeds from --seed on."""
    ignore_action_masks: bool = False
    """Learn as if all actions were legal in every state: for data with action masks and an environment that gives none,
    since its illegal actions are harmless. Policies then may choose them, and take no masks."""
    device: Device = "auto"
    """Training device; auto uses the GPU if there is one."""
    resume: bool = False
    """Continue the stopped run in --out."""
    checkpoint_minutes: Annotated[float, Gt(0)] = 5.0
    """Minutes between checkpoints, besides those around evaluations."""
    max_lost: Annotated[float, Interval(ge=0, le=1)] = MAX_LOST
    """Largest share of a store's episodes that may be lost, as after a power failure; more are refused."""
    evaluation: Annotated[EvaluationConfig, tyro.conf.arg(name="")] = field(default_factory=EvaluationConfig)
    config: Annotated[OfflineConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: PRESETS["fast"])

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self.rules:
            parse_rule(rule)

    @classmethod
    def defaults(cls, given: Any) -> "Offline":
        """The values of the preset, so that --help shows them and any can be changed."""
        return cls(config=PRESETS[given.preset or preset_for(is_image=is_image_data(given.data))])

    def run(self, argv: Sequence[str]) -> None:  # noqa: ARG002
        from rbi.report import offline as report

        if self.data is None:
            raise ValueError("name the data: a store, or any format that rbi data import reads")
        if self.out is not None and runs.overlaps(self.out, self.data):
            raise ValueError(f"--out {self.out}: overlaps with the data; choose another folder")
        out = runs.default_folder(NAME) if self.out is None and not self.resume else self.out
        result = offline(
            self.data,
            self.env,
            self.rules,
            self.baselines,
            config=self.config,
            seeds=self.seeds,
            ignore_action_masks=self.ignore_action_masks,
            settings=FormatSettings(max_lost=self.max_lost),
            out=out,
            seed=self.seed,
            device=self.device,
            checkpoint_minutes=self.checkpoint_minutes,
            resume=self.resume,
            overwrite=self.overwrite,
            **vars(self.evaluation),
        )
        assert out is not None
        show_run(out, report)
        echo(f"scores of all episodes, figures and the policy of {result.numbers['saved_policy']}: {out}")
        echo(f"in Python: rbi.load_policy({str(out)!r})")


def is_image_data(path: Path | None) -> bool:
    """Whether observations are images. Tables of text hold none, and no table is read to tell."""
    if path is None:
        return False
    try:
        if is_store(path):
            return Store(path).spec.is_image
        name = recognise(path)
        if name in TEXT_TABLES:
            return False
        reader = open_reader(path, name)
        return reader.is_image if isinstance(reader, TableReader) else reader.spec.is_image
    except (OSError, ValueError):
        return False  # the reader will refuse it
