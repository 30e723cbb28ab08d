"""Recording of episodes: policies act in many environments at once, and finished episodes are kept.

env 0   policy a   f0 f1 f2 f3 | f0 f1 ...       every environment has one perturbed policy
env 1   policy a   f0 f1 | f0 f1 f2 f3 ...       environments that share a policy are one batch
env 2   policy b   f0 f1 f2 f3 f4 f5 ...

A population of perturbed policies of mixed skill stands in for human players where there are none: each makes random
actions, acts late and abandons episodes at its own rates. docs/howto/data.md says how this differs from people.
"""

import contextlib
import inspect
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch

from rbi import envs, fileio, runs
from rbi.config import Checked, Device, Ge, Interval, check_kind, check_seed, check_value, choose_device
from rbi.data.dataset import Dataset
from rbi.data.episode import Array, DatasetSpec, Episode, as_array
from rbi.data.formats import load_episodes
from rbi.data.store import Store, StoreWriter, is_store
from rbi.envs.types import TimeStep, VectorEnv
from rbi.evaluation.batched_policies import BatchedPolicies, group_policies, random_actions
from rbi.evaluation.rollouts import Env, Protocol, ProtocolName, check_compatible
from rbi.evaluation.scripted import SCRIPTED, ActionModel
from rbi.observations import ObservationSpec, roll_stacks, zero_stacks
from rbi.policy import Policy, draw_actions, load_policy
from rbi.progress import echo, track
from rbi.steps import LIFE_LOST, TERMINATED, TRUNCATED
from rbi.suggestions import nearest
from rbi.torch_settings import with_own_thread

NAME = "data-record"
MAY_CHANGE_ON_RESUME = ("resume", "device", "episodes", "steps", "num_envs")  # the settings
MAX_DELAY = 60
MAX_NUM_ENVS = 64
MAX_PROBS_ERROR = 1e-4  # of the sum of probabilities; rounding to float32 makes less
STEPS_PER_ENV = 1000  # with fewer, most recorded steps would be starts of episodes


@dataclass(frozen=True)
class PerturbedPolicy(Checked):
    """A policy that explores at random, acts with a delay and may abandon its episode."""

    name: str
    policy: ActionModel
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability of a uniformly random action instead of the policy's."""
    action_delay: Annotated[int, Interval(ge=0, le=MAX_DELAY)] = 0
    """Steps between choosing an action and its execution; until then action 0 (no-op) is executed."""
    abandon_rate: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability per step of abandoning the episode."""


@dataclass(frozen=True)
class Perturbation(Checked):
    """How much the members of a population differ."""

    epsilon: Annotated[float, Interval(ge=0, le=1)] = 0.3
    """Upper limit of a member's probability of random actions; small values are more frequent."""
    action_delay: Annotated[int, Interval(ge=0, le=MAX_DELAY)] = 2
    """Upper limit of a member's action delay, in steps."""
    abandon_rate: Annotated[float, Interval(ge=0, le=1)] = 0.0005
    """Upper limit of a member's probability per step of abandoning the episode; half of the members never do."""

    def population(
        self, size: int, policies: Sequence[tuple[str, ActionModel]], rng: np.random.Generator
    ) -> list[PerturbedPolicy]:
        """A population of perturbed policies; all policies have the same number of members, or one more."""
        members = []
        for number in range(size):
            name, policy = policies[number % len(policies)]
            epsilon = round(self.epsilon * float(rng.random()) ** 2, 4)
            delay = int(rng.integers(self.action_delay + 1))
            rate = round(self.abandon_rate * float(rng.random()), 6) if rng.random() < 0.5 else 0.0
            label = f"{number:03} {name}, epsilon {epsilon:g}, action delay {delay}, abandon rate {rate:g}"
            members.append(PerturbedPolicy(label, policy, epsilon, delay, rate))
        return members


class EpisodeBuffer:
    """The running episode of one environment."""

    def __init__(self, policy: PerturbedPolicy) -> None:
        self.policy, self.recording = policy, False
        self.start(np.zeros(0))

    def start(self, frame: Array) -> None:
        """Begin an episode with its first frame."""
        self.frames = [frame]
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.ends: list[int] = []
        self.probs: list[float] = []
        self.masks: list[Array] = []
        self.delayed: deque[tuple[int, float]] = deque([(0, 1.0)] * self.policy.action_delay)
        self.recording = True

    def finish(self, spec: DatasetSpec, source: str, line: int, *, abandoned: bool) -> Episode:
        """The recorded episode; stops recording until the next `start`."""
        self.recording = False
        ends = np.array(self.ends)
        truncated = ends == TRUNCATED
        truncated[-1] |= ends[-1] != TERMINATED
        return Episode(
            observations=np.stack(self.frames).astype(spec.dtype, copy=False),
            actions=np.array(self.actions),
            rewards=np.array(self.rewards),
            terminated=ends == TERMINATED,
            truncated=truncated,
            life_lost=ends == LIFE_LOST,
            action_probs=np.array(self.probs),
            action_masks=np.stack(self.masks) if spec.has_action_masks else None,
            abandoned=abandoned,
            player=self.policy.name,
            source=source,
            line=line,
        )


class Recorder:
    """Records episodes; incomplete ones are dropped."""

    def __init__(
        self,
        vector_env: VectorEnv,
        policies: Sequence[PerturbedPolicy],
        spec: DatasetSpec,
        source: str,
        rng: np.random.Generator,
    ) -> None:
        """One policy for each environment. Those of class `Policy` are computed together, of other models each one."""
        if len(policies) != vector_env.num_envs:
            raise ValueError(f"{len(policies)} policies for {vector_env.num_envs} environments")
        self.vector_env, self.spec, self.source, self.rng = vector_env, spec, source, rng
        self.buffers = [EpisodeBuffer(policy) for policy in policies]
        self.epsilon = np.array([policy.epsilon for policy in policies])[:, None]
        self.abandon_rate = np.array([policy.abandon_rate for policy in policies])
        models = {id(policy.policy): policy.policy for policy in policies}
        model_of = np.array([list(models).index(id(policy.policy)) for policy in policies])
        trained = {number: model for number, model in enumerate(models.values()) if isinstance(model, Policy)}
        self.batched = batch_policies(trained, model_of, has_action_masks=spec.has_action_masks)
        self.scripted = [
            (model, np.flatnonzero(model_of == number))
            for number, model in enumerate(models.values())
            if number not in trained
        ]
        self.states = zero_stacks(ObservationSpec(spec.obs_shape, spec.frame_stack, spec.num_actions), len(policies))
        self.steps = self.recorded = 0

    def episodes(self, episodes: int | None, steps: int | None) -> Iterator[Episode]:
        """Record a number of episodes, or at least a number of steps.

        Each environment records a fixed number of episodes, so that long episodes are not underrepresented, and then
        stops. With `steps`, the episodes that are running at the end are truncated.
        """
        count = len(self.buffers)
        endless = [np.iinfo(np.int64).max] * count
        left = np.array(endless if episodes is None else split_evenly(episodes, count))
        step = self.vector_env.reset(int(self.rng.integers(2**30)))
        for buffer, frame in zip(self.buffers, step.obs, strict=True):
            buffer.start(frame.copy())
        for unused in np.flatnonzero(left == 0).tolist():
            self.vector_env.stop(unused)
        while left.any():
            chosen, probs = self.choose(step)
            self.vector_env.send(self.execute(step, chosen, probs))
            step = self.vector_env.recv()
            abandoned = self.rng.random(count) < self.abandon_rate
            for i in np.flatnonzero(left):
                if episode := self.record(int(i), step, abandoned=bool(abandoned[i])):
                    left[i] -= 1
                    if not left[i]:
                        self.vector_env.stop(int(i))
                    yield episode
            if steps is not None and self.steps >= steps:
                yield from self.truncate()
                return

    def choose(self, step: TimeStep) -> tuple[Array, Array]:
        """The legal action that every policy chooses, and the probability it had."""
        shape = len(self.buffers), self.spec.num_actions
        probs = np.empty(shape) if self.batched is None else self.batched.predict_proba(step)
        if self.scripted:
            roll_stacks(self.states, step.obs, step.is_first)
        for model, slots in self.scripted:
            found = as_array(model.predict_proba(self.states[slots]))
            check_probs(found, (len(slots), self.spec.num_actions), type(model).__name__)
            probs[slots] = found
        if self.spec.has_action_masks:
            uniform = step.legal / step.legal.sum(1, keepdims=True)
            probs = (1 - self.epsilon) * restrict(probs, step.legal, uniform) + self.epsilon * uniform
        else:
            probs = (1 - self.epsilon) * probs + self.epsilon / self.spec.num_actions
        chosen = draw_actions(probs, self.rng.random((len(probs), 1)))
        return chosen, probs[np.arange(len(probs)), chosen]

    def execute(self, step: TimeStep, chosen: Array, probs: Array) -> Array:
        """The actions to send: the chosen ones after each policy's delay; random ones where nothing is recorded."""
        actions = random_actions(step, self.spec.num_actions, self.rng)
        for i, buffer in enumerate(self.buffers):
            if buffer.recording:
                buffer.delayed.append((int(chosen[i]), float(probs[i])))
                action, prob = buffer.delayed.popleft()
                actions[i] = action
                buffer.actions.append(action)
                buffer.probs.append(prob)
                if self.spec.has_action_masks:
                    buffer.masks.append(step.legal[i].copy())
        return actions

    def record(self, i: int, step: TimeStep, *, abandoned: bool) -> Episode | None:
        """Append the time step of environment i; returns its episode if that ended it."""
        buffer = self.buffers[i]
        if step.is_first[i]:
            buffer.start(step.obs[i].copy())
            return None
        if not buffer.recording:
            return None
        buffer.frames.append(step.obs[i].copy())
        buffer.rewards.append(float(step.reward[i]))
        buffer.ends.append(int(step.end[i]))
        self.steps += 1
        over = step.end[i] in (TERMINATED, TRUNCATED)
        if not over and not abandoned:
            return None
        self.recorded += 1
        return buffer.finish(self.spec, self.source, self.recorded, abandoned=abandoned and not over)

    def truncate(self) -> Iterator[Episode]:
        """The running episodes, truncated here."""
        for buffer in self.buffers:
            if buffer.recording and buffer.actions:
                self.recorded += 1
                yield buffer.finish(self.spec, self.source, self.recorded, abandoned=False)


def check_probs(probs: Array, shape: tuple[int, int], name: str) -> None:
    """Raise ValueError unless a model gave probabilities: what is recorded weighs the episodes of a certificate."""
    if probs.shape != shape:
        raise ValueError(f"policies: predict_proba of {name} gave an array of shape {probs.shape}: must be {shape}")
    bad = ~((probs >= 0).all(1) & (np.abs(probs.sum(1) - 1) < MAX_PROBS_ERROR))
    if bad.any():
        given = probs[bad.argmax()].tolist()
        raise ValueError(f"policies: predict_proba of {name} gave {given}: must be probabilities that add up to 1")


def restrict(probs: Array, legal: Array, otherwise: Array) -> Array:
    """Probabilities `[N, A]` of legal actions only, for models that know no masks; `otherwise` where they have none."""
    allowed = np.where(legal, probs, 0.0)
    total = allowed.sum(1, keepdims=True)
    return np.where(total > 0, allowed / np.where(total > 0, total, 1.0), otherwise)


def batch_policies(
    policies: Mapping[int, Policy], policy_of: Array, *, has_action_masks: bool
) -> BatchedPolicies | None:
    """The policies with these numbers, each in the environments `[N]` that have its number."""
    if not policies:
        return None
    groups = group_policies(policies, policy_of, np.isin(policy_of, list(policies)))
    device = next(iter(policies.values())).device
    return BatchedPolicies(groups, len(policy_of), device, has_action_masks=has_action_masks)


def split_evenly(episodes: int, num_envs: int) -> list[int]:
    """How many of the episodes each environment records.

    >>> split_evenly(7, 3)
    [3, 2, 2]
    """
    return [episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)]


Player: TypeAlias = ActionModel | Path | str


def record(
    policies: Player | Sequence[Player],
    env: Env | None = None,
    *,
    episodes: int = 0,
    steps: int = 0,
    epsilon: float = 0.0,
    population: int = 0,
    perturbation: Perturbation | None = None,
    num_envs: int = 0,
    protocol: ProtocolName = "paper",
    max_frames: int = Protocol.max_frames,
    seed: int = 0,
    device: Device = "auto",
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Dataset:
    """Record episodes of policies in an environment: a dataset with the probability of each action.

    `policies` are one or several of: a `Policy`, a folder that `Policy.save` wrote, a run folder of training, a
    scripted policy (random; follow, cross and climb play some Atari games), or an object of your own whose
    `predict_proba(states)` gives probabilities `[B, A]` in states `[B, stack, *shape]`. `env` is a Gymnasium id or a
    function that makes an environment; by default the one that the first policy was trained in.

    Give either `episodes` or `steps`, the least number of steps; episodes that are still running then are truncated.
    `epsilon` is the probability of a random action; `protocol` and `max_frames` are for Atari games. With `population`,
    that many members of mixed skill are made from the policies by `perturbation`. With `out`, a run folder with a store
    is written, which `resume=True` continues, also with more episodes or steps; without it the dataset is only in
    memory.

        data = rbi.record(["runs/cart", "random"], episodes=200, out="logs")
    """
    seed = check_seed(seed)
    given: Sequence[Player] = policies if isinstance(policies, list | tuple) else (policies,)
    if not given:
        raise ValueError(f"policies: name a run of training, a policy's folder or one of {', '.join(SCRIPTED)}")
    if resume and (out is None or overwrite):
        raise ValueError("resume: name the recording with out, without overwrite")
    for name, value in {"episodes": episodes, "steps": steps, "population": population, "num_envs": num_envs}.items():
        check_value(name, value, Annotated[int, Ge(0)])
    check_value("protocol", protocol, ProtocolName)
    check_kind("perturbation", perturbation, Perturbation)
    loaded = load_policies(given, choose_device(device), snapshots=population > 0)
    place = env or training_env(loaded)
    for policy in given:
        if out is not None and isinstance(policy, str | Path) and str(policy) not in SCRIPTED:
            runs.check_apart(out, policy)
    rules = Protocol(protocol, max_frames=max_frames)
    config = rules.env_config(place)
    envs.check(config)
    folder = None if out is None else fileio.resolve(out)
    if folder is not None and not resume:
        runs.check_available(folder, overwrite=overwrite)
    names = [name_of(policy, number) for number, policy in enumerate(given, 1)]
    recording = DatasetRecording(
        loaded,
        place,
        source="recorded: " + ", ".join(names),
        episodes=episodes,
        steps=steps,
        epsilon=epsilon,
        population=population,
        perturbation=perturbation,
        num_envs=num_envs,
        protocol=rules,
        seed=seed,
    )
    if folder is None:
        return recording.in_memory(progress=progress)
    settings: dict[str, object] = {
        "policies": names,
        "env": config.id if env else "",
        "episodes": episodes,
        "steps": steps,
        "epsilon": epsilon,
        "population": population,
        "perturbation": perturbation or Perturbation(),
        "num_envs": num_envs,
        "protocol": protocol,
        "max_frames": max_frames,
        "device": device,
        "resume": resume,
    }
    try:
        opened = open_run(folder, settings, seed, resume=resume, overwrite=overwrite)
    except BaseException:
        recording.vector_env.close()
        raise
    with opened as run:
        store = recording.record(folder, progress=progress)
        facts: dict[str, Any] = {"path": str(folder), "format": "store", "spec": asdict(store.spec)}
        facts |= {"sampled_observations": None, "protocol": rules.describe(place)}
        run.result(store.summary().to_dict() | facts)
    return load_episodes(folder)


def training_env(policies: Sequence[tuple[str, ActionModel | str]]) -> str:
    """The environment that the first policy was trained in."""
    for name, policy in policies:
        if isinstance(policy, Policy) and policy.env:
            return envs.id_from_file(policy.env, name)
    raise ValueError("name the environment to record in with --env (Python: env=...)")


def open_run(folder: Path, settings: Mapping[str, object], seed: int, *, resume: bool, overwrite: bool) -> runs.Writer:
    """The run folder of a recording: a new one, or the one that is continued."""
    if not resume:
        return runs.Writer.create(
            folder, command=NAME, settings=settings, seed=seed, argv=sys.argv[1:], overwrite=overwrite
        )
    defaults = {name: option.default for name, option in inspect.signature(record).parameters.items()}
    defaults |= {"env": "", "perturbation": Perturbation()}
    without = runs.check_resumable(
        folder, command=NAME, settings=settings, seed=seed, defaults=defaults, may_change=MAY_CHANGE_ON_RESUME
    )
    writer = runs.Writer.reopen(folder)
    if without:
        echo(without, stderr=True)
        runs.save_changed_settings(folder, settings)
    return writer


def name_of(policy: Player, number: int) -> str:
    """How settings and episodes name a policy: the path or name as given, or its number."""
    if isinstance(policy, str | Path):
        return str(policy)
    if callable(getattr(policy, "predict_proba", None)):
        return f"policy {number}"
    raise ValueError(f"policies: {policy!r} is no policy, folder or name, and has no predict_proba")


def load_policies(
    policies: Sequence[Player], device: torch.device, *, snapshots: bool = False
) -> list[tuple[str, ActionModel | str]]:
    """Policies with their names, from run or policy folders; names of scripted policies stay.

    With `snapshots`, a training run gives all policies that it saved.
    """
    found: list[tuple[str, ActionModel | str]] = []
    for number, policy in enumerate(policies, 1):
        name = name_of(policy, number)
        if not isinstance(policy, str | Path):
            found.append((name, policy))
            continue
        path = fileio.as_path(name)
        saved = sorted(file.parent for file in (path / "policies").glob("*/policy.json"))
        saved = [at for at in saved if at.name.startswith("updates-")] or saved
        if name in SCRIPTED:
            found.append((name, name))
            continue
        if path.name == name and not path.exists():
            scripted = f", and none of the scripted policies {', '.join(SCRIPTED)}{nearest(name, SCRIPTED)}"
            raise fileio.PathNotFoundError(f"{name}: no such folder{scripted}")
        if snapshots and saved:
            found += [(f"{path.name}/{at.name}", load_policy(at).to(device)) for at in saved]
        else:
            found.append((path.name, load_policy(path).to(device)))
    return found


class DatasetRecording:
    """A recording that is ready to start: environments and policies are made and known to fit.

    `policies` are pairs of a name and a `Policy` or the name of a scripted policy. Give either `episodes` or `steps`.
    With `population` > 0, that many members of mixed skill are made from the policies by `perturbation`.
    """

    def __init__(
        self,
        policies: Sequence[tuple[str, ActionModel | str]],
        env: Env,
        *,
        episodes: int = 0,
        steps: int = 0,
        epsilon: float = 0.0,
        population: int = 0,
        perturbation: Perturbation | None = None,
        num_envs: int = 0,
        protocol: Protocol | None = None,
        source: str = "recorded",
        seed: int = 0,
    ) -> None:
        if (episodes > 0) == (steps > 0):
            raise ValueError("give either episodes or steps, at least 1")
        self.episodes, self.steps, self.source, self.seed = episodes, steps, source, seed
        count = num_envs or max(population or len(policies), min(episodes or steps // STEPS_PER_ENV, MAX_NUM_ENVS))
        config = (protocol or Protocol("paper")).env_config(env)
        self.vector_env = envs.make(config, count, separate=episodes > 0)
        try:
            members = self.members(policies, config.id, epsilon, population, perturbation or Perturbation())
            if self.vector_env.has_action_masks and any(member.action_delay for member in members):
                raise ValueError(
                    f"--perturbation.action-delay: an action of {config.id} may be illegal when it comes late; use 0"
                )
            if len(members) > count:
                raise ValueError(f"--num-envs {count}: fewer than the {len(members)} policies")
        except ValueError:
            self.vector_env.close()
            raise
        self.policies = [members[i % len(members)] for i in range(count)]
        shape = self.vector_env.obs_shape, self.vector_env.num_actions, self.vector_env.frame_stack
        has_masks = self.vector_env.has_action_masks
        self.spec = DatasetSpec(*shape, config.id, has_action_probs=True, has_action_masks=has_masks)

    def members(
        self,
        policies: Sequence[tuple[str, ActionModel | str]],
        env: str,
        epsilon: float,
        population: int,
        perturbation: Perturbation,
    ) -> list[PerturbedPolicy]:
        """The policies or the population made from them."""
        models: list[tuple[str, ActionModel]] = []
        scripted = {
            name: SCRIPTED[name](env, self.vector_env.num_actions)
            for name in dict.fromkeys(policy for _, policy in policies if isinstance(policy, str))
        }
        for name, policy in policies:
            if isinstance(policy, str):
                models.append((name, scripted[policy]))
                continue
            if isinstance(policy, Policy):
                check_compatible(policy, self.vector_env, env)
            models.append((name, policy))
        if population:
            return perturbation.population(population, models, np.random.default_rng([self.seed, 1]))
        return [PerturbedPolicy(name, model, epsilon) for name, model in models]

    @with_own_thread
    def record(self, out: Path | str, *, progress: bool = True) -> Store:
        """Record into the store `out`; an existing store is continued up to the requested number."""
        with contextlib.closing(self.vector_env):
            return self.append_to(fileio.as_path(out), progress=progress)

    def append_to(self, out: Path, *, progress: bool) -> Store:
        """Record what the store lacks."""
        if continues := is_store(out):
            (before := Store(out)).check_values()
            if before.spec != self.spec:
                raise ValueError(f"{out}: holds {before.spec}, not {self.spec}")
        with StoreWriter.append_to(out, repair=True) if continues else StoreWriter.create(out, self.spec) as writer:
            for item in writer.lost:
                echo(f"{item}; as many are recorded again", stderr=True)
            rng = np.random.default_rng([self.seed, writer.episodes])  # a continued recording draws other episodes
            recorder = Recorder(self.vector_env, self.policies, self.spec, self.source, rng)
            recorder.recorded = writer.episodes
            episodes = max(0, self.episodes - writer.episodes) if self.episodes else None
            steps = self.steps - writer.steps if self.steps else None
            if episodes != 0 and (steps is None or steps > 0):
                found: Iterable[Episode] = recorder.episodes(episodes, steps)
                for episode in track(found, "recording", episodes) if progress else found:
                    writer.append(episode)
        return Store(out)

    @with_own_thread
    def in_memory(self, *, progress: bool = True) -> Dataset:
        """Record into memory."""
        rng = np.random.default_rng([self.seed, 0])
        with contextlib.closing(self.vector_env):
            recorder = Recorder(self.vector_env, self.policies, self.spec, self.source, rng)
            found: Iterable[Episode] = recorder.episodes(self.episodes or None, self.steps or None)
            episodes = list(track(found, "recording", self.episodes or None) if progress else found)
        return Dataset.from_episodes(episodes, self.spec)
