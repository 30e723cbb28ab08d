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

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rbi import measures
from rbi.nets import Networks, attach, duel, to_vector
from rbi.nets.beside import Beside
from rbi.replay import Moment
from rbi.returns import Horizon, n_step
from rbi.rules import greedy, mix, parse_rule

BOUND = 1e-3  # a ratio this close to a bound of reroute counts as at it
METRICS = ("pi_entropy", "q_acted", "moved_mass", "at_c_min", "at_c_max")


@dataclass(frozen=True)
class ActorConfig:
    """How players act."""

    rule: str = "reroute(0.1,2)"
    """The improvement step that is taken in every state; any rule of `rbi rules`."""
    c_greedy: float = 0.1
    """How much of the greedy policy is mixed in, so that actions near probability zero can return."""
    improves: Literal["actor", "learner"] = "actor"
    """Who takes the improvement step: the actor (the paper), or the learner, as the target of the policy loss."""
    exploration: float = 0.4
    """Base of the exploration ladder: player i of N acts at random with eps = base^(1 + exponent i/(N-1))."""
    exploration_exponent: float = 7.0
    """Exponent of the exploration ladder; 0 gives all players the base."""
    priority_baseline: Literal["q", "v"] = "q"
    """What the return is compared with for the first priority: Q(s, a), or V(s) as in the paper's Algorithm."""
    clip_rewards: bool = True
    """Clip rewards to [-1, 1] for learning; scores are never clipped."""

    def __post_init__(self) -> None:
        parse_rule(self.rule)
        for name in ("c_greedy", "exploration"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, 1]")
        if not 0 <= self.exploration_exponent < math.inf:
            raise ValueError(f"exploration_exponent = {self.exploration_exponent}: must be at least 0, and finite")


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
        horizon: Horizon,
        generator: torch.Generator,
        dtype: torch.dtype,
        centres: Centres = "pi",
    ) -> None:
        """`centres`: what the learner centres advantages by."""
        self.config, self.horizon, self.generator, self.centres = config, horizon, generator, centres
        self.device, self.sight, self.dtype = generator.device, networks.sight, dtype
        self.rule = parse_rule(config.rule)
        self.vector = to_vector(networks).to(self.device, dtype)
        self.networks = networks.to(self.device, dtype).requires_grad_(False)
        attach(self.networks, self.vector)
        self.epsilon = epsilon.to(self.device)[:, None]
        players, bytes_ = len(epsilon), torch.uint8 if self.sight.pictures else torch.float32
        self.stack = torch.zeros((players, self.sight.stack, *self.sight.frame), dtype=bytes_, device=self.device)
        self.uniform = torch.zeros((), dtype=torch.bool, device=self.device)
        # the last n steps, newest last: reward and end of each, Q or V where it began; and the value of each frame
        self.rewards = torch.zeros((players, horizon.steps), device=self.device)
        self.ends = torch.zeros((players, horizon.steps), dtype=torch.uint8, device=self.device)
        self.began = torch.zeros((players, horizon.steps + 1), device=self.device)
        self.values = torch.zeros((players, horizon.steps + 1), device=self.device)
        self.sums = torch.zeros(len(METRICS) + 1, dtype=torch.float64, device=self.device)
        self.beside = Beside(self.device, priority=-1)  # players wait for what it does

    def load(self, vector: Tensor) -> None:
        """Take newer weights."""
        self.vector.copy_(vector)

    def act(self, frame: Tensor, first: Tensor, reward: Tensor, end: Tensor) -> Moment:
        """Choose actions for newly seen frames; `reward` and `end` are of the steps that led to them."""
        return self.note(self.choose(frame, first), frame, first, reward, end)

    def choose(self, frame: Tensor, first: Tensor) -> Choice:
        """What the players wait for."""
        self.see(frame, first)
        with torch.no_grad():
            pi, q, base, stepped = self.policy(self.sight.look(self.stack, self.dtype))
        explored = (1 - self.epsilon) * pi + self.epsilon / self.sight.actions
        draw = torch.rand((len(pi), 1), device=self.device, generator=self.generator)
        action = (draw >= explored.cumsum(1)).sum(1).clamp(max=self.sight.actions - 1)
        return Choice(action, pi, q, base, stepped)

    def note(self, chosen: Choice, frame: Tensor, first: Tensor, reward: Tensor, end: Tensor) -> Moment:
        """What the replay is told, which can be computed while the players move."""
        action, pi, q, base, stepped = chosen
        self.count(pi, q, base, stepped)
        if self.config.clip_rewards:
            reward = reward.clamp(-1, 1)
        value = (pi * q).sum(1)
        began = value if self.config.priority_baseline == "v" else q.gather(1, action[:, None]).squeeze(1)
        td_error = self.remember(reward, end, value, began)
        return Moment(frame, first, reward, end, action, pi, td_error)

    def see(self, frame: Tensor, first: Tensor) -> None:
        """Move the stacks on by one frame; a new episode starts with black frames before it."""
        mask = ~first.view(-1, *[1] * (self.stack.dim() - 1))
        self.stack[:, :-1] = self.stack[:, 1:] * mask
        self.stack[:, -1] = frame

    def policy(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The policy that is followed and stored, without exploration; Q; the pi-net's; and it after the rule alone."""
        if self.networks.pi is None:
            q, _ = self.networks.q(seen)
            base = torch.full_like(q, 1 / self.sight.actions)
            stepped = pi = greedy(base, q, check=False)
        else:
            with self.beside.overlapping():
                logits = self.networks.pi(seen)
            value, advantage = self.networks.q.streams(seen)
            self.beside.join()
            base = torch.softmax(logits, 1)
            q = duel(value, advantage, base if self.centres == "pi" else None)
            stepped = pi = base
            if self.config.improves == "actor":
                stepped = self.rule(base, q, check=False)
                pi = greedy_mix(stepped, q, self.config.c_greedy)
        return torch.where(self.uniform, 1 / self.sight.actions, pi), q, base, stepped

    def remember(self, reward: Tensor, end: Tensor, value: Tensor, began: Tensor) -> Tensor:
        """|n-step return - Q| of the step that began n moments ago, now that its n steps are known."""
        push(self.rewards, reward)
        push(self.ends, end)
        push(self.values, value)
        push(self.began, began)
        coming = n_step(self.rewards, self.ends, self.horizon.gamma)
        bootstrap = self.values.gather(1, coming.steps[:, None]).squeeze(1)
        return (coming.reward + coming.discount * bootstrap - self.began[:, 0]).abs()

    def count(self, pi: Tensor, q: Tensor, base: Tensor, stepped: Tensor) -> None:
        """Add up what is worth watching; read by `metrics`."""
        ratio = measures.probability_ratio(stepped, base)
        low, high = getattr(self.rule, "c_min", 0.0), getattr(self.rule, "c_max", math.inf)
        self.sums += torch.stack(
            [
                measures.entropy(pi).mean(),
                (pi * q).sum(1).mean(),
                measures.total_variation(stepped, base).mean(),
                (ratio <= low + BOUND).float().mean(),
                (ratio >= high - BOUND).float().mean(),
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
