"""`rbi data record`: record episodes of policies into a store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from rbi import envs, fileio, runs
from rbi.cli.command import Command, show
from rbi.config import Device, Interval, choose_device
from rbi.evaluation.recording import DatasetRecording, Perturbation, load_policies
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

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = ("resume", "device", "episodes", "steps", "num_envs")

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
    """paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability 0.25."""
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

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import data as pages

        device = choose_device(self.device)
        loaded = load_policies(self.policies, device, snapshots=self.population > 0)
        trained = [(policy.env, name) for name, policy in loaded if not isinstance(policy, str) and policy.env]
        env = self.env or envs.id_from_file(*next(iter(trained), ("", "")))
        if not env:
            raise ValueError("--env: name the environment to record in")
        for name in self.policies:
            if self.out is not None and name not in SCRIPTED and runs.overlaps(self.out, Path(name)):
                raise ValueError(f"--out {self.out}: overlaps with the policy {name}; choose another folder")
        protocol = Protocol(self.protocol, max_frames=self.max_frames)
        envs.check(protocol.env_config(env))
        if self.out is not None and not self.resume:
            runs.check_available(fileio.resolve(self.out), overwrite=self.overwrite)
        recording = DatasetRecording(
            loaded,
            env,
            source="recorded: " + ", ".join(self.policies),
            episodes=self.episodes,
            steps=self.steps,
            epsilon=self.epsilon,
            population=self.population,
            perturbation=self.perturbation,
            num_envs=self.num_envs,
            protocol=protocol,
            seed=self.seed,
        )
        with self.resume_run("data-record") if self.resume else self.create_run("data-record", argv) as run:
            store = recording.record(run.path)
            facts: dict[str, Any] = {"path": str(run.path), "format": "store", "spec": asdict(store.spec)}
            facts |= {"sampled_observations": None, "protocol": protocol.describe(env)}
            run.result(store.summary().to_dict() | facts)
            found = runs.read(run.path).finished()
            run.figure("data", pages.info_figure(found))
        show(pages.info_table(found))
        echo(f"{len(store):,} episodes, {store.steps:,} steps: {fileio.shown(run.path)}")
