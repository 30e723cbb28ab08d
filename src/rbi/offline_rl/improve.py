"""`rbi.improve`: from logs to one improved policy, with diagnostics and the changes it makes."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi.certification.decision import CertifyConfig, Decision, decide
from rbi.certification.evidence import (
    Unit,
    as_range,
    check_complete,
    check_copies,
    check_range,
    check_returns,
    clone_error,
    gather_evidence,
    player_numbers,
)
from rbi.config import Checked, Device, Interval, check_seed, choose_device
from rbi.data.dataset import Dataset
from rbi.data.digests import episode_digests
from rbi.data.episode import Array
from rbi.data.formats import Format, FormatSettings, dataset_or_path, open_dataset
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.data.visits import MAX_MOMENTS, PseudoCounts, count_visits, step_clusters
from rbi.networks import MAX_HIDDEN_SIZE, Networks, TrunkFactory, cpu_threads, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.behavior_q import (
    BLOCK_ROWS,
    BehaviorQ,
    BehaviorQConfig,
    feature_names,
    feature_range,
    fit_standardization,
    standardize,
)
from rbi.offline_rl.learner import train
from rbi.offline_rl.policy_diff import HeldOutSteps, PolicyPair, policy_diff
from rbi.offline_rl.run_log import Callback, RunLog, fingerprint
from rbi.offline_rl.validation import (
    PREDICT_BATCH,
    BestCheckpoint,
    Holdout,
    Predictions,
    diagnostics,
    features_and_actions,
    log_probs,
    predict_steps,
    split_holdout,
    taken_log_probs,
)
from rbi.policy import Policy, load_policy
from rbi.progress import graceful_stop, text_table, track_updates
from rbi.rules.types import Behavior, Reroute, Rule, parse_rule
from rbi.suggestions import Suggesting, with_suggestions
from rbi.torch_settings import with_own_settings

NAME = "improve"
DEFAULT_RULE = Reroute(0.5, 1.5)
RANDOM_STREAMS = ("split", "batches", "dropout", "bootstrap", "counts")
VALIDATIONS = 20  # evenly spaced
HOLDOUT, LOGGED_HOLDOUT = 0.1, 0.4  # default fractions without and with logged probabilities
MAX_COUNTED_STATES, MAX_COUNTED_IMAGES = 200_000, 20_000  # that pseudo-counts are estimated from
EPOCHS, MIN_UPDATES, MAX_UPDATES = 20, 1_000, 20_000


class Defaults(NamedTuple):
    """Hyperparameters that depend on the kind of observations."""

    batch_size: int
    learning_rate: float
    hidden_size: int
    input_dropout: float
    hidden_dropout: float


VECTORS, IMAGES = Defaults(256, 0.001, 128, 0.0, 0.0), Defaults(32, 0.00025, 1024, 0.25, 0.5)


@dataclass(frozen=True)
class ImproveConfig(Checked):
    """Hyperparameters of `rbi.improve`. Those that are None depend on the data."""

    updates: Annotated[int, Interval(ge=1, le=1_000_000_000_000)] | None = None
    """Updates (batches) in total; early stopping keeps the best networks (default: 20 epochs, at least 1,000 and at
    most 20,000 updates)."""
    batch_size: Annotated[int, Interval(ge=2, le=10_000_000)] | None = None
    """States per batch (default: 256 for vectors, 32 for images)."""
    learning_rate: Annotated[float, Interval(gt=0, lt=1)] | None = None
    """Initial learning rate of Adam (default: 0.001 for vectors, 0.00025 for images)."""
    hidden_size: Annotated[int, Interval(ge=1, le=MAX_HIDDEN_SIZE)] | None = None
    """Units of the last hidden layer (default: 128 for vectors, 1024 for images)."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor of Q. The decision is about undiscounted returns; `rbi certify` takes a discount factor."""
    holdout_fraction: Annotated[float, Interval(gt=0, le=0.8)] | None = None
    """Fraction of the episodes that is held out (default: 0.1; with logged probabilities 0.4, since the test set then
    decides). Half of them, but at most a tenth of all episodes (or 100, if that is more), are the validation set
    (early stopping, temperature); the rest is an untouched test set."""
    clip_rewards: bool | None = None
    """Clip rewards to [-1, 1] for training (default: only for images)."""
    max_missing_return: Annotated[float, Interval(ge=0, le=1)] = 0.05
    """Q ignores steps of truncated episodes if more than this share of the return, gamma^steps, is missing (1: uses
    all)."""
    return_range: tuple[float, float] | None = None
    """Smallest and largest possible sum of an episode's rewards, for a proved decision (default: the observed
    range, which proves nothing; see `rbi certify`)."""
    unit: Unit = "episode"
    """Unit of analysis: episodes, or players (customers, patients) if the policy is for others, too. All episodes of a
    player are in one part of the data then, and each player counts once in the decision. The log has to name them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "return_range", as_range(self.return_range))
        super().__post_init__()
        if self.return_range is not None:
            check_range(self.return_range)


@dataclass(frozen=True, repr=False)
class ImproveResult(Suggesting):
    """An improved policy and how far it can be trusted. All estimates are from the untouched test set."""

    policy: Policy
    """The improved policy."""
    behavior: Policy
    """The behaviour policy beta: cloned from the logs and calibrated, or the logged one."""
    numbers: dict[str, Any]
    """Everything that result.json holds."""
    metrics: list[dict[str, Any]]
    """One entry per validation during training."""
    out: Path | None = None
    """The run folder, if one was given."""
    decision: Decision | None = None
    """Deploy, keep or test live, from the test set. None if it was refused, and for a run that was loaded from its
    folder; `numbers["decision"]` says the same as JSON."""

    @property
    def diagnostics(self) -> dict[str, Any]:
        """How well beta predicts actions and Q predicts returns."""
        found: dict[str, Any] = self.numbers["diagnostics"]
        return found

    @property
    def changes(self) -> dict[str, Any]:
        """What the policy changes compared with beta: overall, by action, by value, by feature, largest gains."""
        found: dict[str, Any] = self.numbers["changes"]
        return found

    @property
    def estimates(self) -> dict[str, Any]:
        """Estimated gain of the improvement step: `expected` by Q, `observed` by importance-weighted returns."""
        overall = self.changes["overall"]
        return {"value": overall["value"], "expected": overall["expected_gain"], "observed": overall["observed_gain"]}

    def summary(self) -> str:
        """The main numbers as a table."""
        numbers, found, overall = self.numbers, self.diagnostics, self.changes["overall"]
        decided = numbers["decision"]
        explained = found["q_explained_variance"]
        excluded = f"{numbers['excluded']:.1%} of the training steps: their returns are truncated"
        rows = [
            ("data", f"{numbers['episodes']:,} episodes, {numbers['steps']:,} steps"),
            ("test set", f"{numbers['test']['episodes']:,} episodes, {numbers['test']['steps']:,} steps"),
            *([("excluded from Q", excluded)] if numbers["excluded"] else []),
            (
                "beta",
                f"log-likelihood {found['log_likelihood_calibrated']:.4f} (action frequencies: "
                f"{found['log_likelihood_of_frequencies']:.4f}), "
                + (f"temperature {numbers['temperature']:.3f}" if "beta" in numbers["best"] else "logged, not cloned"),
            ),
            (
                "Q",
                f"RMSE {found['q_rmse']:.4g}, bias {found['q_bias']:+.3g}, "
                f"explained variance {'-' if explained is None else f'{explained:.1%}'}",
            ),
            ("total variation", f"{overall['total_variation']:.1%} per state"),
            ("V of beta", f"{overall['value']:.4g}"),
            ("gain, by returns", gain_text(overall["observed_gain"])),
            ("gain, by Q", gain_text(overall["expected_gain"])),
            ("decision", decided.get("headline") or f"refused: {decided['refused']}"),
        ]
        return text_table(f"improved by {numbers['rule']}", rows)

    def __repr__(self) -> str:
        return self.summary()


def gain_text(gain: dict[str, Any]) -> str:
    interval = gain["interval"]
    return f"{gain['mean']:+.4g}" + (f" (95%: {interval[0]:+.4g} to {interval[1]:+.4g})" if interval else "")


@with_suggestions
@with_own_settings
def improve(
    data: Dataset | Path | str,
    rule: Rule | str = DEFAULT_RULE,
    *,
    out: Path | str | None = None,
    seed: int = 0,
    device: Device = "auto",
    updates: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    hidden_size: int | None = None,
    gamma: float = 0.99,
    holdout_fraction: float | None = None,
    clip_rewards: bool | None = None,
    max_missing_return: float = 0.05,
    return_range: tuple[float, float] | None = None,
    unit: Unit = "episode",
    trunk: TrunkFactory | None = None,
    format: Format | None = None,  # noqa: A002 - the word that users look for
    settings: FormatSettings | None = None,
    callback: Callback | None = None,
    progress: bool = True,
    resume: bool = False,
    overwrite: bool = False,
) -> ImproveResult:
    """Improve the behaviour policy of logged episodes by one step of a rule.

    Clones the behaviour policy beta, unless it was logged, fits its Monte-Carlo Q-values, keeps the best checkpoint of
    each on a validation set, calibrates beta, and applies the rule. Diagnostics, estimated gains and the decision
    (`rbi.certify`) come from an untouched test set. Logged probabilities of the taken actions are exact weights on the
    test set. Logged probabilities of all actions are beta itself: it is not cloned, and the rule is applied to them,
    now and when the policy is used.

    data: a dataset, or a path in any supported format (`format` and `settings` say how to read it).
    rule: the improvement step, a rule or its text, such as "tv(0.1)".
    out: run folder for metrics, checkpoints, the policy and result.json; without it nothing is written to disk.
    trunk: a function from an `ObservationSpec` to a `torch.nn.Module` that computes features `[B, F]`, in place of the
        built-in network body. Vector observations are then not standardised.
    callback: called with a dict of metrics after each validation; what it returns has no effect.
    resume: continue the stopped run in `out`; overwrite: replace an earlier run there.
    The other settings are those of `ImproveConfig`.

    >>> result = improve("logs.csv", rule=Reroute(0.5, 1.5))      # doctest: +SKIP
    >>> result.policy.predict_proba(obs)                          # doctest: +SKIP
    """
    seed = check_seed(seed)
    config = ImproveConfig(
        updates,
        batch_size,
        learning_rate,
        hidden_size,
        gamma,
        holdout_fraction,
        clip_rewards,
        max_missing_return,
        return_range,
        unit,
    )
    rule = rule if isinstance(rule, Rule) else parse_rule(rule, counts=True)
    source = dataset_or_path(data)
    described = {
        "data": None if isinstance(source, Dataset) else str(source),
        "format": format,
        "format_settings": settings or FormatSettings(),
        "rule": str(rule),
        **dataclasses.asdict(config),
    }
    torch_device = choose_device(device)
    defaults = {"format": None, "format_settings": FormatSettings(), **dataclasses.asdict(ImproveConfig())}
    with RunLog(out, callback, progress=progress, resume=resume, overwrite=overwrite) as log:
        if log.check_folder(NAME, described, seed, defaults):
            return completed(log, trunk)
        loaded = open_dataset(source, format, settings)
        name = "data" if isinstance(source, Dataset) else str(source)
        check_data(loaded, name, log)
        if config.return_range:
            check_returns(loaded, loaded.scores, *config.return_range)
        default = IMAGES if loaded.spec.is_image else VECTORS
        with cpu_threads(torch_device, loaded.spec.obs_shape, config.hidden_size or default.hidden_size):
            improver = Improver(loaded, config, rule, seed, torch_device, trunk, name, log)
            improver.metadata |= {"table": loaded.table_roles} if loaded.table_roles else {}
            log.state = {"lines": 0, "best": {}, "data": fingerprint(source), "holdout": improver.holdout.checksum}
            log.open({NAME: improver.learner})
            improver.learner.best = log.state["best"]
            improver.fit()
            return improver.result()


def completed(log: RunLog, trunk: TrunkFactory | None) -> ImproveResult:
    """The result of a complete run, from its folder."""
    assert log.out is not None
    assert log.numbers is not None
    policy = load_policy(log.out, trunk=trunk)
    return ImproveResult(policy, policy.with_rule(Behavior()), log.numbers, log.metrics, log.out)


def check_data(data: Dataset, name: str, log: RunLog) -> None:
    """Refuse data that nothing can be learned from."""
    if not len(data):
        why = f"could be used; the first: {data.rejected[0]}" if data.rejected else "is there"
        raise ValueError(f"{name}: no episode {why}")
    if data.rejected:
        log.echo(f"{len(data.rejected):,} episodes rejected; the first: {data.rejected[0]}")
    actions = np.unique(data.arrays["actions"])
    if len(actions) == 1:
        raise ValueError(f"{name}: only action {actions[0]} was ever taken: nothing to improve")
    never = np.setdiff1d(np.arange(data.spec.num_actions), actions)
    if len(never) and not data.spec.has_action_masks and not data.spec.has_behavior_probs:
        log.echo(
            f"{name}: {len(never):,} of {data.spec.num_actions:,} actions were never taken, the first is {never[0]}; "
            "the policy may choose them. If there are no such actions, number the others from 0, without gaps"
        )


class Improver:
    """The parts of one `improve` call: data split, learner, fit and result."""

    def __init__(
        self,
        data: Dataset,
        config: ImproveConfig,
        rule: Rule,
        seed: int,
        device: torch.device,
        trunk: TrunkFactory | None,
        name: str,
        log: RunLog,
    ) -> None:
        self.data, self.config, self.rule, self.seed = data, config, rule, seed
        self.device, self.trunk, self.name, self.log = device, trunk, name, log
        self.metadata: dict[str, Any] = {"learned": NAME, "logs": name, "seed": seed}
        self.holdout = self.split()
        self.learner = self.make_learner()

    def rng(self, of: str) -> np.random.Generator:
        """An independent random stream for each purpose."""
        return np.random.default_rng([self.seed, RANDOM_STREAMS.index(of)])

    def generator(self, of: str, device: torch.device | str = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(int(self.rng(of).integers(2**62)))

    def sampler_config(self, batch_size: int, **changes: Any) -> SamplerConfig:
        config = self.config
        return SamplerConfig(
            batch_size,
            gamma=config.gamma,
            clip_rewards=config.clip_rewards,
            max_missing_return=config.max_missing_return,
            **changes,
        )

    def split(self) -> Holdout:
        logged = self.data.spec.has_action_probs or self.data.spec.has_behavior_probs
        fraction = self.config.holdout_fraction or (LOGGED_HOLDOUT if logged else HOLDOUT)
        players = player_numbers(self.data) if self.config.unit == "player" else None
        try:
            return split_holdout(self.data, self.sampler_config(2), fraction, self.rng("split"), players)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    @property
    def train_episodes(self) -> Any:
        return np.delete(np.arange(len(self.data)), np.concatenate([self.holdout.validation, self.holdout.test]))

    def pseudo_counts(self, networks: Networks) -> PseudoCounts | None:
        """Pseudo-counts of the training states; None for more actions than they are computed for."""
        if self.too_many_actions(networks):
            return None
        data = self.data
        sampler = Sampler(
            data, self.sampler_config(2), torch.Generator(), device=self.device, episodes=self.train_episodes
        )
        limit = MAX_COUNTED_IMAGES if data.spec.is_image else MAX_COUNTED_STATES
        clusters = step_clusters(data, sampler.usable, self.config.gamma)
        names, which = np.unique(clusters, return_inverse=True)
        counted = max(1, len(names) * limit // max(limit, len(clusters)))
        chosen = (self.rng("counts").permutation(len(names)).argsort() < counted)[which]
        parts = features_and_actions(networks, sampler, sampler.usable[chosen], clusters[chosen])
        return PseudoCounts.fit(parts, data.spec.num_actions, float(chosen.mean()))

    def too_many_actions(self, networks: Networks) -> bool:
        return self.data.spec.num_actions * networks.config.hidden_size**2 > MAX_MOMENTS

    def make_learner(self) -> BestCheckpoint:
        """Untrained beta and Q on standardised training episodes, and the validation set."""
        data, config, train_episodes = self.data, self.config, self.train_episodes
        default = IMAGES if data.spec.is_image else VECTORS
        batch_size = config.batch_size or default.batch_size
        epoch = int(data.records["steps"][train_episodes].sum()) / batch_size
        updates = config.updates or min(MAX_UPDATES, max(MIN_UPDATES, math.ceil(EPOCHS * epoch)))
        if data.spec.is_image and self.device.type == "cpu":
            self.log.echo(f"no GPU: {updates:,} batches of images take a while; fewer updates are faster")
        validation = Sampler(
            data,
            self.sampler_config(batch_size),
            torch.Generator(),
            device=self.device,
            episodes=self.holdout.validation,
        )
        sampler = Sampler(
            data,
            self.sampler_config(batch_size, keep_incomplete=True),
            self.generator("batches"),
            device=self.device,
            episodes=train_episodes,
        )
        self.features = feature_range(sampler)
        standardization = fit_standardization(sampler, observations=self.trunk is None)
        standardize(sampler, standardization)
        behavior_q = BehaviorQConfig(
            config.learning_rate or default.learning_rate,
            network=offline_network(
                config.hidden_size or default.hidden_size, default.input_dropout, default.hidden_dropout
            ),
        )
        obs_spec = ObservationSpec(
            data.spec.obs_shape,
            data.spec.frame_stack,
            data.spec.num_actions,
            has_action_masks=data.spec.has_action_masks,
        )
        cloned = not data.spec.has_behavior_probs
        networks = make_networks(obs_spec, behavior_q.network, self.seed, with_policy=cloned, trunk=self.trunk)
        self.visits = count_visits(data, train_episodes, config.gamma)
        if self.rule.uses_counts and self.visits is None and self.too_many_actions(networks):
            raise ValueError(f"rule {self.rule}: {data.spec.num_actions:,} actions are too many for pseudo-counts")
        learner = BehaviorQ(behavior_q, networks, sampler, self.generator("dropout", self.device))
        return BestCheckpoint(learner, updates, standardization, validation)

    def fit(self) -> None:
        """Run the remaining updates, with evenly spaced validations, each with a checkpoint."""
        learner, updates = self.learner, self.learner.total_updates
        validate_at = {math.ceil(n * updates / VALIDATIONS) for n in range(1, VALIDATIONS + 1)}
        what = "Q (beta is logged, so nothing is cloned)" if self.data.spec.has_behavior_probs else "beta and Q"
        description = f"fitting {what} to {len(learner.behavior_q.sampler.usable):,} steps"
        steps = train(learner, updates)
        if self.log.progress:
            steps = track_updates(steps, description, updates, lambda n: n, lambda n: f"{n:,} of {updates:,} updates")
        with graceful_stop() as stopped:
            for done in steps:
                if done in validate_at:
                    self.log.metric(**learner.validate())
                if done in validate_at or stopped.is_set():
                    self.log.state["best"] = learner.best
                    self.log.save({NAME: learner})
                if stopped.is_set():
                    self.log.stop()

    def result(self) -> ImproveResult:
        """The policy of the best networks, and its diagnostics on the test set."""
        data, learner = self.data, self.learner
        networks = learner.networks()
        temperature = learner.temperature(networks)
        sampler = Sampler(
            data, self.sampler_config(2), torch.Generator(), device=self.device, episodes=self.holdout.test
        )
        steps = sampler.usable
        held = predict_steps(networks, sampler, steps)
        found = diagnostics(held, learner.frequencies, temperature)
        if self.features is not None:
            rows = sampler.frame_index[steps].split(BLOCK_ROWS)
            blocks = (sampler.frames[part].cpu().numpy() for part in rows)
            outside = [self.features.outside(obs, data.spec.features).any(1) for obs in blocks]
            found["outside_range"] = float(np.concatenate(outside).mean())
        policy = self.make_policy(networks, temperature)
        decision, decided = self.decide(policy)
        policy.to("cpu")
        action_probs = logged_probs(data, steps)
        if action_probs is not None and not data.spec.has_behavior_probs:
            found["clone"] = clone_error(np.exp(taken_log_probs(held.logits, held.actions, temperature)), action_probs)
        changes = self.changes(policy, sampler, held, action_probs)
        if self.log.out is not None:
            policy.save(self.log.out / "policies" / "best")
        numbers = self.log.result(
            {
                "logs": self.name,
                "rule": str(self.rule),
                "spec": dataclasses.asdict(data.spec),
                "episodes": len(data),
                "steps": data.steps,
                "rejected": len(data.rejected),
                "lost": data.num_lost,
                "excluded": learner.behavior_q.sampler.excluded_fraction,
                "validation": part_size(data, learner.validation.usable),
                "test": part_size(data, steps),
                "separate_test_set": self.holdout.separate,
                "updates": learner.updates,
                "batch_size": learner.behavior_q.sampler.config.batch_size,
                "best": learner.best,
                "calibrated": learner.calibrates,
                "temperature": temperature,
                "diagnostics": found,
                "changes": changes,
                "decision": decided,
            }
        )
        return ImproveResult(policy, policy.with_rule(Behavior()), numbers, self.log.metrics, self.log.out, decision)

    def make_policy(self, networks: Networks, temperature: float) -> Policy:
        """The policy, with what it keeps of its training data."""
        data, learner = self.data, self.learner
        seen = np.delete(np.arange(len(data)), self.holdout.test)
        visits = self.pseudo_counts(networks) if self.visits is None else self.visits
        return Policy(
            networks,
            self.rule,
            temperature=temperature,
            env=data.spec.env,
            metadata={**self.metadata, "best": learner.best},
            features=self.features,
            columns=data.spec.features,
            action_names=data.spec.action_names,
            behavior="logged" if data.spec.has_behavior_probs else "cloned",
            training_digests=episode_digests(data)[seen],
            visits=None if visits is None else visits._replace(sigma=learner.q_error(networks)),
        )

    def changes(self, policy: Policy, sampler: Sampler, held: Predictions, action_probs: Any) -> dict[str, Any]:
        """What the policy changes compared with beta on the steps of the test set."""
        data, steps = self.data, sampler.usable
        first = data.records["first_step"]
        episode = np.searchsorted(first, steps, side="right") - 1
        counts = visit_counts(policy, sampler, steps) if self.rule.uses_counts else None
        found = policy_diff(
            held_out_steps(policy, held, counts, episode, steps - first[episode], action_probs),
            self.rng("bootstrap"),
            (self.rule.c_min, self.rule.c_max) if isinstance(self.rule, Reroute) else None,
            None if data.spec.is_image else sampler.frames[sampler.frame_index[steps]].numpy(),
            player_numbers(data)[episode] if self.config.unit == "player" else None,
        )
        for row in found["largest"]:
            record = data.records[row["episode"]]
            row |= {"source": data.texts[record["source"]], "line": int(record["line"])}
        names = feature_names(data)
        for row in found["features"]:
            row["name"] = names[row["feature"]]
        return found

    def decide(self, policy: Policy) -> tuple[Decision | None, dict[str, Any]]:
        """The decision on the test set, also ready for JSON; None and the reason if it is refused."""
        if not self.holdout.separate:
            return None, {"refused": f"the only held-out {self.config.unit} served for validation"}
        if not self.holdout.representative:
            return None, {
                "refused": "too few episodes have known returns, and a test set of those alone differs from the log"
            }
        try:
            check_complete(self.data)
            unit = self.config.unit
            check_copies(self.data, unit)
            evidence = gather_evidence(policy, self.data.select(self.holdout.test), gamma=1.0, unit=unit)
            config = CertifyConfig(return_range=self.config.return_range, unit=unit)
            decision = decide(evidence, config, progress=self.log.progress)
        except ValueError as error:
            return None, {"refused": str(error)}
        return decision, decision.to_dict()


def held_out_steps(
    policy: Policy, held: Predictions, counts: Tensor | None, episode: Array, step: Array, action_probs: Array | None
) -> HeldOutSteps:
    """The steps of the test set, from their predictions."""
    masks = held.action_masks

    def rows(some: slice | Array) -> PolicyPair:
        beta, q = np.exp(log_probs(held.logits[some], policy.temperature)), held.q[some].astype(np.float64)
        legal = None if masks is None else torch.from_numpy(masks[some])
        visits = None if counts is None else counts[some]
        pi = policy.improve(torch.from_numpy(beta), torch.from_numpy(q), legal, visits).numpy()
        probs = None if action_probs is None else action_probs[some]
        returns = held.returns[some].astype(np.float64)
        return PolicyPair(beta, pi, q, held.actions[some], returns, episode[some], step[some], probs)

    return HeldOutSteps(held.q, held.actions, held.returns, episode, step, rows)


def visit_counts(policy: Policy, sampler: Sampler, steps: Any) -> Tensor:
    """Visits of the states of some steps, or pseudo-counts, `[N, A]`, in batches."""
    parts = torch.split(torch.as_tensor(steps), PREDICT_BATCH)
    found = [policy.counts(sampler.batch(part).states.cpu()) for part in parts]
    return torch.cat([counts for counts in found if counts is not None])


def part_size(data: Dataset, steps: Any) -> dict[str, int]:
    """The number of episodes that have any of these steps, and of the steps."""
    episodes = np.searchsorted(data.records["first_step"], steps, side="right")
    return {"episodes": len(np.unique(episodes)), "steps": len(steps)}


def logged_probs(data: Dataset, steps: Any) -> Any:
    """The logged probabilities of the actions taken in some steps, `[N]`; None if there are none."""
    if data.spec.has_behavior_probs:
        probs = data.arrays["behavior_probs"][steps].astype(np.float64)
        return probs[np.arange(len(steps)), data.arrays["actions"][steps]] / probs.sum(1)
    return data.arrays["action_probs"][steps].astype(np.float64) if data.spec.has_action_probs else None
