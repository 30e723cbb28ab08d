"""The Ray engine in docs/results.md, from its measured scaling."""

HEAD = """
## Scaling of the Ray engine

{env}, {num_envs} environments, {states_per_update:g} states per update, on one machine whose cores all processes share:
more workers cannot bring more steps here; the table measures the overhead. The aim is 0.6 of the local engine with
two workers on two cores.

| | steps/s | of the local engine | updates/s | MB/s moved | CPU ms per 1,000 steps | learner waits |
|---|--:|--:|--:|--:|---|--:|"""

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
