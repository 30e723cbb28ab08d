"""For researchers: improvement rules on 10,000 noisy estimates of one state's advantages, scored with the true ones."""

import numpy as np

import rbi

beta = np.array([0.7, 0.25, 0.05])  # the behaviour policy
advantage = np.array([0.3, -0.4, -2.2])  # the truth: sum_a beta(a) A(a) = 0
noise = np.random.default_rng(0).normal(size=(10_000, 3)) * 2 / np.sqrt(20 * beta)  # 20 samples of variance 4

for rule in (rbi.Behavior(), rbi.Reroute(0.5, 1.5), rbi.TotalVariation(0.25), rbi.PPO(0.5), rbi.Greedy()):
    gain = rule(np.broadcast_to(beta, noise.shape), advantage + noise) @ advantage
    print(f"{rule!s:18} mean gain {gain.mean():+.3f}, worst 1% {np.sort(gain)[:100].mean():+.3f}")
