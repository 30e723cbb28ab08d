"""Collects run folders into the `Report` that the HTML page shows."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rbi import __version__, fileio, runs
from rbi.report import train
from rbi.report.panels import IntervalRow, Intervals, Panel, Report, RunSection, Table
from rbi.report.run_panels import PANELS, Summary, learning_curves
from rbi.runs import Run, flat_settings

MAX_SETTING = 300  # characters of a value
PARTIAL = ("train",)  # kinds of runs with something to show before they are complete


def collect(paths: Sequence[Path], *, title: str = "", live: bool = False) -> Report:
    """Everything that the page shows of some run folders. The folder of a sweep stands for the runs inside it.

    Raises ValueError for a path that is not a run folder, or whose config.json or result.json cannot be parsed. A run
    of an unknown kind, or with an unexpected result, still shows its settings, and its `warnings` say why.
    """
    read = [runs.read(path) for path in expand(paths)]
    sections = [section(run, name) for run, name in zip(read, unique_names(read), strict=True)]
    names = [found.name for found in sections]
    shown = [bool(found.panels) for found in sections]
    return Report(
        title=title or (names[0] if len(names) == 1 else f"{len(names)} runs"),
        version=__version__,
        made=fileio.utc_now(),
        comparison=comparison(read, names, shown) if len(read) > 1 else [],
        runs=sections,
        live=live,
    )


def expand(paths: Sequence[Path]) -> list[Path]:
    """The run folders; a sweep is replaced by its runs."""
    found = []
    for path in paths:
        inside = sorted(each.parent for each in path.glob("runs/*/config.json"))
        found += inside if inside and (path / "config.json").is_file() else [path]
    return found


def unique_names(read: Sequence[Run]) -> list[str]:
    """Short names of runs: the last parts of their paths, as many as tell them apart."""
    parts = [fileio.resolve(run.path).parts for run in read]
    for depth in range(1, max(len(each) for each in parts) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(each[-1:])} ({n})" for n, each in enumerate(parts, 1)]


def section(run: Run, name: str) -> RunSection:
    """One run. What cannot be shown is a warning."""
    config, warnings = run.config, list(run.damaged)
    command = str(config.get("command", ""))
    summary: Summary = []
    panels: list[Panel] = []
    if command not in PANELS:
        warnings.append(f"runs of {command!r} have no charts" if command else "config.json names no command")
    elif run.result is None and command not in PARTIAL:
        warnings.append("the run is not complete (it has no result.json)")
    elif is_sweep(run):
        warnings.append("none of the sweep's runs has begun")
    else:
        try:
            with fileio.naming(run.path / "result.json"):
                summary, panels = PANELS[command](run)
        except ValueError as error:
            warnings.append(str(error))
    return RunSection(
        name=name,
        path=str(run.path),
        command=command,
        command_line=command_line(config),
        complete=run.result is not None,
        seed=config["seed"] if isinstance(config.get("seed"), int) else None,
        started=str(config.get("started", "")),
        summary=summary,
        panels=panels,
        settings=rows_of(config.get("settings")),
        versions=[*rows_of(config.get("versions")), *rows_of(config.get("machine"))],
        warnings=warnings,
    )


def command_line(config: dict[str, Any]) -> str:
    """How to run it again from the shell; empty for runs that were started from Python."""
    argv = config.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return ""
    return shlex.join(["rbi", *argv]) if argv[0] == str(config.get("command", "")).partition("-")[0] else ""


def rows_of(values: Any) -> list[list[str]]:
    """Nested settings as rows of name and value."""
    flat = flat_settings(values) if isinstance(values, dict) else {}
    return [[key, setting_text(value)] for key, value in flat.items()]


def setting_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_SETTING else f"{text[:MAX_SETTING]} ..."


# Several runs


def comparison(read: Sequence[Run], names: Sequence[str], shown: Sequence[bool]) -> list[Panel]:
    """Panels of several runs together: learning curves and scores by environment, gains, and differing settings.

    Only settings are compared of a run that cannot be shown: its numbers are not what they should be.
    """
    panels: list[Panel] = []
    named = dict(zip(names, read, strict=True))
    sound = {name: run for (name, run), is_shown in zip(named.items(), shown, strict=True) if is_shown}
    for env, of in by_env({name: run for name, run in sound.items() if is_training(run)}).items():
        if len(of) > 1:
            panels.append(learning_curves(env, seed_groups(of)))
            panels += final_scores(env, of)
    gains = [row for name, run in sound.items() if (row := gain_row(name, run)) is not None]
    if len(gains) > 1:
        title = "Gain over the behaviour policy"
        panels.append(Intervals(title, "gain per episode, with bounds", gains, 0.0, "no gain"))
    for command in dict.fromkeys(run.config.get("command") for run in read):
        of = {name: run for name, run in named.items() if run.config.get("command") == command}
        panels += differing_settings(str(command), of)
    return panels


def is_sweep(run: Run) -> bool:
    """Whether a run of training is the folder of several."""
    settings = run.config.get("settings")
    return run.config.get("command") == "train" and isinstance(settings, dict) and "envs" in settings


def is_training(run: Run) -> bool:
    """Whether a run has learning curves."""
    settings = run.config.get("settings")
    if run.config.get("command") != "train" or not isinstance(settings, dict):
        return False
    return isinstance(settings.get("env"), str) and settings.get("algo") in train.ALGORITHMS


def by_env(named: dict[str, Run]) -> dict[str, dict[str, Run]]:
    found: dict[str, dict[str, Run]] = {}
    for name, run in named.items():
        found.setdefault(run.config["settings"]["env"], {})[name] = run
    return found


def seed_groups(named: dict[str, Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under the name of what tells the groups apart."""
    groups: dict[str, list[str]] = {}
    for name, run in named.items():
        groups.setdefault(json.dumps(run.config["settings"], sort_keys=True), []).append(name)
    members = list(groups.values())
    labels = [train.ALGORITHMS[named[names[0]].config["settings"]["algo"]] for names in members]
    if len(set(labels)) < len(labels):
        settings = [flat_settings(named[names[0]].config["settings"]) for names in members]
        shared = [key for key in settings[0] if all(key in each for each in settings)]
        keys = [key for key in shared if len({setting_text(each[key]) for each in settings}) > 1][:2]
        texts = [", ".join(f"{key.rpartition('.')[2]} {setting_text(each[key])}" for key in keys) for each in settings]
        labels = texts if len(set(texts)) == len(texts) else [names[0] for names in members]
    return {label: [named[name] for name in names] for label, names in zip(labels, members, strict=True)}


def final_scores(env: str, named: dict[str, Run]) -> list[Panel]:
    """Scores of the trained policies, where they were evaluated."""
    rows = []
    for name, run in named.items():
        evaluation = (run.result or {}).get("evaluation")
        if isinstance(evaluation, dict) and evaluation.get("interval"):
            rows.append(IntervalRow(name, evaluation["mean"], *evaluation["interval"]))
    return [Intervals(f"Final policies: {env}", "mean score, 95% interval", rows)] if len(rows) > 1 else []


def gain_row(name: str, run: Run) -> IntervalRow | None:
    """The deciding gain of a run of improve or certify."""
    found: Any = run.result if run.config.get("command") == "certify" else (run.result or {}).get("decision")
    if not isinstance(found, dict) or "chosen" not in found:
        return None
    tone = "good" if found["verdict"] == "deploy" else "bad"
    return IntervalRow(name, found["estimate"], found["lower"], found["chosen"]["upper"], tone, found["verdict"])


def differing_settings(command: str, named: dict[str, Run]) -> list[Panel]:
    """The settings in which runs of one kind differ, and their seeds."""
    flat = {}
    for name, run in named.items():
        settings = run.config.get("settings")
        flat[name] = dict(rows_of(settings)) | {"seed": setting_text(run.config.get("seed"))}
    keys = list(dict.fromkeys(key for each in flat.values() for key in each))
    keys = [key for key in keys if len({each.get(key) for each in flat.values()}) > 1]
    if len(named) < 2 or not keys:
        return []
    rows = [[key, *(each.get(key, "") for each in flat.values())] for key in keys]
    return [Table(f"Settings that differ: {command}", ["setting", *flat], rows, folded=len(keys) > 12)]
