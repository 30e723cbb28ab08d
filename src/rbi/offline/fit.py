"""Behaviour and its values, learned from data that does not grow.      (paper: section 4)

    beta:  minimise  -log beta(a | s)                       who acted, as a policy
    Q:     minimise  (R - Q(s, a))^2                         R: the Monte-Carlo return, lives split, rewards clipped

Both look at the same batches and take their steps together.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rbi.data import Sampler
from rbi.nets.beside import Beside
from rbi.nets.from_logs import LogNetConfig, LogNetworks
from rbi.nets.trained import Trained
from rbi.offline.learning import Looks, means
from rbi.offline.losses import chosen, error_slope, imitation_slope

METRICS = ("beta_loss", "beta_accuracy", "q_loss", "q")


@dataclass(frozen=True)
class FitConfig:
    """How beta and Q are fitted.      (paper: table of hyperparameters)"""

    learning_rate: float = 0.00025
    """Step size of Adam, for both networks."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    nets: LogNetConfig = field(default_factory=LogNetConfig)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")


class Fit:
    """Networks that learn from a sampler, on its device."""

    def __init__(self, config: FitConfig, networks: LogNetworks, sampler: Sampler, generator: torch.Generator) -> None:
        self.config, self.sampler, self.generator = config, sampler, generator
        self.networks, self.sight = networks, networks.sight
        # what is seen is blanked by numbers of its own, so that it can be looked at ahead
        self.blanking = torch.Generator(generator.device).manual_seed(generator.initial_seed() + 1)
        self.looks = Looks(sampler, self.sight, config.nets.input_dropout, self.blanking)
        self.steady: Looks | None = self.looks
        self.trained = Trained(networks.train(), sampler.device, config.learning_rate, config.adam_epsilon)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=sampler.device)
        self.beside = Beside(sampler.device)
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
            allowed = logits if batch.legal is None else logits.masked_fill(~batch.legal, -torch.inf)
            beta = torch.softmax(allowed, 1)
            error = chosen(q, batch.actions) - batch.returns
            error = error if batch.whole is None else error * batch.whole  # what came of a step that was cut off?
            self.count(beta, batch.actions, error, q)
            slopes = [imitation_slope(beta, batch.actions), error_slope(error, batch.actions, self.sight.actions)]
        self.trained.descend([logits, q], slopes, beside=self.beside)

    def passed(self) -> None:
        """Count an update."""
        self.updates += 1

    def count(self, beta: Tensor, actions: Tensor, error: Tensor, q: Tensor) -> None:
        """Add up what is worth watching; read by `metrics`."""
        probs = chosen(beta, actions).clamp(min=1e-30)
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
