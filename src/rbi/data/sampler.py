"""Random batches from a dataset: states of stacked frames, actions and returns.

    observations   f0 f1 f2 f3 | g0 g1 g2 ...         every frame once, episodes one after the other
    state of f1    [0, 0, f0, f1]                     stacked on read; zeros before the first frame

Returns and frame positions of all steps are computed once; a draw is a few gathers.
"""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi.data.dataset import Dataset, concat_ranges
from rbi.data.episode import Array, Episode
from rbi.data.store import Store
from rbi.observations import stack_index, stack_offsets
from rbi.returns import MAX_N_STEP, monte_carlo_returns, n_step_returns
from rbi.steps import TRUNCATED

CHUNK = 1 << 20
ONE_THREAD_BYTES = 1 << 23


@dataclass(frozen=True)
class SamplerConfig:
    """Size and content of a batch."""

    batch_size: int = 32
    """Steps per batch."""
    n_step: int | None = None
    """n of the n-step returns; None: Monte-Carlo returns."""
    gamma: float = 0.99
    """Discount factor."""
    terminal_on_life_loss: bool = True
    """A lost life ends the return."""
    clip_rewards: bool | None = None
    """Clip rewards to [-1, 1] (scores are never clipped); None: only for image observations, as usual for Atari."""
    max_missing_return: float = 0.05
    """Exclude steps whose Monte-Carlo return is truncated after k steps with gamma^k above this; 1 excludes none."""
    keep_incomplete: bool = False
    """Draw those steps nevertheless, marked in `Batch.complete`: their actions are known, their returns are not."""
    memory_bytes: int | None = None
    """Approximate limit on the memory of mapped pages of a store; None: the operating system decides."""

    def __post_init__(self) -> None:
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise ValueError(f"batch_size = {self.batch_size}: must be an integer, at least 1")
        if self.n_step is not None and (type(self.n_step) is not int or not 1 <= self.n_step <= MAX_N_STEP):
            raise ValueError(
                f"n_step = {self.n_step}: must lie in 1 to {MAX_N_STEP:,}, or None for Monte-Carlo returns"
            )
        for name in ("gamma", "max_missing_return"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, 1]")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ValueError(f"memory_bytes = {self.memory_bytes}: must be at least 1")


class Batch(NamedTuple):
    """B steps. The target of Q(state, action) is `returns + discount * V(next_states)`."""

    states: Tensor
    """`[B, stack, *obs_shape]`"""
    actions: Tensor
    """`[B]` int64"""
    returns: Tensor
    """`[B]`: the Monte-Carlo return, or the n rewards of an n-step return."""
    discount: Tensor
    """`[B]`: the factor of the next state's value; 0 if the return is complete."""
    next_states: Tensor | None
    """`[B, stack, *obs_shape]` for n-step returns, else None. Undefined where discount is 0."""
    steps: Tensor
    """`[B]`: their indices in the dataset."""
    action_masks: Tensor | None = None
    """`[B, A]` if logged."""
    complete: Tensor | None = None
    """`[B]` booleans: whether the return is complete. None: all are."""


class Sampler:
    """Draws steps with replacement, uniformly.

    `episodes` restricts it to some episodes. With `frames_on_device` all frames are in the device's memory; otherwise
    they are gathered in host memory (pinned if the device is a GPU) and copied to `device`. `share_frames_with` another
    sampler of the same dataset avoids a second copy of the frames.
    """

    def __init__(
        self,
        dataset: Dataset | Sequence[Episode],
        config: SamplerConfig,
        generator: torch.Generator,
        *,
        device: torch.device | str = "cpu",
        episodes: Sequence[int] | Array | None = None,
        frames_on_device: bool = False,
        share_frames_with: "Sampler | None" = None,
    ) -> None:
        data = dataset if isinstance(dataset, Dataset) else Dataset.from_episodes(dataset)
        if not len(data):
            raise ValueError("the dataset has no episodes")
        self.data, self.config, self.generator, self.device = data, config, generator, torch.device(device)
        self.stack, self.frame = data.spec.frame_stack, data.spec.obs_shape
        at = self.device if frames_on_device else torch.device("cpu")
        if share_frames_with is not None and share_frames_with.data is data:
            self.frames: Tensor = share_frames_with.frames
        else:
            self.frames = flat_frames(data).to(at)
        self.pinned = at.type == "cpu" and self.device.type == "cuda"
        self.back = stack_offsets(self.stack, at)
        index = data.records
        chosen = np.arange(len(index)) if episodes is None else some_episodes(episodes, len(index))
        actions = torch.from_numpy(data.arrays["actions"].astype(np.int64))
        self.action_masks = (
            torch.from_numpy(data.arrays["action_masks"].copy()).to(at) if data.spec.has_action_masks else None
        )
        returns = returns_of(data, config)
        place, age = (torch.from_numpy(a) for a in places(index, self.stack))
        # columns together, so that one gather fetches all integers of a step and another all floats
        self.integers = torch.stack([place, age, returns.steps, actions], 1).to(at)
        self.floats = torch.stack([returns.reward, returns.discount], 1).to(at)
        self.frame_index, self.age, self.bootstrap_steps, self.actions = self.integers.unbind(1)
        self.returns, self.discount = self.floats.unbind(1)
        candidates = concat_ranges(index["first_step"][chosen], index["steps"][chosen])
        whole = returns.usable[candidates].numpy()
        self.excluded_fraction = 1 - float(whole.sum()) / max(1, len(candidates))
        self.usable = candidates if config.keep_incomplete else candidates[whole]
        self.complete = returns.usable.to(at) if config.keep_incomplete else None
        if not len(self.usable):
            raise ValueError(
                "no usable steps: no final observation follows the truncated returns"
                if config.n_step
                else "no usable steps: episodes were truncated too early for their returns to be known with gamma = "
                f"{config.gamma:g}; lower gamma, or use returns as they are with max_missing_return = 1"
            )
        self.candidates = torch.from_numpy(self.usable).to(at)
        self.mapped_limit = mapped_bytes() + (config.memory_bytes or 0)

    def draw(self) -> Batch:
        """Draw a batch."""
        size, at = (self.config.batch_size,), self.candidates.device
        drawn = torch.randint(len(self.candidates), size, generator=self.generator, device=at)
        return self.batch(self.candidates[drawn])

    def batch(self, steps: Tensor) -> Batch:
        """The batch of these steps of the dataset."""
        place, age, ahead, actions = self.integers.index_select(0, steps).unbind(1)
        rewards, discount = self.floats.index_select(0, steps).unbind(1)
        if self.config.n_step is None:
            states, next_states = self.states(place, age), None
        else:  # both in one gather
            later = (age + ahead).clamp_(max=self.stack - 1)
            states, next_states = self.states(torch.cat([place, place + ahead]), torch.cat([age, later])).chunk(2)
        found = Batch(
            states,
            actions,
            rewards,
            discount,
            next_states,
            steps,
            None if self.action_masks is None else self.action_masks.index_select(0, steps),
            None if self.complete is None else self.complete.index_select(0, steps),
        )
        self.limit_memory()
        if self.frames.device == self.device:
            return found
        return Batch(*(None if t is None else t.to(self.device, non_blocking=True) for t in found))  # type: ignore[arg-type]

    def states(self, place: Tensor, age: Tensor) -> Tensor:
        """Stacks `[B, stack, *obs_shape]` that end at these frames; `age` older frames belong to the episode."""
        rows, before = stack_index(place, age, self.back)
        rows, before = rows.clamp_(0, len(self.frames) - 1).flatten(), before.flatten()
        shape = (len(rows), self.frames.shape[1])
        out = torch.empty(shape, dtype=self.frames.dtype, device=rows.device, pin_memory=self.pinned)
        gather_rows(self.frames, rows, out)
        if self.frames.is_cuda:
            out.masked_fill_(before[:, None], 0)
        elif before.any():
            out.numpy()[before.numpy()] = 0  # by one thread, as `gather_rows`
        return out.view(len(place), self.stack, *self.frame)

    def limit_memory(self) -> None:
        """Release mapped pages of a store above the limit; the operating system decides how much a read maps."""
        if self.config.memory_bytes and isinstance(self.data, Store) and mapped_bytes() > self.mapped_limit:
            self.data.release_memory()

    def epoch(self) -> Iterator[Batch]:
        """Every usable step once, in random order; the last batch may be smaller."""
        order = torch.randperm(len(self.candidates), generator=self.generator, device=self.candidates.device)
        for part in torch.split(order, self.config.batch_size):
            yield self.batch(self.candidates[part])


class Returns(NamedTuple):
    """For every step `[S]`: return, discount of the bootstrap value, steps to it, and whether it is usable."""

    reward: Tensor
    discount: Tensor
    steps: Tensor
    usable: Tensor


def returns_of(data: Dataset, config: SamplerConfig) -> Returns:
    """Returns of all steps as configured."""
    rewards = torch.from_numpy(np.array(data.arrays["rewards"], dtype=np.float32))
    clips = data.spec.is_image if config.clip_rewards is None else config.clip_rewards
    rewards = rewards.clamp_(-1, 1) if clips else rewards
    ends = torch.from_numpy(data.ends(lives=config.terminal_on_life_loss))
    if config.n_step is None:
        found = monte_carlo_returns(rewards, ends, config.gamma)
        last = torch.arange(len(rewards)) + found.left - 1
        missing = torch.where(ends[last] == TRUNCATED, config.gamma ** found.left.double(), 0.0)
        none = torch.zeros(len(rewards))
        return Returns(found.returns, none, none.long(), missing <= config.max_missing_return)
    longest = min(config.n_step, int(data.records["steps"].max()))  # a return ends with its episode
    rows = max(1, CHUNK // longest)
    parts = [
        n_step_returns(window(rewards, start, rows, longest), window(ends, start, rows, longest), config.gamma)
        for start in range(0, len(rewards), rows)
    ]
    reward, discount, steps = (torch.cat(part) for part in zip(*parts, strict=True))
    has_final = torch.from_numpy(np.repeat(data.records["observations"] > data.records["steps"], data.records["steps"]))
    left = monte_carlo_returns(rewards, torch.from_numpy(data.ends(lives=False)), 0.0).left
    return Returns(reward, discount, steps, (discount == 0) | (steps < left) | has_final)


def window(values: Tensor, start: int, rows: int, steps: int) -> Tensor:
    """`[rows, steps]`: sliding windows of values from `start` on."""
    part = values[start : start + rows + steps - 1]
    short = min(rows, len(values) - start) + steps - 1 - len(part)
    return torch.nn.functional.pad(part, (0, short)).unfold(0, steps, 1)


def places(index: Array, stack: int) -> tuple[Array, Array]:
    """For every step: the index of its observation, and the number of older frames of its state."""
    steps = index["steps"]
    return concat_ranges(index["first_observation"], steps), np.minimum(concat_ranges(0, steps), stack - 1)


def some_episodes(which: Sequence[int] | Array, count: int) -> Array:
    """Validate indices of episodes."""
    given = np.asarray(which)
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
        raise ValueError(f"episodes = {which}: must be indices of episodes, at least one")
    if given.min() < 0 or given.max() >= count:
        raise ValueError(f"episodes: indices are 0 to {count - 1}, not {given.min()} to {given.max()}")
    return given


def mapped_bytes() -> int:
    """Bytes of mapped files in memory; 0 if the system does not report it."""
    try:
        shared = Path("/proc/self/statm").read_bytes().split()[2]
    except OSError:
        return 0
    return int(shared) * mmap.PAGESIZE


def gather_rows(frames: Tensor, rows: Tensor, out: Tensor) -> None:
    """`out = frames[rows]`. Small batches in host memory are copied by one thread (NumPy): PyTorch's threads wait for
    each other, which took 13 times as long for 32 states of Atari on two cores that other processes used as well."""
    if frames.is_cuda or out.nbytes > ONE_THREAD_BYTES:
        torch.index_select(frames, 0, rows, out=out)
    else:
        np.take(frames.numpy(), rows.numpy(), axis=0, out=out.numpy(), mode="clip")


def flat_frames(data: Dataset) -> Tensor:
    """All observations `[F, size]`, not copied."""
    found = data.arrays["observations"].view()
    found.flags.writeable = True  # PyTorch has no read-only tensors; this one is never written to
    return torch.from_numpy(found.reshape(len(found), -1))
