"""The Ray engine in docs/results.md, from its measured scaling."""

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
differs by 5% between them. CUDA's Multi-Process Service (MPS), which lets kernels of several processes run at once, was
ahead with two workers and behind with four: whether it helps is not settled, and neither is where the rest is lost.
"""

PROJECTION_HEAD = """
### Projection: rollout workers on an Atari game

Share of each resource used by workers of 1,000 steps/s each, from measured parts: {block:,.0f} bytes per state in
blocks of {states} states, {batch:.1f} MB per batch, {weights:.1f} MB of weights, {adding:.0f} us per state to add to a
replay shard, {drawing:.1f} ms per update to sample from it, {driver:.1f} ms of the driver per block. Above 1 the
resource is exhausted; the three largest are shown.

| states per update, publish interval | workers | share used |
|---|--:|---|"""

BOTTLENECK = """
At {ratio} states per update the CPU of a single replay shard is the first bottleneck, with {shard:.0f} workers; with
shards on other machines it is the network that carries their batches, with {network:.0f}. More states per update make
batches rarer. [The cluster guide](cluster.md#how-far-it-goes) says which settings to change.
"""


def gpu_part(load, measured_on):
    """The engine on one machine with a GPU, if it was measured."""
    runs = [load(f"ray-gpu/workers-{name}.json") for name in ("2", "2-mps", "4", "4-mps")]
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
        seconds="10 to 12",
        driver=runs[2]["ray"][0]["cpu_ms_per_1000_steps"]["driver"],
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
    atari = result["atari"]
    lines.append(
        PROJECTION_HEAD.format(
            block=atari["block_bytes_per_state"],
            states=atari["states_per_block"],
            batch=atari["batch_bytes_per_update"] / 1e6,
            weights=atari["weight_bytes"] / 1e6,
            adding=1e6 * atari["shard_seconds_per_state"],
            drawing=1e3 * atari["shard_seconds_per_update"],
            driver=1e3 * result["driver"]["seconds_per_block"],
        )
    )
    for case in result["on_paper"]:
        for row in case["rows"]:
            uses = sorted(row["uses"].items(), key=lambda use: -use[1])[:3]
            shares = ", ".join(f"{name} {use:.2f}" for name, use in uses)
            setting = f"{case['states_per_update']}, {case['publish_interval']} updates"
            lines.append(f"| {setting} | {row['workers']:,} | {shares} |")
    first = result["on_paper"][0]
    each = first["rows"][0]["steps_per_second"]
    full = {name: steps / each for name, steps in first["full_at_steps_per_second"].items()}
    bottleneck = BOTTLENECK.format(
        ratio=first["states_per_update"],
        shard=full["CPU of one replay shard"],
        network=full["network: batches from remote shards"],
    )
    return ["\n".join([*lines, bottleneck, measured_on(result)])]
