"""Ape-X, the paper's baseline: a greedy actor and double Q-learning; everything else is as in RBI.

The actor

    Q          <- Q-net(s, .)
    pi         <- greedy(Q)
    a          ~  (1 - epsilon) pi + epsilon / |A|
    delta      <- |n-step return - Q(s, a)|

The learner

    R_i        <- sum_(k<n) gamma^k r_(i+k) + gamma^n Q_target(s_(i+n), argmax_a Q(s_(i+n), a))
    L_q        <- mean_i w_i huber(R_i - Q(s_i, a_i))
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rbi.losses import double_q_value, q_loss, q_loss_grad, spread, td_error
from rbi.networks import Networks, dueling_q
from rbi.online.config import ActorConfig, LearnerConfig
from rbi.online.rbi import (
    ActorMemory,
    ActorNetworks,
    LearnerWeights,
    Predictor,
    SampledReplay,
    States,
    copy_state,
    learning_reward,
    preprocess,
    read_means,
)
from rbi.optim import Peers
from rbi.replay import NO_MASKS, ReplayBatch, Transition
from rbi.returns import ReturnConfig
from rbi.rules.linear import greedy
from rbi.steps import TERMINATED, legal_or_none


class GreedyChoice(NamedTuple):
    """Actions `[N]`, and what they were drawn from, `[N, A]` each."""

    action: Tensor
    pi: Tensor
    """The greedy policy, without exploration."""
    q: Tensor


class ApexActor:
    """Ape-X's actor for one group of environments, with its own copy of the Q-network."""

    METRICS = ("q_acted",)

    def __init__(
        self,
        config: ActorConfig,
        returns: ReturnConfig,
        networks: Networks,
        epsilon: Tensor,
        generator: torch.Generator,
        dtype: torch.dtype,
        *,
        priorities: bool = True,
        exploration_steps: int = 0,
        predictor: Predictor | None = None,
    ) -> None:
        """`epsilon`: the exploration of each environment, `[N]`; `priorities`: whether the replay needs TD errors;
        `exploration_steps`: the steps during which epsilon falls from 1 to `epsilon`;
        `predictor`: computes the networks, by default a copy of `networks` here."""
        self.config, self.priorities = config, priorities
        self.generator, self.device, self.dtype = generator, generator.device, dtype
        self.obs_spec, self.num_actions = networks.obs_spec, networks.obs_spec.num_actions
        self.predictor = predictor or ActorNetworks(networks, self.device, dtype)
        self.vector = self.predictor.vector
        self.epsilon = epsilon.to(self.device)[:, None]
        self.memory = ActorMemory(config, self.obs_spec, returns, len(epsilon), self.device, exploration_steps)
        self.uniform = torch.zeros((), dtype=torch.bool, device=self.device)
        self.sums = torch.zeros(len(self.METRICS) + 1, dtype=torch.float64, device=self.device)

    def act(self, obs: Tensor, is_first: Tensor, reward: Tensor, end: Tensor, legal: Tensor = NO_MASKS) -> Transition:
        """Choose actions for new observations; `reward` and `end` belong to the steps that led to them."""
        return self.record(self.choose(obs, is_first, legal), obs, is_first, reward, end, legal)

    def choose(self, obs: Tensor, is_first: Tensor, legal: Tensor = NO_MASKS) -> GreedyChoice:
        """The actions, which the environments wait for."""
        allowed = legal_or_none(legal)
        with torch.no_grad():
            value, advantage, _ = self.predictor.predict(self.memory.push_frame(obs, is_first))
            q = dueling_q(value, advantage, None)
            pi = greedy(torch.full_like(q, 1 / self.num_actions), q, legal=allowed, check=False)
            pi = torch.where(self.uniform, spread(1, self.num_actions, allowed), pi)
        action = self.memory.explore(pi, self.epsilon, is_first, self.generator, allowed)
        return GreedyChoice(action, pi, q)

    def record(
        self, choice: GreedyChoice, obs: Tensor, is_first: Tensor, reward: Tensor, end: Tensor, legal: Tensor = NO_MASKS
    ) -> Transition:
        """The transition for the replay, which is computed while the environments step."""
        action, pi, q = choice
        self.memory.terminated += (end == TERMINATED).sum()
        value = (pi * q).sum(1)
        self.sums += torch.stack([value.mean(), torch.ones((), device=self.device)])
        reward = learning_reward(reward, self.config)
        baseline = value if self.config.priority_baseline == "v" else q.gather(1, action[:, None]).squeeze(1)
        td_error = self.memory.n_step_td_error(reward, end, value, baseline) if self.priorities else value
        return Transition(obs, is_first, reward, end, action, pi, td_error, legal)

    def metrics(self) -> dict[str, float]:
        """Means since the last call; empty if there was no step. Waits for the device."""
        return read_means(self.sums, self.METRICS)

    def load(self, vector: Tensor) -> None:
        """Copy published weights."""
        self.predictor.load(vector)

    def state(self) -> dict[str, Tensor]:
        """The tensors that acting changes, without a copy; random states are the generator's."""
        return {"vector": self.vector, "uniform": self.uniform, "sums": self.sums} | self.memory.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        copy_state(self.state(), state)


class ApexLearner:
    """Ape-X's learner: the Q-network, its optimiser and the target network, on one device."""

    METRICS = ("q_loss", "q", "td_error", "importance")

    def __init__(
        self,
        config: LearnerConfig,
        networks: Networks,
        generator: torch.Generator,
        dtype: torch.dtype,
        total_updates: int,
        peers: Peers | None = None,
    ) -> None:
        """`peers`: the learners of a data-parallel run; each takes an equal part of every batch."""
        self.config, self.generator = config, generator
        self.device, self.dtype, self.obs_spec = generator.device, dtype, networks.obs_spec
        self.peers = peers or Peers()
        self.weights = LearnerWeights(config, networks, self.device, dtype, total_updates, self.peers)
        self.networks, self.target, self.vector = self.weights.networks, self.weights.target, self.weights.vector
        self.sums = torch.zeros(len(self.METRICS) + 1, dtype=torch.float64, device=self.device)
        self.updates = 0

    def learn(self, replay: SampledReplay) -> None:
        """Sample `updates_per_sample` batches, take one gradient step on each, and update their priorities."""
        config = self.config
        size = config.batch_size // self.peers.size
        batch = replay.sample(size * config.updates_per_sample, self.generator)
        states = self.states(batch)  # one call for all: the target network does not change in between
        parts = list(zip(batch.parts(size, self.peers.max), states.parts(size), strict=True))
        errors = [self.update(*part, log=part is parts[-1]) for part in parts]
        replay.update_priorities(batch.row, batch.env, torch.cat(errors))

    def states(self, batch: ReplayBatch) -> States:
        """The network inputs of a batch, and the target network's Q at s_(i+n)."""
        obs, next_obs = (
            preprocess(self.obs_spec, frames, self.dtype, self.config.augmentation, self.generator)
            for frames in (batch.obs, batch.next_obs)
        )
        with torch.no_grad():
            return States(obs, next_obs, self.target(next_obs)[0], batch.pi)

    def update(self, batch: ReplayBatch, states: States, *, log: bool = True) -> Tensor:
        """One gradient step of the Q-network; returns the TD errors `[B]`."""
        q, _ = self.networks.q(states.obs)
        with torch.no_grad():
            chooser = self.networks.q(states.next_obs)[0] if self.config.double_q else states.predicted
            next_value = double_q_value(chooser, states.predicted, legal_or_none(batch.next_legal))
            error = td_error(q, batch.action, batch.reward, batch.discount, next_value)
            q_grad = q_loss_grad(error, batch.action, q, batch.weight, self.config.q_loss)
            if log:
                self.add_metrics(batch, q, error)
        self.weights.optimizer.step([q], [q_grad])
        return error

    def add_metrics(self, batch: ReplayBatch, q: Tensor, error: Tensor) -> None:
        """Accumulate the metrics of one update; `metrics` reads them."""
        self.sums += torch.stack(
            [
                q_loss(error, self.config.q_loss).mean(),
                q.mean(),
                error.abs().mean(),
                batch.weight.mean(),
                torch.ones((), device=self.device),
            ]
        )

    def advance(self) -> None:
        """Count the updates of one `learn`, and copy the Q-network to the target network when that is due."""
        self.updates += self.config.updates_per_sample
        if self.updates % self.config.target_update_interval == 0:
            self.weights.update_target()

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        return read_means(self.sums, self.METRICS) or dict.fromkeys(self.METRICS, 0.0)

    def state(self) -> dict[str, Tensor]:
        """The tensors that learning changes, without a copy; random states are the generator's."""
        return self.weights.state() | {"sums": self.sums}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.weights.restore(state)
        self.sums.copy_(state["sums"])
