"""Figures and tables: they read run folders, never live objects."""
