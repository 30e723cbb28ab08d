"""The speed of offline learning in docs/results.md, from raw results."""

from benchmarks.tables import load, measured_on

SPEED_HEAD = """
## Speed of offline learning

Updates/s at batch size 32 with the paper's networks (hidden size 1024, batch norm), sampling and Adam included.
"""

ROWS = {
    "beta": "beta alone",
    "q": "Q alone, Monte-Carlo",
    "beta_and_q": "beta and Q in each update",
    "dqfd": "DQfD",
    "bcq": "BCQ",
    "cql": "CQL",
    "all_four_at_once": "all four learners in parallel, each",
    "all_four_of_3_seeds_at_once": "all four learners of three seeds in parallel, each",
    "bc": "d3rlpy's DiscreteBC",
    "double_dqn": "d3rlpy's DoubleDQN",
}

GPU_AIM = 3000

FORWARD = [2 * m * k * n for m, k, n in ((400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 1024))]
OPERATIONS = 3 * sum(FORWARD) - FORWARD[0]  # a sample: forward, and backward without the input's own gradient


def speed(results):
    """One table per machine."""
    parts = [SPEED_HEAD]
    for result in results:
        lines = ["| | updates/s |", "|---|--:|"]
        for name, value in {**result["ours"], **result.get("d3rlpy", {})}.items():
            lines.append(f"| {ROWS[name]} | {value:,.1f} |" if value < 100 else f"| {ROWS[name]} | {value:,.0f} |")
        parts.append("\n".join(lines))
        parts.append(compare_with_d3rlpy(result) if "times" in result else on_gpu(result))
        parts.append(f"\n{measured_on(result)}\n")
    return parts


def on_gpu(result):
    """The result on the GPU compared with its aim."""
    beta, critic, both = (result["ours"][name] for name in ("beta", "q", "beta_and_q"))
    verdict = "reached" if min(beta, critic) >= GPU_AIM else "not reached"
    return (
        f"\n**Aim {verdict}:** {GPU_AIM:,} updates/s of each alone (beta {beta:,.0f}, Q {critic:,.0f}; both in one "
        f"update {both:,.0f}). {compared(result)}"
    )


def compared(result):
    """The same measurement of an earlier commit in the same call, if there was one."""
    if "previous_commit" not in result:
        return ""
    before = result["previous_commit"]
    rates = ", ".join(f"{ROWS[name]} {value:,.0f}" for name, value in before["ours"].items())
    return f"Commit {before['commit']} in the same call: {rates}."


def compare_with_d3rlpy(result):
    """The ratio to the peer, and the largest ratio that arithmetic allows."""
    beta, critic, both = (result["times"][name] for name in ("beta", "critic", "both"))
    monte_carlo = result["ours"]["q"] / result["d3rlpy"]["double_dqn"]
    limit = result["operations_limit"]
    most = limit / OPERATIONS / result["batch"]
    return (
        f"\nRatios to d3rlpy {result['d3rlpy_version']}: beta {beta:.1f} times DiscreteBC; Monte-Carlo Q, the paper's "
        f"critic, which evaluates no next state, {monte_carlo:.1f} times DoubleDQN; a critic with DoubleDQN's work and "
        f"CQL's penalty {critic:.1f} times; beta and Q in one update {both:.1f} times both of theirs in turn. **The "
        f"aim, 2 times each, is {'reached' if min(beta, critic) >= 2 else 'not reached by all'}.** Arithmetic is the "
        f"bound: {limit / 1e9:.0f} GFLOP/s in a large product and {OPERATIONS / 1e6:.0f} MFLOP per sample allow "
        f"{most:.0f} updates/s of one network, {most / result['d3rlpy']['bc']:.1f} times DiscreteBC."
    )


def offline_part():
    """The section, if it was measured."""
    measured = [found for kind in ("cpu", "cuda") if (found := load(f"offline-speed-{kind}.json"))]
    return speed(measured) if measured else []
