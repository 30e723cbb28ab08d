"""Copies of a run folder at a URL, from which a run continues when its machine is lost.

    URL/copy-00000007/config.json, metrics.jsonl, checkpoints/..., policies/...   the run folder
                      manifest.json   sizes and checksums of all files, written last: without it, a copy is incomplete

Every upload is a new copy, and only then are older ones removed. The URL may be of any file system that fsspec knows,
such as s3://, gs:// or file://; copies cannot be locked, so only one process may write to a URL.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rbi import checkpoint, fileio, runs

MANIFEST = "manifest.json"
COPY = re.compile(r"copy-(\d{8})")
KEPT_COPIES = 2  # the newest one, and one for a reader that is not done with it or finds it damaged


class Mirror:
    """The copies of one run folder at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not fileio.is_url(url):
            raise ValueError(f"--mirror {url}: is not a URL, such as s3://bucket/run or file:///mnt/run")
        try:
            import fsspec.core
        except ImportError:
            raise ValueError(f"--mirror {url}: needs fsspec; pip install 'rbi[mirror]'") from None
        local: dict[str, Any] = {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {}
        try:
            self.files, path = fsspec.core.url_to_fs(self.url, **local)
        except ImportError as error:  # of the package for this protocol; the message names it
            raise ValueError(f"--mirror {url}: {error}") from None
        except ValueError as error:
            raise ValueError(f"--mirror {url}: cannot be used; {error}") from None
        self.root = path.rstrip("/")

    def numbers(self) -> list[int]:
        """The numbers of all copies, complete or not, in ascending order."""
        self.files.invalidate_cache()
        try:
            names = [name.rstrip("/").rpartition("/")[2] for name in self.files.ls(self.root, detail=False)]
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := COPY.fullmatch(name)))

    def path(self, number: int, name: str = "") -> str:
        return f"{self.root}/copy-{number:08d}/{name}".rstrip("/")

    def is_complete(self, number: int) -> bool:
        return bool(self.files.exists(self.path(number, MANIFEST)))

    def check_available(self, *, overwrite: bool) -> None:
        """Raise ValueError if a new run may not use the URL, because there is another one."""
        with self.named():
            if not overwrite and any(self.is_complete(number) for number in self.numbers()):
                raise ValueError(f"{self.url}: has a copy of a run; --resume continues it, --overwrite replaces it")

    def upload(self, run: Path, keep: int = KEPT_COPIES) -> None:
        """Upload the run folder as a new copy, then remove all but the newest complete ones."""
        with self.named():
            before = self.numbers()
            self.add_copy(run, max(before, default=0) + 1)
            complete = [number for number in before if self.is_complete(number)]
            for number in sorted(set(before) - set(complete[max(0, len(complete) - keep + 1) :])):
                with contextlib.suppress(FileNotFoundError):
                    self.files.rm(self.path(number), recursive=True)

    def add_copy(self, run: Path, number: int) -> None:
        """Upload all files, and the manifest when they are there."""
        files: dict[str, list[int]] = {}
        for file in sorted(run.rglob("*")):
            name = file.relative_to(run).as_posix()
            unfinished = any(part == fileio.LOCK or fileio.TEMPORARY.fullmatch(part) for part in Path(name).parts)
            if file.is_file() and not unfinished:
                self.files.put_file(str(file), self.path(number, name))
                files[name] = checkpoint.fingerprint(file)
        newest = checkpoint.newest(run)
        manifest = checkpoint.with_checksum({"checkpoint": newest.name if newest else "", "files": files})
        self.files.pipe_file(self.path(number, MANIFEST), fileio.to_json(manifest, indent=1).encode())

    def restore(self, run: Path) -> str:
        """Download the newest copy, if there is no run folder or it is behind; returns a line that says what was done.

        A copy that is damaged is passed over. Raises ValueError if there is neither a folder nor a copy, or if they are
        of different runs.
        """
        with self.named():
            here = (run / "config.json").is_file()
            damage: list[str] = []
            for number in (number for number in reversed(self.numbers()) if self.is_complete(number)):
                try:
                    manifest = self.manifest(number)
                    if here and not self.is_ahead(number, manifest, run):
                        return ""
                    self.download(number, manifest, run)
                except DamagedCopyError as error:
                    damage.append(str(error))
                    continue
                return "; ".join([*damage, f"{run}: restored from {self.url}/copy-{number:08d}"])
            if damage and not here:
                raise ValueError(f"{damage[0]}; no other copy is complete")
            if not here:
                raise ValueError(f"{self.url}: has no complete copy of a run, and {run} is not a run folder")
            return "; ".join(damage)

    def config_to_resume(self, run: Path) -> dict[str, Any]:
        """config.json as `restore` would leave it: of the newest copy, or of the run folder if it is not behind."""
        with self.named():
            for number in (number for number in reversed(self.numbers()) if self.is_complete(number)):
                with contextlib.suppress(DamagedCopyError):
                    if (run / "config.json").is_file() and not self.is_ahead(number, self.manifest(number), run):
                        break
                    return self.config(number)
            return runs.read(run, 0).config

    def manifest(self, number: int) -> dict[str, Any]:
        """The manifest of a copy, after it was checked."""
        name = f"{self.url}/copy-{number:08d}/{MANIFEST}"
        try:
            found = fileio.parse(Path(MANIFEST), self.files.cat_file(self.path(number, MANIFEST)), 1)
        except (FileNotFoundError, ValueError):
            raise DamagedCopyError(f"{name}: is damaged") from None
        if checkpoint.with_checksum(found) != found:
            raise DamagedCopyError(f"{name}: is damaged (its checksum is not the recorded one)")
        for file in found["files"]:
            if ".." in PurePosixPath(file).parts or PurePosixPath(file).is_absolute():
                raise DamagedCopyError(f"{name}: {file!r} is not the name of a file in a run folder")
        return found

    def config(self, number: int) -> dict[str, Any]:
        """config.json of a copy."""
        try:
            return fileio.parse(Path("config.json"), self.files.cat_file(self.path(number, "config.json")), 1)
        except (FileNotFoundError, ValueError):
            raise DamagedCopyError(f"{self.url}/copy-{number:08d}/config.json: is damaged") from None

    def is_ahead(self, number: int, manifest: dict[str, Any], run: Path) -> bool:
        """Whether a copy has a newer checkpoint than the run folder; raises ValueError if it is of another run."""
        same = manifest["files"].get("config.json") == checkpoint.fingerprint(run / "config.json")
        if not same and not runs.is_same_run(self.config(number), runs.read(run, 0).config):
            raise ValueError(f"{self.url}/copy-{number:08d}: is of another run than {run}; name another folder or URL")
        newest = checkpoint.newest(run)
        return bool(manifest["checkpoint"] > (newest.name if newest else ""))

    def download(self, number: int, manifest: dict[str, Any], run: Path) -> None:
        """Replace a run folder by a copy, whose files are compared with their recorded sizes and checksums."""
        if runs.check_available(run, overwrite=(run / "config.json").is_file()):
            lock: contextlib.AbstractContextManager[Any] = runs.lock_run(run)
        else:
            lock = contextlib.nullcontext()
        with lock, fileio.atomic_folder(run) as growing:
            for name, recorded in manifest["files"].items():
                file, remote = growing / name, f"{self.url}/copy-{number:08d}/{name}"
                file.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self.files.get_file(self.path(number, name), str(file))
                except FileNotFoundError:
                    raise DamagedCopyError(f"{remote}: is missing") from None
                if checkpoint.fingerprint(file) != recorded:
                    raise DamagedCopyError(f"{remote}: is damaged (its size or checksum is not the recorded one)")

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the file system, whatever package they come from, become a ValueError that names the URL."""
        try:
            yield
        except (ValueError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise ValueError(f"--mirror {self.url}: {type(error).__name__}: {error}") from error


class DamagedCopyError(Exception):
    """A copy is not what was uploaded."""
