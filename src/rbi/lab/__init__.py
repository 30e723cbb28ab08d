"""Small problems with known solutions: the paper's bandit, finite MDPs, and the safe-policy-improvement study."""
