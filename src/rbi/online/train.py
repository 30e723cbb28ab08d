"""Online training as one call: `train` makes a run with logging, checkpoints, policies and a final evaluation."""

import contextlib
import dataclasses
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from rbi import checkpoint, envs, runs
from rbi.config import Device, choose_device
from rbi.envs.types import EnvConfig, EnvFactory
from rbi.evaluation.rollouts import EvaluationResult, evaluate
from rbi.networks import TrunkFactory, cpu_threads
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, PARTS, PRESETS, Algorithm, Preset, TrainConfig
from rbi.online.engine import Engine, LocalEngine, observation_spec
from rbi.policy import Policy, load_policy
from rbi.progress import PlainConsole, echo, graceful_stop, printable
from rbi.replay import available_memory, bytes_needed

Env = str | EnvFactory | EnvConfig
Callback = Callable[[dict[str, Any]], Any]

MAX_SAVED_REPLAY = 2_000_000_000  # bytes; a larger replay is saved in checkpoints only if asked for
MIN_BEST_EPISODES = 20  # finished episodes before a policy can be the best
MAY_CHANGE_ON_RESUME = ("preset", "schedule.updates", "schedule.env_threads")


@dataclass(frozen=True, repr=False)
class TrainResult:
    """What a training run produced."""

    env: str
    algo: Algorithm
    seed: int
    policy: Policy
    """The policy at the end of training."""
    best_policy: Policy | None
    """The policy with the best mean score while training; None before 20 episodes have finished."""
    best_score: float | None
    metrics: list[dict[str, Any]] = field(repr=False)
    """One dictionary per report: updates, states, seconds, scores while training, losses."""
    evaluation: EvaluationResult | None
    """The evaluation of `policy` at the end; None without evaluation episodes."""
    seconds: float
    device: str
    stopped: bool = False
    """Whether the callback or Ctrl-C stopped training before its last update."""
    path: Path | None = None
    """The run folder."""

    @property
    def scores(self) -> list[float]:
        """Scores of the evaluation episodes at the end."""
        return list(self.evaluation.scores) if self.evaluation else []

    @property
    def updates(self) -> int:
        return int(self.metrics[-1]["updates"]) if self.metrics else 0

    @property
    def states(self) -> int:
        """Environment steps of the run."""
        return int(self.metrics[-1]["states"]) if self.metrics else 0

    def __repr__(self) -> str:
        score = f", mean score {self.evaluation.mean:,.1f}" if self.evaluation else ""
        return f"TrainResult({self.algo} on {self.env}, {self.updates:,} updates, {self.states:,} states{score})"

    def summary(self) -> str:
        """Several lines of text: length, speed, scores, and where the run folder is."""
        lines = [
            f"{self.algo} on {self.env}, seed {self.seed}: {self.updates:,} updates, {self.states:,} states"
            + (" (stopped early)" if self.stopped else ""),
            f"{self.seconds:,.0f} s on {self.device}: {self.states / max(self.seconds, 1e-9):,.0f} steps/s, "
            f"{self.updates / max(self.seconds, 1e-9):,.0f} updates/s",
        ]
        if self.metrics and self.metrics[-1]["score"] is not None:
            lines.append(f"score while training {self.metrics[-1]['score']:,.1f} (low-epsilon environments)")
        if self.evaluation:
            lines.append(self.evaluation.summary())
        if self.path:
            lines.append(f"run folder {self.path}")
        return "\n".join(lines)


class EngineFactory(Protocol):
    """Opens the engine of a run: `Local` on this machine, `rbi.online.ray.Cluster` on a Ray cluster."""

    @property
    def settings(self) -> dict[str, Any]:
        """What config.json stores about it."""

    @property
    def may_change(self) -> tuple[str, ...]:
        """Those of its settings that a resumed run may change."""

    def __call__(
        self, config: TrainConfig, seed: int, trunk: TrunkFactory | None, *, progress: bool
    ) -> AbstractContextManager[Engine]: ...


@dataclass(frozen=True)
class Local:
    """Train on this machine."""

    device: Device = "auto"
    """Where networks and replay live; auto takes the GPU if there is one."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"engine": "local"}

    @property
    def may_change(self) -> tuple[str, ...]:
        return ()

    @contextlib.contextmanager
    def __call__(
        self, config: TrainConfig, seed: int, trunk: TrunkFactory | None, *, progress: bool
    ) -> Iterator[Engine]:
        device = choose_device(self.device)
        check_memory(config, make_observation_spec(config), device)
        on_cpu = device.type == "cpu"  # then environments and networks share the cores, and so do the groups
        threads = config.schedule.env_threads or max(1, (os.cpu_count() or 1) // (1 if on_cpu else GROUPS))
        if progress:
            echo(f"making {config.schedule.num_envs} environments of {config.env.id}", stderr=True)
        if progress and on_cpu and config.env.is_atari:
            echo(
                "no GPU: training on images is slow on a CPU; fewer --schedule.num-envs and --schedule.updates help",
                stderr=True,
            )
        num_envs = config.schedule.num_envs // GROUPS
        groups = [envs.make(config.env, num_envs, threads, synchronous=on_cpu) for _ in range(GROUPS)]
        try:
            with cpu_threads(device, groups[0].obs_shape, config.schedule.hidden_size):
                yield LocalEngine(config, seed, device, groups, trunk)
        finally:
            for group in groups:
                if group.pending:
                    group.recv()
                group.close()


@dataclass(frozen=True)
class RunOptions:
    """What a run reports, saves and evaluates; none of it changes what is learned."""

    eval_episodes: int = 30
    """Evaluation episodes of the final policy; 0: none."""
    report_interval: int = 0
    """Updates between two reports (lines of metrics.jsonl, calls of the callback); 0: a five-hundredth of the run."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints."""
    save_replay: bool | None = None
    """Save the replay in checkpoints; by default up to 2 GB. A run resumed without it fills its replay again first."""
    save_snapshots: int = 0
    """Policies to save at even intervals of training, in policies/updates-*."""

    def __post_init__(self) -> None:
        for name in ("eval_episodes", "report_interval", "save_snapshots"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 0")
        if not 0 < self.checkpoint_minutes < math.inf:
            raise ValueError(f"checkpoint_minutes = {self.checkpoint_minutes}: must be positive")


def train(
    env: Env | None = None,
    algo: Algorithm = "rbi",
    *,
    preset: Preset | None = None,
    config: TrainConfig | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    device: Device = "auto",
    callback: Callback | None = None,
    progress: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    trunk: TrunkFactory | None = None,
    engine: EngineFactory | None = None,
    options: RunOptions | None = None,
    argv: Sequence[str] = (),
    **overrides: Any,
) -> TrainResult:
    """Train a policy in an environment, with RBI or Ape-X.

        run = rbi.train("CartPole-v1", out="runs/cart")
        run.policy, run.scores, print(run.summary())

    `env` is a Gymnasium id or a function that makes a Gymnasium environment. Settings come from `preset` (by default
    `fast` for Atari games, `small` for anything else) or a whole `config`; `overrides` change single ones, such as
    `updates=2000`, `batch_size=64`, `n_step=5`, or `RunOptions` such as `eval_episodes=0`.

    With `out`, a run folder with metrics, checkpoints, TensorBoard logs and policies is written, and `resume=True`
    continues it from its last checkpoint with its own settings; without `out` nothing is left on disk. `callback` gets
    a dictionary of metrics at each report; training stops early if it returns False. The first Ctrl-C stops at a point
    that can be resumed. `trunk` makes a `torch.nn.Module` in place of the networks' own trunk, from the observation
    spec; `engine` trains elsewhere than on this machine.
    """
    names = [option.name for option in dataclasses.fields(RunOptions)]
    own = {name: overrides.pop(name) for name in names if name in overrides}
    options = dataclasses.replace(options or RunOptions(), **own)
    path = None if out is None else Path(out)
    if resume and path is None:
        raise ValueError("resume: name the run with out")
    start: Path | None = None
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(runs.lock_run(path)) if resume and path is not None else None
        chosen = resolve_config(env, algo, preset, config, path if resume else None, overrides)
        make_engine = engine or Local(device)
        settings = run_settings(chosen, preset) | make_engine.settings
        if resume and path is not None:
            may_change = (*MAY_CHANGE_ON_RESUME, *make_engine.may_change)
            runs.check_resumable(path, command="train", settings=settings, seed=seed, may_change=may_change)
            if (complete := load_complete(path, chosen)) is not None:
                if progress:
                    echo(f"nothing left to do: {path} is complete; more updates continue it")
                return complete
            start = find_checkpoint(path, chosen, progress=progress)
        elif path is not None:
            runs.check_available(runs.resolve(path), overwrite=overwrite)
        running = stack.enter_context(make_engine(chosen, seed, trunk, progress=progress))
        info: dict[str, Any] = {"seconds": 0.0, "best": None, "lines": 0}
        if start is not None and path is not None:
            saved = checkpoint.load(start, {"env": chosen.env.id, "algo": chosen.algo})
            with runs.naming(start):
                running.restore(saved)
                info = count_resume(path, info | saved.info, running)
        created = {"settings": settings, "seed": seed, "argv": argv, "overwrite": overwrite}
        writer = None if path is None else open_run(path, lock, info["lines"], created, from_start=start is None)
        stack.enter_context(writer or contextlib.nullcontext())
        logger = RunLogger(running, writer, options, seed, info, callback)
        stopped = run_to_end(running, logger, progress=progress)
        if stopped and not logger.stop and writer is not None:
            logger.save()
            said = f"rbi: stopped after {running.updates:,} updates; continue with --resume --out {writer.path}"
            echo(said, stderr=True)
            raise KeyboardInterrupt
        return logger.finish(stopped=stopped, progress=progress)


def run_to_end(engine: Engine, logger: "RunLogger", *, progress: bool) -> bool:
    """Run the engine with its logger; whether it was stopped before its last update."""
    bar = TrainProgress(engine) if progress else None
    with bar or contextlib.nullcontext(), graceful_stop() as interrupted:
        for _ in engine.run():
            logger.after_step()
            if bar:
                bar.show(logger.seconds)
            if interrupted.is_set() or logger.stop:
                return True
    return False


class RunLogger:
    """Reports, saves and finishes a run: metrics, TensorBoard, checkpoints, the best policy, snapshots, the result."""

    def __init__(
        self,
        engine: Engine,
        writer: runs.Writer | None,
        options: RunOptions,
        seed: int,
        info: dict[str, Any],
        callback: Callback | None = None,
    ) -> None:
        self.engine, self.writer, self.options, self.seed, self.info = engine, writer, options, seed, info
        self.callback, self.stop = callback, False
        self.started = time.monotonic() - info["seconds"]
        self.saved_at = time.monotonic()
        updates, per_sample = engine.config.schedule.updates, engine.config.learner.updates_per_sample
        interval = options.report_interval or max(10, updates // 500)
        self.interval = -(-interval // per_sample) * per_sample
        self.reported = engine.updates // self.interval * self.interval
        self.snapshot_interval = max(1, updates // options.save_snapshots) if options.save_snapshots else 0
        self.snapshots = self.snapshots_due()
        self.best_policy: Policy | None = None
        self.metrics: list[dict[str, Any]] = []
        self.tensorboard: Any = None
        if writer is not None:
            from torch.utils.tensorboard import SummaryWriter  # takes a second to import

            self.tensorboard = SummaryWriter(str(writer.path / "tensorboard"), purge_step=engine.updates)
            self.metrics = runs.read(writer.path).metrics

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def after_step(self) -> None:
        """Report and save where it is due."""
        updates = self.engine.updates
        if updates - self.reported >= self.interval:
            self.reported = updates // self.interval * self.interval
            self.report()
        if self.snapshots_due() > self.snapshots:
            self.snapshots = self.snapshots_due()
            self.save_policy(f"updates-{updates:08}")
        if self.writer is not None and time.monotonic() - self.saved_at > 60 * self.options.checkpoint_minutes:
            self.save()

    def snapshots_due(self) -> int:
        return self.engine.updates // self.snapshot_interval if self.snapshot_interval else 0

    def report(self) -> None:
        """Write one line of metrics, keep the best policy, and call the callback."""
        metrics = self.engine.metrics() | {"seconds": round(self.seconds, 3)}
        self.metrics.append(metrics)
        self.info["lines"] += 1
        if self.writer is not None:
            self.writer.log(**metrics)
            for name, value in metrics.items():
                if value is not None and name not in ("updates", "seconds"):
                    self.tensorboard.add_scalar(name, value, metrics["updates"])
        best, score = self.info["best"], metrics["score"]
        enough = len(self.engine.recent_scores.low_epsilon) >= MIN_BEST_EPISODES
        if score is not None and enough and (best is None or score > best):
            self.info["best"] = score
            self.best_policy = self.save_policy("best")
        if self.callback is not None and self.callback(dict(metrics)) is False:
            self.stop = True

    def save_policy(self, name: str) -> Policy:
        policy = self.engine.policy()
        if self.writer is not None:
            policy.save(self.writer.path / "policies" / name)
        return policy

    def save(self) -> None:
        """Write a checkpoint, and the current policy."""
        assert self.writer is not None
        self.info["seconds"] = self.seconds
        with_replay = self.options.save_replay
        if with_replay is None:
            with_replay = bytes_needed(self.engine.config.replay, self.engine.obs_spec) <= MAX_SAVED_REPLAY
        self.save_policy("last")
        state = self.engine.checkpoint(with_replay=with_replay)
        checkpoint.save(self.writer.path, self.engine.updates, dataclasses.replace(state, info=self.info))
        self.saved_at = time.monotonic()

    def finish(self, *, stopped: bool, progress: bool) -> TrainResult:
        """The last report and checkpoint, the evaluation, and the result."""
        if not self.metrics or self.metrics[-1]["updates"] != self.engine.updates:
            self.report()
        if self.writer is not None:
            self.save()
            self.tensorboard.close()
        seconds, config = self.seconds, self.engine.config
        policy, evaluation = self.engine.policy(), None
        if self.options.eval_episodes:
            evaluation = evaluate(
                policy,
                config.env,
                episodes=self.options.eval_episodes,
                seed=self.seed,
                device=self.engine.device,
                progress=progress,
            )
        result = {
            "algo": config.algo,
            "env": config.env.id,
            "device": str(self.engine.device),
            "seconds": seconds,
            "best_score": self.info["best"],
            "last": self.metrics[-1],
            "steps_per_second": self.engine.states / seconds,
            "updates_per_second": self.engine.updates / seconds,
            **self.engine.summary(),
        }
        if self.info.get("resumed"):
            result["resumed"] = self.info["resumed"]
        if evaluation is not None:
            result["evaluation"] = evaluation.to_dict()
        if self.writer is not None:
            self.writer.result(result)
        return TrainResult(
            env=config.env.id,
            algo=config.algo,
            seed=self.seed,
            policy=policy,
            best_policy=self.best_policy or load_best(self.writer),
            best_score=self.info["best"],
            metrics=self.metrics,
            evaluation=evaluation,
            seconds=seconds,
            device=str(self.engine.device),
            stopped=stopped,
            path=None if self.writer is None else self.writer.path,
        )


class TrainProgress:
    """Progress of a run: a bar on a terminal, a line every half minute elsewhere."""

    LINE_SECONDS = 30

    def __init__(self, engine: Engine) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.engine, config = engine, engine.config
        console = PlainConsole(stderr=True)
        self.live = console.is_terminal or console.is_jupyter
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
        )
        self.bar: Progress = Progress(*columns, console=console, disable=not self.live, transient=True)
        self.task = self.bar.add_task(
            printable(f"{config.algo} {config.env.id}"), total=config.schedule.updates, text=""
        )
        self.shown, self.states, self.updates = time.monotonic(), engine.states, engine.updates

    def __enter__(self) -> "TrainProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, seconds: float) -> None:
        """Update the bar once a second, or print a line."""
        now = time.monotonic()
        elapsed = now - self.shown
        if elapsed < (1 if self.live else self.LINE_SECONDS):
            return
        engine = self.engine
        steps, updates = (engine.states - self.states) / elapsed, (engine.updates - self.updates) / elapsed
        score = engine.recent_scores.metrics()["score"]
        text = f"{steps:,.0f} steps/s, {updates:,.0f} updates/s, score {'-' if score is None else f'{score:,.1f}'}"
        if not engine.learning_started:
            text = f"filling the replay, {engine.states:,} states, {steps:,.0f} steps/s"
        self.bar.update(self.task, completed=engine.updates, text=text)
        if not self.live:
            total = engine.config.schedule.updates
            echo(f"{seconds:8,.0f} s  {engine.updates:,} of {total:,} updates, {text}", stderr=True)
        self.shown, self.states, self.updates = now, engine.states, engine.updates


# Settings and run folders


def resolve_config(
    env: Env | None,
    algo: Algorithm,
    preset: Preset | None,
    config: TrainConfig | None,
    resumed: Path | None,
    overrides: Mapping[str, Any],
) -> TrainConfig:
    """The settings of a run: of the run that is resumed, a whole config, or a preset; with overrides."""
    if config is not None:
        return config.changed(**overrides)
    if resumed is not None:
        saved = load_config(resumed)
        if env is None:
            envs.id_from_file(saved.env.id, resumed / "config.json")
        if env is not None and not isinstance(env, EnvConfig):
            named = EnvConfig.of(env)
            env = dataclasses.replace(saved.env, id=named.id, factory=named.factory)
        return saved.changed(**({} if env is None else {"env": env}), **overrides)
    if env is None:
        raise ValueError("env: name a Gymnasium environment, or give a function that makes one")
    return TrainConfig.preset(env, algo, preset, **overrides)


def run_settings(config: TrainConfig, preset: Preset | None) -> dict[str, Any]:
    """The settings that config.json stores."""
    env = {name: getattr(config.env, name) for name in ("max_frames", "repeat_action_probability", "noop_max")}
    parts = {name: getattr(config, name) for name in PARTS}
    return {"algo": config.algo, "env": config.env.id, "preset": preset} | env | parts


def load_config(path: Path | str) -> TrainConfig:
    """The settings that a run folder of training was started with."""
    found = runs.read(Path(path)).config
    if found.get("command") != "train":
        raise ValueError(f"{path}: is a run of {found.get('command')!r}, not of 'train'")
    try:
        settings = found["settings"]
        names = ("max_frames", "repeat_action_probability", "noop_max")
        env = EnvConfig(settings["env"], **{name: settings[name] for name in names})
        parts = {name: dataclasses.replace(PRESETS["paper"][name], **settings[name]) for name in PARTS}
        return TrainConfig(env, settings["algo"], **parts)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its config.json cannot be used to resume: {error}") from None


def find_checkpoint(path: Path, config: TrainConfig, *, progress: bool = True) -> Path | None:
    """The checkpoint to resume from, after its files were checked; None where the run must begin again."""
    start = checkpoint.newest(path)
    if start is None:
        if runs.read(path).result is not None:
            raise ValueError(f"{path}: has no checkpoint to continue from; --overwrite begins again")
        if progress:
            echo(f"{path}: has no checkpoint yet, so it begins again", stderr=True)
        return None
    counters = checkpoint.read_state(start)["counters"]
    with runs.naming(start / checkpoint.STATE):
        done = counters["updates"] - counters.get("repeated_updates", 0)
    if done > config.schedule.updates:
        raise ValueError(f"--schedule.updates = {config.schedule.updates}: {path} has done {done:,} already")
    return start


def count_resume(path: Path, info: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """The checkpoint's info, with one more resume and the updates after the checkpoint that are repeated."""
    for line in runs.read(path, info["lines"]).damaged:
        echo(f"rbi: {line}; the run goes on without them", stderr=True)
    run = runs.read(path)
    repeated = max(0, run.metrics[-1]["updates"] - engine.updates) if run.metrics else 0
    before = info.get("resumed") or {"times": 0, "repeated_updates": 0}
    return info | {"resumed": {"times": before["times"] + 1, "repeated_updates": before["repeated_updates"] + repeated}}


def open_run(
    path: Path, lock: runs.RunLock | None, lines: int, created: dict[str, Any], *, from_start: bool
) -> runs.Writer:
    """A new run folder, or that of a locked run: metrics after its checkpoint and its result are removed."""
    if lock is None:
        return runs.Writer.create(path, command="train", **created)
    if from_start:
        shutil.rmtree(path / "tensorboard", ignore_errors=True)
    (path / "result.json").unlink(missing_ok=True)  # the run is not complete any more
    return runs.Writer.reopen(path, lines=lines, lock=lock)


def load_complete(path: Path, config: TrainConfig) -> TrainResult | None:
    """The result of a run that has done all its updates, from its folder; None for any other."""
    run = runs.read(path)
    found = run.result
    if found is None:
        return None
    with runs.naming(path / "result.json"):
        if found["last"]["updates"] - found.get("repeated_updates", 0) < config.schedule.updates:
            return None
        policies = {name: path / "policies" / name for name in ("last", "best")}
        evaluation = found.get("evaluation")
        return TrainResult(
            env=found["env"],
            algo=found["algo"],
            seed=run.config["seed"],
            policy=load_policy(policies["last"]),
            best_policy=load_policy(policies["best"]) if policies["best"].is_dir() else None,
            best_score=found["best_score"],
            metrics=run.metrics,
            evaluation=None if evaluation is None else EvaluationResult(**evaluation),
            seconds=found["seconds"],
            device=found["device"],
            path=path,
        )


def load_best(writer: runs.Writer | None) -> Policy | None:
    """The best policy of a run folder, where a resumed run has found none that is better."""
    if writer is None or not (writer.path / "policies" / "best").is_dir():
        return None
    return load_policy(writer.path / "policies" / "best")


def make_observation_spec(config: TrainConfig) -> ObservationSpec:
    """The observations and actions of a run's environment, from one instance of it."""
    one = envs.make(config.env, 1)
    try:
        return observation_spec(config, one)
    except ValueError as error:
        raise ValueError(f"--env {config.env.id}: {error}") from None
    finally:
        one.close()


def check_memory(config: TrainConfig, obs_spec: ObservationSpec, device: torch.device) -> None:
    """Raise ValueError if the replay cannot fit into the device's free memory."""
    need = bytes_needed(config.replay, obs_spec)
    if device.type == "cuda":
        free, where = torch.cuda.mem_get_info(device)[0], "the GPU"
    else:
        free, where = available_memory(), "this machine"
    if need > free:
        fits = int(config.replay.capacity * 0.9 * free / need)
        raise ValueError(
            f"--replay.capacity = {config.replay.capacity:,}: needs {need / 1e9:.1f} GB, {where} has "
            f"{free / 1e9:.1f} GB free; up to {fits:,} would fit"
        )
