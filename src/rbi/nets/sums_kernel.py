# mypy: ignore-errors
# Reason: this is Triton's language, which looks like Python but is compiled for the GPU; its names carry no types.
"""Sums over rows in one step. Imported only where Triton is installed."""

import triton
import triton.language as tl


@triton.jit
def sums_kernel(rows, total, count, columns, HIGH: tl.constexpr, WIDE: tl.constexpr):
    row, at = tl.arange(0, HIGH), tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    inside = (row < count)[:, None] & (at < columns)[None, :]
    found = tl.load(rows + row[:, None] * columns + at[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(total + at, tl.sum(found, 0).to(total.dtype.element_ty), mask=at < columns)
