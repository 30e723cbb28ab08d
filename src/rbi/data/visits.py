"""Visits of states, for count-aware rules: counted where few states are different, otherwise pseudo-counts."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi.data.dataset import Dataset, concat_ranges
from rbi.data.digests import row_hashes
from rbi.data.episode import Array

MAX_STATES = 10_000
MIN_MEAN_VISITS = 10  # per state; with fewer, observations are in effect all different
MAX_DIRECTIONS = 64  # of the features that pseudo-counts distinguish
MIN_PSEUDO_COUNT = 0.5  # an action with fewer visits was never tried
MAX_MOMENTS = 1 << 26  # numbers [A, H, H] that pseudo-counts are computed from: 0.5 GB
ROWS_PER_ACTION = 32  # fewer would spend the time on launching small products
PRODUCTS = 1 << 24  # numbers [B, A, D] at a time
TENSORS = ("directions", "variance", "ridge")  # of pseudo-counts


class VisitCounts(NamedTuple):
    """In how many episodes each action was taken in each state, or spans of them (`step_clusters`). A state is known by
    a 64-bit hash of its observation."""

    keys: Array
    """`[N]` uint64, increasing."""
    counts: Array
    """`[N, A]` int32."""
    sigma: float = 0.0
    """Standard deviation of one return around its estimate."""

    def arrays(self) -> dict[str, Array]:
        """What `visits_from` restores it from."""
        return {"keys": self.keys, "visits": self.counts, "sigma": np.array([self.sigma], np.float32)}

    def of(self, obs: Array) -> Array:
        """Counts `[B, A]` for observations `[B, D]`; 0 where a state was never visited."""
        if not len(self.keys):
            return np.zeros((len(obs), self.counts.shape[1]), self.counts.dtype)
        keys = state_keys(obs)
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where((self.keys[at] == keys)[:, None], self.counts[at], 0)


class PseudoCounts(NamedTuple):
    """How many visits the estimated value of each action rests on, from features phi of a state.

        n(s, a) = 1 / (phi' M^-1 (C + ridge I) M^-1 phi) - ridge / phi'phi

        M = sum of phi phi' over the training states in which a was taken, + ridge I
        C = sum of g g' over clusters of states, g the sum of phi over those of a cluster in which a was taken

    Returns of one cluster, such as an episode, have one common error; then a regression of returns on the features has
    the variance sigma^2 / n at phi. With one feature for every state, n is the number of clusters in which a was taken.
    """

    directions: Tensor
    """`[H, D]`: the principal directions of the features. What a state has beside them counts as never seen."""
    variance: Tensor
    """`[A, D, D]`: M^-1 (C + ridge I) M^-1 in these directions."""
    ridge: Tensor
    """The mean of phi'phi, so that it weighs as one visit."""
    sigma: float = 0.0
    """Standard deviation of one return around its estimate."""

    @classmethod
    def fit(
        cls, parts: Iterable[tuple[Tensor, Tensor, Tensor]], num_actions: int, share: float = 1.0
    ) -> "PseudoCounts":
        """From parts of features `[B, H]`, actions `[B]` and clusters `[B]`, each cluster in one part; they are a
        `share` of all training states, drawn by cluster."""
        moments, common, rows = torch.zeros(0), torch.zeros(0), 0
        for features, actions, clusters in merge_parts(parts, ROWS_PER_ACTION * num_actions):
            if not rows:
                size = (num_actions, features.shape[1], features.shape[1])
                moments, common = (features.new_zeros(size, dtype=torch.float64) for _ in range(2))
            for action in torch.unique(actions).tolist():
                taken = actions == action
                phi, which = features[taken].double(), torch.unique(clusters[taken], return_inverse=True)[1]
                sums = torch.zeros_like(phi).index_add_(0, which, phi)
                moments[action] += phi.T @ phi
                common[action] += sums.T @ sums
            rows += len(actions)
        if not rows:
            raise ValueError("pseudo-counts: no states")
        total = moments.sum(0)
        ridge = (total.trace() / rows).clamp(min=1e-12)
        directions = torch.linalg.eigh(total)[1][:, -MAX_DIRECTIONS:]
        alone = ridge * torch.eye(directions.shape[1], dtype=torch.float64, device=total.device)
        inverse = torch.linalg.inv(directions.T @ moments @ directions / share + alone)
        variance = inverse @ (directions.T @ common @ directions / share + alone) @ inverse
        return cls(directions.float(), variance.float(), ridge.float())

    def to(self, device: torch.device | str) -> "PseudoCounts":
        """The same on a device."""
        return self._replace(**{name: getattr(self, name).to(device) for name in TENSORS})

    def of(self, features: Tensor) -> Tensor:
        """Pseudo-counts `[B, A]` for features `[B, H]`, 0 where they are less than half a visit."""
        here, phi = self.to(features.device), features.float()
        if torch.compiler.is_compiling():  # an exported policy takes any number of states
            return here.of_rows(phi)
        rows = max(1, PRODUCTS // self.variance[:, 0].numel())
        return torch.cat([here.of_rows(part) for part in torch.split(phi, rows)])

    def of_rows(self, phi: Tensor) -> Tensor:
        """`of` some features."""
        directions, matrices, ridge = self.directions, self.variance, self.ridge
        along, norm = phi @ directions, phi.square().sum(1)
        beside = (norm - along.square().sum(1)).clamp(min=0)[:, None] / ridge
        size = matrices.shape[1]
        products = (along @ matrices.permute(1, 0, 2).reshape(size, -1)).view(-1, len(matrices), size)
        variance = (products * along[:, None]).sum(2) + beside
        tiny = torch.finfo(torch.float32).tiny
        counts = 1 / variance.clamp(min=tiny) - (ridge / norm.clamp(min=tiny))[:, None]
        return torch.where((counts >= MIN_PSEUDO_COUNT) & (norm > 0)[:, None], counts, 0)

    def arrays(self) -> dict[str, Array]:
        """What `visits_from` restores it from."""
        tensors = {name: getattr(self, name).cpu().numpy() for name in TENSORS}
        found = {name: array.reshape(array.shape or (1,)) for name, array in tensors.items()}
        return found | {"sigma": np.array([self.sigma], np.float32)}


def merge_parts(parts: Iterable[tuple[Tensor, ...]], rows: int) -> Iterator[tuple[Tensor, ...]]:
    """The same rows in parts of at least this many, as far as there are enough."""
    held: list[tuple[Tensor, ...]] = []
    for part in parts:
        held.append(part)
        if sum(len(some[0]) for some in held) >= rows:
            yield tuple(map(torch.cat, zip(*held, strict=True)))
            held = []
    if held:
        yield tuple(map(torch.cat, zip(*held, strict=True)))


def visits_from(arrays: dict[str, Array]) -> VisitCounts | PseudoCounts | None:
    """The visits that were saved with a policy, if there are any."""
    sigma = float(arrays["sigma"][0]) if "sigma" in arrays else 0.0
    if "visits" in arrays:
        return VisitCounts(arrays["keys"], arrays["visits"], sigma)
    if "variance" in arrays:
        directions, variance, ridge = (torch.from_numpy(arrays[name].copy()) for name in TENSORS)
        return PseudoCounts(directions, variance, ridge.squeeze(), sigma)
    return None


def state_keys(obs: Array) -> Array:
    """`[B]` uint64 for observations `[B, D]`, as float32; -0 equals 0."""
    return row_hashes(np.asarray(obs, np.float32).reshape(len(obs), -1) + np.float32(0))


def count_visits(data: Dataset, episodes: Array, gamma: float) -> VisitCounts | None:
    """The visit counts of some episodes; None for images, stacks, or too many different states.

    Visits of one cluster (`step_clusters`) are one visit, since their returns have one common error.
    """
    if data.spec.is_image or data.spec.frame_stack > 1:
        return None
    records = data.records[episodes]
    steps = concat_ranges(records["first_step"], records["steps"])
    obs = data.arrays["observations"][concat_ranges(records["first_observation"], records["steps"])]
    keys, which = np.unique(state_keys(obs), return_inverse=True)
    if len(keys) > MAX_STATES or len(keys) * MIN_MEAN_VISITS > len(steps):
        return None
    counts = np.zeros((len(keys), data.spec.num_actions), np.int32)
    visits = np.stack([which, data.arrays["actions"][steps], step_clusters(data, steps, gamma)])
    state, action, _ = np.unique(visits, axis=1)
    np.add.at(counts, (state, action), 1)
    return VisitCounts(keys, counts)


def step_clusters(data: Dataset, steps: Array, gamma: float) -> Array:
    """Steps with common errors of their returns: those of one episode, in spans of 1 / (1 - gamma) steps."""
    first = data.records["first_step"]
    episode = np.searchsorted(first, steps, side="right") - 1
    longest = int(data.records["steps"].max())
    span = longest if gamma >= 1 else min(longest, int(np.ceil(1 / (1 - gamma) - 1e-9)))
    return episode * (longest + 1) + (steps - first[episode]) // span
