"""`rbi train`: online training on this machine or a Ray cluster."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from rbi import fileio, runs
from rbi.cli.command import Command, show
from rbi.config import Ge, Gt, Interval
from rbi.envs.types import EnvConfig, id_from_file
from rbi.online.config import (
    PAPER_GAMES,
    PAPER_MAX_FRAMES,
    PARTS,
    PRESETS,
    ActorConfig,
    Algorithm,
    ClusterConfig,
    LearnerConfig,
    Preset,
    Schedule,
    TrainConfig,
    default_preset,
    preset_parts,
    saved_parts,
    unused_settings,
)
from rbi.progress import echo
from rbi.replay import ReplayConfig
from rbi.returns import ReturnConfig

PAPER_TABLE = "paper12"
PAPER_ENVS = [f"ALE/{game}-v5" for game in PAPER_GAMES]


@dataclass(frozen=True)
class Train(Command):
    """Online training: actors improve the policy in every state, a learner imitates them and learns Q.

    Settings default to the preset's values: `rbi train --preset paper --help-all` shows the paper's.
    """

    MAIN_OPTIONS: ClassVar[tuple[str, ...]] = (
        "env",
        "algo",
        "preset",
        "seeds",
        "schedule.updates",
        "schedule.num-envs",
        "device",
        "engine",
        "resume",
    )
    EXAMPLE: ClassVar[str] = "rbi train CartPole-v1 --out runs/cart && rbi report runs/cart"
    FIRST_WORD: ClassVar[str] = "--env"

    algo: Literal["rbi", "apex", "both"] = "rbi"
    """rbi: Rerouted Behavior Improvement (--preset paper has the paper's settings); apex: its baseline, greedy with
    double Q-learning, all else equal; both: a sweep."""
    env: str = "ALE/Breakout-v5"
    """A Gymnasium id with discrete actions, which may also be the first word, without --env."""
    envs: str = ""
    """A sweep over several environments, separated by commas; paper12: the paper's twelve games, with its table
    (default: --env only)."""
    seeds: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """A sweep over this many seeds, starting from --seed."""
    preset: Preset | None = None
    """paper: the paper's numbers; fast: minutes on one GPU; small: minutes on a CPU. By default fast for Atari games
    and small for anything else."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks and replay live; auto takes the GPU if there is one."""
    engine: Literal["local", "ray"] = "local"
    """local: this machine; ray: a Ray cluster. A sweep runs whole runs in parallel on the cluster."""
    address: str = ""
    """The Ray cluster to join (auto: the one that this machine is part of); by default one is started here."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its own settings."""
    eval_episodes: Annotated[int, Interval(ge=0, le=1_000_000)] = 30
    """Evaluation episodes of the final policy; 0: none."""
    report_interval: Annotated[int, Ge(0)] = 0
    """Updates between two lines of metrics.jsonl; 0: a five-hundredth of the run."""
    checkpoint_minutes: Annotated[float, Gt(0)] = 5.0
    """Minutes between checkpoints."""
    save_replay: bool | None = None
    """Save the replay in checkpoints; by default up to 2 GB. A run resumed without it fills its replay again first."""
    save_snapshots: Annotated[int, Interval(ge=0, le=100_000)] = 0
    """Policies to save at even intervals of training, such as for the population of `rbi data record`."""
    mirror: str = ""
    """A URL that gets a copy of the run folder after every checkpoint, such as s3://bucket/run, gs://bucket/run or
    file:///mnt/run; --resume restores a folder that is lost or behind from it (needs rbi[mirror]; default: none)."""
    max_frames: Annotated[int, Ge(1)] = PAPER_MAX_FRAMES
    """Length limit of an Atari episode in training, in emulator frames."""
    repeat_action_probability: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Sticky actions in training: the probability that an Atari game repeats the previous action."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    returns: ReturnConfig = field(default_factory=ReturnConfig)
    schedule: Schedule = field(default_factory=Schedule)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address and self.engine != "ray":
            raise ValueError(f"--address {self.address}: is for --engine ray")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the run with --out, without --overwrite")

    @classmethod
    def defaults(cls, given: Any) -> "Train":
        """The preset's values, or those of the run that is resumed; --help shows them, options override them."""
        try:
            return cls.with_saved(given, saved_options(given))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            if not given.resume:
                raise
            raise ValueError(f"{given.out}/config.json: cannot be used to resume: {error}") from None

    @classmethod
    def with_saved(cls, given: Any, saved: dict[str, Any]) -> "Train":
        """The defaults, given the options of the run that is resumed."""
        env = saved.get("env", given.env) if given.env == cls.env else given.env
        several = given.envs or saved.get("envs") or ""
        first = split_envs(several)[0] if several else env
        atari = EnvConfig(f"ALE/{first}" if first == PAPER_TABLE else first or cls.env)
        preset = given.preset or saved.get("preset") or default_preset(atari)
        if preset not in PRESETS:
            raise ValueError(f"there is no preset {preset!r}")
        if given.env == cls.env and not given.envs:  # not typed by the user
            for name in (saved.get("env", ""), *split_envs(saved.get("envs", ""))):
                id_from_file(name, "it")
        if not saved:
            return cls(**preset_parts(atari, preset))
        return cls(**(saved | saved_parts(saved)))

    def run(self, argv: Sequence[str]) -> None:
        from rbi.online.run_logger import RunOptions
        from rbi.online.train import Local, train

        out = self.out or runs.default_folder("train")
        names = [option.name for option in dataclasses.fields(RunOptions)]
        options = RunOptions(**{name: getattr(self, name) for name in names})
        environments, algos = self.environments(), self.algorithms()
        for part in PARTS if len(algos) == 1 else ():
            if ignored := sorted(given_names(part, argv) & unused_settings(algos[0])):
                name = ignored[0].replace("_", "-")
                raise ValueError(f"--{part}.{name}: has no effect on --algo {algos[0]}")
        if len(environments) * len(algos) * self.seeds > 1:
            self.sweep(out, environments, algos, options, argv)
            return
        if self.engine == "ray":
            from rbi.online.ray import Cluster

            engine: Any = Cluster(self.cluster, self.address)
        else:
            engine = Local(self.device)
        result = train(
            config=TrainConfig(self.env_config(environments[0]), algos[0], *(getattr(self, part) for part in PARTS)),
            preset=self.preset,
            out=out,
            seed=self.seed,
            resume=self.resume,
            overwrite=self.overwrite,
            engine=engine,
            options=options,
            argv=argv,
        )
        assert result.out is not None
        show_result(result.out)
        echo(f"policies, metrics and figures: {fileio.shown(result.out)}")

    def sweep(
        self, out: Path, environments: list[str], algos: list[Algorithm], options: Any, argv: Sequence[str]
    ) -> None:
        """Several runs in one folder, and their table."""
        import contextlib

        from rbi.online.sweep import sweep
        from rbi.report import train as report

        defaults = preset_parts(self.env_config(environments[0]), self.preset)
        words = [*argv, *(runs.read(out).config.get("argv", []) if self.resume else [])]
        changes: dict[str, Any] = {
            p: changed_settings(defaults[p], getattr(self, p), given_names(p, words)) for p in PARTS
        }

        with contextlib.ExitStack() as stack:
            map_jobs = None
            if self.engine == "ray":
                from rbi.online.ray.cluster import cluster_map

                cpus, gpus = self.cluster.learner_cpus, self.cluster.learner_gpus or 0.0
                map_jobs = stack.enter_context(cluster_map(self.address, cpus, gpus))
            result = sweep(
                [self.env_config(env) for env in environments],
                algos,
                range(self.seed, self.seed + self.seeds),
                out=out,
                preset=self.preset,
                device=self.device,
                resume=self.resume,
                overwrite=self.overwrite,
                options=options,
                map_jobs=map_jobs,
                argv=argv,
                **changes,
            )
        for path in result.runs:
            draw_figures(path)
        finished = report.read_all(result.out / "runs")
        with runs.Writer.reopen(result.out) as writer:
            for name, figure in report.sweep_figures(finished).items():
                writer.figure(name, figure)
        show(report.score_table({"rows": result.rows}, paper=environments == PAPER_ENVS))
        echo(f"runs and figures: {fileio.shown(result.out)}")

    def environments(self) -> list[str]:
        named = PAPER_ENVS if self.envs == PAPER_TABLE else split_envs(self.envs)
        return list(dict.fromkeys(env.strip() for env in named if env.strip())) or [self.env]

    def algorithms(self) -> list[Algorithm]:
        return ["rbi", "apex"] if self.algo == "both" else [self.algo]

    def env_config(self, env: str) -> EnvConfig:
        return EnvConfig(env, self.max_frames, self.repeat_action_probability)


def split_envs(text: str) -> list[str]:
    """Environments that are separated by commas; those in brackets separate the settings of one.

    >>> split_envs("CartPole-v1,FrozenLake-v1(is_slippery=False, desc=('SF', 'FG'))")
    ['CartPole-v1', "FrozenLake-v1(is_slippery=False, desc=('SF', 'FG'))"]
    """
    depths = itertools.accumulate((char in "([{") - (char in ")]}") for char in text)
    commas = [place for place, depth in enumerate(depths) if depth == 0 and text[place] == ","]
    return [text[start + 1 : stop] for start, stop in itertools.pairwise([-1, *commas, len(text)])]


def changed_settings(defaults: Any, given: Any, asked: set[str]) -> dict[str, Any]:
    """The settings that were asked for or differ from the defaults: other environments of a sweep may have others."""
    names = [setting.name for setting in dataclasses.fields(given)]
    return {
        name: getattr(given, name) for name in names if name in asked or getattr(given, name) != getattr(defaults, name)
    }


def given_names(part: str, argv: Sequence[str]) -> set[str]:
    """The settings of a part that options on the command line name.

    >>> sorted(given_names("returns", ["--returns.n-step", "1", "--returns.gamma=0.9", "--learner.batch-size", "8"]))
    ['gamma', 'n_step']
    """
    options, start = (word.partition("=")[0].replace("-", "_") for word in map(str, argv)), f"__{part}."
    return {option.removeprefix(start).removeprefix("no_") for option in options if option.startswith(start)}


def saved_options(given: Train) -> dict[str, Any]:
    """The options of the run that --resume continues; empty where they cannot be read, which `train` explains."""
    if not given.resume or given.out is None:
        return {}
    fileio.restore_interrupted(given.out.parent, given.out.name)
    try:
        config = saved_config(given.out, given.mirror)
        settings = dict(config["settings"]) if config["command"] == "train" else {}
        options = {"seed": config["seed"]} if settings else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if "seeds" in settings:  # of a sweep
        options["seeds"], options["envs"] = len(settings["seeds"]), ",".join(settings["envs"])
        options["algo"] = "both" if len(settings["algos"]) > 1 else settings["algos"][0]
    kept = ("algo", "env", "preset", "engine", "max_frames", "repeat_action_probability", *PARTS)
    return options | {name: settings[name] for name in kept if settings.get(name) is not None}


def saved_config(out: Path, mirror: str) -> dict[str, Any]:
    """config.json of a run folder, or of its mirror if the folder is lost or behind."""
    if not mirror:
        return runs.read(out, 0).config
    from rbi.mirror import Mirror

    return Mirror(mirror).config_to_resume(out)


def show_result(path: Path) -> None:
    """The table of a finished run, after its figures were drawn."""
    from rbi.report import train as report

    draw_figures(path)
    with fileio.naming(path / "result.json"):
        show(report.result_table(runs.read(path)))


def draw_figures(path: Path) -> None:
    """Draw the learning curve of a run into its folder."""
    from rbi.report import train as report

    run = runs.read(path)
    if run.result is not None:
        with fileio.naming(path / "metrics.jsonl"), runs.Writer.reopen(path) as writer:
            writer.figure("learning", report.learning_curves([run]))
