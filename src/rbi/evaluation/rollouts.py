"""Evaluation of policies in environments: the protocol, vectorised rollouts of many policies, episode statistics.

evaluate(policy, env)                      scores of one policy, with a confidence interval
VectorEvaluator(protocol, env, num_envs)   many policies at once, in environments that are created once
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch

from rbi import envs, fileio, runs
from rbi.config import Checked, Device, Ge, Interval, check_callback, check_seed, check_value, choose_device
from rbi.envs.types import EnvConfig, EnvFactory, TimeStep, VectorEnv
from rbi.evaluation.batched_policies import BatchedPolicies, PolicyGroups, group_policies, random_actions
from rbi.evaluation.comparison import human_normalised
from rbi.networks import cpu_threads
from rbi.policy import Policy, load_policy
from rbi.progress import echo, track
from rbi.statistics import describe, score_text
from rbi.steps import MASK, TERMINATED, TRUNCATED
from rbi.suggestions import Suggesting, with_suggestions
from rbi.torch_settings import with_own_thread

ProtocolName = Literal["paper", "modern"]
Env = str | EnvFactory | EnvConfig
"""A Gymnasium id, a function that makes an environment, or a configuration."""
MakeEnvs = Callable[[EnvConfig, int], VectorEnv]
make_separate = functools.partial(envs.make, separate=True)
"""Makes environments of which an evaluation steps only those with episodes left."""

ATARI_FRAME_SKIP = 4
MAX_ENVS = 64
MIN_EPISODES_PER_ENV = 2  # environments with a single episode wait for the longest of all
MAX_EPISODES = 1_000_000
LONG_EPISODE = 100_000
"""Steps after which an episode may be one that never ends; those of Atari games are shorter."""


@dataclass(frozen=True)
class Protocol(Checked):
    """Evaluation protocol: how episodes start, how actions are chosen, when episodes are truncated. The name matters
    for Atari games only.

    paper     Atari: up to 30 no-ops at the start, no sticky actions
    modern    Atari: sticky actions with probability 0.25, no no-ops (Machado et al., 2018)
    """

    name: ProtocolName
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability of a uniformly random action instead of the policy's."""
    max_frames: Annotated[int, Ge(1)] = 108_000
    """Emulator frames after which an Atari episode is truncated."""
    max_idle_frames: Annotated[int, Ge(0)] = 0
    """Emulator frames without a reward after which an Atari episode counts as truncated with its score so far, once no
    other episode waits for its environment; 0: never. Few policies that idle take most of an evaluation's time."""
    deterministic: bool = False
    """Take the most probable action instead of sampling. This is a different policy, whose ratio to beta is unbounded:
    the safety of the sampled one does not carry over."""

    def env_config(self, env: Env) -> EnvConfig:
        """The environment's configuration under this protocol."""
        sticky, noops = (0.25, 0) if self.name == "modern" else (0.0, 30)
        return replace(EnvConfig.of(env), max_frames=self.max_frames, repeat_action_probability=sticky, noop_max=noops)

    def describe(self, env: Env) -> str:
        """One line about the protocol in this environment, for tables."""
        actions = "the policy's most probable actions" if self.deterministic else "actions sampled from the policy"
        if self.epsilon:
            actions += f", random with probability {self.epsilon:g}"
        config = self.env_config(env)
        if not config.is_atari:
            return f"{actions}; the environment's own limits"
        start = f"up to {config.noop_max} no-ops at the start" if config.noop_max else "no no-ops"
        sticky = f"sticky actions {config.repeat_action_probability:g}"
        limits = f"{config.max_frames:,} frames at most"
        if self.max_idle_frames:
            limits += f", {self.max_idle_frames:,} without a reward"
        return f"{actions}; {start}, {sticky}, {limits}, raw scores"


# Episode statistics


@dataclass(frozen=True)
class EpisodeResult:
    """A finished episode of one environment; the score is the undiscounted sum of its raw rewards."""

    env_index: int
    score: float
    steps: int
    truncated: bool
    """Whether it ended by the time limit."""


class EpisodeStatistics:
    """Sums up rewards and steps of parallel environments, episode by episode."""

    def __init__(self, num_envs: int) -> None:
        self.score = np.zeros(num_envs)
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.idle = np.zeros(num_envs, dtype=np.int64)  # steps of running episodes since the latest reward

    def update(self, step: TimeStep) -> list[EpisodeResult]:
        """Add one step of every environment; returns the episodes that it ended."""
        self.score = np.where(step.is_first, 0.0, self.score + step.reward)
        self.steps = np.where(step.is_first, 0, self.steps + 1)
        over = (step.end == TERMINATED) | (step.end == TRUNCATED)
        self.idle = np.where(step.is_first | over | (step.reward != 0), 0, self.idle + 1)
        if not over.any():
            return []
        return [
            EpisodeResult(int(i), float(self.score[i]), int(self.steps[i]), bool(step.end[i] == TRUNCATED))
            for i in np.flatnonzero(over)
        ]


class RecentScores:
    """Scores of the latest episodes, of all environments and of those that explore least (low epsilon).

    The window holds two episodes for each low-epsilon environment, at least 20 and at most 100.
    """

    def __init__(self, num_low_epsilon: int) -> None:
        window = max(20, min(100, 2 * num_low_epsilon))
        self.all_envs: deque[float] = deque(maxlen=window)
        self.low_epsilon: deque[float] = deque(maxlen=window)
        self.episodes = 0

    def add(self, episode: EpisodeResult, *, low_epsilon: bool) -> None:
        """Count a finished episode."""
        self.episodes += 1
        self.all_envs.append(episode.score)
        if low_epsilon:
            self.low_epsilon.append(episode.score)

    def metrics(self) -> dict[str, Any]:
        """Mean scores, and quartiles of the low-epsilon environments; None until an episode has finished."""
        low, high = np.percentile(self.low_epsilon, [25, 75]).tolist() if self.low_epsilon else (None, None)
        return {
            "score": float(np.mean(self.low_epsilon)) if self.low_epsilon else None,
            "score_low": low,
            "score_high": high,
            "score_all": float(np.mean(self.all_envs)) if self.all_envs else None,
            "episodes": self.episodes,
        }

    def state(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"all_envs": list(self.all_envs), "low_epsilon": list(self.low_epsilon), "episodes": self.episodes}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.all_envs.extend(state["all_envs"])
        self.low_epsilon.extend(state["low_epsilon"])
        self.episodes = state["episodes"]


# Observations


def check_compatible(policy: Policy, vector_env: VectorEnv, env: str) -> None:
    """Refuse a policy whose observations or actions do not fit the environment."""
    own = policy.obs_spec
    offered = vector_env.obs_shape, vector_env.frame_stack, vector_env.num_actions
    if (own.shape, own.num_actions) == (offered[0], offered[2]) and own.stack != offered[1]:
        raise ValueError(
            f"--env {env}: its observations are stacks of {offered[1]} images, and those of the policy of {own.stack}: "
            f"read the training data with frame_stack={offered[1]} (rbi data import --frame-stack {offered[1]})"
        )
    if (own.shape, own.stack, own.num_actions) != offered:
        trained_in = f" ({policy.env})" if policy.env else ""
        raise ValueError(
            f"--env {env}: has observations {vector_env.obs_shape} and {vector_env.num_actions} actions, but the policy"
            f"{trained_in} takes {policy.obs_spec.shape} and chooses among {policy.obs_spec.num_actions}"
        )
    if policy.action_names and policy.env != env:  # recorded there, they are names of the environment's numbers
        raise ValueError(
            f"--env {env}: its actions are numbered, and the policy's are called {', '.join(policy.action_names[:3])}, "
            "...: number the actions of its training data as the environment does"
        )
    if own.has_action_masks and not vector_env.has_action_masks:
        raise ValueError(f"--env {env}: its info has no {MASK!r}, and the policy learned with action masks")


# Vectorised evaluation


class VectorEvaluator:
    """Evaluates many policies at once, in environments that are created once (Atari environments are slow to create).

    The environments form `num_groups` groups: while one group steps, the actions of the next are computed, which pays
    off where policies run on a GPU. A group steps until its last episode ends, so few episodes use few groups.
    `num_envs` is rounded down to a multiple of `num_groups`.
    """

    def __init__(
        self, protocol: Protocol, env: Env, num_envs: int, make: MakeEnvs = make_separate, *, num_groups: int = 1
    ) -> None:
        self.protocol, self.env = protocol, protocol.env_config(env)
        self.group_size = at_least_one("num_envs", num_envs) // at_least_one("num_groups", num_groups)
        self.vector_envs = [make(self.env, at_least_one("num_envs", self.group_size)) for _ in range(num_groups)]
        self.seeded = [False] * num_groups
        self.reported_long_episode = False

    def evaluate(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, EpisodeResult]]:
        """Run `episodes` episodes of every policy; yields (index of the policy, finished episode).

        Every policy gets the same number of environments. Exactly `episodes` episodes are started and all of them are
        counted, so that long episodes are not underrepresented. If there are more policies than environments in a
        group, they are evaluated in batches. Exhaust the iterator before the next call: unfinished episodes of an
        earlier call are dropped.
        """
        at_least_one("episodes", episodes)
        if not policies:
            raise ValueError("policies: give at least one")
        for policy in policies:
            check_compatible(policy, self.vector_envs[0], self.env.id)
        for start in range(0, len(policies), self.group_size):
            for number, episode in self._evaluate_batch(policies[start : start + self.group_size], episodes, rng):
                yield start + number, episode

    def _evaluate_batch(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, EpisodeResult]]:
        """`evaluate` for no more policies than there are environments in a group; starts with a reset."""
        each = self.group_size // len(policies)
        used = self.groups_to_use(episodes, each)
        to_start = np.full(len(policies), max(0, episodes - each * used))
        groups = [
            EnvGroup(vector_env, policies, episodes - each * number, self.protocol, rng)
            for number, vector_env in enumerate(self.vector_envs[:used])
        ]
        for number, seed in enumerate(rng.integers(2**30, size=used).tolist()):
            groups[number].reset(None if self.seeded[number] else seed)
            # Seeding an Atari environment is as slow as creating one: later resets continue its random numbers.
            self.seeded[number] = self.env.is_atari
        idle_steps = -(-self.protocol.max_idle_frames // ATARI_FRAME_SKIP) if self.env.is_atari else 0
        while running := [(number, group) for number, group in enumerate(groups) if group.active.any()]:
            for number, group in running:
                for policy, episode in group.recv():
                    yield policy, replace(episode, env_index=episode.env_index + number * self.group_size)
                    if to_start[policy]:
                        to_start[policy] -= 1
                    else:
                        group.deactivate(episode.env_index)
                for policy, episode in group.idle_episodes(idle_steps):
                    if not to_start[policy]:
                        yield policy, replace(episode, env_index=episode.env_index + number * self.group_size)
                        group.deactivate(episode.env_index)
                self.report_long_episode(group)
                group.send()

    def report_long_episode(self, group: "EnvGroup") -> None:
        """Say once that an episode may never end: an evaluation waits for it."""
        if not self.reported_long_episode and group.statistics.steps.max(where=group.active, initial=0) >= LONG_EPISODE:
            self.reported_long_episode = True
            echo(
                f"rbi: an episode of {self.env.id} has taken {LONG_EPISODE:,} steps so far; if it may never end, stop "
                "the evaluation and give the environment a time limit (gymnasium.wrappers.TimeLimit)",
                stderr=True,
            )

    def groups_to_use(self, episodes: int, each: int) -> int:
        """As many groups, with `each` environments per policy, as have MIN_EPISODES_PER_ENV episodes per environment,
        and two where there are two."""
        enough = -(-episodes // (MIN_EPISODES_PER_ENV * each))
        return min(len(self.vector_envs), max(2, enough))

    def close(self) -> None:
        """Close the environments."""
        for vector_env in self.vector_envs:
            vector_env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EnvGroup:
    """Environments that step together, and the policy of each: first those of policy 0, then those of policy 1, ..."""

    def __init__(
        self,
        vector_env: VectorEnv,
        policies: Sequence[Policy],
        episodes: int,
        protocol: Protocol,
        rng: np.random.Generator,
    ) -> None:
        """The first environments of each policy, at most `episodes` of them, are active."""
        self.vector_env, self.policies, self.epsilon, self.rng = vector_env, policies, protocol.epsilon, rng
        num_envs = vector_env.num_envs
        self.policy_of, place = np.divmod(np.arange(num_envs), num_envs // len(policies))
        self.active = (place < episodes) & (self.policy_of < len(policies))  # spare environments have a larger index
        self.with_range = [number for number, policy in enumerate(policies) if policy.features is not None]
        if self.active.any():
            self.batched = BatchedPolicies(
                self.groups(),
                num_envs,
                policies[0].device,
                deterministic=protocol.deterministic,
                has_action_masks=vector_env.has_action_masks,
            )

    def groups(self) -> PolicyGroups:
        """Active environments by what their policies have in common."""
        return group_policies(self.policies, self.policy_of, self.active)

    def reset(self, seed: int | None) -> None:
        """Start new episodes and send the first actions; the result of a pending step is dropped."""
        self.statistics, self.step = EpisodeStatistics(self.vector_env.num_envs), self.vector_env.reset(seed)
        for i in np.flatnonzero(~self.active).tolist():
            self.vector_env.stop(i)
        self.send()

    def send(self) -> None:
        """Send actions: those of the policies; uniform with probability epsilon and in inactive environments.

        Does nothing if all environments are inactive.
        """
        if not self.active.any():
            return
        num_envs = self.vector_env.num_envs
        for number in self.with_range:
            self.policies[number].check_range(self.step.obs[self.active & (self.policy_of == number)])
        actions = self.batched.act(self.step, self.rng.random((num_envs, 1)))
        on_policy = self.active & (self.rng.random(num_envs) >= self.epsilon)
        others = random_actions(self.step, self.vector_env.num_actions, self.rng)
        self.vector_env.send(np.where(on_policy, actions, others))

    def recv(self) -> Iterator[tuple[int, EpisodeResult]]:
        """Wait for the environments; yields (index of the policy, finished episode)."""
        self.step = self.vector_env.recv()
        for episode in self.statistics.update(self.step):
            if self.active[episode.env_index]:
                yield int(self.policy_of[episode.env_index]), episode

    def idle_episodes(self, steps: int) -> Iterator[tuple[int, EpisodeResult]]:
        """Running episodes whose latest reward is at least this many steps ago, as if they were truncated; 0: none."""
        found = self.statistics
        for i in np.flatnonzero(self.active & (found.idle >= steps)).tolist() if steps else ():
            yield int(self.policy_of[i]), EpisodeResult(i, float(found.score[i]), int(found.steps[i]), truncated=True)

    def deactivate(self, env_index: int) -> None:
        """Mark an environment as having no more episodes to run."""
        self.active[env_index] = False
        self.vector_env.stop(env_index)
        if self.active.any():
            self.batched.restrict(self.groups())


def run_episodes(
    policy: Policy, protocol: Protocol, env: Env, episodes: int, seed: int, make: MakeEnvs = make_separate
) -> Iterator[EpisodeResult]:
    """Finished episodes of one policy: exactly `episodes` of them, in up to MAX_ENVS parallel environments."""
    at_least_one("episodes", episodes)
    with VectorEvaluator(protocol, env, min(episodes, MAX_ENVS), make) as evaluator:
        for _, episode in evaluator.evaluate([policy], episodes, np.random.default_rng(seed)):
            yield episode


# Evaluation of one policy


@dataclass(frozen=True, repr=False)
class EvaluationResult(Suggesting):
    """Scores of a policy's episodes and their statistics."""

    env: str
    protocol: ProtocolName
    protocol_description: str
    episodes: int
    mean: float
    interval: list[float]
    """95% bootstrap interval of the mean."""
    median: float
    quartiles: list[float]
    min: float
    max: float
    human_normalised: float | None
    """0 for random play, 1 for the human tester; None where no such scores are published."""
    truncated: int
    """Episodes that ended by the time limit."""
    scores: list[float]
    steps: list[int]
    outside_range: float | None = None
    """Share of states far outside the range of the policy's training data; None if the policy does not know it."""

    def __repr__(self) -> str:
        low, high = self.interval
        episodes = f"{self.episodes:,} episode{'s' * (self.episodes != 1)}"
        return (
            f"EvaluationResult({self.env}, {episodes}: mean {self.mean:,.2f}, 95% interval [{low:,.2f}, {high:,.2f}])"
        )

    def summary(self) -> str:
        """Several lines of text about the scores, with the protocol."""
        protocol = f"{self.protocol} protocol: " if self.env.startswith("ALE/") else ""  # elsewhere there is only one
        lines = [
            f"{self.env}, {self.episodes:,} episodes ({protocol}{self.protocol_description})",
            f"mean {score_text(self.mean)}, 95% interval {' to '.join(map(score_text, self.interval))}",
            f"median {score_text(self.median)}, quartiles {' to '.join(map(score_text, self.quartiles))}, "
            f"range {score_text(self.min)} to {score_text(self.max)}",
        ]
        if self.human_normalised is not None:
            lines.append(f"human-normalised {100 * self.human_normalised:,.0f}%")
        if self.truncated:
            lines.append(f"{self.truncated} of {self.episodes} episodes were truncated by the time limit")
        if self.outside_range:
            lines.append(f"{self.outside_range:.1%} of the states are far outside the range of the training data")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """What result.json stores."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@with_suggestions
@with_own_thread
def evaluate(
    policy: Policy | Path | str,
    env: Env | None = None,
    *,
    episodes: int = 100,
    protocol: ProtocolName | Protocol = "paper",
    epsilon: float = 0.0,
    deterministic: bool = False,
    seed: int = 0,
    device: Device | torch.device = "auto",
    out: Path | str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    callback: Callable[[dict[str, Any]], Any] | None = None,
) -> EvaluationResult:
    """Evaluate a policy: run episodes with actions sampled from it and summarise their scores.

    `policy` is a `Policy`, a folder that `Policy.save` wrote, or a run folder of training (its best policy). `env` is
    a Gymnasium id or a function that makes an environment; by default the one that the policy was trained in.
    `protocol` (Atari games only) is "paper", with no-ops at the start, or "modern", with sticky actions. `epsilon` is
    the probability of a random action; `deterministic` takes the most probable action instead of sampling, whose ratio
    to beta is unbounded. `callback` gets the metrics of every finished episode. With `out`, a run folder is written;
    `overwrite` replaces an earlier one.

        result = rbi.evaluate("runs/cart", episodes=50)
        result.mean, result.interval, result.scores
    """
    seed = check_seed(seed)
    check_value("episodes", episodes, Annotated[int, Interval(ge=1, le=MAX_EPISODES)])
    check_callback(callback)
    if not isinstance(protocol, Protocol):
        check_value("protocol", protocol, ProtocolName)
        protocol = Protocol(protocol, epsilon, deterministic=deterministic)
    elif epsilon or deterministic:
        raise ValueError("protocol: is a Protocol, which has its own epsilon and deterministic; set them there")
    loaded = policy if isinstance(policy, Policy) else load_policy(policy)
    if not (env or loaded.env):
        raise ValueError("env: the policy does not say in which environment it was trained; name one")
    config = protocol.env_config(env or envs.id_from_file(loaded.env, "the policy"))
    folder = None if out is None else fileio.resolve(out)  # before a callback or environment changes the place
    if folder is not None:
        runs.check_apart(out, policy)
        runs.check_available(folder, overwrite=overwrite)
    before = loaded.device
    loaded.states = loaded.outside_range = 0
    results = []
    try:
        loaded.to(choose_device(device))
        with cpu_threads(loaded.device, loaded.obs_spec.shape, loaded.networks.config.hidden_size):
            finished = run_episodes(loaded, protocol, config, episodes, seed)
            for number, episode in enumerate(track(finished, "evaluating", episodes) if progress else finished, 1):
                results.append(episode)
                if callback is not None:
                    callback({"episode": number} | asdict(episode))
    finally:
        loaded.to(before)
    scores = [episode.score for episode in results]
    statistics = describe(scores, seed)
    result = EvaluationResult(
        env=config.id,
        protocol=protocol.name,
        protocol_description=protocol.describe(config),
        **statistics,
        human_normalised=human_normalised(config.id, statistics["mean"]) if config.is_atari else None,
        truncated=sum(episode.truncated for episode in results),
        scores=scores,
        steps=[episode.steps for episode in results],
        outside_range=loaded.outside_range / loaded.states if loaded.states else None,
    )
    if folder is not None:
        settings = {"env": config.id, "episodes": episodes, "protocol": protocol, "policy": loaded.metadata}
        made = runs.Writer.create(folder, command="evaluate", settings=settings, seed=seed, overwrite=overwrite)
        with made as writer:
            writer.result(result.to_dict() | {"policy": loaded.metadata})
    return result


def at_least_one(name: str, value: int) -> int:
    """The value; refused if it is below 1."""
    if value < 1:
        raise ValueError(f"{name} = {value}: must be at least 1")
    return value
