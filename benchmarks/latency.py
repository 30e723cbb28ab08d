"""How long does a policy take for one state: PyTorch eager, torch.compile, ONNX? python -m benchmarks.latency"""

import argparse
import importlib.metadata
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import rbi
from benchmarks.tables import load, measured_on
from benchmarks.timing import machine
from rbi.data.episode import Feature
from rbi.export import PolicyGraph, example_inputs, run_session
from rbi.networks import NetworkConfig, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.policy import Policy

ROUNDS, MIN_CALLS = 10, 20
RULE = rbi.Reroute(0.5, 1.5)
COLUMNS = (*(Feature(f"number {i}") for i in range(6)), Feature("segment", ("new", "regular", "vip")))
POLICIES = {
    "vector of 8, 5 actions (rbi improve)": (ObservationSpec((8,), 1, 5), offline_network(128, 0, 0), ()),
    "table of 6 numbers and a text, 5 actions": (ObservationSpec((9,), 1, 5), offline_network(128, 0, 0), COLUMNS),
    "vector of 128, 18 actions": (ObservationSpec((128,), 1, 18), NetworkConfig(512), ()),
    "images 4 x 84 x 84, 18 actions": (ObservationSpec((84, 84), 4, 18), NetworkConfig(512), ()),
}


def microseconds(call, seconds):
    """Median and 99th percentile of the time of a call in the quietest of several rounds, and the median of all."""
    call()  # torch.compile compiles now
    rounds = []
    for _ in range(ROUNDS):
        end, times = time.perf_counter() + seconds / ROUNDS, []
        while time.perf_counter() < end or len(times) < MIN_CALLS:
            before = time.perf_counter()
            call()
            times.append(1e6 * (time.perf_counter() - before))
        rounds.append(times)
    quietest = min(rounds, key=np.median)
    median, p99 = np.quantile(quietest, [0.5, 0.99]).round(1).tolist()
    return {"median": median, "p99": p99, "median_of_all": round(float(np.median(np.concatenate(rounds))), 1)}


def onnx_call(policy, inputs, threads):
    """A call of onnxruntime with one state, on numbers that lie ready."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        difference = policy.export_onnx(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    given = []

    class Recorder:
        """Keeps the arrays that the session is called with."""

        get_outputs = session.get_outputs

        def run(self, names, arrays):
            given.append(arrays)
            return session.run(names, arrays)

    run_session(Recorder(), inputs, policy.columns)
    return lambda: session.run(["probs"], given[0]), difference


def measure(name, seconds):
    obs_spec, config, columns = POLICIES[name]
    policy = Policy(make_networks(obs_spec, config, 0), RULE, columns=columns)
    inputs = {key: tensor[:1] for key, tensor in example_inputs(policy, legal=False).items()}
    obs = inputs["obs"].numpy()
    compiled = torch.compile(PolicyGraph(policy).eval(), dynamic=False)
    onnx, difference = onnx_call(policy, inputs, torch.get_num_threads())
    calls = {
        "PyTorch eager, policy.predict_proba": lambda: policy.predict_proba(obs),
        "PyTorch compiled, tensors": lambda: compiled(inputs["obs"]),
        "ONNX, onnxruntime": onnx,
    }
    for method, call in calls.items():
        with torch.no_grad():
            found = microseconds(call, seconds)
        print(f"{name}; {method}: {found['median']:.0f} microseconds (99%: {found['p99']:.0f})", flush=True)
        yield {"policy": name, "method": method, **found, "difference": difference}


# The section of docs/results.md

PAGE_HEAD = """
## Latency of one decision

Microseconds for the action probabilities of a single state with reroute(0.5,1.5) on one thread: median / 99th
percentile in the quietest of ten rounds, since other programs ran beside it. *Eager* is `policy.predict_proba`, which
also checks its input; *compiled* is `torch.compile` of the same networks and rule on tensors; *ONNX* is the file of
`policy.export_onnx` in onnxruntime, called from Python. The aim is 100 microseconds in ONNX for a vector policy of
`rbi improve`.
"""


def page_part():
    """The section, if it was measured: one row per policy, one column per method."""
    if not (result := load("latency.json")):
        return []
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    lines = ["| policy | " + " | ".join(methods) + " |", "|---|" + "--:|" * len(methods)]
    for policy in dict.fromkeys(row["policy"] for row in result["rows"]):
        rows = {row["method"]: row for row in result["rows"] if row["policy"] == policy}
        cells = [f"{rows[method]['median']:,.0f} / {rows[method]['p99']:,.0f}" for method in methods]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    largest = max(row["difference"] for row in result["rows"])
    note = f"Probabilities differ from PyTorch's by {largest:.1g} at most. Load of the machine at the start:"
    return [PAGE_HEAD, *lines, "", f"{note} {result['load']:g}.", "", measured_on(result)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "latency.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    busy = os.getloadavg()[0]
    rows = [row for name in POLICIES for row in measure(name, args.seconds)]
    found = machine()
    found["versions"]["onnxruntime"] = importlib.metadata.version("onnxruntime")
    command = f"python -m benchmarks.latency --threads {args.threads}"
    result = {
        "command": command,
        "machine": found,
        "threads": args.threads,
        "load": round(busy, 1),
        "rows": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
