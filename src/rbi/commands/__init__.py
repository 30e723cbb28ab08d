"""The commands: one file each, settings that the command line fills and that can run."""
