"""Kills, full disks and Ctrl-C at chosen file operations: every command must resume to the same result.

    python -m tests.faults.kills                    # all scenarios: 174 kills, 150 other faults, half an hour
    python -m tests.faults.kills --fast             # a few of each, for CI
    python -m tests.faults.kills --only train --points 200

A fault is injected at an operation, such as the 17th write of a command. Then the command is run again with --resume,
and on a copy with --overwrite. What comes out must be what an undisturbed run gives.
"""

import argparse
import dataclasses
import itertools
import json
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rbi import runs
from rbi.data.store import Store, is_store
from tests.faults.injection import Fault, Outcome, preload, preload_package, run

VARIES = re.compile(r"seconds|per_second|resumed|started|argv|path|sampled")
EPISODES = 8
MEMORY = Path("/dev/shm")  # where there are no disks to wait for


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A command that is disturbed."""

    name: str
    command: Callable[[Path, Path], list[str]]
    """The command line, given the folder of inputs and the output folder."""
    resumes: bool = True
    """Whether the command has --resume."""
    same: bool = True
    """Whether a resumed run gives the same numbers as an undisturbed one."""
    occupied: bool = False
    """Whether an earlier run is overwritten."""


TRAIN = """
    train --env CartPole-v1 --preset small --schedule.updates 12 --schedule.num-envs 4 --schedule.states-per-update 4
    --schedule.learning-starts 32 --schedule.hidden-size 8 --learner.batch-size 8 --learner.updates-per-sample 2
    --replay.capacity 500 --eval-episodes 2 --checkpoint-minutes 1e-9 --report-interval 2 --device cpu
"""
OFFLINE = """
    --env CartPole-v1 --preset small --updates 4 --evaluations 2 --episodes 2 --curve-episodes 1 --num-envs 4
    --rules reroute(0.5,1.5) --baselines bcq --checkpoint-minutes 1e-9 --device cpu
"""
SCENARIOS = [
    Scenario(
        "record",
        lambda _, out: ["data", "record", "random", "--env", "CartPole-v1", "--episodes", str(EPISODES), *to(out)],
        same=False,
    ),
    Scenario("import", lambda data, out: ["data", "import", str(data / "logs"), "--workers", "1", *to(out)]),
    Scenario("export", lambda data, out: ["data", "export", str(data / "store"), *to(out)], resumes=False),
    Scenario("improve", lambda data, out: ["improve", str(data / "store"), "--updates", "6", *to(out)]),
    Scenario("offline", lambda data, out: ["offline", str(data / "store"), *OFFLINE.split(), *to(out)]),
    Scenario("train", lambda _, out: [*TRAIN.split(), *to(out)]),
    Scenario(
        "overwrite", lambda data, out: ["improve", str(data / "store"), "--updates", "3", *to(out)], occupied=True
    ),
]


def to(out: Path) -> list[str]:
    return ["--out", str(out), "--seed", "3"]


def make_inputs(data: Path) -> None:
    """A folder of CSV files, with one unusable episode, and a store."""
    preload_package()
    rng = np.random.default_rng(0)
    (data / "logs").mkdir(parents=True)
    for file in range(4):
        lines = ["episode_id,step,obs_0,obs_1,action,reward,terminated,player"]
        for episode, step in itertools.product(range(3), range(4)):
            seen, reward = rng.normal(size=2), "broken" if (file, episode) == (2, 1) else f"{rng.normal():.3f}"
            lines.append(
                f"{episode},{step},{seen[0]:.3f},{seen[1]:.3f},{rng.integers(3)},{reward},{step == 3},player {file}"
            )
        (data / "logs" / f"part{file}.csv").write_text("\n".join(lines) + "\n")
    command = ["data", "record", "random", "--env", "CartPole-v1", "--episodes", "40", *to(data / "store")]
    done = run(command, data)
    assert done.code == 0, done.text
    preload(done.modules)


def content(out: Path) -> dict[str, Any]:
    """What a run folder holds, without times and places."""
    found = runs.read(out)
    assert not found.damaged, found.damaged
    hidden = [p.name for p in (*out.parent.rglob(".*"), *out.rglob(".*"))]
    assert not hidden, f"left behind: {hidden}"
    kept: dict[str, Any] = {"result": without_times(found.result), "metrics": without_times(found.metrics)}
    if is_store(out):
        store = Store(out)
        damage = [str(item) for item in store.verify()]
        assert not damage, damage
        assert not store.unindexed_steps, store.lost_text()
        kept["labels"] = [(episode.player, episode.source, episode.line) for episode in store]
        kept["episodes"] = [(episode.actions.tolist(), episode.rewards.tolist()) for episode in store]
        kept["rejected"] = store.rejected
        kept.pop("metrics")  # one line every ten seconds of an import
    for policy in sorted(out.glob("policies/*/*.safetensors")):
        kept[str(policy.relative_to(out))] = zlib.crc32(policy.read_bytes())
    kept["figures"] = sorted(p.name for p in out.glob("figures/*"))
    return kept


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if not VARIES.search(key)}
    return [without_times(item) for item in value] if isinstance(value, list) else value


class Campaign:
    """Faults in one scenario, and what came of them."""

    def __init__(self, scenario: Scenario, place: Path, data: Path) -> None:
        self.scenario, self.place, self.data = scenario, place / scenario.name, data
        self.faults: Counter[str] = Counter()
        self.failures: list[str] = []
        reference = self.prepare("reference")
        done = self.run(reference)
        assert done.code == 0, done.text
        self.operations, self.expected = done.operations, content(reference)
        preload(done.modules)

    def prepare(self, name: str) -> Path:
        """The output folder of a new attempt; it holds an earlier run if that is to be overwritten."""
        folder = self.place / name
        folder.mkdir(parents=True)
        if self.scenario.occupied:
            earlier = self.place / "earlier"
            if not earlier.exists():
                assert run(["improve", str(self.data / "store"), "--updates", "2", *to(earlier)], earlier).code == 0
            shutil.copytree(earlier, folder / "out")
        return folder / "out"

    def run(self, out: Path, *options: str, fault: Fault | None = None) -> Outcome:
        options = ("--overwrite",) if self.scenario.occupied else options
        return run([*self.scenario.command(self.data, out), *options], out.parent, fault)

    def disturb(self, fault: Fault) -> None:
        """Let one fault happen, then resume, and on a copy overwrite."""
        out = self.prepare(f"{fault.kind.replace(' ', '-')}-{fault.at}")
        where = f"{self.scenario.name}, {fault.kind} at operation {fault.at} of {len(self.operations)}"
        self.faults[fault.kind] += 1
        try:
            disturbed = self.run(out, fault=fault)
            assert not disturbed.crashed, disturbed.text
            assert (disturbed.code < 0) == (fault.kind == "kill"), disturbed
            if self.scenario.occupied:
                self.check_one_stands(out)
            copy = self.place / "copy"
            shutil.copytree(out.parent, copy, symlinks=True)
            self.complete(copy / out.name, "--overwrite")
            shutil.rmtree(copy)
            if self.scenario.resumes:
                self.complete(out, "--resume")
        except (AssertionError, ValueError, OSError) as error:
            self.failures.append(f"{where} ({self.operations[fault.at - 1]}): {error}")
        shutil.rmtree(out.parent, ignore_errors=True)
        shutil.rmtree(self.place / "copy", ignore_errors=True)

    def check_one_stands(self, out: Path) -> None:
        """The earlier run or its successor is whole, in its place or moved aside."""
        found = [p for p in (out, *out.parent.glob(f".{out.name}.*.old.tmp")) if (p / "config.json").is_file()]
        assert found, "neither the earlier run nor the new one is there"
        for place in found[:1]:
            runs.read(place)

    def complete(self, out: Path, option: str) -> None:
        """Run the command again until it is complete, and compare what it gives."""
        done = self.run(out, option)
        nothing = any(text in done.text for text in ("is not a run folder", "no such folder"))
        if option == "--resume" and done.code == 2 and nothing:
            done = self.run(out)  # the fault came before the folder
        assert done.code == 0, f"{option} ended with {done.code}: {done.text}"
        found = content(out)
        if self.scenario.same or option == "--overwrite":
            different = [key for key in self.expected if found.get(key) != self.expected[key]]
            assert found.keys() == self.expected.keys(), f"{option}: {found.keys()}, not {self.expected.keys()}"
            assert not different, f"{option} gave another {different}"
        else:
            assert found["labels"] == self.expected["labels"], f"{option} gave other labels: {found['labels']}"
            assert found["result"]["episodes"] == EPISODES


def points(operations: Sequence[str], count: int, wanted: str = "") -> list[int]:
    """Operations spread evenly over a command, those that contain a word where one is given."""
    numbers = [number for number, text in enumerate(operations, 1) if wanted in text.split()[0]]
    chosen = np.linspace(0, len(numbers) - 1, min(count, len(numbers))).round().astype(int)
    return [numbers[i] for i in dict.fromkeys(chosen.tolist())]


def disturb_all(scenario: Scenario, place: Path, data: Path, count: int) -> Campaign:
    """Faults at operations spread over a command: `count` kills, a third as many full disks and interrupts."""
    campaign = Campaign(scenario, place, data)
    for at in points(campaign.operations, count):
        campaign.disturb(Fault("kill", at))
    for at in points(campaign.operations, count // 3, "open"):
        campaign.disturb(Fault("full disk", at))
    for at in points(campaign.operations, max(1, count // 3), "write"):
        campaign.disturb(Fault("interrupt", at))
        campaign.disturb(Fault("full disk", at))
    return campaign


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="a few faults in importing")
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--points", type=int, default=26, help="kills per scenario")
    given = parser.parse_args(argv)
    chosen = [s for s in SCENARIOS if s.name == (given.only or s.name)]
    if given.fast:
        chosen = [s for s in chosen if s.name == "import"]
    failures: list[str] = []
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as temporary:
        place = Path(temporary)
        make_inputs(place / "inputs")
        for scenario in chosen:
            campaign = disturb_all(scenario, place, place / "inputs", 2 if given.fast else given.points)
            total += campaign.faults
            failures += campaign.failures
            faults, failed = dict(campaign.faults), len(campaign.failures)
            print(f"{scenario.name}: {len(campaign.operations)} operations, {faults}, {failed} failures", flush=True)  # noqa: T201
    print("\n".join(failures))  # noqa: T201
    print(json.dumps({**total, "failures": len(failures)}))  # noqa: T201
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
