"""The Ray engine in docs/results.md, from its measured scaling."""

import math

from benchmarks.tables import load, measured_on, table_row
from rbi.online.config import MAX_PUBLICATIONS

HEAD = """
## Scaling of the Ray engine

{env}, {num_envs} environments, {states_per_update:g} states per update, on one machine whose cores all processes share:
more workers cannot bring more steps here; the table measures the overhead. The aim is 0.6 of the local engine with
two workers on two cores.

| | steps/s | of the local engine | updates/s | MB/s moved | CPU ms per 1,000 steps | learner waits |
|---|--:|--:|--:|--:|---|--:|"""

GPU_HEAD = """
## The Ray engine with a GPU

{env}, preset fast, {num_envs} environments, {states_per_update:g} states per update: learner, replay and four rollout
workers with their actors share one GPU, in processes of their own. Both engines take turns in the same run, {seconds} s
each, and every row is compared with the mean of the local engine's two measurements, which differ by up to {noise:.0%}.
Aims: 0.8 of its steps/s, 0.9 of its updates/s.

| steps per block | emulator processes | actions by | steps/s: local | Ray | ratio | updates/s: local | Ray | ratio |
|--:|--:|---|--:|--:|--:|--:|--:|--:|"""

GPU_LEARNER = """
**Both aims are reached in every measurement** in which workers compute their actions themselves, also with the default
blocks of 4 steps. An inference worker on the same machine is slower: frame stacks and outputs pass through Ray at every
step, and emulators wait meanwhile. It is for rollout workers on machines without a GPU.

The learner process alone, with its replay in GPU memory, does {alone:,.0f} updates/s; while it stores blocks of
{states:,} states and publishes its weights after every {updates} updates, {fed:,.0f}, **{share:.3f}** of it (aim 0.95).
Storing takes {store:.1f} us per state: {mb:.1f} GB/s of frames.

CPU time in ms per 1,000 steps, with blocks of {blocks} steps: emulators {env_ray:.0f} (local engine: {env_local:.0f});
main threads of workers and learner {own_ray:.0f} (local engine: {own_local:.0f}); the driver {driver:.0f}; Ray itself
{itself:.0f}. Of 16 cores {idle:.1f} were idle, with the local engine {idle_local:.1f}. Both engines are limited by the
emulators.

Before, {before_rows} measurements of layouts with one to four workers gave {before_low:.2f} to {before_high:.2f}. CPU
time per thread showed two causes. Workers loaded the newest weights again at every step and converted them on all of
their CPUs: threads other than main threads and emulators took {before_other:.0f} ms per 1,000 steps, now
{after_other:.0f}. And processes waited for the GPU in a busy loop: main threads took {before_own:.0f} ms, now
{own_ray:.0f}. CUDA's Multi-Process Service, measured before these fixes, was ahead with two workers and behind with
four.

### Learning curves of the Ray engine

Scores of the low-epsilon environments during training, after the same number of updates:

| engine | steps per block | seed | after 20,000 | 30,000 | 40,000 | {updates_total:,} | seconds |
|---|--:|--:|--:|--:|--:|--:|--:|"""

LEARNING_END = """
With blocks of 16 steps, the default before, the Ray engine is a few thousand updates late: weights are old when their
block arrives. With blocks of 4 they are {low} to {high} updates old, and what remains is within the noise of two seeds.
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
they use (above 1 there is not enough of it) and the number of workers that exhausts it. Measured parts: {block:,.0f}
bytes per state, in blocks of {states}; a GPU learner does {updates:,.0f} updates/s while it stores blocks, and takes
{store:.1f} us to store a state, {into:,.0f} blocks/s; {weights:.0f} MB of weights, published at most four times while
all workers make a block, and fetched once per machine; {driver:.1f} ms of the driver per block (light workers) and
{publication:.1f} ms per publication (the rest in the run with a GPU); a replay shard takes {adding:.0f} us to store a
state and {drawing:.1f} ms to sample a batch of {batch:.1f} MB. Nothing with more than 50 workers was run.

| | 10 Gb/s: 100 | 1,000 | full with | 100 Gb/s: 100 | 1,000 | full with | what moves it |
|---|--:|--:|--:|--:|--:|--:|---|"""

BOTTLENECK = """
With the replay in the learner, what breaks first at {ratio} states per update is {first}; at {many}, as in the paper,
{then}. Weights are an upper bound, as if the driver's machine sent every copy; in fact, machines that
have them pass them on. [The cluster guide](cluster.md#scaling-limits) says which settings to change.
"""

WORKERS = 4  # of the run with a GPU
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

    `parts`: `atari` of benchmarks.ray_scaling, with `driver_seconds_per_block`, `driver_seconds_per_publication`,
    `learner_updates_per_second` and `learner_seconds_per_state`.
    """
    steps, network = workers * WORKER_STEPS, gigabits * 1e9 / 8
    updates, blocks = steps / ratio, steps / parts["states_per_block"]
    nodes = max(1, workers / WORKERS_PER_NODE)
    block_states = parts["states_per_block"] * max(1, workers / MAX_PUBLICATIONS)
    publish = publish_interval * max(1, math.ceil(block_states / ratio / publish_interval))
    versions = min(updates / publish, blocks / nodes)  # that each machine fetches per second
    driver = blocks * parts["driver_seconds_per_block"] + updates / publish * parts["driver_seconds_per_publication"]
    return {
        "learner: updates": updates / parts["learner_updates_per_second"],
        "learner: storing": steps * parts["learner_seconds_per_state"],
        "network: experience to the learner": steps * parts["block_bytes_per_state"] / network,
        "network: weights to the workers": versions * nodes * parts["weight_bytes"] / network,
        "driver": driver,
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
    row = run["ray"][0]
    return row["cpu_ms_per_1000_steps"]["driver"] * row["blocks_of_states"] / 1e6, row["blocks_of_states"]


def driver_costs(light, run):
    """CPU seconds of the driver per block and per publication; the run with a GPU has one publication per block."""
    per_block = max(row["cpu_ms_per_block"] for row in light["light_workers"]) / 1e3
    return per_block, max(0.0, gpu_driver(run)[0] - per_block)


def projection(result, gpu, per_block, per_publication):
    """The table of shares for each number of states per update, and what breaks first."""
    parts = result["atari"] | {
        "driver_seconds_per_block": per_block,
        "driver_seconds_per_publication": per_publication,
        "learner_updates_per_second": gpu["updates_per_second_with_blocks_and_weights"],
        "learner_seconds_per_state": gpu["seconds_per_stored_state"],
    }
    lines = [
        PROJECTION_HEAD.format(
            steps=WORKER_STEPS, per_node=WORKERS_PER_NODE, block=parts["block_bytes_per_state"],
            states=parts["states_per_block"], updates=parts["learner_updates_per_second"],
            store=1e6 * parts["learner_seconds_per_state"],
            into=1 / parts["learner_seconds_per_state"] / parts["states_per_block"],
            weights=parts["weight_bytes"] / 1e6, driver=1e3 * per_block, publication=1e3 * per_publication,
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
            lines.append(table_row([name, *cells, setting]))
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


def where_it_is_lost(local, ray):
    """CPU ms per 1,000 steps by kind of thread, and idle cores, of the local engine and of Ray's."""
    here, there = local["thread_ms_per_1000_steps"]["all"], ray["thread_ms_per_1000_steps"]
    spent = ray["cpu_ms_per_1000_steps"]
    return {
        "env_local": here["python"], "own_local": here["first thread"], "idle_local": local["idle_cores"],
        "env_ray": there["rollout workers"]["python"], "own_ray": own_threads(ray), "idle": ray["idle_cores"],
        "driver": spent["driver"], "itself": spent["Ray itself"], "after_other": other_threads(ray),
        "blocks": ray["block_steps"],
    }  # fmt: skip


def own_threads(row):
    """CPU ms per 1,000 steps of the first threads of workers and learner."""
    return sum(row["thread_ms_per_1000_steps"][part]["first thread"] for part in ("rollout workers", "learner"))


def other_threads(row):
    """CPU ms per 1,000 steps of the workers' other threads; emulators have their own processes."""
    threads = row["thread_ms_per_1000_steps"]["rollout workers"]
    return sum(ms for name, ms in threads.items() if name not in ("python", "first thread"))


def compared(run):
    """Every measurement of the Ray engine, with its rates by those of the local engine in the same run."""
    for row in run["ray"]:
        rates = ("steps_per_second", "updates_per_second")
        yield row, [(mean_rate(run["local"], rate), row[rate]) for rate in rates]


def mean_rate(rows, rate):
    """The mean of a rate over several measurements."""
    return sum(row[rate] for row in rows) / len(rows)


def gpu_part():
    """The engine on one machine with a GPU, if it was measured."""
    names = ("after", "before", "learner", "learning")
    after, before, learner, learning = (load(f"ray-gpu/{name}.json") for name in names)
    if not (after and before and learner and learning):
        return []
    runs = after["measurements"]
    steps = [[row["steps_per_second"] for row in run["local"]] for run in runs]
    lines = [GPU_HEAD.format(**runs[0], noise=max(max(rates) / min(rates) - 1 for rates in steps))]
    for row, rates in (pair for run in runs for pair in compared(run)):
        inference = row["cluster"].get("inference_workers", 0)
        groups = 2 * row["workers"]
        cells = [str(row["block_steps"]), str(groups * (row["env_threads"] or 2))]
        cells += ["an inference worker" if inference else "the workers"]
        for local, ray in rates:
            cells += [f"{local:,.0f}", f"{ray:,.0f}", f"{ray / local:.2f}"]
        lines.append(table_row(cells))
    alone, fed = (learner[f"updates_per_second_{name}"] for name in ("alone", "with_blocks_and_weights"))
    store = learner["seconds_per_stored_state"]
    ratios = [ray / local for _, rates in compared(before) for local, ray in rates]
    processes = [row for row in before["ray"] if row["workers"] == WORKERS and row["env_threads"]]
    text = GPU_LEARNER.format(
        alone=alone, fed=fed, share=fed / alone, states=learner["states_per_block"],
        updates=learner["updates_per_round"], store=1e6 * store, mb=84 * 84 / store / 1e9,
        before_rows=len(before["ray"]), before_low=min(ratios), before_high=max(ratios),
        before_other=max(map(other_threads, processes)), before_own=max(map(own_threads, processes)),
        updates_total=learning["updates"], **where_it_is_lost(runs[-1]["local"][-1], runs[-1]["ray"][0]),
    )  # fmt: skip
    rows = sorted(learning["runs"], key=lambda run: -run.get("block_steps", 99))  # the local engine's first
    scores = [f"| {' | '.join(learning_cells(run))} |" for run in rows]
    age = [p["weights_behind"] for run in rows for p in run["curve"] if p.get("weights_behind") and p["updates"] > 5000]
    sources = "\n\n".join(dict.fromkeys(map(measured_on, [*runs, before, learner, learning])))
    end = LEARNING_END.format(low=min(age), high=max(age))
    return ["\n".join([*lines, text, *scores, end, sources])]


def learning_cells(run):
    """A row of the table of learning: the scores next to given numbers of updates."""
    scored = [point for point in run["curve"] if point["score"] is not None]
    near = [min(scored, key=lambda p, at=at: abs(p["updates"] - at)) for at in (20_000, 30_000, 40_000, 10**9)]
    engine = "local" if run["engine"] == "local" else "Ray, 4 workers"
    cells = [engine, str(run.get("block_steps", "")), str(run["seed"])]
    return [*cells, *(f"{point['score']:.1f}" for point in near), f"{run['seconds']:.0f}"]


def ray_part():
    """The section, if it was measured."""
    result = load("ray-scaling.json")
    if not result:
        return []
    lines = [HEAD.format(**result)]
    local = mean_rate(result["local"], "steps_per_second")
    for row in (*result["local"], *result["ray"]):
        spent = ", ".join(f"{name} {ms:.0f}" for name, ms in row["cpu_ms_per_1000_steps"].items())
        cells = [f"Ray, {row['workers']} worker{'s' * (row['workers'] > 1)}" if "workers" in row else "local engine"]
        cells += [f"{row['steps_per_second']:,.0f}", f"{row['steps_per_second'] / local:.2f}"]
        cells += [f"{row['updates_per_second']:,.0f}", f"{sum(row['bytes_per_second'].values()) / 1e6:.1f}", spent]
        lines.append(table_row([*cells, f"{row['learner_waited']:.0%}"]))
    gpu, runs, light = (load(f"{name}.json") for name in ("ray-gpu/learner", "ray-gpu/after", "ray-driver"))
    text = [*lines, "", measured_on(result)]
    if gpu and runs and light:
        run = runs["measurements"][-1]
        text += [*driver_part(light, run), measured_on(light), *projection(result, gpu, *driver_costs(light, run))]
    return ["\n".join(text)]
