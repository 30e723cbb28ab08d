"""Online RL with RBI and its baseline Ape-X.

rbi.py      RBI's actor and learner, as the paper's Algorithms
apex.py     Ape-X's
config.py   all settings and the presets
engine.py   the training loop on one machine, on a CPU or as CUDA graphs
train.py    `rbi.train`: logging, checkpoints, policies, evaluation
sweep.py    several environments, algorithms and seeds
ray/        the same training on a Ray cluster
"""
