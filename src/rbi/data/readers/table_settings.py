"""How tables are read: which column is what."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TableConfig:
    """Settings of the table readers."""
