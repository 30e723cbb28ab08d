"""The output of an offline run: metrics in memory, to a callback, and in a run folder with checkpoints."""

import json
import shlex
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from rbi import checkpoint, fileio, runs
from rbi.config import check_callback
from rbi.data.dataset import Dataset
from rbi.progress import echo

Callback = Callable[[dict[str, Any]], Any]

MAY_CHANGE_ON_RESUME = ("num_envs", "format_settings.max_lost")  # settings that do not affect the results


class RunLog:
    """Collects the metrics and the result of a run. Nothing is written to disk unless a folder is given.

    `state` holds the counters that a checkpoint needs besides the learners; it always has "lines" (of metrics) and
    "data" (a fingerprint of the dataset), and "holdout" where episodes are held out.
    """

    def __init__(
        self,
        out: Path | str | None,
        callback: Callback | None,
        *,
        progress: bool = True,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.out = None if out is None else fileio.as_path(out)
        check_callback(callback)
        self.callback, self.progress, self.resume, self.overwrite = callback, progress, resume, overwrite
        self.metrics: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}
        self.numbers: dict[str, Any] | None = None
        self.writer: runs.Writer | None = None
        self.lock: fileio.RunLock | None = None
        self.created: dict[str, Any] = {}

    def check_folder(self, command: str, settings: Mapping[str, Any], seed: int, defaults: Mapping[str, Any]) -> bool:
        """Refuse a folder that this run may not use; True if it holds a complete run to resume, now loaded.

        `defaults` are the settings that the version which started a run did not have, as in `runs.check_resumable`. A
        run that is resumed is locked until `RunLog` is left.
        """
        self.created = {"command": command, "settings": settings, "seed": seed, "overwrite": self.overwrite}
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped run with --out, without --overwrite")
        if self.out is None:
            return False
        if not self.resume:
            runs.check_available(fileio.resolve(self.out), overwrite=self.overwrite)
            return False
        self.lock = runs.lock_run(self.out)
        without = runs.check_resumable(
            self.out,
            command=command,
            settings=settings,
            seed=seed,
            defaults=defaults,
            may_change=MAY_CHANGE_ON_RESUME,
        )
        if without:
            self.echo(without)
        found = runs.read(self.out)
        self.report_damage(found)
        self.metrics, self.numbers = found.metrics, found.result
        return found.result is not None

    def open(self, learners: Mapping[str, checkpoint.Checkpointable]) -> None:
        """Create the run folder that was checked, or reopen it and continue from its last checkpoint."""
        if self.out is None:
            return
        if self.resume:
            self.restore(learners)
            runs.save_changed_settings(self.out, self.created["settings"])
            self.writer = runs.Writer.reopen(self.out, lines=self.state["lines"], lock=self.lock)
        else:
            self.writer = runs.Writer.create(self.out, argv=sys.argv[1:], **self.created)

    def restore(self, learners: Mapping[str, checkpoint.Checkpointable]) -> None:
        """Restore learners, `state` and metrics from the last checkpoint, if there is one for the same data."""
        assert self.out is not None
        before = checkpoint.restore_learners(self.out, learners)
        if before is None:
            self.metrics = []
            self.echo(f"{self.out}: has no checkpoint yet, so training starts from the beginning")
            return
        missing = set(self.state) - set(before)
        if missing:
            raise ValueError(f"{self.out}: its checkpoint lacks {min(missing)!r}; it is damaged, or of another version")
        if before["data"] != self.state["data"]:
            raise ValueError(f"the data has changed since the run in {self.out} began; begin a new one")
        if before.get("holdout") != self.state.get("holdout"):  # the test set would be of training episodes
            raise ValueError(f"other episodes are held out than when the run in {self.out} began; begin a new one")
        self.state = before
        found = runs.read(self.out, lines=before["lines"])
        self.report_damage(found)
        self.metrics = found.metrics

    def report_damage(self, run: runs.Run) -> None:
        """Say which metrics could not be read."""
        for line in run.damaged:
            self.echo(f"rbi: {line}; the run goes on without them")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
        if self.lock is not None:
            self.lock.release()

    def metric(self, **values: Any) -> None:
        """Record one line of metrics."""
        line = json.loads(fileio.to_json(values))
        self.metrics.append(line)
        self.state["lines"] += 1
        if self.writer is not None:
            self.writer.log(**values)
        if self.callback is not None:
            self.callback(line)

    def save(self, learners: Mapping[str, checkpoint.Checkpointable]) -> None:
        """Write a checkpoint, if there is a run folder."""
        if self.writer is not None:
            checkpoint.save_learners(self.writer.path, learners, self.state)

    def stop(self) -> None:
        """Raise KeyboardInterrupt after a checkpoint was saved; its message says how to continue."""
        if self.out is None:
            raise KeyboardInterrupt
        how = shlex.join(["--resume", "--out", str(self.out)])
        raise KeyboardInterrupt(f"stopped; continue with the same options and {how} (Python: resume=True)")

    def result(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Record the result: the run is complete."""
        if self.writer is not None:
            self.writer.result(values)
        found: dict[str, Any] = json.loads(fileio.to_json(values))
        self.numbers = found
        return found

    def echo(self, line: str) -> None:
        """A message on the error stream, unless progress is off."""
        if self.progress:
            echo(line, stderr=True)


def fingerprint(data: Dataset | Path) -> dict[str, Any]:
    """What shows that data has changed: size and time of a path's files, or an in-memory checksum."""
    if isinstance(data, Dataset):
        checksum = 0
        for name in ("actions", "rewards"):
            checksum = zlib.crc32(data.arrays[name].tobytes(), checksum)
        return {"episodes": len(data), "steps": data.steps, "checksum": checksum}
    return fileio.data_stats(data)
