"""`rbi train`: iterative RL on this machine or a cluster, with checkpoints, metrics and the policies that came out."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from rbi import checkpoint, envs, runs
from rbi.cli.command import Command, show
from rbi.cli.engine import on_cluster, on_machine
from rbi.cli.keeper import Keeper, Watch
from rbi.cli.spread import spread
from rbi.online.config import PAPER_FRAMES, PAPER_GAMES, PRESETS, Algorithm, Preset, Schedule, TrainConfig
from rbi.online.engine import Engine
from rbi.online.ray.config import ClusterConfig
from rbi.online.rbi import ActorConfig, LearnerConfig
from rbi.progress import echo, graceful_stop
from rbi.replay import ReplayConfig
from rbi.report import train as pages
from rbi.returns import ReturnConfig

KEPT_ON_RESUME = ("algo", "env", "envs", "seeds", "preset", "max_frames", "repeat_action_probability", "seed")


@dataclass(frozen=True)
class Train(Command):
    """Iterative RL: actors improve the policy in every state, a learner imitates them and learns Q.

    Every setting has the preset's value unless given: rbi train --preset paper --help shows the paper's.
    """

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = (
        "resume", "checkpoint_minutes", "save_replay", "episodes", "report_updates", "ages", "device", "address",
        "schedule.env_threads", "schedule.updates",
        *(f"cluster.{part.name}" for part in dataclasses.fields(ClusterConfig)),
    )  # fmt: skip

    algo: Literal["rbi", "apex", "both"] = "rbi"
    """rbi: the paper's algorithm; apex: its baseline, greedy with double Q-learning, all else the same; both."""
    env: str = "ALE/Breakout-v5"
    """A Gymnasium id with discrete actions."""
    envs: str = ""
    """Several environments instead, between commas; paper12: the paper's twelve games, and its table."""
    seeds: int = 1
    """Train so many times, with seeds from --seed on."""
    preset: Preset | None = None
    """paper: every number of the paper; fast: one GPU and minutes; small: a processor and minutes. Without it, fast for
    Atari and small for anything else."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks and replay live; auto takes the GPU if there is one."""
    engine: Literal["local", "ray"] = "local"
    """local: this machine; ray: a Ray cluster, over which several runs (--seeds, --envs) are spread whole."""
    address: str = ""
    """The Ray cluster to join; auto: the one that this machine is part of. Without it, one is started here."""
    resume: bool = False
    """Go on with the run in --out, from its last checkpoint."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints."""
    save_replay: bool | None = None
    """Keep the replay in checkpoints; if not said, up to 2 GB. Without it a run that goes on fills its replay again."""
    report_updates: int = 0
    """Updates between lines of metrics.jsonl; 0: a five-hundredth of the run."""
    episodes: int = 30
    """Episodes that the last policy plays at the end; 0: none."""
    ages: int = 0
    """Keep the policy of so many moments, evenly spread: the players of `rbi data record --crowd`."""
    max_frames: int = PAPER_FRAMES
    """Emulator frames after which an Atari episode is cut off in training."""
    repeat_action_probability: float = 0.0
    """Probability that an Atari game repeats the last action in training."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    returns: ReturnConfig = field(default_factory=ReturnConfig)
    schedule: Schedule = field(default_factory=Schedule)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.checkpoint_minutes > 0:
            raise ValueError(f"--checkpoint-minutes = {self.checkpoint_minutes}: must be positive")
        for name in ("report_updates", "episodes", "ages"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name.replace('_', '-')} = {getattr(self, name)}: must be at least 0")
        if self.seeds < 1:
            raise ValueError(f"--seeds = {self.seeds}: must be at least 1")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
        if self.address and self.engine != "ray":
            raise ValueError(f"--address {self.address}: is for --engine ray")

    @classmethod
    def defaults(cls, given: Any) -> "Train":
        """The preset's values, so that --help shows them and any can be changed; a resumed run keeps its own."""
        before = resumed_settings(given)
        env = before.get("env", given.env) if given.env == cls.env else given.env
        atari = (given.envs or before.get("envs") or env).startswith(("ALE/", "paper12"))
        preset: Preset = given.preset or before.get("preset") or ("fast" if atari else "small")
        parts = {name: resumed_part(part, before.get(name)) for name, part in PRESETS[preset].items()}
        return cls(**parts, **{name: before[name] for name in KEPT_ON_RESUME if name in before})

    def run(self, argv: Sequence[str]) -> None:
        jobs = self.jobs()
        if len(jobs) == 1:
            train(jobs[0], argv)
        else:
            sweep(self, jobs, argv)

    def jobs(self) -> list["Train"]:
        """One command for each algorithm, environment and seed that is asked for."""
        algos: tuple[Algorithm, ...] = ("rbi", "apex") if self.algo == "both" else (self.algo,)
        worlds = [f"ALE/{game}-v5" for game in PAPER_GAMES] if self.envs == "paper12" else self.envs.split(",")
        worlds = list(dict.fromkeys(world.strip() for world in worlds if world.strip())) or [self.env]
        seeds = range(self.seed, self.seed + self.seeds)
        chosen = itertools.product(worlds, algos, seeds)
        found = [dataclasses.replace(self, env=e, algo=a, seed=s, envs="", seeds=1) for e, a, s in chosen]
        for job in found:
            envs.check(job.plan().env)
        return found

    def plan(self) -> TrainConfig:
        """The settings of the run, checked."""
        algo: Algorithm = "apex" if self.algo == "apex" else "rbi"
        env = envs.EnvConfig(self.env, self.max_frames, self.repeat_action_probability)
        return TrainConfig(env, algo, self.actor, self.learner, self.replay, self.returns, self.schedule)

    def on(self) -> torch.device:
        found = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(found if self.device == "auto" else self.device)


def resumed_settings(given: Train) -> dict[str, Any]:
    """The settings of the run that --resume continues, as far as they can be read; opening it explains errors."""
    if not given.resume or given.out is None:
        return {}
    try:
        config = json.loads((given.out / "config.json").read_bytes())
        found = {**config["settings"], "seed": config["seed"]} if config["command"] == "train" else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    kinds = {name: str if name == "preset" else type(getattr(Train, name)) for name in KEPT_ON_RESUME}
    return {name: value for name, value in found.items() if isinstance(value, kinds.get(name, object))}


def resumed_part(preset: Any, found: Any) -> Any:
    """A part of the settings as a run was started with it; the preset's for a new one."""
    if not isinstance(found, dict):
        return preset
    names = [setting.name for setting in dataclasses.fields(preset)]
    try:
        return dataclasses.replace(preset, **{name: found[name] for name in names if name in found})
    except TypeError as error:
        raise ValueError(f"--resume: the run's config.json cannot be used: {error}") from None


def train(command: Train, argv: Sequence[str], sweep_at: Path | None = None) -> dict[str, Any]:
    """One run, from its beginning or its last checkpoint to its end, of a sweep or by itself; the result."""
    plan = command.plan()
    if command.resume and (done := complete(command)) is not None:
        return done
    if command.out is not None and not command.resume:
        runs.refuse_occupied(command.out.resolve(), overwrite=command.overwrite)
    start = prepare(command)
    about: dict[str, Any] = {"seconds": 0.0, "best": None, "lines": 0}
    with engine_of(command) as engine:
        if start is not None:
            about = note_resumed(command, checkpoint.restore(start, engine), engine)
        with open_run(command, argv, about, resumed=start is not None) as writer:
            keeper = Keeper(command, engine, writer, about)
            with Watch(plan, engine) as watch, graceful_stop() as stopped:
                for _ in engine.ticks():
                    keeper.after_tick()
                    watch.show(keeper)
                    if stopped.is_set():
                        break
            if stopped.is_set():
                keeper.save()
                told = f"{engine.learner.updates:,} updates"
                echo(f"rbi: stopped after {told}; go on with --resume --out {sweep_at or writer.path}", stderr=True)
                raise KeyboardInterrupt
            return keeper.finish()


def engine_of(command: Train) -> AbstractContextManager[Engine]:
    """The engine that is asked for, with its environments."""
    if command.engine == "ray":
        return on_cluster(command.plan(), command.seed, command.cluster, command.address)
    return on_machine(command.plan(), command.seed, command.on())


def note_resumed(command: Train, about: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Count that a run goes on, and the updates after its checkpoint that are done again."""
    lines = runs.read(command.out or Path()).metrics
    again = max(0, lines[-1]["updates"] - engine.learner.updates) if lines else 0
    before = about.get("resumed") or {"times": 0, "updates_done_again": 0}
    told = {"times": before["times"] + 1, "updates_done_again": before["updates_done_again"] + again}
    return about | {"resumed": told}


def complete(command: Train) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do, shown again."""
    command.check_resume("train")
    run = runs.read(command.out or Path())
    if (
        run.result is None
        or run.result["last"]["updates"] - run.result.get("updates_gone", 0) < command.schedule.updates
    ):
        return None
    show(pages.result_table(run))
    echo(f"nothing left to do: {run.path} is complete; a larger --schedule.updates goes on")
    return run.result


def prepare(command: Train) -> Path | None:
    """The checkpoint to go on from, once it is known to be whole; None for a run from the beginning."""
    if not command.resume:
        return None
    assert command.out is not None
    start = checkpoint.newest(command.out)
    if start is None:
        if runs.read(command.out).result is not None:
            raise ValueError(f"{command.out}: has no checkpoint to go on from; --overwrite begins again")
        echo(f"{command.out}: has no checkpoint yet, so it begins again", stderr=True)
        return None
    counters = checkpoint.read(start)["counters"]
    done = counters["updates"] - counters.get("gone", 0)
    if done > command.schedule.updates:
        raise ValueError(f"--schedule.updates = {command.schedule.updates}: {command.out} has done {done:,} already")
    return start


def open_run(command: Train, argv: Sequence[str], about: dict[str, Any], *, resumed: bool) -> runs.Writer:
    if not command.resume:
        return command.create_run("train", argv)
    assert command.out is not None
    if not resumed:  # it was stopped before its first checkpoint
        shutil.rmtree(command.out / "tensorboard", ignore_errors=True)
    runs.tidy(command.out / "policies")
    (command.out / "result.json").unlink(missing_ok=True)  # of fewer updates; the run is not complete any more
    return runs.Writer.reopen(command.out, lines=about["lines"])


def sweep(command: Train, jobs: list[Train], argv: Sequence[str]) -> None:
    """Several runs in one folder, each with its own; finished ones are kept, and the table marks what nobody ran."""
    if command.resume:
        command.check_resume("train")
        writer = runs.Writer.reopen(command.out or Path())
    else:
        writer = command.create_run("train", argv)
    with writer:
        places = [writer.path / "runs" / f"{job.algo}-{as_name(job.env)}-seed{job.seed}" for job in jobs]
        left = [(job, at) for job, at in zip(jobs, places, strict=True) if not finished(at)]
        if command.engine == "ray":
            spread(command, train, [(as_local(job), at) for job, at in left], argv)
            left = []
        for number, (job, at) in enumerate(left, len(jobs) - len(left) + 1):
            echo(f"== {number} of {len(jobs)}: {job.algo} on {job.env}, seed {job.seed}")
            going_on = (at / "config.json").is_file()
            train(dataclasses.replace(job, out=at, resume=going_on), argv, writer.path)
        found = pages.read_all(writer.path / "runs")
        writer.result(pages.scores(found))
        for env in dict.fromkeys(job.env for job in jobs):
            of_env = [run for run in found if run.config["settings"]["env"] == env]
            writer.figure(f"learning-{as_name(env)}", pages.learning_curves(of_env))
        show(pages.score_table(runs.read(writer.path).finished(), paper=command.envs == "paper12"))
        echo(f"runs and figures: {writer.path}")


def finished(at: Path) -> bool:
    return at.exists() and runs.read(at).result is not None


def as_local(job: Train) -> Train:
    """The job as a run of one machine."""
    return dataclasses.replace(job, engine="local", address="")


def as_name(env: str) -> str:
    """An environment's id as part of a file's name."""
    return env.replace("/", "-").replace(":", "-")
