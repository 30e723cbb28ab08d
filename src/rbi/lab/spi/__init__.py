"""The safe-policy-improvement study."""
