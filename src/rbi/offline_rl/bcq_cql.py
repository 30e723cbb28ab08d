"""Double Q-learning from data that does not grow, held to what the data knows.

    minimise   mean_i [ huber(R_i + gamma_i Q_target(s'_i, a'_i) - Q(s_i, a_i))
                        + alpha (log sum_a exp Q(s_i, a) - Q(s_i, a_i)) ]
    a'_i     = argmax_a Q(s'_i, a)   among   beta(a | s'_i) >= tau max_b beta(b | s'_i)

    tau > 0     discrete BCQ (Fujimoto et al. 2019): only familiar actions are believed in
    alpha > 0   discrete CQL (Kumar et al. 2020): actions that nobody took are kept down
    neither     double DQN, held to nothing

Our BCQ departs from the original, whose beta shares its first layers with Q and is learned along with it: here beta is
a network of its own, the one that every other method of the table stands on.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from rbi.data.sampler import Batch, Sampler
from rbi.losses import action_values, bcq_filter, cql_penalty, double_q_value, huber, mask_illegal, td_error
from rbi.networks import NetworkConfig, Networks, offline_network
from rbi.offline_rl.behavior_q import Looks, frozen, means
from rbi.optim import ModuleOptimizer, bind_parameters

METRICS = ("td_loss", "td_error", "td_q", "cql_penalty", "bcq_familiar")


def without_dropout() -> NetworkConfig:
    """The networks of Q-learning: as beta's and Q's, except dropout.      (paper: table of hyperparameters, DQfD)"""
    return offline_network(input_dropout=0.0, hidden_dropout=0.0)


@dataclass(frozen=True)
class TdConfig:
    """How Q is learned by bootstrapping."""

    learning_rate: float = 0.0000625
    """Step size of Adam."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    target_updates: int = 2500
    """The target network is renewed every so many updates. A reward is heard of one state earlier with each renewal
    where returns are of 1 step: the 625 of a whole run reach as far as a discount of 0.99 looks; the 95 that DQfD's
    16,384 would give, with its 10 steps a return, do not."""
    conservative: float = 0.0
    """CQL's alpha: how much actions that were not taken are kept down; 0: not at all."""
    familiar: float = 0.0
    """BCQ's tau: how probable under beta an action must be, as a share of the most probable one's; 0: all are."""
    nets: NetworkConfig = field(default_factory=without_dropout)

    def __post_init__(self) -> None:
        for name in ("target_updates",):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")
        if not 0 <= self.conservative < math.inf:
            raise ValueError(f"conservative = {self.conservative}: must be at least 0, and finite")
        if not 0 <= self.familiar <= 1:
            raise ValueError(f"familiar = {self.familiar}: must lie in [0, 1]")
        refuse_dropout(self.nets)


class TemporalDifference:
    """A Q-net that learns from a sampler of n-step returns, on its device.

    `beta` says which actions are familiar in the states ahead: a `PolicyNetwork`, asked as it acts. It is needed by
    BCQ and by nothing else.
    """

    steady: Looks | None = None

    def __init__(self, config: TdConfig, networks: Networks, sampler: Sampler, beta: nn.Module | None) -> None:
        if config.familiar and beta is None:
            raise ValueError(f"familiar = {config.familiar}: needs beta, to say which actions are familiar")
        if not config.familiar and beta is not None:
            raise ValueError("familiar = 0: every action is, so there is nothing to ask beta")
        refuse_unfit(networks, sampler)
        self.config, self.sampler, self.networks, self.obs_spec = config, sampler, networks.train(), networks.obs_spec
        self.trained = ModuleOptimizer(networks, sampler.device, config.learning_rate, config.adam_epsilon)
        self.target = Target(networks, self.trained.vector)
        self.beta = None if beta is None else beta.to(sampler.device)
        self.legal_ahead = legal_ahead(sampler)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=sampler.device)
        self.updates = 0

    def update(self) -> None:
        """One step of the Q-net, which stays ready to learn."""
        self.networks.train()
        batch = self.sampler.draw()
        assert batch.next_states is not None
        seen_ahead = self.obs_spec.preprocess(batch.next_states, torch.float32)
        allowed = self.allowed(batch, seen_ahead)
        ahead = self.target.ahead(seen_ahead, allowed)
        q, _ = self.networks.q(self.obs_spec.preprocess(batch.states, torch.float32))
        error = td_error(q, batch.actions, batch.returns, batch.discount, ahead)
        penalty = cql_penalty(q, batch.actions, batch.action_masks)
        loss = (huber(error) + self.config.conservative * penalty).mean()
        with torch.no_grad():
            one = torch.ones((), device=q.device)
            known = one if allowed is None else allowed.float().mean()
            values = [huber(error), error.abs(), action_values(q, batch.actions), penalty]
            self.sums += torch.stack([*(value.mean() for value in values), known, one])
        self.trained.step([loss])

    def allowed(self, batch: Batch, seen_ahead: Tensor) -> Tensor | None:
        """Which actions may be bootstrapped from, `[B, A]`; None: all."""
        legal = None if self.legal_ahead is None else self.legal_ahead.index_select(0, batch.steps)
        if self.beta is None:
            return legal
        with judging(self.beta):
            return bcq_filter(mask_illegal(self.beta(seen_ahead), legal), self.config.familiar)

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
        return [self.sampler.generator]

    def state(self) -> dict[str, Tensor]:
        """All that changes while learning, without a copy, beta too: its owner may renew it now and then. The random
        states are the generators'."""
        beta = {} if self.beta is None else {f"beta.{name}": t for name, t in self.beta.state_dict().items()}
        return self.trained.state() | self.target.state() | beta | {"sums": self.sums}


class Target:
    """The network that values what the learning one, whose weights are `vector`, chooses: a copy that lags behind."""

    def __init__(self, learning: Networks, vector: Tensor) -> None:
        self.learning, self.learned = learning, vector
        self.networks, self.vector = frozen(learning), vector.clone()
        bind_parameters(self.networks, self.vector)

    def ahead(self, seen: Tensor, allowed: Tensor | None) -> Tensor:
        """V `[B]`: what it says of the action that the learning network prefers among those allowed. Both answer as
        they would act, with the statistics of batch norm that they have gathered."""
        with judging(self.learning):
            return double_q_value(self.learning.q(seen)[0], self.networks.q(seen)[0], allowed)

    def renew(self) -> None:
        """Catch up, in place: weights, and what batch norm has seen."""
        self.vector.copy_(self.learned)
        for mine, theirs in zip(self.networks.buffers(), self.learning.buffers(), strict=True):
            mine.copy_(theirs)

    def state(self) -> dict[str, Tensor]:
        seen = {f"target.buffer.{name}": buffer for name, buffer in self.networks.named_buffers()}
        return {"target.vector": self.vector, **seen}


@contextlib.contextmanager
def judging(module: nn.Module) -> Iterator[None]:
    """Ask a module as it would act: batch norm neither looks at the batch nor learns from it, nor does anything else.
    Afterwards it is in the mode it was in."""
    was = module.training
    module.eval()
    with torch.no_grad():
        yield
    module.train(was)


def legal_ahead(sampler: Sampler) -> Tensor | None:
    """For every step of the data, which actions are legal in the state that its return bootstraps from, `[S, A]`: all
    of them where nobody acted there; None where it was not logged."""
    if sampler.action_masks is None:
        return None
    records, at = sampler.data.records, sampler.action_masks.device
    ends = torch.from_numpy(np.repeat(records["first_step"] + records["steps"], records["steps"])).to(at)
    then = torch.arange(len(ends), device=at) + sampler.bootstrap_steps
    acted = then < ends
    found = sampler.action_masks.index_select(0, torch.where(acted, then, 0)) | ~acted[:, None]
    return found.to(sampler.device)


def refuse_dropout(nets: NetworkConfig) -> None:
    """Targets that are drawn at random would be noise on noise: Q-learning does without."""
    for name in ("input_dropout", "hidden_dropout"):
        if getattr(nets, name):
            raise ValueError(f"nets.{name} = {getattr(nets, name)}: must be 0, Q-learning takes no dropout")


def refuse_unfit(networks: Networks, sampler: Sampler) -> None:
    """Q is learned alone, from returns that end in a state."""
    if networks.pi is not None:
        raise ValueError("the networks have a pi-net: Q is learned alone")
    if sampler.config.n_step is None:
        raise ValueError("steps = None: Monte-Carlo returns have no next state; Q-learning needs n-step returns")
    if sampler.config.keep_incomplete:
        raise ValueError("keep_incomplete = True: there is no next state to such steps, so Q cannot learn from them")
