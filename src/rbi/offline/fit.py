"""Behaviour and its values, learned from data that does not grow.      (paper: section 4)

    beta:  minimise  -log beta(a | s)                       who acted, as a policy
    Q:     minimise  (R - Q(s, a))^2                         R: the Monte-Carlo return, lives split, rewards clipped

Both look at the same batches and take their steps together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from rbi.data import Sampler
from rbi.nets import Adam, attach, join, to_vector
from rbi.nets.from_logs import LogNetConfig, LogNetworks, dropped
from rbi.sight import Sight

METRICS = ("beta_loss", "beta_accuracy", "q_loss", "q")


@dataclass(frozen=True)
class FitConfig:
    """How beta and Q are fitted.      (paper: table of hyperparameters)"""

    updates: int = 1_562_500
    """Batches to learn from."""
    learning_rate: float = 0.00025
    """Step size of Adam, for both networks."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    nets: LogNetConfig = field(default_factory=LogNetConfig)

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise ValueError(f"updates = {self.updates}: must be at least 1")
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")


class Fit:
    """Networks that learn from a sampler, on its device."""

    def __init__(
        self,
        config: FitConfig,
        networks: LogNetworks,
        sampler: Sampler,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.sampler, self.generator, self.dtype = config, sampler, generator, dtype
        self.sight, device = networks.sight, sampler.device
        self.vector = to_vector(networks).to(device)
        self.networks = networks.to(device)
        self.computing = self.vector if dtype == torch.float32 else self.vector.to(dtype)
        attach(self.networks, self.computing)
        self.parameters = list(self.networks.parameters())
        self.adam = Adam(self.vector, self.computing, config.learning_rate, config.adam_epsilon)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=device)
        self.updates = 0

    def learn(self) -> Iterator[int]:
        """Take all updates, one after the other; how many are done."""
        self.networks.train()
        while self.updates < self.config.updates:
            self.update()
            yield self.updates

    def update(self) -> None:
        """One step of both networks, along the closed forms of their losses' gradients at the outputs:

        dL_beta / dlogits = (beta - [a]) / B,        dL_q / dQ(s, a) = 2 (Q(s, a) - R) / B
        """
        batch = self.sampler.draw()
        seen = dropped(self.sight.look(batch.states, self.dtype), self.config.nets.input_dropout, self.generator)
        size = len(batch.actions)
        logits = self.networks.pi(seen, self.generator)
        q, _ = self.networks.q(seen, generator=self.generator)
        with torch.no_grad():
            taken = functional.one_hot(batch.actions, self.sight.actions).to(q.dtype)
            beta = torch.softmax(logits, 1)
            error = (q * taken).sum(1) - batch.returns
            slopes = [(beta - taken) / size, 2 * error[:, None] * taken / size]
            self.count(logits, taken, error, q)
        gradients = torch.autograd.grad([logits, q], self.parameters, slopes)
        join(gradients, self.networks, self.adam.gradient)
        self.adam.step()
        self.updates += 1

    def count(self, logits: Tensor, taken: Tensor, error: Tensor, q: Tensor) -> None:
        """Add up what is worth watching; read by `metrics`."""
        log_probs = (torch.log_softmax(logits, 1) * taken).sum(1)
        right = (logits.argmax(1) == taken.argmax(1)).float()
        values = [-log_probs.mean(), right.mean(), error.square().mean(), q.mean(), torch.ones((), device=q.device)]
        self.sums += torch.stack(values)

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        *sums, count = self.sums.tolist()
        self.sums.zero_()
        return {name: total / max(1.0, count) for name, total in zip(METRICS, sums, strict=True)}


def networks_for(sight: Sight, config: LogNetConfig, seed: int) -> LogNetworks:
    """Networks with weights drawn from a seed, on the CPU; PyTorch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LogNetworks(sight, config)
