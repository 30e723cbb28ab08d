"""The columns of a table by their meaning: usual names, names that the user gives, and how they are found."""

import re
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from rbi.data.formats.reader import natural
from rbi.suggestions import Suggesting, nearest

SHOWN_COLUMNS = 30
STEP_COLUMNS = {
    "episode": ("episode_id", "eps_id", "episode"),
    "step": ("t",),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminateds", "terminations", "terminal", "terminals", "done", "dones"),
    "truncated": ("truncated", "truncateds", "truncations", "timeout", "timeouts"),
    "action_prob": (
        "action_prob", "action_logp", "propensity", "propensity_score", "propensities", "pscore", "action_probability",
        "logging_prob", "logging_probability",
    ),
    "player": ("player",),
    "life_lost": ("life_lost",),
    "final": ("final_obs", "new_obs"),
}  # fmt: skip
"""Usual names of columns: ours, and those of RLlib, D4RL and Gym."""
DONE = ("done", "dones")
"""Names of flags that Gym set at time limits, too."""
BANDIT_COLUMNS = {"action": ("item_id",), "reward": ("click",), "action_prob": ("propensity_score",)}
"""Names in the Open Bandit Dataset, one row per decision."""
ID_NAME = re.compile(r"(?i:(^|[_. -])(uu|gu)?id)$|[a-z](Id|ID|UUID)$")
PER_ACTION = ("action_mask_", "behavior_prob_")
"""What the names of columns of one action each begin with; a number or the action's name follows."""
OWN_COLUMNS = {"abandoned": ("abandoned",), "source": ("source",), "line": ("line",)}
"""Further columns of our writer. In other tables these names may mean anything."""


@dataclass(frozen=True)
class TableConfig(Suggesting):
    """The columns of a table. Columns with the usual names are found without these options."""

    episode: str | None = None
    """Column that identifies the episode (default: episode_id, eps_id or episode; without one, rows in the order of
    time are cut after each end)."""
    step: str | None = None
    """Column that counts the steps of an episode, from 0 or 1, or holds their times (default: t, or the order of the
    rows)."""
    action: str | None = None
    """Column of actions: integers from 0, or texts or large numbers, which are sorted and mapped to 0, 1, ...
    (default: action or actions)."""
    reward: str | None = None
    """Column of rewards (default: reward or rewards)."""
    terminated: str | None = None
    """Column that is true where the environment terminated (default: terminated, terminal, done or another usual
    name)."""
    truncated: str | None = None
    """Column that is true where the episode was cut off (default: truncated, timeout or another usual name)."""
    observations: tuple[str, ...] = ()
    """Observed columns in this order, or prefixes of their names such as obs_. Text columns are one-hot encoded, dates
    become days; a missing number becomes the median, with a further feature that says so, a missing text a category
    (default: obs, or obs_0, obs_1, ...)."""
    action_prob: str | None = None
    """Column with the probability of each taken action (default: action_prob, propensity, pscore or another usual
    name)."""
    action_mask: str | None = None
    """Column of lists with the legal actions, or the prefix of one column per action (default: action_mask)."""
    behavior_probs: str | None = None
    """Column of lists with the probabilities of all actions, or the prefix of one column per action (default:
    behavior_probs, or behavior_prob_0, behavior_prob_1, ..., or behavior_prob_call, ... for actions with names)."""
    player: str | None = None
    """Column that names who played (default: player). Without a column of episodes, the rows of each are an order of
    their own, whether or not they stand together."""
    one_step: bool = False
    """Every row is an episode of one step, as in the log of a bandit."""
    features_of: str | None = None
    """A store or a policy's folder: observe its columns with its categories and its names of actions, so that later
    data is encoded in the same way. Its other columns are taken, too, where the table has them and no option names
    another. Episodes with other texts are rejected (default: the table's own categories)."""
    accept_unknown: bool = False
    """Keep episodes with other texts than those of `features_of`: a row's features of such a column are all 0, as in
    policy.predict_proba. rbi certify does so with the columns of its policy."""

    def __post_init__(self) -> None:
        if isinstance(self.observations, str) or not all(isinstance(name, str) for name in self.observations):
            raise ValueError(f"observations = {self.observations!r}: must be a list or tuple of column names (texts)")
        for name, value in vars(self).items():
            if value == "" or (isinstance(value, tuple) and "" in value):
                raise ValueError(f"--table.{name.replace('_', '-')}: the name of a column cannot be empty")
        if self.one_step and (self.episode or self.step):
            raise ValueError(
                "--table.one-step: every row is an episode, so --table.episode and --table.step have no meaning"
            )

    def roles(self) -> dict[str, Any]:
        """The options that name columns and say what a row is, where they are not the defaults; ready for JSON."""
        encoding = ("features_of", "accept_unknown")
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            if field.name not in encoding and (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def from_roles(cls, roles: Any) -> Self:
        """The config with these `roles`. Raises ValueError for anything else."""
        kinds = {"observations": list, "one_step": bool}
        known = {field.name for field in fields(cls)}
        if not isinstance(roles, dict) or not all(
            name in known and isinstance(value, kinds.get(name, str)) for name, value in roles.items()
        ):
            raise ValueError(f"table = {roles!r}: must name the columns of a table")
        found: dict[str, Any] = {
            name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in roles.items()
        }
        return cls(**found)

    def completed(self, earlier: Self, names: Sequence[str]) -> Self:
        """The config with the roles of `earlier` data that it does not name itself, where a table with these `names` of
        columns has them."""
        own = self.roles().keys()
        given = own | ROW_ROLES if self.one_step else own | {"one_step"} if own & ROW_ROLES else own
        taken = {
            role: getattr(earlier, role)
            for role, value in earlier.roles().items()
            if role not in given and not lacking(role, value, names)
        }
        return replace(self, **taken)

    def options(self) -> str:
        """The roles as on the command line."""
        words = []
        for name, value in self.roles().items():
            texts = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--table.{name.replace('_', '-')}", *map(shlex.quote, texts)]
        return " ".join(words)


OUTCOMES = {
    "action": "action",
    "action_prob": "probability of the action",
    "reward": "reward",
    "terminated": "end",
    "truncated": "time limit",
}
"""What a step leads to, or tells which action was taken: no policy can observe it."""
ROW_ROLES = {"episode", "step", "terminated", "truncated"}
"""Roles without a meaning where every row is an episode."""


def lacking(role: str, value: Any, names: Sequence[str]) -> list[str]:
    """The columns, or prefixes of columns, of a role that a table with these `names` does not have."""
    if role == "one_step":
        return []
    prefixes = role in ("observations", "action_mask", "behavior_probs")
    columns = value if isinstance(value, list) else [value]
    return [
        column
        for column in columns
        if column not in names and not (prefixes and any(name.startswith(column) for name in names))
    ]


@dataclass(frozen=True)
class Layout:
    """The columns of a table by their meaning; None if the table has none."""

    action: str
    reward: str
    observations: tuple[str, ...]
    """Columns of numbers or text, or one column of lists."""
    texts: bool = False
    """Whether observed columns may hold text."""
    one_step: bool = False
    episode: str | None = None
    step: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    life_lost: str | None = None
    final: str | None = None
    """The observation after the step; used at the end of an episode."""
    action_prob: str | None = None
    action_mask: tuple[str, ...] = ()
    behavior_probs: tuple[str, ...] = ()
    action_labels: tuple[str, ...] = ()
    """Names of actions, from the ends of the names of one column per action, where they are not numbers."""
    player: str | None = None
    abandoned: str | None = None
    source: str | None = None
    line: str | None = None
    cut_at_ends: bool = False
    """Whether no column identifies episodes: the flags of their ends do."""
    unused_ids: tuple[str, ...] = ()
    """Then: columns without a meaning whose names end with id."""

    @property
    def is_done_column(self) -> bool:
        """Whether `terminated` may be set at time limits, too."""
        return self.terminated in DONE and self.truncated is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns to read."""
        single = (
            self.action, self.reward, self.episode, self.step, self.terminated, self.truncated, self.life_lost,
            self.final, self.action_prob, self.player, self.abandoned, self.source, self.line,
        )  # fmt: skip
        named = [name for name in single if name is not None]
        return tuple(dict.fromkeys((*named, *self.observations, *self.action_mask, *self.behavior_probs)))


@dataclass(frozen=True)
class EarlierTable:
    """The table of earlier data, like which another one is read."""

    name: str = ""
    """What messages call it; empty if there is none."""
    config: TableConfig = field(default_factory=TableConfig)
    """How it was read."""
    observed: tuple[str, ...] = ()
    """Its observed columns."""


class LayoutFinder:
    """Finds columns by the names that the user gives, those of an earlier table, or the usual ones."""

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        config: TableConfig,
        earlier: EarlierTable,
        *,
        own: bool,
        frame: bool,
    ) -> None:
        self.path, self.names, self.earlier, self.own, self.frame = path, list(names), earlier, own, frame
        completed = config.completed(earlier.config, names)
        self.roles = completed.roles()
        """The names of columns that are not the usual ones, without those that only features name."""
        self.taken = self.roles.keys() - config.roles().keys()
        """The roles among them that are of the earlier table."""
        self.observes_earlier = bool(earlier.observed) and not completed.observations
        self.config = replace(completed, observations=earlier.observed) if self.observes_earlier else completed
        self.missing: list[str] = []

    def said(self) -> str:
        """Which columns have the names of the earlier table, and which it lacks; empty if there is none of either."""
        taken = {role: value for role, value in self.roles.items() if role in self.taken}
        if self.frame:
            found = ", ".join(f"{role}={value!r}" for role, value in taken.items())
        else:
            found = TableConfig.from_roles(taken).options()
        roles = {role: value for role, value in self.earlier.config.roles().items() if role not in self.roles}
        lost = [f"{name!r} ({self.option(role)})" for role in roles for name in lacking(role, roles[role], self.names)]
        parts = [f"is read like {self.earlier.name}: {found}"] if found else []
        parts += [f"lacks {', '.join(lost)}, which {self.earlier.name} has"] if lost else []
        return ", and ".join(parts)

    def layout(self) -> Layout:
        names, config = set(self.names), self.config
        bandit = {"item_id", "click"} <= names and not {"action", "actions"} & names
        usual = STEP_COLUMNS | (BANDIT_COLUMNS if bandit else {}) | (OWN_COLUMNS if self.own else {})
        single = {role: self.single(role, usual.get(role, ())) for role in STEP_COLUMNS | OWN_COLUMNS}
        one_step, cut_at_ends = config.one_step or (bandit and not config.episode), False
        action_mask = self.per_action("action_mask", PER_ACTION[0])
        behavior_probs = self.per_action("behavior_probs", PER_ACTION[1])
        others = {*single.values(), *action_mask, *behavior_probs}
        action, reward = (self.required(role, single.pop(role), usual[role]) for role in ("action", "reward"))
        if one_step:
            single |= {"episode": None, "step": None, "terminated": None, "truncated": None}
        else:
            how = "drop its columns of episodes and ends" if self.frame else f"pass {self.option('one_step')}"
            more = f", or {how} if every row is an episode"
            if single["terminated"] or single["truncated"]:
                cut_at_ends = not single["episode"]
            else:
                self.required("episode", single["episode"], STEP_COLUMNS["episode"], more)
                self.missing.append(
                    "nothing says where episodes end: name a column that is true where the environment terminated with "
                    f"{self.option('terminated')}, one that is true where the episode was cut off with "
                    f"{self.option('truncated')}, or both{more if single['episode'] else ''}"
                )
        ends = {role: single[role] for role in ("terminated", "truncated")}
        outcomes = {"action": action, "action_prob": single["action_prob"], "reward": reward} | ends
        observations = self.observations(others, outcomes, bandit=bandit)
        if self.missing:
            raise ValueError(f"{self.path}: {'; '.join(self.missing)}; {self.columns()}")
        if observations != ("obs",):
            single["final"] = None  # it belongs to that column
        return Layout(
            action=action,
            reward=reward,
            observations=observations,
            texts=bandit or bool(config.observations),
            one_step=one_step,
            action_mask=action_mask,
            behavior_probs=behavior_probs,
            action_labels=self.labels(action_mask, behavior_probs),
            cut_at_ends=cut_at_ends,
            unused_ids=self.unused_ids({*others, *observations}) if cut_at_ends else (),
            **single,
        )

    def unused_ids(self, used: Container[str | None]) -> tuple[str, ...]:
        """Columns without a meaning that may say whose rows are whose."""
        return tuple(name for name in self.names if ID_NAME.search(name) and name not in used)

    def option(self, role: str) -> str:
        """How the user names a column."""
        if self.frame:
            return f"{role}="
        return f"--table.{role.replace('_', '-')}"

    def columns(self) -> str:
        more = f" and {len(self.names) - SHOWN_COLUMNS} more" if len(self.names) > SHOWN_COLUMNS else ""
        return f"its columns are {', '.join(map(repr, self.names[:SHOWN_COLUMNS]))}{more}"

    def single(self, role: str, usual: Sequence[str]) -> str | None:
        """The configured column, or the first one with a usual name."""
        named: str | None = getattr(self.config, role, None)
        if named is not None and named not in self.names:
            near = nearest(named, self.names)
            same = getattr(self.earlier.config, role) == named
            source = f"{self.option(role)}, as in {self.earlier.name}" if same else self.option(role)
            raise ValueError(f"{self.path}: no column {named!r} ({source}); {self.columns()}{near}")
        return named or next((name for name in usual if name in self.names), None)

    def required(self, role: str, name: str | None, usual: Sequence[str], more: str = "") -> str:
        """The name; one that was not found joins the others that are missing."""
        if name is None:
            earlier = getattr(self.earlier.config, role)
            of_earlier = f"; {earlier!r} in {self.earlier.name}" if earlier else ""
            names = f"usually {' or '.join(usual)}{of_earlier}"
            self.missing.append(f"no column of {role}s ({names}): name it with {self.option(role)}{more}")
        return name or ""

    def with_prefix(self, prefix: str, ending: str = ".*") -> tuple[str, ...]:
        """The columns with this prefix, in natural order."""
        fits = re.compile(re.escape(prefix) + ending)
        return tuple(sorted((name for name in self.names if fits.fullmatch(name)), key=natural))

    def observations(
        self, others: Container[str | None], outcomes: dict[str, str | None], *, bandit: bool
    ) -> tuple[str, ...]:
        """The observed columns. A prefix takes no columns with another meaning, and no name one of the `outcomes`."""
        if self.config.observations:
            named = [(name, c) for name in self.config.observations for c in self.configured(name, "observations")]
            found = tuple(column for name, column in named if column == name or column not in others)
            for role, column in outcomes.items():
                if column in found:
                    said = f"{self.path}: column {column!r} is the {OUTCOMES[role]}"
                    if self.observes_earlier:
                        raise ValueError(f"{said} ({self.option(role)}), and {self.earlier.name} observes it")
                    raise ValueError(
                        f"{said}{f' as in {self.earlier.name}' if role in self.taken else ''}, which is unknown when "
                        f"the action is chosen: leave it out of {self.option('observations')}"
                    )
        elif bandit:
            found = self.with_prefix("user_feature_") + tuple(name for name in self.names if name == "position")
        else:
            found = ("obs",) if "obs" in self.names else self.with_prefix("obs_", r"\d+")
        if not found:
            self.missing.append(
                "no columns of observations (usually obs, or obs_0, obs_1, ...): name them with "
                f"{self.option('observations')}"
            )
        return found

    def per_action(self, role: str, prefix: str) -> tuple[str, ...]:
        """A column of lists, or one column per action."""
        if configured := getattr(self.config, role):
            return self.configured(configured, role)
        return (role,) if role in self.names else self.with_prefix(prefix, r"\d+") or self.with_prefix(prefix)

    def labels(self, *wide: tuple[str, ...]) -> tuple[str, ...]:
        """What columns of one action each end with, such as call and mail, if these are not numbers."""
        found: tuple[str, ...] = ()
        for names, role, usual in zip(wide, ("action_mask", "behavior_probs"), PER_ACTION, strict=True):
            prefix = getattr(self.config, role) or usual
            ends = tuple(name.removeprefix(prefix) for name in names)
            if len(names) < 2 or all(end.isdecimal() for end in ends):
                continue
            if found and ends != found:
                raise ValueError(f"{self.path}: columns {list(wide[0])} and {list(wide[1])} are of different actions")
            found = ends
        return found

    def configured(self, name: str, role: str) -> tuple[str, ...]:
        """A column, or all columns with this prefix."""
        found = (name,) if name in self.names else self.with_prefix(name)
        if not found:
            of_earlier = role == "observations" and self.observes_earlier
            named = f"observed in {self.earlier.name}" if of_earlier else self.option(role)
            raise ValueError(f"{self.path}: no column is or begins with {name!r} ({named}); {self.columns()}")
        return found
