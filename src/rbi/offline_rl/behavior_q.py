"""Behaviour and its values, learned from data that does not grow.      (paper: section 4)

    beta:  minimise  -log beta(a | s)                       who acted, as a policy
    Q:     minimise  (R - Q(s, a))^2                         R: the Monte-Carlo return, lives split, rewards clipped

Both look at the same batches and take their steps together.
"""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rbi.data.sampler import Batch, Sampler
from rbi.gpu.streams import SideStream
from rbi.losses import action_values, behavior_loss_grad, mask_illegal, monte_carlo_q_loss_grad
from rbi.networks import NetworkConfig, Networks, dropout, offline_network
from rbi.observations import ObservationSpec
from rbi.optim import ModuleOptimizer

METRICS = ("beta_loss", "beta_accuracy", "q_loss", "q")


@dataclass(frozen=True)
class FitConfig:
    """How beta and Q are fitted.      (paper: table of hyperparameters)"""

    learning_rate: float = 0.00025
    """Step size of Adam, for both networks."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    nets: NetworkConfig = field(default_factory=offline_network)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")


class Fit:
    """Networks that learn from a sampler, on its device."""

    def __init__(self, config: FitConfig, networks: Networks, sampler: Sampler, generator: torch.Generator) -> None:
        self.config, self.sampler, self.generator = config, sampler, generator
        self.networks, self.obs_spec = networks, networks.obs_spec
        # what is seen is blanked by numbers of its own, so that it can be looked at ahead
        self.blanking = torch.Generator(generator.device).manual_seed(generator.initial_seed() + 1)
        self.looks = Looks(sampler, self.obs_spec, config.nets.input_dropout, self.blanking)
        self.steady: Looks | None = self.looks
        self.trained = ModuleOptimizer(networks.train(), sampler.device, config.learning_rate, config.adam_epsilon)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=sampler.device)
        self.beside = SideStream(sampler.device)
        self.updates = 0

    def update(self) -> None:
        """One step of both networks, along the closed forms of their losses' gradients at the outputs:

        dL_beta / dlogits = (beta - [a]) / B,        dL_q / dQ(s, a) = 2 (Q(s, a) - R) / B
        """
        assert self.networks.pi is not None
        self.networks.train()
        batch, seen = self.looks.next()
        with self.beside.overlapping():
            logits = self.networks.pi(seen, self.generator)
        q, _ = self.networks.q(seen, generator=self.generator)
        self.beside.join()
        with torch.no_grad():
            beta = torch.softmax(mask_illegal(logits, batch.action_masks), 1)
            error = action_values(q, batch.actions) - batch.returns
            error = error if batch.complete is None else error * batch.complete  # what came of a step that was cut off?
            self.count(beta, batch.actions, error, q)
            slopes = [
                behavior_loss_grad(beta, batch.actions),
                monte_carlo_q_loss_grad(error, batch.actions, self.obs_spec.num_actions),
            ]
        self.trained.step([logits, q], slopes, side_stream=self.beside)

    def passed(self) -> None:
        """Count an update."""
        self.updates += 1

    def count(self, beta: Tensor, actions: Tensor, error: Tensor, q: Tensor) -> None:
        """Add up what is worth watching; read by `metrics`."""
        probs = action_values(beta, actions).clamp(min=1e-30)
        right = beta.scatter(1, actions[:, None], 0.0).amax(1) < probs
        values = [-probs.log().mean(), right.float().mean(), error.square().mean(), q.mean()]
        self.sums += torch.stack([*values, torch.ones((), device=q.device)])

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        return means(METRICS, self.sums)

    def generators(self) -> list[torch.Generator]:
        """Whatever an update draws from."""
        return [self.sampler.generator, self.generator, self.blanking]

    def state(self) -> dict[str, Tensor]:
        """All that changes while learning, without a copy; the random states are the generators'."""
        return self.trained.state() | {"sums": self.sums}


# ---- from rbi.offline_rl.learning: What everything that learns from logs has in common, so that an engine can drive it on a processor or a GPU.


class LearnsFromLogs(Protocol):
    """A learner. `update` is a fixed sequence of work on the device that never waits for it, so that it can be captured
    once and replayed; what happens only now and then, and all counting, is `passed`'s."""

    updates: int
    steady: "Looks | None"
    """Where every batch comes from, of a learner whose `passed` only counts: several updates are one sequence of work
    then, and batches can be looked at ahead. None for the others."""

    def update(self) -> None: ...

    def passed(self) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def generators(self) -> list[torch.Generator]: ...

    def state(self) -> dict[str, Tensor]: ...


class Looks:
    """Batches and what networks see of them, of which a share is blanked; made when asked for, or ahead of that."""

    def __init__(
        self,
        sampler: Sampler,
        obs_spec: ObservationSpec,
        blanked: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.sampler, self.obs_spec, self.blanked, self.generator = sampler, obs_spec, blanked, generator
        self.waiting: deque[tuple[Batch, Tensor]] = deque()

    def next(self) -> tuple[Batch, Tensor]:
        """The batch that waits longest, or else a new one; and what is seen of it, in float32."""
        return self.waiting.popleft() if self.waiting else self.new()

    def ahead(self) -> None:
        """Draw a batch and look at it now, for `next` to give."""
        self.waiting.append(self.new())

    def new(self) -> tuple[Batch, Tensor]:
        batch = self.sampler.draw()
        return batch, dropout(self.obs_spec.preprocess(batch.states, torch.float32), self.blanked, self.generator)


def learn(learner: LearnsFromLogs, updates: int) -> Iterator[int]:
    """Take updates, one after the other, until so many are done; how many are."""
    while learner.updates < updates:
        learner.update()
        learner.passed()
        yield learner.updates


def frozen(networks: Networks) -> Networks:
    """Networks as they are now, for policies that stay what they are while learning goes on."""
    return copy.deepcopy(networks).eval().requires_grad_(False)


def means(names: Sequence[str], sums: Tensor) -> dict[str, float]:
    """Sums, the last of which counts, as means; the sums begin anew. Waits for the device."""
    *totals, count = sums.tolist()
    sums.zero_()
    return {name: total / max(1.0, count) for name, total in zip(names, totals, strict=True)}
