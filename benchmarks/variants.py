"""Variants of the preset `fast` that benchmarks compare."""

from dataclasses import replace

VARIANTS = {  # changes to the preset: (part, setting, value)
    "base": (),
    "unshifted": (("learner", "augmentation", 0),),
    "without-norm": (("schedule", "norm", "none"),),
    "plain": (  # the preset before layer norm and augmentation
        ("schedule", "norm", "none"),
        ("learner", "augmentation", 0),
        ("learner", "learning_rate", 1e-4),
        ("learner", "final_lr_fraction", 1.0),
    ),
    "pi": (("learner", "advantage_baseline", "pi"),),
    "learner": (("actor", "improve_in", "learner"),),
    "greedy.3": (("actor", "c_greedy", 0.3),),
    "nowpi": (("learner", "policy_weighting", False),),
    "replay250k": (("replay", "capacity", 250_000),),
    "replay128k": (("replay", "capacity", 128_000),),
    "target200": (("learner", "target_update_interval", 200),),
    "target200-anneal": (
        ("learner", "target_update_interval", 200),
        ("learner", "learning_rate", 2e-4),
        ("learner", "final_lr_fraction", 0.05),
    ),
    "n10": (("returns", "n_step", 10),),
    "fresh": (  # each state is sampled four times, soon after it was collected
        ("schedule", "states_per_update", 64.0),
        ("learner", "batch_size", 256),
        ("learner", "learning_rate", 5e-4),
        ("learner", "target_update_interval", 200),
        ("replay", "capacity", 250_000),
    ),
    "uniform": (("replay", "priority_exponent", 0.0),),
    "net": (("learner", "bootstrap_policy", "net"),),
    "apex": (("", "algo", "apex"),),
}


def variant(base, changes):
    for part, name, value in changes:
        whole = {name: value} if not part else {part: replace(getattr(base, part), **{name: value})}
        base = replace(base, **whole)
    return base
