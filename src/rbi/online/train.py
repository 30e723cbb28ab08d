"""Online training as one call: `train` makes a run with logging, checkpoints, policies and a final evaluation."""

import contextlib
import dataclasses
import inspect
import math
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rbi import checkpoint, envs, fileio, runs
from rbi.config import Device, check_callback, check_kind, check_seed, choose_device
from rbi.envs.types import EnvConfig, EnvFactory, VectorEnv
from rbi.evaluation.rollouts import EvaluationResult
from rbi.mirror import Mirror
from rbi.networks import TrunkFactory, cpu_threads
from rbi.observations import ObservationSpec
from rbi.online.config import (
    GROUPS,
    PAPER_MAX_FRAMES,
    PARTS,
    Algorithm,
    Preset,
    TrainConfig,
    default_preset,
    saved_parts,
    setting_names,
    unknown_setting,
)
from rbi.online.engine import Engine, LocalEngine, observation_spec
from rbi.online.run_logger import Callback, RunLogger, RunOptions, TrainProgress, TrainResult, take_options
from rbi.policy import load_policy
from rbi.progress import echo, graceful_stop
from rbi.replay import available_memory, bytes_needed
from rbi.torch_settings import matmul_precision, with_own_settings

Env = str | EnvFactory | EnvConfig

MAY_CHANGE_ON_RESUME = ("preset", *runs.CHANGED_ON_RESUME)
PILOT_STEPS = 256  # that show how large rewards are
ENV_SETTINGS = ("max_frames", "repeat_action_probability", "noop_max")  # that config.json stores


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
        num_envs, processes = config.schedule.num_envs // GROUPS, config.schedule.env_processes
        kind: dict[str, Any] = {"synchronous": on_cpu, "for_gpu": device.type == "cuda"}
        groups: list[VectorEnv] = []
        with contextlib.ExitStack() as stack:
            for _ in range(GROUPS):
                groups.append(envs.make(config.env, num_envs, threads, processes=processes, **kind))
                stack.callback(groups[-1].close)
            stack.enter_context(matmul_precision(device))
            with cpu_threads(device, groups[0].obs_shape, config.schedule.hidden_size):
                yield LocalEngine(config, seed, device, groups, trunk)


@with_own_settings
def train(
    env: Env | None = None,
    algo: Algorithm | None = None,
    *,
    preset: Preset | None = None,
    config: TrainConfig | None = None,
    out: Path | str | None = None,
    seed: int | None = None,
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
    """Train a policy in an environment, with RBI (`algo="rbi"`, the default) or Ape-X (`algo="apex"`).

        run = rbi.train("CartPole-v1", out="runs/cart")
        run.policy, run.scores, print(run.summary())

    `env` is a Gymnasium id or a function that makes a Gymnasium environment. Settings come from `preset` (by default
    `fast` for Atari games, `small` for anything else) or a whole `config`; `overrides` change single ones, such as
    `updates=2000`, `batch_size=64`, `n_step=5`, or `RunOptions` such as `eval_episodes=0`.

    With `out`, a run folder with metrics, checkpoints, TensorBoard logs and policies is written, and `resume=True`
    continues it from its last checkpoint with its own settings, algorithm and seed; without `out` nothing is left on
    disk. The seed of a new run is 0 by default. `callback` gets a dictionary of metrics at each report; training stops
    early if it returns False. The first Ctrl-C stops at a point that can be resumed. `trunk` makes a `torch.nn.Module`
    in place of the networks' own trunk, from the observation spec; `engine` trains elsewhere than on this machine.
    """
    options = take_options(overrides, options)
    check_names(overrides)
    check_callback(callback)
    path = folder_of(out)
    if resume and (path is None or overwrite):
        raise ValueError("resume: name the run with out, without overwrite")
    resumed = path if resume else None
    mirror = open_mirror(path, options, resume=resume, overwrite=overwrite, progress=progress)
    start: Path | None = None
    with contextlib.ExitStack() as stack:
        lock = None if resumed is None else stack.enter_context(runs.lock_run(resumed))
        chosen = resolve_config(env, algo, preset, config, resumed, overrides)
        seed = resolve_seed(seed, resumed)
        if path is not None and not resume:
            runs.check_available(fileio.resolve(path), overwrite=overwrite)
        chosen = resolve_reward_scale(chosen, resumed, progress=progress)
        make_engine = engine or Local(device)
        settings = run_settings(chosen, preset) | make_engine.settings
        if resumed is not None:
            check_resumable(resumed, settings, seed, make_engine.may_change, progress=progress)
            check_same_preset(resumed, chosen.env, preset)
            if (complete := load_complete(resumed, chosen, trunk)) is not None:
                if progress:
                    echo(f"nothing left to do: {resumed} is complete; more updates continue it")
                return complete
            start = find_checkpoint(resumed, chosen, progress=progress)
        running = stack.enter_context(make_engine(chosen, seed, trunk, progress=progress))
        info: dict[str, Any] = {"seconds": 0.0, "best": None, "lines": 0}
        if start is not None and resumed is not None:
            saved, given = checkpoint.load(start, {"env": chosen.env.id, "algo": chosen.algo}), trunk is not None
            if saved.kind.get("custom_trunk", given) != given:
                trunks = "without a custom trunk; leave trunk out" if given else "with a custom trunk; pass it as trunk"
                raise ValueError(f"{resumed}: was started {trunks}")
            with fileio.naming(start):
                running.restore(saved)
                info = count_resume(resumed, info | saved.info, running)
        created = {"settings": settings, "seed": seed, "argv": argv, "overwrite": overwrite}
        writer = None if path is None else open_run(path, lock, info["lines"], created, from_start=start is None)
        stack.enter_context(writer or contextlib.nullcontext())
        if mirror is not None and writer is not None and not resume:
            mirror.upload(writer.path, keep=1)  # shows at once whether the URL can be written to
        logger = RunLogger(running, writer, options, seed, info, callback, trunk)
        stack.callback(logger.close)
        stopped = run_to_end(running, logger, progress=progress)
        if stopped and not logger.stop and writer is not None:
            logger.save()
            named = ["--env", chosen.env.id] if ":" in chosen.env.id else []  # which a run folder may not name
            how = f"{shlex.join([*named, '--resume', '--out', str(writer.path)])} (Python: resume=True)"
            raise KeyboardInterrupt(f"stopped after {running.updates:,} updates; continue with {how}")
        return logger.finish(stopped=stopped, progress=progress)


def check_names(overrides: Iterable[str]) -> None:
    """Raise ValueError for a setting that does not exist, with the nearest of all that `train` takes."""
    known = setting_names()
    if unknown := [name for name in overrides if name not in known]:
        of_call = [*inspect.signature(train).parameters, *(option.name for option in dataclasses.fields(RunOptions))]
        raise unknown_setting(unknown[0], [*known, *of_call])


def run_to_end(engine: Engine, logger: RunLogger, *, progress: bool) -> bool:
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


# Settings and run folders


def folder_of(out: Path | str | None) -> Path | None:
    """The run folder; a URL is refused with the option that takes one."""
    if out is not None and fileio.is_url(str(out)):
        raise ValueError(f"{out}: is a URL; name a folder with --out, and the URL with --mirror")
    return None if out is None else fileio.as_path(out)


def open_mirror(
    path: Path | None, options: RunOptions, *, resume: bool, overwrite: bool, progress: bool
) -> Mirror | None:
    """The mirror of a run; the folder of a resumed run is restored from it where it is lost or behind."""
    if not options.mirror:
        return None
    if path is None:
        raise ValueError("mirror: name the run folder with out")
    mirror = Mirror(options.mirror)
    if not resume:
        mirror.check_available(overwrite=overwrite)
    elif (restored := mirror.restore(path)) and progress:
        echo(restored, stderr=True)
    return mirror


def resolve_config(
    env: Env | None,
    algo: Algorithm | None,
    preset: Preset | None,
    config: TrainConfig | None,
    resumed: Path | None,
    overrides: Mapping[str, Any],
) -> TrainConfig:
    """The settings of a run: of the run that is resumed, a whole config, or a preset; with overrides."""
    check_kind("config", config, TrainConfig)
    if config is not None:
        if env is not None or algo is not None:
            raise ValueError("config: has its own env and algo; leave them out, or change them with config.changed")
        return config.changed(**overrides)
    if resumed is not None:
        saved = load_config(resumed)
        if env is None:
            envs.id_from_file(saved.env.id, resumed / "config.json")
        given = {name: value for name, value in {"env": env, "algo": algo}.items() if value is not None}
        return saved.changed(**given, **overrides)
    if env is None:
        raise ValueError("env: name a Gymnasium environment, or give a function that makes one")
    return TrainConfig.preset(env, algo or "rbi", preset, **overrides)


def resolve_seed(seed: int | None, resumed: Path | None) -> int:
    """The seed of a run: the given one, that of the run that is resumed, or 0."""
    if seed is not None or resumed is None:
        return check_seed(0 if seed is None else seed)
    with fileio.naming(resumed / "config.json"):
        return int(runs.read(resumed, 0).config["seed"])


def resolve_reward_scale(config: TrainConfig, resumed: Path | None, *, progress: bool) -> TrainConfig:
    """The settings with `reward_scale` measured, if it is 0; that of the run that is resumed."""
    if config.actor.reward_scale:
        return config
    found = measure_reward_scale(config.env) if resumed is None else load_config(resumed).actor.reward_scale
    if progress and found != 1:
        echo(f"rewards are about {found:g}: networks learn them in units of it (--actor.reward-scale)", stderr=True)
    return config.changed(reward_scale=found)


def measure_reward_scale(env: EnvConfig) -> float:
    """The power of ten nearest to the median size of rewards other than 0 in a few steps of random legal actions; 1 if
    there are none."""
    rng, sizes = np.random.default_rng(0), []
    with contextlib.closing(envs.make(env, 4, 1, synchronous=True)) as vector:
        step = vector.reset(0)
        for _ in range(PILOT_STEPS // vector.num_envs):
            preference = rng.random((vector.num_envs, vector.num_actions))
            vector.send((preference * step.legal if vector.has_action_masks else preference).argmax(1))
            step = vector.recv()
            sizes.append(np.abs(step.reward))
    rewards = np.concatenate(sizes)
    rewards = rewards[rewards > 0]
    return float(10.0 ** round(math.log10(np.median(rewards)))) if len(rewards) else 1.0


def check_resumable(
    path: Path, settings: Mapping[str, Any], seed: int, may_change: Sequence[str], *, progress: bool
) -> None:
    """Raise ValueError unless a folder holds a run with these settings; a line names those that it was started without.

    `may_change` names settings of the engine that may differ.
    """
    may_change = (*MAY_CHANGE_ON_RESUME, *may_change)
    without = runs.check_resumable(
        path, command="train", settings=settings, seed=seed, defaults=default_settings(), may_change=may_change
    )
    if without and progress:
        echo(without, stderr=True)


def check_same_preset(path: Path, env: EnvConfig, preset: Preset | None) -> None:
    """Raise ValueError if a run is resumed with another preset, which would have no effect."""
    started = runs.read(path, 0).config["settings"].get("preset") or default_preset(env)
    if preset not in (None, started):
        raise ValueError(f"{path}: was started with preset = {started}, not {preset}; leave it out to resume the run")


def run_settings(config: TrainConfig, preset: Preset | None) -> dict[str, Any]:
    """The settings that config.json stores."""
    env = {name: getattr(config.env, name) for name in ENV_SETTINGS}
    parts = {name: getattr(config, name) for name in PARTS}
    return {"algo": config.algo, "env": config.env.id, "preset": preset} | env | parts


def default_settings() -> dict[str, Any]:
    """What config.json would store of a setting that did not exist when a run was started: the default of its class,
    which keeps what was done before, and not that of a preset."""
    env = EnvConfig("default", max_frames=PAPER_MAX_FRAMES)
    return {"engine": "local"} | {name: getattr(env, name) for name in ENV_SETTINGS} | saved_parts({})


def load_config(path: Path | str) -> TrainConfig:
    """The settings that a run folder of training was started with; `default_settings` for those that it lacks."""
    found = runs.read(path).config
    if found.get("command") != "train":
        raise ValueError(f"{path}: is a run of {found.get('command')!r}, not of 'train'")
    try:
        settings = found["settings"]
        of_env = {name: default for name, default in default_settings().items() if name in ENV_SETTINGS} | settings
        env = EnvConfig(settings["env"], **{name: of_env[name] for name in ENV_SETTINGS})
        return TrainConfig(env, settings["algo"], **saved_parts(settings))
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
    with fileio.naming(start / checkpoint.STATE):
        done = counters["updates"] - counters.get("repeated_updates", 0)
    check_not_beyond(path, done, config)
    return start


def check_not_beyond(path: Path, done: int, config: TrainConfig) -> None:
    """Raise ValueError if a run has done more updates than it is resumed with."""
    if done > config.schedule.updates:
        raise ValueError(f"--schedule.updates = {config.schedule.updates}: {path} has done {done:,} already")


def count_resume(path: Path, info: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """The checkpoint's info, with one more resume and the updates after the checkpoint that are repeated."""
    for line in runs.read(path, info["lines"]).damaged:
        echo(f"rbi: {line}; the run goes on without them", stderr=True)
    run = runs.read(path)
    repeated = max(0, run.metrics[-1]["updates"] - engine.updates) if run.metrics else 0
    before = info.get("resumed") or {"times": 0, "repeated_updates": 0}
    return info | {"resumed": {"times": before["times"] + 1, "repeated_updates": before["repeated_updates"] + repeated}}


def open_run(
    path: Path, lock: fileio.RunLock | None, lines: int, created: dict[str, Any], *, from_start: bool
) -> runs.Writer:
    """A new run folder, or that of a locked run: metrics after its checkpoint and its result are removed, and its
    config.json gets the settings that have changed."""
    if lock is None:
        return runs.Writer.create(path, command="train", **created)
    runs.save_changed_settings(path, created["settings"])
    if from_start:
        shutil.rmtree(path / "tensorboard", ignore_errors=True)
    (path / "result.json").unlink(missing_ok=True)  # the run is not complete any more
    return runs.Writer.reopen(path, lines=lines, lock=lock)


def load_complete(path: Path, config: TrainConfig, trunk: TrunkFactory | None) -> TrainResult | None:
    """The result of a run that has done all its updates, from its folder; None for any other."""
    run = runs.read(path)
    found = run.result
    if found is None:
        return None
    with fileio.naming(path / "result.json"):
        done = found["last"]["updates"] - found.get("repeated_updates", 0)
    check_not_beyond(path, done, config)
    if done < config.schedule.updates:
        return None
    with fileio.naming(path / "result.json"):
        policies = {name: path / "policies" / name for name in ("last", "best")}
        evaluation = found.get("evaluation")
        return TrainResult(
            env=found["env"],
            algo=found["algo"],
            seed=run.config["seed"],
            policy=load_policy(policies["last"], trunk=trunk),
            best_policy=load_policy(policies["best"], trunk=trunk) if policies["best"].is_dir() else None,
            best_score=found["best_score"],
            metrics=run.metrics,
            evaluation=None if evaluation is None else EvaluationResult(**evaluation),
            seconds=found["seconds"],
            device=found["device"],
            out=path,
        )


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
