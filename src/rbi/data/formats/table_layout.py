"""Which column of a table is what: by the usual names, or as the user says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rbi.data.formats.table_settings import TableConfig

STEPS = {
    "episode": ("episode_id", "eps_id", "episode"),
    "step": ("t",),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminateds"),
    "truncated": ("truncated", "truncateds"),
    "action_prob": ("action_prob", "action_logp"),
    "player": ("player",),
    "life_lost": ("life_lost",),
    "final": ("final_obs", "new_obs"),
}
"""One row a step: our names, and RLlib's."""
BANDIT = {"action": ("item_id",), "reward": ("click",), "action_prob": ("propensity_score",)}
"""One row a decision, as in the Open Bandit data."""
OWN = {"abandoned": ("abandoned",), "source": ("source",), "line": ("line",)}
"""What else our writer keeps. In other tables these names may mean anything."""
SHOWN_COLUMNS = 30


@dataclass(frozen=True)
class Layout:
    """The columns of a table, by what they mean; None for what it does not have."""

    action: str
    reward: str
    observations: tuple[str, ...]
    """Columns of numbers or texts, or one column of lists."""
    texts: bool = False
    """Whether observed columns may hold texts, which then become vectors."""
    one_step: bool = False
    """Every row is an episode."""
    episode: str | None = None
    step: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    life_lost: str | None = None
    final: str | None = None
    """The observation after the step: it counts where the episode ends."""
    action_prob: str | None = None
    action_mask: tuple[str, ...] = ()
    player: str | None = None
    abandoned: str | None = None
    source: str | None = None
    line: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All that must be read."""
        single = (
            self.action, self.reward, self.episode, self.step, self.terminated, self.truncated, self.life_lost,
            self.final, self.action_prob, self.player, self.abandoned, self.source, self.line,
        )  # fmt: skip
        named = [name for name in single if name is not None]
        return tuple(dict.fromkeys((*named, *self.observations, *self.action_mask)))


def find_layout(path: Path, names: Sequence[str], config: TableConfig, *, own: bool) -> Layout:
    """What the columns with these names mean. `own`: our writer wrote them."""
    found = Finder(path, names, config)
    bandit = {"item_id", "click"} <= set(names) and not {"action", "actions"} & set(names)
    usual = STEPS | (BANDIT if bandit else {}) | (OWN if own else {})
    single = {role: found.single(role, usual.get(role, ())) for role in STEPS | OWN}
    one_step = config.one_step or (bandit and not config.episode)
    action, reward = (found.required(role, single.pop(role), usual[role]) for role in ("action", "reward"))
    if one_step:
        single |= {"episode": None, "step": None, "terminated": None, "truncated": None}
    else:
        found.required("episode", single["episode"], STEPS["episode"], "; or pass --table.one-step")
        if not single["terminated"] and not single["truncated"]:
            raise ValueError(
                f"{path}: nothing says where episodes end: it needs a column terminated (the environment was over), "
                f"truncated (the episode was cut off), or both; {found.told()}; name them with --table.terminated and "
                "--table.truncated, or pass --table.one-step if every row is an episode"
            )
    observations = found.observations(bandit=bandit)
    if observations != ("obs",):
        single["final"] = None  # it belongs to that column
    return Layout(
        action=action,
        reward=reward,
        observations=observations,
        texts=bandit or bool(config.observations),
        one_step=one_step,
        action_mask=found.mask(),
        **single,
    )


class Finder:
    """Finds columns among the names of a table."""

    def __init__(self, path: Path, names: Sequence[str], config: TableConfig) -> None:
        self.path, self.names, self.config = path, list(names), config

    def told(self) -> str:
        """The columns there are, as part of an error."""
        more = f" and {len(self.names) - SHOWN_COLUMNS} more" if len(self.names) > SHOWN_COLUMNS else ""
        return f"its columns are {', '.join(map(repr, self.names[:SHOWN_COLUMNS]))}{more}"

    def single(self, role: str, usual: Sequence[str]) -> str | None:
        """The column that the user named, or the first with a usual name."""
        overrides = getattr(self.config, role, None)
        if overrides is not None and overrides not in self.names:
            raise ValueError(f"{self.path}: no column {overrides!r} (--table.{role.replace('_', '-')}); {self.told()}")
        return overrides or next((name for name in usual if name in self.names), None)

    def required(self, role: str, name: str | None, usual: Sequence[str], otherwise: str = "") -> str:
        if name is None:
            raise ValueError(
                f"{self.path}: no column of {role}s (usually {' or '.join(usual)}); {self.told()}; name it with "
                f"--table.{role}{otherwise}"
            )
        return name

    def beginning(self, prefix: str, ending: str = ".*") -> tuple[str, ...]:
        """The columns whose names begin so, in the order of the numbers in them."""
        fits = re.compile(re.escape(prefix) + ending)
        return tuple(sorted((name for name in self.names if fits.fullmatch(name)), key=natural))

    def observations(self, *, bandit: bool) -> tuple[str, ...]:
        overrides = self.config.observations
        if overrides:
            found = tuple(column for name in overrides for column in self.asked_for(name, "observations"))
        elif bandit:
            found = self.beginning("user_feature_") + tuple(name for name in self.names if name == "position")
        else:
            found = ("obs",) if "obs" in self.names else self.beginning("obs_", r"\d+")
        if not found:
            raise ValueError(
                f"{self.path}: no columns of observations (usually obs, or obs_0, obs_1, ...); {self.told()}; name "
                "them with --table.observations"
            )
        return found

    def mask(self) -> tuple[str, ...]:
        if self.config.action_mask:
            return self.asked_for(self.config.action_mask, "action-mask")
        return ("action_mask",) if "action_mask" in self.names else self.beginning("action_mask_", r"\d+")

    def asked_for(self, name: str, option: str) -> tuple[str, ...]:
        """A column, or all that begin so."""
        found = (name,) if name in self.names else self.beginning(name)
        if not found:
            raise ValueError(f"{self.path}: no column is or begins with {name!r} (--table.{option}); {self.told()}")
        return found


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts names by the numbers in them: obs_2 before obs_10.

    >>> sorted(["obs_10", "obs_2"], key=natural)
    ['obs_2', 'obs_10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
