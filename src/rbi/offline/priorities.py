"""Prioritised drawing from data that does not grow.      (Schaul et al. 2016)

    p_i = (|error_i| + constant)^exponent,    P(i) = p_i / sum_j p_j,    w_i = (1 / (N P(i)))^importance / max_batch w

Priorities lie in rows. Drawing takes two steps, first a row by the rows' sums, then a place in it, so no draw scans
everything, and sums are taken afresh from one row each, so none drifts.
"""

import torch
from torch import Tensor

ROW = 1024


class Priorities:
    """A priority for each of `count` positions, at first 1 for all. Nothing here waits for the device."""

    def __init__(self, count: int, exponent: float, importance: float, constant: float, device: torch.device) -> None:
        if count < 1:
            raise ValueError(f"count = {count}: there must be something to draw")
        for name, value in (("exponent", exponent), ("importance", importance)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} = {value}: must lie in [0, 1]")
        if not 0 < constant < torch.inf:
            raise ValueError(f"constant = {constant}: must be positive, or what is well known is never drawn again")
        self.exponent, self.importance, self.constant, self.device = exponent, importance, constant, device
        self.priority = torch.zeros((-(-count // ROW), ROW), device=device)
        self.priority.view(-1)[:count] = 1.0  # what lies behind the last position keeps 0: it cannot be drawn
        self.mass = self.priority.sum(1, dtype=torch.float64)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Positions `[B]`, spread evenly over the mass, and their importance weights `[B]`."""
        uniform = torch.rand(size, device=self.device, dtype=torch.float64, generator=generator)
        edges = self.mass.cumsum(0)
        at = (torch.arange(size, device=self.device) + uniform) / size * edges[-1]
        row = torch.searchsorted(edges, at, right=True).clamp_(max=len(self.mass) - 1)
        inside = self.priority.index_select(0, row).cumsum(1, dtype=torch.float64)
        left = (at - edges[row] + self.mass[row]).clamp_(min=0)
        left = torch.minimum(left, inside[:, -1] * (1 - 1e-9))  # rounding must not lead beyond the row
        place = torch.searchsorted(inside, left[:, None], right=True).squeeze(1).clamp_(max=ROW - 1)
        positions = row * ROW + place
        likely = self.priority.view(-1).index_select(0, positions)
        return positions, (likely.amin() / likely) ** self.importance  # N and the sum cancel

    def renew(self, positions: Tensor, errors: Tensor) -> None:
        """Give positions the priorities of their newest errors; of one that comes twice the larger counts."""
        found = (errors.to(self.device).abs() + self.constant) ** self.exponent
        flat = self.priority.view(-1)
        flat.index_fill_(0, positions, 0.0).scatter_reduce_(0, positions, found, "amax")
        rows = positions // ROW
        self.mass.index_copy_(0, rows, self.priority.index_select(0, rows).sum(1, dtype=torch.float64))

    def state(self) -> dict[str, Tensor]:
        """All that changes, without a copy."""
        return {"priority": self.priority, "priority_mass": self.mass}
