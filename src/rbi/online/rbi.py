"""The actor: improves the policy in every state it sees, acts, and says how surprising its steps were.

                                                                    (paper: Algorithm RBI actor)
    pi_hat   <- pi-net(s)
    Q, V     <- Q-net(s, ., pi_hat)
    pi       <- (1 - c_greedy) MaxReroute(pi_hat, Q) + c_greedy greedy(Q)
    beta     <- (1 - eps) pi + eps / m
    a        ~  beta
    priority <- |n-step return - Q(s, a)|

Ape-X is the same actor without a pi-net: pi is greedy. An actor serves one group of players, knows no environment and
no engine, and never waits for its device.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rbi import measures
from rbi.gpu.streams import Beside
from rbi.losses import (
    action_values,
    c_mix,
    double_q_value,
    policy_loss,
    policy_loss_grad,
    policy_weight,
    q_loss,
    q_loss_grad,
)
from rbi.networks import Networks, dueling_q
from rbi.observations import random_shifts, roll_stacks
from rbi.optim import Adam, attach, join, size, to_vector
from rbi.replay import Replay, ReplayBatch, Transition
from rbi.returns import ReturnConfig, n_step_returns
from rbi.rules.linear import greedy, mix
from rbi.rules.types import parse_rule

METRICS = ("pi_entropy", "q_acted", "moved_mass", "at_c_min", "at_c_max")


@dataclass(frozen=True)
class ActorConfig:
    """How players act."""

    rule: str = "reroute(0.1,2)"
    """The improvement step that is taken in every state; any rule of `rbi rules`."""
    c_greedy: float = 0.1
    """How much of the greedy policy is mixed in, so that actions near probability zero can return."""
    improve_in: Literal["actor", "learner"] = "actor"
    """Who takes the improvement step: the actor (the paper), or the learner, as the target of the policy loss."""
    epsilon_base: float = 0.4
    """Base of the exploration ladder: player i of N acts at random with eps = base^(1 + exponent i/(N-1))."""
    epsilon_exponent: float = 7.0
    """Exponent of the exploration ladder; 0 gives all players the base."""
    priority_baseline: Literal["q", "v"] = "q"
    """What the return is compared with for the first priority: Q(s, a), or V(s) as in the paper's Algorithm."""
    clip_rewards: bool = True
    """Clip rewards to [-1, 1] for learning; scores are never clipped."""

    def __post_init__(self) -> None:
        parse_rule(self.rule)
        for name in ("c_greedy", "epsilon_base"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, 1]")
        if not 0 <= self.epsilon_exponent < math.inf:
            raise ValueError(f"epsilon_exponent = {self.epsilon_exponent}: must be at least 0, and finite")


Centres = Literal["pi", "mean"]


class Choice(NamedTuple):
    """Actions `[N]`, and what they come from, `[N, A]` each."""

    action: Tensor
    pi: Tensor
    """The policy that is followed and stored, without exploration."""
    q: Tensor
    base: Tensor
    """The pi-net's policy."""
    stepped: Tensor
    """The same after the rule alone."""


class Actor:
    """The players of one group, on one device, with networks of their own."""

    def __init__(
        self,
        config: ActorConfig,
        networks: Networks,
        epsilon: Tensor,
        returns: ReturnConfig,
        generator: torch.Generator,
        dtype: torch.dtype,
        advantage_baseline: Centres = "pi",
    ) -> None:
        """`advantage_baseline`: what the learner subtracts from advantages."""
        self.config, self.returns, self.generator, self.advantage_baseline = (
            config,
            returns,
            generator,
            advantage_baseline,
        )
        self.device, self.obs_spec, self.dtype = generator.device, networks.obs_spec, dtype
        self.rule = parse_rule(config.rule)
        self.vector = to_vector(networks).to(self.device, dtype)
        self.networks = networks.to(self.device, dtype).requires_grad_(False)
        attach(self.networks, self.vector)
        self.epsilon = epsilon.to(self.device)[:, None]
        players, bytes_ = len(epsilon), torch.uint8 if self.obs_spec.is_image else torch.float32
        self.stack = torch.zeros((players, self.obs_spec.stack, *self.obs_spec.shape), dtype=bytes_, device=self.device)
        self.uniform = torch.zeros((), dtype=torch.bool, device=self.device)
        # the last n steps, newest last: reward and end of each, Q or V where it began; and the value of each frame
        self.rewards = torch.zeros((players, returns.n_step), device=self.device)
        self.ends = torch.zeros((players, returns.n_step), dtype=torch.uint8, device=self.device)
        self.began = torch.zeros((players, returns.n_step + 1), device=self.device)
        self.values = torch.zeros((players, returns.n_step + 1), device=self.device)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=self.device)
        self.beside = Beside(self.device, priority=-1)  # players wait for what it does

    def load(self, vector: Tensor) -> None:
        """Take newer weights."""
        self.vector.copy_(vector)

    def act(self, frame: Tensor, first: Tensor, reward: Tensor, end: Tensor) -> Transition:
        """Choose actions for newly seen frames; `reward` and `end` are of the steps that led to them."""
        return self.note(self.choose(frame, first), frame, first, reward, end)

    def choose(self, frame: Tensor, first: Tensor) -> Choice:
        """What the players wait for."""
        roll_stacks(self.stack, frame, first)
        with torch.no_grad():
            pi, q, base, stepped = self.policy(self.obs_spec.preprocess(self.stack, self.dtype))
        explored = (1 - self.epsilon) * pi + self.epsilon / self.obs_spec.num_actions
        draw = torch.rand((len(pi), 1), device=self.device, generator=self.generator)
        action = (draw >= explored.cumsum(1)).sum(1).clamp(max=self.obs_spec.num_actions - 1)
        return Choice(action, pi, q, base, stepped)

    def note(self, chosen: Choice, frame: Tensor, first: Tensor, reward: Tensor, end: Tensor) -> Transition:
        """What the replay is told, which can be computed while the players move."""
        action, pi, q, base, stepped = chosen
        self.count(pi, q, base, stepped)
        if self.config.clip_rewards:
            reward = reward.clamp(-1, 1)
        value = (pi * q).sum(1)
        began = value if self.config.priority_baseline == "v" else q.gather(1, action[:, None]).squeeze(1)
        td_error = self.remember(reward, end, value, began)
        return Transition(frame, first, reward, end, action, pi, td_error)

    def policy(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The policy that is followed and stored, without exploration; Q; the pi-net's; and it after the rule alone."""
        if self.networks.pi is None:
            q, _ = self.networks.q(seen)
            base = torch.full_like(q, 1 / self.obs_spec.num_actions)
            stepped = pi = greedy(base, q, check=False)
        else:
            with self.beside.overlapping():
                logits = self.networks.pi(seen)
            value, advantage = self.networks.q.value_and_advantage(seen)
            self.beside.join()
            base = torch.softmax(logits, 1)
            q = dueling_q(value, advantage, base if self.advantage_baseline == "pi" else None)
            stepped = pi = base
            if self.config.improve_in == "actor":
                stepped = self.rule(base, q, check=False)
                pi = greedy_mix(stepped, q, self.config.c_greedy)
        return torch.where(self.uniform, 1 / self.obs_spec.num_actions, pi), q, base, stepped

    def remember(self, reward: Tensor, end: Tensor, value: Tensor, began: Tensor) -> Tensor:
        """|n-step return - Q| of the step that began n moments ago, now that its n steps are known."""
        push(self.rewards, reward)
        push(self.ends, end)
        push(self.values, value)
        push(self.began, began)
        coming = n_step_returns(self.rewards, self.ends, self.returns.gamma)
        bootstrap = self.values.gather(1, coming.steps[:, None]).squeeze(1)
        return (coming.reward + coming.discount * bootstrap - self.began[:, 0]).abs()

    def count(self, pi: Tensor, q: Tensor, base: Tensor, stepped: Tensor) -> None:
        """Add up what is worth watching; read by `metrics`."""
        low, high = getattr(self.rule, "c_min", 0.0), getattr(self.rule, "c_max", math.inf)
        hits = measures.bound_hits(stepped, base, low, high)
        self.sums += torch.stack(
            [
                measures.entropy(pi).mean(),
                (pi * q).sum(1).mean(),
                measures.total_variation(stepped, base).mean(),
                hits.at_c_min.float().mean(),
                hits.at_c_max.float().mean(),
                torch.ones((), device=self.device),
            ]
        )

    def metrics(self) -> dict[str, float]:
        """Means since the last call, nothing if there was no step. Waits for the device."""
        *sums, count = self.sums.tolist()
        self.sums.zero_()
        means = {name: total / count for name, total in zip(METRICS, sums, strict=True)} if count else {}
        return {k: v for k, v in means.items() if self.networks.pi is not None or k == "q_acted"}

    def state(self) -> dict[str, Tensor]:
        """All that changes while acting, to be saved; the random state is the generator's."""
        return {name: getattr(self, name) for name in STATE}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, saved in state.items():
            getattr(self, name).copy_(saved)

    def forget(self) -> None:
        """Start afresh in all environments: nothing before counts for stacks or returns."""
        for memory in (self.stack, self.rewards, self.ends, self.began, self.values):
            memory.zero_()


STATE = ("vector", "stack", "uniform", "rewards", "ends", "began", "values", "sums")


def greedy_mix(pi: Tensor, q: Tensor, c_greedy: float) -> Tensor:
    """(1 - c_greedy) pi + c_greedy greedy(Q).      (paper: section 5)"""
    return mix(pi, greedy(pi, q, check=False), c_greedy, check=False) if c_greedy else pi


def push(window: Tensor, newest: Tensor) -> None:
    """Move a window `[N, n]` on by one."""
    window[:, :-1] = window[:, 1:].clone()
    window[:, -1] = newest


def ladders(epsilon: Tensor, groups: int) -> list[Tensor]:
    """The exploration rates of each group: every group gets players of all kinds."""
    return [epsilon[group::groups] for group in range(groups)]


# ---- from rbi.online.learner: The learner: fits Q to n-step returns and the pi-net to the policies that the actors followed.
#
#                                                                     (paper: Algorithm RBI learner)
#     R_i  = sum_k gamma^k r_(i+k) + gamma^n V_target(s_(i+n))
#     L_q  = mean_i w_i huber(R_i - Q(s_i, a_i))
#     L_pi = mean_i w_i w^pi_i KL(pi_i || pi-net(s_i))
#
# V is that of the stored policy, sum_a pi(a) Q_target(s, a). Ape-X has no L_pi, and V is Q_target at the action that is
# best for Q (double Q-learning). A learner knows no engine and never waits for its device.

Q_METRICS = ("q_loss", "q", "td_error", "importance")
PI_METRICS = ("pi_loss", "pi_net_entropy", "weight_pi_max")
LEARNER_METRICS = Q_METRICS + PI_METRICS
MOST_SHIFT = 16  # pixels


@dataclass(frozen=True)
class LearnerConfig:
    """How the networks are fitted."""

    batch_size: int = 128
    """States in a batch."""
    learning_rate: float = 0.00025 / 4
    """Step size of Adam, for both networks."""
    final_lr_fraction: float = 1.0
    """What is left of the learning rate at the end of the run, as a share; it falls in a straight line. 1: it stays."""
    adam_epsilon: float = 1.5e-4
    """Adam's epsilon."""
    target_update_interval: int = 2500
    """The target network is renewed every so many updates."""
    updates_per_sample: int = 1
    """Batches that are drawn at once and share one look at the priorities; divides the other update intervals."""
    q_loss: Literal["huber", "squared"] = "huber"
    """The loss of the Q-net."""
    policy_weighting: bool = True
    """Weigh the policy loss by the advantage variance, w^pi."""
    policy_weight_exponent: float = 0.5
    """The exponent alpha of w^pi."""
    advantage_baseline: Centres = "pi"
    """What advantages are centred by: the policy, so that V is its value, or the mean (always so in Ape-X)."""
    double_q: bool = True
    """Ape-X: let the learning network choose the action that the target network values; without, the target does."""
    augmentation: int = 0
    """Pictures are learned from moved at random by up to so many pixels each way, lest they be learned by heart."""
    bootstrap_policy: Literal["stored", "net"] = "stored"
    """Whose policy values the state n steps ahead: the one that the actor stored there, or the pi-net's."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "target_update_interval", "updates_per_sample"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("learning_rate", "adam_epsilon"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie between 0 and 1")
        if not 0 <= self.augmentation <= MOST_SHIFT:
            raise ValueError(f"augmentation = {self.augmentation}: must lie in [0, {MOST_SHIFT}]")
        if not 0 <= self.final_lr_fraction <= 1:
            raise ValueError(f"final_lr_fraction = {self.final_lr_fraction}: must lie in [0, 1]")
        if not 0 <= self.policy_weight_exponent < math.inf:
            raise ValueError(f"policy_weight_exponent = {self.policy_weight_exponent}: must be at least 0, and finite")
        if self.target_update_interval % self.updates_per_sample:
            raise ValueError(
                f"target_update_interval = {self.target_update_interval}: not a multiple of {self.updates_per_sample}, a round"
            )


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
        self.device, self.dtype, self.obs_spec = generator.device, dtype, networks.obs_spec
        self.rule = parse_rule(acting.rule)
        self.noise = c_mix(self.obs_spec.num_actions)
        self.vector = to_vector(networks).to(self.device)
        self.networks = networks.to(self.device, dtype)
        self.computing = self.vector if dtype == torch.float32 else self.vector.to(dtype)
        attach(self.networks, self.computing)
        self.parameters = list(self.networks.parameters())
        self.adam = Adam(
            self.vector,
            self.computing,
            config.learning_rate,
            config.adam_epsilon,
            1 - config.final_lr_fraction,
            all_updates,
        )
        self.target = copy.deepcopy(self.networks.q).requires_grad_(False)
        self.target_vector = self.computing[: size(self.networks.q)].clone()
        attach(self.target, self.target_vector)
        self.sums = torch.zeros(len(LEARNER_METRICS) + 1, dtype=torch.float64, device=self.device)
        self.beside = Beside(self.device)
        self.updates = 0

    def round(self, replay: Replay) -> None:
        """Draw the batches of a round, learn from each, and give their states new priorities."""
        batch = self.config.batch_size
        drawn = replay.sample(batch * self.config.updates_per_sample, self.generator)
        looked = self.looked(drawn)  # the target network stays the same through a round, so it is asked once
        errors = []
        for start in range(0, len(drawn.row), batch):
            last = start + batch == len(drawn.row)
            errors.append(self.update(drawn.part(start, batch), looked.part(start, batch), watched=last))
        replay.update_priorities(drawn.row, drawn.lane, torch.cat(errors))

    def look(self, frames: Tensor) -> Tensor:
        """What networks see of some states, each from a little aside."""
        most = self.config.augmentation if self.obs_spec.is_image else 0
        return self.obs_spec.preprocess(
            frames, self.dtype, random_shifts(len(frames), most, self.generator) if most else None
        )

    def passed(self) -> None:
        """Count a round, and renew the target network when its time has come."""
        self.updates += self.config.updates_per_sample
        if self.updates % self.config.target_update_interval == 0:
            self.target_vector.copy_(self.computing[: len(self.target_vector)])

    def update(self, batch: ReplayBatch, looked: Looked, *, watched: bool = True) -> Tensor:
        """One step of both networks; the TD errors `[B]`.

        The losses enter as their gradients at the networks' outputs, which have closed forms:

            dL_q / dQ(s_i, a_i) = -w_i clip(R_i - Q(s_i, a_i), -1, 1) / B
            dL_pi / dlogits_i   =  w_i w^pi_i (pi-net(s_i) - pi_i) / B
        """
        centre = batch.pi if self.networks.pi is not None and self.config.advantage_baseline == "pi" else None
        outputs, slopes = [], []
        if self.networks.pi is not None:
            with self.beside.overlapping():
                logits = self.networks.pi(looked.seen)
        q, _ = self.networks.q(looked.seen, centre)
        with torch.no_grad():
            goal = batch.reward + batch.discount * self.value_ahead(batch, looked)
            error = goal - action_values(q, batch.action)
            outputs.append(q)
            slopes.append(q_loss_grad(error, batch.action, q, batch.weight, self.config.q_loss))
            if self.networks.pi is not None:
                self.beside.join()
                pi, pi_net, weight = self.goal_policy(batch, logits, q)
                outputs.append(logits)
                slopes.append(policy_loss_grad(pi_net, pi, batch.weight * weight))
                if watched:
                    self.count(
                        PI_METRICS, [policy_loss(pi_net, pi).mean(), measures.entropy(pi_net).mean(), weight.max()]
                    )
            if watched:
                loss = q_loss(error, self.config.q_loss)
                self.count(Q_METRICS, [loss.mean(), q.mean(), error.abs().mean(), batch.weight.mean()])
        gradients = torch.autograd.grad(outputs, self.parameters, slopes)
        if self.networks.pi is not None:
            self.beside.join()
        join(gradients, self.networks, self.adam.gradient)
        self.adam.step()
        return error

    def looked(self, batch: ReplayBatch) -> Looked:
        """Look at the states, and ask the target network about those n steps ahead."""
        seen, ahead = self.look(batch.obs), self.look(batch.next_obs)
        with torch.no_grad():
            if self.networks.pi is None or self.config.advantage_baseline == "mean":
                said = self.target(ahead)[0]
            elif self.config.bootstrap_policy == "net":
                said = self.target(ahead, batch.next_pi)[0]
            else:
                said = self.target.predict_value(ahead)
        return Looked(seen, ahead, said)

    def value_ahead(self, batch: ReplayBatch, looked: Looked) -> Tensor:
        """V at the states n steps ahead, `[B]`: of the stored policy, of the pi-net's, or of the best action."""
        if looked.said.dim() == 1:
            return looked.said  # advantages are centred by the stored policy, so V is its value
        if self.networks.pi is None:
            chooser = self.networks.q(looked.ahead)[0] if self.config.double_q else looked.said
            return double_q_value(chooser, looked.said)
        stored = self.config.bootstrap_policy == "stored"
        pi = batch.next_pi if stored else torch.softmax(self.networks.pi(looked.ahead), 1)
        return (pi * looked.said).sum(1)

    def goal_policy(self, batch: ReplayBatch, logits: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The policy to imitate, the pi-net's own, `[B, A]` each, and the weight w^pi `[B]`."""
        pi_net = torch.softmax(logits, 1)
        pi = batch.pi
        if self.acting.improve_in == "learner":
            pi = greedy_mix(self.rule(pi_net, q, check=False), q, self.acting.c_greedy)
        if not self.config.policy_weighting:
            return pi, pi_net, torch.ones_like(batch.weight)
        return pi, pi_net, policy_weight(pi_net, q, self.config.policy_weight_exponent, self.noise)

    def count(self, names: tuple[str, ...], values: list[Tensor]) -> None:
        """Add up what is worth watching; read by `metrics`."""
        start = LEARNER_METRICS.index(names[0])
        self.sums[start : start + len(names)] += torch.stack(values)
        if names is Q_METRICS:
            self.sums[-1] += 1

    def metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device."""
        *sums, count = self.sums.tolist()
        self.sums.zero_()
        names = Q_METRICS if self.networks.pi is None else LEARNER_METRICS
        return {name: total / max(1.0, count) for name, total in zip(names, sums, strict=False)}

    def state(self) -> dict[str, Tensor]:
        """All that changes while learning, without a copy; the random state is the generator's."""
        return {"vector": self.vector, "target": self.target_vector, "sums": self.sums} | self.adam.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        if self.computing is not self.vector:
            self.computing.copy_(self.vector)
