"""The Ray engine in docs/results.md, from its measured scaling."""

import math

HEAD = """
## Scaling of the Ray engine

{env}, {num_envs} environments, {states_per_update:g} states per update, on one machine whose cores all processes share:
more workers cannot bring more steps here; the table measures the overhead. The aim is 0.6 of the local engine with
two workers on two cores.

| | steps/s | of the local engine | updates/s | MB/s moved | CPU ms per 1,000 steps | learner waits |
|---|--:|--:|--:|--:|---|--:|"""

GPU_HEAD = """
## The Ray engine with a GPU

{env}, preset fast, {num_envs} environments, {states_per_update:g} states per update: learner, replay and the actors of
all rollout workers share one GPU, in processes of their own. The local engine is measured in the same run, minutes
before. Aims: 0.8 of its steps/s, 0.9 of its updates/s.

| rollout workers | MPS | steps/s, local | steps/s, Ray | ratio | updates/s, local | updates/s, Ray | ratio |
|--:|---|--:|--:|--:|--:|--:|--:|"""

GPU_LEARNER = """
The learner process alone, with its replay in GPU memory, does {alone:,.0f} updates/s; while it stores blocks of
{states:,} states and publishes its weights after every {updates} updates, {fed:,.0f}, **{share:.3f}** of it (aim 0.95).
Storing takes {store:.1f} us per state: {mb:.1f} GB/s of frames.

The driver takes {driver:.1f} ms of CPU per 1,000 steps. One measurement each, of {seconds} s; the local engine alone
differs by 5% between them, and two measurements with four workers by far more: **the aim was reached in one of them and
missed in the other**. CUDA's Multi-Process Service (MPS), which lets kernels of several processes run at once, was
ahead with two workers and behind with four: whether it helps is not settled.

Where the rest is lost, in the last row, in ms of CPU per 1,000 steps: emulators {env_ray:.0f}, {env_local:.0f} in the
local engine; first threads of workers and learner {own_ray:.0f}, {own_local:.0f} there; their threads of Ray
{other:.1f}. {idle:.1f} of 16 cores were idle, {idle_local:.1f} with the local engine. So it is CPU time of the
emulators: 24 threads in the workers' own processes, where the local engine has 16 processes that give way to its own
threads. Workers with a GPU have since got 16 threads in all, which was not measured.
"""

DRIVER_HEAD = """
### The driver alone

The driver with the engine's own loop, and rollout workers and a learner that do nothing: more workers make the same
number of blocks in all, so that what is left is the driver's cost per block.

| light workers | blocks/s | driver, CPU ms per block | of it the Python thread |
|--:|--:|--:|--:|"""

DRIVER_END = """
One machine holds all of them and was in use by other processes, which CPU time does not count; a block includes its
part of the calls for updates and of Ray's threads. Weights are tiny here; a driver of an Atari run also stores 20 MB of
them with every publication, and took {ms:.1f} ms per block of {states:,} states in the run with a GPU above.
"""

PROJECTION_HEAD = """
### Projection to 100 and 1,000 workers

Rollout workers of {steps:,.0f} steps/s each on an Atari game, {per_node} to a machine: the share of each resource that
they use, above 1 more than there is, and the number of workers that exhausts it. Measured parts: {block:,.0f} bytes per
state, in blocks of {states}; a GPU learner does {updates:,.0f} updates/s while it stores blocks, and takes
{store:.1f} us to store a state, {into:,.0f} blocks/s; {weights:.0f} MB of weights, published at most once per block and
fetched once per machine; {driver:.1f} ms of the driver per block and publication (the run with a GPU); a replay shard
takes {adding:.0f} us to store a state and {drawing:.1f} ms to sample a batch of {batch:.1f} MB. Nothing with more than
50 workers was run.

| | 10 Gb/s: 100 | 1,000 | full with | 100 Gb/s: 100 | 1,000 | full with | what moves it |
|---|--:|--:|--:|--:|--:|--:|---|"""

BOTTLENECK = """
With the replay in the learner, what breaks first at {ratio} states per update is {first}; at {many}, as in the paper,
{then}. Weights are an upper bound, as if the driver's machine sent every copy; machines that have them
pass them on. [The cluster guide](cluster.md#how-far-it-goes) says which settings to change.
"""

WORKER_STEPS, WORKERS_PER_NODE = 1000.0, 16
NETWORKS = (10, 100)  # Gb/s
PROJECTED_WORKERS = (100, 1000)
RATIOS = (14, 256)  # states per update: of the preset fast, and of the paper
SETTINGS = {
    "learner: updates": "`--schedule.states-per-update`, `--cluster.learners`",
    "learner: storing": "`--cluster.learners`",
    "network: experience to the learner": "`--cluster.learners` on several machines",
    "network: weights to the workers": "`--schedule.publish-interval`, `--cluster.block-steps`",
    "driver": "`--cluster.block-steps`, `--schedule.publish-interval`",
    "one shard: CPU": "`--cluster.shards`",
    "network: batches from shards": "`--cluster.replay learner`, `--schedule.states-per-update`",
}


def project(parts, workers, ratio, gigabits, publish_interval=10):
    """The share of each resource that workers of an Atari run use.

    `parts`: `atari` of benchmarks.ray_scaling, with `driver_seconds_per_block`, `learner_updates_per_second` and
    `learner_seconds_per_state`.
    """
    steps, network = workers * WORKER_STEPS, gigabits * 1e9 / 8
    updates, blocks = steps / ratio, steps / parts["states_per_block"]
    nodes = max(1, workers / WORKERS_PER_NODE)
    publish = publish_interval * max(1, math.ceil(parts["states_per_block"] / ratio / publish_interval))
    versions = min(updates / publish, blocks / nodes)  # that each machine fetches per second
    return {
        "learner: updates": updates / parts["learner_updates_per_second"],
        "learner: storing": steps * parts["learner_seconds_per_state"],
        "network: experience to the learner": steps * parts["block_bytes_per_state"] / network,
        "network: weights to the workers": versions * nodes * parts["weight_bytes"] / network,
        "driver": blocks * parts["driver_seconds_per_block"],
        "one shard: CPU": steps * parts["shard_seconds_per_state"] + updates * parts["shard_seconds_per_update"],
        "network: batches from shards": updates * parts["batch_bytes_per_update"] / network,
    }


def workers_until_full(parts, resource, ratio, gigabits):
    """How many workers fit before a resource is exhausted."""
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if project(parts, middle, ratio, gigabits)[resource] <= 1 else (low, middle)
    return low


def gpu_driver(run):
    """CPU seconds of the driver per block of the run with a GPU, and the states of a block."""
    (row,) = run["ray"]
    return row["cpu_ms_per_1000_steps"]["driver"] * row["blocks_of_states"] / 1e6, row["blocks_of_states"]


def projection(result, gpu, driver_seconds):
    """The table of shares for each number of states per update, and what breaks first."""
    parts = result["atari"] | {
        "driver_seconds_per_block": driver_seconds,
        "learner_updates_per_second": gpu["updates_per_second_with_blocks_and_weights"],
        "learner_seconds_per_state": gpu["seconds_per_stored_state"],
    }
    lines = [
        PROJECTION_HEAD.format(
            steps=WORKER_STEPS, per_node=WORKERS_PER_NODE, block=parts["block_bytes_per_state"],
            states=parts["states_per_block"], updates=parts["learner_updates_per_second"],
            store=1e6 * parts["learner_seconds_per_state"],
            into=1 / parts["learner_seconds_per_state"] / parts["states_per_block"],
            weights=parts["weight_bytes"] / 1e6, driver=1e3 * parts["driver_seconds_per_block"],
            adding=1e6 * parts["shard_seconds_per_state"], drawing=1e3 * parts["shard_seconds_per_update"],
            batch=parts["batch_bytes_per_update"] / 1e6,
        )
    ]  # fmt: skip
    first = {}
    for ratio in RATIOS:
        lines.append(f"| **{ratio} states per update** | | | | | | | |")
        full = {name: [workers_until_full(parts, name, ratio, g) for g in NETWORKS] for name in SETTINGS}
        of_learner = {name: limits for name, limits in full.items() if "shard" not in name}
        first[ratio] = [min(of_learner, key=lambda name, at=at: of_learner[name][at]) for at in range(len(NETWORKS))]
        for name, setting in SETTINGS.items():
            cells = []
            for gigabits, limit in zip(NETWORKS, full[name], strict=True):
                cells += [f"{project(parts, n, ratio, gigabits)[name]:.2f}" for n in PROJECTED_WORKERS] + [f"{limit:,}"]
            lines.append("| " + " | ".join([name, *cells, setting]) + " |")
        first[ratio] = [
            f"`{name}` with {of_learner[name][at]:,} workers on {gigabits} Gb/s"
            for at, (name, gigabits) in enumerate(zip(first[ratio], NETWORKS, strict=True))
        ]
    few, many = RATIOS
    end = BOTTLENECK.format(ratio=few, many=many, first=" and ".join(first[few]), then=" and ".join(first[many]))
    return [*lines, end]


def driver_part(light, gpu_run):
    """The driver's cost per block."""
    rows = light["light_workers"]
    cells = ("workers", "blocks_per_second", "cpu_ms_per_block", "python_ms_per_block")
    formats = ("{:,}", "{:.0f}", "{:.1f}", "{:.1f}")
    table = [" | ".join(f.format(row[cell]) for f, cell in zip(formats, cells, strict=True)) for row in rows]
    seconds, states = gpu_driver(gpu_run)
    return [DRIVER_HEAD, *(f"| {line} |" for line in table), DRIVER_END.format(ms=1e3 * seconds, states=states)]


def where_it_is_lost(run):
    """CPU ms per 1,000 steps by kind of thread, and idle cores, of the local engine and of Ray's."""
    local, ray = run["local"], run["ray"][0]
    here, there = local["thread_ms_per_1000_steps"]["all"], ray["thread_ms_per_1000_steps"]
    workers, learner = there["rollout workers"], there["learner"]
    names = ("first thread", "ray::RolloutWor")
    return {
        "env_local": here["python"], "own_local": here["first thread"], "idle_local": local["idle_cores"],
        "env_ray": workers["ray::RolloutWor"], "own_ray": workers["first thread"] + learner["first thread"],
        "other": sum(ms for part in (workers, learner) for name, ms in part.items() if name not in names),
        "idle": ray["idle_cores"],
    }  # fmt: skip


def gpu_part(load, measured_on):
    """The engine on one machine with a GPU, if it was measured."""
    runs = [load(f"ray-gpu/workers-{name}.json") for name in ("2", "2-mps", "4", "4-mps", "4-profile")]
    learner = load("ray-gpu/learner.json")
    if not (learner and all(runs)):
        return []
    lines = [GPU_HEAD.format(**runs[0])]
    for run in runs:
        local, ray = run["local"], run["ray"][0]
        cells = [str(ray["workers"]), "yes" if run["mps"] else "no"]
        for rate in ("steps_per_second", "updates_per_second"):
            cells += [f"{local[rate]:,.0f}", f"{ray[rate]:,.0f}", f"{ray[rate] / local[rate]:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    alone, fed = (learner[f"updates_per_second_{name}"] for name in ("alone", "with_blocks_and_weights"))
    store = learner["seconds_per_stored_state"]
    text = GPU_LEARNER.format(
        alone=alone, fed=fed, share=fed / alone, states=learner["states_per_block"],
        updates=learner["updates_per_round"], store=1e6 * store, mb=84 * 84 / store / 1e9,
        seconds="8 to 12",
        driver=runs[2]["ray"][0]["cpu_ms_per_1000_steps"]["driver"],
        **where_it_is_lost(runs[-1]),
    )  # fmt: skip
    return ["\n".join([*lines, text, "\n\n".join(dict.fromkeys(map(measured_on, [*runs, learner])))])]


def ray_part(load, measured_on):
    """The section, if it was measured."""
    result = load("ray-scaling.json")
    if not result:
        return []
    lines = [HEAD.format(**result)]
    local = result["local"]["steps_per_second"]
    for row in (result["local"], *result["ray"]):
        spent = ", ".join(f"{name} {ms:.0f}" for name, ms in row["cpu_ms_per_1000_steps"].items())
        cells = [f"Ray, {row['workers']} workers" if "workers" in row else "local engine"]
        cells += [f"{row['steps_per_second']:,.0f}", f"{row['steps_per_second'] / local:.2f}"]
        cells += [f"{row['updates_per_second']:,.0f}", f"{sum(row['bytes_per_second'].values()) / 1e6:.1f}", spent]
        lines.append("| " + " | ".join([*cells, f"{row['learner_waited']:.0%}"]) + " |")
    gpu, run, light = (load(f"{name}.json") for name in ("ray-gpu/learner", "ray-gpu/workers-4", "ray-driver"))
    text = [*lines, "", measured_on(result)]
    if gpu and run and light:
        text += [*driver_part(light, run), measured_on(light), *projection(result, gpu, gpu_driver(run)[0])]
    return ["\n".join(text)]
