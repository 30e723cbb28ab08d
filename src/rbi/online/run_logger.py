"""The logger of a run: reports, TensorBoard, checkpoints, policies, the final evaluation, and a progress bar."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from rbi import checkpoint, runs
from rbi.config import Checked, Ge, Gt, Interval, check_kind
from rbi.evaluation.rollouts import MAX_EPISODES, EvaluationResult, evaluate
from rbi.mirror import Mirror
from rbi.networks import TrunkFactory
from rbi.online.config import Algorithm
from rbi.online.engine import Engine
from rbi.policy import Policy, load_policy
from rbi.progress import PlainConsole, echo, printable, status_line, status_table
from rbi.replay import bytes_needed
from rbi.statistics import score_text
from rbi.suggestions import Suggesting

Callback = Callable[[dict[str, Any]], Any]

MAX_SAVED_REPLAY = 2_000_000_000  # bytes; a larger replay is saved in checkpoints only if asked for
MIN_BEST_EPISODES = 20  # finished episodes before a policy can be the best


@dataclass(frozen=True, repr=False)
class TrainResult(Suggesting):
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
    out: Path | None = None
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
        score = f", mean score {score_text(self.evaluation.mean)}" if self.evaluation else ""
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
            lines.append(f"score while training {score_text(self.metrics[-1]['score'])} (low-epsilon environments)")
        if self.evaluation:
            lines.append(self.evaluation.summary())
        if self.out:
            lines.append(f"run folder {self.out}")
        return "\n".join(lines)


@dataclass(frozen=True)
class RunOptions(Checked):
    """What a run reports, saves and evaluates; none of it changes what is learned."""

    eval_episodes: Annotated[int, Interval(ge=0, le=MAX_EPISODES)] = 30
    """Evaluation episodes of the final policy; 0: none."""
    report_interval: Annotated[int, Ge(0)] = 0
    """Updates between two reports (lines of metrics.jsonl, calls of the callback); 0: a five-hundredth of the run."""
    checkpoint_minutes: Annotated[float, Gt(0)] = 5.0
    """Minutes between checkpoints."""
    save_replay: bool | None = None
    """Save the replay in checkpoints; by default up to 2 GB. A run resumed without it fills its replay again first."""
    save_snapshots: Annotated[int, Ge(0)] = 0
    """Policies to save at even intervals of training, in policies/updates-*."""
    mirror: str = ""
    """A URL that fsspec knows, such as s3://bucket/run, gets a copy of the run folder after every checkpoint; a resumed
    run whose folder is lost or behind is restored from it."""


def take_options(settings: dict[str, Any], options: RunOptions | None) -> RunOptions:
    """The options that are among the settings, which lose them; others as in `options`."""
    check_kind("options", options, RunOptions)
    names = [option.name for option in dataclasses.fields(RunOptions) if option.name in settings]
    return dataclasses.replace(options or RunOptions(), **{name: settings.pop(name) for name in names})


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
        trunk: TrunkFactory | None = None,
    ) -> None:
        self.engine, self.writer, self.options, self.seed, self.info = engine, writer, options, seed, info
        self.callback, self.trunk, self.stop = callback, trunk, False
        self.started = time.monotonic() - info["seconds"]
        self.saved_at = time.monotonic()
        updates, per_sample = engine.config.schedule.updates, engine.config.learner.updates_per_sample
        interval = options.report_interval or max(10, updates // 500)
        self.interval = -(-interval // per_sample) * per_sample
        self.reported = engine.updates // self.interval * self.interval
        self.snapshots = self.snapshots_due()
        self.best_policy: Policy | None = None
        self.metrics: list[dict[str, Any]] = []
        self.mirror = Mirror(options.mirror) if options.mirror else None
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
        return self.engine.updates * self.options.save_snapshots // self.engine.config.schedule.updates

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
        check_learning(metrics)
        best, score = self.info["best"], metrics["score"]
        enough = len(self.engine.recent_scores.low_epsilon) >= MIN_BEST_EPISODES
        if score is not None and enough and (best is None or score > best):
            self.info["best"] = score
            self.best_policy = self.save_policy("best")
        answer = self.callback(dict(metrics)) if self.callback is not None else None
        if isinstance(answer, bool | np.bool_) and not answer:
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
        state = self.engine.checkpoint(with_replay=with_replay)
        self.save_policy("last")
        checkpoint.save(self.writer.path, self.engine.updates, dataclasses.replace(state, info=self.info))
        self.upload()
        self.saved_at = time.monotonic()

    def upload(self) -> None:
        """Copy the run folder to its mirror. A copy that fails is reported, and the next checkpoint tries again."""
        if self.mirror is None or self.writer is None:
            return
        if self.tensorboard is not None:
            self.tensorboard.flush()
        try:
            self.mirror.upload(self.writer.path)
        except ValueError as error:
            echo(f"rbi: the run folder was not copied, and the run continues; {error}", stderr=True)

    def close(self) -> None:
        """Write what TensorBoard has buffered, and end its thread, however the run has ended."""
        if self.tensorboard is not None:
            with contextlib.suppress(OSError):  # a full disk, which has ended the run
                self.tensorboard.close()

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
            self.upload()
        return TrainResult(
            env=config.env.id,
            algo=config.algo,
            seed=self.seed,
            policy=policy,
            best_policy=self.best_policy or load_best(self.writer, self.trunk),
            best_score=self.info["best"],
            metrics=self.metrics,
            evaluation=evaluation,
            seconds=seconds,
            device=str(self.engine.device),
            stopped=stopped,
            out=None if self.writer is None else self.writer.path,
        )


class DivergenceError(ValueError):
    """The outputs of the networks are no numbers: nothing that follows would make them numbers."""


def check_learning(metrics: dict[str, Any]) -> None:
    """Raise DivergenceError if the outputs of the networks are no numbers."""
    if any(math.isnan(metrics.get(name, 0.0)) for name in ("q", "pi_loss")):
        raise DivergenceError(
            f"training diverged within {metrics['updates']:,} updates: the networks' outputs are no numbers; lower "
            "learning_rate, or divide observations or rewards that are far larger than 1 (gymnasium.wrappers)"
        )


class BarAndProcesses(Progress):
    """A progress bar, and below it a table of the processes of a distributed run."""

    def __init__(self, engine: Engine, *columns: ProgressColumn, **options: Any) -> None:
        self.engine = engine
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterator[Any]:
        """The lines of the display, as rich asks for them."""
        yield self.make_tasks_table(self.tasks)
        if processes := self.engine.processes():
            yield status_table(processes)


class TrainProgress:
    """Progress of a run: a bar on a terminal, a line every half minute elsewhere."""

    LINE_SECONDS = 30

    def __init__(self, engine: Engine) -> None:
        self.engine, config = engine, engine.config
        console = PlainConsole(stderr=True)
        self.live = console.is_live
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
        )
        self.bar = BarAndProcesses(engine, *columns, console=console, disable=not self.live, transient=True)
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
        text = f"{steps:,.0f} steps/s, {updates:,.0f} updates/s, score {'-' if score is None else score_text(score)}"
        if not engine.learning_started:
            text = f"filling the replay, {engine.states:,} states, {steps:,.0f} steps/s"
        self.bar.update(self.task, completed=engine.updates, text=text)
        if not self.live:
            total = engine.config.schedule.updates
            echo(f"{seconds:8,.0f} s  {engine.updates:,} of {total:,} updates, {text}", stderr=True)
            if processes := engine.processes():
                echo(f"{'':12}{status_line(processes)}", stderr=True)
        self.shown, self.states, self.updates = now, engine.states, engine.updates


def load_best(writer: runs.Writer | None, trunk: TrunkFactory | None) -> Policy | None:
    """The best policy of a run folder, where a resumed run has found none that is better."""
    if writer is None or not (writer.path / "policies" / "best").is_dir():
        return None
    return load_policy(writer.path / "policies" / "best", trunk=trunk)
