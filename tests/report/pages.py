"""Small run folders for tests of the report, and the data of a written page."""

import json
import re

from rbi import runs

SETTINGS = {"algo": "rbi", "env": "CartPole-v1", "learner": {"batch_size": 32}}


def write_run(path, command, *, settings=SETTINGS, seed=0, metrics=(), result=None):
    """A run folder as a command would write it."""
    argv = [command, "--out", str(path)]
    with runs.Writer.create(path, command=command, settings=settings, seed=seed, argv=argv) as writer:
        for line in metrics:
            writer.log(**line)
        if result is not None:
            writer.result(result)
    return path


def training_line(updates, score):
    """One metric line of `rbi train`."""
    return {
        "updates": updates, "states": 8 * updates, "seconds": 0.5 * updates, "score": score, "score_low": score - 1,
        "score_high": score + 2, "moved_mass": 0.25, "at_c_min": 0.5, "at_c_max": 0.125, "q_loss": 1.0,
    }  # fmt: skip


def training_run(path, scores=(10.0, 20.0, 40.0), **options):
    """An unfinished run of `rbi train` with one metric line per score."""
    lines = [training_line(10 * (n + 1), score) for n, score in enumerate(scores)]
    return write_run(path, "train", metrics=lines, **options)


def page_data(page):
    """The JSON object inside a page."""
    text = page.read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def panel(section, title):
    """The panel with this title."""
    return next(each for each in section["panels"] if each.get("title", "").startswith(title))
