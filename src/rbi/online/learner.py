"""The learner: fits Q to n-step returns and the pi-net to the policies that the actors followed.

                                                                    (paper: Algorithm RBI learner)
    R_i  = sum_k gamma^k r_(i+k) + gamma^n V_target(s_(i+n))
    L_q  = mean_i w_i huber(R_i - Q(s_i, a_i))
    L_pi = mean_i w_i w^pi_i KL(pi_i || pi-net(s_i))

V is that of the stored policy, sum_a pi(a) Q_target(s, a). Ape-X has no L_pi, and V is Q_target at the action that is
best for Q (double Q-learning). A learner knows no engine and never waits for its device.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rbi import measures
from rbi.nets import Adam, Networks, attach, join, size, to_vector
from rbi.nets.beside import Beside
from rbi.online.actor import ActorConfig, Centres, greedy_mix
from rbi.replay import Batch, Replay
from rbi.returns import c_mix, huber, policy_priority
from rbi.rules import parse_rule
from rbi.sight import random_moves

Q_METRICS = ("q_loss", "q", "td_error", "importance")
PI_METRICS = ("pi_loss", "pi_net_entropy", "weight_pi_max")
METRICS = Q_METRICS + PI_METRICS
MOST_SHIFT = 16  # pixels


@dataclass(frozen=True)
class LearnerConfig:
    """How the networks are fitted."""

    batch: int = 128
    """States in a batch."""
    learning_rate: float = 0.00025 / 4
    """Step size of Adam, for both networks."""
    final_rate: float = 1.0
    """What is left of the learning rate at the end of the run, as a share; it falls in a straight line. 1: it stays."""
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
    centres: Centres = "pi"
    """What advantages are centred by: the policy, so that V is its value, or the mean (always so in Ape-X)."""
    double_q: bool = True
    """Ape-X: let the learning network choose the action that the target network values; without, the target does."""
    shift: int = 0
    """Pictures are learned from moved at random by up to so many pixels each way, lest they be learned by heart."""
    bootstraps: Literal["stored", "net"] = "stored"
    """Whose policy values the state n steps ahead: the one that the actor stored there, or the pi-net's."""

    def __post_init__(self) -> None:
        for name in ("batch", "target_updates", "round_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")
        if not 0 <= self.shift <= MOST_SHIFT:
            raise ValueError(f"shift = {self.shift}: must lie in [0, {MOST_SHIFT}]")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(f"final_rate = {self.final_rate}: must lie in [0, 1]")
        if not 0 <= self.policy_exponent < math.inf:
            raise ValueError(f"policy_exponent = {self.policy_exponent}: must be at least 0, and finite")
        if self.target_updates % self.round_updates:
            raise ValueError(f"target_updates = {self.target_updates}: not a multiple of {self.round_updates}, a round")


class Looked(NamedTuple):
    """What networks see of a batch's states and of those n steps ahead, and what the target network says of the latter:
    V `[B]` or Q `[B, A]`."""

    seen: Tensor
    ahead: Tensor
    said: Tensor

    def part(self, start: int, size: int) -> "Looked":
        return Looked(*(tensor[start : start + size] for tensor in self))


class Learner:
    """The networks that learn, their optimiser and the target network, on one device."""

    def __init__(
        self,
        config: LearnerConfig,
        acting: ActorConfig,
        networks: Networks,
        generator: torch.Generator,
        dtype: torch.dtype,
        all_updates: int,
    ) -> None:
        self.config, self.acting, self.generator = config, acting, generator
        self.device, self.dtype, self.sight = generator.device, dtype, networks.sight
        self.rule = parse_rule(acting.rule)
        self.noise = c_mix(self.sight.actions)
        self.vector = to_vector(networks).to(self.device)
        self.networks = networks.to(self.device, dtype)
        self.computing = self.vector if dtype == torch.float32 else self.vector.to(dtype)
        attach(self.networks, self.computing)
        self.parameters = list(self.networks.parameters())
        self.adam = Adam(
            self.vector, self.computing, config.learning_rate, config.adam_epsilon, 1 - config.final_rate, all_updates
        )
        self.target = copy.deepcopy(self.networks.q).requires_grad_(False)
        self.target_vector = self.computing[: size(self.networks.q)].clone()
        attach(self.target, self.target_vector)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=self.device)
        self.beside = Beside(self.device)
        self.updates = 0

    def round(self, replay: Replay) -> None:
        """Draw the batches of a round, learn from each, and give their states new priorities."""
        batch = self.config.batch
        drawn = replay.sample(batch * self.config.round_updates, self.generator)
        looked = self.looked(drawn)  # the target network stays the same through a round, so it is asked once
        errors = []
        for start in range(0, len(drawn.row), batch):
            last = start + batch == len(drawn.row)
            errors.append(self.update(drawn.part(start, batch), looked.part(start, batch), watched=last))
        replay.reprioritise(drawn.row, drawn.lane, torch.cat(errors))

    def look(self, frames: Tensor) -> Tensor:
        """What networks see of some states, each from a little aside."""
        most = self.config.shift if self.sight.pictures else 0
        return self.sight.look(frames, self.dtype, random_moves(len(frames), most, self.generator) if most else None)

    def passed(self) -> None:
        """Count a round, and renew the target network when its time has come."""
        self.updates += self.config.round_updates
        if self.updates % self.config.target_updates == 0:
            self.target_vector.copy_(self.computing[: len(self.target_vector)])

    def update(self, batch: Batch, looked: Looked, *, watched: bool = True) -> Tensor:
        """One step of both networks; the TD errors `[B]`.

        The losses enter as their gradients at the networks' outputs, which have closed forms:

            dL_q / dQ(s_i, a_i) = -w_i clip(R_i - Q(s_i, a_i), -1, 1) / B
            dL_pi / dlogits_i   =  w_i w^pi_i (pi-net(s_i) - pi_i) / B
        """
        centre = batch.pi if self.networks.pi is not None and self.config.centres == "pi" else None
        outputs, slopes = [], []
        if self.networks.pi is not None:
            with self.beside.overlapping():
                logits = self.networks.pi(looked.seen)
        q, _ = self.networks.q(looked.seen, centre)
        with torch.no_grad():
            goal = batch.reward + batch.discount * self.value_ahead(batch, looked)
            error = goal - q.gather(1, batch.action[:, None]).squeeze(1)
            slope = error.clamp(-1, 1) if self.config.q_loss == "huber" else 2 * error
            of_action = -batch.weight * slope / len(error)
            outputs.append(q)
            slopes.append(torch.zeros_like(q).scatter_(1, batch.action[:, None], of_action[:, None]))
            if self.networks.pi is not None:
                self.beside.join()
                pi, pi_net, weight = self.goal_policy(batch, logits, q)
                outputs.append(logits)
                slopes.append((batch.weight * weight / len(error))[:, None] * (pi_net - pi))
                if watched:
                    self.count(
                        PI_METRICS, [measures.kl(pi, pi_net).mean(), measures.entropy(pi_net).mean(), weight.max()]
                    )
            if watched:
                loss = huber(error) if self.config.q_loss == "huber" else error.square()
                self.count(Q_METRICS, [loss.mean(), q.mean(), error.abs().mean(), batch.weight.mean()])
        gradients = torch.autograd.grad(outputs, self.parameters, slopes)
        if self.networks.pi is not None:
            self.beside.join()
        join(gradients, self.networks, self.adam.gradient)
        self.adam.step()
        return error

    def looked(self, batch: Batch) -> Looked:
        """Look at the states, and ask the target network about those n steps ahead."""
        seen, ahead = self.look(batch.frames), self.look(batch.next_frames)
        with torch.no_grad():
            if self.networks.pi is None or self.config.centres == "mean":
                said = self.target(ahead)[0]
            elif self.config.bootstraps == "net":
                said = self.target(ahead, batch.next_pi)[0]
            else:
                said = self.target.values(ahead)
        return Looked(seen, ahead, said)

    def value_ahead(self, batch: Batch, looked: Looked) -> Tensor:
        """V at the states n steps ahead, `[B]`: of the stored policy, of the pi-net's, or of the best action."""
        if looked.said.dim() == 1:
            return looked.said  # advantages are centred by the stored policy, so V is its value
        if self.networks.pi is None:
            chooser = self.networks.q(looked.ahead)[0] if self.config.double_q else looked.said
            return looked.said.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
        stored = self.config.bootstraps == "stored"
        pi = batch.next_pi if stored else torch.softmax(self.networks.pi(looked.ahead), 1)
        return (pi * looked.said).sum(1)

    def goal_policy(self, batch: Batch, logits: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The policy to imitate, the pi-net's own, `[B, A]` each, and the weight w^pi `[B]`."""
        pi_net = torch.softmax(logits, 1)
        pi = batch.pi
        if self.acting.improves == "learner":
            pi = greedy_mix(self.rule(pi_net, q, check=False), q, self.acting.c_greedy)
        if not self.config.weighs_policy:
            return pi, pi_net, torch.ones_like(batch.weight)
        return pi, pi_net, policy_priority(pi_net, q, self.config.policy_exponent, self.noise)

    def count(self, names: tuple[str, ...], values: list[Tensor]) -> None:
        """Add up what is worth watching; read by `metrics`."""
        start = METRICS.index(names[0])
        self.sums[start : start + len(names)] += torch.stack(values)
        if names is Q_METRICS:
            self.sums[-1] += 1

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        *sums, count = self.sums.tolist()
        self.sums.zero_()
        names = Q_METRICS if self.networks.pi is None else METRICS
        return {name: total / max(1.0, count) for name, total in zip(names, sums, strict=False)}

    def state(self) -> dict[str, Tensor]:
        """All that changes while learning, without a copy; the random state is the generator's."""
        return {"vector": self.vector, "target": self.target_vector, "sums": self.sums} | self.adam.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        if self.computing is not self.vector:
            self.computing.copy_(self.vector)
