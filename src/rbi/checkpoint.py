"""Checkpoints: everything that training changes, saved whole or not at all, and restored to the last bit.

    checkpoints/<number>/state.json          counters, and the sizes and checksums of all files
                         <name>.safetensors  tensors: networks, optimiser, random states; the replay

`save` and `load` take a `Checkpoint`, which any training run can fill; `save_learners` and `restore_learners` do it for
learners with a `state`. A new checkpoint gets its name when it is complete, and only then are older ones removed.
Loading one runs no code: everything is JSON or tensors.
"""

import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rbi import fileio

FOLDER, STATE = "checkpoints", "state.json"
TENSORS = ".safetensors"
GENERATOR = ".generator."


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint."""

    kind: dict[str, Any]
    """What it belongs to, such as environment and algorithm; only a run of the same kind can be restored from it."""
    counters: dict[str, Any]
    """Everything that JSON can hold."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """Named groups of named tensors, one file each."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the caller keeps with it, such as the number of lines in metrics.jsonl."""


def save(run: Path, number: int, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and remove the older ones."""
    path = run / FOLDER / f"{number:010d}"
    with fileio.atomic_folder(path) as growing:
        for name, tensors in checkpoint.tensors.items():
            save_file({key: on_host(tensor) for key, tensor in tensors.items()}, growing / (name + TENSORS))
        state = {
            "kind": checkpoint.kind,
            "counters": checkpoint.counters,
            "info": checkpoint.info,
            "files": {file.name: fingerprint(file) for file in sorted(growing.iterdir())},
        }
        fileio.write_json(growing / STATE, with_checksum(state))
    for older in path.parent.iterdir():
        if older != path:
            shutil.rmtree(older, ignore_errors=True)
    return path


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    found = [p for p in (run / FOLDER).glob("*") if re.fullmatch(r"\d{10}", p.name) and (p / STATE).is_file()]
    return max(found, default=None)


def load(path: Path, kind: Mapping[str, Any] | None = None) -> Checkpoint:
    """Read a checkpoint; raises ValueError naming a file that is missing or damaged, and for another `kind`."""
    state = read_state(path)
    for key, wanted in (kind or {}).items():
        if state["kind"].get(key) != wanted:
            raise ValueError(f"{path}: is a checkpoint of {state['kind'].get(key)}, not of {wanted}")
    tensors = {file.removesuffix(TENSORS): load_file(path / file) for file in state["files"] if file.endswith(TENSORS)}
    return Checkpoint(state["kind"], state["counters"], dict(tensors), state["info"])


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a checkpoint, after all files were compared with their recorded sizes and checksums."""
    state = fileio.parse(path / STATE, fileio.read_text(path / STATE), 1)
    for key in ("kind", "counters", "info", "files"):
        if not isinstance(state.get(key), dict):
            raise ValueError(f"{path / STATE}: lacks {key!r}; the checkpoint is damaged")
    if with_checksum(state) != state:
        raise ValueError(f"{path / STATE}: is damaged (its checksum is not the recorded one)")
    for name, recorded in state["files"].items():
        if Path(name).name != name:
            raise ValueError(f"{path / STATE}: {name!r} is not the name of a file in this folder")
        if not (path / name).is_file():
            raise ValueError(f"{path / name}: is missing from the checkpoint")
        if fingerprint(path / name) != recorded:
            raise ValueError(f"{path / name}: is damaged (its size or checksum is not the recorded one)")
    return state


def with_checksum(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the CRC-32 of its own JSON."""
    found = {key: value for key, value in state.items() if key != "checksum"}
    return found | {"checksum": zlib.crc32(fileio.to_json(found).encode())}


def fingerprint(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Set a generator to a saved state. A state of another device type cannot be used: the generator then starts again
    from its seed."""
    if state.shape == generator.get_state().shape:
        generator.set_state(state)


def on_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU that shares no memory, as safetensors requires."""
    return tensor.detach().to("cpu", copy=True).contiguous()


class Checkpointable(Protocol):
    """A learner that can be saved and restored: its tensors, its random states and its number of updates."""

    updates: int

    def state(self) -> dict[str, Tensor]: ...

    def generators(self) -> list[torch.Generator]: ...


def save_learners(run: Path, learners: Mapping[str, Checkpointable], info: dict[str, Any]) -> None:
    """Write a checkpoint of idle learners, with `info` (anything JSON can hold) in it."""
    before = newest(run)
    number = 0 if before is None else int(before.name) + 1  # never over the only one there is
    updates = {name: learner.updates for name, learner in learners.items()}
    tensors = {"learners": learner_tensors(learners)}
    save(run, number, Checkpoint({"learners": sorted(learners)}, {"updates": updates}, dict(tensors), info=info))


def learner_tensors(learners: Mapping[str, Checkpointable]) -> dict[str, Tensor]:
    """Every tensor that training changes, and the states of the random generators."""
    found: dict[str, Tensor] = {}
    for name, learner in learners.items():
        found |= {f"{name}.{key}": tensor for key, tensor in learner.state().items()}
        states = [generator.get_state() for generator in learner.generators()]
        found |= {f"{name}{GENERATOR}{number}": state for number, state in enumerate(states)}
    return found


def restore_learners(run: Path, learners: Mapping[str, Checkpointable]) -> dict[str, Any] | None:
    """Restore learners from the newest checkpoint; returns its `info`, or None if there is no checkpoint."""
    path = newest(run)
    if path is None:
        return None
    checkpoint = load(path, {"learners": sorted(learners)})
    saved = checkpoint.tensors.get("learners", {})
    for name, tensor in learner_tensors(learners).items():
        if name not in saved or (saved[name].shape != tensor.shape and GENERATOR not in name):
            raise ValueError(f"{path}: has no {name} of the shape {tuple(tensor.shape)}; it belongs to other settings")
    try:
        updates = {name: int(checkpoint.counters["updates"][name]) for name in learners}
    except (LookupError, TypeError):
        raise ValueError(f"{path / STATE}: does not count the updates of every learner") from None
    for name, learner in learners.items():
        learner.updates = updates[name]
        for key, tensor in learner.state().items():
            tensor.copy_(saved[f"{name}.{key}"])
        for number, generator in enumerate(learner.generators()):
            restore_generator(generator, saved[f"{name}{GENERATOR}{number}"])
    return checkpoint.info
