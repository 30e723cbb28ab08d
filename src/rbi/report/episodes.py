"""What the episode viewer of the HTML report shows: beta, pi and Q in every step of a few episodes.

Episodes come from the data that a run learned from or was tested on, those first that the policy has not been trained
on; or they are fresh ones of a trained policy. Episodes of one step (logged decisions) become a list of the decisions
that change most.
"""

import base64
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from rbi import envs, fileio, measures
from rbi.certification.decision import TABLES, encoded_as
from rbi.config import Device, choose_device
from rbi.data.dataset import Dataset
from rbi.data.digests import contained, episode_digests
from rbi.data.episode import Array, Episode, Feature, feature_slices
from rbi.data.formats import AgcConfig, FormatSettings, SpecOverrides, TableConfig, load_episodes, recognise
from rbi.data.formats.reader import FAULTS
from rbi.data.store import MAX_LOST
from rbi.envs import id_from_file
from rbi.evaluation.recording import NAME as RECORD
from rbi.evaluation.recording import DatasetRecording
from rbi.observations import stack_index, stack_offsets
from rbi.policy import Policy, load_policy
from rbi.progress import track
from rbi.report.data import date_text
from rbi.rules.types import Reroute
from rbi.runs import Run

DEFAULT_EPISODES = 3
MAX_STEPS = 2000  # of an episode
MAX_ACTIONS, MAX_FEATURES = 18, 12  # shown in a step
MAX_DECISIONS, MAX_PREDICTED = 400, 20_000
BATCH = 256
STRIP_PIXELS = 16_000  # height of an image: browsers refuse much larger ones
MAX_FRAME = 210  # pixels; larger frames are scaled down
QUARTERS = 4
MISSING = "(missing)"
WITH_VIEWER = ("train", "offline", "improve", "certify", RECORD)
"""Commands whose runs have a policy and episodes."""


@dataclass(frozen=True)
class Frames:
    """Screens of an episode as PNG images, each a vertical strip of `per_strip` frames."""

    strips: list[str]
    """Data URIs."""
    per_strip: int
    width: int
    height: int


@dataclass(frozen=True)
class EpisodeTrace:
    """An episode step by step: lists over T steps, and tables `[T][A]` over the shown actions."""

    name: str
    score: float
    steps: int
    """Of the whole episode; the lists may be shorter."""
    taken: list[int]
    """Index of the action taken in `Viewer.actions`; -1 if it is not shown."""
    beta: list[list[float]]
    pi: list[list[float]]
    q: list[list[float]]
    value: list[float]
    """V(s) = sum_a beta(a) Q(a)."""
    change: list[float]
    """Total variation between beta and pi."""
    reward: list[float]
    lives_lost: list[int]
    """Steps in which a life was lost."""
    end: str
    frames: Frames | None
    features: list[list[float]]
    """`[D][T]`, for vector observations."""


@dataclass(frozen=True)
class LoggedDecision:
    """A logged decision: an episode of one step, or several in equal states with the same action."""

    name: str
    """Of the first one."""
    count: int
    features: list[Any]
    """In the order of `Viewer.features`: numbers or texts."""
    taken: int
    reward: float
    """Their mean."""
    beta: list[float]
    pi: list[float]
    q: list[float]
    change: float
    gain: float
    """Expected gain by Q."""


@dataclass(frozen=True)
class Viewer:
    """The episodes or decisions of one run."""

    rule: str
    actions: list[str]
    bounds: list[float] | None
    """c_min and c_max of reroute."""
    features: list[str]
    episodes: list[EpisodeTrace]
    decisions: list[LoggedDecision]
    by_value: list[dict[str, Any]]
    """Quarters of the states by V(s): mean V and the mean change of each action's probability."""
    note: str
    """Where the episodes come from, and what was left out."""


class StatePredictions(NamedTuple):
    """beta, pi and Q of N states, `[N, A]` each."""

    beta: Array
    pi: Array
    q: Array

    @property
    def value(self) -> Array:
        return (self.beta * self.q).sum(1)

    @property
    def change(self) -> Array:
        return measures.total_variation(self.pi, self.beta)

    @property
    def gain(self) -> Array:
        return ((self.pi - self.beta) * self.q).sum(1)


# Where episodes come from


def find_policy(run: Run, given: Path | None) -> tuple[Policy, Path]:
    """The policy to look at: the given one, the one that certify tested, the first recorded one, or the run's own."""
    with fileio.naming(run.path / "config.json"):
        tested = run.config["settings"].get("policy") if run.config.get("command") == "certify" else None
        policies = list(run.config["settings"].get("policies", ()))
    path = given or (
        fileio.as_path(tested) if isinstance(tested, str) and tested and fileio.as_path(tested).exists() else run.path
    )
    if given is None and run.config.get("command") == RECORD:
        recorded = [fileio.as_path(each) for each in policies if isinstance(each, str)]
        path = next((each for each in recorded if each.is_dir()), path)
    return load_policy(path), path


def find_data(run: Run, policy: Policy, place: Path, given: Path | None) -> tuple[Dataset, Path] | None:
    """The data to look at: the given one, or that of the run; None if the run has none, or it is gone."""
    with fileio.naming(run.path / "config.json"):
        settings = run.config["settings"]
        named = str(run.path) if run.config.get("command") == RECORD else settings.get("data", settings.get("path"))
        as_read = described_format(settings)
    path = given or (fileio.as_path(named) if isinstance(named, str) and named else None)  # empty: data in memory
    if path is None or (given is None and not path.exists()):
        return None
    format_ = settings.get("format") if given is None else None
    if given is not None and as_read and recognise(given) not in TABLES:
        as_read = replace(as_read, table=TableConfig())  # it has no columns to name
    found = encoded_as(policy, place, path, format_, as_read)
    return load_episodes(path, format_, settings=found), path


def described_format(settings: dict[str, Any]) -> FormatSettings | None:
    """How a run read its data, from its settings; None for the defaults."""
    found = settings.get("format_settings", settings)
    if not isinstance(found, dict) or not isinstance(found.get("table"), dict):
        return None
    table: dict[str, Any] = found["table"]
    table = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return FormatSettings(
        SpecOverrides(**found.get("overrides", {})),
        AgcConfig(**found.get("agc", {})),
        TableConfig(**table),
        found.get("max_lost", MAX_LOST),
    )


def fresh_episodes(policy: Policy, run: Run, count: int, seed: int) -> Dataset:
    """New episodes of a trained policy in its environment."""
    env = id_from_file(policy.env, run.path, "record episodes with rbi data record --env, and give them with --data")
    if not env:
        raise ValueError(f"{run.path}: does not say in which environment its policy was trained; give --data")
    recording = DatasetRecording(
        [(run.path.name, policy)], env, episodes=count, num_envs=count, source="fresh episodes", seed=seed
    )
    return recording.in_memory()


def held_out(data: Dataset, policy: Policy) -> Array:
    """Numbers of the episodes that did not train or select the policy; all if none is left."""
    if policy.training_digests is None:
        return np.arange(len(data))
    (content, located), (seen, seen_located) = episode_digests(data).T, policy.training_digests.reshape(-1, 2).T
    known = np.where(located > 0, contained(located, seen_located), contained(content, seen))
    return np.flatnonzero(~known) if not known.all() else np.arange(len(data))


# beta, pi and Q


def predict(
    policy: Policy, frames: Array, age: Array, behavior_probs: Array | None = None, action_masks: Array | None = None
) -> StatePredictions:
    """beta, pi and Q of N frames, each with as many earlier frames of its episode before it as `age` says."""
    if policy.behavior == "logged" and behavior_probs is None:
        raise ValueError("the policy changes logged probabilities of all actions, which this data does not have")
    all_frames, ages = torch.as_tensor(np.array(frames)), torch.as_tensor(age)
    offsets, found = stack_offsets(policy.obs_spec.stack), []
    for first in range(0, len(frames), BATCH):
        part = slice(first, first + BATCH)
        index, before = stack_index(torch.arange(len(frames))[part], ages[part], offsets)
        states = all_frames[index.clamp(min=0)]
        states[before] = 0
        given = None if policy.behavior == "cloned" or behavior_probs is None else behavior_probs[part]
        legal = None if action_masks is None else action_masks[part]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # states outside the training range
            obs, mask = policy.obs_tensor(states), policy.legal_tensor(legal, len(states))
            beta, q = policy.beta_and_q(obs, policy.beta_tensor(given, len(states)), mask)
        if mask is not None:  # as the rule sees it
            beta = torch.where(mask, beta, 0)
            beta = beta / beta.sum(1, keepdim=True)
        pi = policy.improve(beta, q, mask, policy.counts(obs))
        found.append([each.double().cpu().numpy() for each in (beta, pi, q)])
    return StatePredictions(*(np.concatenate(each) for each in zip(*found, strict=True)))


def predict_episode(policy: Policy, episode: Episode) -> StatePredictions:
    """beta, pi and Q in the first steps of an episode."""
    steps = min(len(episode), MAX_STEPS)
    logged, masks = (None if each is None else each[:steps] for each in (episode.behavior_probs, episode.action_masks))
    return predict(policy, episode.observations[:steps], np.arange(steps), logged, masks)


def check_fits(policy: Policy, data: Dataset, path: Path | str) -> None:
    """Raise ValueError if the policy does not take the observations of the data."""
    own = (policy.obs_spec.shape, policy.obs_spec.num_actions)
    theirs = (data.spec.obs_shape, data.spec.num_actions)
    if own != theirs:
        raise ValueError(
            f"{path}: has observations {theirs[0]} and {theirs[1]} actions, the policy {own[0]} and {own[1]}"
        )
    if not len(data):
        raise ValueError(f"{path}: holds no usable episode")


def make_viewer(
    run: Run,
    *,
    budget: int,
    data: Path | None = None,
    policy: Path | None = None,
    episodes: int | None = None,
    seed: int = 0,
    device: Device = "auto",
) -> Viewer | None:
    """The viewer of a run, in at most about `budget` bytes; None for runs without a policy or without episodes.

    Runs that learned from data show `episodes` of it (default: 3); trained policies run that many fresh episodes, by
    default none.
    """
    command = run.config.get("command")
    trained, asked = command == "train", bool(episodes or data or policy)
    if episodes == 0 or (trained and not episodes and data is None) or (command not in WITH_VIEWER and not asked):
        return None
    found, place = find_policy(run, policy)
    found.to(choose_device(device))
    count = episodes or DEFAULT_EPISODES
    if trained and data is None:
        loaded, source = fresh_episodes(found, run, count, seed), f"{count} fresh episodes of the policy"
    else:
        where = find_data(run, found, place, data)
        if where is None:
            return None
        loaded, source = where[0], str(where[1])
        check_fits(found, loaded, where[1])
    chosen = held_out(loaded, found)
    if len(chosen) < len(loaded):
        source += "; only episodes that did not train the policy are shown"
    if int(loaded.records["steps"].max()) == 1:
        return decision_viewer(found, loaded, chosen, budget, source)
    return episode_viewer(found, loaded, chosen, count, budget, source)


def shown_actions(policy: Policy, data: Dataset, of: StatePredictions, taken: Array) -> tuple[Array, list[str], str]:
    """Which actions are shown, their names, and a note if some are not: those that change most or are taken often."""
    count = data.spec.num_actions
    names = list(policy.action_names or data.spec.action_names or envs.action_names(data.spec.env or policy.env, count))
    names = names or [f"action {number}" for number in range(count)]
    if count <= MAX_ACTIONS:
        return np.arange(count), names, ""
    weight = np.abs(of.pi - of.beta).mean(0) + np.bincount(taken, minlength=count) / max(1, len(taken))
    shown = np.sort(np.argsort(-weight, kind="stable")[:MAX_ACTIONS])
    note = f" Of {count:,} actions, the {MAX_ACTIONS} that change most or are taken most often are shown."
    return shown, [names[a] for a in shown], note


def index_of(taken: Array, shown: Array) -> list[int]:
    """Places of actions among those shown, -1 for others."""
    place = {int(action): n for n, action in enumerate(shown)}
    return [place.get(int(action), -1) for action in taken]


def changes_by_value(of: StatePredictions, shown: Array) -> list[dict[str, Any]]:
    """The mean change of each action's probability in quarters of the states, from the lowest V(s) to the highest."""
    parts = [part for part in np.array_split(np.argsort(of.value, kind="stable"), QUARTERS) if len(part)]
    change = (of.pi - of.beta)[:, shown]
    return [
        {"value": float(of.value[part].mean()), "states": len(part), "change": change[part].mean(0).tolist()}
        for part in parts
    ]


def rounded(array: Array, decimals: int = 4) -> Any:
    """Lists of numbers with few digits: they are most of the page."""
    return np.round(array.astype(np.float64), decimals).tolist()


def significant(array: Array, digits: int = 4) -> Any:
    """Lists of numbers with few significant digits, so that ratios of small ones are right, too.

    >>> significant(np.array([0.123456, -1.23456e-7, 0.0, 123456.0]))
    [0.1235, -1.235e-07, 0.0, 123500.0]
    """
    values = array.astype(np.float64)
    size = np.floor(np.log10(np.abs(values), out=np.zeros_like(values), where=values != 0))
    scale = 10.0 ** (digits - 1 - size)
    return (np.round(values * scale) / scale).tolist()


def q_digits(of: StatePredictions) -> int:
    """Decimal places that leave four significant digits of Q."""
    size = float(np.abs(of.q).max()) if of.q.size else 1.0
    return int(np.clip(4 - np.ceil(np.log10(max(size, 1e-6))), 0, 9))


def bounds_of(policy: Policy) -> list[float] | None:
    rule = policy.rule
    return [rule.c_min, rule.c_max] if isinstance(rule, Reroute) else None


def rule_text(policy: Policy) -> str:
    return f"{policy.rule}, mixed with {policy.c_greedy:g} greedy" if policy.c_greedy else str(policy.rule)


# Episodes


def episode_viewer(policy: Policy, data: Dataset, chosen: Array, count: int, budget: int, source: str) -> Viewer:
    """Some of the chosen episodes, from the lowest score to the highest, step by step."""
    ranked = chosen[np.argsort(data.scores[chosen], kind="stable")]
    picked = ranked[np.unique(np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int))]
    episodes = [data[int(number)] for number in picked]
    found = [predict_episode(policy, each) for each in track(episodes, "predicting", len(episodes))]
    everything = StatePredictions(*(np.concatenate(each) for each in zip(*found, strict=True)))
    taken = np.concatenate([each.actions[:MAX_STEPS] for each in episodes])
    shown, names, note = shown_actions(policy, data, everything, taken)
    features, numbers, feature_note = shown_features(policy, data, episodes)
    room = budget // len(episodes)
    traces = [
        trace_of(f"Episode {number}", episode, of, shown, numbers, room)
        for number, episode, of in zip(picked, episodes, found, strict=True)
    ]
    cut = [f"{len(each.value):,} of {each.steps:,} steps" for each in traces if len(each.value) < each.steps]
    left = len(chosen) - len(traces)
    note = f"From {source}." + (f" {left:,} more episodes are left out." if left else "") + note + feature_note
    note += f" Long episodes are cut: {', '.join(cut)}." if cut else ""
    return Viewer(
        rule=rule_text(policy),
        actions=names,
        bounds=bounds_of(policy),
        features=features,
        episodes=traces,
        decisions=[],
        by_value=changes_by_value(everything, shown),
        note=note,
    )


def trace_of(
    name: str, episode: Episode, of: StatePredictions, shown: Array, features: Sequence[int], budget: int
) -> EpisodeTrace:
    """One episode, cut where the budget of bytes ends."""
    steps = len(of.beta)
    number_bytes = steps * (3 * len(shown) * 8 + 40 + 9 * len(features))
    frames, is_image = None, episode.observations.ndim > 2
    if is_image:
        frames, steps = encode_frames(episode.observations[:steps], max(0, budget - number_bytes))
    elif number_bytes > budget:
        steps = max(1, steps * budget // number_bytes)
    digits = q_digits(of)
    player = f", {episode.player}" if episode.player else ""
    return EpisodeTrace(
        name=f"{name}{player}",
        score=episode.score,
        steps=len(episode),
        taken=index_of(episode.actions[:steps], shown),
        beta=significant(of.beta[:steps, shown]),
        pi=significant(of.pi[:steps, shown]),
        q=rounded(of.q[:steps, shown], digits),
        value=rounded(of.value[:steps], digits),
        change=rounded(of.change[:steps]),
        reward=significant(episode.rewards[:steps], 6),
        lives_lost=np.flatnonzero(episode.life_lost[:steps]).tolist(),
        end="terminated" if episode.terminated.any() else "abandoned" if episode.abandoned else "truncated",
        frames=frames,
        features=[] if is_image else [significant(episode.observations[:steps, n], 6) for n in features],
    )


def shown_features(policy: Policy, data: Dataset, episodes: Sequence[Episode]) -> tuple[list[str], list[int], str]:
    """Names and numbers of the features that are plotted: those that vary most, in units of their training range."""
    if data.spec.is_image:
        return [], [], ""
    size = data.spec.obs_shape[0]
    names = data.feature_names or [f"observation {number}" for number in range(size)]
    if size <= MAX_FEATURES:
        return names, list(range(size)), ""
    values = np.concatenate([each.observations for each in episodes])
    width = np.array(policy.features.high) - np.array(policy.features.low) if policy.features else np.ones(size)
    spread = values.std(0) / np.where(width > 0, width, 1)
    numbers = np.sort(np.argsort(-spread, kind="stable")[:MAX_FEATURES]).tolist()
    return [names[n] for n in numbers], numbers, f" The {MAX_FEATURES} of {size} features that vary most are plotted."


def encode_frames(frames: Array, budget: int) -> tuple[Frames, int]:
    """As many frames as fit the budget of bytes, as PNG strips; and their number.

    Frames stand below each other without row filters: consecutive screens are nearly equal, and the compressor then
    finds the previous one within its window.
    """
    height, width = frames.shape[1:3]
    factor = -(-max(height, width) // MAX_FRAME)
    frames = np.asarray(frames)[:, ::factor, ::factor]
    height, width = frames.shape[1:3]
    per_strip = max(1, STRIP_PIXELS // height)
    strips: list[str] = []
    used = count = 0
    for first in range(0, len(frames), per_strip):
        part = frames[first : first + per_strip]
        encoded = encode_strip(part)
        fits = int(len(part) * min(1.0, max(0, budget - used) / len(encoded)))
        if not fits and count:
            break
        part = part[: max(1, fits)]
        strips.append(encoded if fits >= len(part) == per_strip else encode_strip(part))
        used, count = used + len(strips[-1]), count + len(part)
        if len(part) < min(per_strip, len(frames) - first):
            break
    return Frames(strips, per_strip, width, height), count


def encode_strip(frames: Array) -> str:
    """Frames `[N, H, W]` or `[N, H, W, C]` below each other as the data URI of a PNG with a palette."""
    stacked = np.ascontiguousarray(frames).reshape(-1, *frames.shape[2:])
    if stacked.ndim == 3 and stacked.shape[2] == 3:
        image = Image.fromarray(stacked).quantize(256, dither=Image.Dither.NONE)
    else:  # grey; of stacked planes the newest
        image = Image.fromarray(stacked if stacked.ndim == 2 else np.ascontiguousarray(stacked[..., -1]), "L")
        image = image.convert("P")
        image.putpalette([value for value in range(256) for _ in range(3)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


# Logged decisions


def decision_viewer(policy: Policy, data: Dataset, chosen: Array, budget: int, source: str) -> Viewer:
    """The decisions that change most, of at most `MAX_PREDICTED` of the chosen episodes."""
    picked = chosen[np.unique(np.linspace(0, len(chosen) - 1, min(len(chosen), MAX_PREDICTED)).round().astype(int))]
    of = predict_decisions(policy, data, picked)
    steps = data.records["first_step"][picked]
    taken = data.arrays["actions"][steps]
    shown, names, note = shown_actions(policy, data, of, taken)
    obs = data.arrays["observations"][data.records["first_observation"][picked]]
    columns = feature_columns(policy, data)
    bytes_each = 8 * (3 * len(shown) + len(columns)) + 120
    most = min(MAX_DECISIONS, max(1, budget // bytes_each))
    first, group = equal_decisions(obs, taken, of)
    count = np.bincount(group)
    reward = np.bincount(group, data.arrays["rewards"][steps]) / count
    top = first[np.lexsort((first, -of.change[first]))[:most]]
    places, digits = index_of(taken, shown), q_digits(of)
    decisions = [
        LoggedDecision(
            name=decision_name(data, int(picked[n])),
            count=int(count[group[n]]),
            features=[feature_value(obs[n], *column) for column in columns],
            taken=places[n],
            reward=float(reward[group[n]]),
            beta=significant(of.beta[n, shown]),
            pi=significant(of.pi[n, shown]),
            q=rounded(of.q[n, shown], digits),
            change=float(np.round(of.change[n], 4)),
            gain=float(np.round(of.gain[n], digits + 1)),
        )
        for n in top
    ]
    listed = int(count[group[top]].sum())
    note = f"From {source}. The {listed:,} decisions that change most, of {len(picked):,}.{note}"
    note += " A row stands for all with the same features and action." if listed > len(top) else ""
    return Viewer(
        rule=rule_text(policy),
        actions=names,
        bounds=bounds_of(policy),
        features=[feature.name for feature, _ in columns],
        episodes=[],
        decisions=decisions,
        by_value=changes_by_value(of, shown),
        note=note,
    )


def equal_decisions(obs: Array, taken: Array, of: StatePredictions) -> tuple[Array, Array]:
    """Groups of decisions with the same observation, action and pi: the first one of each, and the group of all."""
    keys = np.column_stack([obs.reshape(len(obs), -1), taken, of.pi.round(4)])
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return first, group.reshape(-1)


def predict_decisions(policy: Policy, data: Dataset, picked: Array) -> StatePredictions:
    """beta, pi and Q of episodes of one step."""
    steps = data.records["first_step"][picked]
    frames = data.arrays["observations"][data.records["first_observation"][picked]]
    logged, masks = (
        data.arrays[name][steps] if name in data.arrays else None for name in ("behavior_probs", "action_masks")
    )
    return predict(policy, frames, np.zeros(len(picked), np.int64), logged, masks)


def feature_columns(policy: Policy, data: Dataset) -> list[tuple[Feature, int]]:
    """Each feature and its first number in an observation; unnamed numbers where there is no table."""
    if data.spec.is_image:
        return []
    features = data.spec.features or policy.columns
    features = features or tuple(Feature(f"observation {number}") for number in range(data.spec.obs_shape[0]))
    return [(feature, part.start) for feature, part in feature_slices(features)][: 3 * MAX_FEATURES]


def feature_value(obs: Array, feature: Feature, place: int) -> Any:
    """A number, a date, or the text of a one-hot column."""
    if feature.categories:
        part = obs[place : place + len(feature.categories)]
        return (feature.categories[int(part.argmax())] if part.any() else "(other)") or MISSING
    if feature.has_missing and obs[place + 1]:
        return MISSING
    if not feature.is_date:
        return float(f"{float(obs[place]):.6g}")
    return date_text(obs[place])


def decision_name(data: Dataset, number: int) -> str:
    record = data.records[number]
    source = Path(data.texts[record["source"]]).name
    return f"{source}, line {int(record['line'])}" if record["line"] else f"{source or 'row'} {number}"


def viewers(read: Sequence[Run], budget: int, **options: Any) -> Iterator[tuple[Viewer | None, str]]:
    """The viewer of each run, or why there is none; they share the budget of bytes."""
    for run in read:
        try:
            yield make_viewer(run, budget=budget // len(read), **options), ""
        except FAULTS as error:
            yield None, f"no episode viewer: {error or type(error).__name__}"
