"""Small run folders for tests of the report, and the data of a written page."""

import contextlib
import json
import re
import threading

import numpy as np

import rbi
from rbi import runs
from rbi.data.episode import DatasetSpec
from rbi.data.store import StoreWriter
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.report.live import LiveServer

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


def decisions_log(path, rows=300):
    """A table of logged decisions: a number and a text observed, a named action, a reward."""
    rng = np.random.default_rng(0)
    device, offer = rng.choice(["phone", "desktop"], rows), rng.choice(["none", "discount"], rows)
    numbers = rng.integers((18, 0), (80, 2), (rows, 2))
    lines = [f"{age},{device[n]},{offer[n]},{paid}" for n, (age, paid) in enumerate(numbers)]
    path.write_text("\n".join(["age,device,offer,paid", *lines]) + "\n")
    return path


def episodes_log(path, episodes=30):
    """A table of episodes of vectors."""
    rng = np.random.default_rng(0)
    lines = []
    for episode in range(episodes):
        steps = int(rng.integers(5, 15))
        for step in range(steps):
            x, y = rng.normal(size=2)
            lines.append(f"{episode},{x:.4f},{y:.4f},{rng.integers(3)},{rng.integers(2)},{int(step == steps - 1)}")
    path.write_text("\n".join(["episode,obs_0,obs_1,action,reward,terminated", *lines]) + "\n")
    return path


def image_log(path):
    """A store with one episode of images in which a life is lost, and next to it a policy for two stacked frames."""
    rng = np.random.default_rng(0)
    ends = np.arange(8) == 7
    episode = rbi.Episode(
        rng.integers(0, 256, (9, 12, 12), np.uint8), rng.integers(0, 3, 8), np.eye(8)[2], ends, ~ends & ends,
        np.arange(8) == 3,
    )  # fmt: skip
    with StoreWriter.create(path, DatasetSpec((12, 12), 3, 2)) as writer:
        writer.append(episode)
    networks = make_networks(ObservationSpec((12, 12), 2, 3), NetworkConfig(8), 0)
    Policy(networks, rbi.Reroute(0.5, 1.5)).save(path.with_name("policy"))
    return path


@contextlib.contextmanager
def serving(*paths):
    """A live server of some runs on any free port."""
    with LiveServer(paths, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
