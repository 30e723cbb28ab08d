"""The safe-policy-improvement study: worlds, algorithms and statistics."""
