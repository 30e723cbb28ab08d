"""Run folders and stores with odd, damaged or missing files: a command names the place in one line, or gives the same.

    python -m tests.faults.odd_folders                     # every scenario, 60 changes each
    python -m tests.faults.odd_folders --only train --changes 500

Each change is made to a copy of a stopped run, which is then resumed, or to a store, which is then learned from. A
traceback is a failure, and so is a result that differs from that of the whole folder without a word about it.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.store import Store, is_store
from tests.faults.injection import Fault, Outcome, preload, run
from tests.faults.kills import MEMORY, SCENARIOS, Scenario, content, make_inputs

TEXTS = [b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 50_000, b"\0" * 64]
VALUES = [None, [], {}, "odd", -1, 10**30, 1e999, True]
UNCHECKED = ("versions", "machine", "started", "argv", "tensorboard", "figures")
"""What no resumed run depends on."""

Change = tuple[str, Callable[[Path], Any]]


def changes(folder: Path, rng: np.random.Generator) -> Iterator[Change]:
    """Things that can happen to the files of a folder: what, and a function that does it to a copy."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not set(p.parts) & set(UNCHECKED)):
        name = path.relative_to(folder).as_posix()
        whole = path.read_bytes()
        for text in TEXTS if path.suffix in (".json", ".jsonl") else TEXTS[:1]:
            yield f"{name} holds {text[:10]!r}", writes(name, text)
        yield f"{name} is gone", lambda at, name=name: (at / name).unlink()
        yield f"{name} is a folder", lambda at, name=name: replaced(at / name).mkdir()
        yield f"{name} is a loop of links", lambda at, name=name: replaced(at / name).symlink_to(Path(name).name)
        yield f"{name} is cut in half", writes(name, whole[: len(whole) // 2])
        for place in rng.integers(max(1, len(whole)), size=4 if whole else 0).tolist():
            changed = bytes([whole[place] ^ (1 << int(rng.integers(8)))])
            yield f"byte {place} of {name} has changed", writes(name, whole[:place] + changed + whole[place + 1 :])
        if path.suffix == ".json":
            for keys, value in odd_values(json.loads(whole), rng):
                changed = json.dumps(value).encode()
                yield f"{name}: {'.'.join(keys)} is odd ({shown(value, keys)})", writes(name, changed)


def replaced(path: Path) -> Path:
    """The path, at which there is nothing any more."""
    path.unlink()
    return path


def writes(name: str, data: bytes) -> Callable[[Path], Any]:
    return lambda at: (at / name).write_bytes(data)


def odd_values(
    found: Any, rng: np.random.Generator, keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The document with one entry removed or replaced by an odd value, for every entry."""
    for key in found if isinstance(found, dict) and len(keys) < 3 else ():
        if key in UNCHECKED:
            continue
        for value in [*rng.permutation(np.array([*VALUES, ...], dtype=object))[:3]]:
            changed = {name: entry for name, entry in found.items() if name != key or value is not ...}
            if value is not ...:
                changed[key] = value
            if changed != found:
                yield (*keys, key), changed
        for inner, changed in odd_values(found[key], rng, (*keys, key)):
            yield inner, found | {key: changed}


def shown(document: Any, keys: Sequence[str]) -> str:
    for key in keys:
        if not isinstance(document, dict) or key not in document:
            return "gone"
        document = document[key]
    return repr(document)[:20]


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder that is damaged, and the command that then reads it."""

    name: str
    made_by: Scenario
    complete: bool

    def stop(self, data: Path, out: Path) -> Outcome:
        """Make the folder: a run that is complete, or was killed in the middle."""
        command = self.made_by.command(data, out)
        done = run(command, out.parent)
        preload(done.modules)
        if not self.complete:
            shutil.rmtree(out)
            run(command, out.parent, Fault("kill", len(done.operations) * 2 // 3))
        return done


FOLDERS = [
    Folder(f"{scenario.name}{', complete' if complete else ''}", scenario, complete)
    for scenario in SCENARIOS
    if scenario.resumes and not scenario.occupied
    for complete in (False, True)
]


def damage(folder: Folder, place: Path, data: Path, count: int, rng: np.random.Generator) -> tuple[int, list[str]]:
    """Try some changes: how many, and those that were not handled."""
    at = place / "folder" / "out"
    at.parent.mkdir(parents=True)
    folder.stop(data, at)
    kept = place / "kept"
    at.parent.rename(kept)
    attempts: list[Change] = [("nothing has changed", lambda _: None)]
    possible = list(changes(kept / "out", rng))
    attempts += [possible[i] for i in rng.permutation(len(possible))[:count].tolist()]
    failures, expected = list[str](), None
    for what, change in attempts:
        shutil.copytree(kept, at.parent, symlinks=True)
        change(at)
        done = run([*folder.made_by.command(data, at), "--resume"], at.parent)
        reason = ""
        if done.crashed:
            reason = done.text.strip().splitlines()[-1] if done.text.strip() else f"exit {done.code}"
            reason = f"crashed: {reason}"
        elif done.code == 2 and str(at) not in done.text:
            reason = f"names no place: {done.text}"
        elif done.code == 0:
            if is_store(at) and list(Store(at).verify()):  # a checksum finds it
                shutil.rmtree(at.parent)
                continue
            try:
                found = content(at)
            except (AssertionError, ValueError) as error:
                found, reason = {}, f"left a damaged folder: {error}"
            expected = found if expected is None else expected
            if folder.made_by.same and found != expected and not reason:
                reason = f"gave another {[key for key in expected if found.get(key) != expected[key]]} in silence"
            only_shown = ["result.json", "metrics.jsonl" if folder.complete else "of metrics.jsonl"]
            if "rbi: " in done.text or any(name in what for name in only_shown):
                reason = ""  # it was said, or it is a number that is only shown
        if reason:
            failures.append(f"{folder.name}: {what}: {reason}")
        shutil.rmtree(at.parent)
    return len(attempts), failures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted({folder.made_by.name for folder in FOLDERS}))
    parser.add_argument("--changes", type=int, default=60, help="changes per folder")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    tried, failures = 0, list[str]()
    for number, folder in enumerate(FOLDERS):
        if given.only in (None, folder.made_by.name):
            with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as temporary:
                place = Path(temporary)
                make_inputs(place / "inputs")
                rng = np.random.default_rng([given.seed, number])
                count, failed = damage(folder, place, place / "inputs", given.changes, rng)
            print(f"{folder.name}: {count} changes, {len(failed)} failures", *failed, sep="\n  ", flush=True)  # noqa: T201
            tried, failures = tried + count, failures + failed
    print(json.dumps({"changes": tried, "failures": len(failures)}))  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
