"""`rbi data record`: record episodes of policies into a store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import tyro

from rbi import fileio, runs
from rbi.cli.command import Command, show
from rbi.config import Device, Interval
from rbi.evaluation.recording import NAME, Perturbation, record
from rbi.evaluation.rollouts import Protocol, ProtocolName
from rbi.evaluation.scripted import SCRIPTED
from rbi.progress import echo


@dataclass(frozen=True)
class Record(Command):
    """Record episodes of policies in parallel environments into a store.

    A finished recording continues with --resume and a larger number of episodes or steps.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (
        "env",
        "episodes",
        "steps",
        "epsilon",
        "population",
        "protocol",
        "resume",
    )
    EXAMPLE: ClassVar[str] = "rbi data record runs/cart random --population 12 --episodes 120 --out runs/population"

    policies: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Runs of rbi train, policy folders, or scripted policies: random, follow (follows the ball in Breakout or Pong),
    cross (crosses the road in Freeway), climb (follows a route through the first rooms of Montezuma's Revenge)."""
    env: str = ""
    """The environment; by default the one the first policy was trained in."""
    episodes: Annotated[int, Interval(ge=0, le=1_000_000_000)] = 0
    """Number of episodes to record (default: as many as --steps takes)."""
    steps: Annotated[int, Interval(ge=0, le=1_000_000_000_000)] = 0
    """Record at least this many steps; episodes that are still running then are truncated (default: --episodes
    decides)."""
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability of a random action; ignored with --population."""
    population: Annotated[int, Interval(ge=0, le=100_000)] = 0
    """Size of a population of mixed skill: each member is one of the policies (all snapshots of a training run),
    perturbed by --perturbation. 0: the policies themselves."""
    perturbation: Perturbation = field(default_factory=Perturbation)
    num_envs: Annotated[int, Interval(ge=0, le=65_536)] = 0
    """Parallel environments; 0: one per episode or per 1,000 steps, at most 64, and at least one per policy."""
    protocol: ProtocolName = "paper"
    """Atari games only. paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability
    0.25."""
    max_frames: Annotated[int, Interval(ge=1, le=1_000_000_000)] = Protocol.max_frames
    """Emulator frames after which an Atari episode is truncated."""
    device: Device = "auto"
    """Where policies run; auto: the GPU if there is one."""
    resume: bool = False
    """Continue the recording in --out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.policies:
            raise ValueError(f"name a run of rbi train, a policy's folder or one of {', '.join(SCRIPTED)}")
        if (self.episodes > 0) == (self.steps > 0):
            raise ValueError("give either --episodes or --steps, at least 1")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the recording with --out, without --overwrite")

    def run(self, argv: Sequence[str]) -> None:  # noqa: ARG002
        from rbi.report import data as pages

        out = self.out if self.out is not None else runs.default_folder(NAME)
        data = record(
            self.policies,
            self.env or None,
            episodes=self.episodes,
            steps=self.steps,
            epsilon=self.epsilon,
            population=self.population,
            perturbation=self.perturbation,
            num_envs=self.num_envs,
            protocol=self.protocol,
            max_frames=self.max_frames,
            seed=self.seed,
            device=self.device,
            out=out,
            resume=self.resume,
            overwrite=self.overwrite,
        )
        found = runs.read(out).finished()
        with runs.Writer.reopen(out) as writer:
            writer.figure("data", pages.info_figure(found))
        show(pages.info_table(found))
        echo(f"{len(data):,} episodes, {data.steps:,} steps: {fileio.shown(out)}")
