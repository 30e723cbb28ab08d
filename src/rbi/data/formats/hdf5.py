"""HDF5 files of unknown origin: only what lies inside the file is read, and no more than its size can hold.

Soft links, external links, external storage and virtual datasets can make a file show other files of the machine, and a
dataset may promise terabytes that were never written. Neither d3rlpy nor Minari writes any of these.
"""

from pathlib import Path
from typing import Any

from rbi.data.formats.reader import require_package

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_COMPRESSION = 4096  # bytes per byte of the file; gzip reaches 1032
SMALL_BYTES = 1 << 24


def open_hdf5(path: Path) -> Any:
    """The file, opened for reading; raises a ValueError that names it."""
    try:
        return require_package("h5py").File(path, "r")
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot be read as an HDF5 file: {error}") from None


def has(group: Any, name: str) -> bool:
    """Whether a group holds this name; no link is followed."""
    try:
        return group.get(name, getlink=True) is not None
    except KeyError:
        return False


def member(group: Any, name: str) -> Any:
    """`group[name]`, a dataset or a group; raises ValueError if it lies outside the file or promises too much."""
    h5py = require_package("h5py")
    if not has(group, name):
        raise ValueError(f"has no {name}")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link to somewhere else, which is not followed")
    found = group[name]
    if not isinstance(found, h5py.Dataset):
        return found
    if found.external or found.is_virtual:
        raise ValueError(f"{name} is stored in another file, which is not read")
    stored = Path(group.file.filename).stat().st_size
    if found.nbytes > max(SMALL_BYTES, MAX_COMPRESSION * stored):
        raise ValueError(f"{name} promises {found.nbytes:,} bytes in a file of {stored:,}")
    return found


def dataset(group: Any, name: str) -> Any:
    """`member`, which must be a dataset."""
    found = member(group, name)
    if not hasattr(found, "dtype") or not hasattr(found, "shape"):
        raise ValueError(f"{name} is a group, not a dataset")
    return found


def check_inside(group: Any, name: str) -> None:
    """Raise ValueError if a member of a group, or anything in it, lies outside the file."""
    h5py = require_package("h5py")
    waiting, seen = [member(group, name)], set()
    while waiting:
        found = waiting.pop()
        place = h5py.h5o.get_info(found.id).addr
        if isinstance(found, h5py.Group) and place not in seen:  # a group may be a member of itself
            seen.add(place)
            waiting += [member(found, inner) for inner in found]
