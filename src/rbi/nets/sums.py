"""Sums over rows: what a bias's gradient is made of. PyTorch's own kernels take up to ten microseconds for a few."""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

COLUMNS_A_BLOCK = 16
MOST_ROWS = 1024  # held at once by a block


def column_sums(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """`[N, C]`: the sums `[C]`, added up in float32 and given in `dtype`."""
    count, columns = rows.shape
    if not rows.is_cuda or not 0 < count <= MOST_ROWS or kernel() is None:
        return rows.sum(0, dtype=torch.float32).to(dtype)
    total = torch.empty(columns, dtype=dtype, device=rows.device)
    high = 1 << (count - 1).bit_length()
    kernel()[(-(-columns // COLUMNS_A_BLOCK),)](rows.contiguous(), total, count, columns, high, COLUMNS_A_BLOCK)
    return total


@functools.cache
def kernel() -> Any:
    """The fused kernel, or None where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    from rbi.nets.sums_kernel import sums_kernel

    return sums_kernel
