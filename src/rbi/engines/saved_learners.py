"""Learners from logs on disk, to go on from: weights, optimisers, random states and counters, whole or not at all.

The layout is that of `checkpoint`: checkpoints/<number>/ with state.json and tensors.safetensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rbi import runs
from rbi.engines.checkpoint import FOLDER, STATE, TENSORS, draw_on, fingerprint, forget_older, newest, on_host, read
from rbi.offline.learning import LearnsFromLogs

GENERATOR = ".generator."


def save(run: Path, learners: Mapping[str, LearnsFromLogs], about: dict[str, Any]) -> None:
    """Write a checkpoint of learners that are at rest; `about` is kept beside it."""
    updates = {name: learner.updates for name, learner in learners.items()}
    before = newest(run)
    at = run / FOLDER / f"{0 if before is None else int(before.name) + 1:010d}"  # never over the only one there is
    with runs.whole_folder(at) as growing:
        save_file({name: on_host(tensor) for name, tensor in tensors(learners).items()}, growing / TENSORS)
        files = {TENSORS: fingerprint(growing / TENSORS)}
        runs.write_json(growing / STATE, {"updates": updates, "about": about, "files": files})
    forget_older(at)


def tensors(learners: Mapping[str, LearnsFromLogs]) -> dict[str, torch.Tensor]:
    """All that changes in learners, and the states of what they draw from."""
    found: dict[str, torch.Tensor] = {}
    for name, learner in learners.items():
        found |= {f"{name}.{key}": tensor for key, tensor in learner.state().items()}
        drawn = [generator.get_state() for generator in learner.generators()]
        found |= {f"{name}{GENERATOR}{number}": state for number, state in enumerate(drawn)}
    return found


def restore(run: Path, learners: Mapping[str, LearnsFromLogs]) -> dict[str, Any] | None:
    """Put learners where the newest checkpoint was; what was said `about` it, or None where there is none."""
    at = newest(run)
    if at is None:
        return None
    state, saved = read(at, ("updates",)), load_file(at / TENSORS)
    for name, tensor in tensors(learners).items():
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
