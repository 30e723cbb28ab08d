"""RBI, the paper's algorithm: an actor that improves the policy in every state, and a learner that imitates it.

The actor      (paper: Algorithm RBI actor)

    beta       <- pi-net(s)
    Q, V       <- Q-net(s, ., beta)
    pi         <- (1 - c_greedy) MaxReroute(beta, Q) + c_greedy greedy(Q)
    a          ~  (1 - epsilon) pi + epsilon / |A|
    delta      <- |n-step return - Q(s, a)|
    AddToDataset(s, a, pi, r, delta)

The learner      (paper: Algorithm RBI learner)

    B          <- PriorityBatchSample(D, N)
    R_i        <- sum_(k<n) gamma^k r_(i+k) + gamma^n V_target(s_(i+n))
    L_q        <- mean_i w_i huber(R_i - Q(s_i, a_i))
    L_pi       <- mean_i w_i w^pi_i KL(pi_i || pi-net(s_i))

An actor serves one group of environments. Actors and learners know no engine, and never wait for their device: on a
GPU, engines capture their methods as CUDA graphs. `rbi.online.apex` has the baseline and shares the small parts below.
"""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rbi import measures
from rbi.gpu import SideStream
from rbi.losses import (
    c_mix,
    mask_illegal,
    policy_loss,
    policy_loss_grad,
    policy_weight,
    q_loss,
    q_loss_grad,
    spread,
    td_error,
)
from rbi.networks import AdvantageBaseline, Networks, PolicyNetwork, QNetwork, dueling_q
from rbi.observations import ObservationSpec, random_shifts, roll_stacks
from rbi.online.config import ActorConfig, LearnerConfig
from rbi.optim import ModuleOptimizer, Peers, bind_parameters, flat_size, flatten_parameters
from rbi.replay import NO_MASKS, ReplayBatch, Transition
from rbi.returns import ReturnConfig, n_step_returns
from rbi.rules.linear import greedy, mix
from rbi.rules.types import parse_rule
from rbi.steps import TERMINATED, legal_or_none


class Choice(NamedTuple):
    """Actions `[N]`, and the policies and values they were drawn from, `[N, A]` each."""

    action: Tensor
    pi: Tensor
    """The policy that is followed and stored, without exploration."""
    q: Tensor
    beta: Tensor
    """The pi-net's policy, which the rule is applied to."""
    improved: Tensor
    """rule(beta, Q), before the greedy mix."""


class RBIActor:
    """RBI's actor for one group of environments, with its own copy of the networks."""

    METRICS = ("pi_entropy", "q_acted", "moved_mass", "at_c_min", "at_c_max")

    def __init__(
        self,
        config: ActorConfig,
        returns: ReturnConfig,
        networks: Networks,
        epsilon: Tensor,
        generator: torch.Generator,
        dtype: torch.dtype,
        advantage_baseline: AdvantageBaseline = "pi",
        *,
        priorities: bool = True,
        exploration_steps: int = 0,
        predictor: "Predictor | None" = None,
    ) -> None:
        """`epsilon`: the exploration of each environment, `[N]`; `advantage_baseline` as in the learner's config;
        `priorities`: whether the replay needs TD errors;
        `exploration_steps`: the steps during which epsilon falls from 1 to `epsilon`;
        `predictor`: computes the networks, by default a copy of `networks` here."""
        self.config, self.advantage_baseline, self.priorities = config, advantage_baseline, priorities
        self.generator, self.device, self.dtype = generator, generator.device, dtype
        self.obs_spec, self.num_actions = networks.obs_spec, networks.obs_spec.num_actions
        self.rule = parse_rule(config.rule)
        self.bounds = getattr(self.rule, "c_min", 0.0), getattr(self.rule, "c_max", math.inf)
        policy_network(networks)
        self.predictor = predictor or ActorNetworks(networks, self.device, dtype)
        self.vector = self.predictor.vector
        self.epsilon = epsilon.to(self.device)[:, None]
        self.memory = ActorMemory(config, self.obs_spec, returns, len(epsilon), self.device, exploration_steps)
        self.uniform = torch.zeros((), dtype=torch.bool, device=self.device)
        self.sums = torch.zeros(len(self.METRICS) + 1, dtype=torch.float64, device=self.device)

    def act(self, obs: Tensor, is_first: Tensor, reward: Tensor, end: Tensor, legal: Tensor = NO_MASKS) -> Transition:
        """Choose actions for new observations; `reward` and `end` belong to the steps that led to them."""
        return self.record(self.choose(obs, is_first, legal), obs, is_first, reward, end, legal)

    def choose(self, obs: Tensor, is_first: Tensor, legal: Tensor = NO_MASKS) -> Choice:
        """The actions, which the environments wait for."""
        allowed = legal_or_none(legal)
        with torch.no_grad():
            value, advantage, logits = self.predictor.predict(self.memory.push_frame(obs, is_first))
            assert logits is not None
            beta = torch.softmax(mask_illegal(logits, allowed), 1)
            q = dueling_q(value, advantage, beta if self.advantage_baseline == "pi" else None)
            improved = pi = beta
            if self.config.improve_in != "learner":
                improved = self.rule(beta, in_reward_units(q, self.config), legal=allowed, check=False)
                # Departs from the paper: the policy that is stored and imitated includes the greedy mix.
                pi = greedy_mix(improved, q, self.config.c_greedy, allowed)
            pi = torch.where(self.uniform, spread(1, self.num_actions, allowed), pi)
        action = self.memory.explore(pi, self.epsilon, is_first, self.generator, allowed)
        return Choice(action, pi, q, beta, improved)

    def record(
        self, choice: Choice, obs: Tensor, is_first: Tensor, reward: Tensor, end: Tensor, legal: Tensor = NO_MASKS
    ) -> Transition:
        """The transition for the replay, which is computed while the environments step."""
        action, pi, q, beta, improved = choice
        self.memory.terminated += (end == TERMINATED).sum()
        self.add_metrics(pi, q, beta, improved)
        reward = learning_reward(reward, self.config)
        value = (pi * q).sum(1)
        # Departs from the paper: priorities compare the return with Q(s, a) by default, its Algorithm with V(s).
        baseline = value if self.config.priority_baseline == "v" else q.gather(1, action[:, None]).squeeze(1)
        td_error = self.memory.n_step_td_error(reward, end, value, baseline) if self.priorities else value
        return Transition(obs, is_first, reward, end, action, pi, td_error, legal)

    def add_metrics(self, pi: Tensor, q: Tensor, beta: Tensor, improved: Tensor) -> None:
        """Accumulate the metrics of one step; `metrics` reads them."""
        shares = measures.bound_shares(improved, beta, *self.bounds)
        self.sums += torch.stack(
            [
                measures.entropy(pi).mean(),
                (pi * q).sum(1).mean(),
                measures.total_variation(improved, beta).mean(),
                shares.at_c_min.mean(),
                shares.at_c_max.mean(),
                torch.ones((), device=self.device),
            ]
        )

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


class RBILearner:
    """RBI's learner: both networks, their optimiser and the target network, on one device."""

    METRICS = ("q_loss", "q", "td_error", "importance", "pi_loss", "pi_net_entropy", "weight_pi_max")

    def __init__(
        self,
        config: LearnerConfig,
        actor: ActorConfig,
        networks: Networks,
        generator: torch.Generator,
        dtype: torch.dtype,
        total_updates: int,
        peers: Peers | None = None,
    ) -> None:
        """`peers`: the learners of a data-parallel run; each takes an equal part of every batch."""
        self.config, self.actor, self.generator = config, actor, generator
        self.device, self.dtype, self.obs_spec = generator.device, dtype, networks.obs_spec
        self.peers = peers or Peers()
        self.rule, self.policy_noise = parse_rule(actor.rule), c_mix(self.obs_spec.num_actions)
        self.weights = LearnerWeights(config, networks, self.device, dtype, total_updates, self.peers)
        self.networks, self.target, self.vector = self.weights.networks, self.weights.target, self.weights.vector
        self.target_pi = self.weights.target_pi
        self.pi_net, self.q_net = policy_network(self.networks), self.networks.q
        self.sums = torch.zeros(len(self.METRICS) + 1, dtype=torch.float64, device=self.device)
        self.overlap = SideStream(self.device)
        self.updates = 0

    def learn(self, replay: "SampledReplay") -> None:
        """Sample `updates_per_sample` batches, take one gradient step on each, and update their priorities."""
        config = self.config
        # Departs from the paper: sampling is prioritised, where it also says "uniformly every 5K batches".
        size = config.batch_size // self.peers.size
        batch = replay.sample(size * config.updates_per_sample, self.generator)
        states = self.states(batch)  # one call for all: the target networks do not change in between
        parts = list(zip(batch.parts(size, self.peers.max), states.parts(size), strict=True))
        errors = [self.update(*part, log=part is parts[-1]) for part in parts]
        replay.update_priorities(batch.row, batch.env, torch.cat(errors))

    def states(self, batch: ReplayBatch) -> "States":
        """The network inputs of a batch, what the target network predicts at s_(i+n), and policies that no update of
        the batch changes."""
        obs, next_obs = (
            preprocess(self.obs_spec, frames, self.dtype, self.config.augmentation, self.generator)
            for frames in (batch.obs, batch.next_obs)
        )
        with torch.no_grad():
            if self.target_pi is not None:
                pi, _ = self.improve_target(obs, batch.legal)
                next_pi, next_q = self.improve_target(next_obs, batch.next_legal)
                return States(obs, next_obs, (next_pi * next_q).sum(1), pi)
            if self.config.advantage_baseline == "mean":
                predicted = self.target(next_obs)[0]
            elif self.config.bootstrap_policy != "stored":
                predicted = self.target(next_obs, batch.next_pi)[0]
            else:
                predicted = self.target.predict_value(next_obs)
        return States(obs, next_obs, predicted, batch.pi)

    def improve_target(self, obs: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """The policy and the Q-values `[B, A]` of the target networks, improved by the rule."""
        assert self.target_pi is not None
        legal = legal_or_none(masks)
        beta = torch.softmax(mask_illegal(self.target_pi(obs), legal), 1)
        q, _ = self.target(obs, beta if self.config.advantage_baseline == "pi" else None)
        return self.improve(beta, q, legal), q

    def update(self, batch: ReplayBatch, states: "States", *, log: bool = True) -> Tensor:
        """One gradient step of both networks; returns the TD errors `[B]`.

        The losses enter through their gradients at the networks' outputs, which have closed forms (`rbi.losses`).
        """
        with self.overlap.overlapping():
            logits = self.pi_net(states.obs)
        q, _ = self.q_net(states.obs, batch.pi if self.config.advantage_baseline == "pi" else None)
        with torch.no_grad():
            # Departs from the paper: its R_i sums gamma^t r_(i+t) from t = 1 to n; this is the usual n-step return.
            error = td_error(q, batch.action, batch.reward, batch.discount, self.next_value(batch, states))
            # Departs from the paper: the Huber loss by default, where the paper writes a squared error.
            q_grad = q_loss_grad(error, batch.action, q, batch.weight, self.config.q_loss)
            self.overlap.join()
            beta = torch.softmax(mask_illegal(logits, legal_or_none(batch.legal)), 1)
            pi, weight = self.policy_target(batch, states, beta, q)
            logits_grad = policy_loss_grad(beta, pi, batch.weight * weight)
            if log:
                self.add_metrics(batch, q, error, pi, beta, weight)
        self.weights.optimizer.step([q, logits], [q_grad, logits_grad], side_stream=self.overlap)
        return error

    def next_value(self, batch: ReplayBatch, states: "States") -> Tensor:
        """V_target(s_(i+n)), `[B]`."""
        if states.predicted.dim() == 1:
            return states.predicted  # the dueling head's V is the value of the stored policy
        # Departs from the paper: V^pi is that of the policy which the actor stored at i+n, or of the pi-net there.
        # After a time limit the final state is bootstrapped from as well, with the policy that the actor stored there.
        pi, legal = batch.next_pi, legal_or_none(batch.next_legal)
        if self.config.bootstrap_policy != "stored":
            pi = torch.softmax(mask_illegal(self.pi_net(states.next_obs), legal), 1)
        if self.config.bootstrap_policy == "rule":
            pi = self.improve(pi, states.predicted, legal)
        return (pi * states.predicted).sum(1)

    def policy_target(self, batch: ReplayBatch, states: "States", beta: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The policy to imitate `[B, A]`, and its weight w^pi `[B]`."""
        pi, legal = states.pi, legal_or_none(batch.legal)
        if self.actor.improve_in != "actor" and self.target_pi is None:
            pi = self.improve(beta, q, legal)
        if not self.config.policy_weighting:
            return pi, torch.ones_like(batch.weight)
        return pi, policy_weight(beta, q, self.config.policy_weight_exponent, self.policy_noise, self.peers.mean, legal)

    def improve(self, beta: Tensor, q: Tensor, legal: Tensor | None) -> Tensor:
        """The improved policy `[B, A]`, as actors compute it."""
        improved = self.rule(beta, in_reward_units(q, self.actor), legal=legal, check=False)
        return greedy_mix(improved, q, self.actor.c_greedy, legal)

    def add_metrics(
        self, batch: ReplayBatch, q: Tensor, error: Tensor, pi: Tensor, beta: Tensor, weight: Tensor
    ) -> None:
        """Accumulate the metrics of one update; `metrics` reads them."""
        self.sums += torch.stack(
            [
                q_loss(error, self.config.q_loss).mean(),
                q.mean(),
                error.abs().mean(),
                batch.weight.mean(),
                policy_loss(beta, pi).mean(),
                measures.entropy(beta).mean(),
                weight.max(),
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


# What RBI and Ape-X share: small functions, and the data that both keep.


class SampledReplay(Protocol):
    """A replay as learners use it."""

    def sample(self, size: int, generator: torch.Generator) -> ReplayBatch: ...

    def update_priorities(self, row: Tensor, env: Tensor, td_error: Tensor) -> None: ...


class States(NamedTuple):
    """Network inputs at s_i and s_(i+n), the target network's prediction at s_(i+n), V `[B]` or Q `[B, A]`, and
    policies at s_i: the improved ones of the target networks, or those that actors stored."""

    obs: Tensor
    next_obs: Tensor
    predicted: Tensor
    pi: Tensor

    def parts(self, size: int) -> "list[States]":
        return [States(*part) for part in zip(*(torch.split(tensor, size) for tensor in self), strict=True)]


class Prediction(NamedTuple):
    """Outputs of the networks: V `[N, 1]`, advantages `[N, A]`, not yet centred, and the pi-net's logits `[N, A]`."""

    value: Tensor
    advantage: Tensor
    logits: Tensor | None
    """None without a pi-net."""


class Predictor(Protocol):
    """The networks as actors use them: their own copy, or one in another process that serves several actors."""

    @property
    def vector(self) -> Tensor:
        """The weights."""

    def predict(self, stack: Tensor) -> Prediction:
        """The outputs for frame stacks `[N, stack, *shape]`."""

    def load(self, vector: Tensor) -> None:
        """Take published weights."""


class ActorNetworks:
    """Networks for acting, with all weights as views of one vector."""

    def __init__(self, networks: Networks, device: torch.device, dtype: torch.dtype) -> None:
        self.obs_spec, self.dtype = networks.obs_spec, dtype
        self.vector = flatten_parameters(networks).to(device, dtype)
        self.networks = networks.to(device, dtype).requires_grad_(False)
        bind_parameters(self.networks, self.vector)
        self.overlap = SideStream(device, priority=-1)  # environments wait for what it computes

    def predict(self, stack: Tensor) -> Prediction:
        state, logits = self.obs_spec.preprocess(stack, self.dtype), None
        with torch.no_grad():
            if self.networks.pi is not None:
                with self.overlap.overlapping():
                    logits = self.networks.pi(state)
            value, advantage = self.networks.q.value_and_advantage(state)
            if logits is not None:
                self.overlap.join()
        return Prediction(value, advantage, logits)

    def load(self, vector: Tensor) -> None:
        self.vector.copy_(vector)


class ActorMemory:
    """What an actor keeps of its environments: frame stacks, and the last n steps for their TD errors."""

    def __init__(
        self,
        config: ActorConfig,
        obs_spec: ObservationSpec,
        returns: ReturnConfig,
        num_envs: int,
        device: torch.device,
        exploration_steps: int = 0,
    ) -> None:
        n, self.gamma, self.exploration_steps = returns.n_step, returns.gamma, exploration_steps
        self.max_repeat, self.repeat_episodes = config.max_repeat, config.repeat_episodes
        chance = 1 / torch.arange(1, config.max_repeat + 1, device=device)
        self.repeat_edges = chance.cumsum(0)[:-1] / chance.sum()
        self.stack = torch.zeros((num_envs, obs_spec.stack, *obs_spec.shape), dtype=obs_spec.dtype, device=device)
        # newest last: reward and end of each step, Q or V where it began; and the value of each observation
        self.rewards = torch.zeros((num_envs, n), device=device)
        self.ends = torch.zeros((num_envs, n), dtype=torch.uint8, device=device)
        self.baselines = torch.zeros((num_envs, n + 1), device=device)
        self.values = torch.zeros((num_envs, n + 1), device=device)
        # exploration: the action that is repeated, for how many more steps; steps so far, and terminated episodes
        self.repeated, self.repeats = (torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(2))
        self.steps, self.terminated = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))

    def push_frame(self, obs: Tensor, is_first: Tensor) -> Tensor:
        """The frame stacks `[N, stack, *shape]` with a new frame; an episode starts with zeros before its first."""
        roll_stacks(self.stack, obs, is_first)
        return self.stack

    def n_step_td_error(self, reward: Tensor, end: Tensor, value: Tensor, baseline: Tensor) -> Tensor:
        """|n-step return - baseline| `[N]` of the step that began n steps ago, now that its return is known."""
        for window, newest in (
            (self.rewards, reward),
            (self.ends, end),
            (self.values, value),
            (self.baselines, baseline),
        ):
            window[:, :-1] = window[:, 1:].clone()
            window[:, -1] = newest
        returns = n_step_returns(self.rewards, self.ends, self.gamma)
        bootstrap = self.values.gather(1, returns.steps[:, None]).squeeze(1)
        return (returns.reward + returns.discount * bootstrap - self.baselines[:, 0]).abs()

    def explore(
        self,
        pi: Tensor,
        epsilon: Tensor,
        is_first: Tensor,
        generator: torch.Generator,
        legal: Tensor | None,
    ) -> Tensor:
        """Actions `[N]`: with probability epsilon a random one, which is repeated for up to `max_repeat` steps, as long
        as it is legal and fewer than `repeat_episodes` episodes have terminated. During the first `exploration_steps`
        calls epsilon falls from 1 to the given one."""
        if self.exploration_steps:
            epsilon = epsilon + (1 - epsilon) * (1 - self.steps / self.exploration_steps).clamp(min=0)
            self.steps += 1
        if self.max_repeat == 1:
            return explore(pi, epsilon, generator, legal)
        action = explore(pi, torch.zeros_like(epsilon), generator, legal)
        draw = torch.rand((3, len(pi)), device=pi.device, generator=generator)
        length = 1 + (draw[1, :, None] >= self.repeat_edges).sum(1)
        length = torch.where(self.terminated < self.repeat_episodes, length, 1)
        repeats = self.repeats * ~is_first
        if legal is not None:
            repeats *= legal.gather(1, self.repeated[:, None]).squeeze(1)
        starts = (repeats == 0) & (draw[0] < epsilon[:, 0])
        self.repeats.copy_(torch.where(starts, length, repeats))
        self.repeated.copy_(torch.where(starts, uniform_actions(draw[2], pi.shape[1], legal), self.repeated))
        action = torch.where(self.repeats > 0, self.repeated, action)
        self.repeats.sub_(1).clamp_(min=0)
        return action

    def reset(self) -> None:
        """Forget the running episodes, before new ones start in all environments."""
        for name, tensor in self.state().items():
            if name not in ("steps", "terminated"):
                tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        names = ("stack", "rewards", "ends", "baselines", "values", "repeated", "repeats", "steps", "terminated")
        return {name: getattr(self, name) for name in names}


class LearnerWeights:
    """Networks, optimiser and target network of a learner, with all weights as flat vectors."""

    def __init__(
        self,
        config: LearnerConfig,
        networks: Networks,
        device: torch.device,
        dtype: torch.dtype,
        total_updates: int,
        peers: Peers,
    ) -> None:
        self.networks = networks
        self.optimizer = ModuleOptimizer(
            networks,
            device,
            config.learning_rate,
            config.adam_epsilon,
            dtype=dtype,
            decay=1 - config.final_lr_fraction,
            decay_steps=total_updates,
            peers=peers,
        )
        self.vector, self.compute_vector = self.optimizer.vector, self.optimizer.compute_vector
        whole = config.improve_from == "target"  # the policy network has a target network, too
        target = copy.deepcopy(networks if whole else networks.q).requires_grad_(False)
        self.target_vector = self.compute_vector[: flat_size(target)].clone()
        bind_parameters(target, self.target_vector)
        self.target: QNetwork = target.q if isinstance(target, Networks) else target
        self.target_pi: PolicyNetwork | None = target.pi if isinstance(target, Networks) else None

    def update_target(self) -> None:
        """Copy the networks to their target networks."""
        self.target_vector.copy_(self.compute_vector[: len(self.target_vector)])

    def state(self) -> dict[str, Tensor]:
        return self.optimizer.state() | {"target": self.target_vector}

    def restore(self, state: dict[str, Tensor]) -> None:
        copy_state(self.state(), state)
        if self.compute_vector is not self.vector:
            self.compute_vector.copy_(self.vector)


def policy_network(networks: Networks) -> PolicyNetwork:
    """The pi-net, which RBI needs and Ape-X does not have."""
    if networks.pi is None:
        raise ValueError("networks: RBI needs a policy network")
    return networks.pi


def explore(pi: Tensor, epsilon: Tensor, generator: torch.Generator, legal: Tensor | None = None) -> Tensor:
    """Actions `[N]` drawn from (1 - epsilon) pi + epsilon / |A|, where A are the legal actions."""
    num_actions = pi.shape[1]
    explored = (1 - epsilon) * pi + spread(epsilon, num_actions, legal)
    draw = torch.rand((len(pi), 1), device=pi.device, generator=generator)
    action = (draw >= explored.cumsum(1)).sum(1).clamp(max=num_actions - 1)
    if legal is None:
        return action
    is_legal = legal.gather(1, action[:, None]).squeeze(1)
    return torch.where(is_legal, action, explored.argmax(1))  # sums in float32 may end below the draw


def uniform_actions(draw: Tensor, num_actions: int, legal: Tensor | None) -> Tensor:
    """The (legal) actions `[N]` that uniform draws from [0, 1) stand for, all equally likely."""
    if legal is None:
        return (draw * num_actions).long()
    rank = (draw * legal.sum(1)).long()
    return (legal.cumsum(1) <= rank[:, None]).sum(1)


def greedy_mix(pi: Tensor, q: Tensor, c_greedy: float, legal: Tensor | None = None) -> Tensor:
    """(1 - c_greedy) pi + c_greedy greedy(Q).      (paper: section 5)"""
    return mix(pi, greedy(pi, q, legal=legal, check=False), c_greedy, check=False) if c_greedy else pi


def learning_reward(reward: Tensor, config: ActorConfig) -> Tensor:
    """Rewards as the networks learn them: divided by `reward_scale`, then clipped."""
    if config.reward_unit != 1:
        reward = reward / config.reward_unit
    return reward.clamp(-1, 1) if config.clip_rewards else reward


def in_reward_units(q: Tensor, config: ActorConfig) -> Tensor:
    """Q of the environment's own rewards, for rules that depend on its size."""
    return q if config.reward_unit == 1 else q * config.reward_unit


def preprocess(
    obs_spec: ObservationSpec, frames: Tensor, dtype: torch.dtype, augmentation: int, generator: torch.Generator
) -> Tensor:
    """Network inputs of frame stacks; images are shifted at random by up to `augmentation` pixels."""
    shifts = random_shifts(len(frames), augmentation, generator) if augmentation and obs_spec.is_image else None
    return obs_spec.preprocess(frames, dtype, shifts)


def read_means(sums: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Means of accumulated metrics, whose last number is their count; the sums start again. Empty without a count."""
    *totals, count = sums.tolist()
    sums.zero_()
    return {name: total / count for name, total in zip(names, totals, strict=True)} if count else {}


def copy_state(into: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Copy saved tensors into those of the same name."""
    for name, tensor in into.items():
        tensor.copy_(state[name])
