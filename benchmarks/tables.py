"""Tables of the documentation from raw results: reading results, their source, and rows in Markdown."""

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"

RENAMED = {  # or replaced, since some results were measured
    "ablation": "atari",
    "by_heart": "memorisation",
    "crowd": "population",
    "learning": "atari",
    "sight": "ram_observations",
}


def load(name):
    """A raw result; None if it was not measured."""
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def measured_on(result):
    """The command, commit and machine of a result, and today's script where it was renamed or replaced."""
    m, command = result["machine"], result["command"]
    now = next((new for old, new in RENAMED.items() if f"benchmarks.{old} " in f"{command} "), None)
    renamed = f" (`benchmarks.{now}` today)" if now else ""
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    place = f"one {m['gpu']}, {m['cores']} cores" if m["gpu"] else f"{m['cores']} cores ({m['cpu']})"
    return f"`{command}`{renamed}, commit {m['commit']}, {place}; {versions}."


def table_row(cells):
    """A row of a table in Markdown."""
    return "| " + " | ".join(cells) + " |"
