"""`rbi improve`: logs in, one improved policy out, with what it does otherwise and how far that can be trusted."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from rbi import checkpoint, runs
from rbi.cli.command import show_run
from rbi.cli.data import FromData, fingerprint
from rbi.data.dataset import Dataset
from rbi.data.formats import FormatSettings, load_episodes
from rbi.data.formats.tables import TableReader
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.behavior_q import Fit, FitConfig, learn
from rbi.offline_rl.policy_diff import Steps, changes
from rbi.offline_rl.scaling import scale, scaling_of
from rbi.offline_rl.validation import BestMoments, HeldOut, answers_about, diagnosis, likelihood, log_probs, to_hold_out
from rbi.policy import Policy
from rbi.progress import echo, graceful_stop, track_updates
from rbi.report import improve as pages
from rbi.rules.types import Reroute, parse_rule

NAME = "improve"
DRAWS = ("split", "batches", "dropout", "bootstrap")
MOMENTS = 20
MOST_HELD_OUT = 0.8
EPOCHS, FEWEST_UPDATES, MOST_UPDATES = 20, 1_000, 20_000


class Sizes(NamedTuple):
    """What is learned with unless it is said otherwise."""

    batch: int
    learning_rate: float
    hidden_size: int
    input_dropout: float
    hidden_dropout: float


VECTORS, PICTURES = Sizes(256, 0.001, 128, 0.0, 0.0), Sizes(32, 0.00025, 1024, 0.25, 0.5)


@dataclass(frozen=True)
class Improve(FromData):
    """From logs to an improved policy: learn who acted (beta) and what came of it (Q), and take one improvement step.

    Some episodes are held out. Half of them choose the best moment of learning and calibrate beta; the other half, on
    which nothing depends, tell how good beta and Q are and what changes.
    """

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = ("resume", "device")

    rule: str = "reroute(0.5,1.5)"
    """The improvement step; any rule of `rbi rules`."""
    updates: int | None = None
    """Batches to learn from; if not given, 20 passes over the data, but at least 1,000 and at most 20,000."""
    batch: int | None = None
    """States in a batch; if not given, 256 for vectors and 32 for pictures."""
    learning_rate: float | None = None
    """Step size of Adam; if not given, 0.001 for vectors and 0.00025 for pictures."""
    latent: int | None = None
    """Numbers in the last hidden layer; if not given, 128 for vectors and 1024 for pictures."""
    gamma: float = 0.99
    """What a reward one step later counts."""
    held_out: float = 0.1
    """The share of the episodes that is held out: half of them choose, the other half tell."""
    clip_rewards: bool | None = None
    """Clip rewards to [-1, 1]; if not said, where observations are pictures."""
    unfinished: float = 0.05
    """Q does not learn from steps whose episode was cut off so soon after that more than this share of the return,
    gamma^steps, is missing; 1 takes them all."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the networks learn; auto takes the GPU if there is one."""
    resume: bool = False
    """Go on with the run in --out, from its last checkpoint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rule", str(parse_rule(self.rule)))
        for name, least in (("updates", 1), ("batch", 2), ("latent", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"--{name} = {value}: must be at least {least}")
        if not 0 < self.held_out <= MOST_HELD_OUT:
            raise ValueError(f"--held-out = {self.held_out}: must be positive, and at most {MOST_HELD_OUT}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped run with --out, without --overwrite")
        self.draws(2)
        self.fits(VECTORS)

    def run(self, argv: Sequence[str]) -> None:
        self.refuse_own_data()
        if self.resume:
            self.check_resume(NAME)
            if runs.read(self.out or Path()).result is not None:
                self.finished(self.out or Path())
                echo(f"nothing left to do: {self.out} is complete")
                return
        elif self.out is not None:
            runs.check_available(self.out.resolve(), overwrite=self.overwrite)
        data = self.episodes()
        out = self.hold_out(data)
        learner = self.learner(data, out)
        about: dict[str, Any] = {"lines": 0, "best": {}, "data": fingerprint(self.place)}
        if self.resume:
            about = self.go_on(learner, about)
        with self.open_run(argv, about["lines"]) as writer:
            self.learn(learner, writer, about)
            self.finish(learner, data, out, writer)
        self.finished(writer.path)

    def episodes(self) -> Dataset:
        """The data, if something can be learned from it."""
        given = FormatSettings(self.about, self.agc, self.table)
        data = load_episodes(self.place, self.format, settings=None if given == FormatSettings() else given)
        if not len(data):
            why = f"could be used; the first: {data.rejected[0]}" if data.rejected else "is there"
            raise ValueError(f"{self.path}: no episode {why}")
        if data.rejected:
            echo(f"{len(data.rejected):,} episodes set aside; the first: {data.rejected[0]}", stderr=True)
        if data.spec.has_action_probs:
            echo("logged probabilities are not used: beta is learned from the actions themselves", stderr=True)
        actions = np.unique(data.arrays["actions"])
        if len(actions) == 1:
            raise ValueError(f"{self.path}: only action {actions[0]} was ever taken: nothing to improve")
        return data

    def draws(self, batch: int, **changes: Any) -> SamplerConfig:
        return SamplerConfig(
            batch, gamma=self.gamma, clip_rewards=self.clip_rewards, max_missing_return=self.unfinished, **changes
        )

    def fits(self, usual: Sizes) -> FitConfig:
        nets = offline_network(self.latent or usual.hidden_size, usual.input_dropout, usual.hidden_dropout)
        rate = usual.learning_rate if self.learning_rate is None else self.learning_rate
        return FitConfig(rate, nets=nets)

    def learner(self, data: Dataset, out: HeldOut) -> BestMoments:
        """beta and Q with nothing learned yet, and the episodes that choose their best moments."""
        usual = PICTURES if data.spec.is_image else VECTORS
        batch, device = self.batch or usual.batch, self.on()
        mine = np.setdiff1d(np.arange(len(data)), np.concatenate(out))
        steps = int(data.records["steps"][mine].sum())
        updates = self.updates or min(MOST_UPDATES, max(FEWEST_UPDATES, math.ceil(EPOCHS * steps / batch)))
        if data.spec.is_image and device.type == "cpu":
            echo(f"no GPU: {updates:,} batches of pictures take their time; fewer --updates help", stderr=True)
        held = Sampler(data, self.draws(batch), torch.Generator(), device=device, episodes=out.choosing)
        sampler = Sampler(
            data,
            self.draws(batch, keep_incomplete=True),
            self.generator("batches"),
            device=device,
            episodes=mine,
        )
        scaling = scaling_of(sampler)
        scale(sampler, scaling)
        config = self.fits(usual)
        obs_spec = ObservationSpec(data.spec.obs_shape, data.spec.frame_stack, data.spec.num_actions)
        networks = make_networks(obs_spec, config.nets, self.seed)
        fit = Fit(config, networks, sampler, self.generator("dropout", device))
        return BestMoments(fit, updates, scaling, held)

    def hold_out(self, data: Dataset) -> HeldOut:
        """The episodes to hold out; data of which nothing can be learned is refused."""
        try:
            return to_hold_out(data, self.draws(2), self.held_out, self.rng("split"))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def rng(self, of: str) -> np.random.Generator:
        """A source of random numbers of its own for everything that draws."""
        return np.random.default_rng([self.seed, DRAWS.index(of)])

    def generator(self, of: str, device: torch.device | str = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(int(self.rng(of).integers(2**62)))

    def on(self) -> torch.device:
        found = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(found if self.device == "auto" else self.device)

    def go_on(self, learner: BestMoments, about: dict[str, Any]) -> dict[str, Any]:
        """Put the learner where the last checkpoint was, if there is one and the data is still what it was."""
        assert self.out is not None
        before = checkpoint.restore_learners(self.out, {NAME: learner})
        if before is None:
            echo(f"{self.out}: has no checkpoint yet, so it begins again", stderr=True)
            return about
        if before["data"] != about["data"]:
            raise ValueError(f"{self.path}: has changed since the run in {self.out} began; begin a new one")
        learner.best = before["best"]
        return before

    def open_run(self, argv: Sequence[str], lines: int) -> runs.Writer:
        if not self.resume:
            return self.create_run(NAME, argv)
        assert self.out is not None
        runs.restore_interrupted(self.out / "policies")
        return runs.Writer.reopen(self.out, lines=lines)

    def learn(self, learner: BestMoments, writer: runs.Writer, about: dict[str, Any]) -> None:
        """Take the updates that are left; a look, a line and a checkpoint at each of twenty moments."""
        updates = learner.goal
        moments = {math.ceil(n * updates / MOMENTS) for n in range(1, MOMENTS + 1)}
        told = f"fitting beta and Q to {len(learner.fit.sampler.usable):,} steps"

        def save() -> None:
            checkpoint.save_learners(writer.path, {NAME: learner}, about | {"best": learner.best})

        with graceful_stop() as stopped:
            for done in track_updates(
                learn(learner, updates), told, updates, lambda n: n, lambda n: f"{n:,} of {updates:,} updates"
            ):
                if done in moments:
                    writer.log(**learner.look())
                    about["lines"] += 1
                    save()
                if stopped.is_set():
                    save()
                    echo(f"rbi: stopped after {done:,} updates; go on with --resume --out {writer.path}", stderr=True)
                    raise KeyboardInterrupt

    def finish(self, learner: BestMoments, data: Dataset, out: HeldOut, writer: runs.Writer) -> None:
        """The policy of the best networks, and what it does otherwise on episodes that had no part in it."""
        networks, rule = learner.networks(), parse_rule(self.rule)
        temperature = learner.temperature(networks)
        sampler = Sampler(data, self.draws(2), torch.Generator(), device=learner.held.device, episodes=out.telling)
        asked, first = sampler.usable, data.records["first_step"]
        held = answers_about(networks, sampler, asked)
        calibrated = {"likelihood_calibrated": likelihood(held.logits, held.actions, temperature)}
        found = diagnosis(held) | calibrated | {"temperature": temperature}
        about = {"learned": NAME, "logs": str(self.path), "seed": self.seed, "best": learner.best}
        policy = Policy(networks.cpu(), rule, temperature=temperature, env=data.spec.env, metadata=about)
        beta = np.exp(log_probs(held.logits, temperature))
        q = held.q.astype(np.float64)
        legal = None if held.legal is None else torch.from_numpy(held.legal)
        pi = policy.improve(torch.from_numpy(beta), torch.from_numpy(q), legal).numpy()
        which = np.searchsorted(first, asked, side="right") - 1
        changed = changes(
            Steps(beta, pi, q, held.actions, held.returns, which, asked - first[which]),
            self.rng("bootstrap"),
            (rule.c_min, rule.c_max) if isinstance(rule, Reroute) else None,
            None if data.spec.is_image else sampler.frames[sampler.frame_index[asked]].numpy(),
        )
        for row in changed["largest"]:
            record = data.records[row["episode"]]
            row |= {"source": data.texts[record["source"]], "line": int(record["line"])}
        names = self.feature_names(data)
        for row in changed["features"]:
            row["name"] = names[row["feature"]]
        policy.save(writer.path / "policies" / "best")
        writer.result(
            {
                "logs": str(self.path),
                "rule": self.rule,
                "spec": dataclasses.asdict(data.spec),
                "episodes": len(data),
                "steps": data.steps,
                "set_aside": len(data.rejected),
                "unfinished": learner.fit.sampler.excluded_fraction,
                "chosen_by": {"episodes": len(out.choosing), "steps": len(learner.held.usable)},
                "held_out": {"episodes": len(out.telling), "steps": len(asked)},
                "apart": not np.array_equal(*out),
                "updates": learner.updates,
                "batch": learner.fit.sampler.config.batch_size,
                "best": learner.best,
                "calibrated": learner.calibrates,
                "temperature": temperature,
                "diagnosis": found,
                "changes": changed,
            }
        )

    def finished(self, path: Path) -> None:
        show_run(path, pages)
        echo(f"policy, numbers and figures: {path}; in Python: rbi.load_policy({str(path)!r})")

    def feature_names(self, data: Dataset) -> list[str]:
        """What the numbers of a vector are called: by the columns of a table, or by their place."""
        numbered = [f"observation {number}" for number in range(math.prod(data.spec.obs_shape))]
        reader = self.reader()
        if not isinstance(reader, TableReader):
            return numbered
        texts, names = reader.checker.categories, reader.layout.observations
        told = [f"{name} = {text}" if text else name for name in names for text in texts.get(name, ("",))]
        return told if len(told) == len(numbered) else numbered
