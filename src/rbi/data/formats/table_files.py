"""Files of tables, as each format has them: which there are, and their rows block by block."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec
from rbi.data.formats.table_layout import natural


class Block(Protocol):
    """Some rows of a file, as the format has them. Texts where numbers must be are noted in `faults`.

    `source`: the file. `lines` `[N]`: where each row is. `faults`: what is wrong with a row, by its number here.
    """

    source: str
    lines: Array
    faults: dict[int, str]

    def numbers(self, name: str) -> Array:
        """`[N]` float64; NaN where one is missing."""

    def flags(self, name: str) -> Array:
        """`[N]` booleans."""

    def texts(self, name: str) -> Array:
        """`[N]` of whole numbers, or of texts with None where one is missing."""

    def lists(self, name: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """`[N, *shape]`, and `[N]` booleans: where there are lists. Those of another shape are noted."""

    def holds_text(self, name: str) -> bool:
        """Whether the column may be something else than numbers."""


class Lists(NamedTuple):
    """A column of lists: their shape, and whether they hold bytes."""

    shape: tuple[int, ...]
    bytes: bool


class Files(Protocol):
    """How files of a format are read. `suffix`: how their names end."""

    suffix: str

    def names(self, path: Path) -> list[str]:
        """The names of the columns."""

    def own_spec(self, path: Path) -> DatasetSpec | None:
        """What our writer left in a file, if it wrote it."""

    def lists(self, path: Path, name: str) -> Lists | None:
        """What a column of lists holds; None for other columns, and where there are no rows."""

    def blocks(self, path: Path, source: str, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        """Some columns, block by block; a problem if the file cannot be read further."""


def table_files(path: Path, suffix: str) -> list[Path]:
    """The file, or the files of a folder, by name: numbers in names count as numbers."""
    if path.is_file():
        return [path] if path.suffix.lower() == suffix else []
    if not path.is_dir():
        return []
    found = [file for file in path.iterdir() if file.suffix.lower() == suffix and file.name[0] not in "._"]
    return sorted((file for file in found if file.is_file()), key=lambda file: natural(file.name))
