"""Evaluation of policies: rollouts under a stated protocol, comparison, recording of episodes, video."""
