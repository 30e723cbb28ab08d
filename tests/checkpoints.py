"""Checkpoints as a machine with a GPU would have written them."""

import json

import torch
from safetensors.torch import load_file, save_file

from rbi.checkpoint import STATE, TENSORS, fingerprint, with_checksum

GPU_STATE_BYTES = 16  # of a CUDA generator


def use_gpu_random_states(checkpoint, name_part):
    """Replace the random states whose names contain `name_part` by those of a GPU."""
    state, changed = json.loads((checkpoint / STATE).read_text()), 0
    for path in checkpoint.glob(f"*{TENSORS}"):
        tensors = load_file(path)
        for name in tensors:
            if name_part in name:
                tensors[name] = torch.zeros(GPU_STATE_BYTES, dtype=torch.uint8)
                changed += 1
        save_file(tensors, path)
        state["files"][path.name] = fingerprint(path)
    assert changed
    (checkpoint / STATE).write_text(json.dumps(with_checksum(state)))
