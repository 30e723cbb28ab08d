"""Online RL with RBI and its baseline Ape-X.

rbi.py          RBI's actor and learner, as the paper's Algorithms
apex.py         Ape-X's
config.py       all settings and the presets
engine.py       the training loop on one machine, on a CPU or as CUDA graphs
train.py        `rbi.train`: settings, run folders, resuming
run_logger.py   its logging, checkpoints, policies, evaluation
sweep.py        several environments, algorithms and seeds
rollout.py      distributed runs: environments and actors, which make blocks of experience
stream.py       ... their replay and learner, which take the blocks
distributed.py  ... what the driver counts: states, updates, losses
ray/            ... on a Ray cluster
"""
