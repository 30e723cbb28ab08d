"""Prioritised replay that stores every frame once, and the prioritised draw.

The replay is a table of `rows` time steps by `num_envs` environments, a ring buffer along time. One cell:

    frame     the observation           action, pi   the action taken there and the policy it was drawn from
    reward    of that action            end          how the step ended (steps.CONTINUES, ...)
    legal     the actions that were legal, if the environments have action masks
    age       frames of its stack before it that belong to the episode (0 at the first frame)
    final     the last frame of an episode: bootstrapped from, never acted on

Stacks and n-step returns are assembled on read:

    row   t-3 t-2 t-1  t  t+1 t+2 t+3
          [--- state ----]            the stack at t: frames t-3..t, zeros before the episode's start
                     [-- rewards -]   r_t .. r_t+2
              [----- next state ----] the stack at t+3

A cell can be drawn once the n steps after it are stored and until a frame of its stack is overwritten; its priority is
positive then.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from rbi.config import Checked, Ge, Interval
from rbi.observations import ObservationSpec, stack_index, stack_offsets
from rbi.returns import ReturnConfig, n_step_returns
from rbi.steps import CONTINUES, TERMINATED, TRUNCATED

MIN_TD_ERROR = 1e-6  # added to TD errors, so that every cell that can be drawn has a positive priority
NO_MASKS = torch.ones((1, 0), dtype=torch.bool)  # `rbi.steps.NO_MASKS` as a tensor
COLUMNS = ("action", "pi", "reward", "end", "legal", "age", "final", "priority", "pending")


# The prioritised draw


def draw_by_priority(priority: Tensor, mass: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows and columns `[size]` drawn in proportion to `priority` `[R, C]`, stratified: one draw from each of `size`
    equal parts of the total.

    `mass` `[R]`: the rows' sums in float64. A draw takes two steps, first a row by the sums, then a column in it, and
    so never scans all priorities; sums are recomputed from whole rows when priorities change, so they do not drift.
    """
    uniform = torch.rand(size, device=priority.device, dtype=torch.float64, generator=generator)
    edges = mass.cumsum(0)
    at = (torch.arange(size, device=priority.device) + uniform) / size * edges[-1]
    row = torch.searchsorted(edges, at, right=True).clamp_(max=len(mass) - 1)
    inside = priority.index_select(0, row).cumsum(1, dtype=torch.float64)
    left = (at - edges[row] + mass[row]).clamp_(min=0)
    left = torch.minimum(left, inside[:, -1] * (1 - 1e-9))  # rounding must not lead beyond the row
    column = torch.searchsorted(inside, left[:, None], right=True).squeeze(1).clamp_(max=priority.shape[1] - 1)
    return row, column


class PrioritySampler:
    """Prioritised draws from a fixed number of items, all with priority 1 at first.      (Schaul et al. 2016)

        p_i = (|error_i| + constant)^exponent,   P(i) = p_i / sum_j p_j,   w_i = (1 / (N P(i)))^importance / max_batch w

    Never synchronises with the device.
    """

    ROW = 1024  # items of one row of priorities

    def __init__(self, count: int, exponent: float, importance: float, constant: float, device: torch.device) -> None:
        if count < 1:
            raise ValueError(f"count = {count}: must be at least 1")
        for name, value in (("exponent", exponent), ("importance", importance)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} = {value}: must lie in [0, 1]")
        if not 0 < constant < torch.inf:
            raise ValueError(f"constant = {constant}: must be positive, or items with zero error are never drawn again")
        self.exponent, self.importance, self.constant, self.device = exponent, importance, constant, device
        self.priority = torch.zeros((-(-count // self.ROW), self.ROW), device=device)
        self.priority.view(-1)[:count] = 1.0  # the padding of the last row keeps 0, so that it cannot be drawn
        self.mass = self.priority.sum(1, dtype=torch.float64)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Items `[B]` and their importance weights `[B]`."""
        row, column = draw_by_priority(self.priority, self.mass, size, generator)
        items = row * self.ROW + column
        drawn = self.priority.view(-1).index_select(0, items)
        return items, (drawn.amin() / drawn) ** self.importance  # N and the sum cancel

    def update(self, items: Tensor, errors: Tensor) -> None:
        """Give items the priorities of their new errors; the larger error counts for an item that occurs twice."""
        new = (errors.to(self.device).abs() + self.constant) ** self.exponent
        self.priority.view(-1).index_fill_(0, items, 0.0).scatter_reduce_(0, items, new, "amax")
        rows = items // self.ROW
        self.mass.index_copy_(0, rows, self.priority.index_select(0, rows).sum(1, dtype=torch.float64))

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, without copies."""
        return {"priority": self.priority, "priority_mass": self.mass}


# The replay


@dataclass(frozen=True)
class ReplayConfig(Checked):
    """Size of the replay, and how it is sampled."""

    capacity: Annotated[int, Ge(1)] = 2_000_000
    """States that the replay holds: 7 kB each for Atari. Lower it if memory is short."""
    priority_exponent: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Prioritisation: 0 samples uniformly, 1 in proportion to the TD error."""
    importance_exponent: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Importance-sampling correction: 1 removes the bias of prioritised sampling entirely, 0 keeps it."""
    store_at_episode_end: bool = False
    """Release an episode to the learner only when it has ended, as in the paper."""
    release_interval: Annotated[int, Ge(0)] = 0
    """Updates between two releases of new states to the learner, as in the paper (0: immediately)."""


class Transition(NamedTuple):
    """One time step of a group of environments, `[N, ...]` each; `reward` and `end` are of the step before `obs`.

    Without action masks `legal` has no columns, here and in a batch: see `legal_or_none`.
    """

    obs: Tensor
    is_first: Tensor
    reward: Tensor
    end: Tensor
    action: Tensor
    pi: Tensor
    td_error: Tensor
    """Of the time step `n_step` before this one."""
    legal: Tensor = NO_MASKS


class ReplayBatch(NamedTuple):
    """States with n-step returns: observations `[B, stack, *shape]`, numbers `[B]`, policies and masks `[B, A]`."""

    obs: Tensor
    action: Tensor
    pi: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    next_pi: Tensor
    weight: Tensor
    row: Tensor
    env: Tensor
    legal: Tensor = NO_MASKS
    next_legal: Tensor = NO_MASKS

    def parts(self, size: int, largest: Callable[[Tensor], Tensor] = torch.max) -> "list[ReplayBatch]":
        """Parts of `size` states, without copies, with importance weights relative to their largest, if any."""
        parts = map(ReplayBatch._make, zip(*(torch.split(column, size) for column in self), strict=True))
        least = torch.finfo(torch.float32).tiny
        return [part._replace(weight=part.weight / largest(part.weight).clamp(min=least)) for part in parts]


class Replay:
    """The table, on one device. Never synchronises with it."""

    def __init__(
        self,
        config: ReplayConfig,
        obs_spec: ObservationSpec,
        num_envs: int,
        groups: int,
        returns: ReturnConfig,
        device: torch.device,
    ) -> None:
        """`groups`: the environments form this many groups of equal size, which are written independently."""
        self.config, self.obs_spec, self.returns, self.device = config, obs_spec, returns, device
        self.num_envs, self.groups, self.rows = num_envs, groups, config.capacity // num_envs
        least = returns.n_step + obs_spec.stack + 1
        if self.rows < least:
            raise ValueError(
                f"capacity = {config.capacity}: too small for {num_envs} environments, which need {num_envs * least}"
            )
        cells = (self.rows, num_envs)
        self.stack_offsets = stack_offsets(obs_spec.stack, device)
        self.ahead = torch.arange(returns.n_step, device=device)
        # rows that a new one changes: its own, the one before, that of the completed states, and that of the oldest
        # states which need the frames overwritten now
        self.changed = torch.tensor([[0], [-1], [-returns.n_step], [obs_spec.stack - 1]], device=device)
        # one frame more than there are cells: it stays zero and stands for frames before an episode
        self.frames = torch.zeros((self.rows * num_envs + 1, *obs_spec.shape), dtype=obs_spec.dtype, device=device)
        self.action = torch.zeros(cells, dtype=torch.int32, device=device)
        self.pi = torch.zeros((*cells, obs_spec.num_actions), device=device)
        self.reward = torch.zeros(cells, device=device)
        self.end = torch.zeros(cells, dtype=torch.uint8, device=device)
        self.legal = torch.ones((*cells, obs_spec.mask_size), dtype=torch.bool, device=device)
        self.age = torch.zeros(cells, dtype=torch.uint8, device=device)
        self.final = torch.zeros(cells, dtype=torch.bool, device=device)
        self.priority = torch.zeros(cells, device=device)
        # priorities of states that are not yet released
        self.pending = torch.zeros(cells if self.delays_release else (0, num_envs), device=device)
        self.mass = torch.zeros(self.rows, dtype=torch.float64, device=device)
        self.written = torch.zeros(groups, dtype=torch.int64, device=device)  # rows that each group has written, ever
        # the row, counted like `written`, of each environment's last final frame
        self.last_final = torch.zeros(num_envs, dtype=torch.int64, device=device)

    @property
    def delays_release(self) -> bool:
        return self.config.store_at_episode_end or self.config.release_interval > 0

    def add(self, group: int, transition: Transition) -> None:
        """Write the next row of a group, the outcome of its last actions, and the priority of the completed state."""
        self.write(group, Transition(*(column[None] for column in transition)))

    def add_rows(self, group: int, transitions: Transition) -> None:
        """Write several rows of a group, `[T, N, ...]` each: the same as `add` one after the other."""
        most = self.rows - self.returns.n_step - self.obs_spec.stack  # more would meet their own first rows
        for start in range(0, len(transitions.obs), most):
            self.write(group, Transition(*(column[start : start + most] for column in transitions)))

    def write(self, group: int, transitions: Transition) -> None:
        """Write rows that do not meet each other around the ring."""
        envs, steps = self.env_slice(group), len(transitions.obs)
        time = torch.arange(steps, device=self.device)
        row = self.written[group] + time
        here, before, complete, stale = (row + self.changed) % self.rows
        table = self.frames[:-1].view(self.rows, self.num_envs, *self.obs_spec.shape)
        write_rows(table, here, envs, transitions.obs)
        age = self.ages(self.age[:, envs].index_select(0, before[:1]), transitions.is_first, time[:, None])
        write_rows(self.age, here, envs, age)
        write_rows(self.action, here, envs, transitions.action)
        write_rows(self.pi, here, envs, transitions.pi)
        if self.obs_spec.has_action_masks:
            write_rows(self.legal, here, envs, transitions.legal)
        write_rows(self.reward, before, envs, transitions.reward)
        write_rows(self.end, before, envs, transitions.end)
        ended = (transitions.end == TERMINATED) | (transitions.end == TRUNCATED)
        write_rows(self.final, here, envs, ended)
        last = torch.where(ended, row[:, None], -1).amax(0)
        self.last_final[envs] = torch.where(last >= 0, last, self.last_final[envs])
        zero = torch.zeros_like(transitions.td_error)
        can_be_drawn = (row >= self.returns.n_step)[:, None] & ~self.final[:, envs].index_select(0, complete)
        priority = torch.where(can_be_drawn, self.priority_of(transitions.td_error), zero)
        if self.delays_release:
            write_rows(self.pending, stale, envs, zero)
            write_rows(self.pending, complete, envs, priority)
        write_rows(self.priority, stale, envs, zero)
        write_rows(self.priority, complete, envs, zero if self.delays_release else priority)
        changed = torch.cat([stale, complete])
        self.mass.index_copy_(0, changed, self.priority.index_select(0, changed).sum(1, dtype=torch.float64))
        self.written[group].add_(steps)

    def ages(self, before: Tensor, is_first: Tensor, time: Tensor) -> Tensor:
        """Frames of the stack that belong to the episode, `[T, N]`; `before` `[1, N]`: those one row earlier."""
        first = torch.where(is_first, time, -1)
        if len(first) > 1:
            first = first.cummax(0).values  # the row of the block where the episode starts, if it does
        return torch.where(first >= 0, time - first, before + 1 + time).clamp(max=self.obs_spec.stack - 1)

    def release(self) -> None:
        """Make pending states available to the learner: all of them, or those of episodes that have ended."""
        if not self.delays_release:
            return
        ready = self.pending > 0
        if self.config.store_at_episode_end:
            written = self.written.repeat_interleave(self.num_envs // self.groups)
            ring = torch.arange(self.rows, device=self.device)[:, None]
            ready &= written - 1 - (written - 1 - ring) % self.rows < self.last_final
        self.priority.copy_(torch.where(ready, self.pending, self.priority))
        self.pending.copy_(torch.where(ready, 0, self.pending))
        self.mass.copy_(self.priority.sum(1, dtype=torch.float64))

    def truncate(self, group: int) -> None:
        """End the group's episodes here, as by a time limit: its environments are about to be reset."""
        envs = self.env_slice(group)
        row = self.written[group : group + 1]
        here, before = (row - 1) % self.rows, (row - 2) % self.rows
        end = self.end[:, envs].index_select(0, before)[0]
        write_rows(self.end, before, envs, torch.where(end == CONTINUES, TRUNCATED, end)[None])
        write_rows(self.final, here, envs, torch.ones_like(end, dtype=torch.bool)[None])
        self.last_final[envs] = row - 1

    def sample(self, size: int, generator: torch.Generator) -> ReplayBatch:
        """Draw states by priority, in random order, so that any part of the batch is a fair sample."""
        row, env = draw_by_priority(self.priority, self.mass, size, generator)
        order = torch.rand(size, device=self.device, dtype=torch.float64, generator=generator).argsort()
        row, env = row[order], env[order]
        drawn = self.priority.take(row * self.num_envs + env).clamp(min=1e-30)
        # up to a factor that all replays with an equal part of a batch have in common
        mass = self.mass.sum()
        weight = (mass / drawn.double()) ** self.config.importance_exponent  # in double precision as in priority_of
        # New steps may overwrite every state before others are released: such a batch has no weight.
        return self.read(row, env, torch.where(mass > 0, weight, 0.0).float())

    def read(self, row: Tensor, env: Tensor, weight: Tensor) -> ReplayBatch:
        """The states at these cells, with their n-step returns and next states."""
        following = (row[:, None] + self.ahead) % self.rows * self.num_envs + env[:, None]
        n_step = n_step_returns(self.reward.take(following), self.end.take(following), self.returns.gamma)
        then = (row + n_step.steps) % self.rows
        cell, next_cell = row * self.num_envs + env, then * self.num_envs + env
        pi, legal = self.pi.flatten(0, 1), self.legal.flatten(0, 1)
        return ReplayBatch(
            obs=self.stacks(row, env),
            action=self.action.take(cell).long(),
            pi=pi.index_select(0, cell),
            reward=n_step.reward,
            discount=n_step.discount,
            next_obs=self.stacks(then, env),
            next_pi=pi.index_select(0, next_cell),
            weight=weight,
            row=row,
            env=env,
            legal=legal.index_select(0, cell),
            next_legal=legal.index_select(0, next_cell),
        )

    def stacks(self, row: Tensor, env: Tensor) -> Tensor:
        """Frame stacks `[B, stack, *shape]`, oldest first; zeros before the episode's start."""
        cell = row * self.num_envs + env
        if self.obs_spec.stack > 1:
            at, before = stack_index(row, self.age.take(cell), self.stack_offsets)
            cell = torch.where(before, self.rows * self.num_envs, at % self.rows * self.num_envs + env[:, None])
        frames = as_words(self.frames.flatten(1)).index_select(0, cell.flatten()).view(self.frames.dtype)
        return frames.view(len(row), self.obs_spec.stack, *self.obs_spec.shape)

    def update_priorities(self, row: Tensor, env: Tensor, td_error: Tensor) -> None:
        """Give states the priorities of their new TD errors; those overwritten since they were drawn stay at 0."""
        if not self.config.priority_exponent:  # all priorities are 1, or 0 where nothing can be drawn
            return
        alive = self.priority[row, env] > 0
        self.priority[row, env] = torch.where(alive, self.priority_of(td_error), 0.0)
        self.mass.index_copy_(0, row, self.priority.index_select(0, row).sum(1, dtype=torch.float64))

    def priority_of(self, td_error: Tensor) -> Tensor:
        if not self.config.priority_exponent:
            return torch.ones_like(td_error)
        # float32 powers of CPUs depend on a number's place in the tensor, in the last bit
        return ((td_error.double().abs() + MIN_TD_ERROR) ** self.config.priority_exponent).float()

    def env_slice(self, group: int) -> slice:
        """The environments of a group."""
        each = self.num_envs // self.groups
        return slice(group * each, (group + 1) * each)

    def state(self) -> dict[str, Tensor]:
        """Everything that was written, without copies: the rows in use."""
        used = min(self.rows, int(self.written.max()))
        columns = {name: getattr(self, name)[:used] for name in COLUMNS}
        frames = self.frames[: used * self.num_envs]
        return columns | {"frames": frames, "written": self.written, "last_final": self.last_final}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved `state`."""
        for name, saved in state.items():
            getattr(self, name)[: len(saved)] = saved.to(self.device)
        self.mass.copy_(self.priority.sum(1, dtype=torch.float64))


def bytes_needed(config: ReplayConfig, obs_spec: ObservationSpec) -> int:
    """Memory of the table, in bytes."""
    frame = 1 if obs_spec.is_image else 4
    for size in obs_spec.shape:
        frame *= size
    pending = 4 if config.store_at_episode_end or config.release_interval else 0
    return config.capacity * (frame + 4 * obs_spec.num_actions + obs_spec.mask_size + 4 + 4 + 1 + 1 + 1 + 4 + pending)


def write_rows(column: Tensor, rows: Tensor, envs: slice, values: Tensor) -> None:
    """column[rows, envs] = values, for row numbers that are known on the device only."""
    column[:, envs].index_copy_(0, rows, values.to(column.dtype))


def as_words(flat: Tensor) -> Tensor:
    """Rows of bytes as rows of 8-byte words where they divide, so that a gather moves eight bytes at a time."""
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat


def available_memory() -> int:
    """Bytes of memory that can be used without swapping."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
