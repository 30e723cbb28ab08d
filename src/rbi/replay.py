"""Prioritised replay that holds each frame once.

A table of `rows` moments by `lanes` players, written row after row and over again. One cell:

    frame     what the player saw                     action, pi   what it then did, and the policy it drew from
    reward    what the action brought                 end          how the step ended (returns.CONTINUES, ...)
    age       frames before it that belong to its stack (0 at the first frame of an episode)
    final     the last frame of an episode: seen, bootstrapped from, never acted on

Time runs down a lane. Stacks and n-step returns are put together when they are read:

    row   t-3 t-2 t-1  t  t+1 t+2 t+3
          [--- state ----]            the stack at t: frames t-3..t, those before the episode's start are black
                     [-- rewards -]   r_t .. r_t+2
              [----- next state ----] the stack at t+3

A cell can be drawn once the n steps after it are there, and until a frame of its stack is written over. Its priority
is then positive. Drawing takes two steps, first a row by the rows' sums, then a lane in it, so no draw scans the
table, and sums are taken afresh from at most `lanes` numbers, so none drifts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rbi.observations import ObservationSpec, stack_index, stack_offsets
from rbi.returns import CONTINUES, TERMINATED, TRUNCATED, ReturnConfig, n_step_returns

TINY = 1e-6  # the least priority of what can be drawn
COLUMNS = ("action", "pi", "reward", "end", "age", "final", "priority", "held")


@dataclass(frozen=True)
class ReplayConfig:
    """How much is kept, and how it is drawn."""

    capacity: int = 2_000_000
    """States that the replay holds."""
    priority_exponent: float = 0.6
    """0 draws uniformly, 1 in proportion to the TD error."""
    importance_exponent: float = 0.4
    """How much of the bias of prioritised drawing is weighted away; 1 is all."""
    store_at_episode_end: bool = False
    """Let the learner see an episode only when it is over, as in the paper."""
    release_interval: int = 0
    """Let the learner see new states only every so many updates, as in the paper; 0: as they come."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"capacity = {self.capacity}: the replay must hold some")
        for name in ("priority_exponent", "importance_exponent"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, 1]")
        if self.release_interval < 0:
            raise ValueError(f"release_interval = {self.release_interval}: must be at least 0")


class Transition(NamedTuple):
    """One moment of a group of players, `[N, ...]` each. `reward` and `end` are of the step that led to it."""

    obs: Tensor
    is_first: Tensor
    reward: Tensor
    end: Tensor
    action: Tensor
    pi: Tensor
    td_error: Tensor
    """Of the moment `horizon.n_step` before."""


class ReplayBatch(NamedTuple):
    """States with their n-step returns: `[B, stack, *frame]` pictures, `[B]` numbers, `[B, A]` policies."""

    obs: Tensor
    action: Tensor
    pi: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    next_pi: Tensor
    weight: Tensor
    row: Tensor
    lane: Tensor

    def part(self, start: int, size: int) -> "ReplayBatch":
        """Some of the states, without a copy; importance weights are relative to the largest among them."""
        cut = ReplayBatch(*(column[start : start + size] for column in self))
        return cut._replace(weight=cut.weight / cut.weight.max())


class Replay:
    """The table. All of it lives on one device; nothing here waits for the device."""

    def __init__(
        self,
        config: ReplayConfig,
        obs_spec: ObservationSpec,
        lanes: int,
        groups: int,
        horizon: ReturnConfig,
        device: torch.device,
    ) -> None:
        self.config, self.obs_spec, self.horizon, self.device = config, obs_spec, horizon, device
        self.lanes, self.groups, self.rows = lanes, groups, rows_of(config, lanes)
        if self.rows < horizon.n_step + obs_spec.stack + 1:
            least = lanes * (horizon.n_step + obs_spec.stack + 1)
            raise ValueError(f"capacity = {config.capacity}: too few for {lanes} players, who need at least {least}")
        dtype = torch.uint8 if obs_spec.is_image else torch.float32
        cells = (self.rows, lanes)
        # one frame more than cells: it stays black and stands for what came before an episode
        self.frames = torch.zeros((self.rows * lanes + 1, *obs_spec.shape), dtype=dtype, device=device)
        self.action = torch.zeros(cells, dtype=torch.int16, device=device)
        self.pi = torch.zeros((*cells, obs_spec.num_actions), device=device)
        self.reward = torch.zeros(cells, device=device)
        self.end = torch.zeros(cells, dtype=torch.uint8, device=device)
        self.age = torch.zeros(cells, dtype=torch.uint8, device=device)
        self.final = torch.zeros(cells, dtype=torch.bool, device=device)
        self.priority = torch.zeros(cells, device=device)
        self.held = torch.zeros(cells if self.holds_back else (0, lanes), device=device)
        self.mass = torch.zeros(self.rows, dtype=torch.float64, device=device)
        self.written = torch.zeros(groups, dtype=torch.int64, device=device)  # rows of each group, ever
        self.over = torch.zeros(lanes, dtype=torch.int64, device=device)  # rows of each lane up to its last final one

    @property
    def holds_back(self) -> bool:
        return self.config.store_at_episode_end or self.config.release_interval > 0

    def add(self, group: int, moment: Transition) -> None:
        """Write the next row of a group, what its last actions brought, and the priority of what is now complete."""
        lanes = self.lanes_of(group)
        row = self.written[group : group + 1]
        here, before, ready = row % self.rows, (row - 1) % self.rows, (row - self.horizon.n_step) % self.rows
        dead = (row + self.obs_spec.stack - 1) % self.rows  # the oldest that needs the frame written over now
        table = self.frames[:-1].view(self.rows, self.lanes, *self.obs_spec.shape)
        put(table, here, lanes, moment.obs)
        grown = (self.age[:, lanes].index_select(0, before) + 1).clamp(max=self.obs_spec.stack - 1)
        put(self.age, here, lanes, torch.where(moment.is_first, 0, grown[0]))
        put(self.action, here, lanes, moment.action)
        put(self.pi, here, lanes, moment.pi)
        put(self.reward, before, lanes, moment.reward)
        put(self.end, before, lanes, moment.end)
        over = (moment.end == TERMINATED) | (moment.end == TRUNCATED)
        put(self.final, here, lanes, over)
        self.over[lanes] = torch.where(over, row, self.over[lanes])
        none = torch.zeros_like(moment.td_error)
        can_be_drawn = (row >= self.horizon.n_step) & ~self.final[:, lanes].index_select(0, ready)[0]
        priority = torch.where(can_be_drawn, self.priority_of(moment.td_error), none)
        if self.holds_back:
            put(self.held, dead, lanes, none)
            put(self.held, ready, lanes, priority)
        put(self.priority, dead, lanes, none)
        put(self.priority, ready, lanes, none if self.holds_back else priority)
        touched = torch.cat([dead, ready])
        self.mass.index_copy_(0, touched, self.priority.index_select(0, touched).sum(1, dtype=torch.float64))
        row += 1

    def release(self) -> None:
        """Let the learner draw what was held back: everything, or the episodes that are over."""
        if not self.holds_back:
            return
        ready = self.held > 0
        if self.config.store_at_episode_end:
            written = self.written.repeat_interleave(self.lanes // self.groups)
            ring = torch.arange(self.rows, device=self.device)[:, None]
            ready &= written - 1 - (written - 1 - ring) % self.rows < self.over
        self.priority.copy_(torch.where(ready, self.held, self.priority))
        self.held.copy_(torch.where(ready, 0, self.held))
        self.mass.copy_(self.priority.sum(1, dtype=torch.float64))

    def cut(self, group: int) -> None:
        """End the group's episodes here: players start afresh. The last frames count as cut off by a time limit."""
        lanes = self.lanes_of(group)
        row = self.written[group : group + 1]
        here, before = (row - 1) % self.rows, (row - 2) % self.rows
        was = self.end[:, lanes].index_select(0, before)[0]
        put(self.end, before, lanes, torch.where(was == CONTINUES, TRUNCATED, was))
        put(self.final, here, lanes, torch.ones_like(was, dtype=torch.bool))
        self.over[lanes] = row - 1

    def sample(self, size: int, generator: torch.Generator) -> ReplayBatch:
        """Draw states by priority, spread evenly over the mass, and in random order so that any part is fair."""
        edges = self.mass.cumsum(0)
        spread = (torch.arange(size, device=self.device) + self.random(size, generator)) / size
        at = spread * edges[-1]
        row = torch.searchsorted(edges, at, right=True).clamp(max=self.rows - 1)
        inside = self.priority.index_select(0, row).cumsum(1, dtype=torch.float64)
        left = (at - edges[row] + self.mass[row]).clamp(min=0)
        left = torch.minimum(left, inside[:, -1] * (1 - 1e-9))  # rounding must not lead beyond the row
        lane = torch.searchsorted(inside, left[:, None], right=True).squeeze(1).clamp(max=self.lanes - 1)
        shuffled = self.random(size, generator).argsort()
        row, lane = row[shuffled], lane[shuffled]
        likely = self.priority[row, lane].clamp(min=1e-30)
        weight = (likely.mean() / likely) ** self.config.importance_exponent
        return self.read(row, lane, weight)

    def read(self, row: Tensor, lane: Tensor, weight: Tensor) -> ReplayBatch:
        """The states at some cells, with what followed."""
        ahead = torch.arange(self.horizon.n_step, device=self.device)
        following = (row[:, None] + ahead) % self.rows
        coming = n_step_returns(
            self.reward[following, lane[:, None]], self.end[following, lane[:, None]], self.horizon.gamma
        )
        then = (row + coming.steps) % self.rows
        return ReplayBatch(
            obs=self.stacks(row, lane),
            action=self.action[row, lane].long(),
            pi=self.pi[row, lane],
            reward=coming.reward,
            discount=coming.discount,
            next_obs=self.stacks(then, lane),
            next_pi=self.pi[then, lane],
            weight=weight,
            row=row,
            lane=lane,
        )

    def stacks(self, row: Tensor, lane: Tensor) -> Tensor:
        """`[B, stack, *frame]`, oldest first; black before the episode's start."""
        offsets = stack_offsets(self.obs_spec.stack, self.device)
        at, before = stack_index(row, self.age[row, lane], offsets)
        cell = torch.where(before, self.rows * self.lanes, at % self.rows * self.lanes + lane[:, None])
        flat = in_words(self.frames.flatten(1))
        found = flat.index_select(0, cell.flatten()).view(self.frames.dtype)
        return found.view(len(row), self.obs_spec.stack, *self.obs_spec.shape)

    def update_priorities(self, row: Tensor, lane: Tensor, td_error: Tensor) -> None:
        """Give states the priorities of their newest errors; what has died since it was drawn stays dead."""
        alive = self.priority[row, lane] > 0
        self.priority[row, lane] = torch.where(alive, self.priority_of(td_error), 0.0)
        self.mass.index_copy_(0, row, self.priority.index_select(0, row).sum(1, dtype=torch.float64))

    def priority_of(self, td_error: Tensor) -> Tensor:
        return (td_error.abs() + TINY) ** self.config.priority_exponent

    def random(self, size: int, generator: torch.Generator) -> Tensor:
        return torch.rand(size, device=self.device, dtype=torch.float64, generator=generator)

    def lanes_of(self, group: int) -> slice:
        each = self.lanes // self.groups
        return slice(group * each, (group + 1) * each)

    def state(self) -> dict[str, Tensor]:
        """Everything that was written, on its device and without a copy: the rows that hold something."""
        used = min(self.rows, int(self.written.max()))
        columns = {name: getattr(self, name)[:used] for name in COLUMNS}
        return columns | {"frames": self.frames[: used * self.lanes], "written": self.written, "over": self.over}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, saved in state.items():
            getattr(self, name)[: len(saved)] = saved.to(self.device)
        self.mass.copy_(self.priority.sum(1, dtype=torch.float64))


def rows_of(config: ReplayConfig, lanes: int) -> int:
    return config.capacity // lanes


def bytes_needed(config: ReplayConfig, obs_spec: ObservationSpec) -> int:
    """What the table takes, in bytes."""
    frame = 1 if obs_spec.is_image else 4
    for size in obs_spec.shape:
        frame *= size
    held = 4 if config.store_at_episode_end or config.release_interval else 0
    return config.capacity * (frame + 4 * obs_spec.num_actions + 2 + 4 + 1 + 1 + 1 + 4 + held)


def put(column: Tensor, row: Tensor, lanes: slice, values: Tensor) -> None:
    """column[row, lanes] = values, for a row that only the device knows."""
    column[:, lanes].index_copy_(0, row, values.to(column.dtype)[None])


def in_words(flat: Tensor) -> Tensor:
    """Rows of bytes as rows of 8-byte words where they divide: a gather then moves eight bytes at a time."""
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat
