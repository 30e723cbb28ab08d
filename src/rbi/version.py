"""The version, in one place: the package, the build and the run folders read it here."""

__version__ = "0.1.0"
