"""Timing shared by all benchmarks: warm up, repeat, take the median; synchronise with the GPU where there is one."""

import json
import os
import platform
import subprocess
import sys
import time

import numpy as np
import torch

from rbi import __version__


def seconds_a_call(call, device="cpu", budget=0.5, least=3):
    """The median time of a call over at least `least` repetitions and about `budget` seconds."""
    call()
    if device == "cuda":
        return seconds_on_device(call, budget)
    times = []
    while len(times) < least or sum(times) < budget:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def seconds_on_device(call, budget):
    """Device time between two events around each call, after clearing the cache as a fresh batch would find it."""
    flush = torch.empty(2**27, dtype=torch.int8, device="cuda")  # larger than any second-level cache
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    repeats = int(np.clip(budget / (time.perf_counter() - start), 10, 200))
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for before, after in marks:
        flush.zero_()
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return float(np.median([before.elapsed_time(after) for before, after in marks])) / 1e3


def run_peer(python, script, *arguments):
    """The JSON in the last line that a script for another library prints, in that library's own environment."""
    environment = {k: v for k, v in os.environ.items() if k != "MIMALLOC_PURGE_DELAY"}  # as its users have it
    try:
        command = [python, script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        sys.exit(f"{python}: {error.strerror}; `make bench` makes the peers' environment, --peer names another one")
    if done.returncode:
        sys.exit(f"{python} {script}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def machine(commit=None):
    """The machine that a result was measured on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "versions": {"rbi": __version__, "torch": torch.__version__, "numpy": np.__version__},
        "commit": commit or git_commit(),
    }


def cpu_name():
    """The CPU's name from `lscpu`, or the architecture."""
    try:
        output = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in output.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()


def git_commit():
    """The commit that is checked out, with a plus sign where files differ from it."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
