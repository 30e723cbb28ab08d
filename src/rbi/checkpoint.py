"""A training run on disk, to go on from: everything that changes, whole or not at all.

    checkpoints/<updates>/state.json            counters, and the size and checksum of every other file
                          tensors.safetensors   networks, optimiser, target, actors' memories, random states
                          replay.safetensors    the replay, where it is saved
                          worlds.bin            the environments, where they can be copied

The environments are pickled: go on only with runs that you trust. A new checkpoint takes its name when it is complete,
and only then the one before it goes.
"""

import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

from rbi import runs

FOLDER, STATE, TENSORS, REPLAY, WORLDS = (
    "checkpoints", "state.json", "tensors.safetensors", "replay.safetensors", "worlds.bin",
)  # fmt: skip


def save(run: Path, engine: Any, *, with_replay: bool, about: dict[str, Any]) -> Path:
    """Write a checkpoint of the engine, between two ticks; `about` is kept beside its counters."""
    tensors = engine.tensors()  # which waits for all that is on its way
    at = run / FOLDER / f"{engine.learner.updates:010d}"
    with runs.whole_folder(at) as growing:
        save_file({name: on_host(t) for name, t in tensors.items()}, growing / TENSORS)
        if with_replay:
            save_file({name: on_host(t) for name, t in engine.replay.state().items()}, growing / REPLAY)
        worlds = [world.state() for world in engine.worlds]
        if all(worlds):
            sizes = [len(state or b"") for state in worlds]
            (growing / WORLDS).write_bytes(b"".join(state or b"" for state in worlds))
        else:
            sizes = []
        files = {file.name: fingerprint(file) for file in growing.iterdir()}
        known = {"world": engine.plan.env.id, "algo": engine.plan.algo, "worlds": sizes}
        runs.write_json(growing / STATE, known | {"counters": engine.counters(), "about": about, "files": files})
    forget_older(at)
    return at


def forget_older(at: Path) -> None:
    """Remove the checkpoints beside a complete one."""
    for older in at.parent.iterdir():
        if older != at:
            shutil.rmtree(older, ignore_errors=True)


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, if there is one."""
    found = [p for p in (run / FOLDER).glob("*") if re.fullmatch(r"\d{10}", p.name) and (p / STATE).is_file()]
    return max(found, default=None)


def restore(path: Path, engine: Any) -> dict[str, Any]:
    """Put the engine where the checkpoint was; what was said `about` it. A torn or foreign file is named."""
    state = read(path)
    for what, here in (("world", engine.plan.env.id), ("algo", engine.plan.algo)):
        if state[what] != here:
            raise ValueError(f"{path}: is a checkpoint of {state[what]}, not of {here}")
    replay = load_file(path / REPLAY) if REPLAY in state["files"] else None
    worlds = None
    if state["worlds"]:
        whole, worlds = (path / WORLDS).read_bytes(), []
        for size in state["worlds"]:
            worlds.append(whole[:size])
            whole = whole[size:]
    engine.restore(state["counters"], load_file(path / TENSORS), replay, worlds)
    about: dict[str, Any] = state["about"]
    return about


def read(path: Path, keys: Sequence[str] = ("world", "algo", "worlds", "counters")) -> dict[str, Any]:
    """state.json of a checkpoint whose files are all there as they were written."""
    state = runs.parse(path / STATE, runs.read_text(path / STATE), 1)
    for key in (*keys, "about", "files"):
        if key not in state:
            raise ValueError(f"{path / STATE}: lacks {key!r}; the checkpoint is damaged")
    for name, wanted in state["files"].items():
        if not (path / name).is_file():
            raise ValueError(f"{path / name}: is missing from the checkpoint")
        if fingerprint(path / name) != wanted:
            raise ValueError(f"{path / name}: is torn or was changed (its size or checksum is not what was written)")
    return state


def fingerprint(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def draw_on(generator: torch.Generator, state: torch.Tensor) -> None:
    """Let a generator go on from a saved state. One of another kind of device means nothing to it: then its draws begin
    anew, from its seed."""
    if state.shape == generator.get_state().shape:
        generator.set_state(state)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares memory with nothing, as safetensors wants it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


# Offline learners: several of them in one checkpoint, in the same layout (state.json and tensors.safetensors).

GENERATOR = ".generator."


class Checkpointable(Protocol):
    """A learner that can be saved and restored: its tensors, its random states and its number of updates."""

    updates: int

    def state(self) -> dict[str, torch.Tensor]: ...

    def generators(self) -> list[torch.Generator]: ...


def save_learners(run: Path, learners: Mapping[str, Checkpointable], about: dict[str, Any]) -> None:
    """Write a checkpoint of idle learners, with `about` (anything JSON can hold) beside it."""
    updates = {name: learner.updates for name, learner in learners.items()}
    before = newest(run)
    at = run / FOLDER / f"{0 if before is None else int(before.name) + 1:010d}"  # never over the only one there is
    with runs.whole_folder(at) as growing:
        save_file({name: on_host(tensor) for name, tensor in learner_tensors(learners).items()}, growing / TENSORS)
        files = {TENSORS: fingerprint(growing / TENSORS)}
        runs.write_json(growing / STATE, {"updates": updates, "about": about, "files": files})
    forget_older(at)


def learner_tensors(learners: Mapping[str, Checkpointable]) -> dict[str, torch.Tensor]:
    """Every tensor that training changes, and the states of the random generators."""
    found: dict[str, torch.Tensor] = {}
    for name, learner in learners.items():
        found |= {f"{name}.{key}": tensor for key, tensor in learner.state().items()}
        drawn = [generator.get_state() for generator in learner.generators()]
        found |= {f"{name}{GENERATOR}{number}": state for number, state in enumerate(drawn)}
    return found


def restore_learners(run: Path, learners: Mapping[str, Checkpointable]) -> dict[str, Any] | None:
    """Restore learners from the newest checkpoint; returns its `about`, or None if there is no checkpoint."""
    at = newest(run)
    if at is None:
        return None
    state, saved = read(at, ("updates",)), load_file(at / TENSORS)
    for name, tensor in learner_tensors(learners).items():
        if name not in saved or (saved[name].shape != tensor.shape and GENERATOR not in name):
            raise ValueError(f"{at / TENSORS}: lacks {name} as these settings have it; it is of another run")
    for name, learner in learners.items():
        learner.updates = int(state["updates"][name])
        for key, tensor in learner.state().items():
            tensor.copy_(saved[f"{name}.{key}"])
        for number, generator in enumerate(learner.generators()):
            draw_on(generator, saved[f"{name}{GENERATOR}{number}"])
    about: dict[str, Any] = state["about"]
    return about
