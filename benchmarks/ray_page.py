"""The part of docs/results.md on the Ray engine, from its measured scaling."""

HEAD = """
## Scaling of the Ray engine

{env}, {players} players, {states_per_update:g} states an update, one machine, whose processors all processes share:
more workers bring no more steps here. What is measured is the wiring. The aim is 0.6 of the local engine with two
workers on two cores.

| | steps/s | of the local engine | updates/s | MB/s moved | processor ms for 1,000 steps | learner waits |
|---|--:|--:|--:|--:|---|--:|"""

PAPER_HEAD = """
### On paper: workers of an Atari game

How much of each resource so many workers of 1,000 steps/s would use, from measured pieces: {block:,.0f} bytes a state
in blocks of {states} states, {batch:.1f} MB a batch, {weights:.1f} MB of weights, {adding:.0f} us to add and
{drawing:.1f} ms an update to draw in a shard, {driver:.1f} ms of the driver for a block. Above 1 it breaks; the largest
comes first.

| states an update, publish every | workers | uses |
|---|--:|---|"""

TELLS = """
At {ratio} states an update the first thing to break is the one shard's processor, with {shard:.0f} workers; with shards
on other machines it is the network that their batches cross, with {network:.0f}. More states an update make batches
rarer. [docs/cluster.md](cluster.md#how-far-it-goes) says what to set.
"""


def cluster_part(load, measured_on):
    """Markdown of what has been measured."""
    result = load("ray-scaling.json")
    if not result:
        return []
    lines = [HEAD.format(**result)]
    local = result["local"]["steps_per_second"]
    for row in (result["local"], *result["ray"]):
        spent = ", ".join(f"{name} {ms:.0f}" for name, ms in row["processor_ms_per_1000_steps"].items())
        cells = [f"Ray, {row['workers']} workers" if "workers" in row else "local engine"]
        cells += [f"{row['steps_per_second']:,.0f}", f"{row['steps_per_second'] / local:.2f}"]
        cells += [f"{row['updates_per_second']:,.0f}", f"{sum(row['bytes_per_second'].values()) / 1e6:.1f}", spent]
        lines.append("| " + " | ".join([*cells, f"{row['learner_waited']:.0%}"]) + " |")
    atari = result["atari"]
    lines.append(
        PAPER_HEAD.format(
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
            told = ", ".join(f"{name} {use:.2f}" for name, use in uses)
            setting = f"{case['states_per_update']}, {case['publish_updates']} updates"
            lines.append(f"| {setting} | {row['workers']:,} | {told} |")
    first = result["on_paper"][0]
    each = first["rows"][0]["steps_per_second"]
    full = {name: steps / each for name, steps in first["full_at_steps_per_second"].items()}
    told = TELLS.format(
        ratio=first["states_per_update"],
        shard=full["one shard's processor"],
        network=full["network: batches from shards elsewhere"],
    )
    return ["\n".join([*lines, told, measured_on(result)])]
