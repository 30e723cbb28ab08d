"""What a training run keeps, metrics, checkpoints, policies and its result, and what a person sees while it runs."""

import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rbi import checkpoint, runs
from rbi.cli.command import show
from rbi.evaluation.rollouts import evaluate
from rbi.online.config import TrainConfig
from rbi.online.engine import Engine
from rbi.progress import SECONDS_A_LINE, echo
from rbi.replay import bytes_needed
from rbi.report import train as pages

SAVED_REPLAY = 2_000_000_000  # bytes up to which the replay is part of a checkpoint unless told otherwise
BEST_AFTER = 20  # episodes before a policy can be the best


class Keeping(Protocol):
    """The settings of `rbi train` that say what is kept, and how often."""

    @property
    def seed(self) -> int: ...
    @property
    def report_updates(self) -> int: ...
    @property
    def checkpoint_minutes(self) -> float: ...
    @property
    def save_replay(self) -> bool | None: ...
    @property
    def episodes(self) -> int: ...
    @property
    def ages(self) -> int: ...


class Keeper:
    """Keeps what a run finds: metrics, checkpoints, the last and the best policy."""

    def __init__(self, command: Keeping, engine: Engine, writer: runs.Writer, about: dict[str, Any]) -> None:
        self.command, self.engine, self.writer, self.about = command, engine, writer, about
        self.began = time.monotonic() - about["seconds"]
        self.saved = time.monotonic()
        updates = engine.plan.schedule.updates
        round_ = engine.plan.learner.updates_per_sample
        asked = command.report_updates or max(10, updates // 500)
        self.every = -(-asked // round_) * round_
        self.reported = engine.learner.updates // self.every * self.every
        self.age_updates = max(1, updates // command.ages) if command.ages else 0
        self.aged = self.age()
        from torch.utils.tensorboard import SummaryWriter  # a second of importing that no other command should wait for

        self.boards = SummaryWriter(str(writer.path / "tensorboard"), purge_step=engine.learner.updates)
        lines = runs.read(writer.path).metrics
        self.last: dict[str, Any] = lines[-1] if lines else {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def after_tick(self) -> None:
        """Report and save where it is time to."""
        updates = self.engine.learner.updates
        if updates - self.reported >= self.every:
            self.reported = updates // self.every * self.every
            self.report()
        if self.age() > self.aged:
            self.aged = self.age()
            self.engine.policy().save(self.writer.path / "policies" / f"updates-{updates:08}")
        if time.monotonic() - self.saved > 60 * self.command.checkpoint_minutes:
            self.save()

    def age(self) -> int:
        """How many of the moments have passed at which a policy is kept."""
        return self.engine.learner.updates // self.age_updates if self.age_updates else 0

    def report(self) -> None:
        metrics = self.engine.metrics()
        self.last = metrics | {"seconds": round(self.seconds, 3)}
        self.writer.metric(**self.last)
        self.about["lines"] += 1
        for name, value in metrics.items():
            if value is not None and name != "updates":
                self.boards.add_scalar(name, value, metrics["updates"])
        best, score = self.about["best"], metrics["score"]
        if score is not None and len(self.engine.recent.low_epsilon) >= BEST_AFTER and (best is None or score > best):
            self.about["best"] = score
            self.engine.policy().save(self.writer.path / "policies" / "best")

    def save(self) -> None:
        """A checkpoint, and the policy as it is now."""
        self.about["seconds"] = self.seconds
        size = bytes_needed(self.engine.plan.replay, self.engine.obs_spec)
        asked = self.command.save_replay
        with_replay = size <= SAVED_REPLAY if asked is None else asked
        self.engine.policy().save(self.writer.path / "policies" / "last")
        checkpoint.save(self.writer.path, self.engine, with_replay=with_replay, about=self.about)
        self.saved = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """The last line, checkpoint and policy, an evaluation, the result and its figure."""
        if not self.last or self.last["updates"] != self.engine.learner.updates:
            self.report()
        self.save()
        self.boards.close()
        seconds, states = self.seconds, self.engine.states
        result = {
            "algo": self.engine.plan.algo,
            "env": self.engine.plan.env.id,
            "device": str(self.engine.device),
            "seconds": seconds,
            "best_score": self.about["best"],
            "last": self.last,
            "steps_per_second": states / seconds,
            "updates_per_second": self.engine.learner.updates / seconds,
            **self.engine.summary(),
        }
        if self.about.get("resumed"):
            result["resumed"] = self.about["resumed"]
        if self.command.episodes:
            result["evaluation"] = evaluate(
                self.engine.policy(),
                self.engine.plan.env.id,
                episodes=self.command.episodes,
                seed=self.command.seed,
                device=self.engine.device,
            ).to_dict()
        self.writer.result(result)
        run = runs.read(self.writer.path)
        self.writer.figure("learning", pages.learning_curves([run]))
        show(pages.result_table(run))
        echo(f"policies, metrics and figures: {self.writer.path}")
        return result


class Watch:
    """What a person sees while it runs: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, plan: TrainConfig, engine: Engine) -> None:
        self.plan, self.engine = plan, engine
        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, disable=not self.live, transient=True)
        self.task = self.progress.add_task(f"{plan.algo} {plan.env.id}", total=plan.schedule.updates, told="")
        self.shown, self.states, self.updates = time.monotonic(), engine.states, engine.learner.updates

    def __enter__(self) -> "Watch":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, keeper: Keeper) -> None:
        now = time.monotonic()
        took = now - self.shown
        if took < (1 if self.live else SECONDS_A_LINE):
            return
        steps = (self.engine.states - self.states) / took
        updates = (self.engine.learner.updates - self.updates) / took
        score = self.engine.recent.metrics()["score"]
        told = f"{steps:,.0f} steps/s, {updates:,.0f} updates/s, score {'-' if score is None else f'{score:,.1f}'}"
        done = self.engine.learner.updates
        if not self.engine.started:
            told = f"filling the replay, {self.engine.states:,} states, {steps:,.0f} steps/s"
        self.progress.update(self.task, completed=done, told=told)
        if not self.live:
            echo(f"{keeper.seconds:8,.0f} s  {done:,} of {self.plan.schedule.updates:,} updates, {told}", stderr=True)
        self.shown, self.states, self.updates = now, self.engine.states, self.engine.learner.updates
