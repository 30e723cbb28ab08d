"""Changes of the preset `fast` that runs are compared in."""

from dataclasses import replace

VARIANTS = {  # changes of the preset: part, setting, value
    "base": (),
    "unshifted": (("learner", "shift", 0),),
    "without-norm": (("pace", "norm", "none"),),
    "plain": (  # what the preset was before
        ("pace", "norm", "none"),
        ("learner", "shift", 0),
        ("learner", "learning_rate", 1e-4),
        ("learner", "final_rate", 1.0),
    ),
    "pi": (("learner", "centres", "pi"),),
    "learner": (("actor", "improves", "learner"),),
    "greedy.3": (("actor", "c_greedy", 0.3),),
    "nowpi": (("learner", "weighs_policy", False),),
    "replay250k": (("replay", "states", 250_000),),
    "replay128k": (("replay", "states", 128_000),),
    "target200": (("learner", "target_updates", 200),),
    "target200-anneal": (
        ("learner", "target_updates", 200),
        ("learner", "learning_rate", 2e-4),
        ("learner", "final_rate", 0.05),
    ),
    "n10": (("horizon", "steps", 10),),
    "fresh": (  # each state is drawn four times, soon after it was seen
        ("pace", "states_per_update", 64.0),
        ("learner", "batch", 256),
        ("learner", "learning_rate", 5e-4),
        ("learner", "target_updates", 200),
        ("replay", "states", 250_000),
    ),
    "uniform": (("replay", "priority_exponent", 0.0),),
    "net": (("learner", "bootstraps", "net"),),
    "apex": (("", "algo", "apex"),),
}


def variant(base, changes):
    for part, name, value in changes:
        whole = {name: value} if not part else {part: replace(getattr(base, part), **{name: value})}
        base = replace(base, **whole)
    return base
