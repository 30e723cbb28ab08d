"""How tables are read: which column is what."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TableConfig:
    """Which column of a table is what. Columns with the usual names are found without this."""

    episode: str | None = None
    """The column that tells episodes apart; usually episode_id."""
    step: str | None = None
    """The column that counts the steps of an episode, from 0 or 1; usually t. Without one, rows count as they come."""
    action: str | None = None
    """The column of actions, whole numbers from 0."""
    reward: str | None = None
    """The column of rewards."""
    terminated: str | None = None
    """The column that is true where the environment was over."""
    truncated: str | None = None
    """The column that is true where the episode was cut off."""
    observations: tuple[str, ...] = ()
    """The columns that were observed, in this order, or the beginning of their names, such as obs_. Columns of text
    become one number for each text there is: 1 for the text of the row, 0 for the others."""
    action_prob: str | None = None
    """The column of probabilities with which the actions taken were chosen."""
    action_mask: str | None = None
    """The column of lists that say which actions were possible, or the beginning of the names of one column each."""
    player: str | None = None
    """The column that says who played."""
    one_step: bool = False
    """Every row is an episode of one step, as in the log of a bandit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value == "" or (isinstance(value, tuple) and "" in value):
                raise ValueError(f"--table.{name.replace('_', '-')}: the name of a column cannot be empty")
        if self.one_step and (self.episode or self.step):
            raise ValueError(
                "--table.one-step: every row is an episode, so --table.episode and --table.step say nothing"
            )
