"""`rbi.offline`: the experiment of the paper's section 4 on any dataset.

Fits beta and Q, trains the baselines, applies every rule, and evaluates all policies side by side.
"""

import copy
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from rbi import envs, fileio
from rbi.config import Device, Ge, Gt, check_kind, check_seed, check_value, choose_device
from rbi.data.dataset import Dataset
from rbi.data.digests import episode_digests
from rbi.data.formats import FormatSettings, dataset_or_path, open_dataset
from rbi.envs.types import EnvConfig
from rbi.evaluation import comparison
from rbi.evaluation.rollouts import Env, Protocol, ProtocolName, VectorEvaluator
from rbi.gpu import prepare_for_many_streams
from rbi.networks import cpu_threads
from rbi.offline_rl.behavior_q import feature_range
from rbi.offline_rl.config import (
    BASELINES,
    BEHAVIOR,
    DEFAULT_MAX_FRAMES,
    PRESETS,
    RULES,
    Baseline,
    EvaluationConfig,
    OfflineConfig,
    Preset,
    policy_rows,
    preset_for,
)
from rbi.offline_rl.learner import Runner, advance, make_runner
from rbi.offline_rl.ppo import PPOAscent
from rbi.offline_rl.run_log import Callback, RunLog, fingerprint
from rbi.offline_rl.seed_learners import SeedLearners
from rbi.offline_rl.validation import overfitting
from rbi.policy import Policy, load_policy
from rbi.progress import graceful_stop, text_table, track, track_updates
from rbi.rules.types import Rule, parse_rule
from rbi.statistics import describe, score_text
from rbi.steps import MASK
from rbi.suggestions import nearest, with_suggestions
from rbi.torch_settings import matmul_precision, with_own_settings

NAME = "offline"
VALIDATIONS = 5  # between two evaluations
MIN_CHECKPOINT_SECONDS = 20  # between two checkpoints around evaluations
MAX_CHECKPOINT_SHARE = 0.05  # of the time, for checkpoints around evaluations
NUM_ENVS = {"cpu": 64, "cuda": 312}
MIN_GROUP_SIZE, MAX_GROUPS = 40, 6  # of environments that step together while a GPU computes the actions of others
GPU_MEMORY_FRACTION = 0.6  # that the dataset's frames may take
FRAME_SKIP = 4
MAX_REWARD = 1e9  # sums of squares stay finite
SAVED_POLICY = "reroute(0.5,1.5)"
WITHOUT_MASKS = (
    "; if illegal actions are harmless there, --ignore-action-masks (Python: ignore_action_masks=True) learns without "
    "the data's masks"
)


@dataclass(frozen=True, repr=False)
class OfflineResult:
    """The table of the offline experiment."""

    rows: list[dict[str, Any]]
    """One entry per policy: name, scores by seed, mean, intervals, and the comparison with the behaviour policy."""
    policy: Policy
    """The policy of reroute(0.5,1.5), or of the first rule, and the first seed."""
    numbers: dict[str, Any]
    """Everything that result.json holds."""
    metrics: list[dict[str, Any]]
    """Validation, training and evaluation metrics in order."""
    out: Path | None = None
    """The run folder, if one was given."""

    def summary(self) -> str:
        """The table of scores, and advice where beta or Q overfits."""
        population = self.numbers["population"]
        rows = [("policy", "mean", "95% interval", "median", "P(below)", "verdict")]
        rows.append(("(the data)", score_text(population["mean"]), interval_text(population["interval"]), "", "", ""))
        for row in self.rows:
            below = "" if row["below"] is None else f"{row['below']:.2f}"
            cells = (row["name"], score_text(row["mean"]), interval_text(row["interval"]), score_text(row["median"]))
            rows.append((*cells, below, row["verdict"] or ""))
        table = text_table(f"{self.numbers['env']}, {self.numbers['updates']:,} updates", rows)
        return "\n".join([table, *(one["advice"] for one in self.numbers.get("overfitting", []))])

    def __repr__(self) -> str:
        return self.summary()


def interval_text(interval: Sequence[float]) -> str:
    return f"{score_text(interval[0])} to {score_text(interval[1])}"


@with_suggestions
@with_own_settings
def offline(
    data: Dataset | Path | str,
    env: Env | None = None,
    rules: Sequence[Rule | str] = RULES,
    baselines: Sequence[Baseline] = BASELINES,
    *,
    preset: Preset | None = None,
    config: OfflineConfig | None = None,
    updates: int | None = None,
    max_missing_return: float | None = None,
    seeds: int = 1,
    episodes: int = 100,
    evaluations: int = 4,
    curve_episodes: int = 12,
    margin: float = 0.05,
    protocol: ProtocolName = "paper",
    max_frames: int = DEFAULT_MAX_FRAMES,
    max_idle_frames: int = 0,
    num_envs: int = 0,
    ignore_action_masks: bool = False,
    settings: FormatSettings | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    device: Device = "auto",
    checkpoint_minutes: Annotated[float, Gt(0)] = 5.0,
    callback: Callback | None = None,
    progress: bool = True,
    resume: bool = False,
    overwrite: bool = False,
) -> OfflineResult:
    """Fit beta and Q to a dataset, train baselines, and compare all policies in the environment.

    data: a dataset, or a path in any supported format (`settings` say how to read it).
    env: the environment for evaluation, an id or a function that makes it (default: the one that the data was recorded
        in).
    rules: improvement steps on top of beta and Q; baselines: "ppo" (by gradient ascent), "dqfd", "bcq", "cql".
    preset: "paper", "fast", "quick" or "small" (default: fast for images, small for vectors); `config` replaces it, and
        `updates` and `max_missing_return` change its settings of these names.
    seeds: independent repetitions, with seeds from `seed` on.
    ignore_action_masks: learn as if all actions were legal in every state. For data with action masks and an
        environment that gives none, since its illegal actions are harmless: policies then may choose them.
    out: run folder for metrics, checkpoints, policies and result.json; without it nothing is written to disk.
    callback: called with a dict of metrics after each validation, training phase and evaluation; what it returns has no
        effect.
    The settings of the evaluation are those of `EvaluationConfig`.

    >>> table = offline("population", env="ALE/Freeway-v5", baselines=["dqfd", "cql"])      # doctest: +SKIP
    """
    seed = check_seed(seed)
    check_value("seeds", seeds, Annotated[int, Ge(1)])
    check_value("checkpoint_minutes", checkpoint_minutes, Annotated[float, Gt(0)])
    check_kind("config", config, OfflineConfig)
    evaluation = EvaluationConfig(
        episodes, evaluations, curve_episodes, margin, protocol, max_frames, max_idle_frames, num_envs
    )
    names, chosen = rows_of(rules, baselines)
    prepare_for_many_streams()
    torch_device = choose_device(device)
    source = dataset_or_path(data)
    if isinstance(data, Dataset) or (config is None and preset is None):
        data = open_dataset(data, settings=settings)
        preset = preset or preset_for(is_image=data.spec.is_image)
    config = config or PRESETS[preset or "fast"]
    changes: dict[str, Any] = {"updates": updates, "max_missing_return": max_missing_return}
    config = dataclasses.replace(config, **{name: value for name, value in changes.items() if value is not None})
    if evaluation.evaluations > config.updates:
        raise ValueError(f"evaluations = {evaluation.evaluations}: more than the {config.updates} updates")
    described = {
        "data": None if isinstance(source, Dataset) else str(source),
        "format_settings": settings or FormatSettings(),
        "env": EnvConfig.of(env).id if env else None,
        "rules": names,
        "baselines": chosen,
        "seeds": seeds,
        "ignore_action_masks": ignore_action_masks,
        **dataclasses.asdict(evaluation),
        **dataclasses.asdict(config),
    }
    with RunLog(out, callback, progress=progress, resume=resume, overwrite=overwrite) as log:
        if log.check_folder(NAME, described, seed, default_settings()):
            return completed(log)
        loaded = data if isinstance(data, Dataset) else open_dataset(data, settings=settings)
        name = "data" if isinstance(source, Dataset) else str(source)
        check_data(loaded, name, log)
        if ignore_action_masks and loaded.spec.has_action_masks:
            log.echo(f"{name}: its action masks are ignored, so that policies may choose any action in every state")
            loaded = without_masks(loaded)
        used = env_of(loaded, env, name, log)
        loaded = with_actions_of(used, loaded)
        every_seed = range(seed, seed + seeds)
        with (
            matmul_precision(torch_device),
            cpu_threads(torch_device, loaded.spec.obs_shape, config.behavior_q.network.hidden_size),
            Experiment(loaded, used, names, chosen, config, evaluation, every_seed, torch_device, log) as experiment,
        ):
            log.state = {"lines": 0, "seconds": 0.0, "evaluation": 0, "validated": 0, "data": fingerprint(source)}
            log.open(experiment.learners())
            return experiment.run(checkpoint_minutes)


def default_settings() -> dict[str, Any]:
    """The settings that the version which started a run did not have: the defaults of their classes."""
    others = {"format_settings": FormatSettings(), "ignore_action_masks": False}
    return others | dataclasses.asdict(EvaluationConfig()) | dataclasses.asdict(OfflineConfig())


def rows_of(rules: Sequence[Rule | str], baselines: Sequence[Baseline]) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """The texts of the rules and the names of the baselines, each once."""
    for name, value in (("rules", rules), ("baselines", baselines)):
        if isinstance(value, str | Rule):
            raise ValueError(f"{name} = {str(value)!r}: must be a list of {name}")
    for baseline in baselines:
        if baseline not in BASELINES:
            known = f"{', '.join(BASELINES)}{nearest(baseline, BASELINES)}"
            raise ValueError(f"baselines: {baseline!r} is not one of {known}")
    return tuple(dict.fromkeys(str(parse_rule(str(rule))) for rule in rules)), tuple(dict.fromkeys(baselines))


def completed(log: RunLog) -> OfflineResult:
    """The result of a complete run, from its folder."""
    assert log.out is not None
    assert log.numbers is not None
    with fileio.naming(log.out / "result.json"):
        return OfflineResult(log.numbers["rows"], load_policy(log.out), log.numbers, log.metrics, log.out)


def check_data(data: Dataset, name: str, log: RunLog) -> None:
    """Refuse data that nothing can be learned from."""
    if not len(data):
        why = f" that can be used; the first: {data.rejected[0]}" if data.rejected else ""
        raise ValueError(f"{name}: holds no episodes{why}")
    if data.rejected:
        log.echo(f"{len(data.rejected):,} episodes rejected; the first: {data.rejected[0]}")
    taken = np.unique(data.arrays["actions"])
    if len(taken) == 1:
        raise ValueError(f"{name}: action {taken[0]} is the only one ever taken; there is nothing to choose from")
    largest = float(np.abs(data.arrays["rewards"]).max())
    if not largest:
        raise ValueError(f"{name}: all rewards are 0, so no action can be better than another")
    if largest > MAX_REWARD:
        raise ValueError(f"{name}: rewards as large as {largest:g}; scale them to {MAX_REWARD:g} at most")


def env_of(data: Dataset, env: Env | None, name: str, log: RunLog) -> EnvConfig:
    """The environment for evaluation; refuses an id other than that of the data, whatever its module and arguments."""
    recorded = data.spec.env
    if not env:
        found = envs.id_from_file(recorded, name)
        if not found:
            advice = "name it with --env (Python: env=), or use rbi improve, which needs none"
            raise ValueError(f"{name}: does not say in which environment it was recorded; {advice}")
        return EnvConfig(found)
    given = EnvConfig.of(env)
    if recorded and given.factory is None and given.id != recorded:
        bare, own = (text.partition("(")[0].rpartition(":")[2] for text in (given.id, recorded))
        if bare != own:
            raise ValueError(f"--env {given.id}: the data is of {recorded}")
        log.echo(f"{name}: was recorded in {recorded}; policies are evaluated in {given.id}")
    return given


def without_masks(data: Dataset) -> Dataset:
    """The data as if all actions were legal in every state; nothing is copied."""
    found = copy.copy(data)
    found.spec = dataclasses.replace(data.spec, has_action_masks=False)
    found.arrays = {name: array for name, array in data.arrays.items() if name != "action_masks"}
    return found


def with_actions_of(env: EnvConfig, data: Dataset) -> Dataset:
    """The data with all actions of the environment, even those never taken; refuses one that does not fit."""
    envs.check(env)
    one, spec, name = envs.make(env, 1), data.spec, env.id
    try:
        if (one.obs_shape, one.frame_stack) != (spec.obs_shape, spec.frame_stack):
            raise ValueError(
                f"--env {name}: has observations {one.obs_shape}, {one.frame_stack} stacked; the data "
                f"has {spec.obs_shape}, {spec.frame_stack} stacked"
            )
        if spec.action_names and not spec.env:  # recorded there, they are names of the environment's numbers
            raise ValueError(
                f"--env {name}: its actions are numbered, and the data's are called "
                f"{', '.join(spec.action_names[:3])}, ...: number them as the environment does"
            )
        if spec.num_actions > one.num_actions:
            raise ValueError(f"--env {name}: has {one.num_actions} actions, and the data {spec.num_actions}")
        if spec.has_action_masks and spec.num_actions < one.num_actions:
            raise ValueError(
                f"--env {name}: has {one.num_actions} actions, and the data's masks have {spec.num_actions}"
                f"{WITHOUT_MASKS}"
            )
        if spec.has_action_masks and not one.has_action_masks:
            raise ValueError(f"--env {name}: its info has no {MASK!r}, and the data has action masks{WITHOUT_MASKS}")
        if spec.num_actions < one.num_actions:
            data = copy.copy(data)
            data.spec = dataclasses.replace(spec, num_actions=one.num_actions, action_names=())
    finally:
        one.close()
    return data


class Experiment:
    """One run of the offline experiment: learners of all seeds, evaluation environments, metrics and checkpoints."""

    def __init__(
        self,
        data: Dataset,
        env: EnvConfig,
        rules: Sequence[str],
        baselines: Sequence[Baseline],
        config: OfflineConfig,
        evaluation: EvaluationConfig,
        seeds: range,
        device: torch.device,
        log: RunLog,
    ) -> None:
        self.data, self.env, self.config, self.evaluation = data, env, config, evaluation
        self.baselines, self.device, self.log = baselines, device, log
        self.rows = policy_rows(rules, baselines, config)
        self.resident = device.type == "cuda" and fits_on_gpu(device, data, log)
        self.seeds: list[SeedLearners] = []
        for seed in seeds:
            first = self.seeds[0] if self.seeds else None
            self.seeds.append(SeedLearners(config, baselines, data, seed, device, resident=self.resident, first=first))
        self.runners = [self.make_runner(seed.behavior_q) for seed in self.seeds]
        self.baseline_runners = [
            self.make_runner(learner) for seed in self.seeds for learner in seed.baselines.values()
        ]
        self.protocol = Protocol(
            evaluation.protocol, max_frames=evaluation.max_frames, max_idle_frames=evaluation.max_idle_frames
        )
        policies = len(self.rows) * len(self.seeds)
        each = min(evaluation.episodes, max(1, NUM_ENVS[device.type] // policies))
        num_envs = evaluation.num_envs or policies * each
        groups = num_groups(num_envs, policies) if device.type == "cuda" else 1
        log.echo(f"making {num_envs} environments of {env.id}")
        self.evaluator = VectorEvaluator(self.protocol, env, num_envs, num_groups=groups)

    def __enter__(self) -> "Experiment":
        return self

    def __exit__(self, *_: object) -> None:
        self.evaluator.close()

    def make_runner(self, learner: Any) -> Runner:
        return make_runner(learner, self.device, cuda_graph=self.resident)

    def learners(self) -> dict[str, Any]:
        """All learners by name."""
        return {name: learner for seed in self.seeds for name, learner in seed.learners().items()}

    def updates_until(self, evaluation: float) -> int:
        return round(self.config.updates * evaluation / self.evaluation.evaluations)

    def run(self, checkpoint_minutes: float) -> OfflineResult:
        """Train and evaluate in turns, and collect the result."""
        state, last = self.log.state, self.evaluation.evaluations
        self.checkpoint_seconds = 60 * checkpoint_minutes
        self.began = time.monotonic() - state["seconds"]
        self.saved_at, self.save_seconds = time.monotonic(), 0.0
        scores = self.last_scores() if state["evaluation"] == last else {}
        for evaluation in range(state["evaluation"] + 1, last + 1):
            self.fit_behavior_q(evaluation)
            ascents = self.train_baselines(evaluation)
            policies = [
                policy
                for seed, ppo in zip(self.seeds, ascents, strict=True)
                for policy in seed.policies(self.rows, ppo, self.env.id)
            ]
            scores = self.evaluate(policies, evaluation)
            self.metric("evaluated", evaluation, scores=scores)
            self.log.echo(self.evaluation_line(scores, evaluation))
            state["evaluation"] = evaluation
            if evaluation == last:
                self.save()
            else:
                self.save_if_due()
        return self.result(scores)

    def evaluation_line(self, scores: dict[str, list[list[float]]], evaluation: int) -> str:
        """The mean scores of the behaviour policy and of the best row, for a log."""
        means = {name: float(np.mean(np.concatenate(of_seeds))) for name, of_seeds in scores.items()}
        best = max(means, key=means.__getitem__)
        shown = {name: f"{mean:,.0f}" if abs(mean) >= 100 else f"{mean:.3g}" for name, mean in means.items()}
        return (
            f"evaluated, {evaluation} of {self.evaluation.evaluations}: {BEHAVIOR} {shown[BEHAVIOR]}, best {best} "
            f"{shown[best]} ({self.seeds[0].behavior_q.updates:,} updates, {self.seconds:,.0f} s)"
        )

    def last_scores(self) -> dict[str, list[list[float]]]:
        """Scores of a run that was stopped after its final evaluation; validates its learners again."""
        for seed in self.seeds:
            seed.validate()
        found: list[Any] = [line["scores"] for line in self.log.metrics if line["kind"] == "evaluated"]
        if len(found) == self.evaluation.evaluations:
            return dict(found[-1])
        raise ValueError(f"{self.log.out}: metrics.jsonl lacks the scores of an evaluation; begin a new run")

    def fit_behavior_q(self, evaluation: int) -> None:
        """Train beta and Q until the next evaluation, with validations in between."""
        for part in range(1, VALIDATIONS + 1):
            goal = self.updates_until(evaluation - 1 + part / VALIDATIONS)
            if goal <= self.log.state["validated"]:  # before the run was stopped
                continue
            self.advance(self.runners, [goal] * len(self.runners), "beta and Q")
            for seed in self.seeds:
                trained = seed.behavior_q.metrics()
                self.metric("validated", evaluation, seed=seed.seed, train=trained, validation=seed.validate())
            self.log.state["validated"] = goal
        for seed in self.seeds:
            if seed.predictions is None:
                seed.validate()

    def train_baselines(self, evaluation: int) -> list[PPOAscent | None]:
        """Train the baselines until the next evaluation; PPO starts anew from the current beta."""
        ascents = [seed.make_ppo(evaluation) if "ppo" in self.baselines else None for seed in self.seeds]
        ppo_runners = [self.make_runner(ppo) for ppo in ascents if ppo is not None]
        goals = [self.updates_until(evaluation)] * len(self.baseline_runners)
        goals += [self.config.ppo.updates] * len(ppo_runners)
        if goals:
            self.advance([*self.baseline_runners, *ppo_runners], goals, ", ".join(self.baselines))
        self.save_if_due()  # a stop during the evaluation then loses little training
        trained = {
            name: learner.metrics() for name, learner in self.learners().items() if not name.endswith(".behavior_q")
        }
        trained |= {
            f"seed{seed.seed}.ppo": ppo.metrics()
            for seed, ppo in zip(self.seeds, ascents, strict=True)
            if ppo is not None
        }
        self.metric("trained", evaluation, train=trained)
        return ascents

    def advance(self, runners: Sequence[Runner], goals: Sequence[int], description: str) -> None:
        """Advance learners to their goals, with progress, periodic checkpoints, and a graceful stop."""
        start, begun = sum(one.learner.updates for one in runners), time.monotonic()

        def text(done: int) -> str:
            return f"{done:,} of {sum(goals):,} updates, {(done - start) / max(1e-9, time.monotonic() - begun):,.0f}/s"

        steps = advance(runners, goals)
        if self.log.progress:
            steps = track_updates(steps, description, sum(goals), lambda done: done, text)
        with graceful_stop() as stopped:
            for _ in steps:
                if stopped.is_set() or time.monotonic() - self.saved_at > self.checkpoint_seconds:
                    for one in runners:
                        one.synchronize()
                    self.save()
                if stopped.is_set():
                    self.log.stop()

    def evaluate(self, policies: Sequence[Policy], evaluation: int) -> dict[str, list[list[float]]]:
        """The scores of every row, seed by seed."""
        final = evaluation == self.evaluation.evaluations
        episodes = self.evaluation.episodes if final else self.evaluation.curve_episodes
        rng = np.random.default_rng([self.seeds[0].seed, evaluation])
        scores: list[list[float]] = [[] for _ in policies]
        finished = self.evaluator.evaluate(policies, episodes, rng)
        if self.log.progress:
            description = f"evaluating, {evaluation} of {self.evaluation.evaluations}"
            finished = track(finished, description, episodes * len(policies))
        for number, episode in finished:
            scores[number].append(episode.score)
        return {row.name: scores[number :: len(self.rows)] for number, row in enumerate(self.rows)}

    def metric(self, kind: str, evaluation: int, **values: Any) -> None:
        updates, seconds = self.seeds[0].behavior_q.updates, round(self.seconds, 3)
        self.log.metric(kind=kind, evaluation=evaluation, updates=updates, seconds=seconds, **values)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def save(self) -> None:
        start = time.monotonic()
        self.log.state["seconds"] = self.seconds
        self.log.save(self.learners())
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - start

    def save_if_due(self) -> None:
        if checkpoint_due(time.monotonic() - self.saved_at, self.save_seconds):
            self.save()

    def saved_policies(self) -> tuple[str, list[Policy]]:
        """The row that is saved, reroute(0.5,1.5) or the first rule, and its policy of every seed."""
        row = next((row for row in self.rows if row.name == SAVED_POLICY), self.rows[min(1, len(self.rows) - 1)])
        row = row if row.learner == "behavior_q" else self.rows[0]
        digests, found = episode_digests(self.data), []
        for seed in self.seeds:
            (policy,) = seed.policies([row], None, self.env.id)
            policy.training_digests = digests[np.union1d(seed.train_episodes, seed.validation_episodes)]
            policy.features = feature_range(seed.sampler)
            policy.metadata |= {"table": self.data.table_roles} if self.data.table_roles else {}
            found.append(policy)
        return row.name, found

    def max_steps(self) -> int | None:
        """Steps after which episodes are truncated, if that is earlier than usual: the data is then truncated too."""
        env = self.protocol.env_config(self.env)
        return env.max_frames // FRAME_SKIP if env.is_atari and env.max_frames < DEFAULT_MAX_FRAMES else None

    def result(self, scores: dict[str, list[list[float]]]) -> OfflineResult:
        """Save the policies, compare the scores, and write result.json."""
        saved, policies = self.saved_policies()
        if self.log.out is not None:
            for seed, policy in zip(self.seeds, policies, strict=True):
                name = "best" if seed is self.seeds[0] else f"seed{seed.seed}"
                policy.save(self.log.out / "policies" / name)
        rng = np.random.default_rng(self.seeds[0].seed)
        rows = [
            {"name": row.name, "learner": row.learner, "rule": str(row.rule), "scores": scores[row.name]}
            | comparison.compare(
                scores[row.name],
                None if row.name == BEHAVIOR else scores[BEHAVIOR],
                rng,
                margin=self.evaluation.margin,
            )
            for row in self.rows
        ]
        population = describe_population(self.data, self.max_steps())
        validated = [line for line in self.log.metrics if line["kind"] == "validated"]
        numbers = self.log.result(
            {
                "env": self.env.id,
                "protocol": self.protocol.describe(self.env),
                "device": str(self.device),
                "seconds": self.seconds,
                "updates": self.config.updates,
                "saved_policy": saved,
                "rejected": len(self.data.rejected),
                "lost": self.data.num_lost,
                "margin": self.evaluation.margin,
                "population": population | {"excluded": self.seeds[0].sampler.excluded_fraction},
                "rows": rows,
                "validation": [seed.diagnostics for seed in self.seeds],
                "overfitting": [one._asdict() | {"advice": one.advice} for one in overfitting(validated)],
                "rule_statistics": [seed.rule_statistics(self.rows) for seed in self.seeds],
            }
        )
        return OfflineResult(numbers["rows"], policies[0], numbers, self.log.metrics, self.log.out)


def num_groups(num_envs: int, policies: int) -> int:
    """Groups of environments for an evaluation on a GPU: small ones pay off, but every group has all policies."""
    return max(1, min(num_envs // policies, max(2, num_envs // MIN_GROUP_SIZE), MAX_GROUPS))


def checkpoint_due(since_last: float, last_took: float) -> bool:
    """Whether a checkpoint around an evaluation is due: the latest is old, and they take a small share of the time."""
    return since_last > max(MIN_CHECKPOINT_SECONDS, last_took / MAX_CHECKPOINT_SHARE)


def describe_population(data: Dataset, max_steps: int | None = None) -> dict[str, Any]:
    """Scores of the data's episodes, up to `max_steps`, without abandoned ones where there are others."""
    steps, scores = data.records["steps"], data.scores
    whole = ~data.records["abandoned"].astype(bool)
    if max_steps is not None:
        total = np.concatenate([[0.0], np.cumsum(data.arrays["rewards"], dtype=np.float64)])
        first = data.records["first_step"]
        scores, whole = total[first + np.minimum(steps, max_steps)] - total[first], whole | (steps >= max_steps)
    scores = scores[whole] if whole.any() else scores
    return describe(scores.tolist()) | {
        "max_steps": max_steps,
        "all_episodes": len(data),
        "steps": data.steps,
        "policies": len({data.texts[number] for number in data.records["player"]}),
    }


def fits_on_gpu(device: torch.device, data: Dataset, log: RunLog) -> bool:
    """Whether all frames fit into GPU memory, besides the networks."""
    free, _ = torch.cuda.mem_get_info(device)
    fits = data.arrays["observations"].nbytes < GPU_MEMORY_FRACTION * free
    if not fits:
        log.echo("the data does not fit into GPU memory: batches are copied one by one, which is slower")
    return fits
