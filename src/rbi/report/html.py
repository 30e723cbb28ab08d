"""`rbi.write_report`: run folders as one HTML file that works offline.

The page is hand-written HTML, CSS and JavaScript (`page/`) around one JSON object, the `Report`. Its content security
policy allows its own script by its hash, images inside the page, and no connection; everything from data is set as
text, never as markup.
"""

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from rbi import fileio, runs
from rbi.config import Ge, check_seed, check_value
from rbi.progress import echo
from rbi.report.collect import collect
from rbi.report.panels import Report

FILE = "report.html"
SCRIPTS = ("charts.js", "viewer.js", "page.js")
GENERATOR = b'<meta name="generator" content="rbi report">'
MAX_BYTES, RESERVE = 6_000_000, 200_000  # of a page, and of it for what the estimates of sizes miss


def write_report(
    paths: Sequence[Path | str] | Path | str,
    out: Path | str | None = None,
    *,
    data: Path | str | None = None,
    policy: Path | str | None = None,
    episodes: int | None = None,
    title: str = "",
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = True,
) -> Path:
    """Write one self-contained HTML page about run folders, and return its path.

    Learning curves, tables with intervals, the deploy decision, what changes between beta and pi, settings, versions
    and the command to run it again. Several runs are compared on one page. The page needs no network.

    paths: one or several run folders; the folder of a sweep stands for its runs.
    out: the HTML file; by default `report.html` in the run folder, or in the current folder for several runs.
    data: episodes for the viewer (default: those that the run learned from or was tested on).
    policy: the policy in the viewer (default: the run's own).
    episodes: how many episodes the viewer shows (default: 3, and none for runs of `rbi train`, whose policies have to
        run fresh ones); 0 leaves the viewer out.
    seed: of fresh episodes.
    title: heading of the page (default: the name of the run).
    overwrite: replace an earlier report. Other files are never replaced.

    >>> write_report(["runs/rbi-0", "runs/apex-0"], "comparison.html")      # doctest: +SKIP
    """
    seed = check_seed(seed)
    check_value("episodes", episodes, Annotated[int, Ge(0)] | None)
    check_value("overwrite", overwrite, bool)
    given = paths if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    folders = [fileio.as_path(path) for path in given]
    if not folders:
        raise ValueError("name at least one run folder")
    out = default_file(folders) if out is None else fileio.as_path(out)
    check_writable(out, overwrite=overwrite)
    report = collect(folders, title=title)
    report = with_viewers(
        report,
        data=None if data is None else fileio.as_path(data),
        policy=None if policy is None else fileio.as_path(policy),
        episodes=episodes,
        seed=seed,
    )
    if progress:
        for section in report.runs:
            for warning in section.warnings:
                echo(f"rbi: {section.name}: {warning}", stderr=True)
    page = render(report)
    out.parent.mkdir(parents=True, exist_ok=True)
    fileio.atomic_write(out, lambda at: at.write_bytes(page))
    return out


def with_viewers(report: Report, **options: Any) -> Report:
    """The report with episodes to look at, as many as its size allows."""
    from rbi.report.episodes import viewers

    room = MAX_BYTES - len(render(report)) - RESERVE
    read = [runs.read(section.path) for section in report.runs]
    sections = []
    for section, (viewer, reason) in zip(report.runs, viewers(read, room, **options), strict=True):
        warnings = [*section.warnings, reason] if reason else section.warnings
        sections.append(replace(section, viewer=viewer, warnings=warnings))
    return replace(report, runs=sections)


def default_file(folders: Sequence[Path]) -> Path:
    """Where a report goes if no file is named."""
    return folders[0] / FILE if len(folders) == 1 else Path(FILE)


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Raise ValueError if the file may not be written: it exists, or is not a report and would be replaced."""
    if path.is_dir():
        raise ValueError(f"--out {path}: is a folder; name an HTML file")
    if not path.exists():
        return
    if not overwrite:
        raise ValueError(f"{path}: exists; choose another file or pass --overwrite")
    with path.open("rb") as file:
        if GENERATOR not in file.read(2000):
            raise ValueError(f"{path}: is not a report of rbi; --overwrite replaces reports only")


def render(report: Report) -> bytes:
    """The page of a report, as UTF-8."""
    style, script = page_file("page.css"), page_script()
    connect = "'self'" if report.live else "'none'"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(report.title),
        "style": style,
        "data": embedded_json(report),
        "script": script,
    }
    pieces = re.split(r"\{\{(\w+)\}\}", page_file("page.html"))
    page = "".join(parts[piece] if n % 2 else piece for n, piece in enumerate(pieces))
    return page.encode()


def embedded_json(report: Report) -> str:
    """JSON that cannot end the script element it stands in: no `<`, `>` or `&` is left."""
    text = fileio.to_json(report.to_dict())
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def page_script() -> str:
    """All of the page's JavaScript, in one scope."""
    parts = [page_file(name).replace('"use strict";\n', "", 1) for name in SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "\nstart();\n})();\n"


@functools.cache
def page_file(name: str) -> str:
    return (resources.files("rbi.report") / "page" / name).read_text(encoding="utf-8")
