"""Checkpoints as another kind of machine would have written them."""

import json

import torch
from safetensors.torch import load_file, save_file

from rbi.checkpoint import STATE, TENSORS, fingerprint

ON_A_GPU = 16  # bytes in the state of a generator there


def with_random_states_of_a_gpu(checkpoint, name_part):
    """The checkpoint with other random states in place of those whose names hold `name_part`."""
    tensors = load_file(checkpoint / TENSORS)
    changed = [name for name in tensors if name_part in name]
    assert changed
    for name in changed:
        tensors[name] = torch.zeros(ON_A_GPU, dtype=torch.uint8)
    save_file(tensors, checkpoint / TENSORS)
    told = json.loads((checkpoint / STATE).read_text())
    told["files"][TENSORS] = fingerprint(checkpoint / TENSORS)
    (checkpoint / STATE).write_text(json.dumps(told))
