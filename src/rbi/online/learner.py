"""The learner: fits Q to n-step returns and the pi-net to the policies that the actors followed.

                                                                    (paper: Algorithm RBI learner)
    R_i  = sum_k gamma^k r_(i+k) + gamma^n V_target(s_(i+n))
    L_q  = mean_i w_i huber(R_i - Q(s_i, a_i))
    L_pi = mean_i w_i w^pi_i KL(pi_i || pi-net(s_i))

V is that of the stored policy, sum_a pi(a) Q_target(s, a). Ape-X has no L_pi, and V is Q_target at the action that is
best for Q (double Q-learning). A learner knows no engine and never waits for its device.
"""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rbi import measures
from rbi.nets import Networks, attach, joined, size, to_vector
from rbi.online.actor import ActorConfig, improved
from rbi.replay import Batch, Replay
from rbi.returns import c_mix, huber, policy_priority
from rbi.rules import parse_rule

METRICS = ("q_loss", "pi_loss", "q", "td_error", "pi_net_entropy", "weight_pi_max", "importance", "counted")


@dataclass(frozen=True)
class LearnerConfig:
    """How the networks are fitted."""

    batch: int = 128
    """States in a batch."""
    learning_rate: float = 0.00025 / 4
    """Step size of Adam, for both networks."""
    adam_epsilon: float = 1.5e-4
    """Adam's epsilon."""
    target_updates: int = 2500
    """The target network is renewed every so many updates."""
    round_updates: int = 1
    """Batches that are drawn at once and share one look at the priorities; divides the other update intervals."""
    q_loss: Literal["huber", "squared"] = "huber"
    """The loss of the Q-net."""
    weighs_policy: bool = True
    """Weigh the policy loss by the advantage variance, w^pi."""
    policy_exponent: float = 0.5
    """The exponent alpha of w^pi."""
    centres: Literal["pi", "mean"] = "pi"
    """What advantages are centred by: the policy, so that V is its value, or the mean (always so in Ape-X)."""
    bootstraps: Literal["stored", "net"] = "stored"
    """Whose policy values the state n steps ahead: the one that the actor stored there, or the pi-net's."""

    def __post_init__(self) -> None:
        for name in ("batch", "target_updates", "round_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")
        if self.policy_exponent < 0:
            raise ValueError(f"policy_exponent = {self.policy_exponent}: must be at least 0")
        if self.target_updates % self.round_updates:
            raise ValueError(f"target_updates = {self.target_updates}: not a multiple of {self.round_updates}, a round")


class Learner:
    """The networks that learn, their optimiser and the target network, on one device."""

    def __init__(
        self,
        config: LearnerConfig,
        acting: ActorConfig,
        networks: Networks,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.acting, self.generator = config, acting, generator
        self.device, self.dtype, self.sight = generator.device, dtype, networks.sight
        self.rule = parse_rule(acting.rule)
        self.noise = c_mix(self.sight.actions)
        self.networks = networks.to(self.device, dtype)
        self.vector = to_vector(networks).to(self.device)
        self.computing = self.vector if dtype == torch.float32 else self.vector.to(dtype)
        attach(self.networks, self.computing)
        self.parameters = list(self.networks.parameters())
        self.vector.requires_grad_(True)
        self.vector.grad = torch.zeros_like(self.vector)
        on_cuda = self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            [self.vector], lr=config.learning_rate, eps=config.adam_epsilon, fused=True, capturable=on_cuda
        )
        self.optimiser.step()  # with a gradient of zero: it only makes Adam's moments, which then keep their places
        self.adam: dict[str, Tensor] = self.optimiser.state[self.vector]
        self.adam["step"].zero_()
        self.target = copy.deepcopy(self.networks.q).requires_grad_(False)
        self.target_vector = self.computing.detach()[: size(self.networks.q)].clone()
        attach(self.target, self.target_vector)
        self.sums = torch.zeros(len(METRICS), dtype=torch.float64, device=self.device)
        self.beside = torch.cuda.Stream(self.device) if on_cuda else None
        self.updates = 0

    def round(self, replay: Replay) -> None:
        """Draw the batches of a round, learn from each, and give their states new priorities."""
        batch = self.config.batch
        drawn = replay.sample(batch * self.config.round_updates, self.generator)
        parts = [drawn.part(k * batch, batch) for k in range(self.config.round_updates)]
        errors = [self.update(part, watched=part is parts[-1]) for part in parts]
        replay.reprioritise(drawn.row, drawn.lane, torch.cat(errors))

    def passed(self) -> None:
        """Count a round, and renew the target network when its time has come."""
        self.updates += self.config.round_updates
        if self.updates % self.config.target_updates == 0:
            self.target_vector.copy_(self.computing.detach()[: len(self.target_vector)])

    def update(self, batch: Batch, *, watched: bool = True) -> Tensor:
        """One step of both networks; the TD errors `[B]`."""
        centre = batch.pi if self.networks.pi is not None and self.config.centres == "pi" else None
        seen = self.sight.look(batch.frames, self.dtype)
        logits = None
        if self.networks.pi is not None:
            with self.overlapping():
                logits = self.networks.pi(seen)
        q, _ = self.networks.q(seen, centre)
        with torch.no_grad():
            goal = batch.reward + batch.discount * self.value_ahead(batch)
        error = goal - q.gather(1, batch.action[:, None]).squeeze(1)
        q_loss = huber(error) if self.config.q_loss == "huber" else error.square()
        losses = batch.weight * q_loss
        if logits is not None:
            self.join()
            divergence, weight = self.policy_loss(batch, logits, q.detach())
            losses = losses + batch.weight * weight * divergence
        gradients = torch.autograd.grad(losses.mean(), self.parameters)
        self.join()
        self.step(joined(gradients))
        if watched:
            self.count(batch, q_loss, error, q, logits)
        return error.detach()

    def value_ahead(self, batch: Batch) -> Tensor:
        """V at the state n steps ahead, by the target network, `[B]`."""
        seen = self.sight.look(batch.next_frames, self.dtype)
        if self.networks.pi is None:
            best = self.networks.q(seen)[0].argmax(1, keepdim=True)
            return self.target(seen)[0].gather(1, best).squeeze(1)
        pi = batch.next_pi if self.config.bootstraps == "stored" else torch.softmax(self.networks.pi(seen), 1)
        q, value = self.target(seen, pi if self.config.centres == "pi" else None)
        return value if self.config.centres == "pi" else (pi * q).sum(1)

    def policy_loss(self, batch: Batch, logits: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """KL(pi || pi-net) and its weight w^pi, `[B]` each."""
        log_probs = torch.log_softmax(logits, 1)
        pi_net = log_probs.detach().exp()
        pi = batch.pi
        if self.acting.improves == "learner":
            pi = improved(self.rule, self.acting.c_greedy, pi_net, q)
        divergence = (torch.special.xlogy(pi, pi) - pi * log_probs).sum(1)
        if not self.config.weighs_policy:
            return divergence, torch.ones_like(divergence)
        return divergence, policy_priority(pi_net, q, self.config.policy_exponent, self.noise)

    def step(self, gradient: Tensor) -> None:
        """Adam on the vector of all weights."""
        assert self.vector.grad is not None
        self.vector.grad.copy_(gradient)
        self.optimiser.step()
        if self.computing is not self.vector:
            self.computing.copy_(self.vector.detach())

    @contextlib.contextmanager
    def overlapping(self) -> Iterator[None]:
        """The pi-net's share of the work, beside the Q-net's on a stream of its own where there are streams."""
        if self.beside is None:
            yield
            return
        self.beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.beside):
            yield

    def join(self) -> None:
        if self.beside is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.beside)

    def count(self, batch: Batch, q_loss: Tensor, error: Tensor, q: Tensor, logits: Tensor | None) -> None:
        """Add up what is worth watching; read by `metrics`."""
        zero = torch.zeros((), device=self.device)
        with torch.no_grad():
            of_policy = [zero, zero, zero]
            if logits is not None:
                pi_net = torch.softmax(logits, 1)
                weight = policy_priority(pi_net, q, self.config.policy_exponent, self.noise)
                of_policy = [measures.kl(batch.pi, pi_net).mean(), measures.entropy(pi_net).mean(), weight.max()]
            told = [q_loss.mean(), of_policy[0], q.mean(), error.abs().mean(), *of_policy[1:], batch.weight.mean()]
            self.sums += torch.stack([*told, zero + 1])

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        *sums, count = self.sums.tolist()
        self.sums.zero_()
        means = {name: total / max(1.0, count) for name, total in zip(METRICS, sums, strict=False)}
        if self.networks.pi is None:
            return {k: v for k, v in means.items() if k not in ("pi_loss", "pi_net_entropy", "weight_pi_max")}
        return means

    def state(self) -> dict[str, Tensor]:
        """All that changes while learning, without a copy; the random state is the generator's."""
        vectors = {"vector": self.vector.detach(), "target": self.target_vector, "sums": self.sums}
        return vectors | {f"adam_{name}": value for name, value in self.adam.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        if self.computing is not self.vector:
            self.computing.copy_(self.vector.detach())
