"""DQfD: Q-learning from demonstrations alone, its pre-training phase whole.      (paper: section 4; Hester et al. 2018)

    J = mean_i w_i [huber(1-step error_i) + lambda_n huber(n-step error_i) + lambda_E margin_i] + lambda_l2 |weights|^2
    margin_i = max_a [Q(s_i, a) + l (a != a_i)] - Q(s_i, a_i)

Both errors bootstrap by double Q-learning. Steps are drawn by priority, (|1-step error_i| + constant)^exponent, and w_i
undoes a part of that. Hester et al. take the last 1-step error too. Their constant is 1 for demonstrations, which is
all there is here, and 0.001 for what the agent does by itself; ours is the one of the paper's table, 0.001.
"""

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rbi.data.sampler import Batch, Sampler
from rbi.losses import action_values, dqfd_loss, huber, l2_loss, large_margin_loss, td_error
from rbi.networks import NetworkConfig, Networks
from rbi.offline_rl.bcq_cql import Target, legal_ahead, refuse_dropout, refuse_unfit, without_dropout
from rbi.offline_rl.behavior_q import Looks, means
from rbi.optim import ModuleOptimizer

METRICS = ("dqfd_loss", "dqfd_1_step", "dqfd_n_step", "dqfd_margin", "dqfd_l2", "dqfd_q", "dqfd_importance")


@dataclass(frozen=True)
class DqfdConfig:
    """DQfD's settings.      (paper: table of hyperparameters, DQfD; the three weights: Hester et al. 2018)"""

    learning_rate: float = 0.0000625
    """Step size of Adam."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    target_updates: int = 16_384
    """The target network is renewed every so many updates."""
    steps: int = 10
    """Rewards of the longer of the two returns."""
    margin: float = 0.8
    """By how much the demonstrated action should lead: l."""
    weight_n: float = 1.0
    """What the loss of the n-step return counts."""
    weight_margin: float = 1.0
    """What the margin's loss counts."""
    weight_l2: float = 1e-5
    """What the sum of all squared weights counts."""
    priority_exponent: float = 0.4
    """0 draws uniformly, 1 in proportion to the error."""
    importance_exponent: float = 0.6
    """How much of the bias of prioritised drawing is weighted away; 1 is all."""
    priority_constant: float = 0.001
    """Added to every error before the exponent."""
    nets: NetworkConfig = field(default_factory=without_dropout)

    def __post_init__(self) -> None:
        for name in ("target_updates", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")
        for name in ("margin", "weight_n", "weight_margin", "weight_l2"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 0, and finite")
        for name in ("priority_exponent", "importance_exponent"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, 1]")
        if not 0 < self.priority_constant < math.inf:
            raise ValueError(f"priority_constant = {self.priority_constant}: must be positive, and finite")
        refuse_dropout(self.nets)


class Dqfd:
    """A Q-net that learns from two samplers of the same episodes, on their device: of 1-step and of n-step returns."""

    steady: Looks | None = None

    def __init__(self, config: DqfdConfig, networks: Networks, one_step: Sampler, n_step: Sampler) -> None:
        refuse_unlike(config, one_step, n_step)
        for sampler in (one_step, n_step):
            refuse_unfit(networks, sampler)
        self.config, self.networks, self.obs_spec = config, networks.train(), networks.obs_spec
        self.one_step, self.n_step, self.device = one_step, n_step, one_step.device
        both = np.intersect1d(one_step.usable, n_step.usable)
        if not len(both):
            raise ValueError("no step is left to draw from: none has both returns")
        at = one_step.candidates.device
        self.steps = torch.from_numpy(both).to(at)
        self.priorities = Priorities(
            len(both), config.priority_exponent, config.importance_exponent, config.priority_constant, at
        )
        self.trained = ModuleOptimizer(networks, self.device, config.learning_rate, config.adam_epsilon)
        self.target = Target(networks, self.trained.vector)
        self.legal_ahead = [legal_ahead(sampler) for sampler in (one_step, n_step)]
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=self.device)
        self.updates = 0

    def update(self) -> None:
        """One step of the Q-net, which stays ready to learn, and new priorities for what was drawn."""
        self.networks.train()
        positions, importance = self.priorities.draw(self.one_step.config.batch_size, self.one_step.generator)
        importance = importance.to(self.device, non_blocking=True)
        steps = self.steps.index_select(0, positions)
        near, far = self.one_step.batch(steps), self.n_step.batch(steps)
        ahead, ahead_far = self.ahead(near, far)
        q, _ = self.networks.q(self.obs_spec.preprocess(near.states, torch.float32))
        error = td_error(q, near.actions, near.returns, near.discount, ahead)
        error_far = td_error(q, far.actions, far.returns, far.discount, ahead_far)
        behind = large_margin_loss(q, near.actions, self.config.margin, near.action_masks)
        losses = dqfd_loss(error, error_far, behind, self.config.weight_n, self.config.weight_margin)
        loss = (importance * losses).mean()
        with torch.no_grad():
            squares = l2_loss(self.trained.vector)
            watched = [huber(error), huber(error_far), behind, squares, action_values(q, near.actions), importance]
            whole = loss + self.config.weight_l2 * squares
            self.sums += torch.stack([whole, *(value.mean() for value in watched), torch.ones_like(loss)])
            self.priorities.renew(positions, error.detach())
        self.trained.step([loss], l2_weight=self.config.weight_l2)

    def ahead(self, near: Batch, far: Batch) -> tuple[Tensor, Tensor]:
        """V one step and n steps ahead, `[B]` each: both in one pass through each network."""
        assert near.next_states is not None
        assert far.next_states is not None
        seen = self.obs_spec.preprocess(torch.cat([near.next_states, far.next_states]), torch.float32)
        legal = [table.index_select(0, near.steps) for table in self.legal_ahead if table is not None]
        first, second = self.target.ahead(seen, torch.cat(legal) if legal else None).chunk(2)
        return first, second

    def passed(self) -> None:
        """Count an update, and renew the target network when its time has come."""
        self.updates += 1
        if self.updates % self.config.target_updates == 0:
            self.target.renew()

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        return means(METRICS, self.sums)

    def generators(self) -> list[torch.Generator]:
        """Whatever an update draws from."""
        return [self.one_step.generator]

    def state(self) -> dict[str, Tensor]:
        """All that changes while learning, without a copy; the random states are the generators'."""
        return self.trained.state() | self.target.state() | self.priorities.state() | {"sums": self.sums}


def refuse_unlike(config: DqfdConfig, one_step: Sampler, n_step: Sampler) -> None:
    """The two samplers must differ in the length of their returns alone, and draw nothing themselves."""
    if one_step.config.n_step != 1:
        raise ValueError(f"one_step.n_step = {one_step.config.n_step}: must be 1")
    if n_step.config.n_step != config.steps:
        raise ValueError(f"n_step.n_step = {n_step.config.n_step}: must be {config.steps}, the config's steps")
    if one_step.data is not n_step.data or one_step.device != n_step.device:
        raise ValueError("one_step and n_step: must be samplers of the same episodes, on one device")
    if dataclasses.replace(one_step.config, n_step=config.steps) != n_step.config:
        raise ValueError("one_step and n_step: their settings must be the same, but for the steps of a return")
    if one_step.mass is not None or n_step.mass is not None:
        raise ValueError("weights: DQfD draws by its own priorities")


# ---- from rbi.offline_rl.priorities: Prioritised drawing from data that does not grow.      (Schaul et al. 2016)
#
#     p_i = (|error_i| + constant)^exponent,    P(i) = p_i / sum_j p_j,    w_i = (1 / (N P(i)))^importance / max_batch w
#
# Priorities lie in rows. Drawing takes two steps, first a row by the rows' sums, then a place in it, so no draw scans
# everything, and sums are taken afresh from one row each, so none drifts.

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
